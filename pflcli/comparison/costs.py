"""``compare -n``: estimate the cost of a comparison by running two rounds of each method in a temporary folder.

What takes longer than a few seconds is stopped, and extrapolated from the clients or samples that were measured.
"""

from __future__ import annotations

import csv
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pflcli import config, methods
from pflcli.artifacts import disk
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.comparison.runs import Runs
from pflcli.comparison.variants import Variant
from pflcli.errors import ComputationError
from pflcli.execution import Execution
from pflcli.foreign import size
from pflcli.jobs.graph import CHOOSING, Graph
from pflcli.jobs.job import Job
from pflcli.jobs.progress import OverallProgress
from pflcli.jobs.run import Results, run_job
from pflcli.reporter import SILENT, Advance, NullReporter, Reporter, StopRounds
from pflcli.settings import Settings
from pflcli.training import run_request
from pflcli.wording import duration

TRIAL_ROUNDS = 2
"""Rounds that are run. The first one compiles loops and fills caches; only the second one is extrapolated."""
_TABLE_SECONDS, _PREDICTION_SECONDS = 3.0, 0.045
"""Seconds to make the table and its picture, and in addition for each of its predictions (measured on two cores)."""
_ROUNDS_SECONDS, _PHASE_SECONDS = 4.0, 2.0
"""Seconds after which the rounds of a job are stopped within a round, and after which its other phases are stopped."""
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
    measured: dict[str, str] = field(default_factory=dict)
    """what was measured of a job that was stopped, by name"""
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
                **({"measured": self.measured[row["step"]]} if row["step"] in self.measured else {}),
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


def estimate(comparison: Runs, graph: Graph, execution: Execution) -> Costs:
    """Estimate the costs of the unfinished jobs of a graph by running two rounds of each with one seed.

    The jobs run as in the comparison, but in a temporary folder, and are stopped after a few seconds. Without a
    reporter, nothing is estimated.
    """
    costs, ahead = Costs(), [item.job for item in graph.items if item.is_ahead]
    if not ahead or execution.reporter is SILENT:
        return costs
    seed, names = ahead[0].seed, {job.name for job in ahead}
    partition = comparison.partitions[seed]
    clients = int(partition.manifest.summary["clients"])
    by_name = {variant.name: variant for variant in comparison.variants}
    without_disk: list[str] = []
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
        own = replace(execution.locally(), dry_run=False, force=False)
        results, stopwatches = _run_trials(needed, own, execution.reporter)
        for job in needed:
            name, watch = job.name.removeprefix(f"{CHOOSING} "), stopwatches.get(job)
            settings = comparison.settings_of(by_name[name]) if name in by_name else comparison.training
            if watch is not None and watch.measured and job.name in names:
                costs.measured[job.name] = watch.measured
            if watch is not None and watch.is_unfinished:
                if job.name in names:
                    costs.by_name[job.name] = watch.extrapolate(settings)
                    without_disk.append(job.name)
            elif job in results.failed:
                costs.remarks.append(f"{job.name} has no estimate: {results.failed[job].message}")
            elif job.name in results.unsuited:
                costs.remarks.append(f"{job.name} will be left out: {results.unsuited[job.name]}")
            elif job in results.blocked:
                costs.remarks.append(
                    f"{job.name} has no estimate: {results.blocked[job].name}, which it needs, has none"
                )
            elif job.name in names:
                costs.by_name[job.name] = _extrapolate(open_artifact(job.out), settings, clients, watch)
    if without_disk:
        costs.remarks.append(f"without the disk of {', '.join(without_disk)}, whose trials were stopped")
    for name in names & by_name.keys():
        costs.remarks += _describe_pair_costs(by_name[name], comparison.settings_of(by_name[name]), partition)
    predictions = sum(job.is_result for job in graph.chosen)
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


def _extrapolate(artifact: Artifact, settings: Settings, clients: int, watch: _Stopwatch | None = None) -> Cost:
    """Return the cost of an artifact with all rounds of ``settings``, from one with a few rounds.

    If ``watch`` stopped a round, its measured share stands for the rounds that are missing.
    """
    made = artifact.manifest.made
    seconds, processor = float(made["seconds"]), float(made.get("processor_seconds", made["seconds"]))
    table = artifact.path / "rounds.csv"
    rows = list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []
    played = int(rows[-1]["round"]) if rows else 0
    growth, seen = 1.0, 1.0
    if watch is not None and watch.is_round_stopped:
        growth = 1 + watch.missing_seconds(settings.rounds) / max(seconds, 1e-9)
    elif played:
        growth = 1 + (settings.rounds - played) * float(rows[-1]["seconds"]) / max(seconds, 1e-9)
    if played:
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


