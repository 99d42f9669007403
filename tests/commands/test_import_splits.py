"""Splits that the user's file defines, and features standardized by each client's training samples."""

from __future__ import annotations

import numpy as np
import pytest

from importing import read_dataset, refuse
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.core.errors import InputError, PflError, UsageError

COLUMNS = {"client": "hospital", "label": "ill"}
CYCLE = ("train", "Training", "val", "TEST", "train", "valid", "validation", "test", "train")
SPLITS = {"t": 0, "v": 1, "T": 2}


def write_table(path, words=CYCLE, count=54, shift=0.0):
    """Write patients of three hospitals of different ages, who are for what ``words`` say in turn."""
    draw = np.random.default_rng(0)
    lines = ["hospital,ill,age,pulse,use"]
    for row in range(count):
        place = row // (count // 3)
        age, pulse = draw.normal(40 + 10 * place + shift, 3 + place), draw.normal(70, 9)
        lines.append(f"h{place},{row % 2},{age:.4f},{pulse:.4f},{words[row % len(words)]}")
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path):
    return partitions.read(open_artifact(path)), codebook.read(open_artifact(path))


def listed_splits(words, count=54):
    """The split that the table gives to each of its samples."""
    numbers = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
    return np.asarray([numbers[words[row % len(words)].lower()] for row in range(count)])


def splits_of(stored):
    """The split that a partition gives to each of the samples of its dataset."""
    splits = np.full(len(stored.y), -1)
    for block in range(len(stored.offsets) - 1):
        splits[stored.sample[stored.offsets[block] : stored.offsets[block + 1]]] = block % 3
    return splits


def test_import_and_partition_keep_a_given_split(tmp_path):
    import_data(write_table(tmp_path / "a.csv"), tmp_path / "data", **COLUMNS, split_column="use")
    dataset = datasets.read(open_artifact(tmp_path / "data"))
    assert dataset.features == ("age", "pulse")
    np.testing.assert_array_equal(dataset.split, listed_splits(CYCLE))
    for seed in (0, 1):
        partition(str(tmp_path / "data"), tmp_path / f"p{seed}", seed=seed)
        np.testing.assert_array_equal(splits_of(read(tmp_path / f"p{seed}")[0]), listed_splits(CYCLE))
    partition(str(tmp_path / "data"), tmp_path / "q", scheme="dirichlet", clients=4)
    np.testing.assert_array_equal(splits_of(read(tmp_path / "q")[0]), listed_splits(CYCLE))
    with pytest.raises(UsageError, match="has a split for every sample"):
        partition(str(tmp_path / "data"), tmp_path / "r", fractions=(0.8, 0.2, 0))


def test_partition_draws_validation_from_training_samples_when_the_split_has_none(tmp_path):
    words = ("train", "train", "test")
    import_data(write_table(tmp_path / "a.csv", words), tmp_path / "data", **COLUMNS, split_column="use")
    partition(str(tmp_path / "data"), tmp_path / "p")
    stored, _ = read(tmp_path / "p")
    splits = splits_of(stored)
    np.testing.assert_array_equal(splits == 2, listed_splits(words) == 2)
    assert stored.sizes.tolist() == [[10, 2, 6]] * 3
    partition(str(tmp_path / "data"), tmp_path / "q", fractions=(1, 0, 0))
    assert read(tmp_path / "q")[0].sizes.tolist() == [[12, 0, 6]] * 3
    with pytest.raises(UsageError, match="fraction for test must be 0"):
        partition(str(tmp_path / "data"), tmp_path / "r", fractions=(0.6, 0.2, 0.2))


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_import_reads_a_split_from_arrays(tmp_path, suffix):
    words = np.asarray([CYCLE[row % len(CYCLE)] for row in range(18)])
    x, y, owner = np.random.default_rng(0).normal(size=(18, 2)), np.arange(18) % 2, np.repeat([0, 1], 9)
    if suffix == "npz":
        np.savez(tmp_path / "a.npz", x=x, y=y, owner=owner, use=words)
    else:
        import h5py

        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, values in {"x": x, "y": y, "owner": owner, "use": np.char.encode(words)}.items():
                file[name] = values
    np.testing.assert_array_equal(
        read_dataset(tmp_path / f"a.{suffix}", split_column="use").split, listed_splits(CYCLE, 18)
    )


WRONG = {
    "an unknown word": (("train", "train", "test", "holdout"), {}, r"line 5 .*, column 'use': 'holdout' is not one of"),
    "nothing to train on": (("test", "val"), {}, "no train samples"),
    "nothing to test on": (("train", "val"), {}, "no test samples"),
    "no word": (("train", "test", ""), {}, r"line 4 .*, column 'use': no value"),
    "no such column": (CYCLE, {"split_column": "usage"}, "no column 'usage'"),
    "the label's": (CYCLE, {"split_column": "ill"}, "cannot be both --split-column and --label"),
    "a feature's": (CYCLE, {"features": "age,use"}, "cannot be both --split-column and one of --features"),
}


