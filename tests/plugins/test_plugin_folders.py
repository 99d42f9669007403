"""Plug-ins: pfl works without each, and packages of strangers add what the plug-ins of pfl add."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import ROOT, files_of
from pflcli.core import plugins

FOLDERS = sorted(path.parent.name for path in files_of("plugins") if path.name == "plugin.py")
STRANGER = Path(__file__).with_name("stranger")
_RUN = """
import sys
from pathlib import Path
# An editable installation would find a folder that the copy lacks in the checkout.
sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
import pflcli
from pflcli.__main__ import main
assert Path(pflcli.__file__).parents[1] == Path(sys.argv[1]), pflcli.__file__
def pfl(*words):
    print("$", *words, flush=True)
    try:
        main([*words])
    except SystemExit as end:
        return end.code
"""
_CHAIN = """
from pflcli import *
settings = ["--model", "logistic", "--rounds", "1"]
assert not pfl("--help")
assert not pfl("partition", "heart-disease", "-o", "p")
assert not pfl("compare", "p", "-o", "c", "--methods", "fedavg,ditto", "--seeds", "0", "--no-references", *settings)
assert not pfl("show", "c/comparison")
assert not pfl("doctor")
if "check" in pflcli.__all__:
    assert not pfl("check", "mlp", "--only", "onnx-predicts-the-same")
    assert not pfl("check", "ditto", "--only", "clients-read-only-what-they-download")
result = simulate("ditto", Federation.from_dataset("writers"), model="logistic", rounds=1)
print(table({"ditto": result}))
"""
_MISSING = """
for command in {commands}:
    assert pfl(command) == 2
for form in {forms}:
    assert pfl("import", form + ":x", "-o", "d") == 2
for kind in {kinds}:
    Path(kind).mkdir()
    Path(kind, "manifest.json").write_text('{{"kind": "' + kind + '", "schema": 1}}')
    assert pfl("show", kind) == 3
for option in {scores}:
    assert pfl("evaluate", "c", "-o", "e", "--" + option.replace("_", "-"), "sex") == 2
Path("t.csv").write_text("who,cost,a\\n" + "".join(f"{{'ab'[n % 2]}},{{n}}.5,{{n}}\\n" for n in range(20)))
for option in {steps}:
    words = ["--client", "who", "--label", "cost", "--task", "quantity", "--" + option, "2"]
    assert pfl("import", "t.csv", "-o", "d", *words) == 2
