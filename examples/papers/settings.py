"""Read settings.toml: for the recipes as words of a command line, for docs/settings.md as tables.

python examples/papers/settings.py FILE SIZE EXPERIMENT KEY [OPTION=VALUE...]     words, behind one another
python examples/papers/settings.py FILE PAPER                                     a table in Markdown
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pflcli.plugins.claims.experiments import Table, read_experiments

SIZES = ("paper", "small")
PARTS = ("partition", "training")


def main() -> None:
    """Print what is asked for."""
    path, *arguments = sys.argv[1:]
    experiments = read_experiments(Path(path))
    if len(arguments) == 1:
        print(markdown(experiments, arguments[0]), end="")
        return
    size, name, key, *changes = arguments
    if name not in experiments:
        paper = name.split(".")[0]
        known = ", ".join(each.removeprefix(f"{paper}.") for each in experiments if each.startswith(f"{paper}."))
        sys.exit(f"unknown: {name.removeprefix(f'{paper}.')}; known are {known}")
    print(*words(experiments[name], size, key, dict(change.split("=", maxsplit=1) for change in changes)))


def words(experiment: Table, size: str, key: str, changes: Mapping[str, str]) -> list[str]:
    """Return a table's options as they are typed, with ``changes`` (``set.KEY`` for ``--set``), or a key's values."""
    entry = experiment[size].get(key, experiment.get(key))
    if not isinstance(entry, Mapping):
        return [str(value).lower() for value in (entry if isinstance(entry, list) else [entry])]
    changed: Table = {**entry, **{name: value for name, value in changes.items() if not name.startswith("set.")}}
    own = {name.removeprefix("set."): value for name, value in changes.items() if name.startswith("set.")}
    typed: list[str] = []
    for name, value in changed.items():
        if isinstance(value, bool):
            typed += [f"--{name}"] * value
        elif name != "set":
            typed += [f"--{name}", str(value)]
    for name, value in {**changed.get("set", {}), **own}.items():
        typed += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return typed


def markdown(experiments: Mapping[str, Table], paper: str) -> str:
    """Return the settings of a paper's experiments as a table, at its own size and at the small one."""
    lines = ["| experiment | setting | paper | where the paper says so | small |", "|---|---|---|---|---|"]
    for name, experiment in experiments.items():
        if not name.startswith(f"{paper}."):
            continue
        full, small = (_flat(experiment[size]) for size in SIZES)
        for key in dict.fromkeys([*full, *small]):
            cells = (_text(full.get(key, "")), experiment["cited"].get(key) or "chosen here", _text(small.get(key, "")))
            lines.append(f"| {name.removeprefix(f'{paper}.')} | {key} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _flat(table: Mapping[str, Any]) -> Table:
    flat: Table = {}
    for key, value in table.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {key: value}
    return flat


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value).replace(",", ", ")


if __name__ == "__main__":
    main()
