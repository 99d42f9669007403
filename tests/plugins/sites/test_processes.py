"""A server and three sites as separate processes, started from the command line."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.open_by_path import open_one
from pflcli.cli.console import Console
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.compare import compare
from pflcli.commands.evaluate import evaluate
from pflcli.commands.extract import extract
from pflcli.commands.import_data import import_data
from pflcli.commands.new_client import new_client
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.predict import predict
from pflcli.commands.train_global import train_global
from pflcli.core import methods
from pflcli.core.errors import ConflictError, InputError, UnsuitedError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.federation.privacy import guarantee
from pflcli.plugins.export.export import export
from pflcli.plugins.sites import opening
from pflcli.plugins.sites.federation import check_federation, create_federation, run_federation
from pflcli.plugins.sites.site import answer_message, check_site, serve_site
from pflcli.plugins.sites.transport import answer_file, find_last_question, folder_of, question_file

ONE = Execution(threads=1)
SITES = ("north", "south", "west")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Tables of three sites, a simulation of them together, and the federation made of it."""
    at, draw = tmp_path_factory.mktemp("federation"), np.random.default_rng(0)
    for place, name in enumerate(SITES):
        with (at / f"{name}.csv").open("w", newline="") as file:
            write = csv.writer(file)
            write.writerow(["age", "dose", "city", "outcome"])
            for i in range(20 + 10 * place):
                age, dose = draw.normal(50, 10), draw.normal(place)
                write.writerow([f"{age:.4f}", f"{dose:.4f}", "XY"[i % 2], "yes" if age + dose > 50 else "no"])
    import_data([at / f"{name}.csv" for name in SITES], label="outcome", standardize=True, out=at / "data")
    partition(at / "data", at / "partition")
    personalize(
        "ditto",
        at / "partition",
        out=at / "simulation",
        model="mlp",
        rounds=3,
        participation=0.7,
        apart=True,
        threads=1,
        seed=0,
    )
    create_federation(at / "simulation", at / "fed", execution=ONE)
    for name in SITES:
        import_data(at / f"{name}.csv", like=at / "fed", out=at / f"data {name}")
        partition(at / f"data {name}", at / f"partition {name}", like=at / "fed", client=name)
    return at


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "pflcli", *map(str, words), "--threads", "1"], stderr=subprocess.PIPE
    )


def test_three_processes_predict_as_the_simulation_does_although_they_are_killed(world):
    begun = time.monotonic()
    for name in SITES:
        check_site(world / f"partition {name}", world / "fed", world / f"site {name}")
    server = ("federation", "run", world / "fed", "--at", world / "exchange", "-o", world / "server")
    serve = {name: ("site", "serve", world / f"site {name}", "--at", world / "exchange") for name in SITES}
    running = {name: start(*words) for name, words in {"server": server, **serve}.items()}
    # The server and one site are killed once a round has been answered, and started again.
    while not list(world.glob("exchange/*/answer-*.msg")) and time.monotonic() - begun < 60:
        time.sleep(0.01)
    for name, words in (("server", server), ("north", serve["north"])):
        running[name].send_signal(signal.SIGKILL)
        running[name].wait()
        running[name] = start(*words)
    for name, process in running.items():
        assert process.wait(timeout=120) == 0, (name, process.stderr.read().decode())
    simulated = predictions.read(open_one(world / "simulation"), "test")
    for client, name in enumerate(SITES):
        own = predictions.read(open_one(world / f"site {name}" / "predictions"), "test")
        rows = slice(*simulated.offsets[client : client + 2])
        assert own.parts["p"].tobytes() == simulated.parts["p"][rows].tobytes()
        assert own.y.tobytes() == simulated.y[rows].tobytes()
    expected = (world / "simulation" / "rounds.csv").read_text().splitlines()
    (last,) = world.glob("server/round-*")
    columns = [expected[0].split(",").index(name) for name in ("round", "clients", "loss", "bytes_up", "bytes_down")]
    for line, other in zip((last / "rounds.csv").read_text().splitlines(), expected, strict=True):
        assert [line.split(",")[place] for place in columns] == [other.split(",")[place] for place in columns]
    # A message of this federation is refused by a site of another one, and by another site.
    message = next(world.glob("exchange/000-*/final.msg"))
    with pytest.raises(InputError, match="for the site 'north', not for 'south'"):
        answer_message(world / "site south", message, execution=ONE)
    with h5py.File(world / "site north" / "predictions" / "predictions.h5") as file:
        assert file["test"]["offsets"][-1] == len(own_rows(file))


