"""Folders of transformers and sentence-transformers, against those libraries."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.models.config import Pooling

Tiny = Callable[[str], Path]


# Plain transformers folders.


@pytest.mark.parametrize("pooling", [None, "mean", "cls"])
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "mpnet", "deberta", "deberta-v2"])
@torch.no_grad()
def test_plain_folder_by_hand(tiny: Tiny, sentences: list[str], family: str, pooling: Pooling | None) -> None:
    ours = Embedder.from_pretrained(tiny(family), pooling=pooling).encode(sentences, normalize=False)
    model, tokenizer = AutoModel.from_pretrained(tiny(family)).eval(), AutoTokenizer.from_pretrained(tiny(family))
    for sentence, vector in zip(sentences, ours, strict=True):
        states = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0]
        expected = states[0] if pooling == "cls" else states.mean(0)
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


def test_plain_folder_with_a_template(tiny_bert: Path) -> None:
    embedder = Embedder.from_pretrained(tiny_bert, template='This sentence of "{}" means [MASK].')
    assert embedder.encoder.config.pooling == "mask"
    # Prompts expect a final stop.
    np.testing.assert_array_equal(embedder.encode("A dog runs"), embedder.encode("A dog runs."))
    assert not np.allclose(embedder.encode("A dog runs"), embedder.encode("A dog runs,"))


def test_checkpoint_of_another_task(tiny_bert: Path, sentences: list[str], tmp_path: Path) -> None:
    """A masked language model's encoder, without its head; the checkpoint has no pooler."""
    folder = shutil.copytree(tiny_bert, tmp_path / "mlm")
    model = BertForMaskedLM(BertConfig.from_pretrained(tiny_bert)).eval()
    model.save_pretrained(folder)
    vectors = Embedder.from_pretrained(folder).encode(sentences[:1], normalize=False)
    encoded = AutoTokenizer.from_pretrained(tiny_bert)(sentences[0], return_tensors="pt")
    with torch.no_grad():
        expected = model.bert(**encoded).last_hidden_state.mean(1)
    np.testing.assert_allclose(vectors, expected.numpy(), atol=1e-6)


def test_half_precision_is_read_as_single(tiny_bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_bert, tmp_path / "half")
    AutoModel.from_pretrained(tiny_bert, dtype=torch.float16).save_pretrained(folder)
    embedder = Embedder.from_pretrained(folder)
    assert {p.dtype for p in embedder.encoder.parameters()} == {torch.float32}
    np.testing.assert_allclose(embedder.encode("Yes."), Embedder.from_pretrained(tiny_bert).encode("Yes."), atol=1e-2)


@pytest.fixture
def copy(tiny_bert: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_bert, tmp_path / "copy")


def change_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def test_plain_weights_that_do_not_fit(copy: Path) -> None:
    key = "encoder.layer.1.attention.self.query.weight"
    change_weights(copy / "model.safetensors", lambda weights: weights.update({key: torch.zeros(3, 5)}))
    with pytest.raises(DiffaugError, match=f"the checkpoint has the wrong shape for {key}"):
        Embedder.from_pretrained(copy)
    change_weights(copy / "model.safetensors", lambda weights: weights.pop(key))
    with pytest.raises(DiffaugError, match=f"the checkpoint lacks {key}"):
        Embedder.from_pretrained(copy)


def test_plain_truncated_weights(copy: Path) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DiffaugError, match="truncated or damaged"):
        Embedder.from_pretrained(copy)


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_plain_pickles_are_never_read(copy: Path, tmp_path: Path, name: str) -> None:
    (copy / "model.safetensors").unlink()
    (copy / name).write_bytes(pickle.dumps(Trap(tmp_path / "trapped")))
    message = "pickled ones are never read" if name.endswith(".bin") else "truncated or damaged"
    with pytest.raises(DiffaugError, match=message):
        Embedder.from_pretrained(copy)
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("config.json", "cannot be loaded"), ("model.safetensors", "no safetensors"), ("tokenizer.json", "no vocabulary")],
)
def test_plain_folder_with_a_file_missing(copy: Path, name: str, message: str) -> None:
    (copy / name).unlink()
    with pytest.raises(DiffaugError, match=message):
        Embedder.from_pretrained(copy)


def test_plain_folder_with_a_truncated_configuration(copy: Path) -> None:
    (copy / "config.json").write_text('{"model_type": "be')
    with pytest.raises(DiffaugError, match="not a valid JSON file"):
        Embedder.from_pretrained(copy)


def test_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match="cannot be loaded"):
        Embedder.from_pretrained(tmp_path)


def test_decoders_are_refused(copy: Path) -> None:
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**settings, "is_decoder": True}))
    with pytest.raises(DiffaugError, match="an encoder is needed"):
        Embedder.from_pretrained(copy)


CODE = """
from pathlib import Path
Path({trap!r}).touch()
from transformers import BertConfig, BertModel
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
"""


