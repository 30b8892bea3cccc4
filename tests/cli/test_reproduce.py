"""`diffaug reproduce`, as typed."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.cli.reproduce import EXPERIMENTS
from diffaug.errors import DiffaugError
from diffaug.experiments import executor
from diffaug.experiments.grid import Grid, write_result
from diffaug.experiments.results import DEV, Result
from diffaug.experiments.run import GridInterrupted
from diffaug.experiments.spec import experiment_names

runner = CliRunner()


@pytest.fixture
def arguments(tiny_bert: Path, data_files: dict[str, str], tmp_path: Path) -> list[str]:
    """DiffAug with two prefix lengths, as few steps as there can be, one job; the tasks are STS-B's."""
    data = tmp_path / "data"
    data.mkdir()
    for source, name in (("nli", "triplets.csv"), ("unlabelled", "sentences.txt")):
        (data / name).write_text(Path(data_files[source]).read_text("utf-8"), "utf-8")
    pairs = Path(data_files["dev"]).read_text("utf-8").splitlines()
    for split, rows in (("dev", 1500), ("test", 1379)):
        (data / f"STSB.{split}.tsv").write_text("\n".join((pairs * 40)[:rows]) + "\n", "utf-8")
    changes = ["stage1.steps=1", "stage2.steps=1", "stage1.batch_size=8", "stage2.batch_size=8", "data.max_length=16"]
    return [
        *("prefix-length", "--encoder", str(tiny_bert), "--data", str(data), "--out", str(tmp_path / "grid")),
        *("--seeds", "2", "--column", "2", "--column", "3"),
        *(argument for change in changes for argument in ("--set", change)),
    ]


