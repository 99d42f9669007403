"""``compare -n``: estimate time and disk space of a comparison by two rounds of each method in a temporary folder."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pflcli.artifacts import disk
from pflcli.artifacts.reader import open_artifact
from pflcli.core import config, methods
from pflcli.core.execution import Execution
from pflcli.core.foreign import size
from pflcli.core.reporter import SILENT, Advance, NullReporter
from pflcli.core.settings import Settings
from pflcli.core.wording import duration
from pflcli.workflow.comparison.runs import Runs
from pflcli.workflow.jobs.graph import CHOOSING, Graph, Job
from pflcli.workflow.jobs.progress import OverallProgress
from pflcli.workflow.jobs.run import Results, run_job
from pflcli.workflow.training import notices

TRIAL_ROUNDS = 2
"""Rounds that are run. The first one compiles loops and fills caches; only the second one is extrapolated."""
_TABLE_SECONDS, _PREDICTION_SECONDS = 3.0, 0.045
"""Seconds to make the table and its picture, and in addition for each of its predictions (measured on two cores)."""
_WHOLE_FILES = ("manifest.json", "codebook.json", "predictions.h5", "weights.safetensors")
"""Files whose size does not depend on the number of rounds."""


@dataclass(frozen=True)
class Cost:
    """The cost of one artifact."""

    seconds: float
    processor_seconds: float
    bytes: float = 0.0


@dataclass
class Costs:
    """Estimated costs: of each job with one seed, by name, and the total of all unfinished jobs."""

    by_name: dict[str, Cost] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """methods without an estimate, with the reason; costs that grow with the square of the number of clients"""
    total: Cost = field(default_factory=lambda: Cost(0.0, 0.0))

    def facts(self) -> dict[str, Any]:
        """Return the totals for the summary of a dry run; nothing if nothing was estimated."""
        if not self.by_name:
            return {}
        seconds, processor_seconds = round(self.total.seconds, 1), round(self.total.processor_seconds, 1)
        disk_bytes = round(self.total.bytes)
        return {"needs": {"seconds": seconds, "processor_seconds": processor_seconds, "disk_bytes": disk_bytes}}

    def add_to_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of a plan, with the costs of unfinished jobs."""

        def add(row: Mapping[str, Any]) -> dict[str, Any]:
            cost = self.by_name.get(row["step"])
            if cost is None or row["decision"] in ("up to date", "not needed"):
                return dict(row)
            needs = {"processor_seconds": round(cost.processor_seconds, 2), "disk_bytes": round(cost.bytes)}
            return {**row, **needs}

        return [add(row) for row in rows]

    def lines(self, out: Path) -> list[str]:
        """Return sentences on the totals, the remarks, and a warning if the disk is too full."""
        if not self.by_name:
            return self.remarks
        seconds, processor = duration(self.total.seconds), duration(self.total.processor_seconds)
        needs = f"needs about {seconds} ({processor} of one core) and {size(self.total.bytes)} of disk"
        lines, free = [needs, *self.remarks], disk.free_bytes(out)
        if self.total.bytes > free:
            name = max(self.by_name, key=lambda job: self.by_name[job].bytes)
            lines.append(
                f"WARNING: the disk has {size(free)} free, but {size(self.total.bytes)} are needed: choose another "
                f"--out or fewer --seeds, or leave out {name} ({size(self.by_name[name].bytes)} per seed)"
            )
        return lines


def estimate(runs: Runs, graph: Graph, execution: Execution) -> Costs:
    """Estimate the costs of the unfinished jobs of a graph by running two rounds of each with one seed.

    The jobs run as in the comparison, but in a temporary folder. Without a reporter, nothing is estimated.
    """
    costs, ahead, results = Costs(), [item.job for item in graph.items if item.is_ahead], Results()
    if not ahead or execution.reporter is SILENT:
        return costs
    seed, names = ahead[0].seed, {job.name for job in ahead}
    clients = int(runs.partitions[seed].manifest.summary["clients"])
    settings = {variant.name: runs.settings_of(variant) for variant in runs.variants}
    own = replace(execution.locally(), dry_run=False, force=False)
    with tempfile.TemporaryDirectory(prefix="pfl-") as folder:
        jobs = _with_inputs(job for job in _shorten(runs, seed, Path(folder)).jobs() if job.name in names)
        with execution.reporter.progress("estimate", len(jobs)) as show:
            for job in jobs:
                if not results.excludes(job, SILENT):
                    watch = _Stopwatch(job, show)
                    show(0, f"measuring {job.name}")
                    error = run_job(job, partial(watch.run, own), OverallProgress(SILENT, [job]))
                    results.conclude(job, error, SILENT, skip_unsuited=True)
                    training = settings.get(job.name.removeprefix(f"{CHOOSING} "), runs.training)
                    if job.name in names and error is None:
                        costs.by_name[job.name] = watch.extrapolate(training, clients)
                show(1, f"measured {job.name}")
    for job in jobs:
        if job.name in results.unsuited:
            costs.remarks.append(f"{job.name} will be left out: {results.unsuited[job.name]}")
        elif job in results.blocked:
            costs.remarks.append(f"{job.name} has no estimate: {results.blocked[job].name}, which it needs, has none")
        elif job in results.failed:
            costs.remarks.append(f"{job.name} has no estimate: {results.failed[job].message}")
    for variant in runs.variants:
        if variant.name in names and not variant.is_stack:
            method, partition = methods.load(variant.method), runs.partitions[seed]
            cfg = config.build(method.Config, variant.options, variant.method)
            costs.remarks += notices.describe_pair_costs(variant.name, method, cfg, settings[variant.name], partition)
    table = _TABLE_SECONDS + _PREDICTION_SECONDS * sum(job.is_result for job in graph.chosen)
    made = [Cost(table, table), *(costs.by_name[job.name] for job in ahead if job.name in costs.by_name)]
    totals = (sum(getattr(cost, name) for cost in made) for name in ("seconds", "processor_seconds", "bytes"))
    costs.total = Cost(*totals)
    return costs


