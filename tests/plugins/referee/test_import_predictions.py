"""Predictions of another tool: every row is checked, and the artifact is scored like that of a method."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.evaluate import evaluate
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.stack import stack
from pflcli.core.errors import InputError, UsageError
from pflcli.plugins.referee.import_predictions import import_predictions

SPLITS = ("train", "validation", "test")


def list_rows(p, splits=("validation", "test"), seed=0):
    """Return the rows of a table of random probabilities for a partition, from its last sample to its first."""
    draw, made = np.random.default_rng(seed), partitions.read(open_artifact(p))
    block = np.repeat(np.arange(len(made.offsets) - 1), np.diff(made.offsets))
    rows = []
    for place in reversed(range(len(made.sample))):
        split = SPLITS[block[place] % 3]
        if split in splits:
            probabilities = draw.dirichlet(np.ones(made.classes))
            rows.append([made.names[block[place] // 3], int(made.sample[place]), split, *probabilities])
    return rows


def write_csv(path, rows, classes=10):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["client", "sample", "split", *(f"p({c})" for c in range(classes))], *rows])
    return path


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """A folder with a partition, a run of FedAvg and one of local models."""
    folder = tmp_path_factory.mktemp("referee")
    partition("writers", folder / "p", clients=4, seed=3)
    for method in ("fedavg", "local"):
        personalize(method, folder / "p", folder / method, settings={"model": "logistic", "rounds": 2})
    write_csv(folder / "theirs.csv", list_rows(folder / "p"))
    import_predictions(folder / "theirs.csv", folder / "theirs", like=folder / "p", name="theirs")
    return folder


def test_rows_in_any_order_become_predictions_in_the_order_of_the_partition(at):
    artifact = open_artifact(at / "theirs")
    made = partitions.read(open_artifact(at / "p"))
    by_sample = {row[1]: row[3:] for row in list_rows(at / "p")}
    own = open_artifact(at / "fedavg")
    for split in ("validation", "test"):
        found, beside = predictions.read(artifact, split), predictions.read(own, split)
        for name in ("y", "sample", "offsets"):
            assert np.array_equal(getattr(found, name), getattr(beside, name))
        expected = [by_sample[sample] for sample in found.sample.tolist()]
        assert np.allclose(found.parts["p"], expected, rtol=0, atol=1e-7)
    assert not predictions.has_split(artifact, "train")
    assert artifact.manifest.request["seed"] == 3
    assert artifact.manifest.summary["clients"] == len(made.names)


def test_npz_and_csv_are_the_same_predictions(at, tmp_path):
    rows = list_rows(at / "p")
    client, sample, split = (np.array([row[n] for row in rows]) for n in range(3))
    np.savez(tmp_path / "t.npz", client=client, sample=sample, split=split, p=np.array([row[3:] for row in rows]))
    import_predictions(tmp_path / "t.npz", tmp_path / "npz", like=at / "p", name="theirs")
    pair = [open_artifact(folder).manifest.files["predictions.h5"] for folder in (tmp_path / "npz", at / "theirs")]
    assert pair[0] == pair[1]


def test_table_report_coverage_latex_and_verification_take_them(pfl, at, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pfl("evaluate", at / "theirs", at / "fedavg", at / "local", "-o", "ev", "--coverage", "0.8").code == 0
    rows = {row["label"]: row for row in json.loads((tmp_path / "ev" / "metrics.json").read_text())["methods"]}
    assert {key: rows["theirs"].get(key) for key in ("foreign",)} == {"foreign": True}
    assert "foreign" not in rows["fedavg"]
    assert {"megabytes", "seconds", "bytes_up"} & {*rows["theirs"]["metrics"]} == set()
    assert {"megabytes", "seconds", "bytes_up"} <= {*rows["fedavg"]["metrics"]}
    assert "gain" in rows["theirs"]["metrics"]
    table = (tmp_path / "ev" / "table.md").read_text()
    assert "predicted by another tool: theirs; pfl does not know what was sent" in table
    (line,) = [line for line in table.splitlines() if line.startswith("| theirs") and "own" not in line][:1]
    assert line.endswith("| - | - | - | - |")
    assert "theirs & " in pfl("show", "ev", "--latex").out
    assert "| theirs | own |" in table
    assert pfl("report", "ev", "-o", "page.html").code == 0
    assert "theirs" in (tmp_path / "page.html").read_text()
    shown = pfl("show", at / "theirs", "--verify", "--lineage")
    assert shown.code == 0
    assert "theirs, seed 3" in shown.out


def test_a_stack_of_them_has_no_costs_either(at, tmp_path):
    stack([at / "theirs", at / "fedavg"], tmp_path / "stack")
    summary = open_artifact(tmp_path / "stack").manifest.summary
    assert summary["foreign"] is True
    assert {*summary["exponents"]} == {"fedavg", "theirs"}
    table = evaluate([tmp_path / "stack", at / "fedavg"], tmp_path / "ev").table()
    assert np.isnan(table.loc["stack", "megabytes"])
    assert table.loc["fedavg", "megabytes"] > 0


def test_the_same_probabilities_have_the_same_scores_as_the_method_that_made_them(at, tmp_path):
    own, rows = open_artifact(at / "local"), []
    made = partitions.read(open_artifact(at / "p"))
    for split in ("validation", "test"):
        found = predictions.read(own, split)
        clients = np.repeat(made.names, np.diff(found.offsets))
        for client, sample, p in zip(clients, found.sample.tolist(), found.parts["p"], strict=True):
            rows.append([client, sample, split, *p])
    write_csv(tmp_path / "t.csv", rows)
    import_predictions(tmp_path / "t.csv", tmp_path / "copy", like=at / "p", name="copy")
    table = evaluate([tmp_path / "copy", at / "local", at / "fedavg"], tmp_path / "ev").table()
    for metric in ("accuracy", "bottom_decile", "calibration_error", "log_loss", "gain"):
        assert table.loc["copy", metric] == pytest.approx(table.loc["local", metric], abs=1e-6)


@pytest.mark.parametrize(
    "line",
    [
        "predict {at}/theirs {at}/theirs.csv --client w0012",
        "export {at}/theirs --client w0012 -o x",
        "new-client {at}/theirs {at}/theirs.csv --client new -o x",
        "federation create {at}/theirs -o x",
    ],
)
def test_what_needs_a_model_is_refused(pfl, at, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    ran = pfl(*line.format(at=at).split())
    assert ran.code == 3
    assert "has predictions of another tool alone: pfl has no model for them" in ran.err
    assert not (tmp_path / "x").exists()


def test_a_run_cannot_continue_them(pfl, at):
    ran = pfl("personalize", "fedavg", at / "p", "-o", at / "theirs", "--rounds", "3")
    assert ran.code == 4
    assert 'method: "theirs" -> "fedavg"' in ran.err


def change(row, column, value):
    def edit(rows):
        rows[row][column] = value

    return edit


BROKEN = {
    "an unknown client": (change(1, 0, "w00x"), "row 3: .* has no client 'w00x'"),
    "an unknown split": (change(1, 2, "tests"), "row 3: .* has no split 'tests'"),
    "a word as sample": (change(1, 1, "x7"), "row 3: 'x7' is not the number of a sample"),
    "half a sample": (change(1, 1, "7.5"), "row 3: '7.5' is not the number of a sample"),
    "an unknown sample": (change(1, 1, 10**6), "row 3: .* has no sample 1000000"),
    "a negative sample": (change(1, 1, -1), "row 3: .* has no sample -1"),
    "another split": (change(0, 2, "train"), "row 2: sample [0-9]+ is a test sample of client .*, not a train sample"),
    "a repeated row": (lambda rows: rows.append(rows[0]), "row [0-9]+: sample [0-9]+ is there already, in row 2"),
    "a negative probability": (change(2, 3, -0.1), "row 4: a probability is not a number of at least 0"),
    "a probability nan": (change(2, 4, "nan"), "row 4: a probability is not a number of at least 0"),
    "a word as probability": (change(2, 4, "high"), "row 4: a probability is not a number of at least 0"),
    "an infinite probability": (change(2, 4, "inf"), "row 4: probabilities have the sum inf instead of 1"),
    "a logit": (change(2, 4, 3.0), "row 4: probabilities have the sum [0-9.]+ instead of 1"),
    "a missing test sample": (
        lambda rows: rows.pop(0),
        "does not cover the test samples .* is the first of 1 that are",
    ),
    "a missing validation sample": (
        lambda rows: rows.pop(next(n for n, row in enumerate(rows) if row[2] == "validation")),
        "does not cover the validation samples",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_first_wrong_row_is_named(at, tmp_path, name):
    edit, message = BROKEN[name]
    rows = list_rows(at / "p")
    edit(rows)
    write_csv(tmp_path / "t.csv", rows)
    with pytest.raises(InputError, match=message):
        import_predictions(tmp_path / "t.csv", tmp_path / "out", like=at / "p", name="theirs")
    assert not (tmp_path / "out").exists()


def test_first_missing_sample_is_that_of_the_partition(at, tmp_path):
    rows = [row for row in list_rows(at / "p") if row[2] != "test"]
    write_csv(tmp_path / "t.csv", rows)
    test = predictions.read(open_artifact(at / "fedavg"), "test")
    with pytest.raises(InputError, match=f"sample {test.sample[0]} of client .* of {len(test.y)} that are missing"):
        import_predictions(tmp_path / "t.csv", tmp_path / "out", like=at / "p", name="theirs")


def test_test_samples_alone_are_enough_and_rounded_rows_have_the_sum_1(at, tmp_path):
    rows = [[*row[:3], *(f"{p:.3f}" for p in row[3:])] for row in list_rows(at / "p", splits=("test",))]
    write_csv(tmp_path / "t.csv", rows)
    import_predictions(tmp_path / "t.csv", tmp_path / "out", like=at / "p", name="theirs")
    artifact = open_artifact(tmp_path / "out")
    assert not predictions.has_split(artifact, "validation")
    assert np.allclose(predictions.read(artifact, "test").parts["p"].sum(axis=1), 1, rtol=0, atol=1e-6)


def test_columns_name_and_file_must_fit(pfl, at, tmp_path):
    rows = list_rows(at / "p")
    write_csv(tmp_path / "few.csv", [row[:-1] for row in rows], classes=9)
    write_csv(tmp_path / "more.csv", [[*row, 0.0] for row in rows], classes=11)
    np.savez(tmp_path / "t.npz", client=["a"], sample=[1], split=["test"], p=np.ones((1, 3)))
    (tmp_path / "t.txt").write_text("x")
    (tmp_path / "empty.csv").write_text("")
    for file, message in {
        "few.csv": "has no column p(9)",
        "more.csv": "has the unknown column p(10)",
        "t.npz": "p has the shape (1, 3)",
        "t.txt": "has an unknown suffix",
        "empty.csv": "cannot be read as CSV",
        "gone.csv": "does not exist",
    }.items():
        ran = pfl("import-predictions", tmp_path / file, "--like", at / "p", "--name", "t", "-o", tmp_path / "out")
        assert ran.code in (2, 3)
        assert message in ran.err
    for name, message in {"ditto": "is a method of pfl", "stack": "is a method of pfl", "a b": "is not a name"}.items():
        with pytest.raises(UsageError, match=message):
            import_predictions(at / "theirs.csv", tmp_path / "out", like=at / "p", name=name)
    ran = pfl("import-predictions", at / "theirs.csv", "--like", at / "fedavg", "--name", "t", "-o", tmp_path / "out")
    assert ran.code == 3
    assert "needs a partition" in ran.err
