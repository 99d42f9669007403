"""``pfl stack``: its learners, clients that are left alone, refusals, and independence of test samples."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers import error_text
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import evaluation, predictions
from pflcli.artifacts.kinds.evaluation import read
from pflcli.artifacts.make import make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.evaluate import evaluate
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.show import show
from pflcli.commands.stack import _distinct_names, stack
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.reporter import SILENT
from pflcli.methods.parts import logarithmic_pool as pool

CLASSES, CLIENTS = 3, 8
KNOWS = {"fedavg": 1.0, "ditto": 1.5, "local": 0.5}
SHARPNESS = {**KNOWS, "alone": 4.0}


class Recorder(type(SILENT)):
    """A reporter that keeps all lines."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def draw_split(draw, sharp, y, first):
    z = draw.normal(size=(len(y), CLASSES)) + sharp * np.eye(CLASSES)[y]
    p = (np.exp(z) / np.exp(z).sum(1, keepdims=True)).astype(np.float32)
    offsets = np.arange(0, len(y) + 1, len(y) // CLIENTS)
    return predictions.SplitPredictions({"p": p}, y, np.arange(first, first + len(y)), offsets)


@pytest.fixture
def write_predictions(tmp_path):
    """Make predictions of a method; ``labels`` changes those of test samples, ``parts`` adds to what is answered."""

    def write(folder, method, labels=lambda y: y, parts=None, **request):
        draw = np.random.default_rng(5)
        y = {"validation": draw.integers(0, CLASSES, 10 * CLIENTS), "test": draw.integers(0, CLASSES, 6 * CLIENTS)}
        own = np.random.default_rng(len(method))
        splits = {name: draw_split(own, SHARPNESS[method], values, 1000 * len(name)) for name, values in y.items()}
        test = splits["test"]
        splits["test"] = predictions.SplitPredictions(test.parts, labels(test.y), test.sample, test.offsets)
        for known in splits.values():
            known.parts.update((parts or (lambda p: {}))(known.parts["p"]))
        full_request = {"method": method, "options": {}, "settings": {"refit": False}, "seed": 0, **request}

        def build(work):
            predictions.write(work, predictions.Predictions(splits))
            codebook.write(work, codebook.Codebook(classes=("a", "b", "c")))
            clients = {"clients": CLIENTS, "participants": CLIENTS, "model_bytes": 1000}
            known = {"method": method, **clients, "reported": "last round", "rounds": 3, "tuned": {}}
            return {**known, "bytes_up": 10, "bytes_down": 20, "bytes_peer": 0}, {}

        make(tmp_path / folder, ArtifactSpec("predictions", full_request), Execution(force=True), build)
        return tmp_path / folder

    return write


@pytest.fixture
def three_predictions(write_predictions):
    return [write_predictions(method, method) for method in KNOWS]


def test_stack_is_a_valid_predictions_artifact(small, tmp_path):
    facts = show(small.st, verify=True)
    assert (facts["kind"], facts["request"]["method"]) == ("predictions", "stack")
    exponents = facts["summary"]["exponents"]
    assert [*exponents] == ["fedavg", "knn-per, votes"]
    assert list(load_file(small.st / "state.safetensors")["exponents"]) == list(exponents.values())
    evaluate([small.fedavg, small.knn, small.st], tmp_path / "ev")
    rows = {row["label"]: row["metrics"] for row in evaluation.read(open_artifact(tmp_path / "ev"))["methods"]}
    # Both stand on one backbone, whose rounds were run once.
    assert rows["stack"]["megabytes"]["value"] == rows["fedavg"]["megabytes"]["value"]
    seconds = {label: row["seconds"]["value"] for label, row in rows.items()}
    own = open_artifact(small.st).manifest.made["seconds"]
    assert own < seconds["stack"] < seconds["fedavg"] + seconds["knn-per"] + own


def test_stack_pools_the_stored_probabilities(small):
    knn, fedavg, stacked = (open_artifact(path) for path in (small.knn, small.fedavg, small.st))
    b = load_file(small.st / "state.safetensors")["exponents"]
    parts = [predictions.read(fedavg, "test").parts["p"], predictions.read(knn, "test").parts["knn"]]
    actual, pooled = predictions.read(stacked, "test"), predictions.read_tuned(stacked)["pooled"]
    of_pool = np.repeat(pooled, np.diff(actual.offsets)).astype(bool)
    expected = np.where(of_pool[:, None], pool.predict(pool.log_probabilities(parts), b), parts[0])
    np.testing.assert_allclose(actual.parts["p"], expected, atol=1e-6)
    assert stacked.manifest.summary["tuned"]["pooled"]["mean"] == pooled.mean()


def test_stack_does_not_depend_on_the_order_of_inputs(three_predictions, tmp_path):
    one = stack(three_predictions, tmp_path / "s")
    assert stack(three_predictions[::-1], tmp_path / "s").decision == "up to date"
    assert one.request["options"] == {"gate": True, "own": False}


def test_stack_does_not_depend_on_test_labels(write_predictions, tmp_path):
    """Shuffled on disk, they change scores and not one answer."""
    stacks = {}
    for name, labels in {"true": lambda y: y, "shuffled": lambda y: np.random.default_rng(1).permutation(y)}.items():
        inputs = [write_predictions(f"{name}-{method}", method, labels) for method in KNOWS]
        stack(inputs, tmp_path / name, own=True)
        stacks[name] = open_artifact(tmp_path / name)
    one, two = (predictions.read(artifact, "test") for artifact in stacks.values())
    assert (one.y != two.y).any()
    np.testing.assert_array_equal(one.parts["p"], two.parts["p"])
    assert stacks["true"].manifest.summary == stacks["shuffled"].manifest.summary
    assert stacks["true"].read("state.safetensors") == stacks["shuffled"].read("state.safetensors")


def test_stack_takes_the_global_model_from_the_input_that_stores_it(write_predictions, tmp_path):
    uniform = write_predictions("uniform", "ditto", parts=lambda p: {"global": np.full_like(p, 1 / CLASSES)})
    outcome = stack([uniform, write_predictions("local", "local")], tmp_path / "s")
    assert [*outcome.summary["exponents"]] == ["ditto", "local", "global"]
    assert "global" in predictions.read(open_artifact(tmp_path / "s"), "test").parts


def test_stack_gate_requires_predictions_of_a_global_model(write_predictions, tmp_path):
    inputs = [write_predictions(method, method) for method in ("ditto", "local")]
    with pytest.raises(InputError, match="none of ditto, local stores predictions of the global model") as error:
        stack(inputs, tmp_path / "s")
    assert "--no-gate" in error_text(error)
    outcome = stack(inputs, tmp_path / "s", gate=False)
    assert outcome.summary["tuned"] == {}
    assert "global" not in outcome.summary["validation_log_loss"]


def test_a_client_keeps_alone_if_it_is_better_than_the_pool(write_predictions, tmp_path):
    """`alone` is mostly right for three clients and wrong for the others, where the other input is right."""

    def spoil(is_first):
        def change(p):
            first = np.arange(len(p))[:, None] * CLIENTS < 3 * len(p)
            return {"p": np.where(first == is_first, np.roll(p, 1, axis=1), p)}

        return change

    recorder = Recorder()
    inputs = [
        write_predictions("alone", "alone", parts=spoil(False)),
        write_predictions("ditto", "ditto", parts=spoil(True)),
    ]
    outcome = stack(inputs, tmp_path / "s", execution=Execution(reporter=recorder))
    stacked, own = (open_artifact(path) for path in (tmp_path / "s", inputs[0]))
    tuned = predictions.read_tuned(stacked)
    kept = tuned["alone"].astype(bool)
    assert kept.any()
    np.testing.assert_array_equal(kept, tuned["pooled"] == 0)
    for split in ("validation", "test"):
        actual, expected = predictions.read(stacked, split), predictions.read(own, split)
        if split == "test":
            rows = np.repeat(kept, np.diff(actual.offsets))
            smooth = (expected.parts["p"] + 0.01 / CLASSES) / 1.01  # never 0, as in the pool
            np.testing.assert_allclose(actual.parts["p"][rows], smooth[rows], rtol=1e-5)
            assert (np.abs(actual.parts["p"][~rows] - smooth[~rows]) > 0.01).any()
        assert "global" not in actual.parts
    assert {*outcome.summary["validation_log_loss"]} == {"pool", "alone"}
    assert f"stack: of 8 clients {kept.sum()} keep alone" in recorder.lines


def test_the_gate_knows_the_global_model_and_alone(write_predictions, tmp_path):
    inputs = [write_predictions(method, method) for method in ("alone", "fedavg", "local")]
    outcome = stack(inputs, tmp_path / "s")
    assert [*outcome.summary["validation_log_loss"]] == ["pool", "global", "alone"]
    tuned = predictions.read_tuned(open_artifact(tmp_path / "s"))
    assert {*tuned} == {"pooled", "alone"}
    assert (tuned["pooled"] + tuned["alone"] <= 1).all()


def test_stack_of_one_input_only_scales_its_temperature(write_predictions, tmp_path):
    path = write_predictions("ditto", "ditto")
    outcome = stack([path], tmp_path / "s", gate=False)
    before, after = (predictions.read(open_artifact(at), "test").parts["p"] for at in (path, outcome.path))
    np.testing.assert_array_equal(before.argmax(1), after.argmax(1))


def test_stack_own_stores_exponents_per_client(three_predictions, tmp_path):
    outcome = stack(three_predictions, tmp_path / "s", own=True)
    tuned = predictions.read_tuned(open_artifact(outcome.path))
    assert {*tuned} == {"pooled", "exponent ditto", "exponent fedavg", "exponent local"}
    assert all(values.shape == (CLIENTS,) for values in tuned.values())
    assert "own_ridge" in outcome.summary


def test_stack_labels_inputs_of_the_same_method_by_their_options(write_predictions, tmp_path):
    inputs = [
        write_predictions(f"k{k}", "fedavg", options={"k": k}, parts=lambda p, k=k: {"p": p[::k]}) for k in (1, -1)
    ]
    assert [*stack(inputs, tmp_path / "s").summary["exponents"]] == ["fedavg k=-1", "fedavg k=1"]


def test_stack_warns_when_it_has_few_validation_samples(three_predictions, tmp_path):
    recorder = Recorder()
    stack(three_predictions, tmp_path / "s", execution=Execution(reporter=recorder))
    assert any("80 validation samples of 8 clients" in line for line in recorder.lines)
    assert any(line.startswith("stack: exponents ditto ") for line in recorder.lines)


REFUSED = {
    "nothing": (lambda at, three: [], UsageError, "nothing to stack"),
    "twice": (lambda at, three: [three[0], three[0]], UsageError, "given twice"),
    "refit": (
        lambda at, three: [three[0], at("refit", "local", settings={"refit": True})],
        InputError,
        "was run with --refit, so it has no predictions for validation samples",
    ),
    "seeds": (lambda at, three: [three[0], at("one", "local", seed=1)], UsageError, "different seeds"),
    "labels": (
        lambda at, three: [three[0], at("other", "local", labels=lambda y: (y + 1) % CLASSES)],
        InputError,
        "are predictions for different test samples",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_stack_refuses_unsuitable_inputs_and_names_the_problem(case, write_predictions, three_predictions, tmp_path):
    inputs, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        stack(inputs(write_predictions, three_predictions), tmp_path / "s")


def test_predictions_of_one_method_with_the_same_options_are_numbered(small):
    twice = [open_artifact(small.knn), open_artifact(small.fedavg), open_artifact(small.knn)]
    assert _distinct_names(twice) == ["knn-per #1", "fedavg", "knn-per #2"]


def test_stack_refuses_and_names_another_partition(small, tmp_path):
    partition("writers", tmp_path / "p", clients=6, seed=1)
    personalize("local", tmp_path / "p", tmp_path / "local", settings={"model": "mlp", "rounds": 1}, seed=0)
    with pytest.raises(InputError, match=f"partition .*{tmp_path / 'p'}"):
        stack([small.fedavg, tmp_path / "local"], tmp_path / "s")


def test_stack_refuses_inputs_without_validation_samples(tmp_path):
    partition("writers", tmp_path / "p", clients=3, seed=0, fractions=(0.8, 0, 0.2))
    settings = {"model": "mlp", "rounds": 1}
    for method in ("fedavg", "local"):
        personalize(method, tmp_path / "p", tmp_path / method, settings=settings)
    with pytest.raises(InputError, match="has no validation samples to learn exponents on"):
        stack([tmp_path / "fedavg", tmp_path / "local"], tmp_path / "s")


def test_stack_pools_clients_without_validation_samples(tmp_path):
    partition("writers", tmp_path / "p", clients=6, seed=0, fractions=(0.92, 0.04, 0.04))
    for method in ("fedavg", "local"):
        personalize(method, tmp_path / "p", tmp_path / method, settings={"model": "mlp", "rounds": 1})
    stack([tmp_path / "fedavg", tmp_path / "local"], tmp_path / "s")
    stacked = open_artifact(tmp_path / "s")
    none = np.diff(predictions.read(stacked, "validation").offsets) == 0
    assert predictions.read_tuned(stacked)["pooled"][none].all()


def test_stack_of_several_seeds_suggests_commands_that_work(pfl, small, tmp_path):
    quick = ("--model", "logistic", "--rounds", 1, "--methods")
    assert pfl("compare", small.p, "-o", tmp_path / "c", *quick, "fedavg,local", "--seeds", "3,4").code == 0
    ran = pfl("stack", tmp_path / "c", "-o", tmp_path / "s")
    assert (ran.code, "--seed 3 stacks those of one seed" in ran.err) == (2, True)
    assert "pfl compare PARTITION -o DIR --methods METHOD,METHOD,stack\n" in ran.err
    assert pfl("stack", tmp_path / "c", "-o", tmp_path / "s", "--seed", 3).code == 0
    assert pfl("compare", small.p, "-o", tmp_path / "c2", *quick, "fedavg,local,stack", "-n", "-q").code == 0


def test_evaluate_lists_the_best_method_first(pfl, small, tmp_path):
    for metric in ("accuracy", "log_loss"):
        ran = pfl("evaluate", small.fedavg, small.st, small.knn, "-o", tmp_path / metric, "--metric", metric)
        metrics = read(open_artifact(tmp_path / metric))
        values = [row["metrics"][metric]["value"] for row in metrics["methods"]]
        assert values == sorted(values, reverse=metric == "accuracy")
        assert len({*values}) > 1
        labels = [row["label"] for row in metrics["methods"]]
        assert [line.split("\t")[0] for line in ran.err.splitlines()[1:4]] == labels
