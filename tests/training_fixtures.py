"""A whole training run on a tiny model and a handful of sentences, in a second or two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffaug.config import Recipe, load_recipe, recipe_from_dict

_ANIMALS = ["dog", "cat", "horse", "bird", "cow", "fox", "goat", "mouse"]
_PLACES = ["park", "house", "garden", "street", "room"]


@pytest.fixture(scope="session")
def data_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Triplets, sentences and scored pairs, as files."""
    folder = tmp_path_factory.mktemp("data")
    triplets, sentences, pairs = ["sent0,sent1,hard_neg"], [], []
    for i, animal in enumerate(_ANIMALS):
        for j, place in enumerate(_PLACES):
            triplets.append(
                f"A {animal} runs through the {place}.,The {animal} is moving,A {animal} sleeps in the {place}"
            )
            sentences.append(f"Nobody knew why the {animal} left the {place}{'.' * (j % 2)}" + " today" * (i % 3))
            pairs.append(f"{(i + j) % 6}\tThe {animal} likes the {place}.\tA {_ANIMALS[(i + j) % 8]} is in the {place}")
    files = {"nli": "triplets.csv", "unlabelled": "sentences.txt", "dev": "dev.tsv"}
    for name, lines in (("nli", triplets), ("unlabelled", sentences), ("dev", pairs)):
        (folder / files[name]).write_text("\n".join(lines) + "\n", "utf-8")
    return {name: str(folder / file) for name, file in files.items()}


@pytest.fixture(scope="session")
def labelled_pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """NLI pairs with three labels, as a file."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    lines = ["premise\thypothesis\tlabel"]
    for animal in _ANIMALS:
        premise = f"A {animal} runs through the park."
        lines.append(f"{premise}\tThe {animal} is moving.\tentailment")
        lines.append(f"{premise}\tThe {animal} likes the rain.\tneutral")
        lines.append(f"{premise}\tThe {animal} sleeps.\tcontradiction")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


@pytest.fixture(scope="session")
def make_recipe(tiny_bert: Path, data_files: dict[str, str]) -> Callable[..., Recipe]:
    """A recipe of few steps for a setting (sup, semi or semi-aux); keywords change groups of settings."""

    def make(setting: str = "sup", **groups: dict[str, Any]) -> Recipe:
        values: dict[str, Any] = {
            "name": f"tiny-{setting}",
            "method": "diffaug",
            "model": {
                "backbone": str(tiny_bert),
                "template": 'This sentence of "{}" means [MASK].',
                "head": "training",
            },
            "views": {"kind": "prefix", "length": 3},
            "data": {**data_files, "test": data_files["dev"], "max_length": 16},
            "stage1": {"steps": 4, "batch_size": 8, "learning_rate": 1e-2},
            "stage2": {
                "objective": "triplets" if setting == "sup" else "unlabelled",
                "steps": 4,
                "batch_size": 8,
                "learning_rate": 1e-3,
                "aux_weight": 0.1 if setting == "semi-aux" else 0.0,
                "aux_batch_size": 6,
            },
            # Of 32 bits on a GPU too: tests compare numbers.
            "loop": {"eval_every": 2, "precision": "fp32"},
        }
        for group, changes in groups.items():
            values.setdefault(group, {}).update(changes)
        return recipe_from_dict(values)

    return make


@pytest.fixture
def tiny_run(make_recipe: Callable[..., Recipe]) -> Callable[..., Any]:
    """A method with its stages and data, ready for a step, dropout off; see `_ready`."""

    def build(setting: str, **groups: dict[str, Any]) -> Any:
        method, inputs, _ = _ready(make_recipe(setting, **groups))
        return method, inputs

    return build


@pytest.fixture
def recipe_run(tiny_bert: Path, data_files: dict[str, str], labelled_pairs: str) -> Callable[..., Any]:
    """The method of a shipped recipe on a tiny model, ready for a step, dropout off; see `_ready`."""

    def build(name: str, *changes: str, backbone: Path = tiny_bert) -> Any:
        nli = labelled_pairs if load_recipe(name).data.nli_classes == 3 else data_files["nli"]
        files = {**data_files, "nli": nli}
        settings = [f"model.backbone={backbone}", "data.max_length=16", *(f"data.{k}={v}" for k, v in files.items())]
        for stage in ("stage1", "stage2"):
            if getattr(load_recipe(name), stage) is not None:
                settings.append(f"{stage}.batch_size=8")
        return _ready(load_recipe(name, [*settings, *changes]))

    return build


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recipe, Path], None]:
    """Trains, and is interrupted in the fourth step of a stage."""

    def run(recipe: Recipe, folder: Path) -> None:
        from diffaug import train
        from diffaug.training.loop import Loop

        step = Loop._step

        def failing(self: Loop, *args: Any) -> Any:
            if self.progress.step == 3:
                raise KeyboardInterrupt
            return step(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(Loop, "_step", failing)
            with pytest.raises(KeyboardInterrupt):
                train(recipe, folder, quiet=True)

    return run


def pairs_of(batch: Any) -> list[tuple[list[int], list[int], int]]:
    """Premise, hypothesis and class of each labelled pair of a batch; a triplet is two of them."""
    if batch.labels is not None:
        return [(*pair, label) for pair, label in zip(batch.examples, batch.labels, strict=True)]
    return [(premise, hypothesis, 1 - i) for premise, *both in batch.examples for i, hypothesis in enumerate(both)]


def _ready(recipe: Recipe) -> Any:
    """The method, a function that collates a batch of a stage, and one that gives that batch's examples."""
    import torch

    from diffaug.data.corpus import Corpus
    from diffaug.data.sampling import BatchSampler
    from diffaug.methods import method_class
    from diffaug.models.backbone import load_backbone

    torch.manual_seed(0)
    method = method_class(recipe.method).build(recipe, *load_backbone(recipe.model.backbone)).eval()
    stages = {stage.number: stage for stage in method.stages(Corpus(recipe.data, method.collator))}

    def batches(number: int, rank: int = 0, world: int = 1, index: int = 0) -> Any:
        streams = {name: BatchSampler(e, size, 0, rank, world) for name, (e, size) in stages[number].streams.items()}
        return {name: stream.batch(index) for name, stream in streams.items()}

    def inputs(number: int, rank: int = 0, world: int = 1, index: int = 0) -> Any:
        return stages[number], method.collate(stages[number], batches(number, rank, world, index))

    return method, inputs, batches
