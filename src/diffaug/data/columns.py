"""Which column is what: by a user's mapping, by the names in a header, or by the content of the cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from diffaug.data.labels import has_no_gold_label, parse_label, parse_score
from diffaug.data.problems import printable
from diffaug.data.table import SEPARATORS, Row, Table
from diffaug.errors import DiffaugError

Columns = Mapping[str, str | int]
"""A user's mapping from a role to a column: its name, or in a file without header its number, starting at 1."""


class Kind(Enum):
    """What the rows of a table are."""

    SENTENCES = "sentences"
    TRIPLETS = "triplets"
    LABELLED_PAIRS = "labelled pairs"
    SCORED_PAIRS = "scored pairs"
    CLASSES = "sentences with a class"
    POSITIVE_PAIRS = "positive pairs"


_FIRST = ("sentence1", "sentence_1", "sentence_a", "sent1", "s1", "text1", "text_a", "question1")
_SECOND = ("sentence2", "sentence_2", "sentence_b", "sent2", "s2", "text2", "text_b", "question2")
_ANCHOR = ("sent0", "anchor", "premise", "query", "question")
_POSITIVE = ("sent1", "positive", "entailment", "pos", "answer", "passage")
# The roles of each kind, and the column names that are recognised for them, best first.
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
        "label": (
            *("label", "gold_label", "entailment_label", "entailment_judgment", "labels"),
            *("is_duplicate", "is_paraphrase", "verdict"),
        ),
    },
    Kind.SCORED_PAIRS: {
        "sentence1": _FIRST,
        "sentence2": _SECOND,
        "score": ("score", "similarity_score", "relatedness_score", "similarity", "label"),
    },
    Kind.CLASSES: {
        "sentence": ("sentence", "text", "utterance", "message"),
        "class": ("class", "label", "intent", "category", "topic", "tag", "labels"),
    },
    # `sent1` is the second sentence beside `sent0` and the first beside `sent2`; only the former is accepted here.
    Kind.POSITIVE_PAIRS: {
        "anchor": (*_ANCHOR, *(name for name in _FIRST if name != "sent1")),
        "positive": (*_POSITIVE, *(name for name in _SECOND if name != "sent2")),
    },
}
_LABEL_NAMES = {
    *ROLES[Kind.LABELLED_PAIRS]["label"],
    *ROLES[Kind.SCORED_PAIRS]["score"],
    *ROLES[Kind.CLASSES]["class"],
}
_KNOWN_NAMES = {name for roles in ROLES.values() for names in roles.values() for name in names}
_ELSEWHERE = "(in a recipe: data.columns; on the command line: --column ROLE=NAME)"
# A character that is written without spaces, of which two are about a word.
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]")


@dataclass(frozen=True)
class Layout:
    """Where the cells of a kind are in the rows of a table.

    Attributes:
        kind: what the rows are.
        indices: for each role of the kind, in order, the index of its cell.
        titles: for each role, the name of the column in messages.
        header: the first row holds column names.
        width: how many cells a row must have; None if missing cells are marked as such.
        why: how the columns were found, in words.
        refusal: why the table must not be read this way although the columns were found.
    """

    kind: Kind
    indices: tuple[int, ...]
    titles: tuple[str, ...]
    header: bool
    width: int | None
    why: str
    refusal: str | None = None

    def column_names(self, table: Table) -> tuple[str, ...]:
        """The names of all columns of the table; empty if they have none."""
        return _header(table) if self.header else table.names or ()


class LayoutError(DiffaugError):
    """The columns of a kind were not found.

    Attributes:
        problem: what is wrong.
        missing: the roles without a column.
        naming: how to say which column is what; empty if this does not help.
    """

    def __init__(self, problem: str, missing: Sequence[str], naming: str = "") -> None:
        super().__init__("; ".join(filter(None, [problem, naming])))
        self.problem, self.missing, self.naming = problem, tuple(missing), naming


