"""Distillation: the losses, that a student approaches its teacher, resuming, and what cannot be combined."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from diffaug import Embedder, train
from diffaug.config import Recipe, load_recipe
from diffaug.data.read import read_sentences
from diffaug.errors import DiffaugError
from diffaug.hub.card import public_recipe
from diffaug.losses.distil import cosine_distance, similarity_distance, squared_distance
from diffaug.methods.distil import Distil
from diffaug.models.config import DenseConfig, ModelConfig
from diffaug.models.encoder import Encoder


def _save_teacher(backbone: Path, width: int, sentences: list[str], folder: Path) -> Path:
    """A model whose vectors differ much from sentence to sentence, as those of random encoders do not."""
    plain = Embedder.from_pretrained(backbone, device="cpu")
    encoder = Encoder(plain.encoder.backbone, ModelConfig(head=(DenseConfig(32, width, activation="identity"),)))
    (linear, _) = encoder.head[0]
    torch.manual_seed(5)
    with torch.no_grad():
        linear.weight.normal_()
        linear.bias.copy_(-linear.weight @ torch.from_numpy(plain.encode(sentences, normalize=False)).mean(0))
    Embedder(encoder, plain.tokenizer, device="cpu").save(folder)
    return folder


@pytest.fixture(scope="module")
def teacher(tiny: Callable[[str], Path], data_files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the student's width, with another architecture and tokenizer."""
    texts = read_sentences(data_files["unlabelled"])
    return _save_teacher(tiny("roberta"), 32, texts, tmp_path_factory.mktemp("equal") / "model")


