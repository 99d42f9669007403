"""Compiled backends of the engine: chains of linear layers, and networks that have a program.

Importing this module does not load Numba, which takes half a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from pflcli.core.engine import backend, linear_chain
from pflcli.core.engine.gradients import StackedNetwork
from pflcli.core.engine.strategy import Backend, Forward, Prediction, Request, Strategy, WorkerNet
from pflcli.core.parameters import Params, Stacked


def pays_to_compile(weights: Iterable[Tensor]) -> bool:
    """Whether compiled loops are faster than MKL for a chain with these weights, given this CPU."""
    values = list(weights)
    if sum(value.numel() for value in values) < linear_chain.LARGE or any(v.dtype != torch.float32 for v in values):
        return False
    # ``part`` counts the time in which this loads Numba.
    return bool(backend.part("products").COMPILED_CHAINS) and values[0].device.type == "cpu"


def compiled_chain(request: Request) -> Strategy | str:
    """Return how compiled loops train a chain of linear layers; plain steps of a client are one loop."""
    layers, plan = request.worker.layers, request.plan
    if layers is None or request.needs_autograd or plan.augment:
        return "the network is no chain of linear layers and ReLU, or its gradients need autograd"
    if not pays_to_compile(request.worker.net.parameters()):
        return "MKL is faster for these layers on this CPU"
    from pflcli.plugins.accelerated import steps
    from pflcli.plugins.accelerated.chains import CompiledChainNetwork, find_loss

    if find_loss(request.worker.task) is None:
        return "compiled loops do not compute the loss of this task"
    is_plain = plan.update.is_plain and not plan.has_rule
    how = "one compiled loop takes all steps of a client" if is_plain else "compiled loops need no autograd"
    return Strategy(
        "compiled linear chain",
        f"{how}; {backend.describe_products()}",
        lambda names: CompiledChainNetwork(layers, names),
        stacked=True,
        train=steps.train if is_plain else None,
    )


def compiled_program(request: Request) -> Strategy | str:
    """Return how a compiled program trains clients one after the other, if the network has one."""
    worker, plan = request.worker, request.plan
    program = worker.program
    if program is None or request.needs_autograd:
        return "the network has no compiled program, or its gradients need autograd"
    if request.stacks:
        return "many clients train as one batched program"
    if plan.frozen_norm and not program.infers:
        return "the statistics of BatchNorm are frozen"
    from pflcli.plugins.accelerated.program import CompiledNetwork, Program

    assert isinstance(program, Program)
    name, why = "compiled program", f"every layer of the network has a compiled form; {backend.describe_products()}"
    if request.is_lockstep:
        name, why = "lockstep", "clients take each step together, as it reads much that they share"
    passes = partial(CompiledNetwork, worker.net, program=program)
    return Strategy(name, why, passes, stacked=request.is_lockstep, independent=False)


TRAINING: tuple[Backend, ...] = (compiled_chain, compiled_program)


def chain_predictions(worker: WorkerNet, training: bool) -> Prediction | str:
    """Return how compiled loops predict by a chain of linear layers."""
    if worker.layers is None:
        return "the network is no chain of linear layers and ReLU"
    if not training:
        return "compiled loops take half a second to load, which predictions alone would not regain"
    if not pays_to_compile(worker.net.parameters()):
        return "MKL is faster for these layers on this CPU"
    from pflcli.plugins.accelerated.chains import CompiledChainNetwork

    chain = CompiledChainNetwork(worker.layers, ())

    def forward(worker: WorkerNet, model: Params) -> AbstractContextManager[Forward]:
        one = {name: value[None] for name, value in model.items()}
        return nullcontext(lambda x: _pass_one(chain, one, x))

    why = f"training has loaded compiled loops; {backend.describe_products()}"
    return Prediction("compiled linear chain", why, forward, stack=chain)


def _pass_one(network: StackedNetwork, model: Stacked, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits (n, C) and representations (n, d) of the only model of a stack."""
    outputs = network.forward(model, x[None])
    return outputs.logits[0], outputs.z[0]


def program_predictions(worker: WorkerNet, training: bool) -> Prediction | str:
    """Return how a compiled program predicts, if the network has one that is the same in evaluation."""
    program = worker.program
    if program is None or not program.infers:
        return "the network has no compiled program for evaluation"
    why = f"every layer of the network has a compiled form; {backend.describe_products()}"
    return Prediction("compiled program", why, _load_program, shared=False)


def _load_program(worker: WorkerNet, model: Params) -> AbstractContextManager[Forward]:
    assert worker.program is not None  # as that of the worker that was asked
    return worker.program.model(model)


PREDICTION = (chain_predictions, program_predictions)
