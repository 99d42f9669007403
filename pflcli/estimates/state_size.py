"""How many bytes the state of a method has after its last round, with all clients, from that of a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from pflcli import parameters
from pflcli.estimates.excerpt import Excerpt
from pflcli.federation.run import Run
from pflcli.parameters.model_table import ModelTable


def fill(state: Mapping[str, Any], run: Run, t: int, participation: float) -> None:
    """Write the tables of a state for the share of participants that will have trained by round ``t``."""
    participants = run.federation.participants
    count = round(len(participants) * (1 - (1 - participation) ** t))
    for table in _tables(state):
        if len(table.written):
            missing = table.unwritten(participants)[: max(count - len(table.written), 0)]
            if len(missing):
                table[missing] = table[np.resize(table.written, len(missing))]


def _tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            tensors[key] = value
        elif isinstance(value, Mapping):
            tensors |= {f"{key}/{name}": inner for name, inner in _tensors(value).items()}
    return tensors


def _tables(state: Mapping[str, Any]) -> list[ModelTable]:
    return [
        table
        for value in state.values()
        for table in (
            [value] if isinstance(value, ModelTable) else _tables(value) if isinstance(value, Mapping) else []
        )
    ]


def tensor_bytes(state: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of each tensor of a state outside of tables, by its keys."""
    return {name: value.numel() * value.element_size() for name, value in _tensors(state).items()}


def final_bytes(
    state: Mapping[str, Any],
    history: list[dict[str, int]],
    played: int,
    rounds: int,
    run: Run,
    part: Excerpt,
    cohort: int,
) -> tuple[float, float]:
    """Return the bytes of the state without tables, and of the tables, after the last round of all clients."""
    few, scale = len(run.clients), part.scale
    state_bytes = 0.0
    for name, value in _tensors(state).items():
        size = float(history[-1][name])
        if played > 1 and (growth := size - history[-2].get(name, 0)) > 0 and size == growth * played:
            size = growth * rounds  # a record of each round
            state_bytes += size * scale ** (2 if value.ndim > 1 and value.shape[1] == few else 1)
            continue
        axes = sum(length == few for length in value.shape[:2]) if few > 1 else 0
        state_bytes += size * scale**axes
    table_bytes = 0.0
    # Each round is a draw of its own: so many clients are selected in none of them.
    ever = part.participants * (1 - (1 - cohort / max(part.participants, 1)) ** rounds)
    for table in _tables(state):
        written = len(table.written)
        clients = len(part.sizes) if written == few else ever if written else 0.0
        table_bytes += clients * (parameters.size(table.default) + 8)
    return state_bytes, table_bytes
