"""The gate of a site: its audit log has a row for each message, and an answer may be held until it is released."""

from __future__ import annotations

import csv
import shutil

import pytest
from worlds_of_sites import digest, make_world, rewrite

from pflcli.core.errors import ComputationError, InputError, UsageError
from pflcli.core.simulation import loop
from pflcli.plugins.sites import audit_log
from pflcli.plugins.sites import gate as gates
from pflcli.plugins.sites.audit_log import AuditLog
from pflcli.plugins.sites.gate import Door, Gate, Patience, release


@pytest.fixture
def world(tmp_path):
    return make_world("ditto", tmp_path, participation=1.0)


def rows(world, site="a"):
    return [*csv.DictReader((world.folder / f"site {site}" / "audit.csv").read_text().splitlines())]


def ask(world):
    """Return the question to site a in round 1."""
    return world.write_questions(world.make_server())[1]["a"]


def make_gate(world, **options):
    said, site = [], world.make_site("a")
    return Gate(site, Door(AuditLog(site.folder), said.append, **options)), said


def test_each_message_has_a_row_in_the_order_in_which_it_passes(world):
    server, hashes = world.make_server(), []
    sites = {name: world.make_site(name) for name in world.sites}
    gates = {name: Gate(site, Door(AuditLog(site.folder), print)) for name, site in sites.items()}
    while not server.is_finished:
        questions, paths = world.write_questions(server)
        stored = {site: gates[site].answer(paths[site]) for site in questions}
        hashes += [("in", digest(paths["a"])), ("out", digest(stored["a"]))]
        for site in questions:
            shutil.copy(stored[site], paths[site].with_suffix(".answer"))
        server.close(
            {s: server.check(paths[s].with_suffix(".answer"), questions[s], digest(paths[s])) for s in questions}
        )
    final = world.folder / "final.msg"
    world.messages.write(final, *server.final("a"))
    gates["a"].finish(final)
    found = rows(world)
    assert [(row["direction"], row["sha256"]) for row in found] == [*hashes, ("in", digest(final))]
    assert [row["round"] for row in found] == ["1", "1", "2", "2", "3", "3", ""]
    assert [row["phase"] for row in found] == ["round"] * 6 + ["final"]
    assert found[-1]["bytes"] == str(final.stat().st_size)
    assert all(row["time"][4::3][:2] == "--" and row["time"].endswith("Z") for row in found)
    name, (_, shape) = next(iter(world.terms.patterns["round"][0].channels[0].layout.items()))
    for row in found[:2]:
        assert f"{name} {'x'.join(map(str, shape))}" in row["content"]
    assert found[1]["content"].startswith("of 2 clients: ")
    assert "2 weights" in found[1]["content"]


def test_a_message_that_is_refused_has_a_row(world, monkeypatch):
    monkeypatch.setattr("pflcli.plugins.sites.exchange.SETTLE_SECONDS", 0.0)
    gate, _ = make_gate(world)
    path = ask(world)
    rewrite(path, lambda head, *_: head.update(site="b"))
    with pytest.raises(InputError, match="not for 'a'"):
        gate.answer(path)
    (row,) = rows(world)
    assert (row["direction"], row["sha256"]) == ("refused", digest(path))
    assert "not for 'a'" in row["content"]


def test_a_question_that_is_gone_is_neither_answered_nor_an_error(world, monkeypatch):
    monkeypatch.setattr("pflcli.plugins.sites.exchange.SETTLE_SECONDS", 0.0)
    gate, _ = make_gate(world)
    assert gate.answer(ask(world).with_name("question-000009.msg")) is None
    assert not (world.folder / "site a" / "audit.csv").exists()


def test_nothing_leaves_without_a_row(world, monkeypatch):
    monkeypatch.setattr("pflcli.plugins.sites.exchange.SETTLE_SECONDS", 0.0)
    gate, _ = make_gate(world)
    (world.folder / "site a" / "audit.csv").mkdir(parents=True)
    with pytest.raises(InputError, match=r"cannot write .*audit\.csv"):
        gate.answer(ask(world))
    assert not list(world.folder.glob("site a/round-*"))


def test_a_message_has_its_row_before_the_site_trains(world, monkeypatch):
    gate, path = make_gate(world)[0], ask(world)

    def end(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "play_round", end)
    with pytest.raises(KeyboardInterrupt):
        gate.answer(path)
    assert [(row["direction"], row["sha256"]) for row in rows(world)] == [("in", digest(path))]


def test_an_unfinished_row_is_replaced_by_the_next(world):
    """A machine that lost power may leave a part of a row, or of the heading."""
    gate, _ = make_gate(world)
    path = ask(world)
    gate.answer(path)
    file = world.folder / "site a" / "audit.csv"
    whole = file.read_bytes()
    for kept in (len(whole) - 5, len(whole.splitlines(keepends=True)[0]) - 2, len(whole)):
        file.write_bytes(whole[:kept])
        assert audit_log.read_held(world.folder / "site a") == []
        count = max(0, whole[:kept].count(b"\n") - 1)
        gate.answer(path)
        found = rows(world)
        assert len(found) == count + 2
        assert file.read_bytes().startswith(whole[:kept].rpartition(b"\n")[0])
        assert all(None not in row and None not in row.values() for row in found)