def find_layout(table: Table, kind: Kind, columns: Columns | None = None) -> Layout:
    """Find the columns of ``kind`` in ``table``, which must have at least one row.

    A user's mapping comes first, then the names in the header, then, in a file without header, the number of columns
    and their content if these are unambiguous.

    Raises:
        LayoutError: a column is missing or ambiguous; the message lists the columns that there are.
    """
    layout = _find_layout(table, kind, columns)
    roles = {_normalise(key) for key in columns or ()}
    # Who names both the anchor and the positive has said that these are positive pairs; other columns do not matter.
    if kind is Kind.POSITIVE_PAIRS and not (roles & {"anchor", *_ANCHOR} and roles & {"positive", *_POSITIVE}):
        return replace(layout, refusal=_why_not_positive_pairs(table, layout))
    return layout


def _find_layout(table: Table, kind: Kind, columns: Columns | None) -> Layout:
    names = _header(table) if table.names is None and table.may_have_header else table.names
    mapping = _by_role(kind, columns, names or ())
    if any(isinstance(column, int) for column in mapping.values()):
        return _by_number(table, kind, mapping)
    if names is not None and (table.names is not None or mapping or not _missing(kind, mapping, names)):
        return _by_name(table, kind, mapping, names)
    if mapping:
        raise LayoutError(f"{table.name} has no column names; give column numbers, starting at 1", list(mapping))
    return _by_content(table, kind)


def _by_role(kind: Kind, columns: Columns | None, names: Sequence[str]) -> dict[str, str | int]:
    """The user's mapping with role names as keys. Digits become numbers unless a column has that name."""
    mapping: dict[str, str | int] = {}
    for key, column in (columns or {}).items():
        role = next((r for r, known in ROLES[kind].items() if _normalise(key) in (r, *known)), None)
        if role is None:
            raise LayoutError(f"{kind.value} have no column {key!r}; their columns are {', '.join(ROLES[kind])}", [])
        is_number = isinstance(column, str) and column.isdecimal() and column not in names
        mapping[role] = int(column) if is_number else column
    return mapping


def _by_number(table: Table, kind: Kind, mapping: Mapping[str, str | int]) -> Layout:
    if absent := [role for role in ROLES[kind] if not isinstance(mapping.get(role), int)]:
        raise LayoutError(f"column numbers are given for some roles but not for {', '.join(absent)}", absent)
    width = _width(table.head())
    numbers = [int(mapping[role]) for role in ROLES[kind]]
    if wrong := [number for number in numbers if not 1 <= number <= width]:
        raise LayoutError(f"{table.name} has no column {wrong[0]}; its columns are 1 to {width}", [])
    return _unnamed(kind, [number - 1 for number in numbers], width, "by the column numbers given")


def _unnamed(kind: Kind, indices: Sequence[int], width: int, why: str) -> Layout:
    titles = tuple(f"column {index + 1}" for index in indices)
    return Layout(kind, tuple(indices), titles, header=False, width=width, why=why)


def _by_name(table: Table, kind: Kind, mapping: Mapping[str, str | int], names: tuple[str, ...]) -> Layout:
    if missing := _missing(kind, mapping, names):
        raise _missing_columns(table, kind, mapping, names, missing)
    found = {role: index for role in ROLES[kind] if (index := _find(kind, role, mapping, names)) is not None}
    for role, index in found.items():
        if names.count(names[index]) > 1:
            raise LayoutError(f"{table.name} has more than one column {names[index]!r}; rename one of them", [role])
    used = [names[index] for index in found.values()]
    why = "one per line" if table.plain_text else f"by the column{'s' * (len(used) > 1)} {', '.join(used)}"
    header = table.names is None
    titles = tuple(f"column {name!r}" for name in used)
    return Layout(kind, tuple(found.values()), titles, header, len(names) if header else None, why)


