"""Local training of clients: yields their models or, if only the mean is needed, returns their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pflcli import parameters
from pflcli.engine.engine import Engine
from pflcli.engine.local_sgd import LocalSGD
from pflcli.federation.attendance import Attendance, Diverged, Unanswered
from pflcli.federation.private_mean import PrivateMean
from pflcli.parameters import Params, Stacked, TrainedClients, WeightedSum
from pflcli.parameters.model_table import ModelTable

Encode = Callable[[Stacked], Stacked]
"""Turns trained models (m, ...) into what the server receives."""


class Trains(Protocol):
    """The fields of a run that training uses, see ``federation.run.Run``."""

    engine: Engine
    attendance: Attendance
    sealed: bool
    privacy: PrivateMean | None
    losses: list[tuple[float, float]]
    trained: set[int]
    unfit: set[int]


@dataclass
class LocalTraining(Iterable[TrainedClients]):
    """Trains clients (n,) when it is iterated, once, and yields their models in parts; or trains them for ``total``."""

    run: Trains
    clients: NDArray[np.int64]
    start: Params | Stacked | ModelTable
    plan: LocalSGD
    key: tuple[Any, ...]
    also_upload: Callable[[TrainedClients], Stacked] | None = None
    """computes further tensors (m, ...) that each client uploads with its model, such as a mean representation"""

    def total(self, encode: Encode) -> WeightedSum | None:
        """Train the clients and return the sum of their uploads; None if the executor returns only models.

        Raises Diverged with all clients whose parameters became non-finite, Unanswered if no client completes a round.
        """
        self._require_answers()
        if self.run.sealed or self.plan.may_diverge or self.also_upload is not None:
            return None
        engine = self.run.engine
        summed = engine.summed(self.clients, self.start, self.plan, self.key, encode)
        if summed is None:
            return None
        if not summed.finite.all():
            raise Diverged(self.clients[~summed.finite].tolist(), self.key)
        sizes = engine.federation.sizes(*self.plan.splits)[self.clients].astype(np.float64)
        self.run.trained.update(self.clients.tolist())
        self.run.losses += zip(summed.loss.tolist(), sizes.tolist(), strict=True)
        return summed.total

    def __iter__(self) -> Iterator[TrainedClients]:
        """Train the clients, and yield their models in parts, with the tensors of ``also_upload``.

        Raises Diverged at the end with all clients whose uploads became non-finite, Unanswered if nobody answers.
        """
        if self.run.privacy is not None and not len(self.clients):
            return  # the round releases only noise
        self._require_answers()
        run, diverged, first = self.run, list[int](), 0
        for trained in run.engine.local_sgd(self.clients, self.start, self.plan, self.key, restore=run.sealed):
            part = trained if self.also_upload is None else self._extend(trained, self.also_upload(trained))
            if run.sealed:
                run.unfit.update(part.clients[~part.finite].tolist())
            elif not self.plan.may_diverge:
                diverged += part.clients[~part.finite].tolist()
            run.trained.update(part.clients.tolist())
            run.losses += self.plan.losses(part, first)
            first += len(part.clients)
            if not diverged:  # otherwise continue only to find all clients that the next attempt must leave out
                yield part
        if diverged:
            raise Diverged(diverged, self.key)

    @staticmethod
    def _extend(part: TrainedClients, more: Stacked) -> TrainedClients:
        return replace(part, params={**part.params, **more}, finite=part.finite & parameters.finite(more))

    def _require_answers(self) -> None:
        if self.run.attendance.unanswered and not self.run.sealed:
            raise Unanswered
