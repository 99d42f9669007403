"""Four hospitals agree on columns, and run a method without a run before: with the bytes of the simulation."""

from __future__ import annotations

import numpy as np
import pytest
from test_columns import OPTIONS, SITES, read_hospital, write_table

import pflcli
from helpers import error_text
from pflcli import import_data
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.manifest import read as read_manifest
from pflcli.artifacts.open_by_path import open_one
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.data.datasets import schools
from pflcli.plugins.sites.columns.commands import agree_on_columns, summarize_columns
from pflcli.plugins.sites.federation import create_federation, run_federation
from pflcli.plugins.sites.site import answer_message, check_site
from pflcli.plugins.sites.transport import answer_file, find_last_question, folder_of, question_file

PARTS = ("train", "train", "validation", "test")
SETTINGS = {"model": "mlp", "rounds": 3, "participation": 0.7, "lr": 0.05}


def agree(at, read=read_hospital, **changes):
    """Write the table of each site, with another order of columns, and the table that they agree on."""
    for place, site in enumerate(SITES):
        rows = [{**row, "part": PARTS[n % len(PARTS)]} for n, row in enumerate(read(site))]
        order = list(np.random.default_rng(place).permutation([name for name in rows[0] if name != "part"]))
        order += ["part"] * ("split_column" in changes)
        write_table(at / f"{site}.csv", rows, order)
        own = import_data(at / f"{site}.csv", at / f"own {site}", **{**OPTIONS, **changes})
        summarize_columns(own, at / f"{site}.json", client=site, sites=SITES, seed=3)
    agree_on_columns([at / f"{site}.json" for site in SITES], at / "agreed.toml")
    return at / "agreed.toml"


def simulate(at, agreed, method, read=read_hospital, **import_options):
    """Run the method on the tables of all sites together, imported by the agreement."""
    rows = []
    for site in SITES:
        rows += [{"hospital": site, **row, "part": PARTS[n % len(PARTS)]} for n, row in enumerate(read(site))]
    order = [name for name in rows[0] if name != "part" or import_options]
    pooled = write_table(at / "pooled.csv", rows, order)
    data = import_data(pooled, at / "pooled", like=agreed, client="hospital", **import_options)
    clients = pflcli.partition(data, at / "clients", seed=3)
    return pflcli.personalize(method, clients, at / "simulation", apart=True, threads=1, **SETTINGS)


def join(at, fed, site, **import_options):
    """Import a hospital's table, and make its partition and the folder of its site."""
    like = fed if site in SITES[:2] else at / "agreed.toml"  # which say the same
    data = import_data(at / f"{site}.csv", at / f"data {site}", like=like, **import_options)
    own = pflcli.partition(data, at / f"partition {site}", like=fed, client=site)
    return check_site(own, fed, at / f"site {site}")


def play(at, fed, monkeypatch):
    """Run the server, whose questions the sites answer one after the other, and let the sites predict."""
    folders = {site: folder_of(at / "exchange", SITES, site) for site in SITES}

    def answer(inbox, *_):
        for site in inbox.missing:
            number = find_last_question(folders[site])
            asked, answered = question_file(folders[site], number), answer_file(folders[site], number)
            answer_message(at / f"site {site}", asked, out=answered, threads=1)
        inbox.look(is_last=True)
        return ()

    monkeypatch.setattr("pflcli.plugins.sites.federation._wait", answer)
    result = run_federation(fed, at / "exchange", at / "server", threads=1)
    for site, folder in folders.items():
        answer_message(at / f"site {site}", folder / "final.msg", threads=1)
    return result


@pytest.fixture(scope="module")
def agreed(tmp_path_factory):
    """The agreement of the four hospitals."""
    return agree(tmp_path_factory.mktemp("agreement"))


