"""Any text through `encode`, in Python and on the command line: one finite vector per sentence, or one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.fuzzing import attempt, mutated, profile, texts, writable
from fuzz.test_fuzz_data import contents
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError

OPTIONS = [[], ["--batch-size", "1"], ["--batch-size", "-3"], ["--no-normalize"], ["--column", "sentence=x"]]
OPTIONS += [["--device", "nowhere"], ["--devices", ","], ["--out", "x.txt"], ["--column", ""], ["--nothing"]]


@pytest.fixture(scope="module")
def embedder(tiny_bert: Path) -> Embedder:
    return Embedder.from_pretrained(tiny_bert, device="cpu")


@given(st.lists(texts() | st.text(min_size=200, max_size=600), max_size=5), st.sampled_from([None, 1, 2, 0, -1]))
@profile(60)
def test_encode(embedder: Embedder, sentences: list[str], batch_size: int | None) -> None:
    vectors = attempt("encode", embedder.encode, sentences, batch_size, show_progress=False)
    if vectors is not None:
        assert vectors.shape == (len(sentences), embedder.width)
        assert np.isfinite(vectors).all()


@given(st.lists(st.none() | st.integers() | st.floats() | st.binary() | st.lists(texts()) | texts(), max_size=3))
@profile(20)
def test_encode_what_is_no_text(embedder: Embedder, sentences: list[Any]) -> None:
    attempt("encode objects", embedder.encode, sentences, show_progress=False)


def run(*arguments: str) -> str:
    """What a command prints; a usage error counts as refused."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        assert "Traceback" not in result.output
        raise DiffaugError(f"exit code {result.exit_code}")
    return result.stdout


@given(st.sampled_from([".txt", ".csv", ".tsv", ".jsonl"]), st.sampled_from(OPTIONS), st.data())
@profile(20)
def test_encode_files(tiny_bert: Path, tmp_path_factory: Any, suffix: str, options: list[str], data: Any) -> None:
    path = tmp_path_factory.getbasetemp() / f"encoded{suffix}"
    path.write_bytes(data.draw(contents(suffix) | mutated(writable("A dog runs.\nRain falls.\n"))))
    printed = attempt("encode a file", run, "encode", str(path), "--model", str(tiny_bert), *options)
    for line in (printed or "").splitlines():
        json.loads(line)
