"""Poisoned clients: who is poisoned, what they send, and accuracy over the honest clients."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
import torch

import worlds
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.core import methods, registry
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.core.federation.attack import Attack
from pflcli.core.federation.run import RunInputs
from pflcli.data.preparation.poison import Poison
from pflcli.evaluation import lineage


@pytest.fixture(scope="module")
def poisoned_partitions(tmp_path_factory):
    """Partitions of ten writers, by what poisons 30 % of them; "" is without."""
    folder = tmp_path_factory.mktemp("poison")
    kinds = {"": "", "none": "0.3:none", "flip": "0.3:flip", "scale": "0.3:scale", "random": "0.3:random:2"}
    return {
        kind: partition("writers", folder / (kind or "p"), clients=10, poison=text).path for kind, text in kinds.items()
    }


def test_poisoned_clients_have_only_training_samples_and_flipped_labels(poisoned_partitions):
    honest, flipped = (partitions.read(open_artifact(poisoned_partitions[kind])) for kind in ("", "flip"))
    poisoned = flipped.poisoned
    assert poisoned.sum() == 3
    assert (flipped.sizes[~poisoned] == honest.sizes[~poisoned]).all()
    assert (flipped.sizes[poisoned, 0] == honest.sizes[poisoned, 0]).all()
    assert not flipped.sizes[poisoned, 1:].any()
    for client in range(10):
        rows, before = (slice(*part.offsets[3 * client :][:2]) for part in (flipped, honest))
        assert (flipped.x[rows] == honest.x[before]).all()
        expected = honest.classes - 1 - honest.y[before] if poisoned[client] else honest.y[before]
        assert (flipped.y[rows] == expected).all()


def test_same_clients_are_poisoned_for_every_attack(poisoned_partitions):
    marks = {kind: partitions.read(open_artifact(path)) for kind, path in poisoned_partitions.items() if kind}
    assert len({tuple(part.poisoned) for part in marks.values()}) == 1
    poisoned = marks["none"].poisoned
    assert marks["none"].update_factor is None
    assert marks["flip"].update_factor is None
    assert marks["scale"].update_factor.tolist() == np.where(poisoned, -10, 1).tolist()
    assert not marks["scale"].update_noise.any()
    assert marks["random"].update_factor.tolist() == np.where(poisoned, 0, 1).tolist()
    assert marks["random"].update_noise.tolist() == np.where(poisoned, 2, 0).tolist()
    artifact = open_artifact(poisoned_partitions["scale"])
    assert artifact.manifest.summary["poisoned"] == 3
    assert artifact.manifest.request["poison"] == "0.3:scale:-10"
    table = list(csv.DictReader(io.StringIO((artifact.path / "clients.csv").read_text())))
    assert [row["poisoned"] for row in table] == [str(int(flag)) for flag in poisoned]


def test_attack_changes_updates_by_its_formula():
    start = {"w": torch.zeros(3, 2000), "count": torch.zeros(3, dtype=torch.int64)}
    trained = {"w": torch.full((3, 2000), 0.5), "count": torch.tensor([1, 2, 3])}
    attack = Attack(np.asarray([1.0, 9, -4, 0]), np.asarray([0.0, 0, 0, 3]), 7)
    received = attack.apply(trained, start, np.asarray([0, 2, 3]), 5)
    assert received["w"][0].tolist() == trained["w"][0].tolist()
    assert set(received["w"][1].tolist()) == {-2.0}
    assert received["w"][2].std() == pytest.approx(1.5, rel=0.05)
    assert abs(received["w"][2].mean()) < 0.15
    assert received["count"].tolist() == [1, 2, 3]
    assert (trained["w"] == 0.5).all()
    again, later = (attack.apply(trained, start, np.asarray([0, 2, 3]), t)["w"][2] for t in (5, 6))
    assert torch.equal(again, received["w"][2])
    assert not torch.equal(later, again)


def test_median_aggregator_withstands_an_attack_on_the_mean(poisoned_partitions, tmp_path):
    settings = {"model": "mlp", "rounds": 3, "participation": 1.0, "steps": 5}
    accuracy = {}
    for kind, rule in (("scale", "mean"), ("scale", "median")):
        out = personalize(
            "fedavg", poisoned_partitions[kind], tmp_path / f"{kind}-{rule}", settings=settings | {"aggregator": rule}
        )
        summary = out.summary
        with (out.path / "rounds.csv").open() as file:
            rows = list(csv.DictReader(file))
        accuracy[kind, rule] = float(rows[-1]["validation_accuracy"])
        assert ("left_out" in summary, any(float(row["left_out"]) for row in rows)) == (rule != "mean",) * 2
    poisoned = partitions.read(open_artifact(poisoned_partitions["scale"])).poisoned
    shares = [
        summary["left_out"][f"{name}"] for name in partitions.read(open_artifact(poisoned_partitions["scale"])).names
    ]
    assert np.mean(np.asarray(shares)[poisoned]) > np.mean(np.asarray(shares)[~poisoned])
    assert accuracy["scale", "median"] > accuracy["scale", "mean"] + 0.1


@pytest.mark.parametrize(
    "text", ["0.3", "x:flip", "0.3:flop", "0.3:flip:2", "0:flip", "1:flip", "0.3:scale:x", "nan:flip"]
)
def test_poison_parse_refuses_invalid_values(text):
    with pytest.raises(UsageError, match="--poison") as error:
        Poison.parse(text)
    assert "0.2:flip" in error.value.fix[0]


def test_poison_of_no_client_is_refused(tmp_path):
    with pytest.raises(UsageError, match="0 of 10"):
        partition("writers", tmp_path / "p", clients=10, poison="0.01:flip")


def test_lineage_command_contains_the_poison_option(poisoned_partitions):
    (line,) = lineage.list_commands(lineage.trace(open_artifact(poisoned_partitions["scale"])))
    assert "--poison 0.3:scale" in line


SEND_MORE = ["alone-pooled", "fedamp", "fedattn", "fedattn-extended", "fedham", "fedhealth", "pooled"]
PEERS = [name for name in registry.names("methods") if methods.load(name).KIND == "peer"]


@pytest.mark.parametrize("method", [*SEND_MORE, *PEERS])
def test_attacks_on_updates_are_refused_for_methods_that_do_not_average(method):
    run = worlds.run(method, rounds=2, inputs=RunInputs(attack=Attack(np.ones(7), np.zeros(7), 0)))
    with pytest.raises(UnsuitedError, match="attacks on updates do not apply"):
        worlds.play(method, run)


def test_poison_option_is_reported_and_refused_by_unsuited_methods(poisoned_partitions, pfl, tmp_path):
    ran = pfl("partition", "writers", "--clients", "10", "--poison", "0.3:flip", "-o", tmp_path / "p")
    assert ran.code == 0, ran.err
    assert "poisoned: 3 clients" in ran.err
    with pytest.raises(InputError, match="attacks on updates"):
        personalize("fedham", poisoned_partitions["random"], tmp_path / "h", settings={"model": "mlp", "rounds": 1})
