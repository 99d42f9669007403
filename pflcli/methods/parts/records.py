"""What a method's state records of each round for charts and tables: see ``Method.RECORDS``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Params

MAX_CLIENTS_WITH_ATTENTION = 1000
"""Largest number of clients whose attention is stored: a round takes four bytes per pair."""


def extend_history(history: Mapping[str, Tensor], values: Mapping[str, float]) -> Params:
    """Return the history (r,) of each name with the value of one more round."""
    return {name: torch.cat([past, torch.tensor([values[name]])]) for name, past in history.items()}


def share_of_correct(is_correct: NDArray[np.bool_]) -> float:
    """Return the accuracy for a history, given which samples (n,) are predicted correctly; -1 without samples."""
    return float(is_correct.mean()) if len(is_correct) else -1.0


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

    def add(self, members: NDArray[np.int64], peers: NDArray[np.int64], first: Tensor, second: Tensor) -> None:
        """Record the attention of ``members`` (q,) to ``peers`` (n,), (q, n), and that of the second layer (q, 3)."""
        if self._rounds:
            ids = torch.from_numpy(members)
            self._first[0, ids[:, None], torch.from_numpy(peers)] = first.cpu()
            self._second[0, ids] = second.cpu()

    def extend(self, attention: Mapping[str, Tensor]) -> Params:
        """Return the recorded ``attention`` of earlier rounds with this round."""
        first, second = attention["first"], attention["second"]
        if self.clients > self.remember:
            first, second = first[:0], second[:0]
        return {"first": torch.cat([first, self._first]), "second": torch.cat([second, self._second])}