def own_rows(file):
    return file["test"]["p"]


def test_a_site_whose_answers_are_held_gives_out_what_a_person_releases(world, tmp_path, pfl):
    """The site is killed while its first answer is held; the server and the others wait."""
    at, site = tmp_path / "exchange", tmp_path / "site north"
    for name in SITES:
        check_site(world / f"partition {name}", world / "fed", tmp_path / f"site {name}")
    words = {name: ("site", "serve", tmp_path / f"site {name}", "--at", at) for name in SITES}
    words |= {"server": ("federation", "run", world / "fed", "--at", at, "-o", tmp_path / "server")}
    words["north"] += ("--hold",)
    running, begun, released = {name: start(*each) for name, each in words.items()}, time.monotonic(), []
    while running["north"].poll() is None and time.monotonic() - begun < 120:
        rows = json.loads(pfl("site", "release", site, "--json").out)["held"]
        if not rows or rows[0]["released"]:
            time.sleep(0.05)
            continue
        (held,) = rows
        if not released:
            running["north"].send_signal(signal.SIGKILL)
            running["north"].wait()
            running["north"] = start(*words["north"])
            status = pfl("federation", "status", tmp_path / "server")
            assert "the server runs" in status.out
            assert "'north' is awaited since 20" in status.out
        shown = pfl("site", "release", site)
        assert all(word in shown.out for word in ("held since 20", held["sha256"], "body.1.weight"))
        assert shlex.join(["pfl", "site", "release", str(site), held["sha256"][:8]]) in shown.err
        released.append(held["sha256"])
        assert pfl("site", "release", site, held["sha256"][:8]).out.startswith("released: ")
    for name, process in running.items():
        error = process.communicate(timeout=60)[1].decode()
        assert process.returncode == 0, (name, error)
        assert all(re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in error.splitlines())
    rows = csv_rows(site / "audit.csv")
    sent = [row["sha256"] for row in rows if row["direction"] == "out"]
    assert list(dict.fromkeys(sent)) == list(dict.fromkeys(released))
    assert len(sent) == len({row["round"] for row in rows if row["direction"] == "out"}) > 0
    assert pfl("site", "release", site).out == "no answer is held\n"
    own = predictions.read(open_one(site / "predictions"), "test")
    simulated = predictions.read(open_one(world / "simulation"), "test")
    assert own.parts["p"].tobytes() == simulated.parts["p"][slice(*simulated.offsets[:2])].tobytes()
    status = pfl("federation", "status", tmp_path / "server")
    assert status.out.startswith("the server ")
    assert "3 rounds of 3 closed, 0 to go\n" in status.out
    assert all(f"'{name}' answered round" in status.out for name in SITES)
    assert "processor" in status.out
    assert {row["site"] for row in csv_rows(tmp_path / "server" / "updates.csv")} <= {*SITES}
    assert not [*at.glob("*/question-*"), *at.glob("*/answer-*")]


def test_a_site_ends_if_no_question_arrives(world, tmp_path, pfl):
    check_site(world / "partition north", world / "fed", tmp_path / "site")
    words = ("site", "serve", tmp_path / "site", "--at", tmp_path / "exchange", "--patience", "0.01")
    ran = pfl(*words)
    assert (ran.code, ran.out) == (5, "")
    assert "no question arrived in 0.01 s" in ran.err
    assert "--patience 0.01 continues" in ran.err
    assert pfl(*words[:-1], 0).code == 2


