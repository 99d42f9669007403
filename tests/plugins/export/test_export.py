"""``pfl export``: a folder that answers as ``pfl predict`` does, with NumPy and onnxruntime alone."""

from __future__ import annotations

import csv
import io
import json
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch

from helpers import error_text, listing
from pflcli.artifacts import disk
from pflcli.artifacts.codebook import Column, Dialect
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.partition import Form
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.import_data import import_data
from pflcli.commands.new_client import new_client
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.predict import predict
from pflcli.core import models, registry
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.errors import ConflictError, InputError, PflError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.tasks import Labels
from pflcli.data.formats import Like, tables
from pflcli.data.formats.cells import list_missing
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.data.preparation.user_data import open_table
from pflcli.plugins.export import description, onnx_network, reader
from pflcli.plugins.export import export as exports
from pflcli.plugins.export.export import export
from pflcli.plugins.export.standalone_model import StandaloneModel

ONE = Execution(threads=1)
CLASSES = 5
SHAPES = {"images": ((28, 28), (32, 32, 3)), "series": ((10, 4),), "features": ((6,),), "tokens": ((12,),)}
TYPES = {"images": "uint8", "tokens": "int16", "series": "float32", "features": "float32"}
CASES = [
    pytest.param(
        *(name, kind, shape),
        marks=[pytest.mark.long] * (name == "resnet-18" or len(shape) == 3),
        id=f"{name}-{kind}-{'x'.join(map(str, shape))}",
    )
    for name in registry.names("models")
    if name not in ("torchvision", "timm")
    for kind in registry.card("models", name).facts["TAKES"]
    for shape in SHAPES[kind]
]


def make_samples(kind, shape, n):
    draw = np.random.default_rng(0)
    if kind == "images":
        return draw.integers(0, 256, (n, *shape), dtype=np.uint8)
    if kind == "tokens":
        return draw.integers(0, CLASSES, (n, *shape), dtype=np.int16)
    return draw.normal(size=(n, *shape)).astype(np.float32)


def randomize_network(net):
    """Give a network other statistics and weights than it begins with."""
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if name.endswith("running_mean"):
                value += 0.1
            elif name.endswith("running_var"):
                value *= 0.8
            elif value.is_floating_point():
                value *= 1.1
    return net.eval()


@pytest.mark.parametrize(("name", "kind", "shape"), CASES)
def test_every_model_gives_the_same_probabilities_as_onnx(name, kind, shape):
    """Batch normalization, recurrent layers, tokens and normalized pixels, for another number of samples as well."""
    x = make_samples(kind, shape, 3)
    data = Federation.from_blocks(x, np.zeros(3, np.int64), np.asarray([0, 3, 3, 3]), CLASSES)
    pixels = None
    if kind == "images":
        pixels = np.linspace(0.3, 0.5, data.in_shape[0], dtype=np.float32), np.full(data.in_shape[0], 0.2, np.float32)
        data = replace(data, scale=tuple(torch.from_numpy(values)[:, None, None] for values in pixels))
    net = randomize_network(models.create(name, data.in_shape, CLASSES, 0, tokens=kind == "tokens"))
    with torch.no_grad():
        expected = torch.softmax(net(data.inputs(slice(0, 3))), dim=1).numpy()
    form = Preprocessing("p", Form(shape, TYPES[kind], Labels(CLASSES)))
    pieces = StandaloneModel(
        "local", "a", Classification(CLASSES), tuple("abcde"), form, pixels, (net,), (1.0,), None, x, expected
    )
    session = onnxruntime.InferenceSession(onnx_network.export_network(pieces))
    for n in (1, 3):
        p = session.run(["p"], {"x": x[:n].astype(onnx_network.input_dtype(form))})[0]
        np.testing.assert_allclose(p, expected[:n], rtol=0, atol=1e-5)


def predict_by_reader(folder, x):
    return reader.predict(folder, json.loads((folder / "model.json").read_text()), x)


