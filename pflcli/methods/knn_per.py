"""kNN-Per: interpolates the global model with a nearest-neighbour model over each client's own embeddings.

Marfoq et al. (2022), https://arxiv.org/abs/2111.09360, Eq. 6 and 7: p = lambda p_kNN + (1 - lambda) softmax(h(x)). Each
client tunes lambda on its validation samples, with a store of its training samples. If it has few of them, it also
tunes by its stored samples, as section 3 suggests; with ``cross_validate=0`` it does not, as in the paper's
experiments. With ``--refit``, as in the paper, lambda is the choice of an earlier run, and the global model and the
stores also use validation samples. The authors' code differs from the paper: it divides squared distances by the
dimension (``kernel=scaled-squared`` of ``knn-per-extended``) and chooses lambda on test samples.

If labels are a quantity or counts, p_kNN is the mean label of the neighbours with the same weights, or their weighted
quantiles, and lambda is the one with the best score of the task. The paper has classes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray

from pflcli.method import (
    ClientModel,
    ClientStore,
    Embedded,
    Neighbours,
    NeighbourVote,
    Params,
    Predictor,
    Run,
    select_client,
    voting,
)
from pflcli.methods.parts.choice_samples import FEW, ChoiceSamples, read_parts, search
from pflcli.methods.parts.folds import Folds, per_sample, same_in_all
from pflcli.methods.parts.knn_grid import choose_lambdas, count_correct_by_client

KIND = "posthoc"
NEEDS = ("datastore",)
PAPER = "kNN-Per"
YEAR = 2022
GRID = {"k": (1, 3, 5, 7, 10, 12, 14, 16)}
TASKS = ("classes", "quantity", "quantile", "count")


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    k: Annotated[int, Ge(1)] = 10
    """use this many neighbours, at most those in a client's store"""
    weight: Annotated[float, Ge(0), Le(1)] | None = None
    """use this lambda for every client: 0 is the global model, 1 the neighbours alone; none tunes it per client"""
    grid: tuple[Annotated[float, Ge(0), Le(1)], ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    """choose lambda from these values by validation accuracy; ties go to the value nearest 1/2, and of two equally
    near ones to the smaller"""
    sigma: Annotated[float, Ge(1e-100)] | Literal["auto"] = 1.0
    """weigh a neighbour at distance d by exp(-d / sigma); auto uses the median distance of a client's validation
    samples to their nearest stored sample"""
    cross_validate: Annotated[int, Ge(0)] | None = None
    """with fewer validation samples than this, a client also chooses by the samples in its store, each of which is
    predicted without itself (leave-one-out); none is 5 for clients whose stores contain nothing but their training
    samples, and 0 for others, such as those with prototypes; 0 is the paper's experiments"""

    def __post_init__(self) -> None:
        if not self.grid:
            raise ValueError("grid is empty; give at least one lambda, such as 0.5")

    @property
    def few(self) -> int:
        """The number of validation samples below which a client also chooses by stored ones."""
        return FEW if self.cross_validate is None else self.cross_validate


def choices(cfg: Config) -> tuple[str, ...]:
    """Return what each client chooses by its validation samples."""
    return ("lambda",) * (cfg.weight is None) + ("sigma",) * (cfg.sigma == "auto")


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Tune lambda on each client's validation samples that have arrived, then predict.

    A training sample is its own nearest neighbour; the paper does not say that its Table 3 leaves it out.
    """
    assert run.stores is not None
    stores, backbone = run.stores, run.backbone
    parts, choice = read_parts(run, clients)
    predictor = build_predictor(run, clients, parts, search(stores, clients, parts, run.cfg.k, choice), choice)

    def model_of(client: int) -> ClientModel:
        assert backbone is not None
        return client_model(run, predictor, clients, client, backbone, select_client(stores, client))

    return replace(predictor, model_of=model_of)


def build_predictor(
    run: Run,
    clients: NDArray[np.int64],
    parts: Mapping[str, Embedded],
    neighbours: Mapping[str, Neighbours],
    choice: ChoiceSamples,
) -> Predictor:
    """Predict the clients' embedded samples of each split, ``parts``, from the ``neighbours`` of each sample.

    Lambda and sigma are tuned on the samples of ``choice``, unless the options set them.
    """
    distance = {split: np.sqrt(found.distance) for split, found in neighbours.items()}
    chosen = parts[choice.split]
    sigma = run.read_choices("sigma", clients)
    if sigma is None:
        sigma = compute_kernel_scales(run.cfg, distance[choice.split][:, 0], chosen.offsets)
    model = {split: predict_network(run, part.logits) for split, part in parts.items()}
    knn = {
        split: vote(
            run,
            neighbours[split],
            -distance[split] / repeat_per_sample(sigma, part.offsets)[:, None],
            model[split],
        )
        for split, part in parts.items()
    }
    weight = run.read_choices("lambda", clients)
    if weight is None:
        weight, apart = tune_lambda(run, knn[choice.split], model[choice.split], chosen.y, choice.folds)
    else:
        apart = same_in_all(weight)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        p = mix(run, knn[split], model[split], per_sample(split, parts[split].offsets, weight, apart))
        parts_of_p = {"p": p, "knn": knn[split], "global": model[split]}
        return {name: values.astype(np.float32) for name, values in parts_of_p.items()}

    tuned = {"lambda": weight} | ({"sigma": sigma} if run.cfg.sigma == "auto" else {})
    return Predictor(answer, run.predicted_splits, tuned=tuned)


def predict_network(run: Run, logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the network's probabilities (n, C), or numbers (n, 1), for its outputs."""
    if run.task.kind == "classes":
        return softmax(logits)
    return run.task.predict(torch.from_numpy(np.asarray(logits))).astype(np.float64)


def vote(
    run: Run, neighbours: Neighbours, exponent: NDArray[np.float64], model: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return p_kNN (n, C) for the kernel exp(``exponent``) (n, k); numbers without neighbours are the model's."""
    if run.task.kind == "classes":
        return voting.vote_by_distance(neighbours, run.federation.classes, exponent)
    if levels := getattr(run.task, "quantiles", ()):
        found = quantiles_by_distance(neighbours, exponent, levels)
    else:
        found = voting.mean_by_distance(neighbours, exponent)
    return np.where(np.isnan(found), model, found)


def quantiles_by_distance(
    neighbours: Neighbours, exponent: NDArray[np.float64], levels: Sequence[float]
) -> NDArray[np.float64]:
    """Return the quantiles (n, C) of each query's neighbours, weighted by the softmax of ``exponent`` (n, k).

    A quantile is the least label up to which the weights reach its level; nan for a query without neighbours.
    """
    exists = np.isfinite(neighbours.distance)
    order = np.argsort(np.where(exists, neighbours.label, np.inf), axis=1, kind="stable")
    label, e = (
        np.take_along_axis(each, order, axis=1) for each in (neighbours.label, np.where(exists, exponent, -np.inf))
    )
    largest = e.max(axis=1, keepdims=True, initial=-np.inf)
    reached = np.exp(e - np.where(np.isfinite(largest), largest, 0)).cumsum(axis=1)
    total = reached[:, -1:]
    place = (reached[:, :, None] < np.asarray(levels) * total[:, :, None]).sum(axis=1)
    found = np.take_along_axis(label, np.minimum(place, label.shape[1] - 1), axis=1)
    return np.where(total > 0, found, np.nan)


def score_lambdas(
    run: Run, knn: NDArray[np.float64], model: NDArray[np.float64], y: NDArray[Any], grid: NDArray[np.float64]
) -> NDArray[Any]:
    """Return whether predictions with each lambda are right, or their scores, (c, n, l), for ``knn`` (c, n, C)."""
    if run.task.kind == "classes":
        return count_correct_by_client(knn, model, y, np.arange(len(y) + 1), grid)
    return np.stack(
        [[run.task.scores(lam * each + (1 - lam) * model, y) for lam in grid.tolist()] for each in knn]
    ).swapaxes(1, 2)


def tune_lambda(
    run: Run, knn: NDArray[np.float64], model: NDArray[np.float64], y: NDArray[Any], folds: Folds
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lambda of each client with the best predictions, (m,), and without each fold, (m, FOLDS).

    See ``choose_lambdas``.
    """
    if run.cfg.weight is not None:
        weight = np.full(folds.clients, float(run.cfg.weight))
        return weight, same_in_all(weight)
    grid = np.unique(run.cfg.grid)
    (right,) = score_lambdas(run, knn[None], model, y, grid)
    total, apart = folds.sum(right)
    return choose_lambdas(grid, total), choose_lambdas(grid, apart)


def mix(
    run: Run, knn: NDArray[np.float64], model: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return lambda knn + (1 - lambda) model (n, C) for the run's task, with the lambda of each sample (n,)."""
    if run.task.kind == "classes":
        return interpolate(knn, model, weight)
    return np.asarray(weight[:, None] * knn + (1 - weight[:, None]) * model)


def interpolate(
    knn: NDArray[np.float64], model: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return lambda knn + (1 - lambda) model (n, C), Eq. 7, with the lambda of each sample, ``weight`` (n,)."""
    # Without votes, as from an empty store, the model predicts alone.
    lam = np.where(knn.sum(axis=1) > 0, weight, 0.0)[:, None]
    return np.asarray(lam * knn + (1 - lam) * model)


def client_model(
    run: Run, predictor: Predictor, clients: NDArray[np.int64], client: int, network: Params, store: ClientStore
) -> ClientModel:
    """Return the network and the store that a client predicts with; with an empty store, the network alone."""
    if not len(store.y):
        return ClientModel((network,))
    place = np.flatnonzero(clients == client)[0]
    chosen = {name: float(values[place]) for name, values in predictor.tuned.items()}
    sigma = chosen["sigma"] if run.cfg.sigma == "auto" else float(run.cfg.sigma)
    vote = NeighbourVote(store, run.cfg.k, chosen["lambda"], sigma, 0.0, "euclidean")
    return ClientModel((network,), neighbours=vote)


def repeat_per_sample(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Return a value of each client (m,) for each of its samples, (n,)."""
    return np.repeat(values, np.diff(offsets))


def median_nearest(nearest: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the median of each client's finite distances ``nearest`` (n,), (m,); nan if it has none."""
    spans = np.split(nearest, offsets[1:-1])
    return np.asarray([np.median(span[np.isfinite(span)]) if np.isfinite(span).any() else np.nan for span in spans])


def compute_kernel_scales(cfg: Config, nearest: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the kernel scale of each client, (m,)."""
    if cfg.sigma != "auto":
        return np.full(len(offsets) - 1, float(cfg.sigma))
    medians = median_nearest(nearest, offsets)
    # Identical samples have distance 0, which is not a scale.
    return np.where(medians > 0, medians, 1.0)


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return probabilities (n, C) for logits."""
    e = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))
