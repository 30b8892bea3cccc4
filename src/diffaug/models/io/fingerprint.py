"""A model's fingerprint, which tells whether two scores belong to the same model, independent of its path."""

from __future__ import annotations

import hashlib
import json

import torch

from diffaug.models.encoder import Encoder
from diffaug.models.io.saved import model_weights

# Settings of a backbone that do not influence its vectors.
_HISTORY = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}


def fingerprint(encoder: Encoder) -> str:
    """SHA-256, in hex, of everything that determines an encoder's vectors: its settings, weights and their names.

    Saving, loading and moving a model to another device do not change its fingerprint; changing one weight does. A
    reparametrised prefix counts as the merged prefix that would be saved.
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
