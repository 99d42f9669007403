"""Tasks, one file each: what models learn to predict. ``Task`` is what such a file must have.

The engine and methods ask the ``task`` of a federation, and assume nothing else about outputs and labels. A file has
its class as ``TASK``, as ``METRICS`` the names of the metrics by which methods are ranked, the first by default, and as
``ENTRIES`` those of them that no other file has. Files import PyTorch only where they need it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import InputError, UnsuitedError, UsageError

if TYPE_CHECKING:
    from torch import Tensor


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

    @classmethod
    def from_word(cls, option: str, unit: str) -> Self:
        """Return the task that ``--task KIND:option --unit unit`` names; raises UsageError for an unknown option."""
        if option:
            raise UsageError(f"--task {cls.kind}:{option} has an option, and {cls.kind} has none", f"--task {cls.kind}")
        return cls(unit=unit)

    @property
    def size(self) -> float:
        """The size of predictions, by which differences that rounding causes are judged."""
        return 1.0

    def fitted(self, y: NDArray[Any]) -> Self:
        """Return the task for the training labels ``y`` (n,) of a federation; by default it does not depend on them."""
        return self

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
