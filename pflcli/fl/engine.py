"""How a cohort is run: local SGD of many clients, and inference, over one partition.

Methods say what each client does; the engine decides how. The **loop** way trains one client after the other on each
worker thread, the **stacked** way many as one batched program. Either computes with one intra-op thread a worker, so a
client's result does not depend on how many there are.
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli import rng
from pflcli.errors import ComputationError, UsageError
from pflcli.fl import loop, operators, stacked
from pflcli.fl import params as P
from pflcli.fl.federation import Federation
from pflcli.fl.params import Params, Stacked
from pflcli.fl.plan import LocalSGD

_PART_BYTES = 128 << 20
"""Parameters of one part of a cohort: bounds the memory of a round whatever the cohort's size."""

WAYS = ("auto", "loop", "stacked")

_TINY = 30_000
"""Parameters up to which, on a CPU, starting operators costs more than their arithmetic."""

_BATCH = {"cpu": 64, "cuda": 4096}
"""Samples a batch of inference: on a CPU activations stay in the cache, and several batches run side by side."""


@dataclass(frozen=True)
class Part:
    """Trained clients: ``params`` stacked (m, ...), ``weights`` (m,) samples, ``loss`` (m,) mean over steps."""

    clients: NDArray[np.int64]
    params: Stacked
    weights: NDArray[np.float64]
    loss: NDArray[np.float64]


