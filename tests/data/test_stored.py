"""Text on disk: the same batches as text in memory, made once, deduplicated with bounded memory."""

from __future__ import annotations

import gc
import json
import lzma
import multiprocessing
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.config import DataSettings
from diffaug.data import corpus as corpus_module
from diffaug.data import disk_cache, stored
from diffaug.data.collate import Collator
from diffaug.data.corpus import Corpus
from diffaug.data.disk_cache import DiskCache
from diffaug.data.sampling import BatchSampler, Examples
from diffaug.data.stored import StoredText, StoredTokens, store_text, store_tokens
from diffaug.errors import DiffaugError
from diffaug.models.backbone import load_tokenizer
from diffaug.models.config import ModelConfig


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; every file is large, and larger than a chunk."""
    monkeypatch.setenv("DIFFAUG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stored, "_LARGE", 0)
    monkeypatch.setattr(stored, "_CHUNK", 7)
    return tmp_path / "cache" / "corpus"


@pytest.fixture
def collator(tiny_bert: Path) -> Collator:
    return Collator(load_tokenizer(str(tiny_bert)), ModelConfig(), 128, 6)


@pytest.fixture
def text(tmp_path: Path, sentences: list[str]) -> Path:
    """Sentences with duplicates in the same chunk and in later ones, and empty lines."""
    path = tmp_path / "raw.txt"
    rows = [*sentences, sentences[3], "", *sentences[5:9], "The last one has more words than most of them."]
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many sentences were read from sources, and how many were tokenised."""
    done = {"read": 0, "tokenised": 0}
    read, ids = stored.iterate_sentences, Collator.ids

    def counted_read(*how: Any) -> Iterator[str]:
        for sentence in read(*how):
            done["read"] += 1
            yield sentence

    def counted_ids(self: Collator, rows: Any) -> Any:
        done["tokenised"] += len(rows)
        return ids(self, rows)

    monkeypatch.setattr(stored, "iterate_sentences", counted_read)
    monkeypatch.setattr(Collator, "ids", counted_ids)
    return done


def batches(examples: Examples, seed: int = 3) -> list[Any]:
    sampler = BatchSampler(examples, 4, seed)
    return [sampler.batch(i).examples for i in range(3 * sampler.batches_per_epoch)]  # three epochs


def open_corpus(path: Path | list[str], collator: Collator) -> Corpus:
    return Corpus(DataSettings(unlabelled=path if isinstance(path, list) else str(path)), collator)


