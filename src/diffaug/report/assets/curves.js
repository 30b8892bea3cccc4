// Metric curves: choose the metric and the runs, read values off by pointer, finger or keyboard.

const MANY = 12; // runs from which on a list is searched rather than read

function startCurves(box) {
  const able = data.runs.map((run, i) => i).filter((i) => Object.keys(data.runs[i].curves).length);
  if (!able.length) {
    box.append(el("p", { class: "quiet" }, "Nothing has been logged yet."));
    return null;
  }
  const stages = [...new Set(able.flatMap((i) => data.runs[i].stages.map(([stage]) => stage)))].filter((s) => s > 0).sort();
  const first = able.filter((i) => data.runs[i].shown).slice(0, MANY);
  const state = {
    metric: data.metrics[0].name, stage: "all", smooth: false, on: new Set(first.length ? first : able.slice(0, MANY)),
    strong: null, at: null,
  };
  let width = 0, geometry = null;

  const about = el("p", { class: "about" });
  const plot = el("div", { class: "plot", tabindex: "0", role: "group",
    "aria-label": "Chart. Left and right arrow keys read values." });
  const readout = el("div", { class: "readout", "aria-live": "polite", hidden: true });
  const hint = el("p", { class: "hint" }, "Point at the chart to read values. A ring marks the best checkpoint.");
  const legend = el("div", { class: "legend", role: "group", "aria-label": "Runs shown" });
  const metrics = select(data.metrics.map((m) => [m.name, m.label]), state.metric, (v) => update({ metric: v, at: null }));
  const controls = el("div", { class: "controls" }, labelled("Metric", metrics));
  if (stages.length > 1) {
    const choices = [["all", "All"], ...stages.map((s) => [String(s), `Stage ${s}`])];
    controls.append(segmented("Stage", choices, "all", (v) => update({ stage: v, at: null })));
  }
  controls.append(labelled("Smooth", el("input", { type: "checkbox", on: {
    change: (event) => update({ smooth: event.target.checked }) } })));
  box.append(el("div", { class: "card" }, controls, about, el("div", { class: "stageplot" }, plot, readout), hint, legend));

  // The points of a run as they are drawn: steps counted through the stages, unless one stage alone is shown.
  function segments(run) {
    let offset = 0;
    const starts = Object.fromEntries(run.stages.map(([stage, length]) => [stage, [offset, (offset += length)][0]]));
    return (run.curves[state.metric] || [])
      .filter(([stage]) => state.stage === "all" || String(stage) === state.stage || stage === 0)
      .map(([stage, steps, values]) => {
        const shift = state.stage === "all" ? starts[stage] : 0;
        return { stage, shift, points: smoothed(steps.map((step, i) => ({ x: step + shift, step, y: values[i] }))) };
      });
  }

  // An exponential moving average over about a tenth of the curve.
  function smoothed(points) {
    if (!state.smooth || points.length < 10) return points;
    const keep = 1 - 2 / (points.length / 10 + 1);
    let mean = points[0].y;
    return points.map((p) => ({ ...p, y: (mean = keep * mean + (1 - keep) * p.y) }));
  }

  function draw() {
    const metric = data.metrics.find((m) => m.name === state.metric);
    about.textContent = metric.about ? `${metric.label}: ${metric.about}.` : metric.label;
    const shown = able.filter((i) => state.on.has(i)).map((i) => ({ i, run: data.runs[i], parts: segments(data.runs[i]) }))
      .filter(({ parts }) => parts.length);
    const lines = shown.filter(({ parts }) => parts.some((part) => part.stage > 0));
    const levels = before(shown);
    const values = [...levels.keys(), ...shown.flatMap(({ parts }) => parts.flatMap((part) => part.points.map((p) => p.y)))];
    plot.replaceChildren();
    if (!shown.length) {
      geometry = null;
      plot.append(el("p", { class: "empty" }, state.on.size ? "None of the shown runs has logged this metric." : "No run is shown."));
      readout.hidden = true;
      return;
    }
    const last = Math.max(1, ...lines.flatMap(({ parts }) => parts.map((part) => part.points.at(-1).x)));
    const height = Math.round(Math.min(430, Math.max(270, width * 0.46)));
    const f = frame(width, height, [0, last], extent(values, 0.06), state.stage === "all" ? "Step" : `Step of stage ${state.stage}`);
    drawStages(f, lines);
    drawBefore(f, levels);
    const order = [...shown].sort((a, b) => (a.i === state.strong) - (b.i === state.strong));
    for (const { i, run, parts } of order) drawRun(f, run, parts, i);
    const cursor = svg("g", { class: "cursor" });
    f.root.append(cursor);
    plot.append(f.root);
    const xs = [...new Set(lines.flatMap(({ parts }) => parts.flatMap((part) => part.points.map((p) => p.x))))].sort((a, b) => a - b);
    geometry = { f, shown, cursor, xs, levels };
    read();
  }

  // The scores of the models before training, and the runs that have them.
  function before(shown) {
    const found = new Map();
    for (const { run } of shown) {
      const value = run.before[state.metric];
      if (value !== undefined && value !== null) found.set(value, [...(found.get(value) || []), run]);
    }
    return found;
  }

  function drawBefore(f, levels) {
    for (const [value, runs] of levels) {
      const y = f.y(value), names = levels.size > 1 && runs.length === 1 ? `: ${runs[0].name}` : "";
      f.root.append(
        svg("line", { class: "before", x1: f.margin.left, x2: f.width - f.margin.right, y1: y, y2: y }),
        svg("text", { class: "before", x: f.width - f.margin.right, y: y - 6, "text-anchor": "end" }, `before training${names}`));
    }
  }

  function drawStages(f, lines) {
    if (state.stage !== "all") return;
    const ends = new Map(); // where stage 2 begins, and the colour of the runs for which it begins there
    for (const { run } of lines.filter(({ run }) => run.stages.length > 1)) {
      const end = run.stages[0][1];
      ends.set(end, ends.has(end) && ends.get(end) !== run.colour ? "" : run.colour);
    }
    [...ends].sort((a, b) => a[0] - b[0]).forEach(([end, colour], n) => {
      f.root.append(svg("line", { class: `stage c${colour}`, x1: f.x(end), x2: f.x(end), y1: f.margin.top - 6, y2: f.bottom }));
      if (n) return;
      if (f.x(end) - f.margin.left > 60) {
        f.root.append(svg("text", { class: "stage", x: f.x(end) - 6, y: f.margin.top - 8, "text-anchor": "end" }, "stage 1"));
      }
      if (f.width - f.x(end) > 60) f.root.append(svg("text", { class: "stage", x: f.x(end) + 6, y: f.margin.top - 8 }, "stage 2"));
    });
  }

  function drawRun(f, run, parts, i) {
    const strength = state.strong === null ? "" : state.strong === i ? " strong" : " faint";
    for (const { stage, shift, points } of parts) {
      if (stage === 0) { // a model without training: a level to compare with
        const y = f.y(points[0].y);
        f.root.append(svg("line", { class: look(run) + " level" + strength, x1: f.margin.left, x2: f.width - f.margin.right, y1: y, y2: y }));
        continue;
      }
      f.root.append(svg("path", { class: look(run) + strength, d: pathOf(points, f.x, f.y) }));
      if (points.length === 1) {
        f.root.append(svg("circle", { class: `dot c${run.colour}`, cx: f.x(points[0].x), cy: f.y(points[0].y), r: 3.5 }));
      }
      if (run.best && run.best[0] === stage) {
        const at = run.best[1] + shift, value = valueAt(points, at);
        if (value !== null) {
          f.root.append(svg("circle", { class: `best c${run.colour}${strength}`, cx: f.x(at), cy: f.y(value), r: 5 }));
        }
      }
    }
  }

  // The values of the curves at the step under the cursor.
  function read() {
    if (!geometry) return;
    const { f, shown, cursor, xs, levels } = geometry;
    cursor.replaceChildren();
    readout.hidden = state.at === null || !xs.length;
    if (readout.hidden) return;
    const x = xs.reduce((a, b) => (Math.abs(b - state.at) < Math.abs(a - state.at) ? b : a));
    const found = [];
    for (const { run, parts } of shown) {
      const level = parts[0].stage === 0;
      // On the line, since points that lie on one were left out. Where two stages meet, the earlier one has that step.
      const part = level ? parts[0] : parts.find((p) => valueAt(p.points, x) !== null);
      if (!part) continue;
      const y = level ? part.points[0].y : valueAt(part.points, x);
      found.push({ run, level, point: { y, stage: part.stage, step: x - part.shift } });
      if (!level) cursor.append(svg("circle", { class: `dot c${run.colour}`, cx: f.x(x), cy: f.y(y), r: 4 }));
    }
    cursor.prepend(svg("line", { x1: f.x(x), x2: f.x(x), y1: f.margin.top, y2: f.bottom }));
    found.sort((a, b) => b.point.y - a.point.y);
    const rows = found.slice(0, 10).map(({ run, point, level }) => el("tr", {},
      el("th", { scope: "row" }, key(run), run.name), el("td", {}, number(point.y)),
      el("td", { class: "quiet" }, level ? "no training" : `${stages.length > 1 ? `stage ${point.stage}, ` : ""}step ${point.step}`)));
    for (const value of levels.keys()) {
      rows.push(el("tr", {}, el("th", { scope: "row", class: "quiet" }, "before training"), el("td", {}, number(value))));
    }
    if (found.length > 10) rows.push(el("tr", {}, el("th", { class: "quiet" }, `and ${found.length - 10} more`)));
    readout.replaceChildren(el("table", {}, el("caption", {}, `Step ${x.toLocaleString("en")}`), el("tbody", {}, ...rows)));
    place(f.x(x), f.width);
  }

  // Beside the cursor where there is room for it, else below the chart.
  function place(x, width) {
    const over = width > 560;
    readout.className = over ? "readout over" : "readout";
    const own = readout.offsetWidth;
    readout.style.left = over ? `${x + 16 + own > width ? Math.max(0, x - own - 16) : x + 16}px` : "";
  }

  function drawLegend() {
    const filter = el("input", { type: "search", placeholder: "Find runs", "aria-label": "Find runs", on: { input: () => search() } });
    const buttons = able.map((i) => {
      const run = data.runs[i];
      return el("button", { type: "button", "aria-pressed": String(state.on.has(i)), "data-i": i, on: {
        click: () => { state.on.has(i) ? state.on.delete(i) : state.on.add(i); mark(); draw(); },
        pointerenter: (event) => event.pointerType === "mouse" && strengthen(i), pointerleave: () => strengthen(null),
        focus: (event) => event.target.matches(":focus-visible") && strengthen(i), blur: () => strengthen(null),
      } }, key(run), el("span", {}, run.name), run.state === "finished" ? null : el("small", {}, run.state));
    });
    // Those that are drawn come first: with a hundred runs they could not be found among the others.
    const list = el("div", { class: "keys" }, ...[...buttons].sort((a, b) => (b.ariaPressed === "true") - (a.ariaPressed === "true")));
    const every = (on) => {
      for (const button of buttons) if (!button.hidden) state.on[on ? "add" : "delete"](Number(button.dataset.i));
      mark();
      draw();
    };
    function mark() {
      for (const button of buttons) button.setAttribute("aria-pressed", String(state.on.has(Number(button.dataset.i))));
    }
    function search() {
      const words = filter.value.toLowerCase().split(/\s+/);
      for (const button of buttons) button.hidden = !words.every((w) => button.textContent.toLowerCase().includes(w));
    }
    function strengthen(i) {
      if (i !== null && !state.on.has(i)) i = null;
      if (state.strong !== i) { state.strong = i; draw(); }
    }
    legend.replaceChildren();
    if (able.length > 1) {
      legend.append(el("div", { class: "all" }, able.length > MANY ? filter : null,
        el("button", { type: "button", class: "plain", on: { click: () => every(true) } }, "Show all"),
        el("button", { type: "button", class: "plain", on: { click: () => every(false) } }, "Hide all")));
    }
    legend.append(list);
    return mark;
  }

  function update(changes) {
    Object.assign(state, changes);
    draw();
  }

  function point(event) {
    if (!geometry) return;
    const { f } = geometry;
    state.at = f.x.back(event.clientX - f.root.getBoundingClientRect().left);
    read();
  }

  function arrow(event) {
    if (!geometry || !geometry.xs.length) return;
    const { xs } = geometry;
    const here = state.at === null ? -1 : xs.findIndex((x) => x >= state.at - 1e-9);
    const next = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: xs.length - 1, Escape: null }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    state.at = next === null ? null : xs[Math.min(xs.length - 1, Math.max(0, next))];
    read();
  }

  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && update({ at: null }));
  plot.addEventListener("keydown", arrow);
  const mark = drawLegend();
  onWidth(plot, (now) => { width = now; draw(); });

  // Show a run, alone with those that are level lines.
  return { has: (i) => able.includes(i), show: (i) => { state.on = new Set([i]); mark(); draw(); } };
}
