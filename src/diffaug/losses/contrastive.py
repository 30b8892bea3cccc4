"""Contrastive losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug.errors import DiffaugError


def info_nce(anchors: Tensor, positives: Tensor, negatives: Tensor | None = None, temperature: float = 0.05) -> Tensor:
    """InfoNCE with in-batch negatives, as in SimCSE, PromptBERT, DiffCSE and DiffAug.

    Anchor i is to find positive i among all positives and, if there are any, all hard negatives of the batch; one
    direction, and anchors are not compared with anchors.

    Args:
        anchors: (n, width)
        positives: (n, width)
        negatives: (n, width), the hard negative of each anchor; every anchor sees all of them.
        temperature: what the cosines are divided by.

    Returns:
        the mean cross entropy, a scalar.
    """
    candidates = positives if negatives is None else torch.cat([positives, negatives])  # (n or 2n, width)
    targets = torch.arange(len(anchors), device=anchors.device)
    # Cosines in bf16 have steps of 0.004, which a temperature of 0.05 makes steps of 0.08 in the logits.
    with torch.autocast(anchors.device.type, enabled=False):
        cosines = F.normalize(anchors.float(), dim=-1) @ F.normalize(candidates.float(), dim=-1).T
        return F.cross_entropy(cosines / temperature, targets)


def nt_xent(first: Tensor, second: Tensor, negatives: Tensor | None = None, temperature: float = 0.1) -> Tensor:
    """NT-Xent, as in SimCLR and ConSERT: both directions, with negatives from both views.

    Row i of either view is to find row i of the other view among the other view's n rows and the n - 1 other rows of
    its own view.

    Args:
        first: (n, width), one view of each sentence.
        second: (n, width), the other view.
        negatives: not supported; None.
        temperature: what the cosines are divided by.

    Returns:
        the mean cross entropy over all 2n rows, which is the mean of both directions: a scalar.
    """
    if negatives is not None:
        raise DiffaugError(
            "the loss nt_xent has no hard negatives: set stage2.objective to unlabelled or nli_sentences"
        )
    n = len(first)
    targets = torch.arange(2 * n, device=first.device).roll(n)  # n, n + 1, ..., 2n - 1, 0, 1, ..., n - 1
    with torch.autocast(first.device.type, enabled=False):  # see info_nce
        both = F.normalize(torch.cat([first, second]).float(), dim=-1)  # (2n, width)
        cosines = both @ both.T  # (2n, 2n)
        itself = torch.eye(2 * n, dtype=torch.bool, device=first.device)
        return F.cross_entropy((cosines / temperature).masked_fill(itself, -torch.inf), targets)


def supervised_contrastive(
    anchors: Tensor, candidates: Tensor, classes: Tensor, temperature: float = 0.05, relevant: Tensor | None = None
) -> Tensor:
    """InfoNCE with several positives: anchor i is to find all candidates of its class (Khosla et al., 2020).

    The anchors are one view of the sentences and the candidates the other, so that a sentence of another class than all
    the others still has itself as a positive. With a class of its own for each row it is `info_nce`.

    Args:
        anchors: (n, width)
        candidates: (n, width), the other view of the same sentences, or the other sentence of each pair.
        classes: (n,)
        temperature: what the cosines are divided by.
        relevant: (n,), true for the anchors that count; default: all. The others' candidates are negatives only.

    Returns:
        the mean over anchors of the mean over their positives, a scalar; 0 if no anchor counts.
    """
    with torch.autocast(anchors.device.type, enabled=False):  # see info_nce
        cosines = F.normalize(anchors.float(), dim=-1) @ F.normalize(candidates.float(), dim=-1).T
        log_shares = (cosines / temperature).log_softmax(dim=-1)  # (n, n)
        positive = (classes.unsqueeze(1) == classes.unsqueeze(0)).float()
        per_anchor = -(log_shares * positive).sum(-1) / positive.sum(-1)
        weights = torch.ones_like(per_anchor) if relevant is None else relevant.float()
        return (per_anchor * weights).sum() / weights.sum().clamp(min=1)
