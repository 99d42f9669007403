"""Models as plain dicts of tensors: the parameters of one, or of many clients, stacked along a first axis."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.core.errors import UsageError

Params = dict[str, Tensor]
"""One model's parameters and buffers by name."""

Stacked = dict[str, Tensor]
"""The same names with a leading axis over clients, (m, ...)."""


@dataclass(frozen=True)
class TrainedClients:
    """The models of trained clients: ``params`` (m, ...), ``weights`` (m,) samples, ``loss`` (m,) mean over steps.

    ``finite`` (m,) marks clients whose training ended with finite parameters, see the function ``finite``.
    """

    clients: NDArray[np.int64]
    params: Stacked
    weights: NDArray[np.float64]
    loss: NDArray[np.float64]
    finite: NDArray[np.bool_]

    @classmethod
    def untrained(cls, clients: NDArray[np.int64], params: Stacked) -> TrainedClients:
        """Return tensors of clients that were not trained, such as what they measured, without weights."""
        none = np.zeros(len(clients))
        return cls(clients, params, none, none, none == 0)


def state(net: nn.Module) -> Params:
    """Return a network's parameters and buffers without copying; one with several names is returned by the first."""
    first = aliases(net)
    return {name: value for name, value in net.state_dict().items() if name in first}


def aliases(net: nn.Module) -> dict[str, list[str]]:
    """Return all names of each parameter and buffer, by its first name; those of shared modules have several."""
    names_by_id: dict[int, list[str]] = {}
    for prefix, module in net.named_modules():
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None:
                names_by_id.setdefault(id(value), []).append(f"{prefix}.{name}" if prefix else name)
    return {names[0]: names for names in names_by_id.values()}


def copy_params(net: nn.Module) -> Params:
    """Return a copy of a model's parameters and buffers."""
    return {name: value.detach().clone() for name, value in state(net).items()}


