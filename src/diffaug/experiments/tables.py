"""The tables of a grid: for a terminal, as Markdown, as LaTeX, and everything as JSON."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import statistics
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, get_args

from diffaug import tabular
from diffaug.errors import DiffaugError
from diffaug.experiments.results import (
    AVERAGE,
    DEV,
    GIB,
    MINUTES,
    SEVEN,
    Cell,
    Entry,
    Lead,
    PairedTest,
    Published,
    Spread,
    Summary,
    counted,
    listed,
    place_name,
)
from diffaug.experiments.summary import summarise
from diffaug.files import write_text
from diffaug.tabular import Section

if TYPE_CHECKING:
    from rich.console import RenderableType

    from diffaug.experiments.grid import Grid

Form = Literal["terminal", "markdown", "latex", "json"]
Lines = Iterable[tuple[str, str, Sequence[tuple[Entry | None, str]]]]
"""Rows of a table of scores: group, label, and for each column an entry and a score."""

_ENDINGS: dict[Form, str] = {"terminal": ".txt", "markdown": ".md", "latex": ".tex", "json": ".json"}
# Characters per line of tables/NAME.txt.
_WIDTH = 120
NOTHING = "–"
_GAP = 2  # spaces between the columns on a terminal
# In LaTeX: characters that fit into one column of a page and across the page (a wider table is set small), and
# characters per line of a long text cell.
_NARROW, _WIDE, _TEXT = 48, 96, 62


@dataclass(frozen=True)
class Part:
    """A table, its key within the grid, and sentences below it, without their full stop."""

    key: str
    section: Section
    caption: list[str]


def write_tables(grid: Grid, rows: Collection[str] | None = None) -> str:
    """Write the tables of a grid into `tables/` in every form; returns them for a terminal.

    Raises:
        DiffaugError: a file is damaged or cannot be written.
    """
    summary = summarise(grid, rows=rows)
    for form, ending in _ENDINGS.items():
        text = render(summary, form, width=_WIDTH, styled=False)
        write_text(grid.folder / "tables" / f"{summary.experiment}{ending}", text)
    return render(summary, "terminal")


def render(summary: Summary, form: Form, *, width: int | None = None, styled: bool = True) -> str:
    """The tables of a grid as text.

    Args:
        summary: of the grid.
        form: of the text.
        width: of the terminal; None: that of the current one.
        styled: bold text on the terminal, by escape codes.

    Raises:
        DiffaugError: there is no such form.
    """
    if form == "json":
        return json.dumps(to_dict(summary), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if form == "markdown":
        return _markdown(summary)
    if form == "latex":
        return _latex(summary)
    if form == "terminal":
        return _terminal(summary, width or shutil.get_terminal_size().columns, styled)
    raise DiffaugError(f"tables can be written as {', '.join(get_args(Form))}, not as {form!r}")


def to_dict(summary: Summary) -> dict[str, Any]:
    """The summary with its notes as plain values."""
    return summary.to_dict(notes(summary))


def parts(summary: Summary) -> Iterator[Part]:
    """The tables that the specification of a grid asks for, as far as there is something to show."""
    for part in _parts(summary):
        yield replace(part, caption=[*part.caption, *changed(summary)])


def changed(summary: Summary) -> list[str]:
    """What was changed with `--set`, below every table: it decides what is compared."""
    changes = summary.info.get("changes") or ()
    return (
        [f"Changed for all rows: {' '.join(f'--set {shlex.quote(str(change))}' for change in changes)}"]
        if changes
        else []
    )


def _parts(summary: Summary) -> Iterator[Part]:
    for table in summary.spec.tables:
        if table == "scores":
            if summary.columns == ("",):
                yield _by_task(summary)
            else:
                for score in summary.spec.scores:
                    yield _by_column(summary, DEV if score == "dev" else AVERAGE)
        elif table == "cost":
            yield _costs(summary)
        elif table == "stage1":
            yield _stage1(summary)
        elif table == "tests" and any(entry.test for entry in summary.entries):
            yield _tests(summary)
        elif table == "lead" and summary.leads:
            yield _leads(summary)
        elif table == "settings":
            yield _settings(summary)


def notes(summary: Summary) -> list[str]:
    """Sentences about the whole grid, without their full stop: notes of the plan, what is missing, the machine."""
    info = summary.info
    short = [entry for entry in summary.entries if entry.short and entry.runs]
    few = [f"{entry.place} ({len(entry.runs)} of {entry.asked})" for entry in short]
    unfinished = [_sentence(cell) for cell in summary.unfinished]
    return [
        *([f"Encoder: {info['encoder']}"] if info.get("encoder") else []),
        *(str(note) for note in info.get("notes") or ()),
        *([f"† Fewer runs than asked for: {listed(few)}"] if few else []),
        *_unmeasured(summary),
        *(f"Failed: {_sentence(cell)}: {why} (cells/{cell.name})" for cell, why in summary.failures),
        *([f"Not finished: {len(unfinished)} of the runs planned so far: {listed(unfinished)}"] if unfinished else []),
        *(f"Not compared: {why}" for why in summary.untested),
        *(f"{counted(count, 'run')} copied from {source}" for source, count in summary.taken_over.items()),
        *_different_versions(summary),
        *(f"Measured on {', '.join(f'{k} {v}' for k, v in sorted(m.items()))}" for m in summary.machines if m),
    ]


def _different_versions(summary: Summary) -> list[str]:
    """A sentence if not all runs were made with the same versions."""
    parts = []
    for name in ("diffaug", "commit", "torch", "transformers"):
        found = list(dict.fromkeys(str(machine.get(name, "unknown"))[:12] for machine in summary.machines if machine))
        if len(found) > 1:
            parts.append(f"{name} {listed(found)}")
    return [f"The runs come from different versions: {'; '.join(parts)}"] if parts else []


def _sentence(cell: Cell) -> str:
    """`DiffAug, semi at 1 %, setting 2, draw 1, seed 43`."""
    return ", ".join([place_name(*cell.place), *cell.run])


def _unmeasured(summary: Summary) -> list[str]:
    """Rows without a measurement, those whose tuning has begun first."""
    without = sorted((entry for entry in summary.entries if not entry.runs), key=lambda entry: not entry.tried)
    if not without:
        return []
    named = [
        f"{entry.place} ({entry.tried} of {len(entry.settings)} settings tried)" if entry.tried else entry.place
        for entry in without
    ]
    what = "rows" if summary.columns == ("",) else "places in the table"
    return [f"No measurement yet for {len(without)} of {len(summary.entries)} {what}: {listed(named)}"]


# --- the tables -----------------------------------------------------------------------------------------------------


class Rows:
    """Collects the rows of a table."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []
        self._bold: set[tuple[int, int]] = set()
        self._headings: dict[int, str] = {}

    def heading(self, text: str) -> None:
        if text:
            self._headings[len(self._rows)] = text

    def add(self, cells: list[str], bold: Iterable[int] = ()) -> None:
        self._bold |= {(len(self._rows), column) for column in bold}
        self._rows.append(cells)

    def section(self, title: str, columns: list[str], texts: int = 1) -> Section:
        return Section(title, columns, self._rows, frozenset(self._bold), self._headings, texts)


