"""Readers: from a file, a data set on the hub or Python objects to typed columns.

All readers take the same arguments. ``source`` is a file (.txt, .csv, .tsv, .jsonl, each also .gz and .xz, or
.parquet), ``hub:owner/name/config/split``, ``sample:name`` for the sample data, or an iterable of rows: tuples,
mappings or strings. ``columns`` maps roles to columns where the names are not the usual ones. ``on_bad`` says what to
do with rows that cannot be used: ``"error"`` raises an error with file and line, ``"skip"`` skips, counts and logs
them, and a function is called with each `Problem` (a `ProblemCount` counts them). Empty lines of plain text, pairs
without a gold label and rows of another split are not errors; they are always skipped, counted and logged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffaug.data.columns import (
    Columns,
    Kind,
    Layout,
    LayoutError,
    find_layout,
    find_layouts,
    is_negatives_name,
    labelled_or_scored,
)
from diffaug.data.labels import (
    KNOWN_LABELS,
    Label,
    code_meanings,
    has_no_gold_label,
    label_key,
    label_mapping,
    parse_label,
    parse_score,
)
from diffaug.data.problems import HOW_TO_SKIP, OnBad, Problem, Reporter, quoted
from diffaug.data.records import Classes, Labelled, LabelledPairs, PositivePairs, ScoredPairs, Triplets
from diffaug.data.table import MISSING, Source, Table, open_table, split_index
from diffaug.errors import DiffaugError

LabelNames = Mapping[Any, str]
"""A user's mapping from the labels in a file to entailment, neutral, contradiction or not_entailment."""

WITHOUT_GOLD = "without a gold label"
_WITH_VALUE = (Kind.LABELLED_PAIRS, Kind.SCORED_PAIRS, Kind.CLASSES)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_NOT_MIXED = "all rows must be triplets, or all must be pairs"


def read_sentences(source: Source, columns: Columns | None = None, on_bad: OnBad = "error") -> list[str]:
    """Unlabelled sentences: the lines of a text file, or the column ``sentence`` or ``text``."""
    return list(iterate_sentences(source, columns, on_bad))


def read_text(
    text: Source, text_column: str | int | None, on_bad: OnBad = "error", how_to_skip: str = HOW_TO_SKIP
) -> list[str]:
    """As `read_sentences`, for functions with an argument ``text_column`` and commands with ``--text-column``."""
    table, reporter = open_source(text, on_bad, how_to_skip)
    try:
        layout = find_layout(table, Kind.SENTENCES, None if text_column is None else {"sentence": text_column})
    except LayoutError as error:
        if table.plain_text:
            raise DiffaugError(
                f"{table.name} has one sentence per line and no columns; leave out --text-column (in Python: "
                "text_column)"
            ) from None
        if not error.naming:
            raise
        naming = "name the column of the sentences with --text-column (in Python: text_column)"
        raise LayoutError(error.problem, error.missing, naming) from None
    return list(_sentences(table, layout, reporter))


def iterate_sentences(source: Source, columns: Columns | None = None, on_bad: OnBad = "error") -> Iterator[str]:
    """As `read_sentences`, one sentence at a time."""
    table, reporter = open_source(source, on_bad)
    yield from _sentences(table, find_layout(table, Kind.SENTENCES, columns), reporter)


def read_triplets(source: Source, columns: Columns | None = None, on_bad: OnBad = "error") -> Triplets:
    """Triplets from the columns ``sent0, sent1, hard_neg``, or ``anchor, positive, negative`` and similar names."""
    triplets: Triplets = _read(source, Kind.TRIPLETS, columns, on_bad)
    return triplets


def read_positive_pairs(source: Source, columns: Columns | None = None, on_bad: OnBad = "error") -> PositivePairs:
    """Positive pairs from the columns ``sent0, sent1``, ``anchor, positive``, ``query, answer`` and similar names.

    They have no hard negatives and no labels. A column that may hold negatives, labels or scores is an error, unless
    ``columns`` names both ``anchor`` and ``positive``.
    """
    pairs: PositivePairs = _read(source, Kind.POSITIVE_PAIRS, columns, on_bad)
    return pairs


