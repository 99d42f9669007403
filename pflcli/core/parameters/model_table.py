"""A table with one model per client that stores only changed models, in memory or in a file.

3,550 MobileNets take 32 GB, and a round changes a few per cent of them. A write never overwrites a row that a
checkpoint or a snapshot needs. A resumed run therefore finds the rows of its last checkpoint unchanged, and rows are
never copied.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core import parameters
from pflcli.core.parameters import Params, Stacked
from pflcli.core.parameters.row_storage import InMemoryRows, Storage

if TYPE_CHECKING:
    from pflcli.core.parameters import TrainedClients


_COLUMNS_PER_PIECE = 1 << 14
"""Columns of a parameter that are read at a time, so that several clients' columns fit into the cache."""

_STRIDE_MULTIPLE, _STRIDE_PADDING = 8192, 4096 + 128
"""Bytes: the stride of large rows is a multiple of the first plus the second, see ``allocate_padded_rows``."""


def allocate_padded_rows(count: int, numbers: int, dtype: torch.dtype) -> Tensor:
    """Return memory for rows (count, numbers), with padding between large rows against cache conflicts.

    Rows at a multiple of the page size, as those of layers often are, would map to the same few cache sets.
    """
    size = numbers * dtype.itemsize
    stride = size
    if size >= _STRIDE_MULTIPLE:
        stride = math.ceil(size / _STRIDE_MULTIPLE) * _STRIDE_MULTIPLE + _STRIDE_PADDING
    return torch.empty(count, stride // dtype.itemsize, dtype=dtype)[:, :numbers]


class ModelTable:
    """Models of m clients by client id; ``table[ids]`` is a stack (n, ...), ``table[ids] = stack`` replaces models.

    The model of a client is ``default`` until it is written.
    """

    def __init__(self, default: Params, clients: int, storage: Storage) -> None:
        self.default = default
        self.storage = storage
        self._row = np.full(clients, -1)
        self._checkpointed: frozenset[int] = frozenset()
        self._snapshots: list[Snapshot] = []
        self._free: list[int] = []
        self._used = 0
        self._pieces, self._size = _layout(default)

    def __len__(self) -> int:
        return len(self._row)

    @property
    def written(self) -> NDArray[np.int64]:
        """Return the ids of clients whose model was written."""
        return np.flatnonzero(self._row >= 0)

    def __getitem__(self, clients: Sequence[int] | NDArray[np.int64]) -> Stacked:
        """Return copies of the clients' models, stacked (n, ...)."""
        return self.stack_with(np.asarray(clients, dtype=np.int64), [])

    def stack_with(self, clients: NDArray[np.int64], more: Sequence[Params], *, padded: bool = False) -> Stacked:
        """Return copies of the clients' models followed by ``more``, stacked.

        With ``padded``, their memory is that of ``allocate_padded_rows``.
        """
        rows, stacked, new = self._row[clients], {}, allocate_padded_rows if padded else torch.empty
        for name, like in self.default.items():
            values = new(len(rows) + len(more), like.numel(), dtype=like.dtype)
            values[: len(rows)][torch.from_numpy(rows < 0)] = like.cpu().flatten()
            for value, model in zip(values[len(rows) :], more, strict=True):
                value.copy_(model[name].flatten())
            for row, into in zip(rows.tolist(), values.view(torch.uint8).numpy(), strict=False):
                if row >= 0 and len(into):
                    self.storage.read(row, into, self._size, self._pieces[name].start)
            stacked[name] = values.view(len(values), *like.shape).to(like.device)
        return stacked

    def read_columns(
        self, clients: NDArray[np.int64], names: Iterable[str], models: int
    ) -> Iterator[tuple[str, slice, Tensor]]:
        """Yield the name of each parameter, a slice of its columns, and these columns of all clients, (n, width).

        At most the bytes of this number of ``models`` are read at a time, each byte once.
        """
        rows, bound = self._row[clients], models * self._size // max(len(clients), 1)
        for name in names:
            like, begin = self.default[name].flatten(), self._pieces[name].start
            item, width = like.element_size(), max(1, min(_COLUMNS_PER_PIECE, bound // like.element_size()))
            for first in range(0, like.numel(), width):
                columns = slice(first, min(first + width, like.numel()))
                piece = torch.empty(len(rows), columns.stop - first, dtype=like.dtype)
                piece[torch.from_numpy(rows < 0)] = like[columns].cpu()
                for row, into in zip(rows.tolist(), piece.view(torch.uint8).numpy(), strict=True):
                    if row >= 0:
                        self.storage.read(row, into, self._size, begin + first * item)
                yield name, columns, piece.to(like.device)

    def unwritten(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the clients that have the default model, in their order."""
        return clients[self._row[clients] < 0]

    def overlay(self, clients: NDArray[np.int64], parts: Iterable[TrainedClients]) -> Stacked:
        """Return the clients' models, stacked (n, ...), with the trained ``parts`` in place of entries of the table."""
        stacked, position = self[clients], {int(client): n for n, client in enumerate(clients)}
        for part in parts:
            rows = np.asarray([position[int(client)] for client in part.clients])
            parameters.write_rows(stacked, rows, {name: part.params[name] for name in stacked})
        return stacked

    def __setitem__(self, clients: Sequence[int] | NDArray[np.int64], stacked: Stacked) -> None:
        """Replace the clients' models by a stack (n, ...)."""
        ids, pieces = np.asarray(clients, dtype=np.int64), []
        for name, like in self.default.items():
            # A view as bytes needs strides, which a value that was expanded to one client lacks.
            numbers = stacked[name].detach().cpu().flatten().as_strided((len(ids), like.numel()), (like.numel(), 1))
            pieces += [(self._pieces[name], numbers.view(torch.uint8).numpy())] if like.numel() else []
        for position, client in enumerate(ids.tolist()):
            self.storage.write(self._writable(client), self._size, [(at, values[position]) for at, values in pieces])

    def _writable(self, client: int) -> int:
        """Return a row for a client's new model that neither the last checkpoint nor a snapshot needs."""
        row = int(self._row[client])
        if row < 0 or row in self._checkpointed or any(snapshot._row[client] == row for snapshot in self._snapshots):
            if self._free:
                self._row[client] = heapq.heappop(self._free)
            else:
                self._row[client] = self._used
                self._used += 1
        return int(self._row[client])

    def keep(self) -> None:
        """Protect the current rows, to which a checkpoint now refers, from writes."""
        self._checkpointed = self._needed()
        self._reclaim()

    def _needed(self) -> frozenset[int]:
        """Return the rows that contain a client's model in the table or in a snapshot."""
        return frozenset(self._row.tolist()).union(*(snapshot._row.tolist() for snapshot in self._snapshots))

    def _reclaim(self) -> None:
        self._free = sorted(set(range(self._used)) - self._needed() - self._checkpointed)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the current models, unchanged by later writes; ``release`` it to free its rows."""
        return Snapshot(self, self._row.copy())

    def mark(self) -> Mark:
        """Return a mark for ``undo``; ``release`` its snapshot to keep the changes."""
        others = tuple(self._snapshots)
        return Mark(self.snapshot(), others)

    def undo(self, mark: Mark) -> None:
        """Undo all writes and changes of snapshots since ``mark``."""
        self._row, self._snapshots = mark.models._row.copy(), list(mark.others)
        self._reclaim()

    def unpack_snapshot(self, packed: Mapping[str, Tensor]) -> Snapshot:
        """Return the snapshot with the content ``packed``, after ``unpack`` of its table."""
        snapshot = Snapshot(self, packed[f"{_MARK}row"].cpu().numpy())
        snapshot._restore(packed)
        self._used = max(self._used, int(snapshot._row.max(initial=-1)) + 1)
        self.keep()
        return snapshot

    def pack(self) -> dict[str, Tensor]:
        """Return the content for a checkpoint: the row of each client, and the rows in memory."""
        return {**self._packed(set(self._row.tolist())), **{f"default:{n}": value for n, value in self.default.items()}}

    def _packed(self, rows: set[int]) -> dict[str, Tensor]:
        facts = {
            "row": torch.from_numpy(self._row.copy()),
            "number": torch.tensor(self.storage.number),
            "hashes": torch.from_numpy(self.storage.hashes(self._row[self.written], self._size).copy()),
        }
        stored_rows = self.storage.rows if isinstance(self.storage, InMemoryRows) else {}
        return {
            **{f"{_MARK}{name}": value for name, value in facts.items()},
            **{f"rows:{row}": torch.from_numpy(content) for row, content in stored_rows.items() if row in rows},
        }

    @staticmethod
    def is_packed(content: Mapping[str, object]) -> bool:
        """Whether ``content`` comes from ``pack``."""
        return f"{_MARK}row" in content

    @classmethod
    def unpack(cls, packed: Mapping[str, Tensor], storage: Storage) -> ModelTable:
        """Undo ``pack``; a ``storage`` on disk already has the rows. Raises InputError if they differ."""
        default = {n.removeprefix("default:"): v for n, v in packed.items() if n.startswith("default:")}
        row = packed[f"{_MARK}row"].cpu().numpy()
        table = cls(default, len(row), storage)
        table._row, table._used = row, int(row.max(initial=-1)) + 1
        table.keep()
        table._restore(packed)
        return table

    def _restore(self, packed: Mapping[str, Tensor]) -> None:
        """Write the packed rows to the storage, or check the rows in it."""
        for name, value in packed.items():
            if name.startswith("rows:"):
                self.storage.write(int(name.removeprefix("rows:")), len(value), [(slice(None), value.cpu().numpy())])
        self.storage.check(self._row[self.written], self._size, packed[f"{_MARK}hashes"].cpu().numpy())

    def columns(self) -> Iterator[tuple[str, torch.dtype, tuple[int, ...], Iterator[bytes]]]:
        """Yield each parameter of the written clients: name, type, shape (n, ...) and bytes, row by row."""
        for name, piece in self._pieces.items():
            value = self.default[name]
            yield name, value.dtype, (len(self.written), *value.shape), self._column(piece)

    def _column(self, piece: slice) -> Iterator[bytes]:
        for row in self._row[self.written].tolist():
            content = np.empty(piece.stop - piece.start, dtype=np.uint8)
            self.storage.read(row, content, self._size, piece.start)
            yield content.tobytes()


class Snapshot(ModelTable):
    """A read-only table with the models of another one at an earlier time, in the same storage."""

    def __init__(self, table: ModelTable, row: NDArray[np.int64]) -> None:
        super().__init__(table.default, len(row), table.storage)
        self._row, self._table = row, table
        table._snapshots.append(self)

    def _writable(self, client: int) -> int:
        raise TypeError("a snapshot cannot be written to")

    def pack(self) -> dict[str, Tensor]:
        """Return the content for a checkpoint: the row of each client, and the rows that the table does not pack."""
        return self._packed(set(self._row.tolist()) - set(self._table._row.tolist()))

    def release(self) -> None:
        """Free the rows that only this snapshot needs; it must not be read afterwards."""
        self._table._snapshots.remove(self)
        self._table._reclaim()


@dataclass(frozen=True)
class Mark:
    """A snapshot ``models`` of a table, and ``others``: earlier snapshots that were not released."""

    models: Snapshot
    others: tuple[Snapshot, ...]


_MARK = "table:"


def _layout(default: Params) -> tuple[dict[str, slice], int]:
    """Return the bytes of each parameter in a row, aligned to eight, and the size of a row in bytes.

    Parameters are sorted by name, since a default from a checkpoint has its names in another order.
    """
    pieces, end = {}, 0
    for name, value in sorted(default.items()):
        size = value.numel() * value.element_size()
        pieces[name] = slice(end, end + size)
        end += math.ceil(size / 8) * 8
    return pieces, end
