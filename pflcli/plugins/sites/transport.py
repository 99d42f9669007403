"""How messages travel between the server and the sites: the two functions of a transport, and the folder.

A transport has ``post``, which puts a message for a place, whole or not at all, and ``fetch``, which yields what has
arrived for a place. The loops of the server and of a site use ``Folder``. Flower and NVFlare have the same functions
(examples/deploy), and ``relay`` carries messages between the server's folder and one of these; at a site,
``deliver`` hands them to the ``pfl site serve`` that holds the site open.

This module imports no package but pfl, so that a relay can use it without PyTorch: ``pip install --no-deps``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pflcli.artifacts import disk
from pflcli.core.errors import InputError

SERVER = "server"
"""The place of the server; every other place is the folder of a site, such as 003-charite."""
POLL_SECONDS = 0.05
"""How long the server, a site and a relay wait before they look for messages again."""
_PIECE_BYTES = 1 << 20
RECORDS = "records.json"
"""The file of a site's scores, which answers the last messages of several runs."""
_ADDRESS = re.compile(r"(\d{3,}-[A-Za-z0-9_-]+)(?:/([^./\n\0][^/\n\0]*))?/((?:question|answer)-\d{6,}|final)\.msg")
_LAST_SECONDS = 5.0
"""How long a relay at a site waits for the scores, which come once the site has the last messages of all runs."""


@dataclass(frozen=True)
class Address:
    """Where a message belongs: the folder of its ``site``, its ``run`` if there are several, and its file.

    ``number`` is that of the question or answer, from 1, and None for the last message of a run.
    """

    site: str
    run: str
    number: int | None
    is_answer: bool = False

    def __str__(self) -> str:
        if self.number is None and self.is_answer:
            return f"{self.site}/{RECORDS}"
        kind = "answer" if self.is_answer else "question"
        name = "final.msg" if self.number is None else f"{kind}-{self.number:06d}.msg"
        return "/".join(part for part in (self.site, self.run, name) if part)

    @classmethod
    def make(cls, names: list[str], site: str, run: str, number: int | None) -> Address:
        """Return the address of a message to the ``site`` among ``names``, in the ``run`` if there are several."""
        folder = folder_of(Path(), names, site, run)
        return cls(folder.parts[0], folder.parts[1] if run else "", number)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Undo ``str``; raises InputError for anything else, such as a path that leaves the folder."""
        if (found := _ADDRESS.fullmatch(text)) is None:
            raise InputError(f"{text[:200]!r} is not the address of a message")
        kind, _, number = found[3].partition("-")
        return cls(found[1], found[2] or "", int(number) if number else None, kind == "answer")

    @property
    def answer(self) -> Address:
        """The address of the answer to this question; of a last message, that of the scores."""
        return Address(self.site, self.run, self.number, is_answer=True)

    @property
    def name(self) -> str:
        """The name of the site, with hyphens for unusual characters: its folder without the number."""
        return self.site.partition("-")[2]


Arrived = Iterator[tuple[Address, Iterable[bytes]]]
"""Messages with their content in pieces, which is read when these are asked for."""


class Transport(Protocol):
    """What carries messages: a folder, Flower or NVFlare."""

    def post(self, address: Address, pieces: Iterable[bytes]) -> object:
        """Put a message for the place that its ``address`` names, whole or not at all.

        Posting a message again changes nothing while it is on its way, and asks again after that.
        """

    def fetch(self, place: str) -> Arrived:
        """Yield what has arrived for a place; at SERVER also each last message, empty, once its site has it."""


def folder_of(exchange: Path, names: list[str], site: str, run: str = "") -> Path:
    """Return the folder of a site in the ``exchange`` folder: its number, and its name without unusual characters.

    The messages of a ``run`` of several are in a folder of it there.
    """
    folder = exchange / f"{names.index(site):03d}-{re.sub(r'[^A-Za-z0-9_-]+', '-', site)[:40]}"
    return folder / run.replace("/", "-") if run else folder


def question_file(folder: Path, number: int) -> Path:
    """Return the file of a question by its number, from 1."""
    return folder / f"question-{number:06d}.msg"


def answer_file(folder: Path, number: int) -> Path:
    """Return the file of the answer to a question by its number."""
    return folder / f"answer-{number:06d}.msg"


def final_file(folder: Path) -> Path:
    """Return the file of the last message to a site."""
    return folder / "final.msg"


def find_last_question(folder: Path) -> int | None:
    """Return the number of the last question to a site, which may not get all of them; None without any.

    Files with other names, such as the copies of a synchronizer, are not questions.
    """
    found = (re.fullmatch(r"question-(\d{6,})\.msg", path.name) for path in folder.glob("question-*.msg"))
    return max((int(match[1]) for match in found if match), default=None)


def write_whole(path: Path, pieces: Iterable[bytes]) -> Path:
    """Write a file so that it is never incomplete, and return it; raises InputError if that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write(temporary, pieces)
        temporary.replace(path)
        disk.sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk.write_error(f"cannot write {path}", path.parent, error) from None
    return path


