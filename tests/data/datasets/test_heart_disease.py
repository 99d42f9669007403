"""The embedded patients against FLamby's published numbers, and against its recipe in a few lines of pandas."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pflcli
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.partition import partition
from pflcli.core.errors import InputError, UsageError
from pflcli.data.datasets import heart_disease

FOLDER = Path(pflcli.__file__).parent / "data" / "datasets" / "hospitals"
MD5 = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
"""As FLamby publishes them."""
TRAIN_AND_TEST = {"cleveland": (199, 104), "hungary": (172, 89), "long-beach": (85, 45), "switzerland": (30, 16)}


def test_heart_disease_files_have_the_checksums_of_flamby():
    for word, expected in MD5.items():
        content = (FOLDER / f"processed.{word}.data").read_bytes()
        assert hashlib.md5(content, usedforsecurity=False).hexdigest() == expected
    licence = (FOLDER / "LICENSE.md").read_text()
    assert all(name in licence for name in ("CC BY 4.0", "Janosi", "Steinbrunn", "Pfisterer", "Detrano"))


def test_heart_disease_features_match_the_recipe_of_flamby():
    samples = heart_disease.load(None)
    samples.check("heart-disease")
    frames = []
    for name, word in heart_disease.HOSPITALS.items():
        frame = pd.read_csv(FOLDER / f"processed.{word}.data", header=None, na_values="?")
        frames.append(frame.drop(columns=[10, 11, 12]).dropna().assign(owner=name))
    patients = pd.concat(frames, ignore_index=True)
    expected = pd.get_dummies(patients.drop(columns=[13, "owner"]), columns=[2, 6], drop_first=True).to_numpy(
        np.float64
    )
    assert samples.x.shape == (740, 13)
    np.testing.assert_array_equal(samples.x, expected)
    np.testing.assert_array_equal(samples.y, patients[13] > 0)
    assert samples.owner.tolist() == patients["owner"].tolist()
    assert samples.features[-5:] == ("chest pain=2", "chest pain=3", "chest pain=4", "resting ECG=1", "resting ECG=2")


def test_heart_disease_split_equals_that_of_flamby():
    """The digest is of the split with scikit-learn 1.5 and later; another version must not move it unseen."""
    samples = heart_disease.load(None)
    assert hashlib.sha256(np.packbits(samples.is_test).tobytes()).hexdigest()[:16] == "a6fed78b77906174"
    for name, expected in TRAIN_AND_TEST.items():
        is_test = samples.is_test[samples.owner == name]
        assert (np.sum(~is_test), np.sum(is_test)) == expected
    other = heart_disease.load(None, cfg=heart_disease.Config(split=44)).is_test
    assert other.sum() == samples.is_test.sum()
    assert (other != samples.is_test).any()
    # Stratified: as many patients with the disease among the training patients of Cleveland, whatever the seed.
    first = samples.owner == "cleveland"
    assert samples.y[first & other].sum() == samples.y[first & samples.is_test].sum()


def test_heart_disease_is_standardized_per_hospital(tmp_path):
    partition("heart-disease", tmp_path / "p", keep_test=True, fractions=(1, 0, 0))
    artifact = open_artifact(tmp_path / "p")
    stored, book = partitions.read(artifact), codebook.read(artifact)
    assert stored.names == list(TRAIN_AND_TEST)
    assert [tuple(row) for row in stored.sizes[:, [0, 2]].tolist()] == list(TRAIN_AND_TEST.values())
    assert [scale.client for scale in book.scales] == stored.names
    assert book.mean == ()
    cholesterol = book.features.index("cholesterol")
    for client, scale in enumerate(book.scales):
        train = stored.x[slice(*stored.offsets[3 * client : 3 * client + 2])]
        varied = np.asarray(scale.sd) > 0
        np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(train.std(axis=0), varied, atol=1e-5)
        # Switzerland records no cholesterol.
        assert varied[cholesterol] == (stored.names[client] != "switzerland")


@pytest.mark.parametrize("how", ["federation", "none"])
def test_heart_disease_standardize_option_selects_another_scale(tmp_path, how):
    options = {"standardize": how}
    partition("heart-disease", tmp_path / "p", keep_test=True, fractions=(1, 0, 0), options=options)
    artifact = open_artifact(tmp_path / "p")
    stored, book = partitions.read(artifact), codebook.read(artifact)
    train = np.concatenate([stored.x[slice(*stored.offsets[3 * c : 3 * c + 2])] for c in range(4)])
    assert book.scales == ()
    assert bool(book.mean) == (how == "federation")
    if how == "federation":
        np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-5)
    else:
        assert 28 <= train[:, 0].min() < train[:, 0].max() <= 77


def test_heart_disease_names_the_line_of_a_damaged_file(tmp_path):
    for word in MD5:
        (tmp_path / f"processed.{word}.data").write_bytes((FOLDER / f"processed.{word}.data").read_bytes())
    path = tmp_path / "processed.va.data"
    path.write_text(path.read_text().replace("\n", ",1\n", 1))
    with pytest.raises(InputError, match=r"va\.data: line 1 has 15 values, not 14"):
        heart_disease.load(tmp_path)
    path.unlink()
    with pytest.raises(UsageError, match="processed"):
        heart_disease.load(tmp_path)
