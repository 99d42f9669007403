"""Columns that ``--keep`` keeps with samples: no features, and beside the same samples in all that is made of them."""

from __future__ import annotations

import h5py
import numpy as np
import pandas as pd
import pytest

from helpers import error_text
from importing import import_and_read, read_dataset, refuse
from pflcli.artifacts import kept_columns
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.new_client import new_client
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.core.datasets import Samples
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution

ROLES = {"client": "hospital", "label": "outcome"}


def make_visits(rows=200, seed=0, hospitals=5):
    """Visits whose ward and sex follow from the heart rate, so that a test sees whether they belong to a sample."""
    draw = np.random.default_rng(seed)
    rate = draw.permutation(rows) + 40
    return pd.DataFrame(
        {
            "hospital": [f"h{number}" for number in draw.integers(hospitals, size=rows)],
            "sex": np.where(rate % 2, "F", "M"),
            "ward": [["a", "b", "", "NA"][number % 4] for number in rate],
            "rate": rate,
            "age": draw.normal(50, 9, size=rows).round(3),
            "outcome": draw.integers(2, size=rows),
        }
    )


@pytest.fixture
def visits_file(tmp_path):
    make_visits().to_csv(tmp_path / "visits.csv", index=False)
    return tmp_path / "visits.csv"


def require_own_words(x, kept):
    """Require that each sample has the words of its heart rate, feature 0."""
    rate = np.asarray(x)[:, 0].round().astype(int)
    np.testing.assert_array_equal(kept["sex"], np.where(rate % 2, "F", "M"))
    np.testing.assert_array_equal(kept["ward"], np.asarray(["a", "b", "", ""])[rate % 4])
    assert len(rate) > 10


def test_kept_columns_are_no_features_and_words_such_as_na_are_missing(visits_file):
    dataset = read_dataset(visits_file, keep="sex,ward", **ROLES)
    assert dataset.features == ("rate", "age")
    assert [*dataset.kept] == ["sex", "ward"]
    require_own_words(dataset.x, dataset.kept)
    assert (read_dataset(visits_file, keep=["ward"], na="", **ROLES).kept["ward"] == "NA").any()
    assert read_dataset(visits_file, leave_out="sex,ward", **ROLES).kept == {}


def test_a_sample_without_a_kept_value_is_no_error_and_is_not_dropped(visits_file):
    assert len(read_dataset(visits_file, keep="sex,ward", missing="drop", **ROLES).y) == 200


def test_kept_columns_stay_beside_samples_that_are_dropped_or_sorted(tmp_path):
    visits = make_visits()
    visits["day"] = np.random.default_rng(1).permutation(len(visits))
    visits.loc[::7, "age"] = np.nan
    visits = pd.concat([visits, visits.iloc[:9]])
    visits.to_csv(tmp_path / "v.csv", index=False)
    options = {"missing": "drop", "order": "day", "drop_duplicates": True, "keep": "sex,ward"}
    dataset = read_dataset(tmp_path / "v.csv", **options, **ROLES)
    assert len(dataset.y) < 180
    require_own_words(dataset.x, dataset.kept)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"part": (1, 2)},
        {"scheme": "iid", "clients": 4},
        {"new_clients": 0.4, "new_capacity": 0.5},
        {"poison": "0.4:flip"},
        {"scheme": "dirichlet", "clients": 3, "min_samples": 5},
    ],
    ids=["natural", "part", "iid", "capacity", "poison", "dirichlet"],
)
def test_partition_keeps_each_value_beside_its_sample(visits_file, tmp_path, options):
    import_data(visits_file, tmp_path / "d", keep="sex,ward", **ROLES)
    partition(tmp_path / "d", tmp_path / "p", **options)
    artifact = open_artifact(tmp_path / "p")
    samples = partitions.read(artifact)
    require_own_words(samples.x, samples.kept)
    assert artifact.manifest.summary["kept"] == ["sex", "ward"]


def test_partition_of_another_kept_column_is_another_artifact(visits_file, tmp_path):
    prints = []
    for number, keep in enumerate(("sex", "ward", None)):
        options = {"keep": keep, "leave_out": {"sex": "ward", "ward": "sex", None: "sex,ward"}[keep]}
        import_data(visits_file, tmp_path / f"d{number}", **options, **ROLES)
        partition(tmp_path / f"d{number}", tmp_path / f"p{number}")
        prints.append(open_artifact(tmp_path / f"p{number}").manifest.fingerprint)
    assert len({*prints}) == 3


def test_arrays_are_kept_by_their_names(tmp_path):
    visits = make_visits()
    x = visits[["rate", "age"]].to_numpy(np.float32)
    arrays = {"x": x, "y": visits["outcome"], "owner": visits["hospital"].to_numpy(str), "sex": visits["sex"]}
    np.savez(tmp_path / "v.npz", **{name: np.asarray(values.tolist()) for name, values in arrays.items()})
    with h5py.File(tmp_path / "v.h5", "w") as file:
        for name, values in arrays.items():
            file[name] = np.asarray(values.tolist(), dtype="S4") if name in ("owner", "sex") else np.asarray(values)
    for name in ("v.npz", "v.h5"):
        np.testing.assert_array_equal(read_dataset(tmp_path / name, keep="sex").kept["sex"], visits["sex"])
    refuse(InputError, ("no array 'six'", "did you mean 'sex'"), tmp_path / "v.npz", keep="six")