@pytest.fixture(scope="module")
def digits_of_four_writers(tmp_path_factory):
    """Digits of four writers with normalized pixels, a client's name, and digits of another one (n, 28, 28)."""
    at = tmp_path_factory.mktemp("digits")
    partition("writers", at / "p", clients=4, part=(1, 6))
    settings = {"model": "logistic", "rounds": 1, "normalize": "dataset"}
    for method in ("local", "fedem"):
        personalize(method, at / "p", at / method, settings=settings, execution=ONE)
    data = partitions.read(open_artifact(at / "p"))
    np.save(at / "q.npy", data.x[data.offsets[6] : data.offsets[9]])
    return at, data.names[1]


@pytest.mark.parametrize("method", ["local", "fedem"])
def test_exported_model_predicts_images_like_pfl_predict(digits_of_four_writers, tmp_path, method):
    at, client = digits_of_four_writers
    exported = export(at / method, tmp_path / "x", client=client, execution=ONE)
    assert listing(tmp_path / "x") == ["model.json", "network.onnx", "reader.py"]
    expected = predict(at / method, at / "q.npy", client=client, execution=ONE)
    np.testing.assert_allclose(predict_by_reader(tmp_path / "x", np.load(at / "q.npy")), expected.p, rtol=0, atol=1e-5)
    assert sum(exported.model["networks"]) == pytest.approx(1)
    assert exported.model["contains_client_data"] is False
    assert exported.model["agreement"]["largest_difference"] < 1e-5
    assert "deviation of each channel" in exported.model["rule"]


