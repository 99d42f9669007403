"""An artifact records what may change its last digits, and nothing that names the machine or its users."""

from __future__ import annotations

import getpass
import json
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from pflcli.artifacts import machine
from pflcli.artifacts import manifest as manifests


def change_made(folder, **changes):
    """Write what a manifest records of the machine as another machine would have."""
    path = folder / manifests.NAME
    fields = json.loads(path.read_text())
    del fields["seal"]
    fields["made"] |= changes
    path.write_text(json.dumps({**fields, "seal": manifests.digest(fields)}, indent=2) + "\n")


def test_artifact_records_versions_and_processor_and_not_whose_machine_it_was(small):
    manifest = manifests.read(small.knn)
    assert manifest.made["libraries"]["torch"] == torch.__version__
    assert manifest.made["libraries"]["numpy"] == np.__version__
    assert manifest.made["processor"].startswith(platform.machine())
    recorded = json.dumps(machine.describe())
    assert platform.node() not in recorded
    assert getpass.getuser() not in recorded
    assert "/" not in recorded


def test_versions_are_read_without_importing_a_library():
    code = "import sys; from pflcli.artifacts import machine; print(machine.describe()['libraries'])\n"
    code += "assert not {'torch', 'faiss', 'numba', 'numpy'} & {*sys.modules}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert torch.__version__ in ran.stdout


def test_show_verify_says_in_one_line_where_this_machine_differs(pfl, small_copy, tmp_path):
    assert "this machine: has the recorded versions and processor" in pfl("show", small_copy.p, "--verify").out
    libraries = {**machine.describe()["libraries"], "torch": "1.0.0", "other": "2.0"}
    fingerprint = manifests.read(small_copy.p).fingerprint
    change_made(small_copy.p, libraries=libraries, processor="riscv64")
    assert manifests.read(small_copy.p).fingerprint == fingerprint
    (line,) = [line for line in pfl("show", small_copy.p, "--verify").out.splitlines() if "this machine" in line]
    assert line == (
        f"this machine: differs: processor {machine.describe()['processor']} here, riscv64 there; "
        f"torch {torch.__version__} here, 1.0.0 there; other missing here, 2.0 there"
    )
    assert "this machine differs: processor" in pfl("show", small_copy.b, "--verify", "--lineage").out
    assert "this machine" not in pfl("show", small_copy.p).out


@pytest.mark.parametrize("made", [{}, {"libraries": "none"}, {"pfl": machine.describe()["pfl"], "seconds": 3}])
def test_what_an_earlier_version_did_not_record_is_not_compared(made):
    assert machine.list_differences([made]) == []
