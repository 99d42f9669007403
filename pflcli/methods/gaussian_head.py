"""Gaussian head: each client classifies by Gaussians around its own class means, shrunk towards those of all clients.

A linear discriminant analysis of the embeddings of a backbone. The class means of a client are shrunk towards those of
all clients in the simplest form of Efron & Morris (1973), https://doi.org/10.1080/01621459.1973.10481350: mu_ic = (n_ic
m_ic + kappa mu_c) / (n_ic + kappa), where m_ic is the client's mean of class c and mu_c that of all clients. All
clients share the covariance within classes, E[z z'] - sum_c pi_c mu_c mu_c', plus `ridge` times its mean variance on
the diagonal. Class frequencies are shrunk as in `prior`. Clients upload, once, the frequencies and means of their
classes and their mean of z z'. The server returns the frequencies, means and covariance of all clients. No model is
trained.

In many dimensions Gaussians are far too confident. Log-likelihoods are therefore divided by a temperature, which each
client chooses by its validation log-loss; it does not change the most probable class. A client without validation
samples uses 10. A class without samples has the mean of all embeddings, and counts as 1e-6 of all samples.

A quantity is Gaussian given the embedding: the head is Bayes' linear regression of standardized labels (Gelman et al.,
2013, Bayesian Data Analysis, section 14.8). Clients upload, once, their mean of z z' and of z y, where z has a constant
1. The server returns those of all clients, and hence their regression w, with `ridge` times the mean variance v on the
diagonal. The prior of a client's head is Gaussian around w, with the precision kappa v (kappa for the constant), as
from kappa samples. The log-likelihood of its own samples is divided by the temperature, by which each client chooses
how far it leaves w: the one with the smallest squared error on its validation samples. Counts have no such head: their
likelihood has no statistics of fixed size for clients to send.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, MinLen
from numpy.typing import NDArray

from pflcli.method import Embedded, Params, Predictor, Run
from pflcli.methods.parts.class_counts import shrunk_prior, training_counts
from pflcli.methods.parts.folds import Folds, per_sample, same_in_all

KIND = "server"
NEEDS = ("embeddings",)
ADAPTS = True
SENDS_MORE = "moments before the rounds"
PAPER = "Gaussian head"
YEAR = 1973
TASKS = ("classes", "quantity")
GRID = {"kappa": (1.0, 3.0, 10.0, 30.0), "ridge": (0.03, 0.1, 0.3)}

State = dict[str, Params]
Array = NDArray[np.float64]

_DEFAULT_TEMPERATURE = 10.0
"""Temperature of a client without validation samples."""
_LEAST = 1e-9
"""The least kappa of a regression."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    kappa: Annotated[float, Ge(0)] = 10.0
    """count the means of all clients like this many of a client's own samples per class, and their frequencies
    like this many in total; of a quantity, the regression of all clients"""
    ridge: Annotated[float, Gt(0)] = 0.1
    """add this multiple of the mean variance to the variances"""
    temperature: Annotated[float, Gt(0)] | None = None
    """divide log-likelihoods by this; none lets each client choose from grid by validation log-loss, of a quantity
    by squared error"""
    grid: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] = (
        *(1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0, 200.0),
    )
    """choose the temperature from these values; ties go to the first"""


def choices(cfg: Config) -> tuple[str, ...]:
    """Return what each client chooses by its validation samples."""
    return ("temperature",) if cfg.temperature is None else ()