def score_rows(summary: Summary, lines: Lines, cell: Callable[[Entry, str], str], *, paper: bool = True) -> Rows:
    """One row per line, with bold for the best; where the paper has numbers, they are in a row below.

    Lines without any number are left out; the notes name them.

    Args:
        summary: of the grid.
        lines: group, label, and for each column the entry and the score; None: an empty cell.
        cell: the text of an entry and score.
        paper: show the paper's numbers.
    """
    rows, last = Rows(), None
    for group, label, cells in lines:
        quoted = paper and any(entry and name in entry.published for entry, name in cells)
        if not quoted and not any(entry and name in entry.values for entry, name in cells):
            continue
        if group != last:
            rows.heading(group)
            last = group
        best = {place for place, (entry, name) in enumerate(cells, start=1) if entry and name in entry.best}
        rows.add([label, *(cell(entry, name) if entry else "" for entry, name in cells)], best)
        if quoted:
            rows.add(["  paper", *(_published(summary, entry, name) if entry else "" for entry, name in cells)])
    return rows


def by_score(summary: Summary, names: Sequence[str]) -> Lines:
    """One line per entry, with these scores."""
    for entry in (entry for entries in summary.groups().values() for entry in entries):
        yield entry.group, entry.place + ("†" if entry.short else ""), [(entry, name) for name in names]


