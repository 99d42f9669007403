"""What a client of stored predictions answers for further samples, by the code that answered its test samples.

The samples take the place of the client's test samples in the federation; all others stay. ``personalize`` of the
method then answers for as many clients at a time as it did, since the bits of a sum depend on what it is computed
beside: the stored test samples get the stored answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli import methods
from pflcli.artifacts import blocks
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import tensors
from pflcli.artifacts.kinds.embeddings import StoredEmbeddings
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.make import Execution
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.commands.prediction.personalized import Personalized
from pflcli.engine.engine import probabilities
from pflcli.engine.executors.threads import BATCH
from pflcli.errors import ComputationError, InputError
from pflcli.fl.run import Run
from pflcli.methods import State
from pflcli.training import absences, answers, resolved_settings, rounds
from pflcli.training.personal_accuracy import at_a_time
from pflcli.training.prepared_run import prepared
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


def ready(model: Personalized, client: int, x: NDArray[Any], execution: Execution) -> Ready:
    """Return the run in which a client, by its number, is asked for samples ``x`` (n, ...), with the method's state."""
    execution = model.execution(execution)
    data = with_queries(partitions.read(model.partition), client, x)
    run = prepared(
        data,
        model.method,
        model.cfg,
        model.settings,
        model.seed,
        model.lineage,
        execution,
        begins_with_weights=model.begins_with_weights,
        weights=model.weights,
        earlier_run=model.earlier_run,
    )
    if run.embeddings is not None:
        backbone = model.lineage["backbone"]
        assert backbone is not None  # embeddings are made by one
        z, logits = embedded(backbone, model.partition, data, client, execution)
        run.embeddings = {**run.embeddings, "test": _with_embedded(run.embeddings["test"], client, z, logits)}
    state = restored(model.artifact, run, model.method)
    count = at_a_time(run)
    first = client // count * count
    return Ready(run, state, run.clients[first : first + count], client)


def answered(model: Personalized, at: Ready) -> Answer:
    """Return what the client answers; raises ComputationError if its method cannot."""
    run = at.run
    with run.personalizing():
        try:
            predictor = model.method.personalize(run, at.state, at.clients)
        except ComputationError as error:
            raise ComputationError(f"{model.name}: {error.message}", *error.fix) from None
        parts = answers.with_global(run, predictor.answer("test"), at.clients, "test")
        checked = absences.checked(run, at.clients, {"test": parts})
    position = int(np.flatnonzero(at.clients == at.client)[0])
    rows = slice(*blocks.offsets(run.federation.sizes("test")[at.clients])[position : position + 2])
    flags = checked.pop("befell")
    return Answer(
        {name: values[rows] for name, values in checked["test"].items()},
        {name: float(values[position]) for name, values in predictor.tuned.items()},
        tuple(text for kind, text in absences.PERSONAL_MODELS.items() if flags[kind][position]),
    )


def of_global(model: Personalized, x: NDArray[Any], execution: Execution) -> Answer:
    """Return what the global model answers for samples ``x``; raises InputError if the method has none."""
    execution = model.execution(execution)
    partition = partitions.read(model.partition)
    # Any client will do: its personal model is not used.
    data = with_queries(partition, 0, x)
    run = prepared(
        data,
        model.method,
        model.cfg,
        model.settings,
        model.seed,
        model.lineage,
        execution,
        begins_with_weights=model.begins_with_weights,
        weights=model.weights,
        earlier_run=model.earlier_run,
    )
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


def embedded(
    backbone: Artifact, partition: Artifact, data: Partition, client: int, execution: Execution
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return representations (n, d) and logits (n, C) of a client's test samples in ``data``, as ``extract`` does.

    A batch may have samples of other clients: these are in it again, so that the bits agree.
    Raises ComputationError if a number is not finite.
    """
    request, trained_on = backbone.manifest.request, ancestor(backbone, "partition")
    plan = resolved_settings.settings(request["settings"], {})
    is_other = trained_on is not None and trained_on.manifest.fingerprint != partition.manifest.fingerprint
    known = partitions.read(trained_on) if trained_on is not None and is_other and plan.normalize == "dataset" else None
    automatic = replace(execution, engine="auto")
    run = rounds.prepare(data, methods.load(request["method"]), None, plan, request["seed"], automatic, known)
    rows = np.concatenate([run.federation.rows(int(each), "test") for each in run.clients])
    begin, end = blocks.offsets(run.federation.sizes("test"))[client : client + 2]
    batch = BATCH[run.federation.y.device.type]
    first = int(begin) // batch * batch
    weights = tensors(backbone, like=run.init)
    device = run.federation.x.device
    weights = {name: value.to(device) for name, value in weights.items()}
    last = -(-int(end) // batch) * batch
    logits, z = run.engine.infer(weights, rows[first:last], features=True)
    run.engine.close()
    own = slice(int(begin) - first, int(end) - first)
    if not (torch.isfinite(z[own]).all() and torch.isfinite(logits[own]).all()):
        raise ComputationError("representations of the samples are not finite: their features are too large")
    return z[own].cpu().numpy(), logits[own].cpu().numpy()


def _with_embedded(split: Any, client: int, z: NDArray[np.float32], logits: NDArray[np.float32]) -> StoredEmbeddings:
    """Return a split of embeddings in which samples (n, d) stand in place of those of a client."""
    first, last = split.offsets[client : client + 2]
    offsets = split.offsets.copy()
    offsets[client + 1 :] += len(z) - (last - first)

    def joined(values: NDArray[Any], own: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([values[:first], own, values[last:]])

    unknown = np.full(len(z), -1)
    return StoredEmbeddings(
        z=joined(split.z, z),
        logits=joined(split.logits, logits),
        y=joined(split.y, np.zeros(len(z), np.int64)),
        offsets=offsets,
        sample=joined(split.sample, unknown),
    )
