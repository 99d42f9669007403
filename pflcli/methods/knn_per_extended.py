"""kNN-Per with extensions: other spaces, lambda by distance, and votes that hide distances.

Without its own options it is ``knn-per`` (Marfoq et al., 2022), https://arxiv.org/abs/2111.09360.

With ``decay``, lambda falls with the distance d(x) of a sample from its nearest stored sample: lambda(x) = lambda
max(0, 1 - decay d(x) / s), where s is the median of d over the client's validation samples. This is the form of the
distance-aware adapter of Dai et al. (2023), https://openreview.net/forum?id=uu1GBD9SlLe.

``representation`` and ``distance`` search neighbours among logits in place of representations, and by angle in place of
distance. A network that was not trained on the clients' data has representations whose distances say little, and logits
of a head that was. With ``auto``, each client chooses the space by its validation samples, like lambda.

``vote`` hides neighbour distances from anyone who sees predictions: see ``knn.voting``, and docs/privacy.md for the
costs. ``kernel=scaled-squared`` is the authors' code, which divides squared distances by the dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt
from numpy.typing import NDArray

from pflcli.method import (
    AUTO,
    ClientModel,
    ClientStore,
    Embedded,
    Neighbours,
    Params,
    Predictor,
    Run,
    Space,
    Stores,
    UnsuitedError,
    apply_head,
    flat_indexes,
    list_spaces,
    select_client,
    voting,
)
from pflcli.methods import knn_per
from pflcli.methods.knn_per import Config as Paper
from pflcli.methods.parts.choice_samples import ChoiceSamples, read_parts, search
from pflcli.methods.parts.folds import Folds, per_sample, same_in_all
from pflcli.methods.parts.knn_grid import choose_lambdas

KIND = "posthoc"
NEEDS = ("datastore",)
PAPER = "kNN-Per extended"
YEAR = 2022
EXTENDS = "knn-per"
GRID = {"k": (1, 3, 5, 7, 10, 12, 14, 16)}
TASKS = ("classes", "quantity", "count")

DECAYS = (0.0, 0.2, 1 / 3, 0.5)
"""Values of ``decay`` that a client chooses from."""


@dataclass(frozen=True)
class Config(Paper):
    """The options of ``knn-per``, and the extensions."""

    kernel: Literal["euclidean", "scaled-squared"] = "euclidean"
    """weigh a neighbour at distance d by exp(-d / sigma) (euclidean, the paper), or by exp(-d^2 /
    (dimension sigma)) (scaled-squared, the authors' code), where sigma=auto is the median of d^2 / dimension"""
    representation: Literal["features", "logits", "auto"] = "features"
    """search neighbours among the network's representations (features, the paper) or logits; auto lets each client
    choose by its validation samples"""
    distance: Literal["euclidean", "cosine", "auto"] = "euclidean"
    """compare them by Euclidean distance (euclidean, the paper) or by angle (cosine: the distance of unit vectors);
    auto lets each client choose by its validation samples"""
    decay: Annotated[float, Ge(0)] | Literal["auto"] = 0.0
    """let lambda fall by this share of itself per median distance of a client's validation samples to their nearest
    stored sample; 0 is the paper; auto lets each client choose among 0, 0.2, 1/3 and 0.5, together with lambda"""
    vote: Literal["distance", "count", "label", "noisy"] = "distance"
    """weigh votes by distance (distance, the paper) or equally (count), or predict only the class with the most equal
    votes, without noise (label) or with noise (noisy)"""
    vote_epsilon: Annotated[float, Gt(0)] = 1.0
    """spend this epsilon of differential privacy on each query if vote=noisy"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vote != "distance" and (self.decay != 0 or self.sigma == "auto"):
            raise ValueError(f"vote={self.vote} hides distances: leave out decay and sigma=auto")
        if self.vote == "noisy" and len(self.spaces) > 1:
            raise ValueError("vote=noisy has no epsilon for the choice of a space: give representation and distance")
        if self.vote == "noisy" and self.cross_validate:
            raise ValueError("vote=noisy has no epsilon for predictions of training samples: leave out cross_validate")

    @property
    def few(self) -> int:
        """The number of validation samples below which a client also chooses by stored ones; noisy votes never do."""
        return 0 if self.vote == "noisy" else super().few

    @property
    def spaces(self) -> Sequence[Space]:
        """The spaces in which neighbours are searched, of which each client chooses one."""
        return list_spaces(self.representation, self.distance)


def choices(cfg: Config) -> tuple[str, ...]:
    """Return what each client chooses by its validation samples."""
    return _tuned_in_a_space(cfg) + tuple(name for name, value, _ in _SPACE_CHOICES if getattr(cfg, value) == AUTO)


def _tuned_in_a_space(cfg: Config) -> tuple[str, ...]:
    return ("lambda",) * (cfg.weight is None) + ("sigma",) * (cfg.sigma == "auto") + ("decay",) * (cfg.decay != 0)


_SPACE_CHOICES = (("logits", "representation", "logits"), ("cosine", "distance", "cosine"))
"""Choices of a space: the name under which 0 or 1 is stored, the option, and its value that 1 stands for."""


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Tune lambda on each client's validation samples that have arrived, then predict.

    A training sample is its own nearest neighbour; the paper does not say that its Table 3 leaves it out.
    """
    assert run.stores is not None
    require_votes(run)
    if run.cfg.vote == "noisy":
        _require_samples(run, clients)
    parts, choice = read_parts(run, clients)
    if run.cfg.spaces != [Space()]:
        return predict_in_spaces(run, clients, parts, _read_stored(run, clients), choice)
    neighbours = search(run.stores, clients, parts, run.cfg.k, choice)
    predictor, _ = build_predictor(run, clients, parts, neighbours, choice)
    stores, backbone = run.stores, run.backbone

    def model_of(client: int) -> ClientModel | None:
        assert backbone is not None
        return client_model(run, predictor, clients, client, backbone, select_client(stores, client))

    return replace(predictor, model_of=model_of)


def require_votes(run: Run) -> None:
    """Raise UnsuitedError if labels are numbers and votes are those for classes."""
    if run.cfg.vote != "distance" and run.task.kind != "classes":
        raise UnsuitedError(
            f"vote={run.cfg.vote} counts votes for classes, and the task is {run.task.kind}", "--set vote=distance"
        )


def client_model(
    run: Run, predictor: Predictor, clients: NDArray[np.int64], client: int, network: Params, store: ClientStore
) -> ClientModel | None:
    """Return the network and the store that a client predicts with; None if votes hide distances."""
    if run.cfg.vote != "distance":
        return None
    model = knn_per.client_model(run, predictor, clients, client, network, store)
    if model.neighbours is None:
        return model
    decay = float(predictor.tuned["decay"][clients == client][0]) if "decay" in predictor.tuned else 0.0
    return replace(model, neighbours=replace(model.neighbours, decay=decay, kernel=run.cfg.kernel))


def _read_stored(run: Run, clients: NDArray[np.int64]) -> Embedded:
    """Return the vectors in the clients' stores, with the logits that the backbone's head gives them.

    Raises UnsuitedError for a compressed store, and, if logits are needed, for a network without a linear head.
    """
    assert run.stores is not None
    assert run.backbone is not None
    stored = [select_client(run.stores, int(client)) for client in clients]
    if any(store.z is None for store in stored):
        raise UnsuitedError(
            "representation and distance need stores with the samples' own vectors, and these are compressed",
            "pfl build-datastore EMBEDDINGS -o DIR, with the index Flat",
        )
    assert run.embeddings is not None
    width = run.embeddings["train"].z.shape[1]
    z = np.concatenate(
        [np.zeros((0, width), np.float32), *(store.z for store in stored if store.z is not None and len(store.y))]
    )
    offsets = np.cumsum([0, *(len(store.y) for store in stored)])
    y = np.concatenate([np.zeros(0, np.int64), *(store.y for store in stored)])
    logits = np.zeros((len(z), 0), np.float32)
    if any(space.representation == "logits" for space in run.cfg.spaces):
        head = {name: value.cpu().numpy() for name, value in run.backbone.items() if name.startswith("head.")}
        weight = head.get("head.weight")
        if weight is None or not {*head} <= {"head.weight", "head.bias"} or weight.shape[1:] != (width,):
            raise UnsuitedError(
                "representation=logits needs a network that ends in one linear layer, its head",
                "--set representation=features",
            )
        logits = apply_head(z, weight, head.get("head.bias"))
        first = run.embeddings["train"]
        if not np.allclose(
            apply_head(first.z[:1], weight, head.get("head.bias")), first.logits[:1], rtol=0.01, atol=0.01
        ):
            raise UnsuitedError(
                "representation=logits needs stores of the input of the head, and these are of another layer",
                "pfl extract BACKBONE -o DIR, without --layer",
            )
    return Embedded(z, logits, y, offsets)


def predict_in_spaces(
    run: Run,
    clients: NDArray[np.int64],
    parts: Mapping[str, Embedded],
    stored: Embedded,
    choice: ChoiceSamples,
) -> Predictor:
    """Predict the clients' samples, ``parts``, from neighbours among ``stored`` in each space of the options.

    Each client takes the space in which most of its samples of ``choice`` are predicted correctly, with what it tunes
    there; of equally good ones the first, which is the paper's if the options allow it.
    """
    spaces, places = run.cfg.spaces, np.arange(len(clients))
    predictors, right, right_apart = list[Predictor](), list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    for space in spaces:
        embedded = {split: space.embed(part) for split, part in parts.items()}
        vectors = space.embed(stored).z
        blob, offsets = flat_indexes([vectors[first:last] for first, last in pairwise(stored.offsets)])
        stores = Stores(blob, offsets, stored.y, stored.offsets, run.engine.threads)
        neighbours = search(stores, places, embedded, run.cfg.k, choice)
        predictor, tuning = build_predictor(run, clients, embedded, neighbours, choice)
        predictors.append(predictor)
        right.append(tuning.right)
        right_apart.append(tuning.right_apart)
    chosen, apart = _read_spaces(run, clients), np.stack(right_apart).argmax(axis=0)
    if chosen is None:
        chosen = np.stack(right).argmax(axis=0)
    else:
        apart = same_in_all(chosen)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        answers = [predictor.answer(split) for predictor in predictors]
        of_sample = per_sample(split, parts[split].offsets, chosen, apart)
        rows = np.arange(len(of_sample))
        return {name: np.stack([each[name] for each in answers])[of_sample, rows] for name in answers[0]}

    tuned = {
        name: np.stack([predictor.tuned[name] for predictor in predictors])[chosen, places]
        for name in predictors[0].tuned
    }
    for name, option, value in _SPACE_CHOICES:
        if getattr(run.cfg, option) == AUTO:
            tuned[name] = np.asarray([float(getattr(space, option) == value) for space in spaces])[chosen]
    return Predictor(answer, run.predicted_splits, tuned=tuned)


def _read_spaces(run: Run, clients: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the index of each client's space (m,) by the choices of an earlier run; None if they are tuned now."""
    if len(run.cfg.spaces) == 1:
        return np.zeros(len(clients), np.int64)
    fits = np.ones((len(run.cfg.spaces), len(clients)), bool)
    for name, option, value in _SPACE_CHOICES:
        if getattr(run.cfg, option) == AUTO:
            known = run.read_choices(name, clients)
            if known is None:
                return None
            fits &= np.asarray([[getattr(space, option) == value] for space in run.cfg.spaces]) == (known > 0)
    return np.asarray(fits.argmax(axis=0))


@dataclass(frozen=True)
class _Tuning:
    """What m clients choose by their samples, (m,), and without each of their folds, (m, FOLDS): lambda, and the decay.

    ``right`` are the numbers of samples that are then predicted correctly.
    """

    weight: NDArray[np.float64]
    decay: NDArray[np.float64]
    right: NDArray[np.int64]
    weight_apart: NDArray[np.float64]
    decay_apart: NDArray[np.float64]
    right_apart: NDArray[np.int64]


def build_predictor(
    run: Run,
    clients: NDArray[np.int64],
    parts: Mapping[str, Embedded],
    neighbours: Mapping[str, Neighbours],
    choice: ChoiceSamples,
) -> tuple[Predictor, _Tuning]:
    """Predict the clients' embedded samples of each split, ``parts``, from the ``neighbours`` of each sample.

    Lambda, sigma and the decay are tuned on the samples of ``choice``, unless the options set them.
    """
    distance = {split: _kernel_distance(run.cfg, neighbours[split], part.z.shape[1]) for split, part in parts.items()}
    chosen = parts[choice.split]
    sigma = run.read_choices("sigma", clients)
    if sigma is None:
        sigma = knn_per.compute_kernel_scales(run.cfg, distance[choice.split][:, 0], chosen.offsets)
    model = {split: knn_per.predict_network(run, part.logits) for split, part in parts.items()}
    knn = {
        split: _vote_without_distances(run, clients, part, neighbours[split])
        if run.cfg.vote != "distance"
        else knn_per.vote(
            run,
            neighbours[split],
            -distance[split] / knn_per.repeat_per_sample(sigma, part.offsets)[:, None],
            model[split],
        )
        for split, part in parts.items()
    }
    tuning = _tune(run, knn[choice.split], model[choice.split], chosen, distance[choice.split][:, 0], choice.folds)
    weight, decay = run.read_choices("lambda", clients), run.read_choices("decay", clients)
    if weight is not None:
        tuning = replace(tuning, weight=weight, weight_apart=same_in_all(weight))
    if decay is not None:
        tuning = replace(tuning, decay=decay, decay_apart=same_in_all(decay))

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        offsets = parts[split].offsets
        rate = per_sample(split, offsets, tuning.decay, tuning.decay_apart)
        faded = _fade(knn[split], model[split], distance[split][:, 0], rate)
        lam = per_sample(split, offsets, tuning.weight, tuning.weight_apart)
        parts_of_p = {
            "p": knn_per.mix(run, faded, model[split], lam),
            "knn": knn[split],
            "global": model[split],
        }
        return {name: values.astype(np.float32) for name, values in parts_of_p.items()}

    choices = {"lambda": tuning.weight, "sigma": sigma, "decay": tuning.decay}
    tuned = {name: choices[name] for name in ("lambda", *_tuned_in_a_space(run.cfg))}
    return Predictor(answer, run.predicted_splits, tuned=tuned), tuning


def _vote_without_distances(
    run: Run, clients: NDArray[np.int64], part: Embedded, neighbours: Neighbours
) -> NDArray[np.float64]:
    """Return votes (n, C) of neighbours that depend on which samples are nearest, but not on their distances."""
    classes, by_class = run.federation.classes, voting.count_votes(neighbours, run.federation.classes)
    if run.cfg.vote == "count":
        return voting.normalize_votes(by_class)
    if run.cfg.vote == "label":
        return voting.select_majority(by_class)
    assert run.stores is not None  # which ``_require_samples`` has checked
    noise = voting.draw_noise(part, clients, classes, run.cfg.vote_epsilon, run.stores, run.private_rng)
    return voting.select_majority(by_class, noise)


def _require_samples(run: Run, clients: NDArray[np.int64]) -> None:
    """Raise UnsuitedError if a store contains vectors other than samples."""
    assert run.embeddings is not None
    assert run.stores is not None
    parts = [run.embeddings["train"], run.embeddings["validation"]]
    if not all(voting.contains_only_samples(run.stores, int(client), parts) for client in clients):
        raise UnsuitedError(
            "noisy votes need an exact store of samples: one sample changes several prototypes, or a trained index",
            "pfl build-datastore EMBEDDINGS -o DIR, without --prototypes and with the index Flat",
        )


def _kernel_distance(cfg: Config, neighbours: Neighbours, dimension: int) -> NDArray[np.float64]:
    """Return the distances (n, k) of neighbours on the scale of the kernel, before division by sigma."""
    if cfg.kernel == "euclidean":
        return np.sqrt(neighbours.distance)
    return np.asarray(neighbours.distance / dimension)


def _fade(
    knn: NDArray[np.float64], model: NDArray[np.float64], nearest: NDArray[np.float64], decay: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return max(0, 1 - decay d) knn + (1 - max(0, 1 - decay d)) model, (n, C), where d is ``nearest`` (n,).

    Mixing the result with the model by lambda equals mixing ``knn`` with it by lambda max(0, 1 - decay d).
    """
    near = np.maximum(0.0, 1 - decay * np.where(np.isfinite(nearest), nearest, 0.0))[:, None]
    return near * knn + (1 - near) * model


def _tune(
    run: Run,
    knn: NDArray[np.float64],
    model: NDArray[np.float64],
    part: Embedded,
    nearest: NDArray[np.float64],
    folds: Folds,
) -> _Tuning:
    """Choose each client's lambda and decay, those with the most correct predictions of ``part``: ``choose_lambdas``.

    A decay is per unit of distance; ``nearest`` (n,) are the distances to the nearest neighbours. Of equally good
    decays the smallest is taken. A client without samples, or with a median distance of 0, has none.
    """
    cfg = run.cfg
    grid = np.unique(cfg.grid) if cfg.weight is None else np.asarray([float(cfg.weight)])
    decays = np.asarray(DECAYS if cfg.decay == "auto" else (cfg.decay,))
    rates = np.zeros((folds.clients, len(decays)))
    if decays.any():
        medians = knn_per.median_nearest(nearest, part.offsets)[:, None]
        np.divide(decays, medians, out=rates, where=medians > 0)
    faded = [_fade(knn, model, nearest, knn_per.repeat_per_sample(each, part.offsets)) for each in rates.T]
    right = knn_per.score_lambdas(run, np.stack(faded), model, part.y, grid)
    total, apart = folds.sum(right.swapaxes(0, 1))  # by decay and lambda

    def choose(
        counts: NDArray[np.int64], rates: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        best = counts.max(axis=-1).argmax(axis=-1)[..., None]
        of_best = np.take_along_axis(counts, best[..., None], axis=-2)[..., 0, :]
        return choose_lambdas(grid, of_best), np.take_along_axis(rates, best, axis=-1)[..., 0], of_best.max(axis=-1)

    return _Tuning(*choose(total, rates), *choose(apart, same_in_all(rates)))
