"""The tables of pages, made from kept grids and never typed.

A page has a block between two comments, on lines of their own:

    <!-- from benchmarks/results/reproduce-main-small.json: overview -->
    <!-- end -->

and what stands between them is written by

    python benchmarks/page_tables.py

for all pages. A test makes every block again and compares. `overview` is the table for a page that compares methods:
a row a method, with columns as far as an experiment has them. All other tables are the library's own, by the keys of
their parts: `scores`, `tests`, `lead`, `settings`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from kept_grids import Kept, read

from diffaug import tabular
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file
from diffaug.reproduce.findings import Entry, Summary
from diffaug.reproduce.grid import DEV
from diffaug.reproduce.score import AVERAGE
from diffaug.reproduce.tables import Part, captions, parts
from diffaug.tabular import Section

ROOT = Path(__file__).parent.parent
OVERVIEW = "overview"

_NOTHING = "–"
_START = re.compile(r"^<!-- from (?P<file>\S+): (?P<table>\S+) -->$")
_END = "<!-- end -->"


def pages(root: Path = ROOT) -> list[Path]:
    """Where blocks may be."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def filled(page: Path, root: Path = ROOT) -> str:
    """The text of a page with all its blocks made anew.

    Args:
        page: the file.
        root: the repository, in which the files of blocks are looked up.

    Raises:
        DiffaugError: a block has no end, or names a file or table that is not there.
    """
    lines: list[str] = []
    rest = iter(enumerate(page.read_text("utf-8").splitlines(), start=1))
    for number, line in rest:
        lines.append(line)
        start = _START.match(line)
        if start is None:
            continue
        if not any(_ends(inner, page, number) for _, inner in rest):
            raise DiffaugError(f"{page}, line {number}: the block has no end; put {_END} behind it")
        file = root / start["file"]
        try:
            table = block(read(file), start["table"])
        except DiffaugError as error:
            raise DiffaugError(f"{page}, line {number}: {error}") from error
        source = f"From [`{file.name}`]({os.path.relpath(file, page.parent)})."
        lines += ["", *table, "", source, "", _END]
    return "\n".join(lines) + "\n"


def block(kept: Kept, table: str) -> list[str]:
    """The lines of a table, with what a reader must know below it.

    Raises:
        DiffaugError: there is no such table.
    """
    found = {part.key: part for part in _parts(kept)}
    if table not in found:
        raise DiffaugError(f"{kept.summary.experiment} has no table {table!r}; it has {', '.join(found)}")
    part = found[table]
    # Where a grid has gaps, no table of it goes without saying so.
    gaps = [f"**Not complete.** {'. '.join(kept.incomplete)}.", ""] if kept.incomplete else []
    return [*gaps, *tabular.markdown(part.section), "", " ".join(f"{sentence}." for sentence in part.caption)]


def _ends(line: str, page: Path, number: int) -> bool:
    if _START.match(line):
        raise DiffaugError(f"{page}, line {number}: another block begins before this one ends")
    return line == _END


def _parts(kept: Kept) -> Iterator[Part]:
    summary = kept.summary
    if any(AVERAGE in entry.values for entry in summary.entries):
        yield _by_method(kept) if summary.columns == ("",) else _by_column(summary)
    yield from parts(summary)


def _by_method(kept: Kept) -> Part:
    """A row a method: what it scored, how it was tuned, what it had, and whether it beats the best baseline."""
    summary = kept.summary
    rows: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    headings: dict[int, str] = {}
    for group, entries in summary.groups().items():
        strongest = next((entry.row for entry in entries if entry.strongest), None)
        heading = f"{group}: against {strongest}" if strongest and len(entries) > 1 else group
        headings |= {len(rows): heading} if heading else {}
        for entry in entries:
            if AVERAGE in entry.best:
                bold.add((len(rows), 2))
            rows.append(
                [
                    entry.row + ("†" if entry.short else ""),
                    kept.labels[entry.group, entry.row, entry.column] or "none",
                    _score(entry, AVERAGE),
                    _difference(entry),
                    _score(entry, DEV),
                    _tried(entry),
                ]
            )
    columns = ["row", "labels", summary.average_name, "against", DEV, "tried"]
    section = Section("Overview", columns, rows, frozenset(bold), headings, texts=2)
    caption = [
        *captions.scores(summary, [AVERAGE]),
        "labels: the NLI data whose labels a row learns from",
        f"against: the difference from the baseline of its group with the highest mean on {DEV}; *: {_shown(summary)}",
        f"{DEV}: chose checkpoint and setting",
        "tried: settings, each with the first seed",
    ]
    return Part(OVERVIEW, section, caption)


def _by_column(summary: Summary) -> Part:
    """A row a method, a column an amount of labels or the like, and in each who beats the best baseline."""
    rows: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    headings: dict[int, str] = {}
    for group, entries in summary.groups().items():
        headings |= {len(rows): group} if group else {}
        for row in dict.fromkeys(entry.row for entry in entries):
            at = {entry.column: entry for entry in entries if entry.row == row}
            bold |= {(len(rows), 1 + i) for i, c in enumerate(summary.columns) if c in at and AVERAGE in at[c].best}
            rows.append([row, *(_marked(at[column]) if column in at else "" for column in summary.columns)])
    name = summary.average_name
    title = f"{name[0].upper()}{name[1:]} by {summary.columns_are or 'column'}"
    columns = ["row", *(column or _NOTHING for column in summary.columns)]
    caption = [
        *captions.scores(summary, [AVERAGE]),
        f"°: the baseline of its group and column with the highest mean on {DEV}",
        f"↑ ↓: better or worse than that one: {_shown(summary)}",
    ]
    return Part(OVERVIEW, Section(title, columns, rows, frozenset(bold), headings), caption)


def _shown(summary: Summary) -> str:
    return (
        f"the {100 * summary.confidence:g} % interval of a paired bootstrap over the sentence pairs "
        f"({summary.resamples:,} resamples, scores averaged over runs) leaves zero out; not corrected for the number "
        "of rows"
    )


def _score(entry: Entry, name: str) -> str:
    value = entry.values.get(name)
    if value is None:
        return _NOTHING
    return f"{value.mean:.2f}" + ("" if value.deviation is None else f" ±{value.deviation:.2f}")


def _difference(entry: Entry) -> str:
    if entry.test is None:
        return "baseline" if entry.strongest else _NOTHING
    found = entry.test.average
    return f"{found.difference:+.2f}" + ("*" if found.shown else "")


def _tried(entry: Entry) -> str:
    planned = len(entry.settings)
    return str(planned) if entry.tried == planned else f"{entry.tried} of {planned}"


def _marked(entry: Entry) -> str:
    mark = "°" if entry.strongest else ""
    if entry.test is not None and entry.test.average.shown:
        mark = "↑" if entry.test.average.low > 0 else "↓"
    return ("†" if entry.short and entry.runs else "") + _score(entry, AVERAGE) + mark


def refresh(root: Path = ROOT) -> list[Path]:
    """Write all blocks of all pages anew; returns the pages that changed.

    Raises:
        DiffaugError: a block cannot be made; no page is changed then.
    """
    texts = {page: filled(page, root) for page in pages(root)}
    changed = [page for page, text in texts.items() if text != page.read_text("utf-8")]
    for page in changed:
        with atomic_file(page) as temporary:
            temporary.write_text(texts[page], "utf-8")
    return changed


if __name__ == "__main__":
    try:
        for changed_page in refresh():
            print(f"tables of {changed_page.relative_to(ROOT)} written")
    except DiffaugError as error:
        sys.exit(str(error))
