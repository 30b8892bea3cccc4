"""Retrieval data: queries, a corpus, and the relevant documents of each query.

Supported formats:

- a BEIR folder (``corpus.jsonl``, ``queries.jsonl``, ``qrels/test.tsv``)
- a JSON file with the keys ``queries``, ``corpus`` and ``relevant``, which maps a query to a list of documents or to
  grades by document
- a table (.csv, .tsv, .jsonl, .parquet) with the columns ``query`` and ``document`` and one row per relevant pair;
  all documents together are the corpus
- such rows, or a data set, passed in Python
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffaug.data.columns import Columns
from diffaug.data.lines import json_values, read_lines
from diffaug.data.problems import Reporter, printable, raise_problem
from diffaug.data.table import Source, open_table
from diffaug.errors import DiffaugError
from diffaug.provenance import checksum, report_read

_INTEGER = re.compile(r"-?[0-9]{1,9}")
KEYS = ("queries", "corpus", "relevant")
# The column roles of a table, and the column names that are recognised, best first.
ROLES: dict[str, tuple[str, ...]] = {
    "query": ("query", "question", "anchor"),
    "document": ("document", "positive", "relevant", "answer", "passage", "text"),
}


@dataclass
class RetrievalData:
    """Queries, corpus, and the relevant documents of each query.

    Attributes:
        queries: the text of each query.
        corpus: the text of each document, by descending id: trec_eval, and so mteb, breaks ties in this order.
        relevant: for each query its relevant documents, at least one: index in the corpus and grade, above 0.
        same_id: for each query, the index of the document with the query's own id, if there is one.
        left_out: number of skipped queries without a relevant document.
    """

    queries: list[str]
    corpus: list[str]
    relevant: list[dict[int, int]]
    same_id: list[int | None]
    left_out: int = 0


def read_retrieval(source: Source | Mapping[str, Any], columns: Columns | None = None) -> RetrievalData:
    """Read retrieval data in any supported format, or from a mapping with the three keys.

    Args:
        source: the data.
        columns: for a table: the names of the columns ``query`` and ``document``.

    Raises:
        DiffaugError: a part is missing, or a relevance judgement refers to an unknown document.
    """
    if not isinstance(source, (str, os.PathLike, Mapping)):
        return _from_table(source, columns)
    path = None if isinstance(source, Mapping) else Path(source).expanduser()
    if columns and (path is None or path.is_dir() or path.suffix == ".json"):
        raise DiffaugError(f"{path or 'the data given'} is not a table, so columns cannot be chosen")
    if path is None:
        return _from_mapping(source, "the data given")
    if path.is_dir():
        return _from_beir(path)
    if path.suffix == ".json":
        try:
            content = json.loads(path.read_text("utf-8"))
            report_read(str(path), checksum(path))
        except (OSError, ValueError, RecursionError) as error:
            raise DiffaugError(f"{path} cannot be read as JSON: {error}") from error
        return _from_mapping(content, str(path))
    return _from_table(path, columns)


def _from_mapping(content: Any, name: str) -> RetrievalData:
    if not isinstance(content, Mapping) or (missing := [key for key in KEYS if key not in content]):
        lacks = ", ".join(missing) if isinstance(content, Mapping) else "everything"
        raise DiffaugError(f"{name}: retrieval data needs queries, corpus and relevant; missing: {lacks}")
    queries, corpus = (_texts(content[key], key, name) for key in KEYS[:2])
    relevant = content["relevant"]
    if not isinstance(relevant, Mapping):
        raise DiffaugError(f"{name}: relevant must map the id of a query to a list of ids of documents")
    judgements = {str(query): _grades(documents, name) for query, documents in relevant.items()}
    return _assemble(queries, corpus, judgements, name)


def _grades(documents: Any, name: str) -> dict[str, int]:
    """Grades by document: given so, or 1 for each document of a list."""
    wrong = (
        f"{name}: relevant must map the id of a query to a list of ids of documents, or to integer grades by document"
    )
    if not isinstance(documents, (Mapping, list, tuple, set)):
        raise DiffaugError(wrong)
    grades = dict(documents) if isinstance(documents, Mapping) else dict.fromkeys(map(str, documents), 1)
    if not all(isinstance(grade, int) for grade in grades.values()):
        raise DiffaugError(wrong)
    return {str(document): grade for document, grade in grades.items() if grade > 0}


def _texts(content: Any, key: str, name: str) -> dict[str, str]:
    texts = {str(i): text for i, text in content.items()} if isinstance(content, Mapping) else None
    if texts is None or not all(isinstance(text, str) for text in texts.values()):
        raise DiffaugError(f"{name}: {key} must map an id to a text")
    return texts


def _from_beir(folder: Path) -> RetrievalData:
    corpus = {i: " ".join(filter(None, (title, text))) for i, title, text in _rows(folder / "corpus.jsonl")}
    queries = {i: text for i, _, text in _rows(folder / "queries.jsonl")}
    candidates = [folder / "qrels" / "test.tsv", folder / "qrels.tsv", folder / "test.tsv"]
    judged = next((path for path in candidates if path.is_file()), None)
    if judged is None:
        raise DiffaugError(f"{folder} has no qrels/test.tsv with the relevance judgements")
    judgements: dict[str, dict[str, int]] = {}
    for number, line in read_lines(judged):
        cells = line.split("\t")
        if number == 1 and cells[-1].strip() == "score":
            continue
        if len(cells) != 3 or _INTEGER.fullmatch(cells[2].strip()) is None:
            raise DiffaugError(f"{judged}, line {number}: expected query-id, corpus-id and an integer")
        if int(cells[2]) > 0:
            judgements.setdefault(cells[0], {})[cells[1]] = int(cells[2])
    # BEIR's queries.jsonl has the queries of all splits; keep those of this split.
    return _assemble({i: text for i, text in queries.items() if i in judgements}, corpus, judgements, str(judged))


def _rows(path: Path) -> Iterable[tuple[str, str, str]]:
    """Id, title and text of each row; a text that is not there is empty."""
    if not path.is_file():
        raise DiffaugError(
            f"{path} does not exist; a retrieval folder has corpus.jsonl, queries.jsonl and qrels/test.tsv"
        )
    for number, row in json_values(read_lines(path), str(path), raise_problem):
        if not isinstance(row, dict) or "_id" not in row:
            raise DiffaugError(f"{path}, line {number}: expected a JSON object with an _id")
        texts = [row.get(key) or "" for key in ("title", "text")]
        if not all(isinstance(text, str) for text in texts):
            raise DiffaugError(f"{path}, line {number}: title and text must be text")
        yield str(row["_id"]), texts[0], texts[1]


def _from_table(source: Source, columns: Columns | None) -> RetrievalData:
    judgements: dict[str, dict[str, int]] = {}
    table = open_table(source, Reporter("error"))
    names = table.names
    if names is None and table.may_have_header:
        names = tuple(str(cell).strip() for cell in next(table.rows, (0, ()))[1])
    elif names is None:
        names = ("query", "document")  # pairs passed in Python
    query, document = (_column_index(role, names, columns or {}, table.name) for role in ROLES)
    for number, cells in table.rows:
        pair = [cells[at] if at < len(cells) else None for at in (query, document)]
        if not all(isinstance(cell, str) and cell.strip() for cell in pair):
            raise DiffaugError(f"{table.name}, {table.unit} {number}: the query or the document is missing")
        judgements.setdefault(str(pair[0]), {})[str(pair[1])] = 1
    documents = {text: text for relevant in judgements.values() for text in relevant}
    return _assemble({text: text for text in judgements}, documents, judgements, table.name)


def _column_index(role: str, names: Sequence[str], columns: Columns, table: str) -> int:
    """The index of the column with a role."""
    chosen = next((column for key, column in columns.items() if key.casefold() in (role, *ROLES[role])), None)
    if chosen is not None:
        if chosen not in names:
            raise DiffaugError(f"{table} has no column {chosen!r}; its columns are: {', '.join(map(printable, names))}")
        return names.index(chosen)
    plain = [name.casefold() for name in names]
    index = next((plain.index(name) for name in ROLES[role] if name in plain), None)
    if index is None:
        raise DiffaugError(
            f"{table}: retrieval needs the columns query and document, found: "
            f"{', '.join(map(printable, names))}; choose them with columns= or --column query=NAME"
        )
    return index


def _assemble(
    queries: dict[str, str], corpus: dict[str, str], relevant: Mapping[str, Mapping[str, int]], name: str
) -> RetrievalData:
    index = {document: i for i, document in enumerate(sorted(corpus, reverse=True))}
    for query, documents in relevant.items():
        if query not in queries:
            raise DiffaugError(f"{name}: a relevance judgement refers to the unknown query {query!r:.60}")
        if unknown := [document for document in documents if document not in index]:
            raise DiffaugError(f"{name}: a relevance judgement refers to the unknown document {unknown[0]!r:.60}")
    kept = [query for query in queries if relevant.get(query)]
    if not kept:
        raise DiffaugError(f"{name}: no query has a relevant document")
    return RetrievalData(
        [queries[query] for query in kept],
        [corpus[document] for document in index],
        [{index[document]: grade for document, grade in relevant[query].items()} for query in kept],
        [index.get(query) for query in kept],
        left_out=len(queries) - len(kept),
    )
