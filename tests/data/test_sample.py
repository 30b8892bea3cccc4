"""The sample data is what its datasheet says."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from diffaug.data.read import read_scored_pairs, read_sentences, read_triplets
from diffaug.data.records import ScoredPairs, Triplets
from diffaug.data.table import SAMPLE_FILES, SAMPLE_FOLDER, source_path
from diffaug.errors import DiffaugError


def words(sentence: str) -> str:
    """A sentence's words alone: what differs in case or punctuation only is the same sentence."""
    return " ".join(re.findall(r"[\w']+", sentence.lower()))


@pytest.fixture(scope="module")
def triplets() -> Triplets:
    return read_triplets("sample:triplets")


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return read_sentences("sample:sentences")


@pytest.fixture(scope="module")
def scored() -> dict[str, ScoredPairs]:
    return {name: read_scored_pairs(f"sample:{name}") for name in ("dev", "test")}


def test_counts(triplets: Triplets, sentences: list[str], scored: dict[str, ScoredPairs]) -> None:
    counts = {"triplets.csv": len(triplets), "sentences.txt": len(sentences)}
    counts |= {f"{name}.tsv": len(pairs) for name, pairs in scored.items()}
    assert counts["triplets.csv"] >= 2_000
    assert counts["sentences.txt"] >= 4_000
    assert min(counts["dev.tsv"], counts["test.tsv"]) >= 300
    datasheet = (SAMPLE_FOLDER / "README.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| `(\S+)` \| ([\d,]+) \|", datasheet, re.MULTILINE))
    assert {name: int(count.replace(",", "")) for name, count in stated.items()} == counts


def test_no_sentence_occurs_twice(triplets: Triplets, sentences: list[str], scored: dict[str, ScoredPairs]) -> None:
    """In the four files together, so dev and test share nothing with each other or with training."""
    everything = [text for row in triplets for text in row] + sentences
    everything += [text for pairs in scored.values() for text in (*pairs.first, *pairs.second)]
    assert [text for text, count in Counter(map(words, everything)).items() if count > 1] == []


def test_text_is_clean(triplets: Triplets, sentences: list[str], scored: dict[str, ScoredPairs]) -> None:
    everything = [text for row in triplets for text in row] + sentences
    everything += [text for pairs in scored.values() for text in (*pairs.first, *pairs.second)]
    odd = re.compile(r"\||\t|  |^\s|\s$|[^\x20-\x7eÀ-ɏ‘’“”–—…€£°]")
    assert [text for text in everything if odd.search(text)] == []


def test_scores_spread_alike_over_dev_and_test(scored: dict[str, ScoredPairs]) -> None:
    for pairs in scored.values():
        assert min(pairs.scores) == 0
        assert max(pairs.scores) == 5
        assert min(np.histogram(pairs.scores, bins=5)[0]) > 0.1 * len(pairs)
    deciles = [np.percentile(pairs.scores, range(0, 101, 10)) for pairs in scored.values()]
    assert np.abs(deciles[0] - deciles[1]).max() <= 0.2


def test_shared_words_do_not_give_the_label_away(triplets: Triplets) -> None:
    """Otherwise a small encoder learns to count words instead of meaning, and gets worse on other text."""

    def shared(premise: str, other: str) -> float:
        known, said = set(words(premise).split()), set(words(other).split())
        return len(known & said) / len(said)

    entailed = np.array([shared(anchor, positive) for anchor, positive, _ in triplets])
    denied = np.array([shared(anchor, negative) for anchor, _, negative in triplets])
    assert 0.4 < entailed.mean() < 0.6
    assert 0.4 < denied.mean() < 0.6
    assert 0.25 < (entailed < denied).mean() < 0.75


def test_sample_sources() -> None:
    for name, path in SAMPLE_FILES.items():
        assert source_path(f"sample:{name}") == path
        assert path.is_file()
    with pytest.raises(
        DiffaugError, match="there is no sample data 'dog'; choose one of sentences, triplets, dev, test"
    ):
        read_sentences("sample:dog")
