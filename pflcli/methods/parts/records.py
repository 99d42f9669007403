"""What a method's state records of each round for charts and tables: see ``Method.RECORDS``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.method import Params, Run, Stacked, TrainedClients

MAX_CLIENTS_WITH_ATTENTION = 1000
"""Largest number of clients whose attention is stored: a round takes four bytes per pair."""


def extend_history(history: Mapping[str, Tensor], values: Mapping[str, float]) -> Params:
    """Return the history (r,) of each name with the value of one more round."""
    return {name: torch.cat([past, torch.tensor([values[name]])]) for name, past in history.items()}


CORRECT: Params = {"correct": torch.zeros(2, dtype=torch.float64)}
"""What a client reports of a model: its validation samples that are predicted correctly, and all of them."""


def count_correct(run: Run, clients: NDArray[np.int64], models: Stacked) -> Stacked:
    """Return ``CORRECT`` of clients (n,) with these models (n, ...), a row for each."""
    sizes = run.federation.sizes("validation")[clients]
    owner, scores = np.repeat(np.arange(len(clients)), sizes), run.is_correct(clients, models, "validation")
    sums = np.bincount(owner, weights=scores, minlength=len(clients))
    return {"correct": torch.from_numpy(np.stack([sums, sizes], axis=1)).double()}


def share_of_correct(parts: Iterable[TrainedClients]) -> float:
    """Return the accuracy for a history, given what clients report (``CORRECT``); -1 without samples."""
    correct, samples = sum((part.params["correct"].sum(dim=0) for part in parts), CORRECT["correct"]).tolist()
    return float(correct / samples) if samples else -1.0


@dataclass
class AttentionRecord:
    """Records the attention of one round: ``first`` (m, m) and ``second`` (m, 3), 0 for clients that took no part.

    With up to ``remember`` clients the state keeps the attention of every round, with up to
    ``MAX_CLIENTS_WITH_ATTENTION`` that of the last round, and with more none.
    """

    clients: int
    remember: int

    def __post_init__(self) -> None:
        self._rounds = int(self.clients <= max(MAX_CLIENTS_WITH_ATTENTION, self.remember))
        self._first = torch.zeros(self._rounds, self.clients, self.clients)
        self._second = torch.zeros(self._rounds, self.clients, 3)

    @staticmethod
    def like(clients: int) -> Params:
        """Return tensors like what each of so many clients reports: ``first``, and ``second`` (3,)."""
        return {"first": torch.zeros(clients), "second": torch.zeros(3)}

    @staticmethod
    def report(clients: int, first: Tensor, second: Tensor) -> Stacked:
        """Return what clients report: their attention to n models (q, n) and that of the second layer (q, 3)."""
        return {"first": functional.pad(first.cpu(), (0, clients - first.shape[1])), "second": second.cpu()}

    def add(self, part: TrainedClients, peers: NDArray[np.int64]) -> None:
        """Record what clients report that received the models of ``peers`` (n,)."""
        if self._rounds:
            ids = torch.from_numpy(part.clients)
            self._first[0, ids[:, None], torch.from_numpy(peers)] = part.params["first"][:, : len(peers)]
            self._second[0, ids] = part.params["second"]

    def extend(self, attention: Mapping[str, Tensor]) -> Params:
        """Return the recorded ``attention`` of earlier rounds with this round."""
        first, second = attention["first"], attention["second"]
        if self.clients > self.remember:
            first, second = first[:0], second[:0]
        return {"first": torch.cat([first, self._first]), "second": torch.cat([second, self._second])}
