"""`diffaug data check, ls, get, status` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.errors import DiffaugError

runner = CliRunner()


@pytest.mark.parametrize(
    ("name", "key"), [("sentences", "unlabelled"), ("triplets", "nli"), ("dev", "dev"), ("test", "test")]
)
def test_check_of_the_sample_data(name: str, key: str) -> None:
    result = runner.invoke(app, ["data", "check", f"sample:{name}"])
    assert result.exit_code == 0, result.output
    assert f"--set data.{key}=sample:{name}" in result.output
    assert "problems" not in result.output


def test_an_unusable_file_is_explained_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sent0,hard_neg\nA dog runs.,A dog sleeps.\n")
    result = runner.invoke(app, ["data", "check", str(path)])
    assert result.exit_code == 1
    assert "looks like triplets, but" in result.output
    assert runner.invoke(app, ["data", "check", str(tmp_path / "nowhere.txt")]).exit_code == 1


def test_columns_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("news\t4.5\tA dog runs.\tA dog is running.\nweb\t1\tIt rains.\tThe bank closed.\n")
    options = ["-c", "score=2", "-c", "sentence1=3", "-c", "sentence2=4", "--kind", "scored"]
    result = runner.invoke(app, ["data", "check", str(path), *options])
    assert result.exit_code == 0, result.output
    assert "scored pairs (by the column numbers given)" in result.output


def data(*arguments: object) -> Result:
    return runner.invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "200"})


def test_public_data(tmp_path: Path) -> None:
    listed = data("ls").output
    assert "wiki1m" in listed
    assert "275,601" in listed
    assert "senteval     missing" in data("status", "--to", tmp_path).output
    mine, folder = tmp_path / "AllNLI.tsv.gz", tmp_path / "data"
    mine.write_text("some pairs")
    assert "allnli-pairs is in" in data("get", "allnli-pairs", "--to", folder, "--from", mine).output
    assert "allnli-pairs ready" in data("status", "--to", folder).output
    (folder / "allnli-pairs" / "AllNLI.tsv.gz").write_text("other pairs")
    result = data("status", "--to", folder)
    assert result.exit_code == 1
    assert "allnli-pairs damaged: " in result.output
    assert "--from needs exactly one name" in str(data("get", "trec", "mrpc", "--from", tmp_path).exception)


def test_wordnet_is_said_how_to_get() -> None:
    how = "pip install 'diffaug[synonyms]' and then python -m wn download oewn:2025"
    assert how in runner.invoke(app, ["data", "ls"]).output
    assert how in str(runner.invoke(app, ["data", "get", "wordnet"]).exception)


def test_options_that_make_no_sense() -> None:
    result = runner.invoke(app, ["data", "check", "sample:dev", "-c", "score"])
    assert isinstance(result.exception, DiffaugError)
    assert "must have the form ROLE=NAME" in str(result.exception)
    result = runner.invoke(app, ["data", "check", "sample:dev", "--kind", "pairs"])
    assert "must be one of sentences, triplets, labelled, scored" in str(result.exception)
