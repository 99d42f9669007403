"""kNN-peers: kNN-Per whose clients also ask the class means of other clients, and trust those that resemble their own.

A combination of four papers that is in none of them, for clients with few samples and clients that join later. No model
is sent after FedAvg.

- kNN-Per (Marfoq et al., 2022), https://arxiv.org/abs/2111.09360: p = lambda p_kNN + (1 - lambda) softmax(h(x)), Eq. 7,
  where neighbours among representations of the global model vote by exp(-d / sigma), Eq. 6. Each client tunes lambda.
- PANM (Li & Wu, 2022): a client compares the others with itself, and learns from similar ones. Here it compares class
  means instead of models.
- FedHAM (Gao et al., 2023), https://doi.org/10.1145/3591362, and FedAttn (Luo, Panchal & Guan, 2022): the weights of
  others are an attention, a softmax of similarities, but over stores instead of models.

Representations are scaled to length 1, so that sigma needs no other scale; d is the distance of two of them.

Once, each client uploads the mean representation m_ic and the number n_ic of its training samples of each class c that
it has, and the sum of squared distances of these samples from their means. No representation of a sample is sent, but
the mean of a single sample is that sample's representation. The server returns all class means and numbers, and the
pooled variance v within classes. A client that joins later only downloads them.

The means of client j are compared with those of client i over the classes that both have: the statistic
S_ij = sum_c (n_ic n_jc / (n_ic + n_jc)) |m_ic - m_jc|^2 / v is about the number C_ij of these classes if the samples of
both have the same distribution, however few they are. The attention to client j is exp(-attention max(0, S_ij - C_ij)),
and 0 without a common class. A class mean votes like n_jc samples at its place, times the attention, times the ratio of
the frequency of the class at client i to that at all clients, shrunk as in `prior`. The client's own samples vote with
weight exp(-d / sigma). The k heaviest of all these votes count.

If labels are a quantity or counts, intervals of them take the place of classes, as the slices of sliced inverse
regression (Li, 1991, https://doi.org/10.1080/01621459.1991.10475035) do: eight of about as many samples each if a
quantity has a normal distribution, and for counts zero and multiples of the mean. Clients also upload the mean label of
each interval that they have, and the prediction is the mean label of the votes, weighted alike. Lambda is the one with
the best score of the task.

Which part helps depends on how clients differ (docs/results.md). If their classes have other names, attention does, and
nothing without it; if only their classes differ, the class means of all clients do, and attention 0 is a little better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, MinLen
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Embedded, Neighbours, Params, Predictor, Run, Space, TrainedClients, repeat
from pflcli.methods import knn_per
from pflcli.methods.knn_per import mix, predict_network, tune_lambda
from pflcli.methods.parts.class_counts import shrink_counts
from pflcli.methods.parts.folds import Folds, per_sample, same_in_all

KIND = "server"
NEEDS = ("embeddings",)
ADAPTS = True
SENDS_MORE = "class means before the rounds"
PAIRS_SENT = "class means"
PAPER = "kNN-peers"
YEAR = 2026
TASKS = ("classes", "quantity", "count")
GRID = {"attention": (0.0, 0.3, 1.0, 3.0), "sigma": (0.02, 0.05, 0.1), "kappa": (3.0, 10.0, 30.0)}

State = dict[str, Params]
Array = NDArray[np.float64]

_SPACE = Space(distance="cosine")
_QUANTITY_BOUNDS = (-1.15, -0.674, -0.319, 0.0, 0.319, 0.674, 1.15)
"""The bounds of intervals of a quantity, in deviations from the mean: the octiles of a normal distribution."""
_COUNT_BOUNDS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0)
"""The bounds of intervals of counts, which belong to the interval below, in means of all training labels."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    k: Annotated[int, Ge(1)] = 10
    """let this many own samples and class means of other clients vote, those with the largest weights"""
    weight: Annotated[float, Ge(0), Le(1)] | None = None
    """use this lambda for every client: 0 is the global model, 1 the votes alone; none tunes it per client"""
    grid: Annotated[tuple[Annotated[float, Ge(0), Le(1)], ...], MinLen(1)] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    """choose lambda from these values by validation accuracy; ties go to the value nearest 1/2, and of two equally
    near ones to the smaller"""
    sigma: Annotated[float, Gt(0)] = 0.05
    """weigh a vote at distance d by exp(-d / sigma); representations have length 1"""
    attention: Annotated[float, Ge(0)] = 1.0
    """trust clients with other class means less, by this factor in the exponent; 0 trusts all that have a common
    class alike"""
    kappa: Annotated[float, Ge(0)] = 10.0
    """count the class frequencies of all clients like this many of a client's own samples"""


def choices(cfg: Config) -> tuple[str, ...]:
    """Return what each client chooses by its validation samples."""
    return ("lambda",) if cfg.weight is None else ()


