"""Folders that were damaged, or made by someone else: loading them is a model or one sentence, and runs no code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.models.backbone import load_mlm_transform, load_tokenizer


@pytest.fixture
def plain(tiny_bert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bert, tmp_path / "plain"))


@pytest.fixture
def saved(tiny_bert: Path, tmp_path: Path) -> Path:
    Embedder.from_pretrained(tiny_bert).save(tmp_path / "saved")
    return tmp_path / "saved"


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **values}), "utf-8")


def rewrite(path: Path, change: Any) -> None:
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def test_a_tokenizer_with_code_is_refused_without_a_question(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> str:
        pytest.fail("a question on standard input")

    monkeypatch.setattr("builtins.input", ask)
    auto_map = {"AutoTokenizer": ["tok.Tok", "tok.Tok"]}
    edit(saved / "tokenizer_config.json", auto_map=auto_map, tokenizer_class="Tok")
    (saved / "tok.py").write_text("raise SystemExit('code of the folder ran')\n")
    for load in (load_tokenizer, Embedder.from_pretrained):
        with pytest.raises(DiffaugError, match="Python code of its own"):
            load(str(saved))


def test_a_configuration_with_code_is_refused_without_a_question(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on standard input"))
    edit(plain / "config.json", auto_map={"AutoConfig": "conf.Conf"}, model_type="own")
    (plain / "conf.py").write_text("raise SystemExit('code of the folder ran')\n")
    for load in (load_mlm_transform, Embedder.from_pretrained):
        with pytest.raises(DiffaugError, match="Python code of its own"):
            load(str(plain))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: json.dumps({**json.loads(text), "version": "9.0"}),
        lambda text: json.dumps({**json.loads(text), "normalizer": {"type": "Newer"}}),
        lambda text: json.dumps({**json.loads(text), "model": {"type": "Newer", "vocab": {}}}),
        lambda text: json.dumps({**json.loads(text), "post_processor": {"type": "TemplateProcessing"}}),
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_or_newer_tokenizer_is_one_sentence(saved: Path, damage: Any) -> None:
    path = saved / "tokenizer.json"
    path.write_text(damage(path.read_text("utf-8")), "utf-8")
    with pytest.raises(DiffaugError, match="saved") as raised:
        Embedder.from_pretrained(saved)
    assert "\n" not in str(raised.value)


def test_fewer_layers_in_the_configuration_than_in_the_weights(plain: Path) -> None:
    layers = json.loads((plain / "config.json").read_text())["num_hidden_layers"]
    edit(plain / "config.json", num_hidden_layers=layers - 1)
    with pytest.raises(DiffaugError, match=rf"the checkpoint has the unexpected .*layer\.{layers - 1}\."):
        Embedder.from_pretrained(plain)


def test_a_head_of_another_task_is_left_out(plain: Path) -> None:
    before = Embedder.from_pretrained(plain).encode(["A dog."])
    rewrite(plain / "model.safetensors", lambda weights: weights.update({"classifier.0.weight": torch.zeros(2, 2)}))
    assert (Embedder.from_pretrained(plain).encode(["A dog."]) == before).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["plain", "saved"])
def test_weights_that_are_not_finite_are_refused(kind: str, value: float, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    path = next(folder.glob("*.safetensors"))

    def spoil(weights: dict[str, torch.Tensor]) -> None:
        next(tensor for name, tensor in weights.items() if "layer.0.output.dense.weight" in name)[0, 1] = value

    rewrite(path, spoil)
    with pytest.raises(DiffaugError, match=r"layer\.0\.output\.dense\.weight is not finite"):
        Embedder.from_pretrained(folder)


@pytest.mark.parametrize("name", ["diffaug.json", "tokenizer_config.json", "modules.json"])
@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b"null", b"{}", b'"x"', b"1e999", b""])
def test_a_damaged_file_of_a_saved_model_is_one_sentence(saved: Path, name: str, content: bytes) -> None:
    (saved / name).write_bytes(content)
    try:
        Embedder.from_pretrained(saved)
    except DiffaugError as error:
        assert "\n" not in str(error)  # noqa: PT017 - some of the files may be empty
    else:
        assert name == "tokenizer_config.json"


def test_a_tokenizer_with_more_tokens_than_the_model(saved: Path) -> None:
    tokenizer = json.loads((saved / "tokenizer.json").read_text("utf-8"))
    tokenizer["model"]["vocab"]["dog"] = 10**6
    (saved / "tokenizer.json").write_text(json.dumps(tokenizer))
    embedder = Embedder.from_pretrained(saved)
    assert embedder.encode(["Rain."]).shape[0] == 1
    with pytest.raises(DiffaugError, match=r"the token id 1000000, but the model has only .* embeddings"):
        embedder.encode(["A dog."])


@pytest.mark.parametrize("name", ["attention_probs_dropout_prob", "layer_norm_eps", "hidden_dropout_prob"])
def test_a_configuration_with_nan(name: str, plain: Path, saved: Path) -> None:
    edit(plain / "config.json", **{name: float("nan")})
    description = json.loads((saved / "diffaug.json").read_text())
    edit(saved / "diffaug.json", backbone={**description["backbone"], name: float("inf")})
    for folder in (plain, saved):
        with pytest.raises(DiffaugError, match=f"{name} must be a finite number"):
            Embedder.from_pretrained(folder)


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"])
@pytest.mark.parametrize("size", [-1, 0, 10**18])
def test_a_configuration_with_impossible_sizes(name: str, size: int, plain: Path) -> None:
    edit(plain / "config.json", **{name: size})
    with pytest.raises(DiffaugError, match=f"{name} must be between 1 and|cannot be loaded"):
        Embedder.from_pretrained(plain)
