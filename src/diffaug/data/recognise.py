"""What somebody's file holds, judged by its columns and first rows, for people who have not said so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from diffaug.data.labels import has_no_gold_label, parse_label, parse_score
from diffaug.data.layout import ROLES, Columns, Kind, Layout, LayoutError, find_layout
from diffaug.data.tables import Table
from diffaug.errors import DiffaugError


@dataclass
class Recognised:
    """The kind of data a table holds, with what speaks against it."""

    layout: Layout
    doubts: list[str] = field(default_factory=list)


def recognise(table: Table, columns: Columns | None = None, kind: Kind | None = None) -> Recognised:
    """Say what ``table`` holds; with ``kind`` given, only find its columns.

    Raises:
        DiffaugError: it is nothing that can be read; the message says what it comes closest to.
    """
    if kind is not None:
        return Recognised(find_layout(table, kind, columns))
    layouts: dict[Kind, Layout] = {}
    errors: dict[Kind, LayoutError] = {}
    for candidate in Kind:
        try:
            layouts[candidate] = find_layout(table, candidate, columns)
        except LayoutError as error:
            errors[candidate] = error
    if not layouts:
        raise DiffaugError(_closest(table, errors))
    if Kind.TRIPLETS in layouts:
        return Recognised(layouts[Kind.TRIPLETS])
    if Kind.LABELLED_PAIRS in layouts or Kind.SCORED_PAIRS in layouts:
        return _labelled_or_scored(table, layouts)
    if Kind.POSITIVE_PAIRS in layouts:
        return Recognised(layouts[Kind.POSITIVE_PAIRS])
    found = Recognised(layouts[Kind.SENTENCES])
    if tabs := _constant_tabs(table):
        raise DiffaugError(
            f"{table.name} looks like sentences, but nearly every line holds {tabs} tab{'s' if tabs > 1 else ''}: it "
            "seems to be a table of several columns; name it .tsv"
        )
    return found


def _labelled_or_scored(table: Table, layouts: dict[Kind, Layout]) -> Recognised:
    labelled, scored = layouts.get(Kind.LABELLED_PAIRS), layouts.get(Kind.SCORED_PAIRS)
    if labelled is None or scored is None:
        layout = labelled or scored
        assert layout is not None
        marks = _marks(table, layout)
        test = parse_label if layout is labelled else parse_score
        bad = Counter(str(mark) for mark in marks if test(mark) is None)
        if 2 * bad.total() > len(marks):
            what = "labels" if layout is labelled else "scores"
            examples = ", ".join(repr(mark[:20]) for mark, _ in bad.most_common(3))
            return Recognised(layout, [f"most of the first {what} are unknown: {examples}"])
        return Recognised(layout)
    if labelled.at[-1] != scored.at[-1]:
        return Recognised(scored, ["there is also a column of labels, so it can be read as labelled pairs too"])
    # One column could be either: `label` is also what some files call a score.
    marks = [mark for mark in _marks(table, labelled) if not has_no_gold_label(mark)]
    labels = sum(parse_label(mark) is not None for mark in marks)
    numbers = sum(parse_score(mark) is not None for mark in marks)
    if labels < len(marks) and numbers > labels:
        return Recognised(scored)
    found = Recognised(labelled)
    if numbers == labels == len(marks):
        found.doubts.append(
            "the labels are whole numbers from 0 to 2, which could be scores; they are taken for labels"
        )
    elif labels == 0:
        found.doubts.append(f"none of the first labels is known, for example {str(marks[0])[:20]!r}")
    return found


def _marks(table: Table, layout: Layout) -> list[object]:
    """The cells of the label or score column in the first rows."""
    rows = table.head()[1 if layout.header else 0 :]
    return [cells[layout.at[-1]] for _, cells in rows if len(cells) > layout.at[-1]]


def _constant_tabs(table: Table) -> int:
    """How many tabs nearly every line of a text file holds."""
    head = table.head()
    tabs, lines = Counter(str(cells[0]).count("\t") for _, cells in head).most_common(1)[0]
    return tabs if tabs and lines > 0.9 * len(head) and len(head) > 1 else 0


def _closest(table: Table, errors: dict[Kind, LayoutError]) -> str:
    """Name the kind of which the most columns were found, and what it lacks."""

    def found(kind: Kind) -> int:
        return len(ROLES[kind]) - len(errors[kind].missing) if errors[kind].missing else 0

    kind = max(Kind, key=found)
    if found(kind):
        return f"looks like {kind.value}, but {errors[kind]}"
    width = Counter(len(cells) for _, cells in table.head()).most_common(1)[0][0]
    by_width = {1: Kind.SENTENCES, 2: Kind.POSITIVE_PAIRS, 3: Kind.TRIPLETS}
    if width in by_width:
        return str(errors[by_width[width]])
    needs = "; ".join(f"{kind.value} need {', '.join(ROLES[kind])}" for kind in Kind)
    return f"it is not clear what its columns are ({needs}); rename them, or say which is which: --column ROLE=NAME"
