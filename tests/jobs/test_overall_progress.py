"""Progress of many jobs, in per cent of their total time, which is estimated from finished jobs."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from pflcli.core.reporter import NullReporter
from pflcli.workflow.jobs.graph import Job
from pflcli.workflow.jobs.progress import OverallProgress


class Screen(NullReporter):
    """Keeps what is said, and when the percentage was updated."""

    def __init__(self, now):
        self.now, self.said, self.updates = now, [], []

    def say(self, text):
        self.said.append(text)

    @contextmanager
    def progress(self, label, total, completed=0):
        assert (label, total) == ("compare", 100)
        yield self.advance

    def advance(self, steps, note):
        percent = (self.updates[-1][1] if self.updates else 0.0) + steps
        self.updates.append((self.now[0], percent, note))


def make_job(seed, name, work):
    return Job(name, Path(), lambda inputs, execution: None, (), seed=seed, work=work)


def test_overall_progress_weights_jobs_by_their_duration():
    """Two seeds of a job that takes 3 s and one that takes 1 s: what is known after the first tells of the second."""
    now = [0.0]
    jobs = [make_job(seed, name, 1.0) for seed in (0, 1) for name in ("slow", "fast")]
    screen = Screen(now)
    progress = OverallProgress(screen, jobs, clock=lambda: now[0])
    with progress.overall():
        for each in jobs:
            with progress.job(each), progress.progress(each.name, 4) as advance:
                for _ in range(4):
                    now[0] += 0.75 if each.name == "slow" else 0.25
                    advance(1, "loss 1.0")
                progress.say(f"{each.name}: all well")
    at = {round(when, 2): percent for when, percent, _ in screen.updates}
    assert at[1.5] == pytest.approx(100 * 1.5 / 12)  # half of the first of four that are assumed to be alike
    assert at[4.0] == pytest.approx(50)  # both have been measured once
    assert at[5.5] == pytest.approx(100 * 5.5 / 8)
    assert at[8.0] == pytest.approx(100)
    assert [percent for _, percent, _ in screen.updates] == sorted(percent for _, percent, _ in screen.updates)
    assert screen.updates[1][2] == "seed 0, slow, 1/4, loss 1.0"
    assert screen.said[:2] == ["seed 0, slow: all well", "seed 0, slow: finished in 3.0 s"]


def test_overall_progress_ignores_rounds_finished_before_a_resume():
    """Rounds of before took no time now: 90 of 100 rounds are there, the next 5 take 5 s, so 5 s are left."""
    now = [0.0]
    screen, resumed = Screen(now), make_job(0, "backbone", 100.0)
    progress = OverallProgress(screen, [resumed], clock=lambda: now[0])
    with progress.overall(), progress.job(resumed), progress.progress("fedavg", 100, 90) as advance:
        now[0] = 5.0
        advance(5, "")
        assert screen.updates[-1][1] == pytest.approx(50)


def test_overall_progress_never_decreases():
    """The first job takes 1 s, and the second turns out to be slower than was assumed."""
    now, jobs = [0.0], [make_job(0, name, 1.0) for name in ("fast", "slow", "last")]
    screen = Screen(now)
    progress = OverallProgress(screen, jobs, clock=lambda: now[0])
    with progress.overall():
        for each, seconds in zip(jobs, (0.01, 0.5, 0.1), strict=True):
            with progress.job(each), progress.progress(each.name, 100) as advance:
                for _ in range(100):
                    now[0] += seconds
                    advance(1, "")
    percents = [percent for _, percent, _ in screen.updates]
    assert percents == sorted(percents)
    assert percents[-1] == pytest.approx(100)