def _why_not_positive_pairs(table: Table, layout: Layout) -> str | None:
    """The error message if another column may hold labels, scores or hard negatives; None if none does."""
    head = table.head()
    names = layout.column_names(table) or [str(number) for number in range(1, _width(head) + 1)]
    rows = [cells for _, cells in head[1 if layout.header else 0 :] if len(cells) == len(names)]
    first, second = (names[index] for index in layout.indices)
    explicit = _normalise(first) in _ANCHOR and _normalise(second) in _POSITIVE
    for index, name in enumerate(names):
        if index in layout.indices:
            continue
        if is_negatives_name(name):
            triplet = {"anchor": first, "positive": second, "negative": name}
            return (
                f"{table.name}: the column {name!r} seems to hold hard negatives, so these would be triplets; set "
                f"columns={triplet} {_ELSEWHERE}, or remove the column"
            )
        if _normalise(name) in _LABEL_NAMES or _may_be_labels([row[index] for row in rows], any_text=not explicit):
            labelled = {"premise": first, "hypothesis": second, "label": name}
            positive = {"anchor": first, "positive": second}
            return (
                f"{table.name}: the column {name!r} may hold labels or scores, so {first} and {second} may not always "
                f"be positive pairs; set columns={labelled}, or, if all of them are positive pairs, "
                f"columns={positive} {_ELSEWHERE}"
            )
    return None


def shown_name(name: str) -> str:
    """A column's name in messages."""
    return printable(name) or "(no name)"


def is_known_name(name: str) -> bool:
    """Whether a column of that name has a role in one of the kinds."""
    return _normalise(name) in _KNOWN_NAMES


def is_negatives_name(name: str) -> bool:
    """Whether a column of that name seems to hold hard negatives: `negative`, `negative_2` and so on."""
    return _normalise(name).startswith(("neg", "hard_neg", "contradiction"))


def _may_be_labels(cells: list[object], *, any_text: bool) -> bool:
    """Whether a column may hold a label or score for each row: repeated values, or decimals, unlike ids."""
    numbers = [number for cell in cells if (number := parse_score(cell)) is not None]
    numeric = 2 * len(numbers) > len(cells)
    if numeric and not all(number.is_integer() for number in numbers):
        return True
    repeated = len({str(cell) for cell in cells}) < len(cells)
    return repeated and (any_text or numeric or _mostly(_is_label, cells))


def _missing(kind: Kind, mapping: Mapping[str, str | int], names: Sequence[str]) -> list[str]:
    return [role for role in ROLES[kind] if _find(kind, role, mapping, names) is None]


def _find(kind: Kind, role: str, mapping: Mapping[str, str | int], names: Sequence[str]) -> int | None:
    wanted = (str(mapping[role]),) if role in mapping else ROLES[kind][role]
    normalised = [_normalise(name) for name in names]
    for name in wanted:
        if name in names:
            return names.index(name)
        if _normalise(name) in normalised:
            return normalised.index(_normalise(name))
    return None


def _missing_columns(
    table: Table, kind: Kind, mapping: Mapping[str, str | int], names: Sequence[str], missing: Sequence[str]
) -> LayoutError:
    if table.plain_text:
        message = (
            f"{table.name} is a .txt file with one sentence per line; {kind.value} need a .tsv, .csv or .jsonl file"
        )
        return LayoutError(message, missing)
    wanted = [
        f"{role} ({mapping[role]!r})" if role in mapping else f"{role} ({' or '.join(ROLES[kind][role][:3])})"
        for role in missing
    ]
    hint, naming = "", f"rename a column, or set columns={{{missing[0]!r}: NAME}} {_ELSEWHERE}"
    if table.separator is not None and len(names) == 1 and (other := _other_separator(table, names)):
        hint = f"; the file seems to be separated by {SEPARATORS[other]}, not by {SEPARATORS[table.separator]}: "
        hint += "rename it to .tsv" if other == "\t" else "rename it to .csv"
        naming = ""
    where = f"{table.name}, line 1" if table.may_have_header else table.name
    there = ", ".join(map(shown_name, names))
    return LayoutError(
        f"{where}: no column for {', '.join(wanted)}, which {kind.value} need; the columns are: {there}{hint}",
        missing,
        naming,
    )


