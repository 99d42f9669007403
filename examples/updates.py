"""What the first updates of FedSGD and FedAvg reveal to the server: class counts and single samples.

    python examples/updates.py runs/updates     # makes what is not there yet, and prints the tables of docs/privacy.md

Hospitals are those of heart-disease, with 28 to 181 training patients. The table is generated: four clients each with
1, 2, 4 and so on up to 128 samples of nine columns, seven of them normal. Numbers are shares over three seeds, which
draw splits, samples and initial weights. FedAvg takes five local epochs with batches of 16.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from pflcli import audit, import_data, partition, personalize
from pflcli.core.execution import Execution

SEEDS = (0, 1, 2)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CLIENTS_PER_SIZE = 4
METHODS: dict[str, dict[str, Any]] = {"fedsgd": {}, "fedavg": {"epochs": 5, "batch_size": 16}}
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "int8": {"upload": ("int8",)},
    "clip 0.01": {"upload": ("clip:0.01",)},
    "noise 0.001": {"upload": ("clip:1", "noise:0.001")},
    "noise 0.01": {"upload": ("clip:1", "noise:0.01")},
    "noise 0.1": {"upload": ("clip:1", "noise:0.1")},
    "dp_noise 1": {"dp_noise": 1.0, "dp_delta": 1e-3, "dp_clip": "0.1"},
}
SETTINGS = {"rounds": 1, "participation": 1.0, "lr": 0.1}
ONE = Execution(threads=1)
ZEROS = "logistic from zeros"


def write_table(file: Path, seed: int) -> None:
    """Write a table with the columns client, outcome, age, seven measurements, sex and smoking."""
    draw = np.random.default_rng(seed)
    rows = [["client", "outcome", "age", *(f"lab {i}" for i in range(6)), "sex", "smoking"]]
    for size in SIZES:
        for number in range(CLIENTS_PER_SIZE):
            shift = draw.normal()  # clients differ in how many have the outcome
            for _ in range(size):
                z, sex = draw.normal(size=7), int(draw.integers(2))
                smokes = draw.choice(["never", "former", "current"])
                sick = z[0] - z[1] + 0.5 * z[2] + sex - 0.5 + shift + draw.logistic() > 0
                measured = [round(float(value), 1) for value in 20 + 5 * z[1:]]
                cells = [f"{size} samples, {number}", int(sick), round(60 + 9 * float(z[0])), *measured]
                rows.append([*map(str, cells), "fm"[sex], smokes])
    with file.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows(rows)


def make_partitions(runs: Path, seed: int) -> dict[str, Path]:
    """Make the partitions of a seed, by the name of their data."""
    runs.mkdir(parents=True, exist_ok=True)
    found = {name: runs / f"{name}-{seed}" for name in ("hospitals", "table")}
    partition("heart-disease", found["hospitals"], split_seed=seed, execution=ONE)
    write_table(file := runs / f"table-{seed}.csv", seed)
    import_data(file, runs / f"data-{seed}", client="client", label="outcome", standardize=True, execution=ONE)
    partition(runs / f"data-{seed}", found["table"], fractions=(1.0, 0.0, 0.0), execution=ONE)
    return found


def attack(runs: Path, data: Path, method: str, model: str, defence: str) -> Path:
    """Train one round and attack its updates; return the folder of the result."""
    at = runs / "-".join([data.name, method, model, defence]).replace(" ", "-")
    seed, weights = int(data.name[-1]), None
    if model == ZEROS:
        with (data / "manifest.json").open(encoding="utf-8") as file:
            (width,) = json.load(file)["summary"]["shape"]
        weights = runs / f"zeros-{width}.safetensors"
        if not weights.exists():
            save_file({"head.weight": torch.zeros(2, width), "head.bias": torch.zeros(2)}, weights)
    settings: dict[str, Any] = {**SETTINGS, **METHODS[method], **DEFENCES[defence], "model": model.split(maxsplit=1)[0]}
    if "noise" in defence:
        settings["dp_seed"] = seed  # so that the table can be repeated
    run = personalize(method, data, at / "run", settings=settings, seed=seed, weights=weights, execution=ONE)
    return audit(run, at / "leakage", updates=True, weights=weights, execution=ONE).path


def read(file: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def describe(folders: list[Path]) -> list[str]:
    """Return the cells of one row over all seeds, with those of a guess in parentheses."""
    cells = []
    for attacker in ("server", "everybody"):
        found = [row for folder in folders for row in read(folder / "table.csv") if row["attacker"] == attacker]
        total = {name: sum(float(row[name] or 0) for row in found) for name in found[0] if name != "attacker"}
        wrong, guessed = (100 * total[name] / total["samples"] for name in ("wrong_counts", "guessed_wrong_counts"))
        cells.append(f"{wrong:.1f} ({guessed:.1f})")
        if attacker == "server":
            cells.append(f"{100 * total['exact_clients'] / total['clients']:.0f}")
        records, guessed = (100 * total[name] / total["samples"] for name in ("records", "guessed_records"))
        cells.append(f"{records:.1f} ({guessed:.1f})")
    return cells


def describe_sizes(found: dict[str, list[Path]]) -> list[list[str]]:
    """Return a row per number of samples, with the share of samples that is recovered by each kind of run."""
    rows = [
        [
            "samples",
            *(f"{name}: recovered %" for name in found),
            "fedavg mlp: right of those singled out",
            "fedavg mlp: in a wrong class %",
        ]
    ]
    for size in SIZES:
        own = {
            name: [row for folder in folders for row in read(folder / "clients.csv") if int(row["samples"]) == size]
            for name, folders in found.items()
        }
        sums: dict[str, dict[str, float]] = defaultdict(dict)
        for name, clients in own.items():
            sums[name] = {key: sum(float(row[key]) for row in clients) for key in clients[0] if key != "name"}
        shares = [f"{100 * total['records'] / total['samples']:.0f}" for total in sums.values()]
        mlp = sums["fedavg mlp"]
        right = f"{mlp['singled_out_right']:.0f} of {mlp['singled_out']:.0f}"
        rows.append([str(size), *shares, right, f"{100 * mlp['wrong_counts'] / mlp['samples']:.1f}"])
    return rows


def to_markdown(rows: list[list[str]]) -> str:
    """Return rows, the heading first, as a table in Markdown."""
    heading, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([heading, f"|---|{'---:|' * (len(rows[0]) - 1)}", *body])


def main(runs: Path) -> None:
    """Print the table of defences, and that of the numbers of samples of a client."""
    partitions = [make_partitions(runs, seed) for seed in SEEDS]
    rows = [["run", "server: in a wrong class %", "server: exact clients %", "server: recovered %",
             "everybody: in a wrong class %", "everybody: recovered %"]]  # fmt: skip
    by_size: dict[str, list[Path]] = {}
    for data in ("hospitals", "table"):
        for method in METHODS:
            for model in ("logistic", "mlp", ZEROS):
                for defence in DEFENCES if model == "mlp" else ("none",):
                    folders = [attack(runs, each[data], method, model, defence) for each in partitions]
                    rows.append([f"{data}: {method} {model}, {defence}", *describe(folders)])
                    if (data, defence) == ("table", "none"):
                        by_size[f"{method} {model}"] = folders
    print(to_markdown(rows), to_markdown(describe_sizes(by_size)), sep="\n\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "runs/updates"))
