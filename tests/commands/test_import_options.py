"""``pfl import`` of tables: missing values, categorical columns, and new data read like earlier data."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest

from importing import read_dataset, refuse
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.extract import extract
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.train_global import train_global
from pflcli.core.errors import InputError, UsageError

COLUMNS = {"client": "hospital", "label": "ill"}


def write_patients(path, *, seed=0, count=90, words=("no", "yes"), shift=0.0, holes=True, extra=()):
    """Write patients of three hospitals: a number with holes, a code from 1 to 3, and a word."""
    draw = np.random.default_rng(seed)
    lines = ["hospital,ill,age,chol,cp,sex"]
    for row in range(count):
        ill, age, chol = row % 2, draw.normal(50 + shift, 9), draw.normal(200 + shift, 30)
        cell = "?" if holes and draw.random() < 0.3 else f"{chol:.2f}"
        lines.append(f"h{row % 3},{words[ill]},{age:.2f},{cell},{1 + row % 3}.0,{'female' if row % 4 else 'male'}")
    path.write_text("\n".join([*lines, *extra]) + "\n")
    return path


@pytest.fixture
def imported_patients(tmp_path):
    """Import patients with all that can be wished, and partition them with a hospital that joins late."""
    path = write_patients(tmp_path / "patients.csv")
    import_data(path, tmp_path / "data", **COLUMNS, missing="median", standardize=True, categorical="cp,sex")
    partition(str(tmp_path / "data"), tmp_path / "p", new_clients=0.34)
    return tmp_path


FEATURES = ("age", "chol", "chol missing", "cp=1", "cp=2", "cp=3", "sex=female", "sex=male")


def read(path):
    return partitions.read(open_artifact(path)), codebook.read(open_artifact(path))


def test_medians_and_scale_use_only_training_samples_of_participating_clients(imported_patients):
    raw, (stored, known) = datasets.read(open_artifact(imported_patients / "data")), read(imported_patients / "p")
    assert known.features == raw.features == FEATURES
    train = np.concatenate([np.arange(*stored.offsets[3 * c : 3 * c + 2]) for c in np.flatnonzero(~stored.new)])
    x = raw.x[stored.sample]
    assert np.isnan(x[:, 1]).any()
    median = np.nanmedian(x[train, 1])
    filled = np.where(np.isnan(x[:, 1]), median, x[:, 1])
    assert known.median[1] == median
    assert known.mean[1] == pytest.approx(filled[train].mean())
    assert known.sd[1] == pytest.approx(filled[train].std())
    np.testing.assert_allclose(stored.x[:, 1], (filled - known.mean[1]) / known.sd[1], atol=1e-5)
    np.testing.assert_array_equal(stored.x[:, 2], np.isnan(x[:, 1]))
    np.testing.assert_array_equal(stored.x[:, 3:], x[:, 3:])
    assert (known.mean[3:], known.sd[3:]) == ((0.0,) * 5, (1.0,) * 5)


def test_training_samples_do_not_depend_on_test_samples_or_new_clients(imported_patients):
    """A law: training samples stay bit for bit the same when test samples or new clients' samples change."""
    stored, _ = read(imported_patients / "p")
    train = np.concatenate([np.arange(*stored.offsets[3 * c : 3 * c + 2]) for c in np.flatnonzero(~stored.new)])
    lines = (imported_patients / "patients.csv").read_text().splitlines()
    others = np.setdiff1d(np.arange(len(stored.y)), train)
    for row in stored.sample[others].tolist():
        cells = lines[row + 1].split(",")
        lines[row + 1] = ",".join([*cells[:2], "777", "?", *cells[4:]])
    (imported_patients / "changed.csv").write_text("\n".join(lines) + "\n")
    import_data(
        imported_patients / "changed.csv",
        imported_patients / "d2",
        **COLUMNS,
        missing="median",
        standardize=True,
        categorical="cp,sex",
    )
    partition(str(imported_patients / "d2"), imported_patients / "p2", new_clients=0.34)
    changed, _ = read(imported_patients / "p2")
    np.testing.assert_array_equal(changed.sample, stored.sample)
    np.testing.assert_array_equal(changed.x[train], stored.x[train])
    assert (changed.x[others, 0] != stored.x[others, 0]).all()


def test_import_like_reuses_columns_classes_and_scale(imported_patients):
    """Other ages, other codes, other clients: columns, words, classes, mean, deviation and medians stay."""
    _, old = read(imported_patients / "p")
    lines = write_patients(imported_patients / "x.csv", seed=1, count=30, shift=40).read_text().splitlines()
    rows = [line.split(",") for line in lines]
    turned = [[row[5], row[0], row[3], row[2], row[4], row[1]] for row in rows if row[4] != "2.0"]
    (imported_patients / "new.csv").write_text("\n".join(",".join(row) for row in turned) + "\n")
    import_data(imported_patients / "new.csv", imported_patients / "new", like=imported_patients / "p")
    partition(str(imported_patients / "new"), imported_patients / "q", seed=1)
    stored, known = read(imported_patients / "q")
    for field in codebook.INPUTS:
        assert getattr(known, field) == getattr(old, field), field
    assert stored.x[:, 0].mean() > 2
    assert not stored.x[:, 4].any()
    train_global(imported_patients / "p", imported_patients / "b", settings={"rounds": 1, "lr": 0.01})
    assert (
        extract(imported_patients / "b", imported_patients / "e", partition=imported_patients / "q").decision == "new"
    )


