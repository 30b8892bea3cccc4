"""The user's own sentences, for the map: read from the data that the runs were trained on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from diffaug.config import source_list
from diffaug.data.read import iterate_sentences, read_labelled, read_scored_pairs
from diffaug.data.records import Classes, Records
from diffaug.errors import DiffaugError
from diffaug.report.runs import Run, resolve

COUNT = 300  # sentences on the map
_MOST_READ = 200_000  # rows of unlabelled text that are read to draw from


@dataclass(frozen=True)
class OwnSentences:
    """Distinct sentences.

    Attributes:
        name: where they come from.
        texts: the sentences.
        classes: the class of each; None if the data has none.
    """

    name: str
    texts: list[str]
    classes: list[str] | None = None


def own_sentences(runs: Sequence[Run], given: Path | None = None) -> tuple[OwnSentences | None, list[str]]:
    """Draw sentences from a file or from the training data of the runs, and notes on data that could not be read.

    Sentences with a class come first, then unlabelled text, then other labelled data. Dev pairs are the last resort,
    for a run on rows that were passed in Python.

    Raises:
        DiffaugError: the file that was given cannot be read.
    """
    if given is not None:
        return _from_file(given), []
    notes: dict[str, None] = {}
    for run in runs:
        data: dict[str, Any] = run.recipe.get("data") or {}
        found: list[OwnSentences] = []
        for setting in ("nli", "unlabelled", "dev"):
            if found and setting == "dev":
                continue
            for source in source_list(data.get(setting)):
                try:
                    found.append(_from_setting(setting, source, data, run.folder))
                except DiffaugError as error:
                    notes[f"The map has no sentences of data.{setting}: {error}"] = None
        # Unlabelled text is preferred to labelled data without classes: it is more likely to be the user's.
        found.sort(key=lambda own: (own.classes is None, not own.name.endswith("unlabelled")))
        if found:
            return found[0], []
    return None, list(notes)


def _from_file(path: Path) -> OwnSentences:
    try:
        data = read_labelled(str(path), on_bad="skip")
    except DiffaugError:
        return _draw(path.name, list(islice(iterate_sentences(str(path), on_bad="skip"), _MOST_READ)))
    return _of_records(path.name, data)


def _from_setting(setting: str, source: str, data: dict[str, Any], folder: Path) -> OwnSentences:
    columns, path = (data.get("columns") or {}).get(setting), resolve(source, folder)
    name = f"{source if ':' in source else Path(source).name}, {setting}"
    if setting == "unlabelled":
        return _draw(name, list(islice(iterate_sentences(path, columns, "skip"), _MOST_READ)))
    if setting == "dev":
        return _of_records(name, read_scored_pairs(path, columns, "skip", "dev"))
    return _of_records(name, read_labelled(path, columns, "skip", data.get("label_names")))


def _of_records(name: str, data: Records) -> OwnSentences:
    if isinstance(data, Classes):
        return _draw(name, data.sentences, data.classes)
    return _draw(name, [text for column in data.texts() for text in column])


def _draw(name: str, texts: list[str], classes: list[str] | None = None) -> OwnSentences:
    # The first of equal sentences gives the class.
    known = dict(zip(reversed(texts), reversed(classes or texts), strict=True))
    distinct = list(dict.fromkeys(texts))
    drawn = sorted(random.Random(0).sample(range(len(distinct)), min(COUNT, len(distinct))))
    chosen = [distinct[i] for i in drawn]
    return OwnSentences(name, chosen, None if classes is None else [known[text] for text in chosen])
