"""Output streams, exit codes and error messages of the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import typer.main

from helpers import NAMES
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition
from pflcli.artifacts.reader import open_artifact
from pflcli.cli import app
from pflcli.cli.from_options import walk_commands
from pflcli.commands import show
from pflcli.commands.listing import listing
from pflcli.commands.personalize import personalize
from pflcli.core import registry
from pflcli.core.errors import UsageError

APP = dict(walk_commands(typer.main.get_command(app)))
TINY = ("--model", "mlp", "--rounds", "2", "--participation", "0.5")


def parse_strict_json(text):
    """Exactly one JSON value, without the NaN that Python alone understands."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def make_command_lines(at):
    """The command line that made each artifact of the chain."""
    return {
        "p": ("partition", "writers", "--clients", 6, "--out", at.p),
        "b": ("train-global", at.p, *TINY, "--out", at.b),
        "e": ("extract", at.b, "--out", at.e),
        "d": ("build-datastore", at.e, "--out", at.d),
        "knn": ("personalize", "knn-per", at.d, "--out", at.knn),
        "fedavg": ("personalize", "fedavg", at.d, "--out", at.fedavg),
        "st": ("stack", at.fedavg, at.knn, "--out", at.st),
        "ev": ("evaluate", at.fedavg, at.knn, "--out", at.ev),
        "au": ("audit", at.knn, "--out", at.au),
        "sw": ("sweep", at.e, "--out", at.sw),
        "ud": ("update-datastore", at.d, at.e, "--out", at.ud),
        "nc": ("new-client", at.knn, at.samples, "--client", "late", "--out", at.nc),
    }


STEPS = list(make_command_lines(SimpleNamespace(**dict.fromkeys((*NAMES, "samples"), ""))))


# Help, and what it costs


OTHERS = {
    *("export", "predict", "report", "track", "show", "list", "doctor", "new", "check"),
    *(name for name in APP if name.startswith(("federation ", "site ")) and name != "federation create"),
}
MAKERS = sorted({*APP} - OTHERS)


@pytest.mark.parametrize("name", MAKERS)
def test_every_command_that_makes_an_artifact_ends_with_the_same_options(name):
    options = [param.opts[0] for param in APP[name].params]
    assert options[-6:] == ["--config", "--force", "--dry-run", "--json", "--quiet", "--verbose"]
    assert "--out" in options


@pytest.mark.parametrize("name", APP)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_every_command_explains_all_options(pfl, name, flag):
    ran = pfl(*name.split(), flag)
    assert (ran.code, ran.err) == (0, "")
    doc = APP[name].help or ""
    assert len(doc.split(".")[0].split()) >= 3
    help_text = " ".join(ran.out.split())
    assert doc.split(".")[0] in help_text
    assert "default: (" not in help_text
    assert all("[" in extra for extra in re.findall("'pflcli.*?'", help_text)), "Rich takes [export] for markup"
    for param in APP[name].params:
        assert param.help, f"{name} {param.name} has no help"
        for opt in param.opts:
            assert opt in help_text or param.param_type_name == "argument", opt


def test_only_the_command_that_is_used_makes_its_parameters(capsys):
    group = typer.main.get_group(app)
    for words, made in ((["--help"], []), (["personalize", "--help"], ["personalize"])):
        group.main(words, prog_name="pfl", standalone_mode=False)
        assert "personalize" in capsys.readouterr().out
        assert [name for name, command in walk_commands(group) if "params" in vars(command)] == made


def test_help_of_pfl_lists_all_commands_in_order(pfl):
    ran = pfl("--help")
    assert (ran.code, ran.err) == (0, "")
    assert all(name.split()[0] in ran.out for name in APP)
    assert pfl("-h").out == ran.out
    shown = re.findall(r"^│ ([a-z][a-z-]+) ", ran.out, flags=re.M)
    first = ["import", "partition", "compare", "verify", "report", "show", "tune", "predict", "new-client", "export"]
    assert shown == list(dict.fromkeys(name.split()[0] for name in APP))
    assert shown[:10] == first
    assert ran.out.index("│ doctor ") < ran.out.index("│ --version ") < ran.out.index("│ --use ")
    assert pfl().code == 2
    assert pfl().err == ""


def test_version_option_prints_the_version(pfl):
    ran = pfl("--version")
    assert (ran.code, ran.out.split()[0], ran.err) == (0, "pfl", "")


LIGHT = """
import sys
from pflcli.__main__ import main
for line in (
    *("--help", "--version", "personalize -h"),
    *("list methods", "list", "list methods knn-per", "list datasets --json"),
):
    try:
        main(line.split())
    except SystemExit as end:
        assert end.code == 0, line
heavy = {"numpy", "torch", "torchvision", "faiss", "h5py", "vl_convert", "safetensors", "pandas", "pyarrow", "PIL"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert len(sys.modules) < 600, len(sys.modules)  # what takes time is importing
"""


def test_help_and_lists_import_neither_numpy_nor_torch():
    subprocess.run([sys.executable, "-c", LIGHT], check=True, stdout=subprocess.DEVNULL)


OBJECTS = """
import atexit
import gc
import sys

from pflcli.__main__ import run

atexit.register(lambda: print(gc.get_threshold()[0], len(gc.get_objects())))
sys.argv = ["pfl", "--version"]
run()
"""


def test_process_skips_garbage_collection_of_imports():
    """Python would do so while it imports, and again while it ends: 0.8 s with PyTorch."""
    output = subprocess.run([sys.executable, "-c", OBJECTS], check=True, capture_output=True, text=True).stdout
    threshold, objects_at_end = map(int, output.splitlines()[-1].split())
    assert threshold > 400_000
    assert objects_at_end < 1_000


# Streams


@pytest.mark.parametrize("step", STEPS)
def test_stdout_is_the_path_of_the_artifact(pfl, small, step):
    words = make_command_lines(small)[step]
    ran = pfl(*words)
    assert (ran.code, ran.out) == (0, f"{words[-1]}\n")
    assert "up to date" in ran.err