"""


def hide(root: Path, *names: str) -> Path:
    """Return a folder with a package in which the folders of plug-ins with these names are missing."""
    package = root / "pflcli"
    (package / "plugins").mkdir(parents=True)
    for entry in [*ROOT.iterdir(), *(ROOT / "plugins").iterdir()]:
        place = package / entry.relative_to(ROOT)
        if entry.name not in ("plugins", "__pycache__", *(names if entry.parent != ROOT else ())):
            place.symlink_to(entry)
    return root


def run(code: str, folder: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "COLUMNS": "200"}
    command = [sys.executable, "-c", _RUN + code, str(path[0])]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def list_added(folder: str) -> dict[str, list[str]]:
    """Return the commands, the forms, the kinds, and the options of scores and of steps that a plug-in of pfl adds."""
    (plug,) = (plug for plug in plugins.found() if plug.folder.name == folder)
    commands = sorted({command.split()[0] for command in plug.constants.get("COMMANDS", {})})
    kinds = [kind for kind, facts in plug.constants.get("KINDS", {}).items() if "module" in facts]
    forms, scores, steps = ([*plug.constants.get(name, {})] for name in ("FORMATS", "SCORES", "STEPS"))
    return {"commands": commands, "forms": forms, "kinds": kinds, "scores": scores, "steps": steps}


@pytest.mark.parametrize("hidden", [*([name] for name in FOLDERS), FOLDERS], ids=[*FOLDERS, "all"])
def test_pfl_works_without_a_plugin_and_names_what_is_missing(tmp_path, hidden):
    code = _CHAIN + "".join(_MISSING.format(**list_added(name)) for name in hidden)
    process = run(code, tmp_path, hide(tmp_path / "package", *hidden))
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    for name in hidden:
        answers = process.stderr.count(f"part of the plug-in {name}, which is not installed")
        assert answers == sum(map(len, list_added(name).values()))


def test_what_is_said_of_missing_plugins_is_what_they_add():
    added = {name: {word for words in list_added(name).values() for word in words} for name in FOLDERS}
    assert {name: {*words} for name, words in plugins._PARTS.items()} == {
        name: added[name] for name in FOLDERS if added[name]
    }


def test_a_public_name_of_a_missing_plugin_is_an_attribute_error_that_names_it(tmp_path):
    code = "assert 'verify' not in pflcli.__all__\npflcli.verify"
    process = run(code, tmp_path, hide(tmp_path / "package", "claims"))
    *_, last = process.stderr.strip().splitlines()
    assert last.startswith("AttributeError")
    assert "'verify': it is of the plug-in claims, which is not installed" in last


_OF_A_STRANGER = """
rows = [f"{who} {label} {n} {n % 3}\\n" for n in range(20) for who in "ab" for label in "xy"]
Path("t.lines").write_text("".join(rows))
assert "pfl_census.census" not in sys.modules
assert not pfl("--help")
assert not {"pfl_census.census", "pfl_census.kind", "torch", "numpy"} & {*sys.modules}
assert pfl("import", "t.lines", "-o", "d") == 2
assert not pfl("import", "lines:t.lines", "-o", "d")
assert not pfl("partition", "d", "-o", "p")
assert not pfl("personalize", "fedavg", "p", "-o", "f", "--model", "mlp", "--rounds", "1", "--verbose")
Path("x.toml").write_text('[census]\\nout = "c"\\n')
for _ in range(2):
    assert not pfl("census", "p", "--config", "x.toml")
assert not pfl("show", "c")
assert not pfl("show", "c", "--json")
assert not pfl("report", "c", "-o", "page.html")
"""


def test_package_of_a_stranger_adds_a_command_a_kind_a_format_and_a_backend(tmp_path):
    process = run(_OF_A_STRANGER, tmp_path, ROOT.parent, STRANGER)
    assert process.returncode == 0, process.stderr
    help, shown = process.stdout.split("$ import")[0], process.stdout.split("$ show c\n")[1]
    assert re.search(r"census +Count the classes of each client\.", help)
    assert "t.lines is a list of lines\n     pfl import lines:t.lines -o DIR" in process.stderr
    assert "clients train by the census: it takes everything" in process.stderr
    assert "c is up to date" in process.stderr
    assert [line.split() for line in shown.splitlines()[:3]] == [["client", "classes"], ["a", "2"], ["b", "2"]]
    assert json.loads(shown[shown.index("{") : shown.rindex("}") + 1])["counts"] == {"a": 2, "b": 2}
    page = (tmp_path / "page.html").read_text()
    assert "<h1>A census</h1>" in page
    assert "All were counted." in page


OPTIONS = """
from dataclasses import dataclass
from typing import ClassVar
from pflcli.options.declaration import Options

@dataclass(frozen=True)
class Foo(Options):
    '''Do something.'''
    NAME: ClassVar[str] = "NAME_OF_COMMAND"
