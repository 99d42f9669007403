"""``--refit`` trains on validation samples too: requirements, stored predictions and refused combinations."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pflcli.artifacts.kinds import datastore, embeddings, predictions
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.compare import compare
from pflcli.commands.evaluate import evaluate
from pflcli.commands.extract import extract
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core.errors import InputError, UsageError
from pflcli.plugins.knn_tools.sweep import sweep

FEW = {"model": "mlp", "rounds": 2, "participation": 0.5}
REFIT = {**FEW, "refit": True}


@pytest.fixture(scope="module")
def refit_chain(small, tmp_path_factory):
    """The chain under a backbone that has learned from validation samples."""
    root = tmp_path_factory.mktemp("refit")
    train_global(small.p, root / "b", settings=REFIT)
    extract(root / "b", root / "e")
    build_datastore(root / "e", root / "d")
    return SimpleNamespace(root=root, b=root / "b", e=root / "e", d=root / "d")


def read_sample_ids(split, artifact):
    data = partitions.read(open_artifact(artifact))
    blocks = [data.sample[a:b] for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
    return set(np.concatenate(blocks[("train", "validation", "test").index(split) :: 3]))


def test_refit_datastore_contains_training_and_validation_samples(small, refit_chain):
    train, validation = read_sample_ids("train", small.p), read_sample_ids("validation", small.p)
    assert set(datastore.read(open_artifact(small.d)).sample) == train
    assert set(datastore.read(open_artifact(refit_chain.d)).sample) == train | validation
    assert not len(embeddings.read(open_artifact(refit_chain.e))["validation"].y)


def test_refit_uses_the_choices_of_an_earlier_run_and_adds_its_costs(small, refit_chain, tmp_path):
    personalize("knn-per", refit_chain.d, tmp_path / "k", choices=small.knn)
    earlier, now = (predictions.read_tuned(open_artifact(path)) for path in (small.knn, tmp_path / "k"))
    np.testing.assert_array_equal(earlier["lambda"], now["lambda"])
    with pytest.raises(InputError, match="no predictions on validation"):
        evaluate([tmp_path / "k"], tmp_path / "e", split="validation")
    evaluate([tmp_path / "k"], tmp_path / "e")
    # Choosing has cost an earlier backbone, which counts.
    own, first = (open_artifact(path).manifest for path in (refit_chain.b, small.b))
    sent_bytes = open_artifact(tmp_path / "k").manifest.summary["bytes_up"]
    assert sent_bytes == own.summary["bytes_up"] + first.summary["bytes_up"]
    chain = [
        open_artifact(path).manifest.made["seconds"]
        for path in (refit_chain.b, refit_chain.e, refit_chain.d, small.knn)
    ]
    earlier_inputs = open_artifact(small.knn).manifest.made["seconds_inputs"]
    spent = open_artifact(tmp_path / "k").manifest.made["seconds_inputs"]
    assert spent == pytest.approx(sum(chain) + earlier_inputs, abs=0.01)


def test_personalize_refuses_missing_or_incompatible_refit_choices(small, refit_chain, tmp_path):
    def run(*args, **kwargs):
        personalize(*args, tmp_path / "k", **kwargs)

    with pytest.raises(UsageError, match="knn-per chooses lambda on validation samples"):
        run("knn-per", refit_chain.d)
    with pytest.raises(UsageError, match="chooses itself without --refit"):
        run("knn-per", small.d, choices=small.knn)
    with pytest.raises(UsageError, match="has nothing to choose"):
        run("knn-per", refit_chain.d, choices=small.knn, options={"weight": 0.5})
    with pytest.raises(UsageError, match="trained without --refit"):
        run("knn-per", small.d, settings={"refit": True}, choices=small.knn)
    with pytest.raises(InputError, match="another options"):
        run("knn-per", refit_chain.d, choices=small.knn, options={"k": 3})
    with pytest.raises(InputError, match="another method"):
        run("knn-per", refit_chain.d, choices=small.fedavg)
    run("knn-per", refit_chain.d, options={"weight": 0.5})
    with pytest.raises(InputError, match="chose nothing"):
        personalize("knn-per", refit_chain.d, tmp_path / "k2", choices=tmp_path / "k")
    with pytest.raises(InputError, match="no validation samples are left"):
        sweep(refit_chain.e, tmp_path / "s")


def test_choices_made_on_another_partition_are_refused(small, refit_chain, tmp_path):
    partition("writers", tmp_path / "p", clients=5, seed=0)
    train_global(tmp_path / "p", tmp_path / "b", settings=FEW)
    extract(tmp_path / "b", tmp_path / "e")
    build_datastore(tmp_path / "e", tmp_path / "d")
    personalize("knn-per", tmp_path / "d", tmp_path / "k")
    with pytest.raises(InputError, match="made on the partition"):
        personalize("knn-per", refit_chain.d, tmp_path / "k2", choices=tmp_path / "k")


def test_compare_refit_makes_choosing_runs_only_for_methods_that_choose(small, tmp_path):
    methods = ["fedavg", "local", "knn-per", "fedham"]
    plain = compare([small.p], tmp_path / "plain", methods=methods, settings=FEW, references=False)
    refitted = compare([small.p], tmp_path / "c", methods=methods, settings=REFIT, references=False)
    assert (plain.summary["methods"], refitted.summary["methods"]) == (4, 4)
    at = tmp_path / "c" / "seed-0"
    assert sorted(path.name for path in (at / "choosing").iterdir()) == [
        "backbone",
        "datastore",
        "embeddings",
        "fedham",
        "knn-per",
    ]
    for method in ("knn-per", "fedham"):
        chose = predictions.read_tuned(open_artifact(tmp_path / "plain" / "seed-0" / method))
        now = predictions.read_tuned(open_artifact(at / method))
        assert chose.keys() == now.keys() != set()
        if method == "knn-per":
            np.testing.assert_array_equal(chose["lambda"], now["lambda"])
    # A second time, everything is there; asked for by hand, the same request is up to date too.
    assert (
        compare([small.p], tmp_path / "c", methods=methods, settings=REFIT, references=False).decision == "up to date"
    )
    again = personalize("knn-per", at / "datastore", at / "knn-per", choices=at / "choosing" / "knn-per")
    assert again.decision == "up to date"
