"""Losses and measures: pure functions on tensors."""
