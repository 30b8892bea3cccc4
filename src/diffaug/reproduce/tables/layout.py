"""Which tables an experiment has, and what stands in their cells."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diffaug.reproduce.findings import GIB, MINUTES, Entry, Lead, Spread, Summary
from diffaug.reproduce.grid import DEV
from diffaug.reproduce.paired import PairedTest
from diffaug.reproduce.paper import Figure
from diffaug.reproduce.score import AVERAGE
from diffaug.reproduce.tables import captions
from diffaug.reproduce.words import compact_words
from diffaug.tabular import Section

# What the paper compares on the dev pairs, and not on the test tasks.
_ON_DEV = ("ablation", "prefix-length", "stage1-steps", "aux-weight")
_NOTHING = "–"


@dataclass(frozen=True)
class Part:
    """A table, a word for it that is unique within an experiment, and what to know to read it, in sentences."""

    key: str
    section: Section
    caption: list[str]


def parts(summary: Summary) -> Iterator[Part]:
    """The tables of an experiment, the most important first."""
    if summary.experiment == "cost":
        yield _costs(summary)
    elif summary.experiment == "divergence":
        yield _stage_1(summary)
    elif summary.columns == ("",):
        yield _by_task(summary)
    else:
        for score in [DEV, AVERAGE] if summary.experiment in _ON_DEV else [AVERAGE]:
            yield _by_column(summary, score)
    if any(entry.test for entry in summary.entries):
        yield _tests(summary)
    if summary.leads:
        yield _leads(summary)
    yield _tuning(summary)


def _by_task(summary: Summary) -> Part:
    """A row a method, a column a task."""
    scores = [*([DEV] if summary.experiment in _ON_DEV else []), *summary.tasks, AVERAGE]
    rows = _Rows()
    for group, entries in summary.groups().items():
        rows.heading(group)
        for entry in entries:
            best = {1 + scores.index(name) for name in entry.best if name in scores}
            rows.add([_name(entry), *(_score(entry, name) for name in scores)], best)
            if any(name in entry.published for name in scores):
                rows.add(["  paper", *(_published(summary, entry, name) for name in scores)])
    section = rows.section("Scores by task", ["row", *scores])
    return Part("scores", section, captions.scores(summary, scores))


def _by_column(summary: Summary, score: str) -> Part:
    """A row a method, a column an amount of labels, a prefix length ..."""
    rows = _Rows()
    for group, entries in summary.groups().items():
        rows.heading(group)
        for row in dict.fromkeys(entry.row for entry in entries):
            at = {entry.column: entry for entry in entries if entry.row == row}
            cells = [_marked(at[column], score) if column in at else "" for column in summary.columns]
            best = {1 + i for i, column in enumerate(summary.columns) if column in at and score in at[column].best}
            rows.add([row, *cells], best)
            if any(score in entry.published for entry in at.values()):
                figures = [_published(summary, at[c], score) if c in at else "" for c in summary.columns]
                rows.add(["  paper", *figures])
    name = summary.average_name if score == AVERAGE else score
    title = f"{name[0].upper()}{name[1:]} by {summary.columns_are or 'column'}"
    section = rows.section(title, ["row", *(column or _NOTHING for column in summary.columns)])
    return Part("dev" if score == DEV else "scores", section, captions.scores(summary, [score]))


def _tests(summary: Summary) -> Part:
    """Every row against the strongest baseline of its group, with both kinds of uncertainty."""
    rows = _Rows()
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
                rows.add([_name(entry), *_test_cells(test)])
    percent = f"{100 * summary.confidence:g} %"
    columns = ["row", "difference", percent, "p", "runs ±", "runs ahead"]
    section = rows.section("Against the strongest baseline", columns)
    return Part("tests", section, captions.tests(summary))


def _test_cells(test: PairedTest) -> list[str]:
    found = test.average
    spread = Spread.of(test.by_run) if test.by_run else None
    return [
        f"{found.difference:+.2f}",
        f"{found.low:+.2f} to {found.high:+.2f}",
        f"{found.p_value:.3f}",
        f"{spread.deviation:.2f}" if spread is not None and spread.deviation is not None else _NOTHING,
        f"{test.runs_ahead} of {len(test.by_run)}" if test.by_run else _NOTHING,
    ]


def _leads(summary: Summary) -> Part:
    """How far a row is ahead of each baseline, column by column, and with the fewest labels against the most."""
    columns = [column for column in summary.columns if any(column in lead.tests for lead in summary.leads)]
    rows, heading = _Rows(), None
    for lead in summary.leads:
        if (lead.group, lead.row) != heading:
            heading = lead.group, lead.row
            rows.heading(": ".join(filter(None, [lead.group, f"lead of {lead.row}"])))
        cells = [_lead(summary, lead, column, lead.tests.get(column)) for column in columns]
        rows.add([lead.baseline, *cells, _lead(summary, lead, lead.fewest, lead.across)])
    ends = {(lead.fewest, lead.most) for lead in summary.leads}
    last = "{} against {}".format(*next(iter(ends))) if len(ends) == 1 else "fewest against most"
    section = rows.section("Lead", ["ahead of", *columns, last])
    return Part("lead", section, captions.leads(summary))


def _lead(summary: Summary, lead: Lead, column: str, test: PairedTest | None) -> str:
    """The lead of a row at a column, with a dagger if one of the two has fewer runs than asked for."""
    if test is None:
        return ""
    places = ((lead.row, column), (test.row, test.column))
    mark = "†" if any(_is_short(summary, lead.group, *place) for place in places) else ""
    return f"{mark}{test.average.difference:+.2f}" + ("*" if test.average.shown else "")


def _tuning(summary: Summary) -> Part:
    """Which setting each row ended up with, how many it tried, and over how many runs it was measured."""
    tuned = any(len(entry.settings) > 1 for entry in summary.entries)
    # Where all were tried the caption says how many, and the setting needs the room.
    untried = any(entry.tried < len(entry.settings) for entry in summary.entries)
    columned = summary.columns != ("",)
    rows = _Rows()
    for group, entries in summary.groups().items():
        rows.heading(group)
        for entry in entries:
            cells = [entry.row, *([entry.column or _NOTHING] if columned else [])]
            if tuned:
                cells += [compact_words(entry.chosen or "") or _NOTHING]
            if untried:
                cells += [f"{entry.tried} of {len(entry.settings)}"]
            runs = ("†" if entry.short else "") + f"{len(entry.runs)} of {entry.asked}"
            rows.add([*cells, _score(entry, DEV), runs])
    columns = ["row", *(["at"] if columned else []), *(["setting"] if tuned else [])]
    columns += [*(["tried"] if untried else []), DEV, "runs"]
    texts = 1 + columned + tuned
    section = rows.section("Settings and runs", columns, texts=texts)
    return Part("settings", section, captions.tuning(summary, tuned))


def _costs(summary: Summary) -> Part:
    rows = _Rows()
    for group, entries in summary.groups().items():
        rows.heading(group)
        for entry in entries:
            best = {1 + i for i, name in enumerate((MINUTES, GIB)) if name in entry.best}
            rows.add([_name(entry), _score(entry, MINUTES), _score(entry, GIB)], best)
            if entry.published:
                rows.add(["  paper", *(_published(summary, entry, name) for name in (MINUTES, GIB))])
    return Part("cost", rows.section("Cost of training", ["row", "minutes", "GiB"]), captions.cost(summary))


def _stage_1(summary: Summary) -> Part:
    """Where stage 1 ended; its curves are the figure's."""
    rows = _Rows()
    for entry in summary.entries:
        steps = [run.result.steps["1"] for run in entry.runs if "1" in run.result.steps]
        ends = dict.fromkeys(run.result.stage1_end or _NOTHING for run in entry.runs)
        rows.add([entry.place, "; ".join(ends) or _NOTHING, _number(Spread.of(steps), 0) if steps else _NOTHING])
    section = rows.section("Stage 1", ["row", "ended", "steps"], texts=2)
    return Part("stage1", section, captions.scores(summary, []))


