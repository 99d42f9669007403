"""What a site agrees to: what a federation declares is derived again at the site, from the same code of pfl."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.open_by_path import open_one
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.core import registry, sources
from pflcli.core.errors import InputError, PflError
from pflcli.core.execution import Execution
from pflcli.core.registry import files
from pflcli.plugins.sites import messages, opening, site
from pflcli.plugins.sites.federation import check_federation, create_federation, run_federation
from pflcli.plugins.sites.site import answer_message, check_site

ONE = Execution(threads=1)
CLIENT = "switzerland"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A federation of the packaged hospitals, of FedSGD with a logistic model."""
    at = tmp_path_factory.mktemp("agreement")
    partition("heart-disease", at / "pilot")
    settings = {"model": "logistic", "rounds": 2, "participation": 1.0, "lr": 0.1}
    personalize("fedsgd", at / "pilot", at / "simulation", settings=settings, threads=1)
    create_federation(at / "simulation", at / "fed", execution=ONE)
    partition("heart-disease", at / "partition", like=at / "fed", client=CLIENT)
    return at


def forge(source, out, change):
    """Write the federation of a coordinator who changed its request and code, and computed all hashes again."""
    shutil.copytree(source, out)
    manifest = manifests.read(out)
    request, code = json.loads(json.dumps(manifest.request)), dict(manifest.code)
    change(request, code)
    forged = replace(manifest, request=request, code=code)
    forged = replace(forged, fingerprint=manifests._fingerprint(forged, forged.schema))
    (out / "manifest.json").write_text(forged.to_json())
    return out


def put(*keys, value):
    def change(request, code):
        for key in keys[:-1]:
            request = request[key]
        request[keys[-1]] = value

    return change


_UPLOAD = ("exchange", "round", 0, "channels", 0, "tensors")
_DOWNLOAD = ("exchange", "round", 0, "deliveries", 0)
FORGED = {
    "a smaller upload": put(*_UPLOAD, value=[["head.bias", "float32", [2]]]),
    "no upload": lambda request, code: request["exchange"]["round"][0]["channels"].clear(),
    "nothing": put("exchange", value={}),
    "one more phase": lambda request, code: request["exchange"].update(setup=request["exchange"]["round"]),
    "a larger download": put(*_DOWNLOAD, value=[["head.bias", "float32", [10**15]]]),
    "a free axis": put(*_DOWNLOAD, value=[["head.bias", "float32", [-(10**15)]]]),
    "a type that is none": put(*_DOWNLOAD, value=[["head.bias", "save", [1]]]),
    "a type that is a list": put(*_UPLOAD, value=[["head.bias", ["float32"], [1]]]),
    "a shape below 0": put(*_UPLOAD, value=[["head.bias", "float32", [1, -1]]]),
    "no code": lambda request, code: code.clear(),
    "no code of the network": lambda request, code: code.pop("models/logistic"),
    "code of another method": lambda request, code: request.update(method="scaffold", options={}),
    "another network": put("settings", "model", value="mlp"),
    "a module for the network": put("settings", "model", value="os:system"),
    "a module with arguments": put("settings", "model", value="subprocess:run(args='true')"),
    "a path for the method": put("method", value="../../evil"),
    "a path for an upload step": put("settings", "upload", value=["/tmp/evil.py"]),
    "an empty minibatch": put("settings", "batch_size", value=0),
    "no epoch": put("settings", "epochs", value=-1),
    "numbers of samples below 0": put("train", value=[-5, 1, 1, 1]),
    "huge numbers of samples": put("train", value=[10**18, 1, 1, 1]),
    "no settings": lambda request, code: request.pop("settings"),
    "no software": lambda request, code: request.pop("software"),
    "another pfl": put("software", "versions", "pfl", value="9.9"),
    "another code of pfl": put("software", "versions", "code", value="x"),
    "software that is a list": put("software", value=[]),
}


def join(fed, folder):
    partition("heart-disease", folder / "partition", like=fed, client=CLIENT)
    check_site(folder / "partition", fed, folder / "site")


