"""A classifier on the vectors of a model: logistic regression, or the nearest class mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from diffaug.errors import DiffaugError

CLASSIFIER = "classifier.safetensors"
ClassifierKind = Literal["logistic", "prototypes"]
Array = NDArray[np.float32]


class Classifier:
    """Classes of unit vectors: the softmax of ``vectors @ weight.T + bias``.

    Args:
        names: of the classes.
        weight: (classes, width)
        bias: (classes,)
    """

    def __init__(self, names: Sequence[str], weight: Array, bias: Array) -> None:
        self.names = list(names)
        self.weight = weight
        self.bias = bias

    @classmethod
    def fit(
        cls,
        vectors: Array,
        classes: Sequence[str],
        kind: ClassifierKind = "logistic",
        c: float = 16.0,
        weights: NDArray[np.floating] | None = None,
        tolerance: float = 1e-7,
    ) -> Classifier:
        """Learn the classes of some vectors.

        Args:
            vectors: (n, width), of length 1.
            classes: the name of each vector's class.
            kind: `logistic`: multinomial logistic regression with an L2 penalty, as scikit-learn computes it;
                `prototypes`: the class whose mean vector has the highest cosine.
            c: inverse strength of the penalty, per example as in scikit-learn; for prototypes the scale of the cosines.
            weights: (n,), how much each vector counts; None: all the same.
            tolerance: the largest gradient at which the optimiser stops.

        Raises:
            DiffaugError: there is only one class, or the numbers of vectors and classes differ.
        """
        names = sorted(set(classes))
        if len(names) < 2 or len(classes) != len(vectors):
            raise DiffaugError(
                f"{len(vectors):,} sentences with {len(classes):,} labels of {len(names)} class(es) cannot be learned; "
                "at least two classes and a label for each sentence are needed"
            )
        place = {name: i for i, name in enumerate(names)}
        targets = torch.tensor([place[name] for name in classes])
        inputs = torch.from_numpy(vectors).double()
        shares = torch.ones(len(inputs)).double() if weights is None else torch.as_tensor(weights).double()
        if kind == "prototypes":
            one_hot = F.one_hot(targets, len(names)).double()
            means = F.normalize(one_hot.T @ (shares[:, None] * inputs), dim=-1)
            return cls(names, (c * means).float().numpy(), np.zeros(len(names), np.float32))
        weight = torch.zeros(len(names), inputs.shape[1], dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(len(names), dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS(
            [weight, bias],
            max_iter=1000,
            tolerance_grad=tolerance,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )

        def loss() -> torch.Tensor:
            optimiser.zero_grad()
            errors = F.cross_entropy(inputs @ weight.T + bias, targets, reduction="none")
            value = (shares @ errors + weight.pow(2).sum() / (2 * c)) / len(inputs)
            value.backward()
            return value

        optimiser.step(loss)
        return cls(names, weight.detach().float().numpy(), bias.detach().float().numpy())

    def probabilities(self, vectors: Array) -> Array:
        """(n, classes), for vectors of length 1."""
        logits = vectors @ self.weight.T + self.bias
        shares: Array = torch.from_numpy(logits).softmax(-1).numpy()
        return shares

    def save(self, folder: Path) -> None:
        """Write the classifier into the folder of a model."""
        tensors = {"weight": torch.from_numpy(self.weight), "bias": torch.from_numpy(self.bias)}
        try:
            save_file(tensors, folder / CLASSIFIER, {"classes": json.dumps(self.names)})
        except SafetensorError as error:
            raise DiffaugError(f"{folder / CLASSIFIER} cannot be written: {error}") from error

    @classmethod
    def load(cls, folder: Path, width: int) -> Classifier | None:
        """Read the classifier of a model; None if it has none. It may read the first components of vectors only."""
        path = folder / CLASSIFIER
        if not path.is_file():
            return None
        try:
            with safe_open(path, "np") as file:
                names = json.loads((file.metadata() or {})["classes"])
                weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise DiffaugError(f"{path} is damaged ({error}); save the model again") from error
        if weight.ndim != 2 or weight.shape[1] > width or not len(weight) == len(names) == bias.size:
            raise DiffaugError(f"{path} does not fit the model: {weight.shape} weights for {len(names)} classes")
        return cls(names, weight, bias)
