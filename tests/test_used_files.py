"""Methods in files of users: they are used like built-in ones, and their errors name their file and line."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

from pflcli.artifacts.reader import open_artifact
from pflcli.core import registry, sources
from pflcli.core.errors import InputError, UsageError
from pflcli.core.registry import files

METHOD = '''"""Mine: FedAvg whose clients fine-tune their head."""

from __future__ import annotations

from dataclasses import dataclass

from beside import SCALE

KIND = "server"
NEEDS = ()
PAPER = "Mine"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    epochs: int = 1
    """fine-tune for this many local epochs"""


def setup(run):
    return {"global": run.initial_model()}


def rule(network, params, batch):
    losses, grads = network.gradient(params, batch)
    return losses, {name: SCALE * grad for name, grad in grads.items()}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    return {"global": run.average(run.local_sgd(cohort, start, t=t, gradient=rule), start)}


def personalize(run, state, clients):
    tuned = run.local_sgd(clients, state["global"], t="head", epochs=run.cfg.epochs, trainable="head.")
    return run.predictor(clients, tuned)
'''
SETTINGS = ("--rounds", 2, "--model", "mlp", "--participation", 0.5, "--threads", 1)


@pytest.fixture
def method_file(tmp_path, monkeypatch):
    """A method in a file, beside a module that it imports."""
    (tmp_path / "my_method.py").write_text(METHOD)
    (tmp_path / "beside.py").write_text("SCALE = 1.0")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "my_method.py"


def forget_used_files():
    """What the next command, a process of its own, would not know."""
    os.environ.pop(registry.USED, None)


def test_method_file_runs_like_a_built_in_method(method_file, small, pfl, tmp_path):
    ran = pfl("personalize", "./my_method.py", small.p, "-o", "m", "--set", "epochs=2", *SETTINGS, "-q")
    assert ran.code == 0, ran.err
    manifest = open_artifact("m").manifest
    assert manifest.request["method"] == "my-method"
    assert manifest.request["options"] == {"epochs": 2}
    assert manifest.made["command"].startswith("pfl personalize ./my_method.py ")
    assert manifest.made["files"] == {"methods/my-method": "my_method.py"}
    assert (tmp_path / "m" / "my_method.py").read_text() == METHOD
    assert pfl("evaluate", "m", "-o", "e", "-q").code == 0
    again = pfl("personalize", "./my_method.py", small.p, "-o", "m", "--set", "epochs=2", *SETTINGS)
    assert "up to date" in again.err
    jobs = pfl("personalize", "./my_method.py", small.p, "-o", "j", "--set", "epochs=2", *SETTINGS, "--jobs", 2, "-q")
    assert jobs.code == 0, jobs.err
    assert (tmp_path / "j" / "predictions.h5").read_bytes() == (tmp_path / "m" / "predictions.h5").read_bytes()


def test_compare_accepts_method_files_and_their_variants(method_file, small, pfl, monkeypatch):
    listed = "fedavg,./my_method.py,./my_method.py@long"
    ran = pfl("compare", small.p, "-o", "c", "--methods", listed, "--set", "my-method@long.epochs=3", *SETTINGS, "-q")
    assert ran.code == 0, ran.err
    assert json.loads((method_file.parent / "c/seed-0/my-method@long/manifest.json").read_text())["request"][
        "options"
    ] == {"epochs": 3}
    with monkeypatch.context() as later:
        later.delenv(registry.USED)  # a table in LaTeX has the names of PAPER, also without the file
        table = pfl("show", "c", "--latex").out
    names = re.findall(r"^    ((?:FedAvg|Mine)[^&]*) &", table, flags=re.M)
    assert sorted(names) == ["FedAvg", "Mine", "Mine (long)"]


def test_list_describes_a_method_file(method_file, pfl):
    ran = pfl("list", "methods", "./my_method.py", "--json")
    assert (ran.code, ran.err) == (0, "")
    facts = json.loads(ran.out)
    assert (facts["name"], facts["paper"], [option["option"] for option in facts["options"]]) == (
        "my-method",
        "Mine",
        ["epochs"],
    )
    ran = pfl("list", "models", "./my_method.py")
    assert (ran.code, "pfl list methods ./my_method.py" in ran.err) == (2, True)


def test_predict_asks_for_the_file_of_the_method(method_file, small, pfl):
    assert pfl("personalize", "./my_method.py", small.p, "-o", "m", *SETTINGS, "-q").code == 0
    client = json.loads(open_artifact("m").path.joinpath("codebook.json").read_text())["clients"][0]
    line = ("predict", "m", small.samples, "--client", client)
    forget_used_files()
    ran = pfl(*line)
    assert ran.code == 2
    assert "my_method.py" in ran.err
    assert open_artifact("m").manifest.code["methods/my-method"][:12] in ran.err
    assert "pfl --use" in ran.err
    assert pfl("--use", "my_method.py", *line, "-q").code == 0
    forget_used_files()
    method_file.write_text(METHOD.replace('t="head"', 't="top"'))
    assert "methods/my-method has changed" in pfl("--use", "my_method.py", *line).err


def test_code_hash_of_a_file_in_a_package_covers_modules_beside_it(method_file):
    (method_file.parent / "__init__.py").touch()
    test_code_hash_covers_modules_beside_the_file(method_file)


def test_code_hash_covers_modules_beside_the_file(method_file):
    registry.use("methods", "./my_method.py")
    before = sources.code_hash("methods", "my-method")
    (method_file.parent / "beside.py").write_text("SCALE = 2.0")
    assert sources.code_hash("methods", "my-method") != before


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("    cohort = run.cohort(t)\n", "    cohort = run.cohort(t)\n    1 / (1 - t)\n", 5, "ZeroDivisionError"),
        ("def setup(run):", "def setup(run:", 3, "SyntaxError"),
        ("import SCALE", "import MISSING", 3, "ImportError"),
        ('KIND = "server"\n', "", 3, "has no KIND"),
    ],
)
def test_error_in_a_method_file_names_file_and_line(old, new, code, message, method_file, small, pfl):
    content = METHOD.replace(old, new)
    method_file.write_text(content)
    ran = pfl("personalize", "./my_method.py", small.p, "-o", "m", *SETTINGS, "-q")
    assert ran.code == code
    assert str(method_file) in ran.err
    assert message in ran.err
    assert "bug in pfl" not in ran.err
    if message == "ZeroDivisionError":
        assert f"line {content[: content.index('1 / (1 - t)')].count(chr(10)) + 1}," in ran.err


def test_method_file_with_a_taken_or_invalid_name_is_refused(method_file, tmp_path):
    for name in ("ditto.py", "Mine.py", "2nd.py"):
        (tmp_path / name).write_text(METHOD)
        with pytest.raises(UsageError, match=name):
            registry.use("methods", f"./{name}")
    with pytest.raises(InputError, match="does not exist"):
        registry.use("methods", "./absent.py")
    registry.use("methods", "./my_method.py")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "my_method.py").write_text(METHOD)
    with pytest.raises(UsageError, match="same name"):
        registry.use("methods", "other/my_method.py")
    assert registry.use("methods", "ditto") == "ditto"


def test_files_of_other_groups_run_like_built_in_ones(method_file, pfl):
    for kind in ("dataset", "scheme", "upload", "aggregator"):
        assert pfl("new", kind, f"own_{kind}.py").code == 0
    ran = pfl("partition", "./own_dataset.py", "--scheme", "./own_scheme.py", "--clients", 6, "-o", "p", "-q")
    assert ran.code == 0, ran.err
    manifest = open_artifact("p").manifest
    assert (manifest.request["dataset"], manifest.request["scheme"]) == ("own-dataset", "own-scheme")
    assert {*manifest.made["files"]} == {*manifest.code} == {"datasets/own-dataset", "schemes/own-scheme"}
    assert manifest.made["command"] == "pfl partition ./own_dataset.py -o ./p --scheme ./own_scheme.py --clients 6"
    steps = ("--upload", "./own_upload.py:0.2", "--aggregator", "./own_aggregator.py")
    ran = pfl("compare", "p", "-o", "c", "--methods", "fedavg,./my_method.py", *SETTINGS, *steps, "-q")
    assert ran.code == 0, ran.err
    manifest = open_artifact("c/seed-0/my-method").manifest
    assert manifest.request["settings"]["upload"] == ["own-upload:0.2"]
    assert manifest.request["settings"]["aggregator"] == "own-aggregator"
    assert "pfl personalize ../../my_method.py ../../p" in manifest.made["command"]
    assert "--upload ../../own_upload.py:0.2 --aggregator ../../own_aggregator.py" in manifest.made["command"]
    assert "--methods fedavg,../my_method.py" in open_artifact("c/comparison").manifest.made["command"]
    assert "own-upload" in pfl("--use", "own_upload.py", "list", "uploads").out


@pytest.fixture
def installed_package(tmp_path, monkeypatch):
    """An installed package that offers a method and a scheme."""
    (tmp_path / "offers").mkdir()
    (tmp_path / "offers" / "__init__.py").touch()
    (tmp_path / "offers" / "method.py").write_text(METHOD.replace("from beside import", "from offers.beside import"))
    (tmp_path / "offers" / "beside.py").write_text("SCALE = 1.0")
    scheme = (registry.ROOT / "core" / "schemes" / "iid.py").read_text()
    (tmp_path / "offers" / "scheme.py").write_text(scheme)
    facts = tmp_path / "offers-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1.0\n")
    points = (
        "[pflcli.methods]",
        "offered = offers.method",
        "lost = offers.lost",
        "[pflcli.schemes]",
        "dealt = offers.scheme",
    )
    (facts / "entry_points.txt").write_text("\n".join(points))
    monkeypatch.syspath_prepend(str(tmp_path))
    files.installed.cache_clear()
    yield tmp_path / "offers"
    files.installed.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "offers"]:
        del sys.modules[name]


def test_installed_package_provides_methods_and_schemes(installed_package, small, pfl):
    assert (
        pfl("partition", "writers", "--scheme", "dealt", "--clients", 4, "-o", installed_package / "p", "-q").code == 0
    )
    ran = pfl("personalize", "offered", small.p, "-o", installed_package / "m", *SETTINGS, "-q")
    assert ran.code == 0, ran.err
    manifest = open_artifact(installed_package / "m").manifest
    assert manifest.made["command"].startswith("pfl personalize offered ")
    assert "files" not in manifest.made
    offered = {entry["name"]: entry["from"] for entry in json.loads(pfl("list", "schemes", "--json").out)}
    assert (offered["dealt"], offered["iid"]) == ("offers", "pfl")
    before = sources.code_hash("methods", "offered")
    (installed_package.parent / "numpy").mkdir()  # as in site-packages, where all packages lie in one folder
    (installed_package.parent / "numpy" / "__init__.py").write_text("VERSION = 3")
    for folder in (installed_package, installed_package.parent):
        (folder / "dataclasses.py").write_text("VERSION = 3")
    assert sources.code_hash("methods", "offered") == before
    (installed_package / "beside.py").write_text("SCALE = 2.0")
    assert sources.code_hash("methods", "offered") != before


def test_broken_installed_package_is_named(installed_package, small, pfl):
    ran = pfl("personalize", "lost", small.p, "-o", installed_package / "m", *SETTINGS)
    assert ran.code == InputError.exit_code
    assert "method 'lost': there is no module offers.lost" in ran.err
    (installed_package / "method.py").write_text(METHOD.replace("def setup(run):", "def setup(run:"))
    ran = pfl("personalize", "offered", small.p, "-o", installed_package / "m", *SETTINGS)
    assert ran.code == InputError.exit_code
    assert "method.py, line" in ran.err


@pytest.mark.parametrize("word", ["mine", "", "./absent.py", "no.such.module"])
def test_use_option_refuses_invalid_files_and_modules(word, method_file, pfl):
    ran = pfl("--use", word, "list", "methods")
    assert ran.code in (UsageError.exit_code, InputError.exit_code)
    assert ran.out == ""
    assert "Traceback" not in ran.err
