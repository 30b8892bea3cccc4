"""The verdict: which run is best, by how much, and whether it beats the model before training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.made_runs import write_grid, write_run
from scipy.stats import spearmanr

from diffaug.data.records import ScoredPairs
from diffaug.errors import DiffaugError
from diffaug.experiments.summary import summarise
from diffaug.report.grids import read_grid
from diffaug.report.pairs import PairReader
from diffaug.report.runs import Run, read_run
from diffaug.report.verdict import Verdict, judge_grid, judge_runs

COUNT = 200
GOLD = np.random.default_rng(0).uniform(0, 5, COUNT).round(2)


def made(noise: float, seed: int = 1) -> np.ndarray:
    """Cosines that follow the gold scores, the less the more noise there is."""
    return GOLD / 5 + np.random.default_rng(seed).normal(0, noise, COUNT)


def score(cosines: np.ndarray) -> float:
    return 100 * float(spearmanr(cosines, GOLD).statistic)


class Runs:
    """Runs whose models give known cosines, by name; `before` are those of their backbone."""

    def __init__(
        self, folder: Path, before: np.ndarray, sets: tuple[str, ...] = ("dev",), **cosines: np.ndarray
    ) -> None:
        self.before, self.cosines = before, cosines
        lines = "".join(f"{gold}\tSentence {i}.\tOther {i}.\n" for i, gold in enumerate(GOLD))
        for name in sets:
            folder.joinpath(f"{name}.tsv").write_text(lines)
        self.runs = []
        for name, found in cosines.items():
            data = {one: str(folder / f"{one}.tsv") for one in sets}
            run = write_run(folder / name, data=data)
            scores = {"scores": dict.fromkeys(sets, score(found)), "before": dict.fromkeys(sets, score(before))}
            (run / "summary.json").write_text(json.dumps(scores))
            self.runs.append(read_run(run, name))

    def judge(self) -> Verdict:
        verdict = judge_runs(self.runs, PairReader(), self._cosines)
        assert verdict is not None
        return verdict

    def _cosines(self, run: Run, pairs: ScoredPairs, trained: bool) -> np.ndarray:
        assert len(pairs) == COUNT
        return self.cosines[run.name] if trained else self.before


def test_the_best_of_several_runs_beats_the_second_and_the_model_before(tmp_path: Path) -> None:
    runs = Runs(tmp_path, made(2.0), weak=made(1.0), strong=made(0.1), middle=made(0.4))
    verdict = runs.judge()
    by = score(runs.cosines["strong"]) - score(runs.before)
    assert (
        verdict.headline == f"strong is the best of 3 runs, and is better than the model before training by {by:.2f}."
    )
    assert verdict.outcome == "better"
    (before, with_before), (second, with_second) = verdict.details
    assert (before, second) == ("Before training", "Second: middle")
    assert with_before.startswith(f"{score(runs.before):.2f}, a difference of +{by:.2f} (+")
    assert "may be chance" not in with_second
    assert "200 dev pairs" in verdict.note
    assert "chose checkpoint and run" in verdict.note


def test_the_interval_is_that_of_an_independent_bootstrap(tmp_path: Path) -> None:
    runs = Runs(tmp_path, made(2.0), strong=made(0.5))
    text = dict(runs.judge().details)["Before training"]
    low, high = (float(end) for end in text.split("(")[1].rstrip(")").split(" to "))
    random, found = np.random.default_rng(5), []
    for _ in range(600):
        rows = random.integers(COUNT, size=COUNT)
        sides = [spearmanr(side[rows], GOLD[rows]).statistic for side in (runs.cosines["strong"], runs.before)]
        found.append(100 * float(sides[0] - sides[1]))
    assert [low, high] == pytest.approx(np.quantile(found, [0.025, 0.975]), abs=2.5)


@pytest.mark.parametrize(
    ("trained", "before", "outcome", "headline"),
    [
        (0.1, 2.0, "better", "run is better than the model before training by "),
        (2.0, 0.1, "worse", "run is worse than the model before training by "),
        (0.5, 0.5, "unclear", "run is not shown to beat the model before training."),
    ],
)
def test_a_single_run_is_compared_with_the_model_before(
    tmp_path: Path, trained: float, before: float, outcome: str, headline: str
) -> None:
    verdict = Runs(tmp_path, made(before, seed=2), run=made(trained)).judge()
    assert verdict.outcome == outcome
    assert verdict.headline.startswith(headline)
    assert ("may be chance" in verdict.details[0][1]) == (outcome == "unclear")


def test_runs_that_are_alike_have_no_best(tmp_path: Path) -> None:
    verdict = Runs(tmp_path, made(0.5, seed=4), a=made(0.5, seed=2), b=made(0.5, seed=3)).judge()
    assert "has the highest dev score of 2 runs, but is not shown to beat the model" in verdict.headline
    assert all("may be chance" in text for _, text in verdict.details)


def test_test_pairs_judge_what_dev_pairs_chose(tmp_path: Path) -> None:
    verdict = Runs(tmp_path, made(2.0), sets=("dev", "test"), a=made(0.1), b=made(0.5)).judge()
    assert "200 test pairs" in verdict.note
    assert "chose checkpoint" not in verdict.note


def test_runs_on_other_dev_data_are_not_compared(tmp_path: Path) -> None:
    runs = Runs(tmp_path, made(2.0), a=made(0.1), b=made(0.5))
    runs.runs[1].recipe["data"]["dev"] = "another.tsv"
    verdict = runs.judge()
    assert verdict.headline.startswith("a is better than the model before training")
    assert verdict.details[-1][0] == "1 more"


def test_without_models_there_are_no_intervals(tmp_path: Path) -> None:
    runs = Runs(tmp_path, made(2.0), a=made(0.1))

    def gone(*_: Any) -> np.ndarray:
        raise DiffaugError("a has no model in its folder best/")

    verdict = judge_runs(runs.runs, PairReader(), gone)
    assert verdict is not None
    assert verdict.outcome == "better"
    assert "(" not in verdict.details[0][1]
    assert verdict.note == "Scores on the dev pairs, without intervals: a has no model in its folder best/."


@pytest.mark.parametrize("scores", [{}, {"alignment": 0.1}, {"dev": None}])
def test_without_a_score_there_is_no_verdict(tmp_path: Path, scores: dict[str, Any]) -> None:
    run = write_run(tmp_path / "a")
    (run / "summary.json").write_text(json.dumps({"scores": scores}))
    verdict = judge_runs([read_run(run, "a")], PairReader(), lambda *_: GOLD)
    assert verdict is not None
    assert verdict.headline.startswith("There is no verdict")
    assert judge_runs([read_run(write_run(tmp_path / "b", finished=False), "b")], PairReader(), lambda *_: GOLD) is None


def test_a_grid_is_judged_by_its_own_tests(tmp_path: Path) -> None:
    grid = read_grid(write_grid(tmp_path / "grid").folder)
    verdict = judge_grid(summarise(grid.grid), grid.runs)
    assert verdict is not None
    found = next(entry for entry in summarise(grid.grid).entries if entry.row == "DiffAug, sup")
    assert found.test is not None
    assert verdict.headline.startswith(f"DiffAug, sup has the highest average, {found.values['average'].mean:.2f}")
    assert "was 40.00 before training" in verdict.headline
    ((_, text),) = verdict.details
    assert f"strongest baseline {found.test.row}" in text
