"""kNN-Per: the global model interpolated with a nearest-neighbour model over the client's own embeddings.

Marfoq et al. (2022), https://arxiv.org/abs/2111.09360, Eq. 6 and 7: p = lambda p_kNN + (1 - lambda) softmax(h(x)). Each
client tunes lambda on its validation samples against a store of its training samples. With ``--refit``, as in the
paper, lambda is what an earlier run chose, and the global model and the stores have learned from validation samples
too. Where the authors' code differs (squared distances divided by the dimension, lambda chosen on test samples), the
paper is followed; the former is ``kernel=scaled-squared``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from pflcli.fl.run import Predictor, Run
from pflcli.knn.embedded import Embedded
from pflcli.knn.grid import correct, tuned
from pflcli.knn.stores import Neighbours, votes

KIND = "posthoc"
NEEDS = ("datastore",)
PAPER = "kNN-Per"
YEAR = 2022
GRID = {"k": (1, 3, 5, 7, 10, 12, 14, 16)}


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    k: Annotated[int, Ge(1)] = 10
    """use this many neighbours, at most those in a client's store"""
    weight: Annotated[float, Ge(0), Le(1)] | None = None
    """use this lambda for every client: 0 is the global model, 1 the neighbours alone; none tunes it per client"""
    grid: tuple[Annotated[float, Ge(0), Le(1)], ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    """choose lambda from these values by validation accuracy; ties go to the value nearest 1/2, of two to the
    smaller"""
    kernel: Literal["euclidean", "scaled-squared"] = "euclidean"
    """weigh neighbours by exp(-d / sigma), d being the distance (euclidean, the paper), or by exp(-d^2 /
    (dimension sigma)) (scaled-squared, the authors' code)"""
    sigma: Annotated[float, Gt(0)] | Literal["auto"] = 1.0
    """divide by this kernel scale; auto is the median distance of a client's validation samples to their nearest
    stored sample, or of d^2 / dimension if scaled-squared"""

    def __post_init__(self) -> None:
        if not self.grid:
            raise ValueError("grid is empty; give at least one lambda, such as 0.5")


def choices(cfg: Config) -> tuple[str, ...]:
    """Return what each client chooses by its validation samples."""
    return ("lambda",) * (cfg.weight is None) + ("sigma",) * (cfg.sigma == "auto")


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Tune lambda on each client's validation samples that have arrived, then answer all samples that are asked.

    A training sample, if asked, finds itself in the store; the paper does not say that its Table 3 leaves it out.
    """
    assert run.embeddings is not None
    assert run.stores is not None
    parts = {split: run.embeddings[split].take(clients) for split in run.answered}
    chosen_split = "validation" if run.arrived is None else "arrived"
    if run.arrived is not None:
        parts[chosen_split] = run.arrived.take(clients)
    neighbours = {split: run.stores.search(clients, part.z, part.offsets, run.cfg.k) for split, part in parts.items()}
    sigma = run.chosen("sigma", clients)
    if sigma is None:
        sigma = _sigma(run, neighbours[chosen_split], parts[chosen_split].offsets)
    knn = {split: _votes(run, neighbours[split], part, sigma) for split, part in parts.items()}
    model = {split: softmax(part.logits) for split, part in parts.items()}
    weight = run.chosen("lambda", clients)
    if weight is None:
        weight = _tune(run.cfg, knn[chosen_split], model[chosen_split], parts[chosen_split])

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        lam = np.repeat(weight, np.diff(parts[split].offsets))[:, None]
        # A client whose store is empty has no votes: the global model answers alone.
        lam = np.where(knn[split].sum(axis=1, keepdims=True) > 0, lam, 0.0)
        p = lam * knn[split] + (1 - lam) * model[split]
        parts_of_p = {"p": p, "knn": knn[split], "global": model[split]}
        return {name: values.astype(np.float32) for name, values in parts_of_p.items()}

    return Predictor(
        answer, run.answered, tuned={"lambda": weight, **({"sigma": sigma} if run.cfg.sigma == "auto" else {})}
    )


def _sigma(run: Run, neighbours: Neighbours, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the kernel scale of each client, (m,)."""
    if run.cfg.sigma != "auto":
        return np.full(len(offsets) - 1, float(run.cfg.sigma))
    nearest = _kernel_distance(run, neighbours)[:, 0]
    spans = np.split(nearest, offsets[1:-1])
    medians = [np.median(span[np.isfinite(span)]) if np.isfinite(span).any() else 1.0 for span in spans]
    # Identical samples lie at distance 0, which is no scale.
    return np.where(np.asarray(medians) > 0, medians, 1.0)


def _votes(run: Run, neighbours: Neighbours, part: Embedded, sigma: NDArray[np.float64]) -> NDArray[np.float64]:
    scale = np.repeat(sigma, np.diff(part.offsets))[:, None]
    return votes(neighbours, run.federation.classes, -_kernel_distance(run, neighbours) / scale)


def _kernel_distance(run: Run, neighbours: Neighbours) -> NDArray[np.float64]:
    """Return the distances (n, k) of neighbours on the scale of the kernel, before division by sigma."""
    if run.cfg.kernel == "euclidean":
        return np.sqrt(neighbours.distance)
    assert run.embeddings is not None
    return np.asarray(neighbours.distance / run.embeddings["validation"].z.shape[1])


def _tune(cfg: Config, knn: NDArray[np.float64], model: NDArray[np.float64], part: Embedded) -> NDArray[np.float64]:
    """Return lambda of each client, (m,): most correct validation answers, see ``knn.grid.tuned``."""
    if cfg.weight is not None:
        return np.full(len(part.offsets) - 1, float(cfg.weight))
    grid = np.unique(cfg.grid)
    correct_counts = [correct(knn[None, a:b], model[a:b], part.y[a:b], grid)[0] for a, b in pairwise(part.offsets)]
    return tuned(grid, np.stack(correct_counts))


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the global model's probabilities (n, C) of its logits."""
    e = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))