def run(*arguments: str, code: int = 0) -> str:
    done = runner.invoke(app, ["reproduce", *arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def test_a_grid_from_beginning_to_end(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_PROCESSES", multiprocessing.get_context("fork"))
    output = run(*arguments)
    grid = Grid.open(tmp_path / "grid")
    assert [(cell.column, cell.seed) for cell, _ in grid.results()] == [("2", 42), ("3", 42), ("2", 43), ("3", 43)]
    assert grid.plan_info["title"] in output
    for ending in ("txt", "md", "tex", "json"):
        assert (grid.folder / "tables" / f"prefix-length.{ending}").stat().st_size
    assert "\x1b" not in (grid.folder / "tables" / "prefix-length.txt").read_text("utf-8")
    assert "4 finished, 0 failed, 0 to do." in run(*arguments, "--dry-run")

    with pytest.raises(DiffaugError, match="another grid: draws was 5, is 3"):
        run(*arguments, "--draws", "3")

    # A cell that fails is named at the end, and the table is there all the same.
    cell = grid.cells[-1]
    for name in ("result.json", "summary.json"):
        (grid.folder_of(cell) / name).unlink()
    recipe = grid.folder_of(cell) / "recipe.yaml"
    recipe.write_text(recipe.read_text("utf-8").replace(f"seed: {cell.seed}", "seed: 1"), "utf-8")
    output = run(*arguments, "--quiet", code=1)
    assert grid.plan_info["title"] in output
    assert f"{cell.name}: the run in {grid.folder_of(cell)} has another recipe" in output


def test_a_dry_run_lists_and_does_nothing(arguments: list[str], tmp_path: Path) -> None:
    output = run(*arguments, "--dry-run")
    assert "DiffAug, semi  2  (diffaug-semi)\n  setting 0  draw 0  seed 42  to do\n" in output
    assert "4 runs: 2 to try every setting once, 2 to repeat the best" in output
    assert not (tmp_path / "grid").exists()


def test_data_may_lie_in_several_folders(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_PROCESSES", multiprocessing.get_context("fork"))
    other = tmp_path / "other"
    other.mkdir()
    for name in ("sentences.txt", "STSB.test.tsv"):
        (tmp_path / "data" / name).rename(other / name)
    with pytest.raises(DiffaugError, match="--sentences"):
        run(*arguments)
    several = [*arguments, "--data", str(other), "--seeds", "1"]
    assert "STS-B" in run(*several, "--quiet")
    grid = Grid.open(tmp_path / "grid")
    assert grid.request["data"]["folder"] == [str(tmp_path / "data"), str(other)]
    assert grid.request["data"]["sentences"] == str(other / "sentences.txt")
    assert "2 finished, 0 failed, 0 to do." in run(*several, "--dry-run")


def test_one_folder_is_recorded_as_it_was_before_there_could_be_several(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffaug.experiments.run.run_grid", lambda *_, **__: [])
    run(*arguments)
    data = tmp_path / "data"
    found = {"folder": str(data), "triplets": str(data / "triplets.csv"), "pairs": None, "target": None}
    found |= {"sentences": str(data / "sentences.txt"), "dev": str(data / "STSB.dev.tsv")}
    assert Grid.open(tmp_path / "grid").request["data"] == found


def test_an_interrupted_grid_shows_what_there_is(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = 0

    def interrupted(grid: Grid, *_: object, **__: object) -> None:
        for cell in grid.first[:finished]:
            write_result(grid.folder_of(cell), Result({DEV: 70.0, "STS-B": 69.0, "average": 69.0}, 1.0, 0.5))
        raise GridInterrupted(signal.SIGINT)

    monkeypatch.setattr("diffaug.experiments.run.run_grid", interrupted)
    tables = tmp_path / "grid" / "tables"
    assert "continue it with the same command" in run(*arguments, code=130)
    assert not tables.exists()  # of nothing
    finished = 1
    output = " ".join(run(*arguments, code=130).split())
    assert "continue it with the same command" in output
    assert "No measurement yet for 1 of 2 places in the table: DiffAug, semi at 3" in output
    assert (tables / "prefix-length.md").is_file()


def test_a_budget_may_be_described_better_half_way(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise GridInterrupted(signal.SIGINT)

    monkeypatch.setattr("diffaug.experiments.run.run_grid", interrupted)
    budget = tmp_path / "mine.yaml"
    text = "name: mine\nabout: {0}\nnotes: [{0}]\notherwise: [[stage2.learning_rate={1}]]\n"
    for words in ("Tried out", "Well tried"):
        budget.write_text(text.format(words, "1e-5"), "utf-8")
        run(*arguments, "--budget", str(budget), code=130)
    assert "Tried out" in Grid.open(tmp_path / "grid").plan_info["notes"]
    budget.write_text(text.format("Well tried", "2e-5"), "utf-8")
    with pytest.raises(DiffaugError, match=r"started with other cells.*learning_rate=1e-5 then"):
        run(*arguments, "--budget", str(budget))


def test_a_dry_run_knows_a_grid_whose_data_was_brought_into_another_form(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise GridInterrupted(signal.SIGINT)

    released = tmp_path / "data" / "sts-dev.csv"
    rows = [line.split("\t") for line in (tmp_path / "data" / "STSB.dev.tsv").read_text("utf-8").splitlines()]
    released.write_text("".join("genre\tfile\t2015\t1\t{}\t{}\t{}\n".format(*row) for row in rows), "utf-8")
    (tmp_path / "data" / "STSB.dev.tsv").unlink()
    monkeypatch.setattr("diffaug.experiments.run.run_grid", interrupted)
    run(*arguments, code=130)
    assert "0 finished, 0 failed, 4 to do." in run(*arguments, "--dry-run")


def test_mistakes_cost_no_time(arguments: list[str], tmp_path: Path) -> None:
    for wrong, words in (
        (["--set", "stage2.learning_rte=1"], "did you mean 'learning_rate'"),
        (["--only", "SimCSE"], "no row matches 'SimCSE'"),
        (["--budget", "huge"], "no budget 'huge'"),
        (["--triplets", "nowhere.csv"], "no file nowhere.csv"),
        (["--reuse", "nowhere"], "nowhere holds no grid"),
    ):
        with pytest.raises(DiffaugError, match=words):
            run(*arguments, *wrong)
    with pytest.raises(DiffaugError, match="did you mean 'prefix-length'"):
        run("prefix-lenght", *arguments[1:])
    assert not (tmp_path / "grid").exists()


def test_the_help_names_every_experiment() -> None:
    assert sorted(EXPERIMENTS) == experiment_names()
