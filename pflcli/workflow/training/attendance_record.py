"""The record of who answered in each round of a deployment, with which a simulation repeats it.

A CSV file with the columns ``round``, from 1, ``client``, the name of a client that was asked in this round, and
``answered``, yes or no. In the simulation, clients that did not answer drop out of the round. A round in which nobody
was asked, because ``--dropout`` left no client, has no row.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pflcli.artifacts import csv_file
from pflcli.core import foreign
from pflcli.core.errors import InputError, UnsuitedError, UsageError, closest
from pflcli.core.federation.attendance import RoundNotes
from pflcli.core.federation.run import Run
from pflcli.core.methods import Method
from pflcli.core.settings import Settings
from pflcli.core.wording import counted, listed

FILE = "attendance.csv"
"""The name of the file that the server of a deployment writes."""

_COLUMNS = ["round", "client", "answered"]
_WORDS = {"yes": True, "no": False}


@dataclass(frozen=True)
class AttendanceRecord:
    """Whether each client that was asked in a round answered: by round, from 1, and by name."""

    rounds: Mapping[int, Mapping[str, bool]]
    path: Path = Path(FILE)

    def encode(self) -> bytes:
        """Return the record as CSV."""
        words = {answered: word for word, answered in _WORDS.items()}
        rows = (
            (number, client, words[answered])
            for number, clients in self.rounds.items()
            for client, answered in clients.items()
        )
        return csv_file.encode(_COLUMNS, rows)

    @property
    def absent(self) -> dict[str, list[str]]:
        """The names of the clients that did not answer, by round, for a request; rounds without any are omitted."""
        found = {
            str(number): [client for client, answered in clients.items() if not answered]
            for number, clients in sorted(self.rounds.items())
        }
        return {number: sorted(clients) for number, clients in found.items() if clients}

    def list_absent(self, names: Sequence[str]) -> dict[int, set[int]]:
        """Return the clients that did not answer, by round from 0, as numbers of clients with these ``names`` (m,).

        Raises InputError if the run has other clients.
        """
        numbers = {name: client for client, name in enumerate(names)}
        for clients in self.rounds.values():
            if unknown := [client for client in clients if client not in numbers]:
                raise InputError(
                    f"{self.path} has the client '{unknown[0]}', which is not one of this run",
                    closest(unknown[0], names),
                )
        return {
            number - 1: {numbers[client] for client, answered in clients.items() if not answered}
            for number, clients in self.rounds.items()
        }

    def require_drawn(self, run: Run, names: Sequence[str]) -> None:
        """Raise InputError if ``run``, whose clients have these ``names`` (m,), has other rounds.

        It has if their number or the clients that it draws for a round are others.
        """
        last, rounds = max(self.rounds, default=0), run.settings.rounds
        if last > rounds:
            raise InputError(f"{self.path} has round {last}, but the run ends after round {rounds}", f"--rounds {last}")
        for number in range(1, rounds + 1):
            clients = self.rounds.get(number, {})
            drawing = replace(run, notes=RoundNotes())
            drawing.draw_cohort(number - 1)
            drawn = [names[client] for client in drawing.attendance.present.tolist()]  # nobody, if all drop out
            if drawn and not clients:
                raise InputError(
                    f"{self.path} lacks round {number}, and this run has {counted(rounds, 'round')}",
                    f"--rounds {number - 1}" if number > last > 0 else f"give the whole {FILE} of the deployment",
                )
            if {*drawn} != {*clients}:
                raise InputError(
                    f"{self.path} was recorded by another run: in round {number} it asked {listed([*clients])}, but"
                    f" this run draws {listed(drawn) or 'nobody'}",
                    "give the seed and the settings of that run",
                )


def read(path: Path | str) -> AttendanceRecord:
    """Read a record; raises InputError, with the line, if the file is damaged or not a record."""
    path = Path(path)
    rounds: dict[int, dict[str, bool]] = {}
    with foreign.reading(path, "CSV"), path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        if (header := next(rows, [])) != _COLUMNS:
            raise InputError(
                f"{path} has the columns {listed(header) or '(none)'}, not {', '.join(_COLUMNS)}",
                f"give the {FILE} that the server of a federation has written",
            )
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if len(row) != len(_COLUMNS):
                raise InputError(f"{where}: {len(row)} cells, not {len(_COLUMNS)}")
            number, client, word = row
            if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number) > 0):
                raise InputError(f"{where}: '{number[:80]}' is not the number of a round")
            if word not in _WORDS:
                raise InputError(f"{where}: '{word[:80]}' is neither yes nor no")
            clients = rounds.setdefault(int(number), {})
            if client in clients:
                raise InputError(f"{where}: client '{client[:80]}' stands twice in round {number}")
            clients[client] = _WORDS[word]
    return AttendanceRecord(rounds, path)


def read_for_method(path: Path | str, name: str, method: Method, settings: Settings) -> AttendanceRecord:
    """Read the record for a run of a method.

    Raises UsageError for a method without rounds, UnsuitedError with differential privacy, and what ``read`` raises.
    """
    if not method.has_rounds:
        raise UsageError(
            f"--attendance has no effect: {name} has no rounds",
            "pfl train-global PARTITION --attendance FILE -o DIR" if method.NEEDS else "leave out --attendance",
        )
    if settings.dp:
        raise UnsuitedError(
            "with differential privacy, a secret of each run determines who takes part: no other run has these rounds",
            "leave out --attendance",
        )
    return read(path)
