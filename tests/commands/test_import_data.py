"""``pfl import`` reads values exactly, and errors name their place in the file."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import zlib

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from importing import import_and_read, read_dataset, refuse
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import ancestor, open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.core.errors import InputError, PflError, UsageError
from pflcli.core.execution import Execution
from pflcli.evaluation import lineage

PLAIN = "who,class,a,b\nann,yes,1.5,-2\nbob,no,0.1,3e2\nann,no,7,0\n"
COLUMNS = {"client": "who", "label": "class"}


@pytest.fixture
def write_file(tmp_path):
    """Write a file and return its path."""

    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def assert_dataset(dataset, x, y, classes, owner, features=()):
    assert dataset.x.dtype == (np.uint8 if np.asarray(x).dtype == np.uint8 else np.float32)
    assert dataset.y.dtype == np.int64
    np.testing.assert_array_equal(dataset.x, np.asarray(x, dtype=dataset.x.dtype))
    assert dataset.y.tolist() == list(y)
    assert dataset.classes == list(classes)
    assert (None if dataset.owner is None else dataset.owner.tolist()) == owner
    assert dataset.features == tuple(features)


# Tables: the values, exactly


X = [[1.5, -2], [0.1, 300], [7, 0]]
SPELLINGS = {
    "plain": (PLAIN, {}),
    "a byte order mark": ("\ufeff" + PLAIN, {}),
    "lines of Windows": (PLAIN.replace("\n", "\r\n"), {}),
    "lines of old": (PLAIN.replace("\n", "\r"), {}),
    "lines of old, and spaces": ("who,class,a,b\r  \r ann,yes,1.5,-2\r bob,no,0.1,3e2\rann,no,7,0\r", {}),
    "no end of line": (PLAIN.rstrip("\n"), {}),
    "blank lines": (PLAIN.replace("\n", "\n\n  \n"), {}),
    "quotes": ('"who","class","a","b"\n"ann","yes","1.5",-2\nbob,"no",0.1,"3e2"\nann,no,7,0\n', {}),
    "spaces": ("who , class,a,b\nann , yes,1.5, -2\n bob,no,0.1 ,3e2\nann,no,7,0\n", {}),
    "semicolons": (PLAIN.replace(",", ";"), {"delimiter": ";"}),
    "tabs": (PLAIN.replace(",", "\t"), {"delimiter": "tab"}),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_import_reads_a_table_in_every_csv_dialect(write_file, case):
    content, options = SPELLINGS[case]
    dataset = read_dataset(write_file(content), **COLUMNS, **options)
    assert_dataset(dataset, X, [1, 0, 0], ["no", "yes"], ["ann", "bob", "ann"], ["a", "b"])


def test_import_reads_a_tsv_file_with_tabs(write_file):
    dataset = read_dataset(write_file(PLAIN.replace(",", "\t"), "table.TSV"), **COLUMNS)
    assert_dataset(dataset, X, [1, 0, 0], ["no", "yes"], ["ann", "bob", "ann"], ["a", "b"])


def test_import_reads_quoted_cells_with_delimiters_and_line_breaks(write_file):
    content = 'who,class,"a, b"\n"St. Mary\'s, ""North""",x,1\n"two\nlines",y,2\nürsüla,x,3\n'
    dataset = read_dataset(write_file(content), **COLUMNS)
    assert_dataset(
        dataset, [[1], [2], [3]], [0, 1, 0], ["x", "y"], ['St. Mary\'s, "North"', "two\nlines", "ürsüla"], ["a, b"]
    )
    dataset = read_dataset(write_file(content), **COLUMNS, features='"a, b"')
    assert dataset.features == ("a, b",)


def test_import_reads_printed_float32_numbers_exactly(write_file):
    x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32) * np.float32([1e-20, 1, 1e20])
    lines = [",".join([f"c{i % 7}", str(i % 3), *(repr(float(value)) for value in row)]) for i, row in enumerate(x)]
    dataset = read_dataset(write_file("\n".join(["who,class,a,b,c", *lines]) + "\n"), **COLUMNS)
    np.testing.assert_array_equal(dataset.x, x)


def test_import_takes_features_in_the_given_order(write_file):
    assert read_dataset(write_file(PLAIN), **COLUMNS, features="b, a").x.tolist() == np.float32(X)[:, ::-1].tolist()
    assert read_dataset(write_file(PLAIN), **COLUMNS, features=["b"]).features == ("b",)


def test_import_leaves_out_and_names_columns_without_numbers(pfl, write_file, tmp_path):
    path = write_file(
        ",who,city,class,a,day,empty,yes\n0,ann,Rome,1,1,2020-01-02,,True\n1,bob,Oslo,0,2,2020-01-03,,False\n"
    )
    ran = pfl("import", path, "--client", "who", "--label", "class", "-o", tmp_path / "d")
    assert ran.code == 0
    assert "left out, not numbers: city, day, empty\n" in ran.err
    dataset = datasets.read(open_artifact(tmp_path / "d"))
    assert_dataset(dataset, [[1, 1], [2, 0]], [1, 0], ["0", "1"], ["ann", "bob"], ["a", "yes"])


def test_import_reads_true_and_false_as_1_and_0(write_file):
    dataset = read_dataset(
        write_file("who,class,a,b\nx,1,True,TRUE\ny,2,False,\nz,2,True,FALSE\n"), **COLUMNS, missing="drop"
    )
    assert_dataset(dataset, [[1, 1], [1, 0]], [0, 1], ["1", "2"], ["x", "z"], ["a", "b"])


LABELS = {
    "words": (["cat", "Ant", "cat", "bee"], ["Ant", "bee", "cat"], [2, 0, 2, 1]),
    "not from 0": (["7", "3", "7", "11"], ["3", "7", "11"], [1, 0, 1, 2]),
    "below 0": (["-1", "1", "-1", "1"], ["-1", "1"], [0, 1, 0, 1]),
    "whole floats": (["1.0", "0.0", "1", "2."], ["0", "1", "2"], [1, 0, 1, 2]),
    "powers": (["1e1", "9", "1e1", "9"], ["9", "1e1"], [1, 0, 1, 0]),
    "leading zeros": (["01", "03", "02", "02"], ["01", "02", "03"], [0, 2, 1, 1]),
    "truths": (["True", "False", "True", "True"], ["False", "True"], [1, 0, 1, 1]),
    "huge": (["123456789012345678901234567890", "1", "1", "1"], ["1", "123456789012345678901234567890"], [1, 0, 0, 0]),
    "mixed": (["1", "two", "1", "1"], ["1", "two"], [0, 1, 0, 0]),
    "words for nothing": (["None", "NA", "None", "None"], ["NA", "None"], [1, 0, 1, 1]),
}


