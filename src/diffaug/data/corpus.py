"""All data of a run: read once, tokenised once, handed to the method as examples."""

from __future__ import annotations

import logging
from functools import cached_property

from diffaug.config import DataSettings
from diffaug.data.collate import Collator
from diffaug.data.labels import Label
from diffaug.data.readers import read_nli, read_scored_pairs, read_sentences
from diffaug.data.records import LabelledPairs, ScoredPairs, Triplets, pairs_from_triplets, triplets_from_pairs
from diffaug.data.sampling import draw
from diffaug.data.streams import Examples, TokenColumn
from diffaug.errors import DiffaugError

log = logging.getLogger(__name__)


class Corpus:
    """The data a recipe names.

    Args:
        settings: the recipe's data section.
        collator: how the model to be trained reads sentences.
    """

    def __init__(self, settings: DataSettings, collator: Collator) -> None:
        self._settings = settings
        self._collator = collator

    @cached_property
    def nli(self) -> Triplets | LabelledPairs:
        """The labelled data: as many examples as the recipe keeps."""
        source = self._source("nli", "triplets or labelled pairs")
        columns, on_bad = self._settings.columns.get("nli"), self._settings.on_bad
        data = read_nli(source, columns, on_bad)
        labels = self._settings.labels
        if labels <= 0:
            raise DiffaugError(f"data.labels must be a fraction up to 1.0 or a number of examples, not {labels}")
        if labels == 1.0:
            return data
        if labels < 1.0:
            return draw(data, self._settings.label_draw, fraction=labels)
        return draw(data, self._settings.label_draw, count=int(labels))

    def nli_pairs(self) -> Examples:
        """Pairs labelled 1 for entailment and 0 for contradiction."""
        pairs = pairs_from_triplets(self.nli) if isinstance(self.nli, Triplets) else self.nli.without_neutral()
        columns = self._tokenised(pairs.premises), self._tokenised(pairs.hypotheses)
        return Examples(columns, tuple(pairs.binary()))

    def triplets(self) -> Examples:
        """Premise, entailment and contradiction; a row that occurs again is left out."""
        nli = self.nli if isinstance(self.nli, Triplets) else triplets_from_pairs(self.nli)
        rows = list(dict.fromkeys(nli))
        self._say_dropped("triplets", len(nli) - len(rows))
        return Examples(tuple(self._tokenised([row[i] for row in rows]) for i in range(3)))

    def sentences(self) -> Examples:
        """Unlabelled sentences; one that occurs again is left out, since it would be its own negative."""
        source = self._source("unlabelled", "sentences, one a line")
        columns = self._settings.columns.get("unlabelled")
        sentences = read_sentences(source, columns, self._settings.on_bad)
        distinct = list(dict.fromkeys(sentences))
        self._say_dropped("sentences", len(sentences) - len(distinct))
        return Examples((self._tokenised(distinct),))

    def positives(self, count: int) -> list[tuple[str, str]]:
        """Some pairs of sentences of which the first entails the second, the same ones for every run."""
        if isinstance(self.nli, Triplets):
            pairs = list(zip(self.nli.anchors, self.nli.positives, strict=True))
        else:
            pairs = [(premise, text) for premise, text, label in self.nli if label is Label.ENTAILMENT]
        return draw(pairs, seed=0, count=min(count, len(pairs)))

    def dev(self) -> ScoredPairs | None:
        """Scored pairs that choose the best checkpoint."""
        return self._scored("dev")

    def test(self) -> ScoredPairs | None:
        """Scored pairs for the end."""
        return self._scored("test")

    def _scored(self, name: str) -> ScoredPairs | None:
        source = getattr(self._settings, name)
        if source is None:
            return None
        return read_scored_pairs(source, self._settings.columns.get(name), self._settings.on_bad)

    def _source(self, name: str, what: str) -> str:
        source: str | None = getattr(self._settings, name)
        if source is None:
            raise DiffaugError(f"this recipe needs data.{name} ({what}): add --set data.{name}=FILE")
        return source

    def _tokenised(self, sentences: list[str]) -> TokenColumn:
        return TokenColumn(self._collator, sentences)

    @staticmethod
    def _say_dropped(what: str, count: int) -> None:
        if count:
            log.info("%s %s occurred more than once and count once", f"{count:,}", what)
