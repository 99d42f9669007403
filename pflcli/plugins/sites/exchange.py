"""The answers in the folder of an exchange, where anyone may have written: how the server reads and checks them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pflcli.artifacts import disk
from pflcli.core import foreign
from pflcli.core.errors import InputError
from pflcli.core.wording import listed
from pflcli.plugins.sites import messages
from pflcli.plugins.sites.endpoints import Server, find_other_packages
from pflcli.plugins.sites.messages import Answer, Message, Question
from pflcli.plugins.sites.status import Status
from pflcli.plugins.sites.transport import answer_file, folder_of

SETTLE_SECONDS = 2.0
"""How long a file that is not a message must stay the same: until then, another program may still be writing it."""
_TELL_SECONDS, _MOST_TELL_SECONDS = 60.0, 3600.0
"""After how long the server first says whom it waits for, and how long it waits at most to say it again."""
_PIECE_BYTES = 1 << 20


def remove_messages(folders: Iterable[Path], last: int) -> None:
    """Remove all questions up to number ``last`` in folders of sites, of phases that are closed, and their answers.

    No place needs them: a site copies the questions of its phase, and the server the answers, and a site that comes
    back is asked the last question. Questions go first, so that no site answers one again.
    """
    for kind in ("question", "answer"):
        for path in [path for folder in folders for path in folder.glob(f"{kind}-*.msg")]:
            match = re.fullmatch(rf"{kind}-(\d{{6,}})\.msg", path.name)
            if match and int(match[1]) <= last:
                with suppress(OSError):
                    path.unlink()


Signature = tuple[int, ...]
Result = TypeVar("Result")


def signature(path: Path) -> Signature | None:
    """Return what changes when a file does; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def retry_unfinished(read: Callable[[Path], Result], path: Path) -> Result:
    """Return what ``read`` returns of a message; while it raises InputError and the file still changes, try again."""
    while True:
        file = signature(path)
        try:
            return read(path)
        except InputError:
            time.sleep(SETTLE_SECONDS)
            if signature(path) == file:
                raise


