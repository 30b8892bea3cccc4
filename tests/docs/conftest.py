"""What the examples of the documentation need: tiny models by their names, tasks in miniature, and little time."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from workspace import files, shorten

# Their scripts are no packages; they import each other so too.
sys.path += [str(Path(__file__).parents[2] / folder) for folder in ("benchmarks", "docs")]


@pytest.fixture(scope="session")
def models(
    tiny: Callable[[str], Path],
    tiny_masked_lm: Callable[[str], Path],
    wordpiece: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """The models that the documentation names, each with the tiny random one that stands in for it."""
    import torch
    from integrations import released_checkpoints as released

    from diffaug import Embedder
    from diffaug.integrations.st_native import export_native

    torch.manual_seed(0)
    home, bert = tmp_path_factory.mktemp("released"), tiny("bert")
    weights = released.trained("bert", released.backbone_state(bert), pooler=False)
    simcse = {**weights, **released.linear("mlp.dense")}
    diffaug = {**weights, **released.prefix(6)}
    export_native(Embedder.from_pretrained(bert, device="cpu"), home / "MiniLM")
    return {
        "bert-base-uncased": bert,
        "roberta-base": tiny("roberta"),
        "distilbert-base-uncased": tiny_masked_lm("distilbert"),
        "owner/name": bert,
        "sentence-transformers/all-MiniLM-L6-v2": home / "MiniLM",
        "princeton-nlp/sup-simcse-bert-base-uncased": released.write(
            home / "sup-simcse", bert, wordpiece, simcse, "BertForCL", pickled=True
        ),
        "result/diffaug-sup-bert": (
            checkpoint := released.write(home / "diffaug", bert, wordpiece, diffaug, "BertForCL", pickled=True)
        ),
        "Tianduo/diffaug-sup-bert-base-uncased": checkpoint,
    }


@pytest.fixture(scope="session")
def saved_model(wordpiece: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model saved by diffaug, of one layer: exporting it to ONNX takes a second per layer."""
    from unittest import mock

    from tiny_models import FAMILIES, build_tiny

    from diffaug import Embedder

    home = tmp_path_factory.mktemp("saved")
    with mock.patch.dict(FAMILIES["bert"], {"num_hidden_layers": 1}):
        build_tiny("bert", wordpiece).save_pretrained(home / "backbone")
    wordpiece.save_pretrained(home / "backbone")
    Embedder.from_pretrained(home / "backbone").save(home / "best")
    return home / "best"


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """STS-B and MRPC, of the right size and with made-up sentences, and small files under the names of public data."""
    from evaluation.made_up import sts_spec, transfer_spec, write_transfer, write_tsv

    folder = tmp_path_factory.mktemp("tasks")
    for name in ("STS-B", "STS-B-dev"):
        write_tsv(folder, sts_spec(name))
    write_transfer(folder, transfer_spec("MRPC"))
    for name, like in (("nli_for_simcse.csv", "triplets.csv"), ("wiki1m_for_simcse.txt", "raw.txt")):
        (folder / name).write_text(str(files()[like]), "utf-8")
    return folder


class NoHub:
    """The hub's client without a hub: it sees what would be uploaded."""

    endpoint = "nowhere"

    def __init__(self, **options: Any) -> None:
        self.create_repo = self.create_branch = lambda *args, **options: None

    def upload_folder(self, *, folder_path: str | Path, **options: Any) -> Any:
        assert (Path(folder_path) / "README.md").is_file()
        return SimpleNamespace(commit_url="nowhere/commit")


@pytest.fixture
def in_little_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Training takes two steps a stage, nothing is fetched or pushed, and data goes to a folder of the test."""
    from evaluation.made_up import few_folds

    from diffaug.config import Recipe, load_recipe
    from diffaug.data.public import store
    from diffaug.training import run

    train: Callable[..., Any] = run.train

    def train_shortly(recipe: Recipe | str, *args: Any, **options: Any) -> Any:
        return train(shorten(load_recipe(recipe) if isinstance(recipe, str) else recipe), *args, **options)

    from diffaug.serve import web

    # A server ends at once, and takes a port that is free.
    listen = web.listen
    monkeypatch.setattr(web, "listen", lambda host, port: listen(host, 0))
    monkeypatch.setattr(web, "run", lambda app, sock, limits: sock.close())
    monkeypatch.setattr(run, "train", train_shortly)
    monkeypatch.setattr("diffaug.adaptation.trials.train", train_shortly)
    monkeypatch.setattr("diffaug.cli.quickstart._TEST", "test.tsv")
    from diffaug.adaptation import run as adaptation
    from diffaug.tuning import run as tuning

    adapt: Callable[..., Any] = adaptation.adapt
    for module in ("diffaug.adaptation", "diffaug.adaptation.run"):
        monkeypatch.setattr(f"{module}.adapt", lambda *args, **options: adapt(*args, **{**options, "folds": 2}))
    tune: Callable[..., Any] = tuning.tune
    monkeypatch.setattr("diffaug.tuning.worker.train", train_shortly)
    monkeypatch.setattr(tuning, "tune", lambda *args, **options: tune(*args, **{**options, "trials": 1}))
    # The workers of a grid inherit this.
    monkeypatch.setattr("diffaug.experiments.worker.train", train_shortly)
    for module in ("diffaug.experiments.executor", "diffaug.inference.workers"):
        monkeypatch.setattr(f"{module}._PROCESSES", multiprocessing.get_context("fork"))
    monkeypatch.setattr(store, "get", lambda source, folder, **options: folder / source.name)
    monkeypatch.setenv("DIFFAUG_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DIFFAUG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("diffaug.hub.push.HfApi", NoHub)
    monkeypatch.setattr("diffaug.hub.push.get_token", lambda: "a token")
    few_folds(monkeypatch)
