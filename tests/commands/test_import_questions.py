"""Questions of ``pfl import`` about names: the same for each role, from each format, in each spelling."""

from __future__ import annotations

import json
import unicodedata
from itertools import cycle, islice

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from helpers import error_text
from importing import import_and_read, read_dataset, refuse
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.core.errors import InputError, UsageError

ROWS = 48
SAME = {
    # What two spellings of one name differ by, and the words of the question.
    "case": ("Ill", "ill", "differ only by case"),
    "sharp s": ("Straße", "STRASSE", "differ only by case"),
    "a space": ("P 01", "P01", "differ only by spaces"),
    "two spaces": ("St. Mary", "St.  Mary", "differ only by spaces"),
    "a no-break space": ("St. Mary", "St.\u00a0Mary", "differ only by Unicode form"),
    "an invisible character": ("Bern", "Be\u200brn", "differ only by invisible characters"),
    "composed letters": ("Zürich", unicodedata.normalize("NFD", "Zürich"), "differ only by Unicode form"),
    "a dash": ("P-01", "P\u201301", "differ only by dashes"),
    "an apostrophe": ("Crohn's", "Crohn\u2019s", "differ only by apostrophes"),
    "wide letters": ("P01", "\uff3001", "differ only by Unicode form"),
    "two differences": ("Crohn's disease", "CROHN\u2019S disease", "differ only by apostrophes and case"),
    "leading zeros": ("01234", "1234", "are the same number"),
    "one leading zero": ("7", "07", "are the same number"),
    "a power": ("1000", "1E3", "are the same number"),
}
ABSENT = ("NA", "unknown", "Unknown", "?", "N/A", "null", "-")
ROLES = ("label", "condition", "label map", "client", "group", "word")
FORMATS = ("csv", "xlsx", "parquet", "feather", "jsonl", "dta", "npz", "h5", "images", "files", "leaf", "hf")
LACKING = {  # roles that a format lacks
    "npz": {"word"}, "h5": {"word"}, "files": {"label", "condition", "label map", "group", "word"},
    "images": {"condition", "group", "word"}, "leaf": {"condition", "group", "word", "label map", "label"},
}  # fmt: skip
COMBINATIONS = [(role, form) for form in FORMATS for role in ROLES if role not in LACKING.get(form, ())]


def take_turns(*names):
    return list(islice(cycle(names), ROWS))


def write(folder, form, role, names):
    """Write samples whose names of one role are ``names`` (n,); return the path and the options to import it."""
    column = {"condition": "label", "label map": "label"}.get(role, role)
    facts = {
        "client": take_turns("A", "B"),
        "label": take_turns("a", "a", "b"),
        "group": [f"g{row}" for row in range(ROWS)],
    }
    facts |= {"word": take_turns("m", "f")} | {column: names}
    x = np.random.default_rng(0).normal(size=(ROWS, 2))
    table = pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], **facts})
    options = {"client": "client", "label": "label=other" if role == "condition" else "label"}
    options |= {"group": "group"} if role == "group" else {}
    options |= {"categorical": "word"} if role == "word" else {}
    options |= {"label_map": {"other": "sick"}} if role == "label map" else {}
    table = table if role == "group" else table.drop(columns="group")
    if role != "word":
        table = table.drop(columns="word")
    path = folder / f"t.{form}"
    match form:
        case "csv":
            table.to_csv(path, index=False)
        case "xlsx":
            pytest.importorskip("openpyxl")
            table.to_excel(path, index=False)
        case "parquet" | "feather" | "dta":
            pytest.importorskip("pyarrow")
            write_index = {"write_index": False, "version": 118} if form == "dta" else {}
            getattr(table, {"dta": "to_stata"}.get(form, f"to_{form}"))(path, **write_index)
        case "jsonl":
            lines = [json.dumps(record, ensure_ascii=False) for record in table.to_dict("records")]
            path.write_text("\n".join(lines) + "\n")
        case "npz" | "h5":
            arrays = {name: np.asarray(values) for name, values in facts.items() if name != "word"} | {"x": x}
            if form == "npz":
                np.savez(path, **arrays)
            else:
                import h5py

                with h5py.File(path, "w") as file:
                    for name, values in arrays.items():
                        file[name] = values.astype(object) if values.dtype.kind == "U" else values
        case "images":
            path = folder / "album"
            draw = np.random.default_rng(0)
            for row in range(ROWS):
                place = path / facts["client"][row] / facts["label"][row]
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(draw.integers(0, 256, (4, 4), dtype=np.uint8)).save(place / f"{row}.png")
            options = {name: value for name, value in options.items() if name == "label_map"}
        case "files":
            path = folder / "tables"
            path.mkdir()
            for name, part in table.groupby("client"):
                part.drop(columns="client").to_csv(path / f"{name}.csv", index=False)
            options.pop("client")
        case "leaf":
            users = {
                name: {"x": part[["x0", "x1"]].to_numpy().tolist(), "y": part["label"].tolist()}
                for name, part in table.groupby("client")
            }
            (folder / "leaf").mkdir()
            sizes = [len(user["y"]) for user in users.values()]
            text = json.dumps({"users": list(users), "num_samples": sizes, "user_data": users})
            (folder / "leaf" / "a.json").write_text(text)
            return f"leaf:{folder / 'leaf'}", {}
        case "hf":
            library = pytest.importorskip("datasets", reason="the library datasets is not installed")
            library.Dataset.from_pandas(table, preserve_index=False).save_to_disk(folder / "saved")
            return f"hf:{folder / 'saved'}", options
    return path, options


