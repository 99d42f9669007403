"""pFedMe: each personal model minimises the client's loss near the global model (a Moreau envelope).

Dinh et al. (2020), https://arxiv.org/abs/2006.08848, Algorithm 1. The personal model is theta_i(w) = argmin F_i(theta)
+ lambda/2 |theta - w|^2. The federation minimizes the mean of these minima, the Moreau envelope, over w.

A local step draws a minibatch, approximates theta by `inner_steps` of gradient descent from w, and moves w by lr lambda
(w - theta). The server takes w <- (1 - beta) w + beta (mean of the cohort). Means are weighted by samples. Running
statistics of BatchNorm are updated `inner_steps` + 1 times per step, each time by the same minibatch.

To first order, theta is w - (s / lambda) grad F(w), where s = 1 - (1 - inner_lr lambda)^inner_steps measures how far
the inner steps come, so that w moves by lr s grad F(w). If lambda is small, s is small, and the global model hardly
learns. Unless `lr` is given, it is therefore the learning rate of the round divided by s, so that a step has the same
first-order effect as in FedAvg. The paper's lambda = 15 keeps theta within a fifteenth of a gradient of w; the default
allows larger differences. A step overshoots theta if lr lambda > 1.

`--optimizer`, `--momentum`, `--weight-decay` and `--clip-gradients` apply to the steps of w, whose gradient is lambda
(w - theta) / s, to first order grad F(w), so that they mean the same as in FedAvg. If `lr` is given, the gradient is
that of the envelope, lambda (w - theta). They do not apply to theta, which is always approximated by gradient descent.

A client predicts with theta_i of the last global model, approximated by proximal steps over all its samples for
`epochs` epochs, whether or not it ever took part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Params, Predictor, Run, Stacked, StackedBatch, StackedNetwork, repeat
from pflcli.methods.parts.server_optimizer import move_towards

KIND = "server"
NEEDS = ()
ADAPTS = True
PAPER = "pFedMe"
YEAR = 2020
TASKS = ("any",)
GRID = {"lam": (0.1, 0.5, 1.0, 5.0), "inner_lr": (0.01, 0.05, 0.1)}

State = dict[str, Params]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    lam: Annotated[float, Gt(0)] = 0.5
    """pull personal models to the global one with this weight (lambda); the paper takes 15, with lr=0.005"""
    inner_steps: Annotated[int, Ge(1)] = 5
    """take this many steps towards theta on each minibatch (the paper's K = 5)"""
    inner_lr: Annotated[float, Gt(0)] = 0.05
    """take steps towards theta with this learning rate, also when clients personalize; stable below 2 / lambda"""
    lr: Annotated[float, Ge(0)] = 0.0
    """train the global model with this learning rate; 0 uses that of the round, divided by how far inner steps come"""
    beta: Annotated[float, Gt(0)] = 1.0
    """move the server's model this far towards the mean of the clients' models; 1 takes the mean (the paper's 1)"""
    epochs: Annotated[int, Ge(0)] = 5
    """train for this many local epochs towards theta when clients personalize; 0 predicts with the global model"""


def setup(run: Run) -> State:
    """Return the common initial model."""
    return {"global": run.initial_model()}


def train_round(run: Run, state: State, t: int) -> State:
    """Descend on each client's envelope, average what comes back."""
    cohort, cfg = run.cohort(t), run.cfg
    start = run.download(state["global"], cohort)
    envelope, rate = _Envelope(cfg.lam, cfg.inner_steps, cfg.inner_lr), cfg.lr or run.settings.lr_at(t)
    if not cfg.lr and run.settings.is_plain_sgd:  # dividing the rate is the same
        rate /= _share(cfg)
    elif not cfg.lr:
        envelope = replace(envelope, share=_share(cfg))
    passes = cfg.inner_steps + 1 / 3  # the last one is forward alone
    trained = run.local_sgd(cohort, repeat(start, len(cohort)), t=t, lr=rate, gradient=envelope, passes=passes)
    return {"global": move_towards(run, start, run.average(trained, start), cfg.beta)}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the best model of each client near the global one."""
    tuned = run.descend(
        clients,
        state["global"],
        t="theta",
        epochs=run.cfg.epochs,
        lr=run.cfg.inner_lr,
        prox=(state["global"], run.cfg.lam),
    )
    return run.predictor(clients, tuned)


def _share(cfg: Config) -> float:
    """Return how much of the way from w to theta the inner steps go, to first order; 1 where they overshoot."""
    each = min(cfg.inner_lr * cfg.lam, 1.0)
    return 1 - (1 - each) ** cfg.inner_steps or cfg.inner_steps * each  # the former is 0 for the smallest steps


@dataclass(frozen=True)
class _Envelope:
    """The rule of F(theta) + lam / 2 |theta - w|^2 with theta held fixed, ``count`` steps with ``rate`` away from w."""

    lam: float
    count: int
    rate: float
    share: float = 1.0
    """divides the gradient, see ``_share``"""

    def __call__(self, network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
        """Return the losses, and their gradient lam (w - theta), divided by ``share``."""
        names = list(network.trained)
        anchor = [params[name] for name in names]
        theta = [value.clone() for value in anchor]
        models = {**params, **dict(zip(names, theta, strict=True))}
        network.descend(models, batch, rate=self.rate, count=self.count, anchor=params, lam=self.lam)
        losses = batch.loss(network.forward(models, batch.x, batch.weight).logits)
        apart = torch._foreach_sub(anchor, theta)
        for value in apart:
            losses = losses + self.lam / 2 * value.square().flatten(1).sum(dim=1)
        torch._foreach_mul_(apart, self.lam / self.share)
        return losses, dict(zip(names, apart, strict=True))
