"""Evaluation sentences and pairs in the training data, against a comparison of everything with everything."""

from __future__ import annotations

import random
import re
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest

from diffaug.config import DataSettings
from diffaug.data import leakage
from diffaug.data.cache import DataCache
from diffaug.data.check import check
from diffaug.data.collate import collator_for
from diffaug.data.corpus import Corpus
from diffaug.data.leakage import Leakage, find_leakage
from diffaug.embedder import Embedder


@cache
def shingles(sentence: str) -> set[str]:
    words = ["<", *re.findall(r"[^\W_]+", sentence.lower()), ">"]
    return {f"{a} {b}" for a, b in pairwise(words)}


def jaccard(first: str, second: str) -> float:
    a, b = shingles(first), shingles(second)
    return len(a & b) / len(a | b)


def words(sentence: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", sentence.lower()))


def test_as_comparing_everything_with_everything() -> None:
    """Sentences of few words, so that many are the same or nearly so, and many are not quite."""
    chosen = random.Random(0)
    vocabulary = [f"w{i}" for i in range(60)]

    def sentence() -> str:
        return " ".join(chosen.choices(vocabulary, k=chosen.randint(1, 14)))

    def changed(text: str) -> str:
        found = text.split()
        for _ in range(chosen.choice((0, 0, 0, 1, 2))):
            found[chosen.randrange(len(found))] = chosen.choice(vocabulary)
        return chosen.choice(["{}", "{}.", "{} !", "- {}", "The {}"]).format(" ".join(found).capitalize())

    dev = [(sentence(), sentence()) for _ in range(70)]
    rows = [(sentence(), sentence(), sentence()) for _ in range(100)]
    rows += [(changed(a), sentence(), changed(b)) for a, b in dev[:60]]
    chosen.shuffle(rows)
    found = find_leakage({"dev": list(zip(*dev, strict=True))}, [list(zip(*rows, strict=True))])["dev"]

    training = {text for row in rows for text in row}
    exact, near = set(), set()
    for text in {text for pair in dev for text in pair}:
        if words(text) in {words(other) for other in training}:
            exact.add(text)
        elif any(jaccard(text, other) >= 0.6 for other in training):
            near.add(text)
    exact_pairs, near_pairs = set(), set()
    for a, b in dev:
        for row in rows:
            for x, y in product(row, row):
                if x is not y and min(jaccard(a, x), jaccard(b, y)) >= 0.6:
                    same = words(a) == words(x) and words(b) == words(y)
                    (exact_pairs if same else near_pairs).add((a, b))
    near_pairs -= exact_pairs
    assert (found.exact_sentences, found.near_sentences) == (len(exact), len(near))
    assert (found.exact_pairs, found.near_pairs) == (len(exact_pairs), len(near_pairs))
    assert min(len(exact), len(near), len(exact_pairs), len(near_pairs)) > 5, "all of them occur"
    assert tuple(found.example) in exact_pairs


@pytest.mark.parametrize(
    ("evaluation", "training", "exact", "near"),
    [
        ("A dog runs.", "a DOG runs", 1, 0),
        ("“Où est le café?”", "ou est le cafe", 0, 0),
        ("“Où est le café?”", "OÙ EST LE CAFÉ", 1, 0),
        ("ﬁne ½", "fine 1⁄2", 1, 0),
        ("a b c d e f g h i j", "a b c d e f x h i j", 0, 1),
        ("the dog bites the man", "the man bites the dog", 0, 0),
        ("...", "...", 0, 0),
        ("yes", "Yes!", 1, 0),
        ("snake_case words here", "snake case words here", 1, 0),
    ],
)
def test_what_is_the_same(evaluation: str, training: str, exact: int, near: int) -> None:
    found = find_leakage({"a": [[evaluation]]}, [[[training, "Something else entirely."]]])["a"]
    assert (found.exact_sentences, found.near_sentences) == (exact, near)
    assert bool(found) == bool(exact or near)


def test_large_data_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leakage, "_MAX_ROWS", 10)
    monkeypatch.setattr(leakage, "_MAX_SENTENCES", 50)
    texts = [f"sentence number {i} of many" for i in range(100)]
    found = find_leakage({"a": [texts]}, [[texts]])["a"]
    assert (found.sentences, found.compared) == (10, 0.5)
    assert "compared with 50 % of the training data" in str(found)


def test_a_corpus_compares_what_is_trained_on(tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nli.csv").write_text("sent0,sent1,hard_neg\nA dog runs in a park.,A dog runs.,A dog sleeps.\nx,y,z\n")
    (tmp_path / "text.txt").write_text("The market fell on Monday.\nA dog sleeps.\n")
    (tmp_path / "dev.tsv").write_text("5\ta dog runs in a park\ta dog runs\n0\tThe market fell on Monday\tRain.\n")
    files = {"nli": "nli.csv", "unlabelled": "text.txt", "dev": "dev.tsv"}
    settings = DataSettings(**{name: str(tmp_path / file) for name, file in files.items()})  # type: ignore[arg-type]
    embedder, cache = Embedder.from_pretrained(tiny_bert), DataCache()

    def corpus() -> Corpus:
        return Corpus(settings, collator_for(embedder.encoder, embedder.tokenizer), cache=cache)

    def shared(*uses: str) -> Leakage:
        fresh = corpus()
        for use in uses:
            getattr(fresh, use)()
        return fresh.leakage()["dev"]

    assert corpus().leakage() == {}
    assert (shared("triplets").exact_sentences, shared("triplets").exact_pairs) == (2, 1)
    assert (shared("sentences").exact_sentences, shared("sentences").exact_pairs) == (1, 0)
    both = shared("triplets", "sentences")
    assert (both.exact_sentences, both.sentences, both.pairs) == (3, 4, 2)
    monkeypatch.setattr("diffaug.data.corpus.find_leakage", None)
    assert shared("triplets", "sentences") == both, "another run with the same data does not compare again"


def test_check_against_evaluation_data(tmp_path: Path) -> None:
    (tmp_path / "nli.csv").write_text("sent0,sent1,hard_neg\nA dog runs in a park.,A dog runs.,A dog sleeps.\n")
    (tmp_path / "dev.tsv").write_text("5\ta dog runs in a park\ta dog runs\n0\tThe market fell\tRain.\n")
    printed = str(check(tmp_path / "nli.csv", against=[tmp_path / "dev.tsv", tmp_path / "nli.csv"]))
    assert (
        "dev.tsv: 2 of 4 sentences (2 exactly, 0 nearly) and 1 of 2 pairs (1 exactly, 0 nearly), for example" in printed
    )
    assert "'a dog runs in a park' and 'a dog runs'" in printed
    assert "nli.csv: 3 of 3 sentences" in printed
    (tmp_path / "other.txt").write_text("Nothing of it.\n")
    assert "other.txt: none of 1 sentences" in str(check(tmp_path / "nli.csv", against=[tmp_path / "other.txt"]))