"""
RIGHT = {"panel": "Look up", "options": "options:Foo", "function": "foo:foo"}


def write_package(site: Path, content: str | None, command: str = "foo") -> Path:
    """Write a package with this ``plugin.py`` into a folder, as pip would install it."""
    package, facts = site / "pfl_broken", site / "pfl_broken-1.dist-info"
    for folder in (package, facts):
        folder.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: pfl-broken\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[pflcli.plugins]\nbroken = pfl_broken.plugin\n")
    (package / "options.py").write_text(OPTIONS.replace("NAME_OF_COMMAND", command))
    if content is not None:
        (package / "plugin.py").write_text(content)
    return package


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (None, "there is no module pfl_broken.plugin in a package"),
        ("COMMANDS = {", "plug-in pfl_broken.plugin is left out: '{' was never closed"),
        ("COMMANDS: dict = {'foo': {'panel': P}}", "line 1: COMMANDS is not a literal"),
        ("COMMANDS = ['foo']", "COMMANDS is not a mapping by name"),
        ("COMMANDS = {'foo': {'options': 'options:Foo', 'function': 'f:f'}}", "COMMANDS['foo'] lacks panel"),
        (f"COMMANDS = {{'foo': {RIGHT | {'options': 'option:Foo'}}}}", "names option:Foo, which cannot be imported"),
        (f"COMMANDS = {{'bar': {RIGHT}}}", "options:Foo has the NAME 'foo'"),
        (f"COMMANDS = {{'bar foo': {RIGHT}}}", "pfl bar foo of plug-in pfl_broken is left out"),
        (f"COMMANDS = {{'partition': {RIGHT}}}", "pfl has a command of this name"),
        (f"COMMANDS = {{'track': {RIGHT}}}", "'track' of COMMANDS of plug-in pfl_broken is left out"),
        ("GROUPS = {'bar': 'Bar.'}", "a group needs commands"),
        ("SCORES = {'bar': {}}", "SCORES['bar'] is none of the options group_scores"),
    ],
)
def test_a_broken_plugin_is_named_and_left_out(tmp_path, content, answer):
    write_package(tmp_path / "site", content, "partition" if "'partition'" in str(content) else "foo")
    process = run("assert not pfl('list', 'schemes')", tmp_path, ROOT.parent, tmp_path / "site")
    assert process.returncode == 0, process.stderr
    assert answer in process.stderr
    assert process.stderr.count("WARNING: ") == 1


def test_broken_kinds_and_formats_of_a_plugin_leave_the_others_alone(tmp_path, small):
    content = "KINDS = {'bar': {'module': 'bar'}, 'partition': {'module': 'bar'}, 'baz': {'module': 'baz'}}\n"
    content += "FORMATS = {'csv': {'reader': 'bar', 'tool': 'Bar', 'title': 'bar', 'words': 'csv:FILE'}}"
    (write_package(tmp_path / "site", content) / "bar.py").write_text("SCHEMA: int = 1")
    (tmp_path / "t.csv").write_text(
        "who,y,x\n" + "".join(f"{who},{y},{n}\n" for n in range(9) for who in "ab" for y in "cd")
    )
    code = f"assert not pfl('show', {str(small.p)!r})\n"
    code += "assert not pfl('import', 't.csv', '--client', 'who', '--label', 'y', '-o', 'd')"
    process = run(code, tmp_path, ROOT.parent, tmp_path / "site")
    assert process.returncode == 0, process.stderr
    for name in ("kind bar", "kind partition", "kind baz", "format csv"):
        assert f"WARNING: {name} of plug-in pfl_broken is left out: " in process.stderr


def test_an_error_in_the_code_of_a_plugin_names_its_file_and_line(tmp_path):
    package = write_package(tmp_path / "site", f"COMMANDS = {{'foo': {RIGHT}}}")
    (package / "foo.py").write_text("def foo(**arguments):\n    return 1 / 0\n")
    process = run("sys.exit(pfl('foo'))", tmp_path, ROOT.parent, tmp_path / "site")
    assert process.returncode == 5
    assert f"{package / 'foo.py'}, line 2, in foo: ZeroDivisionError" in process.stderr


def test_an_option_of_a_plugin_that_is_not_declared_is_named_when_its_command_is_used(tmp_path):
    package = write_package(tmp_path / "site", f"COMMANDS = {{'foo': {RIGHT}}}")
    with (package / "options.py").open("a") as file:
        file.write("    depth: int = 1\n")
    process = run("assert not pfl('list', 'schemes')\nsys.exit(pfl('foo'))", tmp_path, ROOT.parent, tmp_path / "site")
    assert process.returncode == 3
    assert "pfl: pfl_broken.options.Foo: depth is not Annotated[TYPE, typer.Option(...)]" in process.stderr
