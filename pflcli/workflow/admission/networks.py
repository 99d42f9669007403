"""Whether what a network computes for a client depends on this client's samples alone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core import models, parameters
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.models import Net
from pflcli.core.parameters import Stacked
from pflcli.workflow.admission import Shape, require
from pflcli.workflow.admission import small_federation as small


def create(name: str, shape: Shape, seed: int = 0) -> Net:
    """Return the network of a model, given with its arguments, for samples of a shape."""
    return models.create(name, shape.sizes, shape.classes, seed, tokens=shape.tokens)


def draw_inputs(shape: Shape, count: int = 6, seed: int = 1) -> Tensor:
    """Return samples (count, ...) as a network takes them."""
    draw = torch.Generator().manual_seed(seed)
    size = (count, *shape.sizes)
    return torch.randint(shape.classes, size, generator=draw) if shape.tokens else torch.rand(*size, generator=draw)


def require_seeded(name: str, shape: Shape) -> None:
    """Raise BrokenLawError if the training of a client depends on the clients that trained before it."""
    net, data = create(name, shape), make_federation(shape)
    clients = data.clients[:3]
    forwards, backwards = (train(net, data, order) for order in (clients, clients[::-1].copy()))
    again = {name: value.flip(0) for name, value in backwards.items()}
    small.require_equal(forwards, again, "training the same clients again, in another order, gives other parameters")


def require_one_by_one(name: str, shape: Shape) -> None:
    """Raise BrokenLawError if the prediction of a sample depends on the other samples of its batch."""
    net, x = create(name, shape).eval(), draw_inputs(shape)
    with torch.no_grad():
        together, again, alone = net(x), net(x), torch.cat([net(x[i : i + 1]) for i in range(len(x))])
    require(torch.equal(together, again), "predictions differ from call to call")
    difference = float((together - alone).abs().max())
    require(difference < 1e-4, f"logits of a sample alone differ by {difference:.1e} from those in a batch")


def train(net: Net, data: Federation, clients: NDArray[np.int64], mode: str = "loop") -> Stacked:
    """Return the models (m, ...) of clients that train for an epoch."""
    engine, start = Engine(net, data, seed=0, threads=1, mode=mode), parameters.copy_params(net)
    plan = LocalSGD(1, 4, np.full(1, 0.01), 0.0, 0.0)
    try:
        parts = [part.params for part in engine.local_sgd(clients, start, plan, ("law",))]
    finally:
        engine.close()
    return {name: torch.cat([part[name] for part in parts]) for name in start}


def make_federation(shape: Shape) -> Federation:
    """Return clients with four training samples of a shape and one of each other split, enough for stacks of two."""
    draw = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(np.tile((4, 1, 1), 8))])
    size = (int(offsets[-1]), *shape.sizes)
    x = draw.integers(0, shape.classes, size).astype(np.int16) if shape.tokens else draw.random(size).astype(np.float32)
    return Federation.from_blocks(
        x, draw.integers(0, min(small.CLASSES, shape.classes), len(x)), offsets, shape.classes
    )
