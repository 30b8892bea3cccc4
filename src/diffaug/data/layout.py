"""Which column is what: by the names in a header, by a user's mapping, or by what the cells hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from diffaug.data.labels import parse_label, parse_score
from diffaug.data.tables import Row, Table
from diffaug.errors import DiffaugError

Columns = Mapping[str, str | int]
"""A user's mapping from a role to a column: its name, or in a file without header its number, from 1."""


class Kind(Enum):
    """What the rows of a table are."""

    SENTENCES = "sentences"
    TRIPLETS = "triplets"
    LABELLED_PAIRS = "labelled pairs"
    SCORED_PAIRS = "scored pairs"
    POSITIVE_PAIRS = "positive pairs"


# The roles of each kind, and the names under which a column is recognised, best first.
_FIRST = ("sentence1", "sentence_1", "sentence_a", "sent1", "s1", "text1", "text_a", "question1")
_SECOND = ("sentence2", "sentence_2", "sentence_b", "sent2", "s2", "text2", "text_b", "question2")
_ANCHOR = ("sent0", "anchor", "premise", "query", "question")
_POSITIVE = ("sent1", "positive", "entailment", "pos", "answer", "passage")
ROLES: dict[Kind, dict[str, tuple[str, ...]]] = {
    Kind.SENTENCES: {"sentence": ("sentence", "text", "sentences")},
    Kind.TRIPLETS: {
        "anchor": _ANCHOR,
        "positive": _POSITIVE,
        "negative": ("hard_neg", "negative", "contradiction", "hard_negative", "neg"),
    },
    Kind.LABELLED_PAIRS: {
        "premise": ("premise", *_FIRST),
        "hypothesis": ("hypothesis", *_SECOND),
        "label": ("label", "gold_label", "entailment_label", "entailment_judgment", "labels"),
    },
    Kind.SCORED_PAIRS: {
        "sentence1": _FIRST,
        "sentence2": _SECOND,
        "score": ("score", "similarity_score", "relatedness_score", "similarity", "label"),
    },
    # `sent1` is the second beside `sent0` and the first beside `sent2`: of pairs, only the former is read.
    Kind.POSITIVE_PAIRS: {
        "anchor": (*_ANCHOR, *(name for name in _FIRST if name != "sent1")),
        "positive": (*_POSITIVE, *(name for name in _SECOND if name != "sent2")),
    },
}
# A column of such a name says which pairs belong together.
_JUDGING = {*ROLES[Kind.LABELLED_PAIRS]["label"], *ROLES[Kind.SCORED_PAIRS]["score"]}
# How to say the same where there are no Python arguments.
_ELSEWHERE = "in a recipe data.columns, on the command line --column ROLE=NAME"
_KNOWN_NAMES = {name for roles in ROLES.values() for names in roles.values() for name in names}


@dataclass(frozen=True)
class Layout:
    """Where the cells of a kind lie in the rows of a table.

    Attributes:
        kind: what the rows are.
        at: for each role of the kind, in order, the place of its cell, from 0.
        titles: for each role, what messages call the column.
        header: the first row holds names, not data.
        width: how many cells a row must have; None if a row may be short (its missing cells are marked).
        why: how this was recognised, in words.
        against: why the rows must not be read so, although the columns are there.
    """

    kind: Kind
    at: tuple[int, ...]
    titles: tuple[str, ...]
    header: bool
    width: int | None
    why: str
    against: str | None = None


class LayoutError(DiffaugError):
    """The table does not show the columns of a kind; ``missing`` names the roles for which nothing was found."""

    def __init__(self, message: str, missing: Sequence[str]) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


def find_layout(table: Table, kind: Kind, columns: Columns | None = None) -> Layout:
    """Find the columns of ``kind`` in ``table``, which must hold at least one row.

    A user's mapping comes first, then the names in the header, then, for a file without one, the number of columns
    and what they hold, where that leaves no doubt.

    Raises:
        LayoutError: a column is missing, or it is not clear which is which; the message says what there is.
    """
    layout = _found(table, kind, columns)
    said = {_plain(key) for key in columns or ()}
    # Who calls both columns what they are has said that the pairs belong together, whatever else is known of them.
    if kind is Kind.POSITIVE_PAIRS and not (said & {"anchor", *_ANCHOR} and said & {"positive", *_POSITIVE}):
        return replace(layout, against=_no_mere_pairs(table, layout))
    return layout


