// Maps on slices of the brain that one can go through. Numbers come as bytes in base64.

const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const signed = (text) => new Int8Array(bytes(text).buffer);
// Axis that a slice is across, and the axes that go right and up in it: sagittal, coronal, axial.
const CUTS = [[0, 1, 2], [1, 0, 2], [2, 0, 1]];
const ZOOM = 5;

/** Maps of predicted values in cubes, and the template behind them. */
class Volumes {
  constructor(data) {
    Object.assign(this, data);
    const inside = bytes(data.inside), total = data.shape.reduce((a, b) => a * b);
    this.index = new Int32Array(total).fill(-1);
    this.n = 0;
    for (let cell = 0; cell < total; cell++) if (inside[cell >> 3] & (128 >> (cell & 7))) this.index[cell] = this.n++;
    this.grey = data.template ? { ...data.template, values: bytes(data.template.values) } : null;
    this.decoded = new Map();
    this.regionOf = data.regions && new Uint16Array(bytes(data.regions.cells).buffer);
  }

  /** Name of the region that a cell is in; nothing without an atlas, or outside of the brain. */
  region(cells) {
    const found = this.regionOf ? this.at(this.regionOf, cells) : null;
    return found === null ? "" : this.regions.names[found];
  }

  decode(packed) {
    const raw = signed(packed.values);
    return Float32Array.from(raw, (value) => (value * packed.scale) / 127);
  }

  /** The map of one participant or stimulus; null where it was left out. */
  map(kind, i) {
    const key = kind + i, packed = this.maps[kind]?.[i];
    if (!packed) return null;
    if (!this.decoded.has(key)) this.decoded.set(key, this.decode(packed));
    return this.decoded.get(key);
  }

  slopes(kind) {
    const key = kind + "-slopes";
    if (!this.decoded.has(key)) this.decoded.set(key, this.maps[kind + "_slopes"]?.map((packed) => this.decode(packed)) ?? null);
    return this.decoded.get(key);
  }

  /** Place of a voxel in mm of the place along an axis, and back. */
  toCell(mm, axis) {
    return Math.max(0, Math.min(this.shape[axis] - 1, Math.round((mm - this.origin[axis]) / this.size)));
  }

  toMm(cell, axis) {
    return this.origin[axis] + cell * this.size;
  }

  at(values, cells) {
    const found = this.index[(cells[0] * this.shape[1] + cells[1]) * this.shape[2] + cells[2]];
    return found < 0 ? null : values[found];
  }

  /** Where a map is strongest, in cells. */
  peak(values) {
    let best = 0, strength = -1;
    for (let cell = 0; cell < this.index.length; cell++) {
      const value = this.index[cell] < 0 ? -1 : Math.abs(values[this.index[cell]]);
      if (value > strength) [best, strength] = [cell, value];
    }
    const [, ny, nz] = this.shape;
    return [Math.floor(best / (ny * nz)), Math.floor(best / nz) % ny, best % nz];
  }
}

/** Where the difference of two embeddings changes the map by more than 1.96 of its standard deviations. */
function sureCells(volumes, kind, name, i, j) {
  const slopes = volumes.slopes(name);
  if (!slopes || !kind.covariances) return null;
  const apart = kind.mean[i].map((value, d) => value - kind.mean[j][d]);
  const [a, b] = [kind.covariances[i], kind.covariances[j]], dims = apart.length;
  return Uint8Array.from(range(volumes.n), (_, v) => {
    let change = 0, variance = 0, place = 0;
    for (let d = 0; d < dims; d++) {
      change += slopes[d][v] * apart[d];
      for (let e = 0; e <= d; e++, place++) variance += (d === e ? 1 : 2) * slopes[d][v] * slopes[e][v] * (a[place] + b[place]);
    }
    return change * change > 3.8415 * variance ? 1 : 0;
  });
}

/** Strength that the strongest colour of one map stands for: few values are beyond it. */
function limitOf(values) {
  const sorted = Float32Array.from(values, Math.abs).sort();
  return sorted[Math.floor(0.995 * (sorted.length - 1))] || 1e-9;
}

