"""Each client has samples of n classes, as in pFedGP's split (Achituve et al., 2021), https://arxiv.org/abs/2106.15482.

Classes are dealt from shuffled decks, so that all have about the same number of clients. A class's samples are divided
among its clients in proportions drawn uniformly from [0.4, 0.6] and normalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.core.datasets import Samples
from pflcli.core.errors import UsageError
from pflcli.core.schemes import Indices, require_clients

LEAVES_OUT = True


@dataclass(frozen=True)
class Config:
    """Options of the scheme."""

    n: Annotated[int, Ge(1)] = 2
    """give each client this many classes"""


def split(samples: Samples, clients: int | None, cfg: Config, rng: np.random.Generator) -> list[Indices]:
    """Return ``clients`` parts; classes without a client are left out."""
    y = samples.y
    count = require_clients("classes", clients, len(y))
    labels = np.unique(y)
    if cfg.n > len(labels):
        raise UsageError(f"n={cfg.n} classes per client are more than the {len(labels)} there are", f"n={len(labels)}")
    hands = _deal(labels, count, cfg.n, rng)
    dealt: list[list[Indices]] = [[] for _ in range(count)]
    for label in labels:
        holders = [client for client, hand in enumerate(hands) if label in hand]
        if not holders:
            continue
        shares = rng.uniform(0.4, 0.6, len(holders))
        rows = rng.permutation(np.flatnonzero(y == label))
        cuts = np.floor(np.cumsum(shares / shares.sum())[:-1] * len(rows)).astype(int)
        for client, part in zip(holders, np.split(rows, cuts), strict=True):
            dealt[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in dealt]


def _deal(labels: NDArray[np.int64], count: int, n: int, rng: np.random.Generator) -> list[set[int]]:
    """Deal n different labels to each client; add a new shuffled deck when the old one has no new label."""
    deck: list[int] = []
    hands: list[set[int]] = []
    for _ in range(count):
        hand: set[int] = set()
        while len(hand) < n:
            card = next((card for card in deck if card not in hand), None)
            if card is None:
                deck += rng.permutation(labels).tolist()
                continue
            deck.remove(card)
            hand.add(card)
        hands.append(hand)
    return hands
