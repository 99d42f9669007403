"""What weakens a verdict, and the options with which its methods ran."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pflcli.core import scores
from pflcli.core.wording import as_typed, counted
from pflcli.evaluation import changed_options, convergence
from pflcli.plugins.claims.claims_file import Claim
from pflcli.plugins.claims.comparisons import Cell
from pflcli.plugins.claims.judge import Runs, is_of_scores
from pflcli.plugins.claims.presentation import format_value

MIN_SEEDS = 3
_BASELINE = "fedavg"


def list_options(cell: Cell, runs: Runs) -> dict[str, str]:
    """Return the options of each method in a setting that differ from its defaults with every seed, as typed."""
    found = {}
    for name in _list_methods(cell, runs):
        items = [*runs.scored[name].values()]
        sets = [
            changed_options.list_set_options(item.method, item.artifact.manifest.request["options"]) for item in items
        ]
        shared = {key: value for key, value in sets[0].items() if all(each.get(key) == value for each in sets)}
        if shared:
            found[name] = " ".join(f"{key}={as_typed(value)}" for key, value in shared.items())
    return found


def find(claim: Claim, cell: Cell, record: Mapping[str, Any], runs: Runs, existing: Collection[int]) -> list[str]:
    """Return sentences on what weakens the verdict in a setting, whose ``record`` judge made.

    ``existing`` are the seeds for which the folder has a partition of this setting.
    """
    used = record["decided_by"]["seeds"]
    found = [f"only {counted(len(used), 'seed')}"] if 0 < len(used) < MIN_SEEDS else []
    known = runs.seeds
    if {*existing} - known - {seed for seeds in runs.failed.values() for seed in seeds}:
        found.append(f"{_number(known)} of the seeds {_number({*existing} | known)} in the folder")
    if not is_of_scores(claim.metric):
        return found
    below = [name for name in _list_rivals(cell) if _gain_over_baseline(name, runs) < 0]
    found += [f"{', '.join(below)} {'is' if len(below) == 1 else 'are'} below {_BASELINE}"] if below else []
    spread = _measure_spread(claim.metric, runs)
    if claim.margin > spread:
        margin, words = (format_value(claim.metric, value).removeprefix("+") for value in (claim.margin, spread))
        found.append(f"the margin {margin} is beyond the spread of all methods, {words}")
    rising = _find_unfinished(cell, runs)
    found += [f"training is not finished: {', '.join(rising)} points per doubling of the rounds"] if rising else []
    return found


def _list_rivals(cell: Cell) -> list[str]:
    """Return the methods with which another one is compared in a setting."""
    return list(dict.fromkeys(other for _, other in cell.pairs if other is not None and other != _BASELINE))


def _list_methods(cell: Cell, runs: Runs) -> list[str]:
    """Return the methods that are compared in a setting and have results, each once."""
    named = (name for pair in cell.pairs for name in pair if name is not None)
    return [name for name in dict.fromkeys(named) if name in runs.scored]


def _number(seeds: Collection[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))


def _gain_over_baseline(name: str, runs: Runs) -> float:
    """Return the mean gain of a method in accuracy over FedAvg; nan if FedAvg's predictions are unknown."""
    items = [item for item in runs.scored.get(name, {}).values() if item.baseline is not None]
    gains = [scores.weighted_mean(item.gain, item.n) for item in items]
    return float(np.mean(gains)) if gains else math.nan


def _measure_spread(metric: str, runs: Runs) -> float:
    """Return the difference of a metric between the best and the worst ranked method; infinite for a single one."""
    ranked = [[*by_seed.values()] for by_seed in runs.scored.values()]
    means = [
        float(np.mean([runs.value(metric, item) for item in items])) for items in ranked if not items[0].is_reference
    ]
    return max(means) - min(means) if len(means) > 1 and not any(map(math.isnan, means)) else math.inf


def _find_unfinished(cell: Cell, runs: Runs) -> list[str]:
    """Return the methods of a setting whose validation accuracy still rose, each with its rise."""
    groups: dict[str, Sequence[Any]] = {name: [*runs.scored[name].values()] for name in _list_methods(cell, runs)}
    rises = {
        name: convergence.measure_rise([item.curve for item in items], items[0].validation_samples)
        for name, items in groups.items()
    }
    return [f"{name} {100 * rise:+.1f}" for name, rise in rises.items() if rise is not None]
