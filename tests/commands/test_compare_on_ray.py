"""Whole methods side by side as tasks of Ray; the tasks here run at once, as Ray itself takes seconds to start."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from pflcli.commands.compare import MAKERS
from pflcli.commands.train_global import train_global
from pflcli.core.engine.executors import ray_runtime
from pflcli.core.errors import InputError
from pflcli.workflow.training import hardware


class TaskError(Exception):
    """What Ray raises where a task raised ``cause``."""


class AtOnce:
    """A Ray whose tasks run when their results are awaited, the latest first; they are pickled on their way."""

    def __init__(self):
        self.exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=ConnectionError)
        self.started, self.executions = [], []

    def remote(self, **options):
        def submit(function, *args):
            self.started.append(args[1].job.name)
            attempt, item, execution, *others = args
            self.executions.append(execution)
            return lambda: function(attempt, item, pickle.loads(pickle.dumps(execution)), *others)

        return lambda function: SimpleNamespace(remote=lambda *args: Reference(submit(function, *args)))

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 2.0}}]

    def wait(self, references, num_returns):
        return references[-1:], references[:-1]

    def get(self, reference):
        return reference.run()


class Reference:
    def __init__(self, run):
        self.run = run


@pytest.fixture
def at_once(monkeypatch):
    ray = AtOnce()

    def connect(cluster, cpus, needed=0):
        ray.cpus = cpus
        return ray

    monkeypatch.setattr(ray_runtime, "connect", connect)
    return ray


def test_compare_on_ray_makes_the_same_table_as_in_one_process(pfl, small, at_once, tmp_path):
    words = (small.p, "--methods", "fedavg,fedavg-plus,local,stack", "--model", "mlp", "--rounds", 2, "--threads", 1)
    one, two = (
        pfl("compare", *words, "-o", tmp_path / "a"),
        pfl("compare", *words, "-o", tmp_path / "b", "--executor", "ray"),
    )
    assert (one.code, two.code) == (0, 0), two.err
    tables = [(tmp_path / name / "comparison" / "clients.csv").read_bytes() for name in "ab"]
    assert tables[0] == tables[1]
    assert sorted(at_once.started) == ["backbone", "fedavg", "fedavg-plus", "local", "stack"]
    assert at_once.started.index("backbone") < at_once.started.index("fedavg-plus")
    assert at_once.started[-1] == "stack"
    assert {(execution.threads, execution.jobs) for execution in at_once.executions} == {(1, 0)}
    assert "seed 0, local: finished in" in two.err


def test_compare_on_ray_skips_steps_that_need_a_failed_one(pfl, small, at_once, tmp_path, monkeypatch):
    def planned_only(*args, execution, **values):
        if execution.dry_run:
            return train_global(*args, execution=execution, **values)
        raise InputError("no backbone today")

    monkeypatch.setitem(MAKERS, "backbone", planned_only)
    monkeypatch.setattr(hardware, "threads", lambda count: count or 5)
    words = ("--methods", "fedavg,fedavg-plus,local", "--baseline", "local", "--model", "mlp", "--rounds", 1)
    ran = pfl("compare", small.p, *words, "-o", tmp_path / "c", "--executor", "ray")
    assert (ran.code, at_once.cpus) == (5, 5)  # all CPUs of this machine
    assert "no backbone today" in ran.err
    assert "pfl: 2 of 3 runs failed" in ran.err  # a backbone is no run of the table
    assert at_once.started[:1] == ["backbone"]
    assert "fedavg-plus" not in at_once.started


def test_options_of_ray_need_ray_and_unknown_executors_are_refused(pfl, small, tmp_path):
    for words, message in (
        (("--executor", "spark"), "unknown executor 'spark'"),
        (("--ray-address", "auto"), "require --executor ray"),
        (("--executor", "ray", "--gpus-per-worker", "-1"), "--gpus-per-worker -1 is negative"),
    ):
        ran = pfl("train-global", small.p, "-o", tmp_path / "b", "--model", "mlp", "--rounds", 1, *words)
        assert ran.code == 2
        assert message in ran.err
