"""Deals samples out to clients, and splits the samples of each client."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, kept_columns
from pflcli.artifacts.client_blocks import LazyRows
from pflcli.artifacts.kinds.partition import Partition
from pflcli.core import config, rng
from pflcli.core.datasets import Samples
from pflcli.core.errors import UsageError, closest
from pflcli.core.schemes import Scheme, redistribute
from pflcli.core.splits import check_fractions, name_clients, split_clients, transform_clusters
from pflcli.core.tasks import Labels
from pflcli.core.wording import as_typed
from pflcli.data.preparation import client_splits
from pflcli.data.preparation.poison import Poison


@dataclass(frozen=True)
class Deal:
    """How samples are dealt out to clients; the fields are arguments of ``partition``."""

    scheme: str
    clients: int | None
    min_samples: int
    new_clients: float | tuple[str, ...]
    """the fraction of clients that join late, or their names"""
    new_capacity: float
    part: tuple[int, int]
    seed: int
    split_seed: int | None = None
    """the seed of the splits, if not ``seed``"""
    poison: Poison | None = None

    def check(self, fractions: tuple[float, float, float] | None) -> None:
        """Raise UsageError for a number out of range, or for ``fractions`` that do not add up to 1."""
        if not isinstance(self.new_clients, tuple) and not 0 <= self.new_clients < 1:
            raise UsageError(
                f"--new-clients {self.new_clients:g} is not a fraction from 0 to below 1", "--new-clients 0.2"
            )
        if not 0 < self.new_capacity <= 1 or (self.new_capacity < 1 and not self.new_clients):
            raise UsageError(
                f"--new-capacity {self.new_capacity:g} must be above 0 and at most 1, and needs --new-clients",
                "--new-clients 0.2 --new-capacity 0.5",
            )
        if not 1 <= self.part[0] <= self.part[1]:
            raise UsageError(
                f"--part {self.part[0]}/{self.part[1]} is not the i-th of n parts, with i from 1 to n", "--part 1/2"
            )
        if fractions is not None:
            check_fractions(fractions)

    def request(
        self, samples: Samples, cfg: Any, dataset_cfg: Any, fractions: tuple[float, float, float], *, keep_test: bool
    ) -> dict[str, Any]:
        """Return the request: the samples, the options of scheme and dataset, and the samples with a given split."""
        marks = {"keep_test": samples.is_test if keep_test else None, "keep_validation": samples.is_validation}
        return {
            "samples": len(samples.y),
            "content": samples.sha256(),
            "scheme": self.scheme,
            "options": config.plain(cfg),
            **({} if dataset_cfg is None else {"dataset_options": config.plain(dataset_cfg)}),
            "clients": self.clients,
            "min_samples": self.min_samples,
            "fractions": list(fractions),
            **{
                name: hashlib.sha256(np.packbits(values).tobytes()).hexdigest()
                for name, values in marks.items()
                if values is not None
            },
            "new_clients": list(self.new_clients) if isinstance(self.new_clients, tuple) else self.new_clients,
            **({} if self.new_capacity == 1 else {"new_capacity": self.new_capacity}),
            **({} if self.part == (1, 1) else {"part": list(self.part)}),
            "seed": self.seed,
            **({"standardize_target": "client"} if samples.task is not None and samples.task.by_client else {}),
            **({} if self.poison is None else {"poison": str(self.poison)}),
            **({} if self.split_seed in (None, self.seed) else {"split_seed": self.split_seed}),
        }

    def make_partition(
        self, samples: Samples, splitter: Scheme, cfg: Any, fractions: tuple[float, float, float]
    ) -> Partition:
        """Return the partition of ``samples``; published test samples stay test samples."""
        rows = select_part(len(samples.y), *self.part)
        chosen = samples if self.part == (1, 1) else samples.take(rows)
        parts = splitter.split(chosen, self.clients, cfg, rng.generator(self.seed, "partition", self.scheme))
        if self.min_samples:
            parts = redistribute(parts, self.min_samples, rng.generator(self.seed, "redistribute"))
        split_seed = self.seed if self.split_seed is None else self.split_seed
        result = assemble(chosen, parts, fractions, split_seed)
        result = replace(result, sample=rows[result.sample])
        cluster = splitter.cluster(len(parts), cfg)
        if cluster is not None:
            sizes = result.sizes.sum(axis=1)
            x, y = transform_clusters(result.x, result.y, sizes, cluster, splitter, cfg, result.classes, self.seed)
            result = replace(result, x=x, y=y, cluster=cluster)
        if self.new_clients:
            result = replace(result, new=_choose_new_clients(result, self.new_clients, self.seed))
        if samples.task is not None:
            keeps = samples.task.is_fitted and not samples.task.by_client  # to the labels that data are --like
            task = samples.task if keeps else samples.task.fitted_by_client(result.list_training_labels())
            result = replace(result, labels=Labels.of(task))
        if result.new is not None and self.new_capacity < 1:
            result = client_splits.keep_fraction(result, np.flatnonzero(result.new), self.new_capacity, self.seed)
        return result if self.poison is None else self.poison.apply(result, self.seed)


def select_part(n: int, i: int, parts: int) -> NDArray[np.int64]:
    """Return the rows of the ``i``-th (from 1) of ``parts`` parts of ``n`` samples, sorted."""
    order: NDArray[np.int64] = rng.generator(0, "part").permutation(np.arange(n))
    return np.sort(np.array_split(order, parts)[i - 1])


def assemble(
    samples: Samples, parts: list[NDArray[np.int64]], fractions: tuple[float, float, float], seed: int
) -> Partition:
    """Return the partition with these ``parts``, the rows of each client; published test samples stay test samples."""
    client_rows = split_clients(samples, parts, fractions, seed)
    rows = np.concatenate(client_rows)
    is_single = np.issubdtype(samples.x.dtype, np.floating) and samples.scaling is None
    return Partition(
        x=LazyRows(samples.x, rows, np.dtype(np.float32) if is_single else samples.x.dtype),
        y=samples.y[rows],
        sample=rows,
        offsets=client_blocks.offsets([len(piece) for piece in client_rows]),
        names=name_clients(samples, parts),
        labels=Labels(samples.classes) if samples.task is None else Labels.of(samples.task),
        kept=kept_columns.select(samples.kept, rows),
    )


def _choose_new_clients(partition: Partition, chosen: float | tuple[str, ...], seed: int) -> NDArray[np.bool_]:
    """Return the clients (m,) that join late: those with the ``chosen`` names, or this fraction, drawn.

    Raises UsageError for an unknown name, and if no other client has training samples.
    """
    sizes, new = partition.sizes, np.zeros(len(partition.names), dtype=np.bool_)
    if isinstance(chosen, tuple):
        for name in chosen:
            if name not in partition.names:
                near = closest(name, partition.names) if len(partition.names) <= 20 else ""
                raise UsageError(
                    f"--new-clients: there is no client '{name}'",
                    near,
                    "--new-clients NAME,NAME, or a fraction such as 0.2",
                )
        new = np.isin(partition.names, chosen)
    else:
        new[rng.generator(seed, "new").permutation(len(new))[: max(1, round(chosen * len(new)))]] = True
    if not sizes[~new, 0].any():
        raise UsageError(
            f"--new-clients {as_typed(chosen)} of {len(new)} clients leaves no training samples for the global model",
            "--new-clients 0.2",
        )
    return new
