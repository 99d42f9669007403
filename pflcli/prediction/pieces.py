"""What one client's answers consist of: preprocessing, one or several networks, and the store of kNN-Per."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli import models, parameters
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.make import Execution
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.engine.engine import probabilities
from pflcli.engine.local_sgd import is_stacked
from pflcli.errors import InputError
from pflcli.federation.run import Predictor, Run
from pflcli.knn import indexes
from pflcli.knn.flat_format import flat_vectors
from pflcli.methods import fedavg_plus
from pflcli.methods.parts.class_counts import shrunk_prior
from pflcli.models import Net
from pflcli.parameters import Params, Stacked, TrainedClients
from pflcli.parameters.model_table import ModelTable
from pflcli.prediction import answering, personalized
from pflcli.prediction.answering import Answer, Ready
from pflcli.prediction.personalized import Personalized

_CLOSE = 1e-5
"""Largest difference of probabilities up to which a network answers as its client does."""


@dataclass(frozen=True)
class Store:
    """A client's stored samples: classes ``y`` (n,), and representations ``z`` (n, d) or a compressed FAISS ``index``.

    The index may hold samples behind the first n, which do not count.
    """

    y: NDArray[np.int64]
    z: NDArray[np.float32] | None = None
    index: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Neighbours:
    """A store and how it answers: kNN-Per, Eq. 6 and 7, with what the client chose by its validation samples.

    ``k`` neighbours at distance d, or d^2 / dimension with ``kernel`` scaled-squared, weigh exp(-d / sigma). Their
    answer is mixed with the network's by lambda, which falls by ``decay`` per distance to the nearest of them.
    """

    store: Store
    k: int
    weight: float
    sigma: float
    decay: float
    kernel: str


@dataclass(frozen=True)
class Pieces:
    """What one client's answers consist of.

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
    neighbours: Neighbours | None
    x: NDArray[Any]
    p: NDArray[np.float32]


def pieces(model: Personalized, client: int, execution: Execution) -> Pieces:
    """Return what the answers of a client, by its number, consist of.

    Raises InputError if the method answers in another way than by networks, or by a store beside one.
    """
    data, _ = answering.samples_of(model, client)
    samples = _own_samples(data, client)
    at = answering.ready(model, client, samples, execution)
    answer = answering.client_answer(model, at)
    name = personalized.client_names(model.artifact)[client]
    if answer.remarks:
        raise InputError(f"client {name} has no sound model: {'; '.join(answer.remarks)}")
    networks, shares, store = _parts(model, at, answer)
    book = codebook.read(model.artifact)
    return Pieces(
        model.name,
        name,
        tuple(book.class_names(data.classes)),
        personalized.preprocessing_of(model.artifact, model.partition, book, name),
        _pixels(at.run),
        tuple(_network(model, at.run, data.x.dtype == np.int16, params) for params in networks),
        shares,
        _neighbours(model, answer, store),
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


def _parts(model: Personalized, at: Ready, answer: Answer) -> tuple[list[Params], tuple[float, ...], Store | None]:
    """Return the parameters of networks, the share of each in the answer, and the store, None if there is none.

    Raises InputError if the method answers in another way.
    """
    run = at.run
    if model.name in ("knn-per", "knn-per-plus") and model.cfg.vote != "distance":
        raise InputError(
            f"the neighbours of {model.name} vote by {model.cfg.vote}, not by distance, so that it cannot be exported",
            f"pfl predict {model.artifact.path} DATA --client NAME answers by it",
        )
    if model.name == "knn-per":
        assert run.backbone is not None
        return [run.backbone], (1.0,), store_of(run, at.client)
    if model.name == "knn-per-plus":
        params = _fine_tuned(at)
        return [params], (1.0,), _store_by(run, params, at.client)
    if model.name == "fedem":
        shares = tuple(answer.tuned[f"pi_{k + 1}"] for k in range(len(answer.tuned)))
        return [parameters.pick(at.state["components"], k) for k in range(len(shares))], shares, None
    if model.name == "fedavg-plus" and model.cfg.models > 1 and model.cfg.pool == "mean":
        with run.personalizing():
            each = [_of_client(run, at.clients, [*parts], at.client) for parts in fedavg_plus.ensemble(run, at.clients)]
        return each, (1 / len(each),) * len(each), None
    single = _corrected(at) if model.name == "prior" else network_of(model, at, answer)
    if single is None:
        raise InputError(
            f"{model.name} answers by more than a network and a store, so that it cannot be exported",
            f"pfl predict {model.artifact.path} DATA --client NAME answers by it",
        )
    return [single], (1.0,), None


def _fine_tuned(at: Ready) -> Params:
    """Return the network that the client has fine-tuned from the backbone."""
    with at.run.personalizing():
        parts = list(fedavg_plus.fine_tuned(at.run, at.clients))
    return _of_client(at.run, at.clients, parts, at.client)


def _store_by(run: Run, params: Params, client: int) -> Store:
    """Return a store of a client's training samples, embedded by this network."""
    rows = run.federation.rows(client, "train")
    if not len(rows):
        return Store(np.zeros(0, np.int64), np.zeros((0, 1), np.float32))
    _, z = run.engine.infer(params, rows, features=True)
    return Store(run.federation.y[torch.from_numpy(rows)].cpu().numpy(), z.cpu().numpy())


def _corrected(at: Ready) -> Params | None:
    """Return the backbone with a last bias that corrects its answers as ``prior`` does, None if it has no such bias."""
    run = at.run
    assert run.backbone is not None
    if "head.bias" not in run.backbone:
        return None
    prior, own = shrunk_prior(run, np.asarray([at.client]), at.state["shared"]["prior"], run.cfg.kappa)
    offsets = run.cfg.strength * (np.log(own[0]) - np.log(prior))
    bias = run.backbone["head.bias"]
    return {**run.backbone, "head.bias": (bias.double() + torch.from_numpy(offsets).to(bias.device)).to(bias)}


def _network(model: Personalized, run: Run, is_tokens: bool, params: Params) -> Net:
    """Return the model with these parameters, as it answers."""
    shape, classes = run.federation.in_shape, run.federation.classes
    network = models.create(model.settings.model, shape, classes, model.seed, tokens=is_tokens)
    for name, value in parameters.state(network).items():
        value.data.copy_(params[name])
    return network.eval()


def _neighbours(model: Personalized, answer: Answer, store: Store | None) -> Neighbours | None:
    """Return how a store answers, None if there is none or it is empty: then the network answers alone."""
    if store is None or not len(store.y):
        return None
    chosen, cfg = answer.tuned, model.cfg
    sigma = chosen["sigma"] if cfg.sigma == "auto" else float(cfg.sigma)
    return Neighbours(store, cfg.k, chosen["lambda"], sigma, chosen.get("decay", 0.0), cfg.kernel)


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
    """Return a client's store."""
    assert run.stores is not None
    stores, size = run.stores, int(run.stores.train[client])
    blob = stores.blob[stores.bytes[client] : stores.bytes[client + 1]]
    labels = np.array(stores.y[stores.offsets[client] : stores.offsets[client] + size])
    vectors = flat_vectors(blob) if size else np.zeros((0, 1), np.float32)
    if vectors is None:
        return Store(labels, index=indexes.first_rows(blob, size))
    return Store(labels, np.array(vectors[:size]))


def _pixels(run: Run) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Return mean and deviation (C,) of the channels of images, None if they are not normalized."""
    if run.federation.scale is None:
        return None
    mean, deviation = (values.flatten().cpu().numpy() for values in run.federation.scale)
    return mean, deviation
