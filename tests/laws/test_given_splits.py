"""Splits that a file defines: a training sample that is also a test sample is refused or reported, in every form."""

from __future__ import annotations

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pflcli.commands.import_data import import_data
from pflcli.core.errors import InputError
from pflcli.data.formats import RawSamples
from pflcli.data.formats.given_splits import require_separate

COUNT = 12
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(4, COUNT, 3)).astype(np.float32)
Y = np.arange(COUNT) % 2
"""Training and test samples of two clients: ``X[0]`` and ``X[1]`` of the first, ``X[2]`` and ``X[3]`` of the second."""
PLACES = [("a", "train"), ("a", "test"), ("b", "train"), ("b", "test")]


def make_frame(x):
    rows = [
        {"who": client, "use": split, "class": Y[at], **{f"f{i}": value for i, value in enumerate(values)}}
        for (client, split), part in zip(PLACES, x, strict=True)
        for at, values in enumerate(part)
    ]
    return pd.DataFrame(rows)


TABLE = {"client": "who", "label": "class", "split_column": "use"}


def write_csv(root, x):
    make_frame(x).to_csv(root / "d.csv", index=False)
    return root / "d.csv", TABLE


def write_parquet(root, x):
    make_frame(x).to_parquet(root / "d.parquet", index=False)
    return root / "d.parquet", TABLE


def write_arrays(root, x):
    owner, use = (np.repeat([place[at] for place in PLACES], COUNT) for at in (0, 1))
    np.savez(root / "d.npz", x=np.concatenate(x), y=np.tile(Y, 4), owner=owner, use=use)
    return root / "d.npz", {"split_column": "use"}


def write_hdf5(root, x):
    with h5py.File(root / "d.h5", "w") as file:
        file["x"], file["y"] = np.concatenate(x), np.tile(Y, 4)
        for at, name in enumerate(("owner", "use")):
            file[name] = [place[at] for place in PLACES for _ in range(COUNT)]
    return root / "d.h5", {"split_column": "use"}


def write_keras(root, x):
    arrays = {"x_train": np.concatenate([x[0], x[2]]), "x_test": np.concatenate([x[1], x[3]])}
    np.savez(root / "d.npz", **arrays, y_train=np.tile(Y, 2), y_test=np.tile(Y, 2))
    return root / "d.npz", {"client": "none"}


def write_hub(root, x):
    pytest.importorskip("datasets", reason="the library datasets is not installed")
    for (client, split), part in zip(PLACES, x, strict=True):
        path = root / "hub" / client / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"class": Y, **{f"f{i}": part[:, i] for i in range(3)}}), path)
    return f"hf:{root / 'hub'}", {"label": "class"}


FORMS = (write_csv, write_parquet, write_arrays, write_hdf5, write_keras, write_hub)
OVERLAPS = {
    "a test set is the training set": (1, 0, slice(None)),
    "a test set is part of the training set of another client": (1, 2, slice(0, COUNT)),
}


@pytest.mark.parametrize("write", FORMS, ids=lambda write: write.__name__.removeprefix("write_"))
@pytest.mark.parametrize("case", OVERLAPS)
def test_import_refuses_splits_when_they_share_samples(write, case, tmp_path):
    source, options = write(tmp_path, X)
    import_data(source, tmp_path / "good", **options)
    target, origin, rows = OVERLAPS[case]
    x = X.copy()
    x[target, rows] = x[origin, rows]
    x[3, :4] = x[2, :4]
    (tmp_path / "bad").mkdir()
    source, options = write(tmp_path / "bad", x)
    with pytest.raises(InputError, match="are also training samples"):
        import_data(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def make_raw_samples(x, splits, owner=None):
    return RawSamples(
        x=np.asarray(x),
        label=np.asarray(["a"] * len(x)),
        owner=owner,
        place=lambda row, role, at: f"row {row}",
        metadata={"split": np.asarray(splits)},
    )


def test_require_separate_warns_when_splits_share_a_few_samples():
    x = np.vstack([np.arange(10.0)] * 2).T
    x[9] = x[0]
    (remark,) = require_separate(make_raw_samples(x, ["train"] * 6 + ["val"] * 2 + ["test"] * 2), "d").remarks
    assert remark == (
        "WARNING: 1 of 4 samples for validation and test are also training samples, such as row 9 and row 0"
    )


def test_require_separate_only_warns_when_features_take_few_values():
    x = np.asarray([[0.0], [1.0]] * 20)
    (remark,) = require_separate(make_raw_samples(x, ["train"] * 30 + ["test"] * 10), "d").remarks
    assert remark.startswith("WARNING: 10 of 10 samples")


def test_samples_with_equal_features_and_different_labels_are_distinct():
    samples = make_raw_samples(np.ones((4, 2)), ["train", "train", "test", "test"])
    samples.label[2:] = "b"
    assert require_separate(samples, "d").remarks == ()
