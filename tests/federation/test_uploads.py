"""Upload steps: what the server receives, its size, and the methods that support it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import worlds
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.personalize import personalize
from pflcli.core import methods, registry, rng
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.core.federation import uploads

SERVER = [name for name in registry.names("methods") if methods.load(name).KIND == "server"]
SEND_MORE = {"alone-pooled", "fedamp", "fedattn", "fedattn-extended", "fedhealth", "fedpac", "knn-peers", "pooled"}
"""Methods that send the server what it does not average: models to mix, biases, class means, samples."""
AVERAGING = [name for name in SERVER if name not in SEND_MORE]


def play_two_rounds(method, *steps):
    """A run with upload steps, after two rounds, and its state."""
    run = worlds.run(method, rounds=2)
    run.uploads = tuple(uploads.load(step) for step in steps)
    return run, worlds.play(method, run)


def test_clip_shortens_only_updates_above_the_norm():
    start = {"w": torch.tensor([[1.0, 1.0], [1.0, 1.0]]), "b": torch.tensor([[0.5], [0.5]])}
    params = {"w": torch.tensor([[4.0, 1.0], [1.3, 1.0]]), "b": torch.tensor([[4.5], [0.1]])}  # updates of norm 5, 0.5
    received = uploads.load("clip:1.0").apply(params, start)
    torch.testing.assert_close(received["w"][0], torch.tensor([1.6, 1.0]))
    torch.testing.assert_close(received["b"][0], torch.tensor([1.3]))
    assert all(torch.equal(received[name][1], params[name][1]) for name in params)


def test_int8_rounds_to_the_nearest_of_255_levels():
    start = {"w": torch.ones(2, 3), "count": torch.ones(2, dtype=torch.int64)}
    update = torch.tensor([[-1.27, 0.004, 0.016], [0.0, 0.0, 0.0]])
    received = uploads.load("int8").apply({"w": 1 + update, "count": torch.tensor([3, 4])}, start)
    torch.testing.assert_close(received["w"] - 1, torch.tensor([[-1.27, 0.0, 0.02], [0.0, 0.0, 0.0]]))
    assert received["count"].tolist() == [3, 4]
    assert uploads.load("int8").size({"w": torch.ones(3), "count": torch.tensor(1)}, 99) == 3 + 4 + 8


@pytest.mark.parametrize("method", AVERAGING)
def test_clip_above_all_norms_changes_no_bit(method):
    plain, clipped = play_two_rounds(method), play_two_rounds(method, "clip:1e9")
    assert worlds.same(plain[1], clipped[1])
    assert plain[0].traffic == clipped[0].traffic


@pytest.mark.parametrize("method", AVERAGING)
def test_int8_costs_one_byte_per_number_and_one_scale_per_tensor(method):
    plain, coded = play_two_rounds(method), play_two_rounds(method, "int8")
    assert plain[0].traffic["down"] == coded[0].traffic["down"]
    scales = coded[0].traffic["up"] - plain[0].traffic["up"] / 4
    assert scales > 0
    assert scales % 4 == 0
    if plain[0].traffic["up"] > 10_000:  # of a few numbers the scales are most
        assert coded[0].traffic["up"] < 0.27 * plain[0].traffic["up"]
    assert not worlds.same(plain[1], coded[1])


def test_traffic_of_fedavg_counts_the_encoded_uploads():
    run, state = play_two_rounds("fedavg", "clip:0.01", "int8")
    one = sum(value.numel() + 4 for value in state["global"].values())
    assert run.traffic["up"] == 2 * one * len(run.cohort(0))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "per-fedavg"])
def test_global_model_moves_at_most_by_the_clip_norm(method):
    run = worlds.run(method, rounds=1)
    run.uploads = (uploads.load("clip:0.01"),)
    before = run.initial_model()
    after = worlds.play(method, run)["global"]
    moved = math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in after))
    assert 0.005 < moved < 0.01 + 1e-6


@pytest.mark.parametrize("method", sorted(SEND_MORE))
def test_upload_steps_refuse_a_method_that_sends_more_than_averages(method):
    with pytest.raises(UnsuitedError, match="--upload int8 does not apply"):
        play_two_rounds(method, "int8")


@pytest.mark.parametrize(
    ("text", "words", "fix"),
    [
        ("clipp:1", "unknown upload step 'clipp'", "did you mean 'clip'?"),
        ("int8:4", "int8 has no option", "--upload int8"),
        ("clip:0", "norm=0 does not fit", ""),
        ("clip:", "does not fit", ""),
    ],
)
def test_load_refuses_an_invalid_upload_step(text, words, fix):
    with pytest.raises(UsageError, match=words) as error:
        uploads.load(text)
    assert fix in "".join(error.value.fix)


def test_personalize_upload_option_reduces_traffic_and_is_recorded(pfl, small, tmp_path):
    line = ["personalize", "fedavg", small.p, "--model", "mlp", "--rounds", "1", "-q"]
    assert pfl(*line, "--upload", "clip:1", "--upload", "int8", "-o", tmp_path / "coded").code == 0
    assert pfl(*line, "-o", tmp_path / "plain").code == 0
    coded, plain = (open_artifact(tmp_path / name).manifest for name in ("coded", "plain"))
    assert coded.request["settings"]["upload"] == ["clip:1.0", "int8"]
    assert {"uploads/clip", "uploads/int8"} <= set(coded.code)
    assert plain.request["settings"]["upload"] == []
    assert coded.summary["bytes_up"] < 0.3 * plain.summary["bytes_up"]
    wrong = pfl(*line, "--upload", "int9", "-o", tmp_path / "wrong")
    assert (wrong.code, "did you mean 'int8'?" in wrong.err) == (2, True)
    with pytest.raises(InputError, match="does not apply"):
        personalize("fedamp", small.p, tmp_path / "amp", settings={"model": "mlp", "rounds": 1, "upload": ["int8"]})


@pytest.mark.parametrize("step", ["clip:1.0", "int8", "noise:0.1"])
def test_upload_step_accepts_a_scalar_parameter(step):
    start = {"w": torch.zeros(2, 3), "scale": torch.zeros(2)}
    trained = {name: value + 1 for name, value in start.items()}
    received = uploads.load(step).apply(trained, start, np.random.default_rng)
    assert {name: value.shape for name, value in received.items()} == {"w": (2, 3), "scale": (2,)}
    if step == "clip:1.0":
        torch.testing.assert_close(received["scale"], torch.full((2,), 0.5))


STEP = """
from dataclasses import dataclass
{declared}

