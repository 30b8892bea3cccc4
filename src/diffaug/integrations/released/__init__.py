"""Checkpoints that the papers' authors released, turned into models of ours that embed as their code does."""

from diffaug.integrations.released.convert import Converted, convert

__all__ = ["Converted", "convert"]
