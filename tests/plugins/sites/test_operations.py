"""What the operator of a server sees: norms of updates, outliers, the status; and that the exchange is emptied."""

from __future__ import annotations

import csv
import math
import shutil

import numpy as np
import pytest
from worlds_of_sites import GROUPS, make_world, rewrite

from pflcli.core.errors import InputError
from pflcli.plugins.sites import exchange, status, transport
from pflcli.plugins.sites.exchange import Inbox
from pflcli.plugins.sites.norms import Update, find_outliers, write_updates

TIME = "2026-11-29T19:30:12Z"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock, whose time tests change."""
    now = [TIME]
    monkeypatch.setattr(status, "read_clock", lambda: now[0])
    return now


def read_table(world):
    return [*csv.DictReader((world.folder / "server" / "updates.csv").read_text().splitlines())]


def flatten(params):
    return np.concatenate([value.double().numpy().ravel() for value in params.values()])


def answer_all(world, server, sites, inbox, absent=()):
    """Ask and answer once through an inbox; returns the row of a round that is closed, and the answers."""
    questions, paths = world.write_questions(server)
    inbox.begin(questions, paths)
    for site in {*questions} - {*absent}:
        target = transport.answer_file(paths[site].parent, questions[site].number)
        shutil.copy(sites[site].answer(paths[site]), target)
    inbox.look(is_last=True)
    assert set(inbox.missing) == {*questions} & {*absent}
    return server.close(inbox.found), dict(inbox.found)


def start(world):
    said, server = [], world.make_server()
    return server, {site: world.make_site(site) for site in world.sites}, Inbox(server, world.folder / "a", said.append)


@pytest.mark.parametrize(
    ("name", "settings"), [("fedavg", {}), ("fedavg", {"upload": ("int8",)}), ("fedattn", {}), ("panm", {})], ids=str
)
def test_norms_and_distances_are_those_of_the_updates(name, settings, tmp_path):
    """For FedAvg, they are computed from the messages: what each client sent, minus the model that it received."""
    world = make_world(name, tmp_path, GROUPS["1 client a site"], rounds=2, participation=1.0, **settings)
    server, sites, inbox = start(world)
    begin, losses, row = server.progress.state, {}, None
    while row is None:
        row, answers = answer_all(world, server, sites, inbox)
        losses |= {site: message.head.losses for site, message in answers.items()}
    table = {found["site"]: found for found in read_table(world)}
    assert table.keys() == losses.keys()
    assert {found["what"] for found in table.values()} == {"sent" if name == "panm" else "update"}
    for site, found in table.items():
        mean = np.average([loss for loss, _ in losses[site]], weights=[weight for _, weight in losses[site]])
        assert float(found["loss"]) == pytest.approx(mean, rel=1e-5)
        assert float(found["weight"]) == world.data.sizes("train")[world.sites[site][0]]
        assert 0 < float(found["norm"]) < 20
    if name == "fedavg" and not settings:
        updates = {
            site: flatten(message.tensors(f"0/{world.sites[site][0]}/")) - flatten(begin["global"])
            for site, message in answers.items()
        }
        for site, found in table.items():
            others = np.mean([update for other, update in updates.items() if other != site], axis=0)
            assert float(found["norm"]) == pytest.approx(np.linalg.norm(updates[site]), rel=1e-5)
            assert float(found["distance"]) == pytest.approx(np.linalg.norm(updates[site] - others), rel=1e-5)


def test_a_site_with_several_clients_has_the_mean_of_their_updates(tmp_path):
    both, alone = (
        make_world("fedavg", tmp_path / name, groups, rounds=1, participation=1.0)
        for name, groups in (("both", {"a": (0, 1), "b": (2, 3, 4, 5, 6)}), ("alone", GROUPS["1 client a site"]))
    )
    rows = []
    for world in (both, alone):
        server, sites, inbox = start(world)
        _, answers = answer_all(world, server, sites, inbox)
        rows.append({found["site"]: found for found in read_table(world)})
    model = flatten(alone.make_server("new").progress.state["global"])
    parts = [rows[1][f"site {client}"] for client in (0, 1)]
    weights = [float(part["weight"]) for part in parts]
    sent = [flatten(answers[f"site {client}"].tensors(f"0/{client}/")) - model for client in (0, 1)]
    assert float(rows[0]["a"]["weight"]) == sum(weights)
    expected = np.linalg.norm(np.average(sent, axis=0, weights=weights))
    assert float(rows[0]["a"]["norm"]) == pytest.approx(expected, rel=1e-5)


def test_the_table_has_each_round_once_although_the_server_was_killed(tmp_path):
    world = make_world("fedavg", tmp_path, rounds=3, participation=1.0)
    server, sites, inbox = start(world)
    answer_all(world, server, sites, inbox)
    inbox.clear()
    kept = (tmp_path / "server" / "updates.csv").read_bytes()
    answer_all(world, server, sites, inbox)
    shutil.rmtree(tmp_path / "server" / "round-000002")
    whole = (tmp_path / "server" / "updates.csv").read_bytes()
    assert whole.startswith(kept)
    write_updates(tmp_path / "server", 2, [])
    assert (tmp_path / "server" / "updates.csv").read_bytes() == kept
    (tmp_path / "server" / "updates.csv").write_text("round\nfirst\n")
    with pytest.raises(InputError, match="table of updates"):
        write_updates(tmp_path / "server", 2, [])


def test_with_differential_privacy_there_is_no_table(tmp_path):
    settings = {"dp_noise": 1.0, "dp_clip": "0.05", "dp_delta": 1e-5}
    world = make_world("fedavg", tmp_path, rounds=1, participation=1.0, **settings)
    server, sites, inbox = start(world)
    answer_all(world, server, sites, inbox)
    assert list(tmp_path.glob("server/round-000001"))
    assert not (tmp_path / "server" / "updates.csv").exists()


def updates(norms, distances=None):
    pairs = zip(norms, distances or [1.0] * len(norms), strict=True)
    return [Update(3, f"s{place}", "update", norm, gap, 10.0, 0.5) for place, (norm, gap) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("norms", "distances", "found"),
    [
        ([1, 1.1, 1.2, 50], None, ["s3"]),
        ([1, 1.1, 1.2, 0], None, ["s3"]),  # it sends back what it received
        ([1, 1.1, 1.2, 0.01], None, ["s3"]),
        ([1, 1.01, 1.02, 1.9], None, []),  # less than a factor of two
        ([1, 2, 4, 8, 16, 64], None, []),  # sites that differ: log 2.8 is 1.5 times the median deviation
        ([1, 1.1, 50], None, []),  # too few
        ([0, 0, 0, 1], None, []),
        ([1, 1, 1, 1], [1, 1.1, 1.2, 9], ["s3"]),
        ([1, 1, 1, 1], [1, 1.1, 1.2, 0.01], []),  # nearest to the others
        ([1, 1, 1, 1], [math.nan] * 4, []),
    ],
)
def test_outliers_by_hand(norms, distances, found):
    lines = find_outliers(updates(norms, distances))
    assert [line.split("'")[1] for line in lines] == found
    for line in lines:
        assert line.startswith("round 3: ")
        assert f"{[*norms, *(distances or [])][3 + 4 * (distances is not None)]:.4g}" in line


def test_a_site_that_lies_is_named_in_the_log(tmp_path):
    world = make_world("fedavg", tmp_path, GROUPS["1 client a site"], rounds=1, participation=1.0)
    server, sites, said = world.make_server(), {site: world.make_site(site) for site in world.sites}, []
    inbox = Inbox(server, tmp_path / "a", said.append)
    questions, paths = world.write_questions(server)
    inbox.begin(questions, paths)
    for site in questions:
        answer = transport.answer_file(paths[site].parent, questions[site].number)
        shutil.copy(sites[site].answer(paths[site]), answer)
    lie = transport.answer_file(paths["site 2"].parent, 1)
    rewrite(lie, lambda head, entries, data: (-20 * np.frombuffer(data, np.float32)).tobytes())
    inbox.look(is_last=True)
    server.close(inbox.found)
    assert said == []
    inbox.clear()
    assert {line.split("'")[1] for line in said} == {"site 2"}
    assert ["norm" in line for line in said] == [True, False]


def test_questions_of_closed_phases_are_removed_and_those_of_the_open_phase_stay(tmp_path):
    world = make_world("panm", tmp_path, GROUPS["1 client a site"], rounds=2, participation=1.0)
    server, sites, inbox = start(world)
    for _ in range(2):
        phase = server.phase
        while server.phase == phase:
            answer_all(world, server, sites, inbox)
            if server.phase == phase:
                assert list(tmp_path.glob("exchange/*/question-*.msg"))
        stray = next(tmp_path.glob("exchange/*")) / "question-000001 (copy).msg"
        stray.touch()
        inbox.clear()
        assert [*tmp_path.glob("exchange/*/*.msg")] == [stray]
        stray.unlink()
    # A late answer stays until the next phase is closed.
    assert transport.find_last_question(next(tmp_path.glob("exchange/*"))) is None


def test_a_site_that_comes_back_late_finds_the_last_question_alone(tmp_path):
    world = make_world("ditto", tmp_path, rounds=3, participation=1.0)
    server, sites, inbox = start(world)
    answer_all(world, server, sites, inbox, absent=("a",))
    inbox.clear()
    folder = next(tmp_path.glob("exchange/000-*"))
    late = transport.answer_file(folder, 1)
    late.touch()  # its answer to the question that is gone
    questions, _ = world.write_questions(server)
    assert transport.find_last_question(folder) == questions["a"].number == 2
    row, _ = answer_all(world, server, sites, inbox)
    assert row["clients"] == 6
    inbox.clear()
    assert not late.exists()


def test_the_status_says_who_is_awaited_since_when_and_who_answered(tmp_path, clock):
    world = make_world("ditto", tmp_path, rounds=2, participation=1.0)
    server, sites, inbox = start(world)
    folder = tmp_path / "server"
    assert status.read_status(folder) == {"is_running": False, "runs": {}}
    questions, paths = world.write_questions(server)
    inbox.begin(questions, paths)
    asked = clock[0]
    found = status.read_status(folder)["runs"][""]
    assert (found["round"], found["rounds"], found["closed"], found["phase"]) == (1, 2, 0, "round")
    assert found["awaited"] == dict.fromkeys(questions, asked)
    clock[0] = "2026-11-29T20:00:00Z"
    shutil.copy(sites["a"].answer(paths["a"]), transport.answer_file(paths["a"].parent, 1))
    inbox.look()
    found = status.read_status(folder)["runs"][""]
    assert found["awaited"] == {site: asked for site in questions if site != "a"}
    assert {key: found["sites"]["a"][key] for key in ("round", "time")} == {"round": 1, "time": clock[0]}
    assert {"pfl", "torch", "numpy", "processor"} <= found["sites"]["a"]["versions"].keys()
    # Another process that asks the same question awaits the sites since the first one did.
    clock[0] = "2026-11-29T21:00:00Z"
    again = Inbox(world.make_server(), tmp_path / "a", print)
    again.begin(questions, paths)
    assert status.read_status(folder)["runs"][""]["awaited"]["b"] == asked
    for site in questions:
        shutil.copy(sites[site].answer(paths[site]), transport.answer_file(paths[site].parent, 1))
    inbox.look()
    server.close(inbox.found)
    inbox.clear()
    found = status.read_status(folder)["runs"][""]
    assert (found["round"], found["closed"], found["awaited"]) == (2, 1, {})
    answer_all(world, server, sites, inbox)
    inbox.clear()
    assert status.read_status(folder)["runs"][""]["phase"] == "final"


def test_the_status_has_each_of_several_runs_by_name(tmp_path):
    for name in ("seed-0/fedavg", "seed-1/panm"):
        place = tmp_path / "server" / name
        place.mkdir(parents=True)
        (place / "status.json").write_text('{"awaited": {}, "sites": {}, "rounds": 2}')
    assert [*status.read_status(tmp_path)["runs"]] == ["seed-0/fedavg", "seed-1/panm"]


def test_while_it_waits_the_server_says_for_whom_and_less_often(tmp_path, monkeypatch):
    world, now = make_world("ditto", tmp_path, rounds=1, participation=1.0), [0.0]
    server, said = world.make_server(), []
    monkeypatch.setattr(exchange.time, "monotonic", lambda: now[0])
    inbox = Inbox(server, tmp_path / "a", said.append)
    inbox.begin(*world.write_questions(server))
    at = []
    while now[0] < 1000:
        before = len(said)
        inbox.look()
        at += [now[0]] * (len(said) - before)
        now[0] += 10
    assert at == [60, 180, 420, 900]
    assert said[0] == f"waiting for 'a' since {TIME}, 'b' since {TIME}, 'c' since {TIME}"


def test_a_server_that_renews_its_lock_runs(tmp_path, monkeypatch):
    assert status.read_status(tmp_path)["is_running"] is False
    lock = tmp_path.with_name(f"{tmp_path.name}.partial.lock")
    lock.touch()
    assert status.read_status(tmp_path)["is_running"] is True
    monkeypatch.setattr(status.time, "time", lambda: lock.stat().st_mtime + 60)
    assert status.read_status(tmp_path)["is_running"] is False


def test_names_of_sites_are_no_formulas_in_the_table(tmp_path):
    for number in (1, 2):
        write_updates(tmp_path, number, [Update(number, '=HYPERLINK("x")', "update", 1.0, math.nan, 2.0, 0.5)])
    assert (tmp_path / "updates.csv").read_text().splitlines() == [
        "round,site,what,norm,distance,weight,loss",
        """1,"'=HYPERLINK(""x"")",update,1,,2,0.5""",
        """2,"'=HYPERLINK(""x"")",update,1,,2,0.5""",
    ]


def test_a_server_continues_although_its_status_is_damaged(tmp_path):
    world = make_world("fedavg", tmp_path, rounds=1, participation=1.0)
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "status.json").write_text("{")
    server, sites, inbox = start(world)
    assert answer_all(world, server, sites, inbox)[0]["clients"] == 6
    assert status.read_status(tmp_path / "server")["runs"][""]["awaited"] == {}


def test_a_status_of_something_else_is_refused(tmp_path):
    (tmp_path / "status.json").write_text("[]")
    with pytest.raises(InputError, match="the status of a server"):
        status.read_status(tmp_path)
