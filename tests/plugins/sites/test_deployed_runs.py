"""Among real sites, a method has the bytes of its simulation: its states, rows, uploads and answers."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from worlds_of_sites import GROUPS, digest, make_world, rewrite

from pflcli.core import registry
from pflcli.core.errors import ComputationError, InputError
from pflcli.core.federation.run import Average, Run
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.simulation.predict import client_batches
from pflcli.plugins.sites import admission
from pflcli.plugins.sites.endpoints import server_entries
from pflcli.workflow.admission import small_federation as small

ADMITTED = {
    *("apfl", "ditto", "fedala", "fedavg", "fedbabu", "fedbn", "feddyn", "fedem", "fedper", "fedprox", "fedrep"),
    *("fedrod", "fedsgd", "lg-fedavg", "moon", "per-fedavg", "pfedfda", "pfedgp", "pfedme", "scaffold"),
}
SEVERAL = {
    *("clustered-fl", "fedamp", "fedattn", "fedattn-extended", "feddbe", "fedham", "fedpac"),
    *("fedproto", "gossip", "ifca", "panm", "pens"),
}
"""Methods whose rounds have several exchanges, or more than the mean of updates."""


AFTER_ROUNDS = {"alone", "constant", "fedavg-plus", "knn-per", "knn-per-extended", "knn-per-plus", "local"}
"""Methods without rounds, whose clients predict by themselves."""
EXCHANGING = {"gaussian-head", "knn-peers", "prior"}
"""Methods without rounds, whose clients exchange something before they predict."""


WHOLE = {"pairs", "chance", "taken", "consensus"}
"""What clients keep without a row for each of them."""


def rows_of(state, clients, keeps, prefix=""):
    """Return what clients keep in a state, by path."""
    found = {}
    for key, value in state.items():
        if isinstance(value, dict) and key not in keeps:
            found |= rows_of(value, clients, keeps, f"{prefix}{key}/")
        elif isinstance(value, ModelTable):
            found |= {f"{prefix}{key}/{name}": rows for name, rows in value[clients].items()}
            found[f"{prefix}{key} unwritten"] = torch.from_numpy(value.unwritten(np.asarray(clients)))
        elif key in {*keeps} - WHOLE:
            found[prefix + key] = value[list(clients)]
    return found


def require_same(first, second, what):
    assert first.keys() == second.keys(), what
    for name, value in first.items():
        assert value.numpy().tobytes() == second[name].contiguous().numpy().tobytes(), f"{what}: {name}"


def predict(name, run, state, clients):
    """Return the predictions of each client and split, in the batches of clients in which commands predict."""
    found = {}
    for batch in client_batches(run, clients):
        for split, p in small.predict(name, run, state, batch).items():
            parts = np.split(p, np.cumsum(run.federation.sizes(split)[batch])[:-1])
            found |= {f"client {client}, {split}": part for client, part in zip(batch, parts, strict=True)}
    return found


def compare(world, absent=(), *, are_late=False, restarts=False):
    """Play all rounds beside the simulation, and compare states, rows and answers.

    ``absent`` sites do not answer in a round or, if they ``are_late``, only after the server has closed it.
    """
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    missing = {t: [c for site in names for c in world.sites[site]] for t, names in dict(absent).items()}
    method = world.method
    for t, (run, state, expected) in enumerate(world.simulate(missing)):  # noqa: B007
        gone = dict(absent).get(t, ())
        row = world.play(server, sites, late=gone) if are_late else world.play(server, sites, gone)
        if restarts:
            sites = {site: world.make_site(site) for site in world.sites}
        require_same(
            server_entries(method, state), server_entries(method, server.progress.state), f"the server, round {t + 1}"
        )
        for site, clients in world.sites.items():
            if are_late and site in gone:
                continue  # its state is that of a round of which it does not know yet that it dropped out
            served = {key: server.progress.state[key] for key in method.SERVES}
            kept, there = (rows_of(each, clients, method.KEEPS) for each in (state, {**sites[site].state, **served}))
            require_same(kept, there, f"{site}, round {t + 1}")
        assert row.keys() == expected.keys()
        for key in expected.keys() - {"seconds"} - {key for key in expected if "accuracy" in key}:
            same = row[key] == expected[key] or (math.isnan(row[key]) and math.isnan(expected[key]))
            assert same, f"round {t + 1}: {key} is {row[key]}, not {expected[key]}"
    while not server.is_finished:
        world.exchange_once(server, sites)
    everything = predict(world.name, run, state, run.clients)  # the last of the simulation
    for site, clients in world.sites.items():
        path = world.folder / f"final {site}.msg"
        world.messages.write(path, *server.final(site))
        last = sites[site].finish(path)
        own = predict(world.name, sites[site].run, last, np.asarray(clients))
        assert own
        assert small.find_difference(own, {key: everything[key] for key in own}) == ""


def find_obstacle(name, options=None, rounds=4, upload=()):
    return admission.find_obstacle(name, options or {}, rounds, upload)


def test_methods_are_admitted_if_their_clients_need_only_what_they_download():
    admitted = {name for name in registry.names("methods") if not find_obstacle(name)}
    assert admitted == ADMITTED | SEVERAL | AFTER_ROUNDS | EXCHANGING
    page = (registry.ROOT.parent / "docs" / "deployment.md").read_text().partition("## Which methods")[2]
    rows = re.findall(r"^\| (`.*`) \| (?:yes|likewise)", page, re.MULTILINE)
    assert {name for row in rows for name in row.replace("`", "").split()} == admitted - {"knn-per-extended"}
    assert "it predicts series" in find_obstacle("persistence")
    assert find_obstacle("lg-fedavg", {"warmup": 6}, rounds=6) == ""
    assert "know only what they download" in find_obstacle("lg-fedavg", {"warmup": 6}, rounds=10)


@pytest.mark.parametrize("name", sorted(ADMITTED))
@pytest.mark.parametrize("groups", GROUPS)
def test_a_deployment_has_the_bytes_of_the_simulation(name, groups, tmp_path):
    compare(make_world(name, tmp_path, GROUPS[groups]))


@pytest.mark.parametrize("name", sorted(SEVERAL))
@pytest.mark.parametrize("groups", ["1 client a site", "2 or 3 clients a site"])
@pytest.mark.parametrize("restarts", [False, True])
def test_methods_with_several_exchanges_have_the_bytes_of_the_simulation(name, groups, restarts, tmp_path):
    if name == "feddbe" and groups[0] == "1":
        pytest.skip("no site of a deployment has no training sample, as one of these has")
    compare(make_world(name, tmp_path, GROUPS[groups], rounds=4), restarts=restarts)


@pytest.mark.parametrize("name", ["fedattn", "fedham"])
def test_rounds_of_several_kinds_have_the_bytes_of_the_simulation(name, tmp_path):
    compare(make_world(name, tmp_path, GROUPS["1 client a site"], rounds=3, participation=1.0, options={"warmup": 1}))


@pytest.mark.parametrize("groups", ["1 client a site", "2 or 3 clients a site"])
@pytest.mark.parametrize("restarts", [False, True])
def test_clusters_that_are_split_have_the_bytes_of_the_simulation(groups, restarts, tmp_path):
    options = {"warmup": 0, "gap": 0.0, "eps1": 1.0, "eps2": 0.0}
    assert find_obstacle("clustered-fl", options, 6) == ""
    world = make_world("clustered-fl", tmp_path, GROUPS[groups], rounds=5, options=options)
    assert {len(state["models"]["head.bias"]) for _, state, _ in world.simulate()} >= {2, 3}
    compare(world, restarts=restarts)


@pytest.mark.parametrize("name", ["clustered-fl", "fedamp", "fedattn", "fedham", "fedpac", "panm"])
def test_sites_that_vanish_from_a_round_with_several_exchanges_drop_out(name, tmp_path):
    world = make_world(name, tmp_path, rounds=4, participation=1.0)
    compare(world, absent={0: ("a",), 2: ("b",)})


def vanish(world, server, sites, site, exchange):
    """Play a round in which a site answers until an exchange, from 0, and then is gone; returns the attempts."""
    attempts, row = [], None
    while row is None:
        questions = server.ask()
        attempts.append({question.attempt for question in questions.values()})
        gone = {question.exchange for question in questions.values()} == {exchange} and site in questions
        row = world.exchange_once(server, sites, (site,) if gone else ())
    return row, [attempt for each in attempts for attempt in each]


@pytest.mark.parametrize(("name", "number", "attempts"), [("fedattn", 0, 1), ("panm", 1, 2)])
def test_a_site_that_vanishes_between_two_exchanges_drops_out_of_the_round(name, number, attempts, tmp_path):
    """PANM's clients may have received its new model, so that the round is played again; FedAttn's have not."""
    world = make_world(name, tmp_path, GROUPS["1 client a site"], rounds=3, participation=1.0)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    for t, (_, state, expected) in enumerate(world.simulate({number: [4]})):
        if t == number:
            row, seen = vanish(world, server, sites, "site 4", 1)
            assert max(seen) == attempts
        else:
            row = world.play(server, sites)
        assert (row["clients"], row["loss"]) == (expected["clients"], expected["loss"])
        require_same(
            server_entries(world.method, state), server_entries(world.method, server.progress.state), f"round {t + 1}"
        )
    assert server.attendance[number + 1][4] is False


@pytest.mark.parametrize("name", ["clustered-fl", "fedham", "fedpac", "gossip", "panm"])
def test_a_client_that_diverges_in_a_round_with_several_exchanges_drops_out(name, tmp_path):
    world = make_world(name, tmp_path, GROUPS["1 client a site"], participation=1.0)
    x = world.data.x.clone()
    x[world.data.rows(2, "train")] = 3e38
    world.data = replace(world.data, x=x)
    compare(world)


def test_a_killed_server_continues_its_attempt(tmp_path):
    world = make_world("panm", tmp_path, GROUPS["1 client a site"], rounds=2, participation=1.0)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    world.exchange_once(server, sites)
    world.exchange_once(server, sites, ("site 4",))
    assert {question.attempt for question in server.ask().values()} == {2}
    again = world.make_server()
    assert again.ask() == server.ask()
    row = world.play(again, {site: world.make_site(site) for site in world.sites})
    assert (row["clients"], row["dropped"]) == (5, 1)


def test_a_killed_server_continues_without_the_sites_that_were_gone(tmp_path):
    """The others have answered what the server asked without the one whose answer is there now."""
    world = make_world("fedattn", tmp_path, GROUPS["1 client a site"], rounds=1, participation=1.0)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    world.exchange_once(server, sites, late=("site 4",))
    _, paths = world.write_questions(server)
    for site, path in paths.items():
        sites[site].answer(path)
    row = world.play(world.make_server(), {site: world.make_site(site) for site in world.sites})
    assert (row["clients"], row["dropped"]) == (5, 1)


@pytest.mark.parametrize(
    ("name", "function", "instead"),
    [
        ("panm", "relay", lambda run, table, wanted: None),
        ("fedamp", "collect", lambda run, parts, like, senders=None, **options: iter([*parts])),
        ("fedproto", "averaging", lambda run, downloaded: Average(run, downloaded)),
        ("fedham", "deliver", lambda run, make, clients, like, **options: iter([*make()])),
        ("ditto", "download", lambda run, params, clients: params),
    ],
)
def test_a_method_that_does_not_exchange_what_it_needs_is_refused(name, function, instead, monkeypatch):
    monkeypatch.setattr(Run, function, instead)
    assert find_obstacle(name)


@pytest.mark.parametrize("name", sorted(EXCHANGING))
def test_a_method_after_the_rounds_that_reads_samples_at_the_server_is_refused(name, monkeypatch):
    packed = find_obstacle(name, upload=("int8",))
    assert "does not apply to this method" in packed if name == "knn-peers" else packed == ""
    monkeypatch.setattr(Run, "participants", lambda run: run.federation.participants)
    assert find_obstacle(name)


@pytest.mark.parametrize("error", [ValueError("no client"), SystemExit("no client")], ids=["error", "exit"])
@pytest.mark.parametrize(("name", "count"), [("fedattn", 0), ("fedavg", 1)])
def test_a_method_that_cannot_personalize_nobody_or_ends_the_process_is_refused(error, name, count, monkeypatch):
    whole = Run.predictor

    def predictor(run, clients, *args, **options):
        if len(clients) == count:
            raise error
        return whole(run, clients, *args, **options)

    monkeypatch.setattr(Run, "predictor", predictor)
    assert f"{type(error).__name__}: no client" in find_obstacle(name)
    if count == 0:  # the server of a method that exchanges nothing then does not personalize
        assert find_obstacle("fedavg") == ""
        assert admission.rehearse_small("fedavg").keys() == {"round"}


@pytest.mark.parametrize("name", ["fedham", "pfedgp"])
def test_methods_personalize_nobody(name):
    run = small.make_run(name)
    state = small.play_rounds(name, run)
    with run.personalizing():
        assert small.personalize(name, run, state, np.zeros(0, np.int64)).splits == ("validation", "test")


@pytest.mark.parametrize("name", ["fedattn", "fedham", "gossip", "panm", "pens"])
def test_sites_that_refuse_records_change_no_model(name, tmp_path):
    world = make_world(name, tmp_path, rounds=4, participation=1.0)
    server = world.make_server()
    sites = {site: world.make_site(site, sends_records=site == "b") for site in world.sites}
    for t, (_, state, expected) in enumerate(world.simulate()):
        row = world.play(server, sites)
        assert (row["clients"], row["loss"]) == (expected["clients"], expected["loss"])
        right, found = (
            server_entries(world.method, {key: value for key, value in each.items() if key not in world.method.RECORDS})
            for each in (state, server.progress.state)
        )
        require_same(right, found, f"round {t + 1}")
    kinds = world.terms.patterns["round"]
    records = {number for each in kinds for number, form in enumerate(each.channels) if form.is_record}
    sent = {site: {number for number, each in sites[site]._place.sent.items() if each} for site in "ab"}
    assert records
    assert sent["a"] == sent["b"] - records != sent["b"]


def put_numbers(path, number):
    """Replace all numbers that are not whole in a message."""

    def change(head, entries, data):
        changed = bytearray(data)
        for entry in entries.values():
            kind = {"F32": np.float32, "F64": np.float64}.get(entry["dtype"])
            first, last = entry["data_offsets"]
            if kind is not None:
                changed[first:last] = np.full((last - first) // np.dtype(kind).itemsize, number, kind).tobytes()
        return bytes(changed)

    rewrite(path, change)


@pytest.mark.parametrize("name", sorted(ADMITTED | SEVERAL))
def test_a_site_that_sends_huge_numbers_drops_out_and_the_rounds_go_on(name, tmp_path):
    """Clients could not train from a mean with such numbers, and the server would end in the next round."""
    sites = {f"site {client}": (client,) for client in range(4)}
    world = make_world(name, tmp_path, sites, SMALL, rounds=3, participation=1.0)
    simulated = [row for _, _, row in world.simulate({0: [3]})]
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    dropped = set()
    while not server.is_finished:
        questions, paths = world.write_questions(server)
        answers = {}
        for site, question in questions.items():
            answer = paths[site].with_suffix(".answer")
            shutil.copy(sites[site].answer(paths[site]), answer)
            if (site, question.round) == ("site 3", 1):
                put_numbers(answer, 1e15)
            answers[site] = server.check(answer, question, digest(paths[site]))
        server.close(answers)
        dropped |= {*server.implausible}
    assert dropped == {"site 3"}
    assert [(row["clients"], row["dropped"]) for row in server.progress.rows] == [(3, 1), (4, 0), (4, 0)]
    assert [row["loss"] for row in server.progress.rows] == [row["loss"] for row in simulated]


SMALL = small.make_federation(client_sizes=[(8, 2, 2), (9, 3, 3), (10, 3, 4), (14, 4, 4)])
"""Four sites with 12, 15, 17 and 22 samples: a product over all of them has other last bits than one of each."""


@pytest.mark.parametrize("name", sorted(ADMITTED | SEVERAL))
@pytest.mark.parametrize("groups", ["1 client a site", "2 clients a site"])
@pytest.mark.parametrize("rate", [0.1, 0.01])
def test_small_sites_have_the_bytes_of_a_simulation_apart(name, groups, rate, tmp_path):
    sites = {"a": (0, 3), "b": (1, 2)} if groups[0] == "2" else {str(client): (client,) for client in range(4)}
    compare(make_world(name, tmp_path, sites, SMALL, batch_size=8, participation=1.0, lr=rate))


@pytest.mark.parametrize("name", ["apfl", "ditto", "fedala", "scaffold"])
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_both_modes_of_the_engine_have_the_bytes_of_the_simulation(name, mode, tmp_path):
    compare(make_world(name, tmp_path, mode=mode))


@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold"])
@pytest.mark.parametrize(
    "settings",
    [
        {"upload": ("int8",)},
        {"upload": ("clip:0.05", "int8")},
        {"aggregator": "median"},
        {"aggregator": "krum:0.2"},
        {"dropout": 0.4, "participation": 1.0},
        {"lr": 30.0, "rounds": 2},
        {"dp_noise": 1.0, "dp_clip": "0.05", "dp_delta": 1e-5, "participation": 0.6},
        {"dp_noise": 0.1, "dp_delta": 1e-5, "participation": 0.6},
    ],
    ids=str,
)
def test_options_have_the_bytes_of_the_simulation(name, settings, tmp_path):
    compare(make_world(name, tmp_path, **settings))


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedala", "lg-fedavg", "scaffold"])
def test_sites_that_do_not_answer_drop_out(name, tmp_path):
    compare(
        make_world(name, tmp_path, rounds=4, participation=1.0), absent={0: ("a",), 2: ("b", "c"), 3: ("a", "b", "c")}
    )


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedala", "lg-fedavg", "scaffold"])
def test_sites_whose_answers_are_late_drop_out(name, restarts, tmp_path):
    world = make_world(name, tmp_path, rounds=4, participation=1.0)
    compare(world, absent={0: ("a",), 1: ("a", "b"), 3: ("a", "c")}, are_late=True, restarts=restarts)


def lose(world, rounds, folder):
    """Play rounds, replace the folder of site a by ``folder``, and return a's answer to the next question."""
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    for _ in range(rounds):
        world.play(server, sites)
        if folder == "old" and not (world.folder / "old").exists():
            shutil.copytree(world.folder / "site a", world.folder / "old")
    questions, paths = world.write_questions(server)
    path = world.make_site("a", folder).answer(paths["a"])
    return server.check(path, questions["a"], digest(paths["a"]))


