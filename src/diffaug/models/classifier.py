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
from torch import Tensor

from diffaug.errors import DiffaugError

CLASSIFIER = "classifier.safetensors"
ClassifierKind = Literal["logistic", "prototypes"]
Array = NDArray[np.float32]

# What cross-validation chooses from: the scale of the class means and the inverse strength of the penalty.
_PENALTIES = ((30.0, 0.1), (30.0, 1.0), (30.0, 10.0), (0.0, 4.0), (0.0, 16.0), (0.0, 64.0))
_FOLDS, _FOLD_STEPS = 3, 50
_PROTOTYPE_SCALE = 16.0  # of the cosines, before the softmax


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
        c: float | None = None,
        mean_scale: float = 0.0,
        weights: NDArray[np.floating] | None = None,
        tolerance: float = 1e-3,
    ) -> Classifier:
        """Learn the classes of some vectors.

        Args:
            vectors: (n, width), of length 1.
            classes: the name of each vector's class.
            kind: `logistic`: multinomial logistic regression with an L2 penalty; `prototypes`: the class whose mean
                vector has the highest cosine.
            c: inverse strength of the penalty, per example as in scikit-learn; None: it and ``mean_scale`` are chosen
                by cross-validation.
            mean_scale: 0: the weights are pulled to zero and the bias is free, as in scikit-learn; otherwise the
                weights are pulled to this multiple of the class means and the bias to zero, for few labels.
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
            weight, bias = _means(inputs, targets, shares, len(names)) * _PROTOTYPE_SCALE, torch.zeros(len(names))
        else:
            if c is None:
                mean_scale, c = _choose_penalty(inputs, targets, shares, len(names), tolerance)
            weight, bias = _regress(inputs, targets, shares, len(names), mean_scale, c, tolerance)
        return cls(names, weight.float().numpy(), bias.float().numpy())

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


def _means(inputs: Tensor, targets: Tensor, shares: Tensor, classes: int) -> Tensor:
    """The mean vector of each class, of length 1; zero for a class without examples."""
    return F.normalize(F.one_hot(targets, classes).double().T @ (shares[:, None] * inputs), dim=-1)


def _regress(
    inputs: Tensor,
    targets: Tensor,
    shares: Tensor,
    classes: int,
    mean_scale: float,
    c: float,
    tolerance: float,
    steps: int = 1000,
) -> tuple[Tensor, Tensor]:
    """The weights and the bias of logistic regression."""
    means = mean_scale * _means(inputs, targets, shares, classes)
    change = torch.zeros_like(means, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [change, bias],
        max_iter=steps,
        history_size=10,
        tolerance_grad=tolerance,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        errors = F.cross_entropy(inputs @ (means + change).T + bias, targets, reduction="none")
        penalty = change.pow(2).sum() + (bias.pow(2).sum() if mean_scale else 0)
        value = (shares @ errors + penalty / (2 * c)) / len(inputs)
        value.backward()
        return value

    optimiser.step(loss)
    return (means + change).detach(), bias.detach()


def _choose_penalty(
    inputs: Tensor, targets: Tensor, shares: Tensor, classes: int, tolerance: float
) -> tuple[float, float]:
    """The penalty with the highest accuracy on held-out folds, among equals that with the smallest log loss."""
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    fold = torch.empty(len(inputs), dtype=torch.long)
    # Neighbours in the order of classes are in different folds, so every fold has about the same share of each class.
    fold[order[targets[order].argsort(stable=True)]] = torch.arange(len(inputs)) % _FOLDS
    found = {}
    for penalty in _PENALTIES:
        right, loss = 0, 0.0
        for number in range(min(_FOLDS, len(inputs))):
            held = fold == number
            rest = inputs[~held], targets[~held], shares[~held]
            weight, bias = _regress(*rest, classes, *penalty, tolerance, _FOLD_STEPS)
            logits = inputs[held] @ weight.T + bias
            right += int((logits.argmax(1) == targets[held]).sum())
            loss += float(F.cross_entropy(logits, targets[held], reduction="sum"))
        found[penalty] = right, -loss
    return max(found, key=lambda penalty: found[penalty])
