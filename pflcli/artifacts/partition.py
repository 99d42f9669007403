"""The partition: the samples themselves, sorted by client and split, so that nothing depends on their origin.

``samples.h5``: ``x`` (n, ...) uint8, float32 or int16, ``y`` (n,) int64, ``sample`` (n,) int64 row in the source
dataset, ``offsets`` (3 m + 1,) int64 over the blocks (client, split) in the order train, validation, test; ``names``
(m,) of the clients, UTF-8; attribute ``classes`` (count). ``clients.csv``: one row a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import blocks
from pflcli.artifacts.artifact import Artifact
from pflcli.artifacts.store import Work
from pflcli.errors import InputError


@dataclass(frozen=True)
class Partition:
    """Who holds which samples; see the module for shapes."""

    x: NDArray[Any]
    y: NDArray[np.int64]
    sample: NDArray[np.int64]
    offsets: NDArray[np.int64]
    names: list[str]
    classes: int

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples by client and split, (m, 3)."""
        sizes: NDArray[np.int64] = np.diff(self.offsets).reshape(-1, len(blocks.SPLITS))
        return sizes

    def check(self, where: str) -> None:
        """Raise InputError if splits overlap, labels are out of range or offsets do not match."""
        blocks.check(where, self.offsets, len(self.x), len(self.y), len(self.sample))
        if len(self.offsets) != len(blocks.SPLITS) * len(self.names) + 1:
            raise InputError(f"{where} is inconsistent: {len(self.names)} clients, {len(self.offsets)} offsets")
        if len(np.unique(self.sample)) != len(self.sample):
            raise InputError(f"{where} is inconsistent: a sample stands in two places, so splits are not disjoint")
        if len(self.y) and not (self.y.min() >= 0 and self.y.max() < self.classes):
            raise InputError(f"{where} is inconsistent: a label lies outside 0..{self.classes - 1}")


def write(work: Work, partition: Partition) -> None:
    """Write the files of a partition, after checking that its splits are disjoint."""
    partition.check(str(work.out))
    arrays = {"x": partition.x, "y": partition.y, "sample": partition.sample, "offsets": partition.offsets}
    # An array, not an attribute: HDF5 holds attributes to 64 KiB, about 4,000 names.
    arrays["names"] = np.char.encode(np.asarray(partition.names, dtype=np.str_), "utf-8")
    work.write("samples.h5", blocks.h5_bytes(arrays, {"classes": partition.classes}))
    work.write("clients.csv", _table(partition).encode())


def _table(partition: Partition) -> str:
    rows = [",".join(["client", "name", *blocks.SPLITS, "labels"])]
    for client, name in enumerate(partition.names):
        first, last = partition.offsets[3 * client], partition.offsets[3 * client + 3]
        held = np.unique(partition.y[first:last])
        quoted = '"' + name.replace('"', '""') + '"' if set(name) & set(',"\n') else name
        rows.append(",".join([str(client), quoted, *map(str, partition.sizes[client]), str(len(held))]))
    return "\n".join(rows) + "\n"


def read(artifact: Artifact) -> Partition:
    """Read a partition; raises InputError if its file is damaged or inconsistent."""
    with artifact.h5("samples.h5") as file:
        partition = Partition(
            x=file["x"][...],
            y=file["y"][...],
            sample=file["sample"][...],
            offsets=file["offsets"][...],
            names=[
                str(name) for name in (file["names"].asstr("utf-8")[...] if "names" in file else file.attrs["names"])
            ],
            classes=int(file.attrs["classes"]),
        )
    partition.check(str(artifact.path / "samples.h5"))
    return partition
