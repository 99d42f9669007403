"""FedAvg+ with several models per client: each learns from its own part of the samples, and they answer together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.personalize import personalize
from pflcli.core import parameters
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.methods import fedavg_plus
from pflcli.plugins.export.standalone_model import build_standalone_model
from pflcli.workflow.prediction import stored_predictor

CLIENT = np.asarray([0])


def train_models(run):
    """The models of client 0."""
    with run.personalizing():
        return [
            parameters.pick(part.params, 0) for parts in fedavg_plus.fine_tune_on_parts(run, CLIENT) for part in parts
        ]


@pytest.mark.parametrize("pool", ["mean", "votes"])
def test_fedavg_plus_averages_probabilities_or_votes_of_its_models(pool):
    run = worlds.run("fedavg-plus", options={"models": 3, "pool": pool})
    actual = worlds.answers("fedavg-plus", run, {}, CLIENT)["test"]
    rows = run.federation.rows(0, "test")
    each = [run.task.predict(run.engine.infer(model, rows)[0]) for model in train_models(run)]
    if pool == "votes":
        each = [np.eye(worlds.CLASSES)[p.argmax(axis=1)] for p in each]
    np.testing.assert_allclose(actual, np.mean(each, axis=0), atol=1e-6)
    assert len(np.unique(actual)) > 1


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_a_training_sample_affects_exactly_one_model_of_the_ensemble(mode):
    before = train_models(worlds.run("fedavg-plus", options={"models": 3}, mode=mode))
    run = worlds.run("fedavg-plus", options={"models": 3}, mode=mode)
    row = run.federation.rows(0, "train")[0]
    run.federation.y[row] = (run.federation.y[row] + 1) % worlds.CLASSES
    after = train_models(run)
    pairs = zip(before, after, strict=True)
    changed = [any(not torch.equal(old[name], new[name]) for name in old) for old, new in pairs]
    assert sum(changed) == 1


def test_ensemble_of_one_equals_fedavg_plus_and_knn_per_plus_refuses_several_models():
    plain = worlds.answers("fedavg-plus", worlds.run("fedavg-plus"), {})
    voting = worlds.answers("fedavg-plus", worlds.run("fedavg-plus", options={"models": 1, "pool": "votes"}), {})
    assert all(np.array_equal(plain[split], voting[split]) for split in plain)
    with pytest.raises(UsageError, match="leave out models"):
        worlds.run("knn-per-plus", options={"models": 2})


def test_standalone_model_reproduces_the_mean_of_networks_and_refuses_votes(small, tmp_path):
    one = Execution(threads=1)
    for pool in ("mean", "votes"):
        personalize("fedavg-plus", small.b, tmp_path / pool, options={"models": 2, "pool": pool}, execution=one)
    parts = build_standalone_model(stored_predictor.open_predictor(open_artifact(tmp_path / "mean")).run, 1, one)
    with torch.no_grad():
        x = torch.from_numpy(parts.x.astype(np.float32) / 255)[:, None]
        p = sum(share * net(x).softmax(dim=1) for net, share in zip(parts.networks, parts.shares, strict=True))
    np.testing.assert_allclose(p, parts.p, atol=1e-5)
    with pytest.raises(InputError, match="cannot be exported"):
        build_standalone_model(stored_predictor.open_predictor(open_artifact(tmp_path / "votes")).run, 1, one)
