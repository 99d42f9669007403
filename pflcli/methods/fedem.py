"""FedEM: models each client's distribution as a mixture of a few shared distributions, with one model for each.

Marfoq et al. (2021), https://arxiv.org/abs/2108.10252, Algorithm 1. The model has several components, all of which are
sent.

In a round, client i computes how well each downloaded component explains each sample, q_k(x, y) proportional to pi_ik
exp(-loss_k(x, y)) (E step). It sets pi_ik to the mean of q_k over its training samples, and trains all components on
the loss weighted by q_k (M step). The server averages each component over the cohort, weighted by samples. Components
start from different random weights, because equal components would stay equal.

The likelihood exp(-loss) is that of classes. For counts it is Poisson's. For a quantity, components are Gaussian with a
common variance s: q_k is proportional to pi_ik exp(-loss_k / (2 s)). At first, s is the variance of all training
labels; then the mean of sum_k q_k loss_k over the clients of the last round, which is the M step of a Gaussian mixture
(Bishop, 2006, section 14.5). With losses other than squared and Huber, it is Laplace's distribution of the scale s,
exp(-loss_k / s). In the paper the variance is fixed.

A client predicts with sum_k pi_ik h_k(x), a mixture of probabilities, or the mean of a quantity or count. When it
personalizes, it takes one more E step and M step for pi with the last components, starting from its pi of the last
round, or from equal shares if it never took part. The components do not change. Predictions use training samples only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pflcli.method import ClientModel, Predictor, Run, Stacked, parameters

KIND = "server"
NEEDS = ()
ADAPTS = True
KEEPS = ("shares",)
PAPER = "FedEM"
YEAR = 2021
TASKS = ("any",)

State = dict[str, Any]

_MIN_SCALE = 1e-6
"""The least scale of a quantity, in variances of the training labels: that of a perfect fit is zero."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    components: Annotated[int, Ge(1)] = 3
    """mix this many models, all of which are sent (the paper's 3); 1 is FedAvg"""


def setup(run: Run) -> State:
    """Return the components (K, ...), and equal shares (m, K) for every client."""
    count = run.cfg.components
    components = run.initial_models(count)
    device = next(iter(components.values())).device
    state = {"components": components, "shares": torch.full((len(run.clients), count), 1 / count, device=device)}
    return {**state, "scale": torch.ones(1, device=device)} if run.task.kind == "quantity" else state


def train_round(run: Run, state: State, t: int) -> State:
    """Update the shares of a cohort, train all components on it, average each."""
    cohort, components, count = run.cohort(t), state["components"], run.cfg.components
    models = [parameters.pick(components, k) for k in range(count)]
    scale = {name: state[name] for name in ("scale",) if name in state}
    downloaded = run.download(
        {f"{k}:{name}": value for k, one in enumerate(models) for name, value in one.items()} | scale, cohort
    )
    models = [parameters.unprefixed(downloaded, f"{k}:") for k in range(count)]
    q, errors = _responsibilities(run, cohort, parameters.stack(models), state["shares"][cohort], downloaded)
    mean, first = run.averaging(downloaded), 0
    for ids in run.client_chunks(cohort, parameters.size(downloaded)):
        weights = pad_sequence(q[first : first + len(ids)], batch_first=True)  # (m, n, K)
        trained: Stacked = {name: errors[first : first + len(ids), None].to(value) for name, value in scale.items()}
        first += len(ids)
        for k, model in enumerate(models):
            (part,) = run.local_sgd(ids, model, t=t, sample_weights=weights[..., k])
            trained |= {f"{k}:{name}": value for name, value in part.params.items()}
        mean.add(trained, part.weights, part.clients)
    averaged = mean.value()
    stacked = parameters.stack([parameters.unprefixed(averaged, f"{k}:") for k in range(count)])
    shared = {"components": stacked, **{name: averaged[name] for name in scale}}
    return {**shared, "shares": _update_shares(state["shares"], cohort, q)}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the components mixed by each client's shares."""
    components = state["components"]
    shares = state["shares"]
    q, _ = _responsibilities(run, clients, components, shares[clients], state)
    pi = _update_shares(shares, clients, q)[clients].cpu().numpy()

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        rows = run.federation.rows_of(clients, split)
        owner = np.repeat(np.arange(len(clients)), run.federation.sizes(split)[clients])
        each = [run.task.predict(run.engine.infer(parameters.pick(components, k), rows)[0]) for k in range(pi.shape[1])]
        return {"p": sum((pi[owner, k, None] * p for k, p in enumerate(each)), np.zeros_like(each[0]))}

    def model_of(client: int) -> ClientModel:
        mixture = pi[np.flatnonzero(clients == client)[0]]
        networks = tuple(parameters.pick(components, k) for k in range(len(mixture)))
        return ClientModel(networks, tuple(float(share) for share in mixture))

    tuned = {f"pi_{k + 1}": pi[:, k].astype(np.float64) for k in range(pi.shape[1])}
    return Predictor(answer, run.predicted_splits, tuned, model_of)


def _responsibilities(
    run: Run, clients: NDArray[np.int64], components: Stacked, shares: Tensor, sent: Mapping[str, Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Return q (n, K) of each client's training samples, and the mean of sum_k q_k loss_k, (m,): the E step.

    The clients' ``shares`` are (m, K); ``sent`` has the ``scale`` of a quantity.
    """
    if not len(clients):
        return [], shares.new_zeros(0)
    rows = [run.federation.rows(int(client), "train") for client in clients]
    all_rows = np.concatenate(rows)
    y = run.federation.y[torch.from_numpy(all_rows).to(run.federation.y.device)]
    outputs = [run.engine.infer(parameters.pick(components, k), all_rows)[0] for k in range(shares.shape[1])]
    losses = torch.stack([run.task.losses(each, y) for each in outputs], dim=1)  # (n, K)
    of_clients = torch.split(losses, [len(each) for each in rows])
    width = _likelihood_width(run, sent)
    q = [_responsibility(share, own / width) for share, own in zip(shares, of_clients, strict=True)]
    sums = [(each * own).sum() / max(len(own), 1) for each, own in zip(q, of_clients, strict=True)]
    return q, torch.stack(sums)


def _likelihood_width(run: Run, sent: Mapping[str, Tensor]) -> float:
    """Return by what a loss is divided to be the negative logarithm of a likelihood, up to a constant."""
    task: Any = run.task
    if "scale" in sent:  # of a quantity
        return max(float(sent["scale"]), _MIN_SCALE) * (2 if task.loss in ("squared", "huber") else 1)
    return 1 / float(task.mean) if task.kind == "count" else 1.0


def _update_shares(shares: Tensor, clients: NDArray[np.int64], q: list[Tensor]) -> Tensor:
    """Return the shares (m, K) of everyone after an M step of some clients: means of ``q``, if there are samples."""
    updated = shares.clone()
    for client, own in zip(clients.tolist(), q, strict=True):
        if len(own):
            updated[client] = own.mean(dim=0)
    return updated


def _responsibility(share: Tensor, losses: Tensor) -> Tensor:
    """Return q (n, K), proportional to pi_k exp(-loss_k), for losses (n, K)."""
    return torch.softmax(share.clamp_min(torch.finfo(share.dtype).tiny).log() - losses, dim=1)