@pytest.mark.parametrize("step", STEPS)
def test_json_option_prints_one_object(pfl, small, step):
    words = make_command_lines(small)[step]
    ran = pfl(*words, "--json")
    facts = parse_strict_json(ran.out)
    manifest = open_artifact(words[-1]).manifest
    assert ran.code == 0
    assert facts == {
        "path": str(words[-1]),
        "kind": manifest.kind,
        "decision": "up to date",
        "fingerprint": manifest.fingerprint,
        "request": manifest.request,
        "summary": manifest.summary,
    }


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", [(), ("--json",), ("-v",), ("-q",)])
def test_progress_and_summary_go_to_stderr(pfl, small_copy, step, how):
    words = make_command_lines(small_copy)[step]
    shutil.rmtree(words[-1])
    ran = pfl(*words, *how)
    assert ran.code == 0
    if how == ("--json",):
        assert parse_strict_json(ran.out)["decision"] == "new"
    else:
        assert ran.out == f"{words[-1]}\n"
    if how == ("-q",):
        assert ran.err == ""
    elif how == ("-v",) or step not in ("knn", "fedavg"):
        assert ran.err


def test_json_has_null_for_undefined_values(pfl, tmp_path):
    pfl("partition", "writers", "--clients", 2, "--fractions", "0.8,0,0.2", "-o", tmp_path / "p")
    ran = pfl("train-global", tmp_path / "p", "-o", tmp_path / "b", "--model", "mlp", "--rounds", 1, "--json")
    assert parse_strict_json(ran.out)["summary"]["validation_accuracy"] is None


def test_process_has_the_right_streams_and_exit_codes(spawn, tmp_path):
    def ran(*words):
        process = spawn(*words, cwd=tmp_path)
        return (*process.communicate(), process.returncode)

    out, err, code = ran("partition", "writers", "--clients", 2, "-o", "p")
    assert (out, code) == ("p\n", 0)
    assert "2 clients" in err
    out, err, code = ran("partition", "writers", "--clients", 3, "-o", "p")
    assert (out, code) == ("", 4)
    assert "clients: 2 -> 3" in err
    assert ran("partition", "writers")[::2] == ("", 2)
    assert ran("show", "nowhere") == ("", "pfl: nowhere does not exist\n", 3)


BUFFERING = pytest.mark.parametrize(
    "env",
    [{**os.environ, "PYTHONUNBUFFERED": ""}, {**os.environ, "PYTHONUNBUFFERED": "1"}],
    ids=["buffered", "unbuffered"],
)


@BUFFERING
@pytest.mark.parametrize("line", ["list methods", "list --json", "--help"])
def test_closed_stdout_pipe_is_not_an_error(spawn, line, env):
    """``pfl list | head -1`` is no error."""
    read, write = os.pipe()
    os.close(read)
    process = spawn(*line.split(), stdout=write, env=env)
    os.close(write)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


def test_work_continues_when_stderr_is_closed(spawn, tmp_path):
    read, write = os.pipe()
    os.close(read)
    process = spawn("partition", "writers", "--clients", "4", "-o", tmp_path / "p", stderr=write)
    os.close(write)
    assert process.communicate()[0] == f"{tmp_path / 'p'}\n"
    assert process.returncode == 0
    assert (tmp_path / "p" / "manifest.json").is_file()


@BUFFERING
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_full_stdout_device_is_an_error(spawn, env):
    with Path("/dev/full").open("w") as full:
        process = spawn("list", "methods", stdout=full, env=env)
        assert process.communicate()[1] == "pfl: No space left on device\n"
    assert process.returncode == 3


@pytest.mark.parametrize("group", registry.GROUPS)
def test_list_is_tab_separated_when_piped(pfl, group):
    ran = pfl("list", group)
    heading, *rows = (line.split("\t") for line in ran.out.splitlines())
    assert (ran.code, ran.err) == (0, "")
    assert heading[0] == "name"
    assert [row[0] for row in rows] == registry.names(group)
    assert {len(row) for row in rows} == {len(heading)}
    entries = parse_strict_json(pfl("list", group, "--json").out)
    assert [[str(value) for value in entry.values()] for entry in entries] == rows
    assert [list(entry) for entry in entries] == [heading] * len(rows)


def test_list_without_arguments_lists_every_group(pfl):
    lines = pfl("list").out.splitlines()
    assert lines[0] == "kind\tname\tsummary"
    assert [line.split("\t")[:2] for line in lines[1:]] == [[g, n] for g in registry.GROUPS for n in registry.names(g)]


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group in registry.GROUPS for name in registry.names(group)]
)
def test_list_of_one_entry_shows_its_options(pfl, group, name):
    ran = pfl("list", group, name)
    card = parse_strict_json(pfl("list", group, name, "--json").out)
    assert ran.out.startswith(card["doc"])
    for option in card["options"]:
        assert re.fullmatch(r"[A-Z][a-z-]+ .*\.", option["meaning"]), "a sentence that begins with a verb"
        assert not re.search(r"\b(float|int|str|bool|None|MinLen|[A-Z]{2,})\b|\|", option["type"])
        assert option["default"] not in ("None", "True", "False", "()")
        assert "\t".join([option["option"], option["type"], option["default"], option["meaning"]]) in ran.out


def test_list_of_datasets_says_which_data_are_found(pfl, tmp_path):
    (tmp_path / "fashion_mnist.npz").touch()
    available = {
        entry["name"]: entry["found"]
        for entry in parse_strict_json(pfl("list", "datasets", "--json", "--root", tmp_path).out)
    }
    assert available["writers"] == available["heart-disease"] == "with pfl"
    assert available["fashion-mnist"] == "fashion_mnist.npz"
    for name, sources in {
        "cifar10": ["cifar-10-batches-py", "cifar10_12k.npz"],
        "v-mnist": ["mnist", "cifar10"],
    }.items():
        assert available[name].startswith("no")
        assert all(source in available[name] for source in ["--root", *sources])
    (tmp_path / "cifar10_12k.npz").touch()
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    available = {entry["name"]: entry["found"] for entry in listing("datasets", tmp_path)}
    assert available["v-mnist"] == "train-images-idx3-ubyte*, fashion_mnist.npz, cifar10_12k.npz"


