from __future__ import annotations

import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch

from diffaug.embedder import Embedder, Hit
from diffaug.errors import DiffaugError
from diffaug.inference import encode as module
from diffaug.inference import search as search_module
from diffaug.models.batch import PaddedBatch


@pytest.fixture(scope="module")
def shared(tiny_bert: Path) -> Embedder:
    return Embedder.from_pretrained(tiny_bert)


@pytest.fixture
def embedder(tiny_bert: Path) -> Embedder:
    """One of its own for a test that watches or changes it."""
    return Embedder.from_pretrained(tiny_bert)


@pytest.fixture
def batches(embedder: Embedder) -> Iterator[list[PaddedBatch]]:
    """The batches that ``embedder`` runs from now on."""
    seen: list[PaddedBatch] = []
    handle = embedder.encoder.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    yield seen
    handle.remove()


def many(n: int) -> list[str]:
    """Distinct sentences of mixed length."""
    words = ["dog", "park", "runs", "the", "market", "fell"]
    return [" ".join(words[(i + j) % 6] for j in range(1 + i % 17)) + f" {i}" for i in range(n)]


# What comes back.


def test_rows_stand_in_the_order_given(shared: Embedder, sentences: list[str]) -> None:
    vectors = shared.encode(sentences)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(sentences), 32) == (len(sentences), shared.width)
    for i, sentence in enumerate(sentences):
        np.testing.assert_allclose(vectors[i], shared.encode([sentence])[0], atol=1e-5)
    backwards = shared.encode(sentences[::-1])[::-1]
    np.testing.assert_allclose(vectors, backwards, atol=1e-5)
    # Guard: the sentences do differ.
    assert np.abs(vectors[:, None] - vectors[None]).max(-1)[~np.eye(len(sentences), dtype=bool)].min() > 1e-3


def test_one_sentence_is_one_vector(shared: Embedder) -> None:
    vector = shared.encode("Yes.")
    assert vector.shape == (32,)
    np.testing.assert_array_equal(vector, shared.encode(["Yes."])[0])


def test_any_iterable_will_do(shared: Embedder, sentences: list[str]) -> None:
    expected = shared.encode(sentences)
    for form in (tuple(sentences), (s for s in sentences), dict.fromkeys(sentences), np.array(sentences)):
        np.testing.assert_array_equal(shared.encode(form), expected)


def test_nothing_gives_nothing(shared: Embedder) -> None:
    for nothing in ([], (), iter([])):
        vectors = shared.encode(nothing)
        assert vectors.shape == (0, 32)
        assert vectors.dtype == np.float32


def test_input_is_left_as_it_was(shared: Embedder) -> None:
    given = ["b", "a", "b"]
    shared.encode(given)
    assert given == ["b", "a", "b"]


def test_length_one_unless_told_otherwise(shared: Embedder, sentences: list[str]) -> None:
    plain, scaled = shared.encode(sentences, normalize=False), shared.encode(sentences)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, atol=1e-6)
    assert np.abs(np.linalg.norm(plain, axis=1) - 1).min() > 0.1
    np.testing.assert_allclose(scaled, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)


# What goes in.


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n",
        "\x00",
        "\ud83d",
        "\udcff half",
        "👩‍👩‍👧‍👦",
        "\u202eright to left",
        "a\u0300" * 20,
        "אבג",
        "🎉" * 40,
        "\ufeffbom",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_any_string_has_a_vector(tiny: Any, family: str, text: str) -> None:
    embedder = Embedder.from_pretrained(tiny(family))
    vectors = embedder.encode([text, "Yes.", text])
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(vectors[0], vectors[2])
    np.testing.assert_allclose(vectors[1], embedder.encode("Yes."), atol=1e-5)


@pytest.mark.parametrize("wrong", [None, 5, b"bytes", ["a"], float("nan")])
def test_what_is_no_string_is_named(shared: Embedder, wrong: Any) -> None:
    with pytest.raises(DiffaugError, match=f"sentence 2 must be a string, got {type(wrong).__name__}"):
        shared.encode(["a", "b", wrong])


def test_long_texts_are_cut_and_it_is_said_once(embedder: Embedder) -> None:
    limit = embedder.collator.max_length
    assert limit == 126
    long = "dog " * 25_000
    with pytest.warns(UserWarning, match=r"2 of 3 distinct sentences were truncated to 126 tokens") as caught:
        vectors = embedder.encode([long, long, "Yes.", "dog " * 127])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(embedder.encode(long), vectors[0], atol=1e-5)
        np.testing.assert_allclose(embedder.encode("dog " * limit), vectors[0], atol=1e-5)
    np.testing.assert_allclose(vectors[3], vectors[0], atol=1e-5)
    assert not np.allclose(embedder.encode("dog " * (limit - 1)), vectors[0], atol=1e-5)


