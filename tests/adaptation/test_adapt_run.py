"""`adapt` from labels to a saved model, with a tiny model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adaptation.adapt_data import KINDS, STATEMENTS, classes, matching, scored, triplets, unlabelled
from typer.testing import CliRunner

from diffaug import AdaptResult, DiffaugError, Embedder, adapt
from diffaug.adaptation import candidates, run
from diffaug.adaptation.candidates import Candidate
from diffaug.adaptation.inputs import Inputs
from diffaug.adaptation.linear import apply_linear, with_linear
from diffaug.adaptation.trials import FitResult, Trials, text_helps
from diffaug.cli import app
from diffaug.data.read import read_labelled
from diffaug.data.records import Labelled
from diffaug.training.loop import TrainingInterrupted


def prefer(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Choose this candidate, whatever its score is."""
    monkeypatch.setattr(run, "choose", lambda rows, confidence: next(row for row in rows if row.name == name))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_from_labels_to_a_result(kind: str, tiny_bert: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    result = adapt(tiny_bert, KINDS[kind](), tmp_path / "out", folds=2, more=50, report=lines.append)
    methods = ["DiffAug"] if kind == "triplets" else ["SimCSE", "DiffAug"]
    trained = [f"{method}{suffix}" for method in methods for suffix in ("", ", averaged")]
    names = ["as it is", *([] if kind == "classes" else ["linear map"]), *trained]
    assert [row.name for row in result.rows] == names
    assert all(0 <= row.score <= 100 for row in result.rows if kind != "scored")
    assert result.forecast is not None
    assert result.forecast.more == 50
    assert any("left" in line for line in lines)
    fold = f"{methods[0]}: fold 1 of 2"
    begins, ends = lines.index(f"{fold} …"), [line.startswith(f"{fold}, ") for line in lines]
    assert ends[begins + 1]
    assert ends.count(True) == 1
    stored = json.loads((tmp_path / "out" / "adapt.json").read_text())
    assert stored["provenance"]["models"]["model"] == Embedder.from_pretrained(tiny_bert).fingerprint()
    assert AdaptResult.from_dict(stored).table() == result.table()
    assert not (tmp_path / "out" / "work").exists()
    assert (result.model is not None) == (kind == "classes" or result.chosen != "as it is")
    with pytest.raises(DiffaugError, match="holds a finished result"):
        adapt(tiny_bert, KINDS[kind](), tmp_path / "out", folds=2)


@pytest.mark.parametrize("name", ["as it is", "label spreading", "self-training"])
def test_the_saved_model_predicts(name: str, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, name)
    result = adapt(tiny_bert, classes(), tmp_path / "out", text=unlabelled(), folds=2, only=[name])
    assert result.chosen == name
    assert result.model is not None
    embedder = Embedder.from_pretrained(result.model)
    assert embedder.classifier is not None
    assert embedder.classifier.names == sorted({row["label"] for row in classes()})
    right = [embedder.predict(row["text"]) == row["label"] for row in classes()]
    assert np.mean(right) > 0.5  # of eight classes
    same = Embedder.from_pretrained(tiny_bert).encode(STATEMENTS)
    assert np.allclose(embedder.encode(STATEMENTS), same, atol=1e-5) == (name != "self-training")


def test_averaged_weights_are_the_mean_and_need_no_training_of_their_own(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffaug.adaptation import trials

    train, calls = trials.train, []
    monkeypatch.setattr(trials, "train", lambda *args, **options: calls.append(args) or train(*args, **options))
    saved, only = {}, ["DiffAug", "DiffAug, averaged"]
    for name in only:
        prefer(monkeypatch, name)
        result = adapt(tiny_bert, scored(), tmp_path / name, folds=2, only=only)
        assert [row.name for row in result.rows] == ["as it is", *only]
        assert result.model is not None
        saved[name] = Embedder.from_pretrained(result.model).encoder.state_dict()
    assert len(calls) == 2 * (2 + 1)  # for each of the two results two folds and all labels
    start = Embedder.from_pretrained(tiny_bert).encoder.state_dict()
    shared = [name for name in saved["DiffAug"] if name in start]
    assert len(shared) < len(saved["DiffAug"])  # the prefixes are new
    for name, weight in saved["DiffAug, averaged"].items():
        expected = (saved["DiffAug"][name] + start[name]) / 2 if name in shared else saved["DiffAug"][name]
        torch.testing.assert_close(weight, expected)
    assert any(not torch.equal(saved["DiffAug"][name], start[name]) for name in shared)


@pytest.mark.parametrize("helps", [True, False])
def test_text_is_used_to_train_only_where_it_helps(
    helps: bool, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "text_helps", lambda *args: helps)
    lines: list[str] = []
    result = adapt(tiny_bert, classes(), tmp_path / "out", text=unlabelled(), folds=2, report=lines.append)
    # On a CPU, nothing is trained with much text.
    names = [] if helps else ["SimCSE", "SimCSE, averaged", "DiffAug", "DiffAug, averaged"]
    assert [row.name for row in result.rows] == ["as it is", "label spreading", *names]
    reported = "unlabelled text is not used to train: label spreading is not better than 'as it is'"
    assert (reported in lines) != helps


def test_what_is_trained_with_text_on_a_gpu(tiny_bert: Path) -> None:
    start, inputs = Embedder.from_pretrained(tiny_bert), Inputs(read_labelled(classes()), None, unlabelled(), {})
    known = candidates.candidates(inputs, start.encoder, on_gpu=True)
    found = candidates.trained(known, None, text_helps=True, on_gpu=True)
    assert [each.name for each in found if not each.averaged] == ["self-training", "DiffAug"]
    assert all(each.spreads for each in found)
    found = candidates.trained(known, None, text_helps=False, on_gpu=True)
    assert [each.name for each in found if not each.averaged] == ["SimCSE", "DiffAug"]
    assert not any(each.spreads for each in found)


def test_simcse_is_tried_with_triplets_only_if_it_is_named(tiny_bert: Path) -> None:
    start = Embedder.from_pretrained(tiny_bert)
    found = {}
    for kind in (triplets, matching):
        inputs = Inputs(read_labelled(kind()), None, [], {})
        known = candidates.candidates(inputs, start.encoder, on_gpu=True)
        found[kind.__name__] = [
            [each.name for each in candidates.trained(known, only, None, True) if not each.averaged]
            for only in (None, ["SimCSE"])
        ]
    assert found == {"triplets": [["DiffAug"], ["SimCSE"]], "matching": [["SimCSE", "DiffAug"], ["SimCSE"]]}


@pytest.mark.parametrize(("spread", "alone", "helps"), [(0.75, 0.5, True), (0.5, 0.5, False), (0.5, 0.75, False)])
def test_text_helps_if_label_spreading_scores_higher(spread: float, alone: float, helps: bool) -> None:
    rows = read_labelled(classes())
    inputs = Inputs(rows, None, unlabelled(), {})
    shares = {"label spreading": spread, "as it is": alone}

    class Known(Trials):
        def outcomes(self, candidate: Candidate, rows: Labelled, test: Labelled, name: str) -> FitResult:
            return {"outcome": (np.arange(len(test)) < shares[candidate.name] * len(test)).astype(float)}, 0.0

    trials = Known(Path("unused"), "", None, [], 0)  # type: ignore[arg-type]
    known = [Candidate("as it is"), Candidate("label spreading", spreads=True)]
    splits = [np.arange(8), np.arange(8, 16)]
    assert text_helps(trials, inputs, splits, known) == helps
    assert text_helps(trials, inputs, splits, known[:1]) is None


def test_text_is_reported_where_it_cannot_be_used(tiny_bert: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    adapt(tiny_bert, scored(), tmp_path / "out", text=unlabelled(), folds=2, only=[], report=lines.append)
    assert "unlabelled text is not used to train: it helps with classes only" in lines


def test_a_chosen_linear_map_is_the_last_layer(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "linear map")
    result = adapt(tiny_bert, scored(), tmp_path / "out", only=["linear map"])
    assert result.model is not None
    mapped, start = Embedder.from_pretrained(result.model), Embedder.from_pretrained(tiny_bert)
    weight = mapped.encoder.state_dict()["head.0.0.weight"].numpy()
    expected = apply_linear(weight, start.encode(STATEMENTS))
    np.testing.assert_allclose(mapped.encode(STATEMENTS), expected, atol=1e-5)
    assert not np.allclose(expected, start.encode(STATEMENTS), atol=1e-3)


def test_an_old_classifier_is_not_saved_with_new_vectors(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Embedder.from_pretrained(tiny_bert)
    start.fit_classifier([row["text"] for row in classes()], [row["label"] for row in classes()], "prototypes")
    start.save(tmp_path / "classes")
    prefer(monkeypatch, "linear map")
    lines: list[str] = []
    result = adapt(tmp_path / "classes", scored(), tmp_path / "out", only=["linear map"], report=lines.append)
    assert result.model is not None
    assert Embedder.from_pretrained(result.model).classifier is None
    assert any("classifier is left out" in line for line in lines)


def test_a_linear_map_follows_the_layers_there_are(tiny_bert: Path, tmp_path: Path) -> None:
    start = Embedder.from_pretrained(tiny_bert)
    vectors = start.encode(STATEMENTS)
    weights = [np.random.default_rng(i).normal(size=(32, 32)).astype(np.float32) for i in range(2)]
    for weight in weights:
        with_linear(start, weight)
    start.save(tmp_path / "mapped")
    found = Embedder.from_pretrained(tmp_path / "mapped").encode(STATEMENTS)
    np.testing.assert_allclose(found, apply_linear(weights[1] @ weights[0], vectors), atol=1e-5)


def test_a_better_model_is_chosen_by_the_dev_labels(tiny_bert: Path, tmp_path: Path) -> None:
    """The dev labels are other sentences of the same classes; more text only helps where it is used."""
    dev = [{"text": sentence, "label": sentence.split()[1]} for sentence in unlabelled()[::2]]
    result = adapt(tiny_bert, classes(), tmp_path / "out", dev=dev, text=unlabelled(), only=["label spreading"])
    assert result.held_out == "24 dev labels"
    assert [row.name for row in result.rows] == ["as it is", "label spreading"]
    assert result.verdict.startswith(("Use label spreading", "Do not train"))


def test_a_call_that_ended_between_training_and_saving_is_continued(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "SimCSE")
    save = Embedder.save

    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Embedder, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        adapt(tiny_bert, scored(), tmp_path / "out", folds=2, only=["SimCSE"])
    monkeypatch.setattr(Embedder, "save", save)
    assert adapt(tiny_bert, scored(), tmp_path / "out", folds=2, only=["SimCSE"]).model is not None


def test_an_interrupted_call_is_continued(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the third fit; the first two are not computed again, and the result is that of one call."""

    def call(
        out: Path, only: Sequence[str] = ("SimCSE", "linear map"), report: Callable[[str], None] = lambda line: None
    ) -> AdaptResult:
        return adapt(tiny_bert, scored(), out, folds=2, only=only, report=report)

    whole = call(tmp_path / "whole")
    from diffaug.adaptation import trials

    train, calls = trials.train, []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise TrainingInterrupted(2)
        return train(*args, **options)

    monkeypatch.setattr(trials, "train", interrupted)
    with pytest.raises(TrainingInterrupted):
        call(tmp_path / "out")
    assert not (tmp_path / "out" / "adapt.json").exists()
    for change, message in (
        ({"seed": 1}, "seed was 42, is 1"),
        ({"folds": 3}, "folds was 2, is 3"),
    ):
        with pytest.raises(DiffaugError, match=message):
            adapt(tiny_bert, scored(), tmp_path / "out", **{"folds": 2, "only": ["SimCSE", "linear map"], **change})
    with pytest.raises(DiffaugError, match="was started with other inputs or settings"):
        adapt(tiny_bert, scored()[:-1], tmp_path / "out", folds=2, only=["SimCSE", "linear map"])
    lines: list[str] = []
    again = call(tmp_path / "out", ["simcse", "Linear Map"], lines.append)
    # The first fold is read.
    assert [line for line in lines if line.endswith("…")] == ["SimCSE: fold 2 of 2 …"]
    assert len(calls) == 3 + (again.chosen == "SimCSE")
    strip = lambda result: [(row.name, row.score) for row in result.rows]  # noqa: E731
    assert strip(again) == strip(whole)


def test_another_model_is_refused_by_name(
    tiny_bert: Path, tiny_roberta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "compare_all", fail)
    with pytest.raises(KeyboardInterrupt):
        adapt(tiny_bert, scored(), tmp_path / "out", only=[])
    with pytest.raises(DiffaugError, match=r"model was .*, is "):
        adapt(tiny_roberta, scored(), tmp_path / "out", only=[])


@pytest.mark.parametrize("family", ["mpnet", "bert"])
def test_models_without_prefixes_have_adapters(family: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    encoder = Embedder.from_pretrained(tiny(family)).encoder
    settings = candidates._view_settings(encoder)
    assert settings == (("views.kind=adapter", "views.bottleneck=64") if family == "mpnet" else ())
    assert encoder.backbone.config._attn_implementation != "diffaug_prefix"


def test_a_model_with_prefixes_keeps_them(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapted once by DiffAug, and then again; SimCSE, which would drop the prefixes, is no candidate."""
    prefer(monkeypatch, "DiffAug")
    first = adapt(tiny_bert, scored(), tmp_path / "first", folds=2, only=["DiffAug"])
    assert first.model is not None
    second = adapt(first.model, scored(), tmp_path / "second", folds=2, only=["DiffAug"])
    assert second.model is not None
    assert Embedder.from_pretrained(second.model).encoder.config.prefix is not None
    with pytest.raises(DiffaugError, match="there are 'as it is', 'linear map', 'DiffAug', "):
        adapt(first.model, scored(), tmp_path / "third", only=["SimCSE"])


def test_a_call_that_ended_before_its_request_was_written_is_continued(tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").write_text("")
    (tmp_path / "out" / "provenance.json").write_text("{")  # a full disk
    result = adapt(tiny_bert, scored(), tmp_path / "out", folds=2, only=[])
    assert result.chosen == "as it is"


def test_the_folder_of_a_result_is_no_model_but_says_where_it_is(tiny_bert: Path, tmp_path: Path) -> None:
    adapt(tiny_bert, classes(), tmp_path / "classes", folds=2, only=[])
    with pytest.raises(DiffaugError, match=r"a folder of diffaug adapt; load its model: .*classes/model"):
        Embedder.from_pretrained(tmp_path / "classes")
    adapt(tiny_bert, scored(), tmp_path / "pairs", folds=2, only=[])
    with pytest.raises(DiffaugError, match="a folder of diffaug adapt without a model"):
        adapt(tmp_path / "pairs", scored(), tmp_path / "again")


def test_the_command_prints_table_verdict_and_model(tiny_bert: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in classes()))
    arguments = [str(tiny_bert), "--labels", str(labels)]
    result = CliRunner().invoke(
        app, ["adapt", *arguments, "--out", str(tmp_path / "out"), "--only", "as it is", "--more", "40"]
    )
    assert result.exit_code == 0, result.output
    assert "Do not train" in result.stdout
    assert "40 more labels would bring" in result.stdout
    assert f"diffaug predict sentences.txt --model {tmp_path / 'out' / 'model'}" in result.stdout
    result = CliRunner().invoke(app, ["forecast", *arguments, "--more", "40"])
    assert result.exit_code == 0, result.output
    assert "40 more labels would bring" in result.stdout
    assert result.stdout.count("labels   accuracy") == 4
    shutil.rmtree(tmp_path / "out" / "model")


def test_the_command_says_how_to_forecast_a_trained_candidate(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, "DiffAug")
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps(row) + "\n" for row in scored()))
    arguments = [str(tiny_bert), "--labels", str(labels), "--out", str(tmp_path / "out"), "--folds", "2"]
    result = CliRunner().invoke(app, ["adapt", *arguments, "--only", "DiffAug", "--only", "linear map"])
    assert result.exit_code == 0, result.output
    assert "points with linear map" in result.stdout
    assert 'with the same options and --candidate "DiffAug"' in " ".join(result.stdout.split())