@pytest.mark.parametrize("name", ["ditto", "scaffold", "fedrep"])
@pytest.mark.parametrize("folder", ["new", "old"])
def test_a_site_that_has_lost_its_state_is_refused(name, folder, tmp_path):
    world = make_world(name, tmp_path, rounds=4, participation=1.0)
    with pytest.raises(InputError, match=r"continues after round 3, but .* after round [01]: a has lost its folder"):
        lose(world, 3, folder)


def test_a_site_that_keeps_nothing_needs_no_folder(tmp_path):
    message = lose(make_world("fedavg", tmp_path, rounds=4, participation=1.0), 3, "new")
    assert message.head.last_round == 3


def test_a_site_that_lost_its_state_after_the_last_round_does_not_predict(tmp_path):
    world = make_world("ditto", tmp_path, participation=1.0)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    for _ in range(3):
        world.play(server, sites)
    world.messages.write(world.folder / "final.msg", *server.final("a"))
    with pytest.raises(InputError, match="a has lost its folder"):
        world.make_site("a", "new").finish(world.folder / "final.msg")


def test_a_site_writes_no_other_tensors_than_it_was_shown(tmp_path):
    world = make_world("ditto", tmp_path, participation=1.0)
    _, paths = world.write_questions(world.make_server())
    (pattern,) = world.terms.patterns["round"]
    (form,) = pattern.channels
    other = replace(form, layout=dict([*form.layout.items()][1:]))
    world.terms = replace(world.terms, patterns={"round": (replace(pattern, channels=(other,)),)})
    with pytest.raises(ComputationError, match="other tensors than those that pfl site check has shown"):
        world.make_site("a").answer(paths["a"])
    assert not list(tmp_path.glob("site a/round-*"))
