"""``pfl predict``: formats of input and output, and preprocessing as at import."""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
import sys

import h5py
import numpy as np
import pytest
from PIL import Image

from helpers import error_text
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.predict import predict
from pflcli.commands.stack import stack
from pflcli.core.errors import ConflictError, InputError, PflError, UsageError
from pflcli.core.execution import Execution
from pflcli.methods.parts import logarithmic_pool
from pflcli.workflow.prediction import prediction_file

COLUMNS = ("hospital", "age", "smokes", "pressure", "outcome")
BRIEF = {"model": "logistic", "rounds": 1}
ONE = Execution(threads=1)


def make_visits():
    """Sixty visits to three hospitals, some without a pressure; whether a patient smokes is a word."""
    draw = random.Random(0)
    rows = []
    for number in range(60):
        sick = draw.random() < 0.5
        pressure = "" if draw.random() < 0.2 else f"{draw.gauss(120 + 15 * sick, 9):.1f}"
        words = draw.choice(["never", "often", "daily" if sick else "never"])
        rows.append(["ABC"[number % 3], f"{draw.gauss(50 + 20 * sick, 8):.1f}", words, pressure, ("no", "yes")[sick]])
    return rows


def write_table(path, rows, columns=COLUMNS, delimiter=","):
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([columns, *rows])
    return path


@pytest.fixture(scope="module", params=["client", "federation"])
def hospital_predictions(request, tmp_path_factory):
    """Hospitals' visits, imported with words, medians and a scale, and what ditto answers for them."""
    at = tmp_path_factory.mktemp(request.param)
    source = write_table(at / "visits.csv", make_visits())
    import_data(source, at / "data", client="hospital", label="outcome", missing="median", standardize=request.param)
    partition(str(at / "data"), at / "p")
    personalize("ditto", at / "p", at / "m", settings=BRIEF, execution=ONE)
    return at


@pytest.fixture(scope="module")
def digits_of_four_writers(tmp_path_factory):
    """Digits of four writers, and what FedAvg, local training and both together answer for them."""
    at = tmp_path_factory.mktemp("digits")
    partition("writers", at / "p", clients=4, part=(1, 6))
    for method in ("fedavg", "local"):
        personalize(method, at / "p", at / method, settings=BRIEF, execution=ONE)
    stack([at / "fedavg", at / "local"], at / "stack")
    return at


def hospital_rows(clinic, name="B"):
    """The visits that are a hospital's test samples, as they stand in the file, and the stored answers to them."""
    artifact = open_artifact(clinic / "m")
    split = predictions.read(artifact, "test")
    client = codebook.read(artifact).clients.index(name)
    own = slice(*split.offsets[client : client + 2])
    return [make_visits()[row] for row in split.sample[own]], split.parts["p"][own]


def own_digits(digits, client=1):
    """A writer's name and its test samples (n, 28, 28)."""
    data = partitions.read(open_artifact(digits / "p"))
    return data.names[client], data.x[slice(*data.offsets[3 * client + 2 : 3 * client + 4])]


def select_columns(rows, *names):
    return [[row[COLUMNS.index(name)] for name in names] for row in rows]


@pytest.mark.parametrize("form", ["csv", "tsv", "semicolons", "parquet"])
def test_predict_preprocesses_a_table_like_import(hospital_predictions, tmp_path, form):
    """Columns by name and in any order, beside others; words, gaps and scale as they were; a label is not needed."""
    rows, expected = hospital_rows(hospital_predictions)
    assert any(row[3] == "" for row in make_visits())
    names = ("smokes", "pressure", "age", "hospital")
    cells, delimiter = select_columns(rows, *names), {"tsv": "\t", "semicolons": ";"}.get(form, ",")
    path = write_table(tmp_path / ("q.tsv" if form == "tsv" else "q.csv"), cells, names, delimiter)
    if form == "parquet":
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        pandas.read_csv(path).to_parquet(path := tmp_path / "q.parquet")
    semicolon = ";" if form == "semicolons" else None
    answers = predict(hospital_predictions / "m", path, client="B", delimiter=semicolon, execution=ONE)
    assert answers.p.tobytes() == expected.tobytes()
    assert answers.classes == ("no", "yes")
    assert answers.samples == tuple(range(len(rows)))


