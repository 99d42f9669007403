"""Detection of runs that did not learn, on hand-made curves and predictions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pflcli.artifacts import codebook
from pflcli.evaluation import failed_training, round_costs

CLASS_0, CLASS_1, UNSURE = (0.9, 0.1), (0.1, 0.9), (0.51, 0.49)
WRONG = (0.001, 0.999)


def make_scored_run(p, y):
    """A run with predictions ``p`` (n, 2) for samples of the classes ``y`` (n,)."""
    p, y = np.asarray(p, np.float32), np.asarray(y)
    answers = SimpleNamespace(parts={"p": p}, y=y)
    return SimpleNamespace(seed=3, artifact=None, answers=answers, right=p.argmax(axis=1) == y)


@pytest.mark.parametrize(
    ("p", "y", "losses", "words"),
    [
        ([CLASS_1] * 3, [0, 1, 1], [], "predicts class 1 for all 3 samples"),
        ([CLASS_1] * 3, [1, 1, 1], [], ""),
        ([CLASS_0, CLASS_1], [0, 1], [0.5, 40.0], "ended with a training loss of 40"),
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
def test_find_warnings_names_runs_that_did_not_learn(p, y, losses, words, monkeypatch):
    rows = [{"loss": ""}, *({"loss": str(loss)} for loss in losses)]
    monkeypatch.setattr(round_costs, "read_rounds", lambda artifact: (None, rows))
    names = SimpleNamespace(class_names=lambda count: [*map(str, range(count))])
    monkeypatch.setattr(codebook, "read", lambda artifact: names)
    lines = failed_training.find_warnings({"fedavg": [make_scored_run(p, y)]})
    assert len(lines) == bool(words)
    assert all(line.startswith(f"`fedavg` {words}") and "--lr" in line for line in lines)


def test_find_warnings_names_the_first_failed_seed(monkeypatch):
    monkeypatch.setattr(round_costs, "read_rounds", lambda artifact: (None, []))
    monkeypatch.setattr(codebook, "read", lambda artifact: SimpleNamespace(class_names=lambda count: ["no", "yes"]))
    failed, learned = make_scored_run([CLASS_1] * 2, [0, 1]), make_scored_run([CLASS_0, CLASS_1], [0, 1])
    failed.seed, learned.seed = 5, 4
    later = make_scored_run([CLASS_1] * 2, [0, 1])
    later.seed = 6
    (line,) = failed_training.find_warnings({"local": [learned, failed, later], "oracle": [learned]})
    assert line.startswith("`local` predicts class yes for all 2 samples under seed 5:")
