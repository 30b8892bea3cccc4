"""Scores of sentence embeddings that can be trusted and compared."""

from diffaug.evaluation.report import Report
from diffaug.evaluation.run import evaluate

__all__ = ["Report", "evaluate"]
