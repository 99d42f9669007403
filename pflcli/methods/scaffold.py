"""SCAFFOLD: FedAvg with control variates that correct the drift of local steps.

Karimireddy et al. (2020), https://arxiv.org/abs/1910.06378, Algorithm 1, option II. From the global model x, client i
takes K steps along grad F(y) - c_i + c to a model y. Its control variate becomes c_i - c + (x - y) / (K lr), the mean
of the gradients of these steps. The server moves x by `server_lr` times the mean of y - x, and c by the mean change of
the control variates over all clients that can take part, including those whose control variate did not change. Means
are weighted by samples, as in FedAvg; if clients have equal numbers of samples, they are those of the paper. Model and
control variate are sent in both directions, so that a round sends twice as many bytes as FedAvg.

Local steps are plain steps of SGD: with momentum or Adam the mean of the gradients could not be computed from y. With
weight decay, c_i contains the decay besides the gradient, because (x - y) / (K lr) contains both.

The result is a global model. Control variates start at zero and do not change predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Params, Predictor, Run, Stacked, UsageError, parameters, steps_per_epoch
from pflcli.methods.parts.server_optimizer import move_towards

KIND = "server"
NEEDS = ()
IGNORES = ("momentum",)
PAPER = "SCAFFOLD"
YEAR = 2020
TASKS = ("any",)
SERVES = ("control",)
GRID = {"server_lr": (0.3, 1.0)}

State = dict[str, Any]

_CHANGE = "change:"
"""Before the names of a change of a control variate in an upload."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    server_lr: Annotated[float, Gt(0)] = 1.0
    """move the server's model this far towards the mean of the clients' models; the paper takes 1"""


def setup(run: Run) -> State:
    """Return the common initial model, and control variates of zero for the server and every client."""
    if run.settings.optimizer != "sgd" or run.settings.clip_gradients:
        raise UsageError("scaffold corrects plain steps of SGD", "leave out --optimizer and --clip-gradients")
    start = run.initial_model()
    zero = {name: torch.zeros_like(start[name]) for name in run.engine.parameters}
    return {"global": start, "control": zero, "controls": run.table(zero)}


def train_round(run: Run, state: State, t: int) -> State:
    """Take corrected steps on each client of a cohort, average the models and the control variates."""
    cohort, controls = run.cohort(t), state["controls"]
    start, control = run.download(state["global"], cohort), run.download(state["control"], cohort)
    sizes = run.federation.sizes("train")
    count = _steps(run, sizes)
    # Model and change of the control variate are one upload: an upload step or a bound covers both together.
    mean = run.averaging({**start, **_add_prefix(controls.default)})
    for ids in run.client_chunks(cohort):
        own_controls = controls[ids]
        drift = {name: value - own_controls[name] for name, value in control.items()}
        (part,) = run.local_sgd(ids, start, t=t, momentum=0.0, own=drift, adds_own=True)
        scale = torch.from_numpy(1 / (count[ids] * run.settings.lr_at(t)))
        # The change of c_i is the mean of the gradients minus c.
        change = {n: _control_change(v, start[n], part.params[n], scale, drift[n]) for n, v in control.items()}
        controls[ids] = {name: own_controls[name].add_(value) for name, value in change.items()}
        mean.add({**part.params, **_add_prefix(change)}, part.weights, part.clients)
    value, share = mean.value(), run.share_of_samples(cohort)
    model = move_towards(run, start, {name: value[name] for name in start}, run.cfg.server_lr)
    change = parameters.unprefixed(value, _CHANGE)
    return {"global": model, "control": {n: v + share * change[n] for n, v in control.items()}, "controls": controls}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the global model for every client."""
    return run.predictor(clients, state["global"])


def _add_prefix(values: Stacked | Params) -> dict[str, Tensor]:
    """Return changes of control variates by the names under which they are uploaded."""
    return {_CHANGE + name: value for name, value in values.items()}


def _steps(run: Run, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many local steps a round of each client (m,) has, by its training samples."""
    if run.settings.steps:
        return np.full(len(sizes), run.settings.steps)
    each = steps_per_epoch(sizes, run.settings.batch_size, join_single=run.engine.joins_single)
    return np.asarray(run.settings.epochs * each)


def _control_change(control: Tensor, start: Tensor, trained: Tensor, scale: Tensor, out: Tensor) -> Tensor:
    """Return the changes (m, ...) of clients' control variates, by steps from ``start`` to ``trained`` (m, ...).

    They are computed in the memory of ``out``.
    """
    difference = torch.sub(start, trained, out=out)
    return torch.addcmul(-control, difference, scale.to(difference).view(-1, *[1] * control.ndim), out=out)
