"""The clients' samples, in memory or mapped from a file: flat tensors with one block per client and split."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core import parameters
from pflcli.core.datasets import SPLITS
from pflcli.core.engine.tasks import ClientScales, Task
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.errors import InputError, UnsuitedError


@dataclass(frozen=True)
class Federation:
    """All clients' samples. Block (client c, split s) is rows ``offsets[3 c + s]:offsets[3 c + s + 1]``.

    ``x`` (n, ...) are uint8 images with channels first, float32 features or int16 tokens; ``y`` (n,) is int64; both are
    on the run's device. On a CPU ``x`` may be a read-only map of a partition's file, and images may be a view of an
    array with channels last; read rows by ``samples`` and ``inputs``. ``new`` (m,) marks clients that do not train a
    global model; None if all do. ``cluster`` (m,) is the true cluster of each client, if it is known.
    """

    x: Tensor
    y: Tensor
    offsets: NDArray[np.int64]
    task: Task
    """what models learn to predict"""
    new: NDArray[np.bool_] | None = None
    cluster: NDArray[np.int64] | None = None
    scale: tuple[Tensor, Tensor] | None = None
    """mean and deviation of each channel (C, 1, 1) by which images are normalized, or None if they are not"""
    label_scales: ClientScales | None = None
    """the scales by which ``y`` is standardized, or None if labels are in their own unit"""

    @classmethod
    def from_blocks(
        cls,
        x: NDArray[Any],
        y: NDArray[Any],
        offsets: NDArray[np.int64],
        task: Task | int,
        device: str = "cpu",
        new: NDArray[np.bool_] | None = None,
        cluster: NDArray[np.int64] | None = None,
    ) -> Self:
        """Convert the arrays of a partition; images (n, H, W) or (n, H, W, C) become (n, C, H, W).

        A number as ``task`` is that of classes to predict.
        """
        with warnings.catch_warnings():
            # Samples may be a read-only map of a file. Nothing writes to them.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            tensor = torch.from_numpy(x)
        if tensor.dtype == torch.uint8:
            tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
        if device != "cpu":  # on a CPU, images are made contiguous when they are read
            tensor = tensor.to(device).contiguous()
        task = Classification(task) if isinstance(task, int | np.integer) else task
        return cls(tensor, torch.from_numpy(y).to(device), offsets, task, new, cluster)

    @property
    def classes(self) -> int:
        """Return the number of classes. Raises UnsuitedError if models learn something else."""
        if not isinstance(self.task, Classification):
            raise UnsuitedError(f"there are no classes to predict: the task is {self.task.kind}")
        return self.task.outputs

    @property
    def clients(self) -> NDArray[np.int64]:
        """Return all client ids (m,)."""
        return np.arange((len(self.offsets) - 1) // len(SPLITS))

    def true_clusters(self) -> NDArray[np.int64]:
        """Return the true cluster of each client (m,), numbered from 0. Raises InputError if they are not known."""
        if self.cluster is None:
            raise InputError(
                "the partition does not know the true clusters of its clients", "pfl partition ... --scheme clusters"
            )
        return np.unique(self.cluster, return_inverse=True)[1].astype(np.int64)

    @property
    def seen_clients(self) -> NDArray[np.int64]:
        """Return the ids of the clients that train a global model."""
        return self.clients if self.new is None else np.flatnonzero(~self.new)

    @property
    def participants(self) -> NDArray[np.int64]:
        """Return the ids of the clients that can take part in rounds: seen clients that have training samples."""
        clients = self.seen_clients
        return clients[self.sizes("train")[clients] > 0]

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample, channels first."""
        return tuple(self.x.shape[1:])

    @property
    def has_images(self) -> bool:
        """Whether samples are images."""
        return self.x.dtype == torch.uint8

    @property
    def has_tokens(self) -> bool:
        """Whether samples are tokens, not images or features."""
        return self.x.dtype not in (torch.uint8, torch.float32)

    def block(self, client: int, split: str) -> slice:
        """Return the rows of one client and split."""
        index = len(SPLITS) * int(client) + SPLITS.index(split)
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def rows(self, client: int, *splits: str) -> NDArray[np.int64]:
        """Return the rows (n,) of one client's splits, joined."""
        blocks = (self.block(client, split) for split in splits)
        return np.concatenate([np.arange(block.start, block.stop) for block in blocks])

    def rows_of(self, clients: NDArray[np.int64], split: str) -> NDArray[np.int64]:
        """Return the rows (n,) of one split of many clients, in their order."""
        blocks = len(SPLITS) * np.asarray(clients, dtype=np.int64) + SPLITS.index(split)
        first, sizes = self.offsets[blocks], self.offsets[blocks + 1] - self.offsets[blocks]
        before = np.cumsum(sizes) - sizes
        return np.repeat(first - before, sizes) + np.arange(sizes.sum())

    def labels_of(self, clients: NDArray[np.int64], split: str) -> NDArray[np.int64]:
        """Return the labels (n,) of one split of many clients, in their order."""
        labels: NDArray[np.int64] = (
            self.y[torch.from_numpy(self.rows_of(clients, split)).to(self.y.device)].cpu().numpy()
        )
        return labels

    def digest(self) -> str:
        """Return a SHA-256 over all samples and labels, and over which client and split each belongs to."""
        arrays = {"x": self.x, "y": self.y, "offsets": torch.from_numpy(self.offsets)}
        return parameters.digest(parameters.move(arrays, "cpu"))

    def samples(self, rows: slice | Tensor | NDArray[np.int64]) -> Tensor:
        """Return samples (n, ...) in their stored type, images with channels first."""
        if isinstance(rows, slice):
            return self.x[rows].contiguous()
        # index_select copies whole rows; indexing would copy number by number.
        return self.x.index_select(0, torch.as_tensor(rows, device=self.x.device)).contiguous()

    def refitted(self) -> Federation:
        """Return the same clients with their validation samples as further training samples."""
        offsets = self.offsets.copy()
        offsets[1 :: len(SPLITS)] = offsets[2 :: len(SPLITS)]
        return replace(self, offsets=offsets)

    def fitted(self) -> Self:
        """Return the federation whose task is that of the training labels of the clients that train a global model."""
        labels = [self.labels_of(np.asarray([client]), "train") for client in self.seen_clients]
        return replace(self, task=self.task.fitted_by_client(labels))

    def standardized(self) -> Self:
        """Return the federation with labels that are standardized by client, if its task is ``by_client``."""
        y = self.y.cpu().numpy()  # the server of a deployment has none
        scales = ClientScales.fit(self.task, [y[self.block(client, "train")] for client in self.clients])
        y = scales.standardize(y, np.repeat(self.clients, self.sizes(*SPLITS))[: len(y)])
        task = scales.standardized_task
        return replace(self, y=torch.from_numpy(y).to(self.y.device), task=task, label_scales=scales)

    def pooled(self, rows: NDArray[np.int64]) -> Federation:
        """Return a federation of one client that trains on these rows, whichever clients they belong to."""
        positions, n = torch.from_numpy(rows).to(self.y.device), len(rows)
        return Federation(
            self.samples(positions), self.y[positions], np.asarray([0, n, n, n]), self.task, scale=self.scale
        )

    def sizes(self, *splits: str) -> NDArray[np.int64]:
        """Return the number of samples of each client (m,) in these splits together."""
        counts = np.diff(self.offsets).reshape(-1, len(SPLITS))
        sizes: NDArray[np.int64] = counts[:, [SPLITS.index(split) for split in splits]].sum(axis=1)
        return sizes

    def inputs(self, rows: slice | Tensor) -> Tensor:
        """Return samples as model inputs (n, ...): float32, or int64 for tokens.

        Images are scaled to [0, 1] and, with ``scale``, normalized by channel.
        """
        x = self.samples(rows)
        if x.dtype == torch.uint8:
            x = x.float().div_(255)
            return x if self.scale is None else x.sub_(self.scale[0]).div_(self.scale[1])
        return x if x.is_floating_point() else x.long()
