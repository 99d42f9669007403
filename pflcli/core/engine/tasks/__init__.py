"""Tasks, one file each: what models learn to predict. ``Task`` is what such a file must have.

The engine and methods ask the ``task`` of a federation, and assume nothing else about outputs and labels. A file has
its class as ``TASK``, as ``METRICS`` the names of the metrics by which methods are ranked, the first by default, and as
``ENTRIES`` those of them that no other file has. Files import PyTorch only where they need it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from pflcli.core import registry
from pflcli.core.errors import InputError, UnsuitedError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

registry.search_used_folders("tasks", __path__)

T = TypeVar("T")


@dataclass(frozen=True)
class Task(ABC):
    """What a federation's models learn to predict of a sample.

    A task is sent to workers with batches, so it must be picklable, and artifacts have its fields as JSON.
    """

    kind: ClassVar[str]
    """the name of its file; metrics are defined for one task, and methods say which they learn"""
    score: ClassVar[str]
    """what messages call the mean of ``scores``"""
    formula: ClassVar[str] = "the prediction by the outputs"
    """how ``activate`` predicts, in words"""
    has_intervals: ClassVar[bool] = False
    """whether ``bounds`` gives intervals, which ``--coverage`` calibrates"""
    FITTED: ClassVar[tuple[str, ...]] = ()
    """the fields that ``fitted`` changes"""
    least: ClassVar[float] = -np.inf
    """the smallest label that can be, at which intervals begin at the earliest"""

    outputs: int = 1
    """the size of a model's output"""
    names: tuple[str, ...] = ()
    """the names of the outputs, if they are known"""
    unit: str = ""
    """the unit of labels; empty if they have none"""
    past: tuple[float, ...] = ()
    """where samples of a series have the past of their labels: the channel, a shift and a scale; else empty. The label
    at step t was ``shift + scale * x[t, channel]``"""
    by_client = False
    """whether models learn labels that are standardized by each client's training labels, see ``ClientScales``; a field
    of tasks that can be ``scaled_by_client``"""

    @classmethod
    def from_word(cls, option: str, unit: str) -> Self:
        """Return the task that ``--task KIND:option --unit unit`` names; raises UsageError for an unknown option."""
        if option:
            raise UsageError(f"--task {cls.kind}:{option} has an option, and {cls.kind} has none", f"--task {cls.kind}")
        return cls(unit=unit)

    @property
    def word(self) -> str:
        """The word by which ``--task`` names it."""
        return self.kind

    @property
    def is_fitted(self) -> bool:
        """Whether it has the scale of labels that were there before."""
        return any(getattr(self, each.name) != each.default for each in fields(self) if each.name in self.FITTED)

    @property
    def size(self) -> float:
        """The size of predictions, by which differences that rounding causes are judged."""
        return 1.0

    def fitted(self, y: NDArray[Any]) -> Self:
        """Return the task for the training labels ``y`` (n,) of a federation; by default it does not depend on them."""
        return self

    def fitted_to_moments(self, mean: float, deviation: float) -> Self:
        """Return the task for training labels with this mean and deviation, which sites can tell without their labels.

        Raises UnsuitedError if more than that must be known.
        """
        raise UnsuitedError(
            f"sites cannot agree on labels of the task {self.kind} by their mean and deviation", "--task quantity"
        )

    def scaled_by_client(self) -> Self:
        """Return the task whose labels are standardized by client; raises UsageError if this has no meaning for it."""
        raise UsageError(
            f"--standardize-target client is for quantities, and the task is {self.kind}", "leave out the option"
        )

    def moved(self, shift: float, scale: float) -> Self:
        """Return the task of the labels ``shift + scale * y``, for tasks that can be ``scaled_by_client``."""
        raise NotImplementedError

    def fitted_by_client(self, labels: Sequence[NDArray[Any]]) -> Self:
        """Return the task for the training labels (n,) of each client that trains a global model; see ``fitted``."""
        return self.fitted(np.concatenate([np.zeros(0), *labels]))

    def find_invalid(self, y: NDArray[np.float64]) -> tuple[int, str] | None:
        """Return the row of the first of the labels (n,) that is none, and what is wrong with it."""
        bad = np.flatnonzero(~np.isfinite(y))
        return (int(bad[0]), "is not a finite number") if len(bad) else None

    def check(self, where: str, y: NDArray[Any]) -> NDArray[Any]:
        """Return labels (n,) in the type that losses take; raises InputError for a label that is none."""
        try:
            numbers: NDArray[np.float64] = np.asarray(y, np.float64)
        except ValueError as error:
            raise InputError(f"{where}: labels of the task {self.kind} are numbers: {error}") from None
        found = self.find_invalid(numbers)
        if found is not None:
            raise InputError(f"{where}: the label {numbers[found[0]]:g} of row {found[0]} {found[1]}")
        return numbers

    @abstractmethod
    def describe(self, y: NDArray[Any]) -> dict[str, float]:
        """Return facts about labels (n,), by the headings under which tables show them."""

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the losses (n,) of outputs (n, C), differentiable."""

    def mean_losses(
        self, outputs: Tensor, y: Tensor, weight: Tensor, scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (a,) of outputs (a, n, C) with sample weights ``weight`` (a, n), and their gradients.

        The gradients are multiplied by ``scale``, a number or (a,). By default PyTorch differentiates ``losses``.
        """
        import torch

        with torch.enable_grad():
            given = outputs.detach().requires_grad_()
            each = self.losses(given.flatten(0, 1), y.flatten()).view(weight.shape)
            losses = (each * weight).sum(dim=1)
            (grad,) = torch.autograd.grad(losses.sum(), given)
        return losses.detach(), grad * (scale[:, None, None] if isinstance(scale, torch.Tensor) else scale)

    @abstractmethod
    def activate(self, outputs: Tensor) -> Tensor:
        """Return the predictions (n, C) of outputs (n, C); exported networks end with it."""

    def predict(self, outputs: Tensor) -> NDArray[np.float32]:
        """Return the predictions (n, C) of outputs (n, C), computed in float64."""
        p: NDArray[np.float32] = self.activate(outputs.double()).float().cpu().numpy()
        return p

    def tabulate(self, p: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return the columns (n,) of a table of predictions (n, C), by heading; none of classes, which have names."""
        names = [*self.names, *map(str, range(len(self.names), self.outputs))]
        return {"prediction" if p.shape[1] == 1 else f"prediction({name})": p[:, at] for at, name in enumerate(names)}

    def score_at(self, target: float) -> float:
        """Return the mean score of samples over which the first metric of the task has the value ``target``."""
        return target

    def link(self, p: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return the outputs (n,) of predictions (n, 1), by which ``pfl stack`` pools several; see ``curve``."""
        raise UnsuitedError(f"pfl stack has no rule that pools predictions of the task {self.kind}")

    def curve(
        self, outputs: NDArray[np.float64], y: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return 1 minus the scores (n,) of outputs (n,), and the first and second derivatives by the outputs."""
        raise NotImplementedError

    def point(self, p: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the number (n,) by which predictions (n, C) are compared with labels, by default the first.

        Raises UsageError if there is none.
        """
        return p[:, 0].astype(np.float64)

    def bounds(self, p: NDArray[np.float32], level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the ends (n,) of intervals around predictions (n, C), before calibration for the coverage ``level``.

        By default both are the predictions themselves.
        """
        return self.point(p), self.point(p)

    @abstractmethod
    def default(self) -> NDArray[np.float32]:
        """Return the prediction (C,) of a client whose model failed."""

    @abstractmethod
    def bounded_losses(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the losses (n,) of predictions (n, C), each with an upper bound, which limits outliers."""

    @abstractmethod
    def scores(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[Any]:
        """Return the scores (n,) of predictions (n, C), by whose mean on validation samples rounds are chosen.

        It is what ``rounds.csv`` has as accuracy, and at most 1.
        """


def has_scale(labels: NDArray[np.float64]) -> bool:
    """Return whether a client's training labels (n,) have a mean and a deviation: two of them or more that differ."""
    return len(labels) > 1 and bool(labels.min() < labels.max())


@dataclass(frozen=True)
class ClientScales:
    """The ``mean`` and ``deviation`` (m,) of each client's training labels, by which its labels are standardized.

    ``task`` is that of labels in their own unit. Models learn the standardized labels, and no method knows of it.
    """

    task: Task
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def fit(cls, task: Any, labels: Sequence[NDArray[np.float64]]) -> Self:
        """Return the scales for the training labels (n,) of each client.

        A client that has none of its own, see ``has_scale``, gets the mean and the deviation of ``task``.
        """
        own = [(y.mean(), y.std()) if has_scale(y) else (task.mean, task.deviation) for y in labels]
        mean, deviation = np.asarray(own, np.float64).reshape(-1, 2).T
        return cls(task, mean, deviation)

    @property
    def standardized_task(self) -> Task:
        """The task of standardized labels, which have the mean 0 and the deviation 1."""
        task: Any = self.task
        standardized: Task = task.moved(-task.mean / task.deviation, 1 / task.deviation)
        return standardized

    def client_task(self, client: int) -> Task:
        """Return the task by which the outputs of a client's models become predictions in the unit of labels."""
        return self.standardized_task.moved(float(self.mean[client]), float(self.deviation[client]))

    def standardize(self, values: NDArray[Any], owner: NDArray[np.int64]) -> NDArray[Any]:
        """Return the standardized labels or predictions (n, ...) of samples of the clients ``owner`` (n,)."""
        mean, deviation = self._spread(values, owner)
        return np.asarray((values - mean) / deviation, values.dtype)

    def standardize_labels(self, samples: T) -> T:
        """Return embeddings or stores with standardized ``y`` (n,), which are sorted by client, as ``offsets`` say."""
        known: Any = samples
        owner = np.repeat(np.arange(len(known.offsets) - 1), np.diff(known.offsets))
        standardized: T = replace(known, y=self.standardize(known.y, owner))
        return standardized

    def restore(self, values: NDArray[Any], owner: NDArray[np.int64]) -> NDArray[Any]:
        """Return standardized labels or predictions (n, ...) in the unit of labels."""
        mean, deviation = self._spread(values, owner)
        return np.asarray(mean + deviation * values, values.dtype)

    def _spread(self, values: NDArray[Any], owner: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        """Return the mean and the deviation of each sample's client, (n, 1) for predictions (n, C)."""
        return [each[owner].reshape(-1, *[1] * (values.ndim - 1)) for each in (self.mean, self.deviation)]