def test_show_prints_kind_request_and_verified_lineage(pfl, small):
    facts = parse_strict_json(pfl("show", small.knn, "--json", "--lineage", "--verify").out)
    assert (facts["kind"], facts["verified"]) == ("predictions", 3)
    assert facts["inputs"][0]["inputs"][0]["kind"] == "embeddings"
    ran = pfl("show", small.knn, "-v")
    assert "kind: predictions\n" in ran.out
    assert "method: knn-per\n" in ran.out
    assert pfl("show", small.ev).out.splitlines()[0].startswith("method\t")


GOLDEN = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").rglob("manifest.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_show_is_short_and_verbose_gives_all(pfl, path):
    ran = pfl("show", path)
    assert (ran.code, [line for line in ran.out.splitlines() if len(line) > 300]) == (0, [])
    assert len(ran.out.splitlines()) <= 25
    assert not re.search(r"[0-9a-f]{64}", ran.out)
    manifest = json.loads((path / "manifest.json").read_text())
    in_full = pfl("show", path, "--verbose").out
    assert f"fingerprint: {manifest['fingerprint']}" in in_full
    assert all(file["sha256"] in in_full for file in manifest["files"].values())


def test_show_counts_long_lists_and_states_epsilon(small, pfl, monkeypatch):
    artifact = open_artifact(small.knn)
    more = {"left_out": {f"w{n}": 0.5 for n in range(60)}, "privacy": {"epsilon": 8.0, "delta": 1e-3, "unit": "client"}}
    manifest = replace(artifact.manifest, summary={**artifact.manifest.summary, **more})
    monkeypatch.setattr(show, "open_one", lambda path: replace(artifact, manifest=manifest))
    out = pfl("show", small.knn).out
    assert "left out: 60 (--verbose lists them)" in out
    assert "privacy\n  epsilon: 8.0\n  delta: 0.001\n" in out
    assert "unit" not in out


def test_show_names_the_worst_client(pfl, small):
    counts = np.diff(partition.read(open_artifact(small.p)).offsets).reshape(-1, 3).sum(1)
    names = codebook.read(open_artifact(small.p)).clients
    facts = dict(line.partition(": ")[::2] for line in pfl("show", small.p).out.splitlines())
    assert facts["smallest client"] == f"{names[counts.argmin()]}, {counts.min()} samples"
    clients = pd.read_csv(small.ev / "clients.csv").query("method == 'knn-per' and n_test > 0")
    facts = dict(line.partition(": ")[::2] for line in pfl("show", small.knn).out.splitlines())
    worst = clients.loc[clients["accuracy"].idxmin()]
    assert facts["worst client"].startswith(
        f"{worst['name'] if 'name' in worst else worst['client']}, {100 * worst['accuracy']:.1f} %"
    )
    assert facts["test accuracy"] == f"{100 * np.average(clients['accuracy'], weights=clients['n_test']):.1f} %"


def test_doctor_passes_all_checks_on_this_machine(pfl):
    ran = pfl("doctor", "--json")
    assert ran.code == 0
    assert all(check["ok"] and check["found"] for check in parse_strict_json(ran.out))


# Dry runs


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("state", ["there", "gone", "forced"])
def test_dry_run_changes_nothing(pfl, small_copy, tree, step, state):
    words = make_command_lines(small_copy)[step]
    if state == "gone":
        shutil.rmtree(words[-1])
    before = tree(small_copy.root)
    ran = pfl(*words, "-n", *(["--force"] if state == "forced" else []))
    assert (ran.code, ran.out) == (0, f"{words[-1]}\n")
    assert {"there": "up to date", "gone": "would make", "forced": "replace"}[state] in ran.err
    assert tree(small_copy.root) == before


def test_dry_run_is_stated_in_json(pfl, small, tmp_path):
    ran = pfl("extract", small.b, "-o", tmp_path / "e", "-n", "--json")
    assert parse_strict_json(ran.out)["decision"] == "dry run: new"
    assert list(tmp_path.iterdir()) == []


# Configuration files


@pytest.fixture
def dry_run_request(pfl, tmp_path):
    """What a partition would be, under a configuration file."""

    def run(text, *words):
        (tmp_path / "pfl.toml").write_text(text)
        ran = pfl("partition", *words, "--config", tmp_path / "pfl.toml", "-n", "--json", "-o", tmp_path / "p")
        assert ran.code == 0, ran.err
        return parse_strict_json(ran.out)["request"]

    return run


def test_typed_options_override_the_config_file(dry_run_request):
    text = """
    [partition]
    scheme = "dirichlet"
    clients = 4
    min-samples = 3
    seed = 7
    fractions = [0.5, 0.25, 0.25]
    set = { alpha = 2.0 }
    [train-global]
    rounds = 9
    """
    request = dry_run_request(text, "writers")
    assert request["scheme"] == "dirichlet"
    assert (request["clients"], request["min_samples"], request["seed"]) == (4, 3, 7)
    assert request["fractions"] == [0.5, 0.25, 0.25]
    assert request["options"] == {"alpha": 2.0}
    request = dry_run_request(
        text, "writers", "--clients", 5, "--set", "alpha=0.7", "--fractions", "0.6,0.2,0.2", "--seed", 0
    )
    assert (request["clients"], request["min_samples"], request["seed"]) == (5, 3, 0)
    assert request["fractions"] == [0.6, 0.2, 0.2]
    assert request["options"] == {"alpha": 0.7}


def test_typed_set_options_are_merged_with_the_config_file(dry_run_request):
    text = '[partition]\nscheme = "clusters"\nclients = 8\nset = { groups = 2, kind = "labels" }\n'
    assert dry_run_request(text, "writers")["options"] == {"groups": 2, "kind": "labels", "alpha": None}
    options = dry_run_request(text, "writers", "--set", "groups=4")["options"]
    assert options == {"groups": 4, "kind": "labels", "alpha": None}


def test_config_file_may_have_a_table_for_every_command(dry_run_request):
    text = "".join(f"[{name.replace(' ', '.')}]\n" for name in APP)
    assert dry_run_request(f"{text}[train-global.x]\nrounds = 9\n", "writers")["clients"] is None


def test_config_file_can_name_the_dataset(dry_run_request):
    assert dry_run_request('[partition]\ndataset = "writers"\n')["dataset"] == "writers"