function newCanvas(width, height) {
  return fill(document.createElement("canvas"), { width, height }, []);
}

/** Paint one slice of the cubes: transparent near zero, fainter where it is not sure. */
function paintSlice(volumes, values, sure, limit, cut, depth) {
  const [axis, across, up] = CUTS[cut], width = volumes.shape[across], height = volumes.shape[up];
  const canvas = newCanvas(width, height), context = canvas.getContext("2d"), image = context.createImageData(width, height);
  const cell = [0, 0, 0], strides = [volumes.shape[1] * volumes.shape[2], volumes.shape[2], 1];
  cell[axis] = depth;
  for (let v = 0; v < height; v++) {
    for (let u = 0; u < width; u++) {
      cell[across] = u;
      cell[up] = height - 1 - v;
      const found = volumes.index[cell[0] * strides[0] + cell[1] * strides[1] + cell[2]];
      if (found < 0) continue;
      const share = Math.max(-1, Math.min(1, values[found] / limit)), strength = Math.abs(share);
      const end = share > 0 ? [202, 30, 30] : [30, 90, 200], place = 4 * (v * width + u);
      for (let c = 0; c < 3; c++) image.data[place + c] = end[c];
      image.data[place + 3] = 255 * Math.min(1, strength * 1.4) * (sure && !sure[found] ? 0.22 : 0.92);
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Paint the template, or where there is none the brain's shadow, behind a slice. */
function paintBackground(volumes, cut, depth) {
  const grey = volumes.grey ?? volumes, [axis, across, up] = CUTS[cut];
  const at = volumes.grey ? Math.round((volumes.toMm(depth, axis) - grey.origin[axis]) / grey.size) : depth;
  const width = grey.shape[across], height = grey.shape[up], canvas = newCanvas(width, height);
  const context = canvas.getContext("2d"), image = context.createImageData(width, height), cell = [0, 0, 0];
  cell[axis] = Math.max(0, Math.min(grey.shape[axis] - 1, at));
  for (let v = 0; v < height; v++) {
    for (let u = 0; u < width; u++) {
      cell[across] = u;
      cell[up] = height - 1 - v;
      const where = (cell[0] * grey.shape[1] + cell[1]) * grey.shape[2] + cell[2], place = 4 * (v * width + u);
      const shade = volumes.grey ? grey.values[where] : volumes.index[where] < 0 ? 0 : 205;
      for (let c = 0; c < 3; c++) image.data[place + c] = shade;
      image.data[place + 3] = shade ? 255 : 0;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Box of a painted grid on a slice's canvas, in pixels. */
function boxOf(volumes, grid, cut) {
  const [, across, up] = CUTS[cut], scale = ZOOM / volumes.size;
  const left = (grid.origin[across] - grid.size / 2 - (volumes.origin[across] - volumes.size / 2)) * scale;
  const top = volumes.origin[up] + (volumes.shape[up] - 0.5) * volumes.size - (grid.origin[up] + (grid.shape[up] - 0.5) * grid.size);
  return [left, top * scale, grid.shape[across] * grid.size * scale, grid.shape[up] * grid.size * scale];
}

/** Three slices of one map through a place that several maps share. */
class Slices {
  constructor(volumes, values, options) {
    Object.assign(this, { volumes, values, sure: null, factors: null, ...options });
    this.canvases = range(3).map((cut) => {
      const [, across, up] = CUTS[cut], names = ["sagittal", "coronal", "axial"];
      const canvas = fill(newCanvas(volumes.shape[across] * ZOOM, volumes.shape[up] * ZOOM), { role: "img", "aria-label": names[cut] + " slice of " + options.name }, []);
      const figure = html("div", { class: "slice" }, canvas);
      figure.style.flex = String(volumes.shape[across] / volumes.shape[up]);
      if (across === 0) figure.append(html("span", { class: "left" }, "L"), html("span", { class: "right" }, "R"));
      const go = (event) => this.goTo(event, canvas, cut);
      canvas.addEventListener("pointerdown", go);
      canvas.addEventListener("pointermove", (event) => event.buttons && go(event));
      return canvas;
    });
    this.said = html("p", { class: "note value" });
    this.element = html("div", {}, html("div", { class: "slices" }, ...this.canvases.map((canvas) => canvas.parentElement)), this.said);
  }

  goTo(event, canvas, cut) {
    const box = canvas.getBoundingClientRect(), [, across, up] = CUTS[cut], shape = this.volumes.shape;
    const clamp = (value, axis) => Math.max(0, Math.min(shape[axis] - 1, Math.floor(value)));
    const cells = [...this.place()];
    cells[across] = clamp(((event.clientX - box.left) / box.width) * shape[across], across);
    cells[up] = clamp((1 - (event.clientY - box.top) / box.height) * shape[up], up);
    this.move(cells);
  }

  draw() {
    const cells = this.place(), { volumes } = this;
    this.canvases.forEach((canvas, cut) => {
      const [axis, across, up] = CUTS[cut], context = canvas.getContext("2d");
      context.clearRect(0, 0, canvas.width, canvas.height);
      context.imageSmoothingEnabled = true;
      context.drawImage(paintBackground(volumes, cut, cells[axis]), ...boxOf(volumes, volumes.grey ?? volumes, cut));
      context.drawImage(paintSlice(volumes, this.values, this.sure, this.limit, cut, cells[axis]), ...boxOf(volumes, volumes, cut));
      if (this.factors && this.circles()) this.drawFactors(context, cut, cells);
      context.strokeStyle = "rgba(0, 140, 90, .75)";
      context.beginPath();
      const x = (cells[across] + 0.5) * ZOOM, y = canvas.height - (cells[up] + 0.5) * ZOOM;
      context.moveTo(x, 0);
      context.lineTo(x, canvas.height);
      context.moveTo(0, y);
      context.lineTo(canvas.width, y);
      context.stroke();
    });
    const value = volumes.at(this.values, cells), mm = cells.map((cell, axis) => volumes.toMm(cell, axis).toFixed(0)).join(", ");
    const region = volumes.region(cells);
    const doubt = this.sure && value !== null && !volumes.at(this.sure, cells) ? ", not sure" : "";
    this.said.textContent = "(" + mm.replaceAll("-", "−") + ") mm: " + (value === null ? "outside" : number(value) + doubt) + (region ? ", " + region : "");
  }

  /** Factors that a slice cuts, as circles of the size it cuts them at. */
  drawFactors(context, cut, cells) {
    const { volumes } = this, [axis, across, up] = CUTS[cut], scale = ZOOM / volumes.size, height = volumes.shape[up] * ZOOM;
    context.strokeStyle = "rgba(20, 20, 20, .55)";
    for (const factor of this.factors) {
      const radius = Math.sqrt(Math.max(factor[3] ** 2 - (factor[axis] - volumes.toMm(cells[axis], axis)) ** 2, 0));
      if (!radius) continue;
      const x = (factor[across] - volumes.origin[across] + volumes.size / 2) * scale;
      const y = height - (factor[up] - volumes.origin[up] + volumes.size / 2) * scale;
      context.beginPath();
      context.arc(x, y, radius * scale, 0, 2 * Math.PI);
      context.stroke();
    }
  }
}

/** Sliders that move the place which all slices of a panel go through. */
function sliders(volumes, place, move) {
  const names = ["left to right (x)", "back to front (y)", "bottom to top (z)"];
  const inputs = range(3).map((axis) => {
    const input = html("input", { type: "range", min: 0, max: volumes.shape[axis] - 1, "aria-label": "Slice, " + names[axis] });
    input.addEventListener("input", () => {
      const cells = [...place()];
      cells[axis] = Number(input.value);
      move(cells);
    });
    return input;
  });
  const update = () => inputs.forEach((input, axis) => (input.value = place()[axis]));
  const labels = inputs.map((input, axis) => html("label", {}, names[axis], input));
  return [html("div", { class: "controls sliders" }, ...labels), update];
}
