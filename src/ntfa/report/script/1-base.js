// Small helpers, tooltips and keyboards. Text from data only ever becomes text nodes.

const SVG = "http://www.w3.org/2000/svg";
const PLAIN = "#0072B2";

const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const number = (value, digits = 3) => String(Number(value.toPrecision(digits))).replace("-", "−");
const short = (text, longest = 22) => (Array.from(text).length > longest ? Array.from(text).slice(0, longest - 1).join("") + "…" : text);
const range = (n) => Array.from({ length: n }, (_, i) => i);

// --- tooltips

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

// --- keyboards and lists

/** One tab stop for many elements: arrow keys go from one to the next. */
function rove(elements, start = 0) {
  elements.forEach((element, i) => {
    element.setAttribute("tabindex", i === start ? "0" : "-1");
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

function button(text, name, onClick) {
  const element = html("button", { type: "button", "aria-label": name, title: name }, text);
  element.addEventListener("click", onClick);
  return element;
}