def test_config_keys_are_spelled_like_options(pfl, small, tmp_path):
    (tmp_path / "pfl.toml").write_text("[extract]\njson = true\ndry-run = true\nquiet = true\n")
    ran = pfl("extract", small.b, "-o", tmp_path / "e", "--config", tmp_path / "pfl.toml")
    assert parse_strict_json(ran.out)["decision"] == "dry run: new"
    assert ran.err == ""


def test_train_global_reads_a_config_file(pfl, small, tmp_path):
    (tmp_path / "pfl.toml").write_text("[train-global]\nrounds = 3\nlr = 0.5\nmilestones = [1, 2]\n")
    ran = pfl("train-global", small.p, "-n", "--json", "--lr", "0.2", "--config", tmp_path / "pfl.toml", "-o", "b")
    settings = parse_strict_json(ran.out)["request"]["settings"]
    assert (settings["rounds"], settings["lr"], settings["milestones"]) == (3, 0.2, [1, 2])


@pytest.mark.parametrize(
    ("in_file", "typed", "expected"),
    [
        ("epochs = 3", ("--steps", 7), {"steps": 7, "epochs": 1}),
        ("steps = 7", ("--epochs", 3), {"steps": 0, "epochs": 3}),
        ("steps = 7", ("--epochs", 1), {"steps": 0, "epochs": 1}),
        ("epochs = 3", ("--steps", 0), {"steps": 0, "epochs": 3}),
    ],
)
def test_typed_steps_or_epochs_override_the_other_in_a_file(pfl, small, tmp_path, in_file, typed, expected):
    (tmp_path / "pfl.toml").write_text(f"[train-global]\n{in_file}\n")
    line = ("train-global", small.p, "-n", "--json", *typed, "--config", tmp_path / "pfl.toml", "-o", tmp_path / "b")
    settings = parse_strict_json(pfl(*line).out)["request"]["settings"]
    assert {"steps": settings.get("steps", 0), "epochs": settings["epochs"]} == expected


def test_several_config_files_are_merged_and_the_last_one_wins(pfl, small, tmp_path):
    """Nested tables are merged too; steps replace the epochs of an earlier file; what is typed wins over all."""
    (tmp_path / "1.toml").write_text("[compare]\nlr = 0.5\nepochs = 3\nset = { knn-per = { k = 3, weight = 0.4 } }\n")
    (tmp_path / "2.toml").write_text(
        "[compare]\nlr = 0.2\nsteps = 7\nset = { knn-per = { k = 5 }, fedavg-plus = { epochs = 2 } }\n"
    )
    files = ("--config", tmp_path / "1.toml", "--config", tmp_path / "2.toml")
    line = (
        "compare",
        small.p,
        "-o",
        tmp_path / "c",
        "-n",
        "--json",
        "-q",
        "--methods",
        "knn-per,fedavg-plus",
        "--model",
        "mlp",
    )
    ran = pfl(*line, *files, "--baseline", "fedavg-plus", "--set", "fedavg-plus.lr=0.3")
    assert ran.code == 0, ran.err
    asked = parse_strict_json(ran.out)["request"]
    assert (asked["settings"]["lr"], asked["settings"]["epochs"], asked["settings"]["steps"]) == (0.2, 1, 7)
    options = {name: facts["options"] for name, facts in asked["methods"].items()}
    assert (options["knn-per"]["k"], options["knn-per"]["weight"]) == (5, 0.4)
    assert (options["fedavg-plus"]["epochs"], options["fedavg-plus"]["lr"]) == (2, 0.3)


def test_config_file_lists_arguments_and_repeated_options(pfl, small, tmp_path):
    """A single text stands for a list of one; typed arguments replace the list."""
    config = tmp_path / "pfl.toml"
    config.write_text(f'[evaluate]\nsources = ["{small.fedavg}", "{small.knn}"]\n[train-global]\nupload = "int8"\n')
    for typed, count in (((), 2), ((small.knn,), 1)):
        ran = pfl("evaluate", *typed, "--baseline", "knn-per", "--config", config, "-o", tmp_path / f"ev{count}")
        assert ran.code == 0, ran.err
        assert len(open_artifact(tmp_path / f"ev{count}").manifest.inputs) == count
    ran = pfl("train-global", small.p, "-n", "--json", "--config", config, "-o", tmp_path / "b")
    assert parse_strict_json(ran.out)["request"]["settings"]["upload"] == ["int8"]


def test_config_file_with_steps_and_epochs_is_refused(pfl, small, tmp_path):
    (tmp_path / "pfl.toml").write_text("[train-global]\nepochs = 3\nsteps = 7\n")
    ran = pfl("train-global", small.p, "--config", tmp_path / "pfl.toml", "-o", tmp_path / "b")
    assert ran.code == 2
    assert "how long clients train" in ran.err


# What goes wrong


@pytest.fixture(scope="module")
def bad_inputs(small, tmp_path_factory):
    """All that can be wrong with an input, a folder each."""
    root = tmp_path_factory.mktemp("bad")
    for name, file in (("p", "samples.h5"), ("e", "embeddings.h5"), ("knn", "predictions.h5"), ("d", "stores.faiss")):
        shutil.copytree(getattr(small, name), root / f"cut-{name}")
        os.truncate(root / f"cut-{name}" / file, 1000)
    shutil.copytree(small.root, root / "cut")
    os.truncate(root / "cut" / "e" / "embeddings.h5", 5000)
    personalize("local", small.p, root / "local", settings={"model": "mlp", "rounds": 1, "refit": True})
    (root / "foreign").mkdir()
    (root / "foreign" / "notes.txt").write_text("mine")
    (root / "file").write_text("")
    x, y = np.zeros((8, 4), np.float32), np.arange(8)
    write_npz(root / "good", x, y, x, y)
    hole = x.copy()
    hole[3, 2] = np.nan
    write_npz(root / "nan", x, y, hole, y)
    write_npz(root / "inf", x + np.inf, y, x, y)
    write_npz(root / "label", x, y, x, y + 5)
    write_npz(root / "lengths", x, y[:5], x, y)
    write_npz(root / "shapes", x, y, x[:, :3], y)
    write_npz(root / "none", x[:0], y[:0], x[:0], y[:0])
    shutil.copytree(root / "good", root / "half")
    os.truncate(root / "half" / "fashion_mnist.npz", 300)
    (root / "text").mkdir()
    (root / "text" / "fashion_mnist.npz").write_text("no NPZ")
    (root / "missing").mkdir()
    np.savez(root / "missing" / "fashion_mnist.npz", x_train=x)
    (root / "no-test").mkdir()
    configs = {
        "key": "[partition]\nclinets = 4\n",
        "table": "[partitoin]\nclients = 4\n",
        "flat": "partition = 4\n",
        "set": "[partition]\nscheme = 'dirichlet'\nclients = 4\nset = { alhpa = 1 }\n",
        "self": "[partition]\nconfig = 'x'\n",
        "fraction": "[partition]\nclients = 4.5\n",
        "broken": "[partition\n",
    }
    for name, text in configs.items():
        (root / f"{name}.toml").write_text(text)
    return root


