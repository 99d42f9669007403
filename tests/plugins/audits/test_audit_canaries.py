"""Canary clients: the bound stays below the accounted epsilon, and broken mechanisms are detected."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from helpers import error_text
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import rng
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.federation.privacy import accounting
from pflcli.core.federation.private_mean import PrivateMean, Release
from pflcli.plugins.audits import kind as audits
from pflcli.plugins.audits.audit import audit
from pflcli.plugins.audits.canary_training import CanaryMean, summarize

pytest.importorskip("dp_accounting")

DELTA, ROUNDS, NOISE, CLIENTS = 1e-5, 3, 1.0, 20
SHAPE = (400, 10)
PRIVATE = {"model": "logistic", "rounds": 2, "participation": 1.0, "dp_noise": 1.0, "dp_delta": DELTA, "dp_clip": "1"}


def run_canaries(seed, *, count=100, rate=1.0, clip=1.0, adapts=False):
    """What canaries show of rounds in which clients send vectors that have much in common."""
    draws = partial(rng.generator, seed)
    mean = CanaryMean(PrivateMean(NOISE, clip, adapts, rate, CLIENTS, draws), count)
    model = {"w": torch.zeros(SHAPE)}
    common = draws("common").normal(size=SHAPE)
    for t in range(ROUNDS):
        mean.begin_round(t)
        release = mean.begin(model)
        updates = [common + draws("own", t, int(client)).normal(size=SHAPE) for client in mean.sample(np.arange(20), t)]
        if updates:
            uploads = model["w"] + 0.03 * torch.from_numpy(np.stack(updates)).float()
            release.add({"w": uploads}, np.ones(len(updates)))
        model = release.value()
        mean.end_round()
    return summarize(mean, DELTA, accounting.compute_epsilon(NOISE, rate, ROUNDS, DELTA))


def remove_noise(patch):
    patch.setattr(Release, "noise", lambda self, name, like: 0.0)


def divide_noise_by_client_count(patch):
    """The noise of the sum is divided by the number of clients, as if it were that of the mean already."""
    noise = Release.noise
    patch.setattr(Release, "noise", lambda self, name, like: noise(self, name, like) / self._mechanism.expected)


def add_updates_twice(patch):
    add = Release.add

    def twice(self, stacked, weights):
        add(self, stacked, weights)
        add(self, stacked, weights)

    patch.setattr(Release, "add", twice)


def clip_after_averaging(patch):
    """Updates are averaged as they are, and the mean is clipped."""

    def value(self):
        mechanism, sums = self._mechanism, self._mean.total().params
        start = self._downloaded["w"].double()
        change = (sums["w"] - self._weight * start) / mechanism.expected
        change *= min(1.0, mechanism.clip / float(change.norm()))
        self.is_released = True
        return {"w": (start + change + self.noise("w", start) / mechanism.expected).float()}

    patch.setattr(Release, "factors", lambda self, norms: np.ones(len(norms)))
    patch.setattr(Release, "value", value)


FAULTS = [remove_noise, divide_noise_by_client_count, add_updates_twice, clip_after_averaging]


@pytest.mark.parametrize(
    "options", [{}, {"rate": 0.3}, {"adapts": True, "clip": 0.1}], ids=["all", "poisson", "median"]
)
def test_canary_bound_stays_below_the_accounted_epsilon(options):
    shows = run_canaries(0, **options)
    assert 0 < shows["epsilon_low"] < shows["epsilon"]
    assert shows["epsilon_low"] < shows["accounted_epsilon"]
    assert not shows["contradicts"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_canaries_detect_a_faulty_mechanism(fault, monkeypatch):
    fault(monkeypatch)
    assert run_canaries(0)["contradicts"]


@pytest.mark.long
def test_canary_bound_exceeds_epsilon_in_at_most_one_of_twenty_runs():
    """At a confidence of 95 % one of twenty may lie above: canaries disturb each other, which lowers the bound."""
    assert sum(run_canaries(seed)["contradicts"] for seed in range(20)) <= 1


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_canaries_detect_a_faulty_mechanism_in_nineteen_of_twenty_runs(fault, monkeypatch):
    fault(monkeypatch)
    assert sum(run_canaries(seed)["contradicts"] for seed in range(20)) >= 19


def test_canary_directions_have_unit_norm_and_updates_exceed_the_clip():
    mean = CanaryMean(PrivateMean(1.0, 0.5, False, 1.0, 4, partial(rng.generator, 0)), 30)
    like = {"w": torch.ones(50, 3), "b": torch.zeros(3)}
    uploads = mean._uploads(like, np.arange(30))
    norms = sum((uploads[name] - like[name]).square().flatten(1).sum(1) for name in like).sqrt()
    np.testing.assert_allclose(norms, 5.0, rtol=1e-4)
    mean.moved = {name: value.double() for name, value in mean._direction(like, 7).items()}
    assert mean.project(0, 30)[7] == pytest.approx(1.0, abs=1e-5)
    assert np.abs(np.delete(mean.project(0, 30), 7)).max() < 0.5


@pytest.fixture(scope="module")
def private_runs(tmp_path_factory):
    """Four writers, a private global model, and predictions that stand on it; and FedAvg without privacy."""
    at = tmp_path_factory.mktemp("private")
    partition("writers", at / "p", clients=4)
    personalize("fedavg", at / "p", at / "fedavg", settings=PRIVATE, execution=Execution(threads=1))
    train_global(at / "p", at / "b", settings=PRIVATE, execution=Execution(threads=1))
    personalize("fedavg-plus", at / "b", at / "plus", execution=Execution(threads=1))
    open_settings = {"model": "logistic", "rounds": 1}
    personalize("fedavg", at / "p", at / "open", settings=open_settings, execution=Execution(threads=1))
    return at


@pytest.mark.parametrize("name", ["fedavg", "plus"])
def test_audit_canaries_measures_the_training_rounds(private_runs, tmp_path, name, pfl):
    ran = pfl("audit", private_runs / name, "-o", tmp_path / "a", "--canaries", 40, "--threads", 1)
    assert ran.code == 0, ran.err
    shows = audits.read(open_artifact(tmp_path / "a"))["canaries"]
    assert shows["accounted_epsilon"] == pytest.approx(accounting.compute_epsilon(1.0, 1.0, 2, DELTA))
    assert 0 < shows["epsilon_low"] < shows["accounted_epsilon"]
    assert "40 canaries show that epsilon is at least" in ran.err


def test_audit_canaries_detects_missing_noise_in_training(private_runs, tmp_path, monkeypatch):
    remove_noise(monkeypatch)
    audit(private_runs / "fedavg", tmp_path / "a", canaries=40, execution=Execution(threads=1))
    content = audits.read(open_artifact(tmp_path / "a"))
    assert content["canaries"]["contradicts"]
    assert "contradicts the accounted" in content["warnings"][-1]


def test_audit_refuses_too_few_canaries_or_a_run_without_privacy(private_runs, tmp_path):
    with pytest.raises(UsageError) as error:
        audit(private_runs / "fedavg", tmp_path / "a", canaries=5)
    assert "--canaries 200" in error_text(error)
    with pytest.raises(InputError) as error:
        audit(private_runs / "open", tmp_path / "a", canaries=50)
    assert "no differential privacy" in error_text(error)
    assert not (tmp_path / "a").exists()