def setup(run: Run) -> State:
    """Let clients send frequencies, means and second moments; return those of all clients."""
    assert run.embeddings is not None
    if run.task.kind == "quantity":
        return _share_moments(run)
    able, classes = run.participants(), run.federation.classes
    known = run.embeddings["train"].take(able)
    size = known.z.shape[1]
    template = {"prior": torch.full((classes,), 1 / classes), "moment": torch.eye(size)}
    means, mean = torch.zeros(classes, size), run.averaging(template)
    of_classes = [run.averaging({"mean": value}) for value in means]
    counts = training_counts(run, able)
    for client, n, (first, last) in zip(able, counts, pairwise(known.offsets), strict=True):
        z, y = known.z[first:last].astype(np.float64), known.y[first:last]
        own = {"prior": n / n.sum(), "moment": z.T @ z / len(z)}
        stacked = {name: torch.from_numpy(value).float()[None] for name, value in own.items()}
        mean.add(stacked, np.asarray([float(n.sum())]), np.asarray([client]))
        for c in np.flatnonzero(n):
            value = torch.from_numpy(z[y == c].mean(axis=0)).float()
            of_classes[c].add({"mean": value[None]}, np.asarray([float(n[c])]), np.asarray([client]))
    shared = mean.value() if mean.is_defined else template
    for row, of_class in zip(means, of_classes, strict=True):
        if of_class.is_defined:
            row.copy_(of_class.value()["mean"])
    return {"shared": run.download({**shared, "means": means}, able)}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict by the Gaussians of each client."""
    assert run.embeddings is not None
    if run.task.kind == "quantity":
        return _predict_quantities(run, state, clients)
    _, own = shrunk_prior(run, clients, state["shared"]["prior"], run.cfg.kappa)
    parts = {split: run.embeddings[split].take(clients) for split in run.predicted_splits}
    whiten, common = _whiten(run, state)
    means = _shrink_means(run, clients, common)
    logits = {split: _logits(part, means, np.log(own), whiten) for split, part in parts.items()}
    temperature = run.read_choices("temperature", clients)
    if temperature is None:
        part = parts["validation"]
        scaled = logits["validation"][None] / _temperatures(run)[:, None, None]  # (g, n, C)
        losses = np.logaddexp.reduce(scaled, axis=2) - scaled[:, np.arange(len(part.y)), part.y]
        temperature, apart = _choose_temperature(run, losses, part.offsets)
    else:
        apart = same_in_all(temperature)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        scale = per_sample(split, parts[split].offsets, temperature, apart)[:, None]
        return {"p": run.task.predict(torch.from_numpy(logits[split] / scale))}

    return Predictor(
        answer, run.predicted_splits, tuned={"temperature": temperature} if run.cfg.temperature is None else {}
    )


def _whiten(run: Run, state: State) -> tuple[Array, Array]:
    """Return W (d, d), by which z W has the shared covariance 1, and the class means of all clients (C, d)."""
    shared = {name: value.cpu().double().numpy() for name, value in state["shared"].items()}
    prior, means = shared["prior"], shared["means"]
    within = shared["moment"] - means.T @ (prior[:, None] * means)
    values, vectors = np.linalg.eigh((within + within.T) / 2)
    values = np.maximum(values, 0)
    spread = max(float(values.mean()), np.finfo(np.float32).tiny)
    return vectors / np.sqrt(values + run.cfg.ridge * spread), np.where(prior[:, None] > 0, means, prior @ means)


def _shrink_means(run: Run, clients: NDArray[np.int64], common: Array) -> list[Array]:
    """Return each client's class means (C, d), shrunk towards those of all."""
    assert run.embeddings is not None
    known, kappa, client_means = run.embeddings["train"].take(clients), run.cfg.kappa, []
    for first, last in pairwise(known.offsets):
        z, y = known.z[first:last].astype(np.float64), known.y[first:last]
        counts = np.bincount(y, minlength=len(common))[:, None]
        sums = np.zeros_like(common)
        np.add.at(sums, y, z)
        client_means.append(np.where(counts > 0, (sums + kappa * common) / np.maximum(counts + kappa, 1e-12), common))
    return client_means


def _logits(part: Embedded, means: list[Array], priors: Array, whiten: Array) -> Array:
    """Return the log-likelihoods (n, C) of samples, up to a constant of each; ``priors`` are logarithms (m, C)."""
    rows = [np.zeros((0, priors.shape[1]))]
    for (first, last), mean, prior in zip(pairwise(part.offsets), means, priors, strict=True):
        z, centre = part.z[first:last].astype(np.float64) @ whiten, mean @ whiten
        rows.append(z @ centre.T - (centre**2).sum(axis=1) / 2 + prior)
    return np.concatenate(rows)


def _temperatures(run: Run) -> Array:
    """Return the temperatures (g,) to choose from."""
    return np.asarray(run.cfg.grid if run.cfg.temperature is None else [run.cfg.temperature], dtype=np.float64)


