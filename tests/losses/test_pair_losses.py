"""The losses of scored pairs and of classes against those of sentence-transformers, and against loops."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from diffaug.losses.contrastive import info_nce, supervised_contrastive
from diffaug.losses.pairs import angle, cosent


@pytest.fixture
def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    first, second = torch.randn(2, 9, 8, generator=generator)
    return first.requires_grad_(), second.requires_grad_()


@pytest.mark.parametrize("scores", [[0.2, 0.9, 0.9, 0.0, 0.4, 1.0, 0.3, 0.5, 0.7], [1, 0, 1, 0, 0, 1, 1, 1, 0]])
@pytest.mark.parametrize(("ours", "theirs"), [(cosent, "CoSENTLoss"), (angle, "AnglELoss")])
def test_a_ranking_loss_is_that_of_sentence_transformers(
    ours: object, theirs: str, scores: list[float], vectors: tuple[torch.Tensor, torch.Tensor]
) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    labels = torch.tensor(scores)
    loss = getattr(losses, theirs)(model=None, scale=20.0)
    expected = loss.compute_loss_from_embeddings(list(vectors), labels)
    gradient = torch.autograd.grad(expected, vectors, retain_graph=True)
    found = ours(*vectors, labels, temperature=0.05)  # type: ignore[operator]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(found, vectors), gradient, rtol=1e-4, atol=1e-5)


def test_pairs_of_one_score_have_nothing_to_rank(vectors: tuple[torch.Tensor, torch.Tensor]) -> None:
    loss = cosent(*vectors, torch.ones(9))
    assert float(loss.detach()) == 0.0
    assert not torch.autograd.grad(loss, vectors)[0].any()


def test_supervised_contrastive_is_the_definition(vectors: tuple[torch.Tensor, torch.Tensor]) -> None:
    classes = [0, 1, 0, 2, 2, 0, 1, 3, 2]
    for relevant in (None, [True, False, True, True, False, False, True, True, False]):
        losses = []
        for i in range(9):
            if relevant is not None and not relevant[i]:
                continue
            terms = [math.exp(F.cosine_similarity(vectors[0][i], vectors[1][j], dim=0).item() / 0.1) for j in range(9)]
            positives = [j for j in range(9) if classes[j] == classes[i]]
            losses.append(-sum(math.log(terms[j] / sum(terms)) for j in positives) / len(positives))
        counts = None if relevant is None else torch.tensor(relevant)
        found = supervised_contrastive(*vectors, torch.tensor(classes), 0.1, counts)
        assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_with_a_class_per_row_it_is_info_nce(vectors: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.testing.assert_close(supervised_contrastive(*vectors, torch.arange(9)), info_nce(*vectors))
    nothing = supervised_contrastive(*vectors, torch.arange(9), relevant=torch.zeros(9, dtype=torch.bool))
    assert nothing.item() == 0.0