def test_status_and_release_need_the_folder_of_a_server_and_of_a_site(world, tmp_path, pfl):
    for words in (("federation", "status", world / "fed"), ("site", "release", world / "fed")):
        ran = pfl(*words)
        assert (ran.code, ran.out) == (3, "")
        assert "is not the folder of a" in ran.err


def test_a_round_is_closed_without_late_sites_if_enough_have_answered(world, tmp_path, pfl):
    check_site(world / "partition north", world / "fed", tmp_path / "site")
    words = ("run", world / "fed", "--at", tmp_path / "exchange", "-o", tmp_path / "server", "--patience", "0.01")
    refused = pfl("federation", *words)
    assert (refused.code, refused.out) == (5, "")
    asked = [path.parent.name[4:] for path in sorted(tmp_path.glob("exchange/*/question-*.msg"))]
    assert len(asked) == 2
    assert all(word in refused.err for word in ("round 1: 0 of 2 sites", "at least 1", *asked, "--patience 0.01"))
    resumed = shlex.split(next(line for line in refused.err.splitlines() if "pfl federation run" in line))
    with pytest.raises(UsageError, match="is more than the 3 sites"):
        run_federation(world / "fed", tmp_path / "exchange", tmp_path / "server", execution=ONE, patience=1, at_least=4)
    for number in (1, 2, 3):
        questions = {path.parent.name[4:]: path for path in tmp_path.glob(f"exchange/*/question-{number:06d}.msg")}
        name, question = sorted(questions.items())[0]
        if not (tmp_path / f"site {name}").exists():
            check_site(world / f"partition {name}", world / "fed", tmp_path / f"site {name}")
        answer_message(tmp_path / f"site {name}", question, out=answer_file(question.parent, number), execution=ONE)
        both = pfl("federation", *words, "--at-least", "2")
        assert (both.code, f"round {number}: 1 of 2 sites" in both.err) == (5, True)
        again = pfl(*resumed[resumed.index("federation") : -4], "--threads", "1")
        assert again.code == (0 if number == 3 else 5), again.err
        (late,) = questions.keys() - {name}
        assert f"round {number}: loss" in again.err
        assert f"no answer from {late}" in again.err
    with pytest.raises(ConflictError, match="messages of an earlier run"):
        run_federation(world / "fed", tmp_path / "exchange", tmp_path / "another server", execution=ONE)


def last_question(exchange, name):
    folder = folder_of(exchange, [*SITES], name)
    return question_file(folder, find_last_question(folder))


def run_without(world, folder, absent, monkeypatch, fed=None, execution=ONE):
    """Run the server, whose questions all sites answer but those that are ``absent`` in a round; return its result."""
    fed = fed or world / "fed"
    for name in SITES:
        own = world / f"partition {name}"
        if fed != world / "fed":
            own = partition(world / f"data {name}", folder / f"partition {name}", like=fed, client=name).path
        check_site(own, fed, folder / f"site {name}")

    def answer(inbox, *_):
        for name in inbox.missing:
            path = last_question(folder / "exchange", name)
            number = int(path.stem.removeprefix("question-"))
            if name not in absent.get(number, ()):
                answer_message(folder / f"site {name}", path, out=answer_file(path.parent, number), execution=ONE)
        inbox.look(is_last=True)
        return ()

    monkeypatch.setattr("pflcli.plugins.sites.federation._wait", answer)
    result = run_federation(fed, folder / "exchange", folder / "server", execution=execution)
    for name, final in zip(SITES, sorted(folder.glob("exchange/*/final.msg")), strict=True):
        answer_message(folder / f"site {name}", final, execution=ONE)
    return result


