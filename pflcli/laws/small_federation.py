"""A small federation in memory, with the odd clients that real data has, and runs of methods on it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pflcli import config, methods, models, rng
from pflcli.engine.federation import SPLITS, Federation
from pflcli.federation.predictor import Predictor
from pflcli.federation.run import Run
from pflcli.methods import State
from pflcli.parameters.model_table import ModelTable
from pflcli.settings import Settings
from pflcli.simulation.create_run import create_run
from pflcli.simulation.simulate import build_stores, embed

SIZES = ((12, 4, 5), (1, 0, 0), (7, 3, 0), (6, 0, 4), (8, 3, 3), (0, 0, 0), (9, 3, 4))
"""Training, validation and test samples of each client. In this order: ordinary, with one sample, without test samples,
without validation samples, of one class, empty, ordinary."""
MANY_PREDICTED = ((12, 10, 130), (1, 0, 7), (7, 9, 40), (6, 0, 24), (8, 8, 14), (0, 9, 12), (9, 8, 16))
"""The same training samples, with more samples to predict, also at the client without training samples. A method may do
something with test samples only where they are many."""
LATE = 3_603_600
"""A round after any warm-up. It is a multiple of 1 to 16, of 25 and of 50: what a method does in every tenth round, it
does here or in the round before."""
ONE_CLASS = 4
"""The client with samples of a single class."""
PARTICIPANTS = [0, 1, 2, 3, 4, 6]
"""The clients with training samples."""
CLUSTER = np.asarray([0, 1, 0, 1, 0, 1, 1])
MAX_ROUNDS = 50
"""Most rounds of a user's run that laws play before it begins."""
CLASSES = 3
FEATURES = 5


def make_federation(seed: int = 0, client_sizes: Sequence[Sequence[int]] = SIZES) -> Federation:
    """Return clients with three noisy classes; each client's features are shifted by an offset of its own."""
    draw = np.random.default_rng(seed)
    sizes = np.asarray(client_sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes.ravel())])
    client = np.repeat(np.arange(len(sizes)), sizes.sum(axis=1))
    y = draw.integers(0, CLASSES, offsets[-1])
    y[client == ONE_CLASS] = 1
    x = draw.normal(size=(len(y), FEATURES)) + 2.0 * np.eye(FEATURES)[y] + 0.3 * client[:, None]
    cluster = np.resize(CLUSTER, len(sizes))
    return Federation.from_blocks(x.astype(np.float32), y, offsets, CLASSES, cluster=cluster)


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
        base.classes,
        np.arange(len(offsets) // len(SPLITS)) >= len(base.clients),
        np.concatenate(clusters) if clusters else None,
    )


def replace_samples(
    data: Federation, *splits: str, clients: NDArray[np.int64] | None = None, inputs: bool = True
) -> Federation:
    """Return the federation with other ``inputs`` and labels in these splits of ``clients`` (default: all)."""
    x, y = data.x.clone(), data.y.clone()
    for client in data.clients if clients is None else clients:
        rows = data.rows(int(client), *splits)
        y[rows] = (y[rows] + 1) % data.classes
        if inputs:
            x[rows] = 3 - 2 * x[rows]
    return replace(data, x=x, y=y)


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


def make_run(
    method: str | None = None,
    *,
    seed: int = 0,
    threads: int = 1,
    mode: str = "auto",
    options: Mapping[str, Any] | None = None,
    data: Federation | None = None,
    normalizes: bool = False,
    secret: int = 0,
    **settings: object,
) -> Run:
    """Return a run of ``method`` with all that it may need: a backbone, embeddings and stores.

    The backbone differs from the initial model. ``settings`` change the training settings: three rounds in which half
    of the clients train an MLP on minibatches of four. With ``normalizes``, it is a smaller network with BatchNorm.
    ``secret`` is the seed of noise that protects clients.
    """
    data = make_federation() if data is None else data
    plan = config.build(Settings, {"model": "mlp", "rounds": 3, "participation": 0.5, "batch_size": 4, **settings}, "")

    code = methods.load(method or "fedavg")
    cfg = config.build(code.Config, options or {}, str(method)) if method else None
    run = create_run(
        code,
        cfg,
        data,
        plan,
        seed,
        draw_network=draw_normalizing_network if normalizes else None,
        private_rng=partial(rng.generator, secret),
        threads=threads,
        mode=mode,
    )
    assert run.draw_model is not None
    run.backbone = run.draw_model(1)
    run.embeddings = embed(run)
    run.stores = build_stores(run)
    return run


def draw_normalizing_network(seed: int) -> models.Net:
    """Return a network with BatchNorm, whose minibatches must have two samples or more."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU())
        return models.Net(layers, nn.Linear(8, CLASSES))


def play_rounds(method: str, run: Run, first: int = 0, last: int | None = None, state: State | None = None) -> State:
    """Run the rounds from ``first`` to before ``last``, by default all, and return the state after them."""
    code = methods.load(method)
    with run.engine.training():
        if state is None:
            state = code.setup(run)
        if code.has_rounds:
            for t in range(first, run.settings.rounds if last is None else last):
                state = code.train_round(run, state, t)
    return state


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


def personalize(method: str, run: Run, state: State, clients: NDArray[np.int64] | None = None) -> Predictor:
    """Return the predictor of clients (n,), by default all."""
    return methods.load(method).personalize(run, state, run.clients if clients is None else clients)


def predict(
    method: str, run: Run, state: State, clients: NDArray[np.int64] | None = None
) -> dict[str, NDArray[np.float32]]:
    """Return the probabilities (n, C) of each split as ``personalize`` stores them."""
    with run.personalizing():
        predictor = personalize(method, run, state, clients)
        return {split: predictor.answer(split)["p"] for split in predictor.splits}


def choose(method: str, run: Run, state: State) -> dict[str, NDArray[np.float64]]:
    """Return what each client chose on its validation samples (m,), by name."""
    with run.personalizing():
        return dict(personalize(method, run, state).tuned)


def are_equal(a: object, b: object) -> bool:
    """Return whether two nested states are equal, bit for bit."""
    if isinstance(a, ModelTable) and isinstance(b, ModelTable):
        return are_equal({"all": a[range(len(a))]}, {"all": b[range(len(b))]})
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(are_equal(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


def find_difference(a: object, b: object) -> str:
    """Return where two nested states or predictions differ most, and by how much; empty if they are equal.

    The order of keys is ignored.
    """
    if are_equal(a, b):
        return ""
    differences = dict(_list_differences("", a, b))
    name = max(differences, key=lambda each: differences[each], default="")
    if not name:
        return ""
    largest = differences[name]
    return f"{name} has another form" if math.isinf(largest) else f"{name} differs by up to {largest:.1e}"


def _list_differences(name: str, a: object, b: object) -> Iterator[tuple[str, float]]:
    """Yield the names of tensors that differ, with the largest difference of a number; infinite without a number."""
    if isinstance(a, ModelTable) and isinstance(b, ModelTable):
        a, b = a[range(len(a))], b[range(len(b))]
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in [*a, *(b.keys() - a.keys())]:
            yield from _list_differences(f"{name}/{key}".strip("/"), a.get(key), b.get(key))
        return
    first, second = (torch.from_numpy(each.copy()) if isinstance(each, np.ndarray) else each for each in (a, b))
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        if first is not second:
            yield name, math.inf
    elif first.shape != second.shape or first.dtype != second.dtype:
        yield name, math.inf
    elif not torch.equal(first, second):
        yield name, float((first.double() - second.double()).abs().nan_to_num(math.inf).max())


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
