"""FedPAC: a common body with features aligned to global class centroids, and heads that similar clients combine.

Xu, Tong & Huang (2023), "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR,
https://arxiv.org/abs/2306.11867, Algorithm 1. In a round, a client downloads the body and the centroids c_k of all
classes, and has the head that the server combined for it when it last took part. It

- computes statistics of its features z by the body that it downloaded: for each class k, h_k, the mean of z over its
  samples of this class times their share p(k), and V, the variance of this estimate: (mean |z|^2 - sum_k |h_k|^2) / n;
- trains its head for `head_epochs` with the body fixed;
- trains the body with the head fixed, by the cross-entropy plus lambda times the mean over dimensions of (z - c_y)^2;
- uploads the body, the head, the statistics, and the mean features of its classes by the new body.

The server averages bodies, weighted by samples, and the means of each class, weighted by the class's samples. For each
client i of the cohort it combines the cohort's heads with the weights a_j >= 0, of sum 1, that minimize

    sum_j a_j^2 V_j + sum_k |h_ik - sum_j a_j h_jk|^2,

a quadratic programme, and sends the result to the client. It is solved exactly, by nonnegative least squares. A client
with one sample has V = 0 and keeps its own head.

A class that no client of a cohort has keeps its centroid, and a class without one is not aligned; in the first round
there are none. The authors' code forgets the former, and aligns the latter to the client's own mean. It also leaves out
weights below 0.001, and trains heads with a rate of 0.1, ten times that of bodies; see `head_lr`. BatchNorm normalizes
by the batch in both phases; the statistics of the first phase are discarded.

A client predicts with its combined head on the last global body, after `final_epochs` on the head, as the local
training of a next round would begin. The head of a client that took part some rounds ago does not fit this body: on the
validation samples of 60 writers accuracy is 87.7, 87.8 and 90.5 % with 0, 1 and 5 epochs. A client that never took part
first trains the initial head on the last body for `newcomer_epochs`. Predictions use training samples only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from pflcli.method import (
    ModelTable,
    Packages,
    Params,
    Predictor,
    Run,
    Stacked,
    StackedBatch,
    TrainedClients,
    parameters,
)
from pflcli.methods.parts.class_means import class_means

KIND = "server"
NEEDS = ()
DIVIDES = True
PERSONAL_MODELS = "heads"
SENDS_MORE = "heads, class means and variances"
PAPER = "FedPAC"
YEAR = 2023
SERVES = ("centroids",)
GRID = {"lam": (0.1, 1.0, 10.0), "head_epochs": (1, 5), "head_lr": (0.0, 0.02, 0.2)}

State = dict[str, Any]
Array = NDArray[np.float64]

_RIDGE = 1e-9
"""What is added to variances, as a part of the largest |h|^2 + V, so that equal clients have equal weights."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    lam: Annotated[float, Ge(0)] = 1.0
    """pull features to the centroids with this weight (lambda) in training (the authors' code: 1); 0 does not"""
    collaborate: bool = True
    """combine heads by the quadratic programme; false leaves each client its own, which with lam=0 is FedRep"""
    head_epochs: Annotated[int, Ge(0)] = 1
    """train the head for this many local epochs per round (the paper's 1)"""
    head_lr: Annotated[float, Ge(0)] = 0.0
    """train heads with this learning rate; 0 uses that of the round"""
    final_epochs: Annotated[int, Ge(0)] = 5
    """train each client's head on the last body for this many local epochs when it personalizes; 0 does not"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train the heads of clients that never took part for this many local epochs when they personalize"""


def setup(run: Run) -> State:
    """Return the common initial body, heads, and no centroids."""
    start, classes = run.initial_model(), run.federation.classes
    size, device = run.representation_size, run.federation.y.device
    none = {"mean": torch.zeros(classes, size, device=device), "known": torch.zeros(classes, device=device)}
    heads = run.table(parameters.part(start, "head."))
    return {"body": parameters.part(start, "body."), "heads": heads, "centroids": none}


