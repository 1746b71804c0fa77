// What is selected: one, or two beside each other with their difference.

// More circles than this hide the map below them, and are drawn on request.
const FEW_FACTORS = 10;

const triangle = (rows, i, j) => rows?.[Math.max(i, j)]?.[Math.min(i, j)] ?? null;

/** Statistics of a pair as they were worked out beforehand, in the order in which they are shown. */
function pairStatistics(kind, i, j) {
  const found = (kind.pairs ?? []).map((one) => ({ ...one, value: triangle(one.rows, i, j), low: triangle(one.low, i, j), high: triangle(one.high, i, j) }));
  return found.filter((one) => one.value !== null);
}

function statisticText(one) {
  const write = { p: writeP }[one.format] ?? number;
  return write(one.value) + (one.low === null || one.high === null ? "" : ` (${write(one.low)} to ${write(one.high)})`);
}

const writeP = (p) => (p < 0.001 ? "< 0.001" : p < 0.1 ? p.toFixed(3) : p.toFixed(2));

/** Say what is selected, and of two how they differ. */
function verdictOf(kind, first, second) {
  if (first === null && second === null) return [["Nothing is selected."], null];
  if (first === null || second === null) {
    return [["Selected: ", html("strong", {}, short(kind.labels[first ?? second], 80)), ". Choose another to compare with."], null];
  }
  const distance = Math.hypot(...kind.mean[first].map((value, d) => value - kind.mean[second][d]));
  const statistics = pairStatistics(kind, first, second);
  const rows = [["Distance", number(distance)], ...statistics.map((one) => [one.name, statisticText(one)])];
  const list = html("dl", { class: "statistics" }, ...rows.flatMap(([term, text]) => [html("dt", {}, term), html("dd", {}, text)]));
  const title = html("strong", {}, short(kind.labels[first], 80) + " and " + short(kind.labels[second], 80));
  return [[title, list], { distance, ...Object.fromEntries(statistics.map((one) => [one.key, one.value])) }];
}

/** One card or three: facts, slices of predicted maps through a place that all share, and factors. */
class Panel {
  constructor(page, name) {
    Object.assign(this, { page, name, kind: page.kinds[name], volumes: page.volumes, cells: null, views: [], circles: page.factors.length <= FEW_FACTORS });
    this.element = html("div", { class: "panel" });
  }

  show(first, second) {
    const chosen = [first, second].filter((i) => i !== null);
    this.views = [];
    const maps = chosen.map((i) => this.volumes?.map(this.name, i) ?? null), drawn = maps.every((map) => map);
    const cards = chosen.map((i, place) => this.card(i, maps[place]));
    if (chosen.length === 2) cards.push(this.differenceCard(first, second, drawn ? maps : null));
    this.element.replaceChildren(html("div", { class: "cards cards-" + cards.length }, ...cards));
    if (!this.views.length) return;
    this.cells = this.volumes.peak(this.views.at(-1).values);
    const [controls, update] = sliders(this.volumes, () => this.cells, (cells) => this.move(cells));
    this.update = update;
    this.element.append(controls, this.circlesSwitch());
    this.move(this.cells);
  }

  move(cells) {
    this.cells = cells;
    this.update();
    this.views.forEach((view) => view.draw());
  }

  circlesSwitch() {
    const box = fill(html("input", { type: "checkbox" }), this.circles ? { checked: "" } : {}, []);
    box.addEventListener("change", () => {
      this.circles = box.checked;
      this.move(this.cells);
    });
    return html("label", { class: "switch" }, box, " Draw the factors that slices cut through");
  }

  factorsOf(i) {
    return this.name === "participant" && this.page.own ? this.page.own[i] : this.page.factors;
  }

  slices(values, options) {
    const shared = { place: () => this.cells, move: (cells) => this.move(cells), circles: () => this.circles };
    const view = new Slices(this.volumes, values, { ...shared, ...options });
    this.views.push(view);
    return view.element;
  }

  /** Three parts, which lie beside those of the other cards: whose it is, the map, the factors. */
  parts(head, map, factors) {
    return html("div", { class: "card" }, html("div", {}, ...head), html("div", {}, ...map), html("div", {}, ...factors));
  }

  card(i, map) {
    const { kind, page } = this, facts = describeRow(kind, i).flatMap(([term, value]) => [html("dt", {}, term), html("dd", {}, value)]);
    const averaged = this.name === "participant" ? "averaged over stimuli" : "averaged over participants";
    const options = { name: "the map of " + kind.labels[i], limit: this.volumes?.limit, factors: this.factorsOf(i) };
    const left = html("p", { class: "note" }, "The map of this one was left out to keep this file small; ntfa report OUT --images writes all.");
    const drawn = map ? [html("h5", {}, "Predicted map, " + averaged), this.slices(map, options), colourBar(options.limit, "predicted")] : this.volumes ? [left] : [];
    const weights = kind.weights?.[i] ?? null, limit = kind.weights ? kind.weightLimit : undefined;
    return this.parts([html("h4", {}, kind.labels[i]), html("dl", {}, ...facts)], drawn, [html("h5", {}, "Factors"), drawBrain(page, this.factorsOf(i), weights, limit)]);
  }

  differenceCard(first, second, maps) {
    const { kind } = this, names = [first, second].map((i) => short(kind.labels[i], 30));
    const head = [html("h4", {}, "Difference"), html("p", { class: "note" }, names[0] + " less " + names[1])], factors = [];
    if (kind.weights) {
      const apart = kind.weights[first].map((value, k) => value - kind.weights[second][k]);
      factors.push(html("h5", {}, "Difference of the weights"), drawBrain(this.page, this.page.factors, apart, strongest(apart), "difference"));
    }
    return this.parts(head, maps ? this.differenceMap(first, second, maps) : [], factors);
  }

  differenceMap(first, second, maps) {
    const apart = maps[0].map((value, v) => value - maps[1][v]), limit = limitOf(apart);
    const sure = sureCells(this.volumes, this.kind, this.name, first, second);
    const said = sure ? "Faint where the difference of their embeddings does not surely change the map (within 1.96 standard deviations, each place by itself)." : "How sure this is, place by place, is not known here.";
    return [html("h5", {}, "Difference of the maps"), this.slices(apart, { name: "the difference", limit, sure }), colourBar(limit, "difference"), html("p", { class: "note" }, said)];
  }
}