def _found(table: Table, kind: Kind, columns: Columns | None) -> Layout:
    head = table.head()
    names = table.names
    if names is None and table.may_have_header:
        names = tuple(str(cell).strip() for cell in head[0][1])
    mapping = _by_role(kind, columns, names or ())
    if any(isinstance(column, int) for column in mapping.values()):
        return _numbered(table, kind, mapping, head)
    if names is not None and (table.names is not None or mapping or not _missing(kind, mapping, names)):
        return _named(table, kind, mapping, names, header=table.names is None)
    if mapping:
        raise LayoutError(f"{table.name} has no column names; give numbers instead, from 1", list(mapping))
    return _by_content(table, kind, head)


def _by_role(kind: Kind, columns: Columns | None, names: Sequence[str]) -> dict[str, str | int]:
    """The user's mapping, its keys brought to the names of the roles, and digits to numbers if they are no name."""
    mapping: dict[str, str | int] = {}
    for key, column in (columns or {}).items():
        role = next((r for r, names in ROLES[kind].items() if _plain(key) == r or _plain(key) in names), None)
        if role is None:
            raise LayoutError(f"{kind.value} have no column {key!r}; they have {', '.join(ROLES[kind])}", [])
        is_number = isinstance(column, str) and column.isdecimal() and column not in names
        mapping[role] = int(column) if is_number else column
    return mapping


def _numbered(table: Table, kind: Kind, mapping: Mapping[str, str | int], head: list[Row]) -> Layout:
    roles = list(ROLES[kind])
    absent = [role for role in roles if not isinstance(mapping.get(role), int)]
    if absent:
        raise LayoutError(f"column numbers are given for some roles but not for {', '.join(absent)}", absent)
    width = _width(head)
    places = [int(mapping[role]) for role in roles]
    if wrong := [place for place in places if not 1 <= place <= width]:
        raise LayoutError(f"{table.name} has no column {wrong[0]}: its rows have {width}, counted from 1", [])
    return Layout(
        kind,
        tuple(place - 1 for place in places),
        tuple(f"column {place}" for place in places),
        header=False,
        width=width,
        why="by the column numbers given",
    )


def _named(
    table: Table, kind: Kind, mapping: Mapping[str, str | int], names: tuple[str, ...], *, header: bool
) -> Layout:
    if missing := _missing(kind, mapping, names):
        raise LayoutError(_no_columns(table, kind, mapping, names, missing), missing)
    at = []
    for role in ROLES[kind]:
        place = _find(kind, role, mapping, names)
        assert place is not None
        if names.count(names[place]) > 1:
            raise LayoutError(f"{table.name} has more than one column {names[place]!r}; rename one of them", [role])
        at.append(place)
    titles = tuple(f"column {names[place]!r}" for place in at)
    why = "one a line" if table.whole_lines else "by the columns " + ", ".join(names[place] for place in at)
    return Layout(kind, tuple(at), titles, header, len(names) if header else None, why)


def _no_mere_pairs(table: Table, layout: Layout) -> str | None:
    """What to say if another column may tell which of the pairs belong together, or what does not belong to them."""
    head = table.head()
    names = table.names or [str(cell).strip() for cell in head[0][1]]
    if table.names is None and not layout.header:
        names = [str(number) for number in range(1, _width(head) + 1)]
    rows = [cells for _, cells in head[1 if layout.header else 0 :] if len(cells) == len(names)]
    first, second = (names[place] for place in layout.at)
    clear = _plain(first) in _ANCHOR and _plain(second) in _POSITIVE
    for place, name in enumerate(names):
        if place in layout.at:
            continue
        if like_negatives(name):
            role = {"anchor": first, "positive": second, "negative": name}
            return (
                f"{table.name}: the column {name!r} seems to hold hard negatives, and then these are triplets; say "
                f"columns={role}, {_ELSEWHERE}, or give the pairs without it"
            )
        if _plain(name) in _JUDGING or _may_judge([row[place] for row in rows], texts_too=not clear):
            role, alone = {"premise": first, "hypothesis": second, "label": name}, {"anchor": first, "positive": second}
            return (
                f"{table.name}: the column {name!r} may hold labels or scores, and then {first} and {second} do not "
                f"always belong together; say columns={role}, or, if they do, "
                f"columns={alone}, {_ELSEWHERE}"
            )
    return None