def by_column(summary: Summary, score: str) -> Lines:
    """One line per row, with a score at every column of the grid."""
    for group, entries in summary.groups().items():
        for row in dict.fromkeys(entry.row for entry in entries):
            at = {entry.column: entry for entry in entries if entry.row == row}
            yield group, row, [(at.get(column), score) for column in summary.columns]


def _by_task(summary: Summary) -> Part:
    scores = [*([DEV] if "dev" in summary.spec.scores else []), *summary.tasks, AVERAGE]
    heads = ["row", *(_title(summary, name) for name in scores)]
    section = score_rows(summary, by_score(summary, scores), score_text).section("Scores by task", heads)
    return Part("scores", section, score_caption(summary, scores))


def _by_column(summary: Summary, score: str) -> Part:
    rows = score_rows(summary, by_column(summary, score), _marked)
    section = rows.section(columns_title(summary, score), columns_heads(summary))
    return Part("dev" if score == DEV else "scores", section, score_caption(summary, [score]))


def _tests(summary: Summary) -> Part:
    """Every row against the strongest baseline of its group."""
    rows = Rows()
    for group, entries in summary.groups().items():
        for column in summary.columns:
            tested = [(entry, entry.test) for entry in entries if entry.column == column and entry.test]
            if tested:
                where = ", ".join(part for part in (group, _column_words(summary, column)) if part)
                other = tested[0][1]
                against = f"{other.row} at {other.column}" if other.column != column else other.row
                against += "†" if _is_short(summary, group, other.row, other.column) else ""
                rows.heading(f"{where}: against {against}" if where else f"against {against}")
            for entry, test in tested:
                rows.add([entry.row + ("†" if entry.short else ""), *_test_cells(test)])
    percent = f"{100 * summary.confidence:g} %"
    section = rows.section(
        "Against the strongest baseline", ["row", "difference", percent, "p", "runs ±", "runs ahead"]
    )
    caption = [
        f"The strongest baseline of a {_where(summary)} has the highest mean on {summary.spec.dev_name}; it is never "
        "chosen on a test task",
        "difference: of the averages",
        f"{percent} and p: interval and two-sided p-value of a paired bootstrap over the sentence pairs "
        f"({summary.resamples:,} resamples, the same for both rows, scores averaged over runs): what other pairs would "
        f"change; not corrected for the number of rows; {2 / (summary.resamples + 1):.3f} is the smallest p that so "
        "many resamples can give",
        "runs: the sample standard deviation (n - 1) of the difference between runs of the same seed and draw, and in "
        "how many of them the row is ahead: what other seeds would change",
        *_dagger(summary),
    ]
    return Part("tests", section, caption)


def _test_cells(test: PairedTest) -> list[str]:
    found = test.average
    spread = Spread.of(test.by_run) if test.by_run else None
    return [
        f"{found.difference:+.2f}",
        f"{found.low:+.2f} to {found.high:+.2f}",
        f"{found.p_value:.3f}",
        f"{spread.deviation:.2f}" if spread is not None and spread.deviation is not None else NOTHING,
        f"{test.runs_ahead} of {len(test.by_run)}" if test.by_run else NOTHING,
    ]


