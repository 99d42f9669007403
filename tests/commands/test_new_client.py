"""``pfl new-client``: personalization for a client that joins after the rounds."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from helpers import error_text
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.make import Built, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.evaluate import evaluate
from pflcli.commands.extract import extract
from pflcli.commands.import_data import import_data
from pflcli.commands.new_client import new_client
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.predict import predict
from pflcli.commands.stack import stack
from pflcli.commands.train_global import train_global
from pflcli.core.errors import InputError, PflError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.tasks import Labels

BRIEF = {"model": "mlp", "rounds": 2, "participation": 0.5}
ONE = Execution(threads=1)
SPLITS = ("train", "validation", "test")


def write_samples(path, data, client):
    """Write a client's samples and the words of their splits to an NPZ file."""
    own = slice(*data.offsets[[3 * client, 3 * client + 3]])
    split = np.repeat(SPLITS, np.diff(data.offsets[3 * client : 3 * client + 4]))
    np.savez(path, x=data.x[own], y=data.y[own], split=split)
    return path


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Digits of five writers, the last of them unseen; the same without the last one; and the last one's samples."""
    at = tmp_path_factory.mktemp("digits")
    for seed in range(20):
        partition("writers", at / str(seed), clients=5, new_clients=0.2, seed=seed, part=(1, 6))
        data = partitions.read(open_artifact(at / str(seed)))
        if data.new[4]:
            break
    spec = open_artifact(at / str(seed)).manifest
    write_samples(at / "me.npz", data, 4)
    rows = slice(0, data.offsets[12])
    without = partitions.Partition(
        data.x[rows], data.y[rows], data.sample[rows], data.offsets[:13], data.names[:4], Labels(10), new=data.new[:4]
    )

    def build(writer):
        names = codebook.read(open_artifact(at / str(seed)))
        partitions.write(writer, without, replace(names, clients=names.clients[:4]))
        sizes = dict(zip(("train", "validation", "test"), without.sizes.sum(axis=0).tolist(), strict=True))
        return Built({**spec.summary, **sizes, "clients": 4, "samples": len(without.y)}, {})

    make(at / "without", ArtifactSpec("partition", {**spec.request, "clients": 4}, (), code={}), ONE, build)
    for place, source in (("beside", at / str(seed)), ("alone", at / "without")):
        folder = at / place
        train_global(source, folder / "b", settings=BRIEF, execution=ONE)
        extract(folder / "b", folder / "e", execution=ONE)
        build_datastore(folder / "e", folder / "d", capacity=0.5)
        for method, kind in (("knn-per", "d"), ("fedavg-plus", "b"), ("ditto", "b"), ("fedavg", "b")):
            personalize(method, folder / kind, folder / method, execution=ONE)
    return at


@pytest.mark.parametrize("method", ["knn-per", "fedavg-plus", "ditto"])
def test_new_client_gets_the_predictions_of_an_unseen_client(digits, tmp_path, method):
    new_client(digits / "alone" / method, digits / "me.npz", tmp_path / "m", client="me", split_column="split")
    artifact, expected = open_artifact(tmp_path / "m"), open_artifact(digits / "beside" / method)
    before = open_artifact(digits / "alone" / method)
    for split in ("validation", "test"):
        actual, like, old = (predictions.read(each, split) for each in (artifact, expected, before))
        np.testing.assert_array_equal(actual.offsets, like.offsets)
        np.testing.assert_array_equal(actual.y, like.y)
        for part, values in like.parts.items():
            np.testing.assert_allclose(actual.parts[part][old.offsets[-1] :], values[old.offsets[-1] :], atol=1e-6)
            assert actual.parts[part][: old.offsets[-1]].tobytes() == old.parts[part].tobytes()
    # ``rounds.csv`` says what training has cost.
    for name in {"rounds.csv"} & set(before.manifest.files):
        assert artifact.read(name) == before.read(name)
    assert predictions.read_new_clients(artifact).tolist() == predictions.read_new_clients(expected).tolist()
    assert codebook.read(artifact).clients[4] == "me"
    for name, values in predictions.read_tuned(expected).items():
        np.testing.assert_allclose(predictions.read_tuned(artifact)[name][4], values[4])


