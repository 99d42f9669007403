"""``pfl replay``: a run and its ancestors are repeated from their manifests, and compared with the originals."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest

from helpers import ROOT
from pflcli.artifacts import manifest as manifests
from pflcli.commands.compare import compare
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core.errors import InputError
from pflcli.plugins.replay import agreement
from pflcli.plugins.replay.replay import replay

TRAINING = {"model": "logistic", "rounds": 2}


def change_manifest(folder, **made):
    """Write the manifest anew, with the hashes of the files that are there and other circumstances."""
    path = folder / manifests.NAME
    fields = json.loads(path.read_text())
    del fields["seal"]
    fields["made"] = {key: value for key, value in {**fields["made"], **made}.items() if value is not None}
    for name, facts in fields["files"].items():
        content = (folder / name).read_bytes()
        facts |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    path.write_text(json.dumps({**fields, "seal": manifests.digest(fields)}, indent=2) + "\n")


def change_predictions(folder, change, **made):
    """Change the probabilities of test samples as another machine might have computed them."""
    with h5py.File(folder / "predictions.h5", "r+") as file:
        file["test/p"][...] = change(file["test/p"][...])
    change_manifest(folder, **made)


def move_mass(p, amount):
    """Move probability from each row's largest class to its smallest."""
    rows = np.arange(len(p))
    largest, smallest = p.argmax(axis=1), p.argmin(axis=1)
    p[rows, largest] -= np.float32(amount)
    p[rows, smallest] += np.float32(amount)
    return p


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run of FedAvg on three clients."""
    at = tmp_path_factory.mktemp("run")
    partition("writers", at / "p", clients=3, seed=0)
    personalize("fedavg", at / "p", at / "fedavg", settings=TRAINING)
    return at


@pytest.fixture
def mine(run, tmp_path, monkeypatch):
    """A copy of the run, in the current folder."""
    shutil.copytree(run, tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def test_a_chain_is_repeated_to_the_last_bit_and_only_once(pfl, small, tmp_path, monkeypatch, tree):
    monkeypatch.chdir(tmp_path)
    ran = pfl("replay", small.ev, "-o", "again")
    assert ran.code == 0, ran.err
    rows = [line.split("\t") for line in ran.out.splitlines()[1:]]
    kinds = [row[1] for row in rows]
    assert kinds[:4] == ["partition", "backbone", "embeddings", "datastore"]
    assert kinds[-1] == "evaluation"
    assert {row[2] for row in rows} == {"same"}
    assert f"{len(rows)} artifacts: {len(rows)} the same to the last bit" in ran.err
    for name in ("p", "b", "e", "d", "knn"):
        old, new = manifests.read(small.root / name), manifests.read(tmp_path / "again" / name)
        assert old.fingerprint == new.fingerprint
        assert name == "b" or old.files == new.files  # rounds.csv has seconds
    before = tree(tmp_path / "again")
    assert pfl("replay", small.ev, "-o", "again").code == 0
    assert {name: content for name, (content, _) in tree(tmp_path / "again").items()} == {
        name: content for name, (content, _) in before.items()
    }


def test_a_comparison_is_repeated_with_all_its_runs(pfl, run, tmp_path):
    compare(run / "p", run / "c", methods=["fedavg", "knn-per"], seeds=[0, 1], references=False, settings=TRAINING)
    ran = pfl("replay", run / "c", "-o", tmp_path / "again", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert {item["agreement"] for item in found["artifacts"]} == {"same"}
    assert found["artifacts"][-1]["path"] == str(tmp_path / "again" / "c" / "comparison")
    assert {item["kind"] for item in found["artifacts"]} >= {"partition", "backbone", "datastore", "predictions"}
    (knn,) = [item for item in found["artifacts"] if item["path"].endswith("seed-1/knn-per")]
    assert knn["changed"] == 0 < knn["test_samples"]
    assert knn["accuracy"][0] == knn["accuracy"][1]


def test_dry_run_lists_commands_and_writes_nothing(pfl, mine):
    (mine / "x.toml").write_text('[replay]\nout = "again"\n')
    ran = pfl("replay", "fedavg", "--config", "x.toml", "--dry-run")
    assert ran.code == 0
    assert ran.out.splitlines()[1:] == [
        "again/p\tpfl partition writers -o ./p --clients 3",
        "again/fedavg\tpfl personalize fedavg ./p -o ./fedavg --model logistic --rounds 2",
    ]
    assert not (mine / "again").exists()


def test_any_difference_counts_on_the_same_machine_and_rounding_does_not_on_another(pfl, mine):
    change_predictions(mine / "fedavg", lambda p: move_mass(p, 1e-5))
    ran = pfl("replay", "fedavg", "-o", "again")
    assert ran.code == 5
    assert "1 of 2 artifacts differ from the original: again/fedavg" in ran.err
    (row,) = [line.split("\t") for line in ran.out.splitlines() if line.startswith("again/fedavg")]
    assert row[2] == "differs"
    assert row[3].startswith("1.0e-05 (predictions.h5, test/p")
    assert row[4].startswith("0 of ")
    change_manifest(mine / "fedavg", processor="another one")
    ran = pfl("replay", "fedavg", "-o", "again")
    assert ran.code == 0, ran.err
    assert "within rounding" in ran.out
    assert "not as in the original run: processor" in ran.err
    assert "1 the same to the last bit, 1 agree to 4 digits" in ran.err or "agree to 5 digits" in ran.err
    assert pfl("replay", "fedavg", "-o", "again", "--tolerance", "1e-6").code == 5
    found = json.loads(pfl("replay", "fedavg", "-o", "again", "--json").out)["artifacts"][-1]
    assert found["difference"] == pytest.approx(1e-5, rel=0.05)


def test_other_predictions_and_both_accuracies_are_counted(mine):
    with h5py.File(mine / "fedavg" / "predictions.h5") as file:
        p, y = file["test/p"][...], file["test/y"][...]
    change_predictions(mine / "fedavg", lambda p: p[:, ::-1], processor="another one")
    found = replay(mine / "fedavg", mine / "again").artifacts[-1]
    flipped = p.shape[1] - 1 - p.argmax(axis=1)
    assert not found.agrees
    assert found.agreement.changed == int((flipped != p.argmax(axis=1)).sum()) > 0
    assert found.agreement.accuracy == (np.mean(flipped == y), np.mean(p.argmax(axis=1) == y))


def test_inputs_that_are_gone_or_changed_are_named_before_anything_runs(pfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"{'ab'[i % 2]};{'yn'[i % 3 == 0]};{i}.5\n" for i in range(40))
    (tmp_path / "data.csv").write_text("who;y;x\n" + lines)
    (tmp_path / "mine.py").write_text((ROOT / "methods" / "local.py").read_text())
    import_data("data.csv", "d", client="who", label="y", delimiter=";", standardize=True)
    partition("d", "p", seed=0)
    personalize("./mine.py", "p", "mine", settings=TRAINING)
    assert pfl("replay", "mine", "-o", "again").code == 0
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "\n# changed\n")
    ran = pfl("replay", "mine", "-o", "other")
    assert ran.code == 3
    assert f"{tmp_path / 'mine.py'} has changed; mine/mine.py is a copy of what was used" in ran.err
    (tmp_path / "mine.py").rename("moved.py")
    (tmp_path / "data.csv").rename("moved.csv")
    ran = pfl("replay", "mine", "-o", "other")
    assert ran.code == 3
    assert f"{tmp_path / 'data.csv'} no longer exists; {tmp_path / 'mine.py'} no longer exists" in ran.err
    assert not (tmp_path / "other").exists()
    (tmp_path / "moved.csv").rename("data.csv")
    (tmp_path / "data.csv").write_text("who;y;x\n" + lines.replace("3.5", "4.5"))
    ran = pfl("replay", "p", "-o", "other")
    assert ran.code == 3
    assert "d cannot be repeated: its request has changed" in ran.err
    shutil.rmtree("d")
    ran = pfl("replay", "p", "-o", "other")
    assert ran.code == 3
    assert "the dataset ../d, from which it was made, no longer exists" in ran.err
    assert "Traceback" not in ran.err


def test_an_artifact_that_records_no_command_and_the_originals_as_output_are_refused(pfl, mine):
    for out in (".", "../mine"):
        ran = pfl("replay", "fedavg", "-o", out)
        assert ran.code == 4
        assert "contains the originals" in ran.err
    change_manifest(mine / "p", command=None)
    with pytest.raises(InputError, match="p cannot be repeated: it does not record the command"):
        replay("fedavg", "again")


def test_an_option_that_this_version_does_not_have_is_one_clear_error(pfl, mine):
    change_manifest(mine / "fedavg", command="pfl personalize fedavg ./p -o ./fedavg --gone 3")
    ran = pfl("replay", "fedavg", "-o", "again")
    assert ran.code == 3
    assert "this pfl does not accept its command line" in ran.err
    assert "--gone" in ran.err
    change_manifest(mine / "fedavg", command="pfl gone ./p -o ./fedavg")
    assert "this pfl has no command gone" in pfl("replay", "fedavg", "-o", "again").err


def test_inputs_that_were_moved_together_are_found(mine):
    train_global("p", "deeper/b", settings=TRAINING)
    personalize("fedavg", "deeper/b", "deeper/run")
    (mine / "deeper" / "b").rename("deeper/elsewhere")
    done = replay("deeper/run", "again")
    assert [str(item.path) for item in done.artifacts] == ["again/p", "again/deeper/elsewhere", "again/deeper/run"]
    assert done.agrees
    assert {item.verdict for item in done.artifacts} == {"same"}


def test_what_an_earlier_replay_made_is_kept(mine):
    replay("p", "again")
    before = manifests.read(mine / "again" / "p").made
    assert replay("fedavg", "again").agrees
    assert manifests.read(mine / "again" / "p").made == before


@pytest.mark.parametrize(
    ("before", "after", "distance"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), 0.0),
        (np.array([np.inf, 2.0]), np.array([np.inf, 2.25]), 0.25),
        (np.array([np.nan]), np.array([1.0]), math.inf),
        (np.array([1, 2]), np.array([1, 2, 3]), math.inf),
        ("a", "a", 0.0),
        ("a", "b", math.inf),
        (np.array([2, 5], dtype=np.uint8), np.array([5, 2], dtype=np.uint8), 3.0),
        (1.0, None, math.inf),
    ],
)
def test_largest_difference_of_two_values(before, after, distance):
    assert agreement._difference(before, after) == distance


@pytest.mark.parametrize(
    ("difference", "digits"), [(0.0, None), (3e-6, 5), (1e-4, 4), (0.2, 0), (7.0, 0), (math.inf, 0)]
)
def test_digits_that_agree(difference, digits):
    assert agreement.Agreement(difference).digits == digits


def test_help_loads_neither_torch_nor_the_replay():
    code = "import sys\nfrom pflcli.__main__ import main\ntry:\n    main(['replay', '--help'])\nexcept SystemExit:\n"
    code += "    assert not {'torch', 'numpy', 'pflcli.plugins.replay.replay'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == 0
