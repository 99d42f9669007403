"""Samples of a group stay in one split, and samples with a time are split in time order."""

from __future__ import annotations

import datetime
import itertools

import h5py
import numpy as np
import pandas as pd
import pytest

from importing import read_dataset, refuse
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.core import splits as client_splits
from pflcli.core.errors import InputError, PflError, UsageError
from pflcli.core.execution import Execution

COLUMNS = {"client": "ward", "label": "ill"}
SCHEMES = {
    "by owner": {},
    "iid": {"scheme": "iid", "clients": 5},
    "filled": {"scheme": "dirichlet", "clients": 4, "min_samples": 5},
    "two that join": {"new_clients": 0.5, "new_capacity": 0.4},
}


def make_visits(rows=120, patients=30, seed=0):
    """Visits of patients, some of whom are in two wards, at days in no order; some days have several visits."""
    draw = np.random.default_rng(seed)
    patient = draw.integers(patients, size=rows)
    moved = draw.random(rows) < 0.05
    day = draw.integers(60, size=rows)
    return pd.DataFrame(
        {
            "ward": [f"w{number % 3 + extra}" for number, extra in zip(patient, moved, strict=True)],
            "ill": draw.integers(2, size=rows),
            "age": draw.normal(50, 9, size=rows).round(3),
            "days": day.astype(float),
            "patient": [f"p{number}" for number in patient],
            "date": [(datetime.date(2024, 1, 1) + datetime.timedelta(days=int(number))).isoformat() for number in day],
            "time": day,
        }
    )


@pytest.fixture
def visits_file(tmp_path):
    make_visits().to_csv(tmp_path / "visits.csv", index=False)
    return tmp_path / "visits.csv"


def read_partition(path):
    return partitions.read(open_artifact(path))


def iterate_splits(result):
    """Yield for each client the rows of its training, validation and test samples in the dataset."""
    for client in range(len(result.names)):
        yield [result.sample[slice(*result.offsets[3 * client + split :][:2])] for split in range(3)]


def require_together(result, group):
    for splits in iterate_splits(result):
        values = [set(group[rows].tolist()) for rows in splits]
        assert not values[0] & values[1]
        assert not values[0] & values[2]
        assert not values[1] & values[2]
        assert len(splits[0]) or not sum(map(len, splits))


def require_in_time(result, time):
    for train, validation, test in iterate_splits(result):
        parts = [time[rows] for rows in (train, validation, test) if len(rows)]
        assert all(first.max() <= later.min() for first, later in itertools.pairwise(parts))
        assert len(train)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_partition_keeps_a_group_in_one_split_of_a_client(tmp_path, visits_file, scheme):
    import_data(visits_file, tmp_path / "d", **COLUMNS, features="age", group="patient")
    dataset = datasets.read(open_artifact(tmp_path / "d"))
    _, expected = np.unique(make_visits()["patient"], return_inverse=True)
    np.testing.assert_array_equal(dataset.group, expected)
    assert dataset.features == ("age",)
    for seed in (0, 1):
        partition(str(tmp_path / "d"), tmp_path / f"p{seed}", seed=seed, **SCHEMES[scheme])
        require_together(read_partition(tmp_path / f"p{seed}"), dataset.group)
    assert read_partition(tmp_path / "p0").sample.tolist() != read_partition(tmp_path / "p1").sample.tolist()


@pytest.mark.parametrize("scheme", ["by owner", "iid", "filled", "two that join"])
@pytest.mark.parametrize("column", ["date", "time"])
def test_partition_orders_splits_by_time(tmp_path, visits_file, scheme, column):
    import_data(visits_file, tmp_path / "d", **COLUMNS, features="age,days", order=column)
    dataset = datasets.read(open_artifact(tmp_path / "d"))
    assert dataset.is_ordered
    np.testing.assert_array_equal(dataset.x[:, 1], np.sort(make_visits()["days"]))
    partition(str(tmp_path / "d"), tmp_path / "p", **SCHEMES[scheme])
    require_in_time(read_partition(tmp_path / "p"), dataset.x[:, 1])
    partition(str(tmp_path / "d"), tmp_path / "q", **{**SCHEMES[scheme], "new_clients": 0, "new_capacity": 1})
    sizes = read_partition(tmp_path / "q").sizes
    assert (abs(sizes - np.outer(sizes.sum(axis=1), (0.6, 0.2, 0.2))) <= 1).all()


