"""A run from recipe to model: what it leaves behind, what it chooses, how it fails."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
import yaml
from accelerate.state import AcceleratorState, GradientState, PartialState
from safetensors.torch import load_file

from diffaug import Embedder
from diffaug.cli import main
from diffaug.config import Recipe, load_recipe, recipe_names
from diffaug.errors import DiffaugError
from diffaug.training import scoring
from diffaug.training.run import train


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_runs_two_steps_in_every_stage(
    name: str,
    tiny_bert: Path,
    data_files: dict[str, str],
    labelled_pairs: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    recipe = load_recipe(name)
    if recipe.views.kind == "synonym":
        request.getfixturevalue("tiny_wordnet")
    changes = [f"model.backbone={tiny_bert}", "data.test=null"]
    if recipe.replaced.generator is not None:
        changes.append(f"replaced.generator={request.getfixturevalue('tiny_masked_lm')('bert')}")
    if recipe.method == "distil":
        changes.append(f"distil.teacher={tiny_bert}")
    changes += [f"data.{kind}={path}" for kind, path in data_files.items()]
    stages = [number for number in (1, 2) if getattr(recipe, f"stage{number}") is not None]
    for number in stages:
        changes += [f"stage{number}.steps=2", f"stage{number}.batch_size=8"]
    if 2 in stages:
        changes.append("stage2.aux_batch_size=8")
    if recipe.data.nli_classes == 3:
        changes.append(f"data.nli={labelled_pairs}")
    result = train(load_recipe(name, changes), tmp_path / "run", quiet=True)
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {(line["stage"], line["step"]) for line in steps if "loss" in line} == {(number, 2) for number in stages}
    assert np.isfinite(result.scores["dev"])
    assert Embedder.from_pretrained(result.model).encode(["A sentence."]).shape == (1, 32)


def test_what_a_run_leaves_behind(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe("semi-aux")
    result = train(recipe, tmp_path / "run", quiet=True)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "best",
        "data.json",
        "metrics.jsonl",
        "provenance.json",
        "recipe.yaml",
        "summary.json",
    ]
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text()) == recipe.to_dict()
    description = json.loads((result.model / "diffaug.json").read_text())
    assert description["method"] == "tiny-semi-aux"
    assert description["recipe"] == recipe.to_dict()
    assert description["scores"]["test"] == pytest.approx(result.scores["test"])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = {key for line in lines for key in line}
    assert {"loss", "contrastive", "nli", "delta", "kappa", "alignment", "uniformity", "dev"} <= logged
    assert {"negatives_per_anchor", "lr_backbone", "lr_views"} <= logged
    assert [line["negatives_per_anchor"] for line in lines if "negatives_per_anchor" in line] == [7]


def test_the_best_checkpoint_is_the_result(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    result = train(make_recipe("sup", stage2={"steps": 12}), tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    dev = {line["step"]: line["dev"] for line in lines if "dev" in line}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert result.scores["dev"] == max(dev.values())
    assert dev[summary["best_at"]["step"]] == max(dev.values())
    # The saved model, loaded on its own, has that score: nothing was lost on the way.
    from diffaug.data.read import read_scored_pairs
    from diffaug.training.scoring import spearman

    pairs = read_scored_pairs(make_recipe().data.dev)  # type: ignore[arg-type]
    assert spearman(Embedder.from_pretrained(result.model), pairs) == pytest.approx(max(dev.values()), abs=1e-3)


def test_stage_1_leaves_the_backbone_alone_and_stage_2_does_not(
    make_recipe: Callable[..., Recipe], tiny_bert: Path, tmp_path: Path
) -> None:
    source = load_file(tiny_bert / "model.safetensors")
    only_first = make_recipe("sup", stage2={"steps": 1, "learning_rate": 0.0})
    frozen = load_file(train(only_first, tmp_path / "a", quiet=True).model / "diffaug.safetensors")
    assert all(torch.equal(frozen[f"backbone.{k}"], v) for k, v in source.items() if f"backbone.{k}" in frozen)
    trained = load_file(train(make_recipe("sup"), tmp_path / "b", quiet=True).model / "diffaug.safetensors")
    assert any(not torch.equal(trained[f"backbone.{k}"], v) for k, v in source.items() if f"backbone.{k}" in trained)


def test_without_dev_data_alignment_and_uniformity_choose(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    result = train(make_recipe("sup", data={"dev": None, "test": None}), tmp_path / "run", quiet=True)
    assert set(result.scores) == {"alignment", "uniformity"}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    sums = {x["step"]: x["alignment"] + x["uniformity"] for x in lines if x["stage"] == 2 and "alignment" in x}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["best_at"]["step"] == min(sums, key=sums.__getitem__)


def test_automatic_stage_1_says_why_it_ended(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe("sup", stage1={"steps": "auto", "max_steps": 6})
    result = train(recipe, tmp_path / "run", quiet=True)
    assert result.stage1_end == "after 6 steps: the maximum (stage1.max_steps)"


def test_patience_ends_stage_2(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe("sup", stage2={"steps": 40, "learning_rate": 0.0}, loop={"eval_every": 2, "patience": 2})
    train(recipe, tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines if line["stage"] == 2) == 6  # the first is best, two more are not


def test_a_loss_that_is_no_number_stops_the_run(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe("sup", stage2={"steps": 40, "learning_rate": 1e30}, loop={"clip": None, "eval_every": 10})
    with pytest.raises(DiffaugError, match="the loss is not finite"):
        train(recipe, tmp_path / "run", quiet=True)


def test_collapsed_embeddings_stop_the_run(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffaug.training.scoring.anisotropy", lambda vectors: torch.tensor(0.9995))
    with pytest.raises(DiffaugError, match="collapsed"):
        train(make_recipe("sup"), tmp_path / "run", quiet=True)


def test_accumulated_batches_add_up(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe("sup", loop={"accumulate": 2}, stage2={"steps": None, "epochs": 1.0, "batch_size": 8})
    train(recipe, tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    # 40 triplets make 5 batches of 8, two for each step.
    assert max(line["step"] for line in lines if line["stage"] == 2) == 2


def test_missing_data_is_named(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match=r"needs data.unlabelled .*--set data.unlabelled=FILE"):
        train(make_recipe("semi", data={"unlabelled": None}), tmp_path / "a", quiet=True)
    with pytest.raises(DiffaugError, match=r"needs data.nli"):
        train(make_recipe("semi", data={"nli": None}), tmp_path / "b", quiet=True)
    assert not (tmp_path / "a").exists(), "a run that never began can be started again in the same folder"


@pytest.mark.parametrize("test_file", [True, False])
def test_dev_is_also_scored_before_training(
    test_file: bool, make_recipe: Callable[..., Recipe], tiny_bert: Path, tmp_path: Path
) -> None:
    recipe = make_recipe("sup", **({} if test_file else {"data": {"test": None}}))
    result = train(recipe, tmp_path / "run", quiet=True)
    from diffaug.data.read import read_scored_pairs
    from diffaug.training.scoring import spearman

    # What whoever trains nothing has: mean pooling, and neither template nor prefix.
    plain = spearman(Embedder.from_pretrained(tiny_bert), read_scored_pairs(recipe.data.dev))  # type: ignore[arg-type]
    expected = {"dev": plain, "test": plain} if test_file else {"dev": plain}
    assert result.before == pytest.approx(expected)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["before"] == pytest.approx(expected)


def test_where_nothing_learns_there_is_no_before(tiny_bert: Path, data_files: dict[str, str], tmp_path: Path) -> None:
    changes = [f"model.backbone={tiny_bert}", f"data.dev={data_files['dev']}", f"data.test={data_files['dev']}"]
    result = train(load_recipe("untrained-cls", changes), tmp_path / "run", quiet=True)
    assert set(result.scores) >= {"dev", "test"}
    assert result.before == {}, "of the same model with another pooling, it would be no score before training"


@pytest.mark.parametrize(
    ("setting", "source", "count"), [("semi", "unlabelled", 1), ("sup", "nli", 1), ("semi-aux", "unlabelled", 1)]
)
def test_too_few_examples_for_a_stage_are_noticed_before_the_first(
    setting: str,
    source: str,
    count: int,
    make_recipe: Callable[..., Recipe],
    data_files: dict[str, str],
    tmp_path: Path,
) -> None:
    original = Path(data_files[source])
    few = tmp_path / original.name
    header = 1 if source == "nli" else 0
    few.write_text("\n".join(original.read_text("utf-8").splitlines()[: header + count]) + "\n", "utf-8")
    with pytest.raises(
        DiffaugError, match=rf"stage [12] cannot run with .*data\.{source}: {count} examples are too few"
    ):
        train(make_recipe(setting, data={source: str(few)}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists(), "the run has begun"


def test_a_batch_larger_than_the_data_holds_all_of_it(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    train(make_recipe("sup", stage2={"batch_size": 1000, "steps": 2}), tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["negatives_per_anchor"] for line in lines if "negatives_per_anchor" in line] == [79]


def test_slow_steps_leave_lines_in_a_log(
    make_recipe: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where the loss is rarely logged; and the log of the measurements does not go by the clock."""
    monkeypatch.setattr("diffaug.training.tracking._LINE_EVERY", 0.0)
    train(make_recipe("sup", stage2={"steps": 3}, loop={"eval_every": 100}), tmp_path / "run")
    said = capsys.readouterr().err.splitlines()
    steps = [line.split("  loss ")[0] for line in said if "left of the stage" in line]
    expected = [(1, 1, 4), (1, 2, 4), (1, 3, 4), (2, 1, 3), (2, 2, 3)]  # the last of a stage is evaluated
    assert steps == [f"stage {stage}  step {step:>5} of {total}" for stage, step, total in expected]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["step"]) for line in lines if "loss" in line] == [(1, 4), (2, 3)]


