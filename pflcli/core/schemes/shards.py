"""Samples are sorted by label and cut into equal shards; each client is dealt n of them.

The pathological non-iid split of FedAvg (McMahan et al., 2017), section 3, https://arxiv.org/abs/1602.05629, where 100
clients have 2 shards of 300 MNIST digits each, and therefore at most two digits. If a shard spans two labels, a client
may have more labels than shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from pflcli.core.datasets import Samples
from pflcli.core.errors import UsageError
from pflcli.core.schemes import Indices, require_clients


@dataclass(frozen=True)
class Config:
    """Options of the scheme."""

    n: Annotated[int, Ge(1)] = 2
    """give each client this many shards"""


def split(samples: Samples, clients: int | None, cfg: Config, rng: np.random.Generator) -> list[Indices]:
    """Return ``clients`` parts of n shards each; shards differ in size by one sample at most."""
    total = len(samples.y)
    count = require_clients("shards", clients, total)
    if cfg.n * count > total:
        raise UsageError(
            f"{count} clients with n={cfg.n} shards each need {cfg.n * count} samples, there are {total}",
            f"--set n={total // count}",
        )
    mixed = rng.permutation(total)
    ordered = mixed[np.argsort(samples.y[mixed], kind="stable")]
    shards = np.array_split(ordered, cfg.n * count)
    hands = rng.permutation(len(shards)).reshape(count, cfg.n)
    return [np.sort(np.concatenate([shards[shard] for shard in hand])) for hand in hands]
