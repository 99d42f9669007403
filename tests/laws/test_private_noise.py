"""Noise of differential privacy: independent between any two runs that may both be released, repeated by a resume.

If two runs shared noise, their difference would have none, and composition of their guarantees would not hold.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from pflcli import methods, models, registry
from pflcli.artifacts import client_blocks
from pflcli.artifacts.kinds import backbone
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.execution import Execution
from pflcli.federation.private_mean import PrivateMean, Release
from pflcli.settings import Settings
from pflcli.training import dp_secret

pytest.importorskip("dp_accounting")

METHODS = [
    name
    for name in registry.names("methods")
    if (method := methods.load(name)).KIND == "server" and not method.NEEDS and not method.SENDS_MORE
]
PRIVATE = {"model": "mlp", "rounds": 2, "participation": 0.5, "dp_noise": 1.0, "dp_delta": 1e-3}
ONE = Execution(threads=1)


@pytest.fixture
def recorded(monkeypatch):
    """Record the noise of each round and tensor, and the cohorts, in ``noise`` and ``cohorts``."""
    record = {"noise": [], "cohorts": []}
    draw, sample = Release.noise, PrivateMean.sample

    def noise(self, name, like):
        values = draw(self, name, like)
        if isinstance(values, torch.Tensor):
            record["noise"].append(values.numpy().ravel() / float(values.std()))
        return values

    def cohort(self, participants, t):
        chosen = sample(self, participants, t)
        record["cohorts"].append(chosen.tolist())
        return chosen

    monkeypatch.setattr(Release, "noise", noise)
    monkeypatch.setattr(PrivateMean, "sample", cohort)

    def of(act):
        record["noise"], record["cohorts"] = [], []
        act()
        return np.concatenate(record["noise"]), record["cohorts"]

    return of


def correlation(one, other):
    count = min(len(one), len(other))
    return abs(np.corrcoef(one[:count], other[:count])[0, 1])


def require_independent(runs):
    for one, other in itertools.combinations(runs, 2):
        bound = 5 / np.sqrt(min(len(one), len(other)))
        assert correlation(one, other) < bound


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_repeats_its_noise_and_another_of_the_same_request_does_not(
    method, small, tmp_path, recorded, monkeypatch
):
    release = PrivateMean.end_round

    def interrupted(self):
        if self._round == 1:
            raise KeyboardInterrupt
        return release(self)

    def run(name="run"):
        personalize(method, small.p, tmp_path / name, settings=PRIVATE, execution=ONE)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateMean, "end_round", interrupted)

        def stopped():
            with pytest.raises(KeyboardInterrupt):
                run()

        before, _ = recorded(stopped)
    secret = (tmp_path / "run.partial" / dp_secret.FILE).read_bytes()
    after, _ = recorded(run)
    assert (tmp_path / "run" / dp_secret.FILE).read_bytes() == secret
    np.testing.assert_array_equal(after, before[-len(after) :])  # round 2, which was interrupted, once more
    again, _ = recorded(partial(run, "again"))
    require_independent([before, again])


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_runs_that_differ_in_one_option_have_independent_noise(method, small, tmp_path, recorded):
    """Neither the noise of a secret nor, with ``dp_seed``, that of a seed is used by two requests."""
    variants = {"once": {}, "lr": {"lr": 0.2}, "seeded": {"dp_seed": 1}, "seeded lr": {"dp_seed": 1, "lr": 0.2}}
    runs = []
    for name, changes in variants.items():
        act = partial(personalize, method, small.p, tmp_path / name, settings={**PRIVATE, **changes}, execution=ONE)
        runs.append(recorded(act)[0])
    require_independent(runs)


def test_a_seed_repeats_a_run(small, tmp_path, recorded):
    settings = {**PRIVATE, "dp_seed": 7}
    runs = [recorded(partial(train_global, small.p, tmp_path / out, settings=settings, execution=ONE)) for out in "ab"]
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    weights = [(tmp_path / out / "weights.safetensors").read_bytes() for out in "ab"]
    assert weights[0] == weights[1]
    assert not (tmp_path / "a" / dp_secret.FILE).exists()


def test_with_a_seed_other_samples_under_the_same_request_have_other_noise(small):
    """A client that leaves changes the samples, and need not change the request of the partition."""
    partition, settings = open_artifact(small.p), Settings(dp_noise=1.0, dp_delta=1e-3, dp_seed=7)
    files = {name: {**facts, "sha256": "0" * 64} for name, facts in partition.manifest.files.items()}
    other = dataclasses.replace(partition, manifest=dataclasses.replace(partition.manifest, files=files))
    spec = ArtifactSpec("backbone", {}, ())
    seeds = {dp_secret.noise_seed(settings, spec, source, None) for source in (partition, partition, other)}
    assert len(seeds) == 2


def test_the_difference_of_two_released_models_does_not_tell_who_took_part(small, tmp_path):
    """The attack: least squares of the difference of two models on all clients' updates, which the attacker knows.

    With shared noise, every client was told apart, to five digits.
    """
    data = partitions.read(open_artifact(small.p))
    released, updates = [], []
    for lr in (0.1, 0.3):
        settings = {**PRIVATE, "model": "logistic", "rounds": 1, "dp_clip": "1", "batch_size": 1000, "lr": lr}
        train_global(small.p, tmp_path / f"{lr}", settings=settings, execution=ONE)
        weights = backbone.read_tensors(open_artifact(tmp_path / f"{lr}"))
        net = models.create("logistic", (1, *data.x.shape[1:]), data.classes, 0)
        start = {name: value.detach().clone() for name, value in net.named_parameters()}
        released.append(torch.cat([(weights[name] - start[name]).flatten() for name in start]).double())
        updates.append(torch.stack([clipped_update(net, data, client, lr) for client in range(len(data.names))], dim=1))
    expected = 0.5 * len(data.names)
    difference, basis = released[0] - released[1], (updates[0] - updates[1]) / expected
    member = torch.linalg.lstsq(basis, difference[:, None]).solution[:, 0].numpy()
    assert np.abs(member - member.round()).max() > 1e-2


def clipped_update(net, data, client, lr):
    """The update of one client after one step on all its training samples, clipped to 1."""
    block = len(client_blocks.SPLITS) * client
    rows = slice(*data.offsets[block : block + 2])
    x = torch.from_numpy(np.asarray(data.x[rows]))[:, None].float() / 255
    loss = functional.cross_entropy(net(x), torch.from_numpy(data.y[rows]))
    gradient = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(net.parameters()))]).double()
    update = -lr * gradient
    return update / max(1.0, float(update.norm()))
