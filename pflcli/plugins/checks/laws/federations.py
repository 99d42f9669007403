"""Federations and runs by which laws find what the small federation does not show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core import methods, tasks
from pflcli.core.datasets import SPLITS
from pflcli.core.engine.federation import Federation
from pflcli.core.federation.run import Run
from pflcli.core.methods import State
from pflcli.core.parameters.model_table import ModelTable
from pflcli.workflow.admission.small_federation import (
    CLASSES,
    CLUSTER,
    FEATURES,
    LATE,
    make_federation,
    personalize,
)

MANY_PREDICTED = ((12, 10, 130), (1, 0, 7), (7, 9, 40), (6, 3, 24), (8, 8, 14), (0, 9, 12), (9, 8, 16))
"""The same training samples, with more samples to predict, also at the client without training samples. A method may do
something with test samples only where they are many, and with validation samples where they are few."""


def make_tiny_clients(clients: int, samples: int = 2, features: int = FEATURES) -> Federation:
    """Return clients with a few training samples and one sample of each other split."""
    draw = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(np.tile((samples, 1, 1), clients))])
    x = draw.normal(size=(offsets[-1], features)).astype(np.float32)
    return Federation.from_blocks(x, draw.integers(0, 3, len(x)), offsets, CLASSES, cluster=np.arange(clients) % 2)


def make_equal_clients() -> Federation:
    """Return five clients with seven training samples each: an epoch is two minibatches, of four and three."""
    data, sizes = make_federation(), np.tile([7, 1, 1], (5, 1))
    offsets = np.concatenate([[0], np.cumsum(sizes.ravel())])
    return replace(data, x=data.x[: offsets[-1]], y=data.y[: offsets[-1]], offsets=offsets, cluster=CLUSTER[:5])


def make_separable_clients() -> Federation:
    """Return five clients whose three classes are far apart, so that any training lowers the loss."""
    draw, sizes = np.random.default_rng(0), np.tile([12, 4, 8], (5, 1))
    offsets = np.concatenate([[0], np.cumsum(sizes.ravel())])
    y = draw.integers(0, CLASSES, offsets[-1])
    x = 0.3 * draw.normal(size=(len(y), FEATURES)) + 2.0 * np.eye(FEATURES)[y]
    return Federation.from_blocks(x.astype(np.float32), y, offsets, CLASSES, cluster=CLUSTER[:5])


def make_numbers(kind: str) -> Federation:
    """Return five clients whose labels are quantities or counts that depend on the features, or follow a series."""
    draw, sizes = np.random.default_rng(0), np.tile([24, 6, 8], (5, 1))
    offsets = np.concatenate([[0], np.cumsum(sizes.ravel())])
    x = draw.normal(size=(offsets[-1], FEATURES)).astype(np.float32)
    y = 200 + 30.0 * (x[:, 0] - x[:, 1]) if kind != "count" else draw.poisson(np.exp(1 + 0.7 * x[:, 0]))
    task = tasks.parse({"quantile": "quantile:0.1,0.5,0.9", "series": "quantity"}.get(kind, kind), "")
    if kind == "series":
        x, y, task = x[:, :, None], 200 + 30.0 * x[:, -1], replace(task, past=(0, 200.0, 30.0))
    data = Federation.from_blocks(x, y.astype(np.float64), offsets, task, cluster=CLUSTER[:5])
    return data.fitted()


def change_unit(data: Federation, client: int, shift: float, scale: float) -> Federation:
    """Return the federation in which the labels of a client are ``shift + scale * y``, and so are those of a series."""
    x, y, rows = data.x.clone(), data.y.clone(), data.rows(client, *SPLITS)
    y[rows] = shift + scale * y[rows]
    if data.task.past:
        _, origin, unit = data.task.past
        x[rows] = (shift + scale * (origin + unit * x[rows]) - origin) / unit
    return replace(data, x=x, y=y).fitted()


def make_repetitive_clients() -> Federation:
    """Return seven clients with very different numbers of samples; all samples of a client are the same."""
    data = make_federation(client_sizes=[(count, 2, 2) for count in (2, 34, 5, 8, 13, 21, 3)])
    for client in data.clients:
        rows = data.rows(int(client), *SPLITS)
        data.x[rows], data.y[rows] = data.x[rows[0]].clone(), data.y[rows[0]].clone()
    return data


def reorder_clients(data: Federation, order: NDArray[np.int64]) -> Federation:
    """Return the federation in which client i is client ``order[i]`` of ``data``."""
    rows = np.concatenate([data.rows(int(client), *SPLITS) for client in order])
    sizes = np.diff(data.offsets).reshape(-1, len(SPLITS))[order]
    cluster = None if data.cluster is None else data.cluster[order]
    return replace(
        data, x=data.x[rows], y=data.y[rows], offsets=np.concatenate([[0], np.cumsum(sizes)]), cluster=cluster
    )


def add_new_clients(base: Federation, sizes: tuple[tuple[int, ...], ...]) -> Federation:
    """Return the same clients, followed by new ones with ``sizes`` samples of their own."""
    draw = np.random.default_rng(7)
    samples = sum(map(sum, sizes))
    y = draw.integers(0, CLASSES, samples)
    x = draw.normal(size=(samples, FEATURES)).astype(np.float32) + 3
    offsets = np.concatenate([base.offsets, base.offsets[-1] + np.cumsum(np.ravel(sizes))])
    clusters = [] if base.cluster is None else [base.cluster, np.zeros(len(sizes), np.int64)]
    return Federation(
        torch.cat([base.x, torch.from_numpy(x)]),
        torch.cat([base.y, torch.from_numpy(y)]),
        offsets,
        base.task,
        np.arange(len(offsets) // len(SPLITS)) >= len(base.clients),
        np.concatenate(clusters) if clusters else None,
    )


def replace_labels(data: Federation, split: str, labels: NDArray[np.int64]) -> Federation:
    """Return the federation with other labels (n,) of a split, in the order of all clients."""
    y = data.y.clone()
    y[torch.from_numpy(data.rows_of(data.clients, split))] = torch.from_numpy(labels)
    return replace(data, y=y)


def replace_inputs(data: Federation, rows: NDArray[np.int64]) -> Federation:
    """Return the federation with other features, but the same labels, in these rows."""
    x = data.x.clone()
    x[rows] = 5 - 2 * x[rows]
    return replace(data, x=x)


def remove_samples(data: Federation, rows: NDArray[np.int64]) -> Federation:
    """Return the federation without these rows."""
    is_left = np.ones(len(data.y), bool)
    is_left[rows] = False
    before = np.concatenate([[0], np.cumsum(is_left)])
    return replace(data, x=data.x[is_left], y=data.y[is_left], offsets=before[data.offsets])


def move_validation_to_training(data: Federation) -> Federation:
    """Return the same samples, with those for validation among those for training."""
    sizes = [(data.sizes("train", "validation")[c], 0, data.sizes("test")[c]) for c in data.clients]
    return replace(data, offsets=np.concatenate([[0], np.cumsum(sizes)]))


def copy_validation_to_test(data: Federation) -> Federation:
    """Return the federation in which the test samples of each client are copies of its validation samples."""
    rows = [data.rows(int(client), *splits) for client in data.clients for splits in (SPLITS[:2], SPLITS[1:2])]
    sizes = [(train, validation, validation) for train, validation, _ in np.diff(data.offsets).reshape(-1, len(SPLITS))]
    taken, offsets = np.concatenate(rows), np.concatenate([[0], np.cumsum(sizes)])
    return replace(data, x=data.x[taken], y=data.y[taken], offsets=offsets)


_COUNTS = (torch.int64, torch.int32, torch.float32, torch.float64)


def play_late_rounds(method: str, run: Run) -> State:
    """Run all rounds and, with the state after them, the late rounds ``LATE - 1`` and ``LATE``.

    What a method has counted in its state so far is as late: numbers that grew by 0 or 1 in each round.
    """
    code = methods.load(method)
    state = code.setup(run)
    if not code.has_rounds:
        return state
    counts = list[dict[str, NDArray[Any]]]()
    for t in range(run.settings.rounds):
        state = code.train_round(run, state, t)
        counts.append({name: value.numpy().copy() for name, value in _list_counts(state).items()})
    for name, value in _list_counts(state).items():
        values = [each[name] for each in counts if name in each and each[name].shape == value.shape]
        steps = np.diff(np.stack(values).astype(np.float64), axis=0)
        if len(values) > 2 and np.isin(steps, (0, 1)).all() and steps.any():
            value.add_(LATE * (value > 0).to(value.dtype))
    for t in (LATE - 1, LATE):
        state = code.train_round(run, state, t)
    return state


def _list_counts(state: State, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors of a state that may count: a number, or one for each client."""
    counts: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            counts |= _list_counts(value, f"{prefix}{name}/")
        elif isinstance(value, torch.Tensor) and value.numel() < 100 and value.ndim < 2 and value.dtype in _COUNTS:
            counts[prefix + name] = value
    return counts


def choose(method: str, run: Run, state: State) -> dict[str, NDArray[np.float64]]:
    """Return what each client chose on its validation samples (m,), by name."""
    with run.personalizing():
        return dict(personalize(method, run, state).tuned)


def drop_records(code: methods.Method, state: State) -> State:
    """Return a state without its tables, and without what its method records."""
    return {
        name: drop_records(code, value) if isinstance(value, dict) else value
        for name, value in state.items()
        if not isinstance(value, ModelTable) and name not in code.RECORDS
    }


def drop_measurements(state: State) -> State:
    """Return a state without what its method measured for charts, on which nothing depends."""
    return {name: value for name, value in state.items() if name != "history"}
