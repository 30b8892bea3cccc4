"""Synonyms: which word is exchanged, for what, and from which WordNet."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from wordnet_fixtures import AddLexicon

from diffaug.errors import DiffaugError
from diffaug.models.views.synonym import SynonymReplacement, WordNet

THESAURUS = {
    "dog": ["domestic dog", "hound"],
    "park": ["parkland"],
    "big": ["large"],
    "mark": ["grade"],
    "a": ["vitamin"],
    "in": ["inch"],
    "well-known": ["famous"],
}


def replaced(sentence: str, seed: int = 0) -> str:
    return SynonymReplacement(seed, lambda word: THESAURUS.get(word, []))(sentence)


def test_exactly_one_word_is_exchanged() -> None:
    expected = {
        "a domestic dog in a big park.",
        "a hound in a big park.",
        "a dog in a large park.",
        "a dog in a big parkland.",
    }
    assert {replaced("a dog in a big park.", seed) for seed in range(40)} == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Park here!", "Parkland here!"),
        ('"Park", he said', '"Parkland", he said'),
        ("THE PARK", "THE PARKLAND"),
        ("a well-known man", "a famous man"),
        ("big\tspaces  stay\n", "large\tspaces  stay\n"),
        # Names, words of grammar, unknown words, parts of words and nothing at all stay.
        ("He met Mark", "He met Mark"),
        ("He met MARK", "He met MARK"),
        ("in a", "in a"),
        ("parks", "parks"),
        ("a bigly dogged", "a bigly dogged"),
        ("12 _ !", "12 _ !"),
        ("", ""),
    ],
)
def test_case_and_what_is_around_stay(sentence: str, expected: str) -> None:
    assert replaced(sentence) == expected


def test_seed_and_sentence_alone_decide() -> None:
    """In another process, with another hash seed and in another order."""
    sentences = [f"{n} a dog in a big park" for n in range(30)]
    here = [replaced(sentence, seed=7) for sentence in sentences]
    assert len({text.split(" ", 1)[1] for text in here}) == 4
    assert [replaced(sentence, seed=8) for sentence in sentences] != here
    code = (
        "import json, sys\n"
        "from diffaug.models.views.synonym import SynonymReplacement\n"
        "thesaurus, sentences = json.load(sys.stdin)\n"
        "replace = SynonymReplacement(7, lambda word: thesaurus.get(word, []))\n"
        "print(json.dumps([replace(s) for s in reversed(sentences)]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([THESAURUS, sentences]),
        capture_output=True,
        text=True,
        env={"PYTHONHASHSEED": "5", "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        check=True,
    )
    assert json.loads(process.stdout)[::-1] == here


WORDS = [
    ("dog", "n", ["animal", "fellow"]),
    ("dog", "v", ["follow"]),
    ("domestic_dog", "n", ["animal"]),
    ("Canis familiaris", "n", ["animal"]),
    ("cad", "n", ["fellow"]),
    ("chase", "v", ["follow"]),
    ("big", "a", ["size"]),
    ("big", "n", ["player"]),
    ("big", "s", ["important"]),
    ("large", "a", ["size"]),
    ("centre", "n", ["player"]),
    ("centres", "n", ["ruins"]),
    ("debris", "n", ["ruins"]),
    ("tree", "n", ["plant"]),
]


def test_synonyms_are_those_of_the_most_usual_meaning(add_lexicon: AddLexicon) -> None:
    add_lexicon(WORDS)
    wordnet = WordNet()
    assert wordnet.synonyms("dog") == ("Canis familiaris", "domestic dog")  # two meanings as a noun, one as a verb
    assert wordnet.synonyms("big") == ("large",)  # adjectives of both kinds, against one noun
    assert wordnet.synonyms("chase") == ("dog",)
    assert wordnet.synonyms("tree") == ()
    assert wordnet.synonyms("dogs") == (), "an inflected word has no synonym that fits"
    assert wordnet.synonyms("centres") == ("debris",), "unless it is a base form in its own right"
    assert wordnet.synonyms("unknown") == ()
    assert SynonymReplacement(seed=0)("Dogs chase a tree") == "Dogs dog a tree"
    found = {SynonymReplacement(seed)("Dog") for seed in range(20)}
    assert found == {"Domestic dog", "Canis familiaris"}


def test_the_newest_open_english_wordnet_is_taken(add_lexicon: AddLexicon) -> None:
    add_lexicon([("dog", "n", ["animal"]), ("cur", "n", ["animal"])], version="9999", id="pwn")
    add_lexicon([("dog", "n", ["Tier"]), ("Hund", "n", ["Tier"])], version="9999", id="odenet", language="de")
    assert WordNet().synonyms("dog") == ("cur",)
    for version, word in (("2024", "old"), ("2025", "new"), ("2023", "older")):
        add_lexicon([("dog", "n", ["animal"]), (word, "n", ["animal"])], version=version)
    assert WordNet().synonyms("dog") == ("new",)


def test_without_data_the_error_says_what_to_type(wordnet_folder: Path) -> None:
    with pytest.raises(DiffaugError, match=r"there is none in .*wn\.db: run python -m wn download oewn:2025 once"):
        WordNet()
    assert not wordnet_folder.exists(), "looking for a database made one"


def test_without_the_package_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "wn":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DiffaugError, match=r"pip install 'diffaug\[synonyms\]'"):
        SynonymReplacement(seed=0)


def test_a_damaged_database_is_an_error(wordnet_folder: Path) -> None:
    wordnet_folder.mkdir()
    (wordnet_folder / "wn.db").write_bytes(b"not a database" * 100)
    with pytest.raises(DiffaugError, match=r"wn\.db cannot be read \(file is not a database\): remove it"):
        WordNet()
