// The search page: a query, filters, and the hits of one model or of two side by side.

let info = null;
let excluded = null; // the row that "more like this" was asked for
let latest = 0; // the number of the last search: an answer to an earlier one is not shown

const score = (value) => value.toFixed(2).replace("-", "−");

function filterControls() {
  const box = byId("filters");
  if (info.corpus.columns.length) {
    const names = info.corpus.columns.map((name) => el("option", { value: name }, name));
    box.append(
      el("select", { id: "column", "aria-label": "Filter by column" }, el("option", { value: "" }, "All rows"), ...names),
      el("input", { id: "value", "aria-label": "Value of the column", placeholder: "value" }),
    );
  }
  if (info.corpus.index) {
    box.append(el("input", { id: "where", class: "wide", "aria-label": "Filter in SQL", placeholder: "filter in SQL, such as year > 2020" }));
    box.append(el("label", {}, el("input", { id: "hybrid", type: "checkbox" }), "with full text"));
  }
  box.append(el("label", {}, el("input", { id: "unique", type: "checkbox" }), "each sentence once"));
  for (const input of document.querySelectorAll("#form input:not([type=checkbox])")) {
    input.addEventListener("keydown", (event) => event.key === "Enter" && search(null));
  }
}

function request(model) {
  const column = byId("column");
  const where = byId("where");
  return {
    model: model.name,
    query: byId("query").value,
    k: Number(byId("k").value),
    unique: byId("unique").checked,
    exclude: excluded,
    columns: column && column.value ? { [column.value]: byId("value").value } : {},
    filter: where && where.value.trim() ? where.value : null,
    hybrid: Boolean(byId("hybrid") && byId("hybrid").checked),
  };
}

// `shared` holds the sentences that the other model found too; null: there is one model.
function hitRow(hit, shared) {
  const others = Object.entries(hit.columns).filter(([, value]) => value !== null);
  const about = others.map(([name, value]) => `${name}: ${value}`);
  if (shared !== null && !shared.has(hit.sentence)) about.unshift("only here");
  const more = () => {
    byId("query").value = hit.sentence;
    search(hit.index);
  };
  return el("li", {},
    el("span", { class: "score" }, score(hit.score)),
    el("div", {},
      el("p", {}, hit.sentence),
      el("div", { class: "row" },
        el("button", { type: "button", class: "small", on: { click: more } }, "More like this"),
        about.length ? el("p", { class: "quiet" }, about.join(" · ")) : null)));
}

// The query is in the fragment of the address, so that a reload repeats the search and "back" leads to the one before.
function remember() {
  history.pushState({ excluded }, "", `#${new URLSearchParams({ q: byId("query").value })}`);
}

function repeat() {
  byId("query").value = new URLSearchParams(location.hash.slice(1)).get("q") || "";
  excluded = history.state ? history.state.excluded : null;
  return show();
}

function search(exclude) {
  if (!byId("query").value.trim()) return;
  excluded = exclude;
  remember();
  return show();
}

async function show() {
  const mine = ++latest;
  if (!byId("query").value.trim()) {
    byId("results").replaceChildren();
    return;
  }
  try {
    const found = await Promise.all(info.models.map((model) => call("/search", request(model))));
    if (mine !== latest) return;
    const shared = found.length < 2 ? found.map(() => null)
      : found.map((_, i) => new Set(found.filter((_, other) => other !== i).flatMap((answer) => answer.hits.map((hit) => hit.sentence))));
    byId("results").replaceChildren(...found.map((answer, i) => el("section", {},
      info.models.length > 1 ? el("h2", {}, answer.model) : null,
      answer.truncated.length ? el("p", { class: "quiet" }, `The query was truncated to ${answer.max_tokens} tokens.`) : null,
      answer.hits.length ? el("ol", { class: "hits" }, ...answer.hits.map((hit) => hitRow(hit, shared[i]))) : el("p", {}, "Nothing found."))));
    settled();
  } catch (error) {
    if (mine === latest) complain(error);
  }
}

async function start() {
  try {
    info = await call("/info");
  } catch (error) {
    complain(error);
    return;
  }
  byId("title").textContent = info.corpus ? info.corpus.name : info.models[0].name;
  byId("about").textContent = info.corpus
    ? `${info.corpus.rows.toLocaleString("en")} sentences, ${info.models.map((model) => model.name).join(" and ")}`
    : "There is nothing to search: start the server with --index.";
  if (!info.corpus) {
    const paths = ["/v1/embeddings", "/similarity", "/health", "/metrics"];
    byId("results").replaceChildren(el("div", {}, el("p", {}, "This server answers at:"), el("ul", {}, ...paths.map((path) => el("li", {}, el("code", {}, path))))));
    return;
  }
  filterControls();
  byId("form").hidden = false;
  byId("go").addEventListener("click", () => search(null));
  addEventListener("popstate", repeat);
  byId("query").focus();
  repeat();
}

start();
