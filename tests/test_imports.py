"""Who may import whom, read from the imports themselves."""

from __future__ import annotations

import ast

import pytest

from helpers import ROOT, imports

BASE = {"wording", "errors", "foreign", "rng", "registry", "reporter", "settings", "vision"}
ENGINE = BASE | {"parameters", "engine"}
ALLOWED = {
    "errors": set(),
    "wording": set(),
    "rng": set(),
    "settings": set(),
    "vision": set(),
    "reporter": set(),
    "foreign": {"errors"},
    "registry": {"errors"},
    "sources": {"registry"},
    "config": {"errors", "foreign"},
    "privacy": {"errors", "settings"},
    "metrics": {"errors"},
    "presentation": {"errors", "metrics", "wording"},
    "formats": {"errors", "foreign", "wording"},
    "datasets": BASE | {"formats"},
    "schemes": BASE | {"datasets"},
    "models": BASE,
    "parameters": {"errors"},
    "engine": ENGINE,
    "knn": {"errors", "rng", "engine"},
    "fl": ENGINE | {"knn"},
    "uploads": {"config", "errors", "fl", "parameters", "registry"},
    "aggregators": {"config", "errors", "fl", "parameters", "registry"},
    "methods": ENGINE | {"fl", "knn"},
    "artifacts": {"errors", "wording", "foreign", "registry", "reporter", "knn"},
    "evaluation": BASE | {"artifacts", "methods", "metrics", "presentation"},
    "page": BASE | {"artifacts", "metrics", "presentation"},
    "preparation": BASE | {"config", "artifacts", "datasets", "formats", "knn", "schemes"},
    "training": BASE
    | {"config", "artifacts", "engine", "fl", "knn", "methods", "models", "parameters"}
    | {"aggregators", "privacy", "uploads"},
    "estimates": BASE
    | {"aggregators", "artifacts", "engine", "fl", "knn", "methods", "models", "parameters", "training", "uploads"},
    "commands": BASE
    | {
        "config",
        "sources",
        "datasets",
        "formats",
        "schemes",
        "models",
        "metrics",
        "presentation",
        "parameters",
        "engine",
        "knn",
    }
    | {"fl", "privacy", "aggregators", "uploads", "methods", "artifacts", "page", "preparation", "training"}
    | {"estimates", "evaluation"},
    "cli": BASE | {"config", "commands", "artifacts", "evaluation", "presentation"},
    "__main__": {"cli", "errors"},
    "__init__": {"commands"},
}
"""What each package or module may import besides itself, from the bottom to the top."""
FILES = sorted(ROOT.rglob("*.py"))


def area(path):
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_layers(path):
    importer = area(path)
    for name in imports(ast.parse(path.read_text())):
        if name.startswith("pflcli."):
            imported = name.split(".")[1]
            if imported != "__version__":
                assert imported == importer or imported in ALLOWED[importer], f"{path.name} imports {name}"


def test_the_command_line_imports_nothing_heavy_at_the_top():
    for path in FILES:
        if area(path) in {"cli", "__main__"}:
            top = ast.Module([n for n in ast.parse(path.read_text()).body], [])
            top.body = [n for n in top.body if isinstance(n, ast.Import | ast.ImportFrom)]
            for name in imports(top):
                assert name.split(".")[0] not in {"torch", "faiss", "h5py", "numpy", "matplotlib", "pandas"}, path
                assert name.split(".")[:2] not in (["pflcli", "commands"], ["pflcli", "artifacts"]), f"{path}: {name}"


@pytest.mark.parametrize(
    ("module", "only"),
    [
        ("faiss", {"knn/indexes.py", "commands/exporting/reader.py"}),  # which is a script of its own
        ("torchvision", {"vision.py"}),
        ("sklearn", {"methods/parts/clustering.py", "datasets/heart_disease.py"}),  # its split is scikit-learn's own
    ],
)
def test_few_places_import(module, only):
    places = {
        str(path.relative_to(ROOT))
        for path in FILES
        if any(name.split(".")[0] == module for name in imports(ast.parse(path.read_text())))
    }
    assert places <= only  # vision imports by name, as the module may need help first


def test_every_layer_imports_only_layers_below_it():
    order = [*ALLOWED]
    for name, allowed in ALLOWED.items():
        assert all(order.index(other) <= order.index(name) for other in allowed), name


def test_methods_and_fl_touch_no_file_terminal_or_global_seed():
    forbidden = {"open", "print", "input", "manual_seed", "seed"}
    for path in FILES:
        # The arena's file is memory that processes share: nothing of it reaches a disk.
        if area(path) in {"methods", "fl", "engine", "parameters", "knn"} and path.name != "shared_memory.py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = node.func
                    name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                    assert name not in forbidden, f"{path.name} calls {name}"


def test_files_can_be_read_in_one_sitting():
    long = {str(path.relative_to(ROOT)): n for path in FILES if (n := len(path.read_text().splitlines())) > 300}
    assert long == {}


LONG = {
    ("cli/compare.py", "command"),
    ("cli/import_data.py", "command"),
    ("cli/partition.py", "command"),
    ("cli/show.py", "command"),
    ("commands/compare.py", "compare"),
}
"""Functions of 60 lines or more that are still to be split. No function may join them."""


def test_functions_have_fewer_than_60_lines():
    functions = [
        (str(path.relative_to(ROOT)), node)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    long = {(path, node.name) for path, node in functions if (node.end_lineno or 0) - node.lineno + 1 >= 60}
    assert long <= LONG
