"""The gate of a site: messages enter and leave it here, each with a row in the audit log, and answers may be held."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflcli.artifacts import disk
from pflcli.core.errors import ComputationError, InputError, UsageError
from pflcli.core.methods import State
from pflcli.plugins.sites import audit_log, messages
from pflcli.plugins.sites.audit_log import AuditLog
from pflcli.plugins.sites.endpoints import Site
from pflcli.plugins.sites.exchange import Result, Signature, retry_unfinished, signature
from pflcli.plugins.sites.messages import Answer, Message

_RELEASED = "released.txt"
"""The file, in the folder of a site, with the SHA-256 of the answer that a person has released."""
_LEAST_DIGITS = 8
"""Digits of a SHA-256 that name an answer."""


@dataclass(frozen=True)
class _Held:
    """An answer that a person has to release, and the question that it answers."""

    question: tuple[Path, Signature | None]
    answer: Message
    sha256: str


class Door:
    """The way out of a site: a file leaves once it is in the audit log and, if the door ``holds``, released."""

    def __init__(self, log: AuditLog, say: Callable[[str], None], *, holds: bool = False) -> None:
        """Note in ``log`` what leaves, and name by ``say`` what is held."""
        self.log, self._say, self._holds = log, say, holds
        self._held = ""
        """the SHA-256 of what is held"""

    def opens(self, sha256: str, note: Callable[[str], None]) -> bool:
        """Return whether the file with this hash leaves now; ``note`` adds its row, in a direction, to the log."""
        if self._holds and not is_released(self.log, sha256):
            if self._held != sha256:
                note(audit_log.HELD)
                show = shlex.join(["pfl", "site", "release", str(self.log.folder)])
                self._say(f"an answer is held until it is released: {show} shows it")
            self._held = sha256
            return False
        self._held = ""
        note(audit_log.OUT)
        return True

    def opens_for_scores(self, path: Path, runs: int) -> bool:
        """Return whether the file with the scores of all ``runs`` leaves now."""
        return self.opens(messages.hash_file(path), lambda direction: self.log.note_scores(direction, path, runs))


class Gate:
    """Answers the questions of a run at a site; each message has a row in the audit log."""

    def __init__(self, site: Site, door: Door) -> None:
        """Answer for ``site``; answers leave by ``door``."""
        self._site, self._door, self._log = site, door, door.log
        self._held: _Held | None = None
        site.note_message = lambda message: self._log.note(audit_log.IN, message, site)

    def answer(self, path: Path) -> Path | None:
        """Return the file of the answer to the question in a file; None while it is held, or if the question is gone.

        Raises InputError for a question that does not fit, or if the audit log cannot be written.
        """
        question = path, signature(path)
        if question[1] is None and self._held is not None and self._held.question[0] == path:
            return None
        if self._held is None or self._held.question != question:
            if (answer := self._enter(path)) is None:
                return None
            self._held = _Held(question, answer, messages.hash_file(answer.path))
        held = self._held
        if not self._door.opens(held.sha256, lambda direction: self._log.note(direction, held.answer, self._site)):
            return None
        self._held = None
        return held.answer.path

    def finish(self, path: Path) -> State:
        """Return the state after all rounds, with what the last message says."""
        return self._let_in(path, self._site.finish)

    def _enter(self, path: Path) -> Message | None:
        """Answer the question in a file, and return the answer; None if the question is gone."""
        try:
            stored = self._let_in(path, self._site.answer)
        except InputError:
            if not path.exists():  # the server has closed the round
                return None
            raise
        return messages.read(stored, Answer, self._site.terms.federation, self._site.site)

    def _let_in(self, path: Path, play: Callable[[Path], Result]) -> Result:
        try:
            return retry_unfinished(play, path)
        except InputError as error:
            if path.exists():
                self._log.note_refusal(path, error.message)
            raise


class Patience:
    """Ends the wait for the next question after some seconds."""

    def __init__(self, seconds: float | None, command: Sequence[str]) -> None:
        """Wait ``seconds``, or for ever; ``command`` continues. Raises UsageError for a number that is not positive."""
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError(f"--patience {seconds:g} is not a positive number", "--patience 86400")
        self._seconds, self._command = seconds, shlex.join(command)
        self._last: dict[str, int | None] = {}
        self._since = time.monotonic()

    def require(self, run: str, last: int | None) -> None:
        """Raise ComputationError if the number of the ``last`` question of every run is the same for too long."""
        now = time.monotonic()
        if last != self._last.get(run):
            self._last[run], self._since = last, now
        if self._seconds is not None and now - self._since > self._seconds:
            raise ComputationError(f"no question arrived in {self._seconds:g} s", f"{self._command} continues")


def is_released(log: AuditLog, sha256: str) -> bool:
    """Return whether a person has released what the run of ``log`` sends with this SHA-256."""
    released = log.folder / log.run / _RELEASED
    return released.is_file() and released.read_text(encoding="utf-8").strip() == sha256


def release(folder: Path, sha256: str | None) -> dict[str, Any]:
    """Return the rows in the audit log of answers that are ``held``, and release the one that ``sha256`` begins.

    ``folder`` is that of a site. Raises InputError for a SHA-256 that no held answer, or more than one, has.
    """
    rows = audit_log.read_held(folder)
    if sha256 is not None:
        rows = [row for row in rows if len(sha256) >= _LEAST_DIGITS and row["sha256"].startswith(sha256.lower())]
        if len(rows) != 1:
            show = shlex.join(["pfl", "site", "release", str(folder)])
            raise InputError(f"{folder} holds no answer {sha256[:80]!r}", f"{show} shows what is held")
        target = folder / rows[0]["run"] / _RELEASED
        temporary = target.with_suffix(".tmp")
        try:
            disk.write(temporary, [f"{rows[0]['sha256']}\n".encode()])
            temporary.replace(target)
        except OSError as error:
            raise disk.write_error(f"cannot write {target}", folder, error) from None
    return {
        "held": [{**row, "released": is_released(AuditLog(folder, row["run"]), row["sha256"])} for row in rows],
    }
