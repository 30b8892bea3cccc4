"""The likelihood of vectors under a normalising flow."""

from __future__ import annotations

import math

from torch import Tensor


def bits_per_dimension(z: Tensor, log_det: Tensor) -> Tensor:
    """The mean negative log-likelihood of x, in bits, divided by the width, for a flow x -> z and z ~ N(0, I).

    By the change of variables log p(x) = log N(z; 0, I) + log |det dz/dx|. Vectors are continuous, so the value can be
    below zero.

    Args:
        z: (n, width), the images of the vectors under the flow.
        log_det: (n,), log |det dz/dx| at each of them.

    Returns:
        a scalar.
    """
    width = z.shape[-1]
    log_normal = -0.5 * (z.float().pow(2).sum(-1) + width * math.log(2 * math.pi))  # (n,)
    return -(log_normal + log_det.float()).mean() / (width * math.log(2))
