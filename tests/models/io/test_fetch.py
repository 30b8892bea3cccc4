"""Models by path and by name: what is asked, what is said when there is none, and how soon."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from diffaug.errors import DiffaugError
from diffaug.models.backbone import load_backbone, load_masked_lm
from diffaug.models.io.fetch import find_folder


@pytest.mark.parametrize("load", [load_backbone, load_masked_lm, find_folder])
@pytest.mark.parametrize("path", ["./nothere/x", "../x", "~/nothere", "runs/a/best", "/nothere"])
def test_a_path_that_is_no_folder(load: Any, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DiffaugError, match=rf"the folder {path}.* does not exist") as caught:
        load(path)
    where = Path(path).expanduser().absolute()
    assert str(where) in str(caught.value)
    assert "give the path of a model, or its name on the hub" in str(caught.value)


def test_a_backbone_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(DiffaugError, match="is a file; give the folder of a model"):
        load_backbone(str(tmp_path / "model.safetensors"))


def test_a_backbone_in_the_home_folder(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tiny_bert.parent))
    model, _ = load_backbone(f"~/{tiny_bert.name}")
    assert model.config.model_type == "bert"


def test_offline_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DiffaugError, match=r"HF_HUB_OFFLINE is set, and the cache .* does not contain"):
        load_backbone("bert-base-uncasde")


def test_a_name_that_cannot_be_one() -> None:
    with pytest.raises(DiffaugError, match="names on the hub have the form owner/name; check the spelling"):
        load_backbone("bert base!")


class Hub:
    """Stands for the hub's client: whether the hub answers, and what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.error: Exception | None = None
        self.cached = True
        self.folder = folder
        self.asked: list[tuple[str, str | None, bool]] = []
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", self._model_info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self._snapshot)

    def _model_info(self, name: str, *, revision: str | None, timeout: float) -> None:
        assert 0 < timeout <= 10
        if self.error is not None:
            raise self.error

    def _snapshot(
        self, name: str, *, revision: str | None, allow_patterns: list[str], local_files_only: bool = False
    ) -> str:
        self.asked.append((name, revision, local_files_only))
        if local_files_only and not self.cached:
            raise LocalEntryNotFoundError("not here")
        return str(self.folder)


def test_a_backbone_by_its_name_is_read_from_its_folder(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, tiny_bert)
    named, _ = load_backbone("somebody/tiny", revision="v1")
    hub.error = OSError("no route to host")
    cached, _ = load_backbone("somebody/tiny")
    assert hub.asked == [("somebody/tiny", "v1", False), ("somebody/tiny", None, True)]
    here, _ = load_backbone(str(tiny_bert))
    for model in (named, cached):
        assert torch.equal(model.embeddings.word_embeddings.weight, here.embeddings.word_embeddings.weight)


def test_neither_the_hub_nor_its_cache(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, tiny_bert)
    hub.error, hub.cached = OSError("no route\nto host"), False
    with pytest.raises(DiffaugError, match=r"cannot be reached \(no route to host\), and the cache"):
        load_backbone("somebody/tiny")


def test_weights_that_are_pickled_only_are_named_by_the_name(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in tiny_bert.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    Hub(monkeypatch, tmp_path)
    with pytest.raises(DiffaugError, match=r"^somebody/tiny cannot be loaded: it has no safetensors weights"):
        load_backbone("somebody/tiny")


def test_a_hub_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "HF_HUB_ETAG_TIMEOUT": "1",
            "HF_HOME": str(tmp_path),
        }
        run = subprocess.run(
            [sys.executable, "-c", "from diffaug.models.io.fetch import find_folder; find_folder('nobody/nothing')"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,  # without a limit of its own it would wait for ever; a busy machine takes long to import
        )
    assert "DiffaugError: nobody/nothing is neither a local folder nor a model" in run.stderr
    assert "cannot be reached" in run.stderr
