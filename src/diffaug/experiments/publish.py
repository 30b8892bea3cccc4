"""Publish finished grids in a repository: a JSON file with all results, the figure, and the tables of pages.

    diffaug reproduce main --encoder small --data d --budget small --out grids/main
    python -m diffaug.experiments.publish grids/main --name small --figures --docs

The file is `benchmarks/results/reproduce-NAME-ENCODER.json`. Several grids are published together or not at all.
Encoder, data and other grids appear by their base names; if a path of this machine remains, nothing is written. An
unfinished grid is refused, unless --incomplete is given: then the file and every table made from it say so.

A page has a table between two comments, each on its own line:

    <!-- from benchmarks/results/reproduce-main-small.json: overview -->
    <!-- end -->

`--docs`, also without a grid, writes what is between them in README.md and docs/*.md. `overview` is a table for pages
that compare methods; the other tables are those of the grid: `scores`, `tests`, `lead`, `settings`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffaug import tabular
from diffaug.config import load_recipe, source_list
from diffaug.errors import DiffaugError
from diffaug.experiments.budget import budget_names
from diffaug.experiments.grid import Grid
from diffaug.experiments.results import AVERAGE, DEV, Cell, Entry, Summary, counted, listed
from diffaug.experiments.summary import summarise
from diffaug.experiments.tables import (
    NOTHING,
    Part,
    Rows,
    by_column,
    changed,
    columns_heads,
    columns_title,
    parts,
    score_caption,
    score_rows,
    score_text,
)
from diffaug.files import atomic_file, write_text
from diffaug.version import __version__

FORMAT_VERSION = 1
OVERVIEW = "overview"

_OF_A_RUN = ("seed=", "data.label_draw=")
_OF_A_CELL = ("row", "column", "recipe", "setting", "seed", "draw")
_OF_A_RESULT = ("scores", "seconds", "gib", "steps", "best_at", "stage1_end")
_FILES = ("triplets", "pairs", "sentences", "dev", "target")
_ENDINGS = re.compile(r"\.(txt|csv|tsv|jsonl|parquet)(\.(gz|xz))?$")
_START = re.compile(r"^<!-- from (?P<file>\S+): (?P<table>\S+) -->$")
_END = "<!-- end -->"
# The start of a path at the start of a word: `/home`, `~/x`, `C:\\x`, `file:/`. A slash within a word is part of a hub
# name, a relative path or an address.
_MACHINE_PATH = re.compile(r"""(?:^|(?<=[\s=:,;'"(\[<>]))(?:/[^\s/]|~[\w.-]*/|[A-Za-z]:[\\/]|file:/)""")


@dataclass(frozen=True)
class PublishedGrid:
    """The content of a published file.

    Attributes:
        summary: of the grid; the folders of runs are only names.
        labels: by group, row and column, the file whose labels a row learns from; None: none.
        incomplete: what the grid lacked when it was published.
    """

    summary: Summary
    labels: dict[tuple[str, str, str], str | None]
    incomplete: list[str]


def publish(
    folders: Sequence[Path],
    name: str | None = None,
    *,
    about: str = "",
    gaps: bool = False,
    figures: bool = False,
    docs: bool = False,
    root: Path,
) -> list[Path]:
    """Publish grids in the repository ``root``, all of them or none; returns the files that were written.

    The other arguments are the options of the command; ``gaps`` is --incomplete.

    Raises:
        DiffaugError: see `checked`; two grids have the same file; a figure or table cannot be made.
    """
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in folders:
        values = checked(folder, about, gaps=gaps)
        stem = f"reproduce-{values['experiment']}-{base_name(name or values['encoder'] or 'grid')}"
        if stem in found:
            raise DiffaugError(f"{found[stem][0]} and {folder} would both be {stem}; give them different --name")
        found[stem] = folder, values
    written = []
    for stem, (folder, values) in found.items():
        written.append(write(values, root / "benchmarks" / "results" / f"{stem}.json"))
        if figures:
            written.append(publish_figure(folder, root / "docs" / "assets" / f"{stem}.png"))
    return written + (refresh(root) if docs else [])


def checked(folder: Path, about: str = "", *, gaps: bool = False) -> dict[str, Any]:
    """The content of the file of a grid.

    Raises:
        DiffaugError: there is no grid, it is unfinished, or a path of this machine would be published.
    """
    grid = Grid.open(folder)
    summary = summarise(grid)
    lacking = incomplete(summary)
    if lacking and not gaps:
        raise DiffaugError(
            f"{folder} is not complete. {'. '.join(lacking)}. Continue it with its command, or publish it as it is "
            "with --incomplete"
        )
    packed = {"about": about, **pack(grid, summary)}
    values: dict[str, Any] = without_paths(packed, _known_paths(grid, [*summary.taken_over]))
    for place, text in machine_paths(values):
        raise DiffaugError(f"{folder}: {place} would publish a path of this machine, in {text!r}; nothing was written")
    unpack(values)  # a file must be readable
    return values


def write(values: dict[str, Any], target: Path) -> Path:
    """Write what `checked` returned; returns the file."""
    write_text(target, _short_lines(values) + "\n")
    return target


def publish_figure(folder: Path, target: Path) -> Path:
    """Draw the figure of a grid for a page; returns the file."""
    from diffaug.experiments.figures import draw  # needs matplotlib

    with tempfile.TemporaryDirectory() as made:
        files = {path.suffix: path for path in draw(Grid.open(folder), Path(made))}
        # Both show the same text.
        for _, text in machine_paths(re.findall(r">([^<>]+)<", files[".svg"].read_text("utf-8"))):
            raise DiffaugError(f"{folder}: the figure would publish a path of this machine, in {text!r}")
        with atomic_file(target) as temporary:
            temporary.write_bytes(files[".png"].read_bytes())
    return target


# --- the file -------------------------------------------------------------------------------------------------------


def incomplete(summary: Summary) -> list[str]:
    """What a grid lacks; empty: nothing."""
    short = [f"{entry.place} ({len(entry.runs)} of {entry.asked})" for entry in summary.entries if entry.short]
    untried = [
        f"{entry.place} ({entry.tried} of {len(entry.settings)})"
        for entry in summary.entries
        if entry.tried < len(entry.settings)
    ]
    place = "row" if summary.columns == ("",) else "place"
    found = [
        ("run", "failed", [cell.name for cell, _ in summary.failures]),
        ("planned run", "not finished", [cell.name for cell in summary.unfinished]),
        (place, "with fewer runs than asked for", short),
        (place, "with settings that were not tried", untried),
        ("comparison", "not made", list(summary.untested)),
    ]
    return [f"{counted(len(names), one)} {what}: {listed(names)}" for one, what, names in found if names]


def pack(grid: Grid, summary: Summary) -> dict[str, Any]:
    """`Summary.to_dict` without repetitions: what the runs of a row share is written once."""
    found, request = summary.to_dict(), grid.request
    dev = {cell.name: result.scores[DEV] for cell, result in grid.results()}
    spec = {"spec": grid.about["spec"]} if "spec" in grid.about else {}
    return {
        "format_version": FORMAT_VERSION,
        "command": command(grid, summary),
        "incomplete": incomplete(summary),
        "kept_with": f"diffaug {__version__}",
        "machines": found["machines"],
        "experiment": summary.experiment,
        "title": summary.title,
        "encoder": request.get("encoder") or "",
        "budget": _budget(request),
        "seeds": request.get("seeds", []),
        "draws": request.get("draws", 1),
        **({"changes": request["changes"]} if request.get("changes") else {}),
        **{name: found[name] for name in ("tasks", "columns", "columns_are", "deviation", "bootstrap")},
        "notes": [str(note) for note in summary.info.get("notes") or ()],
        "taken_over": dict(_by_name(summary.taken_over)),
        "failures": [{name: cell[name] for name in (*_OF_A_CELL, "why")} for cell in found["failures"]],
        "unfinished": [{name: cell[name] for name in _OF_A_CELL} for cell in found["unfinished"]],
        "untested": found["untested"],
        "entries": [
            _pack_entry(values, [cell for cell in grid.first if (cell.group, *cell.place) == entry.key], dev, found)
            for entry, values in zip(summary.entries, found["entries"], strict=True)
        ],
        "leads": found["leads"],
        **spec,
    }


def _pack_entry(
    values: Mapping[str, Any], tries: Sequence[Cell], dev: Mapping[str, float], found: Mapping[str, Any]
) -> dict[str, Any]:
    shared = set.intersection(*(set(cell.changes) for cell in tries))
    first, machines = tries[0], found["machines"]
    return {
        **{name: values[name] for name in ("group", "row", "column", "baseline", "strongest_baseline")},
        "recipe": first.recipe,
        "labels": _labels(first),
        "changes": [change for change in first.changes if change in shared and not change.startswith(_OF_A_RUN)],
        "settings": [
            {"changes": words, "dev": None if cell.name not in dev else round(dev[cell.name], 6)}
            for words, cell in zip(values["settings"]["planned"], tries, strict=True)
        ],
        "chosen": values["settings"]["chosen_number"],
        **{name: values[name] for name in ("runs_asked", "scores", "cost", "test")},
        "runs": [
            {**{name: run[name] for name in ("seed", "draw", *_OF_A_RESULT)}, "machine": machines.index(run["machine"])}
            for run in values["runs"]
        ],
    }


def read(path: Path) -> PublishedGrid:
    """Read a published file."""
    try:
        return unpack(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DiffaugError(
            f"{path} is not a published grid ({error}); python -m diffaug.experiments.publish writes one"
        ) from error


def unpack(values: Mapping[str, Any]) -> PublishedGrid:
    """What `pack` returned."""
    if values["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {values['format_version']}, not {FORMAT_VERSION}")
    info = ("experiment", "title", "encoder", "columns_are", "notes", "spec", "changes")
    expanded = {
        **values,
        "plan": {name: values[name] for name in info if name in values},
        "entries": [_unpack_entry(entry, values["machines"]) for entry in values["entries"]],
    }
    labels = {(entry["group"], entry["row"], entry["column"]): entry["labels"] for entry in values["entries"]}
    return PublishedGrid(Summary.from_dict(expanded), labels, list(values["incomplete"]))


def _unpack_entry(entry: Mapping[str, Any], machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    planned, chosen = [setting["changes"] for setting in entry["settings"]], entry["chosen"]
    runs = []
    for run in entry["runs"]:
        changes = (*entry["changes"], *filter(None, planned[chosen].split(", ")))
        cell = {name: entry[name] for name in ("row", "column", "recipe")}
        runs.append({**cell, "changes": changes, "setting": chosen, **run, "machine": machines[run["machine"]]})
    tried = sum(setting["dev"] is not None for setting in entry["settings"])
    return {**entry, "settings": {"planned": planned, "tried": tried, "chosen_number": chosen}, "runs": runs}


def command(grid: Grid, summary: Summary) -> str:
    """The command that makes such a grid, with the files that were found and the grids that runs were copied from."""
    request = grid.request
    files = request.get("data") or {}
    own = "spec" in grid.about
    words = ["diffaug", *(["grid", f"{summary.experiment}.yaml"] if own else ["reproduce", summary.experiment])]
    words += ["--encoder", str(request["encoder"])] if request.get("encoder") else []
    for option, name in (("--data", "folder"), *((f"--{name}", name) for name in _FILES)):
        words += [part for value in source_list(files.get(name)) for part in (option, value)]
    words += ["--generator", str(request["generator"])] if request.get("generator") else []
    words += ["--seeds", str(len(request.get("seeds") or [0])), "--draws", str(request.get("draws", 1))]
    if budget := _budget(request):
        words += ["--budget", budget if budget in budget_names() else f"{budget}.yaml"]
    words += [part for column in request.get("columns") or () for part in ("--column", column)]
    words += [part for change in request.get("changes") or () for part in ("--set", change)]
    words += ["--out", grid.folder.resolve().name]
    words += [part for source in _by_name(summary.taken_over) for part in ("--reuse", source)]
    return shlex.join(words)


def _budget(request: Mapping[str, Any]) -> str:
    return str((request.get("budget") or {}).get("name", ""))


def _by_name(taken_over: Mapping[str, int]) -> Counter[str]:
    """Other grids by their base names."""
    names: Counter[str] = Counter()
    for source, count in taken_over.items():
        names[Path(source).name] += count
    return names


def _labels(cell: Cell) -> str | None:
    """The files with the labels that a run learns from. Flows use only the sentences of NLI data."""
    recipe = load_recipe(cell.recipe, cell.changes)
    second = recipe.stage2
    learns = recipe.stage1 is not None or (
        second is not None and (second.objective == "triplets" or second.aux_weight > 0)
    )
    files = source_list(recipe.data.nli) if learns else []
    return " + ".join(_ENDINGS.sub("", Path(file).name) for file in files) or None


def _short_lines(value: Any, indent: int = 0, before: int = 0, width: int = 140) -> str:
    """JSON with as much on a line as fits; ``before`` characters precede its first line, ``indent`` its last."""
    whole = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, (dict, list)) or indent + before + len(whole) <= width:
        return whole
    if isinstance(value, dict):
        (opening, closing), items = "{}", [(f"{json.dumps(key, ensure_ascii=False)}: ", value[key]) for key in value]
    else:
        (opening, closing), items = "[]", [("", one) for one in value]
    lines = [" " * (indent + 1) + key + _short_lines(one, indent + 1, len(key), width) for key, one in items]
    return opening + "\n" + ",\n".join(lines) + "\n" + " " * indent + closing


# --- paths ----------------------------------------------------------------------------------------------------------


def base_name(path: str) -> str:
    """The last part of a path or hub name, as a part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", Path(path).name.lower()).strip("-") or "grid"


def without_paths(values: Any, known: dict[str, str]) -> Any:
    """Plain values with each known path replaced by its name."""
    if isinstance(values, dict):
        return {without_paths(key, known): without_paths(value, known) for key, value in values.items()}
    if isinstance(values, list):
        return [without_paths(value, known) for value in values]
    if not isinstance(values, str):
        return values
    for path in sorted(known, key=len, reverse=True):  # files before their folders
        # Not within a longer path or word.
        values = known[path].join(re.split(rf"(?<![\w/.-]){re.escape(path)}(?![\w-])", values))
    return values


def machine_paths(values: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Texts that contain a path of a machine, each with its place: `entries.3.changes.0`."""
    if isinstance(values, str):
        if _MACHINE_PATH.search(values):
            yield place, values
        return
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        where = f"{place}.{key}" if place else str(key)
        yield from machine_paths(str(key), where)
        yield from machine_paths(value, where)


def _known_paths(grid: Grid, sources: list[str]) -> dict[str, str]:
    """Every path that the grid was asked for or has made, with its base name. Hub names are not paths."""
    request = grid.request
    files = (source_list(value) for value in (request.get("data") or {}).values())
    named = [request.get("encoder"), request.get("generator"), *(file for several in files for file in several)]
    named += [change.partition("=")[2].strip('"') for cell in grid.cells for change in cell.changes]
    named += [cell.recipe for cell in grid.cells]
    named += [str(grid.folder), str(grid.folder.resolve()), *sources]
    paths = {text: Path(text) for text in named if isinstance(text, str) and re.search(r"[\\/]", text)}
    return {text: path.name for text, path in paths.items() if path.is_absolute() or path.exists()}


# --- the tables of pages --------------------------------------------------------------------------------------------


def pages(root: Path) -> list[Path]:
    """The pages that may contain tables."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def refresh(root: Path) -> list[Path]:
    """Update the tables of all pages, or none if one cannot be made; returns the pages that changed."""
    texts = {page: filled(page, root) for page in pages(root)}
    changed = [page for page, text in texts.items() if text != page.read_text("utf-8")]
    for page in changed:
        write_text(page, texts[page])
    return changed


def filled(page: Path, root: Path) -> str:
    """The text of a page with its tables updated."""
    lines: list[str] = []
    rest = iter(enumerate(page.read_text("utf-8").splitlines(), start=1))
    for number, line in rest:
        lines.append(line)
        start = _START.match(line)
        if start is None:
            continue
        if not any(_ends(inner, page, number) for _, inner in rest):
            raise DiffaugError(f"{page}, line {number}: the table has no end; add {_END} behind it")
        file = root / start["file"]
        try:
            table = page_table(read(file), start["table"])
        except DiffaugError as error:
            raise DiffaugError(f"{page}, line {number}: {error}") from error
        source = f"From [`{file.name}`]({os.path.relpath(file, page.parent)})."
        lines += ["", *table, "", source, "", _END]
    return "\n".join(lines) + "\n"


def _ends(line: str, page: Path, number: int) -> bool:
    if _START.match(line):
        raise DiffaugError(f"{page}, line {number}: another table begins before this one ends")
    return line == _END


def page_table(grid: PublishedGrid, table: str) -> list[str]:
    """The lines of a table with its caption."""
    summary = grid.summary
    found = {part.key: part for part in parts(summary)}
    if any(AVERAGE in entry.values for entry in summary.entries):
        found = {OVERVIEW: _overview(grid) if summary.columns == ("",) else _overview_by_column(summary), **found}
    if table not in found:
        raise DiffaugError(f"{grid.summary.experiment} has no table {table!r}; it has {', '.join(found)}")
    part = found[table]
    gaps = [f"**Not complete.** {'. '.join(grid.incomplete)}.", ""] if grid.incomplete else []
    return [*gaps, *tabular.markdown(part.section), "", " ".join(f"{sentence}." for sentence in part.caption)]


def _overview(grid: PublishedGrid) -> Part:
    """One line per row: labels, score, difference from the strongest baseline, dev score, settings tried."""
    summary = grid.summary
    dev, rows = summary.spec.dev_name, Rows()
    for group, entries in summary.groups().items():
        strongest = next((entry.row for entry in entries if entry.strongest), None)
        rows.heading(f"{group}: against {strongest}" if strongest and len(entries) > 1 else group)
        for entry in entries:
            planned = len(entry.settings)
            cells = [
                entry.row + ("†" if entry.short else ""),
                grid.labels[entry.key] or "none",
                score_text(entry, AVERAGE),
                _difference(entry),
                score_text(entry, DEV),
                str(planned) if entry.tried == planned else f"{entry.tried} of {planned}",
            ]
            rows.add(cells, [2] if AVERAGE in entry.best else ())
    columns = ["row", "labels", summary.average_name, "against", dev, "tried"]
    caption = [
        *score_caption(summary, [AVERAGE]),
        "labels: the NLI data whose labels a row learns from",
        f"against: the difference from the baseline of its group with the highest mean on {dev}; *: {_shown(summary)}",
        f"{dev}: chose checkpoint and setting",
        "tried: settings, each with the first seed",
        *changed(summary),
    ]
    return Part(OVERVIEW, rows.section("Overview", columns, texts=2), caption)


def _overview_by_column(summary: Summary) -> Part:
    """One line per row, one column per column of the grid, with marks for differences from the strongest baseline."""
    rows = score_rows(summary, by_column(summary, AVERAGE), _marked, paper=False)
    caption = [
        *score_caption(summary, [AVERAGE]),
        f"°: the baseline of its group and column with the highest mean on {summary.spec.dev_name}",
        f"↑ ↓: better or worse than that one: {_shown(summary)}",
        *changed(summary),
    ]
    return Part(OVERVIEW, rows.section(columns_title(summary, AVERAGE), columns_heads(summary)), caption)


def _shown(summary: Summary) -> str:
    return (
        f"the {100 * summary.confidence:g} % interval of a paired bootstrap over the sentence pairs "
        f"({summary.resamples:,} resamples, scores averaged over runs) leaves zero out; not corrected for the number "
        "of rows"
    )


def _difference(entry: Entry) -> str:
    if entry.test is None:
        return "baseline" if entry.strongest else NOTHING
    found = entry.test.average
    return f"{found.difference:+.2f}" + ("*" if found.shown else "")


def _marked(entry: Entry, name: str) -> str:
    mark = "°" if entry.strongest else ""
    if entry.test is not None and entry.test.average.shown:
        mark = "↑" if entry.test.average.low > 0 else "↓"
    return ("†" if entry.short and entry.runs else "") + score_text(entry, name) + mark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", metavar="GRID", help="folder of a finished grid")
    parser.add_argument("--name", help="distinguishes grids of one experiment; by default the name of the encoder")
    parser.add_argument("--about", default="", help="what the grids do not record: what encoder and files are")
    parser.add_argument("--incomplete", dest="gaps", action="store_true", help="also if runs failed or are missing")
    parser.add_argument("--figures", action="store_true", help="draw the figures into docs/assets")
    parser.add_argument("--docs", action="store_true", help="update the tables of all pages")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository; by default the current folder")
    options = parser.parse_args()
    if not options.folders and not options.docs:
        parser.error("name a grid to publish, or give --docs")
    try:
        written = publish(**vars(options))
    except DiffaugError as error:
        sys.exit(str(error))
    for path in written:
        print(path)


if __name__ == "__main__":
    main()
