"""The trials of a search: run them one after the other, score them on validation samples, and write their tables."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts import csv_file
from pflcli.artifacts.kinds import predictions, read_labels, tuning
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import scores, tasks
from pflcli.core.errors import ComputationError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import Metric
from pflcli.core.settings import TRAINING
from pflcli.core.wording import as_typed
from pflcli.workflow.jobs.graph import Job
from pflcli.workflow.jobs.progress import OverallProgress
from pflcli.workflow.jobs.run import run_job
from pflcli.workflow.tuning.samplers import Sampler
from pflcli.workflow.tuning.space import BACKBONE, Point, Space, describe

NAME = "tuning"
"""The folder of the artifact inside ``out``; beside it are the trials and the artifacts that they need."""
SPLIT = "validation"
BEST = "best.toml"
ACCURACY = catalogue.DEFAULT[0]
FINALISTS = 2
"""How many trials are run to the end if all others stop earlier."""
_SCORES = ("validation_accuracy", "bottom_decile", "seconds", "problem", "path")


@dataclass(frozen=True)
class Trial:
    """A point that was tried, with its scores on validation samples, which are None if it failed."""

    number: int
    """from 1"""
    point: Point
    path: Path
    """the folder of the predictions, which exists unless the trial failed"""
    seconds: float
    score: float | None = None
    """by the chosen metric, averaged over clients and weighted by their validation samples"""
    accuracy: float | None = None
    bottom_decile: float | None = None
    """accuracy of the (m/10)-th worst client"""
    samples: int = 0
    """number of validation samples"""
    clients: int = 0
    """number of clients with validation samples"""
    fingerprint: str | None = None
    problem: str = ""
    """why the trial failed"""
    rounds: int | None = None
    """number of rounds after which it was scored; None if all trials ran to the end"""
    predictions: str = ""
    """hash of the file of predictions, which is the same if two points are the same run"""


@dataclass(frozen=True)
class Halving:
    """Successive halving (Jamieson & Talwalkar 2016): all trials run ``short`` rounds, the best ones the ``whole``."""

    short: int
    whole: int


def run(
    sampler: Sampler,
    make_trial: Callable[[Point, int | None, Execution], Outcome],
    folder: Callable[[Point, int | None], Path],
    execution: Execution,
    seed: int,
    epochs: float,
    minutes: float | None,
    metric: str,
    halving: Halving | None = None,
) -> list[Trial]:
    """Run the trials in the sampler's order, reuse those that are up to date, and return all, scored by ``metric``.

    With ``halving``, trials run its short rounds, and then the ``FINALISTS`` best ones to the end. No trial is started
    once one has a score and all together, including those of earlier runs, have taken ``minutes``. A trial that
    diverges, or whose values are invalid, has no score. ``make_trial`` makes the trial of a point with so many rounds,
    None for all, in the folder ``folder`` of both; ``epochs`` is its estimated work. Any other error is raised, because
    it would stop every trial.
    """
    trials: list[Trial] = []
    current: list[tuple[Point, int | None]] = []

    def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
        return make_trial(*current[-1], execution)

    def attempt(job: Job, number: int, point: Point, rounds: int | None) -> Trial:
        current.append((point, rounds))
        played = rounds or (halving.whole if halving else None)
        trial = Trial(number, point, folder(point, rounds), 0.0, rounds=played)
        return _attempt(job, trial, metric, execution, progress)

    short, share = (None, 1.0) if halving is None else (halving.short, halving.short / halving.whole)
    # The folder of a trial is unknown here: it depends on the point, which the sampler chooses after earlier trials.
    jobs = [Job(f"trial {n}", Path(), call, (), seed=seed, work=share * epochs) for n in range(1, sampler.count + 1)]
    finals = [replace(jobs[0], name=f"finalist {n}", work=(1 - share) * epochs) for n in range(1, 1 + FINALISTS)]
    finals = finals if halving else []
    progress = OverallProgress(execution.reporter, [*jobs, *finals], label="tune")
    with progress.overall():
        for number, job in enumerate(jobs, start=1):
            seconds = sum(trial.seconds for trial in trials)
            if minutes is not None and seconds >= 60 * minutes and any(trial.score is not None for trial in trials):
                execution.reporter.say(f"stopping after {seconds:.0f} s, with {len(trials)} of {sampler.count} trials")
                break
            point = sampler.ask()
            execution.reporter.say(f"trial {number} of {sampler.count}: {describe(point)}")
            trials.append(attempt(job, number, point, short))
            sampler.tell(_rank(metric, trials[-1]))
        ranks = {trial.number: rank for trial in trials if (rank := _rank(metric, trial)) is not None}
        first: dict[str, int] = {}
        for number in sorted(ranks, key=lambda number: -ranks[number]):
            first.setdefault(trials[number - 1].predictions, number)  # two points may be one run
        for job, number in zip(finals, first.values(), strict=False):
            trials[number - 1] = attempt(job, number, trials[number - 1].point, None)
    return trials


def _attempt(job: Job, trial: Trial, metric: str, execution: Execution, progress: OverallProgress) -> Trial:
    """Run a trial by its job, and return it with its scores, or with the reason why it failed."""
    start = time.monotonic()
    error = run_job(job, partial(job.run, replace(execution, reporter=progress)), progress)
    if isinstance(error, ComputationError | UsageError):
        trial = replace(trial, seconds=time.monotonic() - start, problem=error.message)
    elif error is not None:
        raise error
    else:
        trial = replace(_score(trial.number, trial.point, trial.path, metric), rounds=trial.rounds)
    result = f"failed: {trial.problem}" if trial.score is None else describe_score(metric, trial.score)
    after = f" after {trial.rounds} rounds" if trial.rounds else ""
    execution.reporter.say(f"trial {trial.number}{after}: {result}")
    return trial


def describe_score(metric: str, score: float) -> str:
    """Return a score on validation samples as text."""
    return f"{SPLIT} {catalogue.METRICS[metric].heading} {score:.4f}"


def _rank(metric: str, trial: Trial) -> float | None:
    """Return the score with a sign such that higher is better; None if the trial failed."""
    if trial.score is None or not catalogue.METRICS[metric].lower_is_better:
        return trial.score
    return -trial.score


def best(trials: Sequence[Trial], metric: str) -> Trial:
    """Return the best by ``metric`` of the trials with most rounds, the first of equal ones.

    Raises ComputationError if all failed.
    """
    ranks = {trial.number: rank for trial in trials if (rank := _rank(metric, trial)) is not None}
    if not ranks:
        reasons = dict.fromkeys(trial.problem for trial in trials)
        raise ComputationError(f"all {len(trials)} trials failed", *reasons)
    return max(
        (trial for trial in trials if trial.number in ranks),
        key=lambda trial: (trial.rounds or 0, ranks[trial.number], -trial.number),
    )


def find_borders(space: Space, trials: Sequence[Trial], best: Trial) -> dict[str, str]:
    """Return the keys of which ``best`` has the ``smallest`` or ``largest`` number tried, of two or more.

    A number at which its option ends, such as 1 neighbour, is no border: there is nothing left to try.
    """
    borders: dict[str, str] = {}
    for key, value in best.point.items():
        tried = {trial.point[key] for trial in trials if _is_number(trial.point[key])}
        if not _is_number(value) or len(tried) < 2:
            continue
        step = 1 if isinstance(value, int) else 1e-6 * (abs(value) or 1.0)
        for side, border, beyond in (("smallest", min(tried), value - step), ("largest", max(tried), value + step)):
            if value == border and space.accepts({**best.point, key: beyond}):
                borders[key] = side
    return borders


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _score(number: int, point: Point, path: Path, metric: str) -> Trial:
    """Return a trial with the scores of its validation predictions; test predictions are not read."""
    artifact = open_artifact(path, "predictions")
    answers = predictions.read(artifact, SPLIT)
    weight = np.diff(answers.offsets)
    if not len(answers.y):
        raise InputError(f"{path} has no {SPLIT} samples to choose on")
    entry = catalogue.METRICS[metric]
    labels = read_labels(artifact.manifest, 0)
    by_client = entry.score_clients(answers.parts["p"], answers.y, answers.offsets, labels)
    score = scores.weighted_mean(by_client, weight)
    usual = catalogue.METRICS[ACCURACY]
    has_accuracy = metric in tasks.find(tasks.CLASSES).metrics
    accuracy = usual.score_clients(answers.parts["p"], answers.y, answers.offsets) if has_accuracy else None
    problem = ""
    if math.isnan(score):
        problem = f"{entry.heading} is not defined: no client has {SPLIT} {entry.needs}"
    circumstances: dict[str, Any] = artifact.manifest.made
    return Trial(
        number,
        point,
        path,
        float(circumstances.get("seconds", 0.0)),
        None if problem else score,
        None if accuracy is None else scores.weighted_mean(accuracy, weight),
        None if accuracy is None else scores.bottom_decile(accuracy),
        len(answers.y),
        int((weight > 0).sum()),
        artifact.manifest.fingerprint,
        problem,
        predictions=artifact.manifest.files[predictions.FILE]["sha256"],
    )


def write(
    work: ArtifactWriter,
    out: Path,
    space: Space,
    trials: Sequence[Trial],
    best: Trial,
    metric: str,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Write the files of a tuning for the folder ``out``; all trials share ``options`` and ``settings``.

    ``best`` is the best of ``trials`` by ``metric``.
    """
    rows = [_row(trial, out, metric) for trial in trials]
    record = {
        "method": space.method,
        **({} if metric == ACCURACY else {"metric": metric}),
        "samples": best.samples,
        "clients": best.clients,
        "best": best.number,
        "borders": find_borders(space, trials, best),
        "trials": rows,
    }
    work.write(tuning.TRIALS, (json.dumps(record, indent=1) + "\n").encode())
    keys = [axis.key for axis in space.axes]
    rounds = ["rounds"] if best.rounds else []
    columns = [*rounds, *([] if metric == ACCURACY else [f"validation_{metric}"]), *_SCORES]
    lines = (
        [row["trial"], *(as_typed(row["values"][key]) for key in keys), *(row[name] for name in columns)]
        for row in rows
    )
    work.write("table.csv", csv_file.encode(["trial", *keys, *columns], lines))
    heading, body = readable(record)
    markdown = [heading, ["---:"] * len(heading), *body]
    work.write("table.md", "".join("| " + " | ".join(line) + " |\n" for line in markdown).encode())
    work.write(BEST, _toml(space, best, metric, len(trials), options, settings).encode())