def _leads(summary: Summary) -> Part:
    """Every row against each baseline at every column, and with its fewest labels against the baseline's most."""
    columns = [column for column in summary.columns if any(column in lead.tests for lead in summary.leads)]
    rows, heading = Rows(), None
    for lead in summary.leads:
        if (lead.group, lead.row) != heading:
            heading = lead.group, lead.row
            rows.heading(": ".join(filter(None, [lead.group, f"lead of {lead.row}"])))
        cells = [_lead(summary, lead, column, lead.tests.get(column)) for column in columns]
        rows.add([lead.baseline, *cells, _lead(summary, lead, lead.fewest, lead.across)])
    ends = {(lead.fewest, lead.most) for lead in summary.leads}
    last = "{} against {}".format(*next(iter(ends))) if len(ends) == 1 else "fewest against most"
    caption = [
        "Differences of the averages with equally many labels; in the last column the row has its fewest labels, the "
        "baseline its most",
        f"*: the {100 * summary.confidence:g} % interval of the paired bootstrap leaves zero out",
        *(["†: one of the two has fewer runs than asked for"] if _dagger(summary) else []),
    ]
    return Part("lead", rows.section("Lead", ["ahead of", *columns, last]), caption)


def _lead(summary: Summary, lead: Lead, column: str, test: PairedTest | None) -> str:
    if test is None:
        return ""
    places = ((lead.row, column), (test.row, test.column))
    mark = "†" if any(_is_short(summary, lead.group, *place) for place in places) else ""
    return f"{mark}{test.average.difference:+.2f}" + ("*" if test.average.shown else "")


def _settings(summary: Summary) -> Part:
    """The chosen setting of each row, how many were tried, and the number of runs."""
    tuned = any(len(entry.settings) > 1 for entry in summary.entries)
    # Where all were tried, the caption says how many.
    untried = any(entry.tried < len(entry.settings) for entry in summary.entries)
    columned = summary.columns != ("",)
    dev = summary.spec.dev_name
    rows = Rows()
    for group, entries in summary.groups().items():
        rows.heading(group)
        for entry in entries:
            cells = [entry.row, *([entry.column or NOTHING] if columned else [])]
            if tuned:
                cells += [_compact(entry.chosen or "") or NOTHING]
            if untried:
                cells += [f"{entry.tried} of {len(entry.settings)}"]
            runs = ("†" if entry.short else "") + f"{len(entry.runs)} of {entry.asked}"
            rows.add([*cells, score_text(entry, DEV), runs])
    columns = ["row", *(["at"] if columned else []), *(["setting"] if tuned else [])]
    columns += [*(["tried"] if untried else []), dev, "runs"]
    means = _means(summary, capital=False)
    if tuned:
        counts = {len(entry.settings) for entry in summary.entries if len(entry.settings) > 1}
        many = str(counts.pop()) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
        who = "Each row" if all(len(entry.settings) > 1 for entry in summary.entries) else "Each row that has a choice"
        caption = [
            f"{who} tries {many} settings with the first seed and draw and keeps the best on {dev}; that run is one "
            "of its runs, and the others have the same setting",
            f"{dev}: {means}",
        ]
    else:
        caption = [f"{dev}: {means}; every row has one setting"]
    section = rows.section("Settings and runs", columns, texts=1 + columned + tuned)
    return Part("settings", section, [*caption, *_dagger(summary)])


def _compact(setting: str) -> str:
    """`stage2.learning_rate=3e-5, stage2.steps=600` as `stage2: learning_rate=3e-5, steps=600`."""
    groups: dict[str, list[str]] = {}
    for change in filter(None, setting.split(", ")):
        key, equals, value = change.partition("=")
        group, _, name = key.rpartition(".")
        groups.setdefault(group, []).append(name + equals + value)
    return "; ".join((f"{group}: " if group else "") + ", ".join(changes) for group, changes in sorted(groups.items()))


def _costs(summary: Summary) -> Part:
    rows = score_rows(summary, by_score(summary, (MINUTES, GIB)), score_text)
    caption = [f"{_means(summary)} of the minutes that training took, and of the memory at its peak"]
    if any(entry.published for entry in summary.entries):
        caption.append("paper: the figures of the paper, which are of another machine")
    section = rows.section("Cost of training", ["row", "minutes", "GiB"])
    return Part("cost", section, [*caption, *_dagger(summary)])


