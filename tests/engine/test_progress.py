"""Long steps report how many clients are done."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from pflcli.commands.personalize import personalize
from pflcli.core import reporter
from pflcli.core.execution import Execution


class Log:
    """Keeps what it is shown."""

    def __init__(self):
        self.shown = []

    def say(self, text):
        pass

    def detail(self, text):
        pass

    @contextmanager
    def progress(self, label, total, completed=0):
        yield lambda steps, note: self.shown.append((steps, note))


@pytest.mark.parametrize("how", [{"engine": "loop"}, {"engine": "stacked"}, {"jobs": 2}])
def test_progress_counts_finished_clients_during_a_long_step(how, small, tmp_path, monkeypatch):
    monkeypatch.setattr(reporter, "_PATIENCE_SECONDS", -1)
    log = Log()
    personalize("local", small.p, tmp_path / "l", settings={"model": "mlp"}, execution=Execution(reporter=log, **how))
    within = [note for steps, note in log.shown if not steps]
    counts = [int(note.split()[0]) for note in within]
    total = int(within[0].split()[2])
    assert all(note == f"{count} of {total} clients trained" for note, count in zip(within, counts, strict=True))
    assert counts == sorted(counts)
    assert counts[-1] == total
    assert sum(steps for steps, _ in log.shown) == total


def test_progress_of_short_steps_shows_no_client_counts(small, tmp_path):
    log = Log()
    personalize("local", small.p, tmp_path / "l", settings={"model": "mlp"}, execution=Execution(reporter=log))
    assert all(steps for steps, _ in log.shown)