def _by_content(table: Table, kind: Kind) -> Layout:
    """The columns of a file without header, if their number and content are unambiguous."""
    head, roles = table.head(), list(ROLES[kind])
    width = _width(head)
    rows = [cells for _, cells in head if len(cells) == width]
    if width != len(roles):
        raise _ambiguous(table, kind, head)
    if kind is Kind.CLASSES:
        matching = [i for i, column in enumerate(zip(*rows, strict=True)) if _like_classes(column)]
        if len(matching) != 1:
            raise _ambiguous(table, kind, head)
        target = matching[0]
        others = Counter(row[target] for row in rows[1:])
        # A first class of one row is probably a header.
        header = rows[0][target] not in others and (_like_names(rows[0]) or min(others.values()) > 1)
        if table.may_have_header and header:
            raise _ambiguous(table, kind, head)
        return _unnamed(kind, [1 - target, target], width, f"no header, text and a class in column {target + 1}")
    if kind in (Kind.LABELLED_PAIRS, Kind.SCORED_PAIRS):
        test, what = (_is_label, "label") if kind is Kind.LABELLED_PAIRS else (_is_number, "number")
        matching = _columns_of(test, rows)
        first = head[0][1]
        if len(matching) != 1 or (first_row_names(table) and not test(first[min(matching[0], len(first) - 1)])):
            raise _ambiguous(table, kind, head)
        target = matching[0]
        indices = [*(i for i in range(width) if i != target), target]
        columns = list(zip(*rows, strict=True))
        names = any(_may_be_classes(columns[i]) for i in indices[:2])
        if kind is Kind.SCORED_PAIRS and (_like_ids(columns[target]) or (names and _distinct(columns[target]))):
            raise _ambiguous(table, kind, head)
        return _unnamed(kind, indices, width, f"no header, two columns of text and a {what} in column {target + 1}")
    for test, what in ((_is_number, "numbers"), (_is_label, "labels")):
        if wrong := _columns_of(test, rows):
            raise LayoutError(f"{table.name}: column {wrong[0] + 1} holds {what}, not sentences", [roles[wrong[0]]])
    if table.may_have_header:
        _refuse_possible_header(table, kind, head, rows)
    for index, cells in enumerate(zip(*rows, strict=True)):
        if width > 1 and _may_be_classes(cells):
            raise LayoutError(
                f"{table.name}: column {index + 1} repeats few short texts, such as {str(cells[-1])[:40]!r}, which may "
                "be classes",
                [roles[index]],
                f"say which column is what {_ELSEWHERE}",
            )
    return _unnamed(kind, range(width), width, f"no header, {width} column{'s' * (width > 1)} of text")


def _refuse_possible_header(table: Table, kind: Kind, head: list[Row], rows: list[Sequence[object]]) -> None:
    """Raise if the first row of a file of text may be a header with unknown names, or the separator is another one."""
    first = head[0][1]
    has_known_name = any(is_known_name(str(cell)) for cell in first)
    if has_known_name or (len(first) == 1 and _other_separator(table, [str(cells[0]) for cells in rows])):
        raise _ambiguous(table, kind, head)
    for index, cells in enumerate(zip(*rows[1:], strict=True)):
        if len(cells) > 2 and len(set(cells)) <= 2:
            raise LayoutError(
                f"{table.name}: column {index + 1} holds {len(set(cells))} different values, such as "
                f"{str(cells[0])[:40]!r}, not sentences",
                [list(ROLES[kind])[index]],
            )
    if _like_names(first) and not _mostly(_like_names, rows[1:]):
        roles, names = list(ROLES[kind]), [str(cell).strip() for cell in first]
        raise LayoutError(
            f"{table.name}, line 1: {', '.join(map(printable, names))} may be column names or data",
            roles,
            f"set columns={dict(zip(roles, names, strict=False))} if they are names, or "
            f"columns={dict(zip(roles, range(1, len(roles) + 1), strict=True))} if they are data {_ELSEWHERE}",
        )


def _ambiguous(table: Table, kind: Kind, head: list[Row]) -> LayoutError:
    """The error for columns that cannot be told apart: missing names in a header, or a request for numbers."""
    if first_row_names(table):
        names = _header(table)
        return _missing_columns(table, kind, {}, names, _missing(kind, {}, names))
    width = _width(head)
    roles = list(ROLES[kind])
    numbers = {role: number for number, role in enumerate(roles, start=1)}
    return LayoutError(
        f"{table.name} has {width} column{'s' * (width > 1)} without names, and it is not clear which of them are "
        f"{', '.join(roles)}",
        roles,
        f"number them as in columns={numbers} {_ELSEWHERE}",
    )


