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

from pflcli.core import config, methods, models, rng
from pflcli.core.engine.federation import Federation
from pflcli.core.federation.predictor import Predictor
from pflcli.core.federation.run import Run, RunInputs
from pflcli.core.methods import State
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.settings import Settings
from pflcli.core.simulation.create_run import create_run
from pflcli.core.simulation.simulate import build_stores, embed
from pflcli.workflow.admission import require

SIZES = ((12, 4, 5), (1, 0, 0), (7, 3, 0), (6, 0, 4), (8, 3, 3), (0, 0, 0), (9, 3, 4))
"""Training, validation and test samples of each client. In this order: ordinary, with one sample, without test samples,
without validation samples, of one class, empty, ordinary."""
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


def make_run(
    method: str | None = None,
    *,
    seed: int = 0,
    threads: int = 1,
    mode: str = "auto",
    options: Mapping[str, Any] | None = None,
    data: Federation | None = None,
    inputs: RunInputs | None = None,
    normalizes: bool = False,
    secret: int = 0,
    **settings: object,
) -> Run:
    """Return a run of ``method`` with all that it may need: a backbone, embeddings and stores.

    The backbone differs from the initial model. ``settings`` change the training settings: three rounds in which half
    of the clients train an MLP on minibatches of four. With ``normalizes``, it is a smaller network with BatchNorm.
    ``secret`` is the seed of noise that protects clients; ``inputs`` are other inputs of the run.
    """
    data = make_federation() if data is None else data
    plan = config.build(Settings, {"model": "mlp", "rounds": 3, "participation": 0.5, "batch_size": 4, **settings}, "")

    code = methods.load(method or "fedavg")
    cfg = config.build(code.Config, options or {}, str(method)) if method else None
    network, noise = draw_normalizing_network if normalizes else None, partial(rng.generator, secret)
    inputs = replace(inputs or RunInputs(), draw_network=network, private_rng=noise)
    run = create_run(code, cfg, data, plan, seed, inputs, threads=threads, mode=mode)
    assert run.draw_model is not None
    backbone = run.draw_model(1)
    embedded = embed(run, backbone)
    stores = build_stores(embedded["train"], threads)
    return replace(run, inputs=replace(inputs, backbone=backbone, embeddings=embedded, stores=stores))


def draw_normalizing_network(seed: int) -> models.Net:
    """Return a network with BatchNorm, whose minibatches must have two samples or more."""
    with rng.seeded_torch(seed):
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


def require_equal(expected: object, seen: object, otherwise: str) -> None:
    """Require that two states, or predictions by split, are equal, bit for bit; say where they differ most."""
    difference = find_difference(expected, seen)
    require(not difference, f"{otherwise} ({difference})")


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
