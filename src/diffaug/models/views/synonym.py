"""Views by synonym: the other sentence of a positive pair has one word exchanged for a synonym from WordNet.

WordNet's data come from the package `wn` (the extra `synonyms`), out of the database it keeps on this machine: nothing
is downloaded here. `python -m wn download oewn:2025` puts the Open English WordNet there, once.
"""

from __future__ import annotations

import logging
import random
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence

from diffaug.errors import DiffaugError
from diffaug.models.views.text import TextViews

log = logging.getLogger(__name__)

_FETCH = "python -m wn download oewn:2025"
GET_WORDNET = f"pip install 'diffaug[synonyms]' and then {_FETCH}"
"""What to type once to have WordNet."""
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
# WordNet knows many of these as something else: "a" is a vitamin, "in" an inch, "he" a gas.
_GRAMMAR_AND_NUMBERS = """
    a about above across after again against ago all almost along already also although always am among an and another
    any anybody anyone anything are around as at away back be because been before behind being below beneath beside
    between beyond both but by can cannot could did do does doing done down during each either else enough ever every
    everybody everyone everything except few for from further had has have having he hence her here hers herself him
    himself his how however i if in indeed inside instead into is it its itself just least less like lot many may maybe
    me might mine more most much must my myself near neither never no nobody none nor not nothing now of off often on
    once only onto or other others otherwise ought our ours ourselves out outside over own per perhaps quite rather
    same shall she should since so some somebody someone something sometimes soon still such than that the their theirs
    them themselves then there therefore these they this those though through throughout thus till to together too
    toward towards under until up upon us very was we were what whatever when whenever where wherever whether which
    while who whoever whole whom whose why will with within without would yet you your yours yourself yourselves
    zero one two three four five six seven eight nine ten eleven twelve hundred thousand million billion first second
"""
_NOT_CONTENT = frozenset(_GRAMMAR_AND_NUMBERS.split())


class WordNet:
    """Synonyms from the English WordNet in this machine's database: the newest Open English WordNet if there is one.

    Raises:
        DiffaugError: the package or the data are missing; the message says what to type.
    """

    def __init__(self) -> None:
        try:
            import wn
        except ImportError as error:
            raise DiffaugError(f"synonyms need the package wn: run {GET_WORDNET}") from error
        database = wn.config.database_path
        try:
            lexicons = [lexicon for lexicon in wn.lexicons() if lexicon.language == "en"] if database.exists() else []
        except (wn.Error, sqlite3.Error) as error:
            raise DiffaugError(
                f"{database} cannot be read ({' '.join(str(error).split())}): remove it and run {_FETCH}"
            ) from error
        if not lexicons:
            raise DiffaugError(f"synonyms need an English WordNet, and there is none in {database}: run {_FETCH} once")
        chosen = max(lexicons, key=lambda lexicon: (lexicon.id == "oewn", lexicon.version, lexicon.id))
        log.info("synonyms come from %s %s", chosen.label, chosen.version)
        # Words as they stand, and base forms only: an inflected word would have to hand its ending to its synonym.
        self._lexicon = wn.Wordnet(chosen.specifier(), expand="", normalizer=None, search_all_forms=False)
        self._lemmas = frozenset(self._lexicon.lemmas())  # most words of a large text are names, and asked for in vain
        self._found: dict[str, tuple[str, ...]] = {}

    def synonyms(self, word: str) -> tuple[str, ...]:
        """The other words of the word's most usual meaning, sorted; none if it is unknown or has no synonym.

        WordNet lists the meanings of a word by frequency within each part of speech. Which part of speech a word of a
        sentence is, it cannot say; the one with the most meanings is the most usual as a rule.
        """
        if word not in self._lemmas:
            return ()
        if word not in self._found:
            meanings = defaultdict(list)
            for sense in self._lexicon.senses(word):
                synset = sense.synset()
                meanings["a" if synset.pos == "s" else synset.pos].append(synset)  # s: an adjective, too
            usual = max(meanings.values(), key=len, default=None)
            lemmas = usual[0].lemmas() if usual else []
            others = {lemma.replace("_", " ") for lemma in lemmas if lemma.lower() != word}
            self._found[word] = tuple(sorted(others))
        return self._found[word]


class SynonymReplacement(TextViews):
    """Exchanges one word of a sentence for a synonym, the same one at every call.

    Words of grammar and capitalised words within a sentence, which are names as a rule, stay. A sentence in which no
    word can be exchanged stays as it is.

    Args:
        seed: another seed chooses other words.
        synonyms: those of a word in lower case, in an order that does not change; WordNet's if left out.
    """

    def __init__(self, seed: int, synonyms: Callable[[str], Sequence[str]] | None = None) -> None:
        self._seed = seed
        self._synonyms = WordNet().synonyms if synonyms is None else synonyms

    def __call__(self, sentence: str) -> str:
        words = list(_WORD.finditer(sentence))
        capitals = sentence.isupper()
        choices = [
            (match, found)
            for match in words
            if (capitals or _lower(match.group(), first=match is words[0])) and (found := self._of(match.group()))
        ]
        if not choices:
            return sentence
        chance = random.Random(f"{self._seed} {sentence}")  # by the text, not by its hash, which every process salts
        match, found = chance.choice(choices)
        synonym = _in_case_of(match.group(), chance.choice(found))
        return sentence[: match.start()] + synonym + sentence[match.end() :]

    def _of(self, word: str) -> Sequence[str]:
        word = word.lower()
        return () if word in _NOT_CONTENT else self._synonyms(word)


def _lower(word: str, first: bool) -> bool:
    """Whether a word is in lower case, but for the first letter of a sentence."""
    return word.islower() or (first and word[1:].islower())


def _in_case_of(word: str, synonym: str) -> str:
    if word.isupper() and len(word) > 1:
        return synonym.upper()
    return synonym[0].upper() + synonym[1:] if word[0].isupper() else synonym
