"""Convert checkpoints released by the papers' authors to diffaug models with the same embeddings."""

from diffaug.integrations.released.convert import Converted, convert

__all__ = ["Converted", "convert"]
