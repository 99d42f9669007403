"""With acceleration off, in another process, methods give the same predictions up to rounding.

Test_compiled compares compiled loops with operators for every method, within one process.
"""

from __future__ import annotations

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from helpers import ONE_OF_EACH_KIND
from pflcli.core.engine import backend

METHODS = (*ONE_OF_EACH_KIND, "fedattn", "fedham", "fedproto", "fedrep", "pfedfda", "pfedgp")


@pytest.fixture(scope="module")
def comparisons_with_and_without_acceleration(tmp_path_factory):
    """Comparisons of the methods on the same partition with acceleration on and off."""
    at = tmp_path_factory.mktemp("reference")
    words = ["compare", "p", "--methods", ",".join(METHODS), "--rounds", "1", "--model", "mlp", "--threads", "1", "-q"]
    lines = {"p": ["partition", "writers", "--clients", "8", "--new-clients", "0.25", "--part", "1/6", "-q"]}
    lines |= {"on": words, "off": words}
    for out, line in lines.items():
        environment = {**os.environ, backend.SWITCH: "0" if out == "off" else "1"}
        command = [sys.executable, "-m", "pflcli", *line, "-o", out]
        done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return at


def read_probabilities(path):
    """All probabilities that are stored for a method, one array per split and part."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and item.dtype.kind == "f":
            found[name] = item[:]

    with h5py.File(path / "predictions.h5") as file:
        file.visititems(visit)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_predictions_are_the_same_when_acceleration_is_off(method, comparisons_with_and_without_acceleration):
    on, off = (
        read_probabilities(comparisons_with_and_without_acceleration / mode / "seed-0" / method)
        for mode in ("on", "off")
    )
    assert on.keys() == off.keys() != set()
    for name, expected in on.items():
        np.testing.assert_allclose(off[name], expected, rtol=0, atol=1e-4, err_msg=name)