@pytest.mark.parametrize("name", FORGED)
def test_what_a_coordinator_declares_is_not_believed(name, world, tmp_path):
    fed = forge(world / "fed", tmp_path / "fed", FORGED[name])
    with pytest.raises(PflError):
        check_federation(fed)
    with pytest.raises(PflError) as error:
        join(fed, tmp_path)
    assert error.value.exit_code in (2, 3)
    assert not (tmp_path / "site").exists()


def test_check_shows_what_is_sent_and_how_long_a_site_computes(world, tmp_path, pfl):
    ran = pfl("site", "check", world / "partition", world / "fed", "-o", tmp_path / "site")
    assert ran.code == 0
    for words in ("fedsgd", "logistic", "2 rounds", "head.weight  float32  2x13", "head.bias  float32  2", "112 bytes"):
        assert words in ran.err
    facts = check_site(world / "partition", world / "fed", tmp_path / "site")
    assert (facts["settings"]["rounds"], facts["settings"]["lr"]) == (2, 0.1)
    many = forge(world / "fed", tmp_path / "fed", put("settings", "rounds", value=10**6))
    partition("heart-disease", tmp_path / "partition", like=many, client=CLIENT)
    assert "1000000 rounds" in pfl("site", "check", tmp_path / "partition", many, "-o", tmp_path / "long").err


@pytest.fixture
def other_pfl(tmp_path, monkeypatch):
    """Return what changes a file of a copy of the package, which stands for another version of pfl."""
    copy = tmp_path / "pflcli"
    shutil.copytree(registry.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))

    def change(file):
        for module in (registry, files):
            monkeypatch.setattr(module, "ROOT", copy)
        (copy / file).write_text((copy / file).read_text() + "\n_OTHER = 1\n")

    return change


@pytest.mark.parametrize(
    "file", ["core/rng.py", "core/engine/engine.py", "core/simulation/loop.py", "data/datasets/writers.py"]
)
def test_another_code_of_shared_modules_is_refused_by_name(file, world, tmp_path, other_pfl):
    check_site(world / "partition", world / "fed", tmp_path / "site")
    other_pfl(file)
    part = ".".join(file.removesuffix(".py").split("/")[: 2 if file.startswith("core/") else 1])
    for use in (
        lambda: check_federation(world / "fed"),
        lambda: check_site(world / "partition", world / "fed", tmp_path / "another"),
        lambda: answer_message(tmp_path / "site", tmp_path / "message", execution=ONE),
        lambda: run_federation(world / "fed", tmp_path / "exchange", tmp_path / "server", execution=ONE),
    ):
        with pytest.raises(InputError, match=rf"other code of pfl .* \({part} differs\)") as error:
            use()
        assert "every place of a federation needs the same code" in error.value.fix[0]


def test_other_versions_of_packages_are_told(world, tmp_path, monkeypatch, pfl):
    own = sources.read_versions()
    monkeypatch.setattr(sources, "read_versions", lambda: {**own, "torch": "1.0"})
    ran = pfl("site", "check", world / "partition", world / "fed", "-o", tmp_path / "site")
    assert ran.code == 0
    assert f"WARNING: torch 1.0, not {own['torch']}" in ran.err


