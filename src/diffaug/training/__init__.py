"""The loop and what it stands on: optimiser, distribution, checkpoints, tracking."""
