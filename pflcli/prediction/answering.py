"""What a client of stored predictions answers for further samples, by the code that answered its test samples.

The samples take the place of the client's test samples in the federation; all others stay. ``personalize`` of the
method then answers for as many clients at a time as it did, since the bits of a sum depend on what it is computed
beside: the stored test samples get the stored answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import blocks
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.partition import Partition
from pflcli.engine.engine import probabilities
from pflcli.errors import InputError
from pflcli.execution import Execution
from pflcli.federation.predictor import ClientModel
from pflcli.federation.run import Run
from pflcli.methods import State
from pflcli.prediction import embedding, later_clients
from pflcli.prediction.personalized import Personalized
from pflcli.training import absences
from pflcli.training.predict import client_batches, predict
from pflcli.training.stored_state import load_state

_TEST = blocks.SPLITS.index("test")


@dataclass(frozen=True)
class Answer:
    """What one client answers: ``parts`` (n, C), with ``p`` among them, and what it chose by its validation samples.

    ``remarks`` say what went wrong with its model or with a sample.
    """

    parts: Mapping[str, NDArray[np.float32]]
    tuned: Mapping[str, float]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ready:
    """A run and a state from which one client can answer: ``clients`` (c,) answer together, ``client`` among them."""

    run: Run
    state: State
    clients: NDArray[np.int64]
    client: int


def with_queries(data: Partition, client: int, x: NDArray[Any]) -> Partition:
    """Return the partition in which samples ``x`` (n, ...) stand in place of the test samples of a client."""
    block = len(blocks.SPLITS) * client + _TEST
    first, last = data.offsets[block : block + 2]
    offsets = data.offsets.copy()
    offsets[block + 1 :] += len(x) - (last - first)
    return replace(
        data,
        x=np.concatenate([data.x[:first], x, data.x[last:]]),
        y=np.concatenate([data.y[:first], np.zeros(len(x), np.int64), data.y[last:]]),
        sample=np.concatenate([data.sample[:first], np.full(len(x), -1), data.sample[last:]]),
        offsets=offsets,
    )


def samples_of(model: Personalized, client: int) -> tuple[Partition, bool]:
    """Return the samples of the partition, and whether ``client`` is a later one: then with those of later clients."""
    data = partitions.read(model.partition)
    if client < len(data.names):
        return data, False
    assert model.later is not None
    return later_clients.extended(data, model.later, client + 1), True


def ready(model: Personalized, client: int, x: NDArray[Any] | None, execution: Execution) -> Ready:
    """Return the run in which a client, by its number, answers samples ``x`` (n, ...), with the method's state.

    Without ``x`` it answers its own test samples. A client that came later answers alone.
    """
    execution = model.execution(execution)
    data, is_later = samples_of(model, client)
    if x is not None:
        data = with_queries(data, client, x)
    run = model.run(data, execution)
    if run.embeddings is not None and is_later:
        embedding.with_later_clients(run, model.lineage, data, execution)
    elif run.embeddings is not None and x is not None:
        run.embeddings = embedding.with_queries(run, model.lineage, data, client, execution)
    state = load_state(model.artifact, run, model.method)
    if is_later:
        return Ready(run, state, run.clients[client : client + 1], client)
    batch = next(clients for clients in client_batches(run) if client in clients)
    return Ready(run, state, batch, client)


def predict_client(
    model: Personalized, at: Ready, splits: Sequence[str] | None = ("test",)
) -> tuple[dict[str, Answer], ClientModel | None]:
    """Return what the client predicts, by split, and its model if it has one; see ``Predictor.model_of``.

    ``splits`` is None for all that ``personalize`` stores. Raises ComputationError if the method cannot predict.
    """
    predicted = predict(at.run, model.name, model.method, at.state, at.clients, splits)
    position = int(np.flatnonzero(at.clients == at.client)[0])
    remarks = tuple(text for kind, text in absences.PERSONAL_MODELS.items() if predicted.flags[kind][position])
    tuned = {name: float(values[position]) for name, values in predicted.predictor.tuned.items()}
    answers = {}
    for split, parts in predicted.parts.items():
        first, last = blocks.offsets(at.run.federation.sizes(split)[at.clients])[position : position + 2]
        answers[split] = Answer({name: values[first:last] for name, values in parts.items()}, tuned, remarks)
    return answers, predicted.predictor.model_of(at.client)


def of_global(model: Personalized, x: NDArray[Any], execution: Execution) -> Answer:
    """Return what the global model answers for samples ``x``; raises InputError if the method has none."""
    execution = model.execution(execution)
    # Any client will do: its personal model is not used.
    data = with_queries(partitions.read(model.partition), 0, x)
    run = model.run(data, execution)
    shared = run.backbone or load_state(model.artifact, run, model.method).get("global")
    if not isinstance(shared, Mapping) or shared.keys() != run.init.keys():
        raise InputError(
            f"{model.name} has no global model that could answer for a client that it does not know",
            f"pfl show {model.partition.path} lists its clients",
        )
    rows = run.federation.rows(0, "test")
    p = probabilities(run.engine.infer(dict(shared), rows)[0])
    lost: NDArray[np.bool_] = np.asarray(~np.isfinite(p).all(axis=1))
    remarks = (absences.PERSONAL_MODELS["overflowed"],) if lost.any() else ()
    return Answer({"p": np.where(lost[:, None], np.float32(1 / p.shape[1]), p)}, {}, remarks)
