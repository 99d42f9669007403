"""Reference models of the likelihood-ratio attack: the same method on other splits of the same samples."""

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
from pflcli.prediction import stored_predictor
from pflcli.prediction.disclosure import Disclosure
from pflcli.prediction.stored_predictor import StoredPredictor

MIN_REFERENCES = 2
"""Least number of reference models to estimate a variance from."""


def open_references(
    target: StoredPredictor, artifacts: Sequence[Artifact], weights: Path | str | None
) -> list[StoredPredictor]:
    """Open the reference predictions for an audit of ``target``.

    Raises UsageError for too few references, or the same one twice; InputError for a reference of another method, with
    other options or settings; and whatever ``open_predictor`` raises.
    """
    if len(artifacts) < MIN_REFERENCES:
        raise UsageError(
            f"got {len(artifacts)} reference; need at least {MIN_REFERENCES} to estimate the variance between models",
            "--reference PREDICTIONS --reference PREDICTIONS",
        )
    if len({artifact.manifest.fingerprint for artifact in artifacts}) < len(artifacts):
        raise UsageError("--reference names the same predictions twice")
    for artifact in artifacts:
        if artifact.manifest.fingerprint == target.artifact.manifest.fingerprint:
            raise UsageError(f"{artifact.path} cannot be a reference: it is the audited artifact itself")
        if _recipe(artifact) != _recipe(target.artifact):
            raise InputError(
                f"{artifact.path} was made with another method, other options or other settings than "
                f"{target.artifact.path}: their predictions cannot be compared",
                "run the same method with the same options on a partition made with another --split-seed",
            )
    return [stored_predictor.open_predictor(artifact, weights) for artifact in artifacts]


def _recipe(artifact: Artifact) -> Any:
    """Return the request of a run without its seed, and the same for its inputs other than the data."""
    request = {key: value for key, value in artifact.manifest.request.items() if key != "seed"}
    made_from = [item for item in artifact.manifest.inputs if item.kind not in ("partition", "dataset")]
    return artifact.kind, request, [_recipe(follow(artifact, item)) for item in made_from]


def score_with_references(
    target: Queries,
    member: Mask,
    references: Sequence[StoredPredictor],
    disclosed: Disclosure | None,
    execution: Execution,
) -> tuple[Scores, Mask]:
    """Return each reference's scaled logits (R, n) for the samples of ``target``, and which it learned from (R, n).

    Raises InputError if a reference has other samples, or learned from exactly the audited members.
    """
    logits, learned = [], []
    for reference in references:
        path = reference.artifact.path
        data = queries.read_samples(reference)
        sent_queries = queries.match_queries(target, data, str(path))
        own = queries.find_members(reference.artifact, data)[sent_queries.rows]
        if np.array_equal(own, member):
            raise InputError(
                f"{path} cannot be a reference: it learned from the same samples as the audited predictions",
                "pfl partition DATASET -o DIR, as before but with another --split-seed",
            )
        parts, _ = queries.answer_queries(reference, sent_queries, execution)
        logits.append(attacks.confidence_scores(parts, sent_queries.y, disclosed))
        learned.append(own)
    return np.stack(logits), np.stack(learned)