@torch.no_grad()
def load(net: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Copy a model into the parameters and buffers of a network, all of whose names it has."""
    for name, value in state(net).items():
        value.copy_(params[name])


def size(params: Mapping[str, Tensor]) -> int:
    """Return the bytes of one transmission of ``params``."""
    return sum(value.numel() * value.element_size() for value in params.values())


def outline(params: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Return the type and shape of each tensor."""
    return {name: (value.dtype, tuple(value.shape)) for name, value in params.items()}


def digest(params: Mapping[str, Tensor]) -> str:
    """Return a SHA-256 over names, types, shapes and values; the order of names does not matter."""
    total = hashlib.sha256()
    for name in sorted(params):
        value = params[name].detach().contiguous()
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        flat = value.flatten()
        if flat.stride() != (1,):  # possible for tensors with at most one value
            flat = flat.clone(memory_format=torch.contiguous_format)
        total.update(flat.view(torch.uint8).numpy().data)
    return total.hexdigest()


def move(params: Mapping[str, Tensor], device: str | torch.device) -> Params:
    """Return the parameters on a device."""
    return {name: value.to(device) for name, value in params.items()}


def on_cpu(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested dict of tensors on the CPU; those of a resumed state are on the run's device.

    >>> import torch
    >>> from pflcli.method import on_cpu
    >>> on_cpu({"global": {"weight": torch.zeros(2)}})["global"]["weight"].device.type
    'cpu'
    """
    return {name: on_cpu(value) if isinstance(value, Mapping) else value.cpu() for name, value in nested.items()}


def pick(stacked: Stacked, index: int) -> Params:
    """Return the parameters of client ``index`` in a stack, as views."""
    return {name: value[index] for name, value in stacked.items()}


def part(params: Mapping[str, Tensor], prefix: str) -> Params:
    """Return the parameters and buffers whose name starts with ``prefix``, such as ``body.`` or ``head.``.

    Raises UsageError if there is none, such as for the body of a logistic model, which is its input.
    """
    selected = {name: value for name, value in params.items() if name.startswith(prefix)}
    if not selected:
        layers = ", ".join(layer.rstrip(".") for layer in upper(params, len(params)))
        fix = "a model that is all head cannot be divided: use --model mlp" if prefix == "body." else ""
        raise UsageError(f"the model has no parameters under '{prefix}'", f"its layers are: {layers}", fix)
    return selected


def unprefixed(tensors: Mapping[str, Tensor], prefix: str) -> Params:
    """Return the tensors whose names start with ``prefix``, and remove it from the names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def upper(params: Mapping[str, Tensor], count: int) -> tuple[str, ...]:
    """Return the prefixes of the last ``count`` layers, in the order of ``params``, which is that of the network."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] + "." for name in params))
    return tuple(layers[-count:])


def repeat(params: Mapping[str, Tensor], count: int) -> Stacked:
    """Return one model as a read-only stack (count, ...) of views.

    >>> import torch
    >>> from pflcli.method import repeat
    >>> repeat({"weight": torch.zeros(2)}, 3)["weight"].shape
    torch.Size([3, 2])
    """
    return {name: value.expand(count, *value.shape) for name, value in params.items()}


def stack(models: Sequence[Params]) -> Stacked:
    """Stack models along a new first axis."""
    return {name: torch.stack([model[name] for model in models]) for name in models[0]}


def take(stacked: Stacked, positions: NDArray[np.int64]) -> Stacked:
    """Return the rows of a stack at these positions."""
    return {name: rows(value, positions) for name, value in stacked.items()}


def rows(value: Tensor, positions: NDArray[np.int64]) -> Tensor:
    """Return the rows of a tensor at these positions: a view if they are consecutive, otherwise a copy."""
    first = int(positions[0]) if len(positions) else 0
    if (positions == np.arange(first, first + len(positions))).all():
        return value[first : first + len(positions)]
    return value.index_select(0, torch.from_numpy(positions).to(value.device))  # 3 times faster than value[positions]


def write_rows(stacked: Stacked, positions: NDArray[np.int64], part: Stacked) -> None:
    """Write ``part`` (n, ...) to the rows of a stack at these positions (n,)."""
    for name, value in part.items():
        if value.device.type == "cpu":  # NumPy copies whole rows, PyTorch single numbers
            stacked[name].numpy()[positions] = value.numpy()
        else:
            stacked[name][torch.from_numpy(positions).to(value.device)] = value


def finite(stacked: Stacked) -> NDArray[np.bool_]:
    """Return a mask (m,) of the models in a stack whose squared parameters are finite.

    A weight above 1e19 is finite but counts as diverged: its products are infinite.
    """
    # A norm is finite only if every term is, and needs no mask of the size of the parameters.
    rows = [
        torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1).isfinite()
        for value in stacked.values()
        if value.is_floating_point()
    ]
    return np.asarray(torch.stack(rows).all(dim=0).cpu())


_BLOCK = 1 << 20
"""Bytes in float64 that a CPU sums at a time, to fit into its cache."""

_ROWS = 32
"""Models, a power of two, that ``Mean`` sums at a time: with more, rows in a block of the cache become too short."""


@dataclass(frozen=True)
class WeightedSum:
    """The weighted sum of models in float64, and the maximum of integer buffers; ``dtypes`` are those of the models."""

    params: Params
    weight: float
    dtypes: Mapping[str, torch.dtype]

    @classmethod
    def from_models(cls, stacked: Stacked, weights: NDArray[np.floating] | Iterable[float]) -> WeightedSum:
        """Sum the models of a stack (m, ...) with weights (m,), pairwise: see ``Mean``."""
        w = torch.as_tensor(np.asarray(weights, dtype=np.float64))
        sums = {
            name: _pairwise(value, w.to(value.device)) if value.is_floating_point() else value.max(dim=0).values
            for name, value in stacked.items()
        }
        return cls(sums, float(_pairwise(torch.ones_like(w), w)), {name: v.dtype for name, v in stacked.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle a sum: as arrays, which are put into shared memory without another copy."""
        arrays = {name: value.cpu().numpy() for name, value in self.params.items()}
        return _unpickled_sum, (arrays, self.weight, dict(self.dtypes))

    def plus(self, other: WeightedSum) -> WeightedSum:
        """Return the sum of both; changes this one in place."""
        for name, total in self.params.items():
            if total.is_floating_point():
                total.add_(other.params[name])
            else:
                torch.maximum(total, other.params[name], out=total)
        return WeightedSum(self.params, self.weight + other.weight, self.dtypes)

    def mean(self) -> Params:
        """Return the mean; raises ValueError if no weight is positive."""
        if self.weight <= 0:
            raise ValueError("the mean of no models is not defined")
        return {
            name: (total / self.weight).to(self.dtypes[name]) if total.is_floating_point() else total
            for name, total in self.params.items()
        }


def _unpickled_sum(arrays: Mapping[str, NDArray[Any]], weight: float, dtypes: Mapping[str, torch.dtype]) -> WeightedSum:
    return WeightedSum({name: torch.tensor(value) for name, value in arrays.items()}, weight, dtypes)


def _pairwise(stacked: Tensor, w: Tensor) -> Tensor:
    """Return the sum of ``stacked`` (m, ...) weighted by ``w`` (m,), without a full copy in float64.

    Pairs of adjacent rows are added first, then pairs of these sums, and so on: each aligned group of 2^k rows has its
    own subtotal.
    """
    flat, (count, size) = stacked.reshape(len(stacked), -1), (len(stacked), stacked[0].numel())
    step = min(size, max(1, _BLOCK // (8 * count))) if flat.device.type == "cpu" else size
    total, block = (flat.new_empty(shape, dtype=torch.float64) for shape in (size, (count, step)))
    for first in range(0, size, max(step, 1)):
        terms = block[:, : size - first].copy_(flat[:, first : first + step]).mul_(w[:, None])
        stride = 1
        while stride < count:
            right = terms[stride :: 2 * stride]
            terms[:: 2 * stride][: len(right)].add_(right)
            stride *= 2
        total[first : first + step] = terms[0]
    return total.view(stacked.shape[1:])


class Mean:
    """A weighted mean of models, summed in float64; integer buffers take the largest value.

    The order of additions does not depend on how the models are divided among workers: it is a binary tree over the
    models in their order, in which each aligned group of 2^k models has its own subtotal. Its rounding errors are
    smaller than those of sequential addition (Higham, 1993, https://doi.org/10.1137/0914050).
    """

    def __init__(self) -> None:
        self._count = 0
        self._subtrees: list[tuple[int, WeightedSum]] = []  # in decreasing size; sizes are powers of two

    def add(self, stacked: Stacked, weights: NDArray[np.floating] | Iterable[float]) -> None:
        """Add the models of a stack (m, ...) with weights (m,)."""
        w = np.asarray(weights, dtype=np.float64)
        first = 0
        while first < len(w):
            size = min(1 << (len(w) - first).bit_length() - 1, _ROWS)
            if self._count:
                size = min(size, self._count & -self._count)  # the largest subtree that begins here
            rows = slice(first, first + size)
            self._push(size, WeightedSum.from_models({name: value[rows] for name, value in stacked.items()}, w[rows]))
            first += size

    def _push(self, size: int, total: WeightedSum) -> None:
        self._count += size
        while self._subtrees and self._subtrees[-1][0] == size:
            total = self._subtrees.pop()[1].plus(total)
            size *= 2
        self._subtrees.append((size, total))

    def value(self) -> Params:
        """Return the mean; raises ValueError if nothing with a positive weight was added."""
        return self.total().mean()

    def total(self) -> WeightedSum:
        """Return the weighted sum; nothing may be added afterwards. Raises ValueError if nothing was added."""
        if not self._subtrees:
            raise ValueError("the mean of no models is not defined")
        (_, total), *larger = reversed(self._subtrees)
        for _, left in larger:
            total = left.plus(total)
        self._subtrees = [(self._count, total)]
        return total
