"""Adaptation in little time."""

from __future__ import annotations

import pytest

from diffaug.adaptation import candidates, forecasts, linear


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Two steps of training and few repetitions, except in the tests of what these compute."""
    monkeypatch.setattr(candidates, "_ON_CPU", ("stage2.batch_size=8", "stage2.steps=2"))
    monkeypatch.setattr(candidates, "_STAGE1_ON_CPU", ("stage1.batch_size=8", "stage1.steps=2"))
    monkeypatch.setattr(
        candidates, "_SELF_TRAINING_ON_CPU", (*candidates._CLASSES, "stage2.batch_size=8", "stage2.steps=2")
    )
    if request.module.__name__.endswith("test_adapt_measures"):
        return
    monkeypatch.setattr(linear, "_STEPS", 5)
    monkeypatch.setattr(forecasts, "_DRAWS", 2)
    monkeypatch.setattr(forecasts, "_FOLDS", 2)
