"""The check of the fast path: it finds a broken one, and leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from diffaug import train
from diffaug.config import Recipe, load_recipe
from diffaug.models import padded_groups
from diffaug.training.checkpoint import checkpoints
from diffaug.training.execution import check, cpu
from diffaug.training.execution.check import fast_path_difference
from diffaug.training.execution.executor import PlainExecutor, fast_executor
from diffaug.training.optimizer import trainable
from diffaug.training.precision import Precision

CPU = torch.device("cpu")


def difference(run: Any, number: int, precision: str = "fp32", encode: Any = None) -> str | None:
    """What the check says about the fast path of a CPU, or about another function from rows to vectors."""
    method, inputs = run[:2]
    stage, batch = inputs(number)
    learning = trainable(method, stage)
    method.begin(stage)
    computes = Precision(precision, CPU)
    make = fast_executor(method, stage, computes, CPU, learning)
    assert make is not None
    if encode is not None:
        make = lambda: PlainExecutor(lambda rows: encode(method, rows))  # noqa: E731
    return fast_path_difference(method, stage, batch, make, computes, learning)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("setting", ["sup", "semi-aux"])
def test_the_fast_path_passes(setting: str, precision: str, tiny_run: Callable[..., Any]) -> None:
    run = tiny_run(setting)
    assert difference(run, 1, precision) is None
    assert difference(run, 2, precision) is None


@pytest.mark.parametrize("recipe", ["bert-flow-nli", "consert-unsup", "diffaug-semi-lora-4"])
def test_the_fast_path_of_other_methods_passes(recipe: str, recipe_run: Callable[..., Any]) -> None:
    assert difference(recipe_run(recipe), 2) is None


BROKEN: dict[str, Any] = {
    "a vector": lambda method, rows: method.represent(rows)[[1, *range(1, len(rows))]],
    "a gradient": lambda method, rows: (v := method.represent(rows)) * 0.9 + 0.1 * v.detach(),
    "no gradient": lambda method, rows: method.represent(rows).detach().requires_grad_(),
    "NaN": lambda method, rows: method.represent(rows) * float("nan"),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_path_does_not_pass(what: str, precision: str, tiny_run: Callable[..., Any]) -> None:
    if (what, precision) == ("a gradient", "bf16"):
        pytest.skip("a tenth is within the tolerance of 16 bits")
    found = difference(tiny_run("sup"), 2, precision, BROKEN[what])
    assert found is not None
    assert "differs by" in found


def test_a_broken_operation_leads_to_the_plain_path_with_one_line(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A wrong backward of the operation that pads packed sequences; vectors and loss are right."""
    plain = train(make_recipe("sup", loop={"fast": False}), tmp_path / "plain", quiet=True)
    monkeypatch.setattr(
        padded_groups._Pad,
        "backward",
        staticmethod(lambda ctx, *gradients: (gradients[0].index_select(0, ctx.saved_tensors[0].flip(0)), None, None)),
    )
    found = train(make_recipe("sup"), tmp_path / "checked")
    lines = [line for line in capsys.readouterr().err.splitlines() if "failed its check" in line]
    assert [line[:7] for line in lines] == ["stage 1", "stage 2"], "one line per stage"
    assert "runs on the plain path, because the fast path failed its check: the gradient of encoder." in lines[1]
    assert_same_weights(plain.model, found.model)
    trusted = train(make_recipe("sup", loop={"check_fast": False}), tmp_path / "trusted")
    assert "failed its check" not in capsys.readouterr().err
    with pytest.raises(AssertionError):
        assert_same_weights(plain.model, trusted.model)


@pytest.mark.parametrize("recipe", ["diffaug", "bert-flow-nli", "diffcse"])
def test_a_run_is_the_same_with_and_without_the_check(
    recipe: str,
    make_recipe: Callable[..., Recipe],
    tiny_masked_lm: Callable[[str], Path],
    tiny_bert: Path,
    data_files: dict[str, str],
    tmp_path: Path,
) -> None:
    models = []
    for checked in (True, False):
        made = make_recipe("semi-aux", loop={"check_fast": checked})
        if recipe != "diffaug":
            changes = [f"model.backbone={tiny_bert}", "stage2.steps=3", "stage2.batch_size=8", "data.test=null"]
            changes += [f"data.{kind}={path}" for kind, path in data_files.items()]
            if recipe == "diffcse":
                changes.append(f"replaced.generator={tiny_masked_lm('bert')}")
            made = load_recipe(recipe, [*changes, f"loop.check_fast={checked}"])
        models.append(train(made, tmp_path / f"{checked}", quiet=True).model)
    assert_same_weights(*models)
    logs = [(tmp_path / f"{checked}" / "metrics.jsonl").read_text() for checked in (True, False)]
    assert logs[0] == logs[1]


def test_the_plain_path_computes_in_parts(tiny_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    method, inputs = tiny_run("sup")
    rows = len(inputs(2)[1].tokens)
    represent, seen = method.represent, []

    def watched(batch: Any) -> Tensor:
        seen.append(len(batch.input_ids))
        return represent(batch)

    monkeypatch.setattr(method, "represent", watched)
    monkeypatch.setattr(cpu, "encode_packed", lambda method: represent)
    assert difference((method, inputs), 2) is None
    assert max(seen) <= -(-rows // check._PARTS)


def test_a_resumed_stage_goes_on_as_it_began(
    make_recipe: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cut_off: Callable[[Recipe, Path], None],
) -> None:
    """Its weights are others by then, and might pass a check that failed before."""
    recipe = make_recipe("sup", loop={"save_minutes": 0.0}, stage1={"steps": 2}, stage2={"steps": 6})
    with monkeypatch.context() as patch:
        patch.setattr("diffaug.training.loop.fast_path_difference", lambda *given: "it is broken")
        whole = train(recipe, tmp_path / "whole", quiet=True)
        cut_off(recipe, tmp_path / "cut")
    checkpoint = checkpoints(tmp_path / "cut" / "checkpoints")[-1]
    assert json.loads((checkpoint / "state.json").read_text())["fast_failed"] is True
    monkeypatch.setattr("diffaug.training.loop.fast_path_difference", lambda *given: pytest.fail("checked again"))
    assert_same_weights(whole.model, train(recipe, tmp_path / "cut", resume=True, quiet=True).model)


def test_nothing_is_checked_where_there_is_only_the_plain_path(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffaug.training.loop.fast_path_difference", lambda *given: pytest.fail("checked"))
    train(make_recipe("sup", loop={"fast": False}), tmp_path / "run", quiet=True)


def assert_same_weights(first: Path, second: Path) -> None:
    one, other = (load_file(folder / "diffaug.safetensors") for folder in (first, second))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
