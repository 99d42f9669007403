"""Every step from the partition to the answers works on data that are larger than the memory that it may take."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from pflcli.commands.import_data import import_data

ALLOWED = 44 << 20
"""Bytes that all steps may take beyond what the process has before them."""
SAMPLES = 120_000
"""Images of 784 bytes, and representations of 800: each more than twice as many bytes as are allowed."""

# The limit is on data: the heap, and what is mapped privately to be written to. The pages of a file that is mapped to
# be read do not count, as the system drops them when memory is short.
CHAIN = """
import resource, sys
from pathlib import Path

from pflcli.artifacts import client_blocks
from pflcli.core.execution import Execution
from pflcli.commands import extract as extraction
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global

execution = Execution(threads=1)
client_blocks.PIECE_BYTES, extraction.SAMPLES_PER_PIECE = 1 << 20, 1 << 12

def chain(at):
    clients = partition(str(at / "data"), at / "p", execution=execution).summary["clients"]
    settings = {"model": "mlp", "rounds": 1, "participation": 4 / clients}
    train_global(at / "p", at / "b", settings=settings, execution=execution)
    extraction.extract(at / "b", at / "e", execution=execution)
    build_datastore(at / "e", at / "d", execution=execution)
    personalize("knn-per", at / "d", at / "m", execution=execution)

few, many = map(Path, sys.argv[1:3])
chain(few)  # whatever is loaded once is then there
used = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
limit = 1024 * int(used.split()[1]) + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
chain(many)
"""


def write_dataset(folder, samples):
    """Import images of one client per 150 images."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    owner = np.arange(samples) // 150
    x = draw.integers(0, 256, size=(samples, 28, 28), dtype=np.uint8)
    np.savez(folder / "data.npz", x=x, y=np.arange(samples) % 10, owner=owner)
    import_data(folder / "data.npz", folder / "data")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit a process's data alone")
def test_command_chain_runs_on_data_larger_than_memory(tmp_path):
    write_dataset(tmp_path / "few", 6000)
    write_dataset(tmp_path / "many", SAMPLES)
    command = [sys.executable, "-c", CHAIN, tmp_path / "few", tmp_path / "many", str(ALLOWED)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert (tmp_path / "many/p/samples.h5").stat().st_size > 2 * ALLOWED
    assert (tmp_path / "many/e/embeddings.h5").stat().st_size > 2 * ALLOWED
