"""The code that an artifact depends on: whatever computes it counts, and how that is written does not."""

from __future__ import annotations

import ast
import shutil

import pytest

from helpers import ROOT, imports
from pflcli import registry, sources
from pflcli.artifacts.reader import open_artifact
from pflcli.commands import build_datastore, personalize, sweep, train_global
from pflcli.errors import ConflictError
from pflcli.execution import Execution

METHODS = registry.names("methods")
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
def test_code_is_what_it_does_not_how_it_is_written(tmp_path, monkeypatch, text, same):
    monkeypatch.setattr(registry, "folder", lambda group: tmp_path)
    (tmp_path / "new_one.py").write_text(CODE)
    before = sources.code_hash("methods", "new-one")
    (tmp_path / "new_one.py").write_text(text)
    assert (sources.code_hash("methods", "new-one") == before) is same


def file_of(group, name):
    return ROOT / registry.folder(group).relative_to(registry.ROOT) / f"{name.replace('-', '_')}.py"


def reached(*files, shared=lambda module: False):
    """All files of the package that these import, directly or through one another."""
    known, ahead = set(), list(files)
    while ahead:
        file = ahead.pop()
        if file not in known:
            known.add(file)
            for node in ast.walk(ast.parse(file.read_text())):
                for name in imports(ast.Module([node], [])) if isinstance(node, ast.ImportFrom) else ():
                    for inner in (name, *(f"{name}.{alias.name}" for alias in node.names)):
                        below = inner.removeprefix("pflcli.")
                        path = ROOT / f"{below.replace('.', '/')}.py"
                        ahead += [path] if path.is_file() and not shared(below) else []
    return known


def names_of(files):
    """The names of modules below the package."""
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files}


MATHEMATICS = ("federation", "parameters", "knn", "methods.parts")


def test_what_is_shared_is_what_a_run_stands_on():
    """A new method changes nothing here, and new work on all samples or models has to be declared."""
    stands = {name for name in names_of(reached(ROOT / "federation" / "run.py")) if name.startswith(MATHEMATICS)}
    # The search in stores is kNN-Per's: a run only passes it on.
    shared = {name for name in sources.SHARED if name.startswith(MATHEMATICS)}
    shared -= {"parameters", "federation", "federation.uploads", "federation.aggregators"}
    assert stands - {f"knn.{name}" for name in ("stores", "indexes")} == shared


def test_every_other_module_counts_for_a_result():
    counted = set()
    for name in METHODS:
        counted |= names_of(reached(file_of("methods", name), shared=sources.is_shared))
    with_commands = {"knn.capacity", "knn.prototypes", "methods.parts.logarithmic_pool"}  # not of methods
    files = [file for package in MATHEMATICS for file in (ROOT / package.replace(".", "/")).glob("[!_]*.py")]
    assert names_of(files) - sources.SHARED - with_commands == {n for n in counted if n.startswith(MATHEMATICS)}


def other_constant(text):
    """The same code with another constant; one is added where there is none."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            lines = text.splitlines(keepends=True)
            line = lines[node.lineno - 1].encode()
            lines[node.lineno - 1] = (line[: node.col_offset] + b"77" + line[node.end_col_offset :]).decode()
            return "".join(lines)
    return f"{text}\n_ADDED = 1\n"


def other_words(text):
    return "# A comment.\n" + text.replace('"""', '"""Other words. ', 1) + "\nimport os as not_used\n"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A copy of the package, whose files a test may change."""
    root = tmp_path_factory.mktemp("copy") / "pflcli"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def edited(elsewhere, monkeypatch):
    monkeypatch.setattr(registry, "ROOT", elsewhere)
    touched = {}

    def edit(path, change):
        copy = elsewhere / path.relative_to(ROOT)
        touched.setdefault(copy, copy.read_text())
        copy.write_text(change(touched[copy]))

    yield edit
    for copy, text in touched.items():
        copy.write_text(text)


@pytest.fixture
def drafted(monkeypatch):
    """Commands return what they would make, and make nothing."""
    for step in (personalize, train_global, sweep, build_datastore):
        monkeypatch.setattr(step, "make", lambda out, draft, execution, build, **more: draft.fingerprint)


def holds(edited, files, fingerprint):
    before = fingerprint()
    for path in sorted(files):
        edited(path, other_words)
        assert fingerprint() == before, f"words in {path}"
        edited(path, other_constant)
        assert fingerprint() != before, f"a constant in {path}"
        edited(path, lambda text: text)
    assert fingerprint() == before


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_anywhere_in_its_mathematics_changes_the_request_and_words_do_not(
    small, tmp_path, edited, drafted, method
):
    files = reached(file_of("methods", method), shared=sources.is_shared)
    # What reads embeddings trains no model.
    if not {"embeddings", "datastore"} & {*registry.card("methods", method).facts["NEEDS"]}:
        files.add(ROOT / "models" / "mlp.py")
    holds(edited, files, lambda: personalize.personalize(method, small.d, tmp_path / "m"))


def test_the_values_that_are_searched_change_no_request(edited):
    file, before = file_of("methods", "apfl"), sources.code_hash("methods", "apfl")
    edited(file, lambda text: text.replace('GRID = {"alpha": (0.25, ', 'GRID = {"alpha": (0.2, '))
    assert "(0.2, " in registry.path("methods", "apfl").read_text()
    assert sources.code_hash("methods", "apfl") == before


@pytest.mark.parametrize("model", ["lstm", "gru"])
def test_a_model_of_series_counts_with_all_its_files(edited, model):
    files = reached(file_of("models", model), shared=sources.is_shared)
    assert len(files) > 1
    holds(edited, files, lambda: sources.code_hash("models", model))


