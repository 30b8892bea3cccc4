"""The data of a grid: the files that its recipes read, and the tasks that its models are scored on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from diffaug.config import RECIPES, DataSettings, Recipe, source_list
from diffaug.data.read import read_labelled, read_scored_pairs
from diffaug.data.records import ScoredPairs
from diffaug.errors import DiffaugError
from diffaug.evaluation.folder import DataFolder, Folders, folder_list
from diffaug.evaluation.own_data import PairsTask
from diffaug.evaluation.protocol import STS
from diffaug.evaluation.sts import StsTask, load_sts
from diffaug.evaluation.tasks import registered_task
from diffaug.experiments.paper import encoder_name
from diffaug.experiments.results import AVERAGE, DEV, SEVEN
from diffaug.experiments.spec import quoted
from diffaug.files import write_text
from diffaug.provenance import record_reads

if TYPE_CHECKING:
    from diffaug.embedder import Embedder

# Published or usual names of files, in order of preference; each may also be compressed.
_TRIPLETS = ("triplets.csv", "nli_for_simcse.csv", "triplets.tsv", "triplets.jsonl", "AllNLI.jsonl")
_PAIRS = ("pairs.tsv", "pairs.csv", "pairs.jsonl", "AllNLI.tsv")
# SNLI and MultiNLI together are labelled pairs as well.
_SNLI = ("snli_1.0_train.jsonl", "snli_1.0_train.txt")
_MULTINLI = ("multinli_1.0_train.jsonl", "multinli_1.0_train.txt")
_SENTENCES = ("wiki1m.txt", "wiki1m_for_simcse.txt", "sentences.txt")
_COMPRESSED = ("", ".xz", ".gz")
_TASK = "task:"
_DEV, _TARGET = "STSB.dev.tsv", "target.txt"
# Encoders for which the recipe of DiffCSE names a generator.
_WITH_GENERATOR = ("bert-base-uncased", "roberta-base", "embedded")

Similarities = dict[str, NDArray[np.float32]]
"""`TASK/cosine` and `TASK/gold`: one number per pair, sub-tasks concatenated."""


class MissingDataError(DiffaugError):
    """Data that a recipe needs was not found; the message names the data, the expected files and the option."""


@dataclass(frozen=True)
class DataFiles:
    """The files that the recipes of a grid read. None: there is no such file.

    Attributes:
        folders: where files and tasks were looked for.
        triplets: premise, entailment, contradiction.
        pairs: labelled pairs with three labels; several files are concatenated.
        sentences: unlabelled, one per line.
        dev: scored pairs that choose checkpoints and settings.
        target: sentences of the test tasks for flows that learn from them; None: extracted from the tasks in `folders`.
        made: folder for converted files.
        named: which of these were named, not found in a folder. They replace the sources of recipes.
    """

    folders: tuple[Path, ...] = ()
    triplets: str | None = None
    pairs: str | tuple[str, ...] | None = None
    sentences: str | None = None
    dev: str | None = None
    target: str | None = None
    made: Path | None = field(default=None, compare=False)
    named: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def find(
        cls,
        folders: Folders,
        made: Path | None = None,
        *,
        triplets: str | None = None,
        pairs: str | Sequence[str] | None = None,
        sentences: str | None = None,
        dev: str | None = None,
        target: str | None = None,
    ) -> DataFiles:
        """Search ``folders`` and their subfolders, in order, for what is not named.

        Args:
            folders: filled by `diffaug data get`, or with files such as `nli/triplets.csv`, `nli/pairs.tsv`,
                `wiki/wiki1m.txt` and `sts/*.tsv`; files may be compressed as .xz or .gz.
            made: where to write converted files.
            triplets, pairs, sentences, dev, target: files or other sources, such as `hub:NAME`, to use instead.

        Raises:
            DiffaugError: a named file or a folder does not exist.
        """
        pairs = (pairs,) if isinstance(pairs, str) else tuple(pairs or ())
        named = {"triplets": triplets, "sentences": sentences, "dev": dev, "target": target}
        for option, source in [*named.items(), *(("pairs", source) for source in pairs)]:
            if source is not None and ":" not in source and not Path(source).is_file():
                raise DiffaugError(f"there is no file {source}, which was given as --{option}")
        places = folder_list(folders)
        there = [DataFolder([place]) for place in places]
        return cls(
            tuple(places),
            triplets=triplets or _first(there, _TRIPLETS),
            pairs=(pairs[0] if len(pairs) == 1 else pairs) or _pairs(there),
            sentences=sentences or _first(there, _SENTENCES),
            dev=dev or _dev(there, made),
            target=target,
            made=made,
            named=frozenset([*(name for name, source in named.items() if source), *(["pairs"] if pairs else [])]),
        )

    def changes_for(self, recipe: Recipe, own: DataSettings | None = None) -> list[str]:
        """The changes that give a recipe its data.

        A named file replaces what the recipe names; a file found in a folder does not.

        Args:
            recipe: decides which data is needed.
            own: the data settings of the run where they differ from the recipe's.

        Raises:
            MissingDataError: needed data is missing.
        """
        own = own or recipe.data
        changes: list[str] = []

        def add(setting: str, source: str | tuple[str, ...] | MissingDataError, name: str) -> None:
            if getattr(own, setting) is not None and name not in self.named:
                return
            if isinstance(source, MissingDataError):
                raise source
            changes.append(change(f"data.{setting}", source))

        names = _looked_for((_DEV, "sts-dev.csv"))
        add("dev", self.dev or MissingDataError(f"STS-B dev ({names}; name it with --dev)"), "dev")
        if needs_labels(recipe):
            add("nli", *self._labels(recipe))
        second = recipe.stage2
        if second is not None and second.objective == "unlabelled":
            if recipe.method == "flow":
                add("unlabelled", self._target() if own.unlabelled is None else self.target or "", "target")
            else:
                missing = f"unlabelled sentences ({_looked_for(_SENTENCES)}; name them with --sentences)"
                add("unlabelled", self.sentences or MissingDataError(missing), "sentences")
        if recipe.views.kind == "synonym":
            _check_wordnet()
        return changes

    def count_labels(self, recipes: Iterable[Recipe] = ()) -> int:
        """The number of triplets, or of labelled pairs where there are no triplets.

        Args:
            recipes: whose own source counts where there is no such file.

        Raises:
            MissingDataError: there are none, or the recipes have different sources.
        """
        source = self.triplets or self.pairs
        own = {tuple(source_list(recipe.data.nli)) for recipe in recipes if needs_labels(recipe)}
        if own - {()} and not self.named & {"triplets", "pairs"}:
            if len(own) > 1:
                raise MissingDataError("one source of labels for all rows (name it with --triplets or --pairs)")
            source = own.pop()
        if source is None:
            raise self._no_triplets()
        return sum(len(read_labelled(one)) for one in ([source] if isinstance(source, str) else source))

    def _labels(self, recipe: Recipe) -> tuple[str | tuple[str, ...] | MissingDataError, str]:
        """The source of labels, and the option that names it."""
        if recipe.data.nli_classes == 3:
            both = f"{_SNLI[0]} with {_MULTINLI[0]}"
            missing = MissingDataError(
                f"labelled pairs with three labels ({_looked_for((*_PAIRS, both))}; fetch them with diffaug data "
                "get snli multinli, or name them with --pairs)"
            )
            return self.pairs or missing, "pairs"
        return self.triplets or self.pairs or self._no_triplets(), "triplets" if self.triplets else "pairs"

    def _target(self) -> str | MissingDataError:
        """The sentences of the tasks in the folders, each once, as a file."""
        if self.target is not None:
            return self.target
        if not self.folders or self.made is None:
            return MissingDataError("the sentences of the tasks, one per line (name them with --target)")
        there = DataFolder(self.folders)
        tasks = [task for spec in STS if not spec.extra and (task := load_sts(spec, there)) is not None]
        sentences = dict.fromkeys(sentence for task in tasks for sentence in task.sentences())
        if not sentences:
            where = " and ".join(map(str, self.folders))
            return MissingDataError(f"the sentences of the tasks (none in {where}; name them with --target)")
        return _written(self.made / _TARGET, "".join(f"{sentence}\n" for sentence in sentences))

    @staticmethod
    def _no_triplets() -> MissingDataError:
        return MissingDataError(f"NLI triplets ({_looked_for(_TRIPLETS)}; name them with --triplets)")


@dataclass(frozen=True)
class TaskFiles:
    """Where the test tasks are: data folders, and files of scored pairs by the name of their task."""

    folders: tuple[Path, ...]
    own: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> StsTasks:
        return StsTasks.load(self.folders, self.own)


@dataclass(frozen=True)
class StsTasks:
    """The test tasks of a grid, read once for any number of models.

    Attributes:
        tasks: the tasks.
        files: the SHA-256 of each file that was read.
    """

    tasks: Sequence[StsTask]
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, folders: Folders, own: Mapping[str, str] | None = None) -> StsTasks:
        """The seven STS tasks as far as they are in ``folders``, and ``own`` tasks from files of scored pairs.

        Raises:
            DiffaugError: there is no task, or one is incomplete or damaged.
        """
        places = folder_list(folders)
        there = DataFolder(places)
        with record_reads() as files:
            found = [task for spec in STS if not spec.extra and (task := load_sts(spec, there)) is not None]
            for name, source in (own or {}).items():
                if name in (*SEVEN, AVERAGE, DEV):
                    raise DiffaugError(f"the task {name!r} needs another name: this one is taken")
                found.append(StsTask(name, {"all": _scored_pairs(source)}))
        if not found:
            where = f"is in {' and '.join(map(str, places))}" if places else "was given"
            raise DiffaugError(
                f"no task to score models on: none of {', '.join(SEVEN)} {where}; see diffaug data get, or name files "
                "of scored pairs under tasks in the specification of the grid"
            )
        return cls(found, files)

    def score(self, embedder: Embedder) -> tuple[dict[str, float], Similarities]:
        """Spearman x 100 of each task over all its pairs, their average, and the similarities behind them.

        Raises:
            DiffaugError: the model gives all pairs of a task the same similarity.
        """
        from diffaug.evaluation.evaluated_model import EvaluatedModel

        sentences = dict.fromkeys(sentence for task in self.tasks for sentence in task.sentences())
        embeddings = EvaluatedModel(embedder, show_progress=False).embed(list(sentences))
        scores = {task.name: task.score(embeddings).score for task in self.tasks}
        if undefined := [name for name, score in scores.items() if not np.isfinite(score)]:
            raise DiffaugError(f"{undefined[0]} has no score: the model gives all its pairs the same similarity")
        scores[AVERAGE] = float(np.mean(list(scores.values())))
        similarities = self.gold()
        for task in self.tasks:
            cosines = [embeddings.cosines(pairs.first, pairs.second) for pairs in task.subtasks.values()]
            similarities[f"{task.name}/cosine"] = np.concatenate(cosines).astype(np.float32)
        return scores, similarities

    def gold(self) -> Similarities:
        """The gold scores, as `TASK/gold`."""
        parts = {task.name: [pairs.scores for pairs in task.subtasks.values()] for task in self.tasks}
        return {f"{name}/gold": np.concatenate(scores).astype(np.float32) for name, scores in parts.items()}


def _scored_pairs(source: str) -> ScoredPairs:
    """The pairs of a file, or of the registered task `task:NAME`."""
    if not source.startswith(_TASK):
        return read_scored_pairs(source)
    task = registered_task(source.removeprefix(_TASK))
    if not isinstance(task, PairsTask):
        raise DiffaugError(f"{source} cannot be a task of a grid, which scores pairs; return a PairsTask for it")
    return task.pairs


def needs_labels(recipe: Recipe) -> bool:
    """Whether a recipe reads `data.nli`."""
    second = recipe.stage2
    return recipe.stage1 is not None or (
        second is not None and (second.objective != "unlabelled" or second.aux_weight > 0)
    )


def change(key: str, value: str | Sequence[str]) -> str:
    """`key=value` such that YAML reads the value as this text or list of texts."""
    return f"{key}={quoted(value) if isinstance(value, str) else json.dumps(list(value))}"


def generator_for(encoder: str, named: str | None) -> list[str]:
    """The change that gives DiffCSE its generator, which must have the vocabulary of the encoder.

    Raises:
        MissingDataError: none is known for this encoder.
    """
    if named is not None:
        return [change("replaced.generator", named)]
    if encoder_name(encoder) in _WITH_GENERATOR:
        return []
    ours, theirs = _vocabulary(RECIPES.parent / "assets" / "mini"), _vocabulary(Path(encoder))
    if ours is not None and ours == theirs:
        return ["replaced.generator=embedded"]
    raise MissingDataError(f"a masked language model with the vocabulary of {encoder} (name it with --generator)")


def _vocabulary(folder: Path) -> object:
    """The vocabulary in the file of a fast tokenizer; None if there is no such file."""
    try:
        return json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _first(folders: Sequence[DataFolder], names: tuple[str, ...]) -> str | None:
    found = (folder.find(name + ending) for folder in folders for name in names for ending in _COMPRESSED)
    return next((str(path) for path in found if path is not None), None)


def _pairs(folders: Sequence[DataFolder]) -> str | tuple[str, ...] | None:
    if (found := _first(folders, _PAIRS)) is not None:
        return found
    snli, multinli = _first(folders, _SNLI), _first(folders, _MULTINLI)
    return (snli, multinli) if snli is not None and multinli is not None else None


def _dev(folders: Sequence[DataFolder], made: Path | None) -> str | None:
    found = (_first([folder], (_DEV,)) or _converted_dev(folder, made) for folder in folders)
    return next((path for path in found if path is not None), None)


def _converted_dev(folder: DataFolder, made: Path | None) -> str | None:
    """STS-B dev in its released form, converted to the form that recipes read; None if it is not there."""
    spec = next(spec for spec in STS if spec.name == "STS-B-dev")
    task = load_sts(spec, folder) if made is not None else None
    if task is None or made is None:
        return None
    (pairs,) = task.subtasks.values()
    rows = zip(pairs.scores, pairs.first, pairs.second, strict=True)
    return _written(made / _DEV, "".join(f"{score}\t{first}\t{second}\n" for score, first, second in rows))


def _looked_for(names: tuple[str, ...]) -> str:
    return f"looked for {', '.join(names[:-1])} and {names[-1]}"


def _written(path: Path, text: str) -> str:
    # A grid that is continued has this file already.
    if not path.is_file() or path.read_text("utf-8") != text:
        write_text(path, text)
    return str(path)


def _check_wordnet() -> None:
    from diffaug.models.views.synonym import WordNet

    try:
        WordNet()
    except DiffaugError as error:
        raise MissingDataError(f"WordNet ({error})") from error
