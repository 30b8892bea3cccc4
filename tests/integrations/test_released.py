"""Each release's embedding is recomputed with a plain transformers model, as the release's evaluation does it."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import released_checkpoints as released
import torch
import torch.nn.functional as F
from released_checkpoints import HEADS, LAYERS, WIDTH, State, linear, norm
from torch import Tensor
from transformers import AutoModel, DynamicCache, PreTrainedTokenizerBase

from diffaug.cli import main
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.integrations.released import Converted, convert

Tiny = Callable[[str], Path]
BERT, ROBERTA = 'This sentence of "{}" means[MASK].', "This sentence : ' {} ' means<mask>."
ARCHITECTURE = {"bert": "BertForCL", "roberta": "RobertaForCL"}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def make(tiny: Tiny, tmp_path: Path, wordpiece: Any, byte_level: Any) -> Callable[..., Path]:
    """Write a checkpoint of a family with these weights; its folder's name matters to SimCSE."""

    def make(family: str, state: State, name: str = "checkpoint", *, pickled: bool = False) -> Path:
        tokenizer = byte_level if family == "roberta" else wordpiece
        place, like = tmp_path / name, tiny(family)
        return released.write(place, like, tokenizer, state, ARCHITECTURE[family], pickled=pickled)

    return make


def tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> Tensor:
    return torch.tensor([tokenizer(text)["input_ids"]])


def embeddings(folder: Path, sentences: list[str]) -> Tensor:
    return torch.from_numpy(Embedder.from_pretrained(folder, device="cpu").encode(sentences, normalize=False))