class _Rows:
    """Rows of a table as they are gathered."""

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


def _column_words(summary: Summary, column: str) -> str:
    """`2,756 labelled examples`, `10 % of the labelled examples`."""
    of = "of the " if column.endswith("%") and summary.columns_are else ""
    return f"{column} {of}{summary.columns_are}".strip() if column else ""


def _name(entry: Entry) -> str:
    """A row that has one place, with a dagger if it has fewer runs than asked for."""
    return entry.row + ("†" if entry.short else "")


def _is_short(summary: Summary, group: str, row: str, column: str) -> bool:
    places = (entry for entry in summary.entries if (entry.group, entry.row, entry.column) == (group, row, column))
    return any(entry.short for entry in places)


def _marked(entry: Entry, name: str) -> str:
    """A score in a table of columns, where each has runs of its own."""
    return ("†" if entry.short and entry.runs else "") + _score(entry, name)


def _score(entry: Entry, name: str) -> str:
    return _number(entry.values[name]) if name in entry.values else _NOTHING


def _number(value: Spread, digits: int = 2) -> str:
    return f"{value.mean:.{digits}f}" + ("" if value.deviation is None else f" ±{value.deviation:.{digits}f}")


def _published(summary: Summary, entry: Entry, name: str) -> str:
    """The paper's figure; its average over the tasks that we have, or marked as one over all seven."""
    figure, mark = entry.published.get(name), ""
    if name == AVERAGE and not summary.all_seven:
        ours = [entry.published.get(task) for task in summary.tasks]
        if None not in ours:
            figure = Figure(statistics.fmean(one.mean for one in ours if one is not None), None)
        else:
            mark = "‡"
    if figure is None:
        return ""
    return f"{mark}{figure.mean:.2f}" + ("" if figure.deviation is None else f" ±{figure.deviation:.1f}")