def read_labelled_pairs(
    source: Source, columns: Columns | None = None, on_bad: OnBad = "error", labels: LabelNames | None = None
) -> LabelledPairs:
    """Pairs from the columns ``premise, hypothesis, label``.

    Labels are words, or numbers: 0, 1, 2 for entailment, neutral, contradiction if a 2 or pairs without a gold label
    occur in the data, otherwise 1 and 0 for entailment or not. The latter is a guess, which is logged, unless the
    column's name says what 1 means (``is_entailment``). ``labels`` overrides this, for example ``{"0": "entailment",
    "1": "not_entailment"}``.
    Pairs without a gold label (``-`` or -1) are skipped. Of AllNLI.tsv the split ``train`` is read.
    """
    pairs: LabelledPairs = _read(source, Kind.LABELLED_PAIRS, columns, on_bad, labels)
    return pairs


def read_scored_pairs(
    source: Source, columns: Columns | None = None, on_bad: OnBad = "error", split: str | None = None
) -> ScoredPairs:
    """Pairs from the columns ``sentence1, sentence2, score``, or from ``score<TAB>sentence<TAB>sentence``.

    The files of the STS Benchmark are read as they are published. ``split`` selects ``train``, ``dev`` or ``test`` from
    stsbenchmark.tsv; left out, all rows are read.
    """
    pairs: ScoredPairs = _read(source, Kind.SCORED_PAIRS, columns, on_bad, split=split)
    return pairs


def read_classes(
    source: Source, columns: Columns | None = None, on_bad: OnBad = "error", how_to_skip: str = HOW_TO_SKIP
) -> Classes:
    """Sentences with a class from the columns ``text, label``, ``sentence, class``, ``utterance, intent`` and so on.

    A file without header has the class and the text in either order; the column whose short values repeat is the class.
    ``how_to_skip`` names the setting that skips bad rows, for messages.
    """
    classes: Classes = _read(source, Kind.CLASSES, columns, on_bad, how_to_skip=how_to_skip)
    return classes


def read_labelled(
    source: Source,
    columns: Columns | None = None,
    on_bad: OnBad = "error",
    labels: LabelNames | None = None,
    *,
    how_to_skip: str = HOW_TO_SKIP,
) -> Labelled:
    """Labelled data of any kind: triplets, labelled or scored pairs, sentences with a class, or positive pairs.

    ``how_to_skip`` names the setting that skips bad rows, for messages.
    """
    table, reporter = open_source(source, on_bad, how_to_skip)
    kinds = (Kind.TRIPLETS, Kind.LABELLED_PAIRS, Kind.SCORED_PAIRS, Kind.CLASSES, Kind.POSITIVE_PAIRS)
    layouts, errors = find_layouts(table, kinds, columns)
    if not layouts:
        raise LayoutError(
            f"{table.name} holds no labels that are recognised (diffaug data check proposes columns); "
            f"{_nearest(errors)}",
            errors[Kind.TRIPLETS].missing,
        )
    layout = next(iter(layouts.values()))
    if layout.kind is Kind.LABELLED_PAIRS and Kind.SCORED_PAIRS in layouts and labels is None:
        layout, _ = labelled_or_scored(table, layout, layouts[Kind.SCORED_PAIRS])
    # Of a public file with all splits, the training part.
    found: Labelled = read_table(table, layout, reporter, labels, "train")
    return found


read_nli = read_labelled
"""The name from when all labelled data was NLI data."""


def _nearest(errors: Mapping[Kind, LayoutError]) -> str:
    """The errors of the kinds that lack the fewest columns.

    Positive pairs need only two columns, so they are named only if they lack fewer columns than the others.
    """
    errors = {kind: errors[kind] for kind in (Kind.TRIPLETS, Kind.LABELLED_PAIRS, Kind.POSITIVE_PAIRS)}
    *others, pairs = errors.values()
    counts = [len(error.missing) for error in others]
    if all(counts) and 0 < len(pairs.missing) < min(counts):
        return f"as {Kind.POSITIVE_PAIRS.value}: {pairs}"
    fewest = min(counts) if all(counts) else None
    kinds = [kind for kind, error in errors.items() if error is not pairs and fewest in (None, len(error.missing))]
    return "; ".join(f"as {kind.value}: {errors[kind]}" for kind in kinds)


