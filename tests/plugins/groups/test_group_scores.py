"""Scores by group of samples: recomputed from stored predictions by NumPy alone, and never seen by a method."""

from __future__ import annotations

import csv
import gc
import json
import shutil
from dataclasses import replace
from hashlib import sha256

import h5py
import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from helpers import ONE_OF_EACH_KIND, error_text
from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.evaluate import evaluate
from pflcli.commands.import_data import import_data
from pflcli.commands.new_client import new_client
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.core import config, methods
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.settings import Settings
from pflcli.plugins.groups import tables as group_tables
from pflcli.plugins.page.report import report
from pflcli.workflow.training.run_spec import RunSpec

ONE = Execution(threads=1)
BRIEF = {"model": "mlp", "rounds": 3, "lr": 0.05}
METHODS = ("fedavg", "ditto", "local")


def make_visits(clients=8, rows=70, seed=0):
    """Visits in which the outcome depends on sex in a way that clients do not share; ward icu is in client 2 alone."""
    draw = np.random.default_rng(seed)
    n = clients * rows
    client, sex, x = np.repeat(np.arange(clients), rows), draw.integers(2, size=n), draw.normal(size=n)
    logit = 2 * x + np.where(client % 2, 2.0, -2.0) * (2 * sex - 1) * 0.7
    ward = np.where((client == 2) & (draw.random(n) < 0.3), "icu", draw.choice(["a", "b", ""], n, p=[0.55, 0.4, 0.05]))
    return pd.DataFrame(
        {
            "hospital": [f"h{number}" for number in client],
            "sex": np.where(sex, "M", "F"),
            "ward": ward,
            "shift": np.asarray(["early", "late", "night"])[draw.integers(3, size=n)],
            "age": draw.integers(20, 90, size=n),
            "rate": x.round(4),
            "outcome": np.where(draw.random(n) < 1 / (1 + np.exp(-logit)), "ill", "well"),
        }
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A comparison of two seeds, on a partition with the kept columns sex and ward."""
    at = tmp_path_factory.mktemp("study")
    make_visits().to_csv(at / "visits.csv", index=False)
    options = {"client": "hospital", "label": "outcome", "standardize": True}
    import_data(at / "visits.csv", at / "d", keep="sex,ward,shift", **options)
    partition(at / "d", at / "p")
    compare(at / "p", at / "c", methods=METHODS, references=False, seeds=[0, 1], settings=BRIEF, execution=ONE)
    return at


def read_groups(folder):
    with (folder / "groups.csv").open(newline="") as file:
        return {(row["column"], row["method"], row["group"]): row for row in csv.DictReader(file)}


def read_predictions(folder, kept):
    """The test predictions of a run: probabilities, labels, clients, and the words of samples from the partition."""
    with h5py.File(folder / "predictions.h5") as file:
        test = {name: values[...] for name, values in file["test"].items()}
    with h5py.File(kept / "samples.h5") as file:
        row_of = {int(sample): row for row, sample in enumerate(file["sample"][...])}
        columns = file["kept_columns"].asstr("utf-8")[...].tolist()
        words = file["kept_words"].asstr("utf-8")[...][file["kept"][...]]
    rows = [row_of[int(sample)] for sample in test["sample"]]
    client = np.repeat(np.arange(len(test["offsets"]) - 1), np.diff(test["offsets"]))
    return test["p"], test["y"], client, {name: words[rows, at] for at, name in enumerate(columns)}


def measure_calibration(p, y):
    confidence, right = p.max(axis=1).astype(float), p.argmax(axis=1) == y
    place = np.minimum((15 * confidence).astype(int), 14)
    gaps = [abs((confidence - right)[place == bin].sum()) for bin in range(15)]
    return sum(gaps) / len(y)


def interval_over_clients(change, weight, pairs):
    """The interval of a weighted mean over clients under one seed: cluster-robust, HC2, Student's t, Bonferroni."""
    share = weight / weight.sum()
    mean = share @ change
    error = np.sqrt((share**2 * (change - mean) ** 2 / (1 - share)).sum())
    reach = error * student.ppf(1 - 0.05 / pairs / 2, max(1, 1 / (share**2).sum() - 1))
    return max(-1, mean - reach), min(1, mean + reach)


def by_client(values, client, chosen):
    return pd.Series(values[chosen].astype(float)).groupby(client[chosen]).mean()


@pytest.mark.parametrize("seed", [0, 1])
def test_groups_csv_is_what_numpy_computes_from_the_predictions_and_the_partition(study, tmp_path, seed):
    evaluate(study / "c", tmp_path / "e", group_scores=["sex", "ward", "shift"], seed=seed)
    rows = read_groups(tmp_path / "e")
    runs = {label: read_predictions(study / "c" / f"seed-{seed}" / label, study / "p") for label in METHODS}
    base = runs["fedavg"][0].argmax(axis=1) == runs["fedavg"][1]
    names = {"sex": ["F", "M"], "ward": ["a", "b", "icu", "missing"], "shift": ["early", "late", "night"]}
    assert {*rows} == {(column, label, name) for column in names for label in METHODS for name in names[column]}
    for column, groups in names.items():
        judged = 2 * sum(name != "icu" for name in groups)  # two methods beside the baseline; icu has one client
        for label, (p, y, client, words) in runs.items():
            right = p.argmax(axis=1) == y
            accuracy, counted = {}, []
            for name in groups:
                row, chosen = rows[column, label, name], words[column] == ("" if name == "missing" else name)
                accuracy[name] = right[chosen].mean()
                assert (float(row["samples"]), float(row["clients"])) == (chosen.sum(), len({*client[chosen]}))
                assert float(row["accuracy"]) == pytest.approx(accuracy[name], abs=1e-5)
                assert float(row["calibration_error"]) == pytest.approx(
                    measure_calibration(p[chosen], y[chosen]), abs=1e-5
                )
                counted += [name] * int(chosen.sum() >= 30)
                gains = by_client(right.astype(float) - base, client, chosen)
                weight = pd.Series(client[chosen]).value_counts()[gains.index].to_numpy(float)
                assert float(row["gain"]) == pytest.approx(right[chosen].mean() - base[chosen].mean(), abs=1e-5)
                if label == "fedavg" or name == "icu":
                    assert row["gain_low"] == ""
                elif (gains != 0).any():
                    expected = interval_over_clients(gains.to_numpy(), weight, judged)
                    assert [float(row["gain_low"]), float(row["gain_high"])] == pytest.approx(expected, abs=1e-5)
            ordered = sorted(counted, key=lambda name: accuracy[name])
            row = rows[column, label, groups[0]]
            assert (row["worst_group"], row["best_group"]) == (ordered[0], ordered[-1])
            difference = accuracy[ordered[-1]] - accuracy[ordered[0]]
            assert float(row["largest_difference"]) == pytest.approx(difference, abs=1e-5)
            influence = np.zeros(8)
            share = np.zeros(8)
            for sign, name in ((1, ordered[-1]), (-1, ordered[0])):
                chosen = words[column] == name
                for each in {*client[chosen]}:
                    own = chosen & (client == each)
                    influence[each] += sign * (right[own] - accuracy[name]).sum() / chosen.sum()
                    share[each] += own.sum() / chosen.sum() / 2
            expected = interval_over_clients(
                difference + influence / share, share, len(counted) * (len(counted) - 1) / 2
            )
            found = [float(row[f"largest_difference_{end}"]) for end in ("low", "high")]
            assert found == pytest.approx(expected, abs=1e-5)
    assert len(counted) == 3


def test_a_comparison_has_the_scores_by_group_of_its_seeds(study, tmp_path):
    """They are added to a finished comparison, its predictions stay, and evaluate gives the same afterwards."""
    shutil.copytree(study, tmp_path / "s")
    at = tmp_path / "s"
    before = {path: path.read_bytes() for path in at.glob("c/seed-*/*/predictions.h5")}
    options = {"methods": METHODS, "references": False, "seeds": [0, 1], "settings": BRIEF, "execution": ONE}
    outcome = compare(at / "p", at / "c", group_scores=["sex"], **options)
    assert outcome.decision == "replace"  # without --force
    assert before == {path: path.read_bytes() for path in at.glob("c/seed-*/*/predictions.h5")}
    evaluate(at / "c", at / "e", group_scores=["sex"])
    assert read_groups(at / "c" / "comparison") == read_groups(at / "e")
    row = read_groups(at / "e")["sex", "ditto", "F"]
    accuracy = []
    for seed in (0, 1):
        p, y, _, words = read_predictions(at / "c" / f"seed-{seed}" / "ditto", at / "p")
        accuracy.append((p.argmax(axis=1) == y)[words["sex"] == "F"].mean())
    assert float(row["accuracy"]) == pytest.approx(np.mean(accuracy), abs=1e-5)
    assert float(row["accuracy_std_over_seeds"]) == pytest.approx(np.std(accuracy, ddof=1), abs=1e-5)
    assert row["seeds"] == "2"
    again = compare(at / "p", at / "c", **options)
    assert again.decision == "up to date"
    table = (at / "c" / "comparison" / "table.md").read_text()
    assert "Scores by sex" in table
    assert "| ditto | F |" in table


def test_the_groups_of_all_samples_have_the_scores_of_the_table(study, tmp_path):
    """A column with one value for all samples: its group is all samples."""
    shutil.copytree(study, tmp_path / "s")
    at = tmp_path / "s"
    visits = make_visits().assign(all="yes")
    visits.to_csv(at / "all.csv", index=False)
    import_data(at / "all.csv", at / "d2", client="hospital", label="outcome", keep="all", leave_out="sex,ward,shift")
    partition(at / "d2", at / "p2")
    compare(at / "p2", at / "c2", methods=METHODS, references=False, seeds=[0, 1], settings=BRIEF, execution=ONE,
            group_scores=["all"])  # fmt: skip
    metrics = json.loads((at / "c2" / "comparison" / "metrics.json").read_text())
    for row in metrics["methods"]:
        (group,) = (each for each in metrics["groups"][0]["rows"] if each["label"] == row["label"])
        for name, metric in group["metrics"].items():
            assert metric == row["metrics"][name], name
        assert metrics["groups"][0]["differences"][row["label"]] is None


def test_the_page_has_a_table_and_a_picture_for_each_column(study, tmp_path):
    evaluate(study / "c", tmp_path / "e", group_scores=["sex", "ward"])
    report([tmp_path / "e"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    groups, pictures = page.split("<h3>Scores by sex</h3>")[1].split("<h3>Pictures</h3>")
    sex, ward = groups.split("<h3>Scores by ward</h3>")
    for part, number, words in ((sex, 0, ("F", "M")), (ward, 1, ("icu", "missing"))):
        assert part.count("<figure") == 1
        assert f'data-chart="groups-{number}"' in part
        assert all(f"<td>{word}</td>" in part for word in words)
    assert "groups-" not in pictures.split("<script")[0]
    specs = json.loads(page.split('id="data">')[1].split("</script>")[0])["sections"][0]["specs"]
    (rows,) = (each["data"]["values"] for each in [specs["groups-0"]])
    scores = read_groups(tmp_path / "e")
    assert len(rows) == 4  # two methods beside the baseline, two groups
    for row in rows:
        stored = scores["sex", row["method"], row["group"]]
        found = [row[key] for key in ("value", "low", "high", "accuracy")]
        expected = [100 * float(stored[key]) for key in ("gain", "gain_low", "gain_high", "accuracy")]
        assert found == pytest.approx(expected, abs=0.01)
    assert (tmp_path / "page_data" / "1-groups.csv").read_bytes() == (tmp_path / "e" / "groups.csv").read_bytes()


def test_damaged_groups_of_stored_metrics_are_one_clear_error(study, tmp_path):
    evaluate(study / "c", tmp_path / "e", group_scores=["sex"])
    artifact = open_artifact(tmp_path / "e")
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())
    assert evaluation.read(artifact)["groups"][0]["column"] == "sex"
    del metrics["groups"][0]["rows"][0]["samples"]
    content = json.dumps(metrics).encode()
    (tmp_path / "e" / "metrics.json").write_bytes(content)
    files = {**artifact.manifest.files, "metrics.json": {"sha256": sha256(content).hexdigest(), "bytes": len(content)}}
    with pytest.raises(InputError, match=r"metrics\.json"):
        evaluation.read(replace(artifact, manifest=replace(artifact.manifest, files=files)))


def test_small_groups_and_groups_of_one_client_are_named(study, tmp_path):
    evaluate(study / "c", tmp_path / "e", group_scores=["ward"])
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())
    notes = "\n".join(group_tables.list_notes(metrics))
    assert "fewer than 30 samples" in notes
    assert "icu, missing" in notes
    assert "no interval: icu" in notes
    found = {entry["best"] for entry in metrics["groups"][0]["differences"].values()}
    assert found <= {"a", "b"}


def test_a_feature_groups_scores_by_its_values_before_standardization(tmp_path):
    """The sex of FLamby's patients is a feature, which each hospital standardizes by its own patients."""
    partition("heart-disease", tmp_path / "p", keep_test=True)
    partition("heart-disease", tmp_path / "raw", keep_test=True, options={"standardize": "none"})
    personalize("local", tmp_path / "p", tmp_path / "local", settings=BRIEF, execution=ONE)
    evaluate(tmp_path / "local", tmp_path / "e", group_scores=["sex"])
    raw = partitions.read(open_artifact(tmp_path / "raw"))
    is_test = np.repeat(np.arange(len(raw.sizes.ravel())) % 3 == 2, raw.sizes.ravel())
    expected = np.bincount(np.asarray(raw.x)[is_test, 1].astype(int))
    rows = read_groups(tmp_path / "e")
    assert {group: float(row["samples"]) for (_, _, group), row in rows.items()} == {
        "0": expected[0], "1": expected[1]
    }  # fmt: skip
    with pytest.raises(InputError) as error:
        evaluate(tmp_path / "local", tmp_path / "e2", group_scores=["age"])
    assert "'age' has" in error_text(error)
    assert "bins" in error_text(error)


@pytest.mark.parametrize("missing", ["median", "drop"])
def test_words_of_a_feature_and_its_missing_values_are_groups(tmp_path, missing):
    visits = make_visits()
    visits.loc[visits.index[::11], "dose"] = np.nan
    visits["dose"] = np.where(np.arange(len(visits)) % 11, np.arange(len(visits)) % 3 + 0.5, np.nan)
    visits["ward"] = visits["ward"].replace("", "c")
    visits.to_csv(tmp_path / "v.csv", index=False)
    import_data(
        tmp_path / "v.csv", tmp_path / "d", client="hospital", label="outcome", missing=missing, standardize=True
    )
    partition(tmp_path / "d", tmp_path / "p")
    personalize("local", tmp_path / "p", tmp_path / "local", settings=BRIEF, execution=ONE)
    evaluate(tmp_path / "local", tmp_path / "e", group_scores=["dose", "ward"])
    rows = read_groups(tmp_path / "e")
    groups = {column: [group for each, _, group in rows if each == column] for column in ("dose", "ward")}
    assert groups == {
        "dose": ["0.5", "1.5", "2.5", *["missing"] * (missing == "median")],
        "ward": ["a", "b", "c", "icu"],
    }


def test_clients_that_join_later_are_in_their_groups(study, tmp_path):
    later = make_visits(clients=1, rows=60, seed=9)
    later.drop(columns="ward").to_csv(tmp_path / "later.csv", index=False)
    new_client(study / "c" / "seed-0" / "local", tmp_path / "later.csv", tmp_path / "n", client="new", label="outcome")
    evaluate(tmp_path / "n", tmp_path / "e", group_scores=["sex", "ward"])
    evaluate(study / "c" / "seed-0" / "local", tmp_path / "e0", group_scores=["sex", "ward"])
    after, before = read_groups(tmp_path / "e"), read_groups(tmp_path / "e0")
    added = {key: float(row["samples"]) - float(before[key]["samples"]) for key, row in after.items()}
    assert sum(count for (column, *_), count in added.items() if column == "sex") == 12
    assert added["ward", "local", "missing"] == 12


def test_bad_columns_are_refused_before_anything_is_trained(study, tmp_path):
    for columns, kind, words in (
        (["six"], UsageError, ("no column 'six'", "did you mean 'sex'", "sex, ward, shift")),
        (["age"], InputError, ("'age' has", "at most 20", "--keep")),
        ([" "], UsageError, ("--group-scores names no column",)),
    ):
        for call in (
            lambda columns=columns: evaluate(study / "c", tmp_path / "e", group_scores=columns),
            lambda columns=columns: compare(study / "p", tmp_path / "c", methods=METHODS, group_scores=columns),
        ):
            with pytest.raises(kind) as error:
                call()
            assert all(word in error_text(error) for word in words), error_text(error)
    assert not (tmp_path / "c").exists()


def test_without_the_partition_groups_are_refused_and_scores_are_not(study, tmp_path):
    shutil.copytree(study / "c" / "seed-0" / "local", tmp_path / "local")
    evaluate(tmp_path / "local", tmp_path / "e")
    with pytest.raises(InputError) as error:
        evaluate(tmp_path / "local", tmp_path / "e2", group_scores=["sex"])
    assert "--group-scores needs the partition" in error_text(error)


def _reaches(root, word):
    """Whether a text or an array of texts that an object refers to, at any depth, has a word."""
    seen, queue = {id(root)}, [root]
    while queue:
        item = queue.pop()
        if isinstance(item, str) and word in item:
            return True
        if isinstance(item, np.ndarray) and item.dtype.kind in "UO" and any(word in str(each) for each in item.flat):
            return True
        # Not what a function's module defines: that leads everywhere, also to this test.
        seen.add(id(getattr(item, "__globals__", None)))
        for other in gc.get_referents(item):
            if id(other) not in seen and not isinstance(other, type) and type(other).__name__ != "module":
                seen.add(id(other))
                queue.append(other)
    return False


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_a_method_sees_no_kept_column(study, tmp_path, name):
    """The label as a kept column changes no prediction and no state: all bytes are those without it."""
    folders = []
    for number, keep in enumerate((None, "outcome2")):
        visits = make_visits(clients=4, rows=30)
        visits = visits.assign(outcome2=visits["outcome"]) if keep else visits
        visits.to_csv(tmp_path / "v.csv", index=False)
        at = tmp_path / str(number)
        import_data(
            tmp_path / "v.csv", at / "d", client="hospital", label="outcome", leave_out="sex,ward,shift", keep=keep
        )
        partition(at / "d", at / "p")
        brief = {"model": "mlp", "rounds": 2}
        compare(at / "p", at / "c", methods=[name], references=False, settings=brief, execution=ONE)
        folders.append(at / "c" / "seed-0" / name)
    assert [*partitions.read(open_artifact(tmp_path / "1" / "p")).kept] == ["outcome2"]
    for file in ("predictions.h5", "state.safetensors"):
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes()


def test_a_run_refers_to_no_word_of_a_kept_column(study):
    """What a method gets is the same for all methods: nothing of it leads to a kept value or column."""
    artifact = open_artifact(study / "p")
    data = partitions.read(artifact)
    marked = replace(data, kept={"kept-name": np.full(len(data.y), "kept-word")})
    method = methods.load("local")
    settings = Settings(model="mlp", rounds=1)
    cfg = config.build(method.Config, {}, "local")
    spec = RunSpec(name="local", method=method, cfg=cfg, settings=settings, seed=0, lineage={"partition": artifact})
    run = spec.build(marked, ONE)
    assert _reaches({"data": marked}, "kept-word")
    assert _reaches({"data": run.federation, "run": vars(run)}, "mlp")  # the search goes deep enough to find settings
    for word in ("kept-word", "kept-name"):
        assert not _reaches([run.federation, *vars(run).values()], word)
    run.engine.close()