def _run_trials(jobs: Sequence[Job], execution: Execution, reporter: Reporter) -> tuple[Results, dict[Job, _Stopwatch]]:
    """Run ``jobs``, which are in an order in which they can run, and return their results and stopwatches.

    Progress counts jobs, because the time of a job is what is to be found out.
    """
    results, stopwatches = Results(), dict[Job, _Stopwatch]()
    with reporter.progress("estimate", len(jobs)) as advance:
        for number, job in enumerate(jobs):
            if results.excludes(job, SILENT):
                advance(1, f"{job.name} cannot be measured")
                continue
            watch = stopwatches[job] = _Stopwatch(job, advance)
            advance(0, f"measuring {job.name}")
            error = run_job(job, partial(watch.run, execution), OverallProgress(SILENT, jobs[number:]))
            results.conclude(job, error, SILENT, skip_unsuited=True)
            advance(1, f"measured {job.name}")
    return results, stopwatches


class _Stopwatch(NullReporter):
    """Runs a job, shows its progress but no messages, and stops it when enough is measured."""

    def __init__(self, job: Job, show: Advance) -> None:
        self.measured = ""
        """what was measured of the phases that were stopped"""
        self.is_unfinished = False
        """whether the job was stopped before it made its artifact"""
        self.is_round_stopped = False
        self._job, self._show, self._phases = job, show, 0
        self._began, self._processor = time.monotonic(), time.process_time()
        self._rounds, self._round_seconds, self._undone_seconds = 0, 0.0, 0.0
        self._seconds = self._processor_share = 0.0

    def run(self, execution: Execution) -> None:
        """Make the artifact of the job; raises ComputationError if the job is stopped before that."""
        try:
            self._job.run(replace(execution, reporter=self), replaces=True)
        except StopRounds:
            self.is_unfinished = True
            raise ComputationError("its trial was stopped") from None

    def missing_seconds(self, rounds: int) -> float:
        """Return the estimated seconds of the rounds that were not run, out of all ``rounds``."""
        return max((rounds - self._rounds) * self._round_seconds - self._undone_seconds, 0.0)

    def extrapolate(self, settings: Settings) -> Cost:
        """Return the cost of a job that was stopped before it made its artifact; its bytes are unknown."""
        seconds = self._seconds + (
            self.missing_seconds(settings.rounds) if self._rounds or self.is_round_stopped else 0
        )
        return Cost(seconds, seconds * self._processor_share)

    @contextmanager
    def progress(self, label: str, total: int, completed: int = 0) -> Iterator[Advance]:
        """Show progress within the job, and raise StopRounds when enough is measured."""
        self._phases += 1
        kind = self._job.out.name
        are_rounds = self._phases == 1 and (self._job.has_rounds or kind == "backbone")
        unit = "rounds" if are_rounds else "samples" if kind == "embeddings" else "clients"
        start = step_start = time.monotonic()
        done: float = completed

        def advance(steps: float, note: str) -> None:
            nonlocal done, step_start
            now = time.monotonic()
            done += steps
            if are_rounds and steps:
                self._rounds, self._round_seconds, step_start = round(done), now - step_start, now
            self._show(0, f"measuring {self._job.name}: {done:.0f} of {total} {unit}{', ' + note if note else ''}")
            is_late = now - (self._began if are_rounds else start) > (_ROUNDS_SECONDS if are_rounds else _PHASE_SECONDS)
            # A second round tells more than the first, which compiles loops: rounds are stopped only within.
            if is_late and done < total and (steps == 0 or not are_rounds):
                raise StopRounds

        try:
            yield advance
        except StopRounds as stop:
            spent = time.monotonic() - (step_start if are_rounds else start)
            if are_rounds:
                self.is_round_stopped = True
                self._undone_seconds, self._round_seconds = spent, spent * stop.clients / stop.trained
                text = f"{stop.trained} of {stop.clients} clients of a round"
            else:
                measured, elapsed = done + stop.trained, time.monotonic() - self._began
                self._seconds = elapsed + spent * (total / measured - 1)
                self._processor_share = (time.process_time() - self._processor) / elapsed
                text = f"{measured:.0f} of {total} {unit}{' predicted' if unit == 'clients' else ''}"
            self.measured += f", {text}" if self.measured else text
            raise
