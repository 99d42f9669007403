"""``--attendance`` reads the record of a deployment like any foreign file, and refuses that of another run."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.workflow.training import attendance_record
from pflcli.workflow.training.attendance_record import AttendanceRecord

HEADING = "round,client,answered\n"


def answers(number, absent=""):
    """Return the lines of a round in which all clients but the ``absent`` ones answered."""
    return "".join(f"{number},{client},{'no' if client in absent else 'yes'}\n" for client in "abcd")


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    """The partition of a table with four clients."""
    at, draw = tmp_path_factory.mktemp("clients"), np.random.default_rng(0)
    with (at / "table.csv").open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["site", "dose", "outcome"])
        write.writerows(["abcd"[i % 4], f"{draw.normal():.3f}", "yn"[int(draw.integers(2))]] for i in range(80))
    import_data(at / "table.csv", label="outcome", client="site", out=at / "data")
    partition(at / "data", at / "partition")
    return at / "partition"


def run(clients, out, file, **changes):
    return train_global(
        clients,
        out,
        attendance=file,
        **{"model": "logistic", "rounds": 2, "participation": 1.0, "threads": 1, **changes},
    )


def rounds_of(backbone):
    with (backbone / "rounds.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"has the columns \(none\)"),
        (b"round,site,answered\n", "has the columns round, site, answered, not round, client, answered"),
        (HEADING.encode() + b"1,a\n", "line 2: 2 cells, not 3"),
        (HEADING.encode() + b"1,a,yes\n\n", "line 3: 0 cells"),
        (HEADING.encode() + b"0,a,yes\n", "'0' is not the number of a round"),
        (HEADING.encode() + b"-1,a,yes\n", "'-1' is not the number of a round"),
        (HEADING.encode() + "²,a,yes\n".encode(), "'²' is not the number of a round"),
        (HEADING.encode() + b"9" * 5000 + b",a,yes\n", "is not the number of a round"),
        (HEADING.encode() + b"1,a,perhaps\n", "'perhaps' is neither yes nor no"),
        (HEADING.encode() + b"1,a,yes\n1,a,no\n", "line 3: client 'a' stands twice in round 1"),
        (HEADING.encode() + b'1,"a,yes\n', "cannot be read as CSV"),
        (b"\xff\xfe\x00", "cannot be read as CSV"),
    ],
)
def test_a_file_that_is_no_record_is_refused(content, words, tmp_path):
    (tmp_path / "record.csv").write_bytes(content)
    with pytest.raises(InputError, match=words):
        attendance_record.read(tmp_path / "record.csv")


def test_a_record_has_the_same_rounds_after_it_was_written(tmp_path):
    rounds = {1: {"a": True, "b, c": False}, 3: {'d"': True}}
    (tmp_path / "record.csv").write_bytes(AttendanceRecord(rounds).encode())
    record = attendance_record.read(tmp_path / "record.csv")
    assert record.rounds == rounds
    assert record.absent == {"1": ["b, c"]}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("1,a,no\n1,b,yes\n1,c,yes\n1,e,yes\n", "has the client 'e', which is not one of this run"),
        ("1,a,no\n1,b,yes\n", "in round 1 it asked a, b, but this run draws a, b, c, d"),
        ("3,a,no\n3,b,yes\n3,c,yes\n3,d,no\n", "has round 3, but the run ends after round 2"),
    ],
)
def test_the_record_of_another_run_is_refused(rows, words, clients, tmp_path):
    (tmp_path / "record.csv").write_text(HEADING + rows)
    with pytest.raises(InputError, match=words):
        run(clients, tmp_path / "backbone", tmp_path / "record.csv")
    assert not (tmp_path / "backbone").exists()


@pytest.mark.parametrize(
    ("rows", "missing", "fix"),
    [
        ("", 1, "give the whole attendance.csv of the deployment"),
        (answers(2), 1, "give the whole attendance.csv of the deployment"),
        (answers(1), 2, "--rounds 1"),
    ],
)
def test_a_record_is_refused_when_a_round_is_missing(rows, missing, fix, clients, tmp_path):
    (tmp_path / "record.csv").write_text(HEADING + rows)
    with pytest.raises(InputError, match=f"lacks round {missing}, and this run has 2 rounds") as error:
        run(clients, tmp_path / "backbone", tmp_path / "record.csv")
    assert error.value.fix == (fix,)
    assert not (tmp_path / "backbone").exists()


def test_a_record_is_refused_where_it_has_no_effect(clients, tmp_path):
    (tmp_path / "record.csv").write_text(HEADING)
    with pytest.raises(UsageError, match="has no effect: local has no rounds"):
        personalize("local", clients, tmp_path / "local", attendance=tmp_path / "record.csv", model="logistic")
    with pytest.raises(UnsuitedError, match="a secret of each run"):
        run(clients, tmp_path / "private", tmp_path / "record.csv", dp_epsilon=5.0, dp_delta=1e-3, participation=0.5)


def test_absent_clients_drop_out_of_the_rounds_of_a_global_model(clients, tmp_path):
    (tmp_path / "record.csv").write_text(HEADING + answers(1) + answers(2, absent="ab"))
    run(clients, tmp_path / "backbone", tmp_path / "record.csv")
    rows = rounds_of(tmp_path / "backbone")
    assert [(row["clients"], row["dropped"]) for row in rows] == [("4", "0"), ("2", "2")]


def test_a_run_continues_with_a_longer_record(clients, tmp_path):
    file, backbone = tmp_path / "record.csv", tmp_path / "backbone"
    file.write_text(HEADING + answers(1, absent="a") + answers(2))
    run(clients, backbone, file)
    file.write_text(file.read_text() + answers(3))
    assert run(clients, backbone, file, rounds=3).decision == "replace"
    assert [row["dropped"] for row in rounds_of(backbone)] == ["1", "0", "0"]
