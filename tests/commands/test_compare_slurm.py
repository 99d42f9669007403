"""``compare --plan slurm`` on a real Slurm of two nodes: jobs are killed, nodes go down, and the table is the same."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import slurm_cluster
import trying
from pflcli.commands.partition import partition

METHODS = (
    "apfl,clustered-fl,ditto,fedala,fedamp,fedattn,fedavg,fedavg-plus,feddbe,feddyn,fedem,fedham,fedhealth,fedproto,"
    "fedprox,fedsgd,gaussian-head,gossip,ifca,knn-peers,knn-per,knn-per-plus,local,moon,panm,pens,per-fedavg,pfedme,prior,"
    "scaffold,stack"
)
FEW = ("--model", "logistic", "--rounds", "2", "--participation", "1.0")
PFL = '#!/bin/sh\nexec "{python}" -m pflcli "$@"\n'


@pytest.fixture
def cluster() -> Iterator[slurm_cluster.Cluster]:
    """A Slurm, in a folder with a short name, as a socket needs."""
    if reason := slurm_cluster.missing():
        pytest.skip(f"no Slurm: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with slurm_cluster.running(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_job_processes(work: Path) -> list[int]:
    """Return the processes of pfl that write to ``work``."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{work}/c".encode() in (folder / "cmdline").read_bytes().split(b"\0") and folder.name.isdigit():
                processes.append(int(folder.name))
    return processes


def kill_a_job(cluster: slurm_cluster.Cluster, work: Path, rng: random.Random) -> str:
    """Lose a running job in one of four ways while a node drains; return its name, empty if no job was running."""
    running = [task for task, state, *_ in cluster.states() if state == "RUNNING"]
    processes, node = find_job_processes(work), rng.choice(slurm_cluster.NODES)
    cause = rng.choice(["kill -9", "scancel", "node down", "requeue"])
    if not running or not processes:
        return ""
    cluster("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        if cause == "kill -9":
            os.kill(rng.choice(processes), signal.SIGKILL)
        elif cause == "scancel":
            cluster("scancel", "--signal=KILL", "--full", rng.choice(running))
        elif cause == "requeue":
            cluster("scontrol", "requeue", rng.choice(running))
        else:
            cluster("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
            time.sleep(1)
    except (subprocess.CalledProcessError, ProcessLookupError):  # it ended just now
        cause = ""
    with suppress(subprocess.CalledProcessError):  # a node that was down may have returned by itself
        cluster("scontrol", "update", f"NodeName={node}", "State=RESUME")
    return cause


@pytest.mark.long
@pytest.mark.parametrize(
    ("methods", "seeds", "losses"),
    [("fedavg,knn-per,local,stack", "0", 1), (METHODS, "0,1,2", 30)],
    ids=["one loss", "thirty losses"],
)
def test_table_is_the_same_after_slurm_jobs_are_lost(methods, seeds, losses, cluster, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pfl").write_text(PFL.format(python=sys.executable))
    (tmp_path / "bin" / "pfl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    partition("writers", tmp_path / "p", clients=4, seed=0)
    line = ("compare", tmp_path / "p", "--methods", methods, "--seeds", seeds, "--no-references", *FEW)
    one = trying.pfl((*line, "-o", tmp_path / "one", "--threads", 1), tmp_path, 600)
    assert one.code == 0, one.err
    script = tmp_path / "script"
    plan = subprocess.run(
        ["pfl", *map(str, line), "-o", tmp_path / "c", "--plan", "slurm"], capture_output=True, text=True, check=True
    )
    script.write_text(plan.stdout)
    environment = {**cluster.environment, "PFL_TASKS": "12", "PATH": os.environ["PATH"]}
    rng, lost, submissions, start = random.Random(0), [], 0, time.monotonic()
    while not (tmp_path / "c" / "comparison" / "manifest.json").exists():
        states = {state for _, state, *_ in cluster.states()}
        if not states & {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}:
            submissions += 1
            assert submissions <= 1 + losses
            options = (f"--output={tmp_path}/%x-%A-%a.log", "--open-mode=append")
            subprocess.run(["bash", script, *options], env=environment, check=True, capture_output=True)
        time.sleep(rng.uniform(0.2, 2))
        if len(lost) < losses and (cause := kill_a_job(cluster, tmp_path, rng)):
            lost.append(cause)
    while find_job_processes(tmp_path):
        time.sleep(0.2)
    print(
        f"{len(lost)} lost ({', '.join(f'{lost.count(cause)} by {cause}' for cause in sorted({*lost}))}), "
        f"{submissions} submissions, {time.monotonic() - start:.0f} s"
    )
    assert len(lost) == losses
    assert trying.content(tmp_path / "c") == trying.content(tmp_path / "one")
    assert not trying.leftovers(tmp_path / "c")