def _choose_temperature(run: Run, losses: Array, offsets: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the temperature of each client, (m,), and the one that it chooses without each fold, (m, FOLDS).

    ``losses`` (g, n) are those of the clients' validation samples with each temperature.
    """
    folds, grid = Folds.divide(offsets), _temperatures(run)
    if run.cfg.temperature is not None:
        temperature = np.full(folds.clients, float(run.cfg.temperature))
        return temperature, same_in_all(temperature)
    best = [grid[losses[:, a:b].mean(axis=1).argmin()] if b > a else _DEFAULT_TEMPERATURE for a, b in pairwise(offsets)]
    _, apart = folds.sum(losses.T)
    _, samples = folds.sum(np.ones(losses.shape[1], dtype=np.int64))
    best_apart = np.where(samples > 0, grid[apart.argmin(axis=2)], _DEFAULT_TEMPERATURE)
    return np.asarray(best, dtype=np.float64), best_apart


def _share_moments(run: Run) -> State:
    """Let clients send the moments of embeddings and a quantity; return those of all clients."""
    assert run.embeddings is not None
    able = run.participants()
    known = run.embeddings["train"].take(able)
    size = known.z.shape[1] + 1
    template = {"moment": torch.eye(size), "product": torch.zeros(size)}
    mean = run.averaging(template)
    for client, (first, last) in zip(able, pairwise(known.offsets), strict=True):
        z, y = _add_constant(known.z[first:last]), _standardize(run, known.y[first:last])
        own = {"moment": z.T @ z / len(z), "product": y @ z / len(z)}
        stacked = {name: torch.from_numpy(value).float()[None] for name, value in own.items()}
        mean.add(stacked, np.asarray([float(len(z))]), np.asarray([client]))
    return {"shared": run.download(mean.value() if mean.is_defined else template, able)}


def _predict_quantities(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict by each client's regression.

    In the space where the prior has the covariance 1, a head is the common one plus the ridge regression of the
    residuals of the client's samples, with the temperature as penalty. The singular values of the samples give it for
    any temperature.
    """
    assert run.embeddings is not None
    common, deviations = _regress_all(run, state)
    known, splits = run.embeddings["train"].take(clients), run.predicted_splits
    parts = {split: run.embeddings[split].take(clients) for split in splits}
    base = {split: _add_constant(part.z) @ common for split, part in parts.items()}
    moved = {split: list[tuple[Array, Array, Array]]() for split in splits}
    for place, (first, last) in enumerate(zip(known.offsets[:-1], known.offsets[1:], strict=True)):
        z, y = _add_constant(known.z[first:last]), _standardize(run, known.y[first:last])
        left, values, right = np.linalg.svd(z * deviations, full_matrices=False)
        products = values * (left.T @ (y - z @ common))
        for split, part in parts.items():
            own = _add_constant(part.z[part.offsets[place] : part.offsets[place + 1]])
            moved[split].append(((own * deviations) @ right.T, products, values**2))

    def predict(split: str, temperature: Array) -> Array:
        """Return the standardized predictions (n,) with a temperature for each sample."""
        spans = pairwise(parts[split].offsets)
        steps = [
            (z * (products / (squares + temperature[first:last, None]))).sum(axis=1)
            for (first, last), (z, products, squares) in zip(spans, moved[split], strict=True)
        ]
        return np.asarray(base[split] + np.concatenate([np.zeros(0), *steps]))

    chosen = run.read_choices("temperature", clients)
    if chosen is None:
        validation = parts["validation"]
        y = _standardize(run, validation.y)
        grid = [predict("validation", np.full(len(y), each)) for each in _temperatures(run)]
        chosen, apart = _choose_temperature(run, (np.stack(grid) - y) ** 2, validation.offsets)
    else:
        apart = same_in_all(chosen)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        outputs = predict(split, per_sample(split, parts[split].offsets, chosen, apart))
        return {"p": run.task.predict(torch.from_numpy(outputs[:, None]))}

    return Predictor(answer, splits, tuned={"temperature": chosen} if run.cfg.temperature is None else {})


def _regress_all(run: Run, state: State) -> tuple[Array, Array]:
    """Return the regression of all clients, and the deviations of the prior of a client's around it, (d + 1,) each."""
    shared = {name: value.cpu().double().numpy() for name, value in state["shared"].items()}
    moment, constant = (shared["moment"] + shared["moment"].T) / 2, len(shared["product"]) - 1
    spread = max(float((np.diag(moment)[:-1] - moment[-1, :-1] ** 2).mean()), float(np.finfo(np.float32).tiny))
    moment[np.diag_indices(constant)] += run.cfg.ridge * spread
    variances = np.append(np.full(constant, spread), 1.0)
    return np.linalg.lstsq(moment, shared["product"], rcond=None)[0], (variances * max(run.cfg.kappa, _LEAST)) ** -0.5


def _add_constant(z: NDArray[np.float32]) -> Array:
    """Return embeddings (n, d) with a constant 1, (n, d + 1)."""
    return np.column_stack([z.astype(np.float64), np.ones(len(z))])


def _standardize(run: Run, y: NDArray[Any]) -> Array:
    """Return labels (n,) in deviations from the mean of all training labels."""
    task: Any = run.task
    return np.asarray((y - task.mean) / task.deviation, np.float64)