def open_source(source: Source, on_bad: OnBad, how_to_skip: str = HOW_TO_SKIP) -> tuple[Table, Reporter]:
    """Open a source that must have at least one row, and the reporter of its problems."""
    reporter = Reporter(on_bad, how_to_skip)
    table = open_table(source, reporter)
    if not table.head():
        if not reporter.bad:
            raise DiffaugError(f"{table.name} is empty")
        reporter.finish(table.name, used=0)
    return table, reporter


def _read(
    source: Source,
    kind: Kind,
    columns: Columns | None,
    on_bad: OnBad,
    labels: LabelNames | None = None,
    split: str | None = None,
    how_to_skip: str = HOW_TO_SKIP,
) -> Any:
    table, reporter = open_source(source, on_bad, how_to_skip)
    return read_table(table, find_layout(table, kind, columns), reporter, labels, split)


def read_table(
    table: Table,
    layout: Layout,
    reporter: Reporter,
    labels: LabelNames | None = None,
    split: str | None = None,
) -> Any:
    """Read an open table to its end.

    Returns:
        what ``layout.kind`` says: a list of sentences, or one of the types in `diffaug.data.records`.
    """
    if layout.refusal is not None:
        raise DiffaugError(layout.refusal)
    kind = layout.kind
    if kind is Kind.SENTENCES:
        return list(_sentences(table, layout, reporter))
    names = layout.column_names(table)
    label_column = names[layout.indices[-1]] if names else ""
    parse: Callable[[object], Any] | None = None
    if kind is Kind.LABELLED_PAIRS:
        parse, split = _LabelParser(labels), "train"
    elif kind is Kind.SCORED_PAIRS:
        parse = _parse_score
    elif kind is Kind.CLASSES:
        parse = _parse_class
    rows = usable_rows(table, layout, reporter, split)
    columns: list[list[Any]] = [[] for _ in layout.indices]
    for number, values, cells in rows:
        if parse is not None:
            parsed = parse(cells[layout.indices[-1]])
            if isinstance(parsed, _Bad):
                reporter(Problem(table.name, table.unit, number, **vars(parsed)))
                continue
            values.append(parsed)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    reporter.finish(table.name, len(columns[0]))
    if kind is Kind.TRIPLETS:
        return Triplets(*columns)
    if kind is Kind.SCORED_PAIRS:
        return ScoredPairs(*columns)
    if kind is Kind.CLASSES:
        return Classes(*columns)
    if kind is Kind.LABELLED_PAIRS:
        codes = {label for label in columns[2] if isinstance(label, int)}
        meanings, sure = code_meanings(codes, label_column, has_no_gold=WITHOUT_GOLD in reporter.skipped.kinds)
        if not sure:
            reporter.note(table.name, _guess(meanings))
        columns[2] = [label if isinstance(label, Label) else meanings[label] for label in columns[2]]
        return LabelledPairs(*columns)
    for name, number in table.late_names.items():
        if is_negatives_name(name):  # even when skipping: most rows may have one
            raise DiffaugError(
                f"{table.name}, {table.unit} {number}: the column {name!r} first occurs here; {_NOT_MIXED}; split the "
                "data into two files"
            )
    return PositivePairs(*columns)


def _sentences(table: Table, layout: Layout, reporter: Reporter) -> Iterator[str]:
    used = 0
    for _, texts, _ in usable_rows(table, layout, reporter):
        used += 1
        yield texts[0]
    reporter.finish(table.name, used)


def _guess(meanings: Mapping[int, Label]) -> str:
    read = " and ".join(f"{code} as {meanings[code].value}" for code in (0, 1))
    return (
        f"the labels 0 and 1 are read {read}, which is a guess: in some files 0 is entailment; say what they mean, as "
        "in --set data.label_names.0=entailment --set data.label_names.1=neutral (in adapt: --label 0=entailment "
        "--label 1=neutral; in Python: labels={0: 'entailment', 1: 'neutral'})"
    )


@dataclass(frozen=True)
class _Bad:
    """Why a label or score cannot be used; see `Problem`."""

    kind: str
    detail: str
    harmless: bool = False
    advice: str = ""


