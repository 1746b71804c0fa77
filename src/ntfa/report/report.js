"use strict";
// Draws the report's interactive parts from the page's JSON block. Text from data only ever becomes text nodes.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const PLAIN = "#0072B2";
  // Radii, in standard deviations, that hold 50% and 95% of a normal in one and in two dimensions.
  const REACH = { 1: [0.67449, 1.959964], 2: [1.17741, 2.447747] };
  const MOST_FILLED = 40;
  const MOST_LABELS = 60;

  // --- small helpers

  const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
  const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const number = (value, digits = 3) => String(Number(value.toPrecision(digits)));
  const short = (text, longest = 22) => (Array.from(text).length > longest ? Array.from(text).slice(0, longest - 1).join("") + "…" : text);

  // --- differences

  /** Distance of two embeddings, and the level at which they differ, which was worked out beforehand. */
  function difference(kind, i, j) {
    const apart = kind.mean[i].map((value, d) => value - kind.mean[j][d]);
    return { distance: Math.hypot(...apart), level: kind.levels ? kind.levels[Math.max(i, j)][Math.min(i, j)] : null };
  }

  function percent(level) {
    if (level > 0.999) return "more than 99.9%";
    return level > 0.99 ? (100 * level).toFixed(1) + "%" : Math.round(100 * level) + "%";
  }

  // --- tooltips and keyboards

  const tip = document.getElementById("tip");

  function showTip(element, title, lines) {
    tip.replaceChildren(html("strong", {}, title), ...lines.map((line) => html("div", {}, line)));
    tip.hidden = false;
    const box = element.getBoundingClientRect();
    const left = Math.min(box.right + 8, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = Math.max(8, left) + window.scrollX + "px";
    const above = box.top - tip.offsetHeight - 6;
    tip.style.top = (above > 0 ? above : box.bottom + 6) + window.scrollY + "px";
  }

  const hide = (element) => {
    element.classList.remove("hot");
    tip.hidden = true;
  };

  const show = (element, describe) => {
    element.classList.add("hot");
    showTip(element, ...describe());
  };

  /** Show a tooltip while an element has the focus, and unless told otherwise while it is pointed at. */
  function explain(element, describe, whenPointedAt = true) {
    element.addEventListener("focus", () => show(element, describe));
    element.addEventListener("blur", () => hide(element));
    if (!whenPointedAt) return;
    element.addEventListener("pointerenter", () => show(element, describe));
    element.addEventListener("pointerleave", () => hide(element));
  }

  /** One tab stop for many elements: arrow keys go from one to the next. */
  function rove(elements) {
    elements.forEach((element, i) => {
      element.setAttribute("tabindex", i === 0 ? "0" : "-1");
      element.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const next = elements[(i + step + elements.length) % elements.length];
        element.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      });
    });
  }

  function chooser(text, options, onChange) {
    const select = html("select", {}, ...options.map(([value, name]) => html("option", { value }, short(name, 60))));
    select.addEventListener("change", () => onChange(select.value));
    return [html("label", {}, text, select), select];
  }

  // --- the brain

  /** Colour of a weight: red above zero, blue below, white at zero. */
  function weightColour(weight, limit) {
    const share = Math.max(-1, Math.min(1, weight / limit));
    const end = share > 0 ? [178, 24, 43] : [33, 102, 172];
    return "rgb(" + end.map((part) => Math.round(255 + (part - 255) * Math.abs(share))).join(",") + ")";
  }

  /** Share of their radius at which circles cover no more than two fifths of the brain seen from above. */
  function circleShare(factors, view) {
    if (factors.length <= 8) return 1;
    const [left, bottom, right, top] = view.box;
    const covered = factors.reduce((sum, factor) => sum + Math.PI * factor[3] ** 2, 0);
    return Math.min(1, Math.sqrt((0.4 * 0.5 * (right - left) * (top - bottom)) / covered));
  }

  function factorLines(factor, weight) {
    const place = factor.slice(0, 3).map((value) => value.toFixed(0)).join(", ");
    const lines = ["at (" + place + ") mm", "width " + factor[3].toFixed(1) + " mm"];
    return weight === undefined ? lines : [...lines, "mean weight " + number(weight)];
  }

  /** Draw factors [K, (x, y, z, width)] on three projections; colours are weights where there are any. */
  function drawBrain(page, factors, weights) {
    const share = circleShare(factors, page.views[2]);
    const limit = weights ? Math.max(...weights.map(Math.abs), 1e-12) : 1;
    const brain = html("div", { class: "brain", role: "group", "aria-label": "Factors on three views of the brain" });
    // Wide ones first, so that they do not hide narrow ones.
    const order = factors.map((_, k) => k).sort((a, b) => factors[b][3] - factors[a][3]);
    for (const view of page.views) {
      const [left, bottom, right, top] = view.box;
      const box = [left, -top, right - left, top - bottom];
      const picture = svg("svg", { viewBox: box.join(" "), role: "group", "aria-label": view.name });
      picture.style.flex = String(box[2] / box[3]);
      picture.append(svg("path", { d: view.path, class: "outline" }));
      const circles = order.map((k) => {
        const circle = svg("circle", {
          cx: factors[k][view.across], cy: -factors[k][view.up], r: Math.max(factors[k][3] * share, 0.5),
          fill: weights ? weightColour(weights[k], limit) : PLAIN, role: "img",
          "aria-label": ["factor " + (k + 1), ...factorLines(factors[k], weights?.[k])].join(", "),
        });
        if (!weights) circle.style.fillOpacity = 0.25;
        explain(circle, () => ["factor " + (k + 1), factorLines(factors[k], weights?.[k])]);
        return circle;
      });
      rove(circles);
      picture.append(...circles);
      brain.append(picture);
    }
    const said = [];
    if (weights) said.push("Red factors have weights above zero, blue below; the strongest is " + number(limit) + ".");
    if (share < 1) said.push("Circles are drawn at " + Math.round(100 * share) + "% of the factors' radius.");
    return html("div", {}, brain, html("p", { class: "note" }, said.join(" ")));
  }

  /** The factors' section: the group's, or one participant's if participants have their own. */
  function brainPanel(root, page) {
    const people = page.kinds.participant;
    const holder = html("div");
    const meanWeights = people.weights && people.weights[0].map((_, k) => people.weights.reduce((sum, row) => sum + row[k], 0) / people.weights.length);
    const show = (choice) => {
      const own = choice !== "" && page.own;
      const factors = own ? page.own[Number(choice)] : page.factors;
      const weights = choice === "" ? meanWeights : people.weights?.[Number(choice)];
      holder.replaceChildren(drawBrain(page, factors, weights ?? null));
    };
    if (page.own) {
      const names = [["", "average of participants"], ...people.labels.map((label, i) => [i, label])];
      const [label] = chooser("Whose factors", names, show);
      root.append(html("div", { class: "controls" }, label));
    }
    root.append(holder);
    show("");
  }

  // --- embeddings

  /** Where data go on the screen: all 95% ellipses inside, both axes on one scale unless the second is a rank. */
  function frame(flat, width, height) {
    const reach = flat.covs ? flat.covs.map((c) => [2.5 * Math.sqrt(c[0]), flat.ranked ? 0.5 : 2.5 * Math.sqrt(c[2])]) : flat.points.map(() => [0, 0]);
    const span = [0, 1].map((d) => {
      const low = Math.min(...flat.points.map((p, i) => p[d] - reach[i][d]));
      const high = Math.max(...flat.points.map((p, i) => p[d] + reach[i][d]));
      return [(low + high) / 2, Math.max(high - low, 1e-6) * 1.08];
    });
    const inner = { left: 46, right: width - 10, top: 10, bottom: height - 38 };
    const scales = [(inner.right - inner.left) / span[0][1], (inner.bottom - inner.top) / span[1][1]];
    if (!flat.ranked) scales[0] = scales[1] = Math.min(...scales);
    const middle = [(inner.left + inner.right) / 2, (inner.top + inner.bottom) / 2];
    return {
      inner, scales,
      x: (value) => middle[0] + (value - span[0][0]) * scales[0],
      y: (value) => middle[1] - (value - span[1][0]) * scales[1],
      valueX: (pixel) => span[0][0] + (pixel - middle[0]) / scales[0],
      valueY: (pixel) => span[1][0] - (pixel - middle[1]) / scales[1],
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

  function markPath(mark, size) {
    if (mark === 1) return `M${-size} ${-size}L${size} ${size}M${-size} ${size}L${size} ${-size}`;
    if (mark === 2) return `M${size} 0A${size} ${size} 0 1 0 ${-size} 0A${size} ${size} 0 1 0 ${size} 0`;
    return `M${-size} 0H${size}M0 ${-size}V${size}`;
  }

  function drawEllipses(cov, place, colour, many, ranked) {
    if (ranked) {
      const sd = Math.sqrt(cov[0]) * place.scales[0];
      return REACH[1].map((reach, i) => svg("path", { d: `M${-reach * sd} 0H${reach * sd}`, stroke: colour, "stroke-width": i ? 1 : 4, "stroke-opacity": 0.45 }));
    }
    const [a, b, c] = cov;
    const mean = (a + c) / 2, spread = Math.hypot((a - c) / 2, b);
    const angle = (-Math.atan2(2 * b, a - c) / 2) * (180 / Math.PI);
    return [...REACH[2]].reverse().map((reach) => svg("ellipse", {
      rx: reach * Math.sqrt(mean + spread) * place.scales[0], ry: reach * Math.sqrt(Math.max(mean - spread, 0)) * place.scales[0],
      transform: `rotate(${angle})`, fill: many ? "none" : colour, "fill-opacity": 0.13, stroke: many ? colour : "none", "stroke-opacity": 0.25,
    }));
  }

  /** Write labels where there is room: right, left, above or below the point, over no other label or point. */
  function placeLabels(picture, spots, labels, place) {
    const taken = spots.map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
    const hit = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
    spots.forEach(([x, y], i) => {
      const text = svg("text", { "aria-hidden": "true" }, short(labels[i], 18));
      text.style.pointerEvents = "none";
      picture.append(text);
      const wide = text.getComputedTextLength();
      const tries = [[x + 8, y + 4], [x - 8 - wide, y + 4], [x - wide / 2, y - 9], [x - wide / 2, y + 19]];
      const spot = tries.find(([left, base]) => {
        const box = [left, base - 11, left + wide, base + 3];
        return left > place.inner.left && left + wide < place.inner.right + 8 && base - 11 > 0 && !taken.some((other, j) => j !== i && hit(box, other));
      });
      if (!spot) return text.remove();
      fill(text, { x: spot[0], y: spot[1] }, []);
      taken.push([spot[0], spot[1] - 11, spot[0] + wide, spot[1] + 3]);
    });
  }

  function describeRow(kind, i) {
    const facts = kind.columns.map((column, c) => [column, kind.rows[i][c]]);
    const z = kind.mean[i].map((value, d) => ["z" + (d + 1), number(value) + (kind.sd ? " ± " + number(kind.sd[i][d], 2) : "")]);
    return [...facts, ...z];
  }

  function drawLegend(list, colouring, ramp) {
    list.replaceChildren();
    if (!colouring) return;
    for (const key of colouring.keys) {
      const mark = svg("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, svg("path", { d: markPath(key.mark, 5), stroke: key.colour, "stroke-width": 2.2, fill: "none" }));
      list.append(html("li", {}, mark, key.name));
    }
    if (colouring.scale) {
      const bar = html("span", { class: "ramp", role: "img", "aria-label": "colours from low to high" });
      bar.style.background = "linear-gradient(to right," + ramp.map((c) => "rgb(" + c.join(",") + ")").join(",") + ")";
      list.append(html("li", {}, colouring.scale[0], bar, colouring.scale[1]));
    }
    if (colouring.note) list.append(html("li", {}, colouring.note));
  }

  /** One kind's picture, its lists, the card of what is selected, and the difference of two. */
  class Plot {
    constructor(root, name, page) {
      Object.assign(this, { root, name, page, kind: page.kinds[name], first: null, second: null });
      const kind = this.kind, title = name === "participant" ? "Participants" : "Stimuli";
      this.plane = kind.planes[0];
      this.colouring = this.defaultColouring();
      this.picture = svg("svg", { role: "group", "aria-label": title + ": embeddings" });
      this.legend = html("ul", { class: "legend", "aria-label": "Colours" });
      this.verdict = html("p", { class: "verdict", role: "status" }, "Nothing is selected.");
      this.places = [html("div"), html("div")];
      root.append(html("h3", {}, title), html("div", {}, this.picture, this.legend), html("div", { class: "side" }, this.controls(), this.verdict, this.places[0]), this.places[1]);
      this.draw();
      this.listen();
      let width = this.picture.clientWidth;
      new ResizeObserver(() => {
        if (Math.abs(this.picture.clientWidth - width) > 1) {
          width = this.picture.clientWidth;
          this.draw();
        }
      }).observe(root);
    }

    defaultColouring() {
      const usable = this.kind.colourings.filter((c) => c.keys.length > 1 && c.keys.length < this.kind.labels.length);
      return usable.sort((a, b) => a.keys.length - b.keys.length)[0] ?? this.kind.colourings[0] ?? null;
    }

    controls() {
      const kind = this.kind, points = [["", "nothing"], ...kind.labels.map((label, i) => [i, label])];
      const controls = html("div", { class: "controls" });
      if (kind.colourings.length) {
        const names = [["", "one colour"], ...kind.colourings.map((c, i) => [i, c.name])];
        const [label, select] = chooser("Colour by", names, (value) => this.recolour(value === "" ? null : kind.colourings[value]));
        select.value = this.colouring ? kind.colourings.indexOf(this.colouring) : "";
        controls.append(label);
      }
      if (kind.planes.length > 1) {
        const [label] = chooser("Show", kind.planes.map((plane, i) => [i, plane.name]), (value) => this.turn(kind.planes[value]));
        controls.append(label);
      }
      const [select, selectElement] = chooser("Select", points, (value) => this.select(value === "" ? null : Number(value), this.second));
      const [compare, compareElement] = chooser("Compare with", points, (value) => this.select(this.first, value === "" ? null : Number(value)));
      Object.assign(this, { selectElement, compareElement });
      controls.append(select, compare);
      return controls;
    }

    /** Points lie close together, so the one nearest to the pointer is meant, not the one on top. */
    listen() {
      let hot = null;
      const leave = () => {
        if (hot !== null) hide(this.marks[hot]);
        hot = null;
      };
      this.picture.addEventListener("pointermove", (event) => {
        const near = this.nearest(event);
        if (near === hot) return;
        leave();
        hot = near;
        if (near !== null) show(this.marks[near], () => this.describe(near));
        this.picture.style.cursor = near === null ? "" : "pointer";
      });
      this.picture.addEventListener("pointerleave", leave);
      this.picture.addEventListener("click", (event) => {
        const near = this.nearest(event);
        if (near !== null) this.choose(near, event.shiftKey);
      });
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

    recolour(colouring) {
      this.colouring = colouring;
      this.draw();
    }

    turn(plane) {
      this.plane = plane;
      this.draw();
    }

    draw() {
      const kind = this.kind, flat = this.plane;
      const width = Math.max(this.picture.parentElement.clientWidth, 240);
      const height = flat.ranked ? Math.min(Math.max(18 * flat.points.length + 70, 200), 900) : Math.min(Math.max(width * 0.82, 280), 520);
      const place = frame(flat, width, height);
      const many = flat.points.length > MOST_FILLED;
      this.picture.replaceChildren();
      fill(this.picture, { viewBox: `0 0 ${width} ${height}`, height }, []);
      drawAxes(this.picture, place, this.plane);
      const spots = flat.points.map(([x, y]) => [place.x(x), place.y(y)]);
      this.spots = spots;
      const ellipses = svg("g", { "aria-hidden": "true" });
      this.picture.append(ellipses);
      this.marks = spots.map(([x, y], i) => {
        const [colour, mark] = this.colouring ? this.colouring.rows[i] : [PLAIN, 0];
        if (flat.covs) ellipses.append(svg("g", { transform: `translate(${x} ${y})` }, ...drawEllipses(flat.covs[i], place, colour, many, flat.ranked)));
        return this.mark(i, x, y, colour, mark, many);
      });
      rove(this.marks);
      this.picture.append(...this.marks);
      if (kind.labels.length <= MOST_LABELS) placeLabels(this.picture, spots, kind.labels, place);
      drawLegend(this.legend, this.colouring, this.page.ramp);
      this.highlight();
    }

    mark(i, x, y, colour, mark, many) {
      const size = many ? 4 : 6;
      const element = svg("g", { class: "mark", transform: `translate(${x} ${y})`, role: "button", "data-place": i, "aria-label": [this.kind.labels[i], ...describeRow(this.kind, i).map((fact) => fact.join(" "))].join(", ") },
        svg("circle", { r: many ? 7 : 11, class: "ring" }),
        svg("path", { d: markPath(mark, size), stroke: colour, "stroke-width": many ? 1.6 : 2.2, fill: "none" }));
      explain(element, () => this.describe(i), false);
      element.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        this.choose(i, event.shiftKey);
      });
      return element;
    }

    choose(i, compare) {
      if (compare && this.first !== null && i !== this.first) this.select(this.first, i);
      else this.select(i, null);
    }

    select(first, second) {
      this.first = first;
      this.second = second === first ? null : second;
      this.selectElement.value = first ?? "";
      this.compareElement.value = this.second ?? "";
      this.highlight();
      this.say();
      [first, this.second].forEach((i, place) => this.places[place].replaceChildren(...(i === null ? [] : [this.card(i)])));
    }

    highlight() {
      this.marks.forEach((mark, i) => {
        mark.classList.toggle("first", i === this.first);
        mark.classList.toggle("second", i === this.second);
      });
    }

    say() {
      const { first, second, kind } = this;
      delete this.verdict.dataset.level;
      delete this.verdict.dataset.distance;
      if (first === null && second === null) return this.verdict.replaceChildren("Nothing is selected.");
      if (first === null || second === null) {
        return this.verdict.replaceChildren("Selected: ", html("strong", {}, short(kind.labels[first ?? second], 80)), ". Choose another to compare with.");
      }
      const found = difference(kind, first, second);
      const certain = [" Probability that they really differ: ", html("strong", {}, percent(found.level ?? 0)),
        " (the largest credible level whose ellipsoid of the difference does not hold zero)."];
      if (found.level !== null) this.verdict.dataset.level = found.level;
      this.verdict.dataset.distance = found.distance;
      this.verdict.replaceChildren(
        html("strong", {}, short(kind.labels[first], 80) + " and " + short(kind.labels[second], 80)),
        ": " + number(found.distance) + " apart.", ...(found.level === null ? [] : certain));
    }

    card(i) {
      const { kind, page, name } = this;
      const facts = describeRow(kind, i).flatMap(([term, value]) => [html("dt", {}, term), html("dd", {}, value)]);
      const factors = name === "participant" && page.own ? page.own[i] : page.factors;
      const weights = kind.weights?.[i] ?? null;
      const card = html("div", { class: "card" }, html("h4", {}, kind.labels[i]), html("dl", {}, ...facts), drawBrain(page, factors, weights));
      const known = document.getElementById("map-" + name + "-" + i);
      if (known) {
        card.append(html("figure", {}, html("img", { src: known.getAttribute("src"), alt: "Predicted map of " + kind.labels[i] }),
          html("figcaption", {}, name === "participant" ? "Predicted map, averaged over stimuli" : "Predicted map, averaged over participants")));
      }
      return card;
    }
  }

  // --- the page

  function copyButtons() {
    for (const button of document.querySelectorAll("[data-copy]")) {
      button.addEventListener("click", () => {
        const range = document.createRange();
        range.selectNodeContents(document.getElementById(button.dataset.copy));
        const selection = window.getSelection();
        selection.removeAllRanges();
        selection.addRange(range);
        // The clipboard's newer interface does not work for files opened from disk.
        const done = document.execCommand("copy");
        button.parentElement.querySelector("[role=status]").textContent = done ? "Copied." : "Selected; press Ctrl+C.";
      });
    }
  }

  function start() {
    document.documentElement.classList.add("js");
    copyButtons();
    const folded = document.querySelectorAll("details.static");
    folded.forEach((element) => (element.open = false));
    window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((element) => (element.open = true)));
    const block = document.getElementById("data");
    if (!block) return folded.forEach((element) => (element.open = true));
    const page = JSON.parse(block.textContent);
    document.querySelectorAll("[data-plot]").forEach((root) => new Plot(root, root.dataset.plot, page));
    document.querySelectorAll("[data-brain]").forEach((root) => brainPanel(root, page));
  }

  start();
})();
