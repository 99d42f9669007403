"""The page on other tools: a method of PFLlib, trained by PFLlib's own program, is judged on a partition."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pflcli.commands.evaluate import evaluate
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.plugins.referee.import_predictions import import_predictions

ROOT = Path(__file__).parents[2]
CHECKOUT = os.environ.get("PFLLIB", "")
NEEDED = ("matplotlib", "calmsize", "sklearn", "torchvision")
_RUN = """
import runpy, sys
from pflcli.core import vision
vision.torchvision()  # also beside a build of torch that its extension does not fit
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def why_not():
    """Return why PFLlib cannot run here, or an empty text."""
    if not Path(CHECKOUT, "system", "main.py").is_file():
        return "PFLLIB is not the folder of a checkout of PFLlib"
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"PFLlib needs {', '.join(lacking)}" if lacking else ""


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize(("algorithm", "rounds"), [("Ditto", 10), ("FedAvg", 60)])
def test_a_method_of_pfllib_is_judged_on_a_partition(tmp_path, algorithm, rounds):
    partition("writers", tmp_path / "p", clients=4, seed=0)
    script = ROOT / "examples" / "other-tools" / "pfllib.py"
    options = ["-algo", algorithm, "-m", "DNN", "-gr", str(rounds), "-lr", "0.05"]
    line = [sys.executable, "-c", _RUN, script, CHECKOUT, tmp_path / "p", tmp_path / "theirs.csv", *options]
    ran = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    import_predictions(tmp_path / "theirs.csv", tmp_path / "theirs", like=tmp_path / "p", name="theirs")
    personalize("constant", tmp_path / "p", tmp_path / "constant", settings={"model": "mlp"})
    table = evaluate([tmp_path / "theirs", tmp_path / "constant"], tmp_path / "ev", baseline="constant").table()
    assert table.loc["theirs", "accuracy"] > table.loc["constant", "accuracy"] + 0.1
