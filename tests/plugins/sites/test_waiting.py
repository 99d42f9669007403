"""A site that stays waits in its phase: it trains once, and has the bytes of a site that plays the phase again."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
import torch
from test_deployed_runs import SEVERAL, compare, require_same, vanish
from worlds_of_sites import GROUPS, make_world

from pflcli.core.errors import ComputationError
from pflcli.core.simulation import loop
from pflcli.plugins.sites.endpoints import server_entries
from pflcli.plugins.sites.places import Pending
from pflcli.plugins.sites.waiting import WaitingPhase


def make_waiting_world(name, folder, *sites, **settings):
    return replace(make_world(name, folder, *sites, **settings), waits=True)


def waiting_threads():
    return [each for each in threading.enumerate() if each.name == "phase of a site"]


@pytest.mark.parametrize("name", sorted(SEVERAL | {"fedavg", "scaffold"}))
def test_sites_that_wait_have_the_bytes_of_the_simulation(name, tmp_path):
    before = waiting_threads()
    compare(make_waiting_world(name, tmp_path, rounds=4))
    assert waiting_threads() == before


@pytest.mark.parametrize("name", ["fedattn", "panm"])
@pytest.mark.parametrize("waits", [False, True])
def test_a_site_that_waits_plays_a_round_once_instead_of_once_an_exchange(name, waits, tmp_path, monkeypatch):
    world = replace(make_world(name, tmp_path, rounds=2, participation=1.0), waits=waits)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    plays, asked, play_round, ask = [], [], loop.play_round, server.ask
    monkeypatch.setattr(loop, "play_round", lambda run, *rest: plays.append(run) or play_round(run, *rest))
    monkeypatch.setattr(server, "ask", lambda: asked.append(ask()) or asked[-1])
    for _ in range(2):
        world.play(server, sites)
    for site in sites.values():
        exchanges = sum(site.site in questions for questions in asked)
        assert exchanges > 2
        assert sum(run is site.run for run in plays) == (2 if waits else exchanges)


@pytest.mark.parametrize("name", ["fedattn", "panm"])
def test_a_site_that_is_killed_while_it_waits_plays_the_phase_again(name, tmp_path):
    world = make_waiting_world(name, tmp_path, rounds=2, participation=1.0)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    for _, state, _ in world.simulate():  # noqa: B007
        row = None
        while row is None:
            row = world.exchange_once(server, sites)
            sites["a"] = world.make_site("a")
    require_same(server_entries(world.method, state), server_entries(world.method, server.progress.state), "the server")


@pytest.mark.parametrize(("name", "number"), [("fedattn", 0), ("panm", 1)])
def test_a_phase_that_waits_is_undone_for_another_attempt_and_for_the_next_round(name, number, tmp_path):
    """Site 4 is gone after the first exchange of a round; PANM's server then begins another attempt."""
    world = make_waiting_world(name, tmp_path, GROUPS["1 client a site"], rounds=3, participation=1.0)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    for t, (_, state, expected) in enumerate(world.simulate({number: [4]})):
        row = vanish(world, server, sites, "site 4", 1)[0] if t == number else world.play(server, sites)
        assert (row["clients"], row["loss"]) == (expected["clients"], expected["loss"])
        require_same(
            server_entries(world.method, state), server_entries(world.method, server.progress.state), f"round {t + 1}"
        )


@pytest.mark.parametrize("name", ["fedham", "panm"])
def test_a_client_that_diverges_in_a_phase_that_waits_drops_out(name, tmp_path):
    world = make_waiting_world(name, tmp_path, GROUPS["1 client a site"], participation=1.0)
    x = world.data.x.clone()
    x[world.data.rows(2, "train")] = 3e38
    world.data = replace(world.data, x=x)
    compare(world)


def test_bytes_are_counted_once_however_often_a_site_plays(tmp_path):
    traffic = []
    for waits in (False, True):
        world = make_world("panm", tmp_path / str(waits), GROUPS["1 client a site"], rounds=2, participation=1.0)
        world = replace(world, waits=waits)
        server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
        for _ in range(2):
            world.play(server, sites)
        traffic.append({name: site.run.traffic for name, site in sites.items()})
    assert traffic[0] == traffic[1]
    assert all(found["up"] > 0 for found in traffic[0].values() if found["down"])


def test_a_phase_has_the_threads_of_its_maker_and_ends_with_its_errors():
    before = torch.get_num_threads()
    torch.set_num_threads(before + 2)
    try:
        seen = []
        phase = WaitingPhase(lambda: bool(seen.append(torch.get_num_threads())) or True)
        assert phase.advance() is True
        assert seen == [before + 2]
    finally:
        torch.set_num_threads(before)

    def fail():
        failing.wait()
        raise ComputationError("no model")

    failing = WaitingPhase(fail)
    assert failing.advance() is False
    with pytest.raises(ComputationError, match="no model"):
        failing.advance()


def test_an_abandoned_phase_raises_where_it_waits_and_leaves_no_thread():
    undone, before = [], waiting_threads()

    def play():
        try:
            phase.wait()
        except Pending:
            undone.append(True)
            raise
        return True

    phase = WaitingPhase(play)
    assert phase.advance() is False
    phase.abandon()
    assert undone == [True]
    WaitingPhase(play).abandon()  # before it has begun
    until = time.monotonic() + 5
    while waiting_threads() != before and time.monotonic() < until:
        time.sleep(0.01)
    assert waiting_threads() == before
