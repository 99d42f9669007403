"""The grid of every method for tuning has valid values of its options, its defaults and learning rates among them."""

from __future__ import annotations

import pytest

from pflcli.core import config, methods, registry
from pflcli.core.settings import Settings
from pflcli.workflow.tuning.space import search_space


@pytest.mark.parametrize("name", registry.names("methods"))
def test_method_grid_contains_the_defaults_and_only_valid_points(name):
    algorithm = methods.load(name)
    searched = search_space(name, None, {}, {}, "grid")
    known = {**{f"training.{key}": value for key, value in config.plain(Settings()).items()}}
    known |= config.plain(algorithm.Config())
    assert searched.holds({axis.key: known[axis.key] for axis in searched.axes})
    for point in searched.points():
        options, settings = searched.split(point)
        config.build(algorithm.Config, options, name)
        config.build(Settings, settings, name)
    assert {*algorithm.GRID} <= {axis.key for axis in searched.axes}


SAME_AS_ROUND = [("ditto", "lr"), ("fedbabu", "lr"), ("fedhealth", "lr"), ("fedpac", "head_lr")]


@pytest.mark.parametrize(("name", "key"), SAME_AS_ROUND, ids=[name for name, _ in SAME_AS_ROUND])
def test_no_two_points_of_a_grid_are_the_same_run(name, key):
    """A rate of 0 is that of the round: beside it, a rate that is also tried for the round would be tried twice."""
    rates = methods.load(name).GRID[key]
    assert 0.0 in rates
    assert not {*rates} & {*methods.LEARNING_RATES}


UNSEARCHED = {
    ("apfl", "alpha_lr"): "without effect unless clients learn their shares",
    ("pfedme", "lr"): "0 uses the setting, which trains nothing else and is searched",
    ("fedavg", "server_lr"): "of server optimizers, which are chosen by name; that of FedAvg is 1",
    ("fedprox", "server_lr"): "of server optimizers, which are chosen by name; that of FedProx is 1",
}


@pytest.mark.parametrize("name", registry.names("methods"))
def test_method_searches_every_learning_rate_of_its_own(name):
    """Of heads, personal steps, attention and servers; that of training is searched for all methods that train."""
    algorithm = methods.load(name)
    rates = {key for key in config.plain(algorithm.Config()) if key == "lr" or key.endswith("_lr")}
    unsearched = {key for method, key in UNSEARCHED if method == name}
    assert unsearched <= rates
    assert rates - unsearched <= {axis.key for axis in search_space(name, None, {}, {}, "grid").axes}
    if algorithm.has_rounds:
        assert "training.lr" in {axis.key for axis in search_space(name, None, {}, {}, "grid").axes}
