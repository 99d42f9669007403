"""kNN-Per whose lambda falls with distance, and kNN-Per on fine-tuned networks, each against a few lines of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds

K = 3
LAMBDAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def embedded(part, client):
    """Representations, logits and labels of one client, in float64."""
    one = part.take(np.asarray([client]))
    return one.z.astype(float), one.logits.astype(float), one.y


def answers(stored, labels, z, logits, k=K):
    """Distances to the nearest stored sample (n,), votes of the neighbours and answers of the network (n, C) each."""
    squared = ((z[:, None] - stored[None]) ** 2).sum(axis=2)
    near = np.argsort(squared, axis=1, kind="stable")[:, :k]
    distance = np.sqrt(np.take_along_axis(squared, near, axis=1))
    weight = np.exp(-distance)
    votes = np.stack([(weight * (labels[near] == c)).sum(axis=1) for c in range(worlds.CLASSES)], axis=1)
    h = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return distance[:, 0], votes / weight.sum(axis=1, keepdims=True), h


def faded(lam, decay, scale, distance):
    """lambda(x) = lambda max(0, 1 - decay d(x) / s), (n, 1)."""
    return (lam * np.clip(1 - decay * distance / scale, 0, None))[:, None]


def test_lambda_by_distance_against_a_few_lines():
    lam, decay, client = 0.8, 0.6, 0
    run = worlds.run("knn-per", options={"k": K, "weight": lam, "decay": decay})
    stored, labels = (embedded(run.embeddings["train"], client)[i] for i in (0, 2))
    scale = np.median(answers(stored, labels, *embedded(run.embeddings["validation"], client)[:2])[0])
    distance, votes, h = answers(stored, labels, *embedded(run.embeddings["test"], client)[:2])
    share = faded(lam, decay, scale, distance)
    assert len(np.unique(share)) > 2  # or nothing falls
    actual = worlds.answers("knn-per", run, {}, np.asarray([client]))["test"]
    np.testing.assert_allclose(actual, share * votes + (1 - share) * h, atol=1e-5)
    assert worlds.tuned("knn-per", run, {})["decay"][[0, 1]] == pytest.approx([decay / scale, 0])  # 1 has no samples


def test_lambda_and_decay_are_chosen_together_by_validation_samples():
    run = worlds.run("knn-per", options={"k": K, "decay": "auto"}, seed=6)
    chosen = worlds.tuned("knn-per", run, {})
    falling = 0
    for client in (0, 2, 4, 6):
        stored, labels = (embedded(run.embeddings["train"], client)[i] for i in (0, 2))
        z, logits, y = embedded(run.embeddings["validation"], client)
        distance, votes, h = answers(stored, labels, z, logits)
        scale = np.median(distance)
        counts = {
            (lam, decay): ((s := faded(lam, decay, scale, distance)) * votes + (1 - s) * h).argmax(axis=1) == y
            for lam in LAMBDAS
            for decay in (0, 0.2, 1 / 3, 0.5)
        }
        counts = {key: int(right.sum()) for key, right in counts.items()}
        best = {key for key, count in counts.items() if count == max(counts.values())}
        smallest = min(decay for _, decay in best)
        expected = min((lam for lam, decay in best if decay == smallest), key=lambda lam: (abs(10 * lam - 5), lam))
        assert chosen["decay"][client] == pytest.approx(smallest / scale)
        assert chosen["lambda"][client] == expected
        falling += smallest > 0
    assert falling  # or the choice is not tested
    assert chosen["lambda"][3] == 0.5
    assert chosen["decay"][3] == 0  # no validation samples


def test_lambda_that_falls_at_once_leaves_the_global_model_and_one_that_never_falls_is_the_paper():
    plain = worlds.run("knn-per", options={"k": K})
    expected = worlds.answers("knn-per", plain, {})["test"]
    slow = worlds.run("knn-per", options={"k": K, "decay": 1e-12})
    np.testing.assert_allclose(worlds.answers("knn-per", slow, {})["test"], expected, atol=1e-6)
    fast = worlds.run("knn-per", options={"k": K, "decay": 1e6})
    actual = worlds.answers("knn-per", fast, {}, np.asarray([0]))["test"]
    h = worlds.answers("fedavg", fast, {"global": fast.backbone}, np.asarray([0]))["test"]
    np.testing.assert_allclose(actual, h, atol=1e-6)


@pytest.mark.parametrize("method", ["knn-per", "knn-per-plus"])
def test_earlier_choices_replace_validation_samples(method):
    """As with refit: nothing of the answers depends on validation samples once all that they choose is given."""
    options = {"k": K, "decay": "auto", "sigma": "auto"}
    run = worlds.run(method, options=options)
    run.choices = worlds.tuned(method, run, {})
    assert sorted(run.choices) == ["decay", "lambda", "sigma"]
    other = worlds.run(method, options=options, data=worlds.spoiled(worlds.federation(), "validation"))
    other.choices = run.choices
    first, second = (worlds.answers(method, each, {})["test"] for each in (run, other))
    assert first.tobytes() == second.tobytes()


def test_knn_per_plus_against_a_few_lines():
    """Plain steps of SGD, then neighbours by brute force among what the fine-tuned network makes of the samples."""
    lam, client = 0.4, 0
    run = worlds.run("knn-per-plus", options={"k": K, "weight": lam, "epochs": 2, "lr": 0.05})
    data = run.federation
    w = worlds.steps(run.backbone, data, client, ("sgd", "fine-tune"), epochs=2, lr=0.05)

    def outputs(split):
        x = data.inputs(data.block(client, split))
        z = torch.relu(x @ w["body.1.weight"].T + w["body.1.bias"])
        z = torch.relu(z @ w["body.3.weight"].T + w["body.3.bias"])
        return z.double().numpy(), worlds.logits(w, x).double().numpy()

    labels = data.y[data.block(client, "train")].numpy()
    _, votes, h = answers(outputs("train")[0], labels, *outputs("test"))
    actual = worlds.answers("knn-per-plus", run, {}, np.asarray([client]))["test"]
    np.testing.assert_allclose(actual, lam * votes + (1 - lam) * h, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "options"), [("knn-per", {"epochs": 0}), ("fedavg-plus", {"weight": 0.0, "epochs": 2})]
)
def test_knn_per_plus_is_what_it_consists_of_at_the_limits(method, options):
    run = worlds.run("knn-per-plus", options=options)
    own = {key: value for key, value in options.items() if key == "epochs" and method == "fedavg-plus"}
    expected = worlds.answers(method, worlds.run(method, options=own), {})["test"]
    np.testing.assert_allclose(worlds.answers("knn-per-plus", run, {})["test"], expected, atol=1e-6)
