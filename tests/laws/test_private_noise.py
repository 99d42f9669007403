"""Noise that protects clients: independent between any two runs that may both be released, repeated by a resume.

If two runs shared noise, their difference would have none, and composition of their guarantees would not hold.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional

import worlds
from pflcli.artifacts.kinds import backbone, predictions
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.new_client import new_client
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import models, registry
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.core.federation import uploads
from pflcli.core.federation.private_mean import PrivateMean, Release
from pflcli.core.settings import Settings
from pflcli.core.simulation import loop
from pflcli.workflow.prediction import stored_predictor
from pflcli.workflow.training import dp_secret

pytest.importorskip("dp_accounting")

METHODS = ("fedavg", "ditto", "fedem", "fedper", "scaffold")
PRIVATE = {"model": "mlp", "rounds": 2, "participation": 0.5, "dp_noise": 1.0, "dp_delta": 1e-3}
ONE = Execution(threads=1)


@pytest.fixture
def record_noise(monkeypatch):
    """Record the noise of each round and tensor, and the cohorts, in ``noise`` and ``cohorts``."""
    record = {"noise": [], "cohorts": []}
    draw, sample = Release.noise, PrivateMean.sample

    def noise(self, name, like):
        values = draw(self, name, like)
        if isinstance(values, torch.Tensor):
            record["noise"].append(values.numpy().ravel() / float(values.std()))
        return values

    def cohort(self, participants, t):
        chosen = sample(self, participants, t)
        record["cohorts"].append(chosen.tolist())
        return chosen

    monkeypatch.setattr(Release, "noise", noise)
    monkeypatch.setattr(PrivateMean, "sample", cohort)

    def of(act):
        record["noise"], record["cohorts"] = [], []
        act()
        return np.concatenate(record["noise"]), record["cohorts"]

    return of


PROTECTS, OTHER = "protects clients", "protects nobody"
PURPOSES = {
    ("core/knn/voting.py", "laplace"): PROTECTS,
    ("core/federation/private_mean.py", "normal"): PROTECTS,
    ("core/federation/uploads/noise.py", "standard_normal"): PROTECTS,
    ("core/federation/attack.py", "standard_normal"): OTHER,  # of poisoned clients
    ("plugins/audits/canary_training.py", "standard_normal"): OTHER,  # of canaries, whose models are not released
    ("plugins/audits/update_attack.py", "standard_normal"): OTHER,  # samples that an attacker makes up
    ("core/schemes/quantity.py", "normal"): OTHER,  # sizes of clients
    ("methods/parts/bias_attention.py", "normal"): OTHER,  # initial weights
    ("models/_classifiers.py", "randn"): OTHER,  # initial weights
    ("plugins/checks/templates/dataset.py", "normal"): OTHER,  # samples
    ("data/datasets/generated.py", "normal"): OTHER,  # samples
    ("workflow/admission/small_federation.py", "normal"): OTHER,  # samples
}
"""What the draws of continuous noise in the package are for, by file and function."""
NOISE = {"normal", "standard_normal", "laplace", "gumbel", "exponential", "logistic", "randn", "normal_", "randn_like"}


def test_every_call_that_draws_noise_is_listed_with_its_purpose():
    """A new draw must be listed; noise that protects clients comes from ``Run.private_rng``, as tests below require."""
    found = set()
    for file in registry.ROOT.rglob("*.py"):
        name, code = file.relative_to(registry.ROOT).as_posix(), file.read_text()
        for node in ast.walk(ast.parse(code)) if any(f"{draw}(" in code for draw in NOISE) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in NOISE:
                found.add((name, node.func.attr))
    found = {each for each in found if not each[0].startswith(("plugins/checks/laws/", "plugins/accelerated/"))}
    assert found == PURPOSES.keys()


def draw_votes(**case):
    run = worlds.run("knn-per-extended", options={"vote": "noisy", "vote_epsilon": 0.1, "weight": 1.0}, **case)
    return worlds.answers("knn-per-extended", run, {})["test"]


def draw_uploads(**case):
    run = worlds.run("fedavg", **case)
    run.uploads = (uploads.load("noise:1.0"),)
    start = {"w": torch.zeros(50)}
    return run.upload({"w": torch.zeros(1, 50)}, start, np.asarray([0]))["w"].numpy()


def draw_mean(**case):
    run = worlds.run("fedavg", dp_noise=1.0, dp_delta=1e-3, **case)
    mean = run.privacy
    mean.begin_round(0)
    return mean.begin({"w": torch.zeros(50)}).value()["w"].numpy()


def draw_cohorts(**case):
    mean = worlds.run("fedavg", dp_noise=1.0, dp_delta=1e-3, **case).privacy
    return np.concatenate([mean.sample(np.arange(50), t) for t in range(3)])


def draw_counts(**case):
    mean = worlds.run("fedavg", dp_noise=1.0, dp_delta=1e-3, **case).privacy
    mean.resume(0, {"clip": 1.0, "uploads": 4, "clipped": 2})
    return np.asarray([mean.clip])


@pytest.mark.parametrize("draw", [draw_votes, draw_uploads, draw_mean, draw_cohorts, draw_counts])
def test_privacy_noise_depends_on_the_secret_and_not_on_the_seed(draw):
    first = draw(secret=1)
    assert np.array_equal(draw(secret=1), first)
    assert not np.array_equal(draw(secret=2), first)
    if draw is not draw_votes:  # whose neighbours depend on the backbone, which depends on the seed
        assert np.array_equal(draw(secret=1, seed=5), first)


def correlate(one, other):
    count = min(len(one), len(other))
    return abs(np.corrcoef(one[:count], other[:count])[0, 1])


def require_independent(runs):
    for one, other in itertools.combinations(runs, 2):
        bound = 5 / np.sqrt(min(len(one), len(other)))
        assert correlate(one, other) < bound


@pytest.mark.parametrize("method", METHODS)
def test_resumed_run_repeats_its_noise_and_a_second_run_draws_other_noise(
    method, small, tmp_path, record_noise, monkeypatch
):
    release = PrivateMean.end_round

    def interrupted(self):
        if self._round == 1:
            raise KeyboardInterrupt
        return release(self)

    def run(name="run"):
        personalize(method, small.p, tmp_path / name, settings=PRIVATE, execution=ONE)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateMean, "end_round", interrupted)

        def stopped():
            with pytest.raises(KeyboardInterrupt):
                run()

        before, _ = record_noise(stopped)
    secret = (tmp_path / "run.partial" / dp_secret.FILE).read_bytes()
    after, _ = record_noise(run)
    assert (tmp_path / "run" / dp_secret.FILE).read_bytes() == secret
    np.testing.assert_array_equal(after, before[-len(after) :])  # round 2, which was interrupted, once more
    again, _ = record_noise(partial(run, "again"))
    require_independent([before, again])


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_runs_with_different_options_have_independent_noise(method, small, tmp_path, record_noise):
    """Neither the noise of a secret nor, with ``dp_seed``, that of a seed is used by two requests."""
    variants = {"once": {}, "lr": {"lr": 0.2}, "seeded": {"dp_seed": 1}, "seeded lr": {"dp_seed": 1, "lr": 0.2}}
    runs = []
    for name, changes in variants.items():
        act = partial(personalize, method, small.p, tmp_path / name, settings={**PRIVATE, **changes}, execution=ONE)
        runs.append(record_noise(act)[0])
    require_independent(runs)


def test_runs_with_the_same_dp_seed_have_the_same_noise_and_weights(small, tmp_path, record_noise):
    settings = {**PRIVATE, "dp_seed": 0}
    runs = [
        record_noise(partial(train_global, small.p, tmp_path / out, settings=settings, execution=ONE)) for out in "ab"
    ]
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    weights = [(tmp_path / out / "weights.safetensors").read_bytes() for out in "ab"]
    assert weights[0] == weights[1]
    assert not (tmp_path / "a" / dp_secret.FILE).exists()


def test_noise_from_a_dp_seed_differs_when_the_samples_differ(small):
    """A client that leaves changes the samples, and need not change the request of the partition."""
    partition, settings = open_artifact(small.p), Settings(dp_noise=1.0, dp_delta=1e-3, dp_seed=7)
    files = {name: {**facts, "sha256": "0" * 64} for name, facts in partition.manifest.files.items()}
    other = dataclasses.replace(partition, manifest=dataclasses.replace(partition.manifest, files=files))
    spec = ArtifactSpec("backbone", {}, ())
    seeds = {dp_secret.noise_draws(settings, spec, source, None).seed for source in (partition, partition, other)}
    assert len(seeds) == 2


def test_difference_of_two_released_models_does_not_reveal_the_participants(small, tmp_path):
    """The attack: least squares of the difference of two models on all clients' updates, which the attacker knows.

    With shared noise, every client was told apart, to five digits.
    """
    data = partitions.read(open_artifact(small.p))
    released, updates = [], []
    for lr in (0.1, 0.3):
        settings = {**PRIVATE, "model": "logistic", "rounds": 1, "dp_clip": "1", "batch_size": 1000, "lr": lr}
        train_global(small.p, tmp_path / f"{lr}", settings=settings, execution=ONE)
        weights = backbone.read_tensors(open_artifact(tmp_path / f"{lr}"))
        net = models.create("logistic", (1, *data.x.shape[1:]), data.classes, 0)
        start = {name: value.detach().clone() for name, value in net.named_parameters()}
        released.append(torch.cat([(weights[name] - start[name]).flatten() for name in start]).double())
        updates.append(
            torch.stack([compute_clipped_update(net, data, client, lr) for client in range(len(data.names))], dim=1)
        )
    expected = 0.5 * len(data.names)
    difference, basis = released[0] - released[1], (updates[0] - updates[1]) / expected
    member = torch.linalg.lstsq(basis, difference[:, None]).solution[:, 0].numpy()
    assert np.abs(member - member.round()).max() > 1e-2


def compute_clipped_update(net, data, client, lr):
    """The update of one client after one step on all its training samples, clipped to 1."""
    block = len(SPLITS) * client
    rows = slice(*data.offsets[block : block + 2])
    x = torch.from_numpy(np.asarray(data.x[rows]))[:, None].float() / 255
    loss = functional.cross_entropy(net(x), torch.from_numpy(data.y[rows]))
    gradient = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(net.parameters()))]).double()
    update = -lr * gradient
    return update / max(1.0, float(update.norm()))


UPLOADS = {"model": "logistic", "rounds": 1, "participation": 1.0, "upload": ["noise:0.1"]}


@pytest.mark.parametrize("method", ["fedavg", "fedham"])
def test_noise_on_uploads_differs_between_runs_of_one_seed(method, small, tmp_path):
    """The difference of two models with the same noise would have none."""
    plain, *noisy = (
        run_and_read_state(method, small.p, tmp_path / name, {**UPLOADS, **changes})
        for name, changes in {
            "plain": {"upload": []},
            "once": {},
            "again": {},
            "seeded": {"dp_seed": 1},
            "seeded again": {"dp_seed": 1},
        }.items()
    )
    once, again, seeded, repeated = (model - plain for model in noisy)
    np.testing.assert_array_equal(seeded, repeated)
    if method == "fedavg":  # models of fedham depend on the noise by more than a sum
        require_independent([once, again, seeded])
    else:
        assert not np.array_equal(once, again)
    assert (tmp_path / "once" / dp_secret.FILE).exists()
    assert not (tmp_path / "seeded" / dp_secret.FILE).exists()


def run_and_read_state(method, source, out, settings):
    """All numbers of the state after a run."""
    personalize(method, source, out, settings=settings, execution=ONE)
    tensors = load_file(out / "state.safetensors")
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors) if tensors[name].dtype == np.float32])


def test_resumed_run_repeats_the_noise_on_uploads(small, tmp_path, monkeypatch):
    settings, play = {**UPLOADS, "rounds": 2}, loop.play_round

    def interrupted(run, name, method, state, t):
        if t == 1:
            raise KeyboardInterrupt
        return play(run, name, method, state, t)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "play_round", interrupted)
        with pytest.raises(KeyboardInterrupt):
            personalize("fedavg", small.p, tmp_path / "run", settings=settings, execution=ONE)
    shutil.copytree(tmp_path / "run.partial", tmp_path / "copy.partial")
    first, copied = (run_and_read_state("fedavg", small.p, tmp_path / name, settings) for name in ("run", "copy"))
    np.testing.assert_array_equal(first, copied)  # the same noise was released twice, not two with a difference
    assert not np.array_equal(first, run_and_read_state("fedavg", small.p, tmp_path / "again", settings))


def test_run_interrupted_after_its_rounds_keeps_its_secret_and_refuses_a_damaged_one(small, tmp_path, monkeypatch):
    def run():
        personalize("fedavg", small.p, tmp_path / "run", settings=UPLOADS, execution=ONE)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "predict_all", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run()
    file = tmp_path / "run.partial" / dp_secret.FILE
    secret = file.read_bytes()
    for damaged in (b"", secret[:-2], secret.upper(), secret + b"0\n"):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged"):
            run()
    file.write_bytes(secret)
    run()  # draws no noise, as all rounds were run before
    assert open_artifact(tmp_path / "run").read(dp_secret.FILE) == secret


def interrupt(*_):
    raise KeyboardInterrupt


VOTES = {"vote": "noisy", "vote_epsilon": 0.2, "weight": 1.0}


def read_votes(artifact, split="test"):
    return predictions.read(open_artifact(artifact), split).parts["p"]


def test_noisy_votes_differ_between_runs_of_one_seed_and_repeat_within_one(small, tmp_path):
    for name, settings in {"once": {}, "again": {}, "seeded": {"dp_seed": 0}, "repeated": {"dp_seed": 0}}.items():
        personalize("knn-per-extended", small.d, tmp_path / name, options=VOTES, settings=settings, execution=ONE)
    once, again, seeded, repeated = (read_votes(tmp_path / name) for name in ("once", "again", "seeded", "repeated"))
    assert not np.array_equal(once, again)
    assert not np.array_equal(once, seeded)
    np.testing.assert_array_equal(seeded, repeated)
    for name, stored in {"once": once, "seeded": seeded}.items():  # asked again, each query gets its first answer
        predictor = stored_predictor.open_predictor(open_artifact(tmp_path / name))
        data = partitions.read(predictor.partition)
        own = slice(*data.offsets[2:4])
        for _ in range(2):
            answer = predictor.predict(0, np.asarray(data.x[own]), ONE)
            np.testing.assert_array_equal(answer.parts["p"], stored[: own.stop - own.start])


def test_added_client_does_not_change_the_noisy_votes_of_the_others(small, tmp_path):
    data = partitions.read(open_artifact(small.p))
    own = slice(*data.offsets[0:4:3])
    np.savez(tmp_path / "new.npz", x=data.x[own], y=data.y[own])
    for name, settings in {"secret": {}, "seeded": {"dp_seed": 1}}.items():
        personalize("knn-per-extended", small.d, tmp_path / name, options=VOTES, settings=settings, execution=ONE)
        new_client(tmp_path / name, tmp_path / "new.npz", tmp_path / f"{name} later", client="late", execution=ONE)
        before, after = read_votes(tmp_path / name), read_votes(tmp_path / f"{name} later")
        np.testing.assert_array_equal(after[: len(before)], before)
        predictor = stored_predictor.open_predictor(open_artifact(tmp_path / f"{name} later"))
        rows = slice(*data.offsets[2:4])
        answer = predictor.predict(0, np.asarray(data.x[rows]), ONE)
        np.testing.assert_array_equal(answer.parts["p"], before[: rows.stop - rows.start])


def test_noisy_votes_are_refused_when_the_secret_of_the_noise_is_missing(small, tmp_path):
    """With fresh noise, the mean over answers to one query would have less and less of it."""
    personalize("knn-per-extended", small.d, tmp_path / "m", options=VOTES, execution=ONE)
    artifact = open_artifact(tmp_path / "m")
    files = {name: facts for name, facts in artifact.manifest.files.items() if name != dp_secret.FILE}
    without = dataclasses.replace(artifact, manifest=dataclasses.replace(artifact.manifest, files=files))
    predictor = stored_predictor.open_predictor(without)
    with pytest.raises(InputError, match="secret of its noise"):
        predictor.predict(0, np.asarray(partitions.read(predictor.partition).x[:1]), ONE)


def test_secret_of_the_noise_is_written_to_no_other_file(small, tmp_path, pfl):
    personalize("knn-per-extended", small.d, tmp_path / "m", options=VOTES, execution=ONE)
    personalize("fedavg", small.p, tmp_path / "u", settings=UPLOADS, execution=ONE)
    secrets = [(tmp_path / name / dp_secret.FILE).read_text().split()[-1] for name in ("m", "u")]
    assert pfl("evaluate", tmp_path / "m", "-o", tmp_path / "e").code == 0
    assert pfl("report", tmp_path / "e", "-o", tmp_path / "page.html").code == 0
    assert pfl("stack", tmp_path / "m", tmp_path / "u", "-o", tmp_path / "s").code == 0
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.name != dp_secret.FILE:
            assert not any(secret.encode() in file.read_bytes() for secret in secrets), file


def test_personalize_warns_when_a_dp_seed_has_no_noise_to_seed(small, tmp_path, pfl):
    line = ("--model", "logistic", "--rounds", 1, "--dp-seed", 3, "--threads", 1)
    for method, upload, words in (
        ("fedavg", (), "has no effect"),
        ("fedavg", ("--upload", "noise:0.1"), "WARNING: the noise follows"),
        ("local", ("--upload", "noise:0.1"), "has no effect"),  # its clients send nothing
    ):
        ran = pfl("personalize", method, small.p, "-o", tmp_path / f"{method}{len(upload)}", *line, *upload)
        assert (ran.code, words in ran.err) == (0, True), ran.err