@pytest.fixture(scope="module")
def narrow(tiny_bert: Path, data_files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher with vectors of width 12."""
    texts = read_sentences(data_files["unlabelled"])
    return _save_teacher(tiny_bert, 12, texts, tmp_path_factory.mktemp("narrow") / "model")


@pytest.fixture
def make(tiny_bert: Path, data_files: dict[str, str]) -> Callable[..., Recipe]:
    def recipe(teacher: Path, *changes: str) -> Recipe:
        return load_recipe(
            "distil",
            [
                *(f"model.backbone={tiny_bert}", f"distil.teacher={teacher}", "data.max_length=32"),
                *(f"data.unlabelled={data_files['unlabelled']}", f"data.dev={data_files['dev']}"),
                *("stage2.steps=40", "stage2.batch_size=8", "stage2.learning_rate=2e-3", "stage2.dropout=false"),
                *("loop.select=last", "loop.eval_every=20", "loop.precision=fp32", *changes),
            ],
        )

    return recipe


def _vectors(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_losses_against_sentence_transformers() -> None:
    losses = pytest.importorskip("sentence_transformers.losses")
    student, teacher = _vectors(6, 5, seed=0), _vectors(6, 5, seed=1)

    class Given(nn.Module):
        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            return {"sentence_embedding": features["vectors"]}

    expected = losses.MSELoss(Given())([{"vectors": student}], teacher)
    assert squared_distance(student, teacher).item() == pytest.approx(expected.item(), rel=1e-6)
    if hasattr(losses, "EmbedDistillLoss"):
        theirs = losses.EmbedDistillLoss(Given(), distance_metric="cosine")([{"vectors": student}], teacher)
        assert cosine_distance(student, teacher).item() == pytest.approx(theirs.item(), rel=1e-6)


def test_the_distance_of_similarities() -> None:
    student, teacher = _vectors(6, 5, seed=0), _vectors(6, 9, seed=1)
    cosines = [np.corrcoef(np.concatenate([v.numpy(), -v.numpy()], axis=1)) for v in (student, teacher)]
    others = ~np.eye(6, dtype=bool)
    expected = ((cosines[0] - cosines[1])[others] ** 2).mean()
    assert similarity_distance(student, teacher).item() == pytest.approx(expected, rel=1e-5)
    assert similarity_distance(teacher @ torch.linalg.qr(_vectors(9, 9, seed=2))[0], 3 * teacher).item() < 1e-12


@pytest.mark.parametrize(
    ("kind", "loss"),
    [("equal", "auto"), ("equal", "mse"), ("narrow", "auto"), ("narrow", "cosine")],
)
def test_the_student_approaches_its_teacher(
    kind: str, loss: str, make: Callable[..., Recipe], teacher: Path, narrow: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    teacher = teacher if kind == "equal" else narrow
    recipe = make(teacher, f"distil.loss={loss}")
    result = train(recipe, tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    distances = [line["distance"] for line in lines if "distance" in line]
    assert distances[-1] < 0.75 * distances[0]
    texts = read_sentences(str(recipe.data.unlabelled))
    target, student, before = (
        torch.from_numpy(Embedder.from_pretrained(path).encode(texts)) for path in (teacher, result.model, tiny_bert)
    )
    distance = cosine_distance if kind == "equal" else similarity_distance
    assert distance(student, target) < 0.75 * distance(before, target)
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert student.shape[1] == 32  # a linear layer to the teacher's width is dropped


def test_every_step_compares_a_sentence_with_its_own_vector(
    make: Callable[..., Recipe], teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches of a run, decoded, give the teacher's vectors when it encodes them again."""
    seen: list[tuple[list[list[int]], torch.Tensor]] = []
    collate = Distil.collate

    def watched(self: Distil, stage: Any, batches: Any) -> Any:
        batch: Any = collate(self, stage, batches)
        seen.append(([ids for (ids,) in batches["sentences"].examples], batch.teacher))
        return batch

    monkeypatch.setattr(Distil, "collate", watched)
    recipe = make(teacher, "stage2.steps=3")
    train(recipe, tmp_path / "run", quiet=True)
    texts = read_sentences(str(recipe.data.unlabelled))
    student = Embedder.from_pretrained(tmp_path / "run" / "best")
    of_ids = {tuple(ids): text for ids, text in zip(student.collator.ids(texts)[0], texts, strict=True)}
    for rows, vectors in seen:
        expected = Embedder.from_pretrained(teacher).encode([of_ids[tuple(ids)] for ids in rows], normalize=False)
        np.testing.assert_allclose(vectors.numpy(), expected, atol=1e-5)


def test_an_interrupted_run_goes_on_with_the_stored_vectors(
    make: Callable[..., Recipe],
    teacher: Path,
    tmp_path: Path,
    cut_off: Callable[[Recipe, Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = make(teacher, "stage2.steps=6", "loop.save_minutes=0")
    whole = train(recipe, tmp_path / "whole", quiet=True)
    cut_off(recipe, tmp_path / "cut")
    (stored,) = (tmp_path / "cut" / "checkpoints").glob("teacher-*.npy")
    assert np.load(stored).shape == (40, 32)
    monkeypatch.setattr(Distil, "_encode", lambda *args: pytest.fail("the teacher has encoded the sentences again"))
    resumed = train(recipe, tmp_path / "cut", resume=True, quiet=True)
    vectors = [Embedder.from_pretrained(run.model).encode("A dog runs.") for run in (whole, resumed)]
    np.testing.assert_array_equal(*vectors)


def test_a_run_does_not_go_on_with_another_teacher(
    make: Callable[..., Recipe], narrow: Path, tmp_path: Path, cut_off: Callable[[Recipe, Path], None]
) -> None:
    model = Embedder.from_pretrained(narrow)
    model.save(tmp_path / "teacher")
    recipe = make(tmp_path / "teacher", "stage2.steps=6", "loop.save_minutes=0")
    cut_off(recipe, tmp_path / "run")
    with torch.no_grad():
        next(model.encoder.head.parameters()).add_(1)
    model.save(tmp_path / "teacher", overwrite=True)
    with pytest.raises(DiffaugError, match=r"other inputs: .*teacher"):
        train(recipe, tmp_path / "run", resume=True, quiet=True)


def test_smaller_vectors_of_a_smaller_model(make: Callable[..., Recipe], narrow: Path, tmp_path: Path) -> None:
    recipe = make(narrow, "stage2.matryoshka=[32, 8]")
    model = Embedder.from_pretrained(train(recipe, tmp_path / "run", quiet=True).model)
    texts = read_sentences(str(recipe.data.unlabelled))
    target = torch.from_numpy(Embedder.from_pretrained(narrow).encode(texts))
    start = Embedder.from_pretrained(recipe.model.backbone)
    for size in (32, 8):
        after, before = (torch.from_numpy(m.encode(texts, truncate_dim=size)) for m in (model, start))
        assert similarity_distance(after, target) < 0.5 * similarity_distance(before, target)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["distil.teacher=null"], "needs distil.teacher"),
        (["distil.teacher=no/such/folder"], "does not exist"),
        (["stage2.objective=triplets"], "stage2.objective to unlabelled"),
        (["stage2.aux_weight=0.1"], "stage2.aux_weight=0"),
        (["model.head=training"], "model.head to none or kept"),
        (["stage2.matryoshka=[8]"], "distil.loss=similarity"),
    ],
)
def test_what_cannot_be_combined(
    changes: list[str],
    message: str,
    make: Callable[..., Recipe],
    teacher: Path,
    data_files: dict[str, str],
    tmp_path: Path,
) -> None:
    with pytest.raises(DiffaugError, match=message):
        train(make(teacher, f"data.nli={data_files['nli']}", *changes), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_teacher_that_has_diverged(
    make: Callable[..., Recipe], teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Embedder, "encode", lambda self, texts, **options: np.full((len(texts), 32), np.nan, np.float32)
    )
    with pytest.raises(DiffaugError, match="vectors that are not finite"):
        train(make(teacher), tmp_path / "run", quiet=True)


def test_a_model_card_does_not_name_the_folders_of_the_machine(make: Callable[..., Recipe], teacher: Path) -> None:
    recipe = make(teacher)
    recipe = replace(recipe, replaced=replace(recipe.replaced, generator=str(teacher)))
    shown = public_recipe(recipe.to_dict())
    assert (shown["distil"]["teacher"], shown["replaced"]["generator"]) == (teacher.name, teacher.name)
