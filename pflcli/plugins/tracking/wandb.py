"""Offline runs of Weights & Biases: ``OUT/wandb/offline-run-TIME-ID``, to be sent by ``wandb sync``."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflcli.plugins.tracking import Record, decode_picture

_PROJECT = "pfl"
_MARK = "pfl-content.txt"
"""The file in a run's folder with the hash of its content, written last."""


def open_writer(out: Path) -> Wandb:
    """Return the writer for a folder."""
    import wandb

    out.mkdir(parents=True, exist_ok=True)  # otherwise wandb writes elsewhere
    return Wandb(out, wandb)


@dataclass(frozen=True)
class Wandb:
    """The folder ``out`` and the package that writes to it."""

    out: Path
    wandb: Any

    def contains(self, record: Record) -> bool:
        """Return whether this run was written completely, with the same content."""
        marks = [folder / _MARK for folder in self.find(record)]
        return len(marks) == 1 and marks[0].is_file() and marks[0].read_text(encoding="utf-8") == record.digest

    def begin(self, record: Record) -> _Run:
        """Begin a run, in place of an earlier or unfinished one with the same id."""
        for old in self.find(record):
            shutil.rmtree(old)
        run = self.wandb.init(
            project=_PROJECT,
            group=record.group,
            name=record.name,
            id=_id(record),
            dir=str(self.out),
            mode="offline",
            config=dict(record.settings),
            settings=self.wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        return _Run(self, run)

    def close(self) -> None:
        """End the process that wandb started."""
        self.wandb.teardown()

    def hint(self) -> str:
        """Return the command that sends the runs."""
        return f"wandb sync {shlex.quote(str(self.out / 'wandb'))}/offline-run-*"

    def find(self, record: Record) -> list[Path]:
        """Return the folders of a run."""
        return sorted((self.out / "wandb").glob(f"offline-run-*-{_id(record)}"))


@dataclass(frozen=True)
class _Run:
    """A run that ``store`` has begun."""

    store: Wandb
    run: Any

    def log(self, rounds: Mapping[int, Mapping[str, float]]) -> None:
        """Write measurements by round."""
        for number, values in sorted(rounds.items()):
            self.run.log({f"rounds/{name}": value for name, value in values.items()}, step=number)

    def finish(self, record: Record) -> None:
        """Write everything but the rounds, and mark the run as complete."""
        wandb = self.store.wandb
        final: dict[str, Any] = {f"scores/{name}": value for name, value in record.scores.items()}
        final |= {f"clients/{name}": wandb.Histogram(values) for name, values in record.clients.items()}
        final |= {name: wandb.Image(decode_picture(content)) for name, content in record.pictures.items()}
        self.run.log(final, step=record.last_round)
        if record.texts:
            self.run.notes = "\n\n".join(record.texts.values())
        self.run.finish()
        (folder,) = self.store.find(record)
        (folder / _MARK).write_text(record.digest, encoding="utf-8")

    def close(self) -> None:
        """Do nothing: ``Wandb.close`` ends unfinished runs."""


def _id(record: Record) -> str:
    return record.key[:16]
