"""Detection of runs that did not learn, on hand-made curves and predictions."""

from __future__ import annotations

import numpy as np
import pytest

from pflcli.artifacts.kinds.predictions import SplitPredictions
from pflcli.core.tasks import Labels
from pflcli.evaluation import failed_training, records
from pflcli.evaluation.summary import ScoredPredictions

CLASS_0, CLASS_1, UNSURE = (0.9, 0.1), (0.1, 0.9), (0.51, 0.49)
WRONG = (0.001, 0.999)


def make_scored_run(p, y, losses=(), seed=3):
    """A run with predictions ``p`` (n, 2) for samples of the classes ``y`` (n,)."""
    p, y = np.asarray(p, np.float32), np.asarray(y)
    answers = SplitPredictions({"p": p}, y, np.arange(len(y)), np.asarray([0, len(y)]))
    fields, _ = records.make(answers, ("accuracy",), Labels(2), {})
    return ScoredPredictions(label="fedavg", seed=seed, losses=losses, class_names=["no", "yes"], **fields)


@pytest.mark.parametrize(
    ("p", "y", "losses", "words"),
    [
        ([CLASS_1] * 3, [0, 1, 1], [], "predicts one class for all samples: `fedavg` (class yes for 3 samples)"),
        ([CLASS_1] * 3, [1, 1, 1], [], ""),
        (
            [CLASS_0, CLASS_1],
            [0, 1],
            [0.5, 40.0],
            "ended with a training loss far above that of equal probabilities, 0.69: `fedavg` (40)",
        ),
        ([CLASS_0, CLASS_1], [0, 1], [40.0, 0.5], ""),
        ([CLASS_0, CLASS_1], [0, 1], [0.5, 6.0], ""),
        ([WRONG, CLASS_1, CLASS_0], [0, 1, 1], [], "is not more accurate than the most frequent class"),
        ([WRONG, CLASS_1, CLASS_0, CLASS_1], [0, 1, 1, 1], [], "is not more accurate than the most frequent class"),
        ([WRONG, CLASS_0, CLASS_0, CLASS_1], [0, 0, 1, 1], [], "is not more accurate than the most frequent class"),
        ([WRONG, CLASS_0, UNSURE, CLASS_1, CLASS_1], [0, 0, 0, 1, 1], [], ""),
        ([WRONG, CLASS_1, CLASS_0, CLASS_1], [0, 1, 0, 1], [], ""),
        ([CLASS_0, CLASS_1, UNSURE], [0, 1, 1], [], ""),
        ([WRONG, CLASS_0], [0, 0], [], ""),
    ],
)
def test_find_warnings_names_runs_that_did_not_learn(p, y, losses, words):
    lines = failed_training.find_warnings({"fedavg": [make_scored_run(p, y, losses)]})
    assert len(lines) == bool(words)
    assert all(line.startswith(words) and "`fedavg` (" in line and "--lr" in line for line in lines)


def test_find_warnings_names_the_first_failed_seed():
    learned = make_scored_run([CLASS_0, CLASS_1], [0, 1], seed=4)
    failed, later = (make_scored_run([CLASS_1] * 2, [0, 1], seed=seed) for seed in (5, 6))
    (line,) = failed_training.find_warnings({"local": [learned, failed, later], "oracle": [learned]})
    assert "`local` (class yes for 2 samples under seed 5);" in line


def test_methods_that_failed_in_the_same_way_share_a_warning():
    runs = {
        "a": [make_scored_run([WRONG, CLASS_1, CLASS_0], [0, 1, 1])],
        "b": [make_scored_run([WRONG, CLASS_0, CLASS_0, CLASS_1], [0, 0, 1, 1])],
        "c": [make_scored_run([CLASS_0, CLASS_1], [0, 1], [40.0])],
    }
    useless, diverged = failed_training.find_warnings(runs)
    assert "`a` (" in useless
    assert "`b` (" in useless
    assert "`c` (40)" in diverged