def check(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert expected.std(0).mean() > 0.01  # guard: the sentences do differ


# SimCSE.


@torch.no_grad()
def simcse(model: Any, tokenizer: Any, sentences: list[str], head: State | None) -> Tensor:
    states = torch.cat([model(input_ids=tokens(tokenizer, s)).last_hidden_state[:, 0] for s in sentences])
    return states if head is None else torch.tanh(F.linear(states, *head.values()))


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("setting", ["sup", "unsup"])
@pytest.mark.parametrize("layout", ["trained", "rewritten"])
def test_simcse(
    make: Any, tiny: Tiny, sentences: list[str], tmp_path: Path, family: str, setting: str, layout: str
) -> None:
    head = linear("mlp.dense")
    state = {**released.trained(family, released.backbone_state(tiny(family)), pooler=False), **head}
    name = f"my-{setting}-simcse-{family}"
    kind = None
    if layout == "rewritten":
        state, kind = released.rewritten(state), "simcse"  # nothing tells it from others then
    made = convert(make(family, state, name), tmp_path / "out", kind)
    assert made == Converted("simcse", setting)
    embedder = Embedder.from_pretrained(tmp_path / "out", device="cpu")
    plain = AutoModel.from_pretrained(tiny(family)).eval()
    expected = simcse(plain, embedder.tokenizer, sentences, head if setting == "sup" else None)
    check(embeddings(tmp_path / "out", sentences), expected)


def test_simcse_needs_to_know_its_setting(make: Any, tiny: Tiny, tmp_path: Path) -> None:
    state = {
        **released.trained("bert", released.backbone_state(tiny("bert")), pooler=False),
        **linear("mlp.dense"),
        "lm_head.bias": torch.zeros(3),
    }
    folder = make("bert", state, "result-superb")  # "sup" in it is not the word
    with pytest.raises(DiffaugError, match="choose with --setting sup or --setting unsup"):
        convert(folder, tmp_path / "out")
    assert convert(folder, tmp_path / "out", setting="unsup") == Converted("simcse", "unsup")


# PromptBERT.


def prompted(template: str, sentence: str) -> str:
    """Their rule: a full stop unless the last character is one of . ? " '."""
    if len(sentence) > 0 and sentence[-1] not in ".?\"'":
        sentence += "."
    return template.replace("{}", sentence)


@torch.no_grad()
def mask_states(model: Any, tokenizer: Any, texts: list[str]) -> Tensor:
    out = []
    for text in texts:
        ids = tokens(tokenizer, text)
        out.append(model(input_ids=ids).last_hidden_state[ids == tokenizer.mask_token_id])
    return torch.cat(out)


@torch.no_grad()
def template_states(model: Any, tokenizer: Any, template: str, texts: list[str]) -> Tensor:
    """Their delta for each text: positions from 0, those behind the slot moved by the sentence's length."""
    bare = tokens(tokenizer, template.replace("{}", " ").replace("   ", " "))
    slot = len(tokenizer(template.partition("{}")[0].strip(), add_special_tokens=False)["input_ids"]) + 1
    out = []
    for text in texts:
        positions = torch.arange(bare.shape[1])
        positions[slot:] += tokens(tokenizer, text).shape[1] - bare.shape[1]
        states = model(input_ids=bare, position_ids=positions.unsqueeze(0)).last_hidden_state
        out.append(states[bare == tokenizer.mask_token_id])
    return torch.cat(out)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_unsupervised_promptbert(make: Any, tiny: Tiny, sentences: list[str], tmp_path: Path, family: str) -> None:
    state = {**released.trained(family, released.backbone_state(tiny(family)), pooler=True), **linear("mlp.dense")}
    folder = make(family, state)
    with pytest.raises(DiffaugError, match="names that several releases use; choose the release with --kind"):
        convert(folder, tmp_path / "out")
    assert convert(folder, tmp_path / "out", "promptbert") == Converted("promptbert", "unsup")
    template = BERT if family == "bert" else ROBERTA
    texts = [prompted(template, s) for s in sentences]
    tokenizer = Embedder.from_pretrained(tmp_path / "out", device="cpu").tokenizer
    check(
        embeddings(tmp_path / "out", sentences),
        mask_states(AutoModel.from_pretrained(tiny(family)).eval(), tokenizer, texts),
    )


@pytest.mark.parametrize("layout", ["trained", "rewritten"])
def test_supervised_promptbert(make: Any, tiny: Tiny, sentences: list[str], tmp_path: Path, layout: str) -> None:
    """The head of the masked language model: the sentence's state and the template's both go through it."""
    dense, scale = linear("mlp.dense"), norm("mlp.LayerNorm")
    state = {**released.trained("bert", released.backbone_state(tiny("bert")), pooler=True), **dense, **scale}
    folder = make("bert", released.rewritten(state) if layout == "rewritten" else state)
    assert convert(folder, tmp_path / "out") == Converted("promptbert", "sup")

    def head(states: Tensor) -> Tensor:
        return F.layer_norm(F.gelu(F.linear(states, *dense.values())), (WIDTH,), *scale.values(), eps=1e-12)

    model = AutoModel.from_pretrained(tiny("bert")).eval()
    tokenizer = Embedder.from_pretrained(tmp_path / "out", device="cpu").tokenizer
    texts = [prompted(BERT, s) for s in sentences]
    plain, bare = mask_states(model, tokenizer, texts), template_states(model, tokenizer, BERT, texts)
    check(embeddings(tmp_path / "out", sentences), head(plain) - head(bare))
    assert (bare - bare[0]).abs().max() > 0.01  # guard: the template's state depends on the sentence's length


def test_supervised_promptroberta(make: Any, tiny: Tiny, sentences: list[str], tmp_path: Path) -> None:
    """The head of SimCSE, behind the difference; the template's positions start at 0, the sentences' at 2."""
    dense = linear("mlp.dense")
    state = {**released.trained("roberta", released.backbone_state(tiny("roberta")), pooler=True), **dense}
    folder = make("roberta", released.rewritten(state))
    assert convert(folder, tmp_path / "out", "promptbert") == Converted("promptbert", "sup")
    model = AutoModel.from_pretrained(tiny("roberta")).eval()
    tokenizer = Embedder.from_pretrained(tmp_path / "out", device="cpu").tokenizer
    texts = [prompted(ROBERTA, s) for s in sentences]
    states = mask_states(model, tokenizer, texts) - template_states(model, tokenizer, ROBERTA, texts)
    check(embeddings(tmp_path / "out", sentences), torch.tanh(F.linear(states, *dense.values())))


def test_sentences_of_any_length_are_denoised(make: Any, tiny: Tiny, tmp_path: Path) -> None:
    state = {**released.trained("bert", released.backbone_state(tiny("bert")), pooler=True), **linear("mlp.dense")}
    convert(make("bert", state), tmp_path / "out", "promptbert", setting="sup")
    embedder = Embedder.from_pretrained(tmp_path / "out", device="cpu")
    limit = embedder.collator.max_length
    assert limit is not None
    with pytest.warns(UserWarning, match="were truncated"):
        vectors = embedder.encode(["", "yes " * (limit - 1), "yes " * 500])
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(vectors[1], embedder.encode("yes " * (limit - 1)), atol=1e-6)


# DiffCSE.


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("layout", ["trained", "rewritten"])
def test_diffcse(make: Any, tiny: Tiny, sentences: list[str], tmp_path: Path, family: str, layout: str) -> None:
    backbone = released.backbone_state(tiny(family))
    state = {
        **released.trained(family, backbone, pooler=False),
        "lm_head.bias": torch.zeros(3),
        **{f"aux_bert.{n}": torch.randn(t.shape) for n, t in backbone.items() if not n.startswith("pooler.")},
        **released.projector("mlp.net"),
        **linear("generator.distilbert.transformer.layer.0.attention.q_lin"),
        **linear("electra_head", WIDTH, 2),
    }
    folder = make(family, released.rewritten(state) if layout == "rewritten" else state)
    assert convert(folder, tmp_path / "out").kind == "diffcse"
    tokenizer = Embedder.from_pretrained(tmp_path / "out", device="cpu").tokenizer
    expected = simcse(AutoModel.from_pretrained(tiny(family)).eval(), tokenizer, sentences, None)
    check(embeddings(tmp_path / "out", sentences), expected)


# DiffAug.


@torch.no_grad()
def diffaug(model: Any, tokenizer: Any, template: str, sentences: list[str], prefix: State, first: int) -> Tensor:
    """A key/value cache with all prefix vectors, every token sees them, and positions start behind them."""
    embedding, weight0, bias0, weight2, bias2 = prefix.values()
    flat = F.linear(torch.tanh(F.linear(embedding, weight0, bias0)), weight2, bias2)
    length = len(embedding)
    # (length, layers * 2 * width) -> layers * 2 blocks (1, heads, length, head_dim): a key and a value a layer
    blocks = flat.view(1, length, LAYERS * 2, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
    out = []
    for sentence in sentences:
        cache = DynamicCache()
        for layer in range(LAYERS):
            cache.update(blocks[2 * layer], blocks[2 * layer + 1], layer)
        ids = tokens(tokenizer, template.replace("{}", sentence))
        n = ids.shape[1]
        states = model(
            input_ids=ids,
            attention_mask=torch.ones(1, 1, n, length + n, dtype=torch.bool),
            position_ids=torch.arange(n).unsqueeze(0) + first + length,
            past_key_values=cache,
        ).last_hidden_state
        out.append(states[ids == tokenizer.mask_token_id])
    return torch.cat(out)


@pytest.mark.parametrize(("family", "template", "first"), [("bert", BERT, 0), ("roberta", ROBERTA, 2)])
@pytest.mark.parametrize("length", [6, 16])
def test_diffaug(
    make: Any,
    tiny: Tiny,
    sentences: list[str],
    tmp_path: Path,
    family: str,
    template: str,
    first: int,
    length: int,
) -> None:
    prefix = released.prefix(length)
    state = {
        **released.trained(family, released.backbone_state(tiny(family)), pooler=True),
        **linear("mlp.dense"),
        **linear("sup_classifier", 3 * WIDTH, 2),
        **prefix,
    }
    assert convert(make(family, state), tmp_path / "out").kind == "diffaug"
    embedder = Embedder.from_pretrained(tmp_path / "out", device="cpu")
    model = AutoModel.from_pretrained(tiny(family), attn_implementation="sdpa").eval()
    # Their evaluation tokenises template and sentence as one string, where quotes and brackets meet the template's.
    sentences = [*sentences, '"Quoted."', "``Two'' quotes", "(in brackets)", "'s", "no full stop", "a colon:"]
    expected = diffaug(model, embedder.tokenizer, template, sentences, prefix, first)
    check(embeddings(tmp_path / "out", sentences), expected)
    # Guards: the prefix matters, as do the positions.
    assert (
        expected - mask_states(model, embedder.tokenizer, [template.replace("{}", s) for s in sentences])
    ).abs().max() > 0.1
    assert (
        expected - diffaug(model, embedder.tokenizer, template, sentences, prefix, first - length)
    ).abs().max() > 0.01


def test_diffaug_with_another_template(make: Any, tiny: Tiny, sentences: list[str], tmp_path: Path) -> None:
    prefix = released.prefix(6)
    state = {**released.trained("bert", released.backbone_state(tiny("bert")), pooler=True), **prefix}
    convert(make("bert", state), tmp_path / "out", template='The sentence "{}" says [MASK] .')
    model = AutoModel.from_pretrained(tiny("bert"), attn_implementation="sdpa").eval()
    tokenizer = Embedder.from_pretrained(tmp_path / "out", device="cpu").tokenizer
    expected = diffaug(model, tokenizer, 'The sentence "{}" says [MASK] .', sentences, prefix, 0)
    check(embeddings(tmp_path / "out", sentences), expected)


# What goes wrong.


@pytest.fixture
def simcse_state(tiny: Tiny) -> State:
    return {**released.trained("bert", released.backbone_state(tiny("bert")), pooler=False), **linear("mlp.dense")}


def test_missing_and_unknown_weights_are_named(make: Any, simcse_state: State, tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lacking = {n: t for n, t in simcse_state.items() if n != "bert.encoder.layer.1.output.dense.bias"}
    with pytest.raises(DiffaugError, match=r"lacks .*layer\.1\.output\.dense\.bias"):
        convert(make("bert", lacking, "sup-a"), out)
    headless = {n: t for n, t in simcse_state.items() if n != "mlp.dense.bias"}
    with pytest.raises(DiffaugError, match=r"lacks mlp\.dense\.bias"):
        convert(make("bert", headless, "unsup-b"), out)
    strange = {**simcse_state, "p_mbv": torch.zeros(10)}
    with pytest.raises(DiffaugError, match="has the unexpected p_mbv"):
        convert(make("bert", strange, "sup-c"), out)
    wide = {**simcse_state, "mlp.dense.bias": torch.zeros(WIDTH + 1)}
    with pytest.raises(DiffaugError, match="has the wrong shape for head"):
        convert(make("bert", wide, "sup-d"), out)
    prefix = released.prefix(6)
    del prefix["prefix_encoder.trans1.2.bias"]
    state = {**released.trained("bert", released.backbone_state(tiny("bert")), pooler=True), **prefix}
    with pytest.raises(DiffaugError, match=r"lacks prefix_encoder\.trans1\.2\.bias"):
        convert(make("bert", state, "e"), out)
    odd = {**released.trained("bert", released.backbone_state(tiny("bert")), pooler=True), **released.prefix(7)}
    with pytest.raises(DiffaugError, match="must be even for two views, got 7"):
        convert(make("bert", odd, "f"), out)
    assert not out.exists()


def test_pickles_are_read_when_allowed_and_only_tensors(make: Any, simcse_state: State, tmp_path: Path) -> None:
    folder = make("bert", simcse_state, "sup-simcse", pickled=True)
    with pytest.raises(DiffaugError, match="is a pickle; pass --allow-pickle"):
        convert(folder, tmp_path / "out")
    convert(folder, tmp_path / "out", allow_pickle=True)
    convert(make("bert", simcse_state, "safe/sup-simcse"), tmp_path / "safe-out")
    same = [embeddings(tmp_path / name, ["A dog runs.", "Yes."]) for name in ("out", "safe-out")]
    assert torch.equal(*same)


class _Harmful:
    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (setattr, (_Harmful, "ran", True))


def test_a_pickle_with_code_is_refused_and_not_run(make: Any, simcse_state: State, tmp_path: Path) -> None:
    folder = make("bert", simcse_state, "sup-simcse", pickled=True)
    torch.save({**simcse_state, "x": _Harmful()}, folder / "pytorch_model.bin")
    with pytest.raises(DiffaugError, match="contains more than tensors"):
        convert(folder, tmp_path / "out", allow_pickle=True)
    assert not _Harmful.ran
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}, protocol=2))
    with pytest.raises(DiffaugError, match=r"pytorch_model\.bin"):
        convert(folder, tmp_path / "out", allow_pickle=True)
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(DiffaugError, match="truncated or damaged"):
        convert(folder, tmp_path / "out", allow_pickle=True)
    torch.save([torch.zeros(1)], folder / "pytorch_model.bin")
    with pytest.raises(DiffaugError, match="does not contain a state dict"):
        convert(folder, tmp_path / "out", allow_pickle=True)


