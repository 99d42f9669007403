"""A task of a kind that pfl does not have goes through ``simulate`` and ``table``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from pflcli import Federation, simulate, table
from pflcli.core import tasks
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import ranking
from pflcli.core.tasks import RANKING
from pflcli.evaluation.presentation import tables


@dataclass(frozen=True)
class Quantity:
    """Predict a quantity: the loss is the squared error, the score the negative absolute error."""

    kind: ClassVar[str] = "quantities"
    score: ClassVar[str] = "negative MAE"
    unit: str = ""
    outputs: int = 1
    names: tuple[str, ...] = ()

    def check(self, where, y):
        if not np.isfinite(y).all():
            raise InputError(f"{where}: row {np.flatnonzero(~np.isfinite(y))[0]} has no finite label")
        return y.astype(np.float32)

    def describe(self, y):
        return {"mean": float(y.mean())}

    def losses(self, outputs, y):
        return (outputs[:, 0] - y) ** 2

    def mean_losses(self, outputs, y, weight, scale=1.0):
        off = outputs[..., 0] - y
        factor = weight * (scale[:, None] if isinstance(scale, torch.Tensor) else scale)
        return (off**2 * weight).sum(dim=1), (2 * off * factor)[..., None]

    def predict(self, outputs):
        return outputs.float().cpu().numpy()

    def default(self):
        return np.zeros(1, np.float32)

    def bounded_losses(self, p, y):
        return np.minimum((p[:, 0] - y) ** 2, 16).astype(np.float64)

    def scores(self, p, y):
        return -np.abs(p[:, 0] - y)


SETTINGS = {"model": "mlp", "batch_size": 16, "lr": 0.05, "participation": 1.0, "quiet": True}


def make_quantities(**options):
    """Return clients whose labels are linear in the features, with an offset and a slope of their own."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(6), 60)
    x = draw.normal(size=(360, 4)).astype(np.float32)
    y = 2 + 0.5 * x[:, 0] + (client % 2) * x[:, 1]
    return Federation.from_arrays(x, y, client, task=Quantity(**options))


@pytest.fixture(scope="module", autouse=True)
def _mae():
    entries = ranking(
        *("mae", "MAE"), unit="", percent=False, lower_is_better=True, task="quantities",
        per_sample=lambda p, y: np.abs(p[:, 0] - y),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tasks.KINDS, "quantities", tasks.Kind(__name__, "Quantity", ("mae",)))
        for entry in entries:
            patch.setitem(catalogue.METRICS, entry.name, entry)
        for module in (catalogue, tables):
            patch.setattr(module, "RANKING", (*RANKING, "mae"))
        yield


def measure(result):
    """Return the mean absolute error of test predictions."""
    found = result.predictions["test"]
    return float(np.abs(found.p[:, 0] - found.y).mean())


def test_a_task_of_its_own_goes_through_simulate_and_table():
    federation = make_quantities()
    assert [*federation.describe().columns] == ["train", "validation", "test", "mean"]
    results = {name: simulate(name, federation, rounds=30, eval_every=1, **SETTINGS) for name in ("fedavg", "ditto")}
    frame = table(results)
    assert frame.loc["ditto", "mae"] == pytest.approx(measure(results["ditto"]), rel=1e-6)
    assert frame.index[0] == "ditto"
    assert frame.loc["ditto", "mae"] < 0.6 * frame.loc["fedavg", "mae"]
    assert frame.loc["ditto", "gain"] == pytest.approx(frame.loc["fedavg", "mae"] - frame.loc["ditto", "mae"])
    assert "accuracy" not in frame
    assert f"negative_MAE={-measure(results['ditto']):.4f}" in repr(results["ditto"])
    assert any("lower the MAE" in note for note in frame.attrs["notes"])
    with pytest.raises(UsageError, match="log_loss is a metric of classes, and labels are quantities"):
        table(results, metric="log_loss")


def test_a_result_has_the_score_of_its_task_and_refuses_accuracy():
    result = simulate("fedavg", make_quantities(unit="EUR"), rounds=1, **SETTINGS)
    test = result.predictions["test"]
    assert result.score() == pytest.approx(-measure(result), rel=1e-6)
    np.testing.assert_array_equal(test.scores, -np.abs(test.p[:, 0] - test.y))
    assert repr(test) == "Predictions(samples=72, quantities=1, parts=['p'])"
    for ask in (result.accuracy, result.accuracies, lambda: test.correct):
        with pytest.raises(UnsuitedError, match="labels are quantities, which are not right or wrong"):
            ask()


def test_the_best_round_is_that_of_the_highest_score_of_the_task():
    result = simulate("fedavg", make_quantities(), rounds=8, eval_every=1, report="best", **{**SETTINGS, "lr": 0.3})
    scores = result.rounds["validation_accuracy"]
    assert (scores < 0).all()
    assert scores.nunique() == len(scores)
    best = simulate("fedavg", make_quantities(), rounds=int(scores.idxmax()), **{**SETTINGS, "lr": 0.3})
    np.testing.assert_array_equal(result.predictions["test"].p, best.predictions["test"].p)
    found = result.predictions["validation"]
    assert scores.max() == pytest.approx(-np.abs(found.p[:, 0] - found.y).mean(), rel=1e-6)


def test_labels_and_methods_that_do_not_fit_a_task_are_refused():
    x, y, client = np.zeros((4, 2)), np.asarray([1.0, np.nan, 2.0, 3.0]), ["a", "a", "b", "b"]
    with pytest.raises(InputError, match="y of row 1 is missing"):
        Federation.from_arrays(x, y, client, task=Quantity())
    with pytest.raises(InputError, match="row 1 has no finite label"):
        Federation.from_arrays(x, np.nan_to_num(y, nan=np.inf), client, task=Quantity())
    with pytest.raises(InputError, match=r"y has shape \(4, 2\), not \(n,\)"):
        Federation.from_arrays(x, x, client, task=Quantity())
    with pytest.raises(UsageError, match="task is 'quantities', not a task"):
        Federation.from_arrays(x, y, client, task="quantities")
    with pytest.raises(UsageError, match="task and classes both say"):
        Federation.from_arrays(x, np.ones(4), client, task=Quantity(), classes=[1])
    with pytest.raises(UnsuitedError, match="fedproto learns classes, and labels are quantities"):
        simulate("fedproto", make_quantities(), **SETTINGS)
    with pytest.raises(UnsuitedError, match="there are no classes to predict: labels are quantities"):
        _ = make_quantities().classes
