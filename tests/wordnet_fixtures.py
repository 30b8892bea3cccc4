"""A WordNet with a handful of words, in a database of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Words = list[tuple[str, str, list[str]]]
"""Form, part of speech, and the synsets of its meanings, the most usual first."""

AddLexicon = Callable[..., None]


def lexicon_xml(words: Words, version: str, id: str, language: str) -> str:
    """A lexicon in WN-LMF, the exchange format of wordnets."""
    entries, synsets = [], {}
    for n, (form, pos, meanings) in enumerate(words):
        senses = "".join(f'<Sense id="{id}-{n}-{m}" synset="{id}-{m}"/>' for m in meanings)
        plural = f'<Form writtenForm="{form}s"/>' if pos == "n" else ""
        lemma = f'<Lemma writtenForm="{form}" partOfSpeech="{pos}"/>'
        entries.append(f'<LexicalEntry id="{id}-{n}">{lemma}{plural}{senses}</LexicalEntry>')
        synsets |= dict.fromkeys(meanings, pos)
    body = "".join(f'<Synset id="{id}-{m}" ili="" partOfSpeech="{pos}"/>' for m, pos in synsets.items())
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE LexicalResource SYSTEM "http://globalwordnet.github.io/schemas/WN-LMF-1.1.dtd">
<LexicalResource xmlns:dc="https://globalwordnet.github.io/schemas/dc/">
<Lexicon id="{id}" label="Test" language="{language}" email="a@b.c" license="none" version="{version}">
{"".join(entries)}{body}
</Lexicon></LexicalResource>"""


@pytest.fixture
def wordnet_folder(tmp_path: Path) -> Iterator[Path]:
    """Where wn's database would be, in place of the user's; nothing is there yet."""
    wn = pytest.importorskip("wn")
    users = wn.config.database_path.parent
    wn.config.data_directory = tmp_path / "wn"
    yield tmp_path / "wn"
    wn.config.data_directory = users


@pytest.fixture
def add_lexicon(wordnet_folder: Path) -> AddLexicon:
    """Adds a lexicon of these words to the database."""
    import wn

    def add(words: Words, version: str = "2025", id: str = "oewn", language: str = "en") -> None:
        path = wordnet_folder.parent / f"{id}-{version}.xml"
        path.write_text(lexicon_xml(words, version, id, language), "utf-8")
        wn.add(path, progress_handler=None)

    return add


@pytest.fixture
def tiny_wordnet(add_lexicon: AddLexicon) -> None:
    """A database with synonyms for some words of the tests' sentences."""
    synonyms = (["dog", "hound", "pooch"], ["house", "home", "dwelling"], ["garden", "backyard", "plot"])
    add_lexicon([(word, "n", [words[0]]) for words in synonyms for word in words])