def test_folders_that_are_no_checkpoints(make: Any, simcse_state: State, tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match="does not exist"):
        convert(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(DiffaugError, match="neither a local folder nor a model"):
        convert("nobody/nothing", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DiffaugError, match=r"config\.json cannot be read"):
        convert(tmp_path / "empty", tmp_path / "out")
    folder = make("bert", simcse_state, "sup-simcse")
    with pytest.raises(DiffaugError, match="simcse has no template"):
        convert(folder, tmp_path / "out", template="{} [MASK]")
    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(DiffaugError, match=r"model\.safetensors is truncated or damaged"):
        convert(folder, tmp_path / "out")
    (folder / "model.safetensors").unlink()
    with pytest.raises(DiffaugError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        convert(folder, tmp_path / "out")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(DiffaugError, match="got 'gpt2'"):
        convert(folder, tmp_path / "out")


def test_command(
    make: Any,
    simcse_state: State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["diffaug", "convert", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0  # type: ignore[return-value]

    folder = make("bert", simcse_state, pickled=True)
    assert run(folder, tmp_path / "out", "--kind", "bert") == 2
    assert "--kind must be one of simcse, promptbert, diffcse, diffaug, got 'bert'" in capsys.readouterr().err
    assert run(folder, tmp_path / "out", "--setting", "sup", "--allow-pickle") == 0
    assert f"supervised simcse -> {tmp_path / 'out'}" in capsys.readouterr().out
    assert Embedder.from_pretrained(tmp_path / "out", device="cpu").provenance.method == "simcse"
