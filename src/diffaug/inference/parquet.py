"""Vectors in Parquet files: the sentences, the other columns, and the vectors as lists of a fixed size.

The model's fingerprint and the settings are in the metadata of each file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffaug.data.documents import DocumentReader, Documents
from diffaug.errors import DiffaugError
from diffaug.inference.manifest import VectorSet
from diffaug.inference.quantize import DTYPES, stored_width

SENTENCE, EMBEDDING = "sentence", "embedding"
_METADATA = b"diffaug"


def pyarrow_modules(what: str = "writing") -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DiffaugError(f"{what} .parquet needs pyarrow: pip install 'diffaug[parquet]'") from error
    return pyarrow, pyarrow.parquet


def arrow_schema(reader: DocumentReader, vectors: VectorSet) -> Any:
    """The schema of the files. Other columns have the types of a Parquet input, or those of the first rows.

    Columns of several types hold JSON text.
    """
    pyarrow, parquet = pyarrow_modules()
    if clash := {SENTENCE, EMBEDDING} & set(vectors.columns):
        raise DiffaugError(
            f"{reader.sources[0]}: the other column {clash.pop()!r} has the name of a column of the output; rename it, "
            "or choose the columns to carry along with --keep NAME"
        )
    types: dict[str, Any] = {}
    if reader.sources and reader.sources[0].lower().endswith(".parquet"):
        types = {field.name: field.type for field in parquet.read_schema(reader.sources[0])}
    fields = [(SENTENCE, pyarrow.string())]
    fields += [(name, types.get(name) or _type(reader.sample[name])) for name in vectors.columns]
    component = pyarrow.from_numpy_dtype(DTYPES[vectors.precision])
    fields.append((EMBEDDING, pyarrow.list_(component, stored_width(vectors.width, vectors.precision))))
    return pyarrow.schema(fields, {_METADATA: json.dumps(vectors.to_dict()).encode()})


def arrow_table(documents: Documents, stored: NDArray[Any], schema: Any) -> Any:
    """The rows as a table.

    Raises:
        DiffaugError: a value of another column does not have the column's type.
    """
    pyarrow, _ = pyarrow_modules()
    arrays = []
    for field in schema:
        if field.name == EMBEDDING:
            flat = pyarrow.array(np.ascontiguousarray(stored).ravel())
            arrays.append(pyarrow.FixedSizeListArray.from_arrays(flat, field.type.list_size))
            continue
        values = documents.sentences if field.name == SENTENCE else documents.columns[field.name]
        if pyarrow.types.is_string(field.type):
            values = [_text(value) for value in values]
        try:
            arrays.append(_array(values, field.type))
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DiffaugError(
                f"the column {field.name!r} is {field.type} in the first rows and has another type later ({reason}); "
                "convert it, or leave it out with --keep"
            ) from error
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def stored_set(path: Path, metadata: Mapping[bytes, bytes] | None) -> VectorSet | None:
    """What a Parquet file says about its vectors; None if `encode` did not write it."""
    if not metadata or _METADATA not in metadata:
        return None
    try:
        values = json.loads(metadata[_METADATA])
    except ValueError as error:
        raise DiffaugError(f"{path} is damaged: its metadata is not JSON; encode again") from error
    return VectorSet.from_dict(values, str(path))


def _type(values: list[Any]) -> Any:
    pyarrow, _ = pyarrow_modules()
    kinds = {type(value) for value in values if value is not None}
    for known, arrow in (({bool}, pyarrow.bool_()), ({int}, pyarrow.int64()), ({int, float}, pyarrow.float64())):
        if kinds and kinds <= known:
            return arrow
    if kinds <= {str, bool, int, float, list, dict}:
        return pyarrow.string()
    return pyarrow.array(values).type  # dates and other types of a data set on the hub


def _array(values: list[Any], kind: Any) -> Any:
    pyarrow, _ = pyarrow_modules()
    try:
        return pyarrow.array(values, kind)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON may contain; .jsonl files also get a question mark
        valid = [one.encode("utf-8", "replace").decode() if isinstance(one, str) else one for one in values]
        return pyarrow.array(valid, kind)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