def write_npz(folder, x_train, y_train, x_test, y_test):
    folder.mkdir()
    np.savez(folder / "fashion_mnist.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


W = "partition writers -o {out}"
F = "partition fashion-mnist -o {out} --scheme iid --clients 2 --root {bad}"
G = "train-global {small}/p -o {out} --model mlp"
T = f"{G} --rounds 2"
K = "personalize knn-per {small}/d -o {out}"

# Names that are nearly right: what was typed, and what is meant.
NEARLY = {
    "command": ("partitoin writers -o {out}", "'partitoin'", "'partition'"),
    "dataset": ("partition witers -o {out}", "unknown dataset 'witers'", "did you mean 'writers'?"),
    "scheme": (f"{W} --scheme dirichelt", "unknown scheme 'dirichelt'", "did you mean 'dirichlet'?"),
    "method": ("personalize knnper {small}/d -o {out}", "unknown method 'knnper'", "did you mean 'knn-per'?"),
    "global method": (f"{T} --method fedvag", "unknown method 'fedvag'", "did you mean 'fedavg'?"),
    "model": ("train-global {small}/p -o {out} --model mlpp", "unknown model 'mlpp'", "did you mean 'mlp'?"),
    "option": (f"{W} --cliens 4", "unknown option '--cliens'", "did you mean '--clients'?"),
    "set": (f"{K} --set wieght=1", "unknown option 'wieght' for knn-per", "did you mean 'weight'?"),
    "set of a scheme": (
        f"{W} --scheme dirichlet --clients 4 --set alhpa=1",
        "unknown option 'alhpa' for scheme dirichlet",
        "did you mean 'alpha'?",
    ),
    "config key": (f"{W} --config {{bad}}/key.toml", "unknown key 'clinets' in [partition]", "did you mean 'clients'?"),
    "config table": (
        f"{W} --config {{bad}}/table.toml",
        "unknown table [partitoin]",
        "did you mean 'partition'?",
    ),
    "config set": (f"{W} --config {{bad}}/set.toml", "unknown option 'alhpa'", "did you mean 'alpha'?"),
    "split": ("evaluate {small}/knn -o {out} --split tset", "unknown --split 'tset'", "did you mean 'test'?"),
    "baseline": ("evaluate {small}/knn -o {out} --baseline knnper", "'knnper'", "did you mean 'knn-per'?"),
    "kind of list": ("list methosd", "unknown kind 'methosd'", "did you mean 'methods'?"),
    "name in a list": ("list schemes idd", "unknown scheme 'idd'", "did you mean 'iid'?"),
}

# A command line, its exit code, and words that its message must hold.
WRONG = {
    # 2: usage
    "an unknown dataset far from any": (
        "partition zzz -o {out}",
        2,
        "unknown dataset 'zzz', and there is no folder of this name",
        "choose from: air-quality, air-quality-pm25, cifar10",
    ),
    "an unknown option far from any": (f"{W} --zzz", 2, "unknown option '--zzz'", "pfl partition --help"),
    "no output": ("train-global {small}/p", 2, "missing option '--out'", "pfl train-global --help"),
    "no input": ("train-global -o {out}", 2, "missing argument 'PARTITION'"),
    "no predictions": ("evaluate -o {out}", 2, "missing argument 'PREDICTIONS"),
    "an option without its value": (f"{W} --clients", 2, "'--clients' requires an argument"),
    "half a round": (f"{G} --rounds 2.5", 2, "--rounds", "valid integer"),
    "rounds in words": (f"{G} --rounds ten", 2, "--rounds", "valid integer"),
    "rounds below zero": (f"{G} --rounds -1", 2, "rounds=-1", "greater than or equal to 0"),
    "steps and epochs": (f"{T} --epochs 1 --steps 5", 2, "how long clients train", "give one of them"),
    "nobody takes part": (f"{T} --participation 0", 2, "participation=0", "greater than 0"),
    "more than all take part": (f"{T} --participation 1.5", 2, "participation=1.5", "less than or equal to 1"),
    "an infinite rate": (f"{T} --lr inf", 2, "lr=inf", "finite"),
    "a rate that is no number": (f"{T} --lr nan", 2, "lr=nan", "finite"),
    "a seed below zero": (f"{T} --seed -1", 2, "--seed"),
    "threads below zero": (f"{T} --threads -1", 2, "--threads -1 is negative"),
    "more threads than a machine bears": (
        f"{T} --threads 99999999999",
        2,
        "--threads 99999999999 is above the maximum of 1024",
    ),
    "more processes than a machine bears": (f"{T} --jobs 1025", 2, "--jobs 1025 is above the maximum of 1024"),
    "a device without end": (
        f"{T} --device cuda:99999999999999999999",
        2,
        "unknown device 'cuda:9999",
        "--device auto",
    ),
    "a device that no machine has": (
        "compare {small}/p -o {out} --device cuda:9999 -n",
        2,
        "unknown device 'cuda:9999'",
    ),
    "an unknown engine in a dry run": (f"{T} --engine stack -n", 2, "unknown engine 'stack'", "did you mean 'stacked'"),
    "a device in a plan": ("compare {small}/p -o {out} --device tpu --plan make", 2, "unknown device 'tpu'"),
    "no number of GPUs": (
        f"{T} --executor ray --gpus-per-worker nan -n",
        2,
        "--gpus-per-worker nan",
        "--gpus-per-worker 1",
    ),
    "canaries without end": (
        "audit {small}/fedavg -o {out} --canaries 1000000000000000",
        2,
        "the maximum is 1,000,000",
    ),
    "an unknown device": (f"{T} --device tpu", 2, "unknown device 'tpu'", "--device auto"),
    "a device that is not there": (f"{T} --device cuda:99", 2, "--device cuda:99", "--device cpu"),
    "a method that makes no global model": (f"{T} --method local", 2, "makes no global model", "--method fedavg"),
    "a method that shares a part of its model": (
        f"{T} --method fedper",
        2,
        "fedper makes no global model",
        "--method fedavg",
    ),
    "a method that stands on embeddings": (
        f"{T} --method prior",
        2,
        "prior needs embeddings and makes no global model",
        "--method fedavg",
    ),
    "alpha of zero": (f"{W} --scheme dirichlet --clients 4 --set alpha=0", 2, "alpha=0", "greater than 0"),
    "alpha below zero": (f"{W} --scheme dirichlet --clients 4 --set alpha=-1", 2, "alpha=-1", "greater than 0"),
    "alpha in words": (f"{W} --scheme dirichlet --clients 4 --set alpha=low", 2, "alpha=low", "valid number"),
    "a set that sets nothing": (f"{K} --set k", 2, "'--set k' does not have the form key=value", "--set k=10"),
    "a set that is set twice": (f"{K} --set k=1 --set k=2", 2, "'k' is set twice: 1 and 2"),
    "an option given twice": (f"{G} --rounds 3 --rounds=3", 2, "--rounds is given twice", "give it once"),
    "an option given under both of its names": (f"{W} -o {{out}}", 2, "--out is given twice", "give it once"),
    "an option given three times": (f"{W} --seed 1 --seed 2 --seed 3", 2, "--seed is given 3 times", "give it once"),
    "a list in pieces": (
        "compare {small}/p -o {out} --methods fedavg --methods=ditto,local",
        2,
        "--methods is given twice",
        "--methods fedavg,ditto,local",
    ),
    "names of classes in pieces": (
        "import x.csv -o {out} --label-map 1=ill --label-map 2=ill?",
        2,
        "--label-map is given twice",
        "--label-map '1=ill,2=ill?'",
    ),
    "a list of three in pieces": (
        f"{W} --fractions 0.6,0.2,0.2 --fractions 0.8,0.1,0.1",
        2,
        "--fractions is given twice",
        "give it once",
    ),
    "no neighbours": (f"{K} --set k=0", 2, "k=0", "greater than or equal to 1"),
    "nothing to choose from": (f"{K} --set grid=", 2, "grid is empty"),
    "fractions that do not add up": (f"{W} --fractions 0.6,0.2,0.3", 2, "0.6,0.2,0.3", "add up to 1"),
    "fractions below zero": (f"{W} --fractions 1.2,-0.4,0.2", 2, "1.2,-0.4,0.2", "add up to 1"),
    "fractions that are no numbers": (f"{W} --fractions 0.6,nan,0.2", 2, "0.6,nan,0.2", "add up to 1"),
    "fractions in words": (f"{W} --fractions most,some,few", 2, "--fractions", "0.6,0.2,0.2"),
    "two fractions": (f"{W} --fractions 0.5,0.5", 2, "--fractions", "0.6,0.2,0.2"),
    "nothing to train on": (f"{W} --fractions 0,0.5,0.5", 2, "0,0.5,0.5"),
    "no clients": (f"{W} --clients 0", 2, "invalid value for '--clients': "),
    "more clients than owners": (f"{W} --clients 61", 2, "61 clients are more than the 60 owners", "--clients 60"),
    "more clients than samples": (
        "partition fashion-mnist -o {out} --scheme iid --root {bad}/good --clients 17",
        2,
        "17 clients are more than the 16 samples",
        "--clients 16",
    ),
    "a scheme without clients": (f"{W} --scheme iid", 2, "needs a number of clients", "--clients 100"),
    "more samples a client than there are": (
        f"{F}/good --min-samples 9",
        2,
        "need 18, there are 16",
        "--min-samples 8",
    ),
    "data without owners": (
        "partition fashion-mnist -o {out} --root {bad}/good --scheme natural",
        2,
        "no natural clients",
        "--scheme dirichlet",
    ),
    "data that is not included in pfl": ("partition fashion-mnist -o {out}", 2, "fashion_mnist.npz", "--root FOLDER"),
    "a folder without the data": (f"{F}/foreign", 2, "fashion_mnist.npz", "--root FOLDER"),
    "too much capacity": ("build-datastore {small}/e -o {out} --capacity 1.5", 2, "invalid value for '--capacity'"),
    "capacity that is no number": ("build-datastore {small}/e -o {out} --capacity nan", 2, "capacity"),
    "an index that FAISS does not know": (
        "build-datastore {small}/e -o {out} --index Wonder",
        2,
        "--index Wonder does not fit 200-d embeddings",
        "--index PQ16x4",
    ),
    "an option of an exact index": ("build-datastore {small}/e -o {out} --set nprobe=4", 2, "--set nprobe", "exact"),
    "prototypes without end": ("build-datastore {small}/e -o {out} --prototypes 1e400", 2, "--prototypes inf"),
    "absurdly many prototypes": ("build-datastore {small}/e -o {out} --prototypes 1e18", 2, "--prototypes 1e+18"),
    "an absurd index": (
        "build-datastore {small}/e -o {out} --index IVF1000000000,Flat",
        2,
        "--index IVF1000000000,Flat has 1000000000",
    ),
    "a picture without a name": ("show {small}/p --plot .", 2, "--plot FILE.png"),
    "no prototypes": ("build-datastore {small}/e -o {out} --prototypes 0", 2, "--prototypes 0", "--prototypes 30"),
    "a spread that leaves the range": (
        "build-datastore {small}/e -o {out} --capacity-spread 0.2",
        2,
        "--capacity 1 plus or minus --capacity-spread 0.2",
        "--capacity 0.5 --capacity-spread 0.2",
    ),
    "a capacity of the sweep": ("sweep {small}/e -o {out} --capacity 0,2", 2, "capacity=0,2 does not fit sweep"),
    "an axis of the sweep": (
        "sweep {small}/e -o {out} --plot sigm",
        2,
        "unknown --plot 'sigm'",
        "did you mean 'sigma'?",
    ),
    "a policy that is none": (
        "update-datastore {small}/d {small}/e -o {out} --policy fof",
        2,
        "unknown --policy 'fof'",
        "choose from: concatenate, fifo, fixed",
    ),
    "an update that ends before it begins": (
        "update-datastore {small}/d {small}/e -o {out} --from 0.5 --to 0.2",
        2,
        "--from 0.5 --to 0.2",
    ),
    "an update by a partition": (
        "update-datastore {small}/d {small}/p -o {out}",
        3,
        "p contains a partition, but this command needs embeddings",
    ),
    "a part that is none": ("partition writers -o {out} --part 3/2", 2, "--part 3/2 is not", "--part 1/2"),
    "a part that is no number": (
        "partition writers -o {out} --part half",
        2,
        "--part half",
        "--part 1/2",
    ),
    "embeddings of something else": (
        "extract {small}/b -o {out} --partition {small}/e",
        3,
        "e contains embeddings, but this command needs a partition",
    ),
    "a sweep of a datastore": (
        "sweep {small}/d -o {out}",
        3,
        "d contains a datastore, but this command needs embeddings",
    ),
    "predictions twice": ("evaluate {small}/knn {small}/knn -o {out}", 2, "given twice"),
    "a file that configures itself": (f"{W} --config {{bad}}/self.toml", 2, "unknown key 'config'"),
    "a file without tables": (f"{W} --config {{bad}}/flat.toml", 2, "'partition' is not a table", "[partition]"),
    "half a client in a file": (f"{W} --config {{bad}}/fraction.toml", 2, "--clients", "valid integer"),
    "an output without a name": (f"{W}/..", 2, "is not a valid name for a new folder", "--out runs/x"),
    # 3: an input is missing, damaged or of the wrong kind
    "a file that is no TOML": (f"{W} --config {{bad}}/broken.toml", 3, "broken.toml cannot be read as TOML"),
    "a file that is not there": (f"{W} --config {{bad}}/nowhere.toml", 3, "nowhere.toml does not exist"),
    "an artifact that is not there": ("extract {bad}/nowhere -o {out}", 3, "nowhere does not exist"),
    "a folder that is no artifact": ("extract {bad}/foreign -o {out}", 3, "foreign is not a pfl artifact"),
    "a file that is no artifact": ("show {bad}/file", 3, "file is not a pfl artifact"),
    "samples cut short": (
        "train-global {bad}/cut-p -o {out} --model mlp",
        3,
        "samples.h5 differs from what was written",
        "make it again with --force: pfl partition DATASET",
    ),
    "embeddings cut short": ("build-datastore {bad}/cut-e -o {out}", 3, "embeddings.h5 differs from what was written"),
    "predictions cut short": ("evaluate {bad}/cut-knn -o {out}", 3, "predictions.h5 differs from what was written"),
    "a cut in the lineage": (
        "personalize knn-per {bad}/cut/d -o {out}",
        3,
        "cut/e/embeddings.h5 differs from what was written",
    ),
    "a cut that show finds": ("show {bad}/cut-d --verify", 3, "stores.faiss differs from what was written"),
    "a cut further down that show finds": (
        "show {bad}/cut/knn --lineage --verify",
        3,
        "embeddings.h5 differs from what",
    ),
    "a datastore for a partition": (
        "train-global {small}/d -o {out}",
        3,
        "{small}/d contains a datastore, but this command needs a partition",
        "pfl partition DATASET -o DIR",
    ),
    "a partition for predictions": (
        "evaluate {small}/p -o {out}",
        3,
        "contains a partition, but this command needs predictions",
    ),
    "an evaluation to personalize": (
        "personalize local {small}/ev -o {out}",
        3,
        "{small}/ev contains an evaluation, but",
    ),
    "another model than the backbone's": (
        "personalize fedavg-plus {small}/b --model cnn -o {out}",
        2,
        "{small}/b has the model",
        "pfl personalize fedavg-plus {small}/p --model cnn -o {out}\n",
    ),
    "a backbone where neighbours are needed": (
        "personalize knn-per {small}/b -o {out}",
        3,
        "knn-per needs a datastore; {small}/b is a backbone",
        "pfl extract {small}/b -o {small}/embeddings && pfl build-datastore {small}/embeddings -o {small}/datastore\n",
    ),
    "a partition where a backbone is needed": (
        "personalize fedavg-plus {small}/p -o {out}",
        3,
        "fedavg-plus needs a backbone; {small}/p is a partition",
        "pfl train-global {small}/p -o {small}/backbone\n",
    ),
    "a parent that is a file": (
        "partition writers --clients 2 -o {bad}/file/x",
        3,
        "cannot write to {bad}/file",
        "choose another --out",
    ),
    "data that is no number": (f"{F}/nan", 3, "fashion-mnist: x is nan in row 11, column 2"),
    "data without bounds": (f"{F}/inf", 3, "fashion-mnist: x is inf in row 0, column 0"),
    "a label out of range": (f"{F}/label", 3, "row 13 has label 10, outside 0..9"),
    "labels that are missing": (f"{F}/lengths", 3, "x has 16 rows, but y has 13"),
    "samples of two shapes": (f"{F}/shapes", 3, "fashion_mnist.npz", "(4,)", "(3,)"),
    "no samples": (f"{F}/none", 3, "fashion-mnist has no samples"),
    "data cut short": (f"{F}/half", 3, "fashion_mnist.npz cannot be read as NPZ"),
    "data that is something else": (f"{F}/text", 3, "fashion_mnist.npz cannot be read as NPZ"),
    "an array that is missing": (f"{F}/missing", 3, "fashion_mnist.npz has no array 'y_train'"),
    "a split that was learned from": ("evaluate {bad}/local -o {out} --split validation", 3, "local learned from it"),
    # 4: the output is something else
    "another request": (
        "partition writers --clients 5 --seed 1 -o {small}/p",
        4,
        "{small}/p exists and was made by another request",
        "clients: 6 -> 5\n",
        "seed: 0 -> 1\n",
        "--force replaces it",
    ),
    "another kind": ("extract {small}/b -o {small}/p", 4, "kind: partition -> embeddings"),
    "a folder that pfl did not make": ("partition writers -o {bad}/foreign", 4, "is not a pfl artifact"),
    "a folder that pfl did not make, by force": ("partition writers -f -o {bad}/foreign", 4, "is not a pfl artifact"),
    "a file in the way": ("partition writers -o {bad}/file", 4, "is not a pfl artifact"),
    "an input in the way": ("extract {small}/b -f -o {small}/b", 4, "is an input of the embeddings"),
    # 5: the computation failed
    "a rate that diverges": (f"{T} --lr 1e9 -q", 5, "fedavg, round 1: ", "client ", "a smaller --lr may help"),
    "a rate that diverges for one": (
        "personalize local {small}/p -o {out} --model mlp --lr 1e9 -q",  # progress is shown after a while
        5,
        "local: ",
        "all clients became non-finite",
        "a smaller --lr may help",
    ),
}


def assert_fails(ran, code, words):
    """One error, for a person: what is wrong, and what to type; nothing else, no traceback."""
    assert ran.code == code, ran.err
    assert ran.out == ""
    assert ran.err.startswith("pfl: ")
    assert [line.startswith("pfl: ") for line in ran.err.splitlines()].count(True) == 1
    assert all(line.startswith("     ") and line.strip() for line in ran.err.splitlines()[1:])
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err


@pytest.fixture
def run_failing_line(pfl, small, bad_inputs, tmp_path):
    """Type a line in which ``{out}`` is a new folder, ``{small}`` the chain, ``{bad}`` what is wrong."""
    names = {"out": tmp_path / "out", "small": small.root, "bad": bad_inputs}

    def run(line, code, *words):
        ran = pfl(*(part.format(**names) for part in line.split()))
        assert_fails(ran, code, [word.format(**names) for word in words])
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "out.partial").exists()

    return run


