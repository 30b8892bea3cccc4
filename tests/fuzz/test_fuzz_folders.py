"""Damaged folders: of models, runs and grids. Loading and reporting succeed or end with one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.fuzzing import attempt, changed_json, mutated, profile
from hypothesis import given
from hypothesis import strategies as st
from report.made_runs import write_grid, write_pairs, write_run

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.models.config import DenseConfig, ModelConfig
from diffaug.models.io.foreign import load_transformers
from diffaug.report import build

KINDS = ("saved", "plain", "sentence-transformers")
POOLING = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


@pytest.fixture(scope="module")
def folders(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound folder of every kind."""
    parent = tmp_path_factory.mktemp("folders")
    config = ModelConfig("mask", 'This "{}" means [MASK].', True, head=(DenseConfig(32, 8),))
    Embedder(*load_transformers(str(tiny_bert), config)).save(parent / "saved")
    shutil.copytree(tiny_bert, parent / "plain")
    shutil.copytree(tiny_bert, parent / "sentence-transformers")
    (parent / "sentence-transformers" / "1_Pooling").mkdir()
    for name, content in {
        "modules.json": MODULES,
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"q": "x: "}, "default_prompt_name": None},
        "1_Pooling/config.json": POOLING,
    }.items():
        (parent / "sentence-transformers" / name).write_text(json.dumps(content))
    return {kind: parent / kind for kind in KINDS}


def damage(data: Any, folder: Path, copy: Path) -> str:
    """A copy of a folder with a file that is damaged, exchanged or missing; returns the file's name."""
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(folder, copy)
    path = copy / data.draw(st.sampled_from(sorted(str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file())))
    content = path.read_bytes()
    kind = data.draw(st.sampled_from(["json", "json", "json", "bytes", "missing", "other"]))
    if kind == "missing":
        path.unlink()
    elif kind == "json" and path.suffix == ".json":
        path.write_text(json.dumps(data.draw(changed_json(json.loads(content)))))
    elif kind == "other":
        path.write_bytes(data.draw(st.sampled_from([b"", b"[]", b"{}", b"null", b"[" * 100_000, b"\xff\xfe\x00"])))
    else:
        path.write_bytes(data.draw(mutated(content)))
    return path.name


def encode(folder: Path) -> np.ndarray:
    return Embedder.from_pretrained(folder, device="cpu").encode(["A dog runs.", ""], show_progress=False)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@profile(20)
def test_models(folders: dict[str, Path], kind: str, data: Any) -> None:
    copy = folders[kind].parent / "damaged"
    damage(data, folders[kind], copy)
    vectors = attempt(f"{kind} model", encode, copy)
    assert vectors is None or vectors.shape[0] == 2


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("reported")
    write_run(parent / "run", write_pairs(parent / "pairs"))
    write_grid(parent / "grid")
    return {"run": parent / "run", "grid": parent / "grid"}


@pytest.mark.parametrize("kind", ["run", "grid"])
@given(data=st.data())
@profile(15)
def test_reports(reported: dict[str, Path], kind: str, data: Any) -> None:
    copy = reported[kind].parent / "damaged"
    damage(data, reported[kind], copy)
    attempt(f"report of a {kind}", build, copy, reported[kind].parent / "page.html", projection=None)


def test_the_sound_folders_load(folders: dict[str, Path], reported: dict[str, Path], tmp_path: Path) -> None:
    """Otherwise nothing would be tested above."""
    for folder in folders.values():
        assert np.isfinite(encode(folder)).all()
    for folder in reported.values():
        assert build(folder, tmp_path / "page.html", projection=None).is_file()
    with pytest.raises(DiffaugError):
        encode(tmp_path)
