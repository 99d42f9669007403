"""Backbones, one file each, and the interface of such a file: ``Model``.

A name with a colon, ``torchvision:resnet50``, is a member of a family: the ``build`` of its file also takes the member,
and ``members()`` returns all names.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import Protocol

import torch

from pflcli.core import registry, rng
from pflcli.core.errors import UsageError, closest
from pflcli.core.models.net import Net as Net

KINDS = {"images": 3, "series": 2, "features": 1, "tokens": 1}
"""Kinds of samples with their dimensions: images (C, H, W), series (L, d), features (d,), tokens (L,) of integers."""


class Model(Protocol):
    """The interface of a file in this folder; ``build`` and ``REPRESENTATION`` are required."""

    REPRESENTATION: str
    """the dimension of the representation, as ``pfl list models`` shows it"""
    TAKES: tuple[str, ...] = tuple(KINDS)
    """the kinds of samples that it takes"""
    PREFIXES: dict[str, str] = {"": "body."}  # noqa: RUF012 (a constant of a file)
    """prefixes of names in weight files, and the prefixes in this network"""

    @abstractmethod
    def build(self, in_shape: tuple[int, ...], classes: int, member: str = "") -> Net:
        """Return the network for samples (C, H, W), (L, d), (d,) or (L,); raises UsageError for unsupported sizes.

        A file with a single model leaves out ``member``.
        """

    def members(self) -> list[str]:
        """Return the names of a family's models; empty for a single model."""
        return []


def check(name: str) -> str:
    """Return the full name of a model; raises UsageError, with the nearest name, if there is none. Does not build it.

    Only the name of a network from a class may be short: ``net`` for ``net:Net``.
    """
    family, colon, member = name.partition(":")
    if _is_class(name):
        from pflcli.core.models import own_network

        return own_network.name_class(name, registry.import_file("models", family))
    if not registry.exists("models", family):
        torchvision_own = (
            f"torchvision's own: --model torchvision:{name}" if name in _load("torchvision").members() else ""
        )
        raise UsageError(
            f"unknown model '{name}'", closest(name, registry.names("models")), torchvision_own, "pfl list models"
        )
    family_members = _load(family).members()
    if colon and not family_members:
        raise UsageError(f"'{name}': {family} is a single model, not a family", f"--model {family}")
    if family_members and not colon:
        raise UsageError(f"model {family} is a family: choose a member", f"--model {family}:{family_members[0]}")
    if family_members and member not in family_members:
        raise UsageError(f"{family} has no model '{member}'", closest(member, family_members))
    return name


def _is_class(name: str) -> bool:
    """Return whether a model is a class in a user's file or an installed module, not a file with ``build``."""
    family = name.partition(":")[0]
    return registry.is_foreign("models", family) and not hasattr(registry.import_file("models", family), "build")


DEFAULTS = {"images": "cnn", "features": "mlp", "tokens": "lstm", "series": "gru"}
"""The default model of each kind of samples."""


def default(in_shape: tuple[int, ...], *, tokens: bool) -> str:
    """Return the default model for samples of a shape."""
    kinds = _kinds(in_shape, tokens)
    return DEFAULTS[kinds[0]] if kinds else DEFAULTS["images"]


@functools.cache
def outline(name: str, in_shape: tuple[int, ...], classes: int, *, tokens: bool, adapter: str | None = None) -> Net:
    """Return the model without memory for its weights; raises UsageError if it takes no such samples or adapter."""
    # The code of a user need not run on the meta device.
    with torch.device("cpu" if registry.is_foreign("models", name.partition(":")[0]) else "meta"):
        net = create(name, in_shape, classes, 0, tokens=tokens)
        return net if adapter is None else add_adapter(net, adapter, 0)


def add_adapter(net: Net, adapter: str, seed: int) -> Net:
    """Return a copy of a network with a frozen body and an ``adapter``, such as ``lora:8``, drawn from ``seed``.

    Raises UsageError if the network has no head, or its body has no layer for an adapter.
    """
    from pflcli.core.models import adapters

    return adapters.add(net, adapter, seed)


def create(name: str, in_shape: tuple[int, ...], classes: int, seed: int, *, tokens: bool | None = None) -> Net:
    """Build a backbone with initial weights drawn from ``seed``; the state of the global generator does not change.

    ``tokens`` is whether samples are tokens, None if unknown. Raises UsageError, with suitable models, for samples
    of a kind or size that the model does not take.
    """
    name = check(name)
    model, kinds = None if _is_class(name) else _load(name), _kinds(in_shape, tokens)
    accepted = tuple(KINDS) if model is None else model.TAKES
    if not set(kinds) & set(accepted):
        takes = {other: registry.card("models", other).facts.get("TAKES", KINDS) for other in registry.names("models")}
        fit = [f"--model {other}" for other, own in takes.items() if set(kinds) & set(own)]
        actual = f"{kinds[0]} of {_shape(in_shape)}" if kinds else f"samples of {_shape(in_shape)}"
        raise UsageError(f"model {name} takes {' or '.join(accepted)}, not {actual}", " or ".join(fit[:3]))
    family, colon, member = name.partition(":")
    with rng.seeded_torch(rng.integer(seed, "init", name)):
        if model is None:
            from pflcli.core.models import own_network

            module = registry.import_file("models", family)
            return own_network.build(module, name, in_shape, classes, tokens=bool(tokens))
        net = model.build(in_shape, classes, *([member] if colon else []))
        if registry.is_foreign("models", family):
            from pflcli.core.models import own_network

            own_network.try_out(net, str(registry.path("models", family)), in_shape, classes, tokens=bool(tokens))
        return net


def _kinds(in_shape: tuple[int, ...], tokens: bool | None) -> list[str]:
    """Return the kinds of samples with this shape."""
    kinds = [kind for kind, dimensions in KINDS.items() if dimensions == len(in_shape)]
    return kinds if tokens is None else [kind for kind in kinds if (kind == "tokens") == tokens]


def _load(name: str) -> Model:
    model: Model = registry.load("models", name, Model)
    return model


def _shape(in_shape: tuple[int, ...]) -> str:
    return "x".join(map(str, in_shape))


def image_shape(name: str, in_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width); raises UsageError if the samples are not images of at least that size."""
    if len(in_shape) != 3 or min(in_shape[1:]) < smallest:
        required = f"images of at least {smallest}x{smallest} pixels"
        actual = (
            f"{_shape(in_shape[1:])} pixels with {in_shape[0]} channels" if len(in_shape) == 3 else _shape(in_shape)
        )
        raise UsageError(f"model {name} takes {required}, not {actual}", "--model mlp")
    return in_shape
