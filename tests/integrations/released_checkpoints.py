"""Checkpoints in the layouts of the releases, made from tiny random models."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModel, PreTrainedTokenizerBase

WIDTH, LAYERS, HEADS = 32, 3, 4
State = dict[str, Tensor]


def backbone_state(folder: Path) -> State:
    """The weights of a tiny model, its own pooler included, with a buffer that old versions of transformers saved."""
    state = dict(AutoModel.from_pretrained(folder).state_dict())
    return {"embeddings.position_ids": torch.arange(128).unsqueeze(0), **state}


def trained(family: str, state: State, *, pooler: bool) -> State:
    """As `BertForCL` and `RobertaForCL` name their backbone."""
    return {f"{family}.{n}": t for n, t in state.items() if pooler or not n.startswith("pooler.")}


def rewritten(state: State) -> State:
    """As the scripts that convert a trained checkpoint for `AutoModel` rename it; a later name takes an earlier one."""
    out: State = {}
    for name, tensor in state.items():
        out[name.replace("mlp", "pooler").replace("roberta.", "").replace("bert.", "")] = tensor
    return out


def linear(name: str, inputs: int = WIDTH, outputs: int = WIDTH) -> State:
    return {f"{name}.weight": torch.randn(outputs, inputs) * 0.2, f"{name}.bias": torch.randn(outputs) * 0.2}


def norm(name: str, width: int = WIDTH) -> State:
    return {f"{name}.weight": 1 + torch.randn(width) * 0.2, f"{name}.bias": torch.randn(width) * 0.2}


def prefix(length: int) -> State:
    """DiffAug's `PrefixEncoder`."""
    return {
        "prefix_encoder.embedding.weight": torch.randn(length, WIDTH),
        **linear("prefix_encoder.trans1.0"),
        **linear("prefix_encoder.trans1.2", WIDTH, LAYERS * 2 * WIDTH),
    }


def projector(name: str) -> State:
    """DiffCSE's, with batch norm."""
    inner = 2 * WIDTH
    running = {
        f"{name}.{at}.running_{what}": torch.ones(w) for at, w in ((1, inner), (4, WIDTH)) for what in ("mean", "var")
    }
    return {
        f"{name}.0.weight": torch.randn(inner, WIDTH),
        **norm(f"{name}.1", inner),
        **running,
        f"{name}.1.num_batches_tracked": torch.tensor(7),
        f"{name}.3.weight": torch.randn(WIDTH, inner),
    }


def write(
    folder: Path, like: Path, tokenizer: PreTrainedTokenizerBase, state: State, architecture: str, *, pickled: bool
) -> Path:
    """A folder as the releases' trainer leaves it, old settings and all."""
    folder.mkdir(parents=True)
    config = json.loads((like / "config.json").read_text("utf-8"))
    config |= {
        "architectures": [architecture],
        "gradient_checkpointing": False,
        "prefix_len": 6,
        "transformers_version": "4.2.1",
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    _write_tokenizer(folder, tokenizer)
    if pickled:
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    return folder


def _write_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """The files of transformers 4.2, which had no tokenizer.json."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    settings: dict[str, object] = {"model_max_length": 128, "special_tokens_map_file": None}
    if "merges" in model:
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
        merges = [" ".join(pair) for pair in model["merges"]]
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", "utf-8")
        mask = {"content": "<mask>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False}
        (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": mask}), "utf-8")
    else:
        settings["do_lower_case"] = True
        entries = sorted(model["vocab"], key=model["vocab"].__getitem__)
        (folder / "vocab.txt").write_text("\n".join(entries) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