def _shorten(runs: Runs, seed: int, folder: Path) -> Runs:
    """Return the runs with one seed and at most ``TRIAL_ROUNDS`` rounds, in another folder."""

    def shorten(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {key: min(value, TRIAL_ROUNDS) if key == "rounds" else value for key, value in settings.items()}

    variants = [replace(variant, settings=shorten(variant.settings)) for variant in runs.variants]
    training = replace(runs.training, rounds=min(TRIAL_ROUNDS, runs.training.rounds))
    return replace(runs, out=folder, partitions={seed: runs.partitions[seed]}, variants=variants, training=training)


def _with_inputs(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs, each after the jobs that make its inputs."""
    return list(dict.fromkeys(item for job in jobs for item in (*_with_inputs(job.input_jobs), job)))


def _extrapolate_bytes(out: Path, settings: Settings, clients: int, played: int) -> float:
    """Return the bytes of the artifact ``out`` after all rounds of ``settings``, of which ``played`` were run."""
    model = float(open_artifact(out).manifest.summary.get("model_bytes", 0))
    missed = 1 - max(1, round(settings.participation * clients)) / clients
    seen = (1 - missed**settings.rounds) / (1 - missed**played) if played else 1.0
    total = 0.0
    for path in out.iterdir():
        stored = path.stat().st_size
        if path.name == "rounds.csv":
            total += stored * settings.rounds / max(played, 1)
        elif path.name in _WHOLE_FILES:
            total += stored
        else:  # a state contains the global model, and a row for each client that was ever selected
            shared = min(model, stored) if path.name == "state.safetensors" else 0.0
            total += shared + (stored - shared) * seen
    return total


class _Stopwatch(NullReporter):
    """Runs a job, times its rounds, and shows its progress but no messages."""

    def __init__(self, job: Job, show: Advance) -> None:
        self._job, self._show, self._phases = job, show, 0
        self._rounds, self._round_seconds = 0, 0.0
        self._seconds = self._processor_seconds = 0.0

    def run(self, execution: Execution) -> None:
        """Make the artifact of the job."""
        began, processor = time.monotonic(), sum(os.times()[:4])
        self._job.run(replace(execution, reporter=self), replaces=True)
        self._seconds = time.monotonic() - began
        self._processor_seconds = sum(os.times()[:4]) - processor

    def extrapolate(self, settings: Settings, clients: int) -> Cost:
        """Return the cost of the job with all rounds of ``settings``, each of which takes as long as the last one."""
        seconds = self._seconds
        if self._rounds:
            seconds += (settings.rounds - self._rounds) * self._round_seconds
        processor_seconds = seconds * self._processor_seconds / max(self._seconds, 1e-9)
        return Cost(seconds, processor_seconds, _extrapolate_bytes(self._job.out, settings, clients, self._rounds))

    @contextmanager
    def progress(self, label: str, total: int, completed: int = 0) -> Iterator[Advance]:
        """Show progress within the job."""
        self._phases += 1
        kind = self._job.out.name
        are_rounds = self._phases == 1 and (self._job.has_rounds or kind == "backbone")
        unit = "rounds" if are_rounds else "samples" if kind == "embeddings" else "clients"
        done, step_start = float(completed), time.monotonic()

        def advance(steps: float, note: str) -> None:
            nonlocal done, step_start
            done += steps
            if are_rounds and steps:
                now = time.monotonic()
                self._rounds, self._round_seconds, step_start = round(done), now - step_start, now
            self._show(0, f"measuring {self._job.name}: {done:.0f} of {total} {unit}{', ' + note if note else ''}")

        yield advance
