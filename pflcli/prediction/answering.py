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
from pflcli.artifacts.make import Execution
from pflcli.engine.engine import probabilities
from pflcli.errors import ComputationError, InputError
from pflcli.federation.run import Run
from pflcli.methods import State
from pflcli.prediction import embedding, later_clients
from pflcli.prediction.personalized import Personalized
from pflcli.training import absences, answers
from pflcli.training.personal_accuracy import at_a_time
from pflcli.training.restored_state import restored

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
    state = restored(model.artifact, run, model.method)
    if is_later:
        return Ready(run, state, run.clients[client : client + 1], client)
    count = at_a_time(run)
    first = client // count * count
    return Ready(run, state, run.clients[first : first + count], client)


def client_answer(model: Personalized, at: Ready) -> Answer:
    """Return what the client answers for its test samples; raises ComputationError if its method cannot."""
    return every_split(model, at, ("test",))["test"]


def every_split(model: Personalized, at: Ready, splits: Sequence[str] | None = None) -> dict[str, Answer]:
    """Return what the client answers, by split: for ``splits``, or for all that ``personalize`` stores."""
    run = at.run
    with run.personalizing():
        try:
            predictor = model.method.personalize(run, at.state, at.clients)
        except ComputationError as error:
            raise ComputationError(f"{model.name}: {error.message}", *error.fix) from None
        chosen = answers.answered_splits(run, predictor) if splits is None else splits
        parts = {split: answers.with_global(run, predictor.answer(split), at.clients, split) for split in chosen}
        checked = absences.checked(run, at.clients, parts)
    position = int(np.flatnonzero(at.clients == at.client)[0])
    flags = checked.pop("befell")
    remarks = tuple(text for kind, text in absences.PERSONAL_MODELS.items() if flags[kind][position])
    tuned = {name: float(values[position]) for name, values in predictor.tuned.items()}
    own = {
        split: slice(*blocks.offsets(run.federation.sizes(split)[at.clients])[position : position + 2])
        for split in chosen
    }
    return {
        split: Answer({name: values[own[split]] for name, values in by_name.items()}, tuned, remarks)
        for split, by_name in checked.items()
    }


def of_global(model: Personalized, x: NDArray[Any], execution: Execution) -> Answer:
    """Return what the global model answers for samples ``x``; raises InputError if the method has none."""
    execution = model.execution(execution)
    # Any client will do: its personal model is not used.
    data = with_queries(partitions.read(model.partition), 0, x)
    run = model.run(data, execution)
    shared = run.backbone or restored(model.artifact, run, model.method).get("global")
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
