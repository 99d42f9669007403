"""``pfl import``: spellings of numbers, and file formats of tables."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import shlex
import zipfile
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from helpers import error_text
from importing import read_dataset, refuse
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.new_client import new_client
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.predict import predict
from pflcli.core.errors import InputError, PflError, UsageError
from pflcli.core.execution import Execution
from pflcli.data.formats import Roles
from pflcli.data.preparation.user_data import UserData, choose_dialect
from pflcli.options.declaration import split_items

AGAIN = Execution(force=True)
ROLES = {"client": "site", "label": "y"}
COLUMNS = ("--client", "site", "--label", "y")


@pytest.fixture
def write_text(tmp_path):
    """Write a text and return its path."""

    def write(text, name="t.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def import_text(write_text):
    """Import a text and return the dataset."""
    return lambda text, name="t.csv", **options: read_dataset(write_text(text, name), **{**ROLES, **options})


@pytest.fixture
def refuse_text(write_text):
    """Require that the import of a text ends with an error."""
    return lambda kind, expected, text, name="t.csv", **options: refuse(
        kind, expected, write_text(text, name), **{**ROLES, **options}
    )


def make_table(column, delimiter=";", count=60, label=lambda row: "ab"[row % 2]):
    """A table with a column of numbers, and one more, whose cells a function of the row gives."""
    rows = [[f"s{row % 3}", label(row), f"{row + 1}", str(column(row))] for row in range(count)]
    return "\n".join(delimiter.join(row) for row in [["site", "y", "a", "m"], *rows]) + "\n"


NUMBERS = {
    "many": lambda row: 1000 + row * 37.25,
    "few": lambda row: 1000.5 + row % 4,
    "whole": lambda row: 1000 + row * 1037,
    "below zero": lambda row: -1.5 - row % 40,
}
MARKS = {
    "a decimal comma": lambda x: f"{x}".replace(".", ","),
    "thousands by commas": lambda x: f"{x:,}",
    "thousands by points": lambda x: f"{x:,}".translate(str.maketrans(",.", ".,")),
    "thousands by spaces": lambda x: f"{x:,}".replace(",", " "),
    "thousands by no-break spaces": lambda x: f"{x:,}".replace(",", "\u00a0"),
    "thousands by narrow spaces": lambda x: f"{x:,}".replace(",", "\u202f"),
    "thousands by apostrophes": lambda x: f"{x:,}".replace(",", "'"),
    "thousands by typographic apostrophes": lambda x: f"{x:,}".replace(",", "\u2019"),
    "thousands by underscores": lambda x: f"{x:,}".replace(",", "_"),
    "spaces around": lambda x: f"\u00a0{x} ",
    "percent": lambda x: f"{x} %",
    "percent without a space": lambda x: f"{x}%",
    "euros before": lambda x: f"\u20ac {x}",
    "euros behind, with a comma": lambda x: f"{x} \u20ac".replace(".", ","),
    "dollars": lambda x: f"${x:,}",
    "a currency's name": lambda x: f"CHF {x}",
    "a unit": lambda x: f"{x} kg",
    "a unit without a space": lambda x: f"{x}mmHg",
    "a degree": lambda x: f"{x}\u00b0",
    "less than": lambda x: f"<{x}",
    "about": lambda x: f"~{x}",
    "a star": lambda x: f"{x}*",
    "an apostrophe of Excel": lambda x: f"'{x}",
    "brackets": lambda x: f"[{x}]",
    "a minus at the end": lambda x: f"{abs(x)}-",
    "an accountant's brackets": lambda x: f"({abs(x)})",
    "a minus sign": lambda x: f"{x}".replace("-", "\u2212"),
    "an en dash": lambda x: f"{x}".replace("-", "\u2013"),
    "full-width digits": lambda x: f"{x}".translate({48 + digit: 0xFF10 + digit for digit in range(10)}),
    "Arabic digits": lambda x: f"{x}".translate({48 + digit: 0x660 + digit for digit in range(10)}),
    "an exponent with a comma": lambda x: f"{x:.9e}".replace(".", ","),
    "a plus": lambda x: f"{x:+}",
    "a unit of words": lambda x: f"{x} mg / dl",
    "about, in words": lambda x: f"ca. {x}",
    "an invisible character": lambda x: f"\u200b{x}",
    "two numbers": lambda x: f"{x}/{x}",
}


NO_OPTION = ("a minus at the end", "an accountant's brackets", "two numbers")
"""Marks that no option removes, because that would change the numbers."""


def read_table(path, **options):
    """Read a table as ``import_data`` does, without making a dataset."""
    asked = SimpleNamespace(**{"delimiter": ";", **options})
    return UserData(path, "csv", Roles("site", "y"), None, None, choose_dialect(asked)[1]).read(Execution().reporter)


def follow_proposals(path, options, depth=3):
    """Yield the samples that each chain of proposed options reads; an error without a proposal yields nothing."""
    try:
        yield read_table(path, **options)
    except InputError as error:
        for fix in error.fix:
            words = shlex.split(fix.partition(" reads ")[0]) if " reads " in fix and depth else []
            typed = {word.removeprefix("--"): value for word, value in zip(words[::2], words[1::2], strict=True)}
            if words:
                more = {name: split_items(value) if name == "strip" else value for name, value in typed.items()}
                yield from follow_proposals(path, options | more, depth - 1)


@pytest.mark.parametrize("share", [1, 2])
@pytest.mark.parametrize("mark", MARKS)
def test_marks_in_numbers_lose_no_column_and_the_suggested_option_reads_them(tmp_path, mark, share):
    """A law: a table that is read has all of its columns of numbers; a proposed option reads the same numbers."""
    path = tmp_path / "t.csv"
    for name, number in NUMBERS.items():
        path.write_text(make_table(number))
        plain = read_table(path)
        path.write_text(make_table(lambda row: MARKS[mark](number(row)) if row % share == 0 else number(row)))  # noqa: B023
        read = list(follow_proposals(path, {}))
        assert all([column.name for column in each.columns] == ["a", "m"] for each in read), name
        if mark in NO_OPTION:
            assert not read or (mark, name) == ("two numbers", "few"), name  # as words they are features too
            continue
        assert not any(column.words for each in read for column in each.columns), name
        assert any(each.x.tobytes() == plain.x.tobytes() for each in read), name


def test_decimal_points_beside_decimal_commas_are_read_unless_ambiguous(import_text):
    rows = [f"s{row % 3};{'ab'[row % 2]};{row},5;{row}.25" for row in range(30)]
    dataset = import_text("site;y;a;m\n" + "\n".join(rows) + "\n", delimiter=";", decimal=",")
    assert dataset.x[:2].tolist() == [[0.5, 0.25], [1.5, 1.25]]
    with pytest.raises(InputError) as error:
        import_text("site;y;a;m\n" + "\n".join([*rows, "s1;a;1,5;1.250"]) + "\n", delimiter=";", decimal=",")
    assert "'1.250' is not a number" in error.value.message


def test_columns_with_different_marks_are_named_in_one_error(import_text):
    rows = "".join(f"s{row % 3};{'ab'[row % 2]};{row},5;{90 + row} %\n" for row in range(30))
    with pytest.raises(InputError) as error:
        import_text("site;y;temp;sat\n" + rows, delimiter=";")
    facts = error_text(error)
    assert all(word in facts for word in ("--decimal ,", "(temp)", "--strip %", "(sat)", "--leave-out temp,sat"))
    dataset = import_text("site;y;temp;sat\n" + rows, delimiter=";", leave_out="temp", strip="%")
    assert dataset.features == ("sat",)


SILENT = {
    "ids": lambda row: f"P{row:03d}",
    "text": lambda row: f"the patient came for the {row}th time",
    "dates": lambda row: f"2024-01-{row % 28 + 1:02d}",
    "German dates": lambda row: f"{row % 28 + 1:02d}.01.2024",
    "one word": lambda row: "same",
    "nothing": lambda row: "",
}


@pytest.mark.parametrize("case", SILENT)
def test_columns_without_numbers_are_left_out_and_named(pfl, tmp_path, case):
    (tmp_path / "t.csv").write_text(make_table(SILENT[case], ","))
    ran = pfl("import", tmp_path / "t.csv", "--client", "site", "--label", "y", "-o", tmp_path / "d")
    assert (ran.code, "left out, not numbers: m\n" in ran.err) == (0, True)
    assert ("--order m" in ran.err) == ("dates" in case)


ASKED = {
    # name: (column m, words of the error, options that answer it in one way, features, in another, features)
    "words in two cases": (
        lambda row: ["Yes", "yes", "No", "no "][row % 4],
        ["'No' (15 samples), 'no' (15 samples)", "--fold-case", "--no-fold-case"],
        {"fold_case": True}, ["m=No", "m=Yes"], {"fold_case": False}, ["m=No", "m=Yes", "m=no", "m=yes"],
    ),
    "a word among numbers": (
        lambda row: row if row % 3 else f"note {row}", ["'note 0' is not a number", "--leave-out m"],
        {"leave_out": "m"}, [], {"categorical": "m"}, None,
    ),
    "a spelling of nothing": (
        lambda row: row if row % 5 else "#N/A", ["'#N/A' is not a number", "--na '#N/A'"],
        {"na": "#N/A", "missing": "drop"}, ["m"], {"leave_out": "m"}, [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_doubtful_column_is_refused_with_the_options_to_choose_from(import_text, case, refuse_text):
    column, words, first, features, second, others = ASKED[case]
    refuse_text(InputError, words, make_table(column, ","))
    assert import_text(make_table(column, ","), **first).features == ("a", *features)
    read = import_text(make_table(column, ","), **second)
    assert others is None or read.features == ("a", *others)


def test_na_number_marks_missing_values_in_every_spelling(import_text):
    dataset = import_text(make_table(lambda row: "-999.0" if row % 2 else row, ","), na="-999", missing="median")
    assert np.isnan(dataset.x[:, 1]).tolist() == [bool(row % 2) for row in range(60)]


def test_ordinary_columns_are_read_without_a_question(import_text):
    for column in (
        lambda row: 99 if row % 7 == 0 else row,  # a usual value
        lambda row: 1700000000 if row % 2 else 0,
        lambda row: 2020 + row % 5,
        lambda row: row * 1e9,
        lambda row: ["1st", "2nd", "3rd", "4th"][row % 4],
        lambda row: f"[{row % 5 * 10}-{row % 5 * 10 + 10})",
        lambda row: ["True", "0", "1", "FALSE"][row % 4],
    ):
        assert len(import_text(make_table(column, ",")).features) > 1


LABELS = {
    # name: (labels, words of the error, an answer, its classes, another, its classes)
    "two cases": (
        ["Ill", "ill", "Ill", "WELL", "well "], ["'Ill' (24 samples), 'ill' (12 samples)", "--fold-case"],
        {"fold_case": True}, ["Ill", "WELL"], {"fold_case": False}, ["Ill", "WELL", "ill", "well"],
    ),
    "a question mark": (
        ["a", "b", "?"], ["'?' (20 samples) may mean", "--na '?' --missing drop", "--task classes"],
        {"na": "?", "missing": "drop"}, ["a", "b"], {"task": "classes"}, ["?", "a", "b"],
    ),
    "unknown": (
        ["a", "b", "Unknown", "NA"], ["--na NA,Unknown", "--task classes"],
        {"na": ["NA", "Unknown"], "missing": "drop"}, ["a", "b"], {"task": "classes"}, ["NA", "Unknown", "a", "b"],
    ),
    "dates": (
        ["2024-01-01", "2024-02-01"], ["is a date", "--task classes"],
        {"task": "classes"}, ["2024-01-01", "2024-02-01"], {"label": "a>30"}, ["a<=30", "a>30"],
    ),
    "ids": (
        [f"w{row}" for row in range(30)], ["30 different words in 60 samples", "--task classes"],
        {"task": "classes"}, sorted(f"w{row}" for row in range(30)), {"label": "a<=9"}, ["a>9", "a<=9"],
    ),
    "quantities": (
        [row / 8 for row in range(60)], ["is a fraction", "--task quantity", "--label 'y>3.625'"],
        {"label": "y>0.5"}, ["y<=0.5", "y>0.5"], {"label": "y=0.5"}, ["y!=0.5", "y==0.5"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LABELS)
def test_doubtful_label_is_refused_with_the_options_to_choose_from(import_text, case, refuse_text):
    labels, words, first, classes, second, others = LABELS[case]
    table = make_table(lambda row: row % 7, ",", label=lambda row: str(labels[row % len(labels)]))
    refuse_text(InputError, words, table)
    assert import_text(table, **first).classes == classes
    assert import_text(table, **second).classes == others


def test_label_map_and_threshold_reduce_labels_to_two_classes(import_text, tmp_path, refuse_text):
    table = make_table(lambda row: row % 7, ",", label=lambda row: str(row % 5))
    plain = import_text(table).y
    two = import_text(table, label_map={"0": "well", **{str(number): "ill" for number in range(1, 5)}})
    assert (two.classes, two.y.tolist()) == (["ill", "well"], (plain == 0).astype(int).tolist())
    more = import_text(table, label="y>0")
    assert (more.classes, more.y.tolist()) == (["y<=0", "y>0"], (plain > 0).astype(int).tolist())
    np.savez(tmp_path / "a.npz", x=np.arange(20.0).reshape(10, 2), y=np.arange(10) % 5, owner=np.arange(10) % 2)
    assert read_dataset(tmp_path / "a.npz", label="y>0").y.tolist() == [int(number % 5 > 0) for number in range(10)]
    refuse_text(UsageError, "no label is '9'", table, label_map={"9": "ill"})
    refuse_text(InputError, "'b' is not a number, as y>0 needs", table.replace("s2,2,", "s2,b,"), label="y>0")


def test_duplicate_rows_are_counted_and_dropped_on_request(pfl, tmp_path):
    rows = [f"s{row % 3},{row % 2},{row}.5,{'' if row == 3 else row}\n" for row in range(30)]
    (tmp_path / "t.csv").write_text("site,y,a,m\n" + "".join([*rows, "s0,0,0.5,-0.0\n", *rows[1:8]]))
    line = ("import", tmp_path / "t.csv", "--client", "site", "--label", "y", "--missing", "median", "-o")
    ran = pfl(*line, tmp_path / "d")
    assert (ran.code, "WARNING: 8 samples with the features, label and client" in ran.err) == (0, True)
    assert "--drop-duplicates" in ran.err
    assert pfl(*line, tmp_path / "e", "--drop-duplicates").code == 0
    artifact = open_artifact(tmp_path / "e")
    assert (artifact.manifest.summary["samples"], artifact.manifest.summary["dropped"]) == (30, 8)
    other_client = [row.replace("s0", "s9") for row in rows if row.startswith("s0")]
    (tmp_path / "t.csv").write_text("site,y,a,m\n" + "".join(rows + other_client))
    assert "earlier one" not in pfl(*line, tmp_path / "f").err


FORMS = {
    "31/12/2023 and others": (lambda row: f"{row % 28 + 1:02d}/{row % 3 + 1:02d}/2024", ["%d/%m/%Y"]),
    "either": (lambda row: f"{row % 12 + 1:02d}/{row % 12 + 1:02d}/2024", ["%d/%m/%Y", "%m/%d/%Y"]),
    "points": (lambda row: f"{row % 28 + 1:02d}.{row % 3 + 1:02d}.2024 12:{row:02d}", ["%d.%m.%Y %H:%M"]),
    "times": (lambda row: f"{row % 24:02d}:30", ["%H:%M"]),
    "names": (lambda row: f"{row % 28 + 1:02d} Mar 2024", ["%d %b %Y"]),
}


@pytest.mark.parametrize("case", FORMS)
def test_dates_in_another_form_are_read_by_the_proposed_option(import_text, case, refuse_text):
    column, forms = FORMS[case]
    with pytest.raises(InputError) as error:
        import_text(make_table(column, ","), order="m")
    assert [form for form in forms if form in error_text(error)] == forms
    dataset = import_text(make_table(column, ","), order="m", date_format=forms[0])
    times = pd.to_datetime([column(row) for row in range(60)], format=forms[0])
    order = np.argsort(times.to_numpy(), kind="stable")
    assert dataset.x[:, 0].tolist() == (order + 1.0).tolist()
    refuse_text(InputError, "is not a date of --date-format", make_table(column, ","), order="m", date_format="%Y")


# Text


PLAIN = make_table(lambda row: row % 7, ",")
LAYOUTS = {
    # name: (text, options that it needs, words of the error without them)
    "a title": ("A report of 2024\n" + PLAIN, {"skip_rows": 1}, ["--skip-rows 1"]),
    "two titles": ("A report\n\nof 2024\n" + PLAIN, {"skip_rows": 3}, ["--skip-rows 3"]),
    "a title in a row": ("A report,,,\n" + PLAIN, {"skip_rows": 1}, ["line 2 has it: --skip-rows 1"]),
    "a title above semicolons": (
        "A report\n" + PLAIN.replace(",", ";"), {"skip_rows": 1, "delimiter": ";"}, ["--delimiter ';' --skip-rows 1"],
    ),
    "comments": ("# by me\n# 2024, now\n" + PLAIN + "# end\n", {"comment": "#"}, ["--comment '#'"]),
    "spaces": (PLAIN.replace(",", "   "), {"delimiter": "whitespace"}, ["--delimiter whitespace"]),
    "spaces and tabs": (
        " " + PLAIN.replace(",", " \t ").replace("\n", " \n "), {"delimiter": "whitespace"}, ["--delimiter whitespace"],
    ),
    "semicolons": (PLAIN.replace(",", ";"), {"delimiter": ";"}, ["--delimiter ';'"]),
    "no header": (
        PLAIN.partition("\n")[2], {"names": ["site", "y", "a", "m"]}, ["names missing", "--no-header", "--names"],
    ),
    "lines of Windows": (("title\n" + PLAIN).replace("\n", "\r\n"), {"skip_rows": 1}, ["--skip-rows 1"]),
    "lines of old": (("title\n" + PLAIN).replace("\n", "\r"), {"skip_rows": 1}, ["--skip-rows 1"]),
    "a line of Excel": ("sep=;\n" + PLAIN.replace(",", ";"), {}, None),
    "a line of Excel after a byte order mark": ("\ufeffsep=|\r\n" + PLAIN.replace(",", "|"), {}, None),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".txt", ".dat", ".data"])
@pytest.mark.parametrize("case", LAYOUTS)
def test_text_is_read_by_the_proposed_option(import_text, case, suffix, refuse_text):
    table, options, words = LAYOUTS[case]
    if words is not None:
        refuse_text(PflError, words, table, "u" + suffix)
    dataset = import_text(table, "t" + suffix, **options)
    expected = import_text(PLAIN, "p.csv")
    assert (dataset.x.tobytes(), dataset.features, dataset.classes) == (
        expected.x.tobytes(), expected.features, expected.classes,
    )  # fmt: skip


def test_errors_name_the_line_of_the_file_when_lines_are_skipped(refuse_text):
    table = "title\n# note\n" + PLAIN.replace("s1,b,2,1", "s1,b,two,1")
    refuse_text(InputError, r"t.csv, line 5, column 'a': 'two' is not a number", table, skip_rows=1, comment="#")


def test_a_comment_mark_in_quotes_is_kept(import_text):
    table = 'site,y,a\n"s#1",a,1 # one\n"s#1",b,2\n"s\n#2",a,3\n'
    assert import_text(table, comment="#").owner.tolist() == ["s#1", "s#1", "s\n#2"]


def test_footer_line_is_named_in_the_error(refuse_text):
    refuse_text(InputError, ["line 62, the last line, has only 2 cells of 4"], PLAIN + "Sum,60\n")
    refuse_text(InputError, ["footer"], PLAIN + "Sum,,,\n")


HEADERLESS = {
    "numbers": lambda row: f"{50 + row % 20}.0,1.0,{row % 2}.0,{140 + row % 9}.0,{row % 3}",
    "words and numbers": lambda row: f"{39 + row % 9}, State-gov, {77516 + row}, {['BA', 'MA'][row % 2]}",
    "words": lambda row: f"{'pe'[row % 2]},x,{'sy'[row % 2]},n,{'tf'[row % 2]}",
    "readings of a phone": lambda row: f"{33 + row % 2},{'Walking'},{49105962326000 + row},-0.{row + 10},12.68;",
}
HEADERS = ("label,0,1,2,3", "site,2019,2020,2021,y", "y,400.5,401,401.5,402,403.5,404,405,406.5", "x,1,y,z,u")


@pytest.mark.parametrize("case", HEADERLESS)
def test_missing_header_is_detected_and_real_headers_are_accepted(import_text, case, refuse_text):
    table = "".join(HEADERLESS[case](row) + "\n" for row in range(40))
    refuse_text(InputError, "are the column names missing", table, client="none", label="0")
    dataset = import_text(table, client="none", label="0", header=False, strip=";", task="classes")
    assert len(dataset.y) == 40
    for header in HEADERS:
        width = header.count(",") + 1
        rows = "".join(",".join(str(row % (2 + at)) for at in range(width)) + "\n" for row in range(20))
        assert len(import_text(f"{header}\n{rows}", client="none", label=header.partition(",")[0]).y) == 20


COMPRESSED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def test_import_gives_the_same_samples_for_every_file_format(tmp_path):
    """A law over all forms: the bytes of samples, and classes, clients and features."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({
        "site": [f"s{row % 3}" for row in range(60)],
        "y": ["no", "yes"] * 30,
        "a": draw.normal(size=60) * 10.0 ** draw.integers(-9, 9, 60),
        "m": draw.integers(-5, 5, 60),
        "w": [["low", "high", "none"][row % 3] for row in range(60)],
        "t": [row % 2 == 0 for row in range(60)],
    })  # fmt: skip
    frame.loc[7, "a"] = np.nan
    written = frame.to_csv(index=False)
    paths = {}

    def write(name, save):
        save(tmp_path / name)
        paths[name] = tmp_path / name

    write("t.csv", lambda path: path.write_text(written))
    write("t.tab", lambda path: frame.to_csv(path, index=False, sep="\t"))
    for suffix, compress in COMPRESSED.items():
        write(f"t.csv{suffix}", lambda path: path.write_bytes(compress(written.encode())))  # noqa: B023
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t.csv", written)
    paths["t.zip"] = tmp_path / "t.zip"
    write("t.parquet", frame.to_parquet)
    write("t.feather", frame.to_feather)
    write("t.dta", lambda path: frame.assign(t=frame["t"].astype(int)).to_stata(path, write_index=False))
    write("t.jsonl", lambda path: frame.to_json(path, orient="records", lines=True, double_precision=15))
    write("t.json", lambda path: path.write_text(json.dumps(frame.replace({np.nan: None}).to_dict("records"))))
    records = frame.replace({np.nan: None}).to_dict("records")
    write("t.jsonl", lambda path: path.write_text("".join(json.dumps(record) + "\n" for record in records)))
    read = {}
    for name, path in paths.items():
        dataset = read_dataset(path, missing="median", standardize=True, **ROLES)
        read[name] = (dataset.x.tobytes(), dataset.y.tobytes(), dataset.features, dataset.owner.tolist())
    assert dataset.x.dtype == np.float64
    assert len(set(map(str, read.values()))) == 1, [name for name in read if read[name] != read["t.csv"]]