def test_predict_reads_arrays_with_the_columns_of_the_import(hospital_predictions, tmp_path):
    rows, expected = hospital_rows(hospital_predictions)
    words = codebook.read(open_artifact(hospital_predictions / "m")).columns[1].words
    x = [[float(age), *(word == smokes for word in words), float(mm or "nan")] for _, age, smokes, mm, _ in rows]
    np.savez(tmp_path / "q.npz", x=np.asarray(x), y=np.zeros(3))
    with h5py.File(tmp_path / "q.h5", "w") as file:
        file["visits"] = np.asarray(x)
    np.save(tmp_path / "q.npy", np.asarray(x))
    for name in ("q.npz", "q.h5", "q.npy"):
        assert (
            predict(hospital_predictions / "m", tmp_path / name, client="B", execution=ONE).p.tobytes()
            == expected.tobytes()
        )


def test_predict_reads_images_from_an_array_or_a_folder(digits_of_four_writers, tmp_path):
    writer, x = own_digits(digits_of_four_writers)
    np.save(tmp_path / "q.npy", x)
    (tmp_path / "images" / "deep").mkdir(parents=True)
    for number, image in enumerate(x):
        Image.fromarray(image).save(tmp_path / "images" / "deep" / f"{number:03}.png")
    answers = [predict(digits_of_four_writers / "local", path, client=writer, execution=ONE) for path in
               (tmp_path / "q.npy", tmp_path / "images")]  # fmt: skip
    assert answers[0].p.tobytes() == answers[1].p.tobytes()
    assert answers[1].samples == tuple(f"deep/{number:03}.png" for number in range(len(x)))


def test_predict_by_a_stack_gives_its_stored_probabilities(digits_of_four_writers, tmp_path):
    writer, x = own_digits(digits_of_four_writers)
    np.save(tmp_path / "q.npy", x)
    split = predictions.read(open_artifact(digits_of_four_writers / "stack"), "test")
    answers = predict(digits_of_four_writers / "stack", tmp_path / "q.npy", client=writer, execution=ONE)
    for part, values in split.parts.items():
        assert answers.parts[part].tobytes() == values[slice(*split.offsets[1:3])].tobytes()
    assert set(answers.tuned) == {"pooled"}


def test_predict_by_a_stack_for_a_client_that_keeps_alone(digits_of_four_writers, tmp_path, monkeypatch):
    """All do, as the gate is told so."""
    personalize("alone", digits_of_four_writers / "p", tmp_path / "alone", settings=BRIEF, execution=ONE)
    with monkeypatch.context() as patch:
        patch.setattr(logarithmic_pool, "_keep", lambda losses, _, alone, margin: np.full(losses[alone].shape, alone))
        stack([digits_of_four_writers / "fedavg", tmp_path / "alone"], tmp_path / "stack")
    writer, x = own_digits(digits_of_four_writers)
    np.save(tmp_path / "q.npy", x)
    alone, stacked = (predictions.read(open_artifact(tmp_path / name), "test") for name in ("alone", "stack"))
    answers = predict(tmp_path / "stack", tmp_path / "q.npy", client=writer, execution=ONE)
    own = slice(*alone.offsets[1:3])
    assert answers.p.tobytes() == stacked.parts["p"][own].tobytes()
    np.testing.assert_allclose(answers.p, alone.parts["p"][own], atol=0.01)
    assert answers.tuned == {"pooled": 0, "alone": 1}


@pytest.mark.parametrize("methods", [("fedavg", "local"), ("local", "fedavg")])
def test_predict_by_a_stack_without_gate_gives_its_stored_probabilities(digits_of_four_writers, tmp_path, methods):
    """No client keeps the global model, as nothing was stored that says who would."""
    stack([digits_of_four_writers / method for method in methods], tmp_path / "stack", gate=False)
    writer, x = own_digits(digits_of_four_writers)
    np.save(tmp_path / "q.npy", x)
    split = predictions.read(open_artifact(tmp_path / "stack"), "test")
    answers = predict(tmp_path / "stack", tmp_path / "q.npy", client=writer, execution=ONE)
    own = slice(*split.offsets[1:3])
    assert answers.p.tobytes() == split.parts["p"][own].tobytes()
    assert answers.p.tobytes() != split.parts["global"][own].tobytes()
    assert answers.tuned == {}