def test_result_of_new_client_works_with_predict_evaluate_stack_and_new_client(digits, tmp_path):
    """Its stored test samples get the stored answers to the bit, as do those of the others, and of one more client."""
    for method in ("knn-per", "fedavg"):
        new_client(digits / "alone" / method, digits / "me.npz", tmp_path / method, client="me", split_column="split")
        open_artifact(tmp_path / method).verify()
    new_client(tmp_path / "knn-per", digits / "me.npz", tmp_path / "two", client="you")
    stack([tmp_path / "knn-per", tmp_path / "fedavg"], tmp_path / "stack")
    evaluate([tmp_path / "knn-per", tmp_path / "fedavg", tmp_path / "stack"], tmp_path / "ev")
    with (tmp_path / "ev" / "clients.csv").open(newline="") as file:
        listed = [row for row in csv.DictReader(file) if row["name"] == "me"]
    assert len(listed) == 3
    with np.load(digits / "me.npz") as file:
        np.save(tmp_path / "q.npy", file["x"][file["split"] == "test"])
    for name in ("knn-per", "fedavg", "stack", "two"):
        split = predictions.read(open_artifact(tmp_path / name), "test")
        answers = predict(tmp_path / name, tmp_path / "q.npy", client="me", execution=ONE)
        for part, values in split.parts.items():
            assert answers.parts[part].tobytes() == values[slice(*split.offsets[4:6])].tobytes(), (name, part)
    later = predictions.read_later_clients(open_artifact(tmp_path / "two"))
    split = predictions.read(open_artifact(tmp_path / "two"), "test")
    np.save(tmp_path / "q.npy", later.x[slice(*later.offsets[5:7])])
    answers = predict(tmp_path / "two", tmp_path / "q.npy", client="you", execution=ONE)
    assert answers.p.tobytes() == split.parts["p"][slice(*split.offsets[5:7])].tobytes()
    data = partitions.read(open_artifact(digits / "without"))
    np.save(tmp_path / "q.npy", data.x[slice(*data.offsets[5:7])])
    answers = predict(tmp_path / "two", tmp_path / "q.npy", client=data.names[1], execution=ONE)
    assert answers.p.tobytes() == split.parts["p"][slice(*split.offsets[1:3])].tobytes()
    assert len(np.unique(split.sample)) == len(split.sample)


