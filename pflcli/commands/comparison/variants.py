"""What a comparison compares: methods, each with options and training settings, and stacks of their predictions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pflcli import config, methods, registry
from pflcli.artifacts import chain
from pflcli.artifacts.reader import Artifact
from pflcli.errors import InputError, UsageError, closest
from pflcli.evaluation.pool import BASE, STACK
from pflcli.reporter import Reporter
from pflcli.settings import Settings, changed
from pflcli.wording import counted

ALL = "all"
TRAINING = "training."
"""Prefix of a training setting, which tells it from an option of the method with the same name."""

BACKBONE = "fedavg"
"""The method that trains the backbone, with its options in the comparison; it also personalizes from the backbone."""


@dataclass(frozen=True)
class Variant:
    """A method of a comparison: its options, its own training settings, and the kind of artifact that it takes.

    ``name`` is the method's name, followed by ``@`` and a word if the method is compared in several variants. The
    ``source`` of a stack is empty: it takes the predictions of the variants in its option ``pool``.
    """

    name: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    source: str
    epochs: float
    """estimated work: epochs over all clients' samples, or local steps if the settings count steps"""
    chooses: bool = False
    """whether its clients choose by validation samples: with ``refit``, an earlier run without it must choose"""

    @property
    def method(self) -> str:
        """The method's name, without the variant's."""
        return method_name(self.name)

    @property
    def is_stack(self) -> bool:
        """Whether it pools the predictions of other variants."""
        return is_stack(self.name)


def is_stack(name: str) -> bool:
    """Return whether a variant of this name, such as ``stack@own``, is a stack."""
    return method_name(name) == STACK


def method_name(name: str) -> str:
    """Return the method of a name such as ``panm@grad``."""
    return name.split("@", maxsplit=1)[0]


def resolve_variants(
    methods: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
    training: Settings,
    existing: Sequence[Variant] = (),
) -> list[Variant]:
    """Return a variant for each name in ``methods``, stacks last; ``all`` stands for every method.

    ``options`` holds, by variant, options of the method and training settings. A stack may also pool ``existing``
    variants. Raises UsageError for a name that is unknown or occurs twice, or a stack of fewer than two methods.
    """
    names = [name for word in methods for name in (registry.names("methods") if word == ALL else [word])]
    if not names:
        raise UsageError("no methods to compare", "--methods fedavg,local")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"method {name} is named twice", f"variants have names of their own: {name},{name}@other")
        if not is_stack(name):
            registry.card("methods", method_name(name))
        if name != method_name(name) and not re.fullmatch(r"[A-Za-z0-9_-]+", name.split("@", 1)[1]):
            raise UsageError(f"{name}: a variant is named by letters, digits, - and _", f"{method_name(name)}@other")
    for name in options:
        if name not in names:
            raise UsageError(f"options are set for {name}, which is not compared", closest(name, names))
    variants = [_variant(name, options.get(name, {}), training) for name in names if not is_stack(name)]
    return [*variants, *_stacks(names, options, [*existing, *variants], training)]


