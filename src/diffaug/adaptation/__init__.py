"""Adapt a finished embedding model to a user's own labels, if that helps."""

from diffaug.adaptation.run import AdaptResult, adapt

__all__ = ["AdaptResult", "adapt"]
