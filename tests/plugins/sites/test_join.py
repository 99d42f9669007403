"""``pfl site join``: one command from a site's table to its folder, which can be interrupted and repeated."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import test_without_pilot
from test_columns import SITES, read_hospital, write_table
from test_without_pilot import SETTINGS, agree

import pflcli
from helpers import error_text
from pflcli import import_data
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.plugins.sites import join
from pflcli.plugins.sites.federation import create_federation
from pflcli.plugins.sites.join import join_federation
from pflcli.plugins.sites.site import check_site

FILES = {"data", "partition", "deployment.json"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The tables of four hospitals, and a federation of what they agree on."""
    at = tmp_path_factory.mktemp("join")
    create_federation(agree(at), at / "fed", method="fedavg", **SETTINGS)
    return at


@pytest.fixture
def at(world, tmp_path, monkeypatch):
    """A place of one's own with the tables and the federation."""
    for name in (*(f"{site}.csv" for site in SITES), "fed", "agreed.toml", "own hungary"):
        copy = shutil.copytree if (world / name).is_dir() else shutil.copy
        copy(world / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def list_bytes(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_join_makes_what_import_partition_and_check_make(at, pfl):
    shutil.copy("hungary.csv", "own.csv")
    ran = pfl("site", "join", "fed", "--data", "own.csv", "--client", "hungary", "-o", "site")
    assert (ran.code, ran.out) == (0, "site\n")
    assert {path.name for path in Path("site").iterdir()} == FILES
    for words in ("294 samples", "176 for training", "in a round, 'hungary' sends", "head.weight", "sends nothing"):
        assert words in ran.err
    import_data("own.csv", "d", like="fed")
    pflcli.partition("d", "p", like="fed", client="hungary")
    shown = check_site("p", "fed", "other")
    for made, by_hand in (("site/data", "d"), ("site/partition", "p")):
        assert open_artifact(made).manifest.fingerprint == open_artifact(by_hand).manifest.fingerprint
    assert join_federation("fed", "site", data="own.csv", client="hungary") == {**shown, "path": "site"}
    checked = pfl("site", "check", "p", "fed", "-o", "other")
    shown = [line for line in checked.err.splitlines() if "pfl site serve" not in line]
    assert len(shown) > 10
    assert shown == ran.err.splitlines()[-len(shown) - 1 : -1]


def test_a_federation_of_several_methods_is_joined_in_the_same_way(at):
    create_federation("agreed.toml", "several", methods="fedavg,ditto", **SETTINGS)
    facts = join_federation("several", "site", data="hungary.csv", fewest=7)
    assert ([*facts["runs"]], facts["scores"]["fewest"]) == (["seed-3/fedavg", "seed-3/ditto"], 7)
    assert join_federation("several", "site", data="hungary.csv", fewest=7) == facts


def test_the_client_is_that_of_the_file_or_is_asked_for_with_all_names(at):
    assert join_federation("fed", "a", data="hungary.csv")["client"] == "hungary"
    shutil.copy("hungary.csv", "own.csv")
    with pytest.raises(UsageError, match="which client of fed has the samples in own") as error:
        join_federation("fed", "b", data="own.csv")
    assert all(site in error_text(error) for site in SITES)
    with pytest.raises(UsageError, match="fed has no client 'hungry'") as error:
        join_federation("fed", "b", data="own.csv", client="hungry")
    assert "did you mean 'hungary'" in error_text(error)
    assert not Path("b").exists()


def test_a_dataset_or_a_partition_is_taken_as_it_is(at):
    import_data("hungary.csv", "d", like="agreed.toml")
    facts = join_federation("fed", "a", data="d", client="hungary")
    assert {path.name for path in Path("a").iterdir()} == FILES - {"data"}
    assert join_federation("fed", "b", data="a/partition") == {**facts, "path": "b"}
    assert {path.name for path in Path("b").iterdir()} == FILES - {"data", "partition"}
    with pytest.raises(UsageError, match="has the samples of client 'hungary', not 'cleveland'"):
        join_federation("fed", "c", data="a/partition", client="cleveland")
    with pytest.raises(UsageError, match="--na has no effect on d, which is imported already"):
        join_federation("fed", "c", data="d", client="hungary", na="x")
    with pytest.raises(UsageError, match="is a table that sites agree on") as error:
        join_federation("agreed.toml", "c", data="hungary.csv")
    assert "pfl federation create agreed.toml --method NAME" in error_text(error)
    with pytest.raises(InputError, match="of the kind federation"):
        join_federation("fed", "c", data="fed", client="hungary")
    assert not Path("c").exists()


def drop_column():
    rows = [{name: value for name, value in row.items() if name != "age"} for row in read_hospital("hungary")]
    write_table(Path("own.csv"), rows)


def spell_otherwise():
    write_table(Path("own.csv"), [{**row, "sex": row["sex"].upper()} for row in read_hospital("hungary")])


def split_by_hand():
    rows = read_hospital("hungary")
    write_table(Path("own.csv"), [{**row, "part": ["train", "test"][n % 2]} for n, row in enumerate(rows)])


WRONG = {
    "a column is missing": (drop_column, {}, InputError, ["own.csv has no column 'age'"]),
    "words are spelled otherwise": (spell_otherwise, {}, InputError, ["'M' is not among the words", "--fold-case"]),
    "fewer samples": (
        lambda: write_table(Path("own.csv"), read_hospital("hungary")[:-5]),
        {},
        InputError,
        ["173 training samples of client 'hungary', and sites agreed on 176", "pfl federation columns"],
    ),
    "another client": (
        lambda: shutil.copy("cleveland.csv", "own.csv"),
        {},
        InputError,
        ["181 training samples of client 'hungary'", "is it the table of 'cleveland'?"],
    ),
    "no table": (lambda: None, {}, InputError, ["own.csv does not exist"]),
    "a splitting column": (
        split_by_hand,
        {"split_column": "part"},
        InputError,
        ["splits of its own: training and test samples; fed has none", "--split-column none"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_one_error_and_leaves_nothing_behind(at, name):
    prepare, options, error_type, words = WRONG[name]
    prepare()
    before = list_bytes(at)
    with pytest.raises(error_type) as error:
        join_federation("fed", "site", data="own.csv", client="hungary", **options)
    assert all(word in error_text(error) for word in words), error_text(error)
    assert list_bytes(at) == before
    shutil.copy("hungary.csv", "own.csv")
    assert join_federation("fed", "site", data="own.csv", client="hungary")["train"] == 176


def test_spelling_is_mended_by_the_option_that_the_error_names(at):
    spell_otherwise()
    assert join_federation("fed", "site", data="own.csv", client="hungary", fold_case=True)["train"] == 176


@pytest.mark.parametrize("step", ["import_data", "partition", "check_site"])
def test_an_interrupted_join_continues_with_what_is_done(at, monkeypatch, step):
    made = []

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(join, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            join_federation("fed", "site", data="hungary.csv")
    for name in ("import_data", "partition"):
        command = getattr(join, name)
        monkeypatch.setattr(join, name, lambda *a, f=command, **k: made.append(f(*a, **k)) or made[-1])
    join_federation("fed", "site", data="hungary.csv")
    done = {"import_data": 0, "partition": 1, "check_site": 2}[step]
    assert [each.decision for each in made] == ["up to date"] * done + ["new"] * (2 - done)
    assert {path.name for path in Path("site").iterdir()} == FILES
    # What a join was interrupted with may change before the site has joined, and not afterwards.
    again = list_bytes(Path("site"))
    write_table(Path("hungary.csv"), read_hospital("hungary")[:-5])
    with pytest.raises(ConflictError, match="site takes part with other samples than hungary"):
        join_federation("fed", "site", data="hungary.csv")
    assert list_bytes(Path("site")) == again


def test_another_table_replaces_that_of_an_interrupted_join(at, monkeypatch):
    shutil.copy("cleveland.csv", "own.csv")
    with monkeypatch.context() as patched:
        patched.setattr(join, "check_site", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            join_federation("fed", "site", data="own.csv", client="hungary")
    shutil.copy("hungary.csv", "own.csv")
    assert join_federation("fed", "site", data="own.csv", client="hungary")["train"] == 176


def test_a_folder_with_other_files_or_of_another_federation_is_refused_before_anything_is_read(at):
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    with pytest.raises(ConflictError, match="mine contains other files"):
        join_federation("fed", "mine", data="gone.csv", client="hungary")
    create_federation("agreed.toml", "other", method="fedprox", **SETTINGS)
    join_federation("fed", "site", data="hungary.csv")
    with pytest.raises(ConflictError, match="site belongs to another site or federation"):
        join_federation("other", "site", data="gone.csv", client="hungary")
    # A folder that has the names of what join makes, and not from pfl, is not touched.
    Path("mine/notes.txt").unlink()
    Path("mine/data").mkdir()
    Path("mine/data/notes.txt").write_text("mine")
    with pytest.raises(ConflictError, match="is not a pfl artifact"):
        join_federation("fed", "mine", data="hungary.csv")
    assert Path("mine/data/notes.txt").read_text() == "mine"


@pytest.mark.parametrize("standardize", ["federation", "client"])
def test_samples_of_other_scales_are_refused_with_the_column_and_both_numbers(tmp_path, monkeypatch, standardize):
    """The new data are like the pilot's dataset, which has no scales: these would be those of the new data."""
    monkeypatch.chdir(tmp_path)
    rows = {site: read_hospital(site) for site in SITES}
    pooled = [{**row, "hospital": site} for site in SITES for row in rows[site]]
    options = {"label": "num>0", "missing": "drop"}
    import_data(
        write_table(Path("pooled.csv"), pooled), "pooled", client="hospital", standardize=standardize, **options
    )
    run = pflcli.personalize("fedavg", pflcli.partition("pooled", "clients"), "run", **SETTINGS)
    create_federation(run, "fed")
    changed = [{**row, "age": float(row["age"]) * 12} for row in rows["hungary"]]
    write_table(Path("own.csv"), changed if standardize == "client" else rows["hungary"])
    import_data("own.csv", "d", like="pooled", client="none")
    pflcli.partition("d", "p", like="fed", client="hungary")
    with pytest.raises(InputError) as error:
        check_site("p", "fed", "site")
    assert "pfl import TABLE --like fed -o DIR" in error_text(error)
    if standardize == "client":
        assert "differ in the standardization of client 'hungary'" in error_text(error)
    own, agreed = (codebook.read(open_artifact(path)) for path in ("p", "fed"))
    if standardize == "federation":
        name = own.features[0]
        assert f"the mean of '{name}' is {own.mean[0]:.6g} against {agreed.mean[0]:.6g}" in error_text(error)
    with pytest.raises(InputError, match="site/partition and fed differ"):
        join_federation("fed", "site", data="d", client="hungary")
    assert not Path("site").exists()
    write_table(Path("own.csv"), rows["hungary"])
    assert join_federation("fed", "site", data="own.csv", client="hungary")["client"] == "hungary"


def test_columns_may_have_the_names_that_a_coordinator_accepts(at):
    """Also that of the label, which stands in a condition."""
    names = {"age": "Age", "chol": "cholesterol", "num": "NUM"}
    table = Path("agreed.toml").read_text()
    for name, own in names.items():
        heading = f'[columns."{name}"]\n'
        assert heading in table
        table = table.replace(heading, f'{heading}names = ["{own}"]\n')
    Path("spelled.toml").write_text(table)
    create_federation("spelled.toml", "other", method="fedavg", **SETTINGS)
    join_federation("other", "plain", data="hungary.csv")
    write_table(Path("own.csv"), read_hospital("hungary"), names=names)
    join_federation("other", "spelled", data="own.csv", client="hungary")
    plain, spelled = (partitions.read(open_artifact(f"{name}/partition")) for name in ("plain", "spelled"))
    np.testing.assert_array_equal(np.asarray(plain.x), np.asarray(spelled.x))
    np.testing.assert_array_equal(plain.y, spelled.y)
    with pytest.raises(InputError, match="has no column"):
        join_federation("fed", "site", data="own.csv", client="hungary")


def agree_on_splits(at, monkeypatch, parts):
    """Let each site have a column of splits with these words in turn, and return the federation."""
    monkeypatch.setattr(test_without_pilot, "PARTS", parts)
    monkeypatch.chdir(at)
    create_federation(agree(at, split_column="part"), "fed", method="ditto", **SETTINGS)


def test_own_test_samples_stay_test_samples_and_the_others_are_split_at_the_site(tmp_path, monkeypatch):
    """The bytes are those of a simulation on the splits of the sites."""
    agree_on_splits(tmp_path, monkeypatch, ("train", "train", "train", "test"))
    pooled = []
    for client, site in enumerate(SITES):
        facts = join_federation("fed", f"site {site}", data=f"{site}.csv", split_column="part")
        assert facts["train"] == facts["declared_train"]
        own = partitions.read(open_artifact(f"site {site}/partition"))
        split = np.full(len(own.y), -1)
        split[own.sample] = np.repeat(np.arange(3 * len(SITES)) % 3, np.diff(own.offsets))
        rows = read_hospital(site)
        assert np.flatnonzero(split == 2).tolist() == [n for n in range(len(rows)) if n % 4 == 3]
        assert (split == 1).sum() == round(0.2 * (split != 2).sum())
        words = np.asarray(["train", "validation", "test"])[split]
        pooled += [{**row, "part": word, "hospital": site} for row, word in zip(rows, words, strict=True)]
        assert own.names[client] == site
    test_without_pilot.play(tmp_path, "fed", monkeypatch)
    table = write_table(Path("pooled.csv"), pooled)
    data = import_data(table, "pooled", like="agreed.toml", client="hospital", split_column="part")
    run = pflcli.personalize("ditto", pflcli.partition(data, "clients", seed=3), "run", apart=True, **SETTINGS)
    simulated = predictions.read(open_artifact(run.path), "test")
    for client, site in enumerate(SITES):
        own = predictions.read(open_artifact(f"site {site}/predictions"), "test")
        rows = slice(*simulated.offsets[client : client + 2])
        assert own.parts["p"].tobytes() == simulated.parts["p"][rows].tobytes()


@pytest.mark.parametrize(
    ("agreed", "own", "option", "words"),
    [
        (("train", "test"), None, None, "none; fed has training and test samples"),
        (("train", "test"), ("train", "val", "test"), "part", "validation and test samples; fed has training and"),
        (("train", "val", "test"), ("train", "test"), "part", "training and test samples; fed has training, valid"),
    ],
)  # fmt: skip
def test_other_splits_than_those_of_all_sites_are_refused(tmp_path, monkeypatch, agreed, own, option, words):
    agree_on_splits(tmp_path, monkeypatch, agreed)
    rows = read_hospital("hungary")
    parts = {} if own is None else {"part": own}
    rows = [{**row, **{name: cycle[n % len(cycle)] for name, cycle in parts.items()}} for n, row in enumerate(rows)]
    write_table(Path("own.csv"), rows)
    with pytest.raises(InputError) as error:
        join_federation("fed", "site", data="own.csv", client="hungary", split_column=option)
    assert words in error_text(error)
    assert "--split-column COL" in error_text(error)
    assert not Path("site").exists()
