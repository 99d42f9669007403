"""Read the experiments of a file such as examples/papers/settings.toml: data, partition and training of each.

The file has a table ``[PAPER.NAME]`` for each experiment, with the keys ``dataset`` and ``note``, a table for each
size (``paper`` and ``small``) with the tables ``partition`` and ``training``, and other keys that recipes read. An
experiment that is ``like`` another takes over what it does not say.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Table = dict[str, Any]


def read_experiments(path: Path) -> dict[str, Table]:
    """Return the experiments by ``paper.name``, each with all that it takes over from the one that it is like."""
    return resolve_experiments(tomllib.loads(path.read_text(encoding="utf-8")))


def resolve_experiments(papers: Mapping[str, Mapping[str, Table]]) -> dict[str, Table]:
    """Return the experiments of the content of a file by ``paper.name``, without ``like``."""
    return {
        f"{paper}.{name}": _resolve(papers, experiment)
        for paper, experiments in papers.items()
        for name, experiment in experiments.items()
    }


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """Return a table with ``changes``, also in nested tables; another scheme drops the options of the earlier one."""
    if "scheme" in changes and changes["scheme"] != base.get("scheme"):
        base = {name: value for name, value in base.items() if name != "set"}
    merged = dict(base)
    for name, value in changes.items():
        merged[name] = merge(base.get(name, {}), value) if isinstance(value, Mapping) else value
    return merged


def _resolve(papers: Mapping[str, Mapping[str, Table]], experiment: Table) -> Table:
    if "like" not in experiment:
        return experiment
    paper, name = experiment["like"].split(".")
    changes = {key: value for key, value in experiment.items() if key != "like"}
    base = _resolve(papers, papers[paper][name])
    return merge({key: value for key, value in base.items() if key != "note" or "note" not in changes}, changes)
