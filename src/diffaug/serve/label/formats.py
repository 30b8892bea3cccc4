"""Files of labels: the CSV that training reads, tasks of Label Studio, and records of Argilla."""

from __future__ import annotations

import csv
import io
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from diffaug.errors import DiffaugError
from diffaug.files import write_text
from diffaug.serve.label.kinds import SKIP, Kind
from diffaug.serve.label.store import Store

Format = Literal["label-studio", "argilla"]

_QUESTION = "label"  # the name of the control in Label Studio, of the question in Argilla
_PEOPLE = "annotators"
# Argilla identifies people by UUIDs; these are the same for the same name.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "diffaug label")


def csv_of(store: Store) -> tuple[str, int]:
    """The decided questions as the CSV that `train` and `adapt` read, and their number."""
    rows = store.table()
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    # Half a surrogate pair, which JSON may contain, is not UTF-8.
    return text.getvalue().encode("utf-16", "surrogatepass").decode("utf-16", "replace"), len(rows) - 1


def write_csv(path: Path, store: Store) -> int:
    """Write the decided questions to a CSV file, atomically; return their number."""
    text, count = csv_of(store)
    write_text(path, text)
    return count


def export(path: Path, store: Store, format: Format) -> int:
    """Write all questions and answers for another tool; return the number of questions."""
    answered = {one.texts: one.answers for one in store.answered()}
    suggested = store.suggestions()
    make = _task if format == "label-studio" else _record
    made = [
        make(i, store.kind, texts, answered.get(texts, {}), suggested.get(texts))
        for i, texts in enumerate(sorted(store.known()), start=1)
    ]
    write_text(path, json.dumps(made, indent=1) + "\n")
    return len(made)


def _task(
    id: int, kind: Kind, texts: Sequence[str], answers: Mapping[str, str], suggested: str | None
) -> dict[str, Any]:
    def result(value: str) -> dict[str, Any]:
        return {
            "from_name": _QUESTION,
            "to_name": kind.fields[0],
            "type": "choices",
            "value": {"choices": [value]},
        }

    annotations = [{"result": [result(value)], "was_cancelled": False} for value in answers.values()]
    # Label Studio knows people by numbers of its own, so names are part of the data.
    data = {**dict(zip(kind.fields, texts, strict=True)), _PEOPLE: list(answers)}
    predictions = [] if suggested is None else [{"result": [result(suggested)]}]
    return {"id": id, "data": data, "annotations": annotations, "predictions": predictions}


def _record(
    id: int, kind: Kind, texts: Sequence[str], answers: Mapping[str, str], suggested: str | None
) -> dict[str, Any]:
    responses = [{"value": value, "user_id": str(uuid.uuid5(_NAMESPACE, who))} for who, value in answers.items()]
    return {
        "id": str(id),
        "fields": dict(zip(kind.fields, texts, strict=True)),
        "metadata": {},
        "suggestions": {} if suggested is None else {_QUESTION: {"value": suggested}},
        "responses": {_QUESTION: responses} if responses else {},
        "vectors": {},
    }


def read_answers(path: Path, kind: Kind) -> list[tuple[tuple[str, ...], dict[str, str]]]:
    """The questions in an export of Label Studio (JSON) or of Argilla (`records.to_json`), with answers by annotator.

    Raises:
        DiffaugError: the file is something else, or a field or an answer is not one of this kind of question.
    """
    try:
        entries = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DiffaugError(f"{path} cannot be read as JSON: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DiffaugError(f"{path} must be a JSON list of tasks of Label Studio or records of Argilla")
    return [_entry(entry, kind, f"{path}, entry {number}") for number, entry in enumerate(entries, start=1)]


def _entry(entry: dict[str, Any], kind: Kind, where: str) -> tuple[tuple[str, ...], dict[str, str]]:
    fields = entry.get("fields", entry.get("data"))
    if not isinstance(fields, dict) or not all(isinstance(fields.get(name), str) for name in kind.fields):
        raise DiffaugError(f"{where} must have the texts {', '.join(kind.fields)}; rename the fields there")
    try:
        answers = dict(_responses(entry) if "fields" in entry else _annotations(entry, fields))
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise DiffaugError(f"{where} has answers in an unknown form; export it again as JSON") from error
    for value in answers.values():
        if value not in kind.values:
            there = ", ".join(choice.value for choice in kind.choices)
            raise DiffaugError(f"{where} has the answer {value!r:.60}; the answers of this kind are: {there}")
    return tuple(fields[name] for name in kind.fields), answers


def _annotations(task: dict[str, Any], data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    names = data.get(_PEOPLE)
    for i, annotation in enumerate(task.get("annotations") or ()):
        by = annotation.get("completed_by")
        if isinstance(by, dict):
            by = by.get("email") or by.get("id")
        if by is None and isinstance(names, list) and i < len(names):
            by = names[i]
        who = str(by) if by is not None and not isinstance(by, int) else f"label-studio-{by or i + 1}"
        if annotation.get("was_cancelled"):
            yield who, SKIP
            continue
        for result in annotation["result"]:
            value = result["value"]
            if result["type"] == "choices":
                yield who, str(value["choices"][0])
            elif result["type"] in ("rating", "number"):
                yield who, f"{value[result['type']]:g}"


def _responses(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    responses = record.get("responses") or {}
    given = responses[_QUESTION] if _QUESTION in responses else next(iter(responses.values()), [])
    for response in given:
        yield str(response["user_id"]), str(response["value"])
