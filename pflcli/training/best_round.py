"""The best round of a run by validation accuracy, and the state of the method after it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from pflcli.parameters.model_table import ModelTable, Snapshot

State = dict[str, Any]

_COLUMNS = ("personal_accuracy", "validation_accuracy")
"""The accuracies by which rounds are compared: that of personal models if there are any, else of the global model."""


@dataclass(frozen=True)
class Best:
    """The first round with the highest ``accuracy`` in a ``column`` of ``rounds.csv``, and its ``state``."""

    round: int
    column: str
    accuracy: float
    state: State

    def facts(self) -> str:
        """Return all fields except the state as text, for a checkpoint."""
        return json.dumps([self.round, self.column, self.accuracy])

    @classmethod
    def parse(cls, facts: str, state: State) -> Self:
        """Return the object with these ``facts``, the result of the method of that name, and the state."""
        number, column, accuracy = json.loads(facts)
        return cls(number, column, accuracy, state)


def better(best: Best | None, state: State, row: Mapping[str, Any], *, shared: bool) -> Best | None:
    """Return the best round so far, after a round that ended with ``state``.

    ``shared`` compares only the global model. A round without a measured accuracy is ignored. As soon as the accuracy
    of personal models is measured, that of the global model no longer counts.
    """
    for column in _COLUMNS[shared:]:
        accuracy = row.get(column, math.nan)
        if math.isnan(accuracy):
            continue
        if best is not None and (_COLUMNS.index(best.column), -best.accuracy) <= (_COLUMNS.index(column), -accuracy):
            return best
        if best is not None:
            _release(best.state)
        return Best(row["round"], column, accuracy, _freeze(state))
    return best


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
    for value in state.values():
        if isinstance(value, Snapshot):
            value.release()
        elif isinstance(value, Mapping):
            _release(value)