def _other_separator(table: Table, lines: Sequence[str]) -> str | None:
    """A character that splits nearly every line into the same number of cells, other than the format's own."""
    for separator in SEPARATORS:
        if separator != table.separator:
            count, times = Counter(line.count(separator) for line in lines).most_common(1)[0]
            if count and times > 0.9 * len(lines):
                return separator
    return None


def _header(table: Table) -> tuple[str, ...]:
    return tuple(str(cell).strip() for cell in table.head()[0][1])


def _width(head: list[Row]) -> int:
    return Counter(len(cells) for _, cells in head).most_common(1)[0][0]


def _columns_of(test: Callable[[object], bool], rows: list[Sequence[object]]) -> list[int]:
    return [i for i, column in enumerate(zip(*rows, strict=True)) if _mostly(test, column)]


def _mostly(test: Callable[..., bool], values: Sequence[object]) -> bool:
    # Not all: a few bad cells are reported later, with their line numbers.
    return 2 * sum(map(test, values)) > len(values)


def _is_number(value: object) -> bool:
    return parse_score(value) is not None


def _is_label(value: object) -> bool:
    return parse_label(value) is not None


def first_row_names(table: Table) -> bool:
    """Whether the first row of a file may hold column names: short cells, or text above numbers or labels."""
    if not table.may_have_header:
        return False
    (_, first), *rest = table.head()
    if _like_names(first):
        return True
    columns = zip(*(cells for _, cells in rest if len(cells) == len(first)), strict=True)
    return len(rest) > 1 and any(
        str(name).strip() and not test(name) and all(map(test, column))
        for name, column in zip(first, columns, strict=False)
        for test in (_is_number, _is_label)
    )


def _like_names(cells: Sequence[object]) -> bool:
    """Whether a row may be a header: short cells without final punctuation, all different.

    The first may be empty: pandas writes its index without a name.
    """
    texts = [str(cell).strip() for cell in cells]
    named = texts[1:] if len(texts) > 1 and not texts[0] else texts
    return all(len(text) <= 40 and _is_short(text) for text in named) and len(set(texts)) == len(texts)


def _like_classes(cells: Sequence[object]) -> bool:
    """Whether a column may hold the class of each row: short names, most of which repeat."""
    texts = [str(cell).strip() for cell in cells]
    return _mostly(_is_short, texts) and 2 * len(set(texts)) <= len(texts)


def _may_be_classes(cells: Sequence[object]) -> bool:
    """As `_like_classes` but for longer names, which may be sentences too."""
    texts = [str(cell).strip() for cell in cells]
    return len(texts) >= 10 and _mostly(lambda text: _is_short(text, 6), texts) and 2 * len(set(texts)) <= len(texts)


def _is_short(text: str, words: int = 3) -> bool:
    """Whether a text is a name rather than a sentence: few words, no final punctuation."""
    return bool(text) and word_count(text) <= words and text[-1] not in '.?!"'