def read_school(site):
    """The students of forty schools, with their score as a quantity and, in points of ten, as a count."""
    samples = schools.load(None)
    owner = np.unique(samples.owner, return_inverse=True)[1]
    rows = np.flatnonzero(owner % 16 == SITES.index(site))
    names = ("ses", "minority", "female", "size")
    return [
        {
            **{name: repr(float(value)) for name, value in zip(names, samples.x[row], strict=False)},
            "score": repr(float(samples.y[row])),
            "tens": str(max(round(samples.y[row] / 10), 0)),
        }
        for row in rows
    ]


QUANTITY = {"label": "score", "task": "quantity:huber", "unit": "points", "leave_out": "tens"}
COUNT = {"label": "tens", "task": "count", "leave_out": "score"}


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedavg", {}),
        ("ditto", {"standardize": "client"}),
        ("fedavg", {"missing": "drop", "split_column": "part"}),
        ("ditto", {"read": read_school, **QUANTITY}),
        ("fedavg", {"read": read_school, **COUNT}),
    ],
    ids=["fedavg", "ditto with scales of each site", "fedavg on given splits", "a quantity", "a count"],
)
def test_sites_that_agreed_have_the_bytes_of_the_simulation_of_all_their_tables(method, changes, tmp_path, monkeypatch):
    table, given = agree(tmp_path, **changes), {key: changes[key] for key in ("split_column",) if key in changes}
    fed = create_federation(table, tmp_path / "fed", method=method, **SETTINGS).path
    for site in SITES:
        join(tmp_path, fed, site, **given)
    assert play(tmp_path, fed, monkeypatch)["rounds"] == 3
    results = [predictions.read(open_one(tmp_path / f"site {site}" / "predictions"), "test") for site in SITES]
    simulation = simulate(tmp_path, table, method, changes.get("read", read_hospital), **given)
    simulated = predictions.read(open_one(simulation.path), "test")
    for client, own in enumerate(results):
        rows = slice(*simulated.offsets[client : client + 2])
        assert own.parts["p"].tobytes() == simulated.parts["p"][rows].tobytes()
        assert own.y.tobytes() == simulated.y[rows].tobytes()
        assert len(own.y)
    # The federation is the one that this run makes, but for the options of the import, and the title of the table.
    ours, runs = open_one(fed), open_one(create_federation(simulation, tmp_path / "other").path)
    request, other = dict(ours.manifest.request), dict(runs.manifest.request)
    assert request.pop("agreement") == other["import"]["like"]
    for key in ("import", "codebook"):
        del request[key], other[key]
    assert request == other
    assert (ours.manifest.code, ours.manifest.summary) == (runs.manifest.code, runs.manifest.summary)
    scales = () if "client" in changes.values() else ("mean", "sd")  # each site knows its own
    codebook.require_same(ours, runs, "classes", "features", "median", "clients", "columns", *scales)


def test_a_site_whose_number_of_training_samples_differs_is_refused(agreed, tmp_path):
    fed = create_federation(agreed, tmp_path / "fed", method="fedavg", **SETTINGS).path
    rows = read_hospital("hungary")
    for name, kept in (("hungary", rows[:-5]), ("cleveland", rows)):
        own = import_data(write_table(tmp_path / f"{name}.csv", kept), tmp_path / name, like=agreed)
        part = pflcli.partition(own, tmp_path / f"partition {name}", like=fed, client=name)
        with pytest.raises(InputError, match=rf"\d+ training samples of client '{name}', and sites agreed on \d+"):
            check_site(part, fed, tmp_path / "site")
        assert not (tmp_path / "site").exists()
    with pytest.raises(UsageError, match="has no client 'hungry'") as error:
        pflcli.partition(own, tmp_path / "none", like=fed, client="hungry")
    assert "did you mean 'hungary'" in error_text(error)


def test_a_method_on_a_store_gets_the_backbone_and_a_store_with_all_defaults(agreed, tmp_path):
    made = create_federation(agreed, tmp_path / "fed", method="knn-per", options={"k": 3}, **SETTINGS)
    assert made.request["method"] == "fedavg"
    assert made.request["settings"]["rounds"] == SETTINGS["rounds"]
    assert made.request["then"]["method"] == "knn-per"
    assert made.request["then"]["options"]["k"] == 3
    assert made.request["then"]["datastore"] == {}
    assert {"methods/fedavg", "methods/knn-per"} <= read_manifest(tmp_path / "fed").code.keys()


