"""What `diffaug data check` advises: which column is what, how to convert a file, which command to type."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from diffaug.data.columns import ROLES, Kind
from diffaug.data.labels import parse_score
from diffaug.data.table import HUB_PREFIX, Table, source_path

# A column with few different, short values holds labels; one with two values always does.
_FEW_VALUES = 10
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b")
# Function words that are frequent in one of these languages and rare in the others.
_FUNCTION_WORDS = {
    "English": "the of and is are was with that this to in on for",
    "German": "der die das und ist nicht ein eine ich mit auf für wird den zu",
    "French": "le la les des et est une dans pour que pas je avec sur du",
    "Spanish": "el los las una y en es por con para que no se del mi",
    "Italian": "il gli di che e un una per non con sono del nella mi è",
    "Portuguese": "o os as um uma e em não com para que do da meu é",
    "Dutch": "de het een en is niet van ik met op voor dat zijn naar te",
}
_RECIPES = {
    Kind.TRIPLETS: ("diffaug-sup", "nli"),
    Kind.LABELLED_PAIRS: ("diffaug-sup", "nli"),
    Kind.POSITIVE_PAIRS: ("adapt-diffaug", "nli"),
    Kind.CLASSES: ("adapt-diffaug", "nli"),
    Kind.SENTENCES: ("simcse-unsup", "unlabelled"),
}


def propose_columns(table: Table) -> tuple[Kind, dict[str, str]] | None:
    """The kind of a table with unknown column names, and a mapping from roles to columns to be confirmed.

    Only the content decides: a column of long, mostly different texts holds sentences; one of few values labels; one of
    numbers scores.
    """
    head = table.head()
    names = list(table.names or (str(cell).strip() for cell in head[0][1]))
    rows = [cells for _, cells in (head if table.names else head[1:]) if len(cells) == len(names)]
    if table.plain_text or len(rows) < 2 or len(set(names)) < len(names):
        return None
    found: dict[str, list[str]] = {"text": [], "label": [], "score": [], "": []}
    for name, cells in zip(names, zip(*rows, strict=True), strict=True):
        found[_content([str(cell).strip() for cell in cells])].append(name)
    texts, labels, scores = found["text"], found["label"], found["score"]
    if len(texts) == 2 and labels:
        kind, chosen = Kind.LABELLED_PAIRS, [*texts, labels[0]]
    elif len(texts) == 2 and scores:
        kind, chosen = Kind.SCORED_PAIRS, [*texts, scores[0]]
    elif len(texts) == 1 and labels:
        kind, chosen = Kind.CLASSES, [*texts, labels[0]]
    elif 1 <= len(texts) <= 3:
        kind, chosen = (Kind.SENTENCES, Kind.POSITIVE_PAIRS, Kind.TRIPLETS)[len(texts) - 1], texts
    else:
        return None
    return kind, dict(zip(ROLES[kind], chosen, strict=True))


def _content(cells: Sequence[str]) -> str:
    """What a column holds: ``text``, ``label``, ``score``, or nothing of use, such as ids and dates."""
    filled = [cell for cell in cells if cell]
    distinct = len(set(filled))
    numbers = [number for cell in filled if (number := parse_score(cell)) is not None]
    if 2 * len(numbers) > len(filled):
        whole = all(number.is_integer() for number in numbers)
        return ("label" if distinct <= 3 else "" if distinct == len(filled) else "score") if whole else "score"
    if not filled or sum(map(bool, map(_DATE.match, filled))) * 2 > len(filled):
        return ""
    words = sum(len(cell.split()) for cell in filled) / len(filled)
    if distinct <= 2 < len(filled) or (distinct <= _FEW_VALUES and 2 * distinct <= len(filled) and words <= 3):
        return "label"
    characters = sum(map(len, filled)) / len(filled)
    return "text" if words >= 2 or characters >= 12 else ""  # some scripts have no spaces


def column_options(columns: Mapping[str, str | int]) -> str:
    """The options that name columns, as they are typed in a shell."""
    return " ".join(f"--column {shlex.quote(f'{role}={name}')}" for role, name in columns.items())


def column_settings(key: str, columns: Mapping[str, str | int]) -> list[str]:
    """The settings of a recipe that name the columns of ``data.KEY``, as they are typed in a shell."""
    return [shlex.quote(f"data.columns.{key}.{role}={name}") for role, name in columns.items()]


def encoding_advice(source: object) -> list[str]:
    """How to convert a file that is not UTF-8."""
    if not isinstance(source, (str, os.PathLike)) or str(source).startswith(HUB_PREFIX):
        return []
    path = source_path(source)
    content = path.read_bytes()[: 1 << 20] if path.is_file() else b""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        name, encoding = "UTF-16, as Windows writes it", "utf-16"
    else:
        try:
            content.decode("cp1252")
        except UnicodeDecodeError:
            return []
        name, encoding = "Windows-1252, as Excel writes it", "cp1252"
    return [
        f"the file seems to be {name}; in Excel save it as 'CSV UTF-8', or convert it:",
        f"iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > {shlex.quote(f'utf8-{path.name}')}",
    ]


def language_advice(columns: Sequence[Sequence[str]]) -> list[str]:
    """A hint if columns of sentences do not seem to be English, which most backbones are made for."""
    sample = " ".join(text for column in columns for text in column[:: len(column) // 1000 + 1]).casefold()
    letters = [character for character in sample[:100_000] if character.isalpha()]
    latin = sum(ord(character) < 0x250 for character in letters)
    language = None
    if letters and 2 * latin < len(letters):
        language = "a language in another script than Latin"
    else:
        counts = Counter(re.findall(r"[^\W\d_]+", sample))
        hits = {name: sum(counts[word] for word in words.split()) for name, words in _FUNCTION_WORDS.items()}
        best = max(hits, key=lambda name: hits[name])
        # A few foreign words, or short texts, prove nothing.
        if best != "English" and hits[best] >= 10 and hits[best] > 2 * hits["English"]:
            language = best
    if language is None:
        return []
    return [
        f"the sentences seem to be {language}; English backbones such as bert-base-uncased know little of it: "
        "use one for it, or a multilingual one (--set model.backbone=xlm-roberta-base)"
    ]


def label_options(values: Sequence[str]) -> str:
    """The options that say what two or three unknown labels mean, as a guess to be corrected."""
    meanings = ("same", "different") if len(values) == 2 else ("entailment", "neutral", "contradiction")
    return " ".join(f"--label {shlex.quote(f'{value}={means}')}" for value, means in zip(values, meanings, strict=True))


def command(
    kind: Kind,
    source: str,
    columns: Mapping[str, str | int] | None,
    labels: Mapping[str, str] | None = None,
    *,
    all_pairs: bool = False,
    skip: bool = False,
) -> str:
    """The command that uses the data, as it is typed in a shell.

    Args:
        kind: of the data.
        source: the file.
        columns: which column is what.
        labels: what the labels mean.
        all_pairs: these are pairs from which few or no triplets can be built; learn from the pairs.
        skip: the data has bad rows.
    """
    if kind is Kind.SCORED_PAIRS:
        given = f" {column_options(columns)}" if columns else ""
        return f"diffaug eval --model embedded --pairs {shlex.quote(source)}{given}"
    recipe, key = ("adapt-diffaug", "nli") if all_pairs else _RECIPES[kind]
    settings = [shlex.quote(f"data.{key}={source}")]
    settings += column_settings(key, columns or {})
    settings += [shlex.quote(f"data.label_names.{value}={meaning}") for value, meaning in (labels or {}).items()]
    settings += ["data.on_bad=skip"] * skip
    return f"diffaug train --recipe {recipe} --out runs/mine " + " ".join(f"--set {one}" for one in settings)
