"""Run trials one after the other, each an ordinary artifact, and score them on validation samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.commands.tuning.samplers import Sampler
from pflcli.commands.tuning.space import Point, words
from pflcli.errors import ComputationError, InputError, UsageError
from pflcli.evaluation.metrics import catalogue, scores
from pflcli.execution import Execution
from pflcli.jobs.job import Job
from pflcli.jobs.progress import OverallProgress
from pflcli.jobs.run import failure

SPLIT = "validation"


@dataclass(frozen=True)
class Trial:
    """A point that was tried, with its scores on validation samples; None if it failed."""

    number: int
    """from 1"""
    point: Point
    path: Path
    """the folder of the predictions, which exists unless the trial failed"""
    seconds: float
    score: float | None = None
    """by the metric that chooses, over clients weighted by their validation samples"""
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


def run(
    sampler: Sampler,
    act: Callable[[Point, Execution], Outcome],
    place: Callable[[Point], Path],
    execution: Execution,
    seed: int,
    epochs: float,
    minutes: float | None,
    metric: str,
) -> list[Trial]:
    """Run the trials in the sampler's order, skip those that are up to date, and return all, scored by ``metric``.

    No trial starts once one has a score and all together have taken ``minutes``, those of earlier runs included. A
    trial that diverges, or whose values are invalid, has no score. ``act`` makes the trial of a point in the folder
    ``place(point)``; ``epochs`` is its estimated work. Raises any other error, as it would stop every trial.
    """
    points: list[Point] = []

    def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
        return act(points[-1], execution)

    # The folder of a trial follows from its point, which a sampler chooses by the results of earlier ones.
    jobs = [Job(f"trial {n}", Path(), call, (), seed=seed, work=epochs) for n in range(1, sampler.count + 1)]
    progress = OverallProgress(execution.reporter, jobs, label="tune")
    trials: list[Trial] = []
    with progress.overall():
        for number, job in enumerate(jobs, start=1):
            seconds = sum(trial.seconds for trial in trials)
            if minutes is not None and seconds >= 60 * minutes and any(trial.score is not None for trial in trials):
                execution.reporter.say(f"{seconds:.0f} s are spent: {len(trials)} of {sampler.count} trials were made")
                break
            point = sampler.ask()
            execution.reporter.say(f"trial {number} of {sampler.count}: {words(point)}")
            start = time.monotonic()
            points.append(point)
            error = failure(job, partial(job.run, replace(execution, reporter=progress)), progress)
            if isinstance(error, ComputationError | UsageError):
                trial = Trial(number, point, place(point), time.monotonic() - start, problem=error.message)
            elif error is not None:
                raise error
            else:
                trial = _scored(number, point, place(point), metric)
            result = f"failed: {trial.problem}" if trial.score is None else in_words(metric, trial.score)
            execution.reporter.say(f"trial {number}: {result}")
            sampler.tell(_rank(metric, trial))
            trials.append(trial)
    return trials


def in_words(metric: str, score: float) -> str:
    """Return a score on validation samples for people."""
    return f"{SPLIT} {catalogue.METRICS[metric].heading} {score:.4f}"


def _rank(metric: str, trial: Trial) -> float | None:
    """Return what a better trial has more of; None if it failed."""
    if trial.score is None or not catalogue.METRICS[metric].lower_is_better:
        return trial.score
    return -trial.score


def best(trials: Sequence[Trial], metric: str) -> Trial:
    """Return the best trial by ``metric``, the first of equal ones; raises ComputationError if all failed."""
    ranks = {trial.number: rank for trial in trials if (rank := _rank(metric, trial)) is not None}
    if not ranks:
        reasons = dict.fromkeys(trial.problem for trial in trials)
        raise ComputationError(f"all {len(trials)} trials failed", *reasons)
    number = max(ranks, key=lambda number: (ranks[number], -number))
    return next(trial for trial in trials if trial.number == number)


def _scored(number: int, point: Point, path: Path, metric: str) -> Trial:
    """Return a trial with the scores of its validation predictions; test predictions are not read."""
    artifact = open_artifact(path, "predictions")
    answers = predictions.read(artifact, SPLIT)
    accuracy = scores.per_client(scores.correct(answers.parts["p"], answers.y), answers.offsets)
    weight = np.diff(answers.offsets)
    if not len(answers.y):
        raise InputError(f"{path} has no {SPLIT} samples to choose by")
    entry = catalogue.METRICS[metric]
    by_client = entry.score_clients(answers.parts["p"], answers.y, answers.offsets)
    score = scores.weighted_mean(by_client, weight)
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
        scores.weighted_mean(accuracy, weight),
        scores.bottom_decile(accuracy),
        len(answers.y),
        int((weight > 0).sum()),
        artifact.manifest.fingerprint,
        problem,
    )
