"""Readers: from a file, a data set on the hub or Python objects to typed columns.

Every reader takes the same arguments. ``source`` is a file (.txt, .csv, .tsv, .jsonl, each also .gz and .xz, or
.parquet), ``hub:owner/name/config/split``, ``sample:name`` for the data that comes with the package, or an iterable of
rows: tuples, mappings, or strings. ``columns`` says which column is what when the names are not the usual ones.
``on_bad`` decides about rows that cannot be used: ``"error"`` stops with the file and line, ``"skip"`` skips, counts
and logs them, and a function gets every `Problem` (a `ProblemCount` adds them up). Some rows are no mistake and are
left out in any case, counted and logged: empty lines of raw text, pairs without a gold label, rows of another split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from diffaug.data.formats import Source, open_table
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
from diffaug.data.layout import Columns, Kind, Layout, LayoutError, find_layout, like_negatives
from diffaug.data.problems import OnBad, Problem, Reporter, quoted
from diffaug.data.published import split_column
from diffaug.data.records import LabelledPairs, PositivePairs, ScoredPairs, Triplets, join
from diffaug.data.tables import MISSING, Table
from diffaug.errors import DiffaugError

LabelNames = Mapping[Any, str]
"""A user's mapping from what a file writes to entailment, neutral, contradiction or not_entailment."""

_MEANING = "labels={LABEL: 'entailment'}, in a recipe data.label_names"
_THROUGHOUT = "rows must be triplets throughout or pairs throughout"


def read_sentences(source: Source, columns: Columns | None = None, on_bad: OnBad = "error") -> list[str]:
    """Unlabelled sentences: the lines of a text file, or the column ``sentence`` or ``text``."""
    with opened(source, on_bad) as (table, reporter):
        return sentences(table, find_layout(table, Kind.SENTENCES, columns), reporter)


def read_triplets(source: Source, columns: Columns | None = None, on_bad: OnBad = "error") -> Triplets:
    """Triplets from the columns ``sent0, sent1, hard_neg``, or ``anchor, positive, negative`` and the like."""
    with opened(source, on_bad) as (table, reporter):
        return triplets(table, find_layout(table, Kind.TRIPLETS, columns), reporter)


def read_positive_pairs(source: Source, columns: Columns | None = None, on_bad: OnBad = "error") -> PositivePairs:
    """Pairs that belong together, from the columns ``sent0, sent1``, ``anchor, positive``, ``query, answer`` and such.

    They have no hard negatives: a file that has some holds triplets. Nor have they labels, so what may be a column of
    labels or scores is an error, unless ``columns`` names both ``anchor`` and ``positive``.
    """
    with opened(source, on_bad) as (table, reporter):
        return positive_pairs(table, find_layout(table, Kind.POSITIVE_PAIRS, columns), reporter)


def read_labelled_pairs(
    source: Source, columns: Columns | None = None, on_bad: OnBad = "error", labels: LabelNames | None = None
) -> LabelledPairs:
    """Pairs from the columns ``premise, hypothesis, label``.

    Labels are words, or numbers: 0, 1, 2 for entailment, neutral, contradiction if a 2 occurs in the data, else 1 and
    0 for entailment or not. ``labels`` says otherwise, for instance ``{"0": "entailment", "1": "not_entailment"}``.
    Pairs without a gold label, which have ``-`` or -1 there, are left out; of AllNLI.tsv the split ``train`` is read.
    """
    with opened(source, on_bad) as (table, reporter):
        return labelled_pairs(table, find_layout(table, Kind.LABELLED_PAIRS, columns), reporter, labels)


def read_scored_pairs(
    source: Source, columns: Columns | None = None, on_bad: OnBad = "error", split: str | None = None
) -> ScoredPairs:
    """Pairs from the columns ``sentence1, sentence2, score``, or from ``score<TAB>sentence<TAB>sentence``.

    The files of the STS Benchmark are read as they are published. Of stsbenchmark.tsv, which holds ``train``, ``dev``
    and ``test``, ``split`` chooses one; left out, all rows are read.
    """
    with opened(source, on_bad) as (table, reporter):
        return scored_pairs(table, find_layout(table, Kind.SCORED_PAIRS, columns), reporter, split)


