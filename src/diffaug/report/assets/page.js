// Starts all sections and connects them.

const part = (name) => document.querySelector(`#${name} .live`);

function startTheme() {
  const button = document.getElementById("theme"), names = ["automatic", "light", "dark"];
  let theme = "automatic";
  try {
    theme = localStorage.getItem("diffaug-theme") || theme;
  } catch { /* a page from a file may have no storage: the choice is then not saved */ }
  function apply() {
    if (!names.includes(theme)) theme = "automatic";
    document.documentElement.dataset.theme = theme;
    for (const attribute of ["aria-label", "title"]) button.setAttribute(attribute, `Colours: ${theme}`);
  }
  button.addEventListener("click", () => {
    // The first click switches away from the system's colours, so that it has a visible effect.
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const order = dark ? ["automatic", "light", "dark"] : ["automatic", "dark", "light"];
    theme = order[(order.indexOf(theme) + 1) % 3];
    apply();
    try {
      localStorage.setItem("diffaug-theme", theme);
    } catch { /* as above */ }
  });
  apply();
}

// Clicking a column header sorts by it; numbers in descending order first.
function startSorting(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const numbers = head.classList.contains("number");
    const was = head.getAttribute("aria-sort");
    const down = was ? was === "ascending" : numbers;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => {
      const cell = row.cells[column];
      return numbers ? (cell.dataset.v === undefined ? null : Number(cell.dataset.v)) : cell.dataset.v || cell.textContent;
    };
    const compare = (a, b) => (numbers ? a - b : a.localeCompare(b, "en", { numeric: true }));
    body.append(...[...body.rows].sort((a, b) => {
      const x = value(a), y = value(b);
      if (x === null || y === null) return (x === null) - (y === null);
      return down ? compare(y, x) : compare(x, y);
    }));
  }));
}

// A recipe is rendered when it is first opened.
function startRecipe(details) {
  const run = data.runs[details.dataset.run];
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("pre")) return;
    const names = Object.keys({ ...data.shared, ...run.settings });
    const top = (name) => (name.includes(".") ? 1 : 0);
    names.sort((a, b) => top(a) - top(b) || groups.indexOf(a.split(".")[0]) - groups.indexOf(b.split(".")[0]));
    const lines = names.map((name) => {
      const own = name in run.settings;
      const text = [el("b", {}, name), `: ${own ? run.settings[name] : data.shared[name]}\n`];
      return own && data.runs.length > 1 ? el("mark", {}, ...text) : el("span", {}, ...text);
    });
    if (run.stage1_end) details.append(el("p", { class: "about" }, `Stage 1 ended ${run.stage1_end}.`));
    details.append(el("pre", { tabindex: "0" }, ...lines));
  });
}

const groups = ["model", "views", "data", "stage1", "stage2", "flow", "replaced", "loop", "released"];

// A table wider than its box fades out at the edge.
function startFading(box) {
  const check = () => box.classList.toggle("cut", box.scrollWidth - box.clientWidth - box.scrollLeft > 4);
  box.addEventListener("scroll", check, { passive: true });
  new ResizeObserver(check).observe(box);
}

// A long table has a search field that filters its rows.
function startFinding(box) {
  const rows = [...box.querySelectorAll("tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const count = el("span", { class: "quiet", "aria-live": "polite" });
  const find = el("input", { type: "search", placeholder: "Find runs", "aria-label": `${box.ariaLabel}: find runs`, on: { input: () => {
    const words = find.value.toLowerCase().split(/\s+/);
    rows.forEach((row, i) => { row.hidden = !words.every((word) => texts[i].includes(word)); });
    const left = rows.filter((row) => !row.hidden).length;
    count.textContent = left < rows.length ? `${left} of ${rows.length}` : "";
  } } });
  box.before(el("div", { class: "find" }, find, count));
}

startTheme();
const parts = { curves: startCurves(part("curves")), pairs: startPairs(part("pairs")), map: startMap(part("map")) };

document.querySelectorAll(".scroll").forEach(startFading);
document.querySelectorAll(".scroll.tall").forEach(startFinding);
document.querySelectorAll("table.sortable").forEach(startSorting);
document.querySelectorAll("details.recipe[data-run]").forEach(startRecipe);
document.querySelectorAll("i.key[data-key]").forEach((mark) => mark.replaceWith(key(data.runs[mark.dataset.key])));
document.querySelectorAll("a[data-to]").forEach((link) => {
  const target = parts[link.dataset.to], run = Number(link.dataset.run);
  if (!target || !target.has(run)) link.remove();
  else link.addEventListener("click", () => target.show(run));
});
document.querySelectorAll("a[data-run]:not([data-to])").forEach((link) =>
  link.addEventListener("click", () => {
    for (let node = document.getElementById(`run-${link.dataset.run}`); node; node = node.parentElement.closest("details")) node.open = true;
  }));
addEventListener("beforeprint", () => document.querySelectorAll("details.all-runs").forEach((d) => { d.open = true; }));
