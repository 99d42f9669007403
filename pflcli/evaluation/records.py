"""Records of clients: the numbers from which the table of a comparison, its conclusion and its warnings follow.

A record has numbers of samples, scores, and sums over samples, but nothing of a single one. ``scoring.add_records``
reads each run once, and all that follows reads records alone. What cannot follow from them reads samples in one place,
so that sites that keep their samples will not have it: the thresholds ``pooled`` and ``shrunk`` of prediction sets
(``coverage``), stacks and the choice of the best single method (``stack_references``), scores on training samples
(``summary``) and by group (the plug-in ``groups``), and methods that pool samples, such as ``alone-pooled``. Scores by
round, and so the time to a ``--target``, are stored with the rounds.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.kinds.predictions import SplitPredictions
from pflcli.core import scores
from pflcli.core.metrics import catalogue
from pflcli.core.tasks import CLASSES, Labels


def _empty() -> Any:
    return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class Records:
    """Records of the m clients of a run, for the samples of one split."""

    n: NDArray[np.int64] = field(default_factory=_empty)
    """numbers of samples, (m,); 0 too for a client that withholds the rest of its record"""
    samples: NDArray[np.str_] = field(default_factory=_empty)
    """digests of samples, (m,): two runs with the same were scored on the same samples"""
    client: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """scores (m,) by metric; nan where they are undefined"""
    counts: NDArray[np.int64] = field(default_factory=_empty)
    """numbers of labels, predictions and right predictions by class, (m, 3, C); C is 0 unless labels are classes"""
    gaps: NDArray[np.float64] = field(default_factory=_empty)
    """sums of confidence minus right predictions, (m, bins), from which the calibration error follows"""
    shared: NDArray[np.float64] | None = None
    """scores (m,) of the global model that is stored beside the method, for a run without the baseline"""
    differs: NDArray[np.float64] | None = None
    """the largest difference of predictions to those of the baseline, (m,); None without the baseline"""
    discordant: NDArray[np.int64] = field(default_factory=_empty)
    """numbers of samples on which exactly one of method and baseline is right, (m,); empty without both"""
    pairs: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """sums (m, S, 3) of ``pair`` over the baseline ("") and over methods without the others, for few clients"""
    withheld: NDArray[np.int64] | int = 0
    """numbers of samples (m,) of clients that withhold the rest of their records; 0 for the others"""

    def pool(self) -> dict[str, float]:
        """Return the metrics of the samples of all clients together, by name."""
        if "log_loss" not in self.client:
            return {}
        return {
            "macro_precision": scores.average_precisions(*self.counts.sum(axis=0)),
            "calibration_error": float(np.abs(self.gaps.sum(axis=0)).sum() / self.n.sum()),
            "log_loss": scores.weighted_mean(self.client["log_loss"], self.n),
        }


def make(
    answers: SplitPredictions, metrics: tuple[str, ...], labels: Labels, others: Mapping[str, SplitPredictions]
) -> tuple[dict[str, Any], dict[str, NDArray[np.int8]]]:
    """Return fields of ``Records`` for the predictions of a run, and for ``pair`` its differences (n,) to ``others``.

    ``others`` are those of other methods for the same samples, by label. Without the baseline, "", the global model
    that is stored beside the method takes its place. There are differences for classes alone.
    """
    p, y, offsets = answers.parts["p"], answers.y, answers.offsets
    n, are_classes, named = np.diff(offsets), labels.kind == CLASSES, catalogue.client_metrics(metrics)
    owner, clients = np.repeat(np.arange(len(n)), n), len(n)
    counts: NDArray[np.int64] = np.zeros((clients, 3, 0), np.int64)
    gaps, client = np.zeros((clients, 0)), dict[str, NDArray[np.float64]]()
    if are_classes:  # from sums, as fast with many clients as with one
        counts = scores.count_classes(p, y, owner, clients)
        gaps = scores.calibration_gaps(p, y, owner, clients)
        client["macro_precision"] = np.asarray([scores.average_precisions(*each) for each in counts], np.float64)
        client["calibration_error"] = scores.ratio(np.abs(gaps).sum(axis=1), n)
    client |= {each.name: each.score_clients(p, y, offsets, labels) for each in named if each.name not in client}
    fields: dict[str, Any] = {"n": n, "samples": digest_samples(answers), "client": client}
    fields |= {"counts": counts, "gaps": gaps}
    parts = {label: each.parts["p"] for label, each in others.items()}
    if "" in parts:
        apart = np.abs(p - parts[""]).max(axis=1, initial=0) if p.shape == parts[""].shape else np.inf
        fields["differs"] = np.zeros(clients)
        np.maximum.at(fields["differs"], owner, apart)
    elif "global" in answers.parts:
        parts[""] = answers.parts["global"]
        fields["shared"] = catalogue.METRICS[metrics[0]].score_clients(parts[""], y, offsets, labels)
    if not are_classes:
        return fields, {}
    right = scores.correct(p, y).astype(np.int8)
    differences = {label: right - scores.correct(other, y) for label, other in parts.items()}
    if "" in differences:
        fields["discordant"] = np.bincount(owner[differences[""] != 0], minlength=clients)
    return fields, differences


def are_same(one: SplitPredictions, other: SplitPredictions) -> bool:
    """Return whether two runs predicted the same samples of the same clients."""
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("sample", "offsets", "y"))


def digest_samples(answers: SplitPredictions, secret: bytes = b"") -> NDArray[np.str_]:
    """Return a digest of each client's samples, (m,): of their ids and labels.

    The labels of few samples could be guessed from it. A ``secret``, the same for all runs, prevents this.
    """
    rows = np.stack([answers.sample, np.asarray(answers.y, np.float64).view(np.int64)], axis=1)
    ends = itertools.pairwise(answers.offsets.tolist())
    found = [hashlib.blake2b(rows[a:b].tobytes(), digest_size=16, key=secret).hexdigest() for a, b in ends]
    return np.asarray(found, np.str_)


def pair(
    runs: Sequence[SplitPredictions], differences: Sequence[NDArray[np.int8]], names: Sequence[Sequence[Any]]
) -> list[NDArray[np.int64]]:
    """Return the sums (m, S, 3) of the clients of each of S seeds, from which ``fixed_clients`` has the mean gain.

    ``differences`` (n,) are 1 for samples that only a method predicts right, -1 where only the other method does, else
    0. The sums are those over the samples that a client, known by its name in ``names`` (m,), has under two seeds:
    their number, the sum of the products of differences, and of the differences under the first seed.
    """
    known = {name: number for number, name in enumerate(dict.fromkeys(itertools.chain(*names)))}
    who = [np.asarray([known[name] for name in each]) for each in names]
    span = 1 + max(int(run.sample.max(initial=0)) for run in runs)
    keys = [np.repeat(each, np.diff(run.offsets)) * span + run.sample for each, run in zip(who, runs, strict=True)]
    ids = np.unique(np.concatenate(keys))
    values, tests = np.zeros((2, len(runs), len(ids)), np.int64)
    for seed, (key, difference) in enumerate(zip(keys, differences, strict=True)):
        place = np.searchsorted(ids, key)
        values[seed, place], tests[seed, place] = difference, 1
    terms = np.stack([tests[:, None] * tests, values[:, None] * values, values[:, None] * tests], axis=-1)
    sums = np.zeros((len(known), *terms.shape[:2], 3), np.int64)  # (clients, S, S, 3)
    np.add.at(sums, ids // span, terms.transpose(2, 0, 1, 3))
    return [sums[each, seed] for seed, each in enumerate(who)]