def test_partition_orders_splits_by_time_for_samples_without_clients(tmp_path, visits_file):
    import_data(visits_file, tmp_path / "d", client="none", label="ill", features="days", order="date")
    partition(str(tmp_path / "d"), tmp_path / "p", scheme="dirichlet", clients=4)
    require_in_time(read_partition(tmp_path / "p"), datasets.read(open_artifact(tmp_path / "d")).x[:, 0])


@pytest.mark.parametrize("seed", range(20))
def test_split_by_group_meets_the_fractions_as_closely_as_groups_allow(seed):
    draw = np.random.default_rng(seed)
    group = np.repeat(np.arange(12), draw.integers(1, 9, size=12))
    rows, fractions = draw.permutation(len(group)) + 5, (0.6, 0.2, 0.2)
    targets = np.asarray([len(piece) for piece in client_splits.cut(rows, fractions)])
    splits = client_splits.split_by_group(rows, fractions, group, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.sort(np.concatenate(splits)), np.sort(rows))
    sizes = np.asarray([len(piece) for piece in splits])
    of = dict(zip(rows.tolist(), group.tolist(), strict=True))
    training = [of[row] for row in splits[0].tolist()]
    for size in (training.count(number) for number in set(training)):
        for target in (1, 2):
            moved = sizes.copy()
            moved[[0, target]] += [-size, size]
            assert abs(moved - targets).sum() >= abs(sizes - targets).sum()
    single = client_splits.split_by_group(rows, fractions, rows, np.random.default_rng(seed))
    assert [len(piece) for piece in single] == targets.tolist()


@pytest.mark.parametrize("sizes", [[7], [1, 1], [50, 1], [1] * 3])
def test_split_by_group_keeps_a_group_for_training(sizes):
    group = np.repeat(np.arange(len(sizes)), sizes)
    for fractions in ((0.6, 0.2, 0.2), (0.01, 0.5, 0.49)):
        splits = client_splits.split_by_group(np.arange(len(group)), fractions, group, np.random.default_rng(0))
        assert len(splits[0]) >= 1


@pytest.mark.parametrize("form", ["npz", "h5", "parquet"])
@pytest.mark.parametrize("role", ["group", "order"])
def test_arrays_and_parquet_support_group_and_order(tmp_path, form, role):
    visits = make_visits()
    name = {"group": "patient", "order": "date"}[role]
    dates = visits["date"].to_numpy("datetime64[D]")
    if form == "parquet":
        path = tmp_path / "visits.parquet"
        visits.assign(date=dates).to_parquet(path)
        import_data(path, tmp_path / "d", **COLUMNS, features="age,days", **{role: name})
    else:
        arrays = {"x": visits[["age", "days"]].to_numpy(), "y": visits["ill"].to_numpy()}
        path = tmp_path / f"visits.{form}"
        if form == "npz":
            words = {"owner": visits["ward"].to_numpy(str), "patient": visits["patient"].to_numpy(str)}
            np.savez(path, **arrays, **words, date=dates)
        else:
            words = {"owner": visits["ward"].to_numpy("S"), "patient": visits["patient"].to_numpy("S")}
            with h5py.File(path, "w") as file:
                for key, values in {**arrays, **words, "date": visits["time"].to_numpy()}.items():
                    file[key] = values
        import_data(path, tmp_path / "d", **{role: name})
    dataset = datasets.read(open_artifact(tmp_path / "d"))
    partition(str(tmp_path / "d"), tmp_path / "p")
    if role == "group":
        require_together(read_partition(tmp_path / "p"), np.unique(visits["patient"], return_inverse=True)[1])
    else:
        require_in_time(read_partition(tmp_path / "p"), dataset.x[:, 1])


@pytest.mark.parametrize("role", ["group", "order"])
def test_import_like_reuses_group_and_order(tmp_path, visits_file, role):
    name = {"group": "patient", "order": "date"}[role]
    import_data(visits_file, tmp_path / "d", **COLUMNS, features="age", **{role: name})
    partition(str(tmp_path / "d"), tmp_path / "p")
    make_visits(seed=1).to_csv(tmp_path / "new.csv", index=False)
    later = read_dataset(tmp_path / "new.csv", like=tmp_path / "p")
    assert later.is_ordered == (role == "order")
    assert (later.group is None) == (role == "order")
    free = read_dataset(tmp_path / "new.csv", like=tmp_path / "p", **{role: "none"})
    assert not free.is_ordered
    assert free.group is None
    other = {"group": {"order": "time"}, "order": {"group": "patient"}}[role]
    assert read_dataset(tmp_path / "new.csv", like=tmp_path / "p", **other).is_ordered == (role == "group")