def test_longest_text_that_fits_is_not_called_cut(embedder: Embedder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedder.encode("dog " * 126)


# How it is computed.


def test_each_distinct_sentence_is_computed_once(embedder: Embedder, batches: list[PaddedBatch]) -> None:
    texts = ["a", "b", "a", "c", "a", "b"] * 100
    vectors = embedder.encode(texts)
    assert sum(len(rows) for rows in batches) == 3
    for text in "abc":
        same = vectors[[i for i, t in enumerate(texts) if t == text]]
        assert (same == same[0]).all()
    assert not np.allclose(vectors[0], vectors[1])


def test_repeats_over_several_windows(
    embedder: Embedder, batches: list[PaddedBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = many(50) + many(30) + many(50)[::-1]
    expected = embedder.encode(texts)
    batches.clear()
    monkeypatch.setattr(module, "_WINDOW", 7)
    np.testing.assert_allclose(embedder.encode(texts), expected, atol=1e-5)
    assert sum(len(rows) for rows in batches) == 50


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no malloc_trim")
def test_free_memory_returns_to_the_system_after_each_window(shared: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    blocks = [bytes(2_000) for _ in range(100_000)]
    full = resident()
    blocks = blocks[-1:]  # the last one keeps glibc from returning what is below it
    monkeypatch.setattr(module, "_WINDOW", 16)
    shared.encode(many(30))
    assert full - resident() > 100_000_000


def test_batch_size_is_respected(embedder: Embedder, batches: list[PaddedBatch]) -> None:
    expected = embedder.encode(many(50))
    for size in (1, 7, 64):
        batches.clear()
        np.testing.assert_allclose(embedder.encode(many(50), size), expected, atol=1e-5)
        assert [len(rows) for rows in batches] == [size] * (50 // size) + [50 % size] * (50 % size > 0)


@pytest.mark.parametrize("size", [0, -1])
def test_batch_size_that_is_none(shared: Embedder, size: int) -> None:
    with pytest.raises(DiffaugError, match="batch_size must be at least 1"):
        shared.encode(["a"], size)


def test_batches_stay_within_the_token_budget(
    embedder: Embedder, batches: list[PaddedBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = embedder.encode(many(300))
    assert len(batches) > 1
    for budget in (64, 200, 1000):
        batches.clear()
        monkeypatch.setitem(module._TOKEN_BUDGET, "cpu", budget)
        np.testing.assert_allclose(embedder.encode(many(300)), expected, atol=1e-5)
        sizes = [rows.input_ids.numel() for rows in batches]
        assert max(sizes) <= budget
        # Longest first, and well filled but for the last of all.
        widths = [rows.input_ids.shape[1] for rows in batches]
        assert widths == sorted(widths, reverse=True)
        assert min(size + 2 * width for size, width in zip(sizes[:-1], widths, strict=False)) >= budget // 2


def test_sentence_longer_than_the_budget_goes_alone(
    embedder: Embedder, batches: list[PaddedBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._TOKEN_BUDGET, "cpu", 10)
    embedder.encode(["dog " * 50, "dog " * 49, "dog"])
    assert [tuple(rows.input_ids.shape) for rows in batches] == [(1, 52), (1, 51), (1, 3)]


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_company_does_not_matter(tiny: Any, family: str) -> None:
    embedder = Embedder.from_pretrained(tiny(family))
    texts = many(60)
    together, alone = embedder.encode(texts, 60), embedder.encode(texts, 1)
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_no_gradients_and_no_dropout(embedder: Embedder, sentences: list[str]) -> None:
    embedder.encoder.train()
    embedder = Embedder(embedder.encoder, embedder.tokenizer)
    assert not embedder.encoder.training
    np.testing.assert_array_equal(embedder.encode(sentences), embedder.encode(sentences))
    assert all(parameter.grad is None for parameter in embedder.encoder.parameters())


def test_progress_bar(shared: Embedder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # tells rich that it writes to a terminal
    shared.encode(many(5))
    assert capsys.readouterr().err == ""
    shared.encode(many(5), show_progress=True)
    captured = capsys.readouterr()
    assert "embedding" in captured.err
    assert captured.out == ""


def test_device(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert embedder.encode("Yes.", device="cpu").shape == (32,)
    assert embedder.device == torch.device("cpu")
    moved: list[Any] = []
    monkeypatch.setattr(embedder.encoder, "to", moved.append)
    embedder.encode("Yes.", device="cpu")
    assert moved == ["cpu"]
    monkeypatch.undo()
    assert Embedder(embedder.encoder, embedder.tokenizer, device="meta").device.type == "meta"


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_device_that_is_not_there(tiny_bert: Path, embedder: Embedder, device: str) -> None:
    with pytest.raises(DiffaugError, match=f"cannot run on the device '{device}'"):
        Embedder.from_pretrained(tiny_bert, device=device)
    with pytest.raises(DiffaugError, match=f"cannot run on the device '{device}'"):
        embedder.encode("a", device=device)


# Similarity and search.


def test_similarity_shapes(shared: Embedder, sentences: list[str]) -> None:
    a, b = sentences[:3], sentences[3:5]
    matrix = shared.similarity(a, b)
    assert matrix.shape == (3, 2)
    va, vb = (shared.encode(x, normalize=False).astype(np.float64) for x in (a, b))
    cosines = va @ vb.T / np.linalg.norm(va, axis=1)[:, None] / np.linalg.norm(vb, axis=1)
    np.testing.assert_allclose(matrix, cosines, atol=1e-5)
    np.testing.assert_allclose(shared.similarity(a[0], b), cosines[0], atol=1e-5)
    np.testing.assert_allclose(shared.similarity(a, b[0]), cosines[:, 0], atol=1e-5)
    one = shared.similarity(a[0], b[0])
    assert isinstance(one, float)
    assert one == pytest.approx(cosines[0, 0], abs=1e-5)
    assert shared.similarity([], b).shape == (0, 2)


def brute_force(documents: np.ndarray, query: np.ndarray, k: int) -> list[int]:
    scores = (documents.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
    return sorted(range(len(documents)), key=lambda i: (-scores[i], i))[:k]


def test_search_by_brute_force(shared: Embedder, sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = many(200)
    vectors = shared.encode(corpus)
    for block in (1 << 24, 300, 1):  # all queries at a time, one, and one though it does not fit
        monkeypatch.setattr(search_module, "_BLOCK", block)
        found = shared.search(corpus, sentences, 7)
        assert len(found) == len(sentences)
        for hits, query in zip(found, shared.encode(sentences), strict=True):
            assert [hit.index for hit in hits] == brute_force(vectors, query, 7)
            np.testing.assert_allclose([hit.score for hit in hits], [vectors[h.index] @ query for h in hits], atol=1e-6)


@pytest.mark.parametrize("k", [1, 5, 30, 59, 60])
def test_search_with_ties(shared: Embedder, k: int) -> None:
    """Vectors with few different scores, which are exact in any precision."""
    corpus = np.zeros((60, 32), dtype=np.float32)
    corpus[np.arange(60), np.random.default_rng(0).integers(0, 4, 60)] = 1
    query = np.zeros((1, 32), dtype=np.float32)
    query[0, :3] = [0.5, 0.25, 0.25]
    hits = search_module.exact_search(corpus, query, k)[0]
    assert [hit.index for hit in hits] == brute_force(corpus, query[0], k)


def test_repeated_documents_are_found_in_their_order(shared: Embedder) -> None:
    """A matrix product may give equal columns results that differ in the last bit."""
    random = np.random.default_rng(0)
    for n in (7, 101, 1001):
        for width in (32, 384, 768):
            document, query = (random.normal(size=(1, width)).astype(np.float32) for _ in range(2))
            for k in (1, 3, n - 1, n):
                hits = search_module.exact_search(np.repeat(document, n, axis=0), query, k)[0]
                assert [hit.index for hit in hits] == list(range(k))
                assert len({hit.score for hit in hits}) == 1


def test_search_with_vectors_of_an_earlier_run(shared: Embedder, sentences: list[str]) -> None:
    vectors = shared.encode(sentences)
    assert shared.search(vectors, "A dog") == shared.search(sentences, "A dog")
    assert shared.search(iter(sentences), iter(["A dog"])) == [shared.search(sentences, "A dog")]
    # As they are: twice as long, twice the score.
    assert shared.search(2 * vectors, "A dog", 1)[0].score == pytest.approx(
        2 * shared.search(vectors, "A dog", 1)[0].score
    )


def test_search_more_than_there_is(shared: Embedder) -> None:
    hits = shared.search(["a", "b"], "a", 10)
    assert [hit.index for hit in hits] == [0, 1]
    assert isinstance(hits[0], Hit)
    assert hits[0].score == pytest.approx(1, abs=1e-6)
    assert shared.search([], "a") == []
    assert shared.search(["a"], []) == []


def test_search_arguments(shared: Embedder) -> None:
    with pytest.raises(DiffaugError, match="k must be at least 1"):
        shared.search(["a"], "b", 0)
    with pytest.raises(DiffaugError, match="a single string"):
        shared.search("a", "b")
    for shape in ((32,), (2, 31)):
        with pytest.raises(DiffaugError, match=r"must have the shape \(n, 32\)"):
            shared.search(np.zeros(shape, dtype=np.float32), "b")


# Where models come from.


def test_embedded_default() -> None:
    embedder = Embedder.from_pretrained()
    assert embedder.width == 256
    near = embedder.similarity("A man is playing a guitar.", "A person plays an instrument.")
    far = embedder.similarity("A man is playing a guitar.", "The stock market fell on Monday.")
    assert near > far


OFFLINE = """
import socket, sys
attempts = []
def refuse(*args, **kwargs):
    attempts.append(args)
    raise OSError("no network")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse

import diffaug, diffaug.cli
heavy = {"torch", "transformers", "numpy", "scipy", "tokenizers", "huggingface_hub"} & set(sys.modules)
assert not heavy, heavy
assert "Embedder" in dir(diffaug)

print(diffaug.Embedder.from_pretrained().encode(["A dog runs.", "Yes."]).shape)
assert not attempts, attempts
heavy = {"transformers.modeling_utils", "torch._dynamo", "scipy"} & set(sys.modules)  # half of the time to a vector
assert not heavy, heavy
"""


def test_importing_is_light_and_the_default_touches_no_network() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    run = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True, env=environment)
    assert (run.returncode, run.stdout, run.stderr) == (0, "(2, 256)\n", "")


def test_unknown_public_name() -> None:
    import diffaug

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        diffaug.nonsense  # noqa: B018


def test_hub_name(tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(name: str, *, revision: str | None, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append((name, revision))
        assert not any(Path("pytorch_model.bin").match(pattern) for pattern in allow_patterns)
        for needed in ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "merges.txt", "spiece.model"):
            assert any(Path(needed).match(pattern) for pattern in allow_patterns), needed
        return str(tiny_bert)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    expected = Embedder.from_pretrained(tiny_bert).encode(sentences)
    for name in ("somebody/tiny", "tiny"):
        np.testing.assert_array_equal(Embedder.from_pretrained(name, revision="v1").encode(sentences), expected)
    assert asked == [("somebody/tiny", "v1"), ("tiny", "v1")]


@pytest.mark.parametrize("error", [OSError("offline"), ValueError("not\na name"), RuntimeError("server " * 100)])
def test_hub_name_that_cannot_be_fetched(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(DiffaugError, match="somebody/tiny is neither a local folder nor a model") as caught:
        Embedder.from_pretrained("somebody/tiny")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_hub_name_offline() -> None:
    with pytest.raises(DiffaugError, match="neither a local folder nor a model"):
        Embedder.from_pretrained("nobody/nothing")


def test_paths_that_are_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "missing", "./missing", "../missing", "a/b/missing", "~/missing"):
        with pytest.raises(DiffaugError, match="does not exist"):
            Embedder.from_pretrained(path)
    with pytest.raises(DiffaugError, match="is a file; give the folder of a model"):
        Embedder.from_pretrained(tmp_path / "file")


def test_the_folder_of_a_run_leads_to_its_model(embedder: Embedder, tmp_path: Path) -> None:
    embedder.save(tmp_path / "run" / "best")
    (tmp_path / "run" / "recipe.yaml").write_text("name: x\n", "utf-8")
    with pytest.raises(DiffaugError, match=r"run is the folder of a run; load its model: .*run/best"):
        Embedder.from_pretrained(tmp_path / "run")


def test_a_model_tells_what_it_is(shared: Embedder) -> None:
    assert repr(shared) == f"Embedder(width {shared.width}, truncates at {shared.collator.max_length} tokens, on cpu)"


def test_pooling_and_template_are_for_plain_models(tiny_bert: Path, embedder: Embedder, tmp_path: Path) -> None:
    embedder.save(tmp_path / "saved")
    with pytest.raises(DiffaugError, match="has its own pooling and template"):
        Embedder.from_pretrained(tmp_path / "saved", pooling="cls")
    with pytest.raises(DiffaugError, match="unknown pooling 'max'; choose one of cls, mean"):
        Embedder.from_pretrained(tiny_bert, pooling="max")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_search_with_damaged_vectors_is_an_error(value: float) -> None:
    embedder = Embedder.from_pretrained(device="cpu")
    vectors = embedder.encode(["a dog", "a cat", "rain"])
    vectors[1, 7] = value
    for k in (1, 2, 3):
        with pytest.raises(
            DiffaugError, match="1 of 3 similarities to the query are NaN or infinite, the first to entry 1"
        ):
            embedder.search(vectors, "a dog", k=k)
