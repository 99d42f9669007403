"""Predict further samples with stored predictions: with the run that made them or, for a stack, with its sources.

The samples replace the client's test samples in the federation; all other samples stay. The method's ``personalize``
then predicts for the same batch of clients as in the original run, because the last bits of a sum depend on the batch.
This way the stored test samples get the stored predictions bit for bit.
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
from pflcli.artifacts.kinds import predictions, read_labels
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.reader import Artifact, follow
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.federation.predictor import ClientModel
from pflcli.core.federation.run import Run
from pflcli.core.methods import State
from pflcli.core.simulation import absences
from pflcli.core.simulation.predict import client_batches, predict
from pflcli.methods.parts import logarithmic_pool as pool
from pflcli.methods.parts.logarithmic_pool import BASE, GLOBAL, KEPT, STACK
from pflcli.workflow.prediction import embedding, reopened_run
from pflcli.workflow.prediction.reopened_run import ReopenedRun, append_clients
from pflcli.workflow.training.state_files import STATE, load_state

_TEST = SPLITS.index("test")


@dataclass(frozen=True)
class ClientPrediction:
    """The predictions of one client: ``parts`` (n, C) including ``p``, and the options it tuned on validation samples.

    ``remarks`` say what went wrong with its model or with a sample.
    """

    parts: Mapping[str, NDArray[np.float32]]
    tuned: Mapping[str, float]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedClient:
    """A run and a state that can predict for ``client``, which is one of the batch ``clients`` (c,)."""

    run: Run
    state: State
    clients: NDArray[np.int64]
    client: int


def replace_test_samples(data: Partition, client: int, x: NDArray[Any]) -> Partition:
    """Return the partition with the test samples of a client replaced by ``x`` (n, ...)."""
    block = len(SPLITS) * client + _TEST
    first, last = data.offsets[block : block + 2]
    offsets = data.offsets.copy()
    offsets[block + 1 :] += len(x) - (last - first)
    return replace(
        data,
        x=np.concatenate([data.x[:first], x, data.x[last:]]),
        y=np.concatenate([data.y[:first], np.zeros(len(x), data.y.dtype), data.y[last:]]),
        sample=np.concatenate([data.sample[:first], np.full(len(x), -1), data.sample[last:]]),
        offsets=offsets,
    )


def read_samples(model: ReopenedRun, client: int) -> tuple[Partition, bool]:
    """Return the samples of all clients up to ``client``, and whether it joined after the rounds."""
    data = partitions.read(model.partition)
    if client < len(data.names):
        return data, False
    assert model.later is not None
    return append_clients(data, model.later, client + 1), True


def prepare_client(model: ReopenedRun, client: int, x: NDArray[Any] | None, execution: Execution) -> PreparedClient:
    """Build the run and load the state to predict samples ``x`` (n, ...) for a client, given by its number.

    Without ``x`` these are its own test samples. A client that joined after the rounds is in a batch of its own.
    """
    execution = model.execution(execution)
    data, is_later = read_samples(model, client)
    if x is not None:
        data = replace_test_samples(data, client, x)
    inputs = model.read_inputs(data, execution)
    if inputs.embeddings is not None and is_later:
        inputs = embedding.append_later_clients(inputs, model.lineage, data, execution)
    elif inputs.embeddings is not None and x is not None:
        inputs = embedding.embed_queries(inputs, model.lineage, data, client, execution)
    run = model.build(data, execution, inputs)
    state = load_state(model.artifact, run, model.method)
    if is_later:
        return PreparedClient(run, state, run.clients[client : client + 1], client)
    batch = next(clients for clients in client_batches(run) if client in clients)
    return PreparedClient(run, state, batch, client)


def predict_client(
    model: ReopenedRun, prepared: PreparedClient, splits: Sequence[str] | None = ("test",)
) -> tuple[dict[str, ClientPrediction], ClientModel | None]:
    """Return the client's predictions by split, and its model if it has one; see ``Predictor.model_of``.

    ``splits`` is None for all splits that ``personalize`` stores. Raises ComputationError if the method cannot predict.
    """
    predicted = predict(prepared.run, model.name, model.method, prepared.state, prepared.clients, splits)
    position = int(np.flatnonzero(prepared.clients == prepared.client)[0])
    remarks = tuple(text for kind, text in absences.FAILURES.items() if predicted.flags[kind][position])
    tuned = {name: float(values[position]) for name, values in predicted.predictor.tuned.items()}
    predictions_by_split = {}
    for split, parts in predicted.parts.items():
        first, last = client_blocks.offsets(prepared.run.federation.sizes(split)[prepared.clients])[
            position : position + 2
        ]
        predictions_by_split[split] = ClientPrediction(
            {name: values[first:last] for name, values in parts.items()}, tuned, remarks
        )
    return predictions_by_split, predicted.predictor.model_of(prepared.client)


def predict_global(model: ReopenedRun, x: NDArray[Any], execution: Execution) -> ClientPrediction:
    """Return the global model's predictions for samples ``x``; raises InputError if it cannot predict."""
    execution = model.execution(execution)
    if partitions.read_form(model.partition).labels.task().by_client:
        raise InputError(
            f"{model.name} predicts in deviations from the mean of a client (--standardize-target client), which is not"
            " known of an unknown client",
            f"pfl new-client {model.artifact.path} DATA --client NAME -o DIR",
        )
    # Any client will do: its personal model is not used.
    data = replace_test_samples(partitions.read(model.partition), 0, x)
    run = model.build(data, execution)
    shared = run.backbone or load_state(model.artifact, run, model.method).get("global")
    if not isinstance(shared, Mapping) or shared.keys() != run.init.keys():
        raise InputError(
            f"{model.name} has no global model, so it cannot predict for an unknown client",
            f"pfl show {model.partition.path} lists its clients",
        )
    rows = run.federation.rows(0, "test")
    p = run.task.predict(run.engine.infer(dict(shared), rows)[0])
    lost: NDArray[np.bool_] = np.asarray(~np.isfinite(p).all(axis=1))
    remarks = (absences.FAILURES["overflowed"],) if lost.any() else ()
    return ClientPrediction({"p": np.where(lost[:, None], run.task.default(), p)}, {}, remarks)