def write_table(path, columns, rows):
    lines = [",".join(columns), *(",".join(f"{value:g}" for value in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def samples(world):
    """The features of a client as a table: the names of columns, with the class, and rows."""
    names = json.loads((world / "fed" / "codebook.json").read_text())["features"]
    draw = np.random.default_rng(0)
    return [*names, "y"], np.column_stack([draw.normal(size=(40, len(names))).round(3), np.arange(40) % 2])


def own_partition(world, tmp_path, columns, rows, name):
    classes = json.loads((world / "fed" / "codebook.json").read_text())["classes"]
    path = write_table(tmp_path / f"{name}.csv", columns, rows)
    text = path.read_text().splitlines()
    words = [line.rpartition(",") for line in text[1:]]
    path.write_text("\n".join([text[0], *(f"{start},{classes[int(y)]}" for start, _, y in words)]) + "\n")
    data = import_data(path, like=world / "fed", client="none", label="y", out=tmp_path / f"data {name}").path
    return partition(data, tmp_path / f"partition {name}", like=world / "fed", client=CLIENT).path


def test_columns_of_a_packaged_federation_are_matched_by_name(world, tmp_path, samples):
    columns, rows = samples
    order = [*reversed(range(len(columns) - 1)), len(columns) - 1]
    first = own_partition(world, tmp_path, columns, rows, "right")
    other = own_partition(world, tmp_path, [columns[at] for at in order], rows[:, order], "permuted")
    assert (first / "samples.h5").read_bytes() == (other / "samples.h5").read_bytes()
    renamed = [f"c{at}" for at in range(len(columns) - 1)] + ["y"]
    with pytest.raises(InputError, match="has no column 'age'"):
        own_partition(world, tmp_path, renamed, rows, "renamed")


def test_data_that_were_imported_otherwise_are_refused(world, tmp_path, samples):
    columns, rows = samples
    order = [*reversed(range(len(columns) - 1)), len(columns) - 1]
    path = write_table(tmp_path / "table.csv", [columns[at] for at in order], rows[:, order])
    data = import_data(path, client="none", label="y", out=tmp_path / "data").path
    with pytest.raises(InputError, match="has other features than"):
        partition(data, tmp_path / "partition", like=world / "fed", client=CLIENT)


def test_one_answer_tells_class_counts_and_the_record_of_an_only_patient(world, tmp_path):
    """What docs/deployment.md says of FedSGD with a logistic model: the server asks with a model of zeros."""
    fed = open_one(world / "fed", "federation")
    terms = opening.read_terms(fed)
    server = opening.open_server(fed, terms, tmp_path / "server", ONE)
    question, book = server.ask()[CLIENT], json.loads((world / "fed" / "codebook.json").read_text())
    path = tmp_path / "question.msg"
    messages.write(path, question, {name: value.zero_() for name, value in server.tensors(question).items()})
    check_site(world / "partition", world / "fed", tmp_path / "site")
    stored = answer_message(tmp_path / "site", path, execution=ONE)
    message = server.check(stored, question, messages.hash_file(path))
    client, n = question.clients[0], message.head.channels[0].sent[0].weight
    bias, weight = (message.tensors(f"0/{client}/")[f"head.{name}"].double().numpy() for name in ("bias", "weight"))
    # The gradient of the loss of a sample is (p - 1) for its class and p for the other, times (x, 1); p is 1 / 2.
    counts = n * (0.5 + bias / 0.1)
    assert counts == pytest.approx([1, 27], abs=1e-3)
    scale = next(each for each in book["scales"] if each["client"] == CLIENT)
    record = (n * weight[0] / 0.1) * scale["sd"] + scale["mean"]  # the sum of all standardized samples is 0
    data = site._reopen(tmp_path / "site")[0][""].data
    rows = slice(*data.offsets[3 * client : 3 * client + 2])
    (own,) = np.asarray(data.x[rows])[np.asarray(data.y[rows]) == 0]
    assert record == pytest.approx(own * scale["sd"] + scale["mean"], abs=1e-4)
    assert record[book["features"].index("age")] == pytest.approx(56, abs=1e-4)


def test_a_site_is_shown_what_it_sends_before_and_after_the_rounds(world, tmp_path, pfl):
    settings = {"model": "mlp", "rounds": 1, "participation": 1.0}
    shown = {}
    for name in ("feddbe", "fedattn"):
        personalize(name, world / "pilot", tmp_path / name, settings=settings, threads=1)
        create_federation(tmp_path / name, tmp_path / f"fed {name}", execution=ONE)
        own = partition("heart-disease", tmp_path / f"own {name}", like=tmp_path / f"fed {name}", client=CLIENT)
        shown[name] = pfl("site", "check", own.path, tmp_path / f"fed {name}", "-o", tmp_path / f"site {name}").err
    representation = f"it sends {200 * 4} bytes of these"  # of an mlp, as float32
    assert f"before the first round, {representation}" in shown["feddbe"]
    assert "after the last round" not in shown["feddbe"]
    assert f"after the last round, {representation}" in shown["fedattn"]
    assert "before the first round" not in shown["fedattn"]
    assert all("4 attempts at most" in text for text in shown.values())