OPTIONS = {
    "as in the paper": {},
    "lambda that falls with distance": {"decay": 0.5, "sigma": "auto", "weight": 0.7},
    "squared distances": {"kernel": "scaled-squared", "k": 3},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_exported_knn_model_predicts_like_pfl_predict_for_every_option(small, tmp_path, case):
    data = partitions.read(open_artifact(small.p))
    personalize("knn-per-extended", small.d, tmp_path / "m", options=OPTIONS[case], execution=ONE)
    exported = export(tmp_path / "m", tmp_path / "x", client=data.names[2], execution=ONE)
    np.savez(tmp_path / "q.npz", x=data.x[:40])
    expected = predict(tmp_path / "m", tmp_path / "q.npz", client=data.names[2], execution=ONE)
    np.testing.assert_allclose(predict_by_reader(tmp_path / "x", data.x[:40]), expected.p, rtol=0, atol=1e-5)
    assert exported.model["contains_client_data"] is True
    with np.load(tmp_path / "x" / "store.npz") as store:
        first, last = data.offsets[6:8]
        assert store["y"].tolist() == data.y[first:last].tolist()
        assert f"of {last - first} training samples" in exported.model["privacy"]


@pytest.mark.parametrize("index", ["SQ8", "PCA16,Flat", "HNSW8"])
def test_compressed_index_is_exported_as_a_faiss_file(small, tmp_path, index):
    data = partitions.read(open_artifact(small.p))
    build_datastore(small.e, tmp_path / "d", index=index)
    personalize("knn-per", tmp_path / "d", tmp_path / "m", execution=ONE)
    exported = export(tmp_path / "m", tmp_path / "x", client=data.names[2], execution=ONE)
    np.savez(tmp_path / "q.npz", x=data.x[:40])
    expected = predict(tmp_path / "m", tmp_path / "q.npz", client=data.names[2], execution=ONE)
    np.testing.assert_allclose(predict_by_reader(tmp_path / "x", data.x[:40]), expected.p, rtol=0, atol=1e-5)
    assert "store.faiss" in exported.files
    with np.load(tmp_path / "x" / "store.npz") as store:
        assert set(store) == {"y"}


@pytest.mark.parametrize("method", ["knn-per", "fedem"])
def test_model_of_a_new_client_can_be_exported(small, tmp_path, method):
    data = partitions.read(open_artifact(small.p))
    if method == "fedem":
        personalize(method, small.p, tmp_path / "m", settings={"model": "logistic", "rounds": 1}, execution=ONE)
    np.savez(tmp_path / "own.npz", x=data.x[:40], y=data.y[:40])
    new_client(
        small.knn if method == "knn-per" else tmp_path / "m", tmp_path / "own.npz", tmp_path / "with", client="N"
    )
    exported = export(tmp_path / "with", tmp_path / "x", client="N", execution=ONE)
    assert exported.model["agreement"]["samples"] == 8
    assert exported.model["agreement"]["largest_difference"] < 1e-5
    np.savez(tmp_path / "q.npz", x=data.x[40:60])
    expected = predict(tmp_path / "with", tmp_path / "q.npz", client="N", execution=ONE)
    np.testing.assert_allclose(predict_by_reader(tmp_path / "x", data.x[40:60]), expected.p, rtol=0, atol=1e-5)


# Tables


def iterate_visits():
    """Sixty visits to three hospitals, some without a pressure or a word."""
    draw = random.Random(0)
    for number in range(60):
        pressure = "" if draw.random() < 0.2 else f"{draw.gauss(120, 9):.1f}"
        smokes = draw.choice(["never", "often", "daily", ""])
        yield ["ABC"[number % 3], f"{draw.gauss(50, 8):.1f}", smokes, pressure, draw.choice(["no", "yes"])]


COLUMNS = ["hospital", "age", "smokes", "pressure", "outcome"]


def write_table(path, rows, columns=COLUMNS, delimiter=","):
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([columns, *rows])
    return path


@pytest.fixture(scope="module", params=["client", "federation"])
def exported_hospital_model(request, tmp_path_factory):
    """What ditto answers for hospitals' visits with words, gaps and a scale, and hospital B's model in ``x``."""
    at = tmp_path_factory.mktemp(request.param)
    source = write_table(at / "visits.csv", iterate_visits())
    import_data(source, at / "data", client="hospital", label="outcome", missing="median", standardize=request.param)
    partition(str(at / "data"), at / "p")
    personalize("ditto", at / "p", at / "m", settings={"model": "mlp", "rounds": 1}, execution=ONE)
    export(at / "m", at / "x", client="B", execution=ONE)
    return at


ALONE = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
assert not {"pflcli", "torch", "pandas", "faiss"} & set(sys.modules)
"""


def test_exported_script_predicts_a_table_like_pfl_predict(exported_hospital_model, tmp_path):
    """Columns by name, words, gaps and scale; no module of pfl, and no other package than NumPy and onnxruntime."""
    path = write_table(tmp_path / "q.tsv", [row[::-1] for row in iterate_visits()], COLUMNS[::-1], "\t")
    line = [
        sys.executable,
        "-c",
        ALONE,
        exported_hospital_model / "x" / "reader.py",
        exported_hospital_model / "x",
        path,
    ]
    printed = subprocess.run(line, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    expected = predict(exported_hospital_model / "m", path, client="B", execution=ONE)
    assert list(rows[0]) == ["sample", "class", "probability", "p(no)", "p(yes)"]
    assert [row["class"] for row in rows] == [expected.classes[label] for label in expected.labels]
    p = np.asarray([[row["p(no)"], row["p(yes)"]] for row in rows], dtype=np.float64)
    np.testing.assert_allclose(p, expected.p, rtol=0, atol=1e-5)


def test_exported_model_describes_its_preprocessing(exported_hospital_model):
    model = json.loads((exported_hospital_model / "x" / "model.json").read_text())
    gaps = "a feature of 0 and 1 behind each column with gaps says where x is nan, then median where x is nan"
    assert f"network.onnx: {gaps}, then (x - mean) / sd, or 0 where sd is 0" in json.dumps(model)


def test_undo_preprocessing_restores_the_values_of_the_file():
    """Two columns with gaps, and one without between them: a feature behind a number says whether it was missing."""
    columns = (Column("a", gaps=True), Column("b"), Column("c", gaps=True), Column("d", words=("x", "y")))
    preprocessing = Preprocessing("", Form((7,), "float32", Labels(2)), columns, median=(1.0, 2.0, 3.0, 0.0, 0.0))
    x = np.asarray([[5, 0, 6, 3, 1, 0, 1], [1, 1, 7, 8, 0, 1, 0]], dtype=np.float32)
    expected = [[5, 6, np.nan, 0, 1], [np.nan, 7, 8, 1, 0]]
    np.testing.assert_array_equal(exports.undo_preprocessing(x, preprocessing), expected)


def test_exported_script_reads_a_table_with_a_byte_order_mark(exported_hospital_model, tmp_path, capsys):
    """As spreadsheets write it: the mark is no part of the first column's name."""
    printed = []
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "q.csv").write_text("age,smokes,pressure\n50,never,120\n", encoding=encoding)
        reader.main(exported_hospital_model / "x", tmp_path / "q.csv")
        printed.append(capsys.readouterr().out)
    assert printed[0].startswith("sample,class,probability,")
    assert printed[1] == printed[0]