def count_names(tmp_path, role, path, options, **more):
    """Import the samples, and return the number of the names of a role."""
    read = read_dataset(path, **options, **more)
    return {
        "client": lambda: len({*read.owner.tolist()}),
        "group": lambda: len({*read.group.tolist()}),
        "word": lambda: sum(name.startswith("word=") for name in read.features),
    }.get(role, lambda: len(read.classes))()


@pytest.mark.parametrize(("role", "form"), COMBINATIONS)
def test_spellings_of_one_name_are_asked_about_and_both_answers_work(tmp_path, role, form):
    kinds = SAME if form == "csv" else {name: SAME[name] for name in ("case", "composed letters", "leading zeros")}
    for number, (kind, (first, second, problem)) in enumerate(kinds.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        path, options = write(folder, form, role, take_turns(first, "other", second, "third"))
        noun = {"condition": "class", "label": "class", "label map": "class"}.get(role, role)
        remedy = f"if they are one {noun}: --fold-case"
        refuse(InputError, [f"'{first}' (12 samples)", f"'{second}' (12 samples)", problem, remedy], path, **options)
        if kind not in ("case", "composed letters", "leading zeros"):
            continue
        one = count_names(folder, role, path, options, fold_case=True)
        two = count_names(folder, role, path, options, fold_case=False)
        assert (one, two) == ((2, 2) if role == "condition" else (3, 4)), kind


@pytest.mark.parametrize(("role", "form"), [pair for pair in COMBINATIONS if pair[0] != "word"])
def test_names_that_may_be_missing_are_asked_about_and_both_answers_work(tmp_path, role, form):
    declares = form in ("images", "leaf") and role in ("label", "label map")  # a folder is a class
    words = [*ABSENT, "-9"] if form == "csv" else ["NA", "unknown"]
    for number, word in enumerate(words):
        folder = tmp_path / str(number)
        folder.mkdir()
        others = ("1", "2", "3") if word == "-9" else ("other", "third", "fourth")
        if word == "-9" and role in ("condition", "label map"):
            continue
        path, options = write(folder, form, role, take_turns(word, *others))
        if not declares:
            refuse(
                InputError,
                [
                    f"'{word}' (12 samples) may mean that the",
                    f"--na {word if word.isalpha() else repr(word) if word == '?' else word} --missing drop",
                ],
                path,
                **options,
            )
        kept = count_names(folder, role, path, options | {"na": word, "missing": "drop"})
        is_label = role in ("label", "condition", "label map")
        all_names = count_names(folder, role, path, options | ({"task": "classes"} if is_label else {"na": ""}))
        assert (kept, all_names) == ((2, 2) if role == "condition" else (3, 4)), word


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("label", ("none", "mild", "severe")), ("label", ("+", "-")), ("label", range(10)), ("label", (-1, 0, 1)),
        ("label", ("A", "A-", "B+")), ("label", ("N", "S", "V", "F", "Q")), ("client", (1, 2, 9)),
        ("group", (1, 2, 9)), ("client", (1001, 1002, 9999, 9998)), ("word", ("none", "-1", "9")),
    ],
)  # fmt: skip
def test_ordinary_names_are_not_asked_about(tmp_path, role, names):
    path, options = write(tmp_path, "csv", role, take_turns(*map(str, names)))
    assert count_names(tmp_path, role, path, options) == len(names)