def read_pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


class Folder:
    """The transport that is a folder, which the server and the sites reach."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, address: Address) -> Path:
        """Return the file of a message."""
        return self.path / str(address)

    @property
    def sites(self) -> list[str]:
        """The places of sites that have got a message."""
        return sorted(path.name for path in self.path.glob("*-*") if path.is_dir())

    def post(self, address: Address, pieces: Iterable[bytes]) -> Path:
        """Write a message to its file, and return that; raises InputError if it cannot be written."""
        return write_whole(self.find(address), pieces)

    def fetch(self, place: str) -> Arrived:
        """Yield the last message to a site in each run, unless it is answered; at SERVER, the answers to these."""
        for site in self.sites if place == SERVER else [place]:
            folders = [self.path / site, *sorted(path for path in (self.path / site).glob("*") if path.is_dir())]
            for folder in folders:
                run, number = "" if folder.name == site else folder.name, find_last_question(folder)
                has_answer = number is not None and answer_file(folder, number).exists()
                if place == SERVER:
                    found = Address(site, run, number, is_answer=True) if has_answer else None
                elif final_file(folder).exists():
                    found = Address(site, run, None)
                else:
                    found = None if number is None or has_answer else Address(site, run, number)
                if found is not None:
                    yield found, read_pieces(self.find(found))


def relay(
    folder: Folder,
    transport: Transport,
    last_messages: int,
    say: Callable[[str], None],
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Carry messages between the server's ``folder`` and sites, until they have this number of ``last_messages``."""
    finished = set[Address]()

    def find_unscored() -> set[Address]:
        """Return a last message of each site with several runs that has not sent its scores."""
        waiting = [each for each in finished if each.run and not folder.find(each.answer).exists()]
        return {*{each.site: each for each in sorted(waiting, key=str)}.values()}

    while len(finished) < last_messages or find_unscored():
        for address, pieces in (each for site in folder.sites for each in folder.fetch(site)):
            if address not in finished - find_unscored():
                with suppress(FileNotFoundError):  # the server has closed the round
                    transport.post(address, pieces)
        for address, pieces in transport.fetch(SERVER):
            if address not in finished:
                say(str(address))
            if address.number is None and not address.is_answer:
                finished.add(address)
            else:
                folder.post(address, pieces)
        time.sleep(poll_seconds)


def deliver(folder: Folder, text: str, content: bytes, seconds: float) -> bytes:
    """Put a message for the site whose ``folder`` this is; return its answer, empty if none comes in ``seconds``.

    ``text`` is the address. ``pfl site serve --at`` this folder answers, so that no program is started for a message.
    The last message has no answer but the scores of several runs, once all of these are over. Answered questions before
    this one are removed. Raises InputError for an address to which no server may write.
    """
    address = Address.parse(text)
    path, answer = folder.find(address), folder.find(address.answer)
    if address.is_answer:
        raise InputError(f"{text} is not a message to a site")
    if not path.exists() or path.read_bytes() != content:
        if address.number is not None:
            answer.unlink(missing_ok=True)  # to another question of this number
        folder.post(address, [content])
        for earlier in path.parent.glob("answer-*.msg"):
            if earlier != answer:  # the site does not read its question any more
                earlier.with_name(earlier.name.replace("answer", "question")).unlink(missing_ok=True)
                earlier.unlink(missing_ok=True)
    if address.number is None:
        seconds = _LAST_SECONDS if address.run else 0.0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(FileNotFoundError):
            return answer.read_bytes()
        time.sleep(POLL_SECONDS)
    return b""