def test_a_simulation_with_the_attendance_of_a_deployment_has_its_bytes(world, tmp_path, monkeypatch):
    asked = csv_rows(world / "simulation" / "rounds.csv")
    assert {row["clients"] for row in asked} == {"2"}
    everybody = run_without(world, tmp_path / "whole", {}, monkeypatch)
    record = (tmp_path / "whole" / "server" / "attendance.csv").read_text()
    assert everybody["absent"] == {}
    first, third = (
        [row["client"] for row in csv.DictReader(record.splitlines()) if row["round"] == number] for number in "13"
    )
    absent = {1: first[:1], 3: third[:1]}
    assert run_without(world, tmp_path, absent, monkeypatch)["absent"] == {"1": first[:1], "3": third[:1]}
    file = tmp_path / "server" / "attendance.csv"
    settings = {"model": "mlp", "rounds": 3, "participation": 0.7, "apart": True, "threads": 1, "seed": 0}
    simulated = open_one(
        personalize("ditto", world / "partition", tmp_path / "simulation", attendance=file, **settings).path
    )
    assert simulated.manifest.request["absent"] == {"1": first[:1], "3": third[:1]}
    state = load_file(tmp_path / "simulation" / "state.safetensors")
    (last,) = tmp_path.glob("server/round-*")
    stored = load_file(last / "state.safetensors")
    assert state.keys() <= {name.removeprefix("state/") for name in stored}
    for name in (name for name in state if name.startswith("global/")):
        assert torch.equal(state[name], stored[f"state/{name}"])
    for client, name in enumerate(SITES):
        own = predictions.read(open_one(tmp_path / f"site {name}" / "predictions"), "test")
        everyone = predictions.read(simulated, "test")
        rows = slice(*everyone.offsets[client : client + 2])
        assert own.parts["p"].tobytes() == everyone.parts["p"][rows].tobytes()
    different = predictions.read(open_one(world / "simulation"), "test").parts["p"]
    assert different.tobytes() != predictions.read(simulated, "test").parts["p"].tobytes()
    # Without an absent client, the simulation is the one that was there before.
    whole = personalize(
        "ditto",
        world / "partition",
        tmp_path / "again",
        attendance=tmp_path / "whole" / "server" / "attendance.csv",
        **settings,
    )
    assert open_one(whole.path).manifest.fingerprint == open_one(world / "simulation").manifest.fingerprint


