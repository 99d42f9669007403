"""FedProto: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

import worlds
from by_hand import descend, detach, minibatch_samples, representation, require_grad
from pflcli.core import parameters


def test_fedproto_rounds_match_hand_computed_models():
    run = worlds.run("fedproto", options={"lam": 2.0})
    state = worlds.play("fedproto", run)
    data = run.federation
    models, prototypes, sent_bytes = dict.fromkeys(range(7), run.init), {}, {"up": 0, "down": 0, "peer": 0}
    for t in range(3):
        sums, counts = {}, {}
        cohort = run.cohort(t).tolist()
        sent_bytes["down"] += len(cohort) * len(prototypes) * 200 * 4
        for c in cohort:
            w = require_grad(models[c])
            for x, y in minibatch_samples(data, c, ("sgd", t)):
                z = representation(w, x)
                loss = functional.cross_entropy(z @ w["head.weight"].T + w["head.bias"], y)
                apart = [((z[i] - prototypes[k]) ** 2).mean() for i, k in enumerate(y.tolist()) if k in prototypes]
                descend(list(w.values()), loss + 2.0 * sum(apart) / len(y), 0.1)
            models[c] = detach(w)
            y = data.y[data.block(c, "train")]
            z = representation(models[c], data.inputs(data.block(c, "train")))
            for k in y.unique().tolist():
                sums[k] = sums.get(k, 0) + z[y == k].sum(dim=0)
                counts[k] = counts.get(k, 0) + int((y == k).sum())
                sent_bytes["up"] += 200 * 4
        prototypes |= {k: total / counts[k] for k, total in sums.items()}
    assert run.traffic == sent_bytes
    for k, expected in prototypes.items():
        torch.testing.assert_close(state["prototypes"]["mean"][k], expected, rtol=1e-4, atol=1e-5)
    for c in range(7):
        worlds.close(parameters.pick(state["models"][[c]], 0), models[c], atol=1e-5)
    assert 0 in state["models"].written
    actual = worlds.answers("fedproto", run, state, np.asarray([0]))["test"]
    z = representation(models[0], data.inputs(data.block(0, "test")))
    apart = torch.stack([((z - prototypes[k]) ** 2).sum(dim=1) for k in sorted(prototypes)], dim=1)
    assert sorted(prototypes) == [0, 1, 2]
    np.testing.assert_allclose(actual, torch.softmax(-apart / 2, 1), atol=1e-4)


def test_fedproto_embeds_training_samples_by_compiled_loops_during_training(monkeypatch):
    run, compiled = worlds.run("fedproto"), []
    state, infer = worlds.play("fedproto", run, last=0), run.engine.executor.infer

    def recorded(tasks, models):
        compiled.extend(task.compiled for task in tasks)
        return infer(tasks, models)

    monkeypatch.setattr(run.engine.executor, "infer", recorded)
    with run.engine.training():
        worlds.play("fedproto", run, last=1, state=state)
    assert compiled
    assert all(compiled)


def test_fedproto_with_lambda_0_equals_local_training():
    """Its clients train one epoch in each round that they take part in, as ``steps`` does."""
    run = worlds.run("fedproto", options={"lam": 0.0, "answer": "head"}, participation=1.0)
    state = worlds.play("fedproto", run)
    model = run.init
    for t in range(3):
        model = worlds.steps(model, run.federation, 0, ("sgd", t))
    actual = worlds.answers("fedproto", run, state, np.asarray([0]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, 0), atol=1e-5)


def test_fedproto_pulls_to_known_prototypes_when_others_are_unknown():
    models = []
    for lam in (0.0, 5.0):
        run = worlds.run("fedproto", options={"lam": lam}, participation=1.0)
        state = worlds.play("fedproto", worlds.run("fedproto", participation=1.0), last=1)
        state["prototypes"]["known"][2] = 0
        models.append(worlds.play("fedproto", run, 1, 2, state)["models"][[0]]["body.1.weight"])
    assert not torch.equal(*models)


def test_fedproto_keeps_prototypes_of_classes_absent_from_the_round():
    """Client 4 has one class: in a round of its own the prototypes of the others stay."""
    run = worlds.run("fedproto")
    state = worlds.play("fedproto", run)
    before = state["prototypes"]["mean"].clone()
    run.cohort = lambda t: np.asarray([worlds.ONE_CLASS])
    after = worlds.play("fedproto", run, first=3, last=4, state=state)["prototypes"]["mean"]
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert not torch.equal(after[1], before[1])
