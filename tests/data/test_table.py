"""Files, compressed or not, hub data sets and Python objects: the same rows whatever they come in."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import random
import sys
import types
from pathlib import Path

import datasets
import huggingface_hub
import pytest

from diffaug.data.problems import Problem, raise_problem
from diffaug.data.read import read_labelled_pairs, read_scored_pairs, read_sentences, read_triplets
from diffaug.data.table import hub_parts, open_table, pin_revision
from diffaug.errors import DiffaugError

# What files of sentences really hold: quotes, separators, line separators that are not line ends, other scripts.
NASTY = [
    "Plain words.",
    'He said "no", and left.',
    '"Quoted from end to end"',
    "Commas, many, commas",
    "One\u2028sentence\u2029with\x85odd\x0bseparators",
    "naïve café, 這是一個句子 🎉",
    "it's 5 o'clock; 3\u00a0% \\n \\t",
    "'",
    '"',
    "#not a comment",
]
COMPRESSORS = {"": lambda data: data, ".gz": gzip.compress, ".xz": lzma.compress}


def write(folder: Path, name: str, content: bytes | str) -> Path:
    """A file with this content, compressed as its name says."""
    raw = content.encode() if isinstance(content, str) else content
    path = folder / name
    path.write_bytes(COMPRESSORS[path.suffix if path.suffix in COMPRESSORS else ""](raw))
    return path


def csv_text(rows: list[tuple[str, ...]]) -> str:
    import io

    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return file.getvalue()


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("ending", [".txt", ".csv", ".tsv", ".jsonl"])
def test_every_text_format_gives_the_same_sentences(tmp_path: Path, ending: str, compression: str) -> None:
    content = {
        ".txt": "\n".join(NASTY),
        ".csv": csv_text([("sentence",), *((text,) for text in NASTY)]),
        ".tsv": "\n".join(["sentence", *NASTY]),
        ".jsonl": "\n".join(json.dumps({"id": i, "sentence": text}) for i, text in enumerate(NASTY)),
    }[ending]
    assert read_sentences(write(tmp_path, f"file{ending}{compression}", content)) == NASTY


def test_parquet_gives_the_same_sentences_and_ignores_vectors(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"embedding": [[0.0]] * len(NASTY), "sentence": NASTY})
    parquet.write_table(table, tmp_path / "file.parquet")
    assert read_sentences(tmp_path / "file.parquet") == NASTY
    assert open_table(tmp_path / "file.parquet", report=pytest.fail).names == ("sentence",)


def test_csv_round_trip_of_random_cells(tmp_path: Path) -> None:
    generator = random.Random(0)
    alphabet = 'ab ",;\n\té\u2028'

    def cell() -> str:
        return "x" + "".join(generator.choices(alphabet, k=generator.randrange(12))) + "x"

    rows = [(cell(), cell(), cell()) for _ in range(500)]
    path = write(tmp_path, "file.csv", csv_text([("sent0", "sent1", "hard_neg"), *rows]))
    assert list(read_triplets(path)) == rows


@pytest.mark.parametrize("ending", [".txt", ".csv", ".tsv", ".jsonl"])
def test_byte_order_mark_windows_line_ends_and_trailing_blank_lines_are_no_text(tmp_path: Path, ending: str) -> None:
    lines = ['{"text": "One."}', '{"text": "Two."}'] if ending == ".jsonl" else ["One.", "Two."]
    header = ["text"] if ending in (".csv", ".tsv") else []
    content = b"\xef\xbb\xbf" + "\r\n".join([*header, *lines, "", "  ", ""]).encode()
    assert read_sentences(write(tmp_path, f"file{ending}", content)) == ["One.", "Two."]


def test_line_ends_within_a_cell_are_newlines(tmp_path: Path) -> None:
    path = write(tmp_path, "file.csv", b'sentence\r\n"two\r\nlines"\r\n')
    assert read_sentences(path) == ["two\nlines"]


def test_tsv_has_no_quoting(tmp_path: Path) -> None:
    path = write(tmp_path, "file.tsv", '4.0\t"To be\tor not to be"\n1.5\tsaid "no\tloudly\n')
    pairs = read_scored_pairs(path)
    assert pairs.first == ['"To be', 'said "no']
    assert pairs.second == ['or not to be"', "loudly"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "is empty"),
        ("blank.csv", b"\n\n \n", "is empty"),
        ("names.csv", b"sentence\n", "column names but no rows"),
        ("a.txt", b"fine\nbad \xe9 byte\n", r"a\.txt, line 2: byte 5 \(0xe9\) is not UTF-8"),
        ("a.txt", b"fine\nwith \x00 inside\n", r"a\.txt, line 2: column 'sentence' contains a NUL"),
        ("a.txt", "fine\n".encode("utf-16"), "is UTF-16, not UTF-8"),
        ("a.txt", gzip.compress(b"fine\n", mtime=0), r"is compressed with gzip; rename it to a\.txt\.gz"),
        ("a.csv", b"sentence\nfine\n \nfine\n", r"a\.csv, line 3: the line is empty"),
        ("a.csv", b'sentence,id\nfine,1\n"  ",2\n', r"a\.csv, line 3: column 'sentence' is empty"),
        ("a.csv", b'sentence\n"open\nfine\n', r"a\.csv, line 2: a quote opens a cell here and is never closed"),
        ("a.csv", b'sentence\nfine\n"shut"up\n', r"a\.csv, line 3: text follows the closing quote on line 3"),
        (
            "a.csv",
            b"sentence\none, two\n",
            r"a\.csv, line 2: expected 1 column, got 2; put a sentence with a comma in quotes",
        ),
        (
            "a.tsv",
            b"sentence\none\ttwo\n",
            r"a\.tsv, line 2: expected 1 column, got 2; a sentence must not contain a tab",
        ),
        ("a.jsonl", b'{"text": "fine"}\n{"text": \n', r"a\.jsonl, line 2: invalid JSON"),
        ("a.jsonl", b'{"text": "fine"}\n{"txt": "x"}\n', r"a\.jsonl, line 2: column 'text' is missing"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": 5}\n', r"a\.jsonl, line 2: column 'text' is not text: 5"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "\\u0000"}\n', r"a\.jsonl, line 2: column 'text' contains a NUL"),
        ("a.jsonl", b'{"text": "fine"}\n7\n', r"a\.jsonl, line 2: column 'text' is missing"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1: invalid JSON"),
        ("a.dat", b"fine\n", r"unknown format of .*a\.dat: the name must end in \.txt"),
        ("a.parquet", b"fine\n", "cannot be read as Parquet"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DiffaugError, match=message):
        read_sentences(tmp_path / name)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match=r"there is no file .*nowhere\.txt"):
        read_sentences(tmp_path / "nowhere.txt")
    (tmp_path / "b.csv").touch()
    (tmp_path / "a.csv").touch()
    with pytest.raises(DiffaugError, match=r"is a directory; name a file \(it contains a\.csv, b\.csv\)"):
        read_sentences(tmp_path)


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_truncated_file_is_an_error_even_when_skipping(tmp_path: Path, ending: str) -> None:
    noise = random.Random(0)
    content = "\n".join(f"Sentence number {noise.random()}." for _ in range(5_000)).encode()
    whole = COMPRESSORS[ending](content)
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DiffaugError, match=r"is damaged or truncated: its \w+ data ends unexpectedly after line [\d,]+"
    ):
        read_sentences(path, on_bad="skip")
    path.write_bytes(b"This is not compressed at all.")
    with pytest.raises(DiffaugError, match=r"is not a valid \w+ file"):
        read_sentences(path)


def test_one_stray_quote_costs_one_line(tmp_path: Path) -> None:
    good = [f"Sentence {i}." for i in range(20_000)]
    lines = ["sentence", *good]
    lines[5_000] = '"opened, never closed'
    lines[15_000] = '"opened again'
    problems: list[Problem] = []
    found = read_sentences(write(tmp_path, "a.csv", "\n".join(lines)), on_bad=problems.append)
    assert found == good[:4_999] + good[5_000:14_999] + good[15_000:]
    assert [(p.number, p.kind) for p in problems] == [(5_001, "broken quoting"), (15_001, "broken quoting")]


def test_a_stray_quote_before_an_unreadable_line_costs_these_two(tmp_path: Path) -> None:
    content = b'sentence\n"open\nfine\nbad \xff\nalso fine\n"two\nlines"\n'
    problems: list[Problem] = []
    assert read_sentences(write(tmp_path, "a.csv", content), on_bad=problems.append) == [
        "fine",
        "also fine",
        "two\nlines",
    ]
    assert sorted((p.number, p.kind) for p in problems) == [(2, "broken quoting"), (4, "not UTF-8")]


def test_a_row_over_several_lines_is_named_by_its_first(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'sent0,sent1,hard_neg\n"two\nlines",b,c\n"three\nmore\nlines",,c\n')
    with pytest.raises(DiffaugError, match=r"line 4: column 'sent1' is empty"):
        read_triplets(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(DiffaugError, match=r"pip install 'diffaug\[parquet\]'"):
        read_sentences(tmp_path / "a.parquet")


def test_parquet_empty_cells_are_bad_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["One.", None, "Three."]}), tmp_path / "a.parquet")
    with pytest.raises(DiffaugError, match=r"a\.parquet, row 2: column 'text' is missing"):
        read_sentences(tmp_path / "a.parquet")
    assert read_sentences(tmp_path / "a.parquet", on_bad="skip") == ["One.", "Three."]


def test_python_objects() -> None:
    assert read_sentences(["One.", " Two. "]) == ["One.", "Two."]
    assert read_sentences(text for text in ("One.", "Two.")) == ["One.", "Two."]
    assert list(read_triplets([("a", "b", "c"), ["d", "e", "f"]])) == [("a", "b", "c"), ("d", "e", "f")]
    rows = [{"score": 1, "s1": "a", "s2": "b"}, {"s2": "d", "s1": "c", "score": 2.5}]
    assert list(read_scored_pairs(rows)) == [("a", "b", 1.0), ("c", "d", 2.5)]
    with pytest.raises(DiffaugError, match=r"the data given, row 2: column 1 is not text: 5"):
        read_sentences(["One.", 5])
    with pytest.raises(DiffaugError, match="cannot read data from a dict"):
        read_sentences({"sentence": ["One."]})
    with pytest.raises(DiffaugError, match="the data given is empty"):
        read_sentences([])


def test_hub_labels_are_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": 0}, {"premise": "a", "hypothesis": "c", "label": 1}]
    asked: list[tuple[object, ...]] = []

    def load_dataset(name: str, config: str | None, split: str, revision: str | None) -> datasets.Dataset:
        asked.append((name, config, split, revision))
        # The codes mean the opposite of the usual 1 and 0.
        meaning = datasets.ClassLabel(names=["entailment", "not_entailment"])
        return datasets.Dataset.from_list(rows).cast_column("label", meaning)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    pairs = read_labelled_pairs("hub:nyu-mll/glue/rte/train")
    assert asked == [("nyu-mll/glue", "rte", "train", None)], "offline the revision is unknown"
    assert pairs.binary() == [1, 0]


def test_the_revision_of_a_hub_data_set_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    commit, asked = "0123456789" * 4, []

    class Api:
        def dataset_info(self, name: str, revision: str | None, timeout: float) -> types.SimpleNamespace:
            asked.append((name, revision))
            return types.SimpleNamespace(sha=commit)

    def load_dataset(name: str, config: str | None, split: str, revision: str | None) -> datasets.Dataset:
        asked.append((name, config, split, revision))
        return datasets.Dataset.from_list([{"sentence": "One."}])

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert pin_revision("hub:owner/name") == f"hub:owner/name@{commit}"
    assert pin_revision("hub:owner/name@v1//test") == f"hub:owner/name@{commit}//test"
    assert asked == [("owner/name", None), ("owner/name", "v1")]
    assert read_sentences("hub:owner/name@v1//test") == ["One."]
    assert asked[2:] == [("owner/name", "v1"), ("owner/name", None, "test", commit)]
    pinned = f"hub:owner/name@{commit}//test"
    assert pin_revision(pinned) == pinned
    assert len(asked) == 4, "a commit needs no request"
    assert open_table(pinned, print).format == f"a data set on the hub, revision {commit}"


def test_hub_errors_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(name: str, config: str | None, split: str, revision: str | None) -> None:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(DiffaugError, match=r"hub:snli could not be loaded from the hub: no network"):
        read_labelled_pairs("hub:snli")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DiffaugError, match=r"diffaug\[hub\]"):
        read_labelled_pairs("hub:snli")


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("hub:snli", ("snli", None, None, "train")),
        ("hub:owner/name", ("owner/name", None, None, "train")),
        ("hub:owner/name@v1.0", ("owner/name", "v1.0", None, "train")),
        ("hub:glue/stsb/validation", ("glue", None, "stsb", "validation")),
        ("hub:owner/name/config/test", ("owner/name", None, "config", "test")),
        ("hub:owner/name@abc/config/test", ("owner/name", "abc", "config", "test")),
        ("hub:owner/name//test", ("owner/name", None, None, "test")),
    ],
)
def test_hub_sources(source: str, parts: tuple[str | None, ...]) -> None:
    assert hub_parts(source) == parts


@pytest.mark.parametrize("source", ["hub:", "hub:a/b/c/d/e", "hub:a/b/c/", "hub:a/b@", "hub:@v1"])
def test_invalid_hub_sources(source: str) -> None:
    with pytest.raises(DiffaugError, match="is not a valid hub source"):
        read_sentences(source)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl", "a.txt.gz"])
def test_carriage_returns_as_line_ends_are_refused(name: str, tmp_path: Path) -> None:
    content = b'{"a": "b"}\r{"a": "c"}\r' if ".jsonl" in name else b"One.\rTwo.\r"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DiffaugError, match="has carriage returns as line ends"):
        list(open_table(tmp_path / name, raise_problem).rows)


def test_a_carriage_return_within_a_line_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"One\rtwo.\nThree.\r\n")
    assert [cells for _, cells in open_table(tmp_path / "a.txt", raise_problem).rows] == [("One\rtwo.",), ("Three.",)]


@pytest.mark.parametrize("kind", ["date32", "timestamp"])
def test_parquet_dates_out_of_range(kind: str, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    days, times = pyarrow.array([2**31 - 1], pyarrow.int32()), pyarrow.array([2**62], pyarrow.timestamp("ms"))
    dates = days.cast(pyarrow.date32()) if kind == "date32" else times
    pyarrow.parquet.write_table(pyarrow.table({"sentence": ["a"], "when": dates}), tmp_path / "a.parquet")
    with pytest.raises(DiffaugError, match="is damaged after row 0"):
        list(open_table(tmp_path / "a.parquet", raise_problem).rows)


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(DiffaugError, match="File name too long"):
        open_table("a" * 300 + ".txt", raise_problem)