CONTRADICTIONS = {
    "two ways": ({"group": "patient", "order": "date"}, "--group and --order contradict each other"),
    "a split and a group": ({"split_column": "date", "group": "patient"}, "--split-column and --group contradict"),
    "a split and a time": ({"split_column": "patient", "order": "date"}, "--split-column and --order contradict"),
    "the client": ({"group": "ward"}, "column 'ward' cannot be both --group and --client"),
    "a feature": ({"order": "days", "features": "days"}, "cannot be both --order and one of --features"),
    "no such column": ({"group": "patients"}, "no column 'patients'"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictory_group_and_order_options_are_one_error(visits_file, case):
    options, message = CONTRADICTIONS[case]
    refuse(PflError, message, visits_file, **COLUMNS, **options)


def test_import_like_refuses_a_feature_as_order(tmp_path, visits_file):
    import_data(visits_file, tmp_path / "d", **COLUMNS, features="age,days")
    refuse(
        UsageError,
        r"column 'days' is a feature of .*d, and cannot be --order",
        visits_file,
        like=tmp_path / "d",
        order="days",
    )


def test_partition_refuses_options_that_break_groups_or_order(tmp_path, visits_file):
    import_data(visits_file, tmp_path / "d", **COLUMNS, features="age", group="patient")
    for options in ({"part": (1, 2)}, {"keep_test": True}):
        with pytest.raises(UsageError, match=r"--group"):
            partition(str(tmp_path / "d"), tmp_path / "p", **options)
    import_data(visits_file, tmp_path / "d", **COLUMNS, features="age", order="date", execution=Execution(force=True))
    for options, message in (({"part": (1, 2)}, "ordered by time"), ({"keep_test": True}, "no published test")):
        with pytest.raises(UsageError, match=message):
            partition(str(tmp_path / "d"), tmp_path / "p", **options)


TIMES = {
    "words": (["2024-01-01", "soon", "2024-01-02"], r"line 3 .*, column 'at': 'soon' is neither a number nor a date"),
    "both": (["1", "2024-01-01", "3"], r"line 2 .*, column 'at': '1' is neither"),
    "infinity": (["1", "inf", "3"], r"line 3 .*, column 'at': 'inf' is neither"),
    "of other countries": (["31/12/2023", "1/1/2024", "2/1/2024"], r"' is neither a number nor a date such as"),
    "none": (["1", "", "3"], r"line 3 .*, column 'at': no value"),
}


@pytest.mark.parametrize("case", TIMES)
def test_import_names_the_line_of_an_invalid_time(tmp_path, case):
    times, message = TIMES[case]
    rows = [f"{'ab'[row % 2]},{row % 2},{row},{time}" for row, time in enumerate(times * 2)]
    rows = rows[:3] + [row.replace(",,", ",1,") for row in rows[3:]]
    (tmp_path / "a.csv").write_text("who,y,z,at\n" + "\n".join(rows) + "\n")
    refuse(InputError, message, tmp_path / "a.csv", client="who", label="y", order="at")


MIXED = {
    "integers of nanoseconds": ["1700000000000000002", "1700000000000000001", "1700000000000000003"],
    "fractions": ["2.5", "-1", "3e2"],
    "zones": ["2024-01-01T12:00+00:00", "2024-01-01T12:30+02:00", "2024-01-01 12:01"],
    "with and without hours": ["2024-01-02 00:01", "2024-01-02", "2024-01-03"],
}


@pytest.mark.parametrize("case", MIXED)
def test_import_compares_times_by_value(tmp_path, case):
    rows = [f"a,{row % 2},{place},{time}" for row, (place, time) in enumerate(zip((1, 0, 2), MIXED[case], strict=True))]
    (tmp_path / "a.csv").write_text("who,y,place,at\n" + "\n".join(rows) + "\n")
    assert read_dataset(tmp_path / "a.csv", client="who", label="y", order="at").x[:, 0].tolist() == [0, 1, 2]


def test_import_and_partition_report_groups_and_order(pfl, tmp_path, visits_file):
    columns = ("--client", "ward", "--label", "ill", "--features", "age")
    pfl("import", visits_file, *columns, "--group", "patient", "-o", tmp_path / "d")
    result = pfl("partition", tmp_path / "d", "-o", tmp_path / "p")
    assert "samples of one --group are in one split: 0." in result.err
    assert "values of --group with samples of several clients" in result.err
    pfl("import", visits_file, *columns, "--order", "date", "-o", tmp_path / "e")
    assert "split by time" in (report := pfl("partition", tmp_path / "e", "-o", tmp_path / "q").err)
    assert "left out" not in report
