"""Draws poisoned clients, with which the robustness of the server's aggregation is tested."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pflcli.artifacts.kinds.partition import Partition
from pflcli.core import rng
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import UsageError
from pflcli.core.tasks import CLASSES
from pflcli.data.preparation.client_splits import select_rows

STRENGTHS = {"none": None, "flip": None, "scale": -10.0, "random": 10.0}
"""The attacks, with the default strength of those that have one."""


@dataclass(frozen=True)
class Poison:
    """The ``share`` of participating clients that are poisoned, and the ``kind`` and ``strength`` of their attack.

    ``flip``: training labels y become C - 1 - y, of C classes (Fang et al., 2020, https://arxiv.org/abs/1911.11815).
    ``scale``: the update is multiplied by the strength. ``random``: the update is replaced by Gaussian noise whose
    norm is that of the update times the strength. ``none``: the clients are honest, for comparison.
    """

    share: float
    kind: str
    strength: float

    @classmethod
    def parse(cls, text: str) -> Poison | None:
        """Parse a ``text`` such as ``0.2:scale:-10``; None if it is empty. Raises UsageError if it is not valid."""
        if not text:
            return None
        share, _, attack = text.partition(":")
        kind, colon, strength = attack.partition(":")
        example = "--poison 0.2:flip, 0.2:scale:-10, 0.2:random:10 or 0.2:none"
        if kind not in STRENGTHS or (colon and STRENGTHS[kind] is None):
            raise UsageError(
                f"--poison {text} is not of the form SHARE:flip, scale, random or none[:STRENGTH]", example
            )
        try:
            fraction, factor = float(share), float(strength) if colon else STRENGTHS[kind] or 0.0
        except ValueError:
            raise UsageError(f"--poison {text}: share and strength must be numbers", example) from None
        if not 0 < fraction < 1:
            raise UsageError(f"--poison {text}: the share of clients must be above 0 and below 1", example)
        if not abs(factor) <= 1e6:
            raise UsageError(f"--poison {text}: the strength must be at most a million", example)
        return cls(fraction, kind, factor)

    def __str__(self) -> str:
        """Return the value of ``--poison``, with the strength."""
        return ":".join(
            [f"{self.share:g}", self.kind, *([] if STRENGTHS[self.kind] is None else [f"{self.strength:g}"])]
        )

    def apply(self, partition: Partition, seed: int) -> Partition:
        """Return the partition with poisoned clients, which have no validation and test samples.

        They are drawn from the clients that have training samples and are not new. Accuracies are therefore those of
        honest clients, and nothing is tuned on poisoned ones. Raises UsageError if none or all would be poisoned.
        """
        count = len(partition.names)
        able = (partition.sizes[:, 0] > 0) & (~partition.new if partition.new is not None else True)
        drawn = [client for client in rng.generator(seed, "poison").permutation(count).tolist() if able[client]]
        number = round(self.share * len(drawn))
        if not 0 < number < len(drawn):
            raise UsageError(f"--poison {self}: {number} of {len(drawn)} training clients would be poisoned")
        poisoned = np.zeros(count, dtype=np.bool_)
        poisoned[drawn[:number]] = True
        sizes = partition.sizes.copy()
        holder = np.repeat(np.repeat(poisoned, len(SPLITS)), sizes.ravel())
        is_train = np.repeat(np.arange(sizes.size) % len(SPLITS) == 0, sizes.ravel())
        rows = np.flatnonzero(~holder | is_train)
        sizes[poisoned, 1:] = 0
        result = replace(select_rows(partition, rows, sizes.ravel().tolist()), poisoned=poisoned)
        if self.kind == "flip":
            if partition.labels.kind != CLASSES:
                raise UsageError(f"--poison {self} flips classes, and the task is {partition.labels.kind}")
            return replace(result, y=np.where(holder[rows], partition.classes - 1 - result.y, result.y))
        if self.kind == "none":
            return result
        factor, noise = (self.strength, 0.0) if self.kind == "scale" else (0.0, self.strength)
        return replace(
            result,
            update_factor=np.where(poisoned, factor, 1.0).astype(np.float64),
            update_noise=np.where(poisoned, noise, 0.0).astype(np.float64),
        )
