"""DP-FedAvg: the influence of one client, the noise that hides it, and the methods that support it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

import worlds
from pflcli.core import methods, parameters, registry, rng
from pflcli.core.errors import ComputationError, UnsuitedError
from pflcli.core.federation.attendance import RoundNotes
from pflcli.core.federation.private_mean import PrivateMean
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.simulation import loop

SENDING = [name for name in registry.names("methods") if methods.load(name).KIND in ("server", "peer")]
COVERED = [name for name in SENDING if not methods.load(name).SENDS_MORE]
PARTICIPANTS = len(worlds.ABLE)


def make_private_run(method, *, noise=0.0, clip=0.1, adapts=False, rate=1.0, **settings):
    """A run of a method whose mean is private."""
    run = worlds.run(method, **settings)
    run.privacy = PrivateMean(noise, clip, adapts, rate, PARTICIPANTS, run.rng)
    return run


def play_rounds(method, run, rounds=1, state=None, first=0):
    """The state of a run after some rounds, and their rows."""
    definition, rows = methods.load(method), []
    state = loop.set_up(run, method, definition).state if state is None else state
    for t in range(first, first + rounds):
        state, row = loop.play_round(run, method, definition, state, t)
        rows.append(row)
    return state, rows


def flatten_shared_state(state):
    """All that the server keeps for all clients, as one vector; what it keeps for each client is left out."""
    flat = [torch.zeros(0, dtype=torch.float64)]
    for value in state.values():
        if isinstance(value, dict):
            flat.append(flatten_shared_state(value))
        elif not isinstance(value, ModelTable) and value.is_floating_point() and len(value) != len(worlds.SIZES):
            flat.append(value.double().flatten())
    return torch.cat(flat)


@pytest.mark.parametrize("method", COVERED)
def test_absence_of_one_client_moves_the_server_state_by_at_most_the_clip(method):
    """This is the sensitivity: whatever a client sends, it counts once, and nothing else depends on who takes part."""
    clip, moved = 0.1, []
    everybody = flatten_shared_state(play_rounds(method, make_private_run(method, clip=clip))[0])
    for absent in worlds.ABLE:
        run = make_private_run(method, clip=clip)
        run.privacy.sample = lambda participants, t, absent=absent: np.setdiff1d(participants, [absent])
        moved.append(float(torch.linalg.vector_norm(flatten_shared_state(play_rounds(method, run)[0]) - everybody)))
    # The server of FedDyn moves further by h / alpha, which it computes from the private mean alone.
    further = math.hypot(1 + 0.5, 0.5 * 0.1) if method == "feddyn" else 1.0
    assert 0 < max(moved) <= further * clip / PARTICIPANTS * (1 + 1e-3)


@pytest.mark.parametrize("method", COVERED)
def test_round_without_clients_adds_noise_of_the_stated_deviation(method):
    run = make_private_run(method, noise=2.0, clip=0.3, rate=0.5)
    run.privacy.sample = lambda participants, t: participants[:0]
    before = flatten_shared_state(loop.set_up(run, method, methods.load(method)).state)
    state, (row,) = play_rounds(method, run)
    noise = flatten_shared_state(state) - before
    assert row["clients"] == row["uploads"] == 0
    changed = noise[noise != 0]
    assert len(changed) > 10
    if method not in ("scaffold", "feddyn"):  # whose control variates, or h, move by a share of the mean
        assert stats.kstest(changed / (2.0 * 0.3 / (0.5 * PARTICIPANTS)), "norm").pvalue > 1e-3


@pytest.mark.parametrize("method", sorted(set(SENDING) - set(COVERED)))
def test_private_run_refuses_a_method_that_sends_more_than_its_updates(method):
    run = make_private_run(method, noise=1.0, rounds=2)
    with pytest.raises((UnsuitedError, ComputationError)):
        play_rounds(method, run, rounds=2)


def make_equal_clients():
    """Six clients with four training samples each."""
    data = worlds.federation()
    return replace(data, offsets=np.cumsum([0, *[4, 2, 3] * 6]))


def test_private_mean_without_clip_and_noise_is_identical_to_fedavg():
    plain = worlds.run("fedavg", data=make_equal_clients(), participation=1.0)
    run = worlds.run("fedavg", data=make_equal_clients(), participation=1.0)
    run.privacy = PrivateMean(0.0, math.inf, False, 1.0, 6, run.rng)
    assert worlds.same(play_rounds("fedavg", plain, 3)[0], play_rounds("fedavg", run, 3)[0])


def test_private_mean_weights_clients_equally_over_a_fixed_denominator():
    run, start = make_private_run("fedavg", clip=1.0, rate=0.5), {"w": torch.zeros(2), "b": torch.zeros(1)}
    run.privacy.begin_round(0)
    mean = run.averaging(start)
    mean.add(
        {"w": torch.tensor([[3.0, 0.0], [0.1, 0.0]]), "b": torch.tensor([[4.0], [0.0]])},
        np.asarray([9.0, 1.0]),
        np.arange(2),
    )
    mean.add(
        {"w": torch.tensor([[7.0, 0.0]]), "b": torch.tensor([[7.0]])}, np.asarray([0.0]), np.arange(1)
    )  # weighs nothing
    mean.add(
        {"w": torch.tensor([[math.nan, 0.0]]), "b": torch.tensor([[7.0]])}, np.asarray([1.0]), np.arange(1)
    )  # nor does this
    expected = 0.5 * PARTICIPANTS
    torch.testing.assert_close(mean.value()["w"], torch.tensor([(0.6 + 0.1) / expected, 0.0]))
    torch.testing.assert_close(mean.value()["b"], torch.tensor([0.8 / expected]))
    assert run.privacy.end_round() == {"clip": 1.0, "uploads": 2, "clipped": 1}


def test_private_mean_samples_each_client_independently():
    run = make_private_run("fedavg", rate=0.3)
    many = np.arange(4000)
    counts = [len(run.privacy.sample(many, t)) for t in range(200)]
    assert np.mean(counts) == pytest.approx(1200, abs=3 * math.sqrt(840 / 200))
    assert np.var(counts) == pytest.approx(840, rel=0.35)  # that of a binomial; of a cohort of fixed size it is 0
    picked = set(run.privacy.sample(many, 7).tolist())
    assert picked & set(range(3999)) == set(run.privacy.sample(many[:-1], 7).tolist())  # a client less changes no other


def test_adaptive_clip_approaches_the_median_norm():
    run = make_private_run("fedavg", adapts=True, clip=0.1, rounds=200)
    norms = np.asarray([0.5, 1.0, 2.0, 3.0, 4.0])
    for t in range(200):
        run.privacy.begin_round(t)
        mean = run.averaging({"w": torch.zeros(1)})
        mean.add({"w": torch.from_numpy(norms[:, None]).float()}, np.ones(5), np.arange(5))
        mean.value()
        run.privacy.end_round()
    assert 1.9 < run.privacy.clip < 3.1


def test_noise_of_count_and_sum_composes_to_the_multiplier():
    for noise, rate in ((0.5, 0.5), (3.0, 1.0), (0.01, 1.0)):
        privacy = make_private_run("fedavg", noise=noise, adapts=True, rate=rate).privacy
        assert (2 * privacy.count_noise) ** -2 + privacy.sum_noise**-2 == pytest.approx(noise**-2)
        assert privacy.sum_noise <= 1.2 * noise


@pytest.mark.parametrize("clients", [20, 400])
def test_noise_on_the_count_and_on_the_mean_has_the_stated_standard_deviation(clients):
    """With 400 clients a twentieth of the cohort is above the multiplier of 2; with 20 it is below."""
    noise, count_noise = 2.0, max(2.0, 0.05 * clients)
    sum_noise = (noise**-2 - (2 * count_noise) ** -2) ** -0.5
    private_mean, counts, released = PrivateMean(noise, 1.0, True, 1.0, clients, partial(rng.generator, 0)), [], []
    for t in range(2000):  # in each round half of all updates are short, so that the clip changes by the noise alone
        private_mean.resume(t, {"clip": 0.3, "uploads": clients, "clipped": clients // 2})
        counts.append(-math.log(private_mean.clip / 0.3) / 0.2 * clients)
        private_mean.clip = 0.3
        private_mean.begin_round(t)
        released.append(float(private_mean.begin({"w": torch.zeros(1)}).value()["w"]) * clients / 0.3)
    for values, deviation in ((counts, count_noise), (released, sum_noise)):
        assert stats.kstest(np.asarray(values) / deviation, "norm").pvalue > 1e-3


def test_clipping_includes_a_scalar_parameter():
    run, start = make_private_run("fedavg", clip=1.0), {"w": torch.zeros(2), "scale": torch.zeros(())}
    run.privacy.begin_round(0)
    mean = run.averaging(start)
    trained = {"w": torch.tensor([[3.0, 0.0]]), "scale": torch.tensor([4.0])}
    mean.add(trained, np.ones(1), np.arange(1))
    torch.testing.assert_close(mean.value()["w"], torch.tensor([0.6, 0.0]) / PARTICIPANTS)
    torch.testing.assert_close(mean.value()["scale"], torch.tensor(0.8 / PARTICIPANTS))


def test_resumed_private_mean_has_the_same_noise_and_clip():
    uninterrupted = make_private_run("fedavg", noise=0.5, adapts=True, rate=0.6)
    state, rows = play_rounds("fedavg", uninterrupted, 4)
    begun = make_private_run("fedavg", noise=0.5, adapts=True, rate=0.6)
    half, first = play_rounds("fedavg", begun, 2)
    resumed = make_private_run("fedavg", noise=0.5, adapts=True, rate=0.6)
    resumed.privacy.resume(1, first[-1])
    again, last = play_rounds("fedavg", resumed, 2, half, first=2)
    assert worlds.same(state, again)
    assert [row["clip"] for row in rows] == [row["clip"] for row in (*first, *last)]
    assert uninterrupted.privacy.clip == resumed.privacy.clip


def test_diverged_and_dropped_clients_only_reduce_the_private_sum():
    run = make_private_run("fedavg", noise=0.1, rate=1.0, lr=1e30)
    state, (row,) = play_rounds("fedavg", run)
    assert (row["uploads"], len(row["diverged"])) == (0, PARTICIPANTS)
    assert parameters.finite(parameters.stack([state["global"]])).all()
    run = make_private_run("fedavg", noise=0.1, rate=1.0, dropout=0.99)
    assert play_rounds("fedavg", run)[1][0]["uploads"] < PARTICIPANTS


def test_noise_differs_between_rounds_tensors_and_seeds():
    """Noise that two rounds, tensors or runs shared would cancel in their difference."""

    def draw(seed, t, name):
        mean = PrivateMean(1.0, 1.0, False, 1.0, PARTICIPANTS, partial(rng.generator, seed))
        mean.begin_round(t)
        return mean.begin({name: torch.zeros(2000)}).noise(name, torch.zeros(2000)).numpy()

    first = draw(1, 0, "w")
    np.testing.assert_array_equal(first, draw(1, 0, "w"))
    for other in (draw(1, 1, "w"), draw(1, 0, "b"), draw(2, 0, "w")):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1


def test_private_mean_refuses_integer_parameters_and_a_round_without_a_mean():
    run = make_private_run("fedavg", noise=1.0)
    run.notes = RoundNotes()
    run.privacy.begin_round(0)
    with pytest.raises(UnsuitedError, match="batch normalization"):
        run.averaging({"w": torch.zeros(2), "count": torch.zeros(1, dtype=torch.int64)})
    with pytest.raises(ComputationError, match="without a mean"):
        run.privacy.end_round()