def test_import_gives_the_same_samples_for_excel_and_spss(import_text, tmp_path):
    pytest.importorskip("openpyxl")
    frame = pd.DataFrame({
        "site": [f"s{row % 3}" for row in range(40)],
        "y": ["no", "yes"] * 20,
        "a": [row * 0.1 for row in range(40)],
        "m": [row % 7 for row in range(40)],
    })  # fmt: skip
    expected = import_text(frame.to_csv(index=False))
    frame.to_excel(tmp_path / "t.xlsx", index=False, sheet_name="visits")
    assert read_dataset(tmp_path / "t.xlsx", **ROLES).x.tobytes() == expected.x.tobytes()
    with pd.ExcelWriter(tmp_path / "two.xlsx") as book:
        frame.astype({"a": object}).replace({"a": {0.0: "0,l"}}).to_excel(
            book, index=False, sheet_name="visits", startrow=2
        )
        frame.to_excel(book, index=False, sheet_name="others")
    refuse(InputError, "2 sheets", tmp_path / "two.xlsx", **ROLES)
    refuse(
        InputError,
        "sheet 'visits', row 4, column 'a': '0,l' is not a number",
        tmp_path / "two.xlsx",
        sheet="visits",
        **ROLES,
    )
    pyreadstat = pytest.importorskip("pyreadstat")
    pyreadstat.write_sav(frame, str(tmp_path / "t.sav"))
    assert read_dataset(tmp_path / "t.sav", **ROLES).x.tobytes() == expected.x.tobytes()


