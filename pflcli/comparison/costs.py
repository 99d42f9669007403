"""``compare -n``: estimate the cost of a comparison by running two rounds of each method in a temporary folder."""

from __future__ import annotations

import csv
import resource
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pflcli import config, methods
from pflcli.artifacts import disk
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.comparison.runs import CHOOSING, Comparison
from pflcli.comparison.variants import Variant
from pflcli.execution import Execution
from pflcli.foreign import size
from pflcli.jobs.job import Job, Plan, plan
from pflcli.jobs.run import run
from pflcli.reporter import SILENT, Advance, NullReporter, Reporter
from pflcli.settings import Settings
from pflcli.training import run_request
from pflcli.wording import duration

TRIAL_ROUNDS = 2
"""Rounds that are run. The first one compiles loops and fills caches; only the second one is extrapolated."""
_TABLE_SECONDS, _PREDICTION_SECONDS = 3.0, 0.045
"""Seconds to make the table and its picture, and in addition for each of its predictions (measured on two cores)."""
_WHOLE_FILES = ("manifest.json", "codebook.json", "predictions.h5", "weights.safetensors")
"""Files whose size does not depend on the number of rounds."""


@dataclass(frozen=True)
class Cost:
    """The cost of one artifact."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """Return the cost of both artifacts."""
        return Cost(
            self.seconds + other.seconds,
            self.processor_seconds + other.processor_seconds,
            self.bytes + other.bytes,
        )


@dataclass
class Costs:
    """Estimated costs: of each job with one seed, by name, and the total of all unfinished jobs."""

    by_name: dict[str, Cost] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """methods without an estimate, with the reason; costs that grow with the square of the number of clients"""
    total: Cost = field(default_factory=Cost)
    memory: int = 0
    """peak memory of this process in bytes"""

    def facts(self) -> dict[str, Any]:
        """Return the totals for the summary of a dry run; nothing if nothing was estimated."""
        if not self.by_name:
            return {}
        totals = {
            "seconds": round(self.total.seconds, 1),
            "processor_seconds": round(self.total.processor_seconds, 1),
            "memory_bytes": self.memory,
            "disk_bytes": round(self.total.bytes),
        }
        return {"needs": totals}

    def add_to_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of a plan, with the costs of unfinished jobs."""
        return [
            {
                **row,
                "processor_seconds": round(self.by_name[row["step"]].processor_seconds, 2),
                "disk_bytes": round(self.by_name[row["step"]].bytes),
            }
            if row["step"] in self.by_name and row["decision"] not in ("up to date", "not needed")
            else dict(row)
            for row in rows
        ]

    def announce(self, out: Path, reporter: Reporter) -> None:
        """Report the totals and remarks, and warn if the disk is too full."""
        for line in self.lines(out):
            reporter.say(line)

    def lines(self, out: Path) -> list[str]:
        """Return sentences on the totals, the remarks, and a warning if the disk is too full."""
        if not self.by_name:
            return self.remarks
        text = (
            f"needs about {duration(self.total.seconds)} ({duration(self.total.processor_seconds)} of one core), "
            f"{size(self.memory)} of memory and {size(self.total.bytes)} of disk"
        )
        lines, free = [text, *self.remarks], disk.free_bytes(out)
        if self.total.bytes > free:
            name = max(self.by_name, key=lambda job: self.by_name[job].bytes)
            lines.append(
                f"WARNING: the disk has {size(free)} free, but {size(self.total.bytes)} are needed: choose another "
                f"--out or fewer --seeds, or leave out {name} ({size(self.by_name[name].bytes)} per seed)"
            )
        return lines