@dataclass
class Refusal:
    """A file that is not the answer, when it was first seen so, and why; ``is_told`` once this was said."""

    file: Signature
    since: float
    reason: str
    is_told: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether the file was the same for so long that no program still writes it."""
        return time.monotonic() - self.since >= SETTLE_SECONDS


class Inbox:
    """Reads the answers of sites as they arrive in the files beside the questions of a round.

    Each file is copied to ``folder``, which only the server reaches, and checked there, so that nobody can change it
    any more. A file that is not an answer never ends the server: once it stays the same, it is named by ``say`` and set
    aside to ``folder``, and its site may answer again. A file that was set aside before, and came back, stays where it
    is, as its site has no other answer.
    """

    def __init__(self, server: Server, folder: Path, say: Callable[[str], None]) -> None:
        self._server, self._folder, self._say = server, folder, say
        self._said: set[str] = set()
        self._status = Status(server)
        self._questions: Mapping[str, Question] = {}
        self._places = set[Path]()
        """the folders with the messages of the sites that were asked"""
        self.found: dict[str, Message] = {}
        """the answers to the last questions that have arrived"""
        self._copies: list[Path] = []

    def begin(self, questions: Mapping[str, Question], paths: Mapping[str, Path]) -> None:
        """Expect the answers to ``questions``, which are in the files ``paths``, by site."""
        self.found = {}
        self._questions, self._paths = questions, paths
        self._digests = {site: messages.hash_file(path) for site, path in paths.items()}
        self._refused: dict[str, Refusal] = {}
        self._places |= {path.parent for path in paths.values()}
        self._status.note_questions(questions)
        self._told, self._next = time.monotonic(), _TELL_SECONDS

    @property
    def missing(self) -> list[str]:
        """The sites that have not answered."""
        return [site for site in self._questions if site not in self.found]

    def look(self, *, is_last: bool = False) -> None:
        """Look for answers; the last time, also at files that may still change."""
        for site in self.missing:
            path = answer_file(self._paths[site].parent, self._questions[site].number)
            for other in path.parent.glob(f"{path.stem}*"):
                if other.name != path.name:
                    self._say_once(f"WARNING: '{site}': {other} is not used: an answer is called {path.name}")
            file, refusal = signature(path), self._refused.get(site)
            if file is None:
                continue
            if refusal is None or (refusal.file != file and (is_last or refusal.is_settled)):
                self._take(site, path, file)
                refusal = self._refused.get(site)
            if refusal is not None and not refusal.is_told and (is_last or refusal.is_settled):
                self._set_aside(site, path, refusal)
        if self.missing and time.monotonic() - self._told >= self._next:
            self._told, self._next = time.monotonic(), min(2 * self._next, _MOST_TELL_SECONDS)
            awaited = [f"'{site}' since {self._status.awaited.get(site)}" for site in self.missing]
            self._say(" ".join(f"waiting for {listed(awaited, most=20)}".split()))

    def clear(self) -> None:
        """Remove the messages of a phase, once it is closed, and the copies of the answers; name outliers."""
        for path in self._copies:
            path.unlink(missing_ok=True)
        if self._questions:
            last = max(question.number for question in self._questions.values())
            remove_messages(self._places, last)
            for line in self._server.outliers:
                self._say_once(line)
            self._status.note_end_of_phase()
        self.found, self._copies, self._questions = {}, [], {}

    def _copy_of(self, site: str, path: Path) -> Path:
        """Return the file for the copy of an answer."""
        return folder_of(self._folder, [*self._server.terms.sites], site) / path.name

    def _take(self, site: str, path: Path, file: Signature) -> None:
        """Read the answer of a site, or note why there is none."""
        question, copy = self._questions[site], self._copy_of(site, path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            disk.write(copy, _read(path, self._server.max_bytes(question)))
            message = self._server.check(copy, question, self._digests[site])
        except InputError as error:
            text = error.message.replace(str(copy), path.name)
            self._refused[site] = Refusal(file, time.monotonic(), " ".join(text.split())[:400])
        except OSError as error:
            raise disk.write_error(f"cannot write {copy}", self._folder, error) from None
        else:
            self.found[site] = message
            self._copies.append(copy)
            self._refused.pop(site, None)
            self._status.note_answer(site, message.head)
            self._report(site, message.head)

    def _report(self, site: str, answer: Answer) -> None:
        """Say what differs at a site from what the federation knows, without making its answer invalid."""
        for sent in (sent for channel in answer.channels for sent in channel.sent):
            most = self._server.max_weight(sent.client)
            if sent.weight > most:
                self._say_once(
                    f"'{site}' gives its update the weight {sent.weight:g}; it counts {most:g}, as agreed on"
                )
        if others := find_other_packages(self._server.terms.versions, answer.versions):
            self._say_once(f"WARNING: '{site}' has {others}: last bits may differ from the simulation")

    def _say_once(self, text: str) -> None:
        text = " ".join(text.split())  # a site's words begin no line
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def _set_aside(self, site: str, path: Path, refusal: Refusal) -> None:
        refusal.is_told = True
        copy = self._copy_of(site, path)
        kept = copy.with_name(f"refused-{path.name}")
        came_back = kept.exists() and copy.exists() and messages.hash_file(kept) == messages.hash_file(copy)
        if copy.exists():
            copy.replace(kept)
        self._say_once(
            f"WARNING: '{site}' has not answered round {self._questions[site].round}: {refusal.reason}"
            + (
                "; the same file came back: delete it once the site can send another"
                if came_back
                else f"; set aside in {kept.parent}"
            )
        )
        if not came_back and signature(path) == refusal.file:
            with suppress(OSError):
                path.unlink()


def _read(path: Path, most: int) -> Iterator[bytes]:
    """Yield the content of a file; raises InputError if it cannot be read, or has more than ``most`` bytes."""
    foreign.require_file(path)
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                most -= len(piece)
                if most < 0:
                    raise InputError(f"{path.name} is larger than an answer can be")
                yield piece
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}") from None
