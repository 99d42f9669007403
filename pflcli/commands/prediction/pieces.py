"""What one client's answers consist of: preprocessing, one network, and for kNN-Per the client's store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import models, parameters
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.make import Execution
from pflcli.commands.prediction import answering, personalized
from pflcli.commands.prediction.answering import Answer, Ready
from pflcli.commands.prediction.personalized import Personalized
from pflcli.engine.engine import probabilities
from pflcli.engine.local_sgd import is_stacked
from pflcli.errors import InputError
from pflcli.fl.run import Predictor, Run
from pflcli.knn import indexes
from pflcli.knn.flat_format import flat_vectors
from pflcli.models import Net
from pflcli.parameters import Params, Stacked, TrainedClients
from pflcli.parameters.model_table import ModelTable
from pflcli.preparation.preprocessing import Preprocessing

_CLOSE = 1e-5
"""Largest difference of probabilities up to which a network answers as its client does."""


@dataclass(frozen=True)
class Store:
    """A client's stored samples: representations ``z`` (n, d) and classes ``y`` (n,)."""

    z: NDArray[np.float32]
    y: NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """What one client's answers consist of.

    ``preprocessing`` makes samples from raw ones, and ``pixels`` says how a model takes those of images: divided by
    255, less the mean of each channel (C,), by its deviation (C,); None leaves them in [0, 1]. ``network`` then gives
    the logits. With a ``store``, Eq. 7 of kNN-Per mixes the network's answer with that of the neighbours by the options
    ``cfg`` and what the client chose, ``tuned``. ``classes`` (C,) are their names.
    """

    method: str
    client: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    pixels: tuple[NDArray[np.float32], NDArray[np.float32]] | None
    network: Net
    store: Store | None
    cfg: Any
    tuned: Mapping[str, float]


def pieces(model: Personalized, client: int, execution: Execution) -> Pieces:
    """Return what the answers of a client, by its number, consist of.

    Raises InputError if the method answers in another way than by one network, or by kNN-Per's store beside it.
    """
    data = partitions.read(model.partition)
    first, last = data.offsets[3 * client + 2 : 3 * client + 4]
    samples = data.x[first:last] if last > first else data.x[:1]
    at = answering.ready(model, client, samples, execution)
    answer = answering.client_answer(model, at)
    store = store_of(at.run, client) if model.name == "knn-per" else None
    params = network_of(model, at, answer) if store is None else at.run.backbone
    if params is None:
        raise InputError(f"{model.name} does not answer by one network, so that it has none to export")
    network = models.create(
        model.settings.model, at.run.federation.in_shape, data.classes, model.seed, tokens=data.x.dtype == np.int16
    )
    for name, value in parameters.state(network).items():
        value.data.copy_(params[name])
    book = codebook.read(model.artifact)
    name = personalized.client_names(model.artifact)[client]
    return Pieces(
        model.name,
        name,
        tuple(book.class_names(data.classes)),
        personalized.preprocessing_of(model.artifact, model.partition, book, name),
        _pixels(at.run),
        network.eval(),
        store,
        model.cfg,
        answer.tuned,
    )


def network_of(model: Personalized, at: Ready, answer: Answer) -> Params | None:
    """Return the parameters of the network whose probabilities are the client's ``answer``; None if there is none."""
    recorded: list[Params] = []
    run, predict = at.run, at.run.predictor

    def recording(
        clients: NDArray[np.int64],
        models: Params | Stacked | ModelTable | Iterable[TrainedClients],
        splits: tuple[str, ...] | None = None,
    ) -> Predictor:
        parts = models if isinstance(models, dict | ModelTable) else list(models)
        recorded.append(_of_client(run, clients, parts, at.client))
        return predict(clients, parts, splits)

    run.predictor = recording  # type: ignore[method-assign]
    try:
        with run.personalizing():
            model.method.personalize(run, at.state, at.clients)
    finally:
        del run.predictor
    rows = run.federation.rows(at.client, "test")
    for params in recorded:
        p = probabilities(run.engine.infer(params, rows)[0])
        if np.allclose(p, answer.parts["p"], rtol=0, atol=_CLOSE):
            return params
    return None


def _of_client(
    run: Run, clients: NDArray[np.int64], models: Params | Stacked | ModelTable | list[TrainedClients], client: int
) -> Params:
    """Return one client's model out of what ``Run.predictor`` takes."""
    if isinstance(models, ModelTable):
        return parameters.pick(models[[client]], 0)
    if isinstance(models, dict):
        place = int(np.flatnonzero(clients == client)[0])
        return parameters.pick(models, place) if is_stacked(models, run.init) else models
    part = next(part for part in models if client in part.clients)
    return parameters.pick(part.params, int(np.flatnonzero(part.clients == client)[0]))


def store_of(run: Run, client: int) -> Store:
    """Return a client's store; raises InputError for a compressed index, whose vectors cannot be read."""
    assert run.stores is not None
    stores, size = run.stores, int(run.stores.train[client])
    vectors = flat_vectors(stores.blob[stores.bytes[client] : stores.bytes[client + 1]])
    if vectors is None:
        raise InputError("the client's store is compressed", f"pfl build-datastore EMBEDDINGS --index {indexes.EXACT}")
    labels = stores.y[stores.offsets[client] : stores.offsets[client] + size]
    return Store(np.array(vectors[:size]), np.array(labels))


def _pixels(run: Run) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Return mean and deviation (C,) of the channels of images, None if they are not normalized."""
    if run.federation.scale is None:
        return None
    mean, deviation = (values.flatten().cpu().numpy() for values in run.federation.scale)
    return mean, deviation
