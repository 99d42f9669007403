"""Code hashes of artifacts cover all code that computes them, and ignore how it is written."""

from __future__ import annotations

import ast
import json
import re
import shutil

import pytest
from golden.make import FINGERPRINTS, make_chain, read_fingerprints

from helpers import CLASSIFYING, ROOT, files_of, imports
from pflcli.artifacts import kinds
from pflcli.artifacts.manifest import read
from pflcli.artifacts.reader import open_artifact
from pflcli.commands import build_datastore, personalize, train_global
from pflcli.core import registry, sources
from pflcli.core.errors import ConflictError
from pflcli.core.execution import Execution
from pflcli.core.registry import files
from pflcli.plugins.knn_tools import sweep

METHODS = CLASSIFYING
STEPS = {"aggregators": "aggregator", "uploads": "upload"}
"""Groups of files that change what the server makes of uploads, with the setting that names one."""
CODE = '''"""A method."""
# a comment
def f(x):
    """Words."""
    return x + 1
'''


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (CODE.replace("A method", "Another word for it").replace("Words.", "More."), True),
        (CODE.replace("# a comment", "\n"), True),
        (CODE.replace("# a comment", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ast"), True),
        (CODE.replace("x + 1", "(x\n        + 1)"), True),
        (CODE.replace("x + 1", "x + 2"), False),
        (CODE.replace("x + 1", "1 + x"), False),
    ],
)
def test_code_hash_ignores_comments_and_docstrings(tmp_path, monkeypatch, text, same):
    monkeypatch.setattr(files, "folder", lambda group: tmp_path)
    (tmp_path / "new_one.py").write_text(CODE)
    before = sources.code_hash("methods", "new-one")
    (tmp_path / "new_one.py").write_text(text)
    assert (sources.code_hash("methods", "new-one") == before) is same


def test_module_hash_refuses_a_module_that_does_not_exist():
    with pytest.raises(LookupError, match=r"no module core\.knn\.capacitty"):
        sources.module_hash("core.knn.voting", "core.knn.capacitty")


@pytest.mark.parametrize(
    ("constant", "value"),
    [("SHARED", sources.SHARED | {"core.federation.moved"}), ("_SHARED_WITH_CONTENTS", ("moved.",))],
)
def test_a_shared_name_that_does_not_exist_is_refused(monkeypatch, tmp_path, constant, value):
    monkeypatch.setattr(sources, constant, value)
    sources._require_shared_files.cache_clear()
    with pytest.raises(LookupError, match=r"no module .*moved"):
        sources.code_hash("methods", "fedavg")


def test_artifacts_of_each_kind_have_the_stored_fingerprints(tmp_path):
    """A move of code must not change them. If results change on purpose: python tests/golden/make.py --fingerprints."""
    make_chain(made := tmp_path / "made")
    found = read_fingerprints(made)
    assert {read(made / name).kind for name in found} == set(kinds.schemas()) - {"federation"}
    assert found == json.loads(FINGERPRINTS.read_text())


def find_file(group, name):
    return ROOT / registry.folder(group).relative_to(registry.ROOT) / f"{name.replace('-', '_')}.py"


def find_imported_files(*files, shared=lambda module: False):
    """All files of the package that these import, directly or through one another."""
    known, ahead = set(), list(files)
    while ahead:
        file = ahead.pop()
        if file not in known:
            known.add(file)
            for node in ast.walk(ast.parse(file.read_text())):
                for name in imports(ast.Module([node], [])) if isinstance(node, ast.ImportFrom) else ():
                    owners = [HOMES.get(alias.name, name) if name == "pflcli.method" else name for alias in node.names]
                    ends = [f"{owner}.{alias.name}" for owner, alias in zip(owners, node.names, strict=True)]
                    for inner in (*owners, *ends):
                        below = inner.removeprefix("pflcli.")
                        path = ROOT / f"{below.replace('.', '/')}.py"
                        ahead += [path] if path.is_file() and not shared(below) else []
    return known


