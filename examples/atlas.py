"""What examples/atlas.sh takes from its table of federations, and the scores that it stores beside it.

python examples/atlas.py docs/results/atlas.toml names
python examples/atlas.py docs/results/atlas.toml partition writers DATA      words of pfl partition; also compare, embed
python examples/atlas.py docs/results/atlas.toml estimate writers FILE 3     from the JSON of pfl compare -n
python examples/atlas.py docs/results/atlas.toml store writers COMPARISON
"""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS = "accuracy,bottom_decile,gain,better_off,worse_off,reported_round,megabytes,processor_seconds"
SHORT = 0.25
"""The share of the rounds that every trial runs."""
_SHARED = ("backbone", "embeddings", "datastore")
"""What methods share, made once for each seed; the backbone is trained in the trials of FedAvg as well."""

Table = Mapping[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Print what is asked for; return 2 for a federation that the table lacks, 1 for scores that are not stored."""
    path, task, *rest = arguments
    table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    names = list(table["federations"])
    if task == "names":
        print(*names)
        return 0
    name, *more = rest
    if name not in names:
        print(f"no federation '{name}' in {path}; it has {', '.join(names)}", file=sys.stderr)
        return 2
    if task in ("partition", "embed", "compare"):
        print(*list_words(table, name, task, *more))
    elif task == "packaged":
        print("yes" if table["federations"][name].get("packaged") else "no")
    elif task == "trials":
        print(table["federations"][name].get("trials", table["trials"]))
    elif task == "estimate":
        rows = json.loads(Path(more[0]).read_text(encoding="utf-8"))["summary"]["plan"]
        print(describe(name, estimate(table, name, rows, int(more[1]))))
    elif task == "store":
        return store(name, Path(more[0]), Path(path).parent)
    return 0


def list_words(table: Table, name: str, task: str, data: str = "") -> list[str]:
    """Return the words of a command for a federation; none for ``embed`` if its samples are not embedded."""
    federation = table["federations"][name]
    if task != "compare":
        return shlex.split(federation.get(task, "").replace("{data}", data))
    named = ",".join([*table["methods"], *table["beside"]])
    return [*shlex.split(f"{table['compare']} {federation['compare']}"), "--methods", named]


def estimate(table: Table, name: str, rows: Sequence[Mapping[str, Any]], seeds: int) -> dict[str, float]:
    """Return the most processor seconds of each method, from ``rows`` with those of one run of each step.

    A method runs with every seed. Before, each of its trials runs a quarter of the rounds, and two run all. No run
    stops before its last round, which most do. ``local`` has no rounds to extrapolate, and takes as long as FedAvg.
    """
    words = list_words(table, name, "compare")
    options = {words[place + 1].partition("=")[0] for place, word in enumerate(words) if word == "--set"}
    trials = table["federations"][name].get("trials", table["trials"])
    seconds = {row["step"]: row.get("processor_seconds", 0.0) for row in rows if row["step"] != "comparison"}
    total = {}
    for step, one in seconds.items():
        method = "fedavg" if step == "backbone" else step
        fixed = [key.partition(".")[2] for key in options if key.startswith(f"{method}.")]
        units = float(seeds)
        if (step in table["methods"] and step != "fedavg") or step == "backbone":
            units += count_trials(method, trials, fixed)
        total[step] = units * (seconds.get("backbone", one) if step == "local" else one)
    return total


def count_trials(method: str, trials: int, fixed: Sequence[str] = ()) -> float:
    """Return the runs that tuning a method with at most so many trials costs, without the options that are fixed."""
    from pflcli.core import methods
    from pflcli.workflow.tuning.space import grid_size
    from pflcli.workflow.tuning.trials import FINALISTS

    loaded = methods.load(method)
    if loaded.REFERENCE:
        return 0.0
    count = min(trials, grid_size(method, dict.fromkeys(fixed), {}))
    return SHORT * count + FINALISTS if loaded.has_rounds and count > FINALISTS else float(count)


def describe(name: str, seconds: Mapping[str, float]) -> str:
    """Return an estimate as text, the most expensive method first; what methods share comes as ``fedavg``."""
    shared = sum(seconds.get(step, 0.0) for step in (*_SHARED, "fedavg"))
    parts = {"fedavg": shared, **{step: value for step, value in seconds.items() if step not in (*_SHARED, "fedavg")}}
    by_method = ", ".join(f"{step} {value:.0f}" for step, value in sorted(parts.items(), key=lambda item: -item[1]))
    return f"{name}: at most {sum(parts.values()) / 60:.0f} core-minutes; seconds: {by_method}"


def store(name: str, comparison: Path, results: Path) -> int:
    """Store a table and its scores in ``results``; return 1, and say why, if a method's training is not finished."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
    import fill

    from pflcli.artifacts.kinds import evaluation
    from pflcli.artifacts.reader import open_artifact
    from pflcli.evaluation.presentation import tables

    heading, *body = fill.read(comparison / "runs.csv")
    rows = [dict(zip(heading, row, strict=True)) for row in body]
    unfinished = sorted({row["method"] for row in rows if row["unfinished"]})
    if unfinished:
        folder, own = comparison.parent, [each for each in unfinished if each != "fedavg"]
        again = [folder / "comparison", *(folder / part / each for each in own for part in ("tune", "seed-*"))]
        remedy = "--rounds" if own != unfinished else " ".join(f"--set {each}.training.rounds=N" for each in own)
        removed = " ".join(map(str, again if own == unfinished else [folder]))
        print(
            f"{name}: not stored, because the training of {', '.join(unfinished)} is not finished: "
            f"raise {remedy} in the table, then type rm -r {removed} and this command again",
            file=sys.stderr,
        )
        return 1
    table = tables.build(evaluation.read(open_artifact(comparison)), columns=COLUMNS.split(",")).markdown()
    fill.store_table(f"atlas-{name}", fill.parse_tables(table)[0], results)
    fill.store_scores(f"atlas-{name}", comparison, results / "scores")
    print(f"{name}: stored as atlas-{name} in {results}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