@pytest.mark.parametrize("case", WRONG)
def test_import_refuses_a_bad_split_column_and_names_the_problem(tmp_path, case):
    words, options, message = WRONG[case]
    refuse(PflError, message, write_table(tmp_path / "a.csv", words), **{**COLUMNS, "split_column": "use", **options})


def test_import_names_a_client_without_training_samples(tmp_path):
    words = ("train", "test") * 18 + ("test",) * 18
    refuse(
        InputError,
        r"a\.csv: client 'h2' has no training samples",
        write_table(tmp_path / "a.csv", words),
        **COLUMNS,
        split_column="use",
    )


def test_import_refuses_split_column_for_images(tmp_path):
    (tmp_path / "album").mkdir()
    refuse(UsageError, "--split-column is for tables and arrays", tmp_path / "album", split_column="use")


def test_standardize_client_scales_each_client_by_its_training_samples(tmp_path):
    write_table(tmp_path / "a.csv")
    import_data(tmp_path / "a.csv", tmp_path / "data", **COLUMNS, split_column="use", standardize="client")
    partition(str(tmp_path / "data"), tmp_path / "p")
    stored, book = read(tmp_path / "p")
    assert [scale.client for scale in book.scales] == ["h0", "h1", "h2"]
    for client in range(3):
        train = stored.x[slice(*stored.offsets[3 * client : 3 * client + 2])]
        np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-6)


def test_import_like_reuses_the_scale_of_each_client(tmp_path):
    import_data(write_table(tmp_path / "a.csv"), tmp_path / "data", **COLUMNS, split_column="use", standardize="client")
    partition(str(tmp_path / "data"), tmp_path / "p")
    import_data(write_table(tmp_path / "b.csv", shift=5.0), tmp_path / "new", like=tmp_path / "p")
    partition(str(tmp_path / "new"), tmp_path / "q")
    assert read(tmp_path / "q")[1].scales == read(tmp_path / "p")[1].scales
    codebook.require_same(open_artifact(tmp_path / "p"), open_artifact(tmp_path / "q"), *codebook.INPUTS)
    refuse(UsageError, "p is standardized by client", tmp_path / "b.csv", like=tmp_path / "p", standardize=True)


WAYS = {
    "nothing": ((), False),
    "alone": (("--standardize",), "by training samples"),
    "before another option": (("--standardize", "--missing", "drop"), "by training samples"),
    "by its name": (("--standardize", "federation"), "by training samples"),
    "by client": (("--standardize", "client"), "by each client's own training samples"),
    "with an equals sign": (("--standardize=client",), "by each client's own training samples"),
}


@pytest.mark.parametrize("case", WAYS)
def test_standardize_option_accepts_every_spelling(pfl, tmp_path, case):
    typed, expected = WAYS[case]
    write_table(tmp_path / "a.csv")
    columns = ("--client", "hospital", "--label", "ill", "--split-column", "use")
    pfl("import", tmp_path / "a.csv", *columns, "-o", tmp_path / "d", *typed)
    assert open_artifact(tmp_path / "d").manifest.request["standardize"] == expected


def test_standardize_without_a_value_may_precede_the_data(pfl, tmp_path):
    write_table(tmp_path / "a.csv")
    columns = ("--client", "hospital", "--label", "ill", "--split-column", "use")
    pfl("import", "--standardize", tmp_path / "a.csv", *columns, "-o", tmp_path / "d")
    artifact = open_artifact(tmp_path / "d")
    assert artifact.manifest.request["standardize"] == "by training samples"
    assert artifact.manifest.request["split_column"] == "use"


@pytest.mark.parametrize(("value", "expected"), [("true", "by training samples"), ("false", False)])
def test_config_file_accepts_true_and_false_for_standardize(pfl, tmp_path, value, expected):
    write_table(tmp_path / "a.csv")
    (tmp_path / "pfl.toml").write_text(
        f"[import]\nstandardize = {value}\nclient = 'hospital'\nlabel = 'ill'\nleave-out = 'use'\n"
    )
    pfl("import", tmp_path / "a.csv", "--config", tmp_path / "pfl.toml", "-o", tmp_path / "d")
    assert open_artifact(tmp_path / "d").manifest.request["standardize"] == expected


def test_unknown_value_of_standardize_is_refused(tmp_path):
    refuse(
        UsageError, "unknown --standardize 'clients'", write_table(tmp_path / "a.csv"), **COLUMNS, standardize="clients"
    )
