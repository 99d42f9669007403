"""The state of a method as its predictions hold it, so that clients can answer again without a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from pflcli import parameters
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import Artifact
from pflcli.errors import InputError, UnsuitedError
from pflcli.federation.run import Run
from pflcli.methods import Method, State
from pflcli.parameters.model_table import ModelTable
from pflcli.training.state_files import DEFAULT

STATE = "state.safetensors"
_IDS = "clients"


def load_state(artifact: Artifact, run: Run, method: Method) -> State:
    """Return the state that a method had when its clients answered, for the clients of ``run``.

    ``run`` may have less clients than the predictions, or more behind them; these have the state that ``setup`` gives
    to a client before its first round. The default of a table is that of ``setup``, or of its file if the rounds made
    the table. ``setup`` gives all names their order: files are sorted by name, and a sum over layers in another order
    differs in its last bits.
    Raises InputError if the files do not fit the method, UnsuitedError if it refuses the clients.
    """
    count = int(artifact.manifest.summary.get("clients", len(run.clients)))
    stored = _tensors(artifact, STATE) if STATE in artifact.manifest.files else {}
    try:
        template = method.setup(run)
    except InputError as error:  # a method opens no files: what it refuses are the clients
        raise UnsuitedError(error.message, *error.fix) from None
    state = _filled(template, stored, len(run.clients), count, run.federation.y.device)
    files = [name for name in artifact.manifest.files if name.endswith(".safetensors") and name != STATE]
    for file in files:
        _restore_table(artifact, file, state, run)
    return state


def _tensors(artifact: Artifact, name: str) -> dict[str, Tensor]:
    """Read the tensors of a file; what a method recorded by round may be nan."""
    content = artifact.read(name)
    with artifact.parsing(name):
        return dict(load(content))


def _filled(
    template: Mapping[str, Any], stored: Mapping[str, Tensor], clients: int, count: int, device: torch.device
) -> State:
    """Return the stored tensors, nested and ordered like ``template``, whose tables stay; further ones come last."""
    state: State = {}
    for key, value in template.items():
        inner = {name.removeprefix(f"{key}/"): stored[name] for name in stored if name.startswith(f"{key}/")}
        if isinstance(value, ModelTable):
            state[key] = value
        elif isinstance(value, Mapping):
            state[key] = _filled(value, inner, clients, count, device)
        elif key in stored:
            state[key] = _with_later_clients(stored[key].to(device, copy=True), value, clients, count)
    known = set(state)
    for name, value in stored.items():
        outer, _, rest = name.partition("/")
        if outer not in known:
            target = state.setdefault(outer, {}) if rest else state
            target[rest or outer] = value.to(device, copy=True)
    return state


def _with_later_clients(stored: Tensor, initial: Tensor, clients: int, count: int) -> Tensor:
    """Return a tensor with a row for each of the run's clients, later ones with that of ``initial``; others as is."""
    is_per_client = stored.ndim and stored.shape[0] == count and initial.shape == (clients, *stored.shape[1:])
    return torch.cat([stored[:clients], initial[count:].to(stored)]) if is_per_client else stored


def _restore_table(artifact: Artifact, file: str, state: State, run: Run) -> None:
    """Write the models of a file into the table of its name; raises InputError if they do not fit it."""
    rows = _tensors(artifact, file)
    path = artifact.path / file
    if _IDS not in rows:
        raise InputError(f"{path} does not say whose models it holds")
    ids = rows.pop(_IDS).numpy()
    stored_default = parameters.unprefixed(rows, DEFAULT)
    rows = {name: value for name, value in rows.items() if not name.startswith(DEFAULT)}
    *outer, last = file.removesuffix(".safetensors").split("-")
    inner = state
    for part in outer:
        inner = inner.setdefault(part, {})
    if last not in inner:
        # Files of lg-fedavg lacked a default once. No prediction reads it, as clients without an entry adapt first.
        missing = {name: torch.zeros(value.shape[1:], dtype=value.dtype) for name, value in rows.items()}
        device = run.federation.y.device
        inner[last] = run.table({n: v.to(device, copy=True) for n, v in (stored_default or missing).items()})
    table = inner[last]
    fits = isinstance(table, ModelTable) and {name: value.shape for name, value in table.default.items()} == {
        name: value.shape[1:] for name, value in rows.items()
    }
    if not fits or (len(ids) and not (ids.min() >= 0 and ids.max() < len(run.clients))):
        raise InputError(
            f"{path} does not fit the method as this version of pfl has it", f"{predictions.MADE_BY}, again"
        )
    table[ids] = {name: value.to(table.default[name].dtype) for name, value in rows.items()}
