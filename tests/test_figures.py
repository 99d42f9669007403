"""Figures of the code: each in ``HELD`` is at most its limit, and limits only fall.

``python tests/test_figures.py`` prints all figures.
"""

from __future__ import annotations

import ast
import collections
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from test_new_task import PATCH

import pflcli
from helpers import imports
from pflcli.core import plugins

ROOT = Path(pflcli.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
HELD = {
    "names in pflcli": 14,
    "names of plug-ins in the core": 2,
    "circles of files": 0,
    "circles of packages": 0,
    "lines of the longest function": 59,
    "files that a new kind of task changes": 1,
    "lines outside plug-ins, methods, tasks and datasets": 45_821,
    "lines of compiled code": 3_530,
    "functions run before the first weight changes, pfl personalize": 395,
    "functions run before the first weight changes, simulate": 226,
}
_TRACE = """
import os, sys, threading, torch
import pflcli
root, seen, done = os.path.dirname(pflcli.__file__) + os.sep, set(), []
def trace(frame, event, arg):
    code = frame.f_code
    is_ours = code.co_filename.startswith(root) and code.co_flags & 1 and code.co_name[0] != "<"
    if event == "call" and not done and is_ours:
        seen.add((code.co_filename, code.co_qualname, code.co_firstlineno))
def stop(operation):
    def changed(*args, **kwargs):
        if not done and os.sep + "engine" + os.sep in sys._getframe(1).f_code.co_filename:
            done.append(len(seen))
        return operation(*args, **kwargs)
    return changed
for name in ("baddbmm_", "sub_", "addcmul_", "lerp_"):
    setattr(torch.Tensor, name, stop(getattr(torch.Tensor, name)))
torch._foreach_add_ = stop(torch._foreach_add_)
sys.setprofile(trace); threading.setprofile(trace)
"""
"""Counts functions of pfl, without lambdas and comprehensions, until an operation of the engine changes a weight."""
_SHELL = """
from pflcli.__main__ import main
settings = ["--model", "mlp", "--rounds", "1", "--threads", "1"]
sys.argv = ["pfl", "--no-accelerated", "personalize", "ditto", *sys.argv[1:], *settings]
try:
    main()
except SystemExit:
    pass
print(done[0])
"""
_IN_MEMORY = """
from pflcli import Federation, simulate
simulate("ditto", Federation.from_dataset("writers"), model="mlp", rounds=1)
print(done[0])
"""


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _module(file: Path) -> str:
    return ".".join(("pflcli", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


@cache
def _graph() -> dict[str, set[str]]:
    """The modules that each module imports, lazily and for type checking too; ``pflcli`` itself is left out."""
    modules = {_module(file): file for file in FILES}
    below = modules.keys() - {"pflcli", "pflcli.__main__"}
    return {name: {*imports(_tree(modules[name]))} & below for name in below}


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach one another."""

    def reach(start: str) -> set[str]:
        seen, ahead = set[str](), [start]
        while ahead:
            for each in graph.get(ahead.pop(), ()):
                if each not in seen:
                    seen.add(each)
                    ahead.append(each)
        return seen

    reached = {name: reach(name) for name in graph}
    circles = {frozenset(b for b in reached[a] if b in graph and a in reached[b]) for a in graph if a in reached[a]}
    return sorted(sorted(circle) for circle in circles)


def circles_of_files() -> list[list[str]]:
    """Return the circles of modules."""
    return find_circles(_graph())


def circles_of_packages() -> list[list[str]]:
    """Return the circles of the packages and modules directly below ``pflcli``."""
    graph: dict[str, set[str]] = {}
    for name, found in _graph().items():
        room = name.split(".")[1]
        graph.setdefault(room, set()).update(other for each in found if (other := each.split(".")[1]) != room)
    return find_circles(graph)


def _count_lines(files: list[Path]) -> int:
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


def _functions() -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for file in FILES
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _count_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function, but for those of its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    text = function.body[0]
    is_documented = ast.get_docstring(function) is not None
    return lines - ((text.end_lineno or 0) - text.lineno + 1 if is_documented else 0)


def _count_functions_run(code: str, *words: str) -> int:
    surroundings = {**os.environ, "PFL_ACCELERATED": "0", "PYTHONPATH": str(ROOT.parent)}
    ran = subprocess.run(
        [sys.executable, "-c", _TRACE + code, *words], capture_output=True, text=True, env=surroundings
    )
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout.split()[-1])


def _count_functions_of_personalize() -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "p"))
        surroundings = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
        line = [sys.executable, "-m", "pflcli", "partition", "writers", "-o", out]
        subprocess.run(line, check=True, capture_output=True, env=surroundings)
        return _count_functions_run(_SHELL, out, "-o", str(Path(folder, "ditto")))


def _count_private_functions_named_once() -> int:
    named = collections.Counter(
        name
        for file in FILES
        for node in ast.walk(_tree(file))
        if (name := getattr(node, "id", None) if isinstance(node, ast.Name) else getattr(node, "attr", None))
    )
    private = [node.name for node in _functions() if node.name.startswith("_") and not node.name.startswith("__")]
    return sum(named[name] == 1 for name in private)


def _count_word(word: str) -> int:
    text = "".join(file.read_text(encoding="utf-8") for file in FILES if "metrics" not in file.parts)
    words = text.replace(".", " ").replace("_", " ").split()
    return sum(each.strip("\"'`,():[]") == word for each in words)


def _count_names_of_plugins() -> int:
    """Count lines outside the plug-ins, but for the tables, that name a command, folder, kind or format of one."""
    commands = {name.split()[0] for name in plugins.added("COMMANDS")}
    kinds = {name for name, (_, facts) in plugins.added("KINDS").items() if "module" in facts}
    formats, folders = {*plugins.added("FORMATS")}, {plug.folder.name for plug in plugins.found()}
    named = re.compile(
        rf"pfl ({'|'.join(commands)})(?![\w-])|plugins[./]({'|'.join(folders)})\b"
        rf"|[\"']({'|'.join(kinds | formats)})[\"']|\b({'|'.join(formats)}):\b"
    )
    tables = {ROOT / "__init__.py", ROOT / "core" / "plugins.py"}
    files = [file for file in FILES if file not in tables and file.relative_to(ROOT).parts[0] != "plugins"]
    return sum(named.search(line) is not None for file in files for line in file.read_text().splitlines())


MEASURES = {
    "names in pflcli": lambda: len({file.relative_to(ROOT).parts[0] for file in FILES}),
    "names of plug-ins in the core": _count_names_of_plugins,
    "circles of files": lambda: len(circles_of_files()),
    "circles of packages": lambda: len(circles_of_packages()),
    "lines of the longest function": lambda: max(map(_count_code, _functions())),
    "files that a new kind of task changes": lambda: len(PATCH),
    "lines outside plug-ins, methods, tasks and datasets": lambda: _count_lines(
        [
            file
            for file in FILES
            if file.relative_to(ROOT).parts[0] not in {"plugins", "methods"}
            and file.parent not in {ROOT / "core" / "engine" / "tasks", ROOT / "data" / "datasets"}
        ]
    ),
    "lines of compiled code": lambda: _count_lines(
        [file for file in FILES if file.parent == ROOT / "plugins" / "accelerated"]
    ),
    "functions run before the first weight changes, pfl personalize": _count_functions_of_personalize,
    "functions run before the first weight changes, simulate": lambda: _count_functions_run(_IN_MEMORY),
    "lines of pflcli": lambda: _count_lines(FILES),
    "lines of tests": lambda: _count_lines([*Path(__file__).parent.rglob("*.py")]),
    "raise": lambda: sum(isinstance(node, ast.Raise) for file in FILES for node in ast.walk(_tree(file))),
    "private functions named once": _count_private_functions_named_once,
    "the word accuracy outside the metrics": lambda: _count_word("accuracy"),
}


@pytest.mark.parametrize("name", HELD)
def test_figure_is_at_most_its_limit(name):
    assert MEASURES[name]() <= HELD[name]


def test_circles_are_found():
    assert find_circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}}) == [
        ["a", "b", "c"],
        ["e", "f"],
    ]


if __name__ == "__main__":
    for label, measure in MEASURES.items():
        print(f"{label:64} {measure():6}  {f'of at most {HELD[label]}' if label in HELD else ''}")