def estimate(comparison: Comparison, planned: Plan, execution: Execution) -> Costs:
    """Estimate the costs of the unfinished jobs of a plan by running two rounds of each with one seed.

    The jobs run as in the comparison, but in a temporary folder. Without a reporter, nothing is estimated.
    """
    costs, ahead = Costs(), [job for job, item in planned.items() if item.is_ahead]
    if not ahead or execution.reporter is SILENT:
        return costs
    seed, names = ahead[0].seed, {job.name for job in ahead}
    partition = comparison.partitions[seed]
    clients = int(partition.manifest.summary["clients"])
    by_name = {variant.name: variant for variant in comparison.variants}
    with tempfile.TemporaryDirectory(prefix="pfl-") as folder:
        short = replace(
            comparison,
            out=Path(folder),
            partitions={seed: partition},
            variants=[replace(item, settings=_shorten(item.settings)) for item in comparison.variants],
            training=replace(comparison.training, rounds=min(TRIAL_ROUNDS, comparison.training.rounds)),
        )
        jobs = short.jobs()
        needed = _with_inputs(job for job in jobs if job.name in names)
        trial = plan(job for job in jobs if job in needed)
        own = replace(execution.locally(), dry_run=False, force=False, reporter=_ProgressOnly(execution.reporter))
        results = run(trial, own, skip_unsuited=True)
        for job in needed:
            name = job.name.removeprefix(f"{CHOOSING} ")
            if job in results.failed:
                costs.remarks.append(f"{job.name} has no estimate: {results.failed[job].message}")
            elif job.name in results.unsuited:
                costs.remarks.append(f"{job.name} will be left out: {results.unsuited[job.name]}")
            elif job.name in names and job not in results.blocked:
                settings = comparison.settings_of(by_name[name]) if name in by_name else comparison.training
                costs.by_name[job.name] = _extrapolate(open_artifact(job.out), settings, clients)
    for name in names & by_name.keys():
        costs.remarks += _describe_pair_costs(by_name[name], comparison.settings_of(by_name[name]), partition)
    predictions = sum(job.is_result for job in planned)
    table = _TABLE_SECONDS + _PREDICTION_SECONDS * predictions
    made = (costs.by_name[job.name] for job in ahead if job.name in costs.by_name)
    costs.total = sum(made, Cost(table, table))
    costs.memory = _peak_memory()
    return costs


def _shorten(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: min(value, TRIAL_ROUNDS) if key == "rounds" else value for key, value in settings.items()}


def _with_inputs(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs, each after the jobs that make its inputs."""
    return list(dict.fromkeys(item for job in jobs for item in (*_with_inputs(job.input_jobs), job)))


def _extrapolate(artifact: Artifact, settings: Settings, clients: int) -> Cost:
    """Return the cost of an artifact with all rounds of ``settings``, from one with a few rounds."""
    made = artifact.manifest.made
    seconds, processor = float(made["seconds"]), float(made.get("processor_seconds", made["seconds"]))
    table = artifact.path / "rounds.csv"
    rows = list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []
    played = int(rows[-1]["round"]) if rows else 0
    growth, seen = 1.0, 1.0
    if played:
        growth = 1 + (settings.rounds - played) * float(rows[-1]["seconds"]) / max(seconds, 1e-9)
        missed = 1 - max(1, round(settings.participation * clients)) / clients
        seen = (1 - missed**settings.rounds) / (1 - missed**played)
    model = float(artifact.manifest.summary.get("model_bytes", 0))
    total = 0.0
    for path in artifact.path.iterdir():
        stored = path.stat().st_size
        if path == table:
            total += stored * settings.rounds / max(played, 1)
        elif path.name in _WHOLE_FILES:
            total += stored
        else:  # a state contains the global model, and a row for each client that was ever selected
            shared = min(model, stored) if path.name == "state.safetensors" else 0.0
            total += shared + (stored - shared) * seen
    return Cost(seconds * growth, processor * growth, total)


def _describe_pair_costs(variant: Variant, settings: Settings, partition: Artifact) -> list[str]:
    """Return the costs of a method that grow with the square of the number of clients."""
    if variant.is_stack:
        return []
    method = methods.load(variant.method)
    cfg = config.build(method.Config, variant.options, variant.method)
    return run_request.describe_pair_costs(variant.name, method, cfg, settings, partition)


def _peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


class _ProgressOnly(NullReporter):
    """A reporter that shows progress but no messages."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    @contextmanager
    def progress(self, label: str, total: int, completed: int = 0) -> Iterator[Advance]:
        """Show progress with the label ``estimate``."""
        with self._reporter.progress("estimate", total, completed) as advance:
            yield advance
