from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from diffaug.cli import export, main
from diffaug.embedder import Embedder

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``diffaug export`` in this process; gives its exit status and what it wrote on standard error."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["diffaug", "export", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


def test_a_model_of_any_library_becomes_a_folder_for_sentence_transformers(
    run: Run, tiny_bert: Path, sentences: list[str], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    code, said = run("--to", "sentence-transformers", tiny_bert, tmp_path / "out")
    assert code == 0
    assert str(tmp_path / "out") in said
    model = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    expected = Embedder.from_pretrained(tiny_bert, device="cpu").encode(sentences)
    assert np.abs(model.encode(sentences, normalize_embeddings=True) - expected).max() <= 1e-6


def test_an_unknown_form_and_an_existing_folder_are_errors(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    code, said = run("--to", "paper", tiny_bert, tmp_path / "out")
    assert code == 2
    assert "--to must be one of sentence-transformers" in said
    assert not (tmp_path / "out").exists()

    (tmp_path / "out").mkdir()
    code, said = run("--to", "sentence-transformers", tiny_bert, tmp_path / "out")
    assert code == 2
    assert "exists already" in said
    assert run("--to", "sentence-transformers", "--overwrite", tiny_bert, tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / "modules.json").exists()


@pytest.mark.parametrize("form", export.TARGETS)
def test_every_form_has_a_function(form: str) -> None:
    assert callable(export._exporter(form))