@pytest.mark.parametrize("role", ["label", "condition", "client", "group", "word"])
def test_a_number_with_and_without_a_decimal_point_is_one_name(tmp_path, role):
    path, options = write(tmp_path, "csv", role, take_turns("7", "7.0", "8", "9.0"))
    options |= {"label": "label=7.0"} if role == "condition" else {}
    assert count_names(tmp_path, role, path, options) == (2 if role == "condition" else 3)
    if role == "condition":
        assert read_dataset(path, **options).y.sum() == ROWS // 2


def test_long_ids_are_different_numbers(tmp_path):
    names = take_turns(*(f"900719925474099300{digit}" for digit in (1, 2, 3)))
    assert count_names(tmp_path, "client", *write(tmp_path, "csv", "client", names)) == 3


def test_condition_folds_spellings_of_its_value_and_asks_about_a_spelling_that_no_label_has(tmp_path):
    path, options = write(tmp_path, "csv", "label", take_turns("ill", "well", "Ill ", "ILL"))
    read = read_dataset(path, **options | {"label": "label=ill"}, fold_case=True)
    assert (read.classes, read.y.sum()) == (["label!=ill", "label==ill"], 36)
    path, options = write(tmp_path, "csv", "label", take_turns("ill", "well"))
    refuse(
        InputError,
        r"'ILL' \(0 samples\), 'ill' \(24 samples\) differ only by case",
        path,
        **options | {"label": "label=ILL"},
    )
    path, options = write(tmp_path, "csv", "label", take_turns("0.5", "0.50", "2", "-1"))
    assert read_dataset(path, **options | {"label": "label>0.5"}).y.sum() == 12


def test_label_map_that_names_every_spelling_answers_the_question(tmp_path):
    path, options = write(tmp_path, "csv", "label", take_turns("ill", "well", "Ill", "ILL"))
    refuse(InputError, "differ only by case", path, **options, label_map={"ill": "sick"})
    every, one = {"ill": "sick", "Ill": "sick", "ILL": "sick"}, {"ill": "sick"}
    for answer in ({"label_map": every}, {"label_map": one, "fold_case": True}):
        assert read_dataset(path, **options, **answer).classes == ["sick", "well"]


def test_groups_of_one_patient_stay_together_once_the_question_is_answered(tmp_path):
    names = [f"{'Pp'[row % 2]}{row // 6:02d}" for row in range(ROWS)]
    path, options = write(tmp_path, "csv", "group", names)
    assert count_names(tmp_path, "group", path, options, fold_case=True) == 8


# Splits


def make_images(root, *places):
    draw = np.random.default_rng(0)
    for place in places:
        for number in range(4):
            (root / place).mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (4, 4), dtype=np.uint8)).save(root / place / f"{number}.png")
    return root


@pytest.mark.parametrize(
    "splits", [("train", "test"), ("Training", "Validation"), ("seg_train", "seg_test", "seg_val")]
)
def test_folders_of_images_that_are_named_like_splits_are_asked_about(tmp_path, splits):
    root = make_images(tmp_path / "album", *(f"{split}/{name}" for split in splits for name in "ab"))
    refuse(InputError, (f"'{splits[0]}' (8)", "--client none", "--split-column none"), root)
    assert {*read_dataset(root, split_column="none").owner.tolist()} == {*splits}
    joined = read_dataset(root, client="none", split_column="none")
    assert (joined.owner, joined.split, len(joined.y)) == (None, None, 8 * len(splits))
    if "test" in splits[1].lower():
        read = read_dataset(root, client="none")
        assert (read.owner, np.bincount(read.split).tolist()) == (None, [8, 8, 8] if len(splits) > 2 else [8, 0, 8])