def pool_predictions(
    artifact: Artifact, methods: Sequence[str], sources: Sequence[ClientPrediction], client: int | None
) -> ClientPrediction:
    """Return the predictions of a stack from the predictions of its ``sources``, made by ``methods`` in this order.

    ``client`` is the client's number. An unknown client (None) gets the global model or, if the stack has none, the
    common exponents.
    """
    known = pool.select_members([source.parts for source in sources], methods)
    names = [*artifact.manifest.summary["exponents"]]
    content = artifact.read(STATE)
    with artifact.parsing(STATE):
        exponents = load(content)["exponents"].astype(np.float64)
        if exponents.shape != (len(known),) or len(names) != len(known):
            raise ValueError(f"{exponents.shape[0]} exponents for {len(known)} learners")
    tuned = (
        {} if client is None else {key: float(value[client]) for key, value in predictions.read_tuned(artifact).items()}
    )
    own = np.asarray([tuned.get(f"exponent {name}", value) for name, value in zip(names, exponents, strict=True)])
    rule = pool.choose_rule(read_labels(artifact.manifest, known[0].shape[1]).task())
    p = rule.predict(rule.read(known), own).astype(np.float32)
    if tuned.get(KEPT):
        p = rule.answer(rule.read(known)[:, methods.index(KEPT)]).astype(np.float32)
    base = _find_global(methods, names, known)
    remarks = tuple(dict.fromkeys(remark for source in sources for remark in source.remarks))
    if base is None:
        return ClientPrediction({"p": p}, tuned, remarks)
    keeps_global = client is None or not (tuned.get("pooled", 1.0) or tuned.get(KEPT))
    return ClientPrediction({"p": base if keeps_global else p, GLOBAL: base}, tuned, remarks)


def _find_global(methods: Sequence[str], names: Sequence[str], known: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """Return the predictions of the global model, None if the stack does not pool it."""
    if BASE in methods:
        return known[methods.index(BASE)]
    by_name: Mapping[str, NDArray[Any]] = dict(zip(names, known, strict=True))
    return by_name.get(GLOBAL)


@dataclass(frozen=True)
class StoredPredictor:
    """Stored predictions that can predict further samples: with their ``run`` or, for a stack, with its ``sources``."""

    artifact: Artifact
    run: ReopenedRun | None
    sources: tuple[StoredPredictor, ...] = ()

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.artifact.manifest.request["method"])

    @property
    def partition(self) -> Artifact:
        """The partition whose clients the predictions are of."""
        return self.sources[0].partition if self.run is None else self.run.partition

    def find_changed_code(self) -> list[str]:
        """Return the files of methods and models that have changed since the predictions were made."""
        own = [] if self.run is None else reopened_run.find_changed_code(self.artifact)
        return sorted({*own, *(name for source in self.sources for name in source.find_changed_code())})

    def predict(self, client: int | None, x: NDArray[Any], execution: Execution) -> ClientPrediction:
        """Predict samples (n, ...) for a client, given by its number; None is the global model.

        Raises InputError if there is no global model, ComputationError if the method cannot predict.
        """
        if self.run is None:
            members = [source.predict(client, x, execution) for source in self.sources]
            return pool_predictions(self.artifact, [source.method for source in self.sources], members, client)
        if client is None:
            return predict_global(self.run, x, execution)
        by_split, _ = predict_client(self.run, prepare_client(self.run, client, x, execution))
        return by_split["test"]


def open_predictor(artifact: Artifact, weights: Path | str | None = None) -> StoredPredictor:
    """Open stored predictions with the runs that made them; raises whatever ``reopened_run.reopen`` raises.

    For a stack, ``weights`` is the file of all its runs that started from a file.
    """
    if artifact.manifest.request["method"] != STACK:
        return StoredPredictor(artifact, reopened_run.reopen(artifact, weights))
    sources = [follow(artifact, reference) for reference in artifact.manifest.inputs if reference.role == "pooled"]
    if weights is not None and not any("weights" in source.manifest.request for source in sources):
        raise UsageError(f"{artifact.path} was not trained from {weights}", "leave out --weights")
    began = [weights if "weights" in source.manifest.request else None for source in sources]
    return StoredPredictor(
        artifact, None, tuple(open_predictor(source, file) for source, file in zip(sources, began, strict=True))
    )