def readable(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the heading and rows of a readable table, the best trial first and failed trials last."""
    metric = catalogue.METRICS.get(record.get("metric", ACCURACY), catalogue.METRICS[ACCURACY])
    score, sign = f"validation_{metric.name}", 1 if metric.lower_is_better else -1
    rows = sorted(
        record["trials"],
        key=lambda row: (
            row.get(score) is None,
            -row.get("rounds", 0),
            sign * (row.get(score) or 0.0),
            row["trial"],
        ),
    )
    scores = {score: metric, "validation_accuracy": catalogue.METRICS[ACCURACY]}
    keys = list(rows[0]["values"])
    problems, rounds = ([name] if any(row.get(name) for row in rows) else [] for name in ("problem", "rounds"))
    body = [
        [
            str(row["trial"]),
            *(as_typed(row["values"][key]) for key in keys),
            *(str(row[name]) for name in rounds),
            *(_number(row.get(name), entry) for name, entry in scores.items()),
            _number(row["bottom_decile"], catalogue.METRICS["bottom_decile"]),
            "-" if row["seconds"] is None else f"{row['seconds']:.1f}",
            *(row[name].replace("|", "/") or "-" for name in problems),
        ]
        for row in rows
    ]
    headings = [f"validation {entry.heading}{' %' * entry.percent}" for entry in scores.values()]
    return ["trial", *keys, *rounds, *headings, "bottom decile %", "seconds", *problems], body


def _number(value: float | None, metric: Metric) -> str:
    return "-" if value is None else f"{100 * value if metric.percent else value:.{metric.digits}f}"


def _row(trial: Trial, out: Path, metric: str) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "path": os.path.relpath(trial.path.resolve(), out.resolve()),
        "fingerprint": trial.fingerprint,
        "values": trial.point,
        **({} if trial.rounds is None else {"rounds": trial.rounds}),
        f"validation_{metric}": None if trial.score is None else round(trial.score, 6),
        "validation_accuracy": None if trial.accuracy is None else round(trial.accuracy, 6),
        "bottom_decile": None if trial.bottom_decile is None else round(trial.bottom_decile, 6),
        "seconds": round(trial.seconds, 3),
        "problem": trial.problem,
    }


def _toml(
    space: Space, best: Trial, metric: str, count: int, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> str:
    """Return the best trial as TOML, with a table for each command that accepts it."""
    chosen, trained = space.split(best.point)
    best_options = {**options, **chosen}
    nested = {**best_options, **({TRAINING.removesuffix("."): trained} if trained else {})}
    tables = {
        "personalize": {**settings, **trained, **({"set": best_options} if best_options else {})},
        "compare": {**settings, **({"set": {space.method: nested}} if nested else {})},
    }
    if space.method == BACKBONE:
        tables["train-global"] = tables["personalize"]
    score = f"{catalogue.METRICS[metric].heading} {best.score:.4f}"
    lines = [
        f"# {space.method}: the best of {count} trials on validation samples, with {score}",
        "# over clients weighted by their samples. For --config of the commands below;",
        f"# compare also applies the options to a variant, such as --methods fedavg,{space.method}@tuned.",
    ]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key.replace('_', '-')} = {_literal(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    """Return a value in TOML; None, which TOML lacks, becomes the word "none" as a user types it."""
    if value is None:
        return '"none"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_literal(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, str | bool | int | float):
        return json.dumps(value)
    raise UsageError(f"{value!r} cannot be written as TOML")