WRONG = {
    "no method": ({}, UsageError, ["does not say which method", "--method fedavg"]),
    "an unknown method": ({"method": "fedavgg"}, UsageError, ["did you mean 'fedavg'"]),
    "an option of another method": ({"method": "fedavg", "options": {"lam": 1}}, UsageError, ["lam"]),
    "a method that pools samples": ({"method": "pooled"}, UnsuitedError, ["cannot run among real sites"]),
    "a network for images": ({"method": "fedavg", "model": "cnn"}, UsageError, ["cnn takes images"]),
    "a network without a body": ({"method": "fedper", "model": "logistic"}, UnsuitedError, ["is all head"]),
    "weights of a file": ({"method": "fedavg", "adapter": "lora:2"}, UnsuitedError, ["--adapter", "leave it out"]),
    "noise that sites know": (
        {"method": "fedavg", "dp_noise": 1.0, "dp_delta": 1e-3, "dp_seed": 1},
        UnsuitedError,
        ["--dp-seed", "leave it out"],
    ),
    "noise that does not cover the method": (
        {"method": "fedproto", "dp_noise": 1.0, "dp_delta": 1e-3},
        UnsuitedError,
        ["differential privacy does not cover fedproto"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_sites_cannot_run_is_refused_by_name(name, agreed, tmp_path):
    asked, error_type, words = WRONG[name]
    with pytest.raises(error_type) as error:
        create_federation(agreed, tmp_path / "fed", **asked)
    assert all(word in error_text(error) for word in words), error_text(error)
    assert not (tmp_path / "fed").exists()


def test_a_table_that_sites_have_not_agreed_on_is_refused(tmp_path):
    table = tmp_path / "table.toml"
    table.write_text('[columns.age]\n[columns.ill]\nkind = "target"\n')
    with pytest.raises(InputError, match="has no sites yet") as error:
        create_federation(table, tmp_path / "fed", method="fedavg")
    assert f"pfl federation columns SUMMARY... --like {table}" in error_text(error)


def test_create_by_the_command_line(agreed, tmp_path, monkeypatch, pfl):
    monkeypatch.chdir(tmp_path)
    line = ("federation", "create", agreed, "--method", "ditto", "--set", "lam=0.5", "--rounds", 2)
    made = pfl(*line, "--momentum", 0.5, "--round-metric", "log_loss", "-o", "fed")
    assert (made.code, made.out) == (0, "fed\n")
    assert "--round-metric log_loss has no effect" in made.err
    request = open_one(tmp_path / "fed").manifest.request
    assert (request["method"], request["options"]["lam"], request["seed"]) == ("ditto", 0.5, 3)
    assert [request["settings"][key] for key in ("rounds", "momentum", "model", "apart")] == [2, 0.5, "mlp", True]
    assert pfl("federation", "check", "fed").code == 0
    assert pfl(*line, "--momentum", 0.5, "--seed", 4, "-o", "other").code == 0
    assert open_one(tmp_path / "other").manifest.request["seed"] == 4
    changed = pfl(*line, "-o", "fed")
    assert (changed.code, "settings.momentum: 0.5 -> 0.0" in changed.err) == (4, True)
    for words, message in {
        ("create", agreed, "fed"): "unexpected extra argument",
        ("create", "--method", "fedavg"): "missing argument 'SOURCE'",
        ("create", "gone.toml", "--method", "fedavg"): "gone.toml does not exist",
    }.items():
        refused = pfl("federation", *words, "-o", "new")
        assert (refused.code in (2, 3), refused.out, message in refused.err) == (True, "", True), refused.err
    assert not (tmp_path / "new").exists()
