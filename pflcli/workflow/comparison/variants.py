"""The variants of a comparison: methods with options and training settings, and stacks of their predictions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pflcli.artifacts.kinds import LINEAGE
from pflcli.artifacts.reader import Artifact
from pflcli.core import config, methods, registry
from pflcli.core.errors import InputError, UnsuitedError, UsageError, closest
from pflcli.core.reporter import Reporter
from pflcli.core.settings import TRAINING, Settings, changed
from pflcli.core.wording import counted
from pflcli.methods.parts.logarithmic_pool import BASE, KEPT, STACK
from pflcli.workflow.comparison import reference_costs
from pflcli.workflow.jobs.graph import estimate_epochs
from pflcli.workflow.training import run_settings
from pflcli.workflow.tuning.space import BACKBONE

ALL = "all"
REFERENCES = ("constant", "local", "pooled", "alone", "alone-pooled")
"""The methods that stand beside those of a comparison as references, unless the user names them."""


@dataclass(frozen=True)
class Variant:
    """A method of a comparison: its options, its own training settings, and the kind of artifact that it runs on.

    ``name`` is the method's name, followed by ``@`` and a word if the method is compared in several variants. The
    ``source`` of a stack is empty: its inputs are the predictions of the variants in its option ``pool``.
    """

    name: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    source: str
    epochs: float
    """estimated work: epochs over all clients' samples, or local steps if the settings count steps"""
    chooses: bool = False
    """whether its clients choose on validation samples; with ``refit``, a run without it makes the choices first"""
    is_added: bool = False
    """whether it is a reference that was not named; it is left out if it does not suit the settings or samples"""

    @property
    def method(self) -> str:
        """The name of the method, without that of the variant."""
        return method_name(self.name)

    @property
    def is_stack(self) -> bool:
        """Whether it pools the predictions of other variants."""
        return is_stack(self.name)

    @property
    def is_reference(self) -> bool:
        """Whether it stands beside the methods and is not ranked."""
        return self.is_added or (not self.is_stack and methods.load(self.method).REFERENCE)

    def recorded(self) -> dict[str, Any]:
        """Return its part of a comparison's request: a method with ``REFERENCE`` is one whether named or not."""
        mark = self.is_added and not methods.load(self.method).REFERENCE
        beside = {"reference": True} if mark else {}
        return {"options": dict(self.options), "settings": dict(self.settings), **beside}


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
    added: Collection[str] = (),
) -> list[Variant]:
    """Return a variant for each name in ``methods``, stacks last; ``all`` means every method that extends none.

    Those whose names are in ``added`` are references that the user did not name.

    ``options`` contains, by variant, options of the method and training settings. Those of a method that is only
    compared in variants are the defaults of its variants. A stack may also pool ``existing`` variants. Raises
    UsageError for a name that is unknown or occurs twice, or a stack of fewer than two methods.
    """
    names, options = _expand(methods), assign_options(methods, options)
    if not names:
        raise UsageError("no methods to compare", "--methods fedavg,local")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"method {name} is given twice", f"to add a variant: {name},{name}@other")
        if not is_stack(name):
            registry.card("methods", method_name(name))
        if name != method_name(name) and not re.fullmatch(r"[A-Za-z0-9_-]+", name.split("@", 1)[1]):
            raise UsageError(
                f"{name}: the name of a variant consists of letters, digits, - and _", f"{method_name(name)}@other"
            )
    for name in options:
        if name not in names:
            raise UsageError(f"options are set for {name}, which is not compared", closest(name, names))
    variants = [
        replace(_variant(name, options.get(name, {}), training), is_added=name in added)
        for name in names
        if not is_stack(name)
    ]
    return [*variants, *_stacks(names, options, [*existing, *variants], training)]


def _expand(methods: Sequence[str]) -> list[str]:
    """Return the names of methods; ``all`` stands for those that are no extension of another one.

    Nor does it stand for the reference of series, which is added to those only.
    """
    return [name for word in methods for name in (_list_all() if word == ALL else [word])]


