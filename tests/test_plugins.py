"""Methods, views, losses and tasks of one's own: registered, named in recipes and grids, saved with models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.config import Recipe, load_recipe, recipe_from_dict
from diffaug.config.registry import LOSSES, METHODS, TASKS, VIEWS, load_plugin, register_loss, register_method
from diffaug.errors import DiffaugError

pytestmark = pytest.mark.usefixtures("clean_registry")

METHOD = """
from diffaug import TwoStage, register_method

@register_method("mine")
class Mine(TwoStage):
    default_options = {"weight": 2.0}

    def total(self, found):
        return self.options["weight"] * super().total(found)
"""

# A learned bias of each view on the embeddings; at inference their mean.
VIEWS_PLUGIN = """
from contextlib import contextmanager
import torch
from diffaug import Views, register_views
from diffaug.models.embeddings import EmbeddingOutput

@register_views("bias")
class Bias(Views):
    def __init__(self, backbone, views, start=0.5):
        super().__init__()
        self._embeddings = EmbeddingOutput(backbone)
        start = start * torch.arange(1.0, views + 1).unsqueeze(1)
        self.bias = torch.nn.Parameter(start.repeat(1, backbone.config.hidden_size))

    @contextmanager
    def applied(self, batch):
        bias = self.bias.mean(0) if batch.view_ids is None else self.bias[batch.view_ids].unsqueeze(1)
        with self._embeddings.changed(lambda embeddings: embeddings + bias):
            yield {}
"""

TEXT_PLUGIN = """
from diffaug import TextViews, register_views

@register_views("shout")
class Shout(TextViews):
    def __init__(self, seed, mark):
        self.mark = f"{mark}{seed}"

    def __call__(self, sentence):
        return f"{sentence} {self.mark}"
"""

TASK_PLUGIN = """
from diffaug import TaskResult, register_task
from diffaug.data.records import ScoredPairs
from diffaug.evaluation.own_data import PairsTask

@register_task("constant")
class Constant:
    def sentences(self):
        return ["a", "b"]

    def score(self, embeddings):
        assert len(embeddings(["b"])) == 1
        return TaskResult(self.name, "own", "constant", 12.5, 2, None)

@register_task("three-pairs")
def three_pairs():
    pairs = ScoredPairs(["a dog", "a cat", "a cow"], ["a dog", "the market", "a bird"], [5, 0, 3])
    return PairsTask("another name", pairs)
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text, "utf-8")
        return tmp_path / name

    return write


@pytest.fixture
def settings(tiny_bert: Path, data_files: dict[str, str]) -> dict[str, Any]:
    """A recipe of two steps for unlabelled sentences."""
    return {
        "name": "own",
        "method": "simcse",
        "model": {"backbone": str(tiny_bert), "pooling": "cls"},
        "data": {"unlabelled": data_files["unlabelled"], "dev": data_files["dev"], "max_length": 16},
        "stage2": {"steps": 2, "batch_size": 8},
        "loop": {"eval_every": 2},
    }


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, (done.output, done.exception)
    return done.output if code == 0 else str(done.exception)


# The registry


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    minimal = {"name": "x", "method": "simcse"}
    with pytest.raises(
        DiffaugError, match=r"^r: unknown method 'simcs'; did you mean 'simcse'\? Known: consert, .*plugins"
    ):
        recipe_from_dict({**minimal, "method": "simcs"}, "r")
    with pytest.raises(
        DiffaugError, match=r"unknown kind of views 'nois'; known: adapter, cutoff, dropout, lora, prefix, "
    ):
        recipe_from_dict({**minimal, "views": {"kind": "nois"}})
    with pytest.raises(DiffaugError, match=r"unknown loss 'nce'; .*info_nce, nt_xent"):
        recipe_from_dict({**minimal, "stage2": {"loss": "nce"}})


