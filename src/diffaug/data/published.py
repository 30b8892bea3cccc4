"""Public data sets in the form in which they are published, where that is not what the name of the file says.

All of them are recognised by what the file holds, and in none of them does a quotation mark mean anything but itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from diffaug.data.labels import parse_score
from diffaug.data.problems import Problem
from diffaug.data.tables import HEAD, MISSING, Row, Table
from diffaug.data.textfiles import Line, Report, filled_lines

STSB = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
"""The columns of sts-train.csv, sts-dev.csv and sts-test.csv, which have tabs between them, no header, and in some rows
more columns behind: the sources of the sentences."""

_HIGHEST_STS_SCORE = 5
# SNLI and MultiNLI are published as snli_1.0_train.txt with these and other columns.
_NLI_TEXT = {"gold_label", "sentence1", "sentence2"}
# Files of sentence-transformers that hold all splits: AllNLI.tsv and stsbenchmark.tsv.
_WITH_SPLITS = (
    ("split", "dataset", "filename", "sentence1", "sentence2", "label"),
    ("split", "genre", "dataset", "year", "sid", "score", "sentence1", "sentence2"),
)


def published_table(
    suffix: str, lines: Iterator[Line], name: str, compressed: str, report: Report
) -> tuple[Table | None, Iterator[Line]]:
    """The table of a file of STS-B, SNLI or MultiNLI; None if it is something else, with all lines to be read as such.

    Args:
        suffix: how the file's name ends: ``.csv``, ``.txt`` or ``.tsv``.
        lines: of the file.
        name: what messages call it.
        compressed: what to add about its compression, for people.
        report: where lines that cannot be used go.
    """
    head = list(islice(lines, 1))
    cells = head[0][1].split("\t") if head and head[0][1] is not None else []
    if suffix != ".csv" and set(cells) >= _NLI_TEXT:
        columns = tuple(cell.strip() for cell in cells)
        rows = _nli_rows(filled_lines(lines, name, report), columns, name, report)
        form = "a tab-separated file in the form of SNLI and MultiNLI"
        return Table(name, form + compressed, columns, rows, "line", separator="\t"), lines
    if _like_stsb(cells):
        head += islice(lines, HEAD - 1)
        texts = [text for _, text in head if text]
        if sum(_like_stsb(text.split("\t")) for text in texts) > 0.9 * len(texts):
            rows = _stsb_rows(filled_lines(chain(head, lines), name, report))
            form = "a tab-separated file in the form of the STS Benchmark"
            return Table(name, form + compressed, STSB, rows, "line", separator="\t"), lines
    return None, chain(head, lines)


def split_column(names: Sequence[str]) -> int | None:
    """The place of the column that says to which split a row belongs, in a published file that has one."""
    return names.index("split") if tuple(names) in _WITH_SPLITS else None


def _like_stsb(cells: Sequence[str]) -> bool:
    if len(cells) < len(STSB):
        return False
    score, first, second = cells[len(STSB) - 3 : len(STSB)]
    number = parse_score(score)
    in_range = number is not None and 0 <= number <= _HIGHEST_STS_SCORE
    return in_range and parse_score(first) is None and parse_score(second) is None


def _stsb_rows(lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
    for number, text in lines:
        cells = text.split("\t")[: len(STSB)]
        yield number, [*cells, *[MISSING] * (len(STSB) - len(cells))]


def _nli_rows(lines: Iterator[tuple[int, str]], columns: Sequence[str], name: str, report: Report) -> Iterator[Row]:
    """Rows may lack their last cells, the labels of single annotators; one with more cells has a tab in a sentence."""
    for number, text in lines:
        cells = text.split("\t")
        if len(cells) > len(columns):
            detail = f"{len(cells)} columns where {len(columns)} are expected; a sentence must not hold a tab"
            report(Problem(name, "line", number, "wrong number of columns", detail))
            continue
        yield number, [*cells, *[MISSING] * (len(columns) - len(cells))]
