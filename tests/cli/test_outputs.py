"""No command destroys what it reads, a device, or a model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.models.config import Provenance

PAIRS = "sentence1,sentence2,score\na dog,a dog runs,5\nrain,a market,0\nx,y,2\n"


def run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def place(tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, a model, links to both, and a run."""
    monkeypatch.chdir(tmp_path)
    Path("d.jsonl").write_text('{"sentence": "a dog"}\n{"sentence": "rain"}\n')
    Path("pairs.csv").write_text(PAIRS)
    Path("link.csv").symlink_to("pairs.csv")
    Path("to-device.json").symlink_to("/dev/null")
    shutil.copytree(tiny_bert, "model")
    Path("run/best").mkdir(parents=True)
    Path("run/best/diffaug.json").write_text("{}")
    Path("run/best/diffaug.safetensors").write_text("weights")
    Path("run/metrics.jsonl").write_text("{}\n")
    os.link("d.jsonl", "same.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("encode d.jsonl -m model -o d.jsonl", "would overwrite d.jsonl"),
        ("encode d.jsonl -m model -o same.jsonl", "would overwrite d.jsonl"),
        ("encode d.jsonl -m model -o model/vectors.npy", "the folder of a model"),
        ("eval -m model --pairs pairs.csv --json pairs.csv", "would overwrite pairs.csv"),
        ("eval -m model --pairs pairs.csv --markdown link.csv", "would overwrite pairs.csv"),
        ("eval -m model --pairs pairs.csv --json model/model.safetensors", "would overwrite model"),
        ("eval -m model --pairs pairs.csv --json to-device.json", "is a device"),
        ("eval -m model --pairs pairs.csv --versus run/best --json run/best/new.json", "the folder of a model"),
        ("report run -o run/best/diffaug.safetensors", "would overwrite"),
        ("report run -o run/metrics.jsonl", "would overwrite"),
        ("report run -o run/best/report.html", "the folder of a model"),
        ("export model model --overwrite --to sentence-transformers", "would overwrite model"),
        ("export model . --overwrite --to onnx", "would overwrite model"),
        ("export model model/onnx --to onnx", "the folder of a model"),
        ("convert model model/converted", "the folder of a model"),
        ("recipes cp simcse-unsup run/best/mine.yaml", "the folder of a model"),
        ("train -r simcse-unsup -o run/best/new", "the folder of a model"),
    ],
)
def test_what_a_command_reads_is_not_overwritten(command: str, error: str, place: Path) -> None:
    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}

    before = contents()
    with pytest.raises(DiffaugError, match=error):
        run(*command.split())
    assert contents() == before
    assert Path("/dev/null").is_char_device()
    assert (place / "to-device.json").is_symlink()


def test_a_link_to_another_file_is_followed(place: Path) -> None:
    Path("out.json").symlink_to("elsewhere.json")
    run("eval", "-m", "model", "--pairs", "pairs.csv", "--json", "out.json", "--device", "cpu", "--resamples", 0)
    assert Path("out.json").is_symlink()
    assert "pairs" in Path("elsewhere.json").read_text()


def test_embedded_is_the_name_of_a_model(place: Path) -> None:
    """Of the encoder in the package, for every command, whatever the current folder contains."""
    Path("embedded").mkdir()
    assert run("similarity", "a dog", "a cat", "-m", "embedded") == run("similarity", "a dog", "a cat")
    assert Embedder.from_pretrained("embedded").fingerprint() == Embedder.from_pretrained().fingerprint()
    printed = run("eval", "-m", "model", "--versus", "embedded", "--pairs", "pairs.csv", "--resamples", 20)
    assert "embedded" in printed
    run("export", "embedded", "out", "--to", "sentence-transformers")
    assert Path("out/modules.json").is_file()


def test_versus_before_is_the_backbone_of_a_run(place: Path) -> None:
    trained = Embedder.from_pretrained("model", pooling="cls", device="cpu")
    trained.provenance = Provenance("simcse", {"model": {"backbone": "embedded"}})
    trained.save("trained")
    arguments = "eval", "-m", "trained", "--pairs", "pairs.csv", "--resamples", 20, "--device", "cpu"
    fingerprint = Embedder.from_pretrained("embedded").fingerprint()
    run(*arguments, "--versus", "before", "--json", "out.json")
    assert fingerprint in Path("out.json").read_text()
    with pytest.raises(DiffaugError, match="model was not trained by diffaug, so there is no model before"):
        run("eval", "-m", "model", "--versus", "before", "--pairs", "pairs.csv")