HOMES = {name: module for module, name in re.findall(r"from (\S+) import (\w+) as", (ROOT / "method.py").read_text())}
"""Where the names are defined that methods import from one file."""
ALL_OFFERED = "\n".join(f"from {module} import {name}" for name, module in HOMES.items())


def module_names(files):
    """The names of modules below the package."""
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files}


MATHEMATICS = ("core.federation", "core.parameters", "core.knn", "methods.parts")


def test_shared_modules_are_those_that_a_run_imports():
    """A new method changes nothing here, and new work on all samples or models has to be declared."""
    stands = {
        name
        for name in module_names(find_imported_files(ROOT / "core" / "federation" / "run.py"))
        if name.startswith(MATHEMATICS)
    }
    # The search in stores is kNN-Per's: a run only passes it on.
    shared = {name for name in sources.SHARED if name.startswith(MATHEMATICS)}
    shared -= {f"core.{name}" for name in ("parameters", "federation", "federation.uploads", "federation.aggregators")}
    assert stands - {f"core.knn.{name}" for name in ("stores", "indexes")} == shared


def test_every_unshared_module_counts_for_some_method():
    counted = set()
    for name in METHODS:
        counted |= module_names(find_imported_files(find_file("methods", name), shared=sources.is_shared))
    with_commands = {
        "core.federation.layers",
        "core.knn.capacity",
        "core.knn.prototypes",
        "methods.parts.logarithmic_pool",
    }
    packages = [package.replace(".", "/") for package in MATHEMATICS]
    files = [file for file in files_of(*packages) if file.parent in {ROOT / name for name in packages}]
    files = [file for file in files if not file.name.startswith("_")]
    assert module_names(files) - sources.SHARED - with_commands == {n for n in counted if n.startswith(MATHEMATICS)}