def _stage1(summary: Summary) -> Part:
    """Why and when stage 1 ended."""
    rows = Rows()
    for entry in summary.entries:
        steps = [run.result.steps["1"] for run in entry.runs if "1" in run.result.steps]
        ends = dict.fromkeys(run.result.stage1_end or NOTHING for run in entry.runs)
        rows.add([entry.place, "; ".join(ends) or NOTHING, _number(Spread.of(steps), 0) if steps else NOTHING])
    section = rows.section("Stage 1", ["row", "ended", "steps"], texts=2)
    return Part("stage1", section, score_caption(summary, []))


# --- cells and captions ---------------------------------------------------------------------------------------------


def columns_title(summary: Summary, score: str) -> str:
    """The title of a table of a score by column."""
    name = summary.average_name if score == AVERAGE else _title(summary, score)
    return f"{name[0].upper()}{name[1:]} by {summary.columns_are or 'column'}"


def columns_heads(summary: Summary) -> list[str]:
    return ["row", *(column or NOTHING for column in summary.columns)]


def score_caption(summary: Summary, names: Sequence[str]) -> list[str]:
    """The caption of a table with the means of these scores."""
    found = [f"Spearman x 100: {_means(summary, capital=False)}" if names else _means(summary)]
    if any(set(names) & entry.best for entry in summary.entries):
        found.append(f"Bold: the highest mean of its {_where(summary)}")
    if AVERAGE in names and not summary.all_seven:
        few = f": {len(summary.tasks)} of the {len(SEVEN)} tasks that papers average over"
        found.append(f"The average is over {', '.join(summary.tasks)}{few if set(summary.tasks) < set(SEVEN) else ''}")
    return [*found, *_paper(summary, names), *_dagger(summary)]


def _paper(summary: Summary, names: Sequence[str]) -> list[str]:
    shown = [entry for entry in summary.entries if set(entry.published) & set(names)]
    if not shown:
        return []
    found = ["paper: its figures for the same encoder"]
    if AVERAGE in names and not summary.all_seven:
        if any(set(summary.tasks) <= set(entry.published) for entry in shown):
            found.append("Its averages are over the same tasks as ours")
        if any(AVERAGE in entry.published and not set(summary.tasks) <= set(entry.published) for entry in shown):
            found.append(f"‡: over all {len(SEVEN)} tasks")
    return found


def _title(summary: Summary, score: str) -> str:
    return summary.spec.dev_name if score == DEV else score


def _where(summary: Summary) -> str:
    """Within what rows are compared: a single row is compared over its columns."""
    alone = len({entry.row for entry in summary.entries}) == 1
    return "group" if summary.columns == ("",) else "row" if alone else "group and column"


def _means(summary: Summary, *, capital: bool = True) -> str:
    if not any(len(entry.runs) > 1 for entry in summary.entries):
        text = "values of single runs"
    else:
        text = f"mean ± sample standard deviation (n - 1) over {_runs(summary.entries)}"
    return text[0].upper() + text[1:] if capital else text


def _runs(entries: Sequence[Entry]) -> str:
    """`3 seeds`, `up to 3 seeds and 5 draws of the labels`."""
    seeds = {len({run.cell.seed for run in entry.runs}) for entry in entries}
    draws = {len({run.cell.draw for run in entry.runs}) for entry in entries}
    words = f"{max(seeds)} seeds" if max(seeds) > 1 else "1 seed"
    if max(draws) > 1:
        words += f" and {max(draws)} draws of the labels"
    return ("up to " if len(seeds) > 1 or len(draws) > 1 else "") + words


def _dagger(summary: Summary) -> list[str]:
    return ["†: fewer runs than asked for"] if any(entry.short for entry in summary.entries) else []


def _column_words(summary: Summary, column: str) -> str:
    """`2,756 labelled examples`, `10 % of the labelled examples`."""
    of = "of the " if column.endswith("%") and summary.columns_are else ""
    return f"{column} {of}{summary.columns_are}".strip() if column else ""


