"""The complete model of one client: preprocessing, one or several networks, and the store of kNN-Per."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.kinds.partition import Partition
from pflcli.core import parameters
from pflcli.core.engine.tasks import Task
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.core.federation.run import Run
from pflcli.core.knn.stores import NeighbourVote
from pflcli.core.models import Net
from pflcli.core.parameters import Params
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.workflow.prediction import reopened_run, stored_predictor
from pflcli.workflow.prediction.encoders import FrozenEncoder, StoredEncoder
from pflcli.workflow.prediction.reopened_run import ReopenedRun


@dataclass(frozen=True)
class StandaloneModel:
    """The complete model of one client, from raw samples to predictions.

    ``preprocessing`` turns raw samples into samples of the partition. If it takes features from ``pfl embed``, the
    frozen ``encoder`` computes them from images; None if its weights are missing. For images, ``pixels`` are the
    mean and the standard deviation of each channel, (C,), by which pixels / 255 are normalized; with None they stay in
    [0, 1]. The predictions of the ``networks`` are summed with the weights ``shares``. With ``neighbours``, the votes
    of a store are mixed in. ``classes`` (C,) are class names, none of another ``task``. ``x`` (n, ...) are the client's
    test samples, or its other samples if it has none, and ``p`` (n, C) the predictions for them.
    """

    method: str
    client: str
    task: Task
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    pixels: tuple[NDArray[np.float32], NDArray[np.float32]] | None
    networks: tuple[Net, ...]
    shares: tuple[float, ...]
    neighbours: NeighbourVote | None
    x: NDArray[Any]
    p: NDArray[np.float32]
    encoder: FrozenEncoder | None = None


def build_standalone_model(
    model: ReopenedRun, client: int, execution: Execution, encoder_weights: Path | str | None = None
) -> StandaloneModel:
    """Return the complete model of a client, given by its number.

    ``encoder_weights`` is the file with the weights of the encoder, if one computed the features. Raises InputError if
    the method needs more than networks and a store to predict, or the client has no sound model.
    """
    data, _ = stored_predictor.read_samples(model, client)
    samples = _own_samples(data, client)
    prepared = stored_predictor.prepare_client(model, client, samples, execution)
    prepared = replace(prepared, run=replace(prepared.run, keeps_models=True))
    by_split, own = stored_predictor.predict_client(model, prepared)
    predicted = by_split["test"]
    name = reopened_run.client_names(model.artifact)[client]
    if predicted.remarks:
        raise InputError(f"client {name} has no sound model: {'; '.join(predicted.remarks)}")
    if own is None:
        raise InputError(
            f"{model.name} cannot be exported: with these options it needs more than networks and a store to predict",
            f"pfl predict {model.artifact.path} DATA --client NAME predicts with it",
        )
    book = codebook.read(model.artifact)
    preprocessing = reopened_run.read_preprocessing(
        model.artifact, model.partition, book, name, execution, encoder_weights
    )
    return StandaloneModel(
        model.name,
        name,
        prepared.run.task,
        tuple(book.class_names(data.classes)) if data.labels.fields is None else (),
        preprocessing,
        _pixels(prepared.run),
        tuple(_network(prepared.run, params) for params in own.networks),
        own.shares,
        own.neighbours,
        samples,
        predicted.parts["p"],
        _open_encoder(preprocessing, execution, is_required=encoder_weights is not None),
    )


def _open_encoder(preprocessing: Preprocessing, execution: Execution, *, is_required: bool) -> FrozenEncoder | None:
    """Return the encoder of the features, None if there is none or its weights are missing.

    Raises InputError instead if the weights are ``is_required`` and missing.
    """
    stored = preprocessing.encoder
    if not isinstance(stored, StoredEncoder):
        return None
    try:
        return stored.opened
    except InputError as error:
        if is_required:
            raise
        execution.reporter.say(f"the model will take features instead of images: {error.message}")
        return None


def _own_samples(data: Partition, client: int) -> NDArray[Any]:
    """Return a client's test samples (n, ...), or its other samples if it has none: these have the client's scale.

    A client without samples has no scale of its own, so any sample of another client will do.
    """
    first, test, last = data.offsets[3 * client + np.asarray([0, 2, 3])]
    x = data.x[test:last] if last > test else data.x[first:last]
    return x if len(x) else data.x[:1]


def _network(run: Run, params: Params) -> Net:
    """Return the network with these parameters, in evaluation mode."""
    network = copy.deepcopy(run.network)
    assert isinstance(network, Net)  # of every run that ``create_run`` returns
    parameters.load(network, params)
    return network.eval()


def _pixels(run: Run) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Return mean and standard deviation (C,) of the channels of images, None if they are not normalized."""
    if run.federation.scale is None:
        return None
    mean, deviation = (values.flatten().cpu().numpy() for values in run.federation.scale)
    return mean, deviation
