"""Runs of the same method on other splits of the same samples: what a likelihood-ratio attack compares with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts.reader import Artifact, follow
from pflcli.auditing import attacks, queries
from pflcli.auditing.queries import Queries
from pflcli.errors import InputError, UsageError
from pflcli.evaluation.metrics.membership import Mask, Scores
from pflcli.execution import Execution
from pflcli.prediction import answerer as answerers
from pflcli.prediction.answerer import Answerer
from pflcli.prediction.disclosure import Disclosure

FEWEST = 2
"""The least number of references from which a spread follows."""


def opened(target: Answerer, artifacts: Sequence[Artifact], weights: Path | str | None) -> list[Answerer]:
    """Return who answers for the references of ``target``.

    Raises UsageError for too few references or equal ones, InputError for those of another method, other options or
    other samples, and as ``answerer.opened``.
    """
    if len(artifacts) < FEWEST:
        raise UsageError(
            f"{len(artifacts)} reference says nothing of the spread between models; give {FEWEST} at least",
            "--reference PREDICTIONS --reference PREDICTIONS",
        )
    if len({artifact.manifest.fingerprint for artifact in artifacts}) < len(artifacts):
        raise UsageError("the same reference is given twice")
    for artifact in artifacts:
        if artifact.manifest.fingerprint == target.artifact.manifest.fingerprint:
            raise UsageError(f"{artifact.path} is what is audited, and no reference for itself")
        if _recipe(artifact) != _recipe(target.artifact):
            raise InputError(
                f"{artifact.path} was made by another method, or by other options or settings, than "
                f"{target.artifact.path}: their answers cannot be compared",
                "run the same method with the same options on a partition made with another --split-seed",
            )
    return [answerers.open_answerer(artifact, weights) for artifact in artifacts]


def _recipe(artifact: Artifact) -> Any:
    """Return what a run was asked for, without seeds and samples, and the same for what it was made from."""
    request = {key: value for key, value in artifact.manifest.request.items() if key != "seed"}
    made_from = [item for item in artifact.manifest.inputs if item.kind not in ("partition", "dataset")]
    return artifact.kind, request, [_recipe(follow(artifact, item)) for item in made_from]


def scores(
    target: Queries,
    member: Mask,
    references: Sequence[Answerer],
    disclosed: Disclosure | None,
    execution: Execution,
) -> tuple[Scores, Mask]:
    """Return the scaled logits (R, n) that references give the samples of ``target``, and who learned which (R, n).

    Raises InputError if a reference has other samples, or has learned from the same ones.
    """
    logits, learned = [], []
    for reference in references:
        path = reference.artifact.path
        data = queries.samples_of(reference)
        sent_queries = queries.matching(target, data, str(path))
        own = queries.learned(reference.artifact, data)[sent_queries.rows]
        if np.array_equal(own, member):
            raise InputError(
                f"{path} has learned from the same samples as what is audited, so that it is no reference",
                "pfl partition DATASET -o DIR, as before but with another --split-seed",
            )
        parts, _ = queries.answers_to(reference, sent_queries, execution)
        logits.append(attacks.confidences(parts, sent_queries.y, disclosed))
        learned.append(own)
    return np.stack(logits), np.stack(learned)