def test_import_like_a_partition_works_without_its_dataset(imported_patients):
    (imported_patients / "data").rename(imported_patients.parent / "gone")
    write_patients(imported_patients / "new.csv", seed=1)
    refuse(UsageError, "--client is missing", imported_patients / "new.csv", like=imported_patients / "p")
    import_data(imported_patients / "new.csv", imported_patients / "new", like=imported_patients / "p", **COLUMNS)
    assert codebook.read(open_artifact(imported_patients / "new")).mean


def test_import_like_an_unpartitioned_dataset_warns_and_cannot_be_extracted(pfl, imported_patients):
    write_patients(imported_patients / "new.csv", seed=1)
    ran = pfl(
        "import", imported_patients / "new.csv", "--like", imported_patients / "data", "-o", imported_patients / "new"
    )
    assert (ran.code, "is not partitioned" in ran.err) == (0, True)
    partition(str(imported_patients / "new"), imported_patients / "q")
    train_global(imported_patients / "p", imported_patients / "b", settings={"rounds": 1, "lr": 0.01})
    ran = pfl("extract", imported_patients / "b", "--partition", imported_patients / "q", "-o", imported_patients / "e")
    assert (ran.code, "differ in their standardization: the mean of 'age' is" in ran.err) == (3, True)


UNLIKE = {
    "a class": ({"words": ("no", "sick")}, (), "column 'ill': 'sick' is not among the classes of", "no, yes"),
    "a word": ({}, ("h0,yes,50,200,4.0,male",), "line 92", "column 'cp': '4' is not among the words of", "1, 2, 3"),
    "a word for a number": ({}, ("h0,yes,old,200,1,male",), "column 'age': 'old' is not a number"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_import_like_names_values_that_do_not_fit(imported_patients, case):
    options, extra, *words = UNLIKE[case]
    path = write_patients(imported_patients / "new.csv", **options, extra=extra)
    with pytest.raises(InputError) as error:
        import_data(path, imported_patients / "new", like=imported_patients / "p")
    for word in words:
        assert word in error.value.message


def test_import_like_names_a_missing_column(imported_patients):
    path = write_patients(imported_patients / "new.csv")
    path.write_text(path.read_text().replace("chol", "cholesterol"))
    with pytest.raises(InputError, match="has no column 'chol'") as error:
        import_data(path, imported_patients / "new", like=imported_patients / "p")
    assert "are needed" in error.value.fix[-1]
    for options in ({"features": "age"}, {"categorical": "cp"}):
        refuse(UsageError, "contradicts --like", path, like=imported_patients / "p", **options)


@pytest.mark.parametrize(("client", "layout"), [(None, "CLIENT/LABEL/IMAGE"), ("none", "LABEL/IMAGE")])
def test_import_refuses_a_label_option_for_images(tmp_path, client, layout):
    with pytest.raises(UsageError, match="--label is for tables and arrays") as error:
        import_data(tmp_path, tmp_path / "new", client=client, label="outcome")
    assert error.value.fix == (layout,)


def test_import_like_keeps_the_class_numbers_of_words(imported_patients):
    """New data whose first row is ill and whose words stand in another order mean the same."""
    path = write_patients(imported_patients / "new.csv", words=("yes", "no"))
    dataset = read_dataset(path, like=imported_patients / "p")
    assert (dataset.classes, dataset.y[:2].tolist()) == (["no", "yes"], [1, 0])
    path.write_text("\n".join(line for line in path.read_text().splitlines() if ",no," not in line) + "\n")
    assert set(read_dataset(path, like=imported_patients / "p").y) == {1}


def test_import_turns_columns_of_few_words_into_features(pfl, tmp_path):
    path = write_patients(tmp_path / "d.csv", holes=False)
    ran = pfl("import", path, "--client", "hospital", "--label", "ill", "-o", tmp_path / "d")
    assert re.search(r"^sex .* male, female +features$", ran.err, re.MULTILINE)
    dataset = datasets.read(open_artifact(tmp_path / "d"))
    assert dataset.features == ("age", "chol", "cp", "sex=female", "sex=male")
    assert dataset.x[:4, 3:].tolist() == [[0, 1], [1, 0], [1, 0], [1, 0]]
    assert read_dataset(path, **COLUMNS, categorical="none").features == ("age", "chol", "cp")
    refuse(
        InputError,
        r"column 'age' has .* distinct words; a categorical column has 1 to 200",
        write_patients(path, count=900),
        **COLUMNS,
        categorical="age",
    )


def test_import_names_clients_that_lose_most_samples_and_the_columns_at_fault(pfl, tmp_path):
    lines = [
        "hospital,ill,a,b",
        *(f"good,{i % 2},{i}.5,1" for i in range(20)),
        *(f"bad,{i % 2},{i}.5,?" for i in range(9)),
    ]
    (tmp_path / "d.csv").write_text("\n".join([*lines, *(f"poor,{i % 2},{i}.5,{'1' if i else ''}" for i in range(2))]))
    ran = pfl(
        "import",
        tmp_path / "d.csv",
        "--client",
        "hospital",
        "--label",
        "ill",
        "--missing",
        "drop",
        "-o",
        tmp_path / "d",
    )
    assert "10 of 31 samples lack a value and are left out\n" in ran.err
    assert "WARNING: clients lose most of their samples: bad all 9\n" in ran.err
    assert "missing most often: b 32 %\n" in ran.err
    assert json.loads((tmp_path / "d" / "manifest.json").read_text())["summary"]["clients"] == 2


def test_import_reads_class_names_from_arrays(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 9, 12)).astype(np.float32)
    y, owner = [2, 0, 2, 0, 2, 0], list("aabbcc")
    np.savez(tmp_path / "d.npz", x=x, y=y, owner=owner, classes=["run", "sit", "walk"])
    dataset = read_dataset(tmp_path / "d.npz")
    assert (dataset.classes, dataset.y.tolist()) == (["run", "sit", "walk"], y)
    np.savez(tmp_path / "words.npz", x=x, y=["walk", "run"] * 3, owner=owner, classes=["run", "sit", "walk"])
    assert read_dataset(tmp_path / "words.npz").y.tolist() == y


def test_import_reports_the_layout_of_series(pfl, tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 9, 128)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=[0, 1] * 3, owner=list("aabbcc"))
    ran = pfl("import", tmp_path / "d.npz", "-o", tmp_path / "d")
    assert all(fact in ran.err for fact in ("9 steps, 128 channels", "--layout channels-first"))
    ran = pfl("import", tmp_path / "d.npz", "-o", tmp_path / "e", "--layout", "channels-first")
    assert "128 steps, 9 channels" in ran.err
    assert "--layout" not in ran.err
    np.testing.assert_array_equal(datasets.read(open_artifact(tmp_path / "e")).x, x.transpose(0, 2, 1))
    requests = [open_artifact(tmp_path / name).manifest.request for name in ("d", "e")]
    assert "layout" not in requests[0]
    assert requests[1]["layout"] == "channels-first"
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "i.npz", x=images, y=[0, 1] * 3, owner=list("aabbcc"))
    np.testing.assert_array_equal(
        read_dataset(tmp_path / "i.npz", layout="channels-first").x, images.transpose(0, 2, 3, 1)
    )