@pytest.mark.parametrize("case", NEARLY)
def test_misspelt_name_is_answered_with_the_nearest_one(run_failing_line, case):
    line, *words = NEARLY[case]
    run_failing_line(line, 2, *words)


@pytest.mark.parametrize("case", WRONG)
def test_wrong_command_line_ends_in_one_error(run_failing_line, case):
    line, code, *words = WRONG[case]
    run_failing_line(line, code, *words)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RuntimeError("surprise"), 1, "a bug in pfl: RuntimeError: surprise"),
        (MemoryError(), 5, "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), 5, "out of memory"),
        (OSError(28, "No space left on device", "here"), 3, "here: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted; to resume, run again:\n     pfl partition writers -o 'a b'"),
        (RuntimeError("can't start new thread"), 5, "out of memory"),  # its stack does not fit
    ],
)
@pytest.mark.parametrize("verbose", [False, True])
def test_unexpected_exceptions_end_in_one_error_with_the_right_exit_code(pfl, monkeypatch, error, code, words, verbose):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("pflcli.commands.partition.partition", fail)
    ran = pfl("partition", "writers", "-o", "a b", *(["-v"] if verbose else []))
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err
    assert ("Traceback" in ran.err) is (verbose and code == 1)


def test_evaluate_refuses_predictions_without_test_samples(pfl, tmp_path):
    at = tmp_path
    pfl("partition", "writers", "--clients", 2, "--fractions", "0.8,0.2,0", "-o", at / "p")
    pfl("personalize", "local", at / "p", "--model", "mlp", "--rounds", 1, "-o", at / "l")
    assert_fails(pfl("evaluate", at / "l", "-o", at / "ev"), 3, ["has no test samples to score", "--fractions"])


