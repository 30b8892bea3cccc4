"""The data of a grid: finding it in a folder, and saying which rows cannot be run without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from diffaug.config import Recipe
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file

if TYPE_CHECKING:
    from diffaug.evaluation.folder import DataFolder
    from diffaug.evaluation.protocol import StsSpec
    from diffaug.evaluation.sts import StsTask

# Names under which files are published or kept, best first; each may also be packed.
_TRIPLETS = ("triplets.csv", "nli_for_simcse.csv", "triplets.tsv", "triplets.jsonl", "AllNLI.jsonl")
_PAIRS = ("pairs.tsv", "pairs.csv", "pairs.jsonl", "AllNLI.tsv")
_SENTENCES = ("wiki1m.txt", "wiki1m_for_simcse.txt", "sentences.txt")
_PACKED = ("", ".xz", ".gz")
_DEV, _TARGET = "STSB.dev.tsv", "target.txt"


class MissingDataError(DiffaugError):
    """What a recipe needs is not there; the message says what, where it was looked for, and the option to name it."""


@dataclass(frozen=True)
class DataFiles:
    """The files that the recipes of a grid read. None: there is no such file.

    Attributes:
        folder: where the tasks lie that models are scored on, and where files were looked for.
        triplets: premise, entailment, contradiction.
        pairs: labelled pairs with all three labels.
        sentences: unlabelled, one a line.
        dev: scored pairs that choose checkpoints and settings.
        target: the sentences of the tasks themselves, without scores, for flows that learn from them; left out, they
            are taken from the tasks in `folder` when a row needs them.
        made: a folder for files that have to be written for that, such as the grid's own.
    """

    folder: Path | None = None
    triplets: str | None = None
    pairs: str | None = None
    sentences: str | None = None
    dev: str | None = None
    target: str | None = None
    made: Path | None = field(default=None, compare=False)

    @classmethod
    def find(
        cls,
        folder: Path | None,
        made: Path | None = None,
        *,
        triplets: str | None = None,
        pairs: str | None = None,
        sentences: str | None = None,
        dev: str | None = None,
        target: str | None = None,
    ) -> DataFiles:
        """Look for what is not named in ``folder`` and the folders below it.

        Args:
            folder: such as `diffaug data get` fills, or with `nli/triplets.csv`, `nli/pairs.tsv`, `wiki/wiki1m.txt`
                and `sts/*.tsv`; files may be packed as .xz or .gz. None: nothing but what is named.
            made: where to write what has to be converted first.
            triplets, pairs, sentences, dev, target: files to use instead of those in the folder, or other sources
                that recipes take, as `hub:NAME`.

        Raises:
            DiffaugError: a named file or the folder does not exist.
        """
        named = {"triplets": triplets, "pairs": pairs, "sentences": sentences, "dev": dev, "target": target}
        for option, source in named.items():
            if source is not None and ":" not in source and not Path(source).is_file():
                raise DiffaugError(f"there is no file {source}, which was given as --{option}")
        if folder is None:
            return cls(None, **named, made=made)
        from diffaug.evaluation.folder import DataFolder

        there = DataFolder([folder])
        return cls(
            folder,
            triplets=triplets or _first(there, _TRIPLETS),
            pairs=pairs or _first(there, _PAIRS),
            sentences=sentences or _first(there, _SENTENCES),
            dev=dev or _first(there, (_DEV,)) or _converted_dev(there, made),
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
        from diffaug.data.readers import read_nli

        source = self.triplets or self.pairs
        if source is None:
            raise self._no_triplets()
        return len(read_nli(source))

    def _labels(self, recipe: Recipe) -> str:
        if recipe.data.nli_classes == 3:
            if self.pairs is None:
                raise MissingDataError(f"labelled pairs with three labels ({_looked_for(_PAIRS)}; name them: --pairs)")
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
        if self.folder is None or self.made is None:
            raise MissingDataError("the sentences of the tasks, one a line (name them with --target)")
        sentences = dict.fromkeys(s for task in _tasks(self.folder) for s in task.sentences())
        if not sentences:
            raise MissingDataError(f"the sentences of the tasks ({self.folder} holds none; name them with --target)")
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


def change(key: str, value: str) -> str:
    """`key=value` such that the value is read as the text it is, whatever YAML makes of it."""
    try:
        plain = yaml.safe_load(value)
    except yaml.YAMLError:
        plain = None
    return f"{key}={value}" if plain == value else f"{key}={json.dumps(value)}"


def _first(folder: DataFolder, names: tuple[str, ...]) -> str | None:
    found = (folder.find(name + packed) for name in names for packed in _PACKED)
    return next((str(path) for path in found if path is not None), None)


def _looked_for(names: tuple[str, ...]) -> str:
    return f"looked for {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else f"looked for {names[0]}"


def _tasks(folder: Path) -> Iterator[StsTask]:
    from diffaug.evaluation.folder import DataFolder
    from diffaug.evaluation.protocol import STS
    from diffaug.evaluation.sts import load_sts

    there = DataFolder([folder])
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
    from diffaug.augment.synonym import WordNet

    try:
        WordNet()
    except DiffaugError as error:
        raise MissingDataError(f"WordNet ({error})") from error