def test_folders_of_classes_that_are_named_like_splits_are_asked_about(tmp_path):
    root = make_images(tmp_path / "album", "train", "test")
    refuse(InputError, r"the classes are named like splits: 'test' \(4\), 'train' \(4\)", root, client="none")
    import_data(root, tmp_path / "d", client="none", split_column="none")


def test_files_that_are_named_like_splits_are_asked_about(tmp_path):
    path, options = write(tmp_path, "files", "client", take_turns("mitbih_train", "mitbih_train", "mitbih_test"))
    refuse(InputError, ("'mitbih_test' (16)", "--client none", "--split-column none"), path, **options)
    assert np.bincount(read_dataset(path, **options, client="none").split).tolist() == [32, 0, 16]
    assert len({*read_dataset(path, **options, split_column="none").owner.tolist()}) == 2
    table = pd.concat([pd.read_csv(file).assign(who=file.stem) for file in path.iterdir()])
    table["x2"] = range(ROWS)
    for file, part in table.groupby("who"):
        part.to_csv(path / f"{file}.csv", index=False)
    refuse(UsageError, "--order contradicts the splits of tables", path, label="label", client="none", order="x2")


@pytest.mark.parametrize(
    ("role", "form"),
    [
        (role, form)
        for role, form in COMBINATIONS
        if role in ("client", "label", "word") and form in ("csv", "parquet", "npz", "h5", "hf")
    ],
)
def test_columns_of_names_of_splits_are_asked_about(tmp_path, role, form):
    path, options = write(tmp_path, form, role, take_turns("train", "test", "dev"))
    refuse(InputError, ("'train' (16)", f"--split-column {role}", "--split-column none"), path, **options)
    assert count_names(tmp_path, role, path, options, split_column="none") == 3


# Whole numbers, copies, points


@pytest.mark.parametrize("form", ["csv", "xlsx", "parquet", "jsonl", "npz", "h5", "hf"])
def test_whole_numbers_are_only_classes_if_the_user_says_so(tmp_path, form):
    points = np.tile(np.arange(24), 2)
    path, options = write(tmp_path, form, "label", points)
    refuse(
        InputError,
        ("24 whole numbers in 48 samples", "--label 'label>11'", "--task quantity, --task count or --task classes"),
        path,
        **options,
    )
    assert count_names(tmp_path, "label", path, options, task="classes") == 24
    assert count_names(tmp_path, "label", path, options | {"label": "label>11"}) == 2


def test_copies_are_counted_for_each_format(pfl, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (12, 4, 4), dtype=np.uint8)
    owner, y = np.arange(12) // 6, np.arange(12) % 2

    def import_copies(name, pixels, owner, y):
        np.savez(tmp_path / f"{name}.npz", x=pixels, y=y, owner=owner)
        for row, each in enumerate(pixels):
            place = tmp_path / name / f"h{owner[row]}" / f"c{y[row]}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(each).save(place / f"{row}.png")
        table = pd.DataFrame(pixels.reshape(len(pixels), -1)).assign(owner=owner, y=y)
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        ran = [
            pfl("import", tmp_path / f"{name}.npz", "-o", tmp_path / f"{name}-arrays"),
            pfl("import", tmp_path / name, "-o", tmp_path / f"{name}-images"),
            pfl(
                "import",
                tmp_path / f"{name}.csv",
                "--client",
                "owner",
                "--label",
                "y",
                "-o",
                tmp_path / f"{name}-table",
            ),
        ]
        assert all(each.code == 0 for each in ran), [each.err for each in ran]
        return [[line for line in each.err.splitlines() if line.startswith("WARNING")] for each in ran]

    assert import_copies("none", x, owner, y) == [[], [], []]
    twice = [np.concatenate([each, each[:5]]) for each in (x, owner, y)]
    for lines in import_copies("twice", *twice):
        assert lines == [
            "WARNING: 5 samples with the features, label and client of an earlier one; copies of training samples may"
            " be test samples: --drop-duplicates keeps the first"
        ]
    assert len(read_dataset(tmp_path / "twice", drop_duplicates=True).y) == 12
    for lines in import_copies("elsewhere", np.concatenate([x, x[:3]]), np.r_[owner, 1 - owner[:3]], np.r_[y, y[:3]]):
        assert lines == [
            "WARNING: 3 samples with the features and label of one of another client; copies of training samples may be"
            " test samples"
        ]
    arrays, images, table = import_copies(
        "relabelled", np.concatenate([x, x[:3]]), np.r_[owner, owner[:3]], np.r_[y, 1 - y[:3]]
    )
    assert arrays == images
    assert arrays[0].startswith("WARNING: 3 samples with the features of one of another class;")
    assert table == []  # rows of a table may differ in what is no feature


