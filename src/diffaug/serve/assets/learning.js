// The score so far: the scores of a head that the server refits, the forecast, and the job that adapts the model.

const LOOK_AGAIN = 2000; // milliseconds
let looking = null;
let shownLearning = "";

const capital = (words) => words[0].toUpperCase() + words.slice(1);
const number = (value, digits) => value.toFixed(digits).replace("-", "−");

function svg(name, attributes, ...children) {
  const node = document.createElementNS(byId("drawing").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Scores over numbers of labels, the score before training as a line, and the forecast as a dot with its interval.
function chart(curve) {
  // As wide as there is room, so that text has the same size on a phone.
  const width = Math.min(640, Math.max(280, byId("curve").clientWidth || 0));
  const [height, left, right, top, bottom] = [240, 44, 12, 12, 44];
  const now = curve.scores[curve.scores.length - 1];
  const later = { size: curve.labels + curve.more, score: now + curve.gain, low: now + curve.low, high: Math.min(100, now + curve.high) };
  const values = [...curve.scores, later.low, later.high, ...(curve.before === null ? [] : [curve.before])];
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const room = Math.max(0.5, (high - low) * 0.15);
  [low, high] = [low - room, Math.min(100.5, high + room)];
  const x = (size) => left + (width - left - right) * size / later.size;
  const y = (score) => top + (height - top - bottom) * (high - score) / (high - low);
  const points = curve.sizes.map((size, i) => [x(size), y(curve.scores[i])]);
  const text = (at, up, anchor, words) => svg("text", { x: at, y: up, "text-anchor": anchor }, words);
  const line = (kind, from, to) => svg("line", { class: kind, x1: from[0], y1: from[1], x2: to[0], y2: to[1] });
  const end = points[points.length - 1];
  const about = `${curve.measure} on held-out answers, with ${curve.sizes.join(", ")} labels: ${curve.scores.map((score) => number(score, 1)).join(", ")}`;
  const digits = high - low < 3 ? 1 : 0;
  const ticks = [0.1, 0.5, 0.9].map((share) => low + share * (high - low));
  // The first and the last: the numbers of others would overlap.
  const sizes = curve.sizes.filter((size, i) => i === curve.sizes.length - 1 || (i === 0 && x(curve.sizes[curve.sizes.length - 1]) - x(size) > 40));
  const drawn = [
    ...ticks.flatMap((tick) => [line("grid", [left, y(tick)], [width - right, y(tick)]), text(left - 8, y(tick) + 4, "end", number(tick, digits))]),
    ...sizes.map((size) => text(x(size), height - bottom + 18, "middle", String(size))),
    text(x(later.size), height - bottom + 18, "end", `${later.size}`),
    text((left + width - right) / 2, height - 4, "middle", "labels to learn from"),
    line("forecast", end, [x(later.size), y(later.score)]),
    line("interval", [x(later.size), y(later.low)], [x(later.size), y(later.high)]),
    svg("circle", { class: "open", cx: x(later.size), cy: y(later.score), r: 5 }),
    svg("polyline", { points: points.map((point) => point.join(",")).join(" ") }),
    ...points.map(([cx, cy]) => svg("circle", { cx, cy, r: 4 })),
  ];
  if (curve.before !== null) {
    drawn.push(line("before", [left, y(curve.before)], [width - right, y(curve.before)]), text(width - right - 12, y(curve.before) + 16, "end", "the model as it is"));
  }
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about }, ...drawn);
}

function curvePart(refit, suggestions) {
  const parts = [];
  if (suggestions) {
    const agreed = suggestions.decided ? `; people agree with ${suggestions.agreed} of the ${suggestions.decided} they have answered` : "";
    parts.push(el("p", { id: "suggestions" }, `${suggestions.suggested} suggestions of ${suggestions.model}${agreed}.`));
    if (suggestions.problem) parts.push(el("p", { class: "quiet" }, suggestions.problem));
  }
  if (!refit) return parts;
  if (refit.curve) {
    parts.push(
      el("h2", {}, `${capital(refit.curve.measure)} on held-out answers`), chart(refit.curve),
      el("p", {}, `${number(refit.curve.scores[refit.curve.scores.length - 1], 1)} with ${refit.curve.candidate} on cached vectors, ${refit.curve.labels} labels. ${refit.curve.words}`));
  }
  const state = refit.state === "fitting" ? "A head is being fitted to the labels …" : refit.message ? `No score yet: ${refit.message}.` : null;
  if (state) parts.push(el("p", { class: "quiet" }, state));
  return parts;
}

async function control(action) {
  try {
    showLearning(await call("/api/adapt", { action }));
    settled();
  } catch (error) {
    complain(error);
  }
}

function table(columns, rows) {
  const head = el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name)));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, cell)))))));
}

function adaptPart(job) {
  if (!job) return [];
  const button = (action, words) => el("div", { class: "row" },
    el("button", { type: "button", id: `${action}-adapt`, on: { click: () => control(action) } }, words));
  const log = job.lines && job.lines.length ? el("pre", { id: "log", tabindex: "0" }, job.lines.join("\n")) : null;
  const parts = [el("h2", {}, "Adapt the model")];
  if (job.state === "none") {
    parts.push(el("p", { class: "quiet" }, "Training on the labels so far, with cross-validation that decides whether it helps. It takes minutes; you can continue to label."));
  } else if (job.state === "running") {
    const words = job.ending ? "Ending" : `Running for ${duration(job.seconds)}`;
    parts.push(el("p", { id: "job" }, `${words}, with ${job.labels} labels.`), log);
    if (!job.ending) parts.push(button("cancel", "Cancel"));
    return parts;
  } else if (job.state === "finished") {
    parts.push(el("p", { id: "job" }, `${job.result.verdict} (${job.labels} labels)`), table(job.result.columns, job.result.rows));
    if (job.result.forecast) parts.push(el("p", {}, job.result.forecast));
    if (job.result.model) parts.push(el("p", {}, "The model is in ", el("code", {}, job.result.model), "."));
  } else {
    parts.push(el("p", { id: "job" }, job.state === "cancelled" ? `Cancelled, with ${job.labels} labels. The same labels continue it.` : `It failed, with ${job.labels} labels.`), log);
  }
  parts.push(button("start", job.state === "none" ? "Start adapt" : "Start adapt again"));
  return parts;
}

// What is the same stays, so that the focus and the position in the log do too.
function showLearning(found) {
  const state = JSON.stringify(found);
  if (state === shownLearning) return;
  shownLearning = state;
  const focused = document.activeElement && document.activeElement.id;
  byId("curve").replaceChildren(...curvePart(found.refit, found.suggestions));
  byId("adapt").replaceChildren(...adaptPart(found.adapt).filter((part) => part !== null));
  if (focused && byId(focused)) byId(focused).focus();
}

// As long as the section is open, and one request at a time.
async function lookAtLearning() {
  clearTimeout(looking);
  if (!byId("learning").open) return;
  try {
    showLearning(await call("/api/learning"));
  } catch (error) {
    if (error.status) complain(error); // while the server is away, answers say so
  }
  clearTimeout(looking);
  looking = setTimeout(lookAtLearning, LOOK_AGAIN);
}
