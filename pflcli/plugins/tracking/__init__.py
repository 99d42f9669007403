"""Writes runs for experiment trackers, stored ones or live: what a tracker shows of a run, and one writer per tool."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from pflcli.core.errors import UsageError, closest

_PACKAGES = {
    "tensorboard": ("tensorboard", "torch.utils.tensorboard"),
    "mlflow": ("mlflow", "sqlalchemy"),
    "wandb": ("wandb",),
}
TOOLS = tuple(_PACKAGES)
_OFFLINE = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
"""Settings without which these packages report their use and their errors to their makers."""

_MAX_SECONDS_OF_THREADS = 2.0
"""Seconds to wait for threads of a tool that has finished."""


@dataclass(frozen=True)
class Record:
    """What a tool shows of one run, or of a comparison as a whole.

    ``key`` is the fingerprint of the artifact. ``rounds`` are measurements by round, ``scores`` the final values, and
    ``clients`` the scores of all clients by metric. ``pictures`` are PNG files, ``texts`` Markdown.
    """

    key: str
    group: str
    name: str
    settings: dict[str, str | int | float | bool]
    rounds: dict[int, dict[str, float]] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    clients: dict[str, list[float]] = field(default_factory=dict)
    pictures: dict[str, bytes] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of the run in a folder of runs; different runs have different names."""
        return f"{file_name(self.name)}-{self.key[:8]}"

    @property
    def last_round(self) -> int:
        """The last measured round, 0 if there is none."""
        return max(self.rounds, default=0)

    @cached_property
    def digest(self) -> str:
        """A hash of everything that a tool shows."""
        pictures = {name: hashlib.sha256(content).hexdigest() for name, content in self.pictures.items()}
        facts = [self.key, self.group, self.name, self.settings, self.rounds, self.scores, self.clients, self.texts]
        return hashlib.sha256(json.dumps([*facts, pictures], sort_keys=True).encode()).hexdigest()


class OpenRun(Protocol):
    """A run that is being written."""

    def log(self, rounds: Mapping[int, Mapping[str, float]]) -> None:
        """Write measurements by round."""

    def finish(self, record: Record) -> None:
        """Write everything but the rounds, and mark the run as complete."""

    def close(self) -> None:
        """Stop writing, also if the run is not complete."""


class Writer(Protocol):
    """The runs that one tool has in a folder."""

    def contains(self, record: Record) -> bool:
        """Return whether this run was written completely, with the same content."""

    def begin(self, record: Record) -> OpenRun:
        """Begin to write a run, in place of an earlier or unfinished one with the same key."""

    def close(self) -> None:
        """Finish writing."""

    def hint(self) -> str:
        """Return the command that shows the runs."""


def require_tool(tool: str) -> None:
    """Raise UsageError if the tool is unknown or not installed."""
    if tool not in TOOLS:
        raise UsageError(f"unknown --to '{tool}'", closest(tool, TOOLS))
    try:
        for name, value in _OFFLINE.items():
            os.environ.setdefault(name, value)
        for package in _PACKAGES[tool]:
            importlib.import_module(package)
    except ImportError as error:
        missing = getattr(error, "name", None) or tool
        raise UsageError(
            f"--to {tool} needs the package {missing.partition('.')[0]}, which is not installed",
            f"pip install 'pflcli[{tool}]'",
        ) from None


def open_writer(tool: str, out: Path) -> Writer:
    """Return the writer of a tool for the folder ``out``."""
    writer: Writer = importlib.import_module(f"pflcli.plugins.tracking.{tool}").open_writer(out)
    return writer


def write(writer: Writer, record: Record) -> None:
    """Write a finished run."""
    run = writer.begin(record)
    try:
        run.log(record.rounds)
        run.finish(record)
    finally:
        run.close()


@contextmanager
def raising_errors_of_threads() -> Iterator[None]:
    """Raise an error in a thread of a tool here, and let neither Python nor logging print it while the block runs.

    Tools write in threads of their own. Python prints the traceback of an error there, also if the tool raises it again
    for its caller.
    """
    failures: list[BaseException] = []
    known, hook, prints = set(threading.enumerate()), threading.excepthook, logging.raiseExceptions
    threading.excepthook = lambda args: failures.append(args.exc_value or args.exc_type())
    logging.raiseExceptions = False  # handlers of tools print the traceback of a log file that cannot be written
    try:
        try:
            yield
        finally:
            # A thread ends a little later than its error is known.
            end = time.monotonic() + _MAX_SECONDS_OF_THREADS
            for thread in set(threading.enumerate()) - known:
                thread.join(max(0.0, end - time.monotonic()))
        if failures:
            raise failures[0]
    finally:
        threading.excepthook, logging.raiseExceptions = hook, prints


def file_name(name: str) -> str:
    """Return a name with letters, digits and a few signs only."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-.")[:80] or "run"


def decode_picture(content: bytes) -> Any:
    """Return the pixels of a PNG file, (H, W, 3) uint8."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        return np.asarray(image.convert("RGB"))


def flatten(values: Any, prefix: str = "") -> dict[str, str | int | float | bool]:
    """Return nested settings as one table with keys such as ``settings.lr``; lists become text, None is left out."""
    flat: dict[str, str | int | float | bool] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, str | int | float | bool):
            flat[f"{prefix}{key}"] = value
        elif value is not None:
            flat[f"{prefix}{key}"] = json.dumps(value)
    return flat
