// One kind's picture with its lists, its search field, zoom and selection.

const ELLIPSES = [["filled", "filled"], ["outlines", "outlines"], ["selected", "of chosen points only"], ["none", "none"]];
const STILL = { scale: 1, x: 0, y: 0 };

class Plot {
  constructor(root, name, page) {
    Object.assign(this, { root, name, page, kind: page.kinds[name], first: null, second: null, hot: null, found: null, view: { ...STILL } });
    const kind = this.kind, title = name === "participant" ? "Participants" : "Stimuli", n = kind.labels.length;
    this.plane = kind.planes[0];
    this.uncertain = n <= MOST_FILLED ? "filled" : n <= MOST_OUTLINED || this.plane.ranked ? "outlines" : "selected";
    this.colouring = this.defaultColouring();
    this.picture = svg("svg", { role: "group", "aria-label": title + ": embeddings" });
    this.legend = html("ul", { class: "legend", "aria-label": "Colours" });
    this.verdict = html("div", { class: "verdict", role: "status" });
    this.panel = new Panel(page, name);
    const zoom = html("div", { class: "zoom" }, button("+", "Zoom in", () => this.zoom(1.5)), button("−", "Zoom out", () => this.zoom(1 / 1.5)), button("⟲", "Show all", () => this.look({ ...STILL })));
    root.append(html("h3", {}, title), html("div", { class: "canvas" }, this.picture, zoom, this.legend), html("div", { class: "side" }, this.controls(), this.verdict), this.panel.element);
    this.draw();
    this.say();
    this.listen();
    this.watchWidth();
  }

  watchWidth() {
    let width = this.picture.clientWidth;
    new ResizeObserver(() => {
      if (Math.abs(this.picture.clientWidth - width) <= 1) return;
      width = this.picture.clientWidth;
      this.draw();
    }).observe(this.root);
  }

  defaultColouring() {
    const standing = this.kind.colourings.find((c) => c.standing);
    if (standing) return standing;
    const usable = this.kind.colourings.filter((c) => c.keys.length > 1 && c.keys.length < this.kind.labels.length);
    return usable.sort((a, b) => a.keys.length - b.keys.length)[0] ?? this.kind.colourings[0] ?? null;
  }

  controls() {
    const kind = this.kind, points = [["", "nothing"], ...kind.labels.map((label, i) => [i, label])];
    const controls = html("div", { class: "controls" });
    const add = (text, options, value, change) => {
      const [label, select] = chooser(text, options, change);
      select.value = value;
      controls.append(label);
      return select;
    };
    if (kind.colourings.length) {
      const names = [["", "one colour"], ...kind.colourings.map((c, i) => [i, c.name])];
      add("Colour by", names, this.colouring ? kind.colourings.indexOf(this.colouring) : "", (value) => this.set({ colouring: value === "" ? null : kind.colourings[value] }));
    }
    if (kind.planes.length > 1) add("Show", kind.planes.map((plane, i) => [i, plane.name]), 0, (value) => this.set({ plane: kind.planes[value], view: { ...STILL } }));
    if (kind.sd) add(this.plane.ranked ? "Intervals" : "Ellipses", ELLIPSES, this.uncertain, (value) => this.set({ uncertain: value }));
    this.selectElement = add("Select", points, "", (value) => this.select(value === "" ? null : Number(value), this.second));
    this.compareElement = add("Compare with", points, "", (value) => this.select(this.first, value === "" ? null : Number(value)));
    if (kind.labels.length > 8) controls.append(this.searchField());
    return controls;
  }

