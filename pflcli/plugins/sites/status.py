"""What a server is doing: the round, who is awaited since when, and what each site answered last.

The server keeps it in a file, which ``pfl federation status`` reads, also while the server runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pflcli.artifacts import disk, locks
from pflcli.core import foreign
from pflcli.core.errors import InputError
from pflcli.plugins.sites import several
from pflcli.plugins.sites.endpoints import Server
from pflcli.plugins.sites.log_times import read_clock
from pflcli.plugins.sites.messages import Answer, Question

FILE = "status.json"
_ALIVE_SECONDS = 10 * locks.RENEWAL_SECONDS
"""Seconds without a renewal of its lock after which a server does not run."""


class Status:
    """The status of a server, in a file in its folder."""

    def __init__(self, server: Server) -> None:
        """Continue the status of an earlier process, if there is one."""
        self._server, self._path = server, server.folder / FILE
        stored = dict[str, Any]()
        with suppress(InputError):  # no run ends because of its status
            stored = _read(self._path)
        self._number, self._awaited = stored.get("message"), dict(stored.get("awaited", {}))
        self._sites: dict[str, Any] = dict(stored.get("sites", {}))

    def note_questions(self, questions: Mapping[str, Question]) -> None:
        """Note whom the server awaits: since now, or since an earlier process asked the same question."""
        number, now = max(question.number for question in questions.values()), read_clock()
        before = self._awaited if number == self._number else {}
        self._number, self._awaited = number, {site: before.get(site, now) for site in questions}
        self._write()

    def note_answer(self, site: str, answer: Answer) -> None:
        """Note that the server has the answer of a site."""
        self._awaited.pop(site, None)
        name = self._server.name_phase(answer.round)
        versions = {key[:40]: value[:200] for key, value in [*answer.versions.items()][:8]}
        self._sites[site] = {"phase": name, "round": answer.round, "time": read_clock(), "versions": versions}
        self._write()

    def note_end_of_phase(self) -> None:
        """Note that the server awaits nobody, until it asks again."""
        self._awaited = {}
        self._write()

    @property
    def awaited(self) -> Mapping[str, str]:
        """The sites that are awaited, each with the time at which it was asked."""
        return self._awaited

    def _write(self) -> None:
        server = self._server
        facts = {
            "rounds": server.run.settings.rounds,
            "closed": server.rounds,
            "phase": "final" if server.is_finished else server.name_phase(server.phase),
            "round": server.phase,
            "message": self._number,
            "awaited": self._awaited,
            "sites": self._sites,
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(".tmp")
            disk.write(temporary, [json.dumps(facts).encode()])
            temporary.replace(self._path)
        except OSError as error:
            raise disk.write_error(f"cannot write {self._path}", self._path.parent, error) from None


def _read(path: Path) -> dict[str, Any]:
    with foreign.reading(path, "the status of a server"):
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts["awaited"], dict) or not isinstance(facts["sites"], dict):
            raise InputError(f"{path} is not the status of a server")
    return facts


def read_status(folder: Path) -> dict[str, Any]:
    """Return the status of each of the ``runs`` of a server by name, and whether it ``is_running``.

    The name of a single run is empty; runs without a question so far are missing.
    """
    states = several.state_folder(folder, ".")
    paths = {"": folder / FILE, **{each.parent.relative_to(states).as_posix(): each for each in states.rglob(FILE)}}
    return {
        "is_running": _is_alive(folder),
        "runs": {name: _read(path) for name, path in sorted(paths.items()) if path.exists()},
    }


def _is_alive(folder: Path) -> bool:
    """Return whether a process of this machine, or of another one that shares the folder, renews its lock."""
    try:
        renewed = locks.file(folder).stat().st_mtime
    except OSError:
        return False
    return abs(time.time() - renewed) < _ALIVE_SECONDS
