"""Several methods and seeds among real sites end with the table that the simulation has."""

from __future__ import annotations

import csv
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from helpers import error_text
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.manifest import ManifestDict
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact
from pflcli.commands.compare import compare
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.core.errors import ComputationError, InputError, UnsuitedError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.reporter import Reporter
from pflcli.plugins.sites import client_records, opening, scores, several
from pflcli.plugins.sites import site as site_module
from pflcli.plugins.sites.columns.commands import agree_on_columns, summarize_columns
from pflcli.plugins.sites.federation import check_federation, create_federation, run_federation
from pflcli.plugins.sites.site import answer_message, check_site, serve_site
from pflcli.plugins.sites.transport import RECORDS, answer_file, find_last_question, folder_of, question_file

SITES = ("north", "south", "west")
METHODS = ("fedavg", "panm", "knn-per")
REFERENCES = ("constant", "local")
ONE = Execution(threads=1)
SETTINGS = {"model": "mlp", "rounds": 2, "participation": 0.7}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Tables of three sites, a comparison on them together, the federation of it, and the partition of each site."""
    at, draw = tmp_path_factory.mktemp("several"), np.random.default_rng(0)
    for place, name in enumerate(SITES):
        with (at / f"{name}.csv").open("w", newline="") as file:
            write = csv.writer(file)
            write.writerow(["age", "dose", "city", "outcome"])
            for i in range(20 + 15 * place):
                age, dose = draw.normal(50, 10), draw.normal(place)
                write.writerow(
                    [f"{age:.4f}", f"{dose:.4f}", "XY"[i % 2], "yes" if age + dose + draw.normal(0, 8) > 50 else "no"]
                )
    import_data([at / f"{name}.csv" for name in SITES], label="outcome", standardize=True, out=at / "data")
    partition(at / "data", at / "partition")
    compare(at / "partition", at / "pilot", methods=METHODS, seeds=[0, 1], apart=True,
            metrics="accuracy,auroc", execution=ONE, **SETTINGS)  # fmt: skip
    create_federation(at / "pilot", at / "fed", methods="all", metrics="accuracy,auroc", execution=ONE)
    for name in SITES:
        import_data(at / f"{name}.csv", like=at / "fed", out=at / f"data {name}")
        partition(at / f"data {name}", at / f"partition {name}", like=at / "fed", client=name)
    return at


def play(world, at, monkeypatch, fewest=0):
    """Run the server in ``at``, whose questions sites answer one after the other."""
    for name in SITES:
        check_site(world / f"partition {name}", world / "fed", at / f"site {name}", fewest=fewest)
    take_turns = several.take_turns

    def wait(inbox, hub):
        for site in inbox.missing:
            place = hub.exchange.find(hub.address(site, None)).parent
            number = find_last_question(place)
            out = answer_file(place, number)
            answer_message(at / f"site {site}", question_file(place, number), out=out, execution=ONE)
        inbox.look(is_last=True)
        return ()

    def finish(plays):
        ended = take_turns(plays)
        for site in SITES:
            place = folder_of(at / "exchange", [*SITES], site)
            for name in plays:
                run = folder_of(at / "exchange", [*SITES], site, name)
                answer_message(at / f"site {site}", run / "final.msg", out=place / RECORDS, execution=ONE)
        return ended

    monkeypatch.setattr("pflcli.plugins.sites.federation._wait", wait)
    monkeypatch.setattr(several, "take_turns", finish)
    return run_federation(world / "fed", at / "exchange", at / "real", execution=ONE)


@pytest.fixture(scope="module")
def played(world):
    with pytest.MonkeyPatch.context() as patch:
        return play(world, world, patch)


class Told(Reporter):
    """A reporter that keeps what is said."""

    def __init__(self, lines):
        self.lines = lines

    def say(self, text):
        self.lines.append(text)


def read_numbers(folder):
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {row["method"]: {key: value for key, value in row.items() if "seconds" not in key} for row in rows}


def test_sites_and_simulation_have_the_same_table(world, played):
    real, pilot = world / "real" / "comparison", world / "pilot" / "comparison"
    assert played["path"] == str(real)
    assert played["without_scores"] == []
    simulated = read_numbers(pilot)
    assert simulated.pop("pooled")["method"] == "pooled"
    assert read_numbers(real).keys() == {*METHODS, *REFERENCES}
    for method, numbers in simulated.items():
        assert read_numbers(real)[method] == numbers
    assert [*read_numbers(real)] == [*simulated]
    own, others = ((each / "clients.csv").read_text().splitlines() for each in (real, pilot))
    assert own == [line for line in others if not line.startswith("pooled,")]
    mine, other = ((each / "table.md").read_text().splitlines() for each in (real, pilot))
    beside = ("seconds", " s", "|", "reference")  # the simulation has one more of these
    assert {line for line in mine if not any(word in line for word in beside)} <= {*other}
    (title,) = {line for line in other if line.startswith(("No gain", "With ", "Take "))} or {""}
    assert title in mine


def test_no_sample_is_in_what_the_server_has(world, played):
    for name in ("fedavg", "knn-per"):
        with pytest.raises(InputError, match="they are at the sites"):
            predictions.read(open_one(world / "real" / "seed-0" / name), "test")
    assert (
        sum(path.stat().st_size for path in world.glob("exchange/*/records.json"))
        < 3 * len((*METHODS, *REFERENCES)) * 2 * 1300
    )
    digests = [
        client["scores"]["samples"]
        for each in (world / "real").glob("seed-*/*/records.json")
        for client in json.loads(each.read_text())["clients"]
    ]
    own = open_one(world / "site north" / "seed-0" / "fedavg" / "predictions")
    from pflcli.evaluation.records import digest_samples

    assert len({*digests}) == len(SITES)
    assert not {*digests} & {*digest_samples(predictions.read(own, "test")).tolist()}


def test_the_same_command_finds_the_table_up_to_date(world, played):
    before = (world / "real" / "comparison" / "manifest.json").read_bytes()
    again = run_federation(world / "fed", world / "exchange", world / "real", execution=ONE)
    assert again == played
    assert (world / "real" / "comparison" / "manifest.json").read_bytes() == before


def send_again(world, at, change, **options):
    """Let the server, whose runs are over, wait for scores again, after a ``change`` of what sites have sent."""
    shutil.copytree(world / "exchange", at / "exchange")
    shutil.copytree(
        world / "real",
        at / "real",
        ignore=lambda at, names: {"seed-0", "seed-1", "comparison"} if at.endswith("real") else (),
    )
    for number, site in enumerate(SITES):
        change(site, at / "exchange" / f"{number:03d}-{site}" / RECORDS)
    return run_federation(world / "fed", at / "exchange", at / "real", execution=ONE, **options)


def test_a_site_that_sends_no_scores_is_named_and_its_scores_may_follow(world, played, tmp_path):
    made = send_again(world, tmp_path, lambda site, path: site == "south" and path.unlink(), patience=0.2)
    assert made["without_scores"] == ["south"]
    text = (tmp_path / "real" / "comparison" / "table.md").read_text()
    assert "without scores, and not counted: south" in text
    with (tmp_path / "real" / "comparison" / "clients.csv").open() as file:
        counts = {row["name"]: int(row["n_test"]) for row in csv.DictReader(file)}
    assert counts["south"] == 0 < counts["north"]
    shutil.copy(world / "exchange" / "001-south" / RECORDS, tmp_path / "exchange" / "001-south" / RECORDS)
    later = run_federation(world / "fed", tmp_path / "exchange", tmp_path / "real", execution=ONE)
    assert later["without_scores"] == []
    assert read_numbers(tmp_path / "real" / "comparison") == read_numbers(world / "real" / "comparison")


def test_no_scores_at_all_are_an_error(world, played, tmp_path):
    with pytest.raises(ComputationError, match="no site has sent scores"):
        send_again(world, tmp_path, lambda site, path: path.unlink(), patience=0.1)


def test_few_test_samples_are_withheld(world, played, tmp_path):
    def withhold(site, path):
        opened, facts = site_module._reopen(world / f"site {site}")
        shutil.copy(site_module._write_records(world / f"site {site}", opened, {**facts, "fewest": 5}, [*opened]), path)

    send_again(world, tmp_path, withhold)
    text = (tmp_path / "real" / "comparison" / "table.md").read_text()
    assert "few test samples, whose scores they withhold" in text
    sent = json.loads((tmp_path / "exchange" / "000-north" / RECORDS).read_text())
    assert {client["scores"] for run in sent["runs"] for client in run["clients"]} == {None}


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("client",), "north", "another site or federation"),
        (("federation",), "0" * 64, "another site or federation"),
        (("runs", 0, "label"), "fedprox", "other runs"),
        (("runs", 0, "split"), "validation", "other clients or samples"),
        (("runs", 0, "clients", 0, "name"), "north", "other clients or samples"),
        (("runs", 0, "clients", 0, "n"), 10**6, "add up"),
        (("runs", 0, "clients", 0), {"name": "west", "n": 3, "scores": None}, "other numbers"),
        (("runs", 0, "clients", 0, "scores", "client"), {"auroc": 1.0}, "agreed on"),
        (("runs", 2, "clients", 0, "scores", "tuned"), {"x": 1.0}, "other things than most"),
        (("more",), 1, "more"),
        (("client",), "x" * 10**6, "no file of scores"),
    ],
)
def test_scores_that_do_not_fit_are_named_and_not_counted(world, played, tmp_path, monkeypatch, place, value, words):
    def change(site, path):
        if site == "west":
            found = json.loads(path.read_text())
            *way, last = place
            inner = found
            for key in way:
                inner = inner[key]
            inner[last] = value
            path.write_text(json.dumps(found))

    said = list[str]()
    monkeypatch.setattr("pflcli.plugins.sites.exchange.SETTLE_SECONDS", 0.01)
    monkeypatch.setattr("test_several.ONE", Execution(threads=1, reporter=Told(said)))
    made = send_again(world, tmp_path, change, patience=0.2)
    assert made["without_scores"] == ["west"]
    (line,) = [line for line in said if "Z WARNING: 'west'" in line]
    assert words in line


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("runs", 0, "clients", 0, "n"), 10**30, "less than or equal"),
        (("runs", 0, "clients", 0, "scores", "client", "accuracy"), -5.0, "accuracy is not that"),
        (("runs", 0, "clients", 0, "scores", "client", "accuracy"), None, "accuracy is not that"),
        (("runs", 0, "clients", 0, "scores", "client", "log_loss"), 1e300, "too large"),
        (("runs", 2, "clients", 0, "scores", "samples"), "x", "other samples"),
        (("runs", 2, "clients", 0, "scores"), None, "other samples"),
        (("runs", 2, "clients", 0, "scores", "pairs"), {}, "does not compare"),
        (("runs", 2, "clients", 0, "scores", "pairs", ""), [], "does not compare"),
        (("runs", 2, "clients", 0, "scores", "differs"), None, "does not compare"),
        (("runs", 2, "clients", 0, "scores", "discordant"), None, "does not compare"),
    ],
)
def test_scores_that_would_change_those_of_other_sites_are_refused(world, played, tmp_path, place, value, words):
    fed, path = open_one(world / "fed"), tmp_path / RECORDS
    found = json.loads((world / "exchange" / "002-west" / RECORDS).read_text())
    path.write_text(json.dumps(found))
    agreed, runs = scores.Agreed.read(fed), several.read_names(fed.manifest.request)
    assert scores._read(path, fed, agreed, runs, "west").client == "west"
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(found))
    with pytest.raises(InputError, match=words):
        scores._read(path, fed, agreed, runs, "west")


def test_a_site_that_rewrites_its_scores_all_the_time_does_not_delay_the_others(world, played, tmp_path, monkeypatch):
    signature = scores.exchanges.signature

    def changing(path):
        if "west" in str(path):
            path.write_text(f"{{}}{path.stat().st_size}")
        return signature(path)

    monkeypatch.setattr(scores.exchanges, "signature", changing)
    made = send_again(world, tmp_path, lambda *_: None, patience=0.3)
    assert made["without_scores"] == ["west"]


def test_a_federation_shows_its_runs(world):
    facts = check_federation(world / "fed")
    assert [*facts["runs"]][:2] == ["seed-0/fedavg", "seed-1/fedavg"]
    assert facts["runs"]["seed-0/knn-per"]["rounds_of"] == "fedavg"
    assert facts["scores"] == {"metric": ["accuracy", "auroc"], "positive": None, "baseline": "fedavg"}


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"methods": "fedavg,local", "baseline": "panm"}, UsageError, "baseline 'panm' is not among fedavg, local"),
        ({"methods": "fedavg,moon"}, UsageError, "no run of moon"),
        ({"methods": "fedavg", "seeds": "7"}, UsageError, "no run with seed 7"),
        ({"methods": "fedavg", "method": "panm"}, UsageError, "--method and --methods"),
        ({"methods": "fedavg", "rounds": 9}, UsageError, "--rounds has no effect"),
        ({"methods": "fedavg", "metrics": "rmse"}, UsageError, "rmse"),
        ({"seeds": "0"}, UsageError, "--seeds has no effect without --methods"),
        ({"metrics": "auroc"}, UsageError, "--metric has no effect without --methods"),
    ],
)
def test_what_cannot_be_compared_among_sites_is_refused(world, tmp_path, options, kind, words):
    with pytest.raises(kind) as error:
        create_federation(world / "pilot", tmp_path / "fed", execution=ONE, **options)
    assert words in error_text(error)


def test_a_named_method_that_cannot_run_among_sites_is_an_error(world, tmp_path):
    compare(world / "partition", tmp_path / "c", methods=["fedavg", "pooled"], execution=ONE, **SETTINGS)
    with pytest.raises(UnsuitedError, match="pooled"):
        create_federation(tmp_path / "c", tmp_path / "fed", methods="fedavg,pooled", execution=ONE)
    made = create_federation(tmp_path / "c", tmp_path / "fed", methods="all", execution=ONE)
    assert "seed-0/pooled" not in made.request["runs"]


def test_trials_are_chosen_by_validation_samples_before_any_test_score_is_sent(world, tmp_path, monkeypatch):
    agreed = tmp_path / "agreed.toml"
    for site in SITES:
        own = import_data(
            world / f"{site}.csv", tmp_path / f"own {site}", label="outcome", client="none", standardize=True
        )
        summarize_columns(own, tmp_path / f"{site}.json", client=site, sites=SITES)
    agree_on_columns([tmp_path / f"{site}.json" for site in SITES], agreed)
    fed = create_federation(agreed, tmp_path / "fed", methods="fedavg,local", tune=3, seeds=[0, 1],
                            options={"local": {"epochs": 2}}, execution=ONE, **SETTINGS).path  # fmt: skip
    folders, take_turns, played = {site: tmp_path / f"site {site}" for site in SITES}, several.take_turns, []
    for site in SITES:
        data = import_data(world / f"{site}.csv", tmp_path / f"data {site}", like=fed)
        check_site(partition(data, tmp_path / f"p {site}", like=fed, client=site), fed, folders[site], fewest=0)

    def wait(inbox, hub):
        for site in inbox.missing:
            place = hub.exchange.find(hub.address(site, None)).parent
            number = find_last_question(place)
            answer_message(folders[site], question_file(place, number), out=answer_file(place, number), execution=ONE)
        inbox.look(is_last=True)
        return ()

    def finish(plays):
        ended, is_first = take_turns(plays), not played
        played.append([*plays])
        for site in SITES:
            place = folder_of(tmp_path / "exchange", [*SITES], site)
            for name in plays:
                final = folder_of(tmp_path / "exchange", [*SITES], site, name) / "final.msg"
                answer_message(folders[site], final, execution=ONE)
                assert not (folders[site] / RECORDS).exists()
            file, chosen = (scores.VALIDATION, [*plays]) if is_first else (scores.FILE, None)
            if chosen is None:
                chosen = scores.read_choice(place / scores.CHOICE, open_one(fed))
            shutil.copy(
                site_module._write_records(folders[site], *site_module._reopen(folders[site]), chosen, file), place
            )
        return ended

    monkeypatch.setattr("pflcli.plugins.sites.federation._wait", wait)
    monkeypatch.setattr(several, "take_turns", finish)
    made = run_federation(fed, tmp_path / "exchange", tmp_path / "real", execution=ONE)
    first, later = played
    assert first == [f"seed-0/{method}@{number}" for method in ("fedavg", "local") for number in (1, 2, 3)]
    choice = json.loads((tmp_path / "real" / scores.CHOICE).read_text())["trials"]
    for method in ("fedavg", "local"):
        value = {}
        for number in (1, 2, 3):
            right, count = 0, 0
            for site in SITES:
                own = predictions.read(
                    open_one(folders[site] / f"seed-0/{method}@{number}" / "predictions"), "validation"
                )
                right, count = right + int((own.parts["p"].argmax(axis=1) == own.y).sum()), count + len(own.y)
            value[f"{method}@{number}"] = right / count
        assert choice[method] == max(value, key=value.get)
    assert later == [f"seed-1/{trial}" for trial in choice.values()]
    assert made["runs"] == 4
    assert {*read_numbers(tmp_path / "real" / "comparison")} == {"fedavg", "local"}
    text = (tmp_path / "real" / "comparison" / "table.md").read_text()
    assert "chosen among trials by accuracy on validation samples of the first seed" in text
    sent = json.loads(next(tmp_path.glob("exchange/000-*/records.json")).read_text())
    assert sorted((run["label"], run["seed"]) for run in sent["runs"]) == [
        (method, seed) for method in ("fedavg", "local") for seed in (0, 1)
    ]
    # Once it is made, a choice is not made again, whatever the scores are.
    monkeypatch.setattr(several, "take_turns", take_turns)
    for path in tmp_path.glob("exchange/*/validation.json"):
        path.unlink()
    assert run_federation(fed, tmp_path / "exchange", tmp_path / "real", execution=ONE) == made


@pytest.mark.parametrize(
    "trials",
    [{"fedavg": "fedavg@1"}, {"fedavg": "fedavg@1", "local": "local@9"}, {"fedavg": "local@1", "local": "fedavg@1"}],
)
def test_a_choice_of_other_trials_is_refused(trials):
    names = [
        several.RunName(f"seed-0/{method}@{number}", 0, method, f"{method}@{number}")
        for method in ("fedavg", "local")
        for number in (1, 2)
    ]
    assert several.list_chosen(names, {"fedavg": "fedavg@2", "local": "local@1"}) == [
        "seed-0/fedavg@2",
        "seed-0/local@1",
    ]
    with pytest.raises(InputError, match="the choice"):
        several.list_chosen(names, trials)


def change_request(world, out, change):
    """Return the federation of ``world`` with another request, as if changed code had made it."""
    source = open_one(world / "fed")
    request = json.loads(json.dumps(source.manifest.request))
    change(request)
    return Artifact(out, replace(source.manifest, request=ManifestDict.wrap(out, request)))


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("seed-0/../x", {}),
        ("seed-0/fedavg", {"label": "../../x"}),
        ("seed-0/fedavg", {"label": ["fedavg"]}),
        ("seed-00/fedavg", {}),
        ("seed-1/fedavg", {"seed": 0}),
    ],
)
def test_a_run_whose_name_leads_elsewhere_or_stands_twice_is_refused(world, tmp_path, name, run):
    def change(request):
        request["runs"][name] = {**request["runs"]["seed-0/fedavg"], **run}

    with pytest.raises(InputError, match="which no pfl has made"):
        opening.read_runs(change_request(world, tmp_path, change))


def test_a_baseline_that_is_no_run_is_refused_before_a_round(world, tmp_path, monkeypatch):
    hostile = change_request(world, world / "fed", lambda request: request["scores"].update(baseline="moon"))
    monkeypatch.setattr(site_module, "open_one", lambda path, *kinds: hostile if kinds == ("federation",) else path)
    monkeypatch.setattr("pflcli.plugins.sites.federation.open_one", lambda *_: hostile)
    own = open_one(world / "partition west")
    with pytest.raises(InputError, match="no run of its baseline 'moon'"):
        check_site(own, world / "fed", tmp_path / "site", execution=ONE)
    with pytest.raises(InputError, match="no run of its baseline 'moon'"):
        run_federation(world / "fed", tmp_path / "exchange", tmp_path / "server", execution=ONE)
    assert not [*tmp_path.iterdir()]


def test_a_site_scores_test_samples_for_one_choice_only(tmp_path):
    runs = {f"seed-0/local@{number}": {"label": "local"} for number in (1, 2)}
    manifest = SimpleNamespace(request={"runs": runs}, fingerprint="f")
    federation, path = SimpleNamespace(manifest=manifest), tmp_path / "exchange.json"

    def send(trial):
        path.write_text(json.dumps({"federation": "f", "trials": {"local": trial}, "validation": {}}))
        return scores.keep_choice(path, tmp_path, federation)

    assert send("local@1") == send("local@1") == ["seed-0/local@1"]
    with pytest.raises(InputError, match="is not the choice that this site"):
        send("local@2")
    assert send("local@1") == ["seed-0/local@1"]


def test_no_choice_is_sealed_if_all_sites_withhold_their_scores(tmp_path, monkeypatch):
    runs = {f"seed-0/local@{number}": {"label": "local"} for number in (1, 2)}
    federation = SimpleNamespace(manifest=SimpleNamespace(request={"runs": runs}, fingerprint="f"))
    withheld = client_records.ClientRecord("north", 3, None)
    told = [client_records.RunRecords(1, f"local@{number}", 0, "validation", (withheld,)) for number in (1, 2)]
    received = {"north": client_records.SiteRecords(1, "f", "north", tuple(told))}
    monkeypatch.setattr(scores, "_collect", lambda *_: received)
    monkeypatch.setattr(scores.Agreed, "read", lambda *_: SimpleNamespace(metrics=("accuracy",)))
    asked = SimpleNamespace(out=tmp_path / "real", exchange=tmp_path / "exchange", execution=ONE)
    with pytest.raises(ComputationError, match="all sites withhold"):
        scores.choose(federation, asked, ["north"])
    assert not [*tmp_path.iterdir()]


def test_a_long_seed_names_a_run(world, tmp_path):
    seed = 2**63 - 1

    def change(request):
        request["runs"] = {f"seed-{seed}/fedavg": {**request["runs"]["seed-0/fedavg"], "seed": seed}}

    assert [*opening.read_runs(change_request(world, tmp_path, change))] == [f"seed-{seed}/fedavg"]
    record = client_records.RunRecords(1, "fedavg", seed, "test", ())
    client_records.write(tmp_path / RECORDS, record)
    assert client_records.read(tmp_path / RECORDS) == record


def test_a_site_waits_for_the_choice_as_long_as_for_a_question(tmp_path):
    with pytest.raises(ComputationError, match=r"in 0\.01 s"):
        several.take_turns({"": site_module._await(tmp_path / scores.CHOICE, site_module.Patience(0.01, ["pfl"]))})


def test_seeds_are_added_until_the_table_is_decided_as_in_a_simulation(world, tmp_path):
    agreed, header = tmp_path / "agreed.toml", "hospital,age,dose,city,outcome"
    for site in SITES:
        own = import_data(
            world / f"{site}.csv", tmp_path / f"own {site}", label="outcome", client="none", standardize=True
        )
        summarize_columns(own, tmp_path / f"{site}.json", client=site, sites=SITES)
    agree_on_columns([tmp_path / f"{site}.json" for site in SITES], agreed)
    asked = {"methods": "fedavg,local", "until_decided": 4, **SETTINGS}
    fed = create_federation(agreed, tmp_path / "fed", **asked, execution=ONE).path
    assert open_one(fed).manifest.request["scores"]["looks"] == [3, 4]
    for site in SITES:
        data = import_data(world / f"{site}.csv", tmp_path / f"data {site}", like=fed)
        own = partition(data, tmp_path / f"p {site}", like=fed, client=site)
        check_site(own, fed, tmp_path / f"site {site}", fewest=0)
    with ThreadPoolExecutor() as pool:
        sites = [
            pool.submit(serve_site, tmp_path / f"site {site}", tmp_path / "exchange", execution=ONE) for site in SITES
        ]
        made = run_federation(fed, tmp_path / "exchange", tmp_path / "real", execution=ONE)
        assert {site.result().kind for site in sites} == {"predictions"}
    rows = [[site, *line.split(",")] for site in SITES for line in (world / f"{site}.csv").read_text().split()[1:]]
    (tmp_path / "pooled.csv").write_text("\n".join([header, *(",".join(row) for row in rows)]))
    pooled = import_data(tmp_path / "pooled.csv", tmp_path / "pooled", like=agreed, client="hospital")
    compare(
        partition(pooled, tmp_path / "partition"),
        tmp_path / "simulated",
        references=False,
        apart=True,
        execution=ONE,
        **asked,
    )
    real, simulated = (tmp_path / each / "comparison" for each in ("real", "simulated"))
    assert read_numbers(real) == read_numbers(simulated)
    facts = [json.loads((each / "metrics.json").read_text()) for each in (real, simulated)]
    for key in ("looks", "level"):
        assert facts[0].get(key) == facts[1].get(key)
    assert facts[0]["looks"] == {"first": 3, "most": 4}
    assert facts[0]["conclusion"]["sentence"] == facts[1]["conclusion"]["sentence"]
    looks = sorted(path.name for path in tmp_path.glob("exchange/000-north/look-*.json"))
    assert looks == [f"look-{count}.json" for count in range(3, made["runs"] // 2 + 1)]
    assert json.loads((tmp_path / "exchange" / "000-north" / looks[-1]).read_text())["is_last"] is True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"until_decided": 3}, "leaves no seed to add: there are 3"),
        ({"until_decided": 2, "seeds": "5,6"}, "leaves no seed to add: there are 2"),
        ({"until_decided": 1001}, "is above the maximum of 1000"),
    ],
)
def test_seeds_that_cannot_be_added_are_refused(options, words):
    asked = SimpleNamespace(**{"seed": None, "seeds": None, **options})
    if asked.seeds:
        asked.seeds = [int(seed) for seed in asked.seeds.split(",")]
    with pytest.raises(UsageError, match=words):
        several._first_seeds(asked)


def test_added_seeds_follow_the_largest_one():
    asked = SimpleNamespace(seed=None, seeds=[5, 3], until_decided=4)
    assert several._choose_seeds(asked) == [3, 5, 6, 7]
    with pytest.raises(UsageError, match="not different numbers"):
        several._choose_seeds(SimpleNamespace(seed=None, seeds=[3, 3], until_decided=4))
