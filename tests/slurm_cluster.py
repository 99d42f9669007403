"""A Slurm of two nodes on this machine, in a folder of its own: munged, slurmctld and two slurmd."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
NODES = ("n1", "n2")
SBATCH = """#!/bin/sh
n=$(cat "$COUNTER" 2>/dev/null || echo 100); echo $((n + 1)) > "$COUNTER"
cat > "$COUNTER.job"; echo "$*" >> "$COUNTER.log"; last=
for word; do case $word in --array=0-*) last=${word#--array=0-};; esac; done
i=0; while [ $i -le "${last:-0}" ]; do
  SLURM_ARRAY_TASK_ID=$i SLURM_ARRAY_TASK_COUNT=$((${last:-0} + 1)) bash "$COUNTER.job" || exit 1
  i=$((i + 1))
done
echo "$n;cluster"
"""
"""A stand-in for sbatch, which runs each task at once; its files begin with the name in COUNTER."""
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=5,batch_sched_delay=0
MinJobAge=600
KillWait=2
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why no Slurm can be started here; empty if it can."""
    absent = [name for name in PROGRAMS if not _program(name)]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm)"
    return "" if os.geteuid() == 0 else "slurmd starts jobs as root only"


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class Cluster:
    """A running Slurm; ``environment`` is that of its clients."""

    folder: Path
    environment: dict[str, str]

    def __call__(self, *words: object) -> str:
        """Run a client such as squeue, and return what it prints; raises CalledProcessError."""
        ran = subprocess.run([*map(str, words)], env=self.environment, capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    def states(self) -> list[list[str]]:
        """Return job, state, node and name of all tasks, finished ones too."""
        lines = self("squeue", "--array", "--noheader", "--states=all", "--format=%i|%T|%N|%j").splitlines()
        return [line.split("|") for line in lines]


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Start all daemons in ``folder``, wait for both nodes, and end all at the end."""
    ports = [_free_port() for _ in range(3)]
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "key").write_bytes(secrets.token_bytes(1024))
    (folder / "key").chmod(0o400)
    values = {"host": socket.gethostname(), "user": "root", "folder": folder}
    conf = CONF.format(**values, controller=ports[0], first=ports[1], second=ports[2])
    (folder / "slurm.conf").write_text(conf)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    cluster, daemons = Cluster(folder, environment), []

    def start(*words: object) -> None:
        program, *options = map(str, words)
        with (folder / f"{program}-{len(daemons)}.out").open("wb") as log:
            daemons.append(
                subprocess.Popen(
                    [_program(program) or program, *options],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    try:
        files = ("--key-file", folder / "key", "--socket", folder / "munge.socket", "--pid-file", folder / "munge.pid")
        start(
            "munged",
            "--foreground",
            "--force",
            *files,
            "--log-file",
            folder / "munge.log",
            "--seed-file",
            folder / "seed",
        )
        _wait(lambda: (folder / "munge.socket").exists())
        start("slurmctld", "-D")
        for node in NODES:
            start("slurmd", "-D", "-N", node)
        _wait(lambda: cluster("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle", "idle"])
        yield cluster
    finally:
        with suppress(subprocess.CalledProcessError):
            cluster("scancel", "--user=root")
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()


def _wait(is_ready: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        with suppress(subprocess.CalledProcessError):
            if is_ready():
                return
        if time.monotonic() > end:
            raise TimeoutError("Slurm did not start")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
