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
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

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
GRID = {"kappa": (1.0, 3.0, 10.0, 30.0), "ridge": (0.03, 0.1, 0.3)}

State = dict[str, Params]
Array = NDArray[np.float64]

_DEFAULT_TEMPERATURE = 10.0
"""Temperature of a client without validation samples."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    kappa: Annotated[float, Ge(0)] = 10.0
    """count the means of all clients like this many of a client's own samples per class, and their frequencies
    like this many in total"""
    ridge: Annotated[float, Gt(0)] = 0.1
    """add this multiple of the mean variance to the variances"""
    temperature: Annotated[float, Gt(0)] | None = None
    """divide log-likelihoods by this; none lets each client choose from grid by validation log-loss"""
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
    able, classes = run.federation.participants, run.federation.classes
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
    shared = mean.value() if len(able) else template
    present = np.flatnonzero(counts.sum(axis=0))
    means[present] = torch.stack([of_classes[c].value()["mean"] for c in present]) if len(present) else means[present]
    return {"shared": run.download({**shared, "means": means}, able)}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict by the Gaussians of each client."""
    assert run.embeddings is not None
    _, own = shrunk_prior(run, clients, state["shared"]["prior"], run.cfg.kappa)
    parts = {split: run.embeddings[split].take(clients) for split in run.predicted_splits}
    whiten, common = _whiten(run, state)
    means = _shrink_means(run, clients, common)
    logits = {split: _logits(part, means, np.log(own), whiten) for split, part in parts.items()}
    temperature = run.read_choices("temperature", clients)
    if temperature is None:
        temperature, apart = _choose_temperature(run, logits["validation"], parts["validation"])
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


def _choose_temperature(run: Run, logits: Array, part: Embedded) -> tuple[Array, Array]:
    """Return the temperature of each client, (m,), and the one that it chooses without each fold, (m, FOLDS)."""
    folds = Folds.divide(part.offsets)
    if run.cfg.temperature is not None:
        temperature = np.full(folds.clients, float(run.cfg.temperature))
        return temperature, same_in_all(temperature)
    grid = np.asarray(run.cfg.grid, dtype=np.float64)
    scaled = logits[None] / grid[:, None, None]  # (g, n, C)
    losses = np.logaddexp.reduce(scaled, axis=2) - scaled[:, np.arange(len(part.y)), part.y]  # (g, n)
    best = [
        grid[losses[:, a:b].mean(axis=1).argmin()] if b > a else _DEFAULT_TEMPERATURE for a, b in pairwise(part.offsets)
    ]
    _, apart = folds.sum(losses.T)
    _, samples = folds.sum(np.ones(len(part.y), dtype=np.int64))
    best_apart = np.where(samples > 0, grid[apart.argmin(axis=2)], _DEFAULT_TEMPERATURE)
    return np.asarray(best, dtype=np.float64), best_apart
