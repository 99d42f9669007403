"""The state of a method as files: flat in a checkpoint; in an artifact, with a file of its own for each table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from safetensors.torch import save

from pflcli.artifacts import tensors
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.federation.run import Run
from pflcli.parameters.model_table import ModelTable

State = Mapping[str, Any]

DEFAULT = "default:"
"""Prefix, in a table's file, of the parameters that a client has before the method writes an entry for it."""


def flatten(state: State, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return a method's state, a nested dict of tensors and tables, as one level with keys ``outer/inner``."""
    flat: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        inner = value.pack() if isinstance(value, ModelTable) else value
        if isinstance(inner, Mapping):
            flat |= flatten(inner, f"{prefix}{key}/")
        else:
            flat[prefix + key] = inner.detach().cpu().contiguous()
    return flat


def nest(flat: Mapping[str, torch.Tensor], run: Run, known: dict[int, ModelTable] | None = None) -> dict[str, Any]:
    """Undo ``flatten``: tensors on the run's device, tables on its storage.

    Tables are added to ``known``, by their numbers; those that are known already come back as snapshots of them.
    """
    state: dict[str, Any] = {}
    for key, value in flat.items():
        *outer, last = key.split("/")
        inner = state
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return _revived(state, run, {} if known is None else known)


def _revived(state: dict[str, Any], run: Run, known: dict[int, ModelTable]) -> dict[str, Any]:
    device = run.federation.y.device
    for key, value in state.items():
        if not isinstance(value, dict):
            # A copy: tensors in a file's bytes are not aligned, and their matrix products differ in the last bits.
            state[key] = value.to(device, copy=True)
        elif ModelTable.is_packed(value):
            number, packed = int(value["table:number"]), _revived(value, run, known)
            if number in known:
                state[key] = known[number].remembered(packed)
            else:
                state[key] = known[number] = ModelTable.unpack(packed, run.storage(number))
            run.tables = max(run.tables, number + 1)
        else:
            _revived(value, run, known)
    return state


def tables(state: State, prefix: str = "") -> dict[str, ModelTable]:
    """Return the tables in a method's state, by their keys joined by a dash."""
    by_key: dict[str, ModelTable] = {}
    for key, value in state.items():
        if isinstance(value, ModelTable):
            by_key[prefix + key] = value
        elif isinstance(value, Mapping):
            by_key |= tables(value, f"{prefix}{key}-")
    return by_key


@contextmanager
def undone_on_failure(state: State, run: Run) -> Iterator[None]:
    """If the block fails, undo what it wrote to the state's tables, and forget the tables that it created."""
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


def keep(state: State, work: ArtifactWriter) -> None:
    """Write a method's final state: ``state.safetensors``, and a file of its own for each table with its default."""
    for name, table in tables(state).items():
        ids = ("clients", torch.int64, table.written.shape, [table.written.astype("<i8").tobytes()])
        default = [
            (DEFAULT + key, value.dtype, tuple(value.shape), [_bytes(value)]) for key, value in table.default.items()
        ]
        work.stream(f"{name}.safetensors", tensors.pieces([ids, *table.columns(), *default]))
    work.write("state.safetensors", bytes(save(flatten(_without_tables(state)))))


def _bytes(value: torch.Tensor) -> bytes:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""


def _without_tables(state: State) -> dict[str, Any]:
    inner = {key: value for key, value in state.items() if not isinstance(value, ModelTable)}
    return {key: _without_tables(value) if isinstance(value, Mapping) else value for key, value in inner.items()}
