"""All data of a run: read once, tokenised once, and passed to the method as examples."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from diffaug.config import DataSettings, source_list
from diffaug.data.cache import DataCache, file_key
from diffaug.data.collate import Collator
from diffaug.data.columns import Columns
from diffaug.data.labels import Label
from diffaug.data.leakage import Leakage, find_leakage
from diffaug.data.problems import OnBad, quoted
from diffaug.data.read import read_labelled, read_scored_pairs, read_sentences
from diffaug.data.records import (
    Classes,
    Labelled,
    LabelledPairs,
    PositivePairs,
    ScoredPairs,
    Triplets,
    concatenate,
    triplets_from_pairs,
)
from diffaug.data.sampling import Examples, Mixture, draw, draw_indices
from diffaug.data.stored import StoredText, distinct_sentences, is_large, store_text, store_tokens, stored_leakage
from diffaug.data.table import HUB_PREFIX, IN_MEMORY, InMemoryRows, pin_revision
from diffaug.data.tokens import TokenColumn
from diffaug.errors import DiffaugError
from diffaug.provenance import record_reads
from diffaug.version import __version__

log = logging.getLogger(__name__)

Data = TypeVar("Data")
Records = TypeVar("Records", LabelledPairs, Classes)
Sources = Sequence[str | InMemoryRows]

# Truncation is logged if more than this part of the sentences reaches the maximum length.
_LOGGED_TRUNCATION = 0.05

_EXPECTED = {
    "nli": "triplets, labelled or scored pairs, sentences with a class, or positive pairs",
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
    def labelled(self) -> list[Labelled]:
        """The labelled data, reduced to the draw that the recipe asks for.

        Files of one kind are joined, unless the recipe states proportions: then each file is a part.
        """
        names, labels, seed = self._settings.label_names, self._settings.labels, self._settings.label_draw

        def read(sources: Sources, columns: Columns | None, on_bad: OnBad) -> list[Labelled]:
            parts = [read_labelled(source, columns, on_bad, names) for source in sources]
            if self._settings.proportions is not None:
                return parts
            kinds = dict.fromkeys(type(part) for part in parts)
            return [concatenate([part for part in parts if type(part) is kind]) for kind in kinds]

        parts = self._read("nli", read)
        if labels == 1.0:
            return parts
        total = sum(map(len, parts))
        how = {"fraction": labels} if labels < 1.0 else {"count": int(labels)}
        chosen, start, drawn = draw_indices(total, seed, **how), 0, []
        for part in parts:
            drawn.append(part.take(i - start for i in chosen if start <= i < start + len(part)))
            start += len(part)
        if empty := [part for part, taken in zip(parts, drawn, strict=True) if not taken]:
            raise DiffaugError(f"data.labels={labels:g} leaves none of the {len(empty[0]):,} {empty[0].kind}; raise it")
        return drawn

    @property
    def nli(self) -> PositivePairs | LabelledPairs:
        """The labelled data of a method that needs triplets or pairs.

        Raises:
            DiffaugError: it is of another kind.
        """
        part = self.labelled[0]
        if len(self.labelled) > 1 or not isinstance(part, (PositivePairs, LabelledPairs)):
            kinds = " and ".join(part.kind for part in self.labelled)
            raise DiffaugError(
                f"{self._named('nli')} holds {kinds}; this recipe needs triplets, labelled pairs or positive pairs; "
                "the recipes adapt-diffaug and adapt-simcse learn from labels of every kind"
            )
        return part

    def related(self) -> Examples | Mixture:
        """The data of "do these two belong together", which stage 1 and the auxiliary loss learn.

        Triplets, each of which is two pairs; pairs with their relation or their score; sentences with a class; or
        positive pairs, whose other pairs in a batch are the negatives.

        Raises:
            DiffaugError: all labels are the same.
        """
        return self._mixture("related", self._related)

    def labels(self) -> Examples | Mixture:
        """The data of the contrastive loss on labels: as `related`, but NLI pairs as triplets.

        Raises:
            DiffaugError: all labels are the same, or some contradict each other.
        """
        return self._mixture("labels", self._labels)

    def triplets(self) -> Examples:
        """Premise, entailment and contradiction; of positive pairs, two columns. Duplicate rows are removed."""
        return self._examples("triplets", "nli", lambda: self._triplets(self.nli))

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

    def texts(self, *, labelled: bool) -> Iterator[str]:
        """The sentences of `nli_sentences`, if ``labelled``, or of `sentences`, in the same order."""
        text = self._nli_sentences() if labelled else self._unlabelled
        return distinct_sentences(text) if isinstance(text, StoredText) else iter(dict.fromkeys(text))

    def positives(self, count: int) -> list[tuple[str, str]]:
        """Some pairs of sentences with nearly the same meaning, the same ones in every run.

        Premise and entailment if there are labels; otherwise the dev pairs with the highest scores; otherwise a
        sentence and the same sentence without its last word.
        """
        if self._settings.nli is not None:
            pairs = [pair for part in self.labelled for pair in _positives(part)]
        elif (dev := self.dev()) is not None:
            pairs = _positives(dev)
        elif self._settings.unlabelled is not None:
            text = self._unlabelled
            long = np.flatnonzero(np.fromiter((len(s.split(None, 3)) > 3 for s in text), bool, len(text)))
            drawn = draw_indices(len(long), seed=0, count=min(count, len(long))) if len(long) else []
            pairs = [(text[i], " ".join(text[i].split()[:-1])) for i in long[drawn].tolist()]
        else:
            pairs = []
        return draw(pairs, seed=0, count=min(count, len(pairs))) if pairs else []

    def classes(self) -> Classes | None:
        """The sentences with a class, if the labelled data are such."""
        if self._settings.nli is None:
            return None
        return next((part for part in self.labelled if isinstance(part, Classes)), None)

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
            training: list[Sequence[Sequence[str]]] = [[self._unlabelled]] if "unlabelled" in self._trained_on else []
            training += [part.texts() for part in self.labelled] if "nli" in self._trained_on else []
            return find_leakage({name: pairs.texts() for name, pairs in scored.items()}, training)

        names = (*scored, *sorted(self._trained_on))
        keys = [self._key(name) for name in names]
        key = None if None in keys else ("leakage", tuple(scored), tuple(keys), self._drawn())
        if "unlabelled" in self._trained_on and isinstance(self._unlabelled, StoredText):
            # With many sentences this takes longer than everything else before the first step.
            content = [(name, list(self.files[name].values()), self._settings.columns.get(name)) for name in names]
            stored_key = (__version__, self._unlabelled.key, content, self._drawn(), self._settings.on_bad)
            return self._cache.once(key, lambda: stored_leakage(self._cache.disk, stored_key, compare))
        return self._cache.once(key, compare)

    @cached_property
    def _unlabelled(self) -> Sequence[str]:
        def read(sources: Sources, columns: Columns | None, on_bad: OnBad) -> Sequence[str]:
            if is_large(sources):
                return store_text(self._cache.disk, list(map(str, sources)), columns, on_bad)
            return [sentence for source in sources for sentence in read_sentences(source, columns, on_bad)]

        return self._read("unlabelled", read)

    def _nli_sentences(self) -> list[str]:
        return [sentence for part in self.labelled for column in part.texts() for sentence in column]

    def _mixture(self, kind: str, make: Callable[[Labelled], Examples]) -> Examples | Mixture:
        """One data set per part of the labelled data."""
        found = tuple(
            self._examples(f"{kind} {number}", "nli", lambda part=part: make(part))  # type: ignore[misc]
            for number, part in enumerate(self.labelled)
        )
        if len(found) == 1:
            return found[0]
        shares = self._settings.proportions or [len(examples) for examples in found]
        return Mixture(found, tuple(share / sum(shares) for share in shares))

    def _related(self, part: Labelled) -> Examples:
        if isinstance(part, LabelledPairs):
            return self._nli_pairs(part)
        if self._settings.nli_classes == 3:
            raise DiffaugError(
                f"{self._named('nli')} holds {part.kind}, which have no neutral pairs; give labelled pairs for three "
                "classes, or set data.nli_classes=2"
            )
        if isinstance(part, PositivePairs):
            return self._triplets(part)
        return self._scores(part) if isinstance(part, ScoredPairs) else self._classes(part)

    def _labels(self, part: Labelled) -> Examples:
        if not isinstance(part, LabelledPairs):
            return self._related(part)
        pairs = part.without_neutral()
        if Label.NOT_ENTAILMENT not in part.labels:
            try:
                triplets = triplets_from_pairs(part)
            except DiffaugError:  # no premise has both labels
                triplets = Triplets([], [], [])
            if 4 * len(triplets) >= len(pairs):  # two pairs each: at least half of the pairs
                if unused := len(part) - 2 * len(triplets):
                    log.info("%s of %s NLI pairs are neutral or not in a triplet", f"{unused:,}", f"{len(part):,}")
                return self._triplets(triplets)
        return self._nli_pairs(self._consistent(pairs, list(zip(pairs.premises, pairs.hypotheses, strict=True))))

    def _consistent(self, data: Records, items: list[Hashable]) -> Records:
        """The rows without those whose label contradicts that of an equal row.

        Args:
            data: pairs or sentences with labels.
            items: what each label is about.

        Raises:
            DiffaugError: there are such rows, and `data.on_bad` is not `skip`.
        """
        labels: list[Hashable] = list(data.labels if isinstance(data, LabelledPairs) else data.classes)
        found: dict[Hashable, set[Hashable]] = {}
        for item, label in zip(items, labels, strict=True):
            found.setdefault(item, set()).add(label)
        wrong = {item for item, given in found.items() if len(given) > 1}
        if not wrong:
            return data
        first = next(item for item in items if item in wrong)
        detail = f"{quoted(first, 80)} has {' and '.join(sorted(str(getattr(g, 'value', g)) for g in found[first]))}"
        if self._settings.on_bad != "skip":
            raise DiffaugError(
                f"{self._named('nli')}: {len(wrong):,} {data.kind} have labels that contradict each other ({detail}); "
                "correct them, or leave them out with data.on_bad=skip"
            )
        log.warning("left out %s %s with contradicting labels (%s)", f"{len(wrong):,}", data.kind, detail)
        return data.take(i for i, item in enumerate(items) if item not in wrong)

    def _scores(self, pairs: ScoredPairs) -> Examples:
        pairs.check_they_rank(self._named("nli"))
        low, high = min(pairs.scores), max(pairs.scores)
        scaled = tuple((score - low) / (high - low) for score in pairs.scores)
        return Examples((self._tokenised(pairs.first), self._tokenised(pairs.second)), scaled, "score")

    def _classes(self, data: Classes) -> Examples:
        data = self._consistent(data, list(data.sentences))
        rows = dict(zip(data.sentences, data.classes, strict=True))
        self._log_duplicates("sentences", len(data) - len(rows))
        counts = Counter(rows.values())
        single = [name for name, count in counts.items() if count == 1]
        if single and self._settings.on_bad != "skip":
            raise DiffaugError(
                f"{self._named('nli')}: {len(single):,} of {len(counts):,} classes have only one sentence (the first "
                f"is {quoted(single[0])}); give each at least two, or leave such classes out with data.on_bad=skip"
            )
        if single:
            log.warning("left out %s classes with only one sentence", f"{len(single):,}")
            rows = {sentence: name for sentence, name in rows.items() if counts[name] > 1}
        names = {name: number for number, name in enumerate(dict.fromkeys(rows.values()))}
        if len(names) < 2:
            given = dict.fromkeys(data.classes)
            found = f"{len(names)} of {len(given)} classes have two sentences"
            if len(given) == 1:
                found = f"every sentence has the class {quoted(data.classes[0])}"
            raise DiffaugError(
                f"{self._named('nli')}: {found}; at least two classes with two sentences each are needed"
            )
        labels = tuple(names[name] for name in rows.values())
        return Examples((self._tokenised(list(rows)),), labels, "class", self._settings.per_class)

    def _nli_pairs(self, nli: LabelledPairs) -> Examples:
        """Pairs labelled 1 for entailment and 0 for contradiction, or three classes as in `three_way`."""
        if self._settings.nli_classes == 2:
            pairs = nli.without_neutral()
            labels = pairs.binary()
            needed = "entailments and contradictions (or pairs labelled not_entailment)"
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

    def _triplets(self, nli: PositivePairs | LabelledPairs) -> Examples:
        if isinstance(nli, LabelledPairs):
            pairs, nli = nli, triplets_from_pairs(nli)
            if Label.NEUTRAL not in pairs.labels and 2 * len(nli) < len(pairs):
                log.info(
                    "%s pairs make %s triplets; stage2.objective=labels learns from all pairs",
                    f"{len(pairs):,}",
                    f"{len(nli):,}",
                )
        rows = list(dict.fromkeys(nli))
        self._log_duplicates("triplets" if isinstance(nli, Triplets) else "pairs", len(nli) - len(rows))
        return Examples(tuple(self._tokenised(list(column)) for column in zip(*rows, strict=True)))

    def _distinct(self, sentences: Sequence[str], positive: Callable[[str], str] | None = None) -> Examples:
        if isinstance(sentences, StoredText):
            self._log_duplicates("sentences", len(sentences) - len(sentences.distinct))
            others = [] if positive is None else [map(positive, distinct_sentences(sentences))]
            disk, collator = self._cache.disk, self._collator
            return Examples(tuple(store_tokens(disk, collator, sentences, made) for made in (None, *others)))
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
        how = (name, self._label_key(), self._settings.proportions is None)

        def recorded() -> tuple[Data, dict[str, str]]:
            with record_reads() as files:
                return read(sources, columns, on_bad), files

        data, self.files[name] = self._cache.once(None if key is None else (how, key), recorded)
        return data

    def _key(self, name: str) -> Hashable | None:
        return file_key(self._sources(name), self._settings.columns.get(name), self._settings.on_bad)

    def _drawn(self) -> tuple[Hashable, ...]:
        """Which part of the labelled data is used, and how its labels are read."""
        shares = tuple(self._settings.proportions or ())
        return self._settings.labels, self._settings.label_draw, shares, self._label_key()

    def _label_key(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((self._settings.label_names or {}).items()))

    def _examples(self, kind: str, name: str, make: Callable[[], Examples]) -> Examples:
        """Examples from the data of a setting, or from the cache."""
        self._trained_on.add(name)
        key = self._key(name)
        _ = self.labelled if name == "nli" else self._unlabelled  # even if the examples are cached: `files` needs it
        if key is None:
            return self._log_truncation(name, make())
        part = (*self._drawn(), self._settings.nli_classes, self._settings.per_class) if name == "nli" else None
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


def _positives(data: Labelled) -> list[tuple[str, str]]:
    """The pairs of sentences that belong together most."""
    if isinstance(data, PositivePairs):
        return list(zip(data.anchors, data.positives, strict=True))
    if isinstance(data, LabelledPairs):
        return [(premise, text) for premise, text, label in data if label is Label.ENTAILMENT]
    if isinstance(data, ScoredPairs):
        best = sorted(range(len(data)), key=data.scores.__getitem__, reverse=True)[: max(2, len(data) // 5)]
        return [(data.first[i], data.second[i]) for i in best]
    last: dict[str, str] = {}
    pairs = []
    for sentence, name in data:
        if name in last:
            pairs.append((last[name], sentence))
        last[name] = sentence
    return pairs