def test_like_keeps_the_same_columns_unless_none_is_given(visits_file, tmp_path):
    import_data(visits_file, tmp_path / "d", keep="sex,ward", **ROLES)
    dataset = import_and_read(visits_file, tmp_path / "d2", like=tmp_path / "d")
    require_own_words(dataset.x, dataset.kept)
    assert read_dataset(visits_file, like=tmp_path / "d", keep="none").kept == {}
    assert [*read_dataset(visits_file, like=tmp_path / "d", keep="ward").kept] == ["ward"]
    make_visits().drop(columns="ward").to_csv(tmp_path / "less.csv", index=False)
    refuse(InputError, "no column 'ward'", tmp_path / "less.csv", like=tmp_path / "d")


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"keep": "six"}, InputError, ("no column 'six'", "did you mean 'sex'")),
        ({"keep": "hospital"}, UsageError, ("hospital", "--keep", "--client")),
        ({"keep": "sex", "features": "sex,age"}, UsageError, ("sex", "--keep", "--features")),
        ({"keep": "sex", "leave_out": "sex"}, UsageError, ("sex", "--keep", "--leave-out")),
    ],
    ids=["unknown", "client", "feature", "left out"],
)
def test_a_column_that_cannot_be_kept_is_refused(visits_file, options, kind, words):
    refuse(kind, words, visits_file, **options, **ROLES)


def test_two_spellings_of_a_kept_value_are_a_question(tmp_path):
    visits = make_visits()
    visits.loc[3, "sex"] = "f" if visits.loc[3, "sex"] == "F" else "m"
    visits.to_csv(tmp_path / "v.csv", index=False)
    refuse(InputError, ("--fold-case", "--no-fold-case", "column 'sex'"), tmp_path / "v.csv", keep="sex", **ROLES)
    folded = read_dataset(tmp_path / "v.csv", keep="sex", fold_case=True, leave_out="ward", **ROLES)
    assert {*folded.kept["sex"].tolist()} == {"F", "M"}


def test_folders_of_images_have_no_columns_to_keep(tmp_path):
    (tmp_path / "images" / "a").mkdir(parents=True)
    refuse(UsageError, ("--keep", "tables and arrays"), tmp_path / "images", client="none", keep="sex")


def test_a_client_that_joins_later_brings_its_kept_columns_or_lacks_them(visits_file, tmp_path):
    import_data(visits_file, tmp_path / "d", keep="sex,ward", **ROLES)
    partition(tmp_path / "d", tmp_path / "p")
    brief = {"model": "mlp", "rounds": 1}
    personalize("local", tmp_path / "p", tmp_path / "local", settings=brief, execution=Execution(threads=1))
    later = make_visits(rows=40, seed=5)
    later.to_csv(tmp_path / "later.csv", index=False)
    later.drop(columns="ward").to_csv(tmp_path / "less.csv", index=False)
    new_client(tmp_path / "local", tmp_path / "later.csv", tmp_path / "one", client="new", label="outcome")
    new_client(tmp_path / "one", tmp_path / "less.csv", tmp_path / "two", client="newer", label="outcome")
    for name, clients in (("one", 1), ("two", 2)):
        open_artifact(tmp_path / name).verify()
        found = predictions.read_later_clients(open_artifact(tmp_path / name))
        rate = found.x[:, 0].round().astype(int)
        np.testing.assert_array_equal(found.kept["sex"], np.where(rate % 2, "F", "M"))
        expected = np.asarray(["a", "b", "", ""])[rate % 4]
        expected[40:] = ""
        np.testing.assert_array_equal(found.kept["ward"], expected)
        assert len(found.y) == 40 * clients


def test_damaged_kept_columns_are_refused(tmp_path):
    kept = {"sex": np.asarray(["F", "", "Zoë"]), "ward": np.asarray(["", "b", "b"])}
    arrays = kept_columns.encode(kept)
    for damage in (
        {},
        {"kept": arrays["kept"] + 9},
        {"kept": arrays["kept"][:2]},
        {"kept": arrays["kept"].astype("f4")},
    ):
        with h5py.File(tmp_path / "k.h5", "w") as file:
            for name, values in (arrays | damage).items():
                file[name] = values
        with h5py.File(tmp_path / "k.h5") as file:
            if damage:
                with pytest.raises(InputError, match="inconsistent"):
                    kept_columns.read(file, "k.h5", 3)
            else:
                read = kept_columns.read(file, "k.h5", 3)
                assert {name: words.tolist() for name, words in read.items()} == {
                    name: words.tolist() for name, words in kept.items()
                }


def test_samples_of_a_users_dataset_file_may_have_kept_columns():
    words = np.asarray(["F", "M", "F"])
    samples = Samples(np.zeros((3, 2)), np.asarray([0, 1, 0]), 2, kept={"sex": words})
    samples.check("mine")
    assert samples.take(np.asarray([2, 1])).kept["sex"].tolist() == ["F", "M"]
    assert samples.sha256() != Samples(samples.x, samples.y, 2).sha256()
    with pytest.raises(InputError) as error:
        Samples(samples.x, samples.y, 2, kept={"y": words[:2]}).check("mine")
    assert "kept y has 2" in error_text(error)