def test_predict_for_an_unknown_client_uses_the_global_model(digits_of_four_writers, tmp_path, pfl):
    _, x = own_digits(digits_of_four_writers)
    np.save(tmp_path / "q.npy", x)
    split = predictions.read(open_artifact(digits_of_four_writers / "fedavg"), "test")
    ran = pfl(
        "predict", digits_of_four_writers / "fedavg", tmp_path / "q.npy", "--client", "none", "--json", "--threads", 1
    )
    facts = json.loads(ran.out)
    assert ran.code == 0
    assert "predicted by the global model" in ran.err
    assert facts["known"] is False
    own = split.parts["p"][slice(*split.offsets[1:3])]
    probabilities = [[row["p"][name] for name in facts["classes"]] for row in facts["answers"]]
    np.testing.assert_allclose(probabilities, own, atol=2e-7)
    with pytest.raises(InputError) as error:
        predict(digits_of_four_writers / "local", tmp_path / "q.npy", client="none", execution=ONE)
    assert "local has no global model" in error_text(error)


def test_predict_for_an_unknown_client_is_refused_when_scales_are_per_client(hospital_predictions, tmp_path):
    rows, _ = hospital_rows(hospital_predictions)
    path = write_table(tmp_path / "q.csv", rows)
    if codebook.read(open_artifact(hospital_predictions / "m")).scales:
        with pytest.raises(InputError) as error:
            predict(hospital_predictions / "m", path, client="none", execution=ONE)
        assert "has no scale" in error_text(error)
    else:
        assert not predict(hospital_predictions / "m", path, client="none", execution=ONE).is_known


def test_predict_writes_csv_jsonl_and_npz(hospital_predictions, tmp_path, pfl):
    rows, expected = hospital_rows(hospital_predictions)
    path = write_table(tmp_path / "q.csv", rows)
    line = ("predict", hospital_predictions / "m", path, "--client", "B", "--threads", 1)
    printed = pfl(*line)
    for name in ("a.csv", "a.jsonl", "a.npz"):
        assert pfl(*line, "-o", tmp_path / name).out == f"{tmp_path / name}\n"
    assert (tmp_path / "a.csv").read_text() == printed.out
    assert (tmp_path / "a.jsonl").read_text() == pfl(*line, "--format", "jsonl").out
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["p"].tobytes() == expected.tobytes()
        class_names = arrays["class"].tolist()
    assert class_names == [("no", "yes")[label] for label in expected.argmax(axis=1)]
    cells = list(csv.DictReader(io.StringIO(printed.out)))
    lines = [json.loads(text) for text in (tmp_path / "a.jsonl").read_text().splitlines()]
    for number, (cell, row, p) in enumerate(zip(cells, lines, expected, strict=True)):
        assert list(cell) == ["sample", "class", "probability", "p(no)", "p(yes)"]
        assert (cell["sample"], cell["class"]) == (str(number), class_names[number])
        assert np.asarray([cell["p(no)"], cell["p(yes)"]]).astype(np.float32).tobytes() == p.tobytes()
        assert row == {
            "sample": number,
            "class": cell["class"],
            "probability": float(cell["probability"]),
            "p": row["p"],
        }
        assert np.asarray([*row["p"].values()], np.float32).tobytes() == p.tobytes()


