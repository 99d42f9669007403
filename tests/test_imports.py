"""Imports between packages follow the layers of the architecture."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from test_figures import circles_of_files, circles_of_packages

import pflcli
from helpers import ROOT, files_of, imports
from pflcli.core import plugins

CORE = (
    *("errors", "wording", "rng", "settings", "reporter", "execution", "foreign", "vision", "registry", "plugins"),
    *("sources", "config", "scores", "tasks", "metrics", "datasets", "schemes", "splits", "models", "parameters"),
    *("engine", "knn"),
    *("federation.privacy", "federation.uploads", "federation.aggregators", "federation", "methods", "simulation"),
)
"""The modules and packages of the core, from the bottom to the top: each imports only what stands before it."""
ALLOWED = {
    **{f"core.{name}": {f"core.{below}" for below in CORE[:n]} for n, name in enumerate(CORE)},
    "models": set(),
    "method": set(),
    "methods": {"method"},
    "data.datasets": set(),
    "evaluation.metrics": set(),
    "evaluation.charts": {"evaluation.metrics"},
    "evaluation.presentation": {"evaluation.metrics"},
    "artifacts": set(),
    "evaluation": {"methods", "evaluation.metrics", "evaluation.charts", "evaluation.presentation", "artifacts"},
    "data.formats": {"data.datasets", "artifacts"},
    "data.preparation": {"data.datasets", "artifacts", "data.formats"},
    "workflow.training": {"models", "methods", "evaluation.metrics", "artifacts"},
    "workflow.admission": {"models", "methods", "artifacts"},
    "workflow.prediction": {
        *("models", "methods", "artifacts", "evaluation", "data.formats", "data.preparation"),
        "workflow.training",
    },
    "options": {"evaluation.metrics", "artifacts"},
    "workflow.jobs": {"artifacts", "workflow.training"},
    "workflow.tuning": {"methods", "evaluation.metrics", "artifacts", "workflow.jobs"},
    "workflow.comparison": {
        "methods",
        "evaluation.metrics",
        "evaluation.presentation",
        "artifacts",
        "evaluation",
        "workflow.training",
        "options",
        "workflow.jobs",
        "workflow.tuning",
    },
    "commands": {
        "models",
        "methods",
        "data.datasets",
        "evaluation.metrics",
        "evaluation.charts",
        "evaluation.presentation",
        "artifacts",
        "evaluation",
        "data.formats",
        "data.preparation",
        "workflow.training",
        "workflow.admission",
        "workflow.prediction",
        "options",
        "workflow.jobs",
        "workflow.tuning",
        "workflow.comparison",
    },
    "cli": {
        "evaluation.presentation",
        "artifacts",
        "evaluation",
        "workflow.prediction",
        "options",
        "workflow.jobs",
        "workflow.tuning",
        "workflow.comparison",
        "commands",
    },
    "__main__": {"options", "cli"},
}
"""What each package or module may import besides itself, from the bottom to the top; all may import the core."""
PLUGINS: dict[str, set[str]] = {
    "accelerated": set(),
    "audits": set(),
    "checks": {"export", "sites"},
    "claims": set(),
    "demo": set(),
    "export": set(),
    "formats": set(),
    "groups": set(),
    "knn_tools": set(),
    "page": set(),
    "referee": set(),
    "replay": set(),
    "series": set(),
    "sites": set(),
    "tracking": set(),
}
"""The plug-ins, and which others each imports, of which laws need some."""
CORE_ROOMS = {*ALLOWED}
ALLOWED |= {
    f"plugins.{name}": CORE_ROOMS | {f"plugins.{each}" for each in PLUGINS[name]}
    for name in sorted(PLUGINS, key=lambda name: len(PLUGINS[name]))
}
ALLOWED |= {"__init__": {"evaluation", "commands", *(f"plugins.{name}" for name in PLUGINS)}}
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
    areas = {find_area(module_name(path)) for path in FILES if module_name(path) != "__init__"}
    assert areas - {"plugins"} >= {*ALLOWED} - {"__init__"}
    assert {path.parent.name for path in FILES if path.name == "plugin.py"} == {*PLUGINS}


def test_imports_follow_the_layers():
    violations = []
    for path in FILES:
        importer = find_area(module_name(path))
        for name in read_imports(path):
            below = name.removeprefix("pflcli.")
            if name.startswith("pflcli."):
                imported = find_area(below)
                is_core = imported.startswith("core.") and not importer.startswith("core.")
                if imported != importer and not is_core and imported not in ALLOWED[importer]:
                    violations.append(f"{path.relative_to(ROOT)} imports {name}")
    assert violations == []


def test_methods_templates_and_examples_of_documents_import_from_one_file():
    """Files that users write, or copy, go on working when pfl moves what it defines elsewhere."""
    templates = [path for path in FILES if path.parent.name == "templates" and path.name != "task.py"]  # no method
    files = [*templates, *(path for path in FILES if find_area(module_name(path)) in {"methods"})]
    texts = [path.read_text() for path in files if path != ROOT / "methods" / "__init__.py"]
    pages = [ROOT.parent / "docs" / "methods.md", *(ROOT.parent / "docs" / "cookbook").glob("*.md")]
    examples = [code for page in pages for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)]
    names = [name for text in (*texts, *examples) for name in imports(ast.parse(text)) if name.startswith("pflcli")]
    assert len(names) > len(texts) > 40
    assert any("pflcli.method" in code for code in examples)
    offered = {"pflcli", "pflcli.method", *(f"pflcli.{name}" for name in pflcli.__all__)}
    assert [name for name in names if name not in offered and not f"{name}.".startswith("pflcli.methods.")] == []


def test_command_line_modules_import_no_heavy_packages_at_the_top():
    added = [
        plug.folder / f"{facts[what].partition(':')[0]}.py"
        for plug, facts in plugins.added("COMMANDS").values()
        for what in ("options", "terminal")
        if what in facts
    ]
    assert added
    own = [path for path in FILES if find_area(module_name(path)) in {"cli", "options", "__main__"}]
    for path in (*own, *added):
        top = ast.Module([n for n in parse(path).body if isinstance(n, ast.Import | ast.ImportFrom)], [])
        for name in imports(top):
            assert name.split(".")[0] not in {"torch", "faiss", "h5py", "numpy", "pandas", "vl_convert"}, path
            assert name.split(".")[:2] not in (["pflcli", "commands"], ["pflcli", "artifacts"]), f"{path}: {name}"


@pytest.mark.parametrize(
    ("module", "only"),
    [
        ("faiss", {"core/knn/indexes.py", "plugins/export/reader.py"}),  # which is a script of its own
        ("torchvision", {"core/vision.py"}),
        ("timm", {"core/vision.py"}),
        ("vl_convert", {"evaluation/charts/renderer.py"}),
        (
            "sklearn",
            {
                *(f"methods/parts/{name}.py" for name in ("classifiers", "clustering", "regressors")),
                "data/datasets/heart_disease.py",
            },
        ),  # its split is scikit-learn's own
        (
            "numba",
            {f"plugins/accelerated/{name}.py" for name in ("compiler", "instructions")},
        ),
        (
            "llvmlite",
            {f"plugins/accelerated/{name}.py" for name in ("compiler", "instructions", "products")},
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


def test_compiled_code_stands_in_one_plugin():
    assert files_of("plugins/accelerated")
    for path in FILES:
        if find_area(module_name(path)) != "plugins.accelerated":
            assert not {name.split(".")[0] for name in read_imports(path)} & {"numba", "llvmlite"}, path


def test_no_files_or_packages_import_one_another_in_a_circle():
    assert circles_of_files() == []
    assert circles_of_packages() == []


def test_every_layer_imports_only_layers_below_it():
    order = [*ALLOWED]
    for name, allowed in ALLOWED.items():
        assert all(order.index(other) <= order.index(name) for other in allowed), name


def test_kernel_packages_use_no_file_terminal_or_global_seed():
    forbidden = {"open", "print", "input", "manual_seed", "seed"}
    for path in files_of("methods", "core/federation", "core/engine", "core/parameters", "core/knn"):
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
                below = (
                    "pflcli.evaluation.charts",
                    "pflcli.evaluation.metrics",
                    "pflcli.core.metrics",
                    "pflcli.core.errors",
                    "pflcli.core.foreign",
                )
                assert name.startswith(below), f"{path.name} imports {name}"
