"""Back the rule of ``pflcli/accelerated/operators.py``: every convolution of MobileNet-v2, stock against its forms.

    python benchmarks/operators.py [--side 32] [--batch 32]

Prints milliseconds of one forward and backward on one thread, best of several, the forms taken in turn, and which form
the rule chooses. Ratios are against the stock kernel on NCHW memory.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import torch
from torch import nn

from pflcli import models
from pflcli.accelerated import graph, operators
from pflcli.accelerated.operators import ChannelsLast, PixelLinear, SmallDepthwise
from pflcli.engine import backend


def step(module: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    """Return a function that runs one forward and backward."""
    x = x.detach().requires_grad_(True)
    draw = torch.ones_like(module(x))
    inputs = [x, *module.parameters()]
    return lambda: torch.autograd.grad(module(x), inputs, draw)


def best(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the best time of each function in ms, taken in turn so that drift of the machine hits all alike."""
    times = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            times[name] = min(times[name], (time.perf_counter() - began) * 1e3)
    return times


def main() -> None:
    """Measure each distinct convolution, then the whole network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = (3, args.side, args.side)
    net = models.create("mobilenet-v2", shape, 10, 0)
    chosen = operators.tuned(net, shape)
    x = torch.rand(args.batch, *shape)

    inputs: dict[str, tuple[int, ...]] = {}
    hooks = [
        module.register_forward_hook(lambda m, i, o, name=name: inputs.update({name: tuple(i[0].shape)}))
        for name, module in net.named_modules()
        if isinstance(module, nn.Conv2d)
    ]
    net(x)
    for hook in hooks:
        hook.remove()

    forms = {"stock": nn.Conv2d, "channels-last": ChannelsLast, "linear": PixelLinear, "taps": SmallDepthwise}
    print("convolution                        count  " + "".join(f"{name:>15}" for name in forms) + "  chosen")
    counted: dict[tuple[object, ...], list[str]] = {}
    modules = dict(net.named_modules())
    for name, size in inputs.items():
        conv = modules[name]
        assert isinstance(conv, nn.Conv2d)
        key = (size, conv.out_channels, conv.kernel_size, conv.stride, conv.groups)
        counted.setdefault(key, []).append(name)
    for (size, *_), names in counted.items():
        conv = modules[names[0]]
        assert isinstance(conv, nn.Conv2d)
        able = {"stock", "channels-last"}
        able |= {"taps"} if graph.is_depthwise(conv) else set()
        able |= {"linear"} if conv.kernel_size == (1, 1) and size[2:] == (1, 1) else set()
        functions = {}
        for form in able:
            other = copy.deepcopy(conv)
            other.__class__ = forms[form]
            images = torch.randn(size)
            functions[form] = step(
                other, images if form == "stock" else images.contiguous(memory_format=torch.channels_last)
            )
        times = best(functions, args.repeats)
        cells = "".join(
            f"{times[form]:8.2f} x{times['stock'] / times[form]:4.1f} " if form in times else " " * 15 for form in forms
        )
        rule = type(dict(chosen.named_modules())[names[0]]).__name__
        label = f"{size[1]}->{conv.out_channels} {conv.kernel_size[0]}x{conv.kernel_size[0]}/{conv.stride[0]}"
        label += f"{' depthwise' if conv.groups > 1 else ''} on {size[2]}x{size[3]}"
        print(f"{label:35} {len(names):4}  {cells}  {rule}")

    compiled, y = backend.program(copy.deepcopy(net), shape), torch.arange(args.batch) % 10
    assert compiled is not None
    steps = {
        "stock": step(net.train(), x),
        "tuned": step(chosen.train(), x),
        "program": lambda: compiled.step(x, y, None),
    }
    times = best(steps, args.repeats)
    print(
        f"whole network, one step: stock {times['stock']:.1f} ms, tuned {times['tuned']:.1f} ms "
        f"({times['stock'] / times['tuned']:.2f} times faster), program.py {times['program']:.1f} ms "
        f"({times['stock'] / times['program']:.2f})"
    )


if __name__ == "__main__":
    main()
