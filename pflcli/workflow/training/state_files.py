"""The state of a method as files: flat in a checkpoint; in an artifact, with one more file per table.

``load_state`` reads the state of an artifact, so that clients can predict again without training rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from pflcli.artifacts import safetensors_file
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import parameters
from pflcli.core.errors import InputError, UnsuitedError
from pflcli.core.federation.run import Run
from pflcli.core.methods import Method
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.simulation.progress import tables

State = Mapping[str, Any]

STATE = "state.safetensors"
_IDS = "clients"
DEFAULT = "default:"
"""Prefix, in the file of a table, of the parameters of clients without an entry."""


def flatten(state: State, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return a method's state, a nested dict of tensors and tables, as one level with keys ``outer/inner``.

    Tensors that share memory, such as one model under two keys, are copied, as a file has each of them by itself. An
    empty dict is the key ``outer/`` with an empty tensor.
    """
    flat: dict[str, torch.Tensor] = {} if state or not prefix else {prefix: torch.empty(0)}
    taken = list[tuple[int, int]]()
    for key, value in state.items():
        inner = value.pack() if isinstance(value, ModelTable) else value
        each = flatten(inner, f"{prefix}{key}/") if isinstance(inner, Mapping) else {prefix + key: inner}
        for name, given in each.items():
            tensor = given.detach().cpu().contiguous()
            begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
            flat[name] = tensor.clone() if any(a < end and begin < b for a, b in taken) else tensor
            taken.append((begin, end))
    return flat


def nest(flat: Mapping[str, torch.Tensor], run: Run, known: dict[int, ModelTable] | None = None) -> dict[str, Any]:
    """Undo ``flatten``: tensors are moved to the run's device, tables to its storage.

    Tables are added to ``known`` by their numbers; a table that is already known is returned as a snapshot of it.
    """
    state: dict[str, Any] = {}
    for key, value in flat.items():
        *outer, last = key.split("/")
        inner = state
        for part in outer:
            inner = inner.setdefault(part, {})
        if last:
            inner[last] = value
    return _restore(state, run, {} if known is None else known)


def _restore(state: dict[str, Any], run: Run, known: dict[int, ModelTable]) -> dict[str, Any]:
    device = run.federation.y.device
    for key, value in state.items():
        if not isinstance(value, dict):
            # A copy, because tensors in the bytes of a file are unaligned and give products with other last bits.
            state[key] = value.to(device, copy=True)
        elif ModelTable.is_packed(value):
            number, packed = int(value["table:number"]), _restore(value, run, known)
            if number in known:
                state[key] = known[number].unpack_snapshot(packed)
            else:
                state[key] = known[number] = ModelTable.unpack(packed, run.inputs.storage(number))
            run.tables = max(run.tables, number + 1)
        else:
            _restore(value, run, known)
    return state


def write_state(state: State, work: ArtifactWriter) -> None:
    """Write a method's final state: ``state.safetensors``, and one file per table, with its default."""
    for name, table in tables(state).items():
        ids = (_IDS, torch.int64, table.written.shape, [table.written.astype("<i8").tobytes()])
        default = [
            (DEFAULT + key, value.dtype, tuple(value.shape), [_bytes(value)]) for key, value in table.default.items()
        ]
        work.stream(f"{name}.safetensors", safetensors_file.pieces([ids, *table.columns(), *default]))
    work.write(STATE, bytes(save(flatten(_without_tables(state)))))


def _bytes(value: torch.Tensor) -> bytes:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""


def _without_tables(state: State) -> dict[str, Any]:
    inner = {key: value for key, value in state.items() if not isinstance(value, ModelTable)}
    return {key: _without_tables(value) if isinstance(value, Mapping) else value for key, value in inner.items()}


def size_without_tables(state: State) -> int:
    """Return the bytes of a state without its tables, which have one row for each client."""
    return sum(value.numel() * value.element_size() for value in flatten(_without_tables(state)).values())


def outline(state: State) -> dict[str, Any]:
    """Return the names in a state in their order, nested, with the names of a table's default as a list."""
    return {
        key: outline(value)
        if isinstance(value, Mapping)
        else [*value.default]
        if isinstance(value, ModelTable)
        else None
        for key, value in state.items()
    }


