"""The arithmetic of a round, and the best rate at which this machine could do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding
import torch
from torch import Tensor, nn
from torch.nn import functional

from pflcli.plugins.accelerated import products
from subjects import work


@dataclass(frozen=True)
class Rate:
    """The most operations a second that any ``kernel`` reached."""

    operations: float
    kernel: str


def of_round(model: str) -> float:
    """Count a round's operations, 2 a multiply-add: forward, weight gradients and, past the first layer, inputs'.

    Those of a convolution are counted as if it were computed directly.
    """
    task = work.Task(model, 0, 1, 1, False, "")
    net, counts = work.net(task).eval(), []

    def see(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        pixels = out.shape[2] * out.shape[3] if out.ndim == 4 else 1
        counts.append(2 * (3 if counts else 2) * module.weight.numel() * pixels)  # type: ignore[operator,union-attr]

    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(see)
    net(work.tensors(work.Task(model, 0, 1, 1, True, ""))[0][0][:1])
    return float(sum(counts)) * task.setting.cohort * task.setting.samples


def cpu() -> str:
    """Return the CPU's name, as it calls itself and as LLVM calls its kind."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    vectors = "AVX-512" if llvmlite.binding.get_host_cpu_features().get("avx512f") else "no AVX-512"
    return f"{names[0] if names else 'unknown CPU'} ({llvmlite.binding.get_host_cpu_name()}, {vectors})"


def rate(threads: int) -> Rate:
    """Return the best rate of large float32 convolutions and matrix products, of any library, on this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    side = 1024
    a, b = torch.randn(side, side), torch.randn(side, side)
    rates = [Rate(2 * side**3 / _best(lambda: a @ b), "matrix product of PyTorch")]
    rates.append(
        Rate(
            2 * side**3 / _best(lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")),
            "linear layer of oneDNN",
        )
    )
    for channels, pixels, kernel in ((32, 28, 5), (64, 28, 3), (64, 28, 5), (128, 14, 3)):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(32, channels, pixels, pixels).contiguous(memory_format=layout)
            weight = torch.randn(64, channels, kernel, kernel).contiguous(memory_format=layout)
            seconds = _best(lambda x=x, weight=weight, kernel=kernel: functional.conv2d(x, weight, padding=kernel // 2))  # type: ignore[misc]
            rates.append(
                Rate(2 * 32 * weight.numel() * pixels**2 / seconds, f"{kernel}x{kernel} convolution of PyTorch")
            )
    rates.append(Rate(_own_products(threads), "matrix product of pfl"))
    torch.set_num_threads(before)
    return max(rates, key=lambda rate: rate.operations)


def _own_products(threads: int) -> float:
    """Return the operations a second of the compiled loops of pfl, on each thread a product that lies in its cache."""
    m, n, k, repeats = 112, 128, 512, 50
    arguments = []
    for _ in range(threads):
        a, b, c = (torch.randn(size).numpy() for size in (m * k, k * n, m * n))
        arguments.append(((m, n, k), a, 0, k, 1, b, 0, n, c, 0, n, 0))

    def repeated(index: int) -> None:
        for _ in range(repeats):
            products.product(*arguments[index])

    with ThreadPoolExecutor(threads) as pool:
        seconds = _best(lambda: list(pool.map(repeated, range(threads))))
    return 2 * m * n * k * repeats * threads / seconds


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(40):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)
