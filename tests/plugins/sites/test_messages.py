"""Messages of a deployment: their size, refusals (damaged, foreign, late), and recovery after a kill."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from worlds_of_sites import BOTH, digest, make_world, parse, put_number, rewrite

from pflcli.artifacts import disk
from pflcli.core.errors import ComputationError, InputError
from pflcli.plugins.sites import messages
from pflcli.plugins.sites.messages import Answer
from pflcli.workflow.admission import small_federation as small


@pytest.fixture
def world(tmp_path):
    return make_world("ditto", tmp_path, participation=1.0)


@pytest.fixture
def asked(world):
    """A world whose site a has answered the first question: the endpoints, and both messages."""
    server, site = world.make_server(), world.make_site("a")
    questions, paths = world.write_questions(server)
    answer = world.folder / "answer.msg"
    shutil.copy(site.answer(paths["a"]), answer)
    return world, server, questions["a"], paths["a"], answer


@pytest.mark.parametrize("name", BOTH)
def test_a_question_that_does_not_fit_is_refused_and_changes_nothing(name, asked):
    world, _, _, path, _ = asked
    change, words = BOTH[name]
    site = world.make_site("a", "another folder")
    rewrite(path, change)
    with pytest.raises(InputError, match=words):
        site.answer(path)
    assert not list(world.folder.glob("another folder/round-*"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda head, *_: head.update(clients=[0, 2]), "asks clients"),
        (lambda head, *_: head.update(clients=[]), "asks clients"),
        (lambda head, *_: head.update(round=4), "round 4 of 3"),
        (lambda head, *_: head.update(round=0), "round 0 of 3"),
    ],
)
def test_a_question_with_another_head_is_refused(change, words, asked):
    world, _, _, path, _ = asked
    rewrite(path, change)
    with pytest.raises(InputError, match=words):
        world.make_site("a", "another folder").answer(path)


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}", bytes(100)])
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "m").write_bytes(content)
    for path in (tmp_path / "m", tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError):
            messages.read(path, Answer, "hash", "a")
        with pytest.raises(InputError, match=r"truncated|cannot be read|does not exist|a folder"):
            messages.read_kind(path)
    if len(content) < 8:
        with pytest.raises(InputError, match="is truncated, or not a message of pfl"):
            messages.read_kind(tmp_path / "m")


def test_a_name_that_stands_twice_is_refused(asked):
    _, server, question, path, answer = asked
    content = answer.read_bytes().replace(b'\\"round\\": 1', b'\\"round\\": 1, \\"round\\": 1')
    length = int.from_bytes(answer.read_bytes()[:8], "little") + len(content) - answer.stat().st_size
    answer.write_bytes(length.to_bytes(8, "little") + content[8:])
    with pytest.raises(InputError, match="stands twice"):
        server.check(answer, question, digest(path))


@pytest.mark.parametrize("upload", [(), ("int8",)])
@pytest.mark.parametrize("name", ["fedavg", "fedrep", "scaffold"])
def test_the_counted_bytes_are_those_of_the_tensors(name, upload, tmp_path):
    world = make_world(name, tmp_path, upload=upload)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    questions, paths = world.write_questions(server)
    stored = {site: sites[site].answer(paths[site]) for site in questions}
    row = server.close({site: server.check(stored[site], questions[site], digest(paths[site])) for site in questions})
    assert row["bytes_up"] == sum(len(parse(path)[2]) for path in stored.values())
    assert row["bytes_down"] == sum(len(parse(paths[site])[2]) * len(q.clients) for site, q in questions.items())
    for site, path in stored.items():
        assert path.stat().st_size - len(parse(path)[2]) < 3000 * len(questions[site].clients)


def test_an_answer_depends_on_no_sample_of_another_site(world):
    _, paths = world.write_questions(world.make_server())
    expected = world.make_site("a").answer(paths["a"]).read_bytes()
    world.data = small.replace_samples(world.data, "train", clients=np.asarray([2, 3, 4, 6]))
    assert world.make_site("a", "other samples").answer(paths["a"]).read_bytes() == expected
    world.data = small.replace_samples(world.data, "test", clients=np.asarray([0, 1]))
    assert world.make_site("a", "other test samples").answer(paths["a"]).read_bytes() == expected
    world.data = small.replace_samples(world.data, "train", clients=np.asarray([0]))
    assert world.make_site("a", "other training samples").answer(paths["a"]).read_bytes() != expected


def test_the_same_question_gets_the_stored_answer_and_a_late_one_an_error(world):
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    _, first = world.write_questions(server)
    early = first["a"].read_bytes()
    expected = sites["a"].answer(first["a"]).read_bytes()
    again = world.make_site("a")  # a process that was started again
    assert again.answer(first["a"]).read_bytes() == expected
    rewrite(first["a"], put_number(0.5))
    with pytest.raises(InputError, match="another message of round 1"):
        again.answer(first["a"])
    first["a"].write_bytes(early)
    world.play(server, sites)
    world.play(server, sites)
    with pytest.raises(InputError, match="late: it is for round 1, and a has played round 2"):
        sites["a"].answer(first["a"])


@pytest.mark.parametrize("client", [0, 6])
def test_a_client_that_diverges_drops_out_as_in_the_simulation(client, world):
    x = world.data.x.clone()
    x[world.data.rows(client, "train")] = 3e38
    world.data = replace(world.data, x=x)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    for _, state, expected in world.simulate():
        row = world.play(server, sites)
        assert row["diverged"] == expected["diverged"] == [client]
        assert row["loss"] == expected["loss"]
        assert small.are_equal(server.progress.state["global"], state["global"])


def test_a_table_that_is_made_in_a_round_is_an_error(tmp_path):
    world = make_world("lg-fedavg", tmp_path, options={"warmup": 1})
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    world.terms = replace(world.terms)
    world.play(server, sites)
    questions, paths = world.write_questions(server)
    site = next(iter(questions))
    with pytest.raises((InputError, ComputationError), match=r"lacks the tensor|does not belong|made the table"):
        sites[site].answer(paths[site])


class Killed(BaseException):
    """What ends a process at any place."""


STEPS = [(disk, "write"), (disk, "sync_folder"), (Path, "rename"), (Path, "replace"), (shutil, "rmtree")]


def test_a_kill_before_any_write_changes_no_byte(tmp_path, monkeypatch):
    """Endpoints are killed before each write, rename and removal of all rounds, one kill a run, and started again."""
    sites = {"a": (0, 1, 2), "b": (3, 4, 5, 6)}
    world = make_world("ditto", tmp_path, sites, participation=1.0, model="logistic", options={"lam": 1.0})
    states, killed = set(), 0

    def play(kill_at):
        nonlocal killed
        folder = world.folder / f"kill {kill_at}"
        copy = replace(world, folder=folder)
        count = 0

        def counting(function):
            def call(*args, **kwargs):
                nonlocal count
                count += 1
                if count == kill_at:
                    raise Killed
                return function(*args, **kwargs)

            return call

        def attempt(make, use):
            """Use an endpoint of a new process, as often as it is killed."""
            nonlocal killed
            while True:
                try:
                    return use(make())
                except Killed:
                    killed += 1

        with monkeypatch.context() as patch:
            for owner, name in STEPS:
                patch.setattr(owner, name, counting(getattr(owner, name)))
            for _ in range(2):
                questions, paths = attempt(copy.make_server, copy.write_questions)
                for site in questions:

                    def answer(each, path=paths[site]):
                        each.answer(path)

                    attempt(partial(copy.make_site, site), answer)

                def close(server, questions=questions, paths=paths):
                    if server.rounds == next(iter(questions.values())).round:
                        return  # it was killed after the round got its name
                    server.ask()
                    stored = {
                        site: next((folder / f"site {site}").glob("round-*")) / "answer.msg" for site in questions
                    }
                    server.close({s: server.check(stored[s], questions[s], digest(paths[s])) for s in questions})

                attempt(copy.make_server, close)
        server, sites = copy.make_server(), {site: copy.make_site(site) for site in copy.sites}
        assert server.rounds == 2
        kept = [
            torch.cat([value.flatten() for value in each.state["personal"][list(copy.sites[site])].values()])
            for site, each in sites.items()
        ]
        whole = torch.cat([value.flatten() for value in server.progress.state["global"].values()])
        states.add(torch.cat([whole, *kept]).numpy().tobytes())
        return count

    total = play(0)
    for kill_at in range(1, total + 1):
        play(kill_at)
    assert killed == total > 30
    assert len(states) == 1
