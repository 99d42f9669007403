"""The arithmetic of a round, and the rates at which this machine could do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from subjects import work


@dataclass(frozen=True)
class Arithmetic:
    """Floating-point operations in convolutions and in linear layers."""

    convolutions: float
    products: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.convolutions + self.products

    def seconds(self, rates: Arithmetic) -> float:
        """Return how long they take at these rates (operations a second)."""
        return self.convolutions / rates.convolutions + self.products / rates.products


def of_round(model: str) -> Arithmetic:
    """Count a round's operations, 2 a multiply-add: forward, weight gradients and, past the first layer, inputs'."""
    task = work.Task(model, 0, 1, 1, False, "")
    net, counts = work.net(task).eval(), {nn.Conv2d: 0.0, nn.Linear: 0.0}
    modules: list[nn.Module] = []

    def see(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        modules.append(module)
        pixels = out.shape[2] * out.shape[3] if out.ndim == 4 else 1
        counts[type(module)] += 2 * (2 if len(modules) == 1 else 3) * module.weight.numel() * pixels  # type: ignore[operator,union-attr]

    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(see)
    net(work.tensors(work.Task(model, 0, 1, 1, True, ""))[0][0][:1])
    samples = task.setting.cohort * task.setting.samples
    return Arithmetic(counts[nn.Conv2d] * samples, counts[nn.Linear] * samples)


def rates(threads: int) -> Arithmetic:
    """Return the best operations a second of large float32 convolutions and matrix products on this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    products = 2 * 1024**3 / _best(lambda: a @ b)
    convolutions = 0.0
    for channels, side, kernel in ((32, 28, 5), (64, 28, 3), (64, 28, 5)):
        x, weight = torch.randn(32, channels, side, side), torch.randn(64, channels, kernel, kernel)
        pad = kernel // 2
        seconds = _best(lambda x=x, weight=weight, pad=pad: functional.conv2d(x, weight, padding=pad))  # type: ignore[misc]
        convolutions = max(convolutions, 2 * 32 * weight.numel() * side * side / seconds)
    torch.set_num_threads(before)
    return Arithmetic(convolutions, products)


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(40):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)