def read_state(artifact: Artifact, names: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return the state that ``write_state`` wrote, with the names of its ``outline``, on the run's device."""
    return _read_outlined(artifact, _read_tensors(artifact, STATE), names, run, ())


def _read_outlined(
    artifact: Artifact, stored: Mapping[str, Tensor], names: Mapping[str, Any], run: Run, outer: tuple[str, ...]
) -> dict[str, Any]:
    device, state = run.federation.y.device, dict[str, Any]()
    for key, inner in names.items():
        path = (*outer, key)
        if inner is None:
            state[key] = stored["/".join(path)].to(device, copy=True)
        elif isinstance(inner, dict):
            state[key] = _read_outlined(artifact, stored, inner, run, path)
        else:
            ids, rows, default = _read_table(artifact, f"{'-'.join(path)}.safetensors")
            state[key] = run.table({name: default[name].to(device, copy=True) for name in inner})
            state[key][ids] = rows
    return state


def load_state(artifact: Artifact, run: Run, method: Method) -> dict[str, Any]:
    """Return the state with which the clients of the predictions predicted, for the clients of ``run``.

    ``run`` may have fewer clients than the predictions, or additional ones at the end; these get the state that
    ``setup`` gives to a client before its first round. The default of a table comes from ``setup`` or, if the
    rounds created the table, from its file. Names have the order of ``setup``, because files are sorted by name, and a
    sum over layers in another order differs in its last bits. Raises InputError if the files do not fit the method,
    UnsuitedError if the method rejects the clients.
    """
    count = int(artifact.manifest.summary.get("clients", len(run.clients)))
    stored = _read_tensors(artifact, STATE) if STATE in artifact.manifest.files else {}
    try:
        template = method.setup(run)
    except InputError as error:  # a method opens no files, so it rejects the clients
        raise UnsuitedError(error.message, *error.fix) from None
    state = _fill(template, stored, len(run.clients), count, run.federation.y.device)
    files = [name for name in artifact.manifest.files if name.endswith(".safetensors") and name != STATE]
    for file in files:
        _restore_table(artifact, file, state, run)
    return state


def _read_tensors(artifact: Artifact, name: str) -> dict[str, Tensor]:
    """Read the tensors of a file. They may be nan, such as numbers that a method recorded by round."""
    content = artifact.read(name)
    with artifact.parsing(name):
        return {key: value for key, value in load(content).items() if not key.endswith("/")}


def _fill(
    template: Mapping[str, Any], stored: Mapping[str, Tensor], clients: int, count: int, device: torch.device
) -> dict[str, Any]:
    """Return the tables of ``template`` and the stored tensors, nested and ordered like ``template``, others last."""
    state: dict[str, Any] = {}
    for key, value in template.items():
        inner = {name.removeprefix(f"{key}/"): stored[name] for name in stored if name.startswith(f"{key}/")}
        if isinstance(value, ModelTable):
            state[key] = value
        elif isinstance(value, Mapping):
            state[key] = _fill(value, inner, clients, count, device)
        elif key in stored:
            state[key] = _append_clients(stored[key].to(device, copy=True), value, clients, count)
    known = set(state)
    for name, value in stored.items():
        outer, _, rest = name.partition("/")
        if outer not in known:
            target = state.setdefault(outer, {}) if rest else state
            target[rest or outer] = value.to(device, copy=True)
    return state


def _append_clients(stored: Tensor, initial: Tensor, clients: int, count: int) -> Tensor:
    """Append the rows of additional clients from ``initial`` if a tensor has one row per client."""
    is_per_client = stored.ndim and stored.shape[0] == count and initial.shape == (clients, *stored.shape[1:])
    return torch.cat([stored[:clients], initial[count:].to(stored)]) if is_per_client else stored


def _read_table(artifact: Artifact, file: str) -> tuple[NDArray[np.int64], dict[str, Tensor], dict[str, Tensor]]:
    """Return the clients (r,) of a table, their rows (r, ...) and the default; raises InputError without clients."""
    rows = _read_tensors(artifact, file)
    if _IDS not in rows:
        raise InputError(f"{artifact.path / file} does not list the clients of its models")
    ids = rows.pop(_IDS).numpy()
    default = parameters.unprefixed(rows, DEFAULT)
    return ids, {name: value for name, value in rows.items() if not name.startswith(DEFAULT)}, default


def _restore_table(artifact: Artifact, file: str, state: dict[str, Any], run: Run) -> None:
    """Write the models of a file into the table of its name; raises InputError if they do not fit it."""
    ids, rows, stored_default = _read_table(artifact, file)
    *outer, last = file.removesuffix(".safetensors").split("-")
    inner = state
    for part in outer:
        inner = inner.setdefault(part, {})
    if last not in inner:
        device = run.federation.y.device
        inner[last] = run.table({name: value.to(device, copy=True) for name, value in stored_default.items()})
    table = inner[last]
    fits = isinstance(table, ModelTable) and {name: value.shape for name, value in table.default.items()} == {
        name: value.shape[1:] for name, value in rows.items()
    }
    if not fits or (len(ids) and not (ids.min() >= 0 and ids.max() < len(run.clients))):
        raise InputError(
            f"{artifact.path / file} does not fit this version of the method", f"{predictions.MADE_BY}, again"
        )
    table[ids] = {name: value.to(table.default[name].dtype) for name, value in rows.items()}