@pytest.mark.parametrize("command", sorted(APP))
def test_global_options_are_accepted_before_and_after_every_command(pfl, command):
    words = command.split()
    between = (words[0], "--use", "nothing", *words[1:])
    for line in (("--use", "nothing", *words), between, (*words, "--use", "nothing"), (*words, "--use=nothing")):
        ran = pfl(*line, "--json")
        assert (ran.code, ran.err.splitlines()[0]) == (2, "pfl: --use nothing is neither a Python file nor a module")
    assert pfl(*words, "--version").out.startswith("pfl ")


@pytest.mark.parametrize(("group", "commands"), [("federation", 5), ("site", 6)])
def test_a_group_lists_its_commands_and_refuses_others(pfl, group, commands):
    ran, own = pfl(group, "--help"), [name.split()[1] for name in APP if name.startswith(f"{group} ")]
    assert (ran.code, ran.err, len(own)) == (0, "", commands)
    assert re.findall(r"^│ ([a-z]+) ", ran.out, flags=re.M) == own
    assert pfl(group).code == 2
    wrong = pfl(group, "chek")
    assert (wrong.code, wrong.out) == (2, "")
    assert "'chek'. Did you mean 'check'?" in wrong.err


@pytest.mark.parametrize("flag", ["--quiet", "-q", "--verbose", "-v", "--json"])
@pytest.mark.parametrize("command", ["partition", "show", "new", "site check"])
def test_a_flag_before_a_command_does_what_it_does_after_it(pfl, command, flag):
    options = {name for param in APP[command].params for name in param.opts}
    before, after = pfl(flag, *command.split(), "--help"), pfl(*command.split(), flag, "--help")
    assert (before.code, before.out) == (after.code, after.out)
    assert before.code == (0 if flag in options else 2)


def test_single_value_option_given_twice_is_refused():
    """Of every command: Click keeps the last value in silence. Flags and options that are lists may be repeated."""
    for name, command in APP.items():
        with command.make_context(name, [], resilient_parsing=True) as context:
            for param in command.params:
                if param.param_type_name == "option":
                    words = [param.opts[0], *(() if param.is_flag else ("1",))]
                    is_refused = False
                    try:
                        command._require_single(context, words * 2)
                    except UsageError as error:
                        is_refused = param.opts[-1] in error.message or param.opts[0] in error.message
                    assert is_refused == (not (param.multiple or param.is_flag)), (name, param.opts)


def test_flags_before_the_command_take_effect(pfl, small, tmp_path):
    ran = pfl("-q", "--json", "evaluate", small.fedavg, "-o", tmp_path / "e")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out)["kind"] == "evaluation"


def test_use_option_after_the_command_loads_the_file(pfl, tmp_path):
    assert pfl("new", "method", tmp_path / "mine.py").code == 0
    assert "mine" in pfl("list", "methods", "--use", tmp_path / "mine.py").out