def _list_all() -> list[str]:
    facts = {name: registry.card("methods", name).facts for name in registry.names("methods")}
    return [name for name, each in facts.items() if "EXTENDS" not in each and each.get("TASKS") != ("series",)]


def assign_options(methods: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the options by variant: those of a method that is only compared in variants are given to each of them.

    A variant's own options override them.
    """
    names, assigned = _expand(methods), dict(options)
    for name, values in options.items():
        variants = [variant for variant in names if method_name(variant) == name]
        if variants and name not in names:
            del assigned[name]
            assigned |= {variant: changed(values, options.get(variant, {})) for variant in variants}
    return assigned


def references_beside(methods_given: Sequence[str], *, is_series: bool) -> list[str]:
    """Return the references that are added to these methods: those of which the user names no variant."""
    named = {method_name(name) for name in _expand(methods_given)}
    return [name for name in (*REFERENCES, *(["persistence"] * is_series)) if named and name not in named]


def leave_out_unsuited(
    methods_given: Sequence[str],
    added: Collection[str],
    options: Mapping[str, Mapping[str, Any]],
    training: Settings,
    partition: Artifact,
    reporter: Reporter,
) -> tuple[list[str], dict[str, Mapping[str, Any]], dict[str, str]]:
    """Return the names of methods, their options, and why the others of ``all`` do not suit the settings or samples.

    References in ``added`` follow if they suit them and do not take too long. What is left out is also reported.
    """
    reasons = dict[str, str]()
    left, names, assigned = dict(options), list[str](), assign_options([*methods_given, *added], options)
    for name in (*_expand(methods_given), *added):
        try:
            if not is_stack(name) and (ALL in methods_given or name in added):
                own = changed(config.plain(training), _variant(name, assigned.get(name, {}), training).settings)
                settings = config.build(Settings, own, f"the training of {name}")
                run_settings.require_suited(name, methods.load(method_name(name)), settings, partition)
                if name in added:
                    command = f"--methods {','.join([*methods_given, name])}"
                    reference_costs.require_cheap(name, settings, partition, command)
        except UnsuitedError as error:
            reporter.say(f"{name} is left out: {error.message}")
            reasons[name] = error.message
            left.pop(name, None)
        else:
            names.append(name)
    return names, left, reasons


def split_options(name: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a method and the training settings among ``values``, the latter without their prefix."""
    own = {field.name for field in dataclasses.fields(methods.load(method_name(name)).Config)}
    options = {key: value for key, value in values.items() if key in own}
    return options, {key.removeprefix(TRAINING): value for key, value in values.items() if key not in own}


def _variant(name: str, options: Mapping[str, Any], training: Settings) -> Variant:
    method = methods.load(method_name(name))
    own = {field.name for field in dataclasses.fields(method.Config)}
    shared = {field.name for field in dataclasses.fields(Settings)}
    for key in options:
        if key not in own | shared and key.removeprefix(TRAINING) not in shared:
            hint = registry.suggest_option(key, name, own | shared)
            raise UsageError(f"unknown option '{key}' for {name}", hint)
    own_options, settings = split_options(name, options)
    cfg = config.build(method.Config, own_options, name)
    before = config.plain(training)
    resolved: Settings = config.build(Settings, changed(before, settings), f"the training of {name}")
    changes = {key: value for key, value in config.plain(resolved).items() if value != before[key]}
    trains = method.has_rounds or not method.NEEDS
    source = max(method.NEEDS, key=LINEAGE.index, default="partition")
    if name == BACKBONE and not changes:
        source, trains = "backbone", False
    chooses = resolved.refit and bool(method.choices(cfg))
    return Variant(name, config.plain(cfg), changes, source, estimate_epochs(resolved) if trains else 2.0, chooses)


# Stacks

MAX_DEFAULT_POOL = 12
"""If more methods are compared, a stack by default only pools those that need no rounds of their own."""
MIN_POOL = 2
"""The minimum number of methods in a pool."""


@dataclass(frozen=True)
class StackOptions:
    """Options of a stack in a comparison."""

    pool: tuple[str, ...] = ()
    """the compared methods that are pooled; if empty, all others (:func:`_default_pool`)"""
    gate: bool = True
    """whether a client keeps the global model, or `alone`, if the pool does not lower its validation log-loss"""
    own: bool = False
    """whether each client has its own exponents"""


def _stacks(
    names: Iterable[str], options: Mapping[str, Mapping[str, Any]], compared: Iterable[Variant], training: Settings
) -> list[Variant]:
    """Return a variant for each stack among ``names``, with its ``options``; stacks pool ``compared`` variants."""
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

    ``compared`` are the methods of the comparison by name; ``refit`` is their setting of that name unless they have
    their own. Raises UsageError for unknown options, for methods that are not compared or cannot be pooled, and for
    fewer than two methods.
    """
    cfg = config.build(StackOptions, values, name)
    refitted = {member for member, variant in compared.items() if variant.settings.get("refit", refit)}
    for member in cfg.pool:
        if is_stack(member):
            raise UsageError(f"{name} pools {member}, which is a stack itself", f"--set {name}.pool=fedavg,local")
        if member not in compared:
            raise UsageError(f"{name} pools {member}, which is not compared", closest(member, compared))
        if member in refitted:
            raise _refit_error(name, member)
    pool = sorted({*cfg.pool} or {*_default_pool(compared)} - refitted)
    if len(pool) < MIN_POOL:
        if refitted:
            raise _refit_error(name, ", ".join(sorted(refitted)))
        available = f"only {pool[0]}" if pool else "none"
        raise UsageError(f"{name} needs two methods or more to pool, got {available}", f"--methods fedavg,local,{name}")
    members = [compared[member] for member in pool]  # the gate knows `alone`, and what all methods on a backbone store
    if cfg.gate and not any(each.method in (KEPT, BASE) or each.source != "partition" for each in members):
        raise UsageError(
            f"none of {', '.join(pool)} stores predictions of the global model, which the gate needs for clients that "
            "do not use the pool",
            f"pool {BASE} or {KEPT} too, or disable the gate: --set {name}.gate=false",
        )
    return config.plain(replace(cfg, pool=tuple(pool)))


def _refit_error(name: str, members: str) -> UsageError:
    return UsageError(
        f"{name} learns exponents on validation samples, but {members} already learned from them with refit",
        f"leave out --refit, or {name}",
    )


def _default_pool(compared: Mapping[str, Variant]) -> list[str]:
    """Return all methods or, if there are many, those that use the backbone and those that clients train alone.

    Their only communication is that of the backbone, which counts once. Of references, only `alone` is pooled.
    """
    pooled = {name: variant for name, variant in compared.items() if not variant.is_reference or variant.method == KEPT}
    if len(pooled) <= MAX_DEFAULT_POOL:
        return [*pooled]
    return [
        name
        for name, variant in pooled.items()
        if variant.source != "partition" or methods.load(variant.method).KIND == "local"
    ]


def require_validation_samples(names: Iterable[str], partitions: Iterable[Artifact]) -> None:
    """Raise InputError if a stack is among the names and a partition has no validation samples."""
    if not any(map(is_stack, names)):
        return
    for partition in partitions:
        if not partition.manifest.summary.get("validation", 1):
            raise InputError(
                f"{partition.path} has no validation samples, which a stack needs to learn its exponents",
                "pfl partition DATASET -o DIR --fractions 0.6,0.2,0.2",
            )


def stack_pools(requested: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names that each stack pools, from the ``methods`` in the request of a comparison."""
    return {name: list(value["options"]["pool"]) for name, value in requested.items() if is_stack(name)}


def announce_stacks(variants: Sequence[Variant], reporter: Reporter) -> None:
    """Report which of the compared methods each stack pools."""
    count = sum(not item.is_stack and not item.is_added for item in variants)
    for name, pool in stack_pools({item.name: item.recorded() for item in variants}).items():
        reporter.say(f"{name} pools {', '.join(pool)} ({len(pool)} of {counted(count, 'method')})")
