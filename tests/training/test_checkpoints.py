"""When a run writes a checkpoint."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pflcli.training import rounds
from pflcli.training.checkpoint import Progress


@pytest.mark.parametrize(
    ("cost", "expected"),
    [(0.0, [1.0, 2.0, 3.0]), (0.1, [1.0, 3.1, 5.2]), (3.0, [1.0, 14.0, 27.0])],
)
def test_checkpoints_wait_a_second_or_twenty_times_their_cost_but_no_more_than_ten_seconds(monkeypatch, cost, expected):
    clock, written = SimpleNamespace(now=100.0), []

    def write(content):
        written.append(round(clock.now - 100, 1))
        clock.now += cost

    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(rounds, "pack", lambda run, progress: b"")
    checkpoints = rounds.Checkpoints(SimpleNamespace(), Progress({}), SimpleNamespace(checkpoint=write))
    while len(written) < len(expected):
        clock.now = round(clock.now + 0.1, 6)
        checkpoints.offer()
    assert written == expected
