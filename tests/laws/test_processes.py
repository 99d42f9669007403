"""The law that every process computes the same: Python orders the members of a set in another way in each of them."""

from __future__ import annotations

import os
import subprocess
import sys

from pflcli import registry

METHODS = registry.names("methods")

SCRIPT = """
import hashlib, sys
import torch
import worlds
from pflcli.engine import linear_chain

torch.set_num_threads(1)
linear_chain.LARGE = 0  # so that the small network takes the loops of large ones
for method in sys.argv[1:]:
    run = worlds.run(method)
    answers = worlds.answers(method, run, worlds.play(method, run))
    print(method, hashlib.sha256(b"".join(answers[split].tobytes() for split in sorted(answers))).hexdigest())
"""


def test_every_process_gives_the_same_bytes():
    """Whatever the order of sets of strings, which ``PYTHONHASHSEED`` sets, and which is another one by default."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *METHODS],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (process.communicate()[0].splitlines() for process in processes)
    assert all(process.returncode == 0 for process in processes)
    assert len(first) == len(METHODS)
    assert first == second
