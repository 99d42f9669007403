"""Jobs for the artifacts that several methods or trials share: backbone, embeddings and datastore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pflcli.artifacts.kinds import LINEAGE
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.train_global import train_global
from pflcli.execution import Execution
from pflcli.jobs.job import Call, Job
from pflcli.settings import Settings
from pflcli.training.initial_weights import Weights

BACKBONE = "fedavg"
"""The method that trains the backbone. In a comparison it has its options there, and predicts with the backbone."""

Training = Callable[[], tuple[Mapping[str, Any] | None, Mapping[str, Any]]]
"""A function, called when the job begins, that returns the options of the backbone's method and the settings."""


def shared_jobs(
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
) -> list[Job]:
    """Return the jobs that lead from ``source`` to an artifact of the kind ``last``, each made from the previous one.

    ``work`` is the estimated work of training a backbone.
    """

    def backbone(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
        options, settings = training()
        return train_global(
            inputs[0],
            folder / "backbone",
            options=options,
            settings=settings,
            weights=weights,
            seed=seed,
            execution=execution,
        )

    def embeddings(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
        return extract(inputs[0], folder / "embeddings", execution=execution)

    def datastore(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
        return build_datastore(inputs[0], folder / "datastore", execution=execution)

    calls: dict[str, tuple[Call, float]] = {
        "backbone": (backbone, work),
        "embeddings": (embeddings, 0.5),
        "datastore": (datastore, 0.2),
    }
    jobs: list[Job] = []
    for kind in LINEAGE[LINEAGE.index(source.kind) + 1 : LINEAGE.index(last) + 1]:
        call, share = calls[kind]
        inputs: tuple[Artifact | Job] = (jobs[-1] if jobs else source,)
        jobs.append(Job(prefix + kind, folder / kind, call, inputs, after, seed, share, is_result=is_result))
    return jobs


def estimate_epochs(training: Settings) -> float:
    """Estimate the work of a run: epochs over all clients' samples, or steps if the settings count steps."""
    return max(1.0, training.rounds * training.participation * (training.steps or training.epochs))