def test_a_full_disk_leaves_no_part_of_a_row(world, monkeypatch):
    gate, _ = make_gate(world)
    path = ask(world)
    gate.answer(path)
    before, write = (world.folder / "site a" / "audit.csv").read_bytes(), audit_log.os.write

    def fill_up(handle, content):
        if len(content) < 10:
            raise OSError(28, "No space left on device")
        return write(handle, content[:-5])

    monkeypatch.setattr("pflcli.plugins.sites.exchange.SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(audit_log.os, "write", fill_up)
    with pytest.raises(InputError, match=r"audit\.csv"):
        gate.answer(path)
    assert (world.folder / "site a" / "audit.csv").read_bytes() == before


def test_an_answer_is_held_until_it_is_released_by_its_hash(world):
    gate, said = make_gate(world, holds=True)
    path, folder = ask(world), world.folder / "site a"
    assert release(world.folder, None) == {"held": []}
    assert [gate.answer(path) for _ in range(3)] == [None] * 3
    assert [row["direction"] for row in rows(world)] == ["in", "held"]
    assert len(said) == 1
    (held,) = release(folder, None)["held"]
    assert held == {**rows(world)[-1], "released": False}
    for wrong in ("", "0000000", held["sha256"][:7], "0" * 64):
        with pytest.raises(InputError, match="holds no answer"):
            release(folder, wrong)
        assert gate.answer(path) is None
    assert release(folder, held["sha256"][:8].upper())["held"] == [{**held, "released": True}]
    assert digest(gate.answer(path)) == held["sha256"]
    assert [row["direction"] for row in rows(world)] == ["in", "held", "out"]
    with pytest.raises(InputError, match="holds no answer"):
        release(folder, held["sha256"])
    # The server lost the answer, and asks for it again: the same bytes are released already, other ones are not.
    assert digest(gate.answer(path)) == held["sha256"]


def test_a_held_answer_survives_a_kill_and_is_given_out_once_it_is_released(world):
    path, folder = ask(world), world.folder / "site a"
    gate, _ = make_gate(world, holds=True)
    assert gate.answer(path) is None
    (held,) = release(folder, None)["held"]
    again, _ = make_gate(world, holds=True)
    assert again.answer(path) is None
    assert release(folder, None)["held"][0]["sha256"] == held["sha256"]
    release(folder, held["sha256"])
    last, _ = make_gate(world, holds=True)
    assert digest(last.answer(path)) == held["sha256"]


def test_a_released_answer_releases_no_other_one(world):
    server, site = world.make_server(), world.folder / "site a"
    gate, _ = make_gate(world, holds=True)
    sites = {name: world.make_site(name) for name in world.sites if name != "a"}
    _, paths = world.write_questions(server)
    assert gate.answer(paths["a"]) is None
    first = release(site, None)["held"][0]["sha256"]
    world.exchange_once(server, sites, absent=("a",))
    _, paths = world.write_questions(server)
    assert gate.answer(paths["a"]) is None
    with pytest.raises(InputError, match="holds no answer"):
        release(site, first)
    assert gate.answer(paths["a"]) is None


def test_answers_of_several_runs_and_scores_are_held_and_released_one_by_one(tmp_path):
    """Each run has its own last row, and its own release."""
    files, doors = {}, {}
    for name in ("seed-0/fedavg", "seed-0/panm", ""):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        files[name] = tmp_path / f"{name.partition('/')[2]}.json"
        files[name].write_text(name)
        doors[name] = Door(AuditLog(tmp_path, name), print, holds=True)
        assert not doors[name].opens_for_scores(files[name], 2)
    held = {row["run"]: row for row in release(tmp_path, None)["held"]}
    assert held.keys() == files.keys()
    assert held[""]["content"] == "scores of 2 runs"
    release(tmp_path, held["seed-0/panm"]["sha256"])
    assert [row["run"] for row in release(tmp_path, None)["held"] if row["released"]] == ["seed-0/panm"]
    assert [name for name, door in doors.items() if door.opens_for_scores(files[name], 2)] == ["seed-0/panm"]
    assert [row["run"] for row in release(tmp_path, None)["held"]] == ["seed-0/fedavg", ""]


def test_a_file_of_something_else_is_no_audit_log(tmp_path):
    (tmp_path / "audit.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="other columns"):
        release(tmp_path, None)


def test_patience_ends_only_while_no_question_arrives(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(gates.time, "monotonic", lambda: now[0])
    patience = Patience(10, ("pfl", "site", "serve", "my site"))
    for time, run, last in ((9, "a", None), (9.5, "b", 1), (18, "a", None), (19, "a", 1), (27, "b", 1), (29, "b", 1)):
        now[0] = float(time)
        patience.require(run, last)
    now[0] = 29.1
    with pytest.raises(ComputationError, match="no question arrived in 10 s") as error:
        patience.require("b", 1)
    assert error.value.fix == ("pfl site serve 'my site' continues",)
    Patience(None, ()).require("", None)
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="is not a positive number"):
            Patience(seconds, ())