def test_a_record_has_no_row_of_a_round_when_all_its_clients_drop_out(world, tmp_path, monkeypatch):
    settings = {"model": "logistic", "rounds": 4, "participation": 0.7, "dropout": 0.6, "threads": 1, "seed": 0}
    simulated = personalize("fedavg", world / "partition", tmp_path / "simulation", **settings).path
    played = {row["round"] for row in csv_rows(simulated / "rounds.csv") if row["clients"] != "0"}
    assert 0 < len(played) < 4
    fed = create_federation(simulated, tmp_path / "fed", execution=ONE).path
    run_without(world, tmp_path, {}, monkeypatch, fed)
    file = tmp_path / "server" / "attendance.csv"
    assert {row["round"] for row in csv_rows(file)} == played
    again = personalize("fedavg", world / "partition", tmp_path / "again", attendance=file, **settings).path
    assert open_one(again).manifest.fingerprint == open_one(simulated).manifest.fingerprint


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        *((name, None) for name in ("local", "fedavg-plus", "knn-per-plus", "knn-per")),
        *((name, None) for name in ("prior", "gaussian-head", "knn-peers")),
        *(("knn-per", "body.1"), ("knn-peers", "body.1")),
    ],
    ids=str,
)
def test_methods_after_the_rounds_predict_as_in_the_simulation(name, layer, world, tmp_path, monkeypatch):
    settings = {"model": "mlp", "rounds": 3, "apart": True}
    source = world / "partition"
    if name != "local":
        source = train_global(source, tmp_path / "b", participation=0.7, threads=1, **settings).path
    if methods.load(name).NEEDS[:1] in (("embeddings",), ("datastore",)):
        source = extract(source, tmp_path / "e", layer=layer).path
    if name == "knn-per":
        source = build_datastore(source, tmp_path / "d", capacity=0.8).path
    simulated = open_one(personalize(name, source, tmp_path / "simulation", threads=1, **settings).path)
    fed = create_federation(simulated.path, tmp_path / "fed", execution=ONE).path
    assert check_federation(fed)["rounds"] == (0 if name == "local" else 3)
    run_without(world, tmp_path, {}, monkeypatch, fed)
    if (tmp_path / "e").exists():
        assert open_one(tmp_path / "site west" / "embeddings").manifest.request.get("layer") == layer
    everyone = predictions.read(simulated, "test")
    for client, place in enumerate(SITES):
        found = open_one(tmp_path / f"site {place}", "predictions")
        rows = slice(*everyone.offsets[client : client + 2])
        own = predictions.read(found, "test").parts["p"]
        assert own.shape == everyone.parts["p"][rows].shape
        assert own.tobytes() == everyone.parts["p"][rows].tobytes()
    evaluate([tmp_path / "site west"], tmp_path / "evaluation")
    (tmp_path / "new.csv").write_text("age,dose,city\n60,1,X\n40,-1,Y\n")
    answered = predict(tmp_path / "site west", tmp_path / "new.csv")
    assert answered.client == "west"
    expected = predict(simulated.path, tmp_path / "new.csv", client="west")
    assert answered.parts["p"].tobytes() == expected.parts["p"].tobytes()
    with pytest.raises(UsageError, match="has 3 clients, and each has its own model"):
        predict(simulated.path, tmp_path / "new.csv")
    with pytest.raises(UsageError, match="has 3 clients, and each has its own model"):
        export(simulated.path, tmp_path / "model")


def test_a_site_has_the_model_of_its_own_client_alone(world, tmp_path, monkeypatch):
    (tmp_path / "new.csv").write_text("age,dose,city\n60,1,X\n40,-1,Y\n")
    run_without(world, tmp_path, {}, monkeypatch)
    own, simulated = tmp_path / "site west", world / "simulation"
    expected = predict(simulated, tmp_path / "new.csv", client="west").parts["p"]
    assert predict(own, tmp_path / "new.csv", client="west").parts["p"].tobytes() == expected.tobytes()
    assert predict(own, tmp_path / "new.csv", client="none").client == "none"
    assert export(own, tmp_path / "model").model["client"] == "west"
    for other in ("north", "nobody"):
        with pytest.raises(InputError, match=f"client 'west', and none of '{other}'") as error:
            predict(own, tmp_path / "new.csv", client=other)
        assert error.value.fix == ("--client west",)
        with pytest.raises(InputError, match=f"client 'west', and none of '{other}'"):
            export(own, tmp_path / "another", client=other)
    assert not (tmp_path / "another").exists()


def test_a_site_also_has_the_model_of_a_client_that_joined_it_later(world, tmp_path, monkeypatch):
    run_without(world, tmp_path, {}, monkeypatch)
    (tmp_path / "east.csv").write_text((world / "west.csv").read_text())
    joined = new_client(
        tmp_path / "site west", tmp_path / "east.csv", tmp_path / "joined", client="east", label="outcome"
    ).path
    (tmp_path / "new.csv").write_text("age,dose,city\n60,1,X\n40,-1,Y\n")
    assert predict(joined, tmp_path / "new.csv", client="east").client == "east"
    assert predict(joined, tmp_path / "new.csv").client == "west"


def test_create_says_that_options_of_the_import_are_gone_with_the_dataset(world, tmp_path, pfl):
    for name in ("partition", "simulation"):
        shutil.copytree(world / name, tmp_path / name)
    ran = pfl("federation", "create", tmp_path / "simulation", "-o", tmp_path / "fed")
    assert (ran.code, "sites have to type them" in ran.err) == (0, True)
    assert "sites have to type them" not in pfl("federation", "create", world / "simulation", "-o", tmp_path / "f").err