def test_missing_values_of_series_are_filled_by_channel(tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 4, 2))
    x[3, 1, 0] = np.nan
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(30) % 2, owner=np.zeros(30))
    import_data(tmp_path / "d.npz", tmp_path / "d", missing="median")
    partition(str(tmp_path / "d"), tmp_path / "p")
    stored, known = read(tmp_path / "p")
    assert known.features == ("channel 0", "channel 0 missing", "channel 1")
    row = stored.sample.tolist().index(3)
    assert stored.x[row, 1, 1] == 1
    assert stored.x[row, 1, 0] == np.float32(np.nanmedian(x[stored.sample[: stored.offsets[1]], :, 0]))


def test_import_suggests_what_to_do_with_a_packed_file(tmp_path):
    for name, word in (
        ("a.npz.gz", "unpack it first"),
        ("a.pkl.gz", "to CSV"),
        ("shakespeare_roles.jsonl.gz", "pfl partition shakespeare"),
    ):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(UsageError) as error:
            import_data(tmp_path / name, tmp_path / "d")
        assert word in "\n".join(error.value.fix)


def test_import_refuses_file_names_that_are_not_utf8(pfl, tmp_path):
    folder = tmp_path / "album" / "ann" / "cat"
    folder.mkdir(parents=True)
    try:
        (folder / os.fsdecode(b"\xff.png")).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    ran = pfl("import", tmp_path / "album", "-o", tmp_path / "d")
    assert (ran.code, "is not UTF-8" in ran.err) == (3, True)
    assert not (tmp_path / "d").exists()


def test_summary_of_one_client_uses_the_singular(pfl, tmp_path):
    """Plurals: one client, one sample."""
    lines = ["hospital,ill,age", *(f"only,{row % 2},{row}.5" for row in range(10))]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    ran = pfl("import", tmp_path / "d.csv", "--client", "hospital", "--label", "ill", "-o", tmp_path / "d")
    assert "1 client with 10 / 10 / 10 samples" in ran.err
    ran = pfl("partition", tmp_path / "d", "-o", tmp_path / "p")
    assert "10 samples of 2 classes, 1 client with 10 / 10 / 10 samples" in ran.err
