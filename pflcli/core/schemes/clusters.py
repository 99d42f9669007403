"""Clusters of clients see the same task differently: images are rotated, labels permuted, or both.

The clustered settings of IFCA (Ghosh et al., 2020), https://arxiv.org/abs/2006.04088, section 6, which rotates images,
and of PANM (Li and Wu, 2022), which also swaps labels. The partition records the true clusters, so that clustering
methods can be evaluated; with ``rotation`` the clusters cannot be found from label distributions. In IFCA each rotation
has all images; here each image belongs to one client, so that splits are disjoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt
from numpy.typing import NDArray

from pflcli.core.datasets import Samples
from pflcli.core.errors import UsageError
from pflcli.core.schemes import Indices, dirichlet, require_clients

QUARTER_TURNS = 4


@dataclass(frozen=True)
class Config:
    """Options of the scheme."""

    groups: Annotated[int, Ge(1)] = 4
    """form this many clusters of clients; cluster 0 sees the samples as they are"""
    kind: Literal["rotation", "labels", "both"] = "rotation"
    """distinguish clusters by images turned by 0, 90, 180 and 270 degrees (rotation; 0 and 180 for 2 clusters),
    by permuted labels, or by both"""
    alpha: Annotated[float, Gt(0)] | None = None
    """deal each cluster's samples to its clients label by label, by a Dirichlet draw of this concentration; none
    deals them iid"""


def split(samples: Samples, clients: int | None, cfg: Config, rng: np.random.Generator) -> list[Indices]:
    """Return ``clients`` parts: dealt iid to all, or within each cluster by Dirichlet(alpha) if that is set."""
    count = require_clients("clusters", clients, len(samples.y))
    _check(samples, count, cfg)
    parts: list[Indices] = [np.sort(part) for part in np.array_split(rng.permutation(len(samples.y)), count)]
    if cfg.alpha is None:
        return parts
    groups = cluster(count, cfg)
    for group in range(cfg.groups):
        members = np.flatnonzero(groups == group)
        pool = np.concatenate([parts[member] for member in members])
        dealt = dirichlet.deal(samples.y[pool], len(members), cfg.alpha, rng)
        for member, part in zip(members, dealt, strict=True):
            parts[member] = np.sort(pool[part])
    return parts


def cluster(clients: int, cfg: Config) -> NDArray[np.int64]:
    """Return the cluster of each client (m,): that of client c is c modulo ``groups``."""
    return np.arange(clients, dtype=np.int64) % cfg.groups


def transform(
    x: NDArray[Any], y: NDArray[np.int64], group: int, classes: int, cfg: Config, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the samples of cluster ``group``; ``rng`` is the same for all clusters and permutes their labels."""
    if cfg.kind != "labels":
        x = np.rot90(x, _count_quarter_turns(group, cfg.groups), axes=(1, 2))
    if permutes_labels(cfg):
        y = draw_permutations(group + 1, classes, rng)[group][y]
    return x, y


def permutes_labels(cfg: Config) -> bool:
    """Return whether the same class has different labels in different clusters, so that labels have no names."""
    return cfg.kind != "rotation"


def draw_permutations(groups: int, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a permutation of the labels for each cluster, (groups, classes): the identity first, all different.

    A cluster's permutation does not depend on how many clusters follow it.
    """
    chosen = [tuple(range(classes))]
    while len(chosen) < groups:
        drawn = tuple(rng.permutation(classes).tolist())
        if drawn not in chosen:
            chosen.append(drawn)
    return np.asarray(chosen, dtype=np.int64)


def _count_quarter_turns(group: int, groups: int) -> int:
    """Return the quarter turns of a cluster: as far apart as the number of clusters allows."""
    return group * max(QUARTER_TURNS // groups, 1) % QUARTER_TURNS


def _check(samples: Samples, clients: int, cfg: Config) -> None:
    """Raise UsageError if there are too many clusters or the samples cannot be turned."""
    if cfg.groups > clients:
        raise UsageError(f"groups={cfg.groups} are more than the {clients} clients", f"--clients {cfg.groups}")
    if cfg.kind == "rotation" and cfg.groups > QUARTER_TURNS:
        raise UsageError(
            f"groups={cfg.groups} are more than the {QUARTER_TURNS} rotations there are",
            "--set groups=4",
            "--set kind=both",
        )
    orders = math.factorial(samples.classes)
    if cfg.kind != "rotation" and cfg.groups > orders:
        raise UsageError(
            f"groups={cfg.groups} are more than the {orders} permutations of {samples.classes} labels",
            f"--set groups={orders}",
        )
    turned = {_count_quarter_turns(group, cfg.groups) for group in range(cfg.groups)} if cfg.kind != "labels" else {0}
    shape = "x".join(map(str, samples.x.shape[1:]))
    if turned != {0} and not (samples.x.dtype == np.uint8 and samples.x.ndim in (3, 4)):
        raise UsageError(
            f"kind={cfg.kind} turns images; these samples are {samples.x.dtype} {shape}", "--set kind=labels"
        )
    if turned & {1, 3} and samples.x.shape[1] != samples.x.shape[2]:
        raise UsageError(f"images of {shape} are not square, so no quarter turn fits", "--set groups=2")