REFUSED = {
    "age,smokes,pressure\n50,rarely,120\n": "'rarely' is no known word",
    "age,smokes,pressure\nfifty,never,120\n": "'fifty' is no number",
    "age,pressure\n50,120\n": "no column 'smokes'",
    "age,smokes,pressure\n,never,120\ninf,never,120\n": "sample 1 has a value",
    "": "no samples",
    "age,smokes,pressure\n": "no samples",
    "age,smokes,pressure\n50,never,120\n50,never\n": "sample 1 has 2 cells",
    "age,age,smokes,pressure\n50,40,never,120\n": "two columns 'age'",
}


@pytest.mark.parametrize("text", REFUSED)
def test_exported_script_names_the_cell_or_column_it_cannot_read(exported_hospital_model, tmp_path, capsys, text):
    (tmp_path / "q.csv").write_text(text)
    with pytest.raises(SystemExit) as end:
        reader.main(exported_hospital_model / "x", tmp_path / "q.csv")
    assert REFUSED[text] in str(end.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none.csv", "cannot be read"),
        ("wide.npy", "shape [9]"),
        ("none.npy", "no samples"),
        ("cut.npy", "cannot be read"),
        ("complex.npy", "complex128 numbers"),
        ("utf16.csv", "cannot be read"),
    ],
)
def test_exported_script_prints_one_error_line_for_an_unreadable_file(
    exported_hospital_model, tmp_path, name, expected
):
    np.save(tmp_path / "wide.npy", np.zeros((2, 9)))
    np.save(tmp_path / "none.npy", np.zeros((0, 5)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "wide.npy").read_bytes()[:-9])
    np.save(tmp_path / "complex.npy", np.zeros((2, 5), np.complex128))
    (tmp_path / "utf16.csv").write_text("age,smokes,pressure\n50,never,120\n", encoding="utf-16")
    line = [sys.executable, exported_hospital_model / "x" / "reader.py", exported_hospital_model / "x", tmp_path / name]
    ran = subprocess.run(line, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert expected in ran.stderr


SPELLINGS = {
    # name: (text of two columns, m and w, options of the import, suffix)
    "plain": ("m,w\n1.5,a\n-2,b\n", {}),
    "spaces, signs and other digits": ("m,w\n +1.5 , a\n\u22122,b\n\uff13,a\n\u200b4,b\n-5e-1,a\n", {}),
    "decimal commas": ("m;w\n1,5;a\n-2,25;b\n3.75;a\n7;b\n", {"delimiter": ";", "decimal": ","}),
    "thousands by points": (
        "m;w\n2.248;a\n1.000.000,5;b\n12,5;a\n900;b\n-1.000;a\n", {"delimiter": ";", "decimal": ",", "thousands": "."},
    ),
    "thousands by commas": ('m,w\n"1,234",a\n"-1,234.5",b\n12,a\n', {"thousands": ","}),
    "thousands by spaces": ("m,w\n1\u202f234,a\n1\u00a0234 567,b\n- 1 000,a\n", {"thousands": "space"}),
    "thousands by apostrophes": ("m,w\n1'234,a\n12,b\n", {"thousands": "'"}),
    "marks": ("m,w\n12 %,a\n%3,b\n4 kg,a\n5,b\n", {"strip": ("%", "kg")}),
    "euros": (
        "m;w\n\u20ac 1.234,50;a\n7,5 \u20ac;b\n",
        {"delimiter": ";", "decimal": ",", "thousands": ".", "strip": ("\u20ac",)},
    ),
    "marks of missing values": ("m,w\n-999,a\n-999.0,?\nNA,b\n,nope\n7,a\n", {"na": ("-999", "nope")}),
    "only empty cells": ("m,w\n1,a\n,\n3,b\n", {"na": ("",)}),
    "lines above": ("A report\n\n m , w \n1.5,a\n2,b\n", {"skip_rows": 2}),
    "comments": ("# by me\nm,w # names\n1.5,a # one\n2,b\n", {"comment": "#"}),
    "no header": ("1.5,a\n2,b\n", {"header": False, "names": ("m", "w")}),
    "tabs": ("m\tw\n1.5\ta\n2\tb\n", {}, ".tsv"),
    "tabs, as given": ("m\tw\n1.5\ta\n2\tb\n", {"delimiter": "tab"}),
    "white space": ("  m   w\n 1.5 \t a\n2  b\n", {"delimiter": "whitespace"}),
    "a line of Excel": ("sep=;\nm;w\n1.5;a\n2;b\n", {}),
    "a byte order mark": ("\ufeffm,w\r\n1.5,a\r\n2,b\r\n", {}),
    "lines of old": ("m,w\r1.5,a\r2,b\r", {}),
    "quotes": ('"m","w"\n"1.5","a"\n2,b\n', {}),
    "truths": ("m,w\nTrue,a\nfalse,b\n1,a\n", {}),
    "cases": ("m,w\n1,A\n2, b \n", {"fold_case": True}),
    "cases and typography": ("m,w\n1,\uff21\n2,b\u200b\n", {"fold_case": True}),
    "infinity": ("m,w\ninf,a\n-inf,b\n1,a\n", {}),
}  # fmt: skip
NOT_NUMBERS = {
    "a word": ("m,w\n1,a\nmany,b\n", {}),
    "a decimal comma": ("m;w\n1,5;a\n", {"delimiter": ";"}),
    "an ambiguous point": ("m;w\n1.250;a\n", {"delimiter": ";", "decimal": ","}),
    "a broken group": ('m,w\n"12,34",a\n', {"thousands": ","}),
    "truths beside words": ("m,w\nTrue,a\nmany,b\n", {}),
    "an unknown word": ("m,w\n1,c\n2,a\n", {}),
    "another case": ("m,w\n1,A\n2,b\n", {}),
    "a mark": ("m,w\n12 %,a\n3,b\n", {}),
}


def read_by_both(tmp_path, text, options, suffix=".csv"):
    """Return the samples of a table as pfl reads them, and as the exported script does; None where it refuses."""
    path = tmp_path / f"t{suffix}"
    path.write_bytes(text.encode())
    dialect, columns = Dialect(**options), (Column("m"), Column("w", ("a", "b")))
    model = {
        "columns": [{"name": column.name, "words": list(column.words)} for column in columns],
        "missing": list(list_missing(dialect)),
        "table": json.loads(json.dumps(description.describe_table(dialect))),
    }
    try:
        ours = tables.read_features(open_table(path, "csv", dialect, min_columns=1), Like("", (), columns), dialect).x
    except PflError:
        ours = None
    try:
        theirs = reader.read_samples(path, model)
    except SystemExit:
        theirs = None
    return ours, theirs


@pytest.mark.parametrize("case", SPELLINGS)
def test_exported_script_reads_every_spelling_as_pfl_predict_does(tmp_path, case):
    ours, theirs = read_by_both(tmp_path, *SPELLINGS[case])
    assert ours is not None
    np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("case", NOT_NUMBERS)
def test_exported_script_refuses_the_cells_that_pfl_predict_refuses(tmp_path, case):
    assert read_by_both(tmp_path, *NOT_NUMBERS[case]) == (None, None)


@pytest.mark.parametrize("seed", range(20))
def test_exported_script_reads_drawn_cells_as_pfl_predict_does(tmp_path, seed):
    """Cells of digits and all marks, in all dialects: both read the same number, or both refuse the cell."""
    draw = random.Random(seed)
    pieces = ["1", "0", "234", "5", ".", ",", "'", " ", "-", "e", "%", "_", "\u00a0"]
    for _ in range(60):
        decimal, thousands = draw.choice(".,"), draw.choice([None, ".", ",", "'", "space", "_"])
        cell = "".join(draw.choice(pieces) for _ in range(draw.randint(1, 6)))
        if decimal == thousands or not cell.strip() or cell.strip() == "-":
            continue
        options = {"delimiter": ";", "decimal": decimal, "thousands": thousands, "strip": draw.choice([None, ("%",)])}
        given = {name: value for name, value in options.items() if value is not None}
        ours, theirs = read_by_both(tmp_path, f"m;w\n1;a\n{cell};b\n", given)
        assert (ours is None) == (theirs is None), (cell, given)
        assert ours is None or np.array_equal(ours, theirs, equal_nan=True), (cell, given)


def test_exported_model_answers_a_table_with_marks_as_pfl_predict_does(tmp_path, capsys):
    draw = np.random.default_rng(0)
    km = draw.integers(600, 4000, 90)
    rows = []
    for at, number in enumerate(km):
        rows.append(("ABC"[at % 3], "far" if number > 2000 else "near", f"{number:,}".replace(",", "."), f"{at % 7},5"))
    columns = ["site", "y", "km", "t"]
    source = write_table(tmp_path / "t.csv", rows, columns, ";")
    import_data(
        source, tmp_path / "d", client="site", label="y", standardize=True, delimiter=";", decimal=",", thousands="."
    )
    partition(str(tmp_path / "d"), tmp_path / "p")
    personalize("local", tmp_path / "p", tmp_path / "m", settings={"model": "logistic", "rounds": 3}, execution=ONE)
    export(tmp_path / "m", tmp_path / "x", client="A", execution=ONE)
    path = write_table(tmp_path / "q.csv", [row[2:] for row in rows], columns[2:], ";")
    reader.main(tmp_path / "x", path)
    printed = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    expected = predict(tmp_path / "m", path, client="A", execution=ONE)
    assert [row["class"] for row in printed] == [expected.classes[label] for label in expected.labels]
    np.testing.assert_allclose([float(row["p(far)"]) for row in printed], expected.p[:, 0], rtol=0, atol=1e-5)


def test_export_checks_a_client_without_test_samples_on_its_training_samples(exported_hospital_model, tmp_path):
    """One training sample: the client's scale makes 0 of each number, and not of those of others."""
    source = write_table(tmp_path / "own.csv", [["D", "50.0", "never", "", "no"]])
    new_client(exported_hospital_model / "m", source, tmp_path / "n", client="D", label="outcome", execution=ONE)
    agreement = export(tmp_path / "n", tmp_path / "x", client="D", execution=ONE).model["agreement"]
    assert agreement["samples"] == 1
    assert agreement["largest_difference"] < 1e-5


def test_export_is_deterministic_and_contains_no_path(exported_hospital_model, tmp_path):
    export(exported_hospital_model / "m", tmp_path / "x", client="B", execution=ONE)
    for name in listing(exported_hospital_model / "x"):
        content = (tmp_path / "x" / name).read_bytes()
        assert content == (exported_hospital_model / "x" / name).read_bytes()
        assert str(exported_hospital_model).encode() not in content
        assert exports.__file__.removesuffix("plugins/export/export.py").encode() not in content


# The command


def test_export_prints_its_path_and_warns_that_a_store_contains_data(small, tmp_path, pfl):
    name = partitions.read(open_artifact(small.p)).names[2]
    line = ("export", small.knn, "--client", name, "--out", tmp_path / "x", "--threads", 1)
    ran = pfl(*line)
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'x'}\n")
    assert "WARNING: store.npz contains the client's data" in " ".join(ran.err.split())
    before = (tmp_path / "x" / "network.onnx").stat().st_ino
    ran = pfl(*line)
    assert ran.code == 4
    assert "--force" in ran.err
    ran = pfl(*line, "--force", "--json")
    facts = json.loads(ran.out)
    assert ran.code == 0
    assert (facts["client"], facts["contains_client_data"], facts["path"]) == (name, True, str(tmp_path / "x"))
    assert set(facts["files"]) == {"model.json", "network.onnx", "reader.py", "store.npz"}
    assert (tmp_path / "x" / "network.onnx").stat().st_ino != before
    assert listing(tmp_path) == ["x"]