def test_predict_replaces_a_file_only_with_force_and_atomically(hospital_predictions, tmp_path, pfl, monkeypatch):
    rows, _ = hospital_rows(hospital_predictions)
    path, out = write_table(tmp_path / "q.csv", rows), tmp_path / "a.csv"
    out.write_text("old")
    line = ("predict", hospital_predictions / "m", path, "--client", "B", "-o", out, "--threads", 1)
    ran = pfl(*line)
    assert (ran.code, out.read_text()) == (4, "old")
    assert "--force" in ran.err

    def broken(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", broken)
        assert pfl(*line, "--force").code == 3
    assert out.read_text() == "old"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.csv", "q.csv"]
    assert pfl(*line, "--force").code == 0
    assert out.read_text().startswith("sample,class")
    again = pfl(*line)  # as after a kill behind the last byte
    assert (again.code, "up to date" in again.err) == (0, True)


def test_predict_reads_a_table_from_stdin(hospital_predictions, tmp_path, pfl, monkeypatch):
    rows, _ = hospital_rows(hospital_predictions)
    text = write_table(tmp_path / "q.csv", rows).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    ran = pfl("predict", hospital_predictions / "m", "-", "--client", "B", "-q", "--threads", 1)
    answers = predict(hospital_predictions / "m", tmp_path / "q.csv", client="B", execution=ONE)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == prediction_file.encode_csv(answers).decode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.replace(b"smokes", b"smoked"))))
    ran = pfl("predict", hospital_predictions / "m", "-", "--client", "B")
    assert ran.code == 3
    assert "pfl: stdin has no column 'smokes'" in ran.err
    monkeypatch.setattr(sys, "stdin", None)
    ran = pfl("predict", hospital_predictions / "m", "-", "--client", "B")
    assert (ran.code, ran.err) == (3, "pfl: stdin cannot be read: it is closed\n")


