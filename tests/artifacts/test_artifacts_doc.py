"""``docs/artifacts.md`` and its CSV files say what is in artifacts, no more and no less; its snippets run."""

from __future__ import annotations

import ast
import csv
import json
import re
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open

from pflcli.artifacts import kinds
from pflcli.commands.compare import compare
from pflcli.commands.evaluate import evaluate
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.tune import tune
from pflcli.plugins.audits.audit import audit
from pflcli.plugins.claims.verify import verify
from pflcli.plugins.sites.federation import create_federation

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "artifacts.md").read_text(encoding="utf-8")
LEVELS = {"MUST", "MAY"}
KEYS = ("kind", "schema", "fingerprint", "request", "inputs", "code", "files", "summary", "made", "seal")
BELONGING = r"_(std_over_seeds|low|high|p|p_corrected|by_chance|by_chance_high)$"
TABLE = "who,outcome,age,city\n" + "".join(f"{'ab'[i % 2]},{'ny'[i % 3 == 0]},{i},{'XY'[i > 9]}\n" for i in range(20))

CLAIMS = """
[experiments.claimed]
dataset = "writers"
partition = { clients = 4 }
training = { model = "logistic", rounds = 1 }
[claims.personal]
says = "Local models are better than the global one"
on = ["claimed"]
method = "local"
direction = "higher"
against = ["fedavg"]
"""


