"""The page on other tools: methods that PFLlib and Flower trained are judged on a partition."""

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
FLOWER = Path(os.environ.get("FLOWER_ENVIRONMENT") or sys.prefix, "bin", "python")
"""The Python of Flower's environment, as for the relays of examples/deploy; by default that of pfl."""
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


def flower_lacks():
    """Return what the environment of Flower lacks, or an empty text."""
    asked = "import importlib.util, sys; print(*(m for m in sys.argv[1:] if importlib.util.find_spec(m) is None))"
    line = [FLOWER, "-c", asked, "flwr", "ray", "torch", "h5py"]
    lacking = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    return f"FLOWER_ENVIRONMENT, the folder of an environment, lacks {', '.join(lacking)}" if lacking else ""


@pytest.mark.long
def test_flowers_fedavg_is_judged_on_a_partition(tmp_path):
    if reason := flower_lacks():
        pytest.skip(reason)
    partition("writers", tmp_path / "p", clients=4, seed=0)
    script = ROOT / "examples" / "other-tools" / "flower.py"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for name, options in {"plain": [], "tuned": ["--fine-tune", "5"]}.items():
        rounds = ["--rounds", "10", "--participation", "0.5"]
        line = [FLOWER, script, tmp_path / "p", tmp_path / f"{name}.csv", *rounds, *options]
        ran = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        import_predictions(tmp_path / f"{name}.csv", tmp_path / name, like=tmp_path / "p", name=name)
    personalize("constant", tmp_path / "p", tmp_path / "constant", settings={"model": "mlp"})
    made = [tmp_path / name for name in ("plain", "tuned", "constant")]
    table = evaluate(made, tmp_path / "ev", baseline="constant").table()
    assert table.loc["plain", "accuracy"] > table.loc["constant", "accuracy"] + 0.1
    assert table.loc["tuned", "accuracy"] != table.loc["plain", "accuracy"]
