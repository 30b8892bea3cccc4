"""Adapters that peft loads give the states our own model gives, a view at a time and all at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tiny_models import FAMILIES
from torch import Tensor
from transformers import AutoModel

from diffaug.cli import main
from diffaug.data.collate import collator_for
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.integrations.peft import export_peft
from diffaug.models.backbone import load_backbone
from diffaug.models.config import LoraConfig, ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.views.build import build_views
from diffaug.models.views.lora import Lora

CONFIG = LoraConfig(views=2, rank=3, scale=0.7)


def model(folder: Path) -> Embedder:
    backbone, tokenizer = load_backbone(str(folder))
    lora = Lora(CONFIG, backbone)
    torch.manual_seed(0)
    for parameter in lora.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return Embedder(Encoder(backbone, ModelConfig(lora=CONFIG), lora), tokenizer, device="cpu")


@torch.no_grad()
def states(embedder: Embedder, sentences: list[str], view: int | None) -> list[Tensor]:
    """The last layer's states of every sentence, as our encoder makes them."""
    encoder, collator = embedder.encoder, collator_for(embedder.encoder, embedder.tokenizer)
    out: list[Tensor] = []
    handle = encoder.backbone.register_forward_hook(lambda m, args, result: out.append(result.last_hidden_state))
    for ids in collator.ids(sentences)[0]:
        encoder.represent(collator.rows([ids], None if view is None else [view]))
    handle.remove()
    return out


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_same_states_in_peft(
    family: str, tiny: Callable[[str], Path], sentences: list[str], tmp_path: Path
) -> None:
    embedder = model(tiny(family))
    export_peft(embedder, tmp_path / "out")
    found = {}
    for view, name in ((0, "view1"), (1, "view2"), (None, "all")):
        plain = AutoModel.from_pretrained(tmp_path / "out" / "backbone").eval()
        adapted = PeftModel.from_pretrained(plain, str(tmp_path / "out" / name)).eval()
        collator = embedder.collator
        with torch.no_grad():
            found[name] = [
                adapted(input_ids=collator.rows([ids]).input_ids).last_hidden_state
                for ids in collator.ids(sentences)[0]
            ]
        for ours, theirs in zip(states(embedder, sentences, view), found[name], strict=True):
            torch.testing.assert_close(theirs, ours, atol=2e-5, rtol=1e-4)
    assert (found["view1"][0] - found["view2"][0]).abs().max() > 0.01  # guard: the views differ
    assert (found["view1"][0] - found["all"][0]).abs().max() > 0.01
    plain = AutoModel.from_pretrained(tmp_path / "out" / "backbone").eval()
    with torch.no_grad():
        bare = plain(input_ids=embedder.collator.rows(embedder.collator.ids(sentences[:1])[0]).input_ids)
    assert (found["all"][0] - bare.last_hidden_state).abs().max() > 0.01  # guard: and from the backbone


def test_what_is_in_the_folder(tiny_bert: Path, tmp_path: Path) -> None:
    embedder = model(tiny_bert)
    export_peft(embedder, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "backbone", "view1", "view2", "all"}
    for name, rank in (("view1", 3), ("view2", 3), ("all", 6)):
        files = {path.name for path in (tmp_path / "out" / name).iterdir()}
        assert files == {"adapter_config.json", "adapter_model.safetensors"}
        config = json.loads((tmp_path / "out" / name / "adapter_config.json").read_text("utf-8"))
        assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", rank, rank)
        assert config["base_model_name_or_path"] is None  # nothing of this machine
    assert "`mean` pooling" in (tmp_path / "out" / "README.md").read_text("utf-8")
    export_peft(embedder, tmp_path / "again")
    for name in ("view1", "all"):
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            assert (tmp_path / "again" / name / file).read_bytes() == (tmp_path / "out" / name / file).read_bytes()
    with pytest.raises(DiffaugError, match="exists already"):
        export_peft(embedder, tmp_path / "out")
    export_peft(embedder, tmp_path / "out", overwrite=True)


def test_only_lora_has_such_a_form(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder.from_pretrained(tiny_bert, device="cpu")
    with pytest.raises(DiffaugError, match="only LoRA views can be exported to peft; this model has no views"):
        export_peft(embedder, tmp_path / "out")
    config = ModelConfig(prefix=PrefixConfig(2, 3))
    views = build_views(config, embedder.encoder.backbone)
    prefixed = Embedder(Encoder(embedder.encoder.backbone, config, views), embedder.tokenizer, device="cpu")
    with pytest.raises(DiffaugError, match="this model has a prefix for its views"):
        export_peft(prefixed, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(DiffaugError, match=r"needs peft: pip install 'diffaug\[peft\]'"):
        export_peft(embedder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_saved_model_by_command(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model(tiny_bert).save(tmp_path / "model")
    command = ["diffaug", "export", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "peft"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert (tmp_path / "out" / "all" / "adapter_model.safetensors").is_file()
