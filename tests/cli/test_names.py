"""Names that no file can have: one sentence, whatever command is given them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from diffaug.cli import main

LONG = "a" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--recipe", f"{LONG}.yaml", "--out", "x"],
        ["train", "--recipe", "quickstart", "--out", LONG],
        ["train", "--recipe", "quickstart", "--out", "x", "--set", f"data.nli={LONG}.csv"],
        ["encode", f"{LONG}.txt"],
        ["encode", "some.txt", "-o", f"{LONG}.npy"],
        ["similarity", "--model", LONG, "a", "b"],
        ["eval", "--pairs", f"{LONG}.tsv"],
        ["eval", "--pairs", "sample:dev", "--json", f"{LONG}.json"],
        ["eval", "--retrieval", LONG],
        ["report", LONG],
        ["grid", f"{LONG}.yaml", "--out", "x"],
        ["recipes", "cp", "quickstart", f"{LONG}.yaml"],
        ["data", "check", f"{LONG}.txt"],
    ],
    ids=lambda arguments: " ".join(arguments)[:30],
)
def test_a_name_that_is_too_long(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.txt").write_text("A dog.\n")
    monkeypatch.setattr(sys, "argv", ["diffaug", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = "".join(capsys.readouterr())
    assert ended.value.code in (1, 2)
    assert "Traceback" not in said
    assert "too long" in said or "no recipe" in said or "usage" in said.lower()
