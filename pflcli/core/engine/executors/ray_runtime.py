"""Starts Ray on this machine or joins a cluster: without output, telemetry, or files in the user's folders."""

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

from pflcli.core.errors import UsageError

_MIN_STORE_BYTES = 100 << 20
"""Least size of a local object store; Ray itself refuses less than 75 MB."""

_STORE_FACTOR = 3
"""Size of a local object store, as a multiple of the bytes that are needed."""


@dataclass(frozen=True)
class RayCluster:
    """Where Ray runs: at an ``address`` as printed by ``ray start``, or if it is empty on this machine alone."""

    address: str = ""
    gpus_per_worker: float = 0.0


def connect(cluster: RayCluster, cpus: int, needed: int = 0) -> Any:
    """Return the package ``ray``, connected to the cluster or to a local Ray with ``cpus`` CPUs.

    The object store of a local Ray has room for ``needed`` bytes. The connection lasts until the process ends, but a
    local Ray with fewer CPUs is started again. Raises UsageError if Ray is not installed, or if the cluster cannot be
    reached.
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
    # Even with log_to_driver=False, a thread of Ray prints lost workers to standard output, which is for results.
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
            store = max(_MIN_STORE_BYTES, _STORE_FACTOR * needed)
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
    """Set the environment variables that Ray reads when it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # pfl reports lost workers itself.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if not cluster.address and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        # A token for this process alone. Otherwise Ray writes one into the user's home folder and prints a message.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def disconnect() -> None:
    """Leave the cluster, or end the local Ray."""
    import ray

    ray.shutdown()


def _short_folder() -> str | None:
    """Return a folder for temporary files whose path is short enough for a socket, or None for the default."""
    return "/tmp" if len(tempfile.gettempdir()) > 30 and os.access("/tmp", os.W_OK) else None


def require_room(ray: Any, count: int, cpus: int, gpus: float) -> int:
    """Return for how many workers with this number of CPUs and GPUs the nodes have room.

    Raises UsageError if there is room for fewer than ``count``; Ray itself would wait forever.
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
