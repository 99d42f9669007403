"""How a cohort is run: local SGD of many clients, and inference, over one partition.

Methods say what each client does; the engine decides how. This is the **loop** way: one resident model per worker
thread, parameters copied in place, minibatches by index tensors, gradients by ``torch.autograd.grad``, updates by
``torch._foreach_*``. Each worker computes with one intra-op thread, so a client's result does not depend on how many
workers there are.
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pflcli import rng
from pflcli.errors import ComputationError
from pflcli.fl import operators
from pflcli.fl import params as P
from pflcli.fl.federation import Federation
from pflcli.fl.params import Params, Stacked

_PART_BYTES = 128 << 20
"""Parameters of one part of a cohort: bounds the memory of a round whatever the cohort's size."""

_BATCH = {"cpu": 64, "cuda": 4096}
"""Samples a batch of inference: on a CPU activations stay in the cache, and several batches run side by side."""


@dataclass(frozen=True)
class LocalSGD:
    """What a client does locally.

    ``lr`` maps the local epoch to a learning rate. ``prox=(anchor, mu)`` adds mu (w - anchor) to the gradient;
    ``trainable`` restricts training to parameters whose name starts with it; ``splits`` are what it learns from.
    """

    epochs: int
    batch_size: int
    lr: Callable[[int], float]
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: tuple[Params, float] | None = None
    trainable: str = ""
    splits: tuple[str, ...] = ("train",)


@dataclass(frozen=True)
class Part:
    """Trained clients: ``params`` stacked (m, ...), ``weights`` (m,) samples, ``loss`` (m,) mean over steps."""

    clients: NDArray[np.int64]
    params: Stacked
    weights: NDArray[np.float64]
    loss: NDArray[np.float64]


class Engine:
    """Runs clients of one federation on one model architecture."""

    def __init__(self, net: nn.Module, federation: Federation, *, seed: int, threads: int = 1) -> None:
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
        self.joins_single = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())

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
        ids = np.asarray(clients, dtype=np.int64)
        stacked = _is_stacked(start, self._nets_template())
        done = 0
        for part in self.parts(ids):
            out = {
                name: torch.empty((len(part), *_shape(value, stacked)), dtype=value.dtype, device=value.device)
                for name, value in start.items()
            }

            def train(place: int, part: NDArray[np.int64] = part, out: Stacked = out, base: int = done) -> float:
                begin = P.pick(start, base + place) if stacked else start
                return self._train(int(part[place]), begin, P.pick(out, place), plan, key)

            with intra_op(1):
                losses = list(self._pool.map(train, range(len(part))))
            done += len(part)
            weights = self.federation.sizes(*plan.splits)[part].astype(np.float64)
            yield Part(part, out, weights, np.asarray(losses))

    def _nets_template(self) -> nn.Module:
        net = self._nets.get()
        self._nets.put(net)
        return net

    def _train(self, client: int, start: Params, out: Params, plan: LocalSGD, key: tuple[Any, ...]) -> float:
        net = self._nets.get()
        try:
            return self._sgd(net, client, start, out, plan, key)
        finally:
            self._nets.put(net)

    def _sgd(
        self, net: nn.Module, client: int, start: Params, out: Params, plan: LocalSGD, key: tuple[Any, ...]
    ) -> float:
        state = net.state_dict()
        with torch.no_grad():
            for name, value in state.items():
                value.copy_(start[name])
        trained = [(name, value) for name, value in net.named_parameters() if name.startswith(plan.trainable)]
        weights: list[Tensor] = [value for _, value in trained]
        anchor = [plan.prox[0][name] for name, _ in trained] if plan.prox else []
        momentum: list[Tensor] = []
        rows = torch.from_numpy(self.federation.rows(client, *plan.splits))
        x, y = self.federation.inputs(rows), self.federation.y[rows]
        # BatchNorm has no variance over one value: a lone sample trains with the running statistics.
        net.train(not (self.joins_single and len(rows) == 1))
        draw = rng.generator(self.seed, *key, client)
        total, steps = torch.zeros((), dtype=torch.float64, device=y.device), 0
        for epoch in range(plan.epochs):
            lr = plan.lr(epoch)
            order = torch.from_numpy(draw.permutation(len(rows))).to(y.device)
            for batch in batches(order, plan.batch_size, join_single=self.joins_single):
                loss = functional.cross_entropy(net(x[batch]), y[batch])
                grads = list(torch.autograd.grad(loss, weights))
                with torch.no_grad():
                    if plan.weight_decay:
                        torch._foreach_add_(grads, weights, alpha=plan.weight_decay)
                    if plan.prox and plan.prox[1]:
                        pull = torch._foreach_sub(weights, anchor)
                        torch._foreach_add_(grads, pull, alpha=plan.prox[1])
                    if plan.momentum:
                        if momentum:
                            torch._foreach_mul_(momentum, plan.momentum)
                            torch._foreach_add_(momentum, grads)
                        else:
                            momentum = grads
                        grads = momentum
                    torch._foreach_add_(weights, grads, alpha=-lr)
                total += loss.detach()
                steps += 1
        with torch.no_grad():
            for name, value in state.items():
                out[name].copy_(value)
        if not all(bool(torch.isfinite(value).all()) for value in weights):
            raise ComputationError(
                f"the parameters of client {client} became non-finite ({' '.join(map(str, key))})",
                "a smaller --lr may help",
            )
        return float(total) / max(steps, 1)

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


def probabilities(logits: Tensor) -> NDArray[np.float32]:
    """Return softmax(logits) (n, C), computed in float64 so that rows sum to one."""
    rows: NDArray[np.float32] = torch.softmax(logits.double(), dim=1).float().cpu().numpy()
    return rows


def batches(order: Tensor, size: int, *, join_single: bool) -> list[Tensor]:
    """Cut a permutation into minibatches; with ``join_single`` a last batch of one sample joins the one before."""
    cut = list(torch.split(order, size))
    if join_single and len(cut) > 1 and len(cut[-1]) == 1:
        cut[-2:] = [torch.cat(cut[-2:])]
    return [batch for batch in cut if len(batch)]


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


def _is_stacked(start: Params | Stacked, net: nn.Module) -> bool:
    name, value = next(iter(net.state_dict().items()))
    stacked: bool = start[name].ndim == value.ndim + 1
    return stacked


def _shape(value: Tensor, stacked: bool) -> tuple[int, ...]:
    return tuple(value.shape[1:] if stacked else value.shape)
