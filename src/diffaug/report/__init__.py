"""One self-contained HTML page about a folder of runs: scores, curves, settings, worst pairs, map of embeddings."""

from diffaug.report.build import build

__all__ = ["build"]
