"""The laws of models."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pflcli import models, parameters, registry
from pflcli.engine.engine import Engine
from pflcli.engine.federation import Federation
from pflcli.engine.local_sgd import LocalSGD
from pflcli.errors import InputError, UsageError
from pflcli.laws import NotApplicable, Subject, law, require
from pflcli.laws import small_federation as small
from pflcli.models import Net
from pflcli.parameters import Stacked
from pflcli.prediction.exporting import onnx_network

_CLASSES = 3
_TOKENS = 30
"""Classes of networks that predict the next token, and so the number of tokens."""
_SHAPES = (
    ((small.FEATURES,), False), ((12, 4), False), ((20,), True),
    ((1, 28, 28), False), ((3, 32, 32), False), ((3, 64, 64), False), ((3, 96, 96), False), ((3, 224, 224), False),
)  # fmt: skip
"""Shapes of samples, and whether they are tokens: features, series, tokens, and images from small to large."""


def _shapes(subject: Subject) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield shapes that the model takes: the first one of each kind of samples."""
    kinds = set()
    for shape, tokens in _SHAPES:
        kind = (len(shape), tokens)
        try:
            if kind not in kinds:
                models.outline(_name(subject), shape, _classes(tokens), tokens=tokens)
                kinds.add(kind)
                yield shape, tokens
        except (UsageError, InputError) as error:
            refused = error
    if not kinds:
        raise refused


def _name(subject: Subject) -> str:
    """Return the name of the model with its options, the arguments of its class."""
    return registry.add_arguments(subject.name, subject.options) if subject.options else subject.name


def _classes(tokens: bool) -> int:
    return _TOKENS if tokens else _CLASSES


def _nets(subject: Subject, seed: int = 0) -> Iterator[tuple[Net, Tensor]]:
    """Yield the network for each kind of samples that it takes, with six samples."""
    for shape, tokens in _shapes(subject):
        draw = torch.Generator().manual_seed(1)
        x = torch.randint(_TOKENS, (6, *shape), generator=draw) if tokens else torch.rand(6, *shape, generator=draw)
        yield models.create(_name(subject), shape, _classes(tokens), seed, tokens=tokens), x


@law("models")
def a_head_follows_a_body(subject: Subject) -> None:
    """The logits (n, C) are those that ``head`` computes from the representations (n, d) that ``body`` computes.

    Methods that personalize the head, embeddings and kNN-Per rely on these two parts.
    """
    for net, x in _nets(subject):
        if not [*net.head.parameters()]:
            raise NotApplicable("the network does not end in a linear layer: methods that need a head refuse it")
        net.eval()
        with torch.no_grad():
            z, logits = net.features(x), net(x)
            require(z.ndim == 2, f"representations are {tuple(z.shape)} instead of (n, d)")
            shape = (len(x), _classes(not x.is_floating_point()))
            require(tuple(logits.shape) == shape, f"logits are {tuple(logits.shape)} instead of {shape}")
            require(torch.equal(net.head(z), logits), "the head of the representations gives other logits")


@law("models")
def initial_weights_depend_on_the_seed_alone(subject: Subject) -> None:
    """The same seed gives the same initial weights, another seed gives others, and the global generator does not
    change.

    All clients start from the same weights, and a run can be repeated.
    """
    state = torch.random.get_rng_state()
    for (one, _), (same, _), (other, _) in zip(_nets(subject), _nets(subject), _nets(subject, 1), strict=True):
        first, second, third = (parameters.copy_params(net) for net in (one, same, other))
        require(small.are_equal(first, second), "the same seed gives other weights")
        require(not small.are_equal(first, third), "seeds 0 and 1 give the same weights")
    require(torch.equal(state, torch.random.get_rng_state()), "building the network changed the global generator")


@law("models")
def samples_are_predicted_one_by_one(subject: Subject) -> None:
    """In evaluation mode, the prediction of a sample is repeatable and does not depend on the other samples of its
    batch.

    Batches are as large as memory allows, and differ between machines.
    """
    for net, x in _nets(subject):
        net.eval()
        with torch.no_grad():
            together, again, alone = net(x), net(x), torch.cat([net(x[i : i + 1]) for i in range(len(x))])
        require(torch.equal(together, again), "predictions differ from call to call")
        difference = float((together - alone).abs().max())
        require(difference < 1e-4, f"logits of a sample alone differ by {difference:.1e} from those in a batch")