@dataclass(frozen=True)
class Config:
    pass


def apply(params, downloaded, cfg, draw):
    return {{name: value + draw(0).random() for name, value in params.items()}}
"""


@pytest.mark.parametrize(
    ("declared", "depends_on"),
    [("RANDOM = True", "secret"), ('RANDOM = "seed"', "seed"), ("", None), ("RANDOM = 2", None)],
)
def test_upload_step_draws_from_the_secret_unless_it_declares_the_seed(declared, depends_on, tmp_path):
    file = tmp_path / f"step_{len(declared)}.py"
    file.write_text(STEP.format(declared=declared))
    name = registry.use("uploads", str(file))
    clients, start = np.asarray([0]), {"w": torch.zeros(1)}
    if depends_on is None:
        with pytest.raises(InputError, match=r"RANDOM|declare"):
            draw_once(name, clients, start)
        return
    first = draw_once(name, clients, start)
    assert (draw_once(name, clients, start, secret=1) != first) == (depends_on == "secret")
    assert (draw_once(name, clients, start, seed=1) != first) == (depends_on == "seed")


def draw_once(name, clients, start, **case):
    run = worlds.run("fedavg", **case)
    run.uploads = (uploads.load(name),)
    return float(run.upload({"w": torch.zeros(1, 1)}, start, clients)["w"])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_upload_steps_draw_from_their_own_sources(order, tmp_path):
    (tmp_path / "step_by_seed.py").write_text(STEP.format(declared='RANDOM = "seed"'))
    steps = uploads.load(registry.use("uploads", str(tmp_path / "step_by_seed.py"))), uploads.load("noise:0.5")
    run, start = worlds.run("fedavg"), {"w": torch.zeros(1)}
    run.uploads = [steps[place] for place in order]
    drawn = {"seed": [], "secret": []}
    run.rng = lambda *key: drawn["seed"].append(key) or rng.generator(0, *key)
    run.private_rng = lambda *key: drawn["secret"].append(key) or rng.generator(1, *key)
    run.upload({"w": torch.zeros(1, 1)}, start, np.asarray([0]))
    assert {source: {key[1] for key in keys} for source, keys in drawn.items()} == {
        "seed": {order.index(0)},
        "secret": {order.index(1)},
    }


def test_noise_step_has_the_given_deviation_and_is_independent_per_upload():
    start = {"w": torch.zeros(2, 20_000), "count": torch.zeros(2, dtype=torch.int64)}
    generators = [np.random.default_rng(seed) for seed in (0, 1)]
    received = uploads.load("noise:0.3").apply(start, start, generators.__getitem__)
    assert received["w"].std(dim=1).tolist() == pytest.approx([0.3, 0.3], rel=0.02)
    assert abs(float(torch.corrcoef(received["w"])[0, 1])) < 0.03
    assert torch.equal(received["count"], start["count"])


@pytest.mark.parametrize("method", ["fedavg", "fedham", "scaffold"])
def test_noise_step_repeats_with_the_seed(method):
    plain, noisy, again = (
        play_two_rounds(method),
        play_two_rounds(method, "noise:0.1"),
        play_two_rounds(method, "noise:0.1"),
    )
    assert worlds.same(noisy[1], again[1])
    assert not worlds.same(noisy[1], plain[1])
    assert worlds.same(play_two_rounds(method, "noise:0")[1], plain[1])
    assert plain[0].traffic == noisy[0].traffic


def test_noise_differs_between_two_uploads_of_a_client_in_a_round():
    run, _ = play_two_rounds("fedavg", "noise:1.0")
    clients, start = np.asarray([0, 2]), {"w": torch.zeros(4)}
    first, second = (run.upload({"w": torch.zeros(2, 4)}, start, clients)["w"] for _ in range(2))
    assert len({tuple(row) for row in torch.cat([first, second]).tolist()}) == 4