REFUSED = {
    "a word that is not known": ("age,smokes,pressure\n50,rarely,120\n", "'rarely' is not among the words"),
    "a column that is missing": ("age,pressure\n50,120\n", "no column 'smokes'"),
    "a word for a number": ("age,smokes,pressure\nfifty,never,120\n", "line 2"),
    "infinity": ("age,smokes,pressure\ninf,never,120\n", "not finite"),
    "no samples": ("age,smokes,pressure\n", "no samples"),
    "nothing": ("", "is empty"),
    "a ragged line": ("age,smokes,pressure\n50,never\n", "has 2 cells"),
    "two columns of one name": ("age,age,smokes,pressure\n5,5,never,1\n", "two columns"),
    "another delimiter": ("age;smokes;pressure\n50;never;120\n", "--delimiter ';'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_predict_refuses_a_bad_table_and_names_the_problem(hospital_predictions, tmp_path, pfl, case):
    text, words = REFUSED[case]
    (tmp_path / "q.csv").write_text(text)
    ran = pfl("predict", hospital_predictions / "m", tmp_path / "q.csv", "--client", "B")
    assert (ran.code, ran.out) == (3, "")
    assert words in ran.err
    for option in ("Traceback", "--like", "--categorical", "--features"):  # those of import
        assert option not in ran.err


def test_predict_refuses_unsuitable_images_and_names_the_problem(digits_of_four_writers, tmp_path):
    writer, x = own_digits(digits_of_four_writers)
    np.save(tmp_path / "small.npy", x[:, :5])
    np.save(tmp_path / "floats.npy", x.astype(np.float32) * 2)
    np.save(tmp_path / "objects.npy", np.asarray([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "two.npz", a=x, b=x)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "small.npy").read_bytes()[:200])
    write_table(tmp_path / "q.csv", [[1, 2]], ["a", "b"])
    (tmp_path / "q.md").write_text("1")
    cases = {
        "small.npy": "takes images of shape 28x28; the samples have 5x28",
        "floats.npy": "which are no pixels",
        "objects.npy": "does not unpickle",
        "two.npz": "--features NAME",
        "cut.npy": "declares",
        "q.csv": "takes samples of shape",
        "q.md": "a format that pfl does not import",
        "p": "is an artifact of pfl",
        "nowhere.npy": "does not exist",
    }
    shutil.copytree(digits_of_four_writers / "p", tmp_path / "p")
    for name, words in cases.items():
        with pytest.raises(PflError) as error:
            predict(digits_of_four_writers / "local", tmp_path / name, client=writer)
        assert words in error_text(error), name


def test_predict_refuses_contradictory_options(digits_of_four_writers, tmp_path):
    writer, x = own_digits(digits_of_four_writers)
    np.save(tmp_path / "q.npy", x)
    (tmp_path / "folder.csv").mkdir()
    for error, options in (
        (UsageError, {"out": tmp_path / "a.txt"}),
        (UsageError, {"form": "xml"}),
        (UsageError, {"form": "csv", "out": tmp_path / "a.npz"}),
        (UsageError, {"layout": "sideways"}),
        (UsageError, {"delimiter": ";"}),
        (UsageError, {"weights": tmp_path / "w.txt"}),
        (InputError, {"features": "z"}),
        (InputError, {"out": tmp_path / "no" / "a.csv"}),
        (ConflictError, {"out": tmp_path / "folder.csv"}),
        (ConflictError, {"out": digits_of_four_writers / "p" / "a.csv"}),
    ):
        with pytest.raises(error):
            predict(digits_of_four_writers / "local", tmp_path / "q.npy", client=writer, execution=ONE, **options)


def test_predict_asks_for_the_initial_weights_of_a_run(tmp_path):
    from safetensors.torch import save_file

    from pflcli.core import models, parameters

    partition("writers", tmp_path / "p", clients=3, part=(1, 12))
    save_file(parameters.copy_params(models.create("logistic", (1, 28, 28), 10, 5)), tmp_path / "w.safetensors")
    personalize("local", tmp_path / "p", tmp_path / "m", settings=BRIEF, weights=tmp_path / "w.safetensors")
    writer, x = own_digits(tmp_path)
    np.save(tmp_path / "q.npy", x)
    with pytest.raises(UsageError) as error:
        predict(tmp_path / "m", tmp_path / "q.npy", client=writer)
    assert f"--weights {tmp_path / 'w.safetensors'}" in error_text(error)
    # Of a stack, only the sources that began with the file need it.
    personalize("fedavg", tmp_path / "p", tmp_path / "other", settings=BRIEF)
    stack([tmp_path / "m", tmp_path / "other"], tmp_path / "stack")
    for name in ("m", "stack"):
        answers = predict(tmp_path / name, tmp_path / "q.npy", client=writer, weights=tmp_path / "w.safetensors")
        split = predictions.read(open_artifact(tmp_path / name), "test")
        assert answers.p.tobytes() == split.parts["p"][slice(*split.offsets[1:3])].tobytes()


def test_predict_warns_when_the_code_of_the_method_has_changed(digits_of_four_writers, tmp_path, monkeypatch, pfl):
    from pflcli.core import sources

    writer, x = own_digits(digits_of_four_writers)
    np.save(tmp_path / "q.npy", x)
    monkeypatch.setattr(sources, "code_hash", lambda group, name: "another")
    ran = pfl("predict", digits_of_four_writers / "local", tmp_path / "q.npy", "--client", writer, "--threads", 1)
    assert ran.code == 0
    assert "methods/local has changed" in ran.err


def test_answers_option_limits_what_predict_returns(digits_of_four_writers, tmp_path):
    """Classes are those of the full answer, where rounding makes ties too; what explains an answer stays."""
    writer, x = own_digits(digits_of_four_writers)
    np.save(tmp_path / "q.npy", x)
    source = digits_of_four_writers / "stack"
    plain = predict(source, tmp_path / "q.npy", client=writer, execution=ONE)
    for text, digits_left in (("full", None), ("rounded:1", 1), ("label", 0)):
        answers = predict(source, tmp_path / "q.npy", client=writer, answers=text, execution=ONE)
        assert answers.labels.tolist() == plain.labels.tolist()
        assert answers.tuned == {}
        assert [*answers.parts] == ([] if text == "label" else ["p"])
        if digits_left != 0:
            expected = plain.p if digits_left is None else np.round(plain.p.astype(np.float64), digits_left)
            np.testing.assert_array_equal(answers.p, expected.astype(np.float32))
    assert prediction_file.encode_csv(answers).decode().splitlines()[0] == "sample,class"
    assert json.loads(prediction_file.encode_json_lines(answers).decode().splitlines()[0]).keys() == {"sample", "class"}
    assert set(np.load(io.BytesIO(prediction_file.encode_npz(answers))).files) == {"sample", "class", "classes"}


def test_a_file_of_all_clients_gets_the_answers_of_each_client(hospital_predictions, tmp_path, pfl):
    """A row per sample in the order of the file, with its id; the same bits as one client at a time."""
    rows = [
        ["A", "40.5", "never", "120"],
        ["B", "61", "daily", "131"],
        ["A", "75", "often", "99"],
        ["B", "33", "never", ""],
    ]
    path = tmp_path / "q.csv"
    text = "hospital,age,smokes,pressure,patient\n"
    path.write_text(text + "".join(",".join([*row, f"P{at}"]) + "\n" for at, row in enumerate(rows)))
    together = predict(
        hospital_predictions / "m", path, client_column="hospital", id_column="patient", coverage=0.8, execution=ONE
    )
    assert (together.samples, together.clients) == (("P0", "P1", "P2", "P3"), ("A", "B", "A", "B"))
    for client in "AB":
        own = predict(hospital_predictions / "m", path, client=client, coverage=0.8, execution=ONE)
        chosen = [at for at, name in enumerate(together.clients) if name == client]
        np.testing.assert_allclose(together.p[chosen], own.p[chosen], atol=1e-6)
        assert (together.sets.members[chosen] == own.sets.members[chosen]).all()
    line = ("predict", hospital_predictions / "m", path, "--client-column", "hospital", "--threads", 1)
    printed = pfl(*line).out.splitlines()
    assert printed[0].startswith("sample,client,class,probability")
    assert [row.split(",")[1] for row in printed[1:]] == ["A", "B", "A", "B"]
    assert (
        "'--client" in pfl(*line, "--client", "A").err
        or "--client and --client-column" in pfl(*line, "--client", "A").err
    )
    path.write_text(text + "A,40,never,120,P0\nX,40,never,120,P1\n")
    ran = pfl(*line)
    assert (ran.code, "line 3" in ran.err, "no client 'X'" in ran.err, "pfl new-client" in ran.err) == (
        3,
        True,
        True,
        True,
    )
    ran = pfl(*line[:3], "--client", "A", "--id-column", "nr")
    assert (ran.code, "no column 'nr'" in ran.err) == (3, True)


def test_values_far_outside_of_training_are_named(hospital_predictions, tmp_path, pfl):
    path = tmp_path / "q.csv"
    path.write_text("age,smokes,pressure\n50,never,120\n-999,never,120\n50,never,9999\n-999,daily,110\n")
    ran = pfl("predict", hospital_predictions / "m", path, "--client", "B", "--threads", 1)
    assert ran.code == 0
    assert "WARNING: 'age' is -999 in sample 1 (and 1 more), far outside of training" in ran.err
    assert "WARNING: 'pressure' is 9999 in sample 2, far outside of training" in ran.err
    path.write_text("age,smokes,pressure\n50,never,120\n60,daily,\n")
    assert "WARNING" not in pfl("predict", hospital_predictions / "m", path, "--client", "B", "--threads", 1).err


def test_samples_without_a_value_are_left_out_on_request(tmp_path, pfl):
    draw = np.random.default_rng(0)
    rows = "".join(f"{'AB'[row % 2]},{'ny'[row % 3 == 0]},{draw.normal():.2f},{row}\n" for row in range(40))
    (tmp_path / "t.csv").write_text("who,y,a,b\n" + rows)
    import_data(tmp_path / "t.csv", tmp_path / "d", client="who", label="y", missing="drop")
    partition(str(tmp_path / "d"), tmp_path / "p")
    personalize("local", tmp_path / "p", tmp_path / "m", settings={"model": "logistic", "rounds": 1}, execution=ONE)
    (tmp_path / "q.csv").write_text("id,a,b\nx,1,2\ny,,3\nz,3,4\n")
    line = ("predict", tmp_path / "m", tmp_path / "q.csv", "--client", "A", "--threads", 1)
    ran = pfl(*line)
    assert (ran.code, "line 3" in ran.err, "--missing drop" in ran.err) == (3, True, True)
    ran = pfl(*line, "--missing", "drop", "--id-column", "id")
    assert (ran.code, "1 of 3 samples lack a value" in ran.err) == (0, True)
    assert [row.split(",")[0] for row in ran.out.splitlines()] == ["sample", "x", "z"]
    np.savez(tmp_path / "q.npz", x=np.ones((2, 2)))
    ran = pfl("predict", tmp_path / "m", tmp_path / "q.npz", "--client", "A", "--id-column", "id")
    assert (ran.code, "--id-column is for tables" in ran.err) == (2, True)
