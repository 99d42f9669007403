"""The backward pass of a linear layer, which can take the step of plain SGD on its weights as well."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pflcli.accelerated import products
from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.kernels import Array, pull
from pflcli.accelerated.memory import Step
from pflcli.accelerated.products import flat, product, transpose
from pflcli.accelerated.tiles import MOST
from pflcli.accelerated.vectors import as_row
from pflcli.engine.optimizer_moves import Move


@compiled
def _linear_backward(
    grad: Array,
    x: Array,
    weight: Array,
    turned: Array,
    to_x: Array,
    to_weight: Array,
    adds: bool,
    rate: float,
    anchor: Array,
    part: float,
    drift: Array,
) -> None:
    """Write the gradients by ``x`` (m, k) and ``weight`` (n, k) for ``grad`` (m, n), that of their product.

    If it ``adds``, ``to_weight``, which may be the weights themselves, changes by minus the rate times their gradient
    instead, after a ``pull``. Weights are read, and may change, a few rows at a time, which stay in the cache.
    ``turned`` (n m) is memory to work in, ``anchor`` and ``drift`` are (n k) or empty.
    """
    (m, k), n = x.shape, len(weight)
    x_row, weight_row, to_x_row, to_weight_row = as_row(x), as_row(weight), as_row(to_x), as_row(to_weight)
    transpose(as_row(grad), 0, n, turned, 0, m, m, n)
    for first in range(0, n, MOST):
        rows, at, row = min(MOST, n - first), first * m, first * k
        end = row + rows * k
        product((m, k, rows), turned, at, 1, m, weight_row, row, k, to_x_row, 0, k, min(first, 1))
        if adds:
            pull(to_weight_row[row:end], anchor[row:end], part, drift[row:end], rate)
            for i in range(at, at + rows * m):
                turned[i] *= -rate
        product((rows, k, m), turned, at, m, 1, x_row, 0, k, to_weight_row, row, k, 1 if adds else 0)


def multiply_back(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    to_x: Tensor,
    to_weight: Tensor,
    move: Callable[[], Move | None],
    elsewhere: Callable[[], Tensor | None],
    new: Callable[..., Tensor],
) -> Step:
    """Return the function that writes the gradients of ``multiply_by_rows`` for ``grad`` (m, n), that of its output.

    If ``move`` returns a move, the gradient by the weight is not written. If ``elsewhere`` returns a weight, that is
    read. ``new`` allocates memory of a shape.
    """
    turned = new(grad.numel() if products.OWN else 0)
    none = flat(weight.new_empty(0))
    arrays = turned.numpy(), to_x.numpy()

    def read() -> Tensor:
        other = elsewhere()
        return weight if other is None else other

    def by_loops() -> None:
        own = move()
        moved = own or Move(to_weight, 0.0)
        anchor, drift = (none if value is None else flat(value) for value in (moved.anchor, moved.drift))
        adds = own is not None and not own.replaces
        inputs = grad.numpy(), x.numpy(), read().numpy(), *arrays
        _linear_backward(*inputs, moved.weight.numpy(), adds, moved.rate, anchor, moved.part, drift)

    def by_pytorch() -> None:
        torch.mm(grad, read(), out=to_x)
        own = move()
        if own and not own.replaces:
            if own.anchor is not None:
                own.weight.lerp_(own.anchor, own.part)
            if own.drift is not None:
                own.weight.sub_(own.drift, alpha=own.rate)
            own.weight.addmm_(grad.t(), x, alpha=-own.rate)
        else:
            torch.mm(grad.t(), x, out=own.weight if own else to_weight)

    return by_loops if products.OWN else by_pytorch
