"""Who may import whom, read from the imports themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pflcli

ROOT = Path(pflcli.__file__).parent
BASE = {"errors", "foreign", "rng", "registry", "settings", "vision"}
ALLOWED = {
    "errors": set(),
    "foreign": {"errors"},
    "rng": set(),
    "settings": set(),
    "vision": set(),
    "registry": {"errors"},
    "sources": {"registry"},
    "config": {"errors", "foreign"},
    "artifacts": {"errors", "foreign"},
    "metrics": {"errors"},
    "report": {"errors"},
    "data": BASE,
    "schemes": BASE | {"data"},
    "readers": {"errors", "foreign"},
    "models": BASE,
    "uploads": {"config", "errors", "fl", "registry"},
    "fl": BASE,
    "methods": {"errors", "fl", "registry"},
    "steps": BASE
    | {
        "config",
        "artifacts",
        "metrics",
        "report",
        "data",
        "readers",
        "schemes",
        "models",
        "fl",
        "methods",
        "sources",
        "uploads",
    },
    "cli": BASE | {"config", "steps", "artifacts", "report"},
    "__main__": {"cli", "errors"},
    "__init__": set(),
}
FILES = sorted(ROOT.rglob("*.py"))


def area(path):
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(node):
    for item in ast.walk(node):
        if isinstance(item, ast.Import):
            yield from (alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom):
            assert item.level == 0, "imports are absolute"
            yield item.module
            if item.module == "pflcli":
                yield from (f"pflcli.{alias.name}" for alias in item.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_layers(path):
    here = area(path)
    for name in imports(ast.parse(path.read_text())):
        if name.startswith("pflcli."):
            there = name.split(".")[1]
            if there != "__version__":
                assert there == here or there in ALLOWED[here], f"{path.name} imports {name}"


def test_the_command_line_imports_nothing_heavy_at_the_top():
    for path in FILES:
        if area(path) in {"cli", "__main__"}:
            top = ast.Module([n for n in ast.parse(path.read_text()).body], [])
            top.body = [n for n in top.body if isinstance(n, ast.Import | ast.ImportFrom)]
            for name in imports(top):
                assert name.split(".")[0] not in {"torch", "faiss", "h5py", "numpy", "matplotlib", "pandas"}, path
                assert not name.startswith("pflcli.steps") or name == "pflcli.steps.making", f"{path}: {name}"


@pytest.mark.parametrize(
    ("module", "only"), [("faiss", "fl/indexes.py"), ("torchvision", "vision.py"), ("sklearn", "fl/grouping.py")]
)
def test_one_place_imports(module, only):
    places = [
        str(path.relative_to(ROOT))
        for path in FILES
        if any(name.split(".")[0] == module for name in imports(ast.parse(path.read_text())))
    ]
    assert places in ([only], [])  # vision imports by name, as the module may need help first


def test_methods_and_fl_touch_no_file_terminal_or_global_seed():
    forbidden = {"open", "print", "input", "manual_seed", "seed"}
    for path in FILES:
        # The arena's file is memory that processes share: nothing of it reaches a disk.
        if area(path) in {"methods", "fl"} and path.name != "arena.py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = node.func
                    name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                    assert name not in forbidden, f"{path.name} calls {name}"


def test_files_can_be_read_in_one_sitting():
    long = {str(path.relative_to(ROOT)): n for path in FILES if (n := len(path.read_text().splitlines())) > 300}
    assert long == {}
