"""Runs as one self-contained page: tables, curves, settings, the pairs a model gets wrong, a map of embeddings."""

from diffaug.report.build import build

__all__ = ["build"]
