"""The data of a grid: finding it in a folder, and saying which rows cannot be run without it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from diffaug.config import Recipe
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file

if TYPE_CHECKING:
    from diffaug.evaluation.folder import DataFolder, Folders
    from diffaug.evaluation.protocol import StsSpec
    from diffaug.evaluation.sts import StsTask

# Names under which files are published or kept, best first; each may also be packed.
_TRIPLETS = ("triplets.csv", "nli_for_simcse.csv", "triplets.tsv", "triplets.jsonl", "AllNLI.jsonl")
_PAIRS = ("pairs.tsv", "pairs.csv", "pairs.jsonl", "AllNLI.tsv")
# Labelled pairs are also SNLI and MultiNLI together, each in one of its published forms.
_SNLI = ("snli_1.0_train.jsonl", "snli_1.0_train.txt")
_MULTINLI = ("multinli_1.0_train.jsonl", "multinli_1.0_train.txt")
_SENTENCES = ("wiki1m.txt", "wiki1m_for_simcse.txt", "sentences.txt")
_PACKED = ("", ".xz", ".gz")
_DEV, _TARGET = "STSB.dev.tsv", "target.txt"


class MissingDataError(DiffaugError):
    """What a recipe needs is not there; the message says what, where it was looked for, and the option to name it."""


@dataclass(frozen=True)
class DataFiles:
    """The files that the recipes of a grid read. None: there is no such file.

    Attributes:
        folders: where the tasks lie that models are scored on, and where files were looked for.
        triplets: premise, entailment, contradiction.
        pairs: labelled pairs with all three labels; several files are joined.
        sentences: unlabelled, one a line.
        dev: scored pairs that choose checkpoints and settings.
        target: the sentences of the tasks themselves, without scores, for flows that learn from them; left out, they
            are taken from the tasks in `folders` when a row needs them.
        made: a folder for files that have to be written for that, such as the grid's own.
    """

    folders: tuple[Path, ...] = ()
    triplets: str | None = None
    pairs: str | tuple[str, ...] | None = None
    sentences: str | None = None
    dev: str | None = None
    target: str | None = None
    made: Path | None = field(default=None, compare=False)

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
        """Look for what is not named in ``folders`` and the folders below them; what the first one has is taken.

        Args:
            folders: such as `diffaug data get` fills, or with `nli/triplets.csv`, `nli/pairs.tsv`, `wiki/wiki1m.txt`
                and `sts/*.tsv`; files may be packed as .xz or .gz.
            made: where to write what has to be converted first.
            triplets, pairs, sentences, dev, target: files to use instead of those in the folders, or other sources
                that recipes take, as `hub:NAME`.

        Raises:
            DiffaugError: a named file or a folder does not exist.
        """
        pairs = (pairs,) if isinstance(pairs, str) else tuple(pairs or ())
        named = [("triplets", triplets), ("sentences", sentences), ("dev", dev), ("target", target)]
        for option, source in [*named, *(("pairs", source) for source in pairs)]:
            if source is not None and ":" not in source and not Path(source).is_file():
                raise DiffaugError(f"there is no file {source}, which was given as --{option}")
        from diffaug.evaluation.folder import DataFolder, folder_list

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
        )

    def changes_for(self, recipe: Recipe) -> list[str]:
        """The settings that give a recipe its data.

        Raises:
            MissingDataError: it needs something that is not there.
        """
        if self.dev is None:
            raise MissingDataError(f"STS-B dev ({_looked_for((_DEV, 'sts-dev.csv'))}; name it with --dev)")
        changes = [change("data.dev", self.dev)]
        if needs_labels(recipe):
            changes.append(change("data.nli", self._labels(recipe)))
        second = recipe.stage2
        if second is not None and second.objective == "unlabelled":
            source = self._target() if recipe.method == "flow" else self._sentences()
            changes.append(change("data.unlabelled", source))
        if recipe.views.kind == "synonym":
            _see_wordnet()
        return changes

    def count_labels(self) -> int:
        """How many triplets (without such a file: labelled pairs) there are.

        Raises:
            MissingDataError: there are none.
        """
        from diffaug.data.read import read_nli_files

        source = self.triplets or self.pairs
        if source is None:
            raise self._no_triplets()
        return len(read_nli_files([source] if isinstance(source, str) else source))

    def _labels(self, recipe: Recipe) -> str | tuple[str, ...]:
        if recipe.data.nli_classes == 3:
            if self.pairs is None:
                both = f"{_SNLI[0]} with {_MULTINLI[0]}"
                raise MissingDataError(
                    f"labelled pairs with three labels ({_looked_for((*_PAIRS, both))}; fetch them with diffaug data "
                    "get snli multinli, or name them with --pairs)"
                )
            return self.pairs
        source = self.triplets or self.pairs
        if source is None:
            raise self._no_triplets()
        return source

    def _sentences(self) -> str:
        if self.sentences is None:
            raise MissingDataError(f"unlabelled sentences ({_looked_for(_SENTENCES)}; name them with --sentences)")
        return self.sentences

    def _target(self) -> str:
        """The sentences of the tasks in the folder, each once, as a file of their own."""
        if self.target is not None:
            return self.target
        if not self.folders or self.made is None:
            raise MissingDataError("the sentences of the tasks, one a line (name them with --target)")
        sentences = dict.fromkeys(s for task in _tasks(self.folders) for s in task.sentences())
        if not sentences:
            where = " and ".join(map(str, self.folders))
            raise MissingDataError(f"the sentences of the tasks (none in {where}; name them with --target)")
        return _written(self.made / _TARGET, "".join(f"{sentence}\n" for sentence in sentences))

    @staticmethod
    def _no_triplets() -> MissingDataError:
        return MissingDataError(f"NLI triplets ({_looked_for(_TRIPLETS)}; name them with --triplets)")


def needs_labels(recipe: Recipe) -> bool:
    """Whether a recipe reads `data.nli`."""
    second = recipe.stage2
    return recipe.stage1 is not None or (
        second is not None and (second.objective != "unlabelled" or second.aux_weight > 0)
    )


def change(key: str, value: str | Sequence[str]) -> str:
    """`key=value` such that the value is read as the text it is, whatever YAML makes of it; or as a list of texts."""
    if not isinstance(value, str):
        return f"{key}={json.dumps(list(value))}"
    try:
        plain = yaml.safe_load(value)
    except yaml.YAMLError:
        plain = None
    return f"{key}={value}" if plain == value else f"{key}={json.dumps(value)}"


def _first(folders: Sequence[DataFolder], names: tuple[str, ...]) -> str | None:
    found = (folder.find(name + packed) for folder in folders for name in names for packed in _PACKED)
    return next((str(path) for path in found if path is not None), None)


def _pairs(folders: Sequence[DataFolder]) -> str | tuple[str, ...] | None:
    if (found := _first(folders, _PAIRS)) is not None:
        return found
    snli, multinli = _first(folders, _SNLI), _first(folders, _MULTINLI)
    return (snli, multinli) if snli is not None and multinli is not None else None


def _dev(folders: Sequence[DataFolder], made: Path | None) -> str | None:
    found = (_first([folder], (_DEV,)) or _converted_dev(folder, made) for folder in folders)
    return next((path for path in found if path is not None), None)


def _looked_for(names: tuple[str, ...]) -> str:
    return f"looked for {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else f"looked for {names[0]}"


def _tasks(folders: Sequence[Path]) -> Iterator[StsTask]:
    from diffaug.evaluation.folder import DataFolder
    from diffaug.evaluation.protocol import STS
    from diffaug.evaluation.sts import load_sts

    there = DataFolder(folders)
    for spec in STS:
        if not spec.extra and (task := load_sts(spec, there)) is not None:
            yield task


def _converted_dev(folder: DataFolder, made: Path | None) -> str | None:
    """STS-B dev as it was released, brought to the form recipes read; None if it is not there."""
    from diffaug.evaluation.protocol import STS
    from diffaug.evaluation.sts import load_sts

    spec: StsSpec = next(spec for spec in STS if spec.name == "STS-B-dev")
    task = load_sts(spec, folder) if made is not None else None
    if task is None or made is None:
        return None
    (pairs,) = task.subtasks.values()
    rows = zip(pairs.scores, pairs.first, pairs.second, strict=True)
    return _written(made / _DEV, "".join(f"{score}\t{first}\t{second}\n" for score, first, second in rows))


def _written(path: Path, text: str) -> str:
    # A grid that goes on finds its own file, and leaves it alone.
    if not path.is_file() or path.read_text("utf-8") != text:
        with atomic_file(path) as temporary:
            temporary.write_text(text, "utf-8")
    return str(path)


def _see_wordnet() -> None:
    from diffaug.models.views.synonym import WordNet

    try:
        WordNet()
    except DiffaugError as error:
        raise MissingDataError(f"WordNet ({error})") from error
