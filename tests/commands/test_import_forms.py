"""Files as programs write them: an encoder, a spreadsheet, a scanner, a statistics package."""

from __future__ import annotations

import gzip
import json
import zipfile

import h5py
import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyreadstat
import pytest
from PIL import Image

from helpers import error_text
from importing import import_and_read, read_dataset, refuse
from pflcli.artifacts import codebook
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.predict import predict
from pflcli.core.errors import PflError
from pflcli.core.execution import Execution

ONE = Execution(threads=1)
ROLES = {"client": "site", "label": "y"}


def make_frame(rows=40):
    draw = np.random.default_rng(0)
    return pd.DataFrame({
        "site": [f"s{row % 2}" for row in range(rows)],
        "y": ["no", "yes"] * (rows // 2),
        "a": draw.normal(size=rows).round(3),
        "m": draw.integers(-5, 5, rows),
    })  # fmt: skip


def read(path, **options):
    """Import a file beside it and return the dataset."""
    return import_and_read(path, path.parent / "d", **{**ROLES, **options})


def refuse_table(path, **options):
    """Return the text of the error that a file gives."""
    return refuse(PflError, [], path, **{**ROLES, **options})


def write_lists(path, frame, vectors):
    """Write a table whose column ``z`` has a list of numbers in each cell."""
    if path.suffix == ".parquet":
        table = pa.Table.from_pandas(frame).append_column("z", pa.array(vectors.tolist()))
        pq.write_table(table, path)
    else:
        records = frame.assign(z=vectors.tolist()).to_dict("records")
        text = "".join(json.dumps(record) + "\n" for record in records)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl", "t.jsonl.gz"])
def test_lists_of_numbers_are_features_at_import_and_prediction(tmp_path, name):
    frame, vectors = make_frame(), np.random.default_rng(1).normal(size=(40, 3)).round(4)
    write_lists(tmp_path / name, frame, vectors)
    dataset = read(tmp_path / name, standardize=True)
    assert dataset.features == ("a", "m", "z[0]", "z[1]", "z[2]")
    np.testing.assert_array_equal(dataset.x[:, 2:], vectors)
    assert codebook.read(open_artifact(tmp_path / "d")).columns[2].size == 3
    partition(str(tmp_path / "d"), tmp_path / "p")
    personalize("local", tmp_path / "p", tmp_path / "m", settings={"model": "logistic", "rounds": 1}, execution=ONE)
    answers = predict(tmp_path / "m", tmp_path / name, client="s0", execution=ONE)
    np.savez(tmp_path / "q.npz", x=dataset.x)
    arrays = predict(tmp_path / "m", tmp_path / "q.npz", client="s0", execution=ONE)
    assert answers.p.tobytes() == arrays.p.tobytes()
    write_lists(tmp_path / f"short{name}", frame, vectors[:, :2])
    with pytest.raises(PflError) as error:
        predict(tmp_path / "m", tmp_path / f"short{name}", client="s0", execution=ONE)
    assert "it has 2 numbers, and others have 3" in error_text(error)
    frame.assign(z=1.5).to_csv(tmp_path / "flat.csv", index=False)
    with pytest.raises(PflError) as error:
        predict(tmp_path / "m", tmp_path / "flat.csv", client="s0", execution=ONE)
    assert "no lists of 3 numbers" in error_text(error)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_column_of_objects_is_refused_and_not_left_out(tmp_path, suffix):
    frame = make_frame().assign(labs=[{"crp": row / 7, "wbc": row % 9} for row in range(40)])
    path = tmp_path / f"t.{suffix}"
    frame.to_parquet(path) if suffix == "parquet" else frame.to_json(path, orient="records", lines=True)
    text = refuse_table(path)
    assert all(word in text for word in ("'labs'", "crp, wbc", "--leave-out labs"))
    assert read(path, leave_out="labs").features == ("a", "m")
    frame = make_frame().assign(tags=[["x", "y"]] * 40)
    frame.to_parquet(path) if suffix == "parquet" else frame.to_json(path, orient="records", lines=True)
    assert "no list of numbers" in refuse_table(path)


def test_formulas_without_values_are_refused(tmp_path):
    book = openpyxl.Workbook()
    book.active.append([*make_frame().columns, "ratio"])
    for at, row in enumerate(make_frame().itertuples(index=False)):
        book.active.append([*row, f"=C{at + 2}/100"])
    book.save(tmp_path / "t.xlsx")
    text = refuse_table(tmp_path / "t.xlsx")
    assert all(word in text for word in ("'ratio'", "row 2", "formula", "save it"))
    assert "without" not in text
    make_frame().assign(empty=None).to_excel(tmp_path / "t.xlsx", index=False)
    assert read(tmp_path / "t.xlsx").features == ("a", "m")


def test_a_footer_is_skipped_on_request(tmp_path):
    frame = make_frame()
    total = pd.DataFrame([{"site": "Total", "m": 9}, {"site": "printed today"}])
    pd.concat([frame, total]).to_excel(tmp_path / "t.xlsx", index=False)
    assert "--skip-footer" in refuse_table(tmp_path / "t.xlsx")
    assert read(tmp_path / "t.xlsx", skip_footer=2).x.tolist() == np.float32(frame[["a", "m"]]).tolist()
    text = frame.to_csv(index=False)
    for footer in ("Sum,,,9\n", "\nSum,,,9\n\n\n", "Sum\n"):
        (tmp_path / "t.csv").write_text(text + footer)
        assert "--skip-footer 1" in refuse_table(tmp_path / "t.csv")
        assert len(read(tmp_path / "t.csv", skip_footer=1).y) == 40
    # A later file without a footer loses no sample.
    partition(str(tmp_path / "d"), tmp_path / "p")
    (tmp_path / "u.csv").write_text(text)
    assert len(read_dataset(tmp_path / "u.csv", like=tmp_path / "p").y) == 40


def test_titles_above_a_sheet_are_found(tmp_path):
    make_frame().to_excel(tmp_path / "t.xlsx", index=False, startrow=3)
    book = openpyxl.load_workbook(tmp_path / "t.xlsx")
    book.active["A1"] = "Fertility survey"
    book.save(tmp_path / "t.xlsx")
    assert "row 4 has it: --skip-rows 3" in refuse_table(tmp_path / "t.xlsx")
    assert len(read(tmp_path / "t.xlsx", skip_rows=3).y) == 40


def test_predict_names_the_remembered_lines_that_a_later_file_lacks(tmp_path, pfl):
    (tmp_path / "t.csv").write_text("A report\n" + make_frame().to_csv(index=False))
    read(tmp_path / "t.csv", skip_rows=1)
    partition(str(tmp_path / "d"), tmp_path / "p")
    personalize("local", tmp_path / "p", tmp_path / "m", settings={"model": "logistic", "rounds": 1}, execution=ONE)
    make_frame()[["a", "m"]].to_csv(tmp_path / "q.csv", index=False)
    line = ("predict", tmp_path / "m", tmp_path / "q.csv", "--client", "s0", "--threads", 1)
    ran = pfl(*line)
    assert (ran.code, "--skip-rows 0" in ran.err) == (3, True)
    assert pfl(*line, "--skip-rows", 0).code == 0


EMPTY = {
    "xlsx": lambda frame, path: frame.to_excel(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "dta": lambda frame, path: frame.to_stata(path, write_index=False),
}


@pytest.mark.parametrize("suffix", EMPTY)
def test_an_empty_cell_is_no_word(tmp_path, suffix):
    frame = make_frame()
    frame.loc[3, "a"] = np.nan
    EMPTY[suffix](frame, tmp_path / f"t.{suffix}")
    text = refuse_table(tmp_path / f"t.{suffix}")
    assert ("no value" in text, "--na" in text, "'nan'" in text) == (True, False, False)


def test_two_codes_with_one_label_are_named(tmp_path):
    frame = make_frame().assign(grade=np.arange(40) % 4)
    labels = {"grade": {0: "low", 1: "low", 2: "mid", 3: "high"}}
    frame.to_stata(tmp_path / "t.dta", write_index=False, value_labels=labels)
    pyreadstat.write_sav(frame, tmp_path / "t.sav", variable_value_labels=labels)
    for name in ("t.dta", "t.sav"):
        assert "0 and 1 of 'grade' have the same label, 'low'" in refuse_table(tmp_path / name)


def test_text_with_other_line_ends_of_unicode_stays_in_its_record(tmp_path):
    records = make_frame().assign(note="one\u2028two\u0085three\u2029").to_dict("records")
    text = "".join(json.dumps(record, ensure_ascii=False) + "\r\n" for record in records)
    (tmp_path / "t.jsonl").write_bytes(text.encode())
    assert len(read(tmp_path / "t.jsonl").y) == 40


def test_remedies_of_other_files_work(tmp_path):
    make_frame().to_json(tmp_path / "t.json")
    assert "orient='records'" in refuse_table(tmp_path / "t.json")
    (tmp_path / "t.csv").write_text(make_frame().to_csv(index=False).replace("\n", "\n,,years,\n", 1))
    assert "--skip-rows 2 --names site,y,a,m" in refuse_table(tmp_path / "t.csv")
    assert len(read(tmp_path / "t.csv", skip_rows=2, names=["site", "y", "a", "m"]).y) == 40
    with h5py.File(tmp_path / "t.mat", "w", userblock_size=512) as file:
        file["x"] = np.zeros((4, 40))
    content = bytearray((tmp_path / "t.mat").read_bytes())
    content[:10] = b"MATLAB 7.3"
    (tmp_path / "t.mat").write_bytes(content)
    assert "h5py.File" in refuse_table(tmp_path / "t.mat")
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("t.csv", make_frame().to_csv(index=False))
        archive.writestr(".DS_Store", b"\0")
    assert len(read(tmp_path / "t.csv.zip").y) == 40
    users = {f"u{at}": {"x": [[0.5, at]] * 4, "y": [0, 1, 0, 1]} for at in range(3)}
    (tmp_path / "leaf").mkdir()
    content = {"users": ["u0", "u1"], "num_samples": [4, 4], "user_data": users}
    (tmp_path / "leaf" / "a.json").write_text(json.dumps(content))
    refuse(PflError, "users that 'users' lacks, such as u2", f"leaf:{tmp_path / 'leaf'}")


def write_deep_images(folder, brightest):
    """Write images of 16 bits whose brightest pixel is that of each client."""
    draw = np.random.default_rng(0)
    for client, most in brightest.items():
        for label in "ab":
            (folder / client / label).mkdir(parents=True)
            for at in range(3):
                pixels = draw.integers(0, most + 1, (16, 16)).astype(np.uint16)
                pixels[0, 0] = most
                Image.fromarray(pixels).save(folder / client / label / f"{at}.png")
    return folder


def test_images_of_12_bits_are_refused_in_each_client_and_read_by_convert(tmp_path):
    bright = write_deep_images(tmp_path / "bright", {"N": 65535, "S": 60000})
    assert read(bright, client=None, label=None, convert="grey").x.max() == 255
    for name, brightest in (("all", {"N": 4095, "S": 4095}), ("eleven", {"N": 2047}), ("one", {"N": 65535, "S": 4095})):
        folder = write_deep_images(tmp_path / name, brightest)
        text = refuse_table(folder, client=None, label=None, convert="grey")
        assert ("--convert grey12" in text, "client 'S'" in text) == (True, name == "one")
    dataset = read(tmp_path / "all", client=None, label=None, convert="grey12")
    assert (dataset.x.max(), len(np.unique(dataset.x)) > 200) == (255, True)
    assert "more than 12 bits" in refuse_table(tmp_path / "one", client=None, label=None, convert="grey12")


def test_new_clients_are_named_by_numbers_and_with_commas(tmp_path, pfl):
    frame = make_frame().assign(site=[["1", "2", "St. Mary, north"][row % 3] for row in range(40)])
    frame.to_csv(tmp_path / "t.csv", index=False)
    read(tmp_path / "t.csv")
    north = "St. Mary, north"
    for typed, unseen in (("1", ["1"]), (f'"{north}"', [north]), (f'2,"{north}"', ["2", north])):
        ran = pfl("partition", tmp_path / "d", "-o", tmp_path / "p", "--new-clients", typed, "--force")
        assert ran.code == 0, ran.err
        artifact = open_artifact(tmp_path / "p")
        assert artifact.manifest.request["new_clients"] == unseen
        assert typed in artifact.manifest.made["command"]


def test_names_of_columns_may_have_commas(tmp_path, pfl):
    (tmp_path / "t.csv").write_text(make_frame().to_csv(index=False, header=False))
    line = ("import", tmp_path / "t.csv", "--client", "site, ward", "--label", "y", "--names", '"site, ward",y,a,m')
    ran = pfl(*line, "-o", tmp_path / "d")
    assert ran.code == 0, ran.err
    assert '"site, ward",y,a,m' in open_artifact(tmp_path / "d").manifest.made["command"]
