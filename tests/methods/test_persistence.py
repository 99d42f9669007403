"""Persistence: the last value of the target in each window, in memory and among the references of comparisons."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from pflcli import Federation, compare, partition, simulate
from pflcli.core.engine.tasks.count import Count
from pflcli.core.engine.tasks.quantile import Quantile
from pflcli.core.engine.tasks.quantity import Quantity
from pflcli.core.errors import UnsuitedError


@pytest.mark.parametrize("task", [Quantity, Count, partial(Quantile, 2, quantiles=(0.1, 0.9), at=(0.0, 1.0))])
def test_persistence_predicts_the_last_value_in_the_unit_of_labels(task):
    draw = np.random.default_rng(0)
    x, y, client = draw.normal(size=(60, 5, 3)).astype(np.float32), np.arange(60) % 4, np.arange(60) % 3
    federation = Federation.from_arrays(x, y, client, task=task(past=(1, 10.0, 2.0)))
    answers = simulate("persistence", federation, quiet=True).predictions["test"]
    rows = federation.sample[federation.rows_of(federation.clients, "test")]
    expected = np.repeat(10 + 2 * x[rows, -1:, 1], federation.task.outputs, axis=1)
    np.testing.assert_allclose(answers.p, expected, rtol=1e-6)


@pytest.mark.parametrize("task", [None, "quantity"])
def test_samples_that_are_no_series_are_refused(task):
    x, y = np.random.default_rng(0).normal(size=(60, 5, 3)).astype(np.float32), np.arange(60) % 4
    federation = Federation.from_arrays(x, y, np.arange(60) % 3, task=task)
    with pytest.raises(UnsuitedError, match="persistence learns series, and the task is"):
        simulate("persistence", federation, quiet=True)


SERIES = """
from dataclasses import replace
from functools import partial

import numpy as np
from pflcli.core.datasets import Samples
from pflcli.core.engine.tasks.quantile import Quantile
from pflcli.core.engine.tasks.quantity import Quantity
CLASSES, SHAPE, LICENCE = 1, "4x1", "none"

def load(root, *, download=False):
    record = np.cumsum(np.random.default_rng(0).normal(size=(3, 204)), axis=1).astype(np.float32)
    x = np.concatenate([np.lib.stride_tricks.sliding_window_view(each, 4)[:-1] for each in record])[:, :, None]
    y = record[:, 4:].ravel().astype(np.float64)
    return Samples(x, y, 1, np.repeat(list("abc"), 200), ordered=True, gap=4, task=Quantity(past=(0, 0, 1)))
"""


def test_comparisons_of_series_have_it_as_a_reference_and_others_do_not(tmp_path):
    (tmp_path / "series.py").write_text(SERIES)
    settings = {"model": "logistic", "rounds": 1}
    rows = {}
    for name in (str(tmp_path / "series.py"), "writers"):
        made = partition(name, tmp_path / f"{rows and 'w'}p", clients=3)
        compared = compare([made.path], tmp_path / f"{rows and 'w'}c", methods=["fedavg"], settings=settings)
        rows[name] = compared.table()
    first, second = rows.values()
    assert "persistence" in first.index
    assert "persistence" not in second.index
    assert first.loc["persistence", "rmse"] < first.loc["constant", "rmse"]