@pytest.mark.parametrize("case", LABELS)
def test_import_turns_labels_into_classes_with_their_names(write_file, case):
    labels, classes, y = LABELS[case]
    lines = [f"w,{label},{i}" for i, label in enumerate(labels)]
    dataset = read_dataset(write_file("\n".join(["who,class,a", *lines]) + "\n"), **COLUMNS)
    assert (dataset.classes, dataset.y.tolist()) == (classes, y)


def test_import_drops_missing_values_beside_integers_beyond_64_bits(write_file):
    path = write_file("who,class,a\nx,1,123456789012345678901234567890\ny,0,NA\nz,0,7\n")
    assert read_dataset(path, **COLUMNS, missing="drop").x.tolist() == [[np.float32(1.2345678901234568e29)], [7]]


def test_import_keeps_client_names_as_text(write_file):
    path = write_file("who,class,a\n007,0,1\n7,1,2\nNA,0,3\n123456789012345678901,0,3\n")
    dataset = read_dataset(path, **COLUMNS, fold_case=False, na="")
    assert dataset.owner.tolist() == ["007", "7", "NA", "123456789012345678901"]


def test_import_accepts_samples_without_clients(pfl, write_file, tmp_path):
    path = write_file("class,a\n" + "".join(f"{i % 2},{i / 10}\n" for i in range(40)))
    assert import_and_read(path, tmp_path / "out", client="none", label="class").owner is None
    ran = pfl("partition", tmp_path / "out", "-o", tmp_path / "p")
    assert (ran.code, "--scheme dirichlet" in ran.err) == (2, True)
    assert pfl("partition", tmp_path / "out", "--scheme", "iid", "--clients", 4, "-o", tmp_path / "p").code == 0
    assert len(partitions.read(open_artifact(tmp_path / "p")).names) == 4


# Tables: what is wrong with them

