"""Upload steps: what the server receives, what it costs, and which methods they cover."""

from __future__ import annotations

import math

import pytest
import torch

import worlds
from pflcli import methods, registry, uploads
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.personalize import personalize
from pflcli.errors import InputError, UnsuitedError, UsageError

SERVER = [name for name in registry.names("methods") if methods.load(name).KIND == "server"]
SEND_MORE = {"fedamp", "fedattn", "fedham", "fedhealth"}
"""Methods that send the server what it does not average: models to mix, biases, uploads for all, samples."""
AVERAGING = [name for name in SERVER if name not in SEND_MORE]


def played(method, *steps):
    """A run with upload steps, after two rounds, and its state."""
    run = worlds.run(method, rounds=2)
    run.uploads = tuple(uploads.load(step) for step in steps)
    return run, worlds.play(method, run)


def test_a_long_update_is_clipped_and_a_short_one_stays():
    start = {"w": torch.tensor([[1.0, 1.0], [1.0, 1.0]]), "b": torch.tensor([[0.5], [0.5]])}
    params = {"w": torch.tensor([[4.0, 1.0], [1.3, 1.0]]), "b": torch.tensor([[4.5], [0.1]])}  # updates of norm 5, 0.5
    received = uploads.load("clip:1.0").apply(params, start)
    torch.testing.assert_close(received["w"][0], torch.tensor([1.6, 1.0]))
    torch.testing.assert_close(received["b"][0], torch.tensor([1.3]))
    assert all(torch.equal(received[name][1], params[name][1]) for name in params)


def test_eight_bits_are_the_nearest_of_255_levels():
    start = {"w": torch.ones(2, 3), "count": torch.ones(2, dtype=torch.int64)}
    update = torch.tensor([[-1.27, 0.004, 0.016], [0.0, 0.0, 0.0]])
    received = uploads.load("int8").apply({"w": 1 + update, "count": torch.tensor([3, 4])}, start)
    torch.testing.assert_close(received["w"] - 1, torch.tensor([[-1.27, 0.0, 0.02], [0.0, 0.0, 0.0]]))
    assert received["count"].tolist() == [3, 4]
    assert uploads.load("int8").size({"w": torch.ones(3), "count": torch.tensor(1)}, 99) == 3 + 4 + 8


@pytest.mark.parametrize("method", AVERAGING)
def test_clipping_above_all_updates_changes_no_bit(method):
    plain, clipped = played(method), played(method, "clip:1e9")
    assert worlds.same(plain[1], clipped[1])
    assert plain[0].traffic == clipped[0].traffic


@pytest.mark.parametrize("method", AVERAGING)
def test_eight_bits_cost_a_byte_a_number_and_a_scale_a_tensor(method):
    plain, coded = played(method), played(method, "int8")
    assert plain[0].traffic["down"] == coded[0].traffic["down"]
    scales = coded[0].traffic["up"] - plain[0].traffic["up"] / 4
    assert scales > 0
    assert scales % 4 == 0
    if plain[0].traffic["up"] > 10_000:  # of a few numbers the scales are most
        assert coded[0].traffic["up"] < 0.27 * plain[0].traffic["up"]
    assert not worlds.same(plain[1], coded[1])


def test_the_bytes_of_fedavg_are_those_of_its_uploads():
    run, state = played("fedavg", "clip:0.01", "int8")
    one = sum(value.numel() + 4 for value in state["global"].values())
    assert run.traffic["up"] == 2 * one * len(run.cohort(0))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "per-fedavg"])
def test_the_mean_moves_no_further_than_a_clipped_update(method):
    run = worlds.run(method, rounds=1)
    run.uploads = (uploads.load("clip:0.01"),)
    before = run.initial_model()
    after = worlds.play(method, run)["global"]
    moved = math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in after))
    assert 0.005 < moved < 0.01 + 1e-6


@pytest.mark.parametrize("method", sorted(SEND_MORE))
def test_a_method_that_sends_more_than_averages_is_refused(method):
    with pytest.raises(UnsuitedError, match="--upload int8 does not cover"):
        played(method, "int8")


@pytest.mark.parametrize(
    ("text", "words", "fix"),
    [
        ("clipp:1", "unknown upload step 'clipp'", "did you mean 'clip'?"),
        ("int8:4", "int8 has no option", "--upload int8"),
        ("clip:0", "norm=0 does not fit", ""),
        ("clip:", "does not fit", ""),
    ],
)
def test_a_step_that_cannot_be_is_refused(text, words, fix):
    with pytest.raises(UsageError, match=words) as error:
        uploads.load(text)
    assert fix in "".join(error.value.fix)


def test_from_the_command_line(pfl, small, tmp_path):
    line = ["personalize", "fedavg", small.p, "--model", "mlp", "--rounds", "1", "-q"]
    assert pfl(*line, "--upload", "clip:1", "--upload", "int8", "-o", tmp_path / "coded").code == 0
    assert pfl(*line, "-o", tmp_path / "plain").code == 0
    coded, plain = (open_artifact(tmp_path / name).manifest for name in ("coded", "plain"))
    assert coded.request["settings"]["upload"] == ["clip:1.0", "int8"]
    assert {"uploads/clip", "uploads/int8"} <= set(coded.code)
    assert "upload" not in plain.request["settings"]
    assert coded.summary["bytes_up"] < 0.3 * plain.summary["bytes_up"]
    wrong = pfl(*line, "--upload", "int9", "-o", tmp_path / "wrong")
    assert (wrong.code, "did you mean 'int8'?" in wrong.err) == (2, True)
    with pytest.raises(InputError, match="does not cover"):
        personalize("fedham", small.p, tmp_path / "ham", settings={"model": "mlp", "rounds": 1, "upload": ["int8"]})
