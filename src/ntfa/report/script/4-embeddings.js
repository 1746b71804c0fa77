// Embeddings in the plane: axes, crosses, what is uncertain about them, labels and legend.

// Radii, in standard deviations, that hold 50% and 95% of a normal in one and in two dimensions.
const REACH = { 1: [0.67449, 1.959964], 2: [1.17741, 2.447747] };
const MOST_FILLED = 12;
const MOST_OUTLINED = 30;
const MOST_LABELS = 30;
// Of one dimension every point has a line of its own, and so room.
const MOST_RANKED = 60;
const OUTLIERS = 8;
// Ellipses may widen the picture by this share of the points' extent on each side, and no more.
const MOST_MARGIN = 0.3;

/** Middle and extent of the points along one direction, with some room for their ellipses. */
function extent(flat, d) {
  const values = flat.points.map((p) => p[d]);
  const low = Math.min(...values), high = Math.max(...values);
  const reach = flat.covs && !(flat.ranked && d === 1) ? flat.covs.map((c) => 2.5 * Math.sqrt(c[2 * d])) : values.map(() => 0.5 * flat.ranked);
  const most = high > low ? MOST_MARGIN * (high - low) : Infinity;
  const bottom = Math.max(low - most, Math.min(...values.map((value, i) => value - reach[i])));
  const top = Math.min(high + most, Math.max(...values.map((value, i) => value + reach[i])));
  return [(bottom + top) / 2, Math.max(top - bottom, 1e-6) * 1.12];
}

/** Where data go on the screen: both axes on one scale unless the second is a rank; `view` zooms and pans. */
function frame(flat, width, height, view) {
  const span = [extent(flat, 0), extent(flat, 1)];
  const inner = { left: 46, right: width - 10, top: 10, bottom: height - 38 };
  const scales = [(inner.right - inner.left) / span[0][1], (inner.bottom - inner.top) / span[1][1]];
  if (!flat.ranked) scales[0] = scales[1] = Math.min(...scales);
  const middle = [(inner.left + inner.right) / 2 + view.x, (inner.top + inner.bottom) / 2 + view.y];
  const zoomed = scales.map((scale) => scale * view.scale);
  return {
    inner, scales: zoomed,
    x: (value) => middle[0] + (value - span[0][0]) * zoomed[0],
    y: (value) => middle[1] - (value - span[1][0]) * zoomed[1],
    valueX: (pixel) => span[0][0] + (pixel - middle[0]) / zoomed[0],
    valueY: (pixel) => span[1][0] - (pixel - middle[1]) / zoomed[1],
  };
}

function ticks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + 1e-9; value += step) found.push(Number(value.toFixed(10)));
  return found;
}

