"""Records what happens in a round: which selected clients complete it, which train, and with which losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import ComputationError

_MAX_LISTED = 10
"""Maximum number of clients that a message lists."""


class Diverged(ComputationError):
    """The training of ``clients`` ended with parameters that are not finite."""

    def __init__(self, clients: Iterable[int], key: tuple[Any, ...]) -> None:
        self.clients = sorted(int(client) for client in clients)
        super().__init__(
            f"the parameters of {client_list(self.clients)} became non-finite ({' '.join(map(str, key))})",
            "a smaller --lr may help",
        )


class AllAbsent(Exception):
    """Raised when no selected client completes the round."""


def client_list(clients: Iterable[object]) -> str:
    """Return the numbers or names of clients for a message: ``client 3``, or ``clients 3, 5``, at most ten of them."""
    names = [str(client) for client in clients]
    listed = ", ".join(names[:_MAX_LISTED]) + (
        f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    )
    return f"client{'s' * (len(names) != 1)} {listed}"


@dataclass
class Attendance:
    """The clients ``selected`` (n,) for a round, and those of them that do not complete it.

    ``dropped`` (d,) clients do not train. Clients that ``diverged`` in one attempt at the round are left out of the
    next attempt. Clients that the method ``rejected`` are left out within the round.
    """

    selected: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    dropped: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    diverged: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    t: int = -1
    """the round, from 0; -1 before the first"""
    uploads: Counter[int] = field(default_factory=Counter)
    """the number of each client's uploads that upload steps have changed"""

    @property
    def present(self) -> NDArray[np.int64]:
        """Return the selected clients (n,) that complete the round."""
        return np.setdiff1d(self.selected, [*self.dropped.tolist(), *self.diverged])

    @property
    def all_absent(self) -> bool:
        """Whether clients were selected but none completes the round."""
        return len(self.selected) > 0 and not len(self.present)

    def bytes_to_selected(self, amount: int) -> int:
        """Return the bytes sent to all selected clients, given the ``amount`` sent to those that complete the round.

        The other clients receive the average number of bytes. Outside of rounds this is ``amount``.
        """
        present = len(self.present)
        return amount * len(self.selected) // present if present else amount


@dataclass
class RoundNotes:
    """What is noted in one attempt at a round, or while clients personalize; each begins with new notes.

    ``attendance`` is that of the round, which all its attempts share.
    """

    attendance: Attendance = field(default_factory=Attendance)
    trained: set[int] = field(default_factory=set)
    """clients that trained"""
    losses: list[tuple[float, float]] = field(default_factory=list)
    """training losses, each with its weight"""
    left_out: dict[int, list[float]] = field(default_factory=dict)
    """by client, the share of each of its uploads that the aggregator left out"""
    unfit: set[int] = field(default_factory=set)
    """clients whose training diverged during personalization"""
    reads_rounds: bool = False
    """whether the method read the number of rounds"""
