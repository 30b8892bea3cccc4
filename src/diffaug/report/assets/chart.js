// Axes and lines: numbers to places on the screen and back.

// Round values between `low` and `high`, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.75);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step + 0); // not −0
  return { values: found, step };
}

// A tick's text, with as many digits as the distance to the next one asks for.
function tickText(value, step) {
  if (value !== 0 && Math.abs(step) < 1e-3) return value.toExponential(1).replace(".0e", "e").replace(/-/g, "−");
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const exact = Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) < 1e-6 ? digits : digits + 1;
  return value.toLocaleString("en", { minimumFractionDigits: exact, maximumFractionDigits: exact }).replace(/-/g, "−");
}

function linear(from, to) {
  const slope = (to[1] - to[0]) / (from[1] - from[0] || 1);
  const scale = (value) => to[0] + (value - from[0]) * slope;
  scale.back = (place) => from[0] + (place - to[0]) / slope;
  return scale;
}

// The extent of some values with room around them; a single value gets a range of its own.
function extent(values, room) {
  const low = Math.min(...values), high = Math.max(...values);
  const margin = (high - low) * room || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}

// A frame with axes, and scales for what is drawn inside it.
function frame(width, height, xRange, yRange, xTitle) {
  const yTicks = ticks(...yRange, Math.max(3, height / 64));
  const texts = yTicks.values.map((value) => tickText(value, yTicks.step));
  const margin = { left: 14 + 7.2 * Math.max(...texts.map((t) => t.length)), right: 14, top: 22, bottom: 42 };
  const x = linear(xRange, [margin.left, width - margin.right]);
  const y = linear(yRange, [height - margin.bottom, margin.top]);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "chart", "aria-hidden": "true" });
  yTicks.values.forEach((value, i) => root.append(
    svg("line", { class: "gridline", x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value) }),
    svg("text", { x: margin.left - 8, y: y(value), dy: "0.32em", "text-anchor": "end" }, texts[i])));
  const xTicks = ticks(...xRange, Math.max(2, width / 110));
  const bottom = height - margin.bottom;
  xTicks.values.forEach((value) => root.append(
    svg("line", { class: "tick", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 5 }),
    svg("text", { x: x(value), y: bottom + 19, "text-anchor": "middle" }, tickText(value, Math.max(1, xTicks.step)))));
  root.append(
    svg("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: bottom, y2: bottom }),
    svg("text", { class: "title", x: (margin.left + width - margin.right) / 2, y: height - 4, "text-anchor": "middle" },
      xTitle));
  return { root, x, y, margin, width, height, bottom };
}

function pathOf(points, x, y) {
  return points.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.y).toFixed(1)}`).join("");
}

// The value of a polyline at `x`, or null outside of it.
function valueAt(points, x) {
  const next = points.findIndex((p) => p.x >= x);
  if (next < 0) return null;
  const b = points[next], a = points[next - 1];
  if (b.x === x || !a) return b.x === x ? b.y : null;
  return a.y + ((b.y - a.y) * (x - a.x)) / (b.x - a.x);
}