@pytest.mark.parametrize("model", ["mlp", "resnet-18"])
def test_a_model_counts_with_all_its_files(small, tmp_path, edited, drafted, model):
    files = reached(file_of("models", model), shared=sources.is_shared)
    assert (len(files) > 1) == (model != "mlp")
    holds(edited, files, lambda: train_global.train_global(small.p, tmp_path / "b", settings={"model": model}))


@pytest.mark.parametrize(
    "name", [f"{group}/{name}" for group in STEPS for name in registry.names(group) if name != "mean"]
)
@pytest.mark.parametrize("command", ["train-global", "personalize"])
def test_an_aggregator_or_upload_step_counts_with_its_file(small, tmp_path, edited, drafted, command, name):
    group, _, member = name.partition("/")
    # The mean is not recorded, as older versions had no other aggregator.
    settings = {"model": "logistic", STEPS[group]: member if group == "aggregators" else [member]}

    def fingerprint():
        if command == "train-global":
            return train_global.train_global(small.p, tmp_path / "b", settings=settings)
        return personalize.personalize("fedprox", small.p, tmp_path / "m", settings=settings)

    holds(edited, [file_of(group, member)], fingerprint)


def test_a_sweep_depends_on_knn_per_on_stores_and_on_scores(small, tmp_path, edited, drafted):
    knn = ("methods/parts/knn_grid", "methods/knn_per", "knn/indexes", "knn/stores", "knn/capacity")
    names = (*knn, "evaluation/metrics/scores")
    holds(edited, [ROOT / f"{name}.py" for name in names], lambda: sweep.sweep(small.e, tmp_path / "s"))


def test_stores_depend_on_who_keeps_what_and_on_the_prototypes(small, tmp_path, edited, drafted):
    def fingerprint(**kwargs):
        return build_datastore.build_datastore(small.e, tmp_path / "d", **kwargs)

    holds(edited, [ROOT / "knn" / "capacity.py"], fingerprint)
    holds(edited, [ROOT / "knn" / "prototypes.py"], lambda: fingerprint(prototypes=2))
    holds(edited, [ROOT / "knn" / "indexes.py"], lambda: fingerprint(index="SQ8"))
    before = fingerprint()
    edited(ROOT / "knn" / "prototypes.py", other_constant)
    assert fingerprint() == before


def test_a_scheme_counts_with_those_that_it_calls(edited):
    files = reached(file_of("schemes", "clusters"), shared=sources.is_shared)
    assert {path.stem for path in files} == {"clusters", "dirichlet"}
    files.add(ROOT / "data" / "schemes" / "__init__.py")
    holds(edited, files, lambda: sources.code_hash("schemes", "clusters"))


def test_a_module_may_move(edited, elsewhere):
    before = sources.code_hash("methods", "fedham")
    moved = elsewhere / "methods" / "_hybrid.py"
    moved.write_text((elsewhere / "methods" / "parts" / "ham.py").read_text())
    edited(
        file_of("methods", "fedham"),
        lambda text: text.replace("from pflcli.methods.parts import ham, records\n", "").replace(
            "KIND =", "from pflcli.methods import _hybrid as ham\nfrom pflcli.methods.parts import records\nKIND =", 1
        ),
    )
    try:
        assert sources.code_hash("methods", "fedham") == before
        moved.write_text(other_constant(moved.read_text()))
        assert sources.code_hash("methods", "fedham") != before
    finally:
        moved.unlink()


def test_the_engine_changes_no_request(edited):
    before = {name: sources.code_hash("methods", name) for name in METHODS}
    edited(ROOT / "engine" / "engine.py", other_constant)
    assert {name: sources.code_hash("methods", name) for name in METHODS} == before


@pytest.mark.parametrize("name", ["b", "knn", "fedavg"])
def test_the_code_of_a_method_is_part_of_what_it_made(small, name):
    manifest = open_artifact(getattr(small, name)).manifest
    expected = [f"methods/{manifest.request['method']}", *(["models/mlp"] if name != "knn" else [])]
    assert manifest.code == {part: sources.code_hash(*part.split("/")) for part in expected}


def test_a_backbone_of_older_code_is_not_taken_for_the_rounds(small, tmp_path, edited):
    """The method runs its rounds again, as its answers are to be those of the code that is there now."""
    assert not (small.fedavg / "rounds.csv").exists()
    edited(ROOT / "models" / "mlp.py", other_constant)
    personalize.personalize("fedavg", small.d, tmp_path / "f")
    assert (tmp_path / "f" / "rounds.csv").exists()


def test_a_conflict_says_which_code_has_changed(small, small_copy, edited):
    edited(ROOT / "methods" / "parts" / "knn_grid.py", other_constant)
    with pytest.raises(ConflictError) as error:
        personalize.personalize("knn-per", small_copy.d, small_copy.knn, execution=Execution(dry_run=True))
    assert "the code of methods/knn-per has changed" in error.value.fix


def test_another_model_or_method_is_no_changed_code(small_copy):
    with pytest.raises(ConflictError) as error:
        train_global.train_global(
            small_copy.p, small_copy.b, settings={"model": "logistic", "rounds": 2, "participation": 0.5}
        )
    assert error.value.fix == ('settings.model: "mlp" -> "logistic"', "--force replaces it")
    with pytest.raises(ConflictError) as error:
        personalize.personalize("local", small_copy.d, small_copy.fedavg)
    assert not any("code" in line for line in error.value.fix)
