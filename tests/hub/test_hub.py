from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_hub import READER, TOKEN, FakeHub
from huggingface_hub import ModelCard

from diffaug.cli import main
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import load_backbone
from diffaug.models.config import ModelConfig, PrefixConfig, Provenance
from diffaug.models.encoder import Encoder
from diffaug.models.views.prefix import FoldedPrefix


@dataclass
class Session:
    """What the client found, and the hub it talked to."""

    found: dict[str, Any]
    hub: FakeHub


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, sentences: list[str]) -> Session:
    place = tmp_path_factory.mktemp("hub")
    config = ModelConfig("mask", 'This sentence of "{}" means [MASK].', final_stop=True, prefix=PrefixConfig(2, 3))
    backbone, tokenizer = load_backbone(str(tiny_bert))
    prefix = FoldedPrefix(PrefixConfig(2, 3), attention_shape(backbone))
    torch.manual_seed(0)
    prefix.blocks.data.normal_()
    recipe = {"name": "mine", "method": "diffaug", "data": {"nli": "/home/me/secret place/nli.csv"}}
    provenance = Provenance("mine", recipe, {"dev": 71.234})
    Embedder(Encoder(backbone, config, prefix), tokenizer, provenance, device="cpu").save(place / "model")
    (place / "sentences.json").write_text(json.dumps(sentences), "utf-8")
    with FakeHub().serving() as hub:
        settings = {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HOME": str(place / "home"),
            "TOKEN_OF_OWNER": TOKEN,
            "TOKEN_OF_READER": READER,
        }
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        client = Path(__file__).with_name("hub_client.py")
        arguments = [place / "model", place / "sentences.json", place / "out.json"]
        subprocess.run([sys.executable, client, *arguments], env={**inherited, **settings}, check=True, timeout=300)
    return Session(json.loads((place / "out.json").read_text("utf-8")), hub)


def test_pushed_and_loaded_by_name_it_is_the_same_model(session: Session) -> None:
    found = session.found
    np.testing.assert_array_equal(found["main"], found["here"])
    np.testing.assert_array_equal(found["private, token"], found["here"])


def test_a_revision_is_a_branch_or_a_commit(session: Session) -> None:
    found = session.found
    np.testing.assert_array_equal(found["warmer"], found["other here"])
    np.testing.assert_array_equal(found["commit"], found["here"])
    assert np.abs(np.subtract(found["here"], found["other here"])).max() > 1e-3  # guard: they do differ


def test_the_answer_is_the_commit(session: Session) -> None:
    repo = session.hub.repos["owner/model"]
    for name, branch in (("first", "main"), ("branch again", "warmer")):
        assert session.found[name] == f"{session.hub.url}/owner/model/commit/{repo.branches[branch]}"


def test_weights_take_the_way_of_large_files(session: Session) -> None:
    repo = session.hub.repos["owner/model"]
    files = repo.commits[repo.branches["main"]]
    assert files["diffaug.safetensors"][1]
    assert not files["diffaug.json"][1]
    assert "POST /owner/model.git/info/lfs/objects/batch" in session.hub.requests
    assert any(request.startswith("PUT /objects/") for request in session.hub.requests)


def test_private_is_private(session: Session) -> None:
    assert session.hub.repos["owner/secret"].private
    assert not session.hub.repos["owner/model"].private
    assert "neither a local folder nor a model" in session.found["private, no token"]


def test_what_is_pushed_says_nothing_of_this_machine(session: Session) -> None:
    repo = session.hub.repos["owner/model"]
    for path, (content, _) in repo.commits[repo.branches["main"]].items():
        assert b"secret place" not in content, path
    assert json.loads(repo.commits[repo.branches["main"]]["diffaug.json"][0])["recipe"]["data"]["nli"] == "nli.csv"


def test_the_card_goes_along(session: Session) -> None:
    repo = session.hub.repos["owner/model"]
    card = ModelCard(repo.commits[repo.branches["main"]]["README.md"][0].decode())
    assert card.data.license == "mit"
    assert card.data.eval_results[0].metric_value == 71.23
    assert 'from_pretrained("owner/model")' in card.text
    assert repo.commits[repo.branches["warmer"]]["README.md"][0] == b"# Mine\n"


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no token", "needs a token with write access: log in with 'hf auth login', set HF_TOKEN"),
        ("wrong token", "owner/model cannot be pushed: the hub rejects the token"),
        ("no owner", "the name on the hub must have the form owner/name, got 'model'"),
        ("bad name", "the name on the hub must have the form owner/name, got 'owner/a b!'"),
        ("no right", "owner/model cannot be pushed: the token has no write access"),
        ("no right, xet", "owner/model cannot be pushed: the token has no write access"),
        ("no network", "owner/model cannot be pushed: the hub at http://127.0.0.1:9 cannot be reached"),
        ("not there yet", "owner/model is neither a local folder nor a model"),
        ("no such revision", "owner/model is neither a local folder nor a model"),
    ],
)
def test_errors_are_one_sentence(session: Session, case: str, words: str) -> None:
    text = session.found[case]
    assert text.startswith("error: ")
    assert words in text
    assert "\n" not in text
    assert len(text) < 500


def test_offline_is_said(tiny_bert: Path) -> None:
    with pytest.raises(DiffaugError, match="owner/model cannot be pushed: HF_HUB_OFFLINE is set"):
        Embedder.from_pretrained(tiny_bert, device="cpu").push_to_hub("owner/model", token="hf_some")


def test_a_card_of_ones_own_stands_alone(tiny_bert: Path) -> None:
    with pytest.raises(DiffaugError, match="are for the generated card"):
        Embedder.from_pretrained(tiny_bert, device="cpu").push_to_hub("o/m", token="hf_some", card="# M", license="mit")


def test_command(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    def pushed(self: Embedder, repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return "https://hub/owner/model/commit/1"

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["diffaug", "push", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0  # type: ignore[return-value]

    monkeypatch.setattr(Embedder, "push_to_hub", pushed)
    (tmp_path / "scores.json").write_text('{"tasks": {}}')
    (tmp_path / "card.md").write_text("# Mine\n")
    options = ["--private", "--branch", "b", "--license", "mit", "--message", "m", "--scores", tmp_path / "scores.json"]
    assert run(tiny_bert, "owner/model", *options) == 0
    assert capsys.readouterr().out == "https://hub/owner/model/commit/1\n"
    assert asked["repo_id"] == "owner/model"
    assert (asked["private"], asked["branch"], asked["license"], asked["message"]) == (True, "b", "mit", "m")
    assert asked["report"] == {"tasks": {}}
    assert run(tiny_bert, "owner/model", "--card", tmp_path / "card.md") == 0
    assert (asked["card"], asked["private"], asked["report"]) == ("# Mine\n", None, None)
    (tmp_path / "scores.json").write_text("{")
    assert run(tiny_bert, "owner/model", "--scores", tmp_path / "scores.json") == 2
    assert "scores.json cannot be read as JSON" in capsys.readouterr().err