  /** Marks whose label or known facts hold what is typed stand out; Enter selects the first. */
  searchField() {
    const field = html("input", { type: "search", placeholder: "label, group, …" });
    const matches = () => range(this.kind.labels.length).filter((i) => [this.kind.labels[i], ...this.kind.rows[i]].some((text) => text.toLowerCase().includes(field.value.trim().toLowerCase())));
    field.addEventListener("input", () => {
      this.found = field.value.trim() ? new Set(matches()) : null;
      this.draw();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.found?.size) this.select([...this.found][0], null);
    });
    this.searchElement = field;
    return html("label", {}, "Find", field);
  }

  set(change) {
    Object.assign(this, change);
    this.draw();
  }

  // --- pointing, zooming, panning

  /** Points lie close together, so the one nearest to the pointer is meant, not the one on top. */
  listen() {
    let dragged = null;
    const leave = () => {
      if (this.hot !== null) hide(this.marks[this.hot]);
      this.hot = null;
    };
    this.picture.addEventListener("pointerdown", (event) => (dragged = { x: event.clientX, y: event.clientY, view: this.view, moved: false }));
    this.picture.addEventListener("pointermove", (event) => {
      if (dragged && event.buttons && this.pan(dragged, event)) return leave();
      const near = this.nearest(event);
      if (near === this.hot) return;
      leave();
      this.hot = near;
      if (near !== null) show(this.marks[near], () => this.describe(near));
      this.picture.style.cursor = near === null ? "" : "pointer";
    });
    this.picture.addEventListener("pointerleave", leave);
    this.picture.addEventListener("click", (event) => {
      const near = dragged?.moved ? null : this.nearest(event);
      if (near !== null) this.choose(near, event.shiftKey || event.pointerType === "touch");
    });
    // With Ctrl, as a pinch on a trackpad is: the wheel alone scrolls the page.
    this.picture.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const box = this.picture.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY / 200), [event.clientX - box.left, event.clientY - box.top]);
    }, { passive: false });
    this.root.addEventListener("keydown", (event) => event.key === "Escape" && this.clear());
  }

  /** Move the picture with the pointer, once it is zoomed. */
  pan(dragged, event) {
    const moved = [event.clientX - dragged.x, event.clientY - dragged.y];
    if (this.view.scale === 1 || (!dragged.moved && Math.hypot(...moved) < 5)) return false;
    dragged.moved = true;
    this.look({ ...this.view, x: dragged.view.x + moved[0], y: dragged.view.y + moved[1] });
    return true;
  }

  /** Zoom around a place of the picture, its middle unless told otherwise. */
  zoom(factor, around) {
    const scale = Math.min(40, Math.max(1, this.view.scale * factor)), change = scale / this.view.scale;
    const { left, right, top, bottom } = this.place.inner, middle = [(left + right) / 2, (top + bottom) / 2];
    const [x, y] = around ?? middle;
    this.look(scale === 1 ? { ...STILL } : { scale, x: (this.view.x - (x - middle[0])) * change + (x - middle[0]), y: (this.view.y - (y - middle[1])) * change + (y - middle[1]) });
  }

  look(view) {
    this.view = view;
    this.picture.classList.toggle("zoomed", view.scale > 1);
    this.draw();
  }

  clear() {
    tip.hidden = true;
    if (this.first === null && this.second === null) this.look({ ...STILL });
    if (this.searchElement) this.searchElement.value = "";
    this.found = null;
    this.select(null, null);
    this.draw();
  }

  /** The place of the point nearest to an event, if it is near. */
  nearest(event) {
    const box = this.picture.getBoundingClientRect();
    const distances = this.spots.map(([x, y]) => Math.hypot(event.clientX - box.left - x, event.clientY - box.top - y));
    const least = Math.min(...distances);
    return least <= 22 ? distances.indexOf(least) : null;
  }

  describe(i) {
    return [short(this.kind.labels[i], 120), describeRow(this.kind, i).map((fact) => short(fact.join(": "), 120))];
  }

  // --- drawing

  draw() {
    const flat = this.plane, n = flat.points.length, width = Math.max(this.picture.parentElement.clientWidth, 240);
    const height = flat.ranked ? Math.min(Math.max(18 * n + 70, 200), 900) : Math.min(Math.max(width * 0.82, 280), 520);
    const place = (this.place = frame(flat, width, height, this.view));
    // Marks are drawn anew; whoever had the focus, or would get it next, still does afterwards.
    const stop = Math.max(0, this.marks?.findIndex((mark) => mark.getAttribute("tabindex") === "0") ?? 0);
    const focused = this.marks?.includes(document.activeElement);
    this.picture.replaceChildren();
    fill(this.picture, { viewBox: `0 0 ${width} ${height}`, height }, []);
    drawAxes(this.picture, place, flat);
    this.spots = flat.points.map(([x, y]) => [place.x(x), place.y(y)]);
    this.ellipses = svg("g", { "aria-hidden": "true" });
    const inside = insideOf(place.inner, this.ellipses, this.sessionLines());
    this.picture.append(inside);
    this.marks = this.spots.map(([x, y], i) => this.mark(i, x, y, n > MOST_OUTLINED));
    rove(this.marks, stop);
    inside.append(...this.marks);
    if (focused) this.marks[stop].focus({ preventScroll: true });
    placeLabels(inside, this.spots, this.kind.labels, place, this.labelled());
    drawLegend(this.legend, this.colouring, this.page.ramp);
    this.highlight();
  }

  /** A line from each participant to their other sessions. */
  sessionLines() {
    const line = ([first, session]) => svg("path", { class: "session", d: `M${this.spots[first].join(" ")}L${this.spots[session].join(" ")}`, stroke: this.colourOf(session)[0], "stroke-width": 1.2, fill: "none" });
    return svg("g", { "aria-hidden": "true" }, ...this.kind.sessions.map(line));
  }

  /** What is labelled: what is selected and found first, then all of few, or outliers and what zooming has set apart. */
  labelled() {
    const n = this.spots.length, { inner } = this.place, most = this.plane.ranked ? MOST_RANKED : MOST_LABELS;
    const chosen = [this.first, this.second, ...(this.found ?? [])].filter((i) => i !== null).slice(0, most);
    const shown = range(n).filter((i) => this.spots[i][0] > inner.left && this.spots[i][0] < inner.right && this.spots[i][1] > 0 && this.spots[i][1] < inner.bottom);
    const rest = this.found ? [] : shown.length <= most ? shown : outliers(this.plane.points, OUTLIERS);
    return [...new Set([...chosen, ...rest])];
  }

  colourOf(i) {
    const [colour, mark] = this.colouring ? this.colouring.rows[i] : [PLAIN, 0];
    return [visible(colour), mark];
  }

  mark(i, x, y, many) {
    const [colour, mark] = this.colourOf(i), size = many ? 4 : 6;
    const element = svg("g", { class: "mark", transform: `translate(${x} ${y})`, role: "button", "data-place": i, "aria-label": [this.kind.labels[i], ...describeRow(this.kind, i).map((fact) => fact.join(" "))].join(", ") },
      svg("circle", { r: many ? 7 : 11, class: "ring" }),
      svg("path", { d: markPath(mark, size), stroke: colour, "stroke-width": many ? 1.6 : 2.2, fill: "none" }));
    element.classList.toggle("dim", this.found !== null && !this.found.has(i));
    explain(element, () => this.describe(i), false);
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.choose(i, event.shiftKey);
    });
    return element;
  }

  drawUncertainty() {
    const flat = this.plane;
    this.ellipses.replaceChildren();
    if (!flat.covs || this.uncertain === "none") return;
    const chosen = [this.first, this.second].filter((i) => i !== null);
    const which = this.uncertain === "selected" ? chosen : range(flat.points.length);
    for (const i of which) {
      const filled = this.uncertain === "filled" || chosen.includes(i);
      const [x, y] = this.spots[i], parts = drawEllipses(flat.covs[i], this.place, this.colourOf(i)[0], filled, flat.ranked);
      this.ellipses.append(svg("g", { transform: `translate(${x} ${y})` }, ...parts));
    }
  }

  // --- selecting

  choose(i, compare) {
    if (i === this.first && this.second === null) this.select(null, null);
    else if (compare && this.first !== null && i !== this.first) this.select(this.first, i === this.second ? null : i);
    else this.select(i, null);
  }

  select(first, second) {
    this.first = first;
    this.second = second === first ? null : second;
    this.selectElement.value = first ?? "";
    this.compareElement.value = this.second ?? "";
    this.draw();
    this.say();
    this.panel.show(this.first, this.second);
  }

  highlight() {
    this.marks.forEach((mark, i) => {
      mark.classList.toggle("first", i === this.first);
      mark.classList.toggle("second", i === this.second);
    });
    this.drawUncertainty();
  }

  say() {
    const [parts, statistics] = verdictOf(this.kind, this.first, this.second);
    for (const name of Object.keys(this.verdict.dataset)) delete this.verdict.dataset[name];
    for (const [name, value] of Object.entries(statistics ?? {})) this.verdict.dataset[name] = value;
    this.verdict.replaceChildren(...parts);
    if (this.first !== null || this.second !== null) this.verdict.append(button("Clear", "Clear the selection (Escape)", () => this.clear()));
  }
}
