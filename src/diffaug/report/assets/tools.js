// Shared helpers: the page data, DOM elements, number formatting.

const data = JSON.parse(document.getElementById("data").textContent);

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes and children. Text is only ever set as text, so no sentence can become markup.
// `on` holds listeners; an attribute that is null or false is left out.
function make(create, name, attributes, children) {
  const node = create(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (value !== null && value !== false && value !== undefined) {
      node.setAttribute(key, value === true ? "" : value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function el(name, attributes, ...children) {
  return make((tag) => document.createElement(tag), name, attributes, children);
}

function svg(name, attributes, ...children) {
  return make((tag) => document.createElementNS(SVG, tag), name, attributes, children);
}

// A number with about four digits, a real minus, and powers of ten where it is tiny.
function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size < 0.001) text = value.toExponential(1).replace(".0e", "e");
  else if (size < 1) text = value.toFixed(4);
  else if (size < 10) text = value.toFixed(3);
  else if (size < 1000) text = value.toFixed(2);
  else text = Math.round(value).toLocaleString("en");
  return text.replace(/-/g, "−");
}

// A score on a scale of its own: no more digits than it has.
function plain(value) {
  return String(Math.round(value * 100) / 100).replace("-", "−");
}

function cosineText(value) {
  return value.toFixed(2).replace("-", "−");
}

function signed(value) {
  return (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value);
}

// A labelled control. Its label is beside it, and both stay together where a line is full.
function labelled(text, control) {
  return el("label", { class: "control" }, el("span", {}, text), control);
}

// `choices` are [value, text], or [group, [[value, text], ...]].
function select(choices, value, change) {
  const option = ([key, text]) => el("option", { value: key, selected: String(key) === String(value) }, text);
  const options = choices.map(([key, inner]) =>
    Array.isArray(inner) ? el("optgroup", { label: key }, ...inner.map(option)) : option([key, inner]));
  return el("select", { on: { change: (event) => change(event.target.value) } }, ...options);
}

// Some buttons of which one is pressed.
function segmented(label, choices, value, change) {
  const buttons = choices.map(([key, text]) =>
    el("button", { type: "button", "aria-pressed": String(key === value), on: { click: () => press(key) } }, text));
  function press(chosen) {
    choices.forEach(([key], i) => buttons[i].setAttribute("aria-pressed", String(key === chosen)));
    change(chosen);
  }
  return el("div", { class: "segmented", role: "group", "aria-label": label }, ...buttons);
}

// The line sample of a run in legends and lists.
function key(run) {
  return svg("svg", { class: "key", viewBox: "0 0 22 10", width: 22, height: 10, "aria-hidden": "true" },
    svg("line", { x1: 1, y1: 5, x2: 21, y2: 5, class: look(run) }));
}

function look(run) {
  return `line c${run.colour} d${run.dash}`;
}

// Call `draw` with the width of `box` now, and whenever it changes.
function onWidth(box, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    if (width > 0 && width !== last) draw((last = width));
  }).observe(box);
}

const still = matchMedia("(prefers-reduced-motion: reduce)");