def like_negatives(name: str) -> bool:
    """Whether a column of that name seems to hold hard negatives: `negative`, `negative_2` ..."""
    return _plain(name).startswith(("neg", "hard_neg", "contradiction"))


def _may_judge(cells: list[object], *, texts_too: bool) -> bool:
    """Whether a column may hold a judgement of each row: values that come back, or broken numbers, unlike an id's."""
    numbers = [number for cell in cells if (number := parse_score(cell)) is not None]
    numeric = 2 * len(numbers) > len(cells)
    if numeric and not all(number.is_integer() for number in numbers):
        return True
    comes_back = len({str(cell) for cell in cells}) < len(cells)
    return comes_back and (texts_too or numeric or _mostly(_is_label, cells))


def _missing(kind: Kind, mapping: Mapping[str, str | int], names: Sequence[str]) -> list[str]:
    return [role for role in ROLES[kind] if _find(kind, role, mapping, names) is None]


def _find(kind: Kind, role: str, mapping: Mapping[str, str | int], names: Sequence[str]) -> int | None:
    wanted = (str(mapping[role]),) if role in mapping else ROLES[kind][role]
    plain = [_plain(name) for name in names]
    for name in wanted:
        if name in names:
            return names.index(name)
        if _plain(name) in plain:
            return plain.index(_plain(name))
    return None


def _no_columns(
    table: Table, kind: Kind, mapping: Mapping[str, str | int], names: Sequence[str], missing: Sequence[str]
) -> str:
    wanted = [
        f"{role} ({mapping[role]!r})" if role in mapping else f"{role} ({' or '.join(ROLES[kind][role][:3])})"
        for role in missing
    ]
    if table.whole_lines:
        return (
            f"{table.name} holds one sentence a line, as .txt files do; {kind.value} need a .tsv, .csv or .jsonl file"
        )
    where = f"{table.name}, line 1" if table.may_have_header else table.name
    there = ", ".join(name if name else "(no name)" for name in names)
    hint = f"rename a column, or say which one it is: columns={{{missing[0]!r}: NAME}}, {_ELSEWHERE}"
    if table.separator is not None and len(names) == 1 and (other := _other_separator(table, names)):
        words = {"\t": "tabs", ",": "commas", ";": "semicolons"}
        cure = {"\t": "name it .tsv", ",": "name it .csv", ";": "save it with commas"}[other]
        hint = f"it seems to be separated by {words[other]}, not by {words[table.separator]}: {cure}"
    return f"{where}: no column for {', '.join(wanted)}, which {kind.value} need; there are: {there}; {hint}"


def _by_content(table: Table, kind: Kind, head: list[Row]) -> Layout:
    """Columns of a file without header, if their number and what they hold leave no doubt."""
    roles = list(ROLES[kind])
    width = _width(head)
    rows = [cells for _, cells in head if len(cells) == width]
    if width != len(roles):
        raise _unclear(table, kind, head)
    if kind is Kind.LABELLED_PAIRS or kind is Kind.SCORED_PAIRS:
        is_mark, what = (_is_label, "label") if kind is Kind.LABELLED_PAIRS else (_is_number, "number")
        marks = _columns_of(is_mark, rows)
        if len(marks) != 1:
            raise _unclear(table, kind, head)
        mark = marks[0]
        first = head[0][1]
        if table.may_have_header and _like_names(first) and not is_mark(first[min(mark, len(first) - 1)]):
            raise _unclear(table, kind, head)
        at = [*(i for i in range(width) if i != mark), mark]
        why = f"no header, two columns of text and a {what} in column {mark + 1}"
    else:
        for is_other, what in ((_is_number, "numbers"), (_is_label, "labels")):
            if odd := _columns_of(is_other, rows):
                raise LayoutError(f"{table.name}: column {odd[0] + 1} holds {what}, not sentences", [roles[odd[0]]])
        if table.may_have_header:
            _refuse_doubtful_header(table, kind, head, rows)
        at = list(range(width))
        why = f"no header, {width} column{'s' if width > 1 else ''} of text"
    return Layout(kind, tuple(at), tuple(f"column {i + 1}" for i in at), header=False, width=width, why=why)


