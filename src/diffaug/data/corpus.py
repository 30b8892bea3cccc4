"""All data of a run: read once, tokenised once, handed to the method as examples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from diffaug.config import DataSettings, source_list
from diffaug.data.cache import KeptData, file_key
from diffaug.data.collate import Collator
from diffaug.data.given import PASSED, Given
from diffaug.data.labels import Label
from diffaug.data.layout import Columns
from diffaug.data.problems import OnBad
from diffaug.data.readers import read_nli_files, read_scored_pairs, read_sentences
from diffaug.data.records import (
    LabelledPairs,
    PositivePairs,
    ScoredPairs,
    Triplets,
    pairs_from_triplets,
    triplets_from_pairs,
)
from diffaug.data.sampling import draw
from diffaug.data.streams import Examples, TokenColumn
from diffaug.errors import DiffaugError

log = logging.getLogger(__name__)

Data = TypeVar("Data")

# The part of the sentences that may be cut before it is worth a word.
_MANY = 0.05

_HOLDS = {
    "nli": "triplets, labelled pairs, or for a contrastive loss alone positive pairs",
    "unlabelled": "sentences, one a line",
    "dev": "scored pairs",
    "test": "scored pairs",
}


class Corpus:
    """The data a recipe names.

    Args:
        settings: the recipe's data section.
        collator: how the model to be trained reads sentences.
        given: rows passed in Python, by the name of the setting whose place they take.
        kept: what earlier runs have read and tokenised, and this one adds to.
    """

    def __init__(
        self,
        settings: DataSettings,
        collator: Collator,
        given: Mapping[str, Given] | None = None,
        kept: KeptData | None = None,
    ) -> None:
        self._settings = settings
        self._collator = collator
        self._given = given or {}
        self._kept = kept or KeptData()

    @cached_property
    def nli(self) -> PositivePairs | LabelledPairs:
        """The labelled data: as many examples as the recipe keeps."""
        data = self._read("nli", self._read_nli)
        labels = self._settings.labels
        if labels <= 0:
            raise DiffaugError(f"data.labels must be a fraction up to 1.0 or a number of examples, not {labels}")
        if labels == 1.0:
            return data
        if labels < 1.0:
            return draw(data, self._settings.label_draw, fraction=labels)
        return draw(data, self._settings.label_draw, count=int(labels))

    def nli_pairs(self) -> Examples:
        """Labelled pairs: 1 for entailment and 0 for contradiction, or three classes: see `three_way`.

        Raises:
            DiffaugError: the labelled data have one class alone; positive pairs are such data.
        """
        return self._examples("pairs", "nli", self._nli_pairs)

    def triplets(self) -> Examples:
        """Premise, entailment and contradiction, two columns of positive pairs; a row that occurs again is left out."""
        return self._examples("triplets", "nli", self._triplets)

    def sentences(self, positive: Callable[[str], str] | None = None) -> Examples:
        """Unlabelled sentences; one that occurs again is left out, since it would be its own negative.

        Args:
            positive: makes the other sentence of a positive pair, a second column; left out, there is one column.
        """
        if positive is not None:
            return self._distinct(self._unlabelled, positive)
        return self._examples("sentences", "unlabelled", lambda: self._distinct(self._unlabelled))

    def nli_sentences(self, positive: Callable[[str], str] | None = None) -> Examples:
        """The sentences of the labelled data, without their labels."""
        if positive is not None:
            return self._distinct(self._nli_sentences(), positive)
        return self._examples("sentences", "nli", lambda: self._distinct(self._nli_sentences()))

    def positives(self, count: int) -> list[tuple[str, str]]:
        """Some pairs of sentences that mean nearly the same, the same ones for every run.

        Premise and entailment where there are labels; else the dev pairs of the highest scores; else a sentence and the
        same without its last word.
        """
        if self._settings.nli is not None:
            if isinstance(self.nli, PositivePairs):
                pairs = list(zip(self.nli.anchors, self.nli.positives, strict=True))
            else:
                pairs = [(premise, text) for premise, text, label in self.nli if label is Label.ENTAILMENT]
        elif (dev := self.dev()) is not None:
            best = sorted(range(len(dev)), key=dev.scores.__getitem__, reverse=True)[: max(2, len(dev) // 5)]
            pairs = [(dev.first[i], dev.second[i]) for i in best]
        elif self._settings.unlabelled is not None:
            pairs = [(s, " ".join(s.split()[:-1])) for s in self._unlabelled if len(s.split()) > 3]
        else:
            pairs = []
        return draw(pairs, seed=0, count=min(count, len(pairs))) if pairs else []

    def dev(self) -> ScoredPairs | None:
        """Scored pairs that choose the best checkpoint."""
        return self._scored("dev")

    def test(self) -> ScoredPairs | None:
        """Scored pairs for the end."""
        return self._scored("test")

    @cached_property
    def _unlabelled(self) -> list[str]:
        return self._read("unlabelled", self._read_sentences)

    def _nli_sentences(self) -> list[str]:
        columns = (
            zip(*self.nli, strict=True)
            if isinstance(self.nli, PositivePairs)
            else (self.nli.premises, self.nli.hypotheses)
        )
        return [sentence for column in columns for sentence in column]

    def _nli_pairs(self) -> Examples:
        nli = self.nli
        if isinstance(nli, PositivePairs) and not isinstance(nli, Triplets):
            raise DiffaugError(
                f"{self._named('nli')} holds pairs that belong together and no contradictions, and stage 1 and the "
                "auxiliary loss learn to tell the two apart: train on it with simcse-sup or promptbert-sup, leave "
                "those losses out of a recipe for triplets (as in diffaug-sup with --set stage1=null, or --set "
                "stage2.aux_weight=0), or give triplets or labelled pairs"
            )
        if self._settings.nli_classes == 2:
            pairs = pairs_from_triplets(nli) if isinstance(nli, Triplets) else nli.without_neutral()
            labels = pairs.binary()
            wanted = "entailments and contradictions (or pairs labelled not_entailment)"
        elif isinstance(nli, Triplets):
            raise DiffaugError(
                f"{self._named('nli')} holds triplets, which have no neutral pairs: three classes need labelled pairs, "
                "or set data.nli_classes=2"
            )
        else:
            pairs, labels = nli, nli.three_way()
            wanted = "at least two of entailment, neutral and contradiction"
        if len(set(labels)) < 2:
            # A classifier learns a single class in a few steps, and takes the vectors of all sentences with it.
            found = ", ".join(sorted({label.value for label in pairs.labels})) or "neutral"
            raise DiffaugError(
                f"{self._named('nli')}: all {len(nli):,} pairs that are kept are labelled {found}, and from one "
                f"class nothing can be learned; stage 1 and the auxiliary loss need {wanted}"
            )
        return Examples((self._tokenised(pairs.premises), self._tokenised(pairs.hypotheses)), tuple(labels))

    def _triplets(self) -> Examples:
        nli = self.nli if isinstance(self.nli, PositivePairs) else triplets_from_pairs(self.nli)
        rows = list(dict.fromkeys(nli))
        self._say_dropped("triplets" if isinstance(nli, Triplets) else "pairs", len(nli) - len(rows))
        return Examples(tuple(self._tokenised(list(column)) for column in zip(*rows, strict=True)))

    def _distinct(self, sentences: list[str], positive: Callable[[str], str] | None = None) -> Examples:
        distinct = list(dict.fromkeys(sentences))
        self._say_dropped("sentences", len(sentences) - len(distinct))
        columns = [self._tokenised(distinct)]
        if positive is not None:
            columns.append(self._tokenised([positive(sentence) for sentence in distinct]))
        return Examples(tuple(columns))

    def _scored(self, name: str) -> ScoredPairs | None:
        if getattr(self._settings, name) is None:
            return None
        pairs = self._read(name, lambda sources, columns, on_bad: read_scored_pairs(sources[0], columns, on_bad, name))
        pairs.check_they_rank(f"data.{name}={getattr(self._settings, name)}")
        return pairs

    def _read_nli(
        self, sources: Sequence[str | Given], columns: Columns | None, on_bad: OnBad
    ) -> PositivePairs | LabelledPairs:
        return read_nli_files(sources, columns, on_bad, self._settings.label_names)

    @staticmethod
    def _read_sentences(sources: Sequence[str | Given], columns: Columns | None, on_bad: OnBad) -> list[str]:
        return [sentence for source in sources for sentence in read_sentences(source, columns, on_bad)]

    def _read(self, name: str, read: Callable[[Sequence[str | Given], Columns | None, OnBad], Data]) -> Data:
        """The data of a setting: read now, or kept from an earlier run."""
        sources = self._sources(name)
        columns, on_bad = self._settings.columns.get(name), self._settings.on_bad
        key = self._key(name)
        # The setting decides how its sources are read, for one which split of a file that holds several.
        how = (name, self._label_key())
        return self._kept.once(None if key is None else (how, key), lambda: read(sources, columns, on_bad))

    def _key(self, name: str) -> Hashable | None:
        """By what the sources of a setting are known again."""
        return file_key(self._sources(name), self._settings.columns.get(name), self._settings.on_bad)

    def _label_key(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((self._settings.label_names or {}).items()))

    def _examples(self, kind: str, name: str, make: Callable[[], Examples]) -> Examples:
        """Examples made of the data of a setting, or kept from an earlier run."""
        settings = self._settings
        key = self._key(name)
        if key is None:
            return self._say_long(name, make())
        part = None
        if name == "nli":
            part = (settings.labels, settings.label_draw, settings.nli_classes, self._label_key())
        return self._kept.once((kind, key, part, self._collator.reading), lambda: self._say_long(name, make()))

    def _say_long(self, name: str, examples: Examples) -> Examples:
        """Log how many sentences may have lost their end, if it is more than a few."""
        limit = self._collator.max_length
        if limit is not None and len(examples):
            full = float(np.mean([np.mean(column.lengths() >= limit) for column in examples.columns]))
            if full > _MANY:
                log.info(
                    "%.0f %% of the sentences of data.%s fill the %d word pieces that data.max_length allows; longer "
                    "ones are cut there",
                    100 * full,
                    name,
                    limit,
                )
        return examples

    def _sources(self, name: str) -> Sequence[str | Given]:
        if name in self._given:
            return [self._given[name]]
        sources = source_list(getattr(self._settings, name))
        if not sources:
            raise DiffaugError(f"this recipe needs data.{name} ({_HOLDS[name]}): add --set data.{name}=FILE")
        for source in sources:
            if source.startswith(PASSED):
                raise DiffaugError(
                    f"data.{name} was {source}, which no file holds: pass it again, as in train(recipe, out, "
                    f"{name}=rows), or set data.{name} to a file"
                )
        return sources

    def _named(self, name: str) -> str:
        """The sources of a setting, for messages."""
        return " and ".join(source_list(getattr(self._settings, name)))

    def _tokenised(self, sentences: list[str]) -> TokenColumn:
        return self._kept.tokens(self._collator).column(sentences)

    @staticmethod
    def _say_dropped(what: str, count: int) -> None:
        if count:
            log.info("%s %s occurred more than once and count once", f"{count:,}", what)
