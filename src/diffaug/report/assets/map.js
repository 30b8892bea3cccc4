// A map of the user's sentences, before and after training. The colour of a point is its class or, without classes, how
// many of its nearest neighbours are new.

const STEPS = 5; // of the colour scale
const CLASSES = [2, 0, 1, 4, 5, 3, 6, 8]; // colours of the most frequent classes, by their place in the palette

function startMap(box) {
  const map = data.map;
  data.map_notes.forEach((note) => box.append(el("p", { class: map ? "note" : "quiet" }, note)));
  if (!map) return null;
  const state = { model: 0, side: "after", selected: null };
  const classes = map.classes && frequent(map.classes);
  let width = 0, places = [], moving = 0;

  const models = select(map.models.map((m, i) => [i, data.runs[m.run].name]), 0, (v) => change({ model: Number(v) }));
  const sides = segmented("Before or after training", [["before", "Before training"], ["after", "After training"]], "after",
    (v) => change({ side: v }));
  const find = el("input", { type: "search", placeholder: "Find words", "aria-label": "Find sentences", on: { input: () => paint() } });
  const controls = el("div", { class: "controls" }, labelled("Model", models), sides, find);
  const about = el("p", { class: "about" });
  const scale = el("div", { class: "scale" });
  const plot = el("div", { class: "plot", tabindex: "0", role: "group",
    "aria-label": "Map. Arrow keys go from sentence to sentence." });
  const panel = el("div", { class: "panel", "aria-live": "polite" });
  box.prepend(el("div", { class: "card" }, controls, about,
    el("div", { class: "mapgrid" }, el("div", { class: "mapbox" }, plot, scale), panel)));

  const model = () => map.models[state.model];
  const start = () => (model().before === null ? null : map.before[model().before]);
  const side = () => (state.side === "before" && start()) || model().after;
  const text = (i) => data.sentences[map.points[i]];

  // The most frequent classes; each has a colour of its own.
  function frequent(names) {
    const counts = new Map();
    for (const name of names) counts.set(name, (counts.get(name) || 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]).slice(0, CLASSES.length).map(([name]) => name);
  }

  function colour(i) {
    if (classes) {
      const place = classes.indexOf(map.classes[i]);
      return place < 0 ? "f7" : `f${CLASSES[place]}`;
    }
    return model().new ? `s${Math.min(STEPS - 1, Math.floor((model().new[i] / 100) * STEPS))}` : "f2";
  }

  const height = () => Math.round(Math.min(560, Math.max(300, width * 0.82)));

  // Where points go: as large as the box allows, with one scale for both directions.
  function target() {
    const margin = 16, h = height(), xs = side().xy.map(([x]) => x), ys = side().xy.map(([, y]) => y);
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const size = Math.min((width - 2 * margin) / (right - left || 1), (h - 2 * margin) / (high - low || 1));
    return side().xy.map(([x, y]) => [width / 2 + (x - (left + right) / 2) * size, h / 2 - (y - (low + high) / 2) * size]);
  }

  function paint() {
    const words = find.value.trim().toLowerCase();
    const found = words ? new Set(map.points.flatMap((_, i) => (text(i).toLowerCase().includes(words) ? [i] : []))) : null;
    const near = state.selected === null ? [] : side().near[state.selected].map(([j]) => j);
    const dots = map.points.map((_, i) => {
      const hit = found && found.has(i);
      const classes = ["point", colour(i), found && !hit ? "dim" : "", hit ? "hit" : "", near.includes(i) ? "near" : "",
        i === state.selected ? "selected" : ""];
      return svg("circle", { class: classes.join(" "), cx: places[i][0], cy: places[i][1], r: i === state.selected ? 7 : hit ? 6 : 4.5 });
    });
    const lines = near.map((j) => svg("line", { class: "nearline", x1: places[state.selected][0], y1: places[state.selected][1], x2: places[j][0], y2: places[j][1] }));
    const front = (node) => /near|selected|hit/.test(node.getAttribute("class"));
    plot.replaceChildren(svg("svg", { width, height: height(), viewBox: `0 0 ${width} ${height()}`, class: "map", "aria-hidden": "true" },
      ...lines, ...dots.filter((d) => !front(d)), ...dots.filter(front)));
    sides.hidden = !start();
    about.textContent = describe();
    drawScale();
    drawPanel();
  }

  function describe() {
    const how = map.how === "tsne" ? "t-SNE, in which distances between groups mean little"
      : `the two main components, ${Math.round(100 * side().shown)} % of the variance`;
    const changes = [];
    if (classes) {
      const now = `${model().after.same} % of the nearest neighbours of a sentence have its class`;
      changes.push(start() ? `${now}; before training ${start().same} %` : now);
    }
    if (model().new) changes.push(`${Math.round(model().new.reduce((a, b) => a + b, 0) / model().new.length)} % of them are new`);
    const turned = start() || map.models.length > 1 ? " Maps are rotated and mirrored to match." : "";
    const joined = changes.join(", and ").replace(/^(\d+ %) of them are/, "$1 of the nearest neighbours of a sentence are");
    return `${map.points.length} sentences of ${map.from}: ${how}.${turned}${joined ? ` After training, ${joined}.` : ""}`;
  }

  function drawScale() {
    const sample = (name) => svg("svg", { viewBox: "0 0 10 10", width: 10, height: 10 }, svg("circle", { class: name, cx: 5, cy: 5, r: 5 }));
    if (classes) {
      const more = new Set(map.classes).size - classes.length;
      scale.replaceChildren(...classes.map((name, i) => el("span", {}, sample(`f${CLASSES[i]}`), ` ${name}`)),
        more > 0 ? el("span", {}, sample("f7"), ` ${more} more`) : "");
    } else if (model().new) {
      const cells = Array.from({ length: STEPS }, (_, i) => svg("rect", { class: `s${i}`, x: i * 22, y: 0, width: 20, height: 10, rx: 2 }));
      scale.replaceChildren(el("span", {}, "neighbours: same"),
        svg("svg", { viewBox: "0 0 108 10", width: 108, height: 10, "aria-hidden": "true" }, ...cells), el("span", {}, "new"));
    } else scale.replaceChildren();
  }

  function drawPanel() {
    const i = state.selected;
    if (i === null) {
      panel.replaceChildren(el("p", { class: "hint" }, "Choose a point to see its sentence and its nearest neighbours, by the full vectors."));
      return;
    }
    const go = (j, note) => el("li", {}, el("button", { type: "button", class: "sentence", on: { click: () => choose(j) } },
      el("span", {}, text(j)), el("small", {}, note)));
    const list = (title, rows, others) => [el("h4", {}, title), el("ul", {}, ...rows.map(([j, cosine]) =>
      go(j, [`cosine ${cosineText(cosine / 100)}`, classes && map.classes[j], others && !others.some(([k]) => k === j) && "only here"]
        .filter(Boolean).join(", "))))];
    const after = model().after.near[i], before = start() && start().near[i];
    panel.replaceChildren(el("p", { class: "chosen" }, text(i)), classes ? el("p", { class: "about" }, map.classes[i]) : "",
      ...list(before ? "Nearest after training" : "Nearest", after, before),
      ...(before ? list("Nearest before training", before, after) : []));
  }

  function choose(i) {
    state.selected = i;
    paint();
  }

  // Animate the points to their position in another model.
  function move() {
    const from = places, to = target(), start = performance.now();
    cancelAnimationFrame(moving);
    if (still.matches || from.length !== to.length) {
      places = to;
      paint();
      return;
    }
    const frameAt = (now) => {
      const t = Math.min(1, Math.max(0, (now - start) / 450)), ease = t * t * (3 - 2 * t);
      places = to.map(([x, y], i) => [from[i][0] + (x - from[i][0]) * ease, from[i][1] + (y - from[i][1]) * ease]);
      paint();
      if (t < 1) moving = requestAnimationFrame(frameAt);
    };
    moving = requestAnimationFrame(frameAt);
  }

  function change(changes) {
    Object.assign(state, changes);
    models.value = state.model;
    move();
  }

  function nearest(x, y, among) {
    let best = null, least = Infinity;
    for (const i of among) {
      const distance = Math.hypot(places[i][0] - x, places[i][1] - y);
      if (distance < least) [best, least] = [i, distance];
    }
    return [best, least];
  }

  function point(event) {
    const box = plot.getBoundingClientRect();
    const [i, distance] = nearest(event.clientX - box.left, event.clientY - box.top, map.points.keys());
    const reach = event.pointerType === "mouse" ? 14 : 26;
    if (distance < reach && i !== state.selected) choose(i);
    else if (event.type === "pointerdown" && distance >= reach) choose(null);
  }

  // The nearest point in the direction of the key.
  function arrow(event) {
    const way = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") return choose(null);
    if (!way) return undefined;
    event.preventDefault();
    if (state.selected === null) return choose(nearest(width / 2, height() / 2, map.points.keys())[0]);
    const [x, y] = places[state.selected];
    const ahead = [...map.points.keys()].filter((i) => {
      const dx = places[i][0] - x, dy = places[i][1] - y, along = dx * way[0] + dy * way[1];
      return i !== state.selected && along > 0.5 && along >= Math.abs(dx * way[1] + dy * way[0]);
    });
    const [next] = nearest(x, y, ahead);
    return next === null ? undefined : choose(next);
  }

  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointermove", (event) => event.pointerType === "mouse" && point(event));
  plot.addEventListener("keydown", arrow);
  onWidth(plot, (now) => { width = now; places = target(); paint(); });

  const modelOf = (run) => map.models.findIndex((m) => m.run === run);
  return { has: (run) => modelOf(run) >= 0, show: (run) => change({ model: modelOf(run) }) };
}
