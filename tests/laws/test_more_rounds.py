"""A finished run that is continued by more rounds has the bytes of a run that was longer from the beginning."""

from __future__ import annotations

import pytest

from helpers import FORCE, error_text, same
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import methods, registry
from pflcli.core.errors import ConflictError
from pflcli.core.simulation import loop
from pflcli.workflow.training import dp_secret

METHODS = [name for name in registry.names("methods") if methods.load(name).has_rounds]
PHASES = {"fedham": {"warmup": 1}, "panm": {"t1": 1}, "pens": {"t1": 1}}
"""Options without which the rounds of a method depend on how many there are."""
SETTINGS = {
    **{"model": "mlp", "participation": 0.5, "dropout": 0.2, "milestones": (1,)},
    **{"eval_every": 3, "personal_every": 3, "test_last": 2},
}


@pytest.fixture(scope="module")
def clustered_partition(tmp_path_factory):
    """Six clients in two known clusters, which ``oracle`` needs."""
    out = tmp_path_factory.mktemp("more") / "p"
    partition("heart-disease", out, scheme="clusters", options={"groups": "2", "kind": "labels"}, clients=6)
    return out


def run(method, source, out, rounds, execution=None, **settings):
    settings = {**SETTINGS, "rounds": rounds, **settings}
    return personalize(method, source, out, options=PHASES.get(method), settings=settings, execution=execution)


@pytest.mark.parametrize("method", METHODS)
def test_run_continued_by_more_rounds_has_the_bytes_of_a_longer_run(method, clustered_partition, tmp_path):
    run(method, clustered_partition, tmp_path / "short", 2)
    assert run(method, clustered_partition, tmp_path / "short", 4).decision == "replace"
    run(method, clustered_partition, tmp_path / "long", 4)
    same(tmp_path / "short", tmp_path / "long")


@pytest.mark.parametrize(
    "settings",
    [
        {"report": "best", "eval_every": 1},
        {"patience": 2, "eval_every": 1},
        {"upload": ("noise:0.1",), "aggregator": "trimmed-mean:0.2", "participation": 1.0},
        {"dp_noise": 1.0, "dp_delta": 1e-5, "dropout": 0.0},
    ],
)
def test_backbone_continued_by_more_rounds_has_the_bytes_of_a_longer_run(
    settings, clustered_partition, tmp_path, monkeypatch
):
    accuracies = iter([0.1, 0.2, 0.3, 0.3, 0.3, 0.1, 0.2, 0.3, 0.3, 0.3])  # of the rounds 1-2, 3-5 and 1-5
    if settings.get("eval_every") == 1:
        monkeypatch.setattr("pflcli.core.federation.run.Run.accuracy", lambda *_: next(accuracies))
    monkeypatch.setattr("pflcli.workflow.training.dp_secret.secrets.token_hex", lambda count: "ab" * count)
    for out, rounds in (("short", 2), ("short", 5), ("long", 5)):
        train_global(
            clustered_partition, tmp_path / out, settings={**SETTINGS, "test_last": 0, **settings, "rounds": rounds}
        )
    same(tmp_path / "short", tmp_path / "long")


def test_continued_run_keeps_the_secret_of_its_noise(clustered_partition, tmp_path):
    settings = {**SETTINGS, "test_last": 0, "dp_noise": 1.0, "dp_delta": 1e-5, "dropout": 0.0}
    secrets = []
    for rounds in (2, 3):
        train_global(clustered_partition, tmp_path / "b", settings={**settings, "rounds": rounds})
        secrets.append(open_artifact(tmp_path / "b").read(dp_secret.FILE))
    assert secrets[0] == secrets[1]


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("panm", {}, "the rounds of panm depend on how many there are"),
        ("fedavg", {"lr_schedule": "cosine"}, "with --lr-schedule cosine the learning rate depends on"),
        ("fedavg", {"dp_epsilon": 8, "dp_delta": 1e-5}, "the noise of --dp-epsilon depends on"),
        ("fedavg", {"dp_seed": 1, "dp_noise": 1.0, "dp_delta": 1e-5}, "noise that is drawn from --dp-seed depends on"),
        ("ditto", {"milestones": (3,), "eval_every": 1}, "its personal accuracy was measured at the learning rate"),
        ("local", {}, "exists and was made by another request"),
    ],
)
def test_more_rounds_are_refused_when_they_would_change_the_earlier_rounds(
    method, settings, reason, clustered_partition, tmp_path
):
    few = {"model": "mlp", "test_last": 0, **settings}
    personalize(method, clustered_partition, tmp_path / "x", settings={**few, "rounds": 2})
    before = open_artifact(tmp_path / "x").manifest
    with pytest.raises(ConflictError, match=reason) as error:
        personalize(method, clustered_partition, tmp_path / "x", settings={**few, "rounds": 5})
    assert "settings.rounds: 2 -> 5" in error_text(error)
    assert "--force" in error_text(error)
    assert open_artifact(tmp_path / "x").manifest == before


