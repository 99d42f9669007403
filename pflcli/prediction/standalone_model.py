"""Everything that one client predicts with: preprocessing, one or several networks, and the store of kNN-Per."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import models, parameters
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds.partition import Partition
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.errors import InputError
from pflcli.execution import Execution
from pflcli.federation.run import Run
from pflcli.knn.client_store import NeighbourVote
from pflcli.models import Net
from pflcli.parameters import Params
from pflcli.prediction import answerer, reopened_run
from pflcli.prediction.reopened_run import ReopenedRun


@dataclass(frozen=True)
class StandaloneModel:
    """Everything that one client predicts with, from raw samples to probabilities.

    ``preprocessing`` makes samples from raw ones, and ``pixels`` says how a model takes those of images: divided by
    255, less the mean of each channel (C,), by its deviation (C,); None leaves them in [0, 1]. Each of ``networks``
    then gives logits; their probabilities are summed by ``shares``. With ``neighbours``, the answer of a store is mixed
    in. ``classes`` (C,) are their names. ``x`` (n, ...) are the client's test samples, or if it has none its other
    samples, and ``p`` (n, C) what it answers for them.
    """

    method: str
    client: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    pixels: tuple[NDArray[np.float32], NDArray[np.float32]] | None
    networks: tuple[Net, ...]
    shares: tuple[float, ...]
    neighbours: NeighbourVote | None
    x: NDArray[Any]
    p: NDArray[np.float32]


def standalone_model(model: ReopenedRun, client: int, execution: Execution) -> StandaloneModel:
    """Return everything that a client, by its number, predicts with.

    Raises InputError if the method predicts by more than networks and a store, or the client has no sound model.
    """
    data, _ = answerer.samples_of(model, client)
    samples = _own_samples(data, client)
    at = answerer.ready(model, client, samples, execution)
    at.run.keeps_models = True
    answers, own = answerer.predict_client(model, at)
    answer = answers["test"]
    name = reopened_run.client_names(model.artifact)[client]
    if answer.remarks:
        raise InputError(f"client {name} has no sound model: {'; '.join(answer.remarks)}")
    if own is None:
        raise InputError(
            f"{model.name} cannot be exported: with these options it predicts by more than networks and a store",
            f"pfl predict {model.artifact.path} DATA --client NAME predicts by it",
        )
    book = codebook.read(model.artifact)
    return StandaloneModel(
        model.name,
        name,
        tuple(book.class_names(data.classes)),
        reopened_run.preprocessing_of(model.artifact, model.partition, book, name),
        _pixels(at.run),
        tuple(_network(model, at.run, data.x.dtype == np.int16, params) for params in own.networks),
        own.shares,
        own.neighbours,
        samples,
        answer.parts["p"],
    )


def _own_samples(data: Partition, client: int) -> NDArray[Any]:
    """Return a client's test samples (n, ...), or if it has none its other samples: they have its own scale.

    A client without any sample has no scale of its own either; then one sample of another stands for them.
    """
    first, test, last = data.offsets[3 * client + np.asarray([0, 2, 3])]
    x = data.x[test:last] if last > test else data.x[first:last]
    return x if len(x) else data.x[:1]


def _network(model: ReopenedRun, run: Run, is_tokens: bool, params: Params) -> Net:
    """Return the model with these parameters, as it answers."""
    shape, classes = run.federation.in_shape, run.federation.classes
    network = models.create(model.settings.model, shape, classes, model.seed, tokens=is_tokens)
    for name, value in parameters.state(network).items():
        value.data.copy_(params[name])
    return network.eval()


def _pixels(run: Run) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Return mean and deviation (C,) of the channels of images, None if they are not normalized."""
    if run.federation.scale is None:
        return None
    mean, deviation = (values.flatten().cpu().numpy() for values in run.federation.scale)
    return mean, deviation