@law("models")
def every_parameter_is_trained(subject: Subject) -> None:
    """The gradient of the loss exists and is finite for every parameter.

    A parameter without a gradient costs bytes in every round and learns nothing.
    """
    for net, x in _nets(subject):
        net.train()
        y = torch.arange(len(x)) % _CLASSES
        functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        for name, value in net.named_parameters():
            require(value.grad is not None, f"{name} has no gradient")
            require(bool(torch.isfinite(torch.as_tensor(value.grad)).all()), f"the gradient of {name} is not finite")


@law("models")
def an_adapter_changes_nothing_at_first(subject: Subject) -> None:
    """A new adapter does not change the outputs of the network; only the adapter and the head have parameters to train.

    With ``--adapter``, training starts from the pretrained network that it freezes.
    """
    for net, x in _nets(subject):
        try:
            adapted = models.add_adapter(net, "lora:2", 0)
        except UsageError as error:
            raise NotApplicable(error.message) from None
        with torch.no_grad():
            difference = float((adapted.eval()(x) - net.eval()(x)).abs().max())
            # Dropout draws while it trains; batch normalization must not change.
            trained = float((adapted.train()(x) - adapted.eval()(x)).abs().max()) if not net.is_random else 0.0
        require(difference < 1e-4, f"logits differ by {difference:.1e} from those of the network without an adapter")
        require(trained < 1e-4, f"logits differ by {trained:.1e} between training and evaluation")
        for name, _ in adapted.named_parameters():
            require(name.startswith("head.") or name.endswith((".down", ".up")), f"{name} is trained, but not adapted")


@law("models")
def a_stack_of_clients_trains_as_a_loop(subject: Subject) -> None:
    """Clients that train together as one batched program end with the models of clients that train one after the other.

    ``--engine`` changes the duration of a run but not its result, except for rounding.
    """
    for shape, tokens in _shapes(subject):
        data, trained = _federation(shape, tokens), []
        for mode in ("loop", "stacked"):
            net = models.create(_name(subject), shape, data.classes, 0, tokens=tokens)
            engine, start = Engine(net, data, seed=0, threads=1, mode=mode), parameters.copy_params(net)
            plan = LocalSGD(1, 4, np.full(1, 0.01), 0.0, 0.0)
            parts = [part.params for part in engine.local_sgd(data.clients, start, plan, ("law",))]
            trained.append({name: torch.cat([part[name] for part in parts]) for name in start})
            engine.close()
        loop, stack = trained
        moved, apart = (_distance(loop, other) for other in (parameters.repeat(start, len(data.clients)), stack))
        require(apart <= 0.02 * moved, f"in a stack, parameters end {100 * apart / moved:.1f} % of their way elsewhere")


def _distance(a: Stacked, b: Stacked) -> float:
    """Return the Euclidean distance between the parameters of two stacks of models."""
    return math.sqrt(sum(float((a[name].double() - b[name].double()).square().sum()) for name in a))


def _federation(shape: tuple[int, ...], tokens: bool) -> Federation:
    """Return clients with four training samples of a shape and one of each other split, enough for stacks of two."""
    draw = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(np.tile((4, 1, 1), 8))])
    size = (int(offsets[-1]), *shape)
    x = draw.integers(0, _TOKENS, size).astype(np.int16) if tokens else draw.random(size).astype(np.float32)
    return Federation.from_arrays(x, draw.integers(0, _CLASSES, len(x)), offsets, _classes(tokens))


@law("models")
def onnx_predicts_the_same(subject: Subject) -> None:
    """The network can be exported as an ONNX graph with the same predictions, for any number of samples.

    ``pfl export`` brings a client's model to machines without PyTorch.
    """
    try:
        onnx_network.require_packages()
    except UsageError:
        raise NotApplicable("onnx and onnxruntime are not installed: pip install 'pflcli[export]'") from None
    import onnxruntime

    for net, x in _nets(subject):
        net.eval()
        graph = onnx_network.trace(copy.deepcopy(net), x[:2], ["p"])
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        with torch.no_grad():
            expected = net(x).numpy()
        (actual,) = session.run(["p"], {"x": x.numpy()})
        difference = float(np.abs(actual - expected).max())
        require(difference < 1e-3, f"logits of the exported graph differ by {difference:.1e}")
