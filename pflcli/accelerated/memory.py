"""The memory of a compiled program: for parameters, values and their gradients, allocated once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.accelerated.graph import Layer, Value
from pflcli.engine.optimizer_moves import Move

Step = Callable[[], object]
"""A part of a pass that computes in memory which it knows."""


def sequence(steps: list[Step]) -> Step:
    """Return the function that calls these in their order."""

    def step() -> None:
        for part in steps:
            part()

    return step


class Blocks(Protocol):
    """What batches of all sizes share: gradients of parameters, and blocks of memory."""

    def grad(self, layer: Layer, name: str) -> Tensor:
        """Return the gradient of a layer's parameter."""

    def move(self, layer: Layer) -> Move | None:
        """Return which weight changes by the gradient of a linear layer's, or None if that is to be written."""

    def elsewhere(self, layer: Layer) -> Tensor | None:
        """Return the weight of a linear layer if it does not lie in the network."""

    def block(self, index: int, numbers: int) -> Tensor:
        """Return the first ``numbers`` numbers of a block of memory."""


@dataclass(eq=False)
class Buffer:
    """Memory for gradients: the index of its block, its size, and how many values have their gradient in it now."""

    block: int
    numbers: int
    users: int = 0


class Memory:
    """The memory for batches of ``n`` samples; the layers of ``program.py`` are functions that use it."""

    def __init__(self, blocks: Blocks, n: int) -> None:
        self._program, self._n, self._blocks = blocks, n, 0
        self._data: dict[Value, Tensor] = {}
        self._grad_of: dict[Value, Buffer] = {}
        self._free: list[Buffer] = []
        self._stats: dict[Layer, Tensor] = {}
        self._work: dict[Layer, Any] = {}
        self._codes: dict[Layer, NDArray[Any]] = {}
        self._patches = torch.empty(0)
        self._images = torch.empty(0)

    def _parameters(self, layer: Layer) -> tuple[Tensor, ...]:
        return tuple(value.detach() for value in layer.module.parameters())

    def _grads(self, layer: Layer) -> tuple[Tensor, ...]:
        return tuple(self._program.grad(layer, name) for name, _ in layer.module.named_parameters())

    def _new_block(self, numbers: int) -> Tensor:
        self._blocks += 1
        return self._program.block(self._blocks - 1, numbers)

    def _new(self, *shape: int) -> Tensor:
        """Return new memory of this shape."""
        return self._new_block(torch.Size(shape).numel()).view(shape)

    def _rows(self, value: Value) -> Tensor:
        """Return new memory for the pixels (n h w, C) of a value."""
        self._data[value] = self._new_block(self._numbers(value)).view(-1, value.channels)
        return self._data[value]

    def _numbers(self, value: Value) -> int:
        return self._n * value.height * value.width * value.channels

    def _target(self, value: Value) -> tuple[Tensor, bool]:
        """Return the memory for the gradient of a value, and whether it already contains a part of the sum."""
        if exists := value in self._grad_of:
            return self._view(value, self._grad_of[value]), exists
        fits = [buffer for buffer in self._free if buffer.numbers >= self._numbers(value)]
        if fits:
            buffer = min(fits, key=lambda buffer: buffer.numbers)
            self._free.remove(buffer)
        else:
            self._new_block(self._numbers(value))
            buffer = Buffer(self._blocks - 1, self._numbers(value))
        buffer.users += 1
        self._grad_of[value] = buffer
        return self._view(value, buffer), exists

    def _target_to_add(self, value: Value) -> tuple[Tensor, list[Step]]:
        """Return memory for one part of a value's gradient, and the functions that then add it to the other parts."""
        target, exists = self._target(value)
        if not exists:
            return target, []
        buffer = self._grad_of.pop(value)
        part, _ = self._target(value)
        self._release(self._grad_of.pop(value))  # free as soon as it is added, which comes before any other use
        self._grad_of[value] = buffer
        return part, [partial(target.add_, part)]

    def _view(self, value: Value, buffer: Buffer) -> Tensor:
        """Return the gradient (n h w, C) of a value as a view of its buffer."""
        return self._program.block(buffer.block, self._numbers(value)).view(-1, value.channels)

    def _release(self, buffer: Buffer) -> None:
        buffer.users -= 1
        if not buffer.users:
            self._free.append(buffer)

    def _pixels(self, value: Value, rows: Tensor) -> NDArray[Any]:
        array: NDArray[Any] = rows.view(self._n, value.height, value.width, value.channels).numpy()
        return array