def test_more_rounds_are_refused_when_the_state_after_the_last_round_is_missing(
    clustered_partition, tmp_path, monkeypatch
):
    settings = {**SETTINGS, "rounds": 2}
    train_global(clustered_partition, tmp_path / "b", method="scaffold", settings=settings)
    with pytest.raises(ConflictError, match="contains only the global model, and the rounds of scaffold need more"):
        train_global(clustered_partition, tmp_path / "b", method="scaffold", settings={**settings, "rounds": 5})
    train_global(clustered_partition, tmp_path / "f", settings=settings)
    personalize("fedavg", tmp_path / "f", tmp_path / "x")
    with pytest.raises(ConflictError, match="its rounds are those of its backbone"):
        personalize("fedavg", tmp_path / "f", tmp_path / "x", settings={"rounds": 5})
    accuracies = iter([0.2, 0.1])
    monkeypatch.setattr("pflcli.core.federation.run.Run.accuracy", lambda *_: next(accuracies))
    best = {**settings, "report": "best", "eval_every": 1, "test_last": 0}
    train_global(clustered_partition, tmp_path / "best", settings=best)
    with pytest.raises(ConflictError, match=r"contains the models of its best round \(1\), not of its last one"):
        train_global(clustered_partition, tmp_path / "best", settings={**best, "rounds": 5})


def test_comparison_continued_by_more_rounds_has_the_bytes_of_a_longer_one(clustered_partition, tmp_path):
    def make(out, rounds, only=None):
        settings = {"model": "mlp", "rounds": rounds, "participation": 0.5}
        compared = ["fedavg", "ditto", "knn-per", "local"]
        compare([clustered_partition], tmp_path / out, methods=compared, settings=settings, references=False, only=only)

    make("short", 1)
    for path in ("backbone", "embeddings"):  # as the jobs of a plan are run
        make("short", 3, only=[f"seed-0/{path}"])
    make("short", 3)
    make("long", 3)
    for artifact in ("comparison", "seed-0/backbone", "seed-0/ditto", "seed-0/knn-per", "seed-0/local"):
        one, two = (open_artifact(tmp_path / out / artifact).manifest for out in ("short", "long"))
        assert one.fingerprint == two.fingerprint
    scores = [(tmp_path / out / "comparison" / "clients.csv").read_bytes() for out in ("short", "long")]
    assert scores[0] == scores[1]
    assert open_artifact(tmp_path / "short" / "seed-0" / "ditto").manifest.summary["rounds"] == 3


def test_fewer_rounds_or_changed_settings_conflict_with_a_finished_run(clustered_partition, tmp_path):
    run("fedavg", clustered_partition, tmp_path / "x", 3)
    for rounds, settings in ((2, {}), (5, {"lr": 0.2})):
        with pytest.raises(ConflictError, match="was made by another request"):
            run("fedavg", clustered_partition, tmp_path / "x", rounds, **settings)
    assert run("fedavg", clustered_partition, tmp_path / "x", 5, execution=FORCE).decision == "replace"


def test_finished_run_stays_complete_when_its_continuation_is_interrupted(clustered_partition, tmp_path, monkeypatch):
    run("ditto", clustered_partition, tmp_path / "x", 2)
    before = open_artifact(tmp_path / "x").manifest
    play, played = loop.play_round, []

    def interrupt(*args):
        played.append(args[-1])
        if args[-1] == 4:
            raise KeyboardInterrupt
        return play(*args)

    monkeypatch.setattr(loop, "play_round", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run("ditto", clustered_partition, tmp_path / "x", 6)
    open_artifact(tmp_path / "x").verify()
    assert open_artifact(tmp_path / "x").manifest == before
    monkeypatch.undo()
    with pytest.raises(ConflictError, match=r"x\.partial contains an unfinished run of another request"):
        run("ditto", clustered_partition, tmp_path / "x", 5)
    assert run("ditto", clustered_partition, tmp_path / "x", 6).decision == "resume"
    assert played == [2, 3, 4]
    run("ditto", clustered_partition, tmp_path / "long", 6)
    same(tmp_path / "x", tmp_path / "long")