def _refuse_doubtful_header(table: Table, kind: Kind, head: list[Row], rows: list[Sequence[object]]) -> None:
    """Raise if the first row of a file of text alone could be names that nobody knows, or the separator is another."""
    first = head[0][1]
    has_known_name = any(_plain(str(cell)) in _KNOWN_NAMES for cell in first)
    if has_known_name or (len(first) == 1 and _other_separator(table, [str(cells[0]) for cells in rows])):
        raise _unclear(table, kind, head)
    if _like_names(first) and not _mostly(_like_names, rows[1:]):
        roles, names = list(ROLES[kind]), [str(cell).strip() for cell in first]
        as_names = dict(zip(roles, names, strict=False))
        as_numbers = {role: i for i, role in enumerate(roles, start=1)}
        raise LayoutError(
            f"{table.name}, line 1: {', '.join(names)} may be column names or data; say which: columns={as_names} or "
            f"columns={as_numbers}, {_ELSEWHERE}",
            roles,
        )


def _unclear(table: Table, kind: Kind, head: list[Row]) -> LayoutError:
    """What to raise when columns cannot be told apart: the names that a header lacks, or a request for numbers."""
    first = head[0][1]
    if table.may_have_header and _like_names(first):
        names = [str(cell).strip() for cell in first]
        missing = _missing(kind, {}, names)
        return LayoutError(_no_columns(table, kind, {}, names, missing), missing)
    width = _width(head)
    example = ", ".join(f"{role!r}: {i}" for i, role in enumerate(ROLES[kind], start=1))
    return LayoutError(
        f"{table.name} has {width} column{'s' if width > 1 else ''} without names, and which of them are "
        f"{', '.join(ROLES[kind])} is not clear; number them: columns={{{example}}}, {_ELSEWHERE}",
        list(ROLES[kind]),
    )


def _other_separator(table: Table, lines: Sequence[str]) -> str | None:
    """A character that splits nearly every line into the same number of cells, where the format's own splits none."""
    for separator in ("\t", ";", ","):
        if separator != table.separator:
            count, times = Counter(line.count(separator) for line in lines).most_common(1)[0]
            if count and times > 0.9 * len(lines):
                return separator
    return None


def _width(head: list[Row]) -> int:
    return Counter(len(cells) for _, cells in head).most_common(1)[0][0]


def _columns_of(test: Callable[[object], bool], rows: list[Sequence[object]]) -> list[int]:
    return [i for i, column in enumerate(zip(*rows, strict=True)) if _mostly(test, column)]


def _mostly(test: Callable[..., bool], values: Sequence[object]) -> bool:
    # Not all: a few bad cells are for the reader to report with their lines.
    return 2 * sum(map(test, values)) > len(values)


def _is_number(value: object) -> bool:
    return parse_score(value) is not None


def _is_label(value: object) -> bool:
    return parse_label(value) is not None


def _like_names(cells: Sequence[object]) -> bool:
    """Short, without the end of a sentence, and all different: a header could look so."""
    texts = [str(cell).strip() for cell in cells]
    short = all(text and len(text) <= 40 and len(text.split()) <= 3 and text[-1] not in '.?!"' for text in texts)
    return short and len(set(texts)) == len(texts)


def _plain(name: str) -> str:
    return re.sub(r"[\s\-]+", "_", name.strip().casefold())
