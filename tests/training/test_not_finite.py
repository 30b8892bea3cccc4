"""NaN and infinity: they end a run with an error, and never replace a good model or checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffaug import Embedder, train
from diffaug.config import Recipe
from diffaug.data.records import ScoredPairs
from diffaug.errors import DiffaugError
from diffaug.training.checkpoint import checkpoints
from diffaug.training.loop import Loop
from diffaug.training.scoring import Scorer, Scores, final_scores, spearman

NO_DEV = {"dev": None, "test": None}


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a weight of stage 2 NaN after some steps, as a bad update does; the loss of that step is finite."""

    def after(steps: int, stage: int = 2) -> None:
        step = Loop._step

        def poisoned(self: Loop, *arguments: Any) -> Any:
            losses = step(self, *arguments)
            if self.progress.stage == stage and self.progress.step == steps - 1:
                with torch.no_grad():
                    next(p for p in self.context.method.encoder.parameters() if p.requires_grad).fill_(float("nan"))
            return losses

        monkeypatch.setattr(Loop, "_step", poisoned)

    return after


@pytest.mark.parametrize("data", [NO_DEV, {}], ids=["without dev", "with dev"])
def test_a_last_update_to_infinity_is_no_result(
    data: dict[str, Any], make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    """The loss of the only step is finite; the weights after it are not."""
    recipe = make_recipe("sup", data=data, stage2={"steps": 1, "learning_rate": 1e30})
    with pytest.raises(DiffaugError, match=r"not finite \(stage 2, step 1\); lower the learning rate"):
        train(recipe, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "best").exists()
    assert not (tmp_path / "run" / "summary.json").exists()


def test_the_good_model_and_checkpoint_stay(
    poison: Callable[..., None], make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    poison(3)
    recipe = make_recipe("sup", data=NO_DEV, stage2={"steps": 9}, loop={"eval_every": 2, "save_minutes": 0.0})
    with pytest.raises(DiffaugError, match=r"weights is not finite \(stage 2, step 3\)"):
        train(recipe, tmp_path / "run", quiet=True)
    assert np.isfinite(Embedder.from_pretrained(tmp_path / "run" / "best").encode(["A dog."])).all()
    assert checkpoints(tmp_path / "run" / "checkpoints")[-1].name == "stage2-step0000002"


def test_a_first_stage_that_ends_with_nan_is_an_error(
    poison: Callable[..., None], make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    poison(4, stage=1)
    with pytest.raises(DiffaugError, match=r"weights is not finite \(stage 1, step 4\)"):
        train(make_recipe("sup"), tmp_path / "run", quiet=True)


def test_a_state_of_the_optimiser_counts_too(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An infinite second moment makes every later update zero, and no loss shows it."""
    step = Loop._step

    def overflown(self: Loop, stage: Any, batch_at: Any, executor: Any, optimizer: Any, parameters: Any) -> Any:
        losses = step(self, stage, batch_at, executor, optimizer, parameters)
        optimizer.state[parameters[0]]["exp_avg_sq"].fill_(float("inf"))
        return losses

    monkeypatch.setattr(Loop, "_step", overflown)
    with pytest.raises(DiffaugError, match="not finite"):
        train(make_recipe("sup"), tmp_path / "run", quiet=True)


@pytest.mark.parametrize("selects", [True, False])
def test_vectors_that_are_not_finite_are_an_alarm(
    selects: bool, make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every stage; weights may be finite all the same, for example where 16 bits overflow."""
    seen: list[Scorer] = []
    monkeypatch.setattr(Scorer, "__call__", lambda self, *given: seen.append(self) or Scores(1.0, {}))
    train(make_recipe("sup", stage1={"steps": 1}, stage2={"steps": 1}), tmp_path / "run", quiet=True)
    monkeypatch.undo()
    with torch.no_grad():
        next(seen[0]._method.encoder.parameters()).fill_(float("nan"))
    with pytest.raises(DiffaugError, match="the model's vectors are not finite"):
        seen[0](selects)


def test_an_undefined_score_is_not_the_best(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([float("nan"), 3.0, float("nan"), 2.0])
    monkeypatch.setattr(
        Scorer, "__call__", lambda self, selects: Scores(s := next(found) if selects else 0.0, {"dev": s})
    )
    result = train(make_recipe("sup", stage2={"steps": 8}), tmp_path / "run", quiet=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["best_at"] == {"stage": 2, "step": 4}
    assert result.scores["dev"] == 3.0
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_no_score_at_all_is_an_error(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scorer, "__call__", lambda self, *given: Scores(float("nan"), {}))
    with pytest.raises(DiffaugError, match="there is no best model"):
        train(make_recipe("sup"), tmp_path / "run", quiet=True)


class Constant:
    """A model with one vector for all sentences."""

    def encode(self, sentences: list[str], **options: Any) -> Any:
        return np.ones((len(sentences), 2), np.float32)


def test_the_correlation_with_a_constant_is_not_zero() -> None:
    pairs = ScoredPairs(["a", "b"], ["c", "d"], [1.0, 2.0])
    assert np.isnan(spearman(Constant(), pairs))  # type: ignore[arg-type]
    assert final_scores(Constant(), {"test": pairs}) == {}  # type: ignore[arg-type]


def test_there_is_a_model_from_the_first_evaluation_on(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, there = Loop._step, {}

    def watched(self: Loop, *arguments: Any) -> Any:
        there[self.progress.stage, self.progress.step] = (tmp_path / "run" / "best" / "diffaug.json").exists()
        return step(self, *arguments)

    monkeypatch.setattr(Loop, "_step", watched)
    train(make_recipe("sup"), tmp_path / "run", quiet=True)
    assert [at for at, found in there.items() if found] == [(2, 2), (2, 3)]
