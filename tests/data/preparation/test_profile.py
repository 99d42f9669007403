"""The profile of an import describes every column in the same way for all formats, and flags what looks wrong."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds.dataset import ColumnProfile
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.core.execution import Execution
from pflcli.data.formats import RawSamples
from pflcli.data.preparation.profile import find_marks, format_lines, profile

ROLES = {"client": "site", "label": "y"}


def make_frame(rows=60):
    draw = np.random.default_rng(0)
    return pd.DataFrame({
        "site": [f"s{row % 3}" for row in range(rows)],
        "y": ["no", "yes"] * (rows // 2),
        "a": draw.normal(size=rows).round(3),
        "m": draw.integers(-5, 5, rows).astype(float),
        "w": [["low", "high", "none"][row % 3] for row in range(rows)],
        "text": [f"the {row}th note" for row in range(rows)],
    })  # fmt: skip


def import_profile(path, tmp_path, **options):
    """Import a file and return its stored profile by column."""
    import_data(path, tmp_path / "d", execution=Execution(force=True), **options)
    return {row.column: row for row in datasets.read_profile(open_artifact(tmp_path / "d"))}


def import_column(tmp_path, values, **options):
    """Return the row of a column ``m`` of a CSV file beside noise."""
    frame = make_frame(len(values)).assign(m=values).drop(columns=["w", "text"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    return import_profile(tmp_path / "t.csv", tmp_path, **ROLES, **options)["m"]


WRITERS = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "xlsx": lambda frame, path: frame.to_excel(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
    "feather": lambda frame, path: frame.to_feather(path),
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "dta": lambda frame, path: frame.to_stata(path, write_index=False),
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_profile_is_the_same_for_every_form_of_table(tmp_path, suffix):
    frame = make_frame()
    frame.loc[7, "m"] = np.nan
    WRITERS[suffix](frame, tmp_path / f"t.{suffix}")
    rows = import_profile(tmp_path / f"t.{suffix}", tmp_path, **ROLES, missing="drop")
    kinds = {name: (row.kind, row.became, row.distinct) for name, row in rows.items()}
    assert kinds == {
        "site": ("words", "client", 3),
        "y": ("words", "label", 2),
        "a": ("numbers", "feature", frame.a.nunique()),
        "m": ("numbers", "feature", frame.m.nunique()),
        "w": ("words", "features: high, low, none", 3),
        "text": ("words", "left out, not numbers", 60),
    }
    assert (rows["a"].least, rows["a"].most) == pytest.approx((frame.a.min(), frame.a.max()))
    assert (rows["m"].missing, rows["a"].missing) == pytest.approx((1 / 60, 0))
    assert rows["a"].first == tuple(f"{value:.6g}" for value in frame.a[:3])
    assert (rows["w"].first, rows["site"].first) == (("low", "high", "none"), ("s0", "s1", "s2"))
    assert not any(row.remarks for row in rows.values())


def test_profile_of_arrays_and_images(tmp_path):
    draw = np.random.default_rng(0)
    x, y, owner = draw.normal(size=(60, 2)), np.arange(60) % 2, np.arange(60) % 3
    x[::6, 1] = -999
    np.savez(tmp_path / "a.npz", x=x, y=y, owner=owner)
    rows = import_profile(tmp_path / "a.npz", tmp_path)
    assert [(row.column, row.became) for row in rows.values()] == [
        ("owner", "client"), ("y", "label"), ("feature 0", "feature"), ("feature 1", "feature"),
    ]  # fmt: skip
    assert "-999 in 10 samples" in rows["feature 1"].remarks[0]
    np.savez(tmp_path / "s.npz", x=draw.normal(size=(60, 7, 3)), y=y, owner=owner)
    assert [*import_profile(tmp_path / "s.npz", tmp_path)][2:] == ["channel 0", "channel 1", "channel 2"]
    np.savez(tmp_path / "e.npz", x=draw.normal(size=(60, 512)), y=y, owner=owner)
    assert import_profile(tmp_path / "e.npz", tmp_path)["x"].became == "512 features"
    for row in range(12):
        folder = tmp_path / "i" / f"s{row % 2}" / "ab"[row % 3 == 0]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 10 * row, np.uint8)).save(folder / f"{row}.png")
    pixels = import_profile(tmp_path / "i", tmp_path)["x"]
    assert (pixels.least, pixels.most, pixels.distinct, pixels.became) == (0, 110, 12, "image of 8x8")


MARKS = {
    "-999": [-999], "-999 with -888": [-999, -888], "-9": [-9], "-99.9": [-99.9], "NetCDF": [9.96921e36],
    "16 bits": [-32768], "both ends": [-999, 9999], "99.9": [99.9],
}  # fmt: skip


@pytest.mark.parametrize("case", MARKS)
def test_marks_of_missing_values_are_flagged_and_na_reads_them(tmp_path, case):
    values = (np.random.default_rng(2).random(60) * 3).round(2)
    values[::6] = np.resize(MARKS[case], 10)
    row = import_column(tmp_path, values)
    (remark,) = row.remarks
    assert all(f"{mark:.6g}" in remark for mark in MARKS[case])
    assert "in 10 samples" in remark
    typed = remark.partition("--na=")[2]
    again = import_column(tmp_path, values, na=typed.split(","), missing="drop")
    assert (again.missing, again.remarks) == (pytest.approx(1 / 6), ())


def test_usual_values_are_no_marks():
    draw = np.random.default_rng(0)
    for values in (
        draw.poisson(3, 500),
        draw.normal(size=500).round(1),
        [0, 1] * 50,
        [1, 2, 3, 4, 5, 9] * 20,
        np.append(draw.normal(size=99).round(1), -999),
        draw.exponential(size=500).round(1),
        [99 if row % 7 == 0 else row for row in range(99)],
    ):
        assert find_marks(*np.unique(np.asarray(values, dtype=float), return_counts=True)) == []


TIMES = {
    "seconds": lambda row: 1.7e9 + 86400 * row,
    "seconds with fractions": lambda row: 1.7e9 + 86400.25 * row,
    "milliseconds": lambda row: 1700000000000 + 1000 * row,
    "days, as in": lambda row: 20240101 + row % 28 + 100 * (row // 28),
    "months": lambda row: 202401 + row % 12 + 100 * (row // 12),
    "days of Excel": lambda row: 45000 + 7 * row,
}


@pytest.mark.parametrize("unit", TIMES)
def test_time_stamps_are_flagged(tmp_path, unit):
    (remark,) = import_column(tmp_path, [TIMES[unit](row) for row in range(60)]).remarks
    assert unit.removesuffix(" with fractions") in remark
    assert "--order m" in remark
    assert "--leave-out m" in remark


def test_numbers_that_are_no_time_stamps_are_not_flagged(tmp_path):
    for column in (lambda row: 1700000000 * (row % 2), lambda row: 2020 + row % 5, lambda row: 1e9 * row):
        assert import_column(tmp_path, [column(row) for row in range(60)]).remarks in ((), (
            "looks like an id: --leave-out m ignores it",))  # fmt: skip


def make_raw(values, label, owner=None):
    """Return samples with these values (n, d) as they are read from an array."""
    owner = np.asarray(["s"] * len(label)) if owner is None else np.asarray(owner)
    return RawSamples(np.asarray(values, float).reshape(len(label), -1), np.asarray(label), owner, lambda *at: "")


def test_a_column_that_alone_predicts_the_label_is_named():
    draw = np.random.default_rng(0)
    label = np.repeat(["control", "case"], 150)
    number = np.cumsum(draw.integers(3, 30, 300))
    noise = draw.normal(size=300)
    codes = draw.integers(0, 2, 300)
    rows = profile(make_raw(np.stack([number, draw.permutation(number), noise, codes, 0 * noise], axis=1), label))
    predicts = ["alone predicts" in " ".join(row.remarks) for row in rows if row.became == "feature"]
    assert predicts == [True, False, False, False, False]
    # Numbers begin again in each hospital, which have other shares of cases.
    owner = np.repeat(["A", "B", "A", "B"], [50, 100, 100, 50])
    number = np.concatenate([np.arange(50), np.arange(100), np.arange(50, 150), np.arange(100, 150)])
    row = profile(make_raw(number, label, owner))[2]
    assert any("alone predicts" in remark and "within each client" in remark for remark in row.remarks)


def test_no_column_predicts_what_clients_of_one_class_have_in_common():
    owner = np.repeat(["A", "B", "C"], 20)
    noise = np.random.default_rng(0).normal(size=(60, 2))
    label = np.repeat(["well", "ill", "ill"], 20)
    rows = profile(make_raw(noise, label, owner))
    assert [row.remarks for row in rows if row.became == "feature"] == [(), ()]


def test_lines_fit_into_a_terminal_and_tell_long_names_apart():
    names = [f"a long name of a measurement number {at}" for at in range(4)]
    rows = [
        ColumnProfile(name, "numbers", 0.125, -2052.831, 38864.62, 60, ("-403.416", "0.123456", "7"), "feature", ())
        for name in names
    ]
    words = ColumnProfile("sex", "words", 0, None, None, 2, ("female", "male"), "features: female, male", ())
    lines = format_lines([*rows, words], 20)
    assert max(map(len, lines)) <= 80
    assert [line.split("  ")[0][-3:] for line in lines[1:5]] == ["r 0", "r 1", "r 2", "r 3"]
    assert "-403.4" in lines[1]


def test_no_column_of_noise_predicts_the_label():
    draw = np.random.default_rng(1)
    for classes in (2, 5):
        for rows in (20, 60, 400):
            x = np.concatenate([draw.normal(size=(rows, 40)), draw.integers(0, 4, (rows, 40))], axis=1)
            label = np.sort(draw.integers(0, classes, rows)).astype(str)
            found = profile(make_raw(x, label, draw.integers(0, 4, rows).astype(str)))
            assert not any("predicts" in remark for row in found for remark in row.remarks)


def test_the_outcome_written_as_a_word_is_named(tmp_path):
    frame = make_frame().assign(w=lambda each: each.y.map({"yes": "sick", "no": "well"}))
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert "alone predicts 100 % of labels" in import_profile(tmp_path / "t.csv", tmp_path, **ROLES)["w"].remarks[0]


def test_ids_and_row_numbers_are_named(tmp_path):
    draw = np.random.default_rng(0)
    assert "a row number" in import_column(tmp_path, draw.permutation(60)).remarks[0]
    assert "an id" in import_column(tmp_path, 100 + 7 * np.arange(60)).remarks[0]
    frame = make_frame().assign(patient_id=draw.integers(0, 30, 60), paid=draw.integers(0, 30, 60))
    frame.to_csv(tmp_path / "t.csv", index=False)
    rows = import_profile(tmp_path / "t.csv", tmp_path, **ROLES)
    assert ("an id" in " ".join(rows["patient_id"].remarks), rows["paid"].remarks) == (True, ())


def test_hospitals_that_write_words_or_classes_differently_are_named(tmp_path):
    frame = make_frame()
    frame["w"] = np.where(frame.site == "s1", np.repeat(["male", "female"], 30), np.repeat(["m", "f"], 30))
    frame.to_csv(tmp_path / "t.csv", index=False)
    (remark,) = import_profile(tmp_path / "t.csv", tmp_path, **ROLES)["w"].remarks
    assert "no word in s1" in remark
    frame = make_frame().drop(columns="w")
    frame.loc[frame.site == "s2", "y"] = frame.y.map({"no": "0", "yes": "1"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    (remark,) = import_profile(tmp_path / "t.csv", tmp_path, **ROLES)["y"].remarks
    assert "no class in s2" in remark


def test_several_currencies_in_a_column_are_named(tmp_path):
    mixed = import_column(tmp_path, [f"{row}.5 {'$' if row % 7 == 0 else '€'}" for row in range(60)], strip=["€", "$"])
    assert (mixed.kind, mixed.remarks) == ("numbers ($ €)", ("has cells with $ and €: are they the same unit?",))
    one = import_column(tmp_path, [f"{row % 9}.5 €" for row in range(60)], strip=["€", "$"])
    assert (one.kind, one.remarks) == ("numbers (€)", ())


def test_columns_left_out_dates_and_empty_columns_have_a_row(tmp_path):
    frame = make_frame().assign(born=pd.date_range("1990-01-01", periods=60).astype(str), empty="")
    frame.to_csv(tmp_path / "t.csv", index=False)
    rows = import_profile(tmp_path / "t.csv", tmp_path, **ROLES, leave_out="m")
    assert (rows["m"].became, rows["m"].distinct) == ("left out", None)
    assert (rows["born"].kind, rows["empty"].kind, rows["empty"].missing) == ("dates", "empty", 1)
    assert "--order born" in rows["born"].remarks[0]
    assert import_profile(tmp_path / "t.csv", tmp_path, **ROLES, leave_out="m", order="born")["born"].became == "order"


def test_show_prints_the_stored_profile(pfl, tmp_path):
    frame = make_frame().assign(m=lambda each: each.m.where(each.index % 6 > 0, -999))
    frame.to_csv(tmp_path / "t.csv", index=False)
    ran = pfl("import", tmp_path / "t.csv", "--client", "site", "--label", "y", "-o", tmp_path / "d")
    lines = format_lines(datasets.read_profile(open_artifact(tmp_path / "d")), 20)
    assert len(lines) == 8
    shown = pfl("show", tmp_path / "d").out
    assert "\n".join(lines) in ran.err
    assert "\n".join(lines) in shown
    facts = json.loads(pfl("show", tmp_path / "d", "--json").out)
    assert [row["column"] for row in facts["profile"]] == [*frame.columns]
