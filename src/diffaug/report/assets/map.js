// A map of sentences: each a point, pairs joined by a line whose colour is the gold score.

const STEPS = 5; // of the colour scale

function startMap(box) {
  const map = data.map;
  if (!map) {
    box.append(el("p", { class: "quiet" }, data.no_map));
    return null;
  }
  const state = { model: 0, colour: "gold", pairs: "all", selected: null };
  const pairsOf = map.points.map(() => []);
  map.pairs.forEach(([a, b], i) => { pairsOf[a].push(i); if (a !== b) pairsOf[b].push(i); });
  let width = 0, places = [], moving = 0;

  const models = select(map.models.map((m, i) => [i, data.runs[m.run].name]), 0, (v) => change({ model: Number(v) }));
  const find = el("input", { type: "search", placeholder: "Find words", "aria-label": "Find sentences", on: { input: () => paint() } });
  const controls = el("div", { class: "controls" },
    labelled("Model", models),
    labelled("Colour", select([["gold", "Gold score"], ["cosine", "Cosine"], ["error", "Error"]], "gold", (v) => change({ colour: v }))),
    labelled("Pairs", select([["all", "All"], ["high", "Highest gold scores"], ["low", "Lowest gold scores"], ["wrong", "Worst"]], "all",
      (v) => change({ pairs: v }))),
    find);
  const about = el("p", { class: "about" });
  const scale = el("div", { class: "scale", "aria-hidden": "true" });
  const plot = el("div", { class: "plot", tabindex: "0", role: "group",
    "aria-label": "Map. Arrow keys go from sentence to sentence." });
  const panel = el("div", { class: "panel", "aria-live": "polite" });
  box.append(el("div", { class: "card" }, controls, about,
    el("div", { class: "mapgrid" }, el("div", { class: "mapbox" }, plot, scale), panel)));

  const model = () => map.models[state.model];

  // Each pair's number on the scale from 0 to 1, and the pairs that are drawn.
  function measure() {
    const [low, high] = map.range;
    const gold = map.pairs.map(([, , score]) => (score - low) / (high - low || 1));
    const goldRank = ranks(map.pairs.map(([, , score]) => score));
    const error = ranks(model().cosines).map((rank, i) => rank - goldRank[i]);
    const value = { gold, cosine: model().cosines.map((c) => Math.max(0, c) / 100), error: error.map((e) => (e + 1) / 2) }[state.colour];
    const size = Math.ceil(map.pairs.length / 5);
    const by = (keys) => new Set(keys.map((k, i) => [k, i]).sort((a, b) => b[0] - a[0]).slice(0, size).map(([, i]) => i));
    const drawn = { all: null, high: by(gold), low: by(gold.map((g) => -g)), wrong: by(error.map(Math.abs)) }[state.pairs];
    return { value, error, drawn };
  }

  function ranks(values) {
    const order = values.map((v, i) => i).sort((a, b) => values[a] - values[b]);
    const found = Array(values.length);
    for (let i = 0; i < order.length;) {
      let j = i;
      while (j < order.length && values[order[j]] === values[order[i]]) j++;
      for (let k = i; k < j; k++) found[order[k]] = (i + j - 1) / 2 / Math.max(1, order.length - 1);
      i = j;
    }
    return found;
  }

  const step = (value) => Math.max(0, Math.min(STEPS - 1, Math.floor(value * STEPS)));
  const height = () => Math.round(Math.min(560, Math.max(300, width * 0.82)));

  // Where points go: as large as the box allows, with one scale for both directions.
  function target() {
    const margin = 16, h = height(), xs = model().xy.map(([x]) => x), ys = model().xy.map(([, y]) => y);
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const size = Math.min((width - 2 * margin) / (right - left || 1), (h - 2 * margin) / (high - low || 1));
    return model().xy.map(([x, y]) => [width / 2 + (x - (left + right) / 2) * size, h / 2 - (y - (low + high) / 2) * size]);
  }

  function paint() {
    const { value, drawn } = measure();
    const words = find.value.trim().toLowerCase();
    const found = words ? new Set(map.points.flatMap((s, i) => (data.sentences[s].toLowerCase().includes(words) ? [i] : []))) : null;
    const lines = [], dots = [];
    const near = state.selected === null ? [] : model().near[state.selected].map(([j]) => j);
    map.pairs.forEach(([a, b], i) => {
      if (drawn && !drawn.has(i)) return;
      const own = state.selected !== null && (a === state.selected || b === state.selected);
      lines.push(svg("line", { class: `pair s${step(value[i])}${own ? " own" : ""}`, x1: places[a][0], y1: places[a][1], x2: places[b][0], y2: places[b][1] }));
    });
    map.points.forEach((_, i) => {
      const inPair = pairsOf[i].find((p) => !drawn || drawn.has(p));
      const hit = found && found.has(i);
      const dim = (drawn && inPair === undefined) || (found && !hit);
      const classes = ["point", `s${step(value[inPair ?? pairsOf[i][0]])}`, dim ? "dim" : "", hit ? "hit" : "",
        near.includes(i) ? "near" : "", i === state.selected ? "selected" : ""];
      dots.push(svg("circle", { class: classes.join(" "), cx: places[i][0], cy: places[i][1], r: i === state.selected ? 7 : hit ? 6 : 4.5, "data-i": i }));
    });
    const chosen = near.map((j) => svg("line", { class: "nearline", x1: places[state.selected][0], y1: places[state.selected][1], x2: places[j][0], y2: places[j][1] }));
    const front = (node) => /near|selected|hit/.test(node.getAttribute("class"));
    plot.replaceChildren(svg("svg", { width, height: height(), viewBox: `0 0 ${width} ${height()}`, class: "map", "aria-hidden": "true" },
      ...lines, ...chosen, ...dots.filter((d) => !front(d)), ...dots.filter(front)));
    about.textContent = describe();
    drawScale();
    drawPanel();
  }

  function describe() {
    const how = map.how === "tsne" ? "t-SNE, in which distances between groups mean little"
      : `the two main components, ${Math.round(100 * model().shown)} % of the variance`;
    const turned = map.models.length > 1 ? " Maps are turned to lie alike." : "";
    return `${map.points.length} sentences of ${map.from}: ${how}. A line joins a pair.${turned}`;
  }

  function drawScale() {
    const ends = { gold: [`gold ${plain(map.range[0])}`, plain(map.range[1])], cosine: ["cosine 0", "1"], error: ["too far", "too similar"] }[state.colour];
    const cells = Array.from({ length: STEPS }, (_, i) => svg("rect", { class: `s${i}`, x: i * 22, y: 0, width: 20, height: 10, rx: 2 }));
    scale.replaceChildren(el("span", {}, ends[0]), svg("svg", { viewBox: "0 0 108 10", width: 108, height: 10 }, ...cells), el("span", {}, ends[1]));
  }

  function drawPanel() {
    const i = state.selected;
    if (i === null) {
      panel.replaceChildren(el("p", { class: "hint" }, "Choose a point to see its sentence, its pair and its nearest neighbours among all sentences, by the full vectors."));
      return;
    }
    const go = (j, text, note) => el("li", {}, el("button", { type: "button", class: "sentence", on: { click: () => choose(j) } },
      el("span", {}, text), el("small", {}, note)));
    const pairs = pairsOf[i].map((p) => {
      const [a, b, score] = map.pairs[p], other = a === i ? b : a;
      return go(other, data.sentences[map.points[other]], `gold ${plain(score)}, cosine ${cosineText(model().cosines[p] / 100)}`);
    });
    const near = model().near[i].map(([j, c]) => go(j, data.sentences[map.points[j]], `cosine ${cosineText(c / 100)}`));
    panel.replaceChildren(el("p", { class: "chosen" }, data.sentences[map.points[i]]),
      el("h4", {}, "Paired with"), el("ul", {}, ...pairs), el("h4", {}, "Nearest"), el("ul", {}, ...near));
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
    const other = "model" in changes && changes.model !== state.model;
    Object.assign(state, changes);
    models.value = state.model;
    other ? move() : paint();
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
  return {
    has: (run) => modelOf(run) >= 0,
    show: (run) => change({ model: modelOf(run) }),
    // Where on the map a pair of sentences is, for a run that has one.
    place: (first, second, run) => {
      const i = map.pairs.findIndex(([a, b]) => map.points[a] === first && map.points[b] === second);
      return i < 0 || modelOf(run) < 0 ? null : i;
    },
    choosePair: (run, pair) => { change({ model: modelOf(run), pairs: "all", colour: "gold" }); choose(map.pairs[pair][0]); },
  };
}
