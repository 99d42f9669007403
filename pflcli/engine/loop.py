"""The **loop** mode: one client after the other on a resident model.

Parameters are copied in place, minibatches are slices of the epoch's permuted samples, gradients come from
``torch.autograd.grad`` and updates go through ``torch._foreach_*``: no DataLoader, no deepcopy, no optimizer object, no
trips of state dicts. Networks with a program (``program.py``) do without autograd.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pflcli import parameters
from pflcli.engine.cpu.program import Program
from pflcli.engine.federation import Federation
from pflcli.engine.local_sgd import Batch, LocalSGD, Model, learnable
from pflcli.engine.optimizer import Update
from pflcli.parameters import Params


def has_batch_norm(net: nn.Module) -> bool:
    """Whether a model normalises over its batch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())


def train_client(
    net: nn.Module,
    data: Federation,
    client: int,
    start: Params,
    out: Params,
    plan: LocalSGD,
    draw: np.random.Generator,
    program: Program | None = None,
) -> float:
    """Train one client on ``net`` from ``start`` into ``out`` (may be views); returns its mean loss.

    ``plan`` is that of this client alone: its constants, anchor and learning rates have no axis over clients. Without
    a compiled ``program`` gradients come from autograd.
    """
    if plan.objective is None:
        state = parameters.state(net)
        trained: Mapping[str, Tensor] = dict(net.named_parameters())
        with torch.no_grad():
            for name, value in state.items():
                value.copy_(start[name])
    else:
        state = {name: value.clone() for name, value in start.items()}
        trained = {name: state[name] for name in learnable(net, state)}
    names = [name for name in trained if name.startswith(plan.trainable)]
    weights = [trained[name].requires_grad_() for name in names]
    update = Update(plan, weights, plan.anchors(names))
    rows = torch.from_numpy(data.rows(client, *plan.splits))
    x, y = data.inputs(rows), data.y[rows]
    normalizes = has_batch_norm(net)
    net.train(not plan.frozen_norm)
    model = Model(net)
    total, steps = torch.zeros((), dtype=torch.float64, device=y.device), 0
    for batch, rate in plan.schedule(0, len(rows), draw, y.device, join_single=normalizes):
        if normalizes and not plan.frozen_norm:
            # BatchNorm has no variance over one value: a lone sample trains with the running statistics.
            net.train(len(batch) > 1)
        if program and net.training:
            loss = program.step(x[batch], y[batch])
            grads = [program.grads[name] for name in names]
        else:
            with torch.autocast(y.device.type, torch.bfloat16, enabled=plan.precision == "bfloat16"):
                if plan.objective is None:
                    loss = functional.cross_entropy(net(x[batch]), y[batch])
                else:
                    minibatch = Batch(x[batch], y[batch], None, plan.own, plan.shared, draw)
                    loss = plan.objective(model, state, minibatch)
            grads = list(torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True))
        with torch.no_grad():
            update(weights, grads, rate)
        total += loss.detach()
        steps += 1
    with torch.no_grad():
        for name, value in state.items():
            out[name].copy_(value)
    return float(total) / max(steps, 1)
