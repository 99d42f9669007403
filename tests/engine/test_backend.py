"""The chain runs without the accelerated package: switched off, without Numba, and with its folder deleted.

``tests/laws/test_reference.py`` runs every method with acceleration off.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from helpers import ROOT
from pflcli.core.engine import backend

_RUNS = """
import sys
# An editable installation would find a package that the copy lacks in the checkout.
sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
if "absent" in sys.argv:
    sys.modules["numba"] = sys.modules["llvmlite"] = None
import pflcli
from pathlib import Path
from pflcli.core.engine import backend
print(backend.why_off())
pflcli.partition("writers", "p", clients=8, seed=1)
pflcli.train_global("p", "b", settings={"model": "cnn", "rounds": 1}, seed=1)
pflcli.extract("b", "e")
pflcli.build_datastore("e", "d")
for method, source in (("fedavg", "b"), ("knn-per", "d"), ("fedham", "p"), ("pfedgp", "p")):
    settings = {"model": "mlp", "rounds": 1} if source == "p" else {}
    pflcli.personalize(method, source, method, settings=settings, seed=1)
    assert Path(method, "predictions.h5").is_file()
loaded = [name for name, module in sys.modules.items() if module and name.split(".")[0] in ("numba", "llvmlite")]
assert not loaded, loaded
assert not any(name.startswith("pflcli.plugins.accelerated") for name in sys.modules)
"""


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("interpreted", "NUMBA_DISABLE_JIT is set"),
        ("absent", "Numba is not installed"),
        ("deleted", "no plug-in has compiled forms"),
    ],
)
def test_methods_run_without_acceleration(mode, why, tmp_path):
    root = ROOT.parent
    if mode == "deleted":
        root = tmp_path / "copy"
        shutil.copytree(ROOT, root / "pflcli", ignore=shutil.ignore_patterns("accelerated", "__pycache__"))
    switches = {"NUMBA_DISABLE_JIT": "1"} if mode == "interpreted" else {}
    environment = {**os.environ, backend.SWITCH: "1", **switches, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", _RUNS, mode]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert why in process.stdout


def test_environment_variable_turns_acceleration_off(monkeypatch):
    monkeypatch.setenv(backend.SWITCH, "0")
    assert backend.why_off() == "PFL_ACCELERATED is 0"
    assert backend.part("products") is None


@pytest.mark.compiled
def test_acceleration_is_on_by_default(monkeypatch):
    monkeypatch.delenv(backend.SWITCH, raising=False)
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
    assert backend.why_off() is None
    assert backend.part("products").__name__ == "pflcli.plugins.accelerated.products"
