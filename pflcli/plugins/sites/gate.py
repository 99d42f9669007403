"""The gate of a site: messages enter and leave it here, each with a row in the audit log, and answers may be held."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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


class Gate:
    """Answers questions for a site, and gives an answer out once it is in the audit log and, if ``holds``, released."""

    def __init__(self, site: Site, say: Callable[[str], None], *, holds: bool = False) -> None:
        """Write the audit log to the folder of ``site``, and name by ``say`` an answer that is held."""
        self._site, self._log, self._say, self._holds = site, AuditLog(site), say, holds
        site.note_message = partial(self._log.note, audit_log.IN)
        self._held: _Held | None = None

    def answer(self, path: Path) -> Path | None:
        """Return the file of the answer to the question in a file; None while it is held, or if the question is gone.

        Raises InputError for a question that does not fit, or if the audit log cannot be written.
        """
        question = path, signature(path)
        if question[1] is None and self._held is not None and self._held.question[0] == path:
            return None
        if self._held is None or self._held.question != question:
            answer = self._enter(path)
            if answer is None:
                return None
            self._held = _Held(question, answer, messages.hash_file(answer.path))
            if self._holds and not is_released(self._site.folder, self._held.sha256):
                self._log.note(audit_log.HELD, answer)
                show = shlex.join(["pfl", "site", "release", str(self._site.folder)])
                self._say(f"an answer is held until it is released: {show} shows it")
        held = self._held
        if self._holds and not is_released(self._site.folder, held.sha256):
            return None
        self._held = None
        self._log.note(audit_log.OUT, held.answer)
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
        self._last: int | None = None
        self._since = time.monotonic()

    def require(self, last: int | None) -> None:
        """Raise ComputationError if the number of the ``last`` question has been the same for too long."""
        now = time.monotonic()
        if last != self._last:
            self._last, self._since = last, now
        if self._seconds is not None and now - self._since > self._seconds:
            raise ComputationError(f"no question arrived in {self._seconds:g} s", f"{self._command} continues")


def is_released(folder: Path, sha256: str) -> bool:
    """Return whether a person has released the answer with this SHA-256 at the site in ``folder``."""
    released = folder / _RELEASED
    return released.is_file() and released.read_text(encoding="utf-8").strip() == sha256


def release(folder: Path, sha256: str | None) -> dict[str, Any]:
    """Return the row in the audit log of the answer that is held, and release it if ``sha256`` begins its SHA-256.

    ``folder`` is that of a site. The row is empty if no answer is held. Raises InputError for another SHA-256.
    """
    row = audit_log.read_last(folder)
    held = row if row is not None and row["direction"] == audit_log.HELD else {}
    if sha256 is None:
        return {**held, "released": bool(held) and is_released(folder, held["sha256"])}
    if not held or len(sha256) < _LEAST_DIGITS or not held["sha256"].startswith(sha256.lower()):
        what = f"the answer that is held has the SHA-256 {held['sha256']}" if held else "no answer is held"
        show = shlex.join(["pfl", "site", "release", str(folder)])
        raise InputError(f"{folder}: {what}, not {sha256[:80]!r}", f"{show} shows what would leave")
    temporary = folder / f"{_RELEASED}.tmp"
    try:
        disk.write(temporary, [f"{held['sha256']}\n".encode()])
        temporary.replace(folder / _RELEASED)
    except OSError as error:
        raise disk.write_error(f"cannot write {folder / _RELEASED}", folder, error) from None
    return {**held, "released": True}
