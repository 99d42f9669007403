"""Jobs for the artifacts that several methods or trials share: backbone, embeddings and datastore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pflcli.artifacts.kinds import LINEAGE
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact
from pflcli.execution import Execution
from pflcli.jobs.job import Job
from pflcli.settings import Settings
from pflcli.training.initial_weights import Weights

Makers = Mapping[str, Callable[..., Outcome]]
"""The commands that make artifacts, by kind."""
Training = Callable[[], tuple[Mapping[str, Any] | None, Mapping[str, Any]]]
"""A function, called when the job begins, that returns the options of the backbone's method and the settings."""

_WORK = {"embeddings": 0.5, "datastore": 0.2}
"""Estimated work in epochs."""


def shared_jobs(
    makers: Makers,
    source: Artifact,
    folder: Path,
    last: str,
    training: Training,
    weights: Weights | None,
    seed: int,
    *,
    prefix: str = "",
    after: tuple[Job, ...] = (),
    work: float = 1.0,
    is_result: bool = False,
    existing: Mapping[Path, Job] | None = None,
) -> list[Job]:
    """Return the jobs that lead from ``source`` to an artifact of the kind ``last``, each made from the previous one.

    ``work`` is the estimated work of training a backbone. Jobs in ``existing``, by path, are not made anew.
    """

    def job(kind: str, made_from: Artifact | Job) -> Job:
        def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
            asked: dict[str, Any] = {}
            if kind == "backbone":
                options, settings = training()
                asked = {"options": options, "settings": settings, "weights": weights, "seed": seed}
            return makers[kind](inputs[0], folder / kind, **asked, execution=execution)

        share = _WORK.get(kind, work)
        return Job(prefix + kind, folder / kind, call, (made_from,), after, seed, share, is_result=is_result)

    jobs: list[Job] = []
    for kind in LINEAGE[LINEAGE.index(source.kind) + 1 : LINEAGE.index(last) + 1]:
        jobs.append((existing or {}).get(folder / kind) or job(kind, jobs[-1] if jobs else source))
    return jobs


def estimate_epochs(training: Settings) -> float:
    """Estimate the work of a run: epochs over all clients' samples, or steps if the settings count steps."""
    return max(1.0, training.rounds * training.participation * (training.steps or training.epochs))
