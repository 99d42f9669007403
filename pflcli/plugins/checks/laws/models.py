"""The laws of models."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pflcli.core import models, parameters, registry, rng
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.errors import ComputationError, InputError, PflError, UsageError
from pflcli.core.models import Net
from pflcli.core.parameters import Stacked
from pflcli.plugins.checks.laws import DoubtfulError, Subject, law, needing, other_process
from pflcli.workflow.admission import BrokenLawError, NotApplicable, Shape, networks, require
from pflcli.workflow.admission import small_federation as small

_TOKENS = 30
"""Classes of networks that predict the next token, and so the number of tokens."""
_SIZES: dict[str, tuple[tuple[int, ...], ...]] = {
    "features": ((small.FEATURES,), (64,)),
    "series": ((12, 4), (64, 4), (256, 4)),
    "tokens": ((20,), (80,)),
    "images": ((1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 96, 96), (3, 224, 224)),
}
"""Shapes of samples by kind, from small to large: a network is judged by the first of each kind that it takes."""
_MAX_PASSES = 30
"""Passes in which each parameter has a gradient once, although a network leaves out some of its layers at random."""


def _shapes(subject: Subject) -> Iterator[Shape]:
    """Yield the shapes for which the model is judged: that of ``subject.like``, or the first one of each kind."""
    if subject.like is not None:
        yield subject.like
        return
    accepted = registry.card("models", subject.name).facts.get("TAKES", tuple(models.KINDS))
    kinds, refused = set(), dict[str, PflError]()
    for kind, sizes in _SIZES.items():
        for size in sizes if kind in accepted else ():
            shape = Shape(size, kind == "tokens", _TOKENS if kind == "tokens" else small.CLASSES)
            try:
                if kind not in kinds:
                    models.outline(_name(subject), size, shape.classes, tokens=shape.tokens)
                    kinds.add(kind)
                    yield shape
            except (UsageError, InputError) as error:
                refused[f"{kind} of {'x'.join(map(str, size))}"] = error
    if not kinds:
        last = {key.partition(" ")[0]: key for key in refused}.values()
        reasons = "; ".join(f"{key}: {refused[key].message}" for key in last)
        tried = f"it takes none of the shapes that were tried, such as {reasons}"
        raise InputError(f"{tried} (--like PARTITION tries the shape of your samples)")


def _name(subject: Subject) -> str:
    """Return the name of the model with its options, the arguments of its class."""
    return registry.add_arguments(subject.name, subject.options) if subject.options else subject.name


def _nets(subject: Subject, seed: int = 0) -> Iterator[tuple[Net, Tensor]]:
    """Yield the network for each kind of samples that it takes, with six samples."""
    for shape in _shapes(subject):
        yield _create(subject, shape, seed), networks.draw_inputs(shape)


def _create(subject: Subject, shape: Shape, seed: int = 0) -> Net:
    return networks.create(_name(subject), shape, seed)


@law("models")
def a_head_follows_a_body(subject: Subject) -> None:
    """The logits (n, C) are those that ``head`` computes from the representations (n, d) that ``body`` computes.

    Methods that personalize the head, embeddings and kNN-Per rely on these two parts.
    """
    for shape in _shapes(subject):
        net, x = _create(subject, shape).eval(), networks.draw_inputs(shape)
        if not [*net.head.parameters()]:
            raise NotApplicable("the network does not end in a linear layer: methods that need a head refuse it")
        with torch.no_grad():
            z, logits = net.features(x), net(x)
            require(z.ndim == 2, f"representations are {tuple(z.shape)} instead of (n, d)")
            expected = (len(x), shape.classes)
            require(tuple(logits.shape) == expected, f"logits are {tuple(logits.shape)} instead of {expected}")
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
def another_process_builds_the_same_network(subject: Subject) -> None:
    """Another process, in which Python orders sets and hashes words otherwise, builds the same network.

    Workers and resumed runs are other processes.
    """
    same = digest_networks(subject) == other_process.call(digest_networks, subject)
    require(same, "another process draws other weights: is something in the order of a set, or of hashes?")


@law("models")
def what_came_before_changes_no_prediction(subject: Subject) -> None:
    """A new network with the same weights gives the same outputs whatever other networks of its class have computed.

    What a network keeps in a variable of its class or module is lost, or another one, in the next process: other
    processes resume runs, predict for new samples, and train other clients.
    """
    first, second = (other_process.call(compute_after_others, subject, seed) for seed in (1, 2))
    for one, other in zip(first, second, strict=True):
        difference = float((one - other).abs().max())
        seen = f"logits differ by {difference:.1e} after another network of the class has computed something else"
        require(torch.equal(one, other), f"{seen}: is something in a variable of the class or module?")


def compute_after_others(subject: Subject, seed: int) -> list[Tensor]:
    """Return the outputs of new networks after others of their class have computed those of samples drawn by a seed."""
    outputs = []
    for shape in _shapes(subject):
        other, net, x = _create(subject, shape), _create(subject, shape), networks.draw_inputs(shape)
        foreign = networks.draw_inputs(shape, seed=100 + seed)
        foreign = foreign if shape.tokens else seed * foreign
        with torch.no_grad(), rng.seeded_globals(0, "law"):
            other.train()(foreign)
            other.eval()(foreign)
            outputs.append(net.eval()(x))
    return outputs


def digest_networks(subject: Subject) -> str:
    """Return a hash of the initial weights."""
    digest = hashlib.sha256()
    for net, _ in _nets(subject):
        for name, value in sorted(parameters.copy_params(net).items()):
            digest.update(name.encode())
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()


@law("models")
def samples_are_predicted_one_by_one(subject: Subject) -> None:
    """In evaluation mode, the prediction of a sample is repeatable and does not depend on the other samples of its
    batch.

    Batches are as large as memory allows, and differ between machines.
    """
    for shape in _shapes(subject):
        networks.require_one_by_one(_name(subject), shape)


@law("models")
def the_network_returns_logits(subject: Subject) -> None:
    """The network returns logits, which can be any numbers: no softmax, sigmoid or ReLU follows the last layer.

    The cross-entropy applies a softmax itself. After a second one, its gradients are small, and the network learns
    little.
    """
    for shape in _shapes(subject):
        logits, draw = list[Tensor](), torch.Generator().manual_seed(0)
        for seed in range(2):
            net, x = _create(subject, shape, seed).eval(), networks.draw_inputs(shape, 12, seed)
            with torch.no_grad():
                for value in net.parameters():  # some begin with zeros
                    value.add_(0.1 * torch.randn(value.shape, generator=draw))
                logits.append(net(x))
                for value in net.parameters():
                    value.mul_(10)  # what follows a linear layer then saturates
                logits.append(net(x))
        ignored = all(torch.equal(each, each[:1].expand_as(each)) for each in logits)
        require(not ignored, "all samples have the same outputs: they do not depend on the input")
        values = torch.cat(logits)
        values = values[torch.isfinite(values).all(dim=1)]
        sums = values.sum(dim=1)
        is_positive, is_negative = bool((values >= 0).all()), bool((values <= 0).all())
        if is_positive and bool(torch.allclose(sums, sums[:1].expand_as(sums), rtol=1e-3)):
            raise BrokenLawError("the outputs of each sample add up to the same: return logits, without the softmax")
        require(not is_positive, "no output is ever negative: return logits, without a function after the last layer")
        is_log_softmax = float(values.logsumexp(dim=1).abs().max()) < 1e-3  # of which the loss is the same
        require(
            not is_negative or is_log_softmax,
            "no output is ever positive: return logits, without a function after the last layer",
        )
        largest = float(values.abs().max())
        require(
            largest > 1 + 1e-6, f"outputs are never outside of [-1, 1]: {largest:.3f} is the largest, for any weights"
        )
        constant = torch.nonzero((values == values[:1]).all(dim=0)).flatten().tolist()
        require(not constant, f"the output of class {constant} is the same for all samples and weights")


@law("models")
def random_numbers_are_seeded(subject: Subject) -> None:
    """The training of a client depends on the seed, the client and its samples alone, also where the network draws
    random numbers, as dropout does.

    A run can be repeated and resumed. ``pfl`` seeds the global generators of PyTorch, NumPy and Python for each client;
    a generator of the network's own, and counts in its attributes, go on from client to client.
    """
    for shape in _shapes(subject):
        networks.require_seeded(_name(subject), shape)


@law("models")
def every_parameter_is_trained(subject: Subject) -> None:
    """The gradient of the loss exists, is finite and is not always zero for every parameter.

    A parameter without a gradient costs bytes in every round and learns nothing. What should stay as it is drawn, such
    as random features, is a buffer: ``register_buffer``.
    """
    for shape in _shapes(subject):
        net = _create(subject, shape).train()
        frozen = [name for name, value in net.named_parameters() if not value.requires_grad]
        require(not frozen, f"{', '.join(frozen[:3])} has requires_grad=False: make it a buffer (register_buffer)")
        missing, still = ([name for name, _ in net.named_parameters()] for _ in range(2))
        draw = torch.Generator().manual_seed(0)
        with rng.seeded_globals(0, "law"):
            for number in range(_MAX_PASSES if missing else 0):
                x = networks.draw_inputs(shape, seed=number + 1)
                y = torch.arange(len(x)) % min(small.CLASSES, shape.classes)
                Classification(shape.classes).losses(net(x), y).mean().backward()  # type: ignore[no-untyped-call]
                missing = [name for name, value in net.named_parameters() if value.grad is None]
                still = [name for name, value in net.named_parameters() if value.grad is None or not value.grad.any()]
                if not still:
                    break
                if not missing:  # some gradients are zero where a layer begins with zeros
                    with torch.no_grad():
                        for value in net.parameters():
                            value.add_(0.1 * torch.randn(value.shape, generator=draw))
        require(not missing, f"{', '.join(missing[:3])} has no gradient")
        require(not still, f"the gradient of {', '.join(still[:3])} is zero for all samples: it never learns")
        for name, value in net.named_parameters():
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
    for shape in _shapes(subject):
        data, net = networks.make_federation(shape), _create(subject, shape)
        loop = networks.train(net, data, data.clients, "loop")
        try:
            stack = networks.train(net, data, data.clients, "stacked")
        except UsageError as error:
            raise DoubtfulError(f"{error.message}; it is trained with {error.fix[0]} only") from None
        start = parameters.repeat(parameters.copy_params(net), len(data.clients))
        moved, apart = (_distance(loop, other) for other in (start, stack))
        require(apart <= 0.02 * moved, f"in a stack, parameters end {100 * apart / moved:.1f} % of their way elsewhere")


def _distance(a: Stacked, b: Stacked) -> float:
    """Return the Euclidean distance between the parameters of two stacks of models."""
    return math.sqrt(sum(float((a[name].double() - b[name].double()).square().sum()) for name in a))


@law("models")
def onnx_predicts_the_same(subject: Subject) -> None:
    """The network can be exported as an ONNX graph with the same predictions, for any number of samples.

    ``pfl export`` brings a client's model to machines without PyTorch.
    """
    with needing("export"):
        from pflcli.plugins.export import onnx_network
    try:
        onnx_network.require_packages()
    except UsageError:
        raise NotApplicable("onnx and onnxruntime are not installed: pip install 'pflcli[export]'") from None
    import onnxruntime

    for net, x in _nets(subject):
        net.eval()
        try:
            graph = onnx_network.trace(copy.deepcopy(net), x[:2], ["p"])
        except ComputationError as error:
            raise DoubtfulError(f"{error.message}; pfl export refuses it, everything else works") from None
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        with torch.no_grad():
            expected = net(x).numpy()
        (actual,) = session.run(["p"], {"x": x.numpy()})
        difference = float(np.abs(actual - expected).max())
        require(difference < 1e-3, f"logits of the exported graph differ by {difference:.1e}")