def test_failed_export_leaves_no_folder(exported_hospital_model, tmp_path, monkeypatch):
    def broken(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exports.os, "fsync", broken)
    with pytest.raises(InputError) as error:
        export(exported_hospital_model / "m", tmp_path / "x", client="B", execution=ONE)
    assert "No space left" in error_text(error)
    assert listing(tmp_path) == []
    assert disk.free_bytes(tmp_path) > 0


def test_export_writes_into_an_empty_working_directory(exported_hospital_model, tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    assert export(exported_hospital_model / "m", ".", client="B", execution=ONE).path == tmp_path / "x"
    assert "model.json" in listing(tmp_path / "x")


def test_export_counts_small_differences_of_predictions_and_refuses_large_ones(
    exported_hospital_model, tmp_path, monkeypatch, pfl
):
    predict, line = (
        reader.predict,
        ("export", exported_hospital_model / "m", "--client", "B", "-o", tmp_path / "x", "--threads", 1),
    )
    monkeypatch.setattr(reader, "predict", lambda *arguments: predict(*arguments) + 1e-4)
    ran = pfl(*line)
    assert ran.code == 0
    assert "of them differ by more than 1e-05" in " ".join(ran.err.split())
    agreement = json.loads((tmp_path / "x" / "model.json").read_text())["agreement"]
    assert agreement["beyond"] == agreement["samples"] > 0
    monkeypatch.setattr(reader, "predict", lambda *arguments: predict(*arguments) + 0.1)
    ran = pfl(*line, "--force")
    assert (ran.code, ran.out) == (5, "")
    assert "exported network differ" in " ".join(ran.err.split())
    assert listing(tmp_path) == ["x"]


def test_export_refuses_wrong_arguments_and_names_the_reason(small, exported_hospital_model, tmp_path, monkeypatch):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("notes")
    export(exported_hospital_model / "m", tmp_path / "more", client="B", execution=ONE)
    (tmp_path / "more" / "notes.txt").write_text("notes")
    force = Execution(threads=1, force=True)
    for error, words, source, options in (
        (InputError, "no client 'D'", exported_hospital_model / "m", {"client": "D"}),
        (InputError, "mkdir -p", exported_hospital_model / "m", {"out": tmp_path / "no" / "x"}),
        (
            ConflictError,
            "pfl export did not write it",
            exported_hospital_model / "m",
            {"out": tmp_path / "foreign", "execution": force},
        ),
        (ConflictError, "notes.txt", exported_hospital_model / "m", {"out": tmp_path / "more", "execution": force}),
        (
            ConflictError,
            "pfl export did not write it",
            exported_hospital_model / "m",
            {"out": exported_hospital_model / "p", "execution": force},
        ),
        (ConflictError, "is an artifact", exported_hospital_model / "m", {"out": exported_hospital_model / "p" / "x"}),
        (
            UsageError,
            "neither .safetensors",
            exported_hospital_model / "m",
            {"weights": tmp_path / "foreign" / "notes.txt"},
        ),
        (InputError, "is a stack", small.st, {}),
    ):
        with pytest.raises(PflError) as refused:
            export(source, **{"out": tmp_path / "x", "client": "B", "execution": ONE, **options})
        assert isinstance(refused.value, error), words
        assert words in error_text(refused)
    assert listing(tmp_path) == ["foreign", "more"]
    monkeypatch.setattr(onnx_network.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as refused:
        export(exported_hospital_model / "m", tmp_path / "x", client="B", execution=ONE)
    assert "onnx and onnxruntime" in refused.value.message
    assert refused.value.fix == ("pip install 'pflcli[export]'",)
