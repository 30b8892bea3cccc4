"""All data of a run: read once, tokenised once, and passed to the method as examples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from diffaug.config import DataSettings, source_list
from diffaug.data.cache import DataCache, file_key
from diffaug.data.collate import Collator
from diffaug.data.columns import Columns
from diffaug.data.labels import Label
from diffaug.data.leakage import Leakage, find_leakage, sentence_columns
from diffaug.data.problems import OnBad
from diffaug.data.read import read_nli_files, read_scored_pairs, read_sentences
from diffaug.data.records import (
    LabelledPairs,
    PositivePairs,
    ScoredPairs,
    Triplets,
    pairs_from_triplets,
    triplets_from_pairs,
)
from diffaug.data.sampling import Examples, draw
from diffaug.data.table import HUB_PREFIX, IN_MEMORY, InMemoryRows, pin_revision
from diffaug.data.tokens import TokenColumn
from diffaug.errors import DiffaugError
from diffaug.provenance import record_reads

log = logging.getLogger(__name__)

Data = TypeVar("Data")
Sources = Sequence[str | InMemoryRows]

# Truncation is logged if more than this part of the sentences reaches the maximum length.
_LOGGED_TRUNCATION = 0.05

_EXPECTED = {
    "nli": "triplets, labelled pairs, or for a contrastive loss alone positive pairs",
    "unlabelled": "sentences, one per line",
    "dev": "scored pairs",
    "test": "scored pairs",
}


class Corpus:
    """The data that a recipe names.

    Args:
        settings: the data section of the recipe.
        collator: of the model to be trained.
        in_memory: rows passed in Python, by the name of the setting that they replace.
        cache: data that earlier runs have read and tokenised.
        revisions: the commits to read of data sets on the hub; see `revisions`.

    Attributes:
        files: for each setting that was read, the SHA-256 of its sources, by their names.
        revisions: for each source on the hub that was read, the same source with its commit.
    """

    def __init__(
        self,
        settings: DataSettings,
        collator: Collator,
        in_memory: Mapping[str, InMemoryRows] | None = None,
        cache: DataCache | None = None,
        revisions: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._collator = collator
        self._in_memory = in_memory or {}
        self.files: dict[str, dict[str, str]] = {}
        self._cache = cache or DataCache()
        self.revisions = dict(revisions or {})
        self._trained_on: set[str] = set()

    @cached_property
    def nli(self) -> PositivePairs | LabelledPairs:
        """The labelled data, reduced to the draw that the recipe asks for."""
        names, labels = self._settings.label_names, self._settings.labels
        data = self._read("nli", lambda sources, columns, on_bad: read_nli_files(sources, columns, on_bad, names))
        if labels <= 0:
            raise DiffaugError(f"data.labels must be a fraction up to 1.0 or a number of examples, got {labels}")
        if labels == 1.0:
            return data
        if labels < 1.0:
            return draw(data, self._settings.label_draw, fraction=labels)
        return draw(data, self._settings.label_draw, count=int(labels))

    def nli_pairs(self) -> Examples:
        """Labelled pairs: 1 for entailment and 0 for contradiction, or three classes as in `three_way`.

        Raises:
            DiffaugError: the labelled data has one class only, as positive pairs have.
        """
        return self._examples("pairs", "nli", self._nli_pairs)

    def triplets(self) -> Examples:
        """Premise, entailment and contradiction; of positive pairs, two columns. Duplicate rows are removed."""
        return self._examples("triplets", "nli", self._triplets)

    def sentences(self, positive: Callable[[str], str] | None = None) -> Examples:
        """Unlabelled sentences. Duplicates are removed, since a sentence would be its own negative.

        Args:
            positive: makes the second sentence of a positive pair from the first; left out, there is one column.
        """
        if positive is not None:
            self._trained_on.add("unlabelled")
            return self._distinct(self._unlabelled, positive)
        return self._examples("sentences", "unlabelled", lambda: self._distinct(self._unlabelled))

    def nli_sentences(self, positive: Callable[[str], str] | None = None) -> Examples:
        """The sentences of the labelled data without their labels; see `sentences`."""
        if positive is not None:
            self._trained_on.add("nli")
            return self._distinct(self._nli_sentences(), positive)
        return self._examples("sentences", "nli", lambda: self._distinct(self._nli_sentences()))

    def positives(self, count: int) -> list[tuple[str, str]]:
        """Some pairs of sentences with nearly the same meaning, the same ones in every run.

        Premise and entailment if there are labels; otherwise the dev pairs with the highest scores; otherwise a
        sentence and the same sentence without its last word.
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
        """Scored pairs that select the best checkpoint."""
        return self._scored("dev")

    def test(self) -> ScoredPairs | None:
        """Scored pairs for the final score."""
        return self._scored("test")

    def leakage(self) -> dict[str, Leakage]:
        """What dev and test share with the data that examples were made from so far."""
        scored = {name: pairs for name, pairs in (("dev", self.dev()), ("test", self.test())) if pairs is not None}
        if not scored or not self._trained_on:
            return {}

        def compare() -> dict[str, Leakage]:
            training = [self.nli if name == "nli" else self._unlabelled for name in sorted(self._trained_on)]
            evaluation = {name: sentence_columns(pairs) for name, pairs in scored.items()}
            return find_leakage(evaluation, [sentence_columns(data) for data in training])

        keys = [self._key(name) for name in (*scored, *sorted(self._trained_on))]
        key = None if None in keys else ("leakage", tuple(scored), tuple(keys), self._drawn())
        return self._cache.once(key, compare)

    @cached_property
    def _unlabelled(self) -> list[str]:
        return self._read(
            "unlabelled", lambda sources, *how: [s for source in sources for s in read_sentences(source, *how)]
        )

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
                f"{self._named('nli')} holds positive pairs without contradictions, but stage 1 and the auxiliary loss "
                "learn to tell entailment from contradiction; train with simcse-sup or promptbert-sup, switch these "
                "losses off (--set stage1=null in diffaug-sup, --set stage2.aux_weight=0), or give triplets or "
                "labelled pairs"
            )
        if self._settings.nli_classes == 2:
            pairs = pairs_from_triplets(nli) if isinstance(nli, Triplets) else nli.without_neutral()
            labels = pairs.binary()
            needed = "entailments and contradictions (or pairs labelled not_entailment)"
        elif isinstance(nli, Triplets):
            raise DiffaugError(
                f"{self._named('nli')} holds triplets, which have no neutral pairs; give labelled pairs for three "
                "classes, or set data.nli_classes=2"
            )
        else:
            pairs, labels = nli, nli.three_way()
            needed = "at least two of entailment, neutral and contradiction"
        if len(set(labels)) < 2:
            # A classifier with one class is learned in a few steps, and all embeddings collapse with it.
            found = ", ".join(sorted({label.value for label in pairs.labels})) or "neutral"
            raise DiffaugError(
                f"{self._named('nli')}: all {len(nli):,} pairs that are used have the label {found}; stage 1 and the "
                f"auxiliary loss need {needed}"
            )
        return Examples((self._tokenised(pairs.premises), self._tokenised(pairs.hypotheses)), tuple(labels))

    def _triplets(self) -> Examples:
        nli = self.nli if isinstance(self.nli, PositivePairs) else triplets_from_pairs(self.nli)
        rows = list(dict.fromkeys(nli))
        self._log_duplicates("triplets" if isinstance(nli, Triplets) else "pairs", len(nli) - len(rows))
        return Examples(tuple(self._tokenised(list(column)) for column in zip(*rows, strict=True)))

    def _distinct(self, sentences: list[str], positive: Callable[[str], str] | None = None) -> Examples:
        distinct = list(dict.fromkeys(sentences))
        self._log_duplicates("sentences", len(sentences) - len(distinct))
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

    def _read(self, name: str, read: Callable[[Sources, Columns | None, OnBad], Data]) -> Data:
        """The data of a setting, from the cache or from its sources."""
        sources = self._sources(name)
        columns, on_bad = self._settings.columns.get(name), self._settings.on_bad
        key = self._key(name)
        # The name is part of the key: data.dev and data.test read different splits of the same file.
        how = (name, self._label_key())

        def recorded() -> tuple[Data, dict[str, str]]:
            with record_reads() as files:
                return read(sources, columns, on_bad), files

        data, self.files[name] = self._cache.once(None if key is None else (how, key), recorded)
        return data

    def _key(self, name: str) -> Hashable | None:
        return file_key(self._sources(name), self._settings.columns.get(name), self._settings.on_bad)

    def _drawn(self) -> tuple[Hashable, ...]:
        """Which part of the labelled data is used, and how its labels are read."""
        return self._settings.labels, self._settings.label_draw, self._label_key()

    def _label_key(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((self._settings.label_names or {}).items()))

    def _examples(self, kind: str, name: str, make: Callable[[], Examples]) -> Examples:
        """Examples from the data of a setting, or from the cache."""
        self._trained_on.add(name)
        key = self._key(name)
        _ = self.nli if name == "nli" else self._unlabelled  # even if the examples are cached: `files` needs it
        if key is None:
            return self._log_truncation(name, make())
        part = (*self._drawn(), self._settings.nli_classes) if name == "nli" else None
        return self._cache.once((kind, key, part, self._collator.cache_key), lambda: self._log_truncation(name, make()))

    def _log_truncation(self, name: str, examples: Examples) -> Examples:
        limit = self._collator.max_length
        if limit is not None and len(examples):
            full = float(np.mean([np.mean(column.lengths() >= limit) for column in examples.columns]))
            if full > _LOGGED_TRUNCATION:
                log.info(
                    "%.0f %% of the sentences of data.%s reach the maximum of %d tokens (data.max_length); longer ones "
                    "are truncated",
                    100 * full,
                    name,
                    limit,
                )
        return examples

    def _sources(self, name: str) -> Sources:
        if name in self._in_memory:
            return [self._in_memory[name]]
        sources = source_list(getattr(self._settings, name))
        if not sources:
            raise DiffaugError(f"this recipe needs data.{name} ({_EXPECTED[name]}): add --set data.{name}=FILE")
        for source in sources:
            if source.startswith(IN_MEMORY):
                raise DiffaugError(
                    f"data.{name} was {source}, and is not in a file; pass it again, as in train(recipe, out, "
                    f"{name}=rows), or set data.{name} to a file"
                )
        return [self._pinned(source) if source.startswith(HUB_PREFIX) else source for source in sources]

    def _pinned(self, source: str) -> str:
        if source not in self.revisions:
            self.revisions[source] = pin_revision(source)
        return self.revisions[source]

    def _named(self, name: str) -> str:
        """The sources of a setting, for messages."""
        return " and ".join(source_list(getattr(self._settings, name)))

    def _tokenised(self, sentences: list[str]) -> TokenColumn:
        return self._cache.tokens(self._collator).column(sentences)

    @staticmethod
    def _log_duplicates(what: str, count: int) -> None:
        if count:
            log.info("removed %s duplicate %s", f"{count:,}", what)
