"""FedEM: every client's distribution is a mixture of the same few, each of which has a model.

Marfoq et al. (2021), https://arxiv.org/abs/2108.10252, Algorithm 1. All components travel. With the components that it
was sent, client i computes how much each answers for each sample, q_k(x, y) proportional to pi_ik exp(-loss_k(x, y))
(E), takes pi_ik as the mean of q_k over its training samples, and trains each component on the loss weighted by q_k
(M), with q as it was sent, all side by side; the server averages each component over the cohort, weighted by samples.
Components begin at draws of their own; with the same one they would stay alike.

The answer is sum_k pi_ik h_k(x), a mixture of probabilities. When it personalizes, a client takes one more E and M
step for its pi with the last components, from where its last round left pi, or from equal shares if it never took
part; the components stay as they are, so all answers come from training samples alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli import parameters
from pflcli.engine.engine import probabilities
from pflcli.engine.local_sgd import Batch, Model
from pflcli.fl.run import Predictor, Run
from pflcli.parameters import Params, Stacked

KIND = "server"
NEEDS = ()
ADAPTS = True
PAPER = "FedEM"
YEAR = 2021

State = dict[str, Any]


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
    return {"components": components, "shares": torch.full((len(run.clients), count), 1 / count, device=device)}


def train_round(run: Run, state: State, t: int) -> State:
    """Update the shares of a cohort, train all components on it, average each."""
    cohort, components, shares = run.cohort(t), state["components"], state["shares"].clone()
    downloaded = {f"{k}:{name}": value[k] for name, value in components.items() for k in range(run.cfg.components)}
    run.download(downloaded, cohort)
    initial, own = parameters.repeat(downloaded, len(cohort)), {"share": shares[cohort]}
    shares[cohort] = _shares(run, cohort, components, shares[cohort])
    expected = partial(_expected, count=run.cfg.components)
    trained = run.average(
        run.local_sgd(cohort, initial, t=t, objective=expected, own=own, shared=downloaded), downloaded
    )
    models = [_component(trained, k) for k in range(run.cfg.components)]
    return {"components": parameters.stack(models), "shares": shares}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Answer with the components mixed by each client's shares."""
    components = state["components"]
    pi = _shares(run, clients, components, state["shares"][clients]).cpu().numpy()

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        rows = np.concatenate([run.federation.rows(int(client), split) for client in clients])
        owner = np.repeat(np.arange(len(clients)), run.federation.sizes(split)[clients])
        each = [probabilities(run.engine.infer(parameters.pick(components, k), rows)[0]) for k in range(pi.shape[1])]
        return {"p": sum((pi[owner, k, None] * p for k, p in enumerate(each)), np.zeros_like(each[0]))}

    return Predictor(
        answer, run.predicted_splits, tuned={f"pi_{k + 1}": pi[:, k].astype(np.float64) for k in range(pi.shape[1])}
    )


def _component(params: Params, k: int) -> Params:
    mark = f"{k}:"
    return {name.removeprefix(mark): value for name, value in params.items() if name.startswith(mark)}


def _shares(run: Run, clients: NDArray[np.int64], components: Stacked, shares: Tensor) -> Tensor:
    """Return the shares (n, K) after an E and an M step; those of a client without training samples stay."""
    rows = [run.federation.rows(int(client), "train") for client in clients]
    all_rows = np.concatenate(rows)
    y = run.federation.y[torch.from_numpy(all_rows).to(run.federation.y.device)]
    logits = [run.engine.infer(parameters.pick(components, k), all_rows)[0] for k in range(shares.shape[1])]
    losses = torch.stack([functional.cross_entropy(each, y, reduction="none") for each in logits], dim=1)  # (n, K)
    updated, bounds = shares.clone(), np.cumsum([0, *map(len, rows)])
    for index, (first, last) in enumerate(pairwise(bounds)):
        if last > first:
            updated[index] = _answering(shares[index], losses[first:last]).mean(dim=0)
    return updated


def _answering(share: Tensor, losses: Tensor) -> Tensor:
    """Return q (n, K), proportional to pi_k exp(-loss_k), for losses (n, K)."""
    return torch.softmax(share.clamp_min(torch.finfo(share.dtype).tiny).log() - losses, dim=1)


def _expected(model: Model, params: Params, batch: Batch, *, count: int) -> Tensor:
    """Return the mean over samples of sum_k q_k loss_k, with q of the components as they were sent."""

    def losses(components: list[Params]) -> Tensor:
        component_losses = [
            functional.cross_entropy(model(one, batch.x), batch.y, reduction="none") for one in components
        ]
        return torch.stack(component_losses, dim=1)  # (n, K)

    trained = [_component(params, k) for k in range(count)]
    # BatchNorm normalises by the batch here too; what it counts meanwhile is dropped.
    buffers = [{name: value.clone() for name, value in one.items() if name not in model.parameters} for one in trained]
    downloaded = [{**_component(batch.shared, k), **own_buffers} for k, own_buffers in enumerate(buffers)]
    q = _answering(batch.own["share"], losses(downloaded)).detach()
    return batch.mean((q * losses(trained)).sum(dim=1))
