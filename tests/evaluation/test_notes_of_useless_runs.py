"""Notes below a table: ties, runs that did not learn, clients without test samples, no validation samples."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pflcli import compare, import_data, partition
from pflcli.core.errors import InputError


@pytest.fixture(scope="module")
def notes_folder(tmp_path_factory):
    """A folder with a dataset of eight owners of 25 samples, and three of one sample each."""
    folder = tmp_path_factory.mktemp("notes")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(203, 4)).astype(np.float32)
    owner = np.asarray([f"owner {number}" for number in np.repeat(range(8), 25)] + ["alone A", "alone B", "alone C"])
    np.savez(folder / "samples.npz", x=x, y=(x[:, 0] > 0).astype(int), owner=owner)
    import_data(folder / "samples.npz", folder / "data", client="owner")
    return folder


@pytest.fixture(scope="module")
def notes_partition(notes_folder):
    return partition(notes_folder / "data", notes_folder / "p").path


def read_metrics(outcome):
    return json.loads((outcome.path / "metrics.json").read_text())


def test_method_with_equal_predictions_counts_as_compared_and_is_explained(notes_folder, notes_partition):
    metrics = read_metrics(
        compare(
            notes_partition,
            notes_folder / "ties",
            methods="fedavg,fedbn,local",
            rounds=3,
            model="mlp",
            references=False,
        )
    )
    assert sorted(metrics["conclusion"]["judged"]) == ["fedbn", "local"]
    gain = {row["label"]: row["metrics"]["gain"] for row in metrics["methods"]}
    assert (gain["fedbn"]["value"], gain["fedbn"]["interval"], gain["fedbn"]["p_corrected"]) == (0.0, [0.0, 0.0], 1.0)
    assert "interval" not in gain["fedavg"]
    assert (
        "`fedbn` has the same predictions as fedavg, as it must if the model has no batch normalization"
        in (metrics["definitions"])
    )
    assert not any("`local` has the same" in line for line in metrics["definitions"])


def test_conclusion_handles_a_baseline_with_only_ties(notes_folder, notes_partition):
    metrics = read_metrics(
        compare(notes_partition, notes_folder / "tie", methods="fedavg,fedbn", rounds=3, model="mlp", references=False)
    )
    assert metrics["conclusion"]["answer"] == "no gain shown"
    assert "(fedbn, +0.0 points [+0.0, +0.0])" in metrics["conclusion"]["sentence"]


def test_comparison_warns_of_diverged_runs(notes_folder, notes_partition):
    outcome = compare(
        notes_partition, notes_folder / "blown", methods="fedavg,local", rounds=5, model="mlp", lr=50, references=False
    )
    warnings = read_metrics(outcome)["warnings"]
    assert any("`fedavg` (" in line and "a smaller --lr" in line for line in warnings)


def test_comparison_does_not_warn_of_runs_that_learned(notes_folder, notes_partition):
    warnings = read_metrics(
        compare(notes_partition, notes_folder / "fine", methods="fedavg,local", rounds=8, model="mlp", references=False)
    )["warnings"]
    assert not any("a smaller --lr" in line for line in warnings)


def test_table_notes_name_clients_without_test_samples(notes_folder, notes_partition):
    outcome = compare(
        notes_partition, notes_folder / "fine", methods="fedavg,local", rounds=8, model="mlp", references=False
    )
    line = "3 of 11 clients have no test samples and are not counted: alone A, alone B, alone C"
    assert line in (outcome.path / "table.md").read_text()


def test_partition_reports_clients_without_test_samples(notes_folder, tmp_path):
    said = []

    class Listener:
        def say(self, text):
            said.append(text)

        def detail(self, text):
            pass

    partition(notes_folder / "data", tmp_path / "p", reporter=Listener())
    assert "without test samples: 3 clients with too few samples, which no metric will count" in said


def test_table_notes_say_that_nothing_was_chosen_without_validation_samples(notes_folder, tmp_path):
    outcome = partition(notes_folder / "data", tmp_path / "p", fractions="0.75,0,0.25")
    text = (
        compare(outcome, tmp_path / "c", methods="fedavg,knn-per", rounds=2, references=False).path / "table.md"
    ).read_text()
    assert "there are no validation samples, so no option or round was chosen for any client" in text
    assert "validation samples were used only to select" not in text


def test_compare_explains_clients_with_one_sample_each(notes_folder, tmp_path):
    content = dict(np.load(notes_folder / "samples.npz"))
    np.savez(tmp_path / "ids.npz", **{**content, "owner": np.arange(len(content["y"])).astype(str)})
    import_data(tmp_path / "ids.npz", tmp_path / "data", client="owner")
    partition(tmp_path / "data", tmp_path / "p")
    with pytest.raises(InputError) as caught:
        compare(tmp_path / "p", tmp_path / "c", methods="fedavg,local", references=False)
    assert caught.value.fix == (
        "no client has more than 1 sample, too few for three splits: is the client the right column?",
    )
