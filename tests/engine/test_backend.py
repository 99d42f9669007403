"""Everything runs without the accelerated package: switched off, without Numba, and with its folder deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from helpers import ROOT
from pflcli.engine import backend

_RUNS = """
import sys
# An editable installation would find a package that the copy lacks in the checkout.
sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
if "absent" in sys.argv:
    sys.modules["numba"] = sys.modules["llvmlite"] = None
import pflcli
from pathlib import Path
from pflcli.engine import backend
print(backend.why_off())
pflcli.partition("writers", "p", new_clients=0.8, seed=1)
for method in ("fedavg", "pfedme", "fedproto", "fedrod", "feddbe", "fedem", "fedham", "pfedgp"):
    for model in ("mlp", "cnn") if method == "fedavg" else ("mlp",):
        pflcli.personalize(method, "p", f"{method}-{model}", settings={"model": model, "rounds": 1}, seed=1)
        assert Path(f"{method}-{model}", "predictions.h5").is_file()
loaded = [name for name, module in sys.modules.items() if module and name.split(".")[0] in ("numba", "llvmlite")]
assert not loaded, loaded
assert not any(name.startswith("pflcli.accelerated") for name in sys.modules)
"""


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("off", "PFL_ACCELERATED is 0"),
        ("interpreted", "NUMBA_DISABLE_JIT is set"),
        ("absent", "Numba is not installed"),
        ("deleted", "the package is not installed"),
    ],
)
def test_methods_run_without_acceleration(mode, why, tmp_path):
    root = ROOT.parent
    if mode == "deleted":
        root = tmp_path / "copy"
        shutil.copytree(ROOT, root / "pflcli", ignore=shutil.ignore_patterns("accelerated", "__pycache__"))
    switches = {"off": {backend.SWITCH: "0"}, "interpreted": {"NUMBA_DISABLE_JIT": "1"}}.get(mode, {})
    environment = {**os.environ, backend.SWITCH: "1", **switches, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", _RUNS, mode]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert why in process.stdout


def test_acceleration_is_on_by_default(monkeypatch):
    monkeypatch.delenv(backend.SWITCH, raising=False)
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
    assert backend.why_off() is None
    assert backend.part("products").__name__ == "pflcli.accelerated.products"