def test_a_store_of_other_samples_is_refused(world, tmp_path):
    data = import_data([world / f"{name}.csv" for name in SITES], label="outcome", out=tmp_path / "data").path
    backbone = train_global(partition(data, tmp_path / "p").path, tmp_path / "b", model="mlp", rounds=1, threads=1).path
    moved = partition(data, tmp_path / "moved", seed=1).path
    store = build_datastore(extract(backbone, tmp_path / "e", partition=moved).path, tmp_path / "d").path
    personalize("knn-per", store, tmp_path / "simulation", threads=1)
    with pytest.raises(UnsuitedError, match="its datastore was updated, or has other samples"):
        create_federation(tmp_path / "simulation", tmp_path / "fed", execution=ONE)


def test_the_server_reports_epsilon_as_the_simulation_does(world, tmp_path, monkeypatch):
    settings = {"model": "logistic", "rounds": 2, "participation": 0.7, "dp_noise": 1.0, "dp_delta": 1e-3}
    simulated = personalize("fedavg", world / "partition", tmp_path / "simulation", threads=1, **settings)
    fed = create_federation(simulated.path, tmp_path / "fed", execution=ONE).path
    said = []
    reporter = Console(quiet=True)
    monkeypatch.setattr(type(reporter), "say", lambda self, text: said.append(text))
    result = run_without(world, tmp_path, {}, monkeypatch, fed, Execution(threads=1, reporter=reporter))
    assert result["privacy"]["epsilon"] == simulated.summary["privacy"]["epsilon"] > 1
    said = [text.partition("Z ")[2] for text in said]  # without times
    assert [text for text in said if text.startswith("differential privacy")] == [
        next(guarantee.describe_plan(opening.make_spec(open_one(fed).manifest.request).settings, lambda: SITES)),
        guarantee.describe_guarantee(result["privacy"]),
    ]
    assert not (tmp_path / "server" / "attendance.csv").exists()
    assert list(tmp_path.glob("server/round-*/attendance.json"))
    (warning,) = (text for text in said if text.startswith("never release"))
    assert f"{tmp_path / 'server'} or {tmp_path / 'exchange'}, " in warning


