"""Model inversion: images that a client's model assigns to a class with the highest probability.

Fredrikson et al. (2015), https://doi.org/10.1145/2810103.2813677, Algorithm 1: gradient descent on an image. The loss
is the cross-entropy of the client's prediction, including the votes of its store, plus the total variation of the
image, which keeps it smooth. Adam starts from a black image.

A white-box attacker has the client's model. A black-box attacker only sees predictions and estimates the gradients from
them, at random displacements of the image in antithetic pairs (natural evolution strategies: Ilyas et al. 2018,
https://arxiv.org/abs/1804.08598, section 3.1; section 3.3 for predictions that are labels only). The mean over
displacements is smooth even where predictions are not, as with rounded probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.artifacts.kinds.partition import Partition
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.core.knn.stores import NeighbourVote
from pflcli.prediction.disclosure import Disclosure
from pflcli.prediction.standalone_model import StandaloneModel, build_standalone_model
from pflcli.prediction.stored_predictor import StoredPredictor

STEPS, RATE, SMOOTHNESS = 200, 0.05, 0.5
DIRECTIONS, SPREAD = 100, 0.2
"""Pairs of displacements per step, and their standard deviation in pixel values of [0, 1]."""
_TINY = 1e-12
_MIN_PROBABILITY = 1e-6
"""Smallest probability in an estimated loss, so that one displacement does not outweigh all others."""


@dataclass(frozen=True)
class Inversion:
    """Inverted ``pictures`` (C, h, w) or (C, h, w, 3) in [0, 1] of all classes, for one client's model.

    ``certainty`` (C,) is the predicted probability of the class. ``recognized`` (C,) is the class whose mean test image
    over all clients correlates most with the picture. ``correlation`` (C,) is the correlation with the mean of the
    client's own ``samples`` (C,) training images of the class, nan if it has none.
    """

    client: int
    pictures: NDArray[np.float64]
    certainty: NDArray[np.float64]
    recognized: NDArray[np.int64]
    samples: NDArray[np.int64]
    correlation: NDArray[np.float64]


def invert_classes(
    predictor: StoredPredictor,
    data: Partition,
    clients: Sequence[int],
    execution: Execution,
    disclosed: Disclosure | None = None,
) -> tuple[list[Inversion], list[str]]:
    """Invert all classes with the models of these clients; also return the reason if that is impossible.

    With ``disclosed`` the attacker has no model and sees only what that discloses.
    """
    if not len(clients):
        return [], []
    if data.x.dtype != np.uint8 or data.x.ndim not in (3, 4):
        return [], ["classes are not inverted: samples are not images"]
    if predictor.run is None:
        return [], ["classes are not inverted: a stack predicts by several methods"]
    results = []
    for client in clients:
        try:
            results.append(
                _invert_client(build_standalone_model(predictor.run, client, execution), data, client, disclosed)
            )
        except InputError as error:
            return results, [f"classes are not inverted: {error.message}"]
    return results, []


def summarize(results: Sequence[Inversion]) -> dict[str, Any]:
    """Return how many inverted classes are recognized, among those that the clients have; empty without pictures."""
    if not results:
        return {}
    known = [(item.recognized == np.arange(len(item.recognized)))[item.samples > 0] for item in results]
    near = [item.correlation[item.samples > 0] for item in results]
    return {
        "inverted": {
            "clients": len(results),
            "classes": int(sum(map(len, known))),
            "recognized": int(sum(part.sum() for part in known)),
            "correlation": float(np.nanmean(np.concatenate(near))),
        }
    }


def _invert_client(model: StandaloneModel, data: Partition, client: int, disclosed: Disclosure | None) -> Inversion:
    count = len(model.classes)
    shape = data.x.shape[1:]
    channels_first = (1, *shape) if len(shape) == 2 else (shape[2], *shape[:2])
    pictures, certainty = _optimize_pictures(model, channels_first, count, disclosed)
    images = np.moveaxis(pictures, 1, -1)
    images = images[..., 0] if images.shape[-1] == 1 else images
    flat = images.reshape(count, -1)
    client_of = np.repeat(np.arange(len(data.names)), data.sizes.sum(axis=1))
    split = np.repeat(np.tile(np.arange(3), len(data.names)), data.sizes.ravel())
    everywhere, _ = _mean_images(data, split == 2, count)
    own, samples = _mean_images(data, (split == 0) & (client_of == client), count)
    with_each = np.stack([[_correlation(picture, mean) for mean in everywhere] for picture in flat])
    correlation = np.asarray([_correlation(picture, mean) for picture, mean in zip(flat, own, strict=True)])
    recognized = np.where(np.isnan(with_each), -np.inf, with_each).argmax(axis=1)
    return Inversion(client, images, certainty, recognized, samples, correlation)


def _optimize_pictures(
    model: StandaloneModel, shape: tuple[int, ...], count: int, disclosed: Disclosure | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return pictures (C, channels, h, w) in [0, 1] and the predicted probability of each one's class, (C,)."""
    picture, target = torch.zeros((count, *shape), requires_grad=True), torch.arange(count)
    optimizer, draw = torch.optim.Adam([picture], lr=RATE), np.random.default_rng(0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = SMOOTHNESS * _variation(picture)
        if disclosed is None:
            loss = loss - (_predict(model, picture)[target, target] + _TINY).log().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        if disclosed is not None:
            with torch.no_grad():
                estimated = estimate_gradient(partial(_predict, model), disclosed, picture, draw)
                picture.grad = estimated if picture.grad is None else picture.grad + estimated
        optimizer.step()
        with torch.no_grad():
            picture.clamp_(0, 1)
    with torch.no_grad():
        p = _predict(model, picture)[target, target]
    return picture.detach().double().numpy(), p.double().numpy()


def estimate_gradient(
    predict: Callable[[Tensor], Tensor], disclosed: Disclosure, pictures: Tensor, draw: np.random.Generator
) -> Tensor:
    """Estimate the gradients (C, channels, h, w) of the loss of ``pictures``, one per class, from predictions alone.

    The loss is -log p of the class, where p is what ``disclosed`` leaves of the prediction, but no less than its
    ``least_probability``.
    """
    count, shape = len(pictures), pictures.shape[1:]
    u = torch.from_numpy(draw.standard_normal((DIRECTIONS, *shape), dtype=np.float32))
    target, losses = np.repeat(np.arange(count), DIRECTIONS), []
    for sign in (SPREAD, -SPREAD):
        p = disclosed.apply(predict((pictures[:, None] + sign * u).reshape(-1, *shape)).numpy())
        own = np.maximum(p[np.arange(len(p)), target], max(disclosed.least_probability, _MIN_PROBABILITY))
        losses.append(torch.from_numpy(-np.log(own)).reshape(count, DIRECTIONS))
    slope = (losses[0] - losses[1]) / (2 * SPREAD * DIRECTIONS)
    return (slope @ u.flatten(1)).reshape(pictures.shape)


def _variation(picture: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, summed over pictures."""
    return (picture.diff(dim=2).abs().mean() + picture.diff(dim=3).abs().mean()) * len(picture)


def _predict(model: StandaloneModel, picture: Tensor) -> Tensor:
    """Return the client's predicted probabilities (n, C), differentiable with respect to ``picture``."""
    x = picture
    if model.pixels is not None:
        mean, deviation = (torch.from_numpy(values).reshape(1, -1, 1, 1) for values in model.pixels)
        x = (picture - mean) / deviation
    p = torch.stack(
        [share * net(x).softmax(dim=1) for net, share in zip(model.networks, model.shares, strict=True)]
    ).sum(dim=0)
    if model.neighbours is None:
        return p
    votes, nearest = _votes(model.neighbours, model.networks[0].features(x), p.shape[1])
    weight = model.neighbours.weight * (1 - model.neighbours.decay * nearest).clamp(min=0)[:, None]
    return weight * votes + (1 - weight) * p


def _votes(store: NeighbourVote, z: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the votes (n, C) of the nearest stored samples (kNN-Per, Eq. 6) and the smallest distance (n,)."""
    if store.store.z is None:
        raise InputError("the client's store is compressed and has no exact vectors")
    stored, labels = torch.from_numpy(store.store.z), torch.from_numpy(store.store.y)
    squared = (z[:, None] - stored[None]).square().sum(dim=2)
    distance = squared / z.shape[1] if store.kernel == "scaled-squared" else (squared + _TINY).sqrt()
    near, row = distance.topk(min(store.k, len(labels)), dim=1, largest=False)
    weight = (-near / store.sigma).softmax(dim=1)
    return torch.zeros(len(z), classes).scatter_add(1, labels[row], weight), near[:, 0]


def _mean_images(
    data: Partition, chosen: NDArray[np.bool_], count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the mean image (C, pixels) of each class over the ``chosen`` samples, nan for none, and their counts."""
    rows = np.flatnonzero(chosen)
    samples = np.bincount(data.y[rows], minlength=count)
    means = np.full((count, int(np.prod(data.x.shape[1:]))), np.nan)
    for number in np.flatnonzero(samples).tolist():
        own = data.x[rows[data.y[rows] == number]]
        means[number] = own.reshape(len(own), -1).mean(axis=0) / 255
    return means, samples.astype(np.int64)


def _correlation(picture: NDArray[np.float64], mean: NDArray[np.float64]) -> float:
    """Return Pearson's correlation of two images, nan if one has no contrast."""
    if not np.isfinite(mean).all() or picture.std() == 0 or mean.std() == 0:
        return float("nan")
    return float(np.corrcoef(picture, mean)[0, 1])