def test_new_client_of_a_table_is_standardized_by_its_own_samples(tmp_path, pfl):
    """Standardized by client: a later one by its own training samples. Its gaps get the old medians."""
    draw, rows = np.random.default_rng(0), []
    for number in range(90):
        sick = draw.random() < 0.5
        height = "" if number % 7 == 0 else f"{100 * draw.normal(1 + sick, 0.3):.1f}"
        rows.append(["ABC"[number % 3], f"{draw.normal(50 + 20 * sick, 8):.1f}", height, ("no", "yes")[sick]])
    columns = ["hospital", "age", "height", "outcome"]

    def table(name, chosen):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([columns, *(row for row in rows if row[0] in chosen)])
        return tmp_path / name

    import_data(
        table("ab.csv", "AB"), tmp_path / "data", client="hospital", label="outcome", missing="median",
        standardize="client",
    )  # fmt: skip
    partition(str(tmp_path / "data"), tmp_path / "p")
    personalize("local", tmp_path / "p", tmp_path / "m", settings={"model": "logistic", "rounds": 1}, execution=ONE)
    line = ("new-client", tmp_path / "m", table("c.csv", "C"), "--client", "C", "--threads", 1)
    ran = pfl(*line, "--label", "outcome", "--fractions", "0.6,0.2,0.2", "-o", tmp_path / "n", "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["kind"] == "predictions"
    assert pfl(*line, "--label", "outcome", "--fractions", "0.6,0.2,0.2", "-o", tmp_path / "n").err.count("up to date")
    book, later = (
        codebook.read(open_artifact(tmp_path / "n")),
        predictions.read_later_clients(open_artifact(tmp_path / "n")),
    )
    assert np.diff(later.offsets).tolist() == [18, 6, 6]
    train = later.x[: later.offsets[1]].astype(np.float64)
    np.testing.assert_allclose(train[:, :2].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(train[:, :2].std(axis=0), 1, atol=1e-6)
    old = codebook.read(open_artifact(tmp_path / "m"))
    assert book.median == old.median
    assert [scale.client for scale in book.scales] == [*(scale.client for scale in old.scales), "C"]
    answers = predict(tmp_path / "n", tmp_path / "c.csv", client="C", execution=ONE)
    split, number = predictions.read(open_artifact(tmp_path / "n"), "test"), list(book.clients).index("C")
    stored = split.parts["p"][slice(*split.offsets[number : number + 2])]
    first = int(later.sample.min())
    test_rows = later.sample[later.offsets[2] :] - first
    np.testing.assert_allclose(answers.p[test_rows], stored, atol=1e-6)
    assert pfl(*line, "-o", tmp_path / "without-label").code == 0
    table("d.csv", "A").write_text("age,height,outcome\n50,120,maybe\n")
    assert "'maybe' is not among the classes" in pfl(
        "new-client", tmp_path / "m", tmp_path / "d.csv", "--client", "D", "--label", "outcome", "-o", tmp_path / "no"
    ).err  # fmt: skip
    assert not (tmp_path / "no").exists()


def test_new_client_refuses_wrong_arguments(digits, tmp_path):
    source = digits / "alone" / "ditto"
    stack([digits / "alone" / "fedavg", source], tmp_path / "stack")
    known = codebook.read(open_artifact(source)).clients[0]
    with np.load(digits / "me.npz") as file:
        x, y = file["x"], file["y"]
    np.savez(tmp_path / "shape.npz", x=x[:, :5], y=y)
    np.savez(tmp_path / "label.npz", x=x, y=y + 7)
    np.savez(tmp_path / "empty.npz", x=x[:0], y=y[:0])
    cases = {
        "a name that a client has": (UsageError, source, digits / "me.npz", {"client": known}),
        "no name": (UsageError, source, digits / "me.npz", {"client": " "}),
        "fractions of more than all": (UsageError, source, digits / "me.npz", {"fractions": (0.6, 0.6, 0.2)}),
        "a stack": (InputError, tmp_path / "stack", digits / "me.npz", {}),
        "images of another size": (InputError, source, tmp_path / "shape.npz", {}),
        "a class that is not known": (InputError, source, tmp_path / "label.npz", {}),
        "no samples": (InputError, source, tmp_path / "empty.npz", {}),
        "an array that is not there": (InputError, source, digits / "me.npz", {"split_column": "parts"}),
        "a file that is not there": (InputError, source, tmp_path / "none.npz", {}),
    }
    for case, (kind, artifact, data, options) in cases.items():
        with pytest.raises(PflError) as error:
            new_client(artifact, data, tmp_path / "m", **{"client": "me", "execution": ONE, **options})
        assert error.type is kind, (case, error_text(error))
    assert not (tmp_path / "m").exists()


def test_new_client_refuses_a_method_that_needs_known_clusters(tmp_path):
    partition("writers", tmp_path / "p", scheme="clusters", clients=4, options={"groups": "2"}, part=(1, 12))
    data = partitions.read(open_artifact(tmp_path / "p"))
    personalize("oracle", tmp_path / "p", tmp_path / "m", settings={**BRIEF, "model": "logistic"}, execution=ONE)
    with pytest.raises(InputError) as error:
        new_client(tmp_path / "m", write_samples(tmp_path / "me.npz", data, 1), tmp_path / "n", client="me")
    assert "oracle cannot add a client" in error_text(error)


def test_new_client_refuses_a_refit_run_that_uses_earlier_choices(small, tmp_path):
    settings = {"model": "logistic", "rounds": 1, "refit": True}
    train_global(small.p, tmp_path / "b", settings=settings, execution=ONE)
    plain = {**settings, "refit": False}
    train_global(small.p, tmp_path / "b0", settings=plain, execution=ONE)
    extract(tmp_path / "b0", tmp_path / "e0", execution=ONE)
    build_datastore(tmp_path / "e0", tmp_path / "d0")
    personalize("knn-per", tmp_path / "d0", tmp_path / "m0", execution=ONE)
    extract(tmp_path / "b", tmp_path / "e", execution=ONE)
    build_datastore(tmp_path / "e", tmp_path / "d")
    personalize("knn-per", tmp_path / "d", tmp_path / "m", choices=tmp_path / "m0", execution=ONE)
    data = partitions.read(open_artifact(small.p))
    with pytest.raises(InputError) as error:
        new_client(tmp_path / "m", write_samples(tmp_path / "me.npz", data, 1), tmp_path / "n", client="me")
    assert f"pfl new-client {tmp_path / 'm0'}" in error_text(error)


def test_new_client_of_a_refit_run_trains_on_validation_samples(small, tmp_path):
    """They are training samples then, and what is answered for them with --answer-train are those too."""
    settings = {"model": "mlp", "rounds": 1, "refit": True, "answer_train": True}
    personalize("fedper", small.p, tmp_path / "m", settings=settings, execution=ONE)
    data = partitions.read(open_artifact(small.p))
    source = write_samples(tmp_path / "me.npz", data, 1)
    new_client(tmp_path / "m", source, tmp_path / "n", client="me", split_column="split", execution=ONE)
    before, after = (predictions.read(open_artifact(tmp_path / name), "train") for name in ("m", "n"))
    assert len(after.y) - len(before.y) == data.offsets[5] - data.offsets[3]
    assert after.y[before.offsets[-1] :].tolist() == data.y[data.offsets[3] : data.offsets[5]].tolist()


def test_new_client_takes_the_label_of_the_import(tmp_path):
    draw = np.random.default_rng(0)
    rows = [f"{'ABC'[row % 3]},{'ny'[row % 2]},{draw.normal():.2f},{row % 9}\n" for row in range(60)]
    (tmp_path / "t.csv").write_text("who,outcome,a,b\n" + "".join(rows[:40]))
    import_data(tmp_path / "t.csv", tmp_path / "d", client="who", label="outcome=y")
    partition(str(tmp_path / "d"), tmp_path / "p")
    personalize("local", tmp_path / "p", tmp_path / "m", settings={"model": "logistic", "rounds": 1}, execution=ONE)
    (tmp_path / "e.csv").write_text("who,outcome,a,b\n" + "".join(rows[40:]))
    for name, label in (("with", "outcome=y"), ("without", None)):
        new_client(tmp_path / "m", tmp_path / "e.csv", tmp_path / name, client="E", label=label, execution=ONE)
    first, second = (open_artifact(tmp_path / name) for name in ("with", "without"))
    assert first.manifest.fingerprint == second.manifest.fingerprint
