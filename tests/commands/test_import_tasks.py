"""``pfl import --task``: quantities and counts, their units, and the questions where labels leave the task open."""

from __future__ import annotations

import numpy as np
import pytest

from importing import read_dataset, refuse
from pflcli import import_data, partition
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import InputError, PflError, UsageError

ROWS = [f"{'abc'[row % 3]},{row / 8 - 2},{row % 7},{row}" for row in range(60)]
COLUMNS = {"client": "who", "label": "cost"}


@pytest.fixture
def table(tmp_path):
    """Return a table with a quantity, ``cost``, and a count, ``visits``."""
    path = tmp_path / "costs.csv"
    path.write_text("who,cost,visits,a\n" + "\n".join(ROWS) + "\n", encoding="utf-8")
    return path


def test_quantities_are_stored_as_they_are_and_standardized_by_training_samples(table, tmp_path):
    made = import_data(table, tmp_path / "d", task="quantity:huber", unit="EUR", **COLUMNS)
    artifact = open_artifact(tmp_path / "d")
    stored = datasets.read(artifact)
    assert (stored.y.tolist(), stored.classes) == ([row / 8 - 2 for row in range(60)], [])
    assert "classes" not in made.summary
    request = artifact.manifest.request
    assert (request["task"], request["unit"]) == ("quantity:huber", "EUR")
    partition(tmp_path / "d", tmp_path / "p", new_clients=("c",))
    split = open_artifact(tmp_path / "p")
    data = partitions.read(split)
    task = data.labels.task()
    seen = np.concatenate([data.y[data.offsets[3 * client] : data.offsets[3 * client + 1]] for client in (0, 1)])
    assert (task.loss, task.mean, task.deviation) == ("huber", seen.mean(), seen.std())
    assert [codebook.read(each).unit for each in (artifact, split)] == ["EUR", "EUR"]
    assert "classes" not in split.manifest.summary


def test_counts_are_whole_numbers_from_0(table, tmp_path):
    counts = read_dataset(table, client="who", label="visits", task="count")
    assert counts.y.tolist() == [row % 7 for row in range(60)]
    refuse(InputError, ("line 2", "column 'cost': -2.0 is not a whole number from 0"), table, task="count", **COLUMNS)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("cost", ("column 'cost': -1.875 is a fraction", "--task quantity", "--label 'cost>1.625'")),
        ("a", ("60 whole numbers in 60 samples", "--task quantity, --task count or --task classes")),
    ],
)
def test_open_labels_are_asked_about(table, label, words):
    refuse(InputError, words, table, client="who", label=label)


def test_few_whole_numbers_are_classes_unless_a_task_is_given(table):
    assert len(read_dataset(table, client="who", label="visits").classes) == 7
    assert read_dataset(table, client="who", label="visits", task="quantity").classes == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "quantities"}, ("unknown task 'quantities'", "did you mean 'quantity'")),
        ({"task": "quantity:hubert"}, ("unknown loss 'hubert'", "did you mean 'huber'")),
        ({"task": "quantity", "unit": "EUR|USD"}, ("--unit 'EUR|USD' is no short word", "--unit EUR")),
        ({"task": "count:huber"}, ("count has none", "--task count")),
        ({"unit": "EUR", "label": "visits"}, ("--unit EUR is for labels that are numbers", "--task quantity")),
        ({"task": "quantity", "label": "cost>1"}, ("a condition in --label makes classes", "--task is quantity")),
        ({"task": "quantity", "label_map": {"1": "2"}}, ("--label-map makes classes",)),
        ({"task": "classes"}, ("-1.875 is a fraction", "--task quantity")),
    ],
)
def test_contradictory_options_are_refused(table, options, words):
    refuse(PflError, words, table, **(COLUMNS | options))


@pytest.mark.parametrize(
    ("old", "new", "options", "words"),
    [
        ("-1.875", "dear", {}, ("line 3", "'dear' is not a number, as the task quantity needs", "--task classes")),
        ("-1.875", '"1,5"', {}, ("line 3", "'1,5' is not a number", "--decimal ,")),
        ("-1.875", "NA", {}, ("line 3", "column 'cost': no value", "--missing drop")),
        ("-1.875", "inf", {}, ("line 3", "inf is not a finite number")),
    ],
)
def test_labels_that_are_no_numbers_are_refused_with_their_place(table, old, new, options, words):
    table.write_text(table.read_text().replace(old, new), encoding="utf-8")
    refuse(PflError, words, table, task="quantity", **options, **COLUMNS)


def test_missing_labels_are_left_out(table):
    table.write_text(table.read_text().replace("-1.875", "NA").replace("-1.75", "-99"), encoding="utf-8")
    dataset = read_dataset(table, task="quantity", missing="drop", na="-99,NA", **COLUMNS)
    assert dataset.y.tolist() == [row / 8 - 2 for row in range(60) if row not in (1, 2)]


def test_equal_labels_leave_nothing_to_learn(table):
    table.write_text("who,cost,a\na,2,1\nb,2.0,3\n", encoding="utf-8")
    refuse(InputError, ("2 is that of every sample, so there is nothing to learn",), table, task="quantity", **COLUMNS)


def test_arrays_and_later_data_have_the_task(table, tmp_path):
    arrays = tmp_path / "costs.npz"
    y = np.asarray([row / 8 - 2 for row in range(60)])
    np.savez(arrays, x=np.arange(120.0).reshape(60, 2), y=y, owner=np.arange(60) % 3)
    assert read_dataset(arrays, task="quantity").y.tolist() == y.tolist()
    import_data(table, tmp_path / "d", task="quantity", unit="EUR", **COLUMNS)
    partition(tmp_path / "d", tmp_path / "p")
    import_data(table, tmp_path / "later", like=tmp_path / "p")
    later = datasets.read(open_artifact(tmp_path / "later"))
    assert later.labels == partitions.read(open_artifact(tmp_path / "p")).labels
    with pytest.raises(UsageError, match="--task has no effect with --like"):
        import_data(table, tmp_path / "x", like=tmp_path / "p", task="quantity")