def setup(run: Run) -> State:
    """Let clients send their class means and numbers; return those of all clients."""
    assert run.embeddings is not None
    able, classes, is_number = run.participants(), _count_classes(run), run.task.kind != "classes"
    mean, count, number = torch.zeros(run.embeddings["train"].z.shape[1]), torch.tensor(0).int(), torch.tensor(0.0)
    like = {"means": mean.repeat(classes, 1), "counts": count.repeat(classes), "squares": number}
    like |= {"labels": number.repeat(classes)} if is_number else {}
    nobody = TrainedClients.untrained(able[:0], repeat(like, 0))
    parts = [nobody, *run.collect(_describe(run, able), like, counted=False)]
    sent = {name: torch.cat([part.params[name] for part in parts]) for name in like}
    shared = {**sent, "clients": torch.from_numpy(np.concatenate([part.clients for part in parts])).int()}
    variance = {"variance": _pool_variance(shared.pop("squares"), shared["counts"])}
    run.send("up", _drop_absent(sent))  # only classes with samples are counted
    like = {"means": like["means"], "counts": like["counts"], "clients": count}
    like |= {"labels": number.repeat(classes)} if is_number else {}
    shared = run.download(shared, able, like, most=len(run.clients), counted=False)
    variance = run.download(variance, able, counted=False)
    known = {**_drop_absent(shared), **variance}
    run.send("down", known, copies=len(run.everyone(able)))
    return {"shared": known}


def _pool_variance(squares: Tensor, counts: Tensor) -> Tensor:
    """Return the variance within classes by the sums of squares (p,) of clients with ``counts`` (p, C) of samples."""
    freedom = int(counts.sum()) - int((counts > 0).sum())
    return torch.tensor(sum(squares.tolist()) / max(freedom, 1), dtype=torch.float32)


def _drop_absent(sent: Params) -> Params:
    """Return what clients (p, ...) send, with means and labels (r, ...) of the classes alone that they have."""
    has = sent["counts"] > 0
    return {name: value[has] if name in ("means", "labels") else value for name, value in sent.items()}


def _describe(run: Run, able: NDArray[np.int64]) -> Iterator[TrainedClients]:
    """Yield what each client sends: its class means (C, d), zeros without samples, their numbers and squares."""
    assert run.embeddings is not None
    known, classes = _SPACE.embed(run.embeddings["train"].take(able)), _count_classes(run)
    counts = torch.from_numpy(_count_samples(run, known)).int()
    for client, own, (first, last) in zip(able, counts, pairwise(known.offsets), strict=True):
        z, y = known.z[first:last], known.y[first:last]
        classified = _classify(run, y)
        mean = _class_means(z, classified, classes)
        upload = {"means": torch.from_numpy(mean), "counts": own}
        upload["squares"] = torch.tensor(np.square(z - mean[classified]).sum())
        if run.task.kind != "classes":
            upload["labels"] = torch.from_numpy(_class_means(y[:, None], classified, classes)[:, 0])
        yield TrainedClients.untrained(np.asarray([client]), {name: value[None] for name, value in upload.items()})


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Tune lambda on each client's validation samples, then predict."""
    assert run.embeddings is not None
    parts = {split: run.embeddings[split].take(clients) for split in run.predicted_splits}
    stored = _SPACE.embed(run.embeddings["train"].take(clients))
    model = {split: predict_network(run, part.logits) for split, part in parts.items()}
    votes = _vote(run, state, clients, stored, {split: _SPACE.embed(part) for split, part in parts.items()}, model)
    weight = run.read_choices("lambda", clients)
    if weight is None:
        validation = parts["validation"]
        folds = Folds.divide(validation.offsets)
        weight, apart = tune_lambda(run, votes["validation"], model["validation"], validation.y, folds)
    else:
        apart = same_in_all(weight)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        p = mix(run, votes[split], model[split], per_sample(split, parts[split].offsets, weight, apart))
        return {"p": p.astype(np.float32), "knn": votes[split].astype(np.float32)}

    return Predictor(answer, run.predicted_splits, tuned={"lambda": weight} if run.cfg.weight is None else {})


def _count_classes(run: Run) -> int:
    """Return the number of classes, or of intervals of numbers."""
    if run.task.kind == "classes":
        return run.federation.classes
    return 1 + len(_COUNT_BOUNDS if run.task.kind == "count" else _QUANTITY_BOUNDS)


def _classify(run: Run, y: NDArray[Any]) -> NDArray[np.int64]:
    """Return the class of each label (n,), or the interval that a number is in."""
    task: Any = run.task
    if task.kind == "classes":
        return y
    if task.kind == "count":
        return np.asarray(np.digitize(y / task.mean, _COUNT_BOUNDS, right=True))
    return np.asarray(np.digitize((y - task.mean) / task.deviation, _QUANTITY_BOUNDS))


