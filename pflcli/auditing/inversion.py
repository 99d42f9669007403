"""Pictures of classes: inputs that a client's model takes for a class with the greatest certainty.

Fredrikson et al. (2015), https://doi.org/10.1145/2810103.2813677, Algorithm 1: gradient descent on a picture for the
cost of not being taken for the class. The attacker has the client's model, as every client has its own. Cost is the
cross-entropy of the client's answer, votes of its store among them, plus the total variation of the picture, which
keeps it smooth. Steps are Adam's, from a black picture. An attacker without the model estimates the gradients, see
``black_box``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.artifacts.kinds.partition import Partition
from pflcli.auditing import black_box
from pflcli.errors import InputError
from pflcli.execution import Execution
from pflcli.knn.client_store import NeighbourVote
from pflcli.prediction.answerer import Answerer
from pflcli.prediction.disclosure import Disclosure
from pflcli.prediction.standalone_model import StandaloneModel, standalone_model

STEPS, RATE, SMOOTHNESS = 200, 0.05, 0.5
_TINY = 1e-12


@dataclass(frozen=True)
class Inverted:
    """Pictures (C, h, w) or (C, h, w, 3) in [0, 1] of all classes, by one client's model, and how near they come.

    ``certainty`` (C,) is the probability that the client answers for the class. ``recognized`` (C,) is the class whose
    mean test picture over all clients correlates most with it. ``correlation`` (C,) is that with the mean of the
    client's training samples of the class, nan where it has none.
    """

    client: int
    pictures: NDArray[np.float64]
    certainty: NDArray[np.float64]
    recognized: NDArray[np.int64]
    samples: NDArray[np.int64]
    correlation: NDArray[np.float64]


def inverted(
    answerer: Answerer,
    data: Partition,
    clients: Sequence[int],
    execution: Execution,
    disclosed: Disclosure | None = None,
) -> tuple[list[Inverted], list[str]]:
    """Return pictures by the models of these clients, and in words why there are none.

    With ``disclosed`` the attacker has no model, and sees that much of answers.
    """
    if not len(clients):
        return [], []
    if data.x.dtype != np.uint8 or data.x.ndim not in (3, 4):
        return [], ["classes are not inverted: samples are not images"]
    if answerer.run is None:
        return [], ["classes are not inverted: a stack answers by several methods"]
    results = []
    for client in clients:
        try:
            results.append(_of_client(standalone_model(answerer.run, client, execution), data, client, disclosed))
        except InputError as error:
            return results, [f"classes are not inverted: {error.message}"]
    return results, []


def summary(results: Sequence[Inverted]) -> dict[str, Any]:
    """Return how many pictures of classes that clients have are recognized, nothing if there are no pictures."""
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


def _of_client(parts: StandaloneModel, data: Partition, client: int, disclosed: Disclosure | None) -> Inverted:
    count = len(parts.classes)
    shape = data.x.shape[1:]
    channels_first = (1, *shape) if len(shape) == 2 else (shape[2], *shape[:2])
    pictures, certainty = _descended(parts, channels_first, count, disclosed)
    images = np.moveaxis(pictures, 1, -1)
    images = images[..., 0] if images.shape[-1] == 1 else images
    flat = images.reshape(count, -1)
    client_of = np.repeat(np.arange(len(data.names)), data.sizes.sum(axis=1))
    split = np.repeat(np.tile(np.arange(3), len(data.names)), data.sizes.ravel())
    everywhere, _ = _means(data, split == 2, count)
    own, samples = _means(data, (split == 0) & (client_of == client), count)
    with_each = np.stack([[_correlation(picture, mean) for mean in everywhere] for picture in flat])
    correlation = np.asarray([_correlation(picture, mean) for picture, mean in zip(flat, own, strict=True)])
    recognized = np.where(np.isnan(with_each), -np.inf, with_each).argmax(axis=1)
    return Inverted(client, images, certainty, recognized, samples, correlation)


def _descended(
    parts: StandaloneModel, shape: tuple[int, ...], count: int, disclosed: Disclosure | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return pictures (C, channels, h, w) in [0, 1], and what is answered for the class of each, (C,)."""
    picture, target = torch.zeros((count, *shape), requires_grad=True), torch.arange(count)
    optimizer, draw = torch.optim.Adam([picture], lr=RATE), np.random.default_rng(0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = SMOOTHNESS * _variation(picture)
        if disclosed is None:
            loss = loss - (_answer(parts, picture)[target, target] + _TINY).log().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        if disclosed is not None:
            with torch.no_grad():
                estimated = black_box.gradient(partial(_answer, parts), disclosed, picture, draw)
                picture.grad = estimated if picture.grad is None else picture.grad + estimated
        optimizer.step()
        with torch.no_grad():
            picture.clamp_(0, 1)
    with torch.no_grad():
        p = _answer(parts, picture)[target, target]
    return picture.detach().double().numpy(), p.double().numpy()


def _variation(picture: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, summed over pictures."""
    return (picture.diff(dim=2).abs().mean() + picture.diff(dim=3).abs().mean()) * len(picture)


def _answer(parts: StandaloneModel, picture: Tensor) -> Tensor:
    """Return the probabilities (n, C) that the client answers, through which gradients flow."""
    x = picture
    if parts.pixels is not None:
        mean, deviation = (torch.from_numpy(values).reshape(1, -1, 1, 1) for values in parts.pixels)
        x = (picture - mean) / deviation
    p = torch.stack(
        [share * net(x).softmax(dim=1) for net, share in zip(parts.networks, parts.shares, strict=True)]
    ).sum(dim=0)
    if parts.neighbours is None:
        return p
    votes, nearest = _votes(parts.neighbours, parts.networks[0].features(x), p.shape[1])
    weight = parts.neighbours.weight * (1 - parts.neighbours.decay * nearest).clamp(min=0)[:, None]
    return weight * votes + (1 - weight) * p


def _votes(store: NeighbourVote, z: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the votes (n, C) of the nearest stored samples, kNN-Per, Eq. 6, and the least distance (n,)."""
    if store.store.z is None:
        raise InputError("the client's store is compressed, and its vectors are not known")
    stored, labels = torch.from_numpy(store.store.z), torch.from_numpy(store.store.y)
    squared = (z[:, None] - stored[None]).square().sum(dim=2)
    distance = squared / z.shape[1] if store.kernel == "scaled-squared" else (squared + _TINY).sqrt()
    near, row = distance.topk(min(store.k, len(labels)), dim=1, largest=False)
    weight = (-near / store.sigma).softmax(dim=1)
    return torch.zeros(len(z), classes).scatter_add(1, labels[row], weight), near[:, 0]


def _means(data: Partition, chosen: NDArray[np.bool_], count: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the mean picture of each class among the ``chosen`` samples, (C, pixels), nan where there are none."""
    rows = np.flatnonzero(chosen)
    samples = np.bincount(data.y[rows], minlength=count)
    means = np.full((count, int(np.prod(data.x.shape[1:]))), np.nan)
    for number in np.flatnonzero(samples).tolist():
        own = data.x[rows[data.y[rows] == number]]
        means[number] = own.reshape(len(own), -1).mean(axis=0) / 255
    return means, samples.astype(np.int64)


def _correlation(picture: NDArray[np.float64], mean: NDArray[np.float64]) -> float:
    """Return Pearson's correlation of two pictures, nan if one has no contrast."""
    if not np.isfinite(mean).all() or picture.std() == 0 or mean.std() == 0:
        return float("nan")
    return float(np.corrcoef(picture, mean)[0, 1])