def read_nli(
    source: Source, columns: Columns | None = None, on_bad: OnBad = "error", labels: LabelNames | None = None
) -> PositivePairs | LabelledPairs:
    """Triplets, labelled pairs or positive pairs, whichever the source holds; triplets are positive pairs with more."""
    with opened(source, on_bad) as (table, reporter):
        errors: dict[Kind, LayoutError] = {}
        for kind in (Kind.TRIPLETS, Kind.LABELLED_PAIRS, Kind.POSITIVE_PAIRS):
            try:
                layout = find_layout(table, kind, columns)
            except LayoutError as error:
                errors[kind] = error
                continue
            if kind is Kind.LABELLED_PAIRS:
                return labelled_pairs(table, layout, reporter, labels)
            read = triplets if kind is Kind.TRIPLETS else positive_pairs
            return read(table, layout, reporter)
        raise LayoutError(
            f"{table.name} holds neither triplets nor labelled or positive pairs; {_nearest(errors)}",
            errors[Kind.TRIPLETS].missing,
        )


def read_nli_files(
    sources: Sequence[Source],
    columns: Columns | None = None,
    on_bad: OnBad = "error",
    labels: LabelNames | None = None,
) -> PositivePairs | LabelledPairs:
    """What `read_nli` reads from each source, joined in their order.

    Raises:
        DiffaugError: also if the sources hold rows of different kinds.
    """
    parts = [read_nli(source, columns, on_bad, labels) for source in sources]
    for source, part in zip(sources, parts, strict=True):
        if type(part) is not type(parts[0]):
            raise DiffaugError(
                f"{sources[0]} holds {parts[0].kind} and {source} {part.kind}; files that are joined must hold the "
                "same kind of rows"
            )
    return join(parts)


def _nearest(errors: Mapping[Kind, LayoutError]) -> str:
    """Why a source is none of them: as the kinds of which it lacks the fewest columns, if that is clear.

    Positive pairs have few columns to lack: they are spoken of only where they lack fewer than the others.
    """
    pairs, *others = (errors[kind] for kind in (Kind.POSITIVE_PAIRS, Kind.TRIPLETS, Kind.LABELLED_PAIRS))
    counts = [len(error.missing) for error in others]
    if all(counts) and 0 < len(pairs.missing) < min(counts):
        return f"as {Kind.POSITIVE_PAIRS.value}: {pairs}"
    fewest = min(counts) if all(counts) else None
    kinds = [kind for kind, error in errors.items() if error is not pairs and fewest in (None, len(error.missing))]
    return "; ".join(f"as {kind.value}: {errors[kind]}" for kind in kinds)


@contextmanager
def opened(source: Source, on_bad: OnBad) -> Iterator[tuple[Table, Reporter]]:
    """A table that holds at least one row, and where to send its problems."""
    reporter = Reporter(on_bad)
    with open_table(source, reporter) as table:
        if not table.head():
            if not reporter.count:
                raise DiffaugError(f"{table.name} is empty")
            reporter.conclude(table.name, kept=0)
        yield table, reporter


def sentences(table: Table, layout: Layout, reporter: Reporter) -> list[str]:
    """Read the rest of an open table as sentences; likewise the functions below."""
    found = [texts[0] for _, texts, _ in _rows(table, layout, reporter)]
    reporter.conclude(table.name, len(found))
    return found


def triplets(table: Table, layout: Layout, reporter: Reporter) -> Triplets:
    found = Triplets([], [], [])
    for _, (anchor, positive, negative), _ in _rows(table, layout, reporter):
        found.anchors.append(anchor)
        found.positives.append(positive)
        found.negatives.append(negative)
    reporter.conclude(table.name, len(found))
    return found


def positive_pairs(table: Table, layout: Layout, reporter: Reporter) -> PositivePairs:
    if layout.against is not None:
        raise DiffaugError(layout.against)
    found = PositivePairs([], [])
    for _, (anchor, positive), _ in _rows(table, layout, reporter):
        found.anchors.append(anchor)
        found.positives.append(positive)
    reporter.conclude(table.name, len(found))
    for name, number in table.late.items():
        if like_negatives(name):  # even when skipping: it may be most of the rows that have one
            raise DiffaugError(
                f"{table.name}, {table.unit} {number}: here is a column {name!r}, which no row before has; "
                f"{_THROUGHOUT}: make two files of them"
            )
    return found


