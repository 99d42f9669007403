"""FedBN: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import worlds
from by_hand import sent_names
from pflcli.core import parameters, rng


def test_fedbn_equals_fedavg_when_the_model_has_no_batch_norm():
    runs = [worlds.run(name) for name in ("fedavg", "fedbn")]
    expected, actual = (worlds.play(*args) for args in zip(("fedavg", "fedbn"), runs, strict=True))
    assert worlds.same(expected["global"], actual["shared"])
    assert list(actual) == ["shared"]
    assert runs[0].traffic == runs[1].traffic


NORM = [f"body.2.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]


def train_with_batch_norm(net, start, data, client, key, trainable=""):
    net.load_state_dict(start)
    net.train()
    optimizer = torch.optim.SGD([p for name, p in net.named_parameters() if name.startswith(trainable)], lr=0.1)
    rows = torch.from_numpy(data.rows(client, "train"))
    for part in rows[torch.from_numpy(rng.generator(0, *key, client).permutation(len(rows)))].split(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data.inputs(part)), data.y[part]).backward()
        optimizer.step()
    return parameters.copy_params(net)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fedbn_rounds_match_hand_computed_models(mode):
    run, net = worlds.normalized("fedbn", mode)
    names = sent_names(run)
    state = worlds.play("fedbn", run)
    data, shared, n = run.federation, run.init, run.federation.sizes("train")
    own = {c: {name: run.init[name] for name in NORM} for c in range(4)}
    for t in range(2):
        cohort = run.cohort(t).tolist()
        trained = [train_with_batch_norm(net, {**shared, **own[c]}, data, c, ("sgd", t)) for c in cohort]
        own |= {c: {name: model[name] for name in NORM} for c, model in zip(cohort, trained, strict=True)}
        shared = worlds.mean(trained, n[cohort].tolist())
    assert names == set(state["shared"]) == set(run.init) - set(NORM)
    worlds.close(state["shared"], {name: shared[name] for name in names})
    for c, expected in own.items():
        worlds.close(parameters.pick(state["norms"][[c]], 0), expected)
    actual = worlds.answers("fedbn", run, state)["test"]
    offsets = np.concatenate([[0], np.cumsum(data.sizes("test"))])
    for c in state["norms"].written:
        model = {**shared, **own[c]}
        net.load_state_dict(model)
        with torch.no_grad():
            p = torch.softmax(net.eval()(data.inputs(data.block(c, "test"))), 1)
        np.testing.assert_allclose(actual[offsets[c] : offsets[c + 1]], p, atol=1e-5)


def test_fedbn_newcomer_trains_only_its_normalization_layers():
    run, net = worlds.normalized("fedbn")
    run.cfg = type(run.cfg)(newcomer_epochs=1)
    state = worlds.play("fedbn", run, last=1)
    (new,) = state["norms"].unwritten(np.asarray([0, 1, 3]))
    actual = worlds.answers("fedbn", run, state, np.asarray([new]))["test"]
    start = {**state["shared"], **{name: run.init[name] for name in NORM}}
    model = train_with_batch_norm(net, start, run.federation, int(new), ("sgd", "newcomer"), trainable="body.2.")
    net.load_state_dict(model)
    with torch.no_grad():
        p = torch.softmax(net.eval()(run.federation.inputs(run.federation.block(int(new), "test"))), 1)
    np.testing.assert_allclose(actual, p, atol=1e-6)
