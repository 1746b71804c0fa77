// Factors as circles on three projections of the brain.

/** Colour of a weight: red above zero, blue below, white at zero. */
function weightColour(weight, limit) {
  const share = Math.max(-1, Math.min(1, weight / limit));
  const end = share > 0 ? [178, 24, 43] : [33, 102, 172];
  return "rgb(" + end.map((part) => Math.round(255 + (part - 255) * Math.abs(share))).join(",") + ")";
}

/** A colour bar from minus to plus a limit, with its ends and what it is of. */
function colourBar(limit, what) {
  const bar = html("span", { class: "ramp", role: "img", "aria-label": "blue below zero, red above" });
  bar.style.background = `linear-gradient(to right, ${weightColour(-1, 1)}, #fff, ${weightColour(1, 1)})`;
  return html("p", { class: "scale note" }, "−" + number(limit), bar, number(limit) + " " + what);
}

/** Share of their radius at which circles cover no more than two fifths of the brain seen from above. */
function circleShare(factors, view) {
  if (factors.length <= 8) return 1;
  const [left, bottom, right, top] = view.box;
  const covered = factors.reduce((sum, factor) => sum + Math.PI * factor[3] ** 2, 0);
  return Math.min(1, Math.sqrt((0.4 * 0.5 * (right - left) * (top - bottom)) / covered));
}

function factorLines(factor, weight, region) {
  const place = factor.slice(0, 3).map((value) => value.toFixed(0).replace("-", "−")).join(", ");
  const lines = ["at (" + place + ") mm", "width " + factor[3].toFixed(1) + " mm"];
  if (region) lines.unshift(region);
  return weight === undefined ? lines : [...lines, "mean weight " + number(weight)];
}

/** Left and right of a projection that shows both. */
function sides(view) {
  if (view.across !== 0) return [];
  const [left, bottom, right, top] = view.box, size = 0.085 * (right - left);
  const label = (x, anchor, text) => svg("text", { x, y: -top + size, "text-anchor": anchor, "font-size": size, class: "side-mark" }, text);
  return [label(left + size * 0.2, "start", "L"), label(right - size * 0.2, "end", "R")];
}

function drawCircle(view, factors, k, weights, limit, share, regions) {
  const lines = factorLines(factors[k], weights?.[k], regions?.[k]);
  const circle = svg("circle", {
    cx: factors[k][view.across], cy: -factors[k][view.up], r: Math.max(factors[k][3] * share, 0.5),
    fill: weights ? weightColour(weights[k], limit) : PLAIN, role: "img",
    "aria-label": ["factor " + (k + 1), ...lines].join(", "),
  });
  if (!weights) circle.style.fillOpacity = 0.25;
  explain(circle, () => ["factor " + (k + 1), lines]);
  return circle;
}

const strongest = (weights) => Math.max(...weights.map(Math.abs), 1e-12);

/** Draw factors [K, (x, y, z, width)] on three projections; colours are weights where there are any. */
function drawBrain(page, factors, weights, limit = weights ? strongest(weights) : 1, what = "mean weight") {
  const share = circleShare(factors, page.views[2]);
  const brain = html("div", { class: "brain", role: "group", "aria-label": "Factors on three views of the brain" });
  // Wide ones first, so that they do not hide narrow ones.
  const order = range(factors.length).sort((a, b) => factors[b][3] - factors[a][3]);
  for (const view of page.views) {
    const [left, bottom, right, top] = view.box;
    const box = [left, -top, right - left, top - bottom];
    const picture = svg("svg", { viewBox: box.join(" "), role: "group", "aria-label": view.name }, svg("path", { d: view.path, class: "outline" }));
    picture.style.flex = String(box[2] / box[3]);
    const circles = order.map((k) => drawCircle(view, factors, k, weights, limit, share, page.regions));
    rove(circles);
    picture.append(...circles, ...sides(view));
    brain.append(picture);
  }
  const all = html("div", {}, brain);
  if (weights) all.append(colourBar(limit, what));
  if (share < 1) all.append(html("p", { class: "note" }, "Circles are drawn at " + Math.round(100 * share) + "% of the factors' radius."));
  return all;
}

const averaged = (rows) => rows[0].map((_, k) => rows.reduce((sum, row) => sum + row[k], 0) / rows.length);

/** Write factors, and weights where the table has them, into the table below the picture. */
function fillFactorTable(table, factors, weights) {
  table?.querySelectorAll("tbody tr").forEach((row, k) => {
    // The others are text: the region of the factor.
    const cells = row.querySelectorAll("td.number");
    factors[k].forEach((value, d) => (cells[d + 1].textContent = value.toFixed(1).replace("-", "−")));
    if (weights && cells[5]) cells[5].textContent = number(weights[k]);
  });
}

/** The factors' section: the group's, or one participant's if participants differ in theirs. */
function brainPanel(root, page) {
  const people = page.kinds.participant;
  const holder = html("div"), table = document.querySelector("[data-table=factors]");
  const meanWeights = people.weights && averaged(people.weights);
  const choose = (choice) => {
    const one = choice === "" ? null : Number(choice);
    const factors = one !== null && page.own ? page.own[one] : page.factors;
    const weights = (one === null ? meanWeights : people.weights?.[one]) ?? null;
    holder.replaceChildren(drawBrain(page, factors, weights));
    fillFactorTable(table, factors, weights);
    const caption = document.querySelector("[data-caption=factors]");
    if (caption) caption.textContent = one === null ? "average of participants" : people.labels[one];
  };
  if (page.own || people.weights) {
    const names = [["", "average of participants"], ...people.labels.map((label, i) => [i, label])];
    const [label] = chooser("Whose factors", names, choose);
    root.append(html("div", { class: "controls" }, label));
  }
  root.append(holder);
  choose("");
}
