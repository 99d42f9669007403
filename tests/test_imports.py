"""Imports between packages follow the layers of the architecture."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from test_figures import circles_of_files, circles_of_packages

from helpers import ROOT, files_of, imports

BASE = {"wording", "errors", "foreign", "rng", "registry", "reporter", "settings"}
ALLOWED = {
    "errors": set(),
    "wording": set(),
    "rng": set(),
    "settings": set(),
    "reporter": set(),
    "execution": {"errors", "reporter"},
    "foreign": {"errors"},
    "vision": {"errors"},
    "registry": {"errors"},
    "sources": {"registry"},
    "config": {"errors", "foreign", "wording"},
    "parameters": {"errors"},
    "engine": BASE | {"parameters", "sources"},
    "knn": {"errors", "rng"},
    "federation.privacy": {"errors", "settings"},
    "federation.uploads": {"config", "engine", "errors", "parameters", "registry"},
    "federation.aggregators": {"config", "errors", "parameters", "registry"},
    "federation": BASE | {"parameters", "engine", "knn", "federation.aggregators", "federation.uploads"},
    "models": BASE | {"vision"},
    "methods": BASE | {"parameters", "engine", "federation", "knn"},
    "data.datasets": BASE | {"vision"},
    "data.schemes": BASE | {"data.datasets"},
    "data.splits": BASE | {"data.datasets", "data.schemes"},
    "simulation": BASE
    | {"config", "parameters", "engine", "knn", "models", "methods", "data.datasets", "data.schemes", "data.splits"}
    | {"federation", "federation.aggregators", "federation.privacy", "federation.uploads"},
    "accelerated": {"parameters", "engine", "methods"},  # engine/backend.py alone finds its modules, by name
    "evaluation.metrics": {"errors"},
    "evaluation.charts": {"errors", "evaluation.metrics", "foreign"},
    "evaluation.presentation": {"evaluation.metrics", "wording"},
    "artifacts": BASE - {"settings"} | {"execution", "knn"},
    "evaluation": BASE
    | {"artifacts", "methods", "simulation", "evaluation.charts", "evaluation.metrics", "evaluation.presentation"},
    "evaluation.page": BASE
    | {"artifacts", "evaluation", "evaluation.charts", "evaluation.metrics", "evaluation.presentation"},
    "tracking": BASE | {"artifacts", "config", "evaluation", "evaluation.metrics", "federation", "simulation"},
    "data.formats": {"errors", "foreign", "wording", "artifacts", "data.datasets"},
    "data.preparation": BASE
    | {"config", "artifacts", "data.datasets", "data.formats", "data.schemes", "data.splits", "knn"},
    "training": BASE
    | {"execution", "config", "artifacts", "engine", "knn", "methods", "models", "parameters", "simulation"}
    | {"federation", "federation.privacy", "federation.uploads", "evaluation.metrics"},
    "workflow.admission": BASE
    | {"config", "artifacts", "parameters", "engine", "federation", "federation.uploads", "models", "methods"}
    | {"simulation"},
    "encoders": BASE | {"vision", "artifacts", "engine", "models", "parameters", "training"},
    "prediction": BASE
    | {"execution", "config", "sources", "artifacts", "data.formats", "data.preparation", "models", "parameters"}
    | {"engine", "knn", "federation", "methods", "simulation", "training", "evaluation", "encoders"},
    "auditing": BASE
    | {"execution", "artifacts", "parameters", "knn", "federation", "federation.privacy", "methods", "simulation"}
    | {"training", "evaluation.metrics", "prediction"},
    "deployment": BASE
    | {"execution", "config", "sources", "artifacts", "parameters", "federation", "federation.uploads", "methods"}
    | {"simulation", "training", "workflow.admission"},
    "laws": BASE
    | {"config", "data.datasets", "data.schemes", "models", "parameters", "engine", "federation", "methods"}
    | {"federation.aggregators", "federation.uploads", "simulation", "training", "prediction"}
    | {"workflow.admission", "deployment"},
    "templates": {"data.datasets", "data.schemes", "federation", "federation.aggregators", "models", "parameters"},
    "options": BASE | {"config", "execution", "artifacts", "training"},  # the last two for types alone
    "jobs": BASE | {"execution", "artifacts", "engine", "sources", "training"},
    "tuning": BASE | {"execution", "config", "artifacts", "methods", "evaluation.metrics", "jobs"},
    "comparison": BASE
    | {"execution", "config", "artifacts", "options", "methods", "federation", "federation.privacy", "training"}
    | {"evaluation", "evaluation.metrics", "evaluation.presentation", "jobs", "tuning"},
    "claims": BASE | {"config", "artifacts", "options", "evaluation", "evaluation.metrics", "comparison"},
    "commands": BASE
    | {"execution", "config", "sources", "data.datasets", "data.splits", "data.formats", "data.schemes"}
    | {"data.preparation", "models", "parameters", "engine", "knn", "methods", "artifacts", "simulation", "training"}
    | {"options", "prediction", "auditing", "workflow.admission", "laws", "encoders"}
    | {"federation", "federation.privacy", "federation.uploads"}
    | {"evaluation", "evaluation.charts", "evaluation.metrics", "evaluation.presentation", "evaluation.page"}
    | {"tracking", "jobs", "tuning", "comparison", "claims", "deployment"},
    "cli": BASE
    | {"execution", "config", "commands", "options", "artifacts", "jobs", "tuning", "comparison", "prediction"}
    | {"evaluation", "evaluation.presentation"},
    "__main__": {"cli", "errors", "options", "registry"},
    "__init__": {"commands", "evaluation", "simulation", "tracking"},
}
"""What each package or module may import besides itself, from the bottom to the top."""
FILES = sorted(ROOT.rglob("*.py"))


def parse(path):
    return ast.parse(path.read_text())


@cache
def read_imports(path):
    return tuple(imports(parse(path)))


def find_area(module):
    """Return the entry of ``ALLOWED`` that a module below the package belongs to: the longest that it begins with."""
    parts = module.split(".")
    return next((name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in ALLOWED), parts[0])


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_every_layer_has_files():
    assert {find_area(module_name(path)) for path in FILES if module_name(path) != "__init__"} >= {*ALLOWED} - {
        "__init__"
    }


def test_imports_follow_the_layers():
    violations = []
    for path in FILES:
        importer = find_area(module_name(path))
        for name in read_imports(path):
            below = name.removeprefix("pflcli.")
            if name.startswith("pflcli."):
                imported = find_area(below)
                if imported != importer and imported not in ALLOWED[importer]:
                    violations.append(f"{path.relative_to(ROOT)} imports {name}")
    assert violations == []


def test_command_line_modules_import_no_heavy_packages_at_the_top():
    for path in FILES:
        if find_area(module_name(path)) in {"cli", "options", "__main__"}:
            top = ast.Module([n for n in parse(path).body if isinstance(n, ast.Import | ast.ImportFrom)], [])
            for name in imports(top):
                assert name.split(".")[0] not in {"torch", "faiss", "h5py", "numpy", "pandas", "vl_convert"}, path
                assert name.split(".")[:2] not in (["pflcli", "commands"], ["pflcli", "artifacts"]), f"{path}: {name}"


@pytest.mark.parametrize(
    ("module", "only"),
    [
        ("faiss", {"knn/indexes.py", "prediction/exporting/reader.py"}),  # which is a script of its own
        ("torchvision", {"vision.py"}),
        ("timm", {"vision.py"}),
        ("vl_convert", {"evaluation/charts/renderer.py"}),
        (
            "sklearn",
            {"methods/parts/clustering.py", "data/datasets/heart_disease.py"},
        ),  # its split is scikit-learn's own
        (
            "numba",
            {f"accelerated/{name}.py" for name in ("compiler", "instructions")},
        ),
        (
            "llvmlite",
            {f"accelerated/{name}.py" for name in ("compiler", "instructions", "products")},
        ),
    ],
)
def test_package_is_imported_only_in_the_listed_files(module, only):
    places = {
        str(path.relative_to(ROOT))
        for path in FILES
        if any(name.split(".")[0] == module for name in read_imports(path))
    }
    assert all((ROOT / name).is_file() for name in only)
    assert places <= only  # vision imports by name, as the module may need help first


def test_accelerated_package_is_used_only_through_the_backend():
    accelerated, backend = "pflcli.accelerated", "engine/backend.py"
    assert files_of("accelerated")
    assert ROOT / backend in FILES
    for path in FILES:
        if find_area(module_name(path)) != "accelerated":
            place, text = str(path.relative_to(ROOT)), path.read_text()
            for name in read_imports(path):
                assert name.split(".")[0] not in {"numba", "llvmlite"}, f"{place} imports {name}"
                assert not (name + ".").startswith(accelerated + "."), f"{place} imports {name}"
            assert (f'"{accelerated}' in text) == (place == backend), f"{place} names {accelerated}"


def test_no_files_or_packages_import_one_another_in_a_circle():
    assert circles_of_files() == []
    assert circles_of_packages() == []


def test_every_layer_imports_only_layers_below_it():
    order = [*ALLOWED]
    for name, allowed in ALLOWED.items():
        assert all(order.index(other) <= order.index(name) for other in allowed), name


def test_kernel_packages_use_no_file_terminal_or_global_seed():
    forbidden = {"open", "print", "input", "manual_seed", "seed"}
    for path in files_of("methods", "federation", "engine", "parameters", "knn"):
        # The arena's file is memory that processes share: nothing of it reaches a disk.
        if path.name != "shared_memory.py":
            for node in ast.walk(parse(path)):
                if isinstance(node, ast.Call):
                    called = node.func
                    name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                    assert name not in forbidden, f"{path.name} calls {name}"


def test_charts_import_only_charts_metrics_and_errors():
    for path in files_of("evaluation/charts"):
        for name in read_imports(path):
            if name.startswith("pflcli."):
                below = ("pflcli.evaluation.charts", "pflcli.evaluation.metrics", "pflcli.errors", "pflcli.foreign")
                assert name.startswith(below), f"{path.name} imports {name}"