def test_code_of_the_model_runs_only_when_asked_for(copy: Path, sentences: list[str], tmp_path: Path) -> None:
    trap = tmp_path / "trapped"
    (copy / "own.py").write_text(CODE.format(trap=str(trap)))
    settings = json.loads((copy / "config.json").read_text())
    settings |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}
    (copy / "config.json").write_text(json.dumps(settings))
    with pytest.raises(DiffaugError, match=r"Python code of its own; pass trust_remote_code=True only if"):
        Embedder.from_pretrained(copy)
    assert not trap.exists()

    embedder = Embedder.from_pretrained(copy, trust_remote_code=True)
    assert trap.exists()
    assert embedder.encode(sentences).shape == (len(sentences), 32)
    # A saved model carries no code, so that one could not be loaded again.
    with pytest.raises(DiffaugError, match="with remote code cannot be saved"):
        embedder.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_code_of_a_tokenizer_does_not_run(copy: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trapped"
    (copy / "own.py").write_text(CODE.format(trap=str(trap)))
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    # The file beside it says all there is to say, so that the code is not missed.
    assert Embedder.from_pretrained(copy).tokenizer("Yes.")["input_ids"][0] == 2
    (copy / "tokenizer.json").unlink()
    with pytest.raises(DiffaugError):
        Embedder.from_pretrained(copy)
    assert not trap.exists()


# sentence-transformers folders.


@pytest.fixture(scope="module")
def build(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Save a model with sentence-transformers; gives its folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    def build(
        family: str = "bert",
        pooling: str = "mean",
        dense: list[dict[str, Any]] | None = None,
        normalize: bool = False,
        max_seq_length: int | None = None,
        do_lower_case: bool = False,
        **options: Any,
    ) -> Path:
        torch.manual_seed(0)
        transformer = Transformer(str(tiny(family)), do_lower_case=do_lower_case)
        if max_seq_length is not None:
            transformer.max_seq_length = max_seq_length
        modules = [transformer, Pooling(32, pooling), *(Dense(**settings) for settings in dense or [])]
        modules += [Normalize()] if normalize else []
        folder = tmp_path_factory.mktemp("st") / "model"
        SentenceTransformer(modules=modules, device="cpu", **options).save(str(folder))
        return folder

    return build


AWKWARD = ["", "  ", "  spaces around  ", "two\nlines\tand a tab", "[MASK] [SEP] <mask> </s>", "dog " * 300]


def assert_same_as_theirs(folder: Path, sentences: list[str], tolerance: float = 5e-6) -> None:
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(folder), device="cpu").encode(sentences + AWKWARD)
    with pytest.warns(UserWarning, match="were truncated"):
        ours = Embedder.from_pretrained(folder).encode(sentences + AWKWARD, normalize=False)
    assert np.abs(theirs).max() > 0.05
    np.testing.assert_allclose(ours, theirs, atol=tolerance)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"family": "roberta"},
        {"family": "modernbert"},
        {"family": "mpnet"},
        {"pooling": "cls"},
        {"dense": [{"in_features": 32, "out_features": 16}]},
        {
            "dense": [
                {"in_features": 32, "out_features": 16, "activation_function": torch.nn.Identity()},
                {"in_features": 16, "out_features": 24, "bias": False, "activation_function": torch.nn.GELU()},
            ],
            "normalize": True,
        },
        {"normalize": True},
        {"prompts": {"query": "Query: ", "passage": "Passage: "}, "default_prompt_name": "query"},
        {"family": "roberta", "prompts": {"query": "Query: "}, "default_prompt_name": "query"},
        {"prompts": {"query": "Query: "}},
        {"max_seq_length": 10},
        {"family": "roberta", "max_seq_length": 10},
        {"family": "roberta", "do_lower_case": True},
    ],
    ids=lambda settings: "-".join([str(v) if k in ("family", "pooling") else k for k, v in settings.items()]) or "mean",
)
def test_sentence_transformers_folder(
    build: Callable[..., Path], sentences: list[str], settings: dict[str, Any]
) -> None:
    assert_same_as_theirs(build(**settings), sentences)


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def old_modules(*modules: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]


@pytest.fixture
def old(build: Callable[..., Path], tmp_path: Path) -> Path:
    """A folder as sentence-transformers wrote it before version 6, with RoBERTa and a Dense layer."""
    folder = shutil.copytree(build("roberta", dense=[{"in_features": 32, "out_features": 16}]), tmp_path / "old")
    modules = old_modules(("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"))
    write(folder / "modules.json", modules)
    switches = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    pooling = {f"pooling_mode_{switch}": switch == "mean_tokens" for switch in switches}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **pooling})
    dense = {"in_features": 32, "out_features": 16, "bias": True}
    write(folder / "2_Dense" / "config.json", {**dense, "activation_function": "torch.nn.modules.activation.Tanh"})
    write(folder / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": False})
    (folder / "config_sentence_transformers.json").unlink()
    return folder


def test_old_layout(old: Path, sentences: list[str]) -> None:
    assert_same_as_theirs(old, sentences)


def test_old_layout_with_cls_pooling(old: Path, sentences: list[str]) -> None:
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    write(old / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **pooling})
    assert_same_as_theirs(old, sentences)