@pytest.mark.parametrize("positive", [None, lambda sentence: sentence[: len(sentence) // 2]])
def test_batches_are_those_of_text_in_memory(
    positive: Callable[[str], str] | None,
    text: Path,
    collator: Collator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sentences: list[str],
) -> None:
    table, packed, dev = tmp_path / "more.jsonl", tmp_path / "packed.txt.xz", tmp_path / "dev.tsv"
    rows = [*sentences[:3], "half a pair: \ud83d", "half a pair: \ud83d", "a\nline break"]
    table.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), "utf-8")
    packed.write_bytes(lzma.compress(b"Tea.\nIs this seat taken?\n"))
    dev.write_text(f"4\t{sentences[0]}\tA cat.\n1\tTea.\tA plane.\n", "utf-8")
    sources = [str(text), str(table), str(packed)]

    def everything(large: int) -> Any:
        monkeypatch.setattr(stored, "_LARGE", large)
        corpus = open_corpus(sources, collator)
        examples = corpus.sentences(positive)
        assert isinstance(examples.columns[0], StoredTokens) == (large == 0)
        lengths = [column.lengths().tolist() for column in examples.columns]
        leaked = Corpus(DataSettings(unlabelled=sources, dev=str(dev)), collator)
        leaked.sentences()
        return batches(examples), lengths, corpus.positives(5), corpus.files, leaked.leakage()

    found = everything(0)
    assert found == everything(1 << 40)
    assert found == everything(0)  # from the cache
    assert len(found[2]) == 5
    assert found[4]["dev"].exact_sentences == 2


def test_the_second_run_neither_reads_nor_tokenises(text: Path, collator: Collator, work: dict[str, int]) -> None:
    first = batches(open_corpus(text, collator).sentences())
    assert work == {"read": 20, "tokenised": 15}  # each distinct sentence once
    other = text.with_name("renamed.txt")
    text.rename(other)
    assert batches(open_corpus(other, collator).sentences()) == first
    assert work == {"read": 20, "tokenised": 15}


def test_what_is_different_is_made_again(text: Path, collator: Collator, work: dict[str, int], cache: Path) -> None:
    open_corpus(text, collator).sentences()
    shorter = Collator(collator.tokenizer, ModelConfig(), 128, 4)
    short = open_corpus(text, shorter).sentences()
    assert max(short.columns[0].lengths()) == 4
    assert work == {"read": 20, "tokenised": 30}  # other tokens of the same text
    with text.open("a", encoding="utf-8") as file:
        file.write("One more.\n")
    longer = open_corpus(text, collator).sentences()
    assert len(longer) == 16
    assert work == {"read": 41, "tokenised": 46}
    assert len(list(cache.iterdir())) == 5  # 2 texts, 3 tokens; no lock is left


@pytest.mark.parametrize("entry", ["text", "tokens"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "deleted", "manifest"])
def test_what_is_damaged_is_made_again(
    entry: str, damage: str, text: Path, collator: Collator, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "diffaug")  # the commands lower it for the whole process
    first = batches(open_corpus(text, collator).sentences())
    (folder,) = cache.glob(f"{entry}-*/content")
    victim = folder / ("manifest.json" if damage == "manifest" else "offsets.bin")
    data = victim.read_bytes()
    victim.unlink()
    if damage != "deleted":
        victim.write_bytes(data[:-3] if damage == "truncated" else data[:9] + b"\1" + data[10:])
    (folder.parent / ".content.diffaug-01234567").mkdir()  # of a process that was killed
    assert batches(open_corpus(text, collator).sentences()) == first
    lines = [record.getMessage() for record in caplog.records if record.name == disk_cache.__name__]
    assert lines == [f"{folder} is damaged or incomplete and is made again"]
    assert [path.name for path in folder.parent.iterdir()] == ["content"]
    caplog.clear()
    open_corpus(text, collator).sentences()
    assert not caplog.records


def test_of_two_processes_one_does_the_work(
    text: Path, collator: Collator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, log, write = multiprocessing.get_context("fork"), tmp_path / "log", stored._write_tokens
    together, found = context.Barrier(2, timeout=60), context.Queue()

    def logged(*how: Any) -> int:
        with log.open("a") as file:
            file.write("tokenised\n")
        return write(*how)

    monkeypatch.setattr(stored, "_write_tokens", logged)

    def work() -> None:
        together.wait()
        found.put(batches(open_corpus(text, collator).sentences()))

    processes = [context.Process(target=work) for _ in range(2)]
    for process in processes:
        process.start()
    one, other = (found.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    assert one == other
    assert log.read_text() == "tokenised\n"


def test_leakage_is_computed_once(
    text: Path, collator: Collator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: list[str]
) -> None:
    dev, compared = tmp_path / "dev.tsv", []
    find = corpus_module.find_leakage
    monkeypatch.setattr(corpus_module, "find_leakage", lambda *how: (compared.append(1), find(*how))[1])

    def shared(rows: str) -> int:
        dev.write_text(rows, "utf-8")
        corpus = Corpus(DataSettings(unlabelled=str(text), dev=str(dev)), collator)
        corpus.sentences()
        return corpus.leakage()["dev"].exact_sentences

    assert [shared(f"4\t{sentences[0]}\tA cat.\n1\tTea.\tA plane.\n") for _ in range(2)] == [1, 1]
    assert len(compared) == 1
    assert shared(f"4\t{sentences[0]}\t{sentences[1]}\n1\tTea.\tA plane.\n") == 2
    assert len(compared) == 2


def test_duplicates_are_those_of_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(0)
    rows = [f"sentence {generator.randrange(700)}" for _ in range(2_000)]
    seen: set[str] = set()
    expected = [i for i, row in enumerate(rows) if not (row in seen or seen.add(row))]  # type: ignore[func-returns-value]
    (tmp_path / "many.txt").write_text("\n".join(rows), "utf-8")
    monkeypatch.setattr(stored, "_PARTS", 3)
    found = store_text(DiskCache(), [str(tmp_path / "many.txt")], None, "error")
    assert found.distinct.tolist() == expected
    assert list(found) == rows
    assert list(found[5:900:3][::-2]) == rows[5:900:3][::-2]
    assert (found[-1], found[3:][2]) == (rows[-1], rows[5])
    assert 0 < len(expected) < 700
    with pytest.raises(IndexError):
        found[len(rows)]


def test_memory_does_not_grow_with_the_text(
    collator: Collator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allocations of Python and numpy; a memory map is none."""
    monkeypatch.setattr(stored, "_CHUNK", 500)
    monkeypatch.setattr(Collator, "ids", lambda self, rows: ([[len(row)] * 5 for row in rows], 0))

    def peak(count: int, large: int) -> int:
        monkeypatch.setattr(stored, "_LARGE", large)
        path = tmp_path / f"{count}.txt"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{i} {'words ' * 50}\n" for i in range(count))
        tracemalloc.start()
        try:
            examples = open_corpus(path, collator).sentences()
            BatchSampler(examples, 4, 0).batch(0)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100, 0)  # what is allocated once; a file is hashed in blocks of 1 MB, which 4,000 sentences have
    grown = {large: (peak(8_000, large) - peak(4_000, large)) / 4_000 for large in (0, 1 << 40)}
    assert grown[0] < 10  # a byte per sentence, to find duplicates
    assert grown[1 << 40] > 300  # the test can fail


def test_a_full_disk(
    text: Path, collator: Collator, cache: Path, monkeypatch: pytest.MonkeyPatch, work: dict[str, int]
) -> None:
    with monkeypatch.context() as patch:

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        patch.setattr(stored, "_write_tokens", full)
        with pytest.raises(DiffaugError, match=r"no space left on the disk; .*DIFFAUG_CACHE") as error:
            open_corpus(text, collator).sentences()
    assert "\n" not in str(error.value)
    assert not [path for folder in cache.glob("tokens-*") for path in folder.iterdir()]
    assert len(open_corpus(text, collator).sentences()) == 15
    assert work == {"read": 20, "tokenised": 15}  # the text was complete


def test_a_cache_that_cannot_be_written(
    text: Path, collator: Collator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    first = batches(open_corpus(text, collator).sentences())
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with monkeypatch.context() as patch:

        def refused(**_: object) -> None:
            raise PermissionError(13, "Permission denied")

        patch.setattr(tempfile, "TemporaryFile", refused)
        assert batches(open_corpus(text, collator).sentences()) == first  # what is there is read
        assert "cannot be written" not in caplog.text
    monkeypatch.setenv("DIFFAUG_CACHE", str(text))  # a file
    corpus = open_corpus(text, collator)
    assert batches(corpus.sentences()) == first
    lines = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert len(lines) == 1
    assert f"{text}/corpus cannot be written (Not a directory); text and tokens are stored in {tmp_path}" in lines[0]
    assert list((tmp_path / "temporary").iterdir())
    del corpus
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())


def test_a_tokenizer_that_cannot_be_identified_is_not_cached(
    text: Path, collator: Collator, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "fingerprint", lambda _: None)
    assert len(open_corpus(text, collator).sentences()) == 15
    assert not list(cache.glob("tokens-*"))


def test_a_file_that_is_changed_while_it_is_read(
    text: Path, monkeypatch: pytest.MonkeyPatch, collator: Collator, cache: Path
) -> None:
    read = stored.iterate_sentences

    def changed(*how: Any) -> Iterator[str]:
        with text.open("a", encoding="utf-8") as file:
            file.write("Another process is writing.\n")
        yield from read(*how)

    monkeypatch.setattr(stored, "iterate_sentences", changed)
    with pytest.raises(DiffaugError, match=r"raw\.txt was changed while it was read"):
        open_corpus(text, collator).sentences()
    assert not list(cache.glob("*/content"))


def test_large_ids_and_sentences_without_tokens(
    collator: Collator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two.txt").write_text("one\ntwo\n", "utf-8")
    text = store_text(DiskCache(), [str(tmp_path / "two.txt")], None, "error")
    for rows, size in (([[70_000, 1], []], 100_000), ([[], []], 10)):
        monkeypatch.setattr(Collator, "ids", lambda self, chunk, rows=rows: (rows[: len(chunk)], 0))
        monkeypatch.setattr(type(collator.tokenizer), "__len__", lambda self, size=size: size)
        tokens = store_tokens(DiskCache(), collator, text, list(text))
        assert [tokens[i] for i in range(2)] == rows
        assert tokens.lengths().tolist() == [len(row) for row in rows]


@pytest.mark.parametrize(
    ("source", "large"),
    [
        ("hub:owner/name", False),  # not pinned: the content is unknown before it is read
        ("hub:owner/name@" + "0" * 40, True),
        ("missing.txt", False),
        ("long" * 100 + ".txt", False),
    ],
)
def test_which_sources_are_large(source: str, large: bool, text: Path) -> None:
    assert stored.is_large([source]) is large
    assert stored.is_large([source, str(text)]) is large


def test_small_files_stay_in_memory(text: Path, collator: Collator, cache: Path, monkeypatch: Any) -> None:
    monkeypatch.undo()
    assert not stored.is_large([str(text)])
    with text.open("r+b") as file:
        file.truncate(8 << 20)
    assert stored.is_large([str(text)])


def test_the_command(text: Path, collator: Collator, cache: Path) -> None:
    open_corpus(text, collator).sentences()
    shown = CliRunner().invoke(app, ["data", "cache"]).output
    assert str(cache) in shown
    assert str(text) in shown
    assert "20 sentences" in shown
    assert "15 sentences" in shown
    (cache / "text-unfinished").mkdir()
    shown = CliRunner().invoke(app, ["data", "cache", "--clear"]).output
    assert shown == f"{cache}: 0.0 MB\n"
    assert not list(cache.iterdir())
    assert disk_cache.entries() == []


def test_a_slice_needs_no_file(text: Path) -> None:
    """A run goes on after the cache has been cleared."""
    found = store_text(DiskCache(), [str(text)], None, "error")
    disk_cache.clear()
    assert isinstance(found[1:], StoredText)
    assert found[1:][0] == found[1]
    assert np.array_equal(found[1:].distinct, found.distinct)
