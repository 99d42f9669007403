"""Flower and NVFlare carry the messages of real sites: the scripts of examples/deploy, where these are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import ROOT

RELAYS = {"flower": "flwr", "nvflare": "nvflare"}
"""The program of each relay; FLOWER_ENVIRONMENT and NVFLARE_ENVIRONMENT are the environments with them."""


@pytest.mark.long
@pytest.mark.parametrize("relay", RELAYS)
def test_a_relay_gives_the_bytes_of_the_exchange_by_a_folder(relay, tmp_path):
    environment = os.environ.get(f"{relay.upper()}_ENVIRONMENT", "")
    if not Path(environment, "bin", RELAYS[relay]).exists():
        pytest.skip(f"{relay.upper()}_ENVIRONMENT is no environment with {RELAYS[relay]}")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for script in ("four_hospitals", relay):
        words = ["bash", ROOT.parent / "examples" / "deploy" / f"{script}.sh", tmp_path / "runs"]
        ran = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    assert "have the bytes of the exchange by a folder" in ran.stdout