def test_old_layout_with_the_backbone_in_a_folder_of_its_own(old: Path, sentences: list[str]) -> None:
    (old / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (old / name).rename(old / "0_Transformer" / name)
    # The file of settings was named after the backbone.
    (old / "sentence_bert_config.json").rename(old / "0_Transformer" / "sentence_roberta_config.json")
    modules = old_modules(("0_Transformer", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"))
    write(old / "modules.json", modules)
    assert_same_as_theirs(old, sentences)


def test_old_layout_lowers_the_prompt_too(old: Path, sentences: list[str]) -> None:
    write(old / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    prompts = {"prompts": {"q": "QUERY: "}, "default_prompt_name": "q"}
    write(old / "config_sentence_transformers.json", prompts)
    assert Embedder.from_pretrained(old).encoder.config.lowercase
    assert_same_as_theirs(old, sentences)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "mean or cls, got max"),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "mean or cls, got lasttoken"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, r"mean or cls, got cls\+mean"),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "mean or cls, got weightedmean"),
        ("1_Pooling/config.json", {}, "mean or cls, got none"),
        ("modules.json", old_modules(("", "Transformer"), ("1_Pooling", "Pooling"), ("2", "CNN")), "Pooling, CNN;"),
        ("modules.json", old_modules(("", "StaticEmbedding")), "has the modules StaticEmbedding;"),
        ("modules.json", old_modules(("", "Transformer")), "has the modules Transformer;"),
        ("modules.json", [], "has the modules"),
        ("modules.json", [{"type": "own.Transformer", "path": ""}], r"has the modules own\.Transformer;"),
        (
            "modules.json",
            old_modules(("", "Transformer"), ("1_Pooling", "Pooling"), ("3", "Normalize"), ("2_Dense", "Dense")),
            "modules after Normalize",
        ),
        ("modules.json", [{"path": ""}], "without type and path"),
        ("modules.json", ["Transformer"], "without type and path"),
        (
            "2_Dense/config.json",
            {"in_features": 32, "out_features": 15},
            r"wrong shape for linear\.bias, linear\.weigh",
        ),
        ("2_Dense/config.json", {"in_features": 32, "out_features": 16, "bias": False}, r"unexpected linear\.bias"),
        ("2_Dense/config.json", {"in_features": 32}, "lacks 'out_features'"),
        (
            "2_Dense/config.json",
            {"activation_function": "torch.nn.modules.activation.Softsign"},
            "Softsign is not supported",
        ),
        ("2_Dense/config.json", {"activation_function": "own.ReLU"}, r"own\.ReLU is not supported"),
        ("2_Dense/config.json", {"use_residual": True}, "with a residual, or on another output"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "with a residual, or on another output"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 7}}}, "sets processing_kwargs"),
        ("sentence_bert_config.json", {"tokenizer_args": {"model_max_length": 7}}, "sets tokenizer_args"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "another output than the last hidden state"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "default prompt 'q' is not defined"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(old: Path, file: str, content: Any, message: str) -> None:
    write(old / file, content)
    with pytest.raises(DiffaugError, match=message):
        Embedder.from_pretrained(old)


def test_prompt_left_out_of_the_pooling(build: Callable[..., Path], tmp_path: Path) -> None:
    settings = {"prompts": {"q": "Query: "}, "default_prompt_name": "q"}
    folder = shutil.copytree(build(**settings), tmp_path / "model")
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean", "include_prompt": False})
    with pytest.raises(DiffaugError, match="excludes its prompt from the pooling"):
        Embedder.from_pretrained(folder)


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "2_Dense/config.json"])
def test_truncated_settings(old: Path, name: str) -> None:
    (old / name).write_text('{"a": ')
    with pytest.raises(DiffaugError, match=f"{Path(name).name} cannot be read as JSON"):
        Embedder.from_pretrained(old)


def test_dense_weights_as_a_pickle(old: Path, tmp_path: Path) -> None:
    (old / "2_Dense" / "model.safetensors").unlink()
    (old / "2_Dense" / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "trapped")))
    with pytest.raises(DiffaugError, match="pickles are not supported"):
        Embedder.from_pretrained(old)
    assert not (tmp_path / "trapped").exists()


def test_pooling_cannot_be_chosen_again(old: Path) -> None:
    with pytest.raises(DiffaugError, match="has its own pooling"):
        Embedder.from_pretrained(old, pooling="cls")


def test_saved_as_our_own(build: Callable[..., Path], sentences: list[str], tmp_path: Path) -> None:
    settings = {"prompts": {"q": "Query: "}, "default_prompt_name": "q", "max_seq_length": 50, "normalize": True}
    embedder = Embedder.from_pretrained(build(dense=[{"in_features": 32, "out_features": 16}], **settings))
    embedder.save(tmp_path / "saved")
    loaded = Embedder.from_pretrained(tmp_path / "saved")
    assert loaded.encoder.config.prompt == "Query: "
    assert loaded.encoder.config.normalize
    np.testing.assert_array_equal(loaded.encode(sentences), embedder.encode(sentences))
