"""`diffaug eval` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.errors import DiffaugError

TRIPLETS = "anchor,positive,negative\na dog,a dog runs,rain falls\nrain,rain falls,a dog runs\nx,y,z\n"


def run(*arguments: object) -> str:
    """What a command prints; its errors are raised."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def triplets(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(TRIPLETS)
    return path


def test_a_table_and_files(tiny_bert: Path, triplets: Path, tmp_path: Path) -> None:
    json_file, markdown = tmp_path / "out.json", tmp_path / "deep" / "out.md"
    printed = run(
        *("eval", "--model", tiny_bert, "--triplets", triplets, "--device", "cpu", "--resamples", 50),
        *("--json", json_file, "--markdown", markdown),
    )
    written = json.loads(json_file.read_text())
    assert written["model"]["fingerprint"] in printed
    assert written["model"]["fingerprint"] in markdown.read_text()
    assert written["tasks"]["mine"]["protocol"] == "triplets_accuracy"
    for text in (printed, markdown.read_text()):
        assert "triplets_accuracy" in text
        assert f"{written['tasks']['mine']['score']:.2f}" in text


def test_a_narrow_terminal_cuts_no_number(tiny_bert: Path, triplets: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["eval", "-m", tiny_bert, "--triplets", triplets, "--device", "cpu", "--resamples", 50, "--json", out]
    result = CliRunner(env={"COLUMNS": "30"}).invoke(app, [str(argument) for argument in arguments])
    low, high = json.loads(out.read_text())["tasks"]["mine"]["interval"]
    assert f"{low:.2f} – {high:.2f}" in result.output
    assert "triplets_accuracy" in result.output


def test_two_models(tiny_bert: Path, tiny_roberta: Path, triplets: Path) -> None:
    printed = run(
        *("eval", "-m", tiny_bert, "--versus", tiny_roberta, "--triplets", triplets),
        *("--device", "cpu", "--resamples", 50),
    )
    assert "bert against roberta: paired bootstrap" in printed
    assert "mine: no difference shown" in printed


def test_public_tasks_from_a_folder(tiny_bert: Path, tmp_path: Path) -> None:
    lines = [f'{i % 5}\tsentence {i % 40}\tanother "{i % 30}\n' for i in range(1379)]
    (tmp_path / "STSB.test.tsv").write_text("".join(lines))
    printed = run("eval", "-m", tiny_bert, "--data", tmp_path, "--tasks", "sts", "--device", "cpu", "--resamples", 20)
    assert "sts_all_spearman" in printed
    assert "STS-B" in printed
    assert "not evaluated: STS12: found neither STS12.MSRpar.tsv" in printed
    assert "warning: " in printed


def test_files_of_the_same_name_and_bad_targets(tiny_bert: Path, triplets: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "mine.csv"
    other.write_text(TRIPLETS)
    out = tmp_path / "out.json"
    run(
        *("eval", "-m", tiny_bert, "--triplets", triplets, "--triplets", other),
        *("--device", "cpu", "--resamples", 0, "--json", out),
    )
    assert list(json.loads(out.read_text())["tasks"]) == [str(triplets), str(other)]
    with pytest.raises(DiffaugError, match="cannot be written"):
        run("eval", "-m", tmp_path / "no model", "--json", tmp_path)


def test_columns_of_a_table_have_any_names(tiny_bert: Path, tmp_path: Path) -> None:
    pairs, out = tmp_path / "rated.csv", tmp_path / "out.json"
    pairs.write_text("id,left,right,rating\n1,a dog,a dog runs,5\n2,rain,a cat,0\n3,rain,rain falls,4\n")
    arguments = ("eval", "-m", tiny_bert, "--pairs", pairs, "--device", "cpu", "--resamples", 0, "--json", out)
    with pytest.raises(DiffaugError, match="--column ROLE=NAME"):
        run(*arguments)
    run(*arguments, "--column", "sentence1=left", "-c", "sentence2=right", "-c", "score=rating")
    assert json.loads(out.read_text())["tasks"]["rated"]["rows"] == 3
    with pytest.raises(DiffaugError, match="must have the form ROLE=NAME"):
        run(*arguments, "-c", "rating")


def test_a_negative_seed_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["eval", "--pairs", "sample:dev", "--seed", "-1"])
    assert result.exit_code == 2
    assert "--seed" in result.output
