// The worst sentence pairs of a model.

const PAGE = 10;

function startPairs(box) {
  const sets = data.pairs.filter((set) => Object.values(set.runs).some((rows) => rows.length));
  if (!sets.length) {
    box.append(el("p", { class: "quiet" }, "There are no scored pairs to show: no run has dev or test pairs together with a model or similarities."));
    return null;
  }
  const first = Object.keys(sets[0].runs).map(Number);
  const state = { set: 0, run: first.find((i) => data.runs[i].shown) ?? first[0], kind: "all", shown: PAGE };
  const controls = el("div", { class: "controls" });
  const list = el("ol", { class: "pairs" });
  const more = el("button", { type: "button", class: "plain more", on: { click: () => { state.shown += 3 * PAGE; draw(); } } }, "Show more");
  const count = el("p", { class: "about", "aria-live": "polite" });
  box.append(el("div", { class: "card" }, controls, count, list, more));

  function drawControls() {
    const runs = Object.keys(sets[state.set].runs).map(Number);
    if (!runs.includes(state.run)) state.run = runs[0];
    controls.replaceChildren(
      labelled("Run", select(runs.map((i) => [i, data.runs[i].name]), state.run, (v) => update({ run: Number(v) }))),
      sets.length > 1
        ? labelled("Pairs", select(sets.map((set, i) => [i, set.name]), state.set, (v) => { state.set = Number(v); drawControls(); update({}); }))
        : "",
      segmented("Kind of error", [["all", "All"], ["near", "Too similar"], ["far", "Too far"]], state.kind, (v) => update({ kind: v })));
  }

  function draw() {
    const set = sets[state.set];
    const rows = (set.runs[state.run] || [])
      .filter(([, , , gold, , rank]) => state.kind === "all" || (state.kind === "near" ? rank > gold : rank < gold));
    count.textContent = `${set.name}, ${set.count.toLocaleString("en")} pairs; gold scores up to ${plain(set.top)}.`;
    list.replaceChildren(...rows.slice(0, state.shown).map((row) => item(row, set)));
    more.hidden = rows.length <= state.shown;
  }

  function item([first, second, gold, goldRank, cosine, rank, usual], set) {
    const error = rank - goldRank;
    const near = error > 0;
    return el("li", {},
      el("div", { class: "sentences" }, el("p", {}, data.sentences[first]), el("p", {}, data.sentences[second])),
      el("div", { class: "verdict" },
        el("p", { class: `error ${near ? "near" : "far"}` }, el("b", {}, near ? "too similar" : "too far"), ` by ${Math.abs(error)}`),
        track(goldRank, rank, near),
        el("dl", {},
          el("div", {}, el("dt", {}, "gold"), el("dd", {}, `${plain(gold)} `, el("span", {}, `rank ${goldRank}`))),
          el("div", {}, el("dt", {}, "cosine"), el("dd", {}, `${cosineText(cosine)} `, el("span", {}, `rank ${rank}`))),
          usual === null ? null : el("div", {}, el("dt", {}, "all runs"), el("dd", {}, `${signed(usual)} `, el("span", {}, "median"))))));
  }

  // Both ranks on one line from 0 to 100: the ring is the gold score's, the disc the model's.
  function track(gold, rank, near) {
    const at = (value) => 8 + value * 1.84;
    return svg("svg", { class: `track ${near ? "near" : "far"}`, viewBox: "0 0 200 18", "aria-hidden": "true" },
      svg("line", { class: "base", x1: 8, x2: 192, y1: 9, y2: 9 }),
      svg("line", { class: "span", x1: at(gold), x2: at(rank), y1: 9, y2: 9 }),
      svg("circle", { class: "gold", cx: at(gold), cy: 9, r: 5 }),
      svg("circle", { class: "rank", cx: at(rank), cy: 9, r: 5.5 }));
  }

  function update(changes) {
    Object.assign(state, { shown: PAGE }, changes);
    draw();
  }

  drawControls();
  draw();
  return {
    has: (i) => sets.some((set) => i in set.runs),
    show: (i) => {
      if (!(i in sets[state.set].runs)) state.set = sets.findIndex((set) => i in set.runs);
      state.run = i;
      drawControls();
      update({});
    },
  };
}
