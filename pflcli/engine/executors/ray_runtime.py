"""Starts Ray on this machine, or joins a cluster; quiet, without telemetry, and without files in the user's folders."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from dataclasses import dataclass
from typing import Any

from pflcli.errors import UsageError

_STORE_BYTES = 100 << 20
"""Least memory of a local object store, in bytes; Ray itself refuses less than 75 MB."""

_STORE_SHARE = 3
"""A local object store has room for so many times what is said to be needed."""


@dataclass(frozen=True)
class RayCluster:
    """Where Ray runs: an ``address`` as of ``ray start``, or nothing for this machine alone; and GPUs per worker."""

    address: str = ""
    gpus_per_worker: float = 0.0


def connect(cluster: RayCluster, cpus: int, needed: int = 0) -> Any:
    """Return the package ``ray``, joined to the cluster, or started here with ``cpus`` CPUs.

    The object store of a local Ray has room for ``needed`` bytes. A process keeps its connection until it ends; a local
    Ray with fewer CPUs than are now asked for is started again. Raises UsageError if Ray is not installed, or if no
    cluster answers.
    """
    configure(cluster)
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise UsageError("--executor ray needs Ray, which is not installed", "pip install 'pflcli[ray]'") from None
    if ray.is_initialized():
        if cluster.address or ray.cluster_resources().get("CPU", 0) >= cpus:
            return ray
        disconnect()
    # Whatever log_to_driver says, a thread of Ray prints lost workers on standard output, where results of pfl go.
    private: Any = importlib.import_module("ray._private.worker")
    private.print_to_stdstream = lambda *args, **values: None
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    before = signal.getsignal(signal.SIGTERM)
    try:
        if cluster.address:
            ray.init(address=cluster.address, **quiet)
        else:
            folder = tempfile.mkdtemp(prefix="pfl-ray-", dir=_short_folder())
            atexit.register(shutil.rmtree, folder, ignore_errors=True)  # after Ray's own, which ends its processes
            atexit.register(ray.shutdown)
            store = max(_STORE_BYTES, _STORE_SHARE * needed)
            ray.init(
                "local", num_cpus=cpus, include_dashboard=False, object_store_memory=store, _temp_dir=folder, **quiet
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"--ray-address {cluster.address}" if cluster.address else "--executor ray"
        raise UsageError(f"{where}: {str(error).splitlines()[0]}", "ray status says whether a cluster runs") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own would end the process without a checkpoint
    return ray


def configure(cluster: RayCluster) -> None:
    """Set what Ray reads from the environment, before it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Report lost workers in words of our own.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if not cluster.address and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        # A token of this process alone; otherwise Ray writes one into the user's home folder, and says so.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def disconnect() -> None:
    """Leave the cluster, or end the local Ray."""
    import ray

    ray.shutdown()


def _short_folder() -> str | None:
    """Return a folder for temporary files whose path leaves room for that of a socket, or None for the default."""
    return "/tmp" if len(tempfile.gettempdir()) > 30 and os.access("/tmp", os.W_OK) else None


def require_room(ray: Any, count: int, cpus: int, gpus: float) -> int:
    """Return for how many workers of so many CPUs and GPUs the nodes have room; UsageError if for less than ``count``.

    Ray itself would wait for ever.
    """
    places = 0
    for node in ray.nodes():
        if node["Alive"]:
            own = node["Resources"]
            fits = [own.get("CPU", 0) // cpus, *([own.get("GPU", 0) // gpus] if gpus else [])]
            places += int(min(fits))
    if places < count:
        each = f"{cpus} CPU" + (f" and {gpus:g} GPU" if gpus else "")
        raise UsageError(
            f"the nodes of Ray have room for {places} workers with {each} each", "fewer --jobs or --gpus-per-worker"
        )
    return places
