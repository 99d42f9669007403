"""Event files of TensorBoard, one folder per run: ``OUT/GROUP/RUN/events.out.tfevents...``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.core.errors import ConflictError
from pflcli.plugins.tracking import Record, decode_picture, file_name

_MARK = "pfl.json"
"""The file in a run's folder with the hash of its content, empty while the run is being written."""


def open_writer(out: Path) -> TensorBoard:
    """Return the writer for a folder."""
    from torch.utils.tensorboard import SummaryWriter

    return TensorBoard(out, SummaryWriter)


@dataclass(frozen=True)
class TensorBoard:
    """The folder of runs ``out``, and the class that writes one run."""

    out: Path
    summary_writer: Any

    def contains(self, record: Record) -> bool:
        """Return whether this run was written completely, with the same content."""
        mark = self._folder(record) / _MARK
        return mark.is_file() and mark.read_text(encoding="utf-8") == _mark(record, record.digest)

    def begin(self, record: Record) -> _Run:
        """Begin a run, in place of an earlier one; raises ConflictError for a folder that pfl track did not write."""
        folder = self._folder(record)
        if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).is_file():
            raise ConflictError(f"{folder} exists, and pfl track did not write it", "choose another --out")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).write_text(_mark(record, ""), encoding="utf-8")
        for old in self._find(record):
            for file in old.glob("events.out.tfevents.*"):
                file.unlink()
            if old != folder:  # the same run, written before as part of another group
                (old / _MARK).unlink()
                with suppress(OSError):  # it has other files
                    old.rmdir()
        return _Run(folder, self.summary_writer(str(folder)))

    def close(self) -> None:
        """Do nothing: each run closes its files."""

    def hint(self) -> str:
        """Return the command that shows the runs."""
        return f"tensorboard --logdir {shlex.quote(str(self.out))}"

    def _folder(self, record: Record) -> Path:
        return self.out / file_name(record.group) / record.folder

    def _find(self, record: Record) -> list[Path]:
        """Return the folders of the same run in all groups."""
        marks = self.out.glob(f"*/*-{record.key[:8]}/{_MARK}")
        return [mark.parent for mark in marks if record.key in mark.read_text(encoding="utf-8")]


def _mark(record: Record, digest: str) -> str:
    return json.dumps({"generator": "pfl track", "run": record.key, "content": digest}) + "\n"


@dataclass(frozen=True)
class _Run:
    """A run that is written to its folder by ``writer``."""

    folder: Path
    writer: Any

    def log(self, rounds: Mapping[int, Mapping[str, float]]) -> None:
        """Write measurements by round."""
        for number, values in sorted(rounds.items()):
            for name, value in values.items():
                self.writer.add_scalar(f"rounds/{name}", value, number)
        self.writer.flush()

    def finish(self, record: Record) -> None:
        """Write everything but the rounds, and mark the run as complete."""
        _write_summary(self.writer, record)
        self.close()
        (self.folder / _MARK).write_text(_mark(record, record.digest), encoding="utf-8")

    def close(self) -> None:
        """Close the files."""
        self.writer.close()


def _write_summary(writer: Any, record: Record) -> None:
    step = record.last_round
    for name, value in record.scores.items():
        writer.add_scalar(f"scores/{name}", value, step)
    for name, by_client in record.clients.items():
        writer.add_histogram(f"clients/{name}", np.asarray(by_client), step)
    for name, content in record.pictures.items():
        writer.add_image(name, decode_picture(content), step, dataformats="HWC")
    for name, text in record.texts.items():
        writer.add_text(name, text, step)
    settings = "\n".join(f"| {name} | {value} |" for name, value in record.settings.items())
    writer.add_text("settings", f"| setting | value |\n|---|---|\n{settings}", step)
    if record.clients:
        writer.add_hparams(
            record.settings, {f"scores/{name}": value for name, value in record.scores.items()}, run_name="."
        )