class Engine:
    """Runs clients of one federation on one model architecture."""

    def __init__(
        self, net: nn.Module, federation: Federation, *, seed: int, threads: int = 1, way: str = "auto"
    ) -> None:
        self.federation = federation
        self.seed = seed
        self.threads = threads
        device = federation.x.device
        self._device = device.type
        workers = threads if device.type == "cpu" else 1
        self._nets: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()
        for _ in range(workers):
            form = operators.tuned(net, federation.in_shape) if self._device == "cpu" else copy.deepcopy(net)
            self._nets.put(form.to(device))
        self._pool = ThreadPoolExecutor(workers)
        self._bytes = P.size(P.of(net))
        self._plain = copy.deepcopy(net).to(device)
        self.way = choose(net, self._device) if way == "auto" else way
        if self.way == "stacked" and loop.has_batch_norm(net):
            raise UsageError("the stacked engine does not run models with BatchNorm", "--engine loop")

    def parts(self, clients: Sequence[int] | NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Cut clients into parts whose stacked models stay within the part's memory."""
        ids = np.asarray(clients, dtype=np.int64)
        step = max(1, _PART_BYTES // self._bytes)
        for first in range(0, len(ids), step):
            yield ids[first : first + step]

    def local_sgd(
        self,
        clients: Sequence[int] | NDArray[np.int64],
        start: Params | Stacked,
        plan: LocalSGD,
        key: tuple[Any, ...],
    ) -> Iterator[Part]:
        """Train clients from ``start`` (one model, or a stack in the clients' order) and yield them in parts.

        ``key`` names the draw of minibatches, together with the client. Raises ComputationError if a client's
        parameters become non-finite.
        """
        each = self._has_own_starts(start)
        done = 0
        for part in self.parts(clients):
            begin = {name: value[done : done + len(part)] for name, value in start.items()} if each else start
            out = {
                name: torch.empty((len(part), *value.shape[each:]), dtype=value.dtype, device=value.device)
                for name, value in start.items()
            }
            draws = {int(client): rng.generator(self.seed, *key, int(client)) for client in part}
            with intra_op(1):
                if self.way == "stacked":
                    losses = stacked.train(self._plain, self.federation, draws, begin, out, plan, own_starts=each)
                else:
                    losses = self._loop(draws, begin, out, plan, own_starts=each)
            _check_finite(part, out, key)
            done += len(part)
            weights = self.federation.sizes(*plan.splits)[part].astype(np.float64)
            yield Part(part, out, weights, losses)

    def _has_own_starts(self, start: Params | Stacked) -> bool:
        name, value = next(iter(self._plain.state_dict().items()))
        own: bool = start[name].ndim == value.ndim + 1
        return own

    def _loop(
        self,
        draws: dict[int, np.random.Generator],
        start: Params | Stacked,
        out: Stacked,
        plan: LocalSGD,
        *,
        own_starts: bool,
    ) -> NDArray[np.float64]:
        def train(place: int, client: int) -> float:
            begin = P.pick(start, place) if own_starts else start
            net = self._nets.get()
            try:
                return loop.train(net, self.federation, client, begin, P.pick(out, place), plan, draws[client])
            finally:
                self._nets.put(net)

        return np.asarray(list(self._pool.map(train, range(len(draws)), draws)))

    def infer(self, params: Params, rows: NDArray[np.int64], *, features: bool = False) -> tuple[Tensor, Tensor]:
        """Return the logits (n, C) of one model on rows of the federation, and with ``features`` its z (n, d)."""
        net = self._loaded(params)
        try:
            with intra_op(1):
                return _joined(
                    list(self._pool.map(lambda part: self._forward(net, part, features), _chunks(rows, self._device)))
                )
        finally:
            self._nets.put(net)

    def _loaded(self, params: Params) -> nn.Module:
        """Take a resident model out of the queue, in evaluation mode and with these parameters."""
        net = self._nets.get()
        with torch.no_grad():
            for name, value in net.state_dict().items():
                value.copy_(params[name])
        return net.eval()

    def _forward(self, net: nn.Module, rows: NDArray[np.int64], features: bool) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            z = net.body(self.federation.inputs(torch.from_numpy(rows)))  # type: ignore[operator]
            logits = net.head(z)  # type: ignore[operator]
        return logits, z if features else logits[:, :0]

    def infer_parts(self, part: Part, split: str) -> NDArray[np.float32]:
        """Return the probabilities of each client's own model on its own split, rows in the part's order."""

        def answer(place: int) -> NDArray[np.float32]:
            net = self._loaded(P.pick(part.params, place))
            try:
                rows = self.federation.rows(int(part.clients[place]), split)
                return probabilities(
                    _joined([self._forward(net, piece, False) for piece in _chunks(rows, self._device)])[0]
                )
            finally:
                self._nets.put(net)

        with intra_op(1):
            return np.concatenate(list(self._pool.map(answer, range(len(part.clients)))))


def choose(net: nn.Module, device: str) -> str:
    """Return the way that is faster for a model on a device; ``benchmarks/engines.py`` backs the rule."""
    if loop.has_batch_norm(net):
        return "loop"
    if device == "cuda":
        return "stacked"
    only_linear = not any(isinstance(module, nn.modules.conv._ConvNd) for module in net.modules())
    return "stacked" if only_linear and sum(p.numel() for p in net.parameters()) <= _TINY else "loop"


def probabilities(logits: Tensor) -> NDArray[np.float32]:
    """Return softmax(logits) (n, C), computed in float64 so that rows sum to one."""
    rows: NDArray[np.float32] = torch.softmax(logits.double(), dim=1).float().cpu().numpy()
    return rows


@contextmanager
def intra_op(threads: int) -> Iterator[None]:
    """Compute with this many intra-op threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _chunks(rows: NDArray[np.int64], device: str) -> list[NDArray[np.int64]]:
    """Cut rows into batches; no rows make one empty batch, so that results keep their shape."""
    size = _BATCH[device]
    return [rows[first : first + size] for first in range(0, max(len(rows), 1), size)]


def _joined(outputs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    logits, z = zip(*outputs, strict=True)
    return torch.cat(logits), torch.cat(z)


def _check_finite(clients: NDArray[np.int64], params: Stacked, key: tuple[Any, ...]) -> None:
    """Raise ComputationError if a client's parameters are not all finite."""
    finite = torch.ones(len(clients), dtype=torch.bool)
    for value in params.values():
        # A sum is finite only if every term is, and costs no mask the size of the parameters.
        finite &= value.flatten(1).sum(dim=1).isfinite().cpu() if value.is_floating_point() else True
    for client in clients[~finite.numpy()]:
        raise ComputationError(
            f"the parameters of client {client} became non-finite ({' '.join(map(str, key))})",
            "a smaller --lr may help",
        )
