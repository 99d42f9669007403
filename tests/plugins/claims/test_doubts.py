"""What weakens a verdict: few or chosen seeds, rivals below FedAvg, wide margins, training that is not finished."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pflcli.plugins.claims import doubts
from pflcli.plugins.claims.claims_file import Claim
from pflcli.plugins.claims.comparisons import Cell
from pflcli.plugins.claims.judge import Runs

FLAT = (range(5, 65, 5), [0.8] * 12)
RISING = (range(5, 65, 5), [0.1 + 0.1 * np.log2(t) for t in range(5, 65, 5)])


class HandMade(Runs):
    """Runs whose accuracy is that over clients."""

    def value(self, metric, item):
        return float(item.client["accuracy"].mean())


def make_runs(*, seeds=(0, 1, 2), curve=FLAT, **accuracy):
    """Runs of five clients by method, with the gain of each over fedavg."""
    base = accuracy["fedavg"]
    return HandMade(
        {
            name.replace("_", "-"): {
                seed: SimpleNamespace(
                    client={"accuracy": np.full(5, value)},
                    n=np.full(5, 20),
                    baseline=np.full(5, base),
                    gain=np.full(5, value - base),
                    is_reference=False,
                    curve=curve,
                    validation_samples=1000,
                )
                for seed in seeds
            }
            for name, value in accuracy.items()
        },
        {},
    )


def find(runs, existing=(0, 1, 2), **claim):
    stated = Claim(
        **{"says": "a", "on": ("x",), "direction": "higher", "method": "mine", "against": ("rival",), **claim}
    )
    record = {"decided_by": {"seeds": sorted(runs.seeds)}}
    return doubts.find(stated, Cell("x", "x", {}, stated.pairs), record, runs, existing)


def test_nothing_weakens_three_seeds_that_are_trained_to_the_end():
    assert find(make_runs(fedavg=0.7, rival=0.75, mine=0.8), margin=0.05) == []


@pytest.mark.parametrize(
    ("runs", "more", "warning"),
    [
        ({"seeds": (0, 1)}, {"existing": (0, 1)}, "only 2 seeds"),
        ({"seeds": (0, 1, 3)}, {"existing": (0, 1, 2, 3)}, "0, 1, 3 of the seeds 0, 1, 2, 3 in the folder"),
        ({"rival": 0.65}, {}, "rival is below fedavg"),
        ({}, {"margin": 0.2}, "the margin 20.0 is beyond the spread of all methods, 10.0"),
        (
            {"curve": RISING},
            {},
            "training is not finished: mine +10.0, rival +10.0 points per doubling of the rounds",
        ),
    ],
    ids=["two seeds", "chosen seeds", "a weak rival", "a wide margin", "half trained"],
)
def test_what_weakens_a_verdict_is_named(runs, more, warning):
    assert find(make_runs(**{"fedavg": 0.7, "rival": 0.75, "mine": 0.8, **runs}), **more) == [warning]


def test_scores_do_not_weaken_a_verdict_on_bytes():
    assert find(make_runs(fedavg=0.7, rival=0.6, mine=0.8, curve=RISING), metric="megabytes", margin=9.0) == []