def test_import_names_the_extra_when_datasets_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UsageError, match="needs datasets, which is not installed") as error:
        import_data(f"hf:{tmp_path}", tmp_path.parent / "d", **ROLES)
    assert error.value.fix == ("pip install 'pflcli[hf]'",)


@pytest.mark.parametrize(("suffix", "package"), [("xlsx", "openpyxl"), ("sav", "pyreadstat"), ("feather", "pyarrow")])
def test_import_names_the_extra_of_a_missing_package(tmp_path, monkeypatch, suffix, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    (tmp_path / f"t.{suffix}").write_bytes(b"-")
    with pytest.raises(UsageError) as error:
        import_data(tmp_path / f"t.{suffix}", tmp_path / "d", **ROLES)
    assert package in error.value.message
    assert "pip install 'pflcli[" in error.value.fix[0]


def test_import_names_the_bad_line_of_a_json_lines_file(refuse_text):
    lines = [json.dumps({"site": f"s{row % 2}", "y": row % 2, "a": row}) for row in range(20)]
    refuse_text(InputError, "line 4: ", "\n".join([*lines[:3], "{", *lines[3:]]), "t.jsonl")
    refuse_text(
        InputError,
        "line 5, column 'a': 'x' is not a number",
        "\n".join([*lines[:3], "", lines[3].replace("3}", '"x"}'), *lines[4:]]),
        "t.jsonl",
    )
    refuse_text(
        InputError,
        "line 1 is not a JSON object",
        "[1]\n".replace("[", '{"a": [').replace("]", "]}").replace('{"a": [1]}', "7"),
        "t.jsonl",
    )


def test_import_refuses_damaged_or_oversized_gzip_files(refuse_text, monkeypatch):
    packed = gzip.compress(PLAIN.encode())
    refuse_text(InputError, "cannot be read as CSV", packed[:-20], "t.csv.gz")
    refuse_text(
        InputError,
        r"line 3 .*'two' is not a number",
        gzip.compress(PLAIN.replace("s1,b,2,1", "s1,b,two,1").encode()),
        "t.csv.gz",
    )
    monkeypatch.setattr("pflcli.core.foreign._ALWAYS_ALLOWED_BYTES", 1000)
    refuse_text(
        InputError,
        r"b.csv.gz declares .* 500 times",
        gzip.compress(b"site,y,a\n" + b"0,1,1\n" * 200_000, 9),
        "b.csv.gz",
    )


# Several files


def write_files(folder, rows=20, extra=""):
    folder.mkdir()
    for number, name in enumerate(("north", "south", "west")):
        columns = ["a", "m", "y"] if number else ["y", "m", "a"]
        cells = {"y": "ab", "a": [f"{number}.5", "7"], "m": ["low", "high"]}
        lines = [",".join(str(cells[each][row % 2]) for each in columns) for row in range(rows)]
        (folder / f"{name}.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    return [folder / f"{name}.csv" for name in ("north", "south", "west")]


def test_one_file_per_client_equals_one_table_with_their_names(pfl, tmp_path):
    files = write_files(tmp_path / "sites")
    frames = [pd.read_csv(path).assign(site=path.stem)[["site", "y", "m", "a"]] for path in files]
    pd.concat(frames).to_csv(tmp_path / "all.csv", index=False)
    assert pfl("import", *files, "--label", "y", "-o", tmp_path / "d").code == 0
    assert pfl("import", tmp_path / "sites", "--label", "y", "-o", tmp_path / "e").code == 0
    assert pfl("import", tmp_path / "all.csv", "--client", "site", "--label", "y", "-o", tmp_path / "f").code == 0
    first, second, third = (datasets.read(open_artifact(tmp_path / name)) for name in "def")
    for dataset in (first, second):
        assert dataset.owner.tolist() == third.owner.tolist()
        assert (dataset.x.tobytes(), dataset.features) == (third.x.tobytes(), third.features)
    assert pfl("import", tmp_path / "sites", "--label", "y", "-o", tmp_path / "e").out.strip()
    files[0].rename(tmp_path / "sites" / "east.csv")
    ran = pfl("import", tmp_path / "sites", "--label", "y", "-o", tmp_path / "e")
    assert ran.code == 4


def test_import_of_several_files_names_the_file_with_other_columns_or_bad_cells(tmp_path):
    files = write_files(tmp_path / "sites")
    files[1].write_text(files[1].read_text().replace("7", "seven"))
    refuse(InputError, r"south.csv, line 3 .*column 'a': 'seven' is not a number", files, label="y")
    files[1].write_text(files[1].read_text().replace("a,m,y", "age,m,y"))
    refuse(InputError, ("only north.csv has a", "only south.csv has age"), files, label="y")
    (tmp_path / "sites" / "notes.md").write_text("")
    refuse(UsageError, "several kinds", tmp_path / "sites", label="y")
    refuse(UsageError, "twice", [files[0], files[0]], label="y")


# Later data


def test_like_predict_and_new_client_read_tables_like_the_first_import(tmp_path):
    """A law over the commands that read tables: --like, predict and new-client read a German table like a plain one."""
    rows = [[f"s{row % 3}", "yn"[row % 2], f"{row * 1.25 + 1000:.2f}", str(row % 5), "NN" if row % 7 else "high"]
            for row in range(60)]  # fmt: skip
    rows = [[*row[:4], row[4] if row[4] == "high" else "low"] for row in rows]
    names = ["site", "y", "a", "m", "w"]

    def write(name, german, some):
        lines = [names, *some]
        if german:
            lines = [[cell.replace(".", ",") for cell in line] for line in lines]
            lines = [[*line[:2], line[2] and (line[2] if at == 0 else f"{line[2][0]}.{line[2][1:]} kg"), *line[3:]]
                     for at, line in enumerate(lines)]  # fmt: skip
        text = "\n".join((";" if german else ",").join(line) for line in lines) + "\n"
        (tmp_path / name).write_text(("# Klinik\n" if german else "") + text)
        return tmp_path / name

    german = {"delimiter": ";", "decimal": ",", "thousands": ".", "strip": "kg", "comment": "#"}
    answers, clients, like = [], [], []
    for kind, options in (("plain", {}), ("german", german)):
        folder = tmp_path / kind
        source = write(f"{kind}.csv", bool(options), rows)
        later = write(f"{kind}-later.csv", bool(options), rows[:10])
        import_data(source, folder / "d", standardize=True, **ROLES, **options)
        partition(str(folder / "d"), folder / "p")
        one = Execution(threads=1)
        personalize("fedavg", folder / "p", folder / "m", settings={"model": "logistic", "rounds": 1}, execution=one)
        answers.append(predict(folder / "m", later, client="s1", execution=one).p.tobytes())
        new_client(folder / "m", later, folder / "n", client="me", label="y", execution=one)
        clients.append(predictions.read(open_artifact(folder / "n"), "test").parts["p"].tobytes())
        like.append(read_dataset(later, like=folder / "p").x.tobytes())
        assert (codebook.read(open_artifact(folder / "m")).dialect is not None) == bool(options)
    assert answers[0] == answers[1]
    assert clients[0] == clients[1]
    assert like[0] == like[1]
    # A later file that is written differently says so.
    plain = tmp_path / "plain-later.csv"
    other = predict(
        tmp_path / "german" / "m", plain, client="s1", delimiter=",", decimal=".", thousands="none", strip="none",
        execution=Execution(threads=1),
    )  # fmt: skip
    assert other.p.tobytes() == answers[0]
    np.save(tmp_path / "x.npy", np.zeros((2, 4)))
    with pytest.raises(UsageError, match="--decimal is for tables"):
        predict(tmp_path / "german" / "m", tmp_path / "x.npy", client="s1", decimal=",")


def test_failed_import_leaves_no_folder(pfl, tmp_path):
    (tmp_path / "t.csv").write_text(PLAIN.replace("s1,b,2,1", "s1,b,two,1"))
    (tmp_path / "kept").mkdir()
    for out, dry in itertools.product(("runs/d", "runs/deep/d", "kept/d"), ((), ("-n",))):
        line = ("import", tmp_path / "t.csv", "--client", "site", "--label", "y", "-o", tmp_path / out)
        assert pfl(*line, *dry).code == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "t.csv"]


def test_missing_column_suggestion_excludes_columns_in_use(write_text, tmp_path):
    names = "site,y,Acc X mean,Acc Y mean,Acc Z mean"
    rows = "".join(f"s{row % 2},{row % 2},{row}.5,{row * row},{row % 7}\n" for row in range(20))
    import_data(write_text(f"{names}\n{rows}"), tmp_path / "d", **ROLES)
    later = write_text(f"{names.replace('Acc Y mean', 'Acc Y')}\n{rows}", "later.csv")
    assert "Acc Z" not in refuse(InputError, ["did you mean 'Acc Y'?"], later, like=tmp_path / "d")


def test_predict_refuses_unknown_words_without_missing_and_unknown_clients(pfl, tmp_path):
    rows = [f"s{row % 3},{'yn'[row % 2]},{row % 9},{['low', 'high'][row % 2]}" for row in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["site,y,a,phone", *rows]) + "\n")
    holes = [row.replace("high", "") if at % 5 == 1 else row for at, row in enumerate(rows)]
    (tmp_path / "holes.csv").write_text("\n".join(["site,y,a,phone", *holes]) + "\n")
    (tmp_path / "new.csv").write_text("a,phone\n1,low\n2,Pixel 9\n")
    (tmp_path / "gap.csv").write_text("a,phone\n1,low\n2,\n")
    one = Execution(threads=1)
    for kind, missing in (("t", None), ("holes", "median")):
        at = tmp_path / kind
        import_data(tmp_path / f"{kind}.csv", at / "d", missing=missing, **ROLES)
        partition(str(at / "d"), at / "p")
        personalize("fedavg", at / "p", at / "m", settings={"model": "logistic", "rounds": 2}, execution=one)
        ran = pfl("predict", at / "m", tmp_path / "new.csv", "--client", "s1", "--threads", 1)
        assert (ran.code, "'Pixel 9' is not among the words" in ran.err) == (3, True)
        assert "--unknown-words missing" in ran.err
        line = (
            "predict",
            at / "m",
            tmp_path / "new.csv",
            "--client",
            "s1",
            "--threads",
            1,
            "--unknown-words",
            "missing",
        )
        ran = pfl(*line)
        assert (ran.code, "1 cell of 'phone' with words that training lacks: 'Pixel 9'" in ran.err) == (0, True)
    missing = predict(tmp_path / "holes" / "m", tmp_path / "gap.csv", client="s1", execution=one)
    unknown = predict(
        tmp_path / "holes" / "m", tmp_path / "new.csv", client="s1", unknown_words="missing", execution=one
    )
    assert unknown.p.tobytes() == missing.p.tobytes()
    ran = pfl("predict", tmp_path / "t" / "m", tmp_path / "gap.csv", "--client", "S-1")
    assert (ran.code, "has no client 'S-1'" in ran.err, "--client none" in ran.err) == (3, True, True)
    ran = pfl("predict", tmp_path / "t" / "m", tmp_path / "new.csv", "--client", "s1", "--unknown-words", "mising")
    assert (ran.code, "did you mean 'missing'?" in ran.err) == (2, True)


