"""FedRoD: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

import worlds
from by_hand import descend, detach, minibatch_samples, representation, require_grad
from pflcli.core import parameters


def test_fedrod_rounds_match_hand_computed_models():
    run = worlds.run("fedrod", options={"gamma": 0.5})
    state = worlds.play("fedrod", run)
    data, shared = run.federation, run.init
    zeros = {name: torch.zeros_like(value) for name, value in parameters.part(shared, "head.").items()}
    heads = dict.fromkeys(range(7), zeros)
    for t in range(3):
        cohort, trained = run.cohort(t).tolist(), []
        for c in cohort:
            w, own = require_grad(shared), require_grad(heads[c])
            counts = torch.bincount(data.y[data.block(c, "train")], minlength=worlds.CLASSES)
            offsets = 0.5 * torch.log(counts.clamp(min=1e-12))
            for x, y in minibatch_samples(data, c, ("sgd", t)):
                z = representation(w, x)
                generic = z @ w["head.weight"].T + w["head.bias"]
                both = generic.detach() + z.detach() @ own["head.weight"].T + own["head.bias"]
                balanced, personal = functional.cross_entropy(generic + offsets, y), functional.cross_entropy(both, y)
                descend(list(w.values()), balanced, 0.1)
                descend(list(own.values()), personal, 0.1)
            heads[c] = detach(own)
            trained.append(detach(w))
        shared = worlds.mean(trained, data.sizes("train")[cohort].tolist())
    worlds.close(state["global"], shared, atol=1e-5)
    for c, expected in heads.items():
        worlds.close(parameters.pick(state["heads"][[c]], 0), expected, atol=1e-5)
    assert 0 in state["heads"].written
    actual = worlds.answers("fedrod", run, state, np.asarray([0]))["test"]
    model = {**shared, **{name: shared[name] + value for name, value in heads[0].items()}}
    np.testing.assert_allclose(actual, worlds.probabilities(model, data, 0), atol=1e-5)
    assert run.traffic["up"] == sum(len(run.cohort(t)) for t in range(3)) * parameters.size(run.init)


def test_fedrod_generic_model_with_gamma_0_equals_that_of_fedavg():
    runs = [worlds.run("fedavg"), worlds.run("fedrod", options={"gamma": 0.0})]
    expected, actual = (worlds.play(*args)["global"] for args in zip(("fedavg", "fedrod"), runs, strict=True))
    worlds.close(actual, expected, atol=1e-5)
    assert runs[0].traffic == runs[1].traffic


def test_fedrod_newcomer_trains_only_its_head_on_the_generic_model():
    run = worlds.run("fedrod", options={"newcomer_epochs": 2}, weight_decay=0.0)
    state = worlds.play("fedrod", run)
    new = next(c for c in worlds.ABLE if c not in state["heads"].written and run.federation.sizes("test")[c])
    actual = worlds.answers("fedrod", run, state, np.asarray([new]))["test"]
    # From zeros, own heads on top of the generic one take the steps that this head would take.
    model = worlds.steps(state["global"], run.federation, new, ("sgd", "newcomer"), epochs=2, trainable="head.")
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, new), atol=1e-5)
