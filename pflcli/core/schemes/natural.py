"""Each client is an owner in the data: a writer, a role, a station.

``--clients N`` draws N of the owners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pflcli.core.datasets import Samples
from pflcli.core.errors import UsageError
from pflcli.core.schemes import Indices

TASKS = ("any",)
LEAVES_OUT = True


@dataclass(frozen=True)
class Config:
    """No options."""


def split(samples: Samples, clients: int | None, cfg: Config, rng: np.random.Generator) -> list[Indices]:
    """Return each owner's samples, in the order of their names."""
    if samples.owner is None:
        raise UsageError("this dataset has no natural clients", "--scheme dirichlet --clients 100")
    owners, place, sizes = np.unique(samples.owner, return_inverse=True, return_counts=True)
    if clients is not None and clients > len(owners):
        raise UsageError(f"{clients} clients are more than the {len(owners)} owners", f"--clients {len(owners)}")
    chosen = range(len(owners)) if clients is None else np.sort(rng.permutation(len(owners))[:clients])
    # Sort once for all owners: a search per owner would take owners x samples steps.
    rows = np.split(np.argsort(place, kind="stable"), np.cumsum(sizes)[:-1])
    return [rows[index] for index in chosen]
