"""The comparisons that decide claims, and for each claim the settings in which it is judged."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pflcli.core.errors import UsageError
from pflcli.core.wording import as_typed
from pflcli.plugins.claims.claims_file import Claim, ClaimsFile, Experiment, check_options
from pflcli.plugins.claims.experiments import merge


@dataclass(frozen=True)
class Cell:
    """A setting in which a claim is judged: an experiment, and one value for each key of the claim's grid."""

    comparison: str
    """the name of the comparison that decides it, or of those that do, one for each seed"""
    experiment: str
    at: Mapping[str, Any]
    pairs: Sequence[tuple[str, str | None]]
    """the methods that are compared, by the names that they have in the comparison"""


@dataclass(frozen=True)
class PlannedComparison:
    """A comparison in the folder ``name``, with the options of each method.

    The comparisons of one ``group``, one for each seed, decide claims together.
    """

    name: str
    group: str
    experiment: Experiment
    seeds: Sequence[int]
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def plan(
    file: ClaimsFile, names: Iterable[str], seeds: Sequence[int] | None
) -> tuple[dict[str, PlannedComparison], dict[str, list[Cell]]]:
    """Return the comparisons by name that decide the claims ``names``, and the cells of each claim.

    Claims with the same experiment share a comparison, with all their methods and with the most seeds that one of them
    needs, or with ``seeds``. Raises UsageError if two values in a grid cannot be told apart by name.
    """
    planned: dict[str, PlannedComparison] = {}
    cells: dict[str, list[Cell]] = {}
    for name in names:
        claim = file.claims[name]
        cells[name] = []
        for experiment, values in itertools.product(claim.on, itertools.product(*claim.grid.values())):
            at = dict(zip(claim.grid, values, strict=True))
            comparison = _plan_comparison(experiment, file.experiments[experiment], at, claim, seeds)
            renamed = {method: _name_variant(method, at) for method in claim.methods}
            methods = {
                renamed[method]: _collect_options(file, comparison.experiment, method, at)
                for method in claim.methods
                if method not in comparison.experiment.predictions
            }
            earlier = planned.get(comparison.name, replace(comparison, methods={}))
            if earlier.experiment != comparison.experiment or any(
                earlier.methods.get(method, options) != options for method, options in methods.items()
            ):
                raise UsageError(
                    f"[claims.{name}]: two values in a grid have the same name in {comparison.name}",
                    "write values with letters, digits, ., - and _ alone",
                )
            more = max(earlier.seeds, comparison.seeds, key=len)
            planned[comparison.name] = replace(comparison, seeds=more, methods={**earlier.methods, **methods})
            pairs = [(renamed[a], None if b is None else renamed[b]) for a, b in claim.pairs]
            cells[name].append(Cell(comparison.name, experiment, at, pairs))
    return {part.name: part for comparison in planned.values() for part in _split(comparison)}, cells


def _split(comparison: PlannedComparison) -> list[PlannedComparison]:
    """Return a comparison for each seed if methods are tuned, else this one.

    Each partition is drawn anew, and a sample that chose options on one of them may be a test sample of another.
    """
    if comparison.experiment.tune is None:
        return [comparison]
    joined = "+" if "@" in comparison.name else "@"
    return [replace(comparison, name=f"{comparison.name}{joined}seed-{n}", seeds=[n]) for n in comparison.seeds]


def _plan_comparison(
    name: str, experiment: Experiment, at: Mapping[str, Any], claim: Claim, seeds: Sequence[int] | None
) -> PlannedComparison:
    """Return the comparison for these values of a grid, without methods; its name tells those of the experiment."""
    changes: dict[str, Any] = {"partition": {}, "training": {}}
    words = []
    for key, value in at.items():
        owner, _, option = key.partition(".")
        if owner in changes:
            *above, last = option.replace("-", "_").split(".")
            entry: Any = {last: value}
            for table in reversed(above):
                entry = {table: entry}
            changes[owner] = merge(changes[owner], entry)
            words.append(f"{last}-{_as_name(value)}")
    changed = replace(
        experiment,
        partition=merge(experiment.partition, changes["partition"]),
        training=merge(experiment.training, changes["training"]),
    )
    check_options(changed, f"[experiments.{name}] with {', '.join(words)}")
    full = name if changed == experiment else f"{name}@{'+'.join(words)}"
    if changed.tune is not None and "training.lr" not in at:  # tuning chooses what is not set
        changed = replace(changed, training={key: value for key, value in changed.training.items() if key != "lr"})
    return PlannedComparison(full, full, changed, range(claim.seeds) if seeds is None else seeds)


def _name_variant(method: str, at: Mapping[str, Any]) -> str:
    """Return the name of a method with the values that a grid has for its options, such as ``fedattn@k-3``."""
    words = [
        f"{key.partition('.')[2]}-{_as_name(value)}" for key, value in at.items() if key.partition(".")[0] == method
    ]
    if not words:
        return method
    base, _, variant = method.partition("@")
    return f"{base}@{re.sub(r'[^A-Za-z0-9_-]', '_', '-'.join([*([variant] if variant else []), *words]))}"


def _collect_options(file: ClaimsFile, experiment: Experiment, method: str, at: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a method: those of the file, then of the experiment, then of the grid."""
    own = {key.partition(".")[2]: value for key, value in at.items() if key.partition(".")[0] == method}
    named = merge(file.options.get(method, {}), experiment.set.get(method, {}))
    return {key.replace("-", "_"): value for key, value in merge(named, own).items()}


def _as_name(value: Any) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", as_typed(value))