def write_column(path, cells):
    lines = [f"{'AB'[row % 2]},{row % 3 % 2},{row},{cell}" for row, cell in enumerate(cells)]
    path.write_text("\n".join(["site,y,a,m", *lines]) + "\n")
    return path


def test_points_before_three_digits_are_asked_about(tmp_path):
    cells = [f"{number:,}".replace(",", ".") for number in np.random.default_rng(1).integers(600, 60000, 40)]
    path = write_column(tmp_path / "t.csv", cells)
    with pytest.raises(InputError) as error:
        import_data(path, tmp_path / "d", client="site", label="y")
    first = next(cell for cell in cells if "." in cell)
    assert f"--thousands . --decimal , reads '{first}' as {first.replace('.', '')}" in error_text(error)
    assert f"--decimal . reads '{first}' as {float(first)}" in error_text(error)
    answers = {"d": {"decimal": "."}, "t": {"thousands": ".", "decimal": ","}}
    read = {}
    for name, answer in answers.items():
        read[name] = import_and_read(path, tmp_path / name, client="site", label="y", **answer).x[:, 1].tolist()
    assert read["t"] == [float(cell.replace(".", "")) for cell in cells]
    np.testing.assert_allclose(read["d"], [float(cell) for cell in cells], rtol=1e-6)
    assert read_dataset(path, like=tmp_path / "t").x[:, 1].tolist() == read["t"]


@pytest.mark.parametrize("odd", ["0.512", "28.71", "28.7071", "1234.567"])
def test_a_cell_that_has_no_thousands_settles_that_points_are_decimal(tmp_path, odd):
    path = write_column(tmp_path / "t.csv", ["28.707", "31.002", "900", "2.670"] * 9 + [odd])
    assert read_dataset(path, client="site", label="y").x[:, 1].max() > 31


@pytest.mark.parametrize("odd", ["52.3", "0.123", "1234.567", "1.0e-3"])
def test_another_column_settles_that_points_are_decimal(pfl, tmp_path, odd):
    rows = [f"{'AB'[row % 2]},{row % 3 % 2},{25 + row / 1000:.3f},{odd}" for row in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["site,y,t,a", *rows]) + "\n")
    told = pfl("import", tmp_path / "t.csv", "--client", "site", "--label", "y", "-o", tmp_path / "d").err
    assert f"points are decimal marks, as in '{odd}' in 'a', also in: t (as in '25.000')" in told


def test_a_column_with_whole_numbers_and_points_before_three_digits_is_asked_about_beside_decimals(tmp_path):
    rows = [f"{'AB'[row % 2]},{row % 3 % 2},{row + 0.5},{('2.670', '712')[row % 2]}" for row in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["site,y,a,cost", *rows]) + "\n")
    refuse(InputError, "column 'cost' has three digits after each point", tmp_path / "t.csv", client="site", label="y")
    import_data(tmp_path / "t.csv", tmp_path / "d", client="site", label="y", thousands=".", decimal=",")
    assert datasets.read(open_artifact(tmp_path / "d")).x[:2].tolist() == [[0.5, 2670.0], [1.5, 712.0]]