def csv_rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_wrong_folders_are_refused(world, tmp_path):
    with pytest.raises(InputError, match="was not made for"):
        check_site(world / "partition", world / "fed", tmp_path / "site")
    with pytest.raises(InputError, match="is not the folder of a site"):
        serve_site(world / "fed", tmp_path, execution=ONE)
    with pytest.raises(UsageError, match="is inside"):
        run_federation(world / "fed", tmp_path, tmp_path / "server", execution=ONE)
    check_site(world / "partition north", world / "fed", tmp_path / "north")
    with pytest.raises(ConflictError, match="belongs to another"):
        check_site(world / "partition south", world / "fed", tmp_path / "north")
    with pytest.raises(ConflictError, match="belongs to another"):
        run_federation(world / "fed", tmp_path / "exchange", tmp_path / "north", execution=ONE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    with pytest.raises(ConflictError, match="contains other files"):
        check_site(world / "partition north", world / "fed", tmp_path / "full")


def test_methods_and_settings_that_real_sites_cannot_have_are_refused(world, tmp_path):
    for method, settings, words in (
        ("fedavg", {"upload": ("noise:0.1",)}, "noise of an upload step"),
        ("fedavg", {"report": "best"}, "--report best"),
    ):
        out = tmp_path / f"{method} {len(settings)} {words[:5]}"
        personalize(method, world / "partition", out=out, model="logistic", rounds=1, threads=1, **settings)
        with pytest.raises(UnsuitedError, match=words):
            create_federation(out, tmp_path / "fed", execution=ONE)
    assert not (tmp_path / "fed").exists()


def test_the_import_of_a_site_names_the_partition_that_follows(world, tmp_path, capsys):
    import_data(world / "north.csv", like=world / "fed", out=tmp_path / "data", reporter=Console())
    assert f"(pfl partition --like {world / 'fed'} --client NAME)" in capsys.readouterr().err


def test_a_site_takes_its_split_from_the_federation(world):
    for words, options in (
        ("have no effect|has no effect", {"like": world / "fed", "client": "north", "fractions": (0.5, 0.2, 0.3)}),
        ("belong together", {"client": "north"}),
        ("no client 'nobody'", {"like": world / "fed", "client": "nobody"}),
    ):
        with pytest.raises(UsageError, match=words):
            partition(world / "data north", world / "other", **options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("create", "-o", "new", "--jobs", "5"), "unknown option '--jobs'"),
        (("check", "--force"), "unknown option '--force'"),
        (("run", "--at", "x", "-o", "new", "--force"), "unknown option '--force'"),
        (("check", "-o", "new"), "unknown option '-o'"),
        (("run", "--at", "x", "-o", "new", "--at-least", "1"), "has no effect without --patience"),
        (("run", "--at", "x", "-o", "new", "--patience", "5", "--at-least", "0"), "not a positive number"),
        (("create",), "missing option '--out'"),
        (("run", "-o", "new"), "missing option '--at'"),
    ],
)
def test_federation_refuses_options_that_have_no_effect(world, tmp_path, monkeypatch, pfl, words, message):
    monkeypatch.chdir(tmp_path)
    ran = pfl("federation", words[0], world / "fed", *words[1:])
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert not (tmp_path / "new").exists()


def test_a_federation_has_its_table_in_a_configuration_file_and_records_its_command(world, tmp_path, monkeypatch, pfl):
    monkeypatch.chdir(tmp_path)
    wrong = {
        "[federation]\npatience = 5\n": "unknown table [federation.patience]",
        "[federation.run]\npatienc = 5\n": "unknown key 'patienc' in [federation.run]",
        "[federation.runs]\n": "unknown table [federation.runs]",
        "[site]\nserve = 1\n[federation.run]\npatience = 0\n": "--patience 0 is not a positive number",
    }
    for text, message in wrong.items():
        (tmp_path / "pfl.toml").write_text(text)
        ran = pfl("federation", "run", world / "fed", "--at", "x", "-o", "new", "--config", "pfl.toml")
        assert (ran.code, message in ran.err) == (2, True), ran.err
    (tmp_path / "pfl.toml").write_text("[federation.create]\nseed = 0\nmethod = 'ditto'\n")
    words = ("federation", "create", world / "simulation", "-o", "fed", "--config", "pfl.toml")
    assert (pfl(*words, "--dry-run").code, (tmp_path / "fed").exists()) == (0, False)
    assert pfl(*words).code == 0
    command = open_one(tmp_path / "fed").manifest.made["command"]
    assert command.startswith("pfl federation create ")
    assert command.endswith("simulation -o ./fed --method ditto --seed 0")


def test_create_takes_a_run_of_a_comparison_when_method_and_seed_are_given(world, tmp_path, monkeypatch, pfl):
    monkeypatch.chdir(tmp_path)
    settings = {"model": "logistic", "rounds": 1, "threads": 1}
    compare(
        world / "partition", tmp_path / "c", methods=["fedavg", "ditto"], seeds=[0, 1], references=False, **settings
    )
    refused = pfl("federation", "create", "c", "--method", "ditto", "-o", "fed")
    assert (refused.code, refused.out) == (2, "")
    assert "choose by --seed N" in refused.err
    assert pfl("federation", "create", "c", "--method", "ditto", "--seed", 1, "-o", "fed").code == 0
    request = open_one(tmp_path / "fed").manifest.request
    assert (request["method"], request["seed"]) == ("ditto", 1)