def labelled_pairs(table: Table, layout: Layout, reporter: Reporter, labels: LabelNames | None = None) -> LabelledPairs:
    given = None if labels is None else label_mapping(labels)
    known = KNOWN_LABELS if given is None else ", ".join(given)
    premises, hypotheses, parsed = [], [], list[Label | int]()
    for number, (premise, hypothesis), cell in _rows(table, layout, reporter, split="train"):
        label = parse_label(cell) if given is None else given.get(label_key(cell))
        if label is None and has_no_gold_label(cell):
            detail = f"the label {quoted(cell)} stands for no gold label"
            reporter(Problem(table.name, table.unit, number, "without a gold label", detail, harmless=True))
        elif label is None:
            detail = f"the label {quoted(cell)} is unknown; known are {known}; others need a meaning ({_MEANING})"
            reporter(Problem(table.name, table.unit, number, "unknown label", detail))
        elif parsed and isinstance(label, Label) != isinstance(parsed[0], Label):
            detail = f"the label {quoted(cell)} does not go with the first one: words and numbers are mixed"
            reporter(Problem(table.name, table.unit, number, "unknown label", detail))
        else:
            premises.append(premise)
            hypotheses.append(hypothesis)
            parsed.append(label)
    reporter.conclude(table.name, len(parsed))
    meanings = code_meanings({label for label in parsed if isinstance(label, int)})
    return LabelledPairs(
        premises, hypotheses, [label if isinstance(label, Label) else meanings[label] for label in parsed]
    )


def scored_pairs(table: Table, layout: Layout, reporter: Reporter, split: str | None = None) -> ScoredPairs:
    found = ScoredPairs([], [], [])
    for number, (first, second), cell in _rows(table, layout, reporter, split):
        score = parse_score(cell)
        if score is None:
            detail = f"the score {quoted(cell)} is not a number"
            reporter(Problem(table.name, table.unit, number, "score that is no number", detail))
            continue
        found.first.append(first)
        found.second.append(second)
        found.scores.append(score)
    reporter.conclude(table.name, len(found))
    return found


def _rows(
    table: Table, layout: Layout, reporter: Reporter, split: str | None = None
) -> Iterator[tuple[int, list[str], object]]:
    """Each usable row's number, its sentences, and the cell with its label or score where the kind has one.

    Of a published file that holds several splits, only the rows of ``split`` if that is given.
    """
    split_at = None if split is None else split_column(column_names(table, layout))
    rows = table.rows
    if layout.header:
        next(rows)
    places = list(zip(layout.at, layout.titles, strict=True))
    mark = None
    if layout.kind in (Kind.LABELLED_PAIRS, Kind.SCORED_PAIRS):
        mark = places.pop()[0]
    width = layout.width
    # A row that lacks nothing but its negative may be a pair that has strayed here.
    hints = {layout.at[-1]: f"; {_THROUGHOUT}"} if layout.kind is Kind.TRIPLETS else {}
    for number, cells in rows:
        if width is not None and len(cells) != width:
            detail = _ragged(table, cells, width)
            if layout.kind in (Kind.TRIPLETS, Kind.POSITIVE_PAIRS) and {len(cells), width} == {2, 3}:
                detail += f"; {_THROUGHOUT}"
            reporter(Problem(table.name, table.unit, number, "wrong number of columns", detail))
            continue
        if split_at is not None and cells[split_at] != split:
            detail = f"the row belongs to the split {quoted(cells[split_at])}"
            reporter(Problem(table.name, table.unit, number, f"not of the split {split}", detail, harmless=True))
            continue
        texts = []
        for place, title in places:
            text = cells[place]
            if not isinstance(text, str):
                absent = text is MISSING or text is None
                what = f"is missing{hints.get(place, '')}" if absent else f"is no text: {quoted(text)}"
                reporter(Problem(table.name, table.unit, number, "no text", f"{title} {what}"))
                break
            text = text.strip()
            if not text:
                detail = f"{title} is empty{hints.get(place, '')}"
                reporter(Problem(table.name, table.unit, number, "empty sentence", detail))
                break
            if "\0" in text:
                reporter(Problem(table.name, table.unit, number, "NUL byte", f"{title} holds a NUL character"))
                break
            texts.append(text)
        else:
            yield number, texts, None if mark is None else cells[mark]


def column_names(table: Table, layout: Layout) -> tuple[str, ...]:
    """The names of the columns, wherever they come from; none if there are none."""
    if layout.header:
        return tuple(str(cell).strip() for cell in table.head()[0][1])
    return table.names or ()


def _ragged(table: Table, cells: object, width: int) -> str:
    count = len(cells)  # type: ignore[arg-type]
    detail = f"{count} column{'s' if count != 1 else ''} where {width} {'are' if width != 1 else 'is'} expected"
    if table.separator == "," and count > width:
        detail += "; a sentence that holds a comma must be in quotes"
    elif table.separator == "\t" and count > width:
        detail += "; a sentence must not hold a tab"
    return detail