class _LabelParser:
    """Parses the labels of one file."""

    def __init__(self, names: LabelNames | None) -> None:
        self._names = None if names is None else label_mapping(names)
        self._known = KNOWN_LABELS if self._names is None else ", ".join(self._names)
        self._words: bool | None = None

    def __call__(self, cell: object) -> Label | int | _Bad:
        label = parse_label(cell) if self._names is None else self._names.get(label_key(cell))
        if label is None:
            if has_no_gold_label(cell):
                return _Bad(WITHOUT_GOLD, f"the label {quoted(cell)} means no gold label", harmless=True)
            advice = (
                "map others with labels={LABEL: 'entailment'} (in a recipe: data.label_names; in adapt: "
                "label_names={LABEL: 'entailment'}; on the command line: --label LABEL=entailment)"
            )
            return _Bad(
                "unknown label", f"the label {quoted(cell)} is unknown", advice=f"known are {self._known}; {advice}"
            )
        if self._words is None:
            self._words = isinstance(label, Label)
        elif self._words != isinstance(label, Label):
            return _Bad("unknown label", f"the label {quoted(cell)} mixes words and numbers with the first label")
        return label


def _parse_score(cell: object) -> float | _Bad:
    score = parse_score(cell)
    if score is None:
        unclear = isinstance(cell, str) and _THOUSANDS.fullmatch(cell.strip())
        why = ": it may be a thousand or a fraction, so write a decimal point" if unclear else ""
        return _Bad("invalid score", f"the score {quoted(cell)} is not a number{why}")
    return score


def _parse_class(cell: object) -> str | _Bad:
    if isinstance(cell, (Mapping, list, tuple)):  # of JSON or Python
        return _Bad("no class", f"the class is a list or an object, not a word or a number: {quoted(cell)}")
    if isinstance(cell, float) and cell.is_integer():  # a column of numbers with an empty cell
        cell = int(cell)
    name = "" if cell is None or cell is MISSING or cell != cell else str(cell).strip()  # nan differs from itself
    return name or _Bad("no class", "the class is empty")


def usable_rows(
    table: Table, layout: Layout, reporter: Reporter, split: str | None = None
) -> Iterator[tuple[int, list[Any], Sequence[object]]]:
    """Each usable row's number, its sentences, and all its cells.

    From a public file with several splits, only the rows of ``split`` if it is given.
    """
    split_at = None if split is None else split_index(layout.column_names(table))
    rows, width = table.rows, layout.width
    if layout.header:
        next(rows)
    places = list(zip(layout.indices, layout.titles, strict=True))
    if layout.kind in _WITH_VALUE:
        places.pop()  # the label, score or class
    # A triplet without a negative may be a pair among triplets.
    hints = {layout.indices[-1]: f"; {_NOT_MIXED}"} if layout.kind is Kind.TRIPLETS else {}

    def bad(kind: str, detail: str, harmless: bool = False) -> None:
        reporter(Problem(table.name, table.unit, number, kind, detail, harmless))

    for number, cells in rows:
        if width is not None and len(cells) != width:
            bad("wrong number of columns", _width_detail(table, layout, len(cells), width))
            continue
        if split_at is not None and cells[split_at] != split:
            bad(f"not in split {split}", f"the row belongs to the split {quoted(cells[split_at])}", harmless=True)
            continue
        texts = []
        for place, title in places:
            text = cells[place]
            if not isinstance(text, str):
                absent = text is MISSING or text is None
                detail = f"is missing{hints.get(place, '')}" if absent else f"is not text: {quoted(text)}"
                bad("no text", f"{title} {detail}")
                break
            text = text.strip()
            if not text:
                bad("empty sentence", f"{title} is empty{hints.get(place, '')}")
                break
            if "\0" in text:
                bad("NUL character", f"{title} contains a NUL character")
                break
            texts.append(text)
        else:
            yield number, texts, cells


def _width_detail(table: Table, layout: Layout, found: int, expected: int) -> str:
    detail = f"expected {expected} column{'s' * (expected != 1)}, got {found}"
    if table.separator == "," and found > expected:
        detail += "; put a sentence with a comma in quotes"
    elif table.separator == "\t" and found > expected:
        detail += "; a sentence must not contain a tab"
    if layout.kind in (Kind.TRIPLETS, Kind.POSITIVE_PAIRS) and {found, expected} == {2, 3}:
        detail += f"; {_NOT_MIXED}"
    return detail