def divided(name: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a method and the training settings among ``values``, these without the prefix."""
    own = {field.name for field in dataclasses.fields(methods.load(method_name(name)).Config)}
    options = {key: value for key, value in values.items() if key in own}
    return options, {key.removeprefix(TRAINING): value for key, value in values.items() if key not in own}


def _variant(name: str, options: Mapping[str, Any], training: Settings) -> Variant:
    method = methods.load(method_name(name))
    own = {field.name for field in dataclasses.fields(method.Config)}
    shared = {field.name for field in dataclasses.fields(Settings)}
    for key in options:
        if key not in own | shared and key.removeprefix(TRAINING) not in shared:
            raise UsageError(f"unknown option '{key}' for {name}", closest(key, own | shared))
    own_options, settings = divided(name, options)
    cfg = config.build(method.Config, own_options, name)
    resolved: Settings = config.build(Settings, changed(config.plain(training), settings), f"the training of {name}")
    changes = {key: value for key, value in config.plain(resolved).items() if value != config.plain(training)[key]}
    trains = method.has_rounds or not method.NEEDS
    order = list(chain.KINDS)
    source = max(method.NEEDS, key=order.index, default="partition")
    if name == BACKBONE and not changes:
        source, trains = "backbone", False
    chooses = resolved.refit and bool(method.choices(cfg))
    return Variant(name, config.plain(cfg), changes, source, epochs(resolved) if trains else 2.0, chooses)


def epochs(training: Settings) -> float:
    """Return the estimated work of a run: epochs over all clients' samples, or steps if the settings count steps."""
    return max(1.0, training.rounds * training.participation * (training.steps or training.epochs))


# Stacks

LARGEST_POOL = 12
"""Of more methods than this, a stack pools by default those that need no rounds of their own."""
_FEWEST = 2
"""With one method alone there is nothing to pool."""


@dataclass(frozen=True)
class StackOptions:
    """Options of a stack in a comparison."""

    pool: tuple[str, ...] = ()
    """the compared methods that are pooled; where none is named, all others (:func:`_default_pool`)"""
    gate: bool = True
    """whether clients keep the global model whose validation samples gain nothing"""
    own: bool = False
    """whether each client has exponents of its own"""


def _stacks(
    names: Iterable[str], options: Mapping[str, Mapping[str, Any]], compared: Iterable[Variant], training: Settings
) -> list[Variant]:
    """Return a variant for each stack among ``names``, with its ``options``; it pools ``compared`` variants."""
    methods_by_name = {variant.name: variant for variant in compared if not variant.is_stack}
    return [
        Variant(name, _stack_options(name, options.get(name, {}), methods_by_name, refit=training.refit), {}, "", 0.1)
        for name in names
        if is_stack(name)
    ]


def _stack_options(
    name: str, values: Mapping[str, Any], compared: Mapping[str, Variant], *, refit: bool
) -> dict[str, Any]:
    """Return the options of the stack ``name``, with the sorted names of the methods that it pools.

    ``compared`` are the methods of the comparison by name; ``refit`` says whether they learn from validation samples,
    unless they have a setting of their own. Raises UsageError for options that do not exist, for methods that are not
    compared or cannot be pooled, and for fewer than two.
    """
    cfg = config.build(StackOptions, values, name)
    refitted = {member for member, variant in compared.items() if variant.settings.get("refit", refit)}
    for member in cfg.pool:
        if is_stack(member):
            raise UsageError(f"{name} pools {member}, which is a stack itself", f"--set {name}.pool=fedavg,local")
        if member not in compared:
            raise UsageError(f"{name} pools {member}, which is not compared", closest(member, compared))
        if member in refitted:
            raise _learned(name, member)
    pool = sorted({*cfg.pool} or {*_default_pool(compared)} - refitted)
    if len(pool) < _FEWEST:
        if refitted:
            raise _learned(name, ", ".join(sorted(refitted)))
        only = f"only {pool[0]}" if pool else "no method"
        raise UsageError(
            f"{name} pools two methods or more, and {only} is there to pool", f"--methods fedavg,local,{name}"
        )
    if cfg.gate and not any(_stores_global_model(compared[member]) for member in pool):
        raise UsageError(
            f"none of {', '.join(pool)} knows the global model, which clients return to if the pool does not help",
            f"pool {BASE} too, or leave the return out: --set {name}.gate=false",
        )
    return config.plain(replace(cfg, pool=tuple(pool)))


def _learned(name: str, members: str) -> UsageError:
    return UsageError(
        f"{name} learns exponents on validation samples, from which {members} already learned with refit",
        f"leave out --refit, or {name}",
    )


def _default_pool(compared: Mapping[str, Variant]) -> list[str]:
    """Return all methods or, of many, those that stand on the backbone and those that clients train alone.

    These cost no communication beside the backbone's, which counts once.
    """
    if len(compared) <= LARGEST_POOL:
        return [*compared]
    return [
        name
        for name, variant in compared.items()
        if variant.source != "partition" or methods.load(variant.method).KIND == "local"
    ]


def _stores_global_model(variant: Variant) -> bool:
    """Return whether its predictions hold those of the global model, as all that stand on a backbone do."""
    return variant.method == BASE or variant.source != "partition"


def require_validation_samples(names: Iterable[str], partitions: Iterable[Artifact]) -> None:
    """Raise InputError if a stack is among the names, and a partition has no samples to learn its exponents on."""
    if not any(map(is_stack, names)):
        return
    for partition in partitions:
        if not partition.manifest.summary.get("validation", 1):
            raise InputError(
                f"{partition.path} has no validation samples on which a stack could learn exponents",
                "pfl partition DATASET -o DIR --fractions 0.6,0.2,0.2",
            )


def stack_pools(requested: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names that each stack pools, from the ``methods`` of a comparison's request."""
    return {name: list(value["options"]["pool"]) for name, value in requested.items() if is_stack(name)}


def announce_stacks(requested: Mapping[str, Mapping[str, Any]], reporter: Reporter) -> None:
    """Say which of the compared methods each stack pools."""
    count = sum(not is_stack(name) for name in requested)
    for name, pool in stack_pools(requested).items():
        reporter.say(f"{name} pools {', '.join(pool)} ({len(pool)} of {counted(count, 'method')})")
