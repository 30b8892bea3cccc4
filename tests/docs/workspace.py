"""What the examples of the documentation find in their working directory: files and models by the names they use.

Models are tiny and random, so an example shows that it runs, not what it scores. A name such as `bert-base-uncased` is
a folder here: whatever loads a model takes a folder of that name before it asks the hub.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from diffaug.config import Recipe, recipe_from_dict

# The sample data and the small file that stands in for each, where a run is shortened.
SAMPLE = {
    "sample:triplets": "triplets.csv",
    "sample:sentences": "sentences.txt",
    "sample:dev": "dev.tsv",
    "sample:test": "test.tsv",
}
_WHO = ["dog", "cat", "market", "garden", "train", "letter", "river", "school", "kitchen", "doctor"]
_WHAT = ["is in the news", "was seen on Monday", "looks old", "belongs to nobody", "needs help"]


def fill(folder: Path, page: str, models: dict[str, Path], saved_model: Path, tasks: Path) -> None:
    """Put everything that the text of a page names into ``folder``."""
    for name, model in models.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(model)
    made_there = set(re.findall(r"""(?:train .*--out |train\(.*")(runs/[\w-]+)""", page.replace("\\\n", " ")))
    for run in set(re.findall(r"\b(runs/[\w-]+)/best", page)) - made_there:
        (folder / run).mkdir(parents=True)
        (folder / run / "best").symlink_to(saved_model)
    (folder / "DIR").symlink_to(tasks)
    for name, text in files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def files() -> dict[str, str | bytes]:
    """Small files of every kind."""
    statements = [f"The {who} {what}{when}." for when in ("", " today", " again") for who in _WHO for what in _WHAT]
    triplets = [(s, s.replace("The", "That"), s.replace("The", "No")) for s in statements]
    pairs = [(s, same, "entailment") for s, same, _ in triplets] + [(s, no, "contradiction") for s, _, no in triplets]
    scored = [(i % 6, s, statements[(i * (i % 6)) % len(statements)]) for i, s in enumerate(statements)]
    triplet_keys = ("anchor", "positive", "negative")
    documents = {f"d{i}": s for i, s in enumerate(statements[:20])}
    return {
        "sentences.txt": _lines(statements),
        "raw.txt": _lines([*statements, *(s.replace("The", "My") for s in statements)]),
        "corpus.txt": _lines(statements),
        "my.csv": _table(",", [("sent0", "sent1", "hard_neg"), *triplets]),
        "triplets.csv": _table(",", [("sent0", "sent1", "hard_neg"), *triplets]),
        "labels.csv": _table(",", [("premise", "hypothesis", "label"), *pairs]),
        "scored.tsv": _table("\t", scored),
        "pairs.tsv": _table("\t", scored),
        "dev.tsv": _table("\t", scored[::2]),
        "test.tsv": _table("\t", scored[1::2]),
        "scored.csv": _table(",", [("sentence1", "sentence2", "score"), *((a, b, score) for score, a, b in scored)]),
        "tickets.csv": _table(",", [("text", "label"), *((s, s.split()[1]) for s in statements)]),
        "triplets.jsonl": _lines([json.dumps(dict(zip(triplet_keys, row, strict=True))) for row in triplets]),
        "beir-folder/corpus.jsonl": _lines([json.dumps({"_id": i, "text": s}) for i, s in documents.items()]),
        "beir-folder/queries.jsonl": _lines([json.dumps({"_id": "q0", "text": "Who saw the dog?"})]),
        "beir-folder/qrels/test.tsv": _table("\t", [("query-id", "corpus-id", "score"), ("q0", "d1", 1)]),
        # With two lines that cannot be used, the first of them line 17, and two that are empty.
        "my.txt": _lines(statements[:16]).encode() + b"Une \xe9cole\n\n\nCaf\xe9\nThe end.\n",
    }


def shorten(recipe: Recipe) -> Recipe:
    """The same recipe with two small steps a stage, of which the second is measured, on a tiny model and few data."""
    values = recipe.to_dict()
    if values["model"]["backbone"] == "embedded":
        values["model"]["backbone"] = "bert-base-uncased"
    values["data"] = {key: SAMPLE.get(str(value), value) for key, value in values["data"].items()}
    for stage in (values["stage1"], values["stage2"]):
        if stage is not None:
            stage.update(steps=2, batch_size=4)
            stage.update({"aux_batch_size": 4} if "aux_batch_size" in stage else {})
    values["loop"].update(eval_every=2, precision="auto")  # there is no GPU, which fp16 needs
    return recipe_from_dict(values)


def _lines(texts: list[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _table(separator: str, rows: list[tuple[object, ...]]) -> str:
    return _lines([separator.join(map(str, row)) for row in rows])