def _is_short(summary: Summary, group: str, row: str, column: str) -> bool:
    return any(entry.short for entry in summary.entries if entry.key == (group, row, column))


def _marked(entry: Entry, name: str) -> str:
    return ("†" if entry.short and entry.runs else "") + score_text(entry, name)


def score_text(entry: Entry, name: str) -> str:
    """Mean and deviation of a score."""
    return _number(entry.values[name]) if name in entry.values else NOTHING


def _number(value: Spread, digits: int = 2) -> str:
    return f"{value.mean:.{digits}f}" + ("" if value.deviation is None else f" ±{value.deviation:.{digits}f}")


def _published(summary: Summary, entry: Entry, name: str) -> str:
    """The paper's number; its average is over our tasks if it has all of them, else marked as one over all seven."""
    number, mark = entry.published.get(name), ""
    if name == AVERAGE and not summary.all_seven:
        ours = [entry.published.get(task) for task in summary.tasks]
        if None not in ours:
            number = Published(statistics.fmean(one.mean for one in ours if one is not None), None)
        else:
            mark = "‡"
    if number is None:
        return ""
    return f"{mark}{number.mean:.2f}" + ("" if number.deviation is None else f" ±{number.deviation:.1f}")


# --- forms ----------------------------------------------------------------------------------------------------------


def _markdown(summary: Summary) -> str:
    lines = [f"## {summary.title}", ""]
    for part in parts(summary):
        lines += [*tabular.markdown(part.section), "", _sentences(part.caption), ""]
    lines += [f"- {note}" for note in notes(summary)]
    return "\n".join(lines).rstrip() + "\n"


def _latex(summary: Summary) -> str:
    lines = [r"% Needs \usepackage{booktabs}."]
    for part in parts(summary):
        section = _wrapped(part.section)
        width = tabular.needed_width(section, _GAP)
        table = "table" if width <= _NARROW else "table*"
        caption = tabular.escape_latex(_sentences([f"{summary.title}: {section.title}", *part.caption]))
        lines += [
            rf"\begin{{{table}}}[t]",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{summary.experiment}-{part.key}}}",
            *([r"\scriptsize"] if width > _WIDE else []),
            *tabular.latex(section),
            rf"\end{{{table}}}",
            "",
        ]
    if found := notes(summary):
        lines += [r"\begin{itemize}", *(rf"\item {tabular.escape_latex(note)}" for note in found), r"\end{itemize}"]
    return "\n".join(lines).rstrip() + "\n"


def _wrapped(section: Section) -> Section:
    """The table with long text, such as settings, wrapped into several rows: LaTeX does not wrap it."""
    rows: list[list[str]] = []
    starts: list[int] = []
    for row in section.rows:
        starts.append(len(rows))
        texts = [textwrap.wrap(cell, _TEXT, break_on_hyphens=False) for cell in row[: section.texts]]
        columns = [*texts, *([cell] for cell in row[section.texts :])]
        rows += [list(cells) for cells in zip_longest(*columns, fillvalue="")]
    headings = {starts[i]: heading for i, heading in section.headings.items()}
    return replace(section, rows=rows, headings=headings, bold=frozenset((starts[i], j) for i, j in section.bold))


def _terminal(summary: Summary, width: int, styled: bool) -> str:
    from rich.console import Console
    from rich.markup import escape

    shown: list[RenderableType] = [f"[bold]{escape(summary.title)}[/bold]", ""]
    for part in parts(summary):
        shown += [tabular.rich_table(piece, width, gap=_GAP) for piece in tabular.fitted(part.section, width, _GAP)]
        shown += [escape(_sentences(part.caption)), ""]
    shown += [escape(note) for note in notes(summary)]
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=styled, color_system="standard" if styled else None, highlight=False
    )
    for one in shown:
        console.print(one)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _sentences(sentences: list[str]) -> str:
    return " ".join(f"{sentence}." for sentence in sentences)