def test_a_name_belongs_to_one_module() -> None:
    with pytest.raises(DiffaugError, match="the method 'simcse' of test_plugins has the name of one of diffaug"):
        register_method("simcse")(type("Mine", (), {}))
    first = register_method("mine")(type("Mine", (), {"__module__": "one"}))
    again = register_method("mine")(type("Mine", (), {"__module__": "one"}))  # a cell of a notebook that is run again
    assert METHODS.get("mine") is again
    assert first is not again
    with pytest.raises(DiffaugError, match="has the name of one of one; register it under another name"):
        register_method("mine")(type("Mine", (), {"__module__": "two"}))


def test_what_the_package_lists_is_there() -> None:
    for registry in (METHODS, VIEWS, LOSSES):
        for name in registry.names():
            registry.get(name)
    with pytest.raises(DiffaugError, match="unknown task 'x'; known: none"):
        TASKS.get("x")


def test_an_installed_package_is_found_by_its_entry_points(
    write: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffaug.methods import method_class

    write("a_package.py", METHOD)
    (tmp_path / "a_package-1.dist-info").mkdir()
    write("a_package-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: a-package\nVersion: 1\n")
    write(
        "a_package-1.dist-info/entry_points.txt",
        "[diffaug.methods]\nmine = a_package:Mine\nbroken = a_package:Missing\n[diffaug.views]\nodd = a_package:Mine\n",
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert {"mine", "broken"} <= set(METHODS.names())
    recipe_from_dict({"name": "x", "method": "mine"})
    assert "a_package" not in sys.modules, "a recipe is checked without importing anything"
    assert method_class("mine").__name__ == "Mine"
    with pytest.raises(DiffaugError, match=r"the plugin a_package:Missing \(diffaug.methods\) cannot be imported"):
        method_class("broken")


# Plugins


def test_plugins_are_files_beside_the_recipe_or_modules(
    write: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("own_method.py", METHOD)
    write("own_text.py", TEXT_PLUGIN)
    write("a_task_module.py", TASK_PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    base = write("base.yaml", "name: base\nmethod: mine\nplugins: [own_method.py, a_task_module]\n")
    child = write("child.yaml", f"extends: {base}\nplugins: [own_text.py]\nviews: {{kind: shout}}\n")
    recipe = load_recipe(str(child))
    assert recipe.plugins == [str(file), "a_task_module", str(tmp_path / "own_text.py")]
    assert set(TASKS.names()) == {"constant", "three-pairs"}
    # The resolved recipe can be read from anywhere.
    (tmp_path / "elsewhere").mkdir()
    resolved = write("elsewhere/recipe.yaml", recipe.to_yaml())
    assert load_recipe(str(resolved)) == recipe
    assert load_plugin(str(file)) == str(file), "it is not run twice"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "broken.py cannot be imported: FileNotFoundError"),
        (
            "x = 1\n1 / 0\n",
            r"broken.py cannot be imported: ZeroDivisionError: division by zero \(line 2 of .*broken.py\)",
        ),
        (
            "import no_such_package\n",
            "broken.py cannot be imported: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("def f(:\n", "broken.py cannot be imported: SyntaxError"),
    ],
)
def test_a_plugin_that_cannot_be_imported(
    write: Callable[[str, str], Path], tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        write("broken.py", text)
    with pytest.raises(DiffaugError, match=message):
        load_plugin("broken.py", tmp_path)
    with pytest.raises(
        DiffaugError, match=r"'no_module' \(a module; for a file, write its path with .py\) cannot be imported"
    ):
        load_plugin("no_module")


# In training


def test_a_loss_gets_the_vectors_and_its_options(recipe_run: Callable[..., Any]) -> None:
    import torch

    seen: list[Any] = []

    @register_loss("margin")
    def margin(anchors: Any, positives: Any, negatives: Any, temperature: float, *, margin: float = 0.0) -> Any:
        seen.append((anchors.shape, positives.shape, negatives, temperature, margin))
        return anchors.sum() * 0 + margin

    changes = ["stage2.loss=margin", "stage2.loss_options={margin: 0.5}", "stage2.temperature=0.3"]
    method, inputs, _ = recipe_run("simcse-unsup", *changes)
    stage, batch = inputs(2)
    losses = method.losses(stage, batch, method.represent)
    width = method.encoder.width
    assert seen == [(torch.Size([8, width]), torch.Size([8, width]), None, 0.3, 0.5)]
    assert losses["contrastive"].item() == 0.5
    with pytest.raises(DiffaugError, match=r"stage2.loss_options does not fit margin of test_plugins: .*'margn'"):
        recipe_run("simcse-unsup", "stage2.loss=margin", "stage2.loss_options={margn: 0.5}")


def test_a_method_with_options(
    write: Callable[[str, str], Path], recipe_run: Callable[..., Any], data_files: dict[str, str]
) -> None:
    load_plugin(str(write("own_method.py", METHOD)))
    totals = {}
    for weight in (None, 6):
        changes = [] if weight is None else [f"options.weight={weight}"]
        method, inputs, _ = recipe_run("simcse-unsup", "method=mine", *changes)
        losses = method.losses(*inputs(2), method.represent)
        totals[weight] = float(losses["loss"] / losses["contrastive"])
    assert totals == pytest.approx({None: 2.0, 6: 6.0})
    with pytest.raises(DiffaugError, match="the method 'mine' has no option 'wieght'; its options: weight"):
        recipe_run("simcse-unsup", "method=mine", "options.wieght=1")


def test_views_of_text_make_the_second_sentence(
    write: Callable[[str, str], Path], recipe_run: Callable[..., Any]
) -> None:
    load_plugin(str(write("own_text.py", TEXT_PLUGIN)))
    changes = ["views.kind=shout", "seed=7"]
    method, inputs, _ = recipe_run("simcse-unsup", *changes, "views.options={mark: day}")
    _, batch = inputs(2)
    ids = [
        row[mask.bool()].tolist() for row, mask in zip(batch.tokens.input_ids, batch.tokens.attention_mask, strict=True)
    ]
    added = method.collator.tokenizer("day7", add_special_tokens=False)["input_ids"]
    for first, second in zip(ids[:8], ids[8:], strict=True):
        assert second == [*first[:-1], *added, first[-1]] or len(second) >= 16
    with pytest.raises(DiffaugError, match=r"views.options does not fit Shout of own_text.py: missing .*'mark'"):
        recipe_run("simcse-unsup", *changes)


def test_learned_views_are_saved_with_the_name_of_their_plugin(
    write: Callable[[str, str], Path], settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from diffaug import Embedder
    from diffaug.integrations.st_native import why_not_native

    write("own_views.py", VIEWS_PLUGIN)
    kind = {"kind": "bias", "options": {"start": 0.25}}
    recipe = write("own.yaml", yaml.safe_dump({**settings, "plugins": ["own_views.py"], "views": kind}))
    run("train", "--recipe", str(recipe), "--out", str(tmp_path / "run"))
    model = tmp_path / "run" / "best"
    saved = json.loads((model / "diffaug.json").read_text("utf-8"))["model"]["plugin_views"]
    assert saved == {"kind": "bias", "plugin": "own_views.py", "views": 2, "options": {"start": 0.25}}
    embedder = Embedder.from_pretrained(model)
    expected = embedder.encode(["A dog runs."])
    bias = embedder.encoder.views.bias  # type: ignore[union-attr,attr-defined]
    assert float((bias - bias.new_tensor([[0.25], [0.5]])).abs().max()) > 0, "it has learned"
    assert why_not_native(embedder.encoder) == "views of a plugin"

    # Another process, in which nobody has loaded the plugin.
    monkeypatch.setattr(VIEWS, "_plugins", {})
    views = "the model has the views 'bias' of the plugin own_views.py, which is not loaded"
    message = rf"diffaug.json: {views}; load it with --plugin own_views.py"
    with pytest.raises(DiffaugError, match=message):
        Embedder.from_pretrained(model)
    for name in [name for name in sys.modules if name.startswith("diffaug_plugin_own_views")]:
        del sys.modules[name]
    run("similarity", "one", "two", "--model", str(model), "--plugin", str(tmp_path / "own_views.py"))
    np.testing.assert_array_equal(Embedder.from_pretrained(model).encode(["A dog runs."]), expected)


def test_a_run_is_resumed_with_a_plugin_that_has_moved(
    write: Callable[[str, str], Path], settings: dict[str, Any], tmp_path: Path
) -> None:
    from diffaug.training.preflight import check_folder

    def read(folder: str) -> Recipe:
        (tmp_path / folder).mkdir()
        write(f"{folder}/shared.py", "")
        return load_recipe(str(write(f"{folder}/own.yaml", yaml.safe_dump({**settings, "plugins": ["shared.py"]}))))

    before, now = read("before"), read("now")
    assert before.plugins != now.plugins
    (tmp_path / "run").mkdir()
    write("run/recipe.yaml", before.to_yaml().replace("shared.py", "removed.py"))
    check_folder(tmp_path / "run", now, resume=True)


def test_a_folder_of_the_machine_is_not_published() -> None:
    from diffaug.hub.card import public_recipe

    shown = public_recipe({"plugins": ["/home/me/own.py", "a.module"], "data": {}, "model": {}})
    assert shown["plugins"] == ["own.py", "a.module"]


# In grids and evaluations


def test_rows_of_a_grid_in_processes_of_their_own(
    write: Callable[[str, str], Path], settings: dict[str, Any], data_files: dict[str, str], tmp_path: Path
) -> None:
    """With real worker processes, which take seconds to start: forked ones would have the plugin already."""
    from diffaug.experiments.data import TaskFiles

    write("own_method.py", METHOD)
    write("own_task.py", TASK_PLUGIN)
    recipe = write("own.yaml", yaml.safe_dump({**settings, "method": "simcse"}))
    grid = {
        "title": "Own",
        "plugins": ["own_task.py"],
        "tasks": {"Three": "task:three-pairs"},
        "seeds": 1,
        "rows": [{"name": "Mine", "recipe": str(recipe), "changes": ["method=mine", "options.weight=3"]}],
    }
    spec = write("grid.yaml", yaml.safe_dump(grid))
    arguments = [
        "grid",
        str(spec),
        "--out",
        str(tmp_path / "grid"),
        "--plugin",
        str(tmp_path / "own_method.py"),
        "--quiet",
    ]
    output = run(*arguments)
    assert "Mine" in output
    (result,) = (tmp_path / "grid" / "cells").glob("*/result.json")
    assert "Three" in json.loads(result.read_text("utf-8"))["scores"]
    with pytest.raises(DiffaugError, match="task:constant cannot be a task of a grid, which scores pairs"):
        TaskFiles((), {"Constant": "task:constant"}).load()


def test_a_task_is_evaluated_by_its_name(write: Callable[[str, str], Path], tiny_bert: Path, tmp_path: Path) -> None:
    from diffaug import evaluate

    file = write("own_task.py", TASK_PLUGIN)
    out = tmp_path / "scores.json"
    run("eval", "-m", str(tiny_bert), "--plugin", str(file), "--tasks", "Three-Pairs,constant", "--json", str(out))
    tasks = json.loads(out.read_text("utf-8"))["tasks"]
    assert list(tasks) == ["constant", "three-pairs"]
    assert tasks["constant"]["score"] == 12.5
    compared = evaluate(tiny_bert, tasks=["constant", "three-pairs"], versus=tiny_bert, resamples=20)
    assert [comparison.name for comparison in compared.comparisons] == ["three-pairs"], "no paired test without rows"
    with pytest.raises(
        DiffaugError, match=r"unknown task 'four-pairs'; did you mean three-pairs\?.*constant, three-pairs"
    ):
        evaluate(tiny_bert, tasks="four-pairs")
    TASKS.register("sts12")(lambda: None)
    with pytest.raises(DiffaugError, match="'sts12' of a plugin has the name of a public task"):
        evaluate(tiny_bert, tasks="constant")