def read_documented_rows(name):
    """Return the rows of a CSV file beside the page, each a cell by heading."""
    with (ROOT / "docs" / "artifacts" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_documented_fields(name):
    """Return the rows about each file of a kind, by the name of a field; those about files themselves are below ""."""
    fields = {"": {}}
    for row in read_documented_rows(name):
        file, field = (row["file"], row["name"]) if row["name"] else ("", row["file"])
        assert field not in fields.setdefault(file, {}), f"{name}: {file} {field} is there twice"
        fields[file][field] = row
    return fields


FIELDS = {name: read_documented_fields(name) for name in (*kinds.schemas(), "common")}
MANIFEST = {row["key"]: row for row in read_documented_rows("manifest")}
METRICS = {row["metric"]: row for row in read_documented_rows("metrics")}
SECTIONS = dict(zip(*[iter(re.split(r"^## (.*)$", PAGE, flags=re.M)[1:])] * 2, strict=True))


def find_documented_file(kind, name):
    """Return the rows about one file of a kind, wherever they are."""
    others = ["evaluation", "common"] if kind == "comparison" else ["common"]
    return next(FIELDS[where][name] for where in (kind, *others) if name in FIELDS[where])


def make_pattern(row):
    """Return the pattern of a name in the page; braces stand for any name, within a group if it is one of a group."""
    return re.sub(r"\\\{\w+\\\}", "[^/]+" if "/" in row else ".+", re.escape(row))


def find_description(name, rows):
    """Return the row that describes a name: its own, else that with the most letters outside braces."""
    fitting = [row for row in rows if re.fullmatch(make_pattern(row), name)]
    return rows[max(fitting, key=lambda row: len(re.sub(r"\{\w+\}", "", row)))] if fitting else None


def check_names(where, names, rows):
    """Every name is described, and every name that must be there is."""
    assert {row["level"] for row in rows.values()} <= LEVELS
    for name in names:
        assert find_description(name, rows), f"{where}: {name} is not documented"
    for name, row in rows.items():
        if row["level"] == "MUST":
            assert any(re.fullmatch(make_pattern(name), present) for present in names), f"{where}: {name} is missing"


def check_array(where, row, shape, dtype):
    documented, types = row["shape"], row["type"]
    if documented != "any":
        dimensions = [] if documented == "()" else documented.strip("()").split(",")
        rank = len(dimensions)
        assert len(shape) >= rank - 1 if dimensions[-1:] == [" ..."] else len(shape) == rank, f"{where}: {shape}"
    if types != "any":
        assert dtype in re.split(r", | or ", types), f"{where}: {dtype}"


def read_arrays(path):
    """Return the shape and type of everything in an HDF5 or safetensors file, attributes as @NAME."""
    if path.suffix == ".safetensors":
        with safe_open(path, "numpy") as file:
            return {name: (file.get_tensor(name).shape, str(file.get_tensor(name).dtype)) for name in file.keys()}  # noqa: SIM118
    listed = {}
    with h5py.File(path) as file:

        def add(name, item):
            if isinstance(item, h5py.Dataset):
                listed[name] = item.shape, "UTF-8" if item.dtype.kind in "SO" else str(item.dtype)

        file.visititems(add)
        for name, value in file.attrs.items():
            array = np.asarray(value)
            listed[f"@{name}"] = array.shape, "UTF-8" if array.dtype.kind in "SO" else str(array.dtype)
    return listed


def check_cells(where, rows, cells):
    for name in cells.columns:
        kind, known = find_description(name, rows)["type"], cells[name].dropna()
        if kind in ("integer", "number") and len(known):
            assert known.dtype.kind in "iuf", f"{where}: {name}"
            assert kind == "number" or (known % 1 == 0).all(), f"{where}: {name}"


@pytest.fixture(scope="module")
def runs_of_every_kind(small, tmp_path_factory):
    """A folder of artifacts of every kind, by the names that the page gives them."""
    at = tmp_path_factory.mktemp("page") / "runs"
    at.mkdir()
    names = {
        "p": "p",
        "b": "b",
        "e": "e",
        "d": "d",
        "knn-per": "knn",
        "fedavg": "fedavg",
        "evaluation": "ev",
        "audit": "au",
    }
    for name, attribute in {**names, "sweep": "sw", "updated": "ud"}.items():
        (at / name).symlink_to(getattr(small, attribute))
    (at.parent / "visits.csv").write_text(TABLE)
    import_data(at.parent / "visits.csv", at / "data", client="who", label="outcome", standardize=True)
    mlp = {"model": "mlp", "rounds": 1}
    compare([small.p], at / "c", methods=["local"], settings=mlp, references=False)
    tune("local", small.p, at.parent / "t", search={"lr": "0.1,1"}, settings=mlp)
    (at / "tuning").symlink_to(at.parent / "t" / "tuning")
    (at.parent / "claims.toml").write_text(CLAIMS)
    verify(at.parent / "claims.toml", at.parent / "v", seeds=[0])
    (at / "verdicts").symlink_to(at.parent / "v" / "verdicts")
    partition("writers", at / "p-new", clients=6, seed=0, new_clients=0.3)
    partition("writers", at / "p-clusters", clients=20, seed=0, scheme="clusters", part=(1, 8))
    personalize("panm", at / "p-new", at / "panm-new", settings={**mlp, "participation": 1.0})
    personalize("fedavg", at / "p-new", at / "fedavg-new", settings={**mlp, "test_last": 1})
    options = {"warmup": 0, "ham_epochs": 1}
    personalize(
        "fedham",
        at / "p-new",
        at / "fedham-new",
        options=options,
        settings={**mlp, "participation": 1.0, "dropout": 0.3},
    )
    personalize("panm", at / "p-clusters", at / "panm-clusters", settings={**mlp, "model": "logistic"})
    create_federation(at / "fedavg", at / "fed")
    evaluate([at / "fedavg-new", at / "fedham-new"], at / "evaluation-new", target=0.1, link="10:50", coverage=0.8)
    roles = {"client": "who", "label": "outcome", "keep": "city", "standardize": True}
    import_data(at.parent / "visits.csv", at / "data-kept", **roles)
    partition(at / "data-kept", at / "p-kept")
    personalize("local", at / "p-kept", at / "local-kept", settings=mlp)
    personalize("fedavg", at / "p-kept", at / "fedavg-kept", settings=mlp)
    audit(at / "fedavg-kept", at / "leakage", updates=True)
    evaluate(at / "local-kept", at / "evaluation-kept", group_scores=["city"])
    return at


def make_listing(folder, name):
    """Return what the page shows of an artifact: its files, with what is in them."""
    lines = [name]
    for path in sorted(folder.iterdir()):
        if path.suffix == ".csv":
            cells = pd.read_csv(path)
            lines.append(f"  {path.name}  {len(cells)} rows: {', '.join(cells.columns)}")
        else:
            lines.append(f"  {path.name}")
        if path.suffix in (".h5", ".safetensors"):
            entries = sorted(read_arrays(path).items())
            width = max((len(item) for item, _ in entries), default=0)
            lines += [f"    {item:{width}}  {shape}  {dtype}" for item, (shape, dtype) in entries]
    return "\n".join(lines)


def test_artifacts_page_documents_every_kind():
    assert set(re.findall(r"^\| \[(\w+)\]", PAGE, flags=re.M)) == set(kinds.schemas())
    assert set(kinds.schemas()) <= set(SECTIONS)
    assert tuple(MANIFEST) == KEYS
    for kind, schema in kinds.schemas().items():
        assert schema == 1, f"{kind}: say on the page what the new schema changes"


def test_golden_artifacts_match_the_artifacts_page():
    folders = [path.parent for path in (ROOT / "tests" / "golden").rglob("manifest.json")]
    assert {examine(folder) for folder in folders} == set(kinds.schemas())


def test_new_artifacts_match_the_artifacts_page(runs_of_every_kind):
    folders = [path.parent for path in runs_of_every_kind.glob("*/manifest.json")] + [
        runs_of_every_kind / "c" / "comparison"
    ]
    assert {examine(folder) for folder in folders} == set(kinds.schemas())
    files = {path.name for folder in folders for path in folder.iterdir()}
    assert {"rounds.csv", "neighbours.csv", "attention.csv", "validation.h5"} <= files


def examine(folder):
    """Compare a folder with the page, and return its kind."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    kind, where = manifest["kind"], f"{folder.name} ({manifest['kind']})"
    check_names(where, manifest, MANIFEST)
    assert set(manifest["files"]) | {"manifest.json"} == {path.name for path in folder.iterdir()}
    check_names(where, [*manifest["files"], "manifest.json"], FIELDS[kind][""])
    keys = [f"{group}.{key}" for group in ("request", "summary", "made") for key in manifest[group]]
    check_names(where, keys, {**FIELDS["common"]["manifest.json"], **FIELDS[kind]["manifest.json"]})
    roles = {item["role"] for item in manifest["inputs"]}
    marked = re.findall(r"`([^`]*)`", SECTIONS[kind])
    assert all(re.sub(r"^.*, seed \d+$", "LABEL, seed N", role) in marked for role in roles)
    for name in manifest["files"]:
        examine_file(kind, folder / name)
    return kind


def examine_file(kind, path):
    where = f"{path.parent.name}/{path.name}"
    if path.suffix in (".h5", ".safetensors"):
        heading = {"initial.safetensors": "weights.safetensors"}.get(path.name, path.name)
        rows = FIELDS[kind].get(heading) or FIELDS[kind]["{table}.safetensors"]
        content = read_arrays(path)
        check_names(where, content, rows)
        for name, (shape, dtype) in content.items():
            check_array(f"{where}: {name}", find_description(name, rows), shape, dtype)
    elif path.suffix == ".csv":
        cells, rows = pd.read_csv(path), find_documented_file(kind, path.name)
        check_names(where, cells.columns, rows)
        check_cells(where, rows, cells)
        if path.name == "table.csv" and kind not in ("audit", "leakage", "sweep", "tuning", "verdicts"):
            for column in set(cells.columns) - set(rows):
                assert column in METRICS or re.sub(BELONGING, "", column) in METRICS, f"{where}: {column}"
    elif path.name.endswith(".vl.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert {"layer", "hconcat"} & {*content}, f"{where} is no Vega-Lite specification"
    elif path.suffix == ".json":
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = find_documented_file(kind, path.name)
        check_names(where, content, {name: row for name, row in rows.items() if "." not in name})
        for name, value in content.items():
            if any(row.startswith(f"{name}.") for row in rows) and isinstance(value, dict):
                for item in value.values() if name == "stacks" else [value]:
                    check_object(where, item, rows, name)
        if path.name == "metrics.json" and kind != "sweep":
            examine_metrics(where, content)


def examine_metrics(where, content):
    fields = FIELDS["common"]["metrics.json"]
    for row in content["methods"]:
        check_object(where, row, fields, "methods")
        check_names(where, row["metrics"], METRICS)
        for name, facts in row["metrics"].items():
            assert METRICS[name]["unit"] == facts["unit"], f"{where}: {name}"
            same = re.sub(r" \d+ rounds", " rounds", facts["weighting"]) == METRICS[name]["weighting"]
            assert same or name.startswith("simulated"), f"{where}: {name}"
            check_object(f"{where}: {name}", facts, fields, "methods.metrics")


def check_object(where, content, fields, place):
    """Compare the keys of an object with the rows about its place in the file."""
    keys = {name.removeprefix(f"{place}."): row for name, row in fields.items() if name.rpartition(".")[0] == place}
    check_names(f"{where} {place}", content, keys)


def test_listings_on_the_artifacts_page_match_real_artifacts(runs_of_every_kind):
    """To renew one, paste what the failure shows."""
    listings = re.findall(r"^```text\n(runs/(\S+)\n.*?)\n?```$", PAGE, flags=re.M | re.S)
    assert len(listings) == len(kinds.schemas())
    for text, name in listings:
        assert text.rstrip("\n") == make_listing(runs_of_every_kind / name, f"runs/{name}")


def test_snippets_of_the_artifacts_page_run_without_pfl(runs_of_every_kind, monkeypatch):
    monkeypatch.chdir(runs_of_every_kind.parent)
    snippets = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    assert len(snippets) > len(kinds.schemas())
    for code in snippets:
        for node in ast.walk(ast.parse(code)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= {
                "h5py",
                "hashlib",
                "json",
                "numpy",
                "pandas",
                "pathlib",
                "safetensors",
            }
        exec(compile(code, "docs/artifacts.md", "exec"), {})


def test_snippet_reads_the_vectors_of_a_flat_datastore(runs_of_every_kind, monkeypatch):
    monkeypatch.chdir(runs_of_every_kind.parent)
    [code] = [code for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S) if "stores.faiss" in code]
    names = {}
    exec(compile(code, "docs/artifacts.md", "exec"), names)
    with h5py.File(runs_of_every_kind / "e" / "embeddings.h5") as file:
        rows = slice(*file["train/offsets"][2:4])
        np.testing.assert_array_equal(names["vectors"], file["train/z"][rows])
        np.testing.assert_array_equal(names["labels"], file["train/y"][rows])
