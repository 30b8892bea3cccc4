"""Provenance: what is recorded, how it is stored, and what counts as a change."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from diffaug.data.read import read_sentences
from diffaug.errors import DiffaugError
from diffaug.provenance import PROVENANCE, RunProvenance, record_reads, versions

BEFORE = RunProvenance(
    data={"nli": {"a.csv": "1" * 64, "b.csv": "2" * 64}, "dev": {"dev.tsv": "3" * 64}},
    models={"backbone": "4" * 64, "tokenizer": "5" * 64},
    versions={"diffaug": "0.1.0", "torch": "2.6.0"},
    device="cpu",
)


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    BEFORE.save(tmp_path)
    assert RunProvenance.load(tmp_path) == BEFORE
    assert RunProvenance.load(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"data": 1}', "[" * 100_000, '{"data": {"nli": 3}}'])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / PROVENANCE).write_text(text)
    with pytest.raises(DiffaugError, match=r"provenance\.json is damaged"):
        RunProvenance.load(tmp_path)


def test_inputs_and_environment_are_told_apart() -> None:
    now = replace(
        BEFORE,
        data={"nli": {"x/a.csv": "1" * 64, "x/b.csv": "9" * 64}, "dev": {"dev.tsv": "3" * 64, "more.tsv": "7" * 64}},
        models={"backbone": "4" * 64, "tokenizer": "8" * 64},
        versions={"diffaug": "0.1.0", "torch": "2.7.0", "commit": "abc"},
        device="H200",
    )
    inputs, environment = BEFORE.changed(now)
    assert inputs == [
        "data.dev was 1 files, is 2",
        f"data.nli (b.csv) was {'2' * 12}, is {'9' * 12}",
        f"tokenizer was {'5' * 12}, is {'8' * 12}",
    ]
    assert environment == ["torch was 2.6.0, is 2.7.0", "device was cpu, is H200"]
    assert BEFORE.changed(BEFORE) == ([], [])


def test_changes_are_added_to_the_provenance_of_the_start() -> None:
    now = replace(BEFORE, models={"backbone": "6" * 64}, device="H200")
    went_on = BEFORE.continued(now, forced=True).continued(now, forced=True)
    assert went_on.changes == (f"forced: backbone was {'4' * 12}, is {'6' * 12}", "device was cpu, is H200")
    assert replace(went_on, changes=()) == BEFORE


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_files_are_hashed_as_they_are_read(tmp_path: Path, suffix: str) -> None:
    content = "".join(f"sentence {i}\n" for i in range(20_000)).encode()
    path = tmp_path / f"text.txt{suffix}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](content))
    with record_reads() as outer:
        with record_reads() as reads:
            assert len(read_sentences(str(path))) == 20_000
        assert reads == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    assert outer == reads


def test_rows_in_memory_are_hashed_by_content() -> None:
    def digest(rows: list[str]) -> dict[str, str]:
        with record_reads() as reads:
            read_sentences(rows)
        return reads

    assert digest(["one", "two"]) == digest(["one", "two"]) != digest(["one", "too"])


def test_versions_name_the_commit_of_a_checkout() -> None:
    assert {"diffaug", "torch", "transformers"} <= versions().keys()
    checkout = (Path(__file__).parents[1] / ".git").exists()
    assert ("commit" in versions()) == checkout
