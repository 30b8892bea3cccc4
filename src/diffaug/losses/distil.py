"""Losses that compare a student's vectors with those of its teacher."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean of 1 - cosine over the sentences: two times (n, width) -> a scalar."""
    with torch.autocast(student.device.type, enabled=False):
        return (1 - F.cosine_similarity(student.float(), teacher.float(), dim=-1)).mean()


def squared_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean squared difference of the components: two times (n, width) -> a scalar."""
    with torch.autocast(student.device.type, enabled=False):
        return F.mse_loss(student.float(), teacher.float())


def similarity_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean squared difference of the cosines of all two different sentences; the widths may differ.

    Args:
        student: (n, width of the student)
        teacher: (n, width of the teacher)
    """
    with torch.autocast(student.device.type, enabled=False):
        cosines = [v @ v.T for v in (F.normalize(vectors.float(), dim=-1) for vectors in (student, teacher))]
        different = ~torch.eye(len(student), dtype=torch.bool, device=student.device)
        return F.mse_loss(cosines[0][different], cosines[1][different])
