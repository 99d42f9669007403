"""Calls of functions in other processes, where module variables have their first values and sets another order.

Run as a module, this file is a server: it imports PyTorch once, and forks a process for each call. A law that compares
what two calls return finds results that depend on what the first call has left behind in its process.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

import torch

from pflcli.core import registry
from pflcli.plugins.checks import laws
from pflcli.workflow.admission import BrokenLawError, NotApplicable, describe_error, small_federation

T = TypeVar("T")
P = ParamSpec("P")

_CAN_FORK = sys.platform.startswith("linux")
"""Whether a process that has imported PyTorch can be forked; elsewhere each call starts a process of its own."""


def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function of a module returns in another process; it knows the users' files of this process.

    ``PYTHONHASHSEED`` differs from that of this process. Arguments and result can be pickled. Raises what the function
    raises for a law; any other error, and the end of the process, is a BrokenLawError.
    """
    return (_server() if _CAN_FORK else _Server()).call(function, *args, **kwargs)


def start() -> None:
    """Start the process that answers calls, which takes seconds, while this process does something else."""
    if _CAN_FORK:
        _server()


@functools.cache
def _server() -> _Server:
    return _Server()


def _packages() -> dict[str, ModuleType]:
    """Return the package of each group."""
    return {group: importlib.import_module(f"pflcli.{registry.package(group)}") for group in registry.GROUPS}


@dataclass(frozen=True)
class _Request:
    """A call, and what it finds in the process that asks for it."""

    environment: dict[str, str]
    folder: str
    path: list[str]
    threads: int
    pickled_call: bytes

    def answer(self) -> tuple[bool, Any]:
        """Return whether the call succeeds, and its result or the error."""
        try:
            os.environ.clear()
            os.environ.update(self.environment)
            os.chdir(self.folder)
            sys.path[:] = self.path
            torch.set_num_threads(self.threads)
            for group, package in _packages().items():
                registry.search_used_folders(group, package.__path__)
            function, args, kwargs = pickle.loads(self.pickled_call)
            return True, function(*args, **kwargs)
        except (BrokenLawError, laws.DoubtfulError, NotApplicable) as error:
            return False, error
        except Exception as error:
            return False, BrokenLawError(describe_error(error))


class _Server:
    """A process that answers requests, one after the other; it ends with this process."""

    def __init__(self) -> None:
        self._pipe, other = connection.Pipe()
        hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
        paths = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pflcli.plugins.checks.laws.other_process", str(other.fileno())],
            pass_fds=(other.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed},
            start_new_session=True,  # an interruption reaches only this process
        )
        other.close()
        weakref.finalize(self, _end, self._process, self._pipe)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        pickled_call = pickle.dumps((function, args, kwargs))
        request = _Request(dict(os.environ), str(Path.cwd()), list(sys.path), torch.get_num_threads(), pickled_call)
        try:
            self._pipe.send_bytes(pickle.dumps(request))
            succeeds, result = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise BrokenLawError("a process that computes the same ended without a result") from None
        if succeeds:
            return cast("T", result)
        raise result


def _end(process: subprocess.Popen[bytes], pipe: connection.Connection) -> None:
    """End a server and the process that it has forked."""
    pipe.close()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _serve(pipe: connection.Connection) -> None:
    """Answer requests until the other end of the pipe is closed."""
    _packages()
    laws.list_laws("methods")
    # A small run imports and compiles what most requests need. It has one thread, as a fork copies no other threads.
    torch.set_num_threads(1)
    run = small_federation.make_run("ditto")
    small_federation.predict("ditto", run, small_federation.play_rounds("ditto", run))
    run.engine.close()
    while True:
        try:
            request: _Request = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        child = os.fork() if _CAN_FORK else 0
        if not child:
            pipe.send_bytes(pickle.dumps(request.answer()))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            lost = BrokenLawError("a process that computes the same ended without a result")
            pipe.send_bytes(pickle.dumps((False, lost)))


if __name__ == "__main__":
    # Requests are pickled under the name of the module, which is another one than ``__main__``.
    importlib.import_module("pflcli.plugins.checks.laws.other_process")._serve(connection.Connection(int(sys.argv[1])))
