"""Every method gives the same predictions with acceleration off, in another process; they differ by rounding alone."""

from __future__ import annotations

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from pflcli import registry
from pflcli.engine import backend

METHODS = [name for name in registry.names("methods") if name != "oracle"]  # which needs clusters that are known


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Comparisons of all methods on the same partition with acceleration on and off."""
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


def probabilities(path):
    """All probabilities that are stored for a method, one array per split and part."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and item.dtype.kind == "f":
            found[name] = item[:]

    with h5py.File(path / "predictions.h5") as file:
        file.visititems(visit)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_predictions_are_those_of_compiled_loops(method, folders):
    on, off = (probabilities(folders / mode / "seed-0" / method) for mode in ("on", "off"))
    assert on.keys() == off.keys() != set()
    for name, expected in on.items():
        np.testing.assert_allclose(off[name], expected, rtol=0, atol=1e-4, err_msg=name)