def _count_samples(run: Run, part: Embedded) -> NDArray[np.int64]:
    """Return the number of samples that each client has of each class or interval, (m, C)."""
    counts = np.zeros((len(part.offsets) - 1, _count_classes(run)), np.int64)
    np.add.at(counts, (np.repeat(np.arange(len(counts)), np.diff(part.offsets)), _classify(run, part.y)), 1)
    return counts


def _class_means(z: NDArray[Any], y: NDArray[np.int64], classes: int) -> NDArray[np.float32]:
    """Return the mean of each class of ``z`` (n, d), (C, d); zeros for a class without samples."""
    sums, counts = np.zeros((classes, z.shape[1])), np.bincount(y, minlength=classes)[:, None]
    np.add.at(sums, y, z)
    return (sums / np.maximum(counts, 1)).astype(np.float32)


def _vote(
    run: Run,
    state: State,
    clients: NDArray[np.int64],
    stored: Embedded,
    parts: dict[str, Embedded],
    model: dict[str, Array],
) -> dict[str, Array]:
    """Return the votes (n, C) on the samples of each split in ``parts``, in the space of unit vectors.

    ``stored`` are the training samples of the ``clients`` (m,). Without neighbours, numbers are those of the ``model``.
    """
    shared = {name: value.cpu().numpy() for name, value in state["shared"].items()}
    counts, classes = shared["counts"].astype(np.int64), _count_classes(run)
    place, label = np.nonzero(counts)  # the client and the class of each mean
    mean_labels = shared.get("labels", label)
    prior = torch.from_numpy((counts.sum(axis=0) + 1e-9) / (counts.sum() + 1e-9 * classes))
    common, own = shrink_counts(_count_samples(run, stored), prior, run.cfg.kappa)
    votes: dict[str, list[Array]] = {split: [np.zeros((0, run.task.outputs))] for split in parts}
    for i, (client, (first, last)) in enumerate(zip(clients, pairwise(stored.offsets), strict=True)):
        z, y = stored.z[first:last], stored.y[first:last]
        variance = float(shared["variance"])
        trust = _attend(z, _classify(run, y), shared["means"], counts, variance, run.cfg.attention)
        trust[shared["clients"] == client] = -np.inf  # its own samples vote
        asked = np.isfinite(trust[place])
        bias = (trust[place] + np.log(counts[place, label]) + np.log(own[i] / common)[label])[asked]
        keys = np.concatenate([z, shared["means"][asked]]).astype(np.float64)
        labels, bias = np.concatenate([y, mean_labels[asked]]), np.concatenate([np.zeros(len(y)), bias])
        for split, part in parts.items():
            span = slice(part.offsets[i], part.offsets[i + 1])
            near, exponent = _find_heaviest(part.z[span].astype(np.float64), keys, labels, bias, run.cfg)
            votes[split].append(knn_per.vote(run, near, exponent, model[split][span]))
    return {split: np.concatenate(each) for split, each in votes.items()}


def _attend(
    z: NDArray[np.float32],
    y: NDArray[np.int64],
    means: NDArray[np.float32],
    counts: NDArray[np.int64],
    variance: float,
    attention: float,
) -> Array:
    """Return the logarithm of the attention of a client with samples ``z`` (n, d) to each of p clients, (p,).

    ``means`` (r, d) are the class means of these clients, which have ``counts`` (p, C) samples. The logarithm is -inf
    for a client without a common class.
    """
    place, label = np.nonzero(counts)
    own_counts, own_means = np.bincount(y, minlength=counts.shape[1]), _class_means(z, y, counts.shape[1])
    n, others = own_counts[label], counts[place, label]
    distance = np.square(means.astype(np.float64) - own_means[label]).sum(axis=1)
    # Without a second sample of any class the variance is unknown, and all clients are equally similar.
    scale = 1 / variance if variance > 0 else 0.0
    statistic = scale * np.bincount(place, n * others / (n + others) * distance, minlength=len(counts))
    shared_classes = ((counts > 0) & (own_counts > 0)).sum(axis=1)
    return np.where(shared_classes > 0, -attention * np.maximum(0, statistic - shared_classes), -np.inf)


def _find_heaviest(
    queries: Array, keys: Array, labels: NDArray[Any], bias: Array, cfg: Config
) -> tuple[Neighbours, Array]:
    """Return the k ``keys`` (r, d) with the largest exponents -d / sigma + ``bias``, and these exponents (n, k)."""
    squared = np.square(queries).sum(axis=1)[:, None] + np.square(keys).sum(axis=1) - 2 * queries @ keys.T
    exponent = bias - np.sqrt(np.maximum(squared, 0)) / cfg.sigma  # (n, r)
    k = min(cfg.k, len(keys))
    nearest = np.argpartition(-exponent, k - 1, axis=1)[:, :k] if k else np.zeros((len(queries), 0), np.int64)
    rows = np.arange(len(queries))[:, None]
    return Neighbours(np.maximum(squared, 0)[rows, nearest], labels[nearest]), exponent[rows, nearest]
