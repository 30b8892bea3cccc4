"""Export LoRA views as peft adapters: one folder per view, one for all views merged, and the backbone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.files import atomic_folder
from diffaug.models.encoder import Encoder
from diffaug.models.views.lora import Lora, LowRank
from diffaug.models.views.targets import Target, add_update, find_targets

BACKBONE = "backbone"
ALL = "all"
WEIGHTS = "adapter_model.safetensors"


def export_peft(embedder: Embedder, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a model's LoRA views as adapters that `peft.PeftModel.from_pretrained` loads.

    ``folder`` gets the trained backbone with its tokenizer (``backbone``), one adapter per view (``view1`` ...), and
    one with the mean of all views, as at inference (``all``). peft does not apply template, pooling and head; a
    README.md describes them.

    Raises:
        DiffaugError: peft is not installed, or the model has no LoRA views.
    """
    try:
        peft: Any = import_module("peft")
    except ImportError as error:
        raise DiffaugError("exporting to peft needs peft: pip install 'diffaug[peft]'") from error
    encoder = embedder.encoder
    if not isinstance(encoder.views, Lora):
        kind = next((name for name in ("prefix", "adapter") if getattr(encoder.config, name) is not None), None)
        has = "no views" if kind is None else f"{'a prefix' if kind == 'prefix' else 'adapters'} for its views"
        raise DiffaugError(f"only LoRA views can be exported to peft; this model has {has}")
    count = encoder.views.config.views
    adapters = {f"view{view + 1}": [float(view == other) for other in range(count)] for view in range(count)}
    adapters[ALL] = [1 / count] * count
    with atomic_folder(Path(folder), overwrite=overwrite) as temporary:
        encoder.backbone.save_pretrained(temporary / BACKBONE)
        embedder.tokenizer.save_pretrained(temporary / BACKBONE)
        for name, weights in adapters.items():
            _write_adapter(peft, temporary / name, encoder, weights)
        (temporary / "README.md").write_text(_readme(encoder, list(adapters)), "utf-8")


def _write_adapter(peft: Any, folder: Path, encoder: Encoder, weights: Sequence[float]) -> None:
    """Write an adapter with the sum of all views, weighted by ``weights``."""
    state: dict[str, Tensor] = {}
    modules = _modules(encoder)
    for name, updates in modules.items():
        down, up = zip(*(_matrices(place, update, weights) for place, update in updates), strict=True)
        state[f"base_model.model.{name}.lora_A.weight"] = torch.cat(down)
        state[f"base_model.model.{name}.lora_B.weight"] = torch.cat(up, dim=1)
    (rank,) = {len(state[f"base_model.model.{name}.lora_A.weight"]) for name in modules}
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / WEIGHTS, {"format": "pt"})
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=rank,  # the scale is already in the weights
        lora_dropout=0.0,
        target_modules=list(modules),
        task_type="FEATURE_EXTRACTION",
        inference_mode=True,
    )
    config.target_modules = sorted(config.target_modules)  # a set, with a random order
    config.save_pretrained(str(folder))


def _modules(encoder: Encoder) -> dict[str, list[tuple[Target, LowRank]]]:
    """The linear layers with LoRA updates; a layer that computes queries and values together has two."""
    found: dict[str, list[tuple[Target, LowRank]]] = {}
    for role in ("query", "value"):
        updates: Any = getattr(encoder.views, role)
        for place, update in zip(find_targets(encoder.backbone, role), updates, strict=True):
            found.setdefault(place.name, []).append((place, update))
    return found


@torch.no_grad()
def _matrices(place: Target, update: LowRank, weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """A (rank, inputs) and B (outputs, rank), concatenated over the views with a weight."""
    views = [view for view, weight in enumerate(weights) if weight]
    down = torch.cat([update.down[view] for view in views])
    up = torch.cat([update.scale * weights[view] * update.up[view] for view in views])  # (rank, outputs)
    if place.third is not None:
        whole = torch.zeros(len(up), place.linear.out_features, device=up.device)
        up = add_update(whole, up, place.third)
    return down.cpu(), up.T.cpu()


def _readme(encoder: Encoder, names: list[str]) -> str:
    config = encoder.config
    template = "no template" if config.template is None else f"the template `{config.template}`"
    head = f", followed by {len(config.head)} dense layers" if config.head else ""
    adapters = ", ".join(f"`{name}`" for name in names)
    return f"""# LoRA views of a diffaug model

`{BACKBONE}` is the trained encoder; {adapters} are its adapters:
one per view, and `{ALL}` for the mean of all views, which the model uses.

```python
from peft import PeftModel
from transformers import AutoModel

model = PeftModel.from_pretrained(AutoModel.from_pretrained("{BACKBONE}"), "{ALL}")
```

peft returns token states. The model computes a sentence's vector from them with
{template} and `{config.pooling}` pooling{head}; diffaug loads all of these.
"""
