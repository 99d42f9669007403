"""Server optimizers: the server takes the mean of uploads, as FedAvg does, or an optimizer's step towards it.

Reddi et al. (2021), "Adaptive Federated Optimization", https://arxiv.org/abs/2003.00295, Algorithm 2. With x the global
model and D the mean of the clients' models, weighted by samples, minus x::

    sgd      x + lr D                                          FedAvg for lr = 1
    avgm     m <- beta1 m + D                                  x + lr m (FedAvgM, Hsu et al. 2019)
    others   m <- beta1 m + (1 - beta1) D                      x + lr m / (sqrt(v) + tau)
    adagrad  v <- v + D^2
    adam     v <- beta2 v + (1 - beta2) D^2
    yogi     v <- v - (1 - beta2) D^2 sign(v - D^2)

m begins at 0 and v at tau^2, and neither is corrected for it, as in the paper. Buffers, such as running statistics of
BatchNorm, are no parameters: the server takes their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from pflcli.method import Params, Run

State = dict[str, Any]

_RATES = {"sgd": 1.0, "avgm": 1.0, "adagrad": 0.1, "adam": 0.03, "yogi": 0.03}

_ADAM_BETAS, _ADAM_EPS = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class ServerOptions:
    """Options of a method whose server takes steps."""

    server: Literal["sgd", "avgm", "adagrad", "adam", "yogi"] = "sgd"
    """let the server take steps of this optimizer (FedOpt): sgd with rate 1 takes the mean of uploads; the others
    are FedAvgM, FedAdagrad, FedAdam and FedYogi"""
    server_lr: Annotated[float, Gt(0)] | None = None
    """use this learning rate at the server; none uses 1 for sgd and avgm, 0.1 for adagrad, 0.03 for adam and yogi"""
    beta1: Annotated[float, Ge(0), Lt(1)] | None = None
    """use this momentum at the server, except for sgd; none uses 0.9, or 0 for adagrad"""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.99
    """decay the mean of squared differences by this factor per round, for adam and yogi"""
    tau: Annotated[float, Gt(0)] = 1e-3
    """add this to the root of the squared differences, for adagrad, adam and yogi (adaptivity)"""


def move_towards(run: Run, model: Params, mean: Params, rate: float) -> Params:
    """Return the model after a step of this size towards the ``mean`` of uploads; with rate 1 it is the mean."""
    if rate == 1:
        return mean  # to the bit
    moved = {name: model[name] + rate * (mean[name] - model[name]) for name in run.engine.parameters}
    return {**mean, **moved}


def step(run: Run, state: State, mean: Params) -> State:
    """Return ``global``, the model after the server's step from that of ``state`` towards the ``mean`` of uploads.

    With a momentum it comes with ``server``, what the optimizer remembers; both belong into the next state.
    """
    cfg: ServerOptions = run.cfg
    rate = _RATES[cfg.server] if cfg.server_lr is None else cfg.server_lr
    if cfg.server == "sgd":
        return {"global": move_towards(run, state["global"], mean, rate)}
    model, trained = state["global"], [name for name in mean if name in run.engine.parameters]
    difference = {name: mean[name] - model[name] for name in trained}
    remembered = state.get("server") or _initial_moments(cfg, difference)
    beta1 = (0.0 if cfg.server == "adagrad" else 0.9) if cfg.beta1 is None else cfg.beta1
    share = 1.0 if cfg.server == "avgm" else 1 - beta1
    first = {name: beta1 * remembered["first"][name] + share * difference[name] for name in trained}
    if cfg.server == "avgm":
        moved = {name: model[name] + rate * first[name] for name in trained}
        return {"global": {**mean, **moved}, "server": {"first": first}}
    second = {name: _update_second(cfg, remembered["second"][name], difference[name] ** 2) for name in trained}
    moved = {name: model[name] + rate * first[name] / (second[name].sqrt() + cfg.tau) for name in trained}
    return {"global": {**mean, **moved}, "server": {"first": first, "second": second}}


def _initial_moments(cfg: ServerOptions, like: Params) -> dict[str, Params]:
    first = {name: torch.zeros_like(value) for name, value in like.items()}
    # A square beyond float32 would raise; the largest number also keeps the server where it is.
    second = {name: torch.full_like(v, min(cfg.tau**2, torch.finfo(v.dtype).max)) for name, v in like.items()}
    return {"first": first, "second": second}


def _update_second(cfg: ServerOptions, previous: Tensor, squared: Tensor) -> Tensor:
    """Return v after squared differences."""
    if cfg.server == "adagrad":
        return previous + squared
    if cfg.server == "adam":
        return cfg.beta2 * previous + (1 - cfg.beta2) * squared
    return previous - (1 - cfg.beta2) * squared * torch.sign(previous - squared)


def adam_moments(params: Params) -> State:
    """Return the state of ``adam_step`` before the first step: both moments, and the number of steps (0-d)."""
    first, second = ({name: torch.zeros_like(value) for name, value in params.items()} for _ in range(2))
    return {"first": first, "second": second, "steps": torch.tensor(0)}


def adam_step(params: Params, grads: Params, previous: State, lr: float) -> tuple[Params, State]:
    """Return parameters that only the server trains after a step of Adam against ``grads``, and the new moments.

    Kingma & Ba (2015), https://arxiv.org/abs/1412.6980, Algorithm 1. Unlike the optimizers above, it corrects the bias
    of the moments.
    """
    steps = previous["steps"] + 1
    beta1, beta2 = _ADAM_BETAS
    first = {name: beta1 * previous["first"][name] + (1 - beta1) * grad for name, grad in grads.items()}
    second = {name: beta2 * previous["second"][name] + (1 - beta2) * grad * grad for name, grad in grads.items()}
    scale1, scale2 = (1 - beta ** int(steps) for beta in _ADAM_BETAS)
    moved = {
        name: value - lr * (first[name] / scale1) / ((second[name] / scale2).sqrt() + _ADAM_EPS)
        for name, value in params.items()
    }
    return moved, {"first": first, "second": second, "steps": steps}
