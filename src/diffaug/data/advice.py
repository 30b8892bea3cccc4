"""What `diffaug data check` advises: which column is what, how to convert a file, which command to type."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice

from diffaug.config import parse_yaml
from diffaug.data.columns import ROLES, Kind, first_row_names, is_known_name, word_count
from diffaug.data.labels import parse_score
from diffaug.data.lines import utf16_name
from diffaug.data.problems import quoted
from diffaug.data.table import HUB_PREFIX, Table, source_path
from diffaug.errors import DiffaugError

# A column with few different, short values holds labels; one with two values always does.
_FEW_VALUES = 10
# Of pairs; columns with more values hold the classes of single sentences.
_MOST_VERDICTS = 3
_MOST_PROPOSALS = 3
# Enough to see that each of a hundred classes repeats.
_PROPOSAL_ROWS = 2000
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}(\b|T)")
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
# What labels of pairs that do not belong together are called in some languages.
_DIFFERENT = re.compile(
    r"\b(no|non|nein|not|kein|keine|nicht|pas|other|ander|autre|altr|otr|dif|dis|versch|unequal|un|falsch|faux)|[不否非异別]",
    re.IGNORECASE,
)
_RECIPES = {
    Kind.TRIPLETS: ("diffaug-sup", "nli"),
    Kind.LABELLED_PAIRS: ("diffaug-sup", "nli"),
    Kind.POSITIVE_PAIRS: ("adapt-diffaug", "nli"),
    Kind.CLASSES: ("adapt-diffaug", "nli"),
    Kind.SCORED_PAIRS: ("adapt-diffaug", "nli"),
    Kind.SENTENCES: ("simcse-unsup", "unlabelled"),
}


def propose_columns(table: Table) -> list[tuple[Kind, dict[str, str]]]:
    """The kinds that a table with unknown columns may hold, likeliest first, each with a mapping to be confirmed.

    Only the content decides: a column of long, mostly different texts holds sentences; one of few values labels; one of
    numbers scores.
    """
    head = list(islice(table.rows, _PROPOSAL_ROWS))
    table.rows = chain(head, table.rows)
    named = first_row_names(table)
    first = head[0][1]
    names = list(
        table.names or ((str(cell).strip() for cell in first) if named else map(str, range(1, len(first) + 1)))
    )
    rows = [cells for _, cells in (head[1:] if named else head) if len(cells) == len(names)]
    if table.plain_text or len(rows) < 2 or len(set(names)) < len(names):
        return []
    if table.may_have_header and not named and any(is_known_name(str(cell)) for cell in first):
        return []  # a header in which a name is missing or occurs twice
    found: dict[str, list[str]] = {"text": [], "label": [], "score": [], "grade": [], "": []}
    cells_of: dict[str, list[str]] = {}
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        cells_of[name] = [str(cell).strip() for cell in column]
        # pandas writes its index without a name; lists and objects of JSON hold no text
        if name and not isinstance(column[0], (Mapping, list)):
            found[_content(cells_of[name])].append(name)
    texts, labels, scores = found["text"], found["label"] + found["grade"], found["score"] + found["grade"]
    if not texts or (len(names) == 1 and table.may_have_header and not named):
        return []
    length = {name: sum(map(word_count, cells_of[name])) / len(rows) for name in texts}
    longest = max(texts, key=lambda name: length[name])
    classes = [(Kind.CLASSES, [longest, label]) for label in labels]
    if len(texts) == 1:
        proposals = classes or [(Kind.SENTENCES, texts)]
    elif len(texts) == 2:
        verdicts = [label for label in found["label"] if len(set(cells_of[label]) - {""}) <= _MOST_VERDICTS]
        pairs = [(Kind.LABELLED_PAIRS, [*texts, label]) for label in verdicts]
        pairs += [(Kind.SCORED_PAIRS, [*texts, score]) for score in scores]
        # A subject and a body have different lengths; the sentences of pairs have not.
        alike = max(length.values()) < 2 * min(length.values())
        proposals = (pairs or classes) if alike else [*classes, *pairs]
        proposals = proposals or [(Kind.POSITIVE_PAIRS, texts)]
    else:
        proposals = classes or [(Kind.TRIPLETS, texts) if len(texts) == 3 else (Kind.SENTENCES, [longest])]
    return [(kind, dict(zip(ROLES[kind], chosen, strict=True))) for kind, chosen in proposals[:_MOST_PROPOSALS]]


def _content(cells: Sequence[str]) -> str:
    """What a column holds: ``text``, ``label``, ``score``, either of both (``grade``), or nothing of use, as an id."""
    filled = [cell for cell in cells if cell and cell not in ("None", "nan", "NaT")]
    distinct = len(set(filled))
    numbers = [number for cell in filled if (number := parse_score(cell)) is not None]
    if 2 * len(numbers) > len(filled):
        if not all(number.is_integer() for number in numbers):
            return "score"
        if distinct <= 3:
            return "label"
        return "" if distinct == len(filled) else "grade" if distinct <= _FEW_VALUES else "score"
    if distinct == 1 or not filled or sum(map(bool, map(_DATE.match, filled))) * 2 > len(filled):
        return ""
    words = sum(map(word_count, filled)) / len(filled)
    most = 3 if 2 * distinct <= len(filled) and distinct <= _FEW_VALUES else 4 if 3 * distinct <= len(filled) else 0
    if distinct <= 2 < len(filled) or words <= most:
        return "label"
    return "text" if words >= 2 or sum(map(len, filled)) >= 12 * len(filled) else ""


def column_options(columns: Mapping[str, str | int]) -> str:
    """The options that name columns, as they are typed in a shell."""
    return " ".join(f"--column {shlex.quote(f'{role}={name}')}" for role, name in columns.items())


def column_settings(key: str, columns: Mapping[str, str | int]) -> list[str]:
    """The settings of a recipe that name the columns of ``data.KEY``, as they are typed in a shell."""
    return [shlex.quote(f"data.columns.{key}.{role}={_yaml(name)}") for role, name in columns.items()]


def setting(key: str, value: str) -> str:
    """A setting of a recipe, as it is typed in a shell."""
    return shlex.quote(f"{key}={_yaml(value)}")


def _yaml(value: str | int) -> str:
    """A value that YAML reads as this text: in quotes if it would be something else without, as a column ``yes``."""
    with suppress(DiffaugError):
        if isinstance(value, int) or parse_yaml(value, "") == value:
            return str(value)
    return json.dumps(value, ensure_ascii=False)


def encoding_advice(source: object) -> list[str]:
    """How to convert a file that is not UTF-8."""
    if not isinstance(source, (str, os.PathLike)) or str(source).startswith(HUB_PREFIX):
        return []
    path = source_path(source)
    content = path.read_bytes()[: 1 << 20] if path.is_file() else b""
    if utf16 := utf16_name(content):
        name, encoding = "UTF-16, as Windows writes it", utf16
    else:
        try:
            content.decode("cp1252")
        except UnicodeDecodeError:
            return []
        name, encoding = "Windows-1252, as Excel writes it", "cp1252"
    # A line by which one sees whether this is right.
    lines = content.decode(encoding, "ignore").splitlines()
    line = next((line for line in lines if not line.isascii()), "")
    shown = f" (read like this, a line is {quoted(line, 70)})" if line else ""
    return [
        f"the file seems to be {name}{shown}; in Excel save it as 'CSV UTF-8', or convert it:",
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
        "use a model for it, or a multilingual one (--set model.backbone=xlm-roberta-base)"
    ]


def label_options(values: Sequence[str]) -> str:
    """The options that say what two or three unknown labels mean, as a guess to be corrected."""
    meanings: Sequence[str] = ("entailment", "neutral", "contradiction")
    if len(values) == 2:
        first_differs = _DIFFERENT.search(values[0]) is not None and _DIFFERENT.search(values[1]) is None
        meanings = ("different", "same") if first_differs else ("same", "different")
    return label_meanings(dict(zip(values, meanings, strict=True)))


def label_meanings(labels: Mapping[str, str]) -> str:
    """The options that say what labels mean, as they are typed in a shell."""
    return " ".join(f"--label {shlex.quote(f'{value}={means}')}" for value, means in labels.items())


def train_command(
    kind: Kind,
    source: str,
    columns: Mapping[str, str | int] | None,
    labels: Mapping[str, str] | None = None,
    *,
    all_pairs: bool = False,
    skip: bool = False,
) -> str:
    """The command of a training run on the data, as it is typed in a shell.

    Args:
        kind: of the data.
        source: the file.
        columns: which column is what.
        labels: what the labels mean.
        all_pairs: these are pairs from which few or no triplets can be built; learn from the pairs.
        skip: the data has rows that cannot be used.
    """
    recipe, key = ("adapt-diffaug", "nli") if all_pairs else _RECIPES[kind]
    settings = [setting(f"data.{key}", source), *column_settings(key, columns or {})]
    if any(set(".=") & set(name) for name in labels or {}):  # not as part of a key
        settings.append(shlex.quote(f"data.label_names={json.dumps(labels, ensure_ascii=False)}"))
    else:
        settings += [shlex.quote(f"data.label_names.{value}={meaning}") for value, meaning in (labels or {}).items()]
    settings += ["data.on_bad=skip"] * skip
    return f"diffaug train --recipe {recipe} --out runs/mine " + " ".join(f"--set {one}" for one in settings)


def other_command(words: str, source: str, columns: Mapping[str, str | int] | None, end: str = "") -> str:
    """Another command on the data, as it is typed in a shell."""
    return " ".join(part for part in (words, shlex.quote(source), column_options(columns or {}), end) if part)
