"""Predict for further samples with stored predictions: by the run of their method or, for a stack, by its sources.

The samples take the place of the client's test samples in the federation; all others stay. The method's
``personalize`` then predicts for the same batch of clients as before, because the last bits of a sum depend on what is
computed beside it. So the stored test samples get the stored predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from pflcli.artifacts import client_blocks
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.reader import Artifact, follow
from pflcli.engine.engine import probabilities
from pflcli.errors import InputError
from pflcli.evaluation import pool
from pflcli.evaluation.learners import BASE, GLOBAL, STACK, pooled_answers
from pflcli.execution import Execution
from pflcli.federation.predictor import ClientModel
from pflcli.federation.run import Run
from pflcli.methods import State
from pflcli.prediction import embedding, later_clients, reopened_run
from pflcli.prediction.reopened_run import ReopenedRun
from pflcli.training import absences
from pflcli.training.predict import client_batches, predict
from pflcli.training.state_files import STATE, load_state

_TEST = client_blocks.SPLITS.index("test")


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
    block = len(client_blocks.SPLITS) * client + _TEST
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


def samples_of(model: ReopenedRun, client: int) -> tuple[Partition, bool]:
    """Return the samples of the partition, and whether ``client`` is a later one: then with those of later clients."""
    data = partitions.read(model.partition)
    if client < len(data.names):
        return data, False
    assert model.later is not None
    return later_clients.extended(data, model.later, client + 1), True


def ready(model: ReopenedRun, client: int, x: NDArray[Any] | None, execution: Execution) -> Ready:
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
    model: ReopenedRun, at: Ready, splits: Sequence[str] | None = ("test",)
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
        first, last = client_blocks.offsets(at.run.federation.sizes(split)[at.clients])[position : position + 2]
        answers[split] = Answer({name: values[first:last] for name, values in parts.items()}, tuned, remarks)
    return answers, predicted.predictor.model_of(at.client)


def predict_global(model: ReopenedRun, x: NDArray[Any], execution: Execution) -> Answer:
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


def pool_answers(artifact: Artifact, methods: Sequence[str], answers: Sequence[Answer], client: int | None) -> Answer:
    """Return what a stack answers, from the ``answers`` of its sources, of these ``methods``, in their order.

    ``client`` is the client's number; one that is not known (None) keeps the global model or, where the stack has none,
    has the common exponents.
    """
    known = pooled_answers([answer.parts for answer in answers], methods)
    names = [*artifact.manifest.summary["exponents"]]
    content = artifact.read(STATE)
    with artifact.parsing(STATE):
        exponents = load(content)["exponents"].astype(np.float64)
        if exponents.shape != (len(known),) or len(names) != len(known):
            raise ValueError(f"{exponents.shape[0]} exponents for {len(known)} learners")
    tuned = {} if client is None else {key: float(value[client]) for key, value in predictions.tuned(artifact).items()}
    own = np.asarray([tuned.get(f"exponent {name}", value) for name, value in zip(names, exponents, strict=True)])
    p = pool.answer(pool.logarithms(known), own).astype(np.float32)
    base = _base(methods, names, known)
    remarks = tuple(dict.fromkeys(remark for answer in answers for remark in answer.remarks))
    if base is None:
        return Answer({"p": p}, tuned, remarks)
    keeps_global = client is None or not tuned.get("pooled", 1.0)
    return Answer({"p": base if keeps_global else p, GLOBAL: base}, tuned, remarks)


def _base(methods: Sequence[str], names: Sequence[str], known: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """Return the answers of the global model, None if no learner is it."""
    if BASE in methods:
        return known[methods.index(BASE)]
    by_name: Mapping[str, NDArray[Any]] = dict(zip(names, known, strict=True))
    return by_name.get(GLOBAL)


@dataclass(frozen=True)
class Answerer:
    """Predictions with the ``run`` that made them or, of a stack, with its ``sources`` in their order."""

    artifact: Artifact
    run: ReopenedRun | None
    sources: tuple[Answerer, ...] = ()

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.artifact.manifest.request["method"])

    @property
    def partition(self) -> Artifact:
        """The partition whose clients were reopened_run."""
        return self.sources[0].partition if self.run is None else self.run.partition

    def changed_code(self) -> list[str]:
        """Return the files of the registry that have changed since the predictions were made."""
        own = [] if self.run is None else reopened_run.changed_code(self.artifact)
        return sorted({*own, *(name for source in self.sources for name in source.changed_code())})

    def answer(self, client: int | None, x: NDArray[Any], execution: Execution) -> Answer:
        """Return what a client, by its number, answers for samples (n, ...); None is the global model.

        Raises InputError if there is no global model, ComputationError if the method cannot answer.
        """
        if self.run is None:
            answers = [source.answer(client, x, execution) for source in self.sources]
            return pool_answers(self.artifact, [source.method for source in self.sources], answers, client)
        if client is None:
            return predict_global(self.run, x, execution)
        by_split, _ = predict_client(self.run, ready(self.run, client, x, execution))
        return by_split["test"]


def open_answerer(artifact: Artifact, weights: Path | str | None = None) -> Answerer:
    """Open predictions and what made them; raises as ``reopened_run.reopen``."""
    if artifact.manifest.request["method"] != STACK:
        return Answerer(artifact, reopened_run.reopen(artifact, weights))
    sources = [follow(artifact, reference) for reference in artifact.manifest.inputs if reference.role == "pooled"]
    began = [weights if "weights" in source.manifest.request else None for source in sources]
    return Answerer(
        artifact, None, tuple(open_answerer(source, file) for source, file in zip(sources, began, strict=True))
    )