@pytest.mark.parametrize("steps", [None, 3])
def test_a_stage_that_ends_before_its_first_evaluation_says_what_to_set(
    make_recipe: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int | None
) -> None:
    """Few labels are few batches, and an epoch is over at once; who has set a number knows."""
    train(make_recipe("sup", stage2={"steps": steps, "epochs": 1}, loop={"eval_every": 100}), tmp_path / "run")
    said = capsys.readouterr().err
    assert ("stage 2 has only 5 steps" in said and "stage2.steps=200" in said) == (steps is None)
    assert "stage 1 has" not in said  # its number is set


def test_few_labels_are_drawn(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    for labels, triplets in ((0.5, 20), (10, 10)):
        from diffaug.data.corpus import Corpus
        from diffaug.methods import method_class
        from diffaug.models.backbone import load_backbone

        recipe = make_recipe("sup", data={"labels": labels})
        method = method_class("diffaug").build(recipe, *load_backbone(recipe.model.backbone))
        assert len(Corpus(recipe.data, method.collator).related()) == triplets


def test_labelled_pairs_can_take_the_place_of_triplets(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    rows = ["premise\thypothesis\tlabel"]
    for i in range(12):
        for label in ("entailment", "neutral", "contradiction"):
            rows.append(f"The dog number {i} runs\tHypothesis {label} {i}\t{label}")
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n")
    for setting in ("semi", "sup"):
        recipe = make_recipe(setting, data={"nli": str(tmp_path / "pairs.tsv")})
        assert train(recipe, tmp_path / setting, quiet=True).scores


def _torchrun_process(rank: int, port: int, arguments: list[str]) -> None:
    """A forked process imports nothing again, which would take most of the test's time."""
    found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in found.items()}, MASTER_ADDR="127.0.0.1")
    for state in (AcceleratorState, GradientState, PartialState):  # those of an earlier run of the parent
        state._reset_state()
    sys.argv = ["diffaug", *arguments]
    main()


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two processes take two GPUs, or none")
def test_two_processes_train_as_one(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    """Two processes, as `torchrun` starts them, end with the weights of one on the whole batches (dropout off)."""
    from transformers import AutoConfig

    from diffaug.models.backbone import load_backbone

    recipe = make_recipe("semi-aux", views={"dropout": 0.0}, stage1={"steps": 3}, stage2={"steps": 3})
    quiet_backbone = tmp_path / "backbone"
    backbone, tokenizer = load_backbone(recipe.model.backbone)
    config = AutoConfig.from_pretrained(recipe.model.backbone)
    backbone.config.hidden_dropout_prob = backbone.config.attention_probs_dropout_prob = 0.0
    assert config.hidden_dropout_prob > 0
    backbone.save_pretrained(quiet_backbone)
    tokenizer.save_pretrained(quiet_backbone)
    values: dict[str, Any] = recipe.to_dict()
    values["model"]["backbone"] = str(quiet_backbone)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    one = train(values, tmp_path / "one", quiet=True)
    arguments = ["train", "--recipe", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "two"), "--quiet"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(_torchrun_process, args=(port, arguments), nprocs=2, start_method="fork")
    first, second = (
        load_file(one.model / "diffaug.safetensors"),
        load_file(tmp_path / "two" / "best" / "diffaug.safetensors"),
    )
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_model_trained_in_16_bits_is_saved_in_32(
    precision: str, make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    if precision == "fp16" and not torch.cuda.is_available():
        pytest.skip("fp16 needs a GPU")
    result = train(make_recipe("semi-aux", loop={"precision": precision}), tmp_path / "a", quiet=True)
    assert np.isfinite(result.scores["dev"])
    saved = load_file(result.model / "diffaug.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU takes it")
def test_fp16_is_refused_on_a_cpu(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match="fp16 needs a GPU"):
        train(make_recipe("sup", loop={"precision": "fp16"}), tmp_path / "b", quiet=True)
    assert not (tmp_path / "b").exists()


def test_the_scores_of_a_model_trained_in_16_bits_are_those_it_has_in_32(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "spearman", lambda embedder, pairs: 12.5)
    recipe = make_recipe(loop={"precision": "bf16"}, data={"test": None})
    result = train(recipe, tmp_path / "half", quiet=True)
    assert result.scores["dev"] == 12.5
    assert Embedder.from_pretrained(tmp_path / "half" / "best").provenance.scores["dev"] == 12.5
    whole = train(make_recipe(data={"test": None}), tmp_path / "whole", quiet=True)
    assert whole.scores["dev"] != 12.5


def test_the_gradient_cache_trains_in_the_loop(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    scores = []
    for name, cache in (("plain", None), ("cached", 5)):
        recipe = make_recipe("semi", stage2={"gradient_cache": cache, "steps": 2}, views={"dropout": 0.0})
        train(recipe, tmp_path / name, quiet=True)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        scores.append([line["loss"] for line in lines if line["stage"] == 1 and "loss" in line])
    assert scores[0] == pytest.approx(scores[1], rel=1e-5), "stage 1 does not know of it"
