"""``pfl import --window``: windows cut by hand, gaps in time, the split, and the question about long records."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from importing import read_dataset, refuse
from pflcli import import_data, partition, personalize
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError, PflError, UnsuitedError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.reporter import NullReporter


class Recorder(NullReporter):
    """Keeps what it is told."""

    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


COLUMNS = {"client": "machine", "label": "load"}
TASK = {**COLUMNS, "task": "quantity"}
SERIES = {**TASK, "order": "time"}


def make_record(machine, rows=60, first="2024-01-01"):
    """Return rows of a machine in which load and temperature tell the machine and the hour."""
    hours = np.arange(rows)
    time = pd.date_range(first, periods=rows, freq="h").astype(str)
    return pd.DataFrame({"time": time, "machine": machine, "temp": hours + 1000, "load": hours + 100 * machine + 0.5})


@pytest.fixture
def table(tmp_path):
    """Return a table of three machines whose rows are shuffled; the second lacks hours 20 and 21."""
    frame = pd.concat([make_record(number) for number in range(3)], ignore_index=True)
    frame = frame.drop(index=[80, 81]).sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "load.csv", index=False)
    return tmp_path / "load.csv"


def expect(window, horizon, every, hours):
    """Return the first hours of the windows of a record of these hours, by trying each."""
    kept = [n for n in range(0, len(hours) - window - horizon + 1, every)]
    spans = {n: hours[n : n + window + horizon] for n in kept}
    return [hours[n] for n, span in spans.items() if span == list(range(span[0], span[0] + window + horizon))]


@pytest.mark.parametrize(("window", "horizon", "every"), [(6, 1, 1), (5, 3, 2), (12, 6, 1), (1, 1, 7), (6, 2, 9)])
def test_windows_are_those_cut_by_hand(table, window, horizon, every):
    made = read_dataset(table, window=window, horizon=horizon, every=every, **SERIES)
    row = 0
    for machine in range(3):
        hours = [hour for hour in range(60) if machine != 1 or hour not in (20, 21)]
        for start in expect(window, horizon, every, hours):
            steps = np.arange(start, start + window)
            values = np.stack([steps + 1000, steps + 100 * machine + 0.5], axis=1)
            np.testing.assert_array_equal(made.x[row], values)
            assert made.y[row] == start + window - 1 + horizon + 100 * machine + 0.5
            assert made.owner[row] == str(machine)
            row += 1
    assert row == len(made.y) > 15
    assert (made.features, made.is_ordered) == (("temp", "load"), True)
    assert made.labels.fields["past"] == [1, 0.0, 1.0]


def test_the_summary_counts_windows_across_gaps(table, tmp_path):
    reporter = Recorder()
    execution = Execution(reporter=reporter)
    facts = import_data(table, tmp_path / "d", window=6, horizon=2, execution=execution, **SERIES).summary
    # Of the 58 rows of machine 1, the windows that begin in the seven hours before the gap span it.
    assert facts["windows"] == {"rows": 178, "broken": 7, "step": 3600.0}
    assert facts["samples"] == 53 + (51 - 7) + 53
    assert "7 of 157 windows span a gap in time and are left out" in reporter.lines


def test_rows_that_lack_a_value_break_a_record(table):
    text = table.read_text().replace("1030,30.5", ",30.5")
    table.write_text(text)
    made = read_dataset(table, window=4, missing="drop", **SERIES)
    assert not {30.5, 31.5, 32.5, 33.5, 34.5} & {*made.y.tolist()}
    assert {29.5, 35.5} <= {*made.y.tolist()}
    filled = read_dataset(table, window=4, missing="median", **SERIES)
    assert filled.features == ("temp", "temp missing", "load")
    assert filled.labels.fields["past"] == [2, 0.0, 1.0]
    assert {30.5, 31.5} <= {*filled.y.tolist()}


@pytest.mark.parametrize(("window", "horizon", "every"), [(6, 3, 1), (4, 1, 2), (2, 1, 3), (2, 1, 7)])
def test_no_two_splits_share_a_row(table, tmp_path, window, horizon, every):
    long = pd.concat([make_record(number, 200).drop(index=[90 + number]) for number in range(3)])
    long.assign(load=long["load"] + 1000 * long["machine"]).to_csv(table, index=False)
    import_data(table, tmp_path / "d", window=window, horizon=horizon, every=every, **SERIES)
    partition(tmp_path / "d", tmp_path / "p")
    stored = partitions.read(open_artifact(tmp_path / "p"))
    x, y = np.asarray(stored.x), stored.y
    for client in range(3):
        rows, latest = [], -np.inf
        for place in range(len(SPLITS)):
            block = slice(*stored.offsets[len(SPLITS) * client + place :][:2])
            assert block.stop > block.start
            rows.append({*x[block, :, 1].ravel().tolist(), *y[block].tolist()})
            assert min(rows[-1]) > latest
            latest = max(rows[-1])
        assert not rows[0] & rows[1]
        assert not rows[1] & rows[2]
        assert not rows[0] & rows[2]


def test_persistence_is_the_last_target_in_every_scale(table, tmp_path):
    for name, options in {"as-they-are": {}, "standardized": {"standardize": True}}.items():
        import_data(table, tmp_path / name, window=6, horizon=4, **options, **SERIES)
        partition(tmp_path / name, tmp_path / f"{name}-p")
        personalize("persistence", tmp_path / f"{name}-p", tmp_path / f"{name}-r")
        answers = predictions.read(open_artifact(tmp_path / f"{name}-r"), "test")
        np.testing.assert_allclose(answers.parts["p"][:, 0], answers.y - 4, rtol=1e-5)
    by_client = {"standardize": "client"}
    import_data(table, tmp_path / "c", window=6, **by_client, **SERIES)
    partition(tmp_path / "c", tmp_path / "cp")
    import_data(table, tmp_path / "rows", window=0, **TASK)
    partition(tmp_path / "rows", tmp_path / "rp")
    for name in ("cp", "rp"):
        with pytest.raises(UnsuitedError, match="persistence learns series, and the task is quantity") as error:
            personalize("persistence", tmp_path / name, tmp_path / "x")
        assert "pfl import --window makes series" in error.value.fix


def test_later_data_are_cut_alike(table, tmp_path):
    import_data(table, tmp_path / "d", window=6, horizon=2, every=3, standardize=True, **SERIES)
    partition(tmp_path / "d", tmp_path / "p")
    later = tmp_path / "later.csv"
    make_record(7, 30).to_csv(later, index=False)
    import_data(later, tmp_path / "l", like=tmp_path / "p")
    made, book = datasets.read(open_artifact(tmp_path / "l")), codebook.read(open_artifact(tmp_path / "l"))
    assert made.x.shape == (8, 6, 2)
    assert (made.gap, made.labels.fields["past"]) == (2, [1, 0.0, 1.0])
    assert book.mean == codebook.read(open_artifact(tmp_path / "p")).mean
    with pytest.raises(UsageError, match="--window has no effect with --like"):
        import_data(later, tmp_path / "x", like=tmp_path / "p", window=6)


def test_kept_columns_and_counts_and_numbers_as_times(tmp_path):
    frame = pd.concat([make_record(number) for number in range(2)], ignore_index=True)
    frame["time"], frame["load"] = frame.index % 60, frame.index % 5
    frame["shift"] = np.where(frame["time"] % 2 == 0, "day", "night")
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = {**SERIES, "task": "count", "keep": "shift"}
    made = read_dataset(tmp_path / "t.csv", window=3, **options)
    assert made.labels.kind == "count"
    assert made.y[:4].tolist() == [3, 4, 0, 1]
    assert made.kept["shift"][:3].tolist() == ["day", "night", "day"]  # that of the last row of a window


def test_months_have_no_gaps_and_missing_months_are_some(tmp_path):
    time = pd.date_range("2010-01-31", periods=80, freq="ME")
    frame = pd.DataFrame({"time": time.astype(str), "machine": "a", "temp": 1.0, "load": np.arange(80) + 0.5})
    frame.to_csv(tmp_path / "m.csv", index=False)
    assert len(read_dataset(tmp_path / "m.csv", window=12, **SERIES).y) == 68
    frame.drop(index=40).to_csv(tmp_path / "m.csv", index=False)
    assert len(read_dataset(tmp_path / "m.csv", window=12, **SERIES).y) == 68 - 13


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (TASK, ("row at each step of 'time'", "--order 'time' --window 48 --horizon 6", "a row: --window 0")),
        (SERIES, ("row at each step of 'time'", "--window 0")),
    ],
)
def test_long_records_are_asked_about(table, options, words):
    refuse(UsageError, words, table, **options)
    made = read_dataset(table, window=0, **options)
    assert len(made.y) == 178
    assert made.gap == 0


def test_numbers_that_clients_have_in_common_are_times_and_those_of_rows_are_not(table):
    frame = pd.read_csv(table).sort_values(["machine", "time"], ignore_index=True)
    frame["time"] = frame.groupby("machine").cumcount()
    frame.to_csv(table, index=False)
    refuse(UsageError, ("row at each step of 'time'",), table, **TASK)
    frame["time"] = frame.index
    frame.drop(columns="temp").assign(a=frame.index % 7).to_csv(table, index=False)
    assert len(read_dataset(table, **TASK).y) == 178


def test_visits_at_any_time_are_no_record(table):
    frame, draw = pd.read_csv(table), np.random.default_rng(0)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.exponential(9, len(frame)).cumsum(), "D")
    frame.assign(time=days.astype(str), temp=draw.normal(size=len(frame))).to_csv(table, index=False)
    for options in (TASK, SERIES):
        assert len(read_dataset(table, **options).y) == 178


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"horizon": 2, "order": "time"}, ("--horizon has an effect only with --window",)),
        ({"every": 2, "window": 0}, ("--every has an effect only with --window",)),
        ({"window": 4}, ("--window needs the time of each row", "--order COL")),
        ({"window": 4, "order": "time", "client": "none"}, ("rows have none", "--client COL")),
        ({"window": 59, "horizon": 2, "order": "time"}, ("no client has 61 rows in a row, 1:00:00 apart",)),
        ({"window": 4, "order": "time", "task": "classes", "label": "temp"}, ("--task quantity or --task count",)),
        ({"window": 4, "order": "time", "split_column": "temp"}, ("contradict each other",)),
    ],
)
def test_options_without_sense_are_refused(table, options, words):
    refuse(PflError, words, table, **{**TASK, **options})


def test_two_rows_of_one_time_are_refused(table):
    table.write_text(table.read_text() + "2024-01-01 05:00:00,2,1005,205.5\n")
    words = ("1 row of client '2' with the time of another one, the first after 5 rows", "--client COL")
    refuse(InputError, words, table, window=4, **SERIES)


def test_windows_are_in_the_request_and_rows_are_not(table, tmp_path):
    import_data(table, tmp_path / "d", window=4, every=2, **SERIES)
    request = json.loads((tmp_path / "d" / "manifest.json").read_text())["request"]
    assert {key: request.get(key) for key in ("window", "horizon", "every")} == {
        "window": 4,
        "horizon": None,
        "every": 2,
    }


def test_arrays_have_windows_without_names(tmp_path):
    time, x = np.tile(np.arange(60), 2), np.arange(240.0).reshape(120, 2)
    np.savez(tmp_path / "a.npz", x=x, y=x[:, 0] / 8, owner=np.repeat(["a", "b"], 60), time=time)
    made = read_dataset(tmp_path / "a.npz", task="quantity", order="time", window=5)
    assert made.x.shape == (110, 5, 3)
    assert made.features == ()
    np.testing.assert_array_equal(made.x[3], np.column_stack([x[3:8], x[3:8, 0] / 8]))
