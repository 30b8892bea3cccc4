"""Number formats of stored vectors: float32, float16, int8 and binary."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from diffaug.errors import DiffaugError
from diffaug.inference.runner import Vectors

Precision = Literal["float32", "float16", "int8", "binary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
DTYPES: dict[Precision, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "int8": np.dtype("i1"),
    "binary": np.dtype("u1"),
}


def quantize(vectors: Vectors, precision: Precision) -> NDArray[Any]:
    """Convert vectors to a format.

    ``int8`` scales each vector so that its largest component is 127 or -127, and ``binary`` stores the signs, eight in
    a byte, as `numpy.packbits` does: both keep directions, not lengths.

    Raises:
        DiffaugError: a component does not fit the format.
    """
    if not np.isfinite(vectors).all():
        raise DiffaugError("the model gives vectors that are not finite; check its weights")
    if precision == "int8":
        largest = np.abs(vectors).max(axis=1, keepdims=True, initial=1e-12)
        return np.rint(vectors * (127 / largest)).astype(DTYPES[precision])
    if precision == "binary":
        return np.packbits(vectors > 0, axis=1)
    if precision == "float16" and np.abs(vectors).max(initial=0) > np.finfo(np.float16).max:
        raise DiffaugError("a component is too large for float16; normalise the vectors, or use float32")
    return vectors.astype(DTYPES[precision])


def dequantize(stored: NDArray[Any], precision: Precision, width: int) -> Vectors:
    """Stored vectors as float32; those of ``int8`` and ``binary`` have length 1."""
    if precision in ("float32", "float16"):
        return stored.astype(np.float32)
    if precision == "binary":
        return (2 * np.unpackbits(stored, axis=1, count=width).astype(np.float32) - 1) / np.float32(np.sqrt(width))
    vectors = stored.astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def stored_width(width: int, precision: Precision) -> int:
    """The number of stored components of a vector."""
    return -(-width // 8) if precision == "binary" else width