BAD = {
    # name: (content, options, words of the message)
    "a column that is not there": (PLAIN, {"client": "woh"}, "has no column 'woh'", "did you mean 'who'?"),
    "a label that is not there": (PLAIN, {"label": "zzz"}, "has no column 'zzz'", "choose from: a, b, class, who"),
    "a feature that is not there": (PLAIN, {"features": "a,bb"}, "has no column 'bb'", "did you mean 'b'?"),
    "no client": (PLAIN, {"client": None}, "--client is missing", "one of: who, class, a, b", "--client none"),
    "no label": (PLAIN, {"label": None}, "--label is missing", "one of: who, class, a, b"),
    "client and label": (PLAIN, {"label": "who"}, "'who' cannot be both --client and --label"),
    "a label among features": (PLAIN, {"features": "a,class"}, "'class' cannot be both --label and one of --features"),
    "a client among features": (PLAIN, {"features": "a,who"}, "'who' cannot be both --client and one of --features"),
    "a feature twice": (PLAIN, {"features": "a,b,a"}, "'a' is twice in --features"),
    "no features": (PLAIN, {"features": " , "}, "--features names no column"),
    "an unknown way": (PLAIN, {"missing": "drp"}, "unknown --missing 'drp'", "did you mean 'drop'?"),
    "a long delimiter": (PLAIN, {"delimiter": "::"}, "--delimiter '::' is not one character"),
    "a size": (PLAIN, {"resize": 32}, "--resize is for folders of images"),
    "a name twice": ("who,class,a,a\nx,1,2,3\n", {}, "two columns are called 'a'"),
    "no names": ("1,0,2.5\n2,1,3.5\n", {}, "are the column names missing?", "--no-header", "--header"),
    "a slip": (PLAIN.replace("0.1", "0.l"), {}, "table.csv, line 3 (the header is line 1), column 'a': '0.l' is not a"),
    "a slip after lines in a cell": (
        'who,class,a\n"x\ny\n",0,1\n\nz,1,oops\nz,1,2\n',
        {},
        "line 6 (the header is line 1), column 'a': 'oops' is not a number",
    ),
    "words asked for": ("who,class,a\nx,0,red\ny,1,4\n", {"features": "a"}, "line 2", "'red' is not a number"),
    "a date": ("who,class,a\nx,0,2020-01-31\ny,1,2020-02-01\n", {"features": "a"}, "'2020-01-31'", "a date", "days"),
    "a time": ("who,class,a\nx,0,12:30\ny,1,13:00\n", {"features": "a"}, "'12:30'", "a time"),
    "thousands": (PLAIN.replace("3e2", '"1,200"'), {}, "line 3", "'1,200'", "--thousands , reads", "--decimal , reads"),
    "a decimal comma": ("who;class;a\nx;0;3,5\ny;1;4\n", {"delimiter": ";"}, "line 2", "'3,5'", "--decimal , reads"),
    "percent": (PLAIN.replace("3e2", "12 %"), {}, "'12 %'", "--strip % reads '12 %' as 12"),
    "a long cell": (PLAIN.replace("3e2", "x" * 90), {}, "x" * 37 + "...' is not a number"),
    "nothing but words": ("who,class,a\nx,0,red\ny,1,blue\n", {}, "no column of numbers besides client and label"),
    "an empty cell": (PLAIN.replace("0.1", ""), {}, "line 3", "column 'a': no value", "1 of 3", "--missing drop"),
    "a cell of spaces": (PLAIN.replace("0.1", "  "), {}, "line 3", "column 'a': no value"),
    "NA": (PLAIN.replace("0.1", "NA"), {}, "line 3", "column 'a': no value"),
    "a question mark": (PLAIN.replace("0.1", "?"), {}, "line 3", "column 'a': no value"),
    "nan": (PLAIN.replace("0.1", "nan"), {}, "line 3", "column 'a': no value"),
    "no client's name": (PLAIN.replace("bob", ""), {}, "line 3", "column 'who': no value"),
    "no label's name": (PLAIN.replace("bob,no", "bob, "), {}, "line 3", "column 'class': no value"),
    "nothing is whole": ("who,class,a\nx,0,\ny,1,\n", {"features": "a", "missing": "drop"}, "every sample lacks a"),
    "infinity": (PLAIN.replace("0.1", "-inf"), {}, "line 3", "column 'a': -inf is not finite"),
    "infinity is not missing": (PLAIN.replace("0.1", "inf"), {"missing": "drop"}, "line 3", "inf is not finite"),
    "too large": (PLAIN.replace("3e2", "3e39"), {}, "line 3", "column 'b': 3e+39 is too large for float32"),
    "one class": (PLAIN.replace("yes", "no"), {}, "line 2", "column 'class': every label is 'no'", "another --label"),
    "one class in numbers": ("who,class,a\nx,1,2\ny,1.0,3\n", {}, "every label is '1'"),
    "fractions": ("who,class,a\nx,1,2\ny,1.5,3\nz,0.5,3\n", {}, "line 3", "1.5 is a fraction", "--task q", "'class>"),
    "a cell too many": (PLAIN.replace("3e2", "3,2"), {}, "line 3 (the header is line 1) has 5 cells", "header has 4"),
    "a cell too few": (PLAIN.replace(",3e2", ""), {}, "line 3", "has 3 cells where the header has 4"),
    "a comma too many": (PLAIN.replace("3e2", "3e2,"), {}, "line 3", "has 5 cells", "does it end with an extra ','?"),
    "semicolons": (PLAIN.replace(",", ";"), {}, "',' does not separate the columns", "--delimiter ';'"),
    "tabs": (PLAIN.replace(",", "\t"), {}, "--delimiter tab"),
    "commas": (PLAIN, {"delimiter": "tab"}, "'tab' does not separate the columns", "--delimiter ','"),
    "one column": ("who\nann\n", {}, "has a single column, 'who'"),
    "nothing": ("", {}, "table.csv is empty"),
    "blank lines alone": ("\n\n", {}, "table.csv is empty"),
    "names alone": ("who,class,a\n", {}, "column names but no samples"),
    "an open quote": (PLAIN.replace("bob", '"bob'), {}, "line 3", "a double quote is not closed"),
    "text behind a quote": (PLAIN.replace("bob", '"bob"by'), {}, "line 3", "expected after", 'inside a cell twice: ""'),
    "Latin-1": (PLAIN.replace("bob", "bö").encode("latin1"), {}, "line 3", "byte 0xf6 is not UTF-8", "iconv -f latin1"),
    "UTF-16": (PLAIN.encode("utf-16"), {}, "is UTF-16, not UTF-8", "iconv -f utf-16"),
    "bytes": (b"\x00\x01" * 50, {}, "is not text"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_import_refuses_a_bad_table_and_names_the_problem(write_file, case):
    content, options, *words = BAD[case]
    refuse(PflError, words, write_file(content), **{**COLUMNS, **options})


def test_import_missing_drop_drops_incomplete_samples(pfl, write_file, tmp_path):
    path = write_file("who,class,a,b\nw,0,1,2\n,1,1,2\nx,,1,2\ny,1,,2\nz,1,5,6\nz,1,inf,nan\n")
    ran = pfl("import", path, "--client", "who", "--label", "class", "--missing", "drop", "-o", tmp_path / "d")
    assert "4 of 6 samples lack a value and are left out" in ran.err
    assert_dataset(
        datasets.read(open_artifact(tmp_path / "d")), [[1, 2], [5, 6]], [0, 1], ["0", "1"], ["w", "z"], ["a", "b"]
    )
    assert open_artifact(tmp_path / "d").manifest.summary["dropped"] == 4


# What a user is told


def import_notes(pfl, path, tmp_path, *words):
    ran = pfl("import", path, "--client", "who", "--label", "class", "-o", tmp_path / "d", *words)
    assert ran.code == 0, ran.err
    return ran.err


def test_import_prints_a_summary(pfl, write_file, tmp_path):
    err = import_notes(pfl, write_file(PLAIN), tmp_path)
    for fact in ("3 samples", "2 classes", "2 features", "2 clients", "1 / 1.5 / 2", "no 2, yes 1", "-2, 300, 0"):
        assert fact in err
    assert import_notes(pfl, write_file(PLAIN), tmp_path, "-f", "-q") == ""


def test_import_summary_shortens_long_lists(pfl, write_file, tmp_path):
    lines = [",".join(["w", f"k{i:02}", *["1"] * 30]) for i in range(20)]
    err = import_notes(
        pfl, write_file("\n".join([",".join(["who", "class", *(f"f{i}" for i in range(30))]), *lines])), tmp_path
    )
    assert "k11 1, ... (20 in all)\n" in err
    assert ("f17 " in err, "f18 " in err, "... (32 columns in all)\n" in err) == (True, False, True)
    shown = pfl("show", tmp_path / "d").out
    assert ("f29 " in shown, "in all" in shown) == (True, False)


@pytest.mark.parametrize(
    ("a", "b", "words", "standardized"),
    [
        ("0.001,0.002,0", "5,6,9", "'a' to 0.002, 'b' to 9): try --standardize", ""),
        ("1,1,1", "900,600,800", "'b' to 900): try --standardize", ""),
        ("0.1,0.2,0", "0.5,0.6,0.1", "", ""),
        ("4,6,5", "4,6,6", "'a' looks like a row number", "'a' looks like a row number"),
        ("16777217,16777216,5", "1,1,1", "'a' is rounded to 7 digits", "'a' is rounded to 7 digits"),
    ],
)
def test_import_suggests_standardizing_features(pfl, write_file, tmp_path, a, b, words, standardized):
    cells = zip(a.split(","), b.split(","), strict=True)
    path = write_file("who,class,a,b\n" + "".join(f"w,{i % 2},{x},{y}\n" for i, (x, y) in enumerate(cells)))
    err = import_notes(pfl, path, tmp_path)
    assert words in err
    assert words or err.splitlines()[-1].startswith("b ")
    err = import_notes(pfl, path, tmp_path, "--standardize", "-f")
    assert standardized in err
    assert err.splitlines()[-1] == "standardized by `pfl partition`, by training samples"


def test_partition_standardizes_features_by_training_samples(write_file, tmp_path):
    values = np.random.default_rng(1).normal([5, 1e9, 0.1], [2, 1e3, 0], (200, 3))
    lines = [",".join(["w", str(i % 2), *map(repr, map(float, row))]) for i, row in enumerate(values)]
    path = write_file("\n".join(["who,class,a,b,constant", *lines]) + "\n")
    dataset = import_and_read(path, tmp_path / "out", **COLUMNS, standardize=True)
    assert (dataset.x.dtype, dataset.standardize) == (np.float64, True)
    np.testing.assert_array_equal(dataset.x, values)
    stored, known = partition_dataset(tmp_path / "out", tmp_path / "p")
    train = stored.x[: stored.offsets[1]]
    np.testing.assert_allclose(train[:, :2].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(train[:, :2].std(axis=0), 1, atol=1e-6)
    np.testing.assert_array_equal(stored.x[:, 2], 0)
    np.testing.assert_allclose(known.mean, values[stored.sample[: stored.offsets[1]]].mean(axis=0))
    assert known.sd[2] == 0
    mean, sd = np.asarray(known.mean), np.asarray(known.sd)
    np.testing.assert_allclose((stored.x * sd + mean)[:, :2], values[stored.sample, :2], rtol=1e-6)
    assert not read_dataset(path, **COLUMNS).standardize


def partition_dataset(dataset, out, **options):
    """Partition an imported dataset, and return the partition and its codebook."""
    partition(str(dataset), out, execution=Execution(force=True), **options)
    return partitions.read(open_artifact(out)), codebook.read(open_artifact(out))


# Parquet


def write_parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_import_reads_parquet(tmp_path):
    path = write_parquet(
        tmp_path / "table.parquet",
        who=pa.array([2**60 + 1, 5, 2**60 + 1]),
        kind=pa.array(["x", "y", "x"]).dictionary_encode(),
        a=pa.array([0.5, 1.5, -1], pa.float64()),
        b=pa.array([1, 2, 3], pa.int8()),
        c=pa.array([True, False, True]),
        d=pa.array(["1.25", "2.5", "3"], pa.string()).cast(pa.decimal128(5, 2)),
        when=pa.array([0, 1, 2], pa.timestamp("s")),
        words=["p", "q", "r"],
        __index_level_0__=pa.array([0, 1, 2]),
    )
    dataset = read_dataset(path, client="who", label="kind")
    x = [[0.5, 1, 1, 1.25], [1.5, 2, 0, 2.5], [-1, 3, 1, 3]]
    assert_dataset(
        dataset, x, [0, 1, 0], ["x", "y"], ["1152921504606846977", "5", "1152921504606846977"], ["a", "b", "c", "d"]
    )


def test_import_reads_files_written_by_pandas(tmp_path):
    frame = pd.DataFrame({"who": list("aba"), "class": [1.0, 0.0, 1.0], "a": [1.5, 2.5, 3.5]}, index=[4, 5, 9])
    frame.to_parquet(tmp_path / "table.parquet")
    assert_dataset(
        read_dataset(tmp_path / "table.parquet", **COLUMNS),
        [[1.5], [2.5], [3.5]],
        [1, 0, 1],
        ["0", "1"],
        [*"aba"],
        ["a"],
    )
    frame.to_csv(tmp_path / "table.csv")
    assert_dataset(
        read_dataset(tmp_path / "table.csv", **COLUMNS),
        [[1.5], [2.5], [3.5]],
        [1, 0, 1],
        ["0", "1"],
        [*"aba"],
        ["a"],
    )


IDS, KIND = ["u", "v", "u"], [0, 1, 0]
BAD_PARQUET = {
    "a column": ({"who": IDS, "clas": KIND, "a": KIND}, {}, "has no column 'class'", "did you mean 'clas'?"),
    "a null": ({"who": IDS, "class": KIND, "a": [1, None, 2]}, {}, "row 2 (of 1 to 3), column 'a': no value"),
    "no client": ({"who": [1, None, 2], "class": KIND, "a": KIND}, {}, "row 2 (of 1 to 3), column 'who': no value"),
    "no label": ({"who": IDS, "class": [0.0, 1.0, None], "a": KIND}, {}, "row 3 (of 1 to 3), column 'class': no value"),
    "infinity": ({"who": IDS, "class": KIND, "a": [1, 2, float("inf")]}, {}, "row 3", "column 'a': inf is not finite"),
    "a date": (
        {"who": IDS, "class": KIND, "a": pa.array(KIND, pa.timestamp("s"))},
        {"features": "a"},
        "row 1 (of 1 to 3), column 'a': '1970-01-01 00:00:00' is not a number",
        "a date",
    ),
    "lists of other lengths": (
        {"who": IDS, "class": KIND, "a": [[1], [2, 3], [3]]},
        {"features": "a"},
        "row 2 (of 1 to 3), column 'a': it has 2 numbers, and others have 1",
    ),
    "labels of lists": (
        {"who": IDS, "class": [[1], [2], [3]], "a": KIND},
        {},
        "column 'class' has values of type list",
    ),
}


@pytest.mark.parametrize("case", BAD_PARQUET)
def test_import_refuses_bad_parquet_and_names_the_problem(tmp_path, case):
    columns, options, *words = BAD_PARQUET[case]
    refuse(PflError, words, write_parquet(tmp_path / "table.parquet", **columns), **COLUMNS, **options)


def test_import_refuses_damaged_parquet(tmp_path, write_file):
    path = write_parquet(tmp_path / "table.parquet", who=IDS * 900, a=np.arange(2700), **{"class": KIND * 900})
    os.truncate(path, path.stat().st_size // 2)
    refuse(PflError, ["cannot be read as Parquet"], path, **COLUMNS)
    refuse(PflError, ["cannot be read as Parquet"], write_file("nothing of the kind", "text.parquet"), **COLUMNS)


def test_import_of_parquet_names_the_missing_pyarrow(monkeypatch, write_file):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refuse(PflError, ["needs pyarrow", "pip install 'pflcli[parquet]'"], write_file("", "table.parquet"), **COLUMNS)


# Arrays


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def write_hdf5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            values = np.asarray(values)
            text = values.dtype.kind == "U"
            file.create_dataset(
                name, data=values.astype(object) if text else values, dtype=h5py.string_dtype() if text else None
            )
    return path


BOTH = pytest.mark.parametrize(("write", "name"), [(write_npz, "d.npz"), (write_hdf5, "d.h5"), (write_hdf5, "d.hdf5")])
DRAW = np.random.default_rng(3)
ARRAYS = {
    "features": (DRAW.normal(size=(4, 3)), "features"),
    "half": (DRAW.normal(size=(4, 3)).astype(np.float16), "features"),
    "integers": (DRAW.integers(-9, 9, (4, 3)), "features"),
    "bytes": (DRAW.integers(0, 256, (4, 3), dtype=np.uint8), "features"),
    "truths": (DRAW.random((4, 3)) < 0.5, "features"),
    "series": (DRAW.normal(size=(4, 5, 2)).astype(np.float32), "features"),
    "grey images": (DRAW.integers(0, 256, (4, 5, 6), dtype=np.uint8), "pixels"),
    "colour images": (DRAW.integers(0, 256, (4, 5, 6, 3), dtype=np.uint8), "pixels"),
}


@BOTH
@pytest.mark.parametrize("case", ARRAYS)
def test_import_reads_arrays_of_every_type(tmp_path, write, name, case):
    x, kind = ARRAYS[case]
    dataset = read_dataset(write(tmp_path / name, x=x, y=[3, 1, 3, 2], owner=["b", "a", "b", "ä"]))
    expected = x if kind == "pixels" else x.astype(np.float32)
    assert_dataset(dataset, expected, [2, 0, 2, 1], ["1", "2", "3"], ["b", "a", "b", "ä"])


@BOTH
def test_import_reads_arrays_with_given_names(tmp_path, write, name):
    x = np.float32([[0.5], [1.5]])
    path = write(tmp_path / name, **{"data/x": x, "kind": ["p", "q"], "who": [1.0, 2.0]})
    assert_dataset(read_dataset(path, features="data/x", label="kind", client="who"), x, [0, 1], ["p", "q"], ["1", "2"])
    assert read_dataset(path, features="data/x", label="kind", client="none").owner is None
    with pytest.raises(UsageError, match="--client is missing: name the array") as error:
        read_dataset(path, features="data/x", label="kind")
    assert error.value.fix == ("--client NAME, one of: who", "--client none if samples are not assigned to clients yet")
    path = write(tmp_path / name, x=x, y=[True, False], client=np.asarray([b"v", b"w"]))
    assert_dataset(read_dataset(path), x, [1, 0], ["False", "True"], ["v", "w"])
    assert read_dataset(path, client="none").owner is None


ONE = np.float32([[1, 2], [3, 4]])
BAD_ARRAYS = {
    "no x": ({"X": ONE, "y": [0, 1]}, {}, "has no array 'x'", "--features NAME"),
    "no y": ({"x": ONE, "labels": [0, 1]}, {}, "has no array 'y'", "choose from: labels, x", "--label NAME"),
    "no such client": ({"x": ONE, "y": [0, 1], "owner": [1, 2]}, {"client": "onwer"}, "did you mean 'owner'?"),
    "two features": ({"x": ONE, "y": [0, 1]}, {"features": ("x", "y")}, "the name of one array"),
    "lengths": ({"x": ONE, "y": [0, 1, 1]}, {}, "2 features, 3 labels"),
    "owners": ({"x": ONE, "y": [0, 1], "owner": [1]}, {}, "2 features, 2 labels, 1 clients"),
    "no samples": ({"x": ONE[:0], "y": np.zeros(0, int)}, {}, "has no samples"),
    "one-hot": ({"x": ONE, "y": np.eye(2)}, {}, "'y' has shape (2, 2)", "y.argmax(axis=1)"),
    "a column of labels": ({"x": ONE, "y": [[0], [1]]}, {}, "'y' has shape (2, 1)", "reshape(-1)"),
    "a column of owners": ({"x": ONE, "y": [0, 1], "owner": [["a"], ["b"]]}, {}, "'owner' has shape (2, 1)"),
    "complex labels": ({"x": ONE, "y": [0j, 1j]}, {}, "'y': complex128 is neither text nor a number"),
    "complex features": ({"x": ONE * 1j, "y": [0, 1]}, {}, "'x' has type complex64, not numbers"),
    "a line of features": ({"x": [1.0, 2.0], "y": [0, 1]}, {}, "'x' has shape (2,)", "x.reshape(-1, 1)"),
    "nan": ({"x": [[1, np.nan], [3, 4]], "y": [0, 1]}, {}, "x[0, 1]: no value", "--missing drop"),
    "inf": ({"x": [[1, 2], [np.inf, 4]], "y": [0, 1]}, {}, "x[1, 0]: inf is not finite"),
    "nan in a label": ({"x": ONE, "y": [0, np.nan]}, {}, "y[1]: no value"),
    "half labels": ({"x": ONE, "y": [0, 0.5]}, {}, "y[1]: 0.5 is a fraction"),
    "one class": ({"x": ONE, "y": [4, 4]}, {}, "y[0]: every label is '4'"),
    "no owner's name": ({"x": ONE, "y": [0, 1], "owner": ["a", ""]}, {}, "owner[1]: no value"),
    "wide images": ({"x": np.zeros((2, 4, 4), int), "y": [0, 1]}, {}, "int64", "--samples images", "--samples series"),
    "integer series": ({"x": np.full((2, 4, 4), 900), "y": [0, 1]}, {}, "from 0 to 900", "--samples series"),
    "channels first": ({"x": np.zeros((2, 3, 8, 8), np.uint8), "y": [0, 1]}, {}, "--layout channels-first"),
    "no values": ({"x": np.zeros((30, 0)), "y": np.arange(30) % 2}, {}, "'x' has shape (30, 0): its samples have no"),
    "a layout of features": ({"x": ONE, "y": [0, 1]}, {"layout": "channels-first"}, "--layout is for series"),
    "an unknown layout": ({"x": ONE, "y": [0, 1]}, {"layout": "channels-frist"}, "did you mean 'channels-first'?"),
    "one row of labels": ({"x": ONE, "y": [[0, 1]]}, {}, "'y' has shape (1, 2)", "reshape(-1)"),
    "images of features": ({"x": ONE, "y": [0, 1]}, {"samples": "images"}, "images are (n, H, W) or (n, H, W, 3)"),
    "an unknown kind": ({"x": ONE, "y": [0, 1]}, {"samples": "image"}, "did you mean 'images'?"),
    "a class beyond": (
        {"x": ONE, "y": [0, 2], "classes": ["a", "b"]},
        {},
        "y[1]: '2' is not among the classes of the file",
    ),
    "a class twice": ({"x": ONE, "y": [0, 1], "classes": ["a", "a"]}, {}, "has the name 'a' 2 times"),
    "five channels": ({"x": np.zeros((2, 8, 8, 5), np.uint8), "y": [0, 1]}, {}, "images are (n, H, W) or (n, H, W, 3)"),
    "a film": ({"x": np.zeros((2, 8, 8, 5, 3), np.uint8), "y": [0, 1]}, {}, "images are (n, H, W) or (n, H, W, 3)"),
    "pixels of one scale": (
        {"x": np.zeros((2, 8, 8), np.uint8), "y": [0, 1]},
        {"standardize": True},
        "--standardize does not apply to images",
    ),
}


@pytest.mark.parametrize(("write", "name"), [(write_npz, "d.npz"), (write_hdf5, "d.h5")])
@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_import_refuses_bad_arrays_and_names_the_problem(tmp_path, write, name, case):
    arrays, options, *words = BAD_ARRAYS[case]
    options = options if "owner" in arrays else {"client": "none", **options}
    refuse(PflError, words, write(tmp_path / name, **arrays), **options)


def test_import_refuses_pickled_objects(tmp_path, write_file):
    path = write_npz(tmp_path / "d.npz", x=ONE, y=np.asarray(["a", None], dtype=object))
    refuse(PflError, ["array 'y' contains Python objects, which pfl does not unpickle", "y.tolist()"], path)
    np.save(tmp_path / "one.npy", ONE)
    refuse(PflError, ["is one array, not an NPZ file"], write_file((tmp_path / "one.npy").read_bytes(), "one.npz"))


def test_import_drops_incomplete_rows_of_arrays(tmp_path):
    x = np.float32([[1, 2], [np.nan, 4], [5, 6], [7, 8]])
    dataset = read_dataset(write_npz(tmp_path / "d.npz", x=x, y=[0, 1, np.nan, 1], owner=[*"abcd"]), missing="drop")
    assert_dataset(dataset, x[[0, 3]], [0, 1], ["0", "1"], ["a", "d"])


@pytest.mark.parametrize(("write", "name", "form"), [(write_npz, "d.npz", "NPZ"), (write_hdf5, "d.h5", "HDF5")])
def test_import_refuses_damaged_array_files(tmp_path, write_file, write, name, form):
    path = write(tmp_path / name, x=np.ones((500, 9)), y=np.arange(500))
    os.truncate(path, path.stat().st_size // 2)
    refuse(PflError, [f"cannot be read as {form}"], path)
    refuse(PflError, [f"cannot be read as {form}"], write_file("no such thing", name))


def test_import_refuses_ragged_hdf5_arrays(tmp_path):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        ragged = file.create_dataset("x", 2, dtype=h5py.vlen_dtype(np.float32))
        ragged[0], ragged[1] = [1], [2, 3]
        file["y"] = [0, 1]
    refuse(PflError, ["'x' is ragged"], tmp_path / "d.h5")


def test_partition_standardizes_series_by_channel(tmp_path):
    x = DRAW.normal([0, 50], [1, 9], (30, 4, 2))
    path = write_npz(tmp_path / "d.npz", x=x, y=np.arange(30) % 2, owner=np.zeros(30))
    import_data(path, tmp_path / "out", standardize=True)
    stored, known = partition_dataset(tmp_path / "out", tmp_path / "p")
    train = x[stored.sample[: stored.offsets[1]]]
    np.testing.assert_allclose(known.mean, train.mean(axis=(0, 1)))
    np.testing.assert_allclose(stored.x, (x[stored.sample] - known.mean) / train.std(axis=(0, 1)), atol=1e-5)


# Integers: classes or a quantity


def make_integer_label_table(distinct, samples):
    """Return a table with a label of ``distinct`` integers."""
    return "who,class,a\n" + "".join(f"c{row % 2},{25 + row % distinct},{row}.5\n" for row in range(samples))


@pytest.mark.parametrize(("distinct", "samples"), [(214, 442), (21, 209)])
def test_import_asks_for_classes_when_labels_have_many_distinct_integers(pfl, write_file, tmp_path, distinct, samples):
    path, out = write_file(make_integer_label_table(distinct, samples)), tmp_path / "d"
    ran = pfl(*make_command(path, out))
    assert (ran.code, out.exists()) == (3, False)
    assert "column 'class'" in ran.err
    assert f"{distinct} whole numbers in {samples} samples" in ran.err
    assert "--task quantity, --task count or --task classes" in ran.err
    ran = pfl(*make_command(path, out, "--task", "classes"))
    assert ran.code == 0, ran.err
    artifact = open_artifact(out)
    assert (len(datasets.read(artifact).classes), artifact.manifest.request["task"]) == (distinct, "classes")
    (repeated,) = lineage.list_commands(lineage.trace(artifact))
    assert "--task classes" in repeated
    ran = pfl("import", path, "--like", out, "-o", tmp_path / "newer")
    assert ran.code == 0, ran.err
    ran = pfl("import", path, "--like", out, "--task", "classes", "-o", tmp_path / "newest")
    assert (ran.code, "leave out --task" in ran.err) == (2, True)


@pytest.mark.parametrize(("distinct", "samples"), [(20, 40), (20, 210)])
def test_import_reads_few_integers_as_classes(write_file, tmp_path, distinct, samples):
    path = write_file(make_integer_label_table(distinct, samples))
    assert len(import_and_read(path, tmp_path / "out", **COLUMNS).classes) == distinct
    assert "task" not in open_artifact(tmp_path / "out").manifest.request


def test_import_accepts_many_classes_when_they_are_declared(tmp_path, write_file):
    x, y = DRAW.normal(size=(60, 2)), np.arange(60) % 30
    names = np.asarray([str(number) for number in range(30)])
    assert (
        len(read_dataset(write_npz(tmp_path / "named.npz", x=x, y=y, owner=np.arange(60) % 3, classes=names)).classes)
        == 30
    )
    refuse(
        PflError,
        ["30 whole numbers in 60", "--label 'y>14'", "--task classes"],
        write_npz(tmp_path / "d.npz", x=x, y=y, owner=np.arange(60) % 3),
    )
    words = write_file("who,class,a\n" + "".join(f"c{row % 2},w{row % 30},{row}.5\n" for row in range(60)))
    refuse(PflError, ["30 different words in 60", "--task classes"], words, **COLUMNS)
    assert len(read_dataset(words, **COLUMNS, task="classes").classes) == 30
    for number in range(22):
        write_image(tmp_path / "album" / "ann" / str(number) / "1.png", GREY)
    assert len(read_dataset(tmp_path / "album").classes) == 22


# Folders of images


def write_image(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return pixels


@pytest.fixture
def image_folder(tmp_path):
    """Two clients' grey images, and what a system leaves among them."""
    root = tmp_path / "album"
    places = ["ann/cat/1.png", "ann/dog/1.PNG", "bob/cat/a.png", "bob/cat/b.png"]
    x = np.stack([write_image(root / place, DRAW.integers(0, 256, (5, 4), dtype=np.uint8)) for place in places])
    (root / ".DS_Store").write_text("")
    return root, x


def test_import_reads_a_folder_of_grey_images(image_folder):
    root, x = image_folder
    assert_dataset(read_dataset(root), x, [0, 1, 0, 0], ["cat", "dog"], ["ann", "ann", "bob", "bob"])


def test_import_reads_a_folder_of_colour_images(tmp_path):
    places = ["0/10/1.png", "0/9/1.png", "1/9/1.jpg"]
    x = [write_image(tmp_path / "album" / place, DRAW.integers(0, 256, (6, 4, 3), dtype=np.uint8)) for place in places]
    dataset = read_dataset(tmp_path / "album")
    assert (dataset.y.tolist(), dataset.classes, dataset.owner.tolist()) == ([1, 0, 0], ["9", "10"], ["0", "0", "1"])
    np.testing.assert_array_equal(dataset.x[:2], x[:2])
    with Image.open(tmp_path / "album" / places[2]) as jpg:
        np.testing.assert_array_equal(dataset.x[2], np.asarray(jpg))


def test_import_reads_images_without_clients(image_folder):
    root, x = image_folder
    assert_dataset(read_dataset(root / "ann", client="none"), x[:2], [0, 1], ["cat", "dog"], None)


def test_import_resizes_images(image_folder):
    root, x = image_folder
    write_image(root / "bob/dog/large.png", np.full((40, 60), 7, np.uint8))
    dataset = read_dataset(root, resize=3)
    assert dataset.x.shape == (5, 3, 3)
    assert (dataset.x[4] == 7).all()
    half = Image.fromarray(x[0]).resize((3, 3), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(dataset.x[0], np.asarray(half))


def test_import_reads_images_with_palette_alpha_and_orientation(tmp_path):
    root, colours = tmp_path / "album", DRAW.integers(0, 256, (5, 4, 3), dtype=np.uint8)
    opaque = np.concatenate([colours, np.full((5, 4, 1), 255, np.uint8)], axis=2)
    write_image(root / "a/x/opaque.png", opaque)
    palette = Image.fromarray(colours).quantize(256)
    (root / "a/y").mkdir()
    palette.save(root / "a/y/palette.png")
    dataset = read_dataset(root)
    np.testing.assert_array_equal(dataset.x, [colours, np.asarray(palette.convert("RGB"))])
    turned = Image.fromarray(colours)
    exif = turned.getexif()
    exif[0x0112] = 6  # orientation: turn by 90 degrees to the right
    turned.save(root / "a/x/turned.png", exif=exif)
    refuse(PflError, ["turned.png has 5x4 pixels (width x height)", "opaque.png 4x5", "--resize 32"], root)


def test_import_names_ignored_files_beside_images(pfl, image_folder, tmp_path):
    root, _ = image_folder
    (root / "ann" / "notes.txt").write_text("")
    ran = pfl("import", root, "-o", tmp_path / "d")
    assert "ignored, not images: 1 file, such as ann/notes.txt" in ran.err
    assert "4 samples of 2 classes, 5x4 pixels, 2 clients" in ran.err


def make_decompression_bomb():
    """A PNG that says it is 60,000 pixels a side."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def encoded(pixels, kind="PNG"):
    memory = io.BytesIO()
    Image.fromarray(pixels).save(memory, kind)
    return memory.getvalue()


GREY = np.arange(20, dtype=np.uint8).reshape(5, 4)
BAD_IMAGES = {
    "no image": ("bob/dog/x.png", b"plain text", "bob/dog/x.png cannot be read as an image"),
    "half an image": ("bob/dog/x.png", encoded(DRAW.integers(0, 256, (99, 99), dtype=np.uint8))[:500], "x.png cannot"),
    "an image of nothing": ("bob/dog/x.jpg", b"", "bob/dog/x.jpg cannot be read as an image"),
    "a bomb": ("bob/dog/x.png", make_decompression_bomb(), "bob/dog/x.png cannot be read as an image"),
    "another size": ("bob/dog/x.png", encoded(GREY[:3]), "x.png has 4x3 pixels", "ann/cat/1.png 4x5", "--resize 32"),
    "another colour": ("bob/dog/x.png", encoded(np.stack([GREY] * 3, axis=2)), "x.png is in colour", "1.png grey"),
    "16 bits": ("bob/dog/x.png", encoded(GREY.astype(np.uint16) * 999), "x.png has 16 bits", "--convert grey"),
    "transparency": ("bob/dog/x.png", encoded(np.stack([GREY] * 4, axis=2)), "x.png has transparent pixels"),
    "no label": ("bob/x.png", encoded(GREY), "bob/x.png is not at CLIENT/LABEL/IMAGE", "--client none"),
    "too deep": ("bob/dog/old/x.png", encoded(GREY), "old/x.png is not at CLIENT/LABEL/IMAGE"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_import_refuses_bad_images_and_names_the_file(image_folder, case):
    place, content, *words = BAD_IMAGES[case]
    path = image_folder[0] / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    refuse(PflError, words, image_folder[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label": "kind"}, "--label is for tables and arrays"),
        ({"client": "who"}, "--client is for tables and arrays"),
        ({"features": "x"}, "--features is for tables and arrays"),
        ({"delimiter": ";"}, "--delimiter is for CSV and TSV"),
        ({"standardize": True}, "--standardize does not apply to images"),
        ({"resize": 0}, "resize=0 is not at least 1"),
        ({"resize": 5000}, "resize=5000 is not at most 4096"),
        ({"frame": 0}, "frame=0 is not at least 1"),
        ({"convert": "gray"}, "unknown --convert 'gray'"),
        ({"client": "none"}, "is not at LABEL/IMAGE"),
    ],
)
def test_import_refuses_table_options_for_a_folder_of_images(image_folder, options, words):
    refuse(PflError, [words], image_folder[0], **options)


def test_import_refuses_images_of_a_single_class(tmp_path):
    write_image(tmp_path / "album" / "ann" / "cat" / "1.png", GREY)
    refuse(PflError, ["cat/1.png: every label is 'cat'"], tmp_path / "album")


# Forms


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sheet.xls", "save the sheet as .xlsx or CSV"),
        ("table.parquet.gz", "unpack it first"),
        ("x.npy", "np.savez"),
        (
            "model.pkl",
            "does not import (.csv, .tsv, .tab, .txt, .dat, .data, .parquet",
        ),
    ],
)
def test_import_refuses_unsupported_file_formats_with_a_suggestion(write_file, name, words):
    refuse(PflError, [words], write_file("", name))


def test_import_refuses_missing_empty_or_unsuitable_paths(tmp_path, small):
    refuse(PflError, ["nowhere.csv does not exist"], tmp_path / "nowhere.csv")
    refuse(PflError, ["p is an artifact of pfl (partition)"], small.p)
    (tmp_path / "empty").mkdir()
    refuse(PflError, ["empty has no image", "CLIENT/LABEL/IMAGE"], tmp_path / "empty")
    (tmp_path / "empty" / "notes.md").write_text("nothing")
    refuse(PflError, ["empty has no image, but notes.md"], tmp_path / "empty")


# The command's manners


def make_command(path, out, *words):
    return ("import", path, "--client", "who", "--label", "class", "-o", out, *words)


def test_import_is_up_to_date_or_conflicts_when_repeated(pfl, write_file, tmp_path, tree):
    def contents():  # that it is up to date makes it newer than its inputs
        return {name: content for name, (content, _) in tree(out).items()}

    path, out = write_file(PLAIN), tmp_path / "d"
    assert pfl(*make_command(path, out)).out == f"{out}\n"
    before = contents()
    ran = pfl(*make_command(path, out))
    assert (ran.code, ran.out, ran.err) == (0, f"{out}\n", f"{out} is up to date\n")
    path = path.rename(tmp_path / "renamed.csv")
    assert "up to date" in pfl(*make_command(path, out)).err
    assert contents() == before
    ran = pfl(*make_command(path, out, "--standardize"))
    assert (ran.code, 'standardize: false -> "by training samples"' in ran.err) == (4, True)
    write_file(PLAIN + "cid,no,1,1\n", "renamed.csv")
    ran = pfl(*make_command(path, out))
    assert (ran.code, "sha256: " in ran.err) == (4, True)
    assert pfl(*make_command(path, out, "--force")).code == 0
    assert open_artifact(out).manifest.summary["samples"] == 4
    assert open_artifact(out).manifest.made["source"] == "renamed.csv"


def test_import_json_of_a_dry_run_equals_that_of_the_real_run(pfl, write_file, tmp_path, tree):
    path, out = write_file(PLAIN), tmp_path / "d"
    before = tree(tmp_path)
    dry = json.loads(pfl(*make_command(path, out, "-n", "--json")).out)
    assert tree(tmp_path) == before
    outcome = json.loads(pfl(*make_command(path, out, "--json")).out)
    assert (dry.pop("decision"), outcome.pop("decision")) == ("dry run: new", "new")
    assert dry == outcome
    assert outcome["kind"] == "dataset"
    assert outcome["summary"]["classes"] == {"no": 2, "yes": 1}
    assert "would make dataset" in pfl(*make_command(path, tmp_path / "e", "-n")).err


def test_import_records_the_hash_of_the_file(write_file, tmp_path):
    import hashlib

    path = write_file(PLAIN)
    import_data(path, tmp_path / "d", **COLUMNS)
    manifest = open_artifact(tmp_path / "d").manifest
    assert manifest.request["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest.made["source"] == "table.csv"


def test_import_fingerprint_changes_when_an_image_moves_within_the_folder(image_folder, tmp_path):
    root, _ = image_folder
    first = import_data(root, tmp_path / "a").fingerprint
    (root / "ann/cat/1.png").rename(root / "ann/dog/2.png")
    assert import_data(root, tmp_path / "b").fingerprint != first
    root.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/ann/dog/2.png").rename(tmp_path / "elsewhere/ann/cat/1.png")
    assert import_data(tmp_path / "elsewhere", tmp_path / "c").fingerprint == first


def test_import_is_deterministic(write_file, tmp_path):
    path = write_file(PLAIN)
    for out in ("a", "b"):
        import_data(path, tmp_path / out, **COLUMNS)
    one, two = (open_artifact(tmp_path / out) for out in ("a", "b"))
    assert one.manifest.fingerprint == two.manifest.fingerprint
    assert one.read("samples.h5") == two.read("samples.h5")


def test_import_takes_options_from_a_config_file(pfl, write_file, tmp_path):
    path = write_file(PLAIN)
    (tmp_path / "pfl.toml").write_text('[import]\nclient = "who"\nlabel = "class"\nfeatures = ["b", "a"]\n')
    ran = pfl("import", path, "--config", tmp_path / "pfl.toml", "-o", tmp_path / "d", "--json")
    assert json.loads(ran.out)["summary"]["features"] == ["b", "a"]


# The chain


@pytest.fixture
def imported_hospitals(tmp_path, write_file):
    """Three hospitals whose patients fall ill for different reasons, imported."""
    draw = np.random.default_rng(5)
    rows = ["hospital,age,pressure,outcome"]
    for i in range(90):
        ill = int(draw.random() < 0.5)
        rows.append(
            f"hôp {i % 3},{draw.normal(50 + 20 * ill, 3):.4f},{draw.normal(120 + 30 * ill * (i % 3), 4):.4f},{ill}"
        )
    path = write_file("\n".join(rows) + "\n")
    import_data(path, tmp_path / "own", client="hospital", label="outcome", standardize=True)
    return tmp_path / "own"


def test_command_chain_runs_on_an_imported_table(pfl, imported_hospitals, tmp_path):
    at = tmp_path
    assert pfl("partition", imported_hospitals, "-o", at / "p").code == 0
    assert pfl("train-global", at / "p", "--model", "logistic", "--rounds", 2, "--lr", 1, "-o", at / "b").code == 0
    assert pfl("personalize", "local", at / "b", "-o", at / "local").code == 0
    assert pfl("evaluate", at / "local", "-o", at / "ev", "-q").code == 0
    metrics = json.loads((at / "ev" / "metrics.json").read_text())["methods"][0]["metrics"]
    assert metrics["accuracy"]["value"] > 0.8
    facts = json.loads(pfl("show", at / "local", "--lineage", "--verify", "--json").out)
    kinds = []
    while facts["inputs"]:
        (facts,) = facts["inputs"]
        kinds.append(facts["kind"])
    assert kinds == ["backbone", "partition", "dataset"]
    assert facts["made"]["source"] == "table.csv"


def test_partition_contains_the_imported_samples(imported_hospitals, tmp_path):
    partition(str(imported_hospitals), tmp_path / "p", seed=3)
    stored, source = partitions.read(open_artifact(tmp_path / "p")), datasets.read(open_artifact(imported_hospitals))
    assert stored.names == ["hôp 0", "hôp 1", "hôp 2"]
    known = codebook.read(open_artifact(tmp_path / "p"))
    np.testing.assert_allclose(stored.x, (source.x[stored.sample] - known.mean) / known.sd, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(stored.y, source.y[stored.sample])
    owner = np.repeat(stored.names, stored.sizes.sum(axis=1))
    np.testing.assert_array_equal(owner, source.owner[stored.sample])
    assert sorted(stored.sample) == list(range(90))


def test_partition_works_after_its_dataset_is_deleted(pfl, imported_hospitals, tmp_path):
    at = tmp_path
    partition(str(imported_hospitals), at / "p")
    assert ancestor(open_artifact(at / "p"), "dataset").path.resolve() == imported_hospitals.resolve()
    imported_hospitals.rename(at / "own.old")
    assert ancestor(open_artifact(at / "p"), "dataset").path.name == "own.old"
    for file in (at / "own.old").iterdir():
        file.unlink()
    assert ancestor(open_artifact(at / "p"), "backbone") is None
    assert pfl("personalize", "local", at / "p", "--model", "logistic", "--rounds", 1, "-o", at / "l").code == 0
    assert "no longer exists" in pfl("show", at / "p", "--lineage").err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("{own}", "--root", "x"), 2, "--root and --download have no effect"),
        (("{own}", "--download"), 2, "--root and --download have no effect"),
        (("{table}",), 3, "table.csv is not a pfl artifact but a file"),
        (("{own}/nowhere",), 3, "nowhere does not exist"),
        (("{small}/p",), 3, "contains a partition, but this command needs a dataset\n     pfl import DATA -o DIR"),
        (("writters",), 2, "did you mean 'writers'?"),
    ],
)
def test_partition_refuses_wrong_arguments_for_an_imported_dataset(
    pfl, imported_hospitals, small, tmp_path, words, code, message
):
    places = {"own": imported_hospitals, "table": tmp_path / "table.csv", "small": small.root}
    ran = pfl("partition", *(word.format(**places) for word in words), "-o", tmp_path / "out")
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


def test_dataset_name_takes_precedence_over_a_folder_of_the_same_name(pfl, imported_hospitals, tmp_path, monkeypatch):
    imported_hospitals.rename(tmp_path / "writers")
    monkeypatch.chdir(tmp_path)
    by_name, by_path = (
        json.loads(pfl("partition", name, "-n", "--json", "-o", "p").out)["request"]
        for name in ("writers", "./writers")
    )
    assert (by_name["dataset"], by_name["samples"]) == ("writers", 5486)
    assert (by_path["dataset"], by_path["samples"]) == ("imported", 90)


def test_partition_refuses_a_damaged_dataset(imported_hospitals, tmp_path):
    content = bytearray((imported_hospitals / "samples.h5").read_bytes())
    content[-1] ^= 1
    (imported_hospitals / "samples.h5").write_bytes(content)
    with pytest.raises(InputError, match=r"samples\.h5 differs from what was written") as error:
        partition(str(imported_hospitals), tmp_path / "p")
    assert error.value.fix == ("make it again with --force: pfl import DATA -o DIR",)