def word_count(text: str) -> int:
    """The number of words, also in scripts without spaces, in which two characters are about a word."""
    return max(len(text.split()), (len(_IDEOGRAPH.findall(text)) + 1) // 2)


def _like_ids(cells: Sequence[object]) -> bool:
    """Whether a column of numbers counts its rows."""
    numbers = [number for cell in cells if (number := parse_score(cell)) is not None]
    return len(numbers) > 2 and all(b - a == 1 for a, b in pairwise(numbers))


def _distinct(cells: Sequence[object]) -> bool:
    """Whether no number occurs twice, as in a shuffled column of row numbers; scores repeat."""
    numbers = [parse_score(cell) for cell in cells]
    return len(set(numbers)) == len(numbers)


def _normalise(name: str) -> str:
    return re.sub(r"[\s\-]+", "_", name.strip().casefold())


def find_layouts(
    table: Table, kinds: Iterable[Kind], columns: Columns | None = None
) -> tuple[dict[Kind, Layout], dict[Kind, LayoutError]]:
    """The layouts of the kinds that a table may hold, and why it does not hold the others."""
    layouts: dict[Kind, Layout] = {}
    errors: dict[Kind, LayoutError] = {}
    for kind in kinds:
        try:
            layouts[kind] = find_layout(table, kind, columns)
        except LayoutError as error:
            errors[kind] = error
    if any(layout.header for layout in layouts.values()):
        # The first row has the column names of one kind, so it is no row of another.
        layouts = {kind: layout for kind, layout in layouts.items() if layout.header}
    return layouts, errors


def recognise(table: Table, columns: Columns | None = None) -> tuple[Layout, str | None]:
    """Find out what kind of data ``table`` holds.

    Returns:
        the layout, and a doubt about it in words, or None.

    Raises:
        DiffaugError: it is no known kind; the message names the closest one.
    """
    layouts, errors = find_layouts(table, Kind, columns)
    if not layouts:
        raise DiffaugError(_closest(table, errors))
    if Kind.TRIPLETS in layouts:
        return layouts[Kind.TRIPLETS], None
    labelled, scored = layouts.get(Kind.LABELLED_PAIRS), layouts.get(Kind.SCORED_PAIRS)
    if labelled is not None and scored is not None:
        return labelled_or_scored(table, labelled, scored)
    if pairs := labelled or scored:
        return pairs, _unknown_values(table, pairs)
    for kind in (Kind.CLASSES, Kind.POSITIVE_PAIRS):
        if kind in layouts:
            return layouts[kind], None
    head = table.head()
    counts = Counter(str(cells[0]).count("\t") for _, cells in head if cells)
    tabs, lines = max(counts.items(), key=lambda count: count[1], default=(0, 0))
    if tabs and lines > 0.9 * len(head) and len(head) > 1:
        raise DiffaugError(
            f"{table.name} looks like sentences, but nearly every line has {tabs} tab{'s' * (tabs > 1)}, as in a table "
            "of several columns; rename it to .tsv"
        )
    return layouts[Kind.SENTENCES], None


def labelled_or_scored(table: Table, labelled: Layout, scored: Layout) -> tuple[Layout, str | None]:
    """The layout of a table that may be read as either, and a doubt about it in words, or None."""
    if labelled.indices[-1] != scored.indices[-1]:
        return scored, "there is also a column of labels, so it can be read as labelled pairs too"
    # One column may be either: some files call a score `label`.
    values = [value for value in last_column(table, labelled) if not has_no_gold_label(value)]
    labels = sum(map(_is_label, values))
    numbers = sum(map(_is_number, values))
    if labels < len(values) and numbers > labels:
        return scored, None
    if numbers == labels == len(values):
        return labelled, "the labels are whole numbers from 0 to 2, which could be scores; they are read as labels"
    if labels == 0:
        return labelled, f"none of the first labels is known, for example {str(values[0])[:20]!r}"
    return labelled, None


def _unknown_values(table: Table, layout: Layout) -> str | None:
    test, what = (_is_label, "labels") if layout.kind is Kind.LABELLED_PAIRS else (_is_number, "scores")
    values = last_column(table, layout)
    bad = Counter(str(value) for value in values if not test(value))
    if 2 * bad.total() <= len(values):
        return None
    return f"most of the first {what} are unknown: {', '.join(repr(value[:20]) for value, _ in bad.most_common(3))}"


def last_column(table: Table, layout: Layout) -> list[object]:
    """The labels or scores of the first rows."""
    rows, index = table.head()[1 if layout.header else 0 :], layout.indices[-1]
    return [cells[index] for _, cells in rows if len(cells) > index]


def _closest(table: Table, errors: dict[Kind, LayoutError]) -> str:
    """Name the kind of which the largest part of the columns was found, and what it lacks."""

    def found(kind: Kind) -> float:
        return 1 - len(errors[kind].missing) / len(ROLES[kind]) if errors[kind].missing else 0

    kind = max(Kind, key=found)
    if found(kind):
        return f"looks like {kind.value}, but {errors[kind]}"
    by_width = {1: Kind.SENTENCES, 2: Kind.POSITIVE_PAIRS, 3: Kind.TRIPLETS}
    width = _width(table.head())
    if width in by_width:
        return str(errors[by_width[width]])
    needs = "; ".join(f"{kind.value} need {', '.join(ROLES[kind])}" for kind in Kind)
    return f"it is not clear what the columns are ({needs}); rename them, or use --column ROLE=NAME"
