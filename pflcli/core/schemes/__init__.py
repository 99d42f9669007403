"""Partition schemes, one file each, and the interface of such a file: ``Scheme``."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pflcli.core import registry
from pflcli.core.datasets import Samples
from pflcli.core.errors import UsageError

registry.search_used_folders("schemes", __path__)

Indices = NDArray[np.int64]


class Scheme(Protocol):
    """Interface of a file in this folder; ``Config`` and ``split`` are required; ``cluster`` needs ``transform``."""

    Config: type[Any]
    """its options: a frozen dataclass with a default for each, and a line of explanation under each"""

    TASKS: tuple[str, ...] = ("classes",)
    """the kinds of tasks whose labels it can divide; ``any`` if it does not read labels"""
    RANDOM: bool = True
    """whether ``split`` draws from ``rng``; otherwise the samples and the options alone decide"""
    LEAVES_OUT: bool = False
    """whether some samples may be given to no client"""

    @abstractmethod
    def split(self, samples: Samples, clients: int | None, cfg: Any, rng: np.random.Generator) -> list[Indices]:
        """Return each client's rows of ``samples``, without duplicates; raises UsageError for impossible options."""

    def cluster(self, clients: int, cfg: Any) -> NDArray[np.int64] | None:
        """Return the cluster of each client (m,) if clusters transform samples, otherwise None."""
        return None

    def transform(
        self, x: NDArray[Any], y: NDArray[np.int64], group: int, classes: int, cfg: Any, rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the samples (n, ...) and labels (n,) of cluster ``group``; ``rng`` is the same for all clusters."""
        return x, y

    def permutes_labels(self, cfg: Any) -> bool:
        """Return whether the same class has different labels in different clusters, so that labels have no names."""
        return False


def load(name: str) -> Scheme:
    """Return the scheme with this name; raises UsageError with the nearest name, InputError for an invalid file."""
    scheme: Scheme = registry.load("schemes", name, Scheme)
    return scheme


def require_clients(scheme: str, clients: int | None, samples: int) -> int:
    """Return the number of clients; raises UsageError if it is missing or there are fewer samples.

    >>> from pflcli.method import require_clients
    >>> require_clients("my-scheme", 3, samples=90)
    3
    """
    if clients is None:
        raise UsageError(f"scheme {scheme} needs a number of clients", "--clients 100")
    if clients > samples:
        raise UsageError(f"{clients} clients are more than the {samples} samples", f"--clients {min(samples, 100)}")
    return clients


def draw_shares(alpha: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return one Dirichlet draw (count,), also if alpha is so extreme that the draw under- or overflows."""
    with np.errstate(all="ignore"):
        drawn: NDArray[np.float64] = rng.dirichlet(np.full(count, min(alpha, 1e12)))
        drawn = drawn / drawn.sum()
    if not np.isfinite(drawn).all():
        # The limit of alpha -> 0: all mass on one client.
        drawn = np.eye(count)[rng.integers(count)]
    return drawn


def redistribute(parts: list[Indices], minimum: int, rng: np.random.Generator) -> list[Indices]:
    """Move samples from the largest clients until all clients have ``minimum``, in at most m steps.

    Raises UsageError if there are not enough samples. Each client below the minimum is filled once, from the client
    that is then the largest, which keeps at least ``minimum``.
    """
    total = sum(map(len, parts))
    if minimum * len(parts) > total:
        raise UsageError(
            f"{len(parts)} clients with at least {minimum} samples need {minimum * len(parts)}, there are {total}",
            f"--min-samples {total // len(parts)}",
        )
    rows: list[list[Any]] = [list(part) for part in parts]
    # A heap with the largest client first, ties by number: searching all clients for each taker would take m^2 steps.
    givers = [(-len(part), client) for client, part in enumerate(rows) if len(part) > minimum]
    heapq.heapify(givers)
    for taker in sorted(range(len(rows)), key=lambda client: len(rows[client])):
        while len(rows[taker]) < minimum:
            giver = givers[0][1]
            spare = min(minimum - len(rows[taker]), len(rows[giver]) - minimum)
            rng.shuffle(rows[giver])
            rows[taker] += rows[giver][:spare]
            rows[giver] = rows[giver][spare:]
            heapq.heapreplace(givers, (-len(rows[giver]), giver))
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in rows]