function drawAxes(picture, place, plane) {
  const { left, right, top, bottom } = place.inner;
  picture.append(svg("path", { class: "axis", d: `M${left} ${top}V${bottom}H${right}` }));
  for (const value of ticks(place.valueX(left), place.valueX(right), 6)) {
    picture.append(svg("path", { class: "axis", d: `M${place.x(value)} ${bottom}v4` }), svg("text", { x: place.x(value), y: bottom + 16, "text-anchor": "middle" }, number(value, 4)));
  }
  for (const value of ticks(place.valueY(bottom), place.valueY(top), 6)) {
    if (plane.ranked && value % 1) continue;
    picture.append(svg("path", { class: "axis", d: `M${left} ${place.y(value)}h-4` }), svg("text", { x: left - 7, y: place.y(value) + 4, "text-anchor": "end" }, number(value, 4)));
  }
  picture.append(svg("text", { x: (left + right) / 2, y: bottom + 33, "text-anchor": "middle" }, plane.axes[0]));
  const middle = (top + bottom) / 2;
  picture.append(svg("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, plane.axes[1]));
}

/** What is drawn inside the axes and cut off at them: a picture in the picture, in the same coordinates. */
function insideOf({ left, right, bottom }, ...children) {
  const box = [left, 0, right - left + 10, bottom];
  return svg("svg", { x: box[0], y: box[1], width: box[2], height: box[3], viewBox: box.join(" "), class: "inside" }, ...children);
}

/** Black is the colour of text, which dark pages have in white. */
const visible = (colour) => (colour === "#000000" ? "currentColor" : colour);

function markPath(mark, size) {
  if (mark === 1) return `M${-size} ${-size}L${size} ${size}M${-size} ${size}L${size} ${-size}`;
  if (mark === 2) return `M${size} 0A${size} ${size} 0 1 0 ${-size} 0A${size} ${size} 0 1 0 ${size} 0`;
  return `M${-size} 0H${size}M0 ${-size}V${size}`;
}

/** What is uncertain about a point: filled ellipses, outlines, or lines where there is one dimension. */
function drawEllipses(cov, place, colour, filled, ranked) {
  if (ranked) {
    const sd = Math.sqrt(cov[0]) * place.scales[0];
    return REACH[1].map((reach, i) => svg("path", { d: `M${-reach * sd} 0H${reach * sd}`, stroke: colour, "stroke-width": i ? 1 : 4, "stroke-opacity": filled ? 0.45 : 0.25 }));
  }
  const [a, b, c] = cov;
  const mean = (a + c) / 2, spread = Math.hypot((a - c) / 2, b);
  const angle = (-Math.atan2(2 * b, a - c) / 2) * (180 / Math.PI);
  return [...REACH[2]].reverse().map((reach, i) => svg("ellipse", {
    rx: reach * Math.sqrt(mean + spread) * place.scales[0], ry: reach * Math.sqrt(Math.max(mean - spread, 0)) * place.scales[0],
    transform: `rotate(${angle})`, fill: filled ? colour : "none", "fill-opacity": 0.13, stroke: colour, "stroke-opacity": filled ? 0.35 : i ? 0.4 : 0.22,
  }));
}

/** Those to label among many: the ones furthest from their nearest neighbours, and so easiest to ask about. */
function outliers(points, count) {
  const lonely = points.map((p, i) => {
    const distances = points.map((q, j) => (i === j ? Infinity : Math.hypot(p[0] - q[0], p[1] - q[1])));
    return distances.sort((a, b) => a - b).slice(0, 3).reduce((sum, d) => sum + d, 0);
  });
  return range(points.length).sort((a, b) => lonely[b] - lonely[a]).slice(0, count);
}

/** Write labels where there is room: right, left, above or below the point, over no other label or point. */
function placeLabels(picture, spots, labels, place, which) {
  const taken = spots.map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
  const hit = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
  for (const i of which) {
    const [x, y] = spots[i];
    const text = svg("text", { "aria-hidden": "true", class: "label" }, short(labels[i], 18));
    picture.append(text);
    const wide = text.getComputedTextLength();
    const tries = [[x + 8, y + 4], [x - 8 - wide, y + 4], [x - wide / 2, y - 9], [x - wide / 2, y + 19]];
    const spot = tries.find(([left, base]) => {
      const box = [left, base - 11, left + wide, base + 3], { inner } = place;
      return left > inner.left && left + wide < inner.right + 8 && base - 11 > 0 && base < inner.bottom && !taken.some((other, j) => j !== i && hit(box, other));
    });
    if (!spot) {
      text.remove();
      continue;
    }
    fill(text, { x: spot[0], y: spot[1] }, []);
    taken.push([spot[0], spot[1] - 11, spot[0] + wide, spot[1] + 3]);
  }
}

/** A value and its standard deviation, both to the second digit of the latter. */
function withError(value, sd) {
  const decimals = Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(sd || 1))));
  return [value, sd].map((one) => one.toFixed(decimals).replace(/^-(?=0*\.?0*$)/, "").replace("-", "−")).join(" ± ");
}

function describeRow(kind, i) {
  const facts = kind.columns.map((column, c) => [column, kind.rows[i][c]]);
  const z = kind.mean[i].map((value, d) => ["z" + (d + 1), kind.sd ? withError(value, kind.sd[i][d]) : number(value)]);
  return [...facts, ...z];
}

function drawLegend(list, colouring, ramp) {
  list.replaceChildren();
  if (!colouring) return;
  for (const key of colouring.keys) {
    const mark = svg("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, svg("path", { d: markPath(key.mark, 5), stroke: visible(key.colour), "stroke-width": 2.2, fill: "none" }));
    list.append(html("li", {}, mark, key.name));
  }
  if (colouring.scale) {
    const bar = html("span", { class: "ramp", role: "img", "aria-label": "colours from low to high" });
    bar.style.background = "linear-gradient(to right," + ramp.map((c) => "rgb(" + c.join(",") + ")").join(",") + ")";
    list.append(html("li", {}, colouring.scale[0], bar, colouring.scale[1]));
  }
  if (colouring.note) list.append(html("li", {}, colouring.note));
}
