"""Networks from a class in a user's file or an installed module: ``./net.py:Net``, ``package.module:Net(width=32)``.

The class is an ordinary ``nn.Module`` whose ``forward`` takes one batch of samples and returns logits (n, C). It is
divided into a body and a head: the head is the linear layer that computes the logits, or the one that the class names
as ``HEAD = "fc"``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pflcli.core import registry, rng
from pflcli.core.errors import InputError, PflError, UsageError, closest
from pflcli.core.models.net import Net

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
ARGUMENTS: dict[tuple[str, ...], Callable[[tuple[int, ...], int], Any]] = {
    ("classes", "num_classes", "n_classes"): lambda shape, classes: classes,
    ("in_shape", "input_shape"): lambda shape, classes: shape,
    ("channels", "in_channels", "in_chans", "in_features"): lambda shape, classes: (
        shape[0] if len(shape) != 2 else shape[1]
    ),
    ("length", "seq_len"): lambda shape, classes: shape[0],
    ("vocab_size", "num_tokens"): lambda shape, classes: classes,
}
"""Arguments of constructors that describe the data, and their values: the number of classes; the shape of a sample;
the channels of images, or the features of a time step or a sample; the length of series and tokens; the number of
tokens."""


def name_class(name: str, module: ModuleType) -> str:
    """Return the full name of a network: ``net:Net(width=32)`` for ``net:(width=32)`` if Net is the only one there.

    Raises InputError if the module has several networks and the name does not choose one, or if it has no such network.
    """
    base, arguments = registry.split_arguments(name)
    family, _, cls = base.partition(":")
    known = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
    }
    chosen = cls or (next(iter(known)) if len(known) == 1 else "")
    if not chosen and known:
        raise UsageError(f"{module.__file__} has several networks", *(f"--model {family}:{key}" for key in known))
    given = getattr(module, chosen, None)
    if not (isinstance(given, type) and issubclass(given, nn.Module)):
        named = f"no network {chosen}" if chosen else "no subclass of torch.nn.Module"
        raise InputError(f"{module.__file__} has {named}", closest(chosen, known) if chosen and known else "")
    accepted = inspect.signature(given).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    wrong = sorted(set() if takes_any else set(arguments) - set(accepted))
    if wrong:
        raise UsageError(f"{chosen} has no argument '{wrong[0]}'", closest(wrong[0], _own_arguments(given)))
    described = {name for names in ARGUMENTS for name in names}
    for parameter in accepted.values():
        is_given = parameter.name in described or parameter.name in arguments
        if not is_given and parameter.default is parameter.empty and parameter.kind not in _VARIADIC:
            name = parameter.name
            set_it = f"--set model.{name}=8, or --set {name}=8 to check the network alone"
            raise UsageError(f"{chosen} needs a value for '{parameter.name}', which has no default", set_it)
    return registry.join_arguments(f"{family}:{chosen}", arguments)


def _own_arguments(cls: type[nn.Module]) -> list[str]:
    """Return the arguments of a constructor that do not describe the data."""
    described = {name for names in ARGUMENTS for name in names}
    return [name for name in inspect.signature(cls).parameters if name not in described]


def build(module: ModuleType, name: str, in_shape: tuple[int, ...], classes: int, *, tokens: bool) -> Net:
    """Return the network, divided into a body and a head, for samples of ``in_shape``.

    Raises InputError, with the line of the user's file, if it cannot be built, or does not compute logits (n, C).
    """
    base, arguments = registry.split_arguments(name)
    cls = getattr(module, base.partition(":")[2])
    return build_from(cls, arguments, f"{module.__file__}: {cls.__name__}", in_shape, classes, tokens=tokens)


def build_from(
    make: Callable[..., nn.Module],
    arguments: Mapping[str, Any],
    where: str,
    in_shape: tuple[int, ...],
    classes: int,
    *,
    tokens: bool,
) -> Net:
    """Return the network that a class or function makes, divided into a body and a head; errors begin with ``where``.

    Besides ``arguments``, it gets those of ``ARGUMENTS`` that it takes. Raises InputError if the network cannot be
    built, or does not compute logits (n, C).
    """
    with _report_errors(where):
        network = make(**{**_describe_data(make, in_shape, classes), **arguments})
    if not isinstance(network, nn.Module):
        raise InputError(f"{where} makes a {type(network).__name__}, not a torch.nn.Module")
    needed = [
        parameter.name
        for parameter in inspect.signature(network.forward).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if len(needed) != 1:
        raise InputError(
            f"{where}.forward takes {len(needed)} inputs ({', '.join(needed)}); clients have one array of samples each",
            "def forward(self, x): return the logits (n, C)",
        )
    x = torch.zeros(2, *in_shape, dtype=torch.int64 if tokens else torch.float32)
    with _report_errors(where), torch.no_grad():
        logits, last = _run(network.eval(), x)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (2, classes):
        raise InputError(
            f"{where} returns {shape} for two samples of {classes} classes, instead of (2, {classes})",
            "take the number of classes as the argument 'classes'",
        )
    net = network if isinstance(network, Net) else _divide(network, getattr(make, "HEAD", last), x)
    try_out(net, where, in_shape, classes, tokens=tokens)
    return net.train()


def _describe_data(make: Callable[..., nn.Module], in_shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    """Return the arguments of a constructor or function that describe the data."""
    wanted = inspect.signature(make).parameters
    return {name: value(in_shape, classes) for names, value in ARGUMENTS.items() for name in names if name in wanted}


def _run(network: nn.Module, x: Tensor) -> tuple[Any, str]:
    """Return the output of a network and the name of the linear layer that ran last; an empty name if none ran."""
    ran: list[str] = []
    hooks = [
        module.register_forward_hook(lambda module, args, output, name=name: ran.append(name))
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        return network(x), ran[-1] if ran else ""
    finally:
        for hook in hooks:
            hook.remove()


def _divide(network: nn.Module, head: str, x: Tensor) -> Net:
    """Return the network in two parts; with an empty head if the layer ``head`` does not compute the logits."""
    whole = Net(network, nn.Identity())
    if not head:
        return whole
    body = copy.deepcopy(network)
    try:
        layer = body.get_submodule(head)
        outer, _, last = head.rpartition(".")
        setattr(body.get_submodule(outer), last, nn.Identity())
        divided = Net(body, layer)
        x = x if x.dtype == torch.int64 else torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
        # With the layer reversed and enlarged, too: a function that follows it may change nothing of small logits.
        far, far_divided = copy.deepcopy(network), copy.deepcopy(divided)
        with torch.no_grad():
            for value in (*far.get_submodule(head).parameters(), *far_divided.head.parameters()):
                value.mul_(-1000)
            z = body(x)
            same = torch.equal(divided(x), network(x)) and torch.equal(far_divided(x), far(x))
    except Exception:  # a network that needs the layer elsewhere too
        return whole
    # A layer that the body uses too, or whose output is changed afterwards, is no head.
    return divided if z.ndim == 2 and same else whole


def try_out(net: Net, where: str, in_shape: tuple[int, ...], classes: int, *, tokens: bool) -> None:
    """Set ``net.is_random`` by passes in training mode: True if they draw random numbers, as dropout does, else None.

    Raises InputError, with the line of the user's file, if they fail.
    """
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(classes, (4, *in_shape), generator=draw) if tokens else torch.rand(4, *in_shape, generator=draw)
    with rng.kept_globals(), rng.watched_globals() as has_drawn, _report_errors(where), torch.no_grad():
        tried = copy.deepcopy(net).train()
        for _ in range(2):
            tried(x)
        net.is_random = True if has_drawn() else None


@contextmanager
def _report_errors(where: str) -> Iterator[None]:
    """Turn any error of a user's class into an InputError that names the file, the line and the class."""
    try:
        yield
    except PflError:
        raise
    except Exception as error:
        place = registry.place_of_failure(error)
        raise InputError(f"{place or where}: {type(error).__name__}: {error}") from error