def train_round(run: Run, state: State, t: int) -> State:
    """Train heads and then aligned bodies of a cohort, average bodies and centroids, and combine heads."""
    here, heads, cfg = run.cohort(t), state["heads"], run.cfg
    body = run.download(state["body"], here)
    centroids = run.download(state["centroids"], here, counted=False)
    run.send("down", {"centroids": centroids["mean"][centroids["known"] > 0]}, copies=len(run.everyone(here)))
    bodies = parameters.repeat(body, len(here))
    start, rate = {**bodies, **heads[here]}, cfg.head_lr or None
    for part in run.local_sgd(here, start, t=t, name="head", epochs=cfg.head_epochs, lr=rate, trainable="head."):
        heads[part.clients] = part.params
    mean, plan = run.averaging(body), {"name": "body", "trainable": "body.", **_alignment(run, centroids)}

    def train() -> Iterator[TrainedClients]:
        for part in run.local_sgd(here, {**bodies, **heads[here]}, t=t, **plan):
            mean.add(part.params, part.weights, part.clients)
            means, n = class_means(run, part.clients, part.params)
            sent = {"means": means, "counts": torch.from_numpy(n).to(means.device)}
            if cfg.collaborate:
                own = heads[part.clients]
                models = {**parameters.repeat(body, len(part.clients)), **own}
                sent |= {**own, **_feature_statistics(run, part.clients, models)}
            yield replace(part, params=sent)

    like = {"means": centroids["mean"], "counts": centroids["known"].double()}
    if cfg.collaborate:
        like |= {**heads.default, "h": centroids["mean"].double(), "v": torch.zeros((), dtype=torch.float64)}
    total, samples = torch.zeros_like(centroids["mean"], dtype=torch.float64), torch.zeros_like(like["counts"])
    parts = list[TrainedClients]()
    for part in run.collect(train(), like, counted=False):
        means, n = part.params["means"], part.params["counts"]
        total += (means.double() * n[..., None]).sum(dim=0)
        samples += n.sum(dim=0)
        run.send("up", {"means": means[n > 0]})
        if cfg.collaborate:
            parts.append(part)
            run.send("up", heads.default, copies=len(n))
            h = part.params["h"]
            run.send("up", {"h": h[h.abs().sum(dim=2) > 0].float(), "v": part.params["v"].float()})
    if cfg.collaborate:
        for clients, combined in run.deliver(lambda: _combine_heads(heads, parts), here, heads.default, rows=True):
            heads[clients] = combined
    average = torch.where(samples[:, None] > 0, (total / samples.clamp(min=1)[:, None]).float(), centroids["mean"])
    known = torch.maximum(centroids["known"], (samples > 0).to(centroids["known"]))
    return {"body": mean.value(), "heads": heads, "centroids": {"mean": average, "known": known}}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's head on the global body."""
    body, heads, cfg = state["body"], state["heads"], run.cfg
    plan = dict[str, Any](name="head", trainable="head.")
    own_heads = run.adapt(heads, clients, {**body, **heads.default}, epochs=cfg.newcomer_epochs, **plan)
    models = {**parameters.repeat(body, len(clients)), **own_heads}
    if not cfg.final_epochs:
        return run.predictor(clients, models)
    rate = cfg.head_lr or run.last_lr
    return run.predictor(clients, run.local_sgd(clients, models, t="final", epochs=cfg.final_epochs, lr=rate, **plan))


def _alignment(run: Run, centroids: Params) -> dict[str, Any]:
    """Return how clients train bodies: options of ``Run.local_sgd``."""
    if not run.cfg.lam or not (centroids["known"] > 0).any():
        return {}
    return {"loss": _losses, "shared": {**centroids, "lam": centroids["mean"].new_tensor(run.cfg.lam)}}


def _losses(logits: Tensor, z: Tensor, params: Mapping[str, Tensor], batch: StackedBatch) -> Tensor:
    """Return the cross-entropy plus the distance of features to the centroids of their classes."""
    shared = batch.shared
    apart = (z - shared["mean"][batch.y]).square().mean(dim=2) * shared["known"][batch.y]  # (a, n)
    return batch.loss(logits) + shared["lam"] * batch.mean(apart)


def _combine_heads(heads: ModelTable, parts: Sequence[TrainedClients]) -> Packages:
    """Yield the clients of a cohort with the heads that the server combines for them, of what they sent in parts."""
    order = np.argsort(clients := np.concatenate([part.clients for part in parts]))
    sent = {
        name: torch.cat([part.params[name] for part in parts])[torch.from_numpy(order)]
        for name in ("h", "v", *heads.default)
    }
    weights = torch.from_numpy(combination_weights(sent["h"].flatten(1).cpu().numpy(), sent["v"].cpu().numpy()))
    combined = {}
    for name in heads.default:
        flat = sent[name].flatten(1)
        combined[name] = (weights.to(flat.device) @ flat.double()).to(flat).view_as(sent[name])
    yield clients[order], combined


def _feature_statistics(run: Run, clients: NDArray[np.int64], models: Stacked) -> Stacked:
    """Return h (m, C, d) and V (m,) of the clients' features by their models."""
    hs, variances = [], []
    embedded = run.engine.outputs_each(clients, models, "train", features=True)
    for client, (_, features) in zip(clients, embedded, strict=True):
        y, z = run.federation.y[run.federation.block(int(client), "train")], features.double()
        h = z.new_zeros(run.federation.classes, z.shape[1]).index_add_(0, y, z) / len(z)
        hs.append(h)
        variances.append((z.square().sum() / len(z) - h.square().sum()).clamp(min=0) / len(z))
    return {"h": torch.stack(hs), "v": torch.stack(variances)}


def combination_weights(h: Array, v: Array) -> Array:
    """Return the weights (m, m) with which each of m clients combines heads, by h (m, n) and V (m,) of each.

    Row i minimizes sum_j a_j^2 v_j + |h_i - sum_j a_j h_j|^2 over a >= 0 with sum 1. If q is this sum, the minimum over
    scales s of s^2 q + (s - 1)^2 is q / (1 + q), which grows with q. Nonnegative least squares over u = s a therefore
    give a = u / s.
    """
    products = h @ h.T
    scale = max(float((np.diag(products) + v).max()), np.finfo(np.float64).tiny)
    values, vectors = np.linalg.eigh(products / scale)
    points = vectors * np.sqrt(np.maximum(values, 0))  # (m, m), as far apart as the h
    spread = np.diag(np.sqrt(v / scale + _RIDGE))
    target = np.append(np.zeros(2 * len(v)), 1.0)
    weights = np.empty((len(v), len(v)))
    for i, point in enumerate(points):
        u, _ = nnls(np.vstack([(points - point).T, spread, np.ones(len(v))]), target, maxiter=100 * len(v))
        weights[i] = u / u.sum()
    return weights
