"""The table of a comparison from results in memory and from predictions on disk alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pflcli.artifacts.client_blocks import offsets
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.open_by_path import open_one
from pflcli.errors import InputError, UsageError
from pflcli.evaluation import client_identity, scoring, summary
from pflcli.evaluation.metrics import catalogue
from pflcli.evaluation.presentation import tables
from pflcli.evaluation.summary import ScoredPredictions

if TYPE_CHECKING:
    from pflcli.simulation.simulate import Result

    Source: TypeAlias = Result | Path | str


def table(
    results: Mapping[str, Source | Sequence[Source]],
    *,
    baseline: str = "fedavg",
    split: str = "test",
    metric: str | Sequence[str] = "accuracy",
) -> pd.DataFrame:
    """Return the table of a comparison as a frame, best method first: scores, gains over the baseline, and intervals.

    ``results`` has, for each label, the result of ``simulate``, or the path of predictions, or a sequence of these, one
    per seed. Columns are those of ``table.csv`` in a comparison of ``pfl compare``, with the same numbers. ``metric``
    are names of metrics, the first of which ranks. Raises UsageError if the baseline
    or a metric is unknown, there is no result, a label has two of one seed, or an object has no predictions, InputError
    without samples of the ``split``.
    """
    if not results:
        raise UsageError("there is no result to compare", "{'fedavg': simulate('fedavg', federation)}")
    names = catalogue.parse_names([metric] if isinstance(metric, str) else metric)
    scored, megabytes, identities = list[ScoredPredictions](), dict[str, list[float]](), dict[int, NDArray[np.str_]]()
    for label, sources in results.items():
        for source in sources if isinstance(sources, Sequence) and not isinstance(sources, str) else [sources]:
            item, sent, names_of_clients = _score(source, label, split, names)
            if any((other.label, other.seed) == (label, item.seed) for other in scored):
                raise UsageError(f"{label} has two results with seed {item.seed}", "one result per seed")
            megabytes.setdefault(label, []).append(sent / 1e6)
            identities[id(item.answers)] = names_of_clients
            scored.append(item)
    scored = scoring.pair_with_baseline(scored, baseline)
    rows = []
    for label in results:
        items = [item for item in scored if item.label == label]
        metrics = summary.summarize_scores(
            label, items, lambda chosen: {item.seed: identities[id(item.answers)] for item in chosen}
        )
        metrics.add("megabytes", len(items), megabytes[label])
        marks = {"reference": True} if items[0].is_reference else {}
        rows.append({"label": label, "seeds": [item.seed for item in items], "metrics": dict(metrics), **marks})
    summary.correct_p_values(rows, baseline)
    rows.sort(key=lambda row: summary.sort_key(row, catalogue.METRICS[names[0]]))
    heading, body = tables.list_numbers({"methods": rows})
    frame = pd.DataFrame(body, columns=heading).set_index("method")
    return frame.astype(float, errors="ignore").replace({None: math.nan}).astype({"seeds": int})


def _score(
    source: Source, label: str, split: str, metrics: tuple[str, ...]
) -> tuple[ScoredPredictions, int, NDArray[np.str_]]:
    """Return the scores of a result or of stored predictions, the bytes that were sent, and who each client (m,) is."""
    seed: int
    if isinstance(source, (str, Path)):
        artifact = open_one(source, "predictions")
        answers, method = predictions.read(artifact, split), str(artifact.manifest.request["method"])
        seed = int(artifact.manifest.request["seed"])
        sent = sum(int(artifact.manifest.summary[f"bytes_{link}"]) for link in ("up", "down", "peer"))
        samples = {seed: (answers.sample, answers.offsets)}
        names = client_identity.identify_clients({seed: artifact}, samples)[seed]
    elif not hasattr(source, "predictions"):
        raise UsageError(
            f"{label} is {source!r}, which has no predictions", "give a result of simulate, or the path of predictions"
        )
    else:
        found, method, seed = source.predictions.get(split), source.method, source.seed
        if found is None:
            raise InputError(f"{label} has no {split} predictions")
        sizes = np.bincount(found.client, minlength=len(source.federation.clients))
        answers = predictions.SplitPredictions(
            dict(found.parts), found.y, _sample_ids(source, split, len(found.y)), offsets(sizes.tolist())
        )
        sent = sum(source.bytes.values())
        names = _identify(source)
    if not len(answers.y):
        raise InputError(f"{label} has no {split} samples to score")
    catalogue.require_classes(metrics, answers.parts["p"].shape[1])
    fields: dict[str, Any] = scoring.score_predictions(answers, metrics, 1)
    is_reference = scoring.is_reference(method)
    return ScoredPredictions(label=label, seed=seed, is_reference=is_reference, **fields), sent, names


def _sample_ids(result: Result, split: str, count: int) -> NDArray[np.int64]:
    """Return the rows (n,) of the predicted samples in the arrays or dataset, if they are known."""
    if result.federation.sample is None:
        return np.arange(count)
    return result.federation.sample[result.run.federation.rows_of(result.run.clients, split)]


def _identify(result: Result) -> NDArray[np.str_]:
    """Return who each client (m,) of a result is: its name in the data, else its number in its federation."""
    names = result.federation.names
    if not client_identity.are_numbered(names):
        return np.asarray(names)
    return np.asarray([f"{id(result.federation)}/{client}" for client in result.federation.clients])
