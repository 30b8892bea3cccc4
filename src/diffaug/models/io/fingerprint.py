"""A model's fingerprint: says whether two scores come from the same model, wherever its folder lies."""

from __future__ import annotations

import hashlib
import json

import torch

from diffaug.models.encoder import Encoder
from diffaug.models.io.saved import model_weights

# What a backbone's configuration says about its history, not about its vectors.
_HISTORY = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}


def fingerprint(encoder: Encoder) -> str:
    """SHA-256, in hex, over all that decides an encoder's vectors: its settings, and every weight with its name.

    The same model saved, loaded or moved to another device keeps its fingerprint; one changed weight changes it. A
    prefix still in training form counts as the folded one that would be saved.
    """
    backbone = encoder.backbone.config.to_diff_dict()
    settings = {
        "model": encoder.config.to_dict(),
        "backbone": {name: value for name, value in backbone.items() if name not in _HISTORY},
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model_weights(encoder).items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
