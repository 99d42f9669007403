"""``stack`` in a comparison: whose predictions it pools, and how its step is made. It is scored like a method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pflcli import config, methods
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact
from pflcli.commands import stack
from pflcli.commands.comparison.chain_steps import Act
from pflcli.commands.comparison.steps import Step, Variant, is_stack
from pflcli.errors import InputError, UsageError, closest
from pflcli.evaluation.learners import BASE
from pflcli.execution import Execution
from pflcli.reporter import Reporter
from pflcli.settings import Settings
from pflcli.wording import counted

LARGEST_POOL = 12
"""Of more methods than this, a stack pools by default those that need no rounds of their own."""
_FEWEST = 2
"""With one method alone there is nothing to pool."""
_EPOCHS = 0.1
"""Estimated work: a stack takes less than a second."""


@dataclass(frozen=True)
class Config:
    """Options of a stack in a comparison."""

    pool: tuple[str, ...] = ()
    """the compared methods that are pooled; where none is named, all others (:func:`_default_pool`)"""
    gate: bool = True
    """whether clients keep the global model whose validation samples gain nothing"""
    own: bool = False
    """whether each client has exponents of its own"""


def variants(
    names: Iterable[str], options: Mapping[str, Mapping[str, Any]], compared: Iterable[Variant], training: Settings
) -> list[Variant]:
    """Return a variant for each stack among ``names``, with its ``options``; it pools ``compared`` variants."""
    methods_by_name = {variant.name: variant for variant in compared if not variant.is_stack}
    return [
        Variant(name, _options(name, options.get(name, {}), methods_by_name, refit=training.refit), {}, "", _EPOCHS)
        for name in names
        if is_stack(name)
    ]


def steps(seed: int, folder: Path, variants: Iterable[Variant]) -> list[Step]:
    """Return the steps of the stacks among ``variants``, which write into ``folder``."""
    return [
        Step(seed, variant.name, tuple(variant.options["pool"]), _act(folder / variant.name, variant.options), _EPOCHS)
        for variant in variants
        if variant.is_stack
    ]


def complete(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants without stacks that pool methods of an earlier comparison, which are not among them."""
    names = {variant.name for variant in variants}
    return [variant for variant in variants if not variant.is_stack or names.issuperset(variant.options["pool"])]


def _options(name: str, values: Mapping[str, Any], compared: Mapping[str, Variant], *, refit: bool) -> dict[str, Any]:
    """Return the options of the stack ``name``, with the sorted names of the methods that it pools.

    ``compared`` are the methods of the comparison by name; ``refit`` says whether they learn from validation samples,
    unless they have a setting of their own. Raises UsageError for options that do not exist, for methods that are not
    compared or cannot be pooled, and for fewer than two.
    """
    cfg = config.build(Config, values, name)
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


def _act(out: Path, values: Mapping[str, Any]) -> Act:
    """Return the function that makes a stack with these options at ``out``, of the predictions that it pools."""

    def stacked(sources: Sequence[Artifact], execution: Execution) -> Outcome:
        return stack.stack(sources, out, gate=values["gate"], own=values["own"], execution=execution)

    return stacked


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


def pools(requested: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names that each stack pools, from the ``methods`` of a comparison's request."""
    return {name: list(value["options"]["pool"]) for name, value in requested.items() if is_stack(name)}


def announce(requested: Mapping[str, Mapping[str, Any]], reporter: Reporter, *, pending: bool) -> None:
    """Say which of the compared methods each stack pools, if anything is to be made."""
    count = sum(not is_stack(name) for name in requested)
    for name, pool in pools(requested).items() if pending else ():
        reporter.say(f"{name} pools {', '.join(pool)} ({len(pool)} of {counted(count, 'method')})")
