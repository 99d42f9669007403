"""The progress of a run: its state after each round, its rows, its best round and its predictions."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pflcli.core.errors import InputError
from pflcli.core.federation.run import Run
from pflcli.core.parameters.model_table import ModelTable, Snapshot

State = dict[str, Any]
Row = dict[str, Any]
"""A row of ``rounds.csv``."""


@dataclass(frozen=True)
class Best:
    """The first ``round`` with the best ``score``, in a ``column`` of ``rounds.csv``, and the ``state`` after it."""

    round: int
    column: str
    score: float
    state: State

    def describe(self) -> str:
        """Return which round it is, and by which metric if that is not the score of the task."""
        metric = self.column.partition("_")[2]
        return f"best round by validation{'' if metric == 'accuracy' else f' {metric}'}: {self.round}"


class Measured(NamedTuple):
    """The ``column`` by which rounds are compared, and the indices of the ``best`` and of the ``last`` measured row."""

    column: str
    best: int
    last: int


def find_best(rows: Sequence[Row], metric: str | None = None, *, shared: bool = False) -> Measured | None:
    """Return the best row by the score of personal models if it was measured, else by that of the global model.

    The score is that of the task, which the columns call accuracy, or a ``metric``. With ``shared``, rows are always
    compared by the global model. None if nothing was measured.
    """
    sign = 1 if metric is None else _sign(metric)
    for column in (f"personal_{metric or 'accuracy'}", f"validation_{metric or 'accuracy'}")[shared:]:
        measured = [index for index, row in enumerate(rows) if not math.isnan(row.get(column, math.nan))]
        if measured:
            return Measured(column, max(measured, key=lambda index: sign * rows[index][column]), measured[-1])
    return None


def _sign(metric: str) -> int:
    from pflcli.core.metrics import catalogue  # here, because few runs need it

    return catalogue.METRICS[metric].sign


def update_best(
    best: Best | None, state: State, rows: Sequence[Row], metric: str | None = None, *, shared: bool
) -> Best | None:
    """Return the best round by ``find_best``, after that of the last of ``rows``, which ended with ``state``."""
    found = find_best(rows, metric, shared=shared)
    if found is None or found.best < len(rows) - 1:
        return best
    if best is not None:
        _release(best.state)
    return Best(rows[-1]["round"], found.column, rows[-1][found.column], _freeze(state))


def _freeze(state: Mapping[str, Any]) -> State:
    """Return a state that later rounds do not change: with copies of tensors and snapshots of tables."""
    return {
        key: value.snapshot()
        if isinstance(value, ModelTable)
        else value.clone()
        if isinstance(value, Tensor)
        else _freeze(value)
        for key, value in state.items()
    }


def _release(state: Mapping[str, Any]) -> None:
    """Release the snapshots of tables in a state."""
    for value in state.values():
        if isinstance(value, Snapshot):
            value.release()
        elif isinstance(value, Mapping):
            _release(value)


@dataclass
class Progress:
    """The progress of a run: the method's state, a row per round, the best round, and the predictions of clients.

    ``before`` contains the row of ``setup`` if that sent anything. ``best`` is only set if the best round is reported.
    Each item of ``predictions`` is a number of clients and what they predict: parts by split and name, and ``tuned``
    values.
    """

    state: dict[str, Any]
    before: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    predictions: list[tuple[int, dict[str, dict[str, Tensor]]]] = field(default_factory=list)
    best: Best | None = None
    reads_rounds: bool = False
    """whether the method read the number of rounds, so that a longer run would have other rounds"""
    is_whole: bool = True
    """whether all of this belongs to the same round: false within a round, and if undoing a round was interrupted"""

    @contextmanager
    def round(self, run: Run) -> Iterator[None]:
        """Play a round as a transaction: if it is interrupted or fails, the progress before it is restored."""
        state, best, count, traffic = self.state, self.best, len(self.rows), dict(run.traffic)
        self.is_whole = False
        try:
            with undo_on_failure(state, run):
                yield
        except BaseException:
            self.state, self.best, run.traffic = state, best, traffic
            del self.rows[count:]
            self.is_whole = True
            raise
        self.is_whole = True

    @property
    def reported(self) -> dict[str, Any]:
        """The state that is stored, and with which clients predict."""
        return self.state if self.best is None else self.best.state

    def facts(self) -> dict[str, Any]:
        """Return the facts about the reported round for a summary."""
        if self.best is None:
            return {"reported": "last round"}
        return {"reported": self.best.describe(), "reported_round": self.best.round}

    @property
    def predicted_clients(self) -> int:
        """The number of clients that have predicted."""
        return sum(clients for clients, _ in self.predictions)

    def join_predictions(self) -> dict[str, dict[str, Tensor]]:
        """Return the predictions of all clients, concatenated."""
        pieces = [piece for _, piece in self.predictions]
        return {
            key: {name: torch.cat([piece[key][name] for piece in pieces]) for name in parts}
            for key, parts in (pieces[0].items() if pieces else ())
        }


def tables(state: Mapping[str, Any], prefix: str = "") -> dict[str, ModelTable]:
    """Return the tables in a method's state, by their keys joined by a dash."""
    by_key: dict[str, ModelTable] = {}
    for key, value in state.items():
        if isinstance(value, ModelTable):
            by_key[prefix + key] = value
        elif isinstance(value, Mapping):
            by_key |= tables(value, f"{prefix}{key}-")
    return by_key


def require_state(where: str, state: Any, outer: str = "") -> None:
    """Raise InputError unless ``state`` can be stored: tensors, tables, and dicts of these by name.

    ``where`` says which method returned it, ``outer`` under which keys of its state this part is.
    """
    if not isinstance(state, Mapping):
        raise InputError(f"{where}: the state is {type(state).__name__}, not a dict of tensors and tables by name")
    for key, value in state.items():
        if not isinstance(key, str) or "/" in key:
            at = f"state[{outer!r}]" if outer else "the state"
            raise InputError(
                f"{where}: {at} has the key {key!r}; keys are words without a slash",
                f"key by {str(key).replace('/', '.')!r}",
            )
        if isinstance(value, Tensor) and not (value.is_quantized or value.is_meta or value.layout != torch.strided):
            continue
        name = f"{outer}/{key}" if outer else key
        if isinstance(value, ModelTable):
            if "-" in name:  # which separates keys in the names of files
                raise InputError(f"{where}: the table state[{name!r}] has a dash in its name", "use an underscore")
        elif isinstance(value, Mapping):
            require_state(where, value, name)
        else:
            is_number = isinstance(value, bool | int | float | np.ndarray | np.generic)
            what = "not a dense tensor of numbers" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"{where}: state[{name!r}] is {what}; a state has tensors, tables and dicts of these",
                f"store torch.as_tensor({reprlib.repr(value)})" if is_number else "store tensors, or use run.table",
            )


@contextmanager
def undo_on_failure(state: Mapping[str, Any], run: Run) -> Iterator[None]:
    """If the block fails, undo its writes to the tables of the state, and forget the tables that it created."""
    marks, count = [(table, table.mark()) for table in tables(state).values()], run.tables
    try:
        yield
    except BaseException:
        for table, mark in marks:
            table.undo(mark)
        run.tables = count
        raise
    for _, mark in marks:
        mark.models.release()
