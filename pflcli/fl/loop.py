"""The **loop** way: one client after the other on a resident model.

Parameters are copied in place, minibatches are index tensors, gradients come from ``torch.autograd.grad`` and updates
go through ``torch._foreach_*``: no DataLoader, no deepcopy, no optimizer object, no trips of state dicts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pflcli.fl.federation import Federation
from pflcli.fl.params import Params
from pflcli.fl.plan import LocalSGD, batches


def has_batch_norm(net: nn.Module) -> bool:
    """Whether a model normalises over its batch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())


def train(
    net: nn.Module,
    data: Federation,
    client: int,
    start: Params,
    out: Params,
    plan: LocalSGD,
    draw: np.random.Generator,
) -> float:
    """Train one client on ``net`` from ``start`` into ``out`` (may be views); returns its mean loss."""
    state = net.state_dict()
    with torch.no_grad():
        for name, value in state.items():
            value.copy_(start[name])
    trained = [(name, value) for name, value in net.named_parameters() if name.startswith(plan.trainable)]
    weights: list[Tensor] = [value for _, value in trained]
    anchor = [plan.prox[0][name] for name, _ in trained] if plan.prox else []
    momentum: list[Tensor] = []
    rows = torch.from_numpy(data.rows(client, *plan.splits))
    x, y = data.inputs(rows), data.y[rows]
    joined = has_batch_norm(net)
    # BatchNorm has no variance over one value: a lone sample trains with the running statistics.
    net.train(not (joined and len(rows) == 1))
    total, steps = torch.zeros((), dtype=torch.float64, device=y.device), 0
    for epoch in range(plan.epochs):
        order = torch.from_numpy(draw.permutation(len(rows))).to(y.device)
        for batch in batches(order, plan.batch_size, join_single=joined):
            loss = functional.cross_entropy(net(x[batch]), y[batch])
            grads = list(torch.autograd.grad(loss, weights))
            with torch.no_grad():
                if plan.weight_decay:
                    torch._foreach_add_(grads, weights, alpha=plan.weight_decay)
                if plan.prox and plan.prox[1]:
                    torch._foreach_add_(grads, torch._foreach_sub(weights, anchor), alpha=plan.prox[1])
                if plan.momentum:
                    if momentum:
                        torch._foreach_mul_(momentum, plan.momentum)
                        torch._foreach_add_(momentum, grads)
                    else:
                        momentum = grads
                    grads = momentum
                torch._foreach_add_(weights, grads, alpha=-plan.lr(epoch))
            total += loss.detach()
            steps += 1
    with torch.no_grad():
        for name, value in state.items():
            out[name].copy_(value)
    return float(total) / max(steps, 1)
