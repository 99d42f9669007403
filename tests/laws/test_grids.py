"""The grid of every method for tuning has valid values of its options, its defaults among them."""

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
