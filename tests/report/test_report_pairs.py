"""The pairs that go wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from report.made_runs import GOLD, write_pairs, write_run

from diffaug.data.records import ScoredPairs
from diffaug.report.data import Sentences, pair_data
from diffaug.report.pairs import PairReader, PairSet, pair_sets, relative_ranks
from diffaug.report.runs import read_run


def never(model: Path, sentences: list[str]) -> np.ndarray:
    raise AssertionError("no model should be loaded")


def test_ranks_share_places_and_go_from_zero_to_one() -> None:
    assert relative_ranks(np.array([3.0, 1.0, 2.0, 2.0, 9.0])).tolist() == [0.75, 0.0, 0.375, 0.375, 1.0]
    assert relative_ranks(np.array([7.0])).tolist() == [0.0]


def test_the_worst_pairs_are_those_farthest_out_of_order() -> None:
    gold = [0.0, 1.0, 2.0, 3.0, 4.0]
    pairs = PairSet("p", ScoredPairs(list("abcde"), list("ABCDE"), gold), {7: np.array([0.9, 0.2, 0.3, 0.4, 0.1])})
    # By hand: gold ranks 0 1 2 3 4, cosine ranks 4 1 2 3 0.
    assert pairs.worst(7, 2) == [0, 4]
    assert pairs.worst(7, 1) == [0, 4]
    sentences = Sentences()
    (found,) = pair_data([pairs], 5, sentences)
    assert found["runs"][7] == [[0, 1, 0.0, 0, 0.9, 100, None], [2, 3, 4.0, 100, 0.1, 0, None]]
    assert sentences.texts() == ["a", "A", "e", "E"]


def test_the_usual_error_is_the_median_over_runs() -> None:
    gold = [0.0, 1.0, 2.0]
    cosines = {0: np.array([2.0, 1.0, 0.0]), 1: np.array([0.0, 1.0, 2.0]), 2: np.array([2.0, 1.0, 0.0])}
    (found,) = pair_data([PairSet("p", ScoredPairs(list("abc"), list("ABC"), gold), cosines)], 5, Sentences())
    assert found["runs"][1] == []
    assert [row[-1] for row in found["runs"][0]] == [100, -100]


def test_similarities_on_disk_are_used_without_a_model(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", write_pairs(tmp_path))
    arrays = {"Some task/cosine": np.arange(8, dtype="f4"), "Some task/gold": np.array(GOLD, "f4")}
    other = {"Other/cosine": np.arange(3, dtype="f4"), "Other/gold": np.arange(3, dtype="f4")}
    np.savez(run / "similarities.npz", **arrays, **other)
    sets, notes = pair_sets([read_run(run, "run")], PairReader(), never)
    assert [found.name for found in sets] == ["Some task"]
    assert sets[0].cosines[0].tolist() == list(range(8))
    assert sets[0].pairs.first[0] == "Sentence number 0."
    assert notes == []


def test_without_them_the_model_embeds_the_dev_pairs(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", write_pairs(tmp_path))
    (folder / "best").mkdir()
    (folder / "best" / "diffaug.json").write_text("{}")
    asked: list[Path] = []

    def encode(model: Path, sentences: list[str]) -> np.ndarray:
        asked.append(model)
        vectors = np.eye(16, dtype=np.float32)[: len(sentences)]
        vectors[8] = vectors[0]  # both sentences of the first pair
        return vectors

    sets, _ = pair_sets([read_run(folder, "run")], PairReader(), encode)
    assert asked == [folder / "best"]
    assert sets[0].name == "dev, dev"
    assert sets[0].cosines[0].tolist() == [1.0] + [0.0] * 7


def test_a_relative_path_is_found_from_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pairs(tmp_path / "project" / "data")
    run = write_run(tmp_path / "project" / "runs" / "a", Path("data/dev.tsv"))
    np.savez(run / "similarities.npz", **{"T/cosine": np.arange(8.0), "T/gold": np.array(GOLD)})
    monkeypatch.chdir(tmp_path)
    assert len(pair_sets([read_run(run, "a")], PairReader(), never)[0]) == 1


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    dev = write_pairs(tmp_path)
    run = write_run(tmp_path / "run", dev)
    shutil.move(dev, tmp_path / "elsewhere.tsv")
    sets, notes = pair_sets([read_run(run, "my run")], PairReader(), never)
    assert sets == []
    assert len(notes) == 1
    assert "my run" in notes[0]
    assert "dev.tsv" in notes[0]
    assert pair_sets([read_run(write_run(tmp_path / "other"), "other")], PairReader(), never) == ([], [])