def change_constant(text):
    """The same code with another constant; one is added where there is none."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            lines = text.splitlines(keepends=True)
            line = lines[node.lineno - 1].encode()
            lines[node.lineno - 1] = (line[: node.col_offset] + b"77" + line[node.end_col_offset :]).decode()
            return "".join(lines)
    return f"{text}\n_ADDED = 1\n"


def change_words(text):
    return "# A comment.\n" + text.replace('"""', '"""Other words. ', 1) + "\nimport os as not_used\n"


@pytest.fixture(scope="module")
def package_copy(tmp_path_factory):
    """A copy of the package, whose files a test may change."""
    root = tmp_path_factory.mktemp("copy") / "pflcli"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def edit_package(package_copy, monkeypatch):
    for module in (registry, files):
        monkeypatch.setattr(module, "ROOT", package_copy)
    touched = {}

    def edit(path, change):
        copy = package_copy / path.relative_to(ROOT)
        touched.setdefault(copy, copy.read_text())
        copy.write_text(change(touched[copy]))

    yield edit
    for copy, text in touched.items():
        copy.write_text(text)


@pytest.fixture
def return_fingerprints(monkeypatch):
    """Commands return what they would make, and make nothing."""
    for step in (personalize, train_global, sweep, build_datastore):
        monkeypatch.setattr(step, "make", lambda out, draft, execution, build, **more: draft.fingerprint)


def assert_fingerprint_follows_code(edited, files, fingerprint):
    before = fingerprint()
    for path in sorted(files):
        edited(path, change_words)
        assert fingerprint() == before, f"words in {path}"
        edited(path, change_constant)
        assert fingerprint() != before, f"a constant in {path}"
        edited(path, lambda text: text)
    assert fingerprint() == before


@pytest.mark.parametrize("method", METHODS)
def test_request_of_a_method_changes_with_constants_and_not_with_words(
    small, tmp_path, edit_package, return_fingerprints, method
):
    files = find_imported_files(find_file("methods", method), shared=sources.is_shared)
    # What reads embeddings trains no model.
    if not {"embeddings", "datastore"} & {*registry.card("methods", method).facts["NEEDS"]}:
        files.add(ROOT / "models" / "mlp.py")
    assert_fingerprint_follows_code(
        edit_package, files, lambda: personalize.personalize(method, small.d, tmp_path / "m")
    )


def test_grid_values_do_not_change_the_code_hash(edit_package):
    file, before = find_file("methods", "apfl"), sources.code_hash("methods", "apfl")
    edit_package(file, lambda text: text.replace('GRID = {"alpha": (0.25, ', 'GRID = {"alpha": (0.2, '))
    assert "(0.2, " in registry.path("methods", "apfl").read_text()
    assert sources.code_hash("methods", "apfl") == before


@pytest.mark.parametrize("model", ["lstm", "gru"])
def test_code_hash_of_a_recurrent_model_covers_all_its_files(edit_package, model):
    files = find_imported_files(find_file("models", model), shared=sources.is_shared)
    assert len(files) > 1
    assert_fingerprint_follows_code(edit_package, files, lambda: sources.code_hash("models", model))


@pytest.mark.parametrize("model", ["mlp", "resnet-18"])
def test_request_covers_all_files_of_a_model(small, tmp_path, edit_package, return_fingerprints, model):
    files = find_imported_files(find_file("models", model), shared=sources.is_shared)
    assert (len(files) > 1) == (model != "mlp")
    assert_fingerprint_follows_code(
        edit_package, files, lambda: train_global.train_global(small.p, tmp_path / "b", settings={"model": model})
    )


@pytest.mark.parametrize(
    "name", [f"{group}/{name}" for group in STEPS for name in registry.names(group) if name != "mean"]
)
@pytest.mark.parametrize("command", ["train-global", "personalize"])
def test_request_covers_the_file_of_an_aggregator_or_upload_step(
    small, tmp_path, edit_package, return_fingerprints, command, name
):
    group, _, member = name.partition("/")
    # The mean is not recorded, as older versions had no other aggregator.
    settings = {"model": "logistic", STEPS[group]: member if group == "aggregators" else [member]}

    def fingerprint():
        if command == "train-global":
            return train_global.train_global(small.p, tmp_path / "b", settings=settings)
        return personalize.personalize("fedprox", small.p, tmp_path / "m", settings=settings)

    assert_fingerprint_follows_code(edit_package, [find_file(group, member)], fingerprint)


def test_request_of_a_sweep_covers_knn_per_stores_and_scores(small, tmp_path, edit_package, return_fingerprints):
    knn = ("methods/parts/knn_grid", "methods/knn_per", "core/knn/indexes", "core/knn/stores", "core/knn/capacity")
    names = (*knn, "core/scores")
    assert_fingerprint_follows_code(
        edit_package, [ROOT / f"{name}.py" for name in names], lambda: sweep.sweep(small.e, tmp_path / "s")
    )


def test_request_of_a_datastore_covers_capacity_prototypes_and_indexes(
    small, tmp_path, edit_package, return_fingerprints
):
    def fingerprint(**kwargs):
        return build_datastore.build_datastore(small.e, tmp_path / "d", **kwargs)

    assert_fingerprint_follows_code(edit_package, [ROOT / "core" / "knn" / "capacity.py"], fingerprint)
    assert_fingerprint_follows_code(
        edit_package, [ROOT / "core" / "knn" / "prototypes.py"], lambda: fingerprint(prototypes=2)
    )
    assert_fingerprint_follows_code(
        edit_package, [ROOT / "core" / "knn" / "indexes.py"], lambda: fingerprint(index="SQ8")
    )
    before = fingerprint()
    edit_package(ROOT / "core" / "knn" / "prototypes.py", change_constant)
    assert fingerprint() == before


def test_code_hash_of_a_scheme_covers_the_schemes_it_calls(edit_package):
    files = find_imported_files(find_file("schemes", "clusters"), shared=sources.is_shared)
    assert {path.stem for path in files} == {"clusters", "dirichlet"}
    files.add(ROOT / "core" / "schemes" / "__init__.py")
    assert_fingerprint_follows_code(edit_package, files, lambda: sources.code_hash("schemes", "clusters"))


def test_code_hash_does_not_change_when_a_module_moves(edit_package, package_copy):
    before = sources.code_hash("methods", "fedham")
    moved = package_copy / "methods" / "_hybrid.py"
    moved.write_text((package_copy / "methods" / "parts" / "ham.py").read_text())
    edit_package(
        find_file("methods", "fedham"),
        lambda text: text.replace("from pflcli.methods.parts import ham, records\n", "").replace(
            "KIND =",
            "from pflcli.methods import _hybrid as ham\nfrom pflcli.methods.parts import records\nKIND =",
            1,
        ),
    )
    try:
        assert sources.code_hash("methods", "fedham") == before
        moved.write_text(change_constant(moved.read_text()))
        assert sources.code_hash("methods", "fedham") != before
    finally:
        moved.unlink()


@pytest.mark.parametrize(
    ("plain", "offered"),
    [
        ("from pflcli.core.federation.run import Run", "from pflcli.method import Run"),
        ("from pflcli.core.knn.stores import Stores", "from pflcli.method import Run, Stores"),
        ("from pflcli.core.knn import voting", "from pflcli.method import voting as votes"),
        (ALL_OFFERED, "import pflcli.method"),
        (ALL_OFFERED, "from pflcli import method"),
    ],
)
def test_code_hash_follows_a_name_of_the_methods_file_to_its_module(tmp_path, monkeypatch, plain, offered):
    monkeypatch.setattr(registry, "path", lambda group, name: tmp_path / f"{name}.py")
    (tmp_path / "plain.py").write_text("\n".join([plain, CODE]))
    (tmp_path / "offered.py").write_text("\n".join([offered, CODE]))
    (tmp_path / "none.py").write_text(CODE)
    hashes = {name: sources.code_hash("methods", name) for name in ("plain", "offered", "none")}
    assert hashes["offered"] == hashes["plain"]
    assert (hashes["offered"] == hashes["none"]) == plain.endswith("Run")


def test_code_hash_does_not_cover_the_engine(edit_package):
    before = {name: sources.code_hash("methods", name) for name in METHODS}
    edit_package(ROOT / "core" / "engine" / "engine.py", change_constant)
    assert {name: sources.code_hash("methods", name) for name in METHODS} == before


@pytest.mark.parametrize("name", ["b", "knn", "fedavg"])
def test_manifest_records_the_code_of_method_and_model(small, name):
    manifest = open_artifact(getattr(small, name)).manifest
    expected = [f"methods/{manifest.request['method']}", *(["models/mlp"] if name != "knn" else [])]
    assert manifest.code == {part: sources.code_hash(*part.split("/")) for part in expected}


def test_method_runs_its_own_rounds_when_the_code_of_the_backbone_changed(small, tmp_path, edit_package):
    """The method runs its rounds again, as its answers are to be those of the code that is there now."""
    assert not (small.fedavg / "rounds.csv").exists()
    edit_package(ROOT / "models" / "mlp.py", change_constant)
    personalize.personalize("fedavg", small.d, tmp_path / "f")
    assert (tmp_path / "f" / "rounds.csv").exists()


def test_conflict_names_the_code_that_changed(small, small_copy, edit_package):
    edit_package(ROOT / "methods" / "parts" / "knn_grid.py", change_constant)
    with pytest.raises(ConflictError) as error:
        personalize.personalize("knn-per", small_copy.d, small_copy.knn, execution=Execution(dry_run=True))
    assert "the code of methods/knn-per has changed" in error.value.fix


def test_conflict_of_another_model_or_method_does_not_mention_code(small_copy):
    with pytest.raises(ConflictError) as error:
        train_global.train_global(
            small_copy.p, small_copy.b, settings={"model": "logistic", "rounds": 2, "participation": 0.5}
        )
    assert error.value.fix == ('settings.model: "mlp" -> "logistic"', "--force replaces it")
    with pytest.raises(ConflictError) as error:
        personalize.personalize("local", small_copy.d, small_copy.fedavg)
    assert not any("code" in line for line in error.value.fix)
