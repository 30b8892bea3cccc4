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
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import load_backbone
from diffaug.models.config import DenseConfig, ModelConfig, PrefixConfig, Provenance
from diffaug.models.encoder import Encoder
from diffaug.models.io import saved
from diffaug.models.views.prefix import FoldedPrefix, Prefix, ReparametrisedPrefix

PREFIX = PrefixConfig(views=2, length=3)
BERT_TEMPLATE = 'This sentence of "{}" means [MASK].'
ROBERTA_TEMPLATE = "This sentence : ' {} ' means [MASK]."
EVERYTHING = ModelConfig(
    "mask",
    BERT_TEMPLATE,
    True,
    PREFIX,
    head=(DenseConfig(32, 16), DenseConfig(16, 8, False, "gelu")),
    normalize=True,
)

Tiny = Callable[[str], Path]


def make(folder: Path, config: ModelConfig, form: type[Prefix] = ReparametrisedPrefix) -> Embedder:
    backbone, tokenizer = load_backbone(str(folder))
    prefix = None
    if config.prefix is not None:
        prefix = form(config.prefix, attention_shape(backbone))
        for parameter in prefix.parameters():
            nn.init.normal_(parameter)
    return Embedder(Encoder(backbone, config, prefix), tokenizer)


@pytest.fixture(scope="module")
def everything(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with all parts; not to be changed."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    make(tiny_bert, EVERYTHING).save(folder)
    return folder


@pytest.fixture
def copy(everything: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(everything, tmp_path / "copy")


# There and back.


@pytest.mark.parametrize(
    ("family", "config"),
    [
        *((family, ModelConfig("mean")) for family in ("bert", "roberta", "mpnet", "deberta", "deberta-v2")),
        *(
            (family, ModelConfig("cls", prefix=PREFIX))
            for family in ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "modernbert")
        ),
        ("bert", ModelConfig("mask", BERT_TEMPLATE)),
        ("roberta", ModelConfig("mask", ROBERTA_TEMPLATE, final_stop=True)),
        ("bert", ModelConfig("first_last", head=(DenseConfig(32, 8),))),
        ("roberta", ModelConfig("last2", normalize=True, max_length=40, lowercase=True, prompt="query: ")),
        ("bert", EVERYTHING),
    ],
    ids=lambda value: value if isinstance(value, str) else value.pooling,
)
def test_loaded_model_gives_the_same_vectors(
    tiny: Tiny, sentences: list[str], tmp_path: Path, family: str, config: ModelConfig
) -> None:
    embedder = make(tiny(family), config)
    embedder.provenance = Provenance("a method", {"seed": 1}, {"stsb": 0.5})
    embedder.save(tmp_path / "model")
    loaded = Embedder.from_pretrained(tmp_path / "model")
    assert loaded.encoder.config == config
    assert loaded.provenance == embedder.provenance
    assert not loaded.encoder.training
    assert loaded.encoder.views is None or isinstance(loaded.encoder.views, FoldedPrefix)
    for normalize in (True, False):
        before, after = (e.encode(sentences, normalize=normalize) for e in (embedder, loaded))
        np.testing.assert_array_equal(before, after)


def test_training_form_is_left_as_it_was(tiny_bert: Path, sentences: list[str], tmp_path: Path) -> None:
    embedder = make(tiny_bert, EVERYTHING)
    embedder.encoder.train()
    embedder.save(tmp_path / "model")
    assert isinstance(embedder.encoder.views, ReparametrisedPrefix)
    assert embedder.encoder.training
    assert embedder.encoder.views.training
    np.testing.assert_array_equal(
        Embedder.from_pretrained(tmp_path / "model").encode(sentences),
        Embedder(embedder.encoder, embedder.tokenizer).encode(sentences),
    )


def test_saved_again_is_the_same(everything: Path, tmp_path: Path) -> None:
    Embedder.from_pretrained(everything).save(tmp_path / "again")
    assert sorted(p.name for p in everything.iterdir()) == sorted(p.name for p in (tmp_path / "again").iterdir())
    for name in ("diffaug.json", "diffaug.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (everything / name).read_bytes()


def test_a_model_whose_replacement_was_killed_is_found(copy: Path) -> None:
    """On systems that cannot exchange two folders, a save can be killed between two renames."""
    copy.rename(copy.with_name(f".{copy.name}.diffaug-0a1b2c3d.old"))
    Embedder.from_pretrained(copy)
    assert (copy / "diffaug.json").is_file()


def test_one_folder_that_nobody_takes_for_a_plain_model(everything: Path) -> None:
    from sentence_transformers import SentenceTransformer, __version__
    from transformers import AutoModel, BertModel

    names = {path.name for path in everything.iterdir()}
    ours = {"diffaug.json", "diffaug.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert names == ours | {"modules.json", "config_sentence_transformers.json"}
    with pytest.raises(ValueError, match="Unrecognized model"):
        AutoModel.from_pretrained(str(everything))
    if __version__.startswith("5."):
        assert type(SentenceTransformer(str(everything), device="cpu")[0]).__name__ == "DiffaugModule"
    else:
        with pytest.raises(ValueError, match="DiffaugModule"):  # which it asks us to trust
            SentenceTransformer(str(everything))
    with pytest.raises(OSError, match=r"model\.safetensors"):  # or it would make one up at random
        BertModel.from_pretrained(str(everything))


def test_weights_of_another_moment(tiny_bert: Path, sentences: list[str], tmp_path: Path) -> None:
    embedder = make(tiny_bert, EVERYTHING)
    expected = embedder.encode(sentences)
    weights = saved.model_weights(embedder.encoder)
    for parameter in embedder.encoder.parameters():
        nn.init.zeros_(parameter)
    saved.save_model(tmp_path / "m", embedder.encoder, embedder.tokenizer, Provenance(), weights=weights)
    np.testing.assert_array_equal(Embedder.from_pretrained(tmp_path / "m").encode(sentences), expected)


# Weights that do not fit.


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "diffaug.safetensors")
    change(weights)
    save_file(weights, folder / "diffaug.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "key", ["backbone.encoder.layer.2.output.dense.bias", "prefix.blocks", "head.0.0.bias", "head.1.0.weight"]
)
def test_missing_and_misshapen_weights(copy: Path, key: str) -> None:
    name = key.removeprefix("backbone.")
    change_weights(copy, lambda weights: weights.update({key: torch.zeros(3, 5)}))
    with pytest.raises(DiffaugError, match=rf"diffaug\.safetensors: the checkpoint has the wrong shape for {name}"):
        Embedder.from_pretrained(copy)
    change_weights(copy, lambda weights: weights.pop(key))
    with pytest.raises(DiffaugError, match=rf"diffaug\.safetensors: the checkpoint lacks {name}"):
        Embedder.from_pretrained(copy)


@pytest.mark.parametrize(
    "key", ["backbone.pooler.dense.weight", "backbone.new", "prefix.embedding.weight", "head.2.0.weight", "new.weight"]
)
def test_unexpected_weights(copy: Path, key: str) -> None:
    change_weights(copy, lambda weights: weights.update({key: torch.zeros(3)}))
    with pytest.raises(DiffaugError, match=f"unexpected .*{key.removeprefix('backbone.')}"):
        Embedder.from_pretrained(copy)


@pytest.mark.parametrize("key", ["backbone.embeddings.word_embeddings.weight", "head.0.0.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(copy: Path, key: str, value: float) -> None:
    weights = load_file(copy / saved.WEIGHTS)
    weights[key].view(-1)[3] = value
    save_file(weights, copy / saved.WEIGHTS)
    with pytest.raises(DiffaugError, match=rf"the weight {key.partition('.')[2]} is not finite"):
        Embedder.from_pretrained(copy)


def test_a_backbone_that_is_not_finite(tiny_bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_bert, tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.output.dense.bias"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DiffaugError, match=r"encoder.layer.0.output.dense.bias is not finite"):
        load_backbone(str(folder))


def test_prefix_and_head_without_a_place_for_them(copy: Path) -> None:
    describe(copy, lambda d: d["model"].update(prefix=None))
    with pytest.raises(DiffaugError, match=r"unexpected prefix\.blocks"):
        Embedder.from_pretrained(copy)
    describe(copy, lambda d: d["model"].update(prefix={"views": 2, "length": 3}, head=[]))
    with pytest.raises(DiffaugError, match=r"unexpected head\.0\.0\.bias, head\.0\.0\.weight, head\.1\.0\.weight;"):
        Embedder.from_pretrained(copy)


@pytest.mark.parametrize("size", [0, 5, 1000, -1])
def test_truncated_weights(copy: Path, size: int) -> None:
    whole = (copy / "diffaug.safetensors").read_bytes()
    (copy / "diffaug.safetensors").write_bytes(whole[:size])
    with pytest.raises(DiffaugError, match=r"diffaug\.safetensors is truncated or damaged"):
        Embedder.from_pretrained(copy)


class Trap:
    """A pickle of it creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "diffaug.safetensors"])
def test_pickles_are_never_read(copy: Path, tmp_path: Path, name: str) -> None:
    (copy / "diffaug.safetensors").unlink()
    (copy / name).write_bytes(pickle.dumps(Trap(tmp_path / "trapped")))
    message = "truncated or damaged" if name == "diffaug.safetensors" else f"does not exist; {name} is a pickle"
    with pytest.raises(DiffaugError, match=message):
        Embedder.from_pretrained(copy)
    assert not (tmp_path / "trapped").exists()
    pickle.loads(pickle.dumps(Trap(tmp_path / "trapped")))
    assert (tmp_path / "trapped").exists()  # the trap works


# Descriptions that cannot be read.


def describe(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    description = json.loads((folder / "diffaug.json").read_text("utf-8"))
    change(description)
    (folder / "diffaug.json").write_text(json.dumps(description), "utf-8")


@pytest.mark.parametrize("content", ["", "{", '{"format_version": 1, "model": {"pooling"', "\x00", "nonsense"])
def test_truncated_description(copy: Path, content: str) -> None:
    (copy / "diffaug.json").write_text(content)
    with pytest.raises(DiffaugError, match=r"diffaug\.json cannot be read as JSON .* save or copy"):
        Embedder.from_pretrained(copy)


def test_description_in_another_encoding(copy: Path) -> None:
    (copy / "diffaug.json").write_bytes("{}".encode("utf-16"))
    with pytest.raises(DiffaugError, match=r"diffaug\.json cannot be read"):
        Embedder.from_pretrained(copy)


@pytest.mark.parametrize(
    ("version", "unknown"),
    [(1, ("adapter", "lora", "flow", "denoise", "sentence_ends")), (2, ("denoise", "sentence_ends"))],
)
def test_a_model_of_an_older_format(copy: Path, sentences: list[str], version: int, unknown: tuple[str, ...]) -> None:
    """The first knew of prefixes and nothing of adapters, LoRA and flows, the second of no norm in a head."""
    expected = Embedder.from_pretrained(copy).encode(sentences)

    def older(description: dict[str, Any]) -> None:
        description["format_version"] = version
        for name in unknown:
            del description["model"][name]
        for dense in description["model"]["head"]:
            del dense["layer_norm"]

    describe(copy, older)
    assert np.array_equal(Embedder.from_pretrained(copy).encode(sentences), expected)


def test_newer_format(copy: Path) -> None:
    describe(copy, lambda d: d.update(format_version=99, diffaug_version="9.9"))
    with pytest.raises(DiffaugError, match=r"format version 99, written by a newer diffaug \(9\.9\).*upgrade"):
        Embedder.from_pretrained(copy)


@pytest.mark.parametrize("version", [None, "1", 0, -1, True, 1.0, [1]])
def test_format_version_that_is_none(copy: Path, version: Any) -> None:
    describe(copy, lambda d: d.update(format_version=version))
    with pytest.raises(DiffaugError, match="has no format_version"):
        Embedder.from_pretrained(copy)


def test_missing_and_unknown_parts(copy: Path) -> None:
    describe(copy, lambda d: d.update(extra=1))
    with pytest.raises(DiffaugError, match="has the unknown keys extra"):
        Embedder.from_pretrained(copy)
    describe(copy, lambda d: (d.pop("extra"), d.pop("scores"), d.pop("model")))
    with pytest.raises(DiffaugError, match="lacks model, scores"):
        Embedder.from_pretrained(copy)


@pytest.mark.parametrize("name", ModelConfig().to_dict())
def test_every_setting_is_needed(copy: Path, name: str) -> None:
    describe(copy, lambda d: d["model"].pop(name))
    with pytest.raises(DiffaugError, match=rf"diffaug\.json: missing model settings: {name}"):
        Embedder.from_pretrained(copy)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pooling", "max"),
        ("pooling", None),
        ("pooling", ["mean"]),
        ("template", 5),
        ("template", "no slot"),
        ("final_stop", "yes"),
        ("final_stop", None),
        ("prefix", []),
        ("prefix", {"views": 2}),
        ("prefix", {"views": 2, "length": "3"}),
        ("prefix", {"views": 2, "length": 3, "depth": 1}),
        ("head", 5),
        ("head", None),
        ("head", [{"inputs": 32}]),
        ("head", [{"inputs": 32, "outputs": 16, "bias": True, "activation": "sine"}]),
        ("head", ["tanh"]),
        ("normalize", 1),
        ("max_length", "12"),
        ("max_length", True),
        ("max_length", 0),
        ("lowercase", "no"),
        ("prompt", None),
        ("depth", 3),
    ],
)
def test_settings_of_the_wrong_kind(copy: Path, name: str, value: Any) -> None:
    describe(copy, lambda d: d["model"].update({name: value}))
    with pytest.raises(DiffaugError, match=r"diffaug\.json: "):
        Embedder.from_pretrained(copy)


@pytest.mark.parametrize("value", [None, [], "mean"])
def test_settings_that_are_none(copy: Path, value: Any) -> None:
    describe(copy, lambda d: d.update(model=value))
    with pytest.raises(DiffaugError, match="the model settings must be a mapping"):
        Embedder.from_pretrained(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "unheard-of"}, "unheard-of"),
        ({"hidden_size": "many"}, "hidden_size"),
        ({"hidden_size": 64}, "wrong shape"),
        ({"num_hidden_layers": 4}, "lacks"),
        ({"num_hidden_layers": 2}, "unexpected"),
    ],
)
def test_backbones_that_do_not_fit(copy: Path, change: dict[str, Any], message: str) -> None:
    describe(copy, lambda d: d["backbone"].update(change))
    with pytest.raises(DiffaugError, match=message) as caught:
        Embedder.from_pretrained(copy)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "names", [["tokenizer.json"], ["tokenizer_config.json"], ["tokenizer.json", "tokenizer_config.json"]]
)
def test_missing_tokenizer(copy: Path, names: list[str]) -> None:
    """transformers would make one up, with a vocabulary of five tokens."""
    for name in names:
        (copy / name).unlink()
    with pytest.raises(DiffaugError, match=r"has no tokenizer_config\.json|has no vocabulary"):
        Embedder.from_pretrained(copy)


def test_truncated_tokenizer(copy: Path) -> None:
    whole = (copy / "tokenizer.json").read_text("utf-8")
    (copy / "tokenizer.json").write_text(whole[:1000], "utf-8")
    with pytest.raises(DiffaugError, match="cannot be loaded"):
        Embedder.from_pretrained(copy)


# Writing.


def test_nothing_is_overwritten_by_accident(everything: Path, copy: Path, tmp_path: Path) -> None:
    embedder = Embedder.from_pretrained(everything)
    (copy / "notes.txt").write_text("mine")
    with pytest.raises(DiffaugError, match="exists already"):
        embedder.save(copy)
    assert (copy / "notes.txt").exists()
    embedder.save(copy, overwrite=True)
    assert not (copy / "notes.txt").exists()
    Embedder.from_pretrained(copy)
    assert sorted(tmp_path.iterdir()) == [copy]


@pytest.mark.parametrize("error", [RuntimeError("power"), OSError(28, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["save_file", "write_text", "tokenizer"])
def test_failure_midway_leaves_the_old_model(
    everything: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    embedder = Embedder.from_pretrained(everything)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    place = {"save_file": saved, "write_text": Path, "tokenizer": type(embedder.tokenizer)}[where]
    monkeypatch.setattr(place, "save_pretrained" if where == "tokenizer" else where, fail)
    with pytest.raises(DiffaugError if isinstance(error, OSError) else type(error)):
        embedder.save(copy, overwrite=True)
    with pytest.raises(DiffaugError if isinstance(error, OSError) else type(error)):
        embedder.save(copy.with_name("new"))
    monkeypatch.undo()
    assert sorted(copy.parent.iterdir()) == [copy]
    for path in everything.iterdir():
        assert (copy / path.name).read_bytes() == path.read_bytes()


def test_full_disk_in_the_words_of_safetensors(
    everything: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(saved, "save_file", fail)
    with pytest.raises(DiffaugError, match="new cannot be written: no space left on the disk"):
        Embedder.from_pretrained(everything).save(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
