"""`diffaug train` and `diffaug recipes`, as typed."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from published_data import MULTINLI, SNLI, nli_jsonl, nli_text, write_stsb
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.config import load_recipe, recipe_names
from diffaug.errors import DiffaugError
from diffaug.training.preflight import check_start
from diffaug.training.run import TrainResult

runner = CliRunner()


def test_train_prints_a_summary_and_leaves_a_model(tiny_bert: Path, data_files: dict[str, str], tmp_path: Path) -> None:
    changes = [f"model.backbone={tiny_bert}", "stage1.steps=2", "stage2.steps=2", "stage2.batch_size=8"]
    changes += [f"data.{name}={path}" for name, path in data_files.items()] + [f"data.test={data_files['dev']}"]
    settings = [argument for change in changes for argument in ("--set", change)]
    done = runner.invoke(app, ["train", "-r", "diffaug-sup", "-o", str(tmp_path / "run"), *settings])
    assert done.exit_code == 0, done.output
    for word in ("stage 1 ended after 2 steps", "dev", "test", "before training", "best"):
        assert word in done.output
    assert (tmp_path / "run" / "best" / "diffaug.json").is_file()


def test_train_reads_public_data_as_it_is_published(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("diffaug.data"), "handlers", [])
    stsb = write_stsb(tmp_path / "sts-dev.csv")
    (tmp_path / "snli_1.0_train.jsonl").write_text(nli_jsonl("snli", SNLI), "utf-8")
    (tmp_path / "multinli_1.0_train.txt").write_text(nli_text("multinli", MULTINLI), "utf-8")
    nli = f"[{tmp_path / 'snli_1.0_train.jsonl'}, {tmp_path / 'multinli_1.0_train.txt'}]"
    changes = [f"model.backbone={tiny_bert}", f"data.nli={nli}", f"data.dev={stsb}", f"data.test={stsb}"]
    changes += ["stage1.steps=1", "stage1.batch_size=4", "stage2.steps=1", "stage2.batch_size=2"]
    settings = [argument for change in changes for argument in ("--set", change)]
    done = runner.invoke(app, ["train", "-r", "diffaug-sup", "-o", str(tmp_path / "run"), *settings])
    assert done.exit_code == 0, done.output
    assert "snli_1.0_train.jsonl: skipped 1 of 5 rows (1 without a gold label)" in done.output
    assert load_recipe(str(tmp_path / "run" / "recipe.yaml")).data.nli == nli.strip("[]").split(", ")


@pytest.mark.parametrize(("after", "warned"), [(30.0, True), (50.0, False)])
def test_a_model_that_got_worse_is_called_so(
    after: float, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = TrainResult(tmp_path, {"dev": after, "test": 60.0}, {"dev": 40.0, "test": 50.0}, None, 1.0)
    monkeypatch.setattr("diffaug.training.run.train", lambda *_, **__: result)
    done = runner.invoke(app, ["train", "-r", "quickstart", "-o", str(tmp_path / "run")])
    assert ("warning: on dev the model is worse than the backbone" in done.output) == warned


@pytest.mark.parametrize(("arguments", "told"), [([], True), (["--quiet"], False)])
def test_notes_on_the_data_are_shown(
    arguments: list[str], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("diffaug.data")
    monkeypatch.setattr(logger, "handlers", [])

    def run(*_: object, **__: object) -> TrainResult:
        logging.getLogger("diffaug.data.corpus").info("3 sentences occurred more than once and count once")
        return TrainResult(tmp_path, {}, {}, None, 1.0)

    monkeypatch.setattr("diffaug.training.run.train", run)
    done = runner.invoke(app, ["train", "-r", "quickstart", "-o", str(tmp_path / "run"), *arguments])
    assert ("3 sentences occurred more than once" in done.output) == told


def test_a_mistake_in_a_setting_costs_no_time(tmp_path: Path) -> None:
    arguments = ["train", "-r", "diffaug-sup", "-o", str(tmp_path / "run"), "--set", "stage2.learning_rte=1"]
    with pytest.raises(DiffaugError, match="did you mean 'learning_rate'"):
        runner.invoke(app, arguments, catch_exceptions=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "is not empty; choose another folder"),
        ("stage2.learning_rte=1", "did you mean 'learning_rate'"),
        ("loop.trackers=[nothing]", "there is no tracker 'nothing'"),
        ("data.nli=nothing.csv", "there is no file nothing.csv"),
        ("data.dev=nothing.tsv", "there is no file nothing.tsv"),
    ],
)
def test_mistakes_are_told_before_torch_is_loaded(change: str | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    out = tmp_path if change is None else tmp_path / "run"
    changes = [] if change is None else ["--set", change]
    # In a process of its own: in this one, other tests have loaded it long ago.
    script = (
        "import sys\nfrom diffaug.cli import main\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules, 'transformers' in sys.modules)\n"
    )
    arguments = ["train", "-r", "quickstart", "-o", str(out), *changes]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=600)
    assert message in done.stderr
    assert done.returncode == 2
    assert done.stdout.split() == ["False", "False"]


def test_a_file_that_the_recipe_does_not_read_need_not_exist(tmp_path: Path) -> None:
    changes = ["data.unlabelled=nothing.txt"]
    check_start(load_recipe("quickstart", changes), tmp_path / "run", resume=False)
    with pytest.raises(DiffaugError, match=r"there is no file nothing\.txt"):
        check_start(
            load_recipe("quickstart", [*changes, "stage2.objective=unlabelled"]), tmp_path / "run", resume=False
        )


def test_recipes_are_listed_shown_and_copied(tmp_path: Path) -> None:
    listed = runner.invoke(app, ["recipes", "ls"]).output
    assert all(name in listed for name in recipe_names())
    longest = max(map(len, recipe_names()))
    assert all(line[longest : longest + 2] == "  " and line[longest + 2] != " " for line in listed.splitlines())
    shown = runner.invoke(app, ["recipes", "show", "diffaug-semi"]).output
    assert "# DiffAug, semi-supervised" in shown
    assert "temperature: 0.05" in runner.invoke(app, ["recipes", "show", "diffaug-semi", "--resolved"]).output
    target = tmp_path / "mine.yaml"
    assert runner.invoke(app, ["recipes", "cp", "diffaug-semi", str(target)]).exit_code == 0
    assert target.read_text("utf-8") == shown
    for bad in (target, tmp_path / "mine.txt"):
        with pytest.raises(DiffaugError):
            runner.invoke(app, ["recipes", "cp", "diffaug-semi", str(bad)], catch_exceptions=False)
    with pytest.raises(DiffaugError, match=r"none\.yaml cannot be read"):
        runner.invoke(app, ["recipes", "show", str(tmp_path / "none.yaml")], catch_exceptions=False)