def test_import_names_a_client_without_any_value_of_a_column(pfl, tmp_path):
    rows = "".join(f"s{row % 3},{row % 2},{row}.5,{'' if row % 3 == 1 else row % 5}\n" for row in range(30))
    (tmp_path / "t.csv").write_text("site,y,a,m\n" + rows)
    line = (
        "import",
        tmp_path / "t.csv",
        "--client",
        "site",
        "--label",
        "y",
        "--missing",
        "median",
        "-o",
        tmp_path / "d",
    )
    assert "WARNING: 'm' has no value at all for s1\n" in pfl(*line).err


def test_recorded_import_command_has_the_options_as_typed(tmp_path):
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in files:
        path.write_text("".join(f"{row % 3};{row},5 kg\n" for row in range(20)))
    import_data(
        files, tmp_path / "d", label="0>0", header=False, delimiter=";", decimal=",", strip="kg", na=["", "-9"],
        fold_case=False, label_map={"0>0": "ill"}, execution=Execution(),
    )  # fmt: skip
    line = shlex.split(open_artifact(tmp_path / "d").manifest.made["command"])
    assert line[:4] == ["pfl", "import", "./a.csv", "./b.csv"]
    assert {"--no-header", "--no-fold-case"} <= {*line}
    values = {option: line[line.index(option) + 1] for option in ("--label", "--na", "--strip", "--label-map")}
    assert values == {"--label": "0>0", "--na": ",-9", "--strip": "kg", "--label-map": "0>0=ill"}


def test_empty_na_option_reads_none_and_na_as_words(import_text, refuse_text):
    table = make_table(lambda row: ["None", "Apnea", "NA"][row % 3], ",")
    refuse_text(InputError, ("as 'None' marks a missing one", "--na ''"), table, categorical="m")
    assert import_text(table, na="").features == ("a", "m=Apnea", "m=NA", "m=None")
    assert import_text(table, na=["", "NA"], missing="drop").features == ("a", "m=Apnea", "m=None")


def test_import_suggests_the_delimiter_when_decimal_commas_split_the_lines(tmp_path):
    (tmp_path / "t.csv").write_text("site;y;temp\nA;1;36,5\nA;0;37,1\nB;1;38,2\nB;0;36,9\n")
    with pytest.raises(InputError) as caught:
        import_data(tmp_path / "t.csv", tmp_path / "d", client="site", label="y")
    assert caught.value.fix == ("--delimiter ';'",)
