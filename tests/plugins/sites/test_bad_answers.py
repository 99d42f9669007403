"""One bad answer ends no server: it is named, set aside, and its site may answer again or counts as absent."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from worlds_of_sites import BOTH, GROUPS, digest, make_world, put_number, rewrite

from pflcli.core.errors import InputError
from pflcli.plugins.sites import exchange, transport
from pflcli.plugins.sites.endpoints import Server
from pflcli.plugins.sites.exchange import Inbox


def with_head(change):
    """Return a change of the file's head, ``change(head)``, whose other value replaces it if it returns one."""

    def write(path):
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        entries = json.loads(content[8 : 8 + length])
        head = json.loads(entries["__metadata__"]["pfl"])
        other = change(head)
        entries["__metadata__"]["pfl"] = json.dumps(head if other is None else other[0])
        write_head(path, json.dumps(entries).encode(), content[8 + length :])

    return write


def write_head(path, text, data=b""):
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def set_result(**changes):
    return with_head(lambda head: head["clients"][0].update(changes))


def set_sent(**changes):
    return with_head(lambda head: head["channels"][0]["sent"][0].update(changes))


def instead(make):
    """Return a change that makes something else of the name of the answer."""

    def write(path):
        path.unlink()
        make(path)

    return write


def fill(number):
    """Return a change of all numbers of the uploads."""
    return lambda path: rewrite(path, lambda head, entries, data: np.full(len(data) // 4, number, "<f4").tobytes())


def send_nothing_of_one(head, entries, data):
    """Leave out what the last client sends."""
    last = head["channels"][0]["sent"].pop()["client"]
    dropped = [name for name in entries if name.startswith(f"0/{last}/")]
    return data[: min(entries.pop(name)["data_offsets"][0] for name in dropped)]


ANSWERS = {
    **{name: (lambda path, change=change: rewrite(path, change), words) for name, (change, words) in BOTH.items()},
    "unfinished": (lambda path: path.write_bytes(path.read_bytes()[:100]), "truncated"),
    "empty": (lambda path: path.write_bytes(b""), "truncated"),
    "a few bytes": (lambda path: path.write_bytes(b"1234567"), "truncated"),
    "something else": (lambda path: path.write_bytes(b"\xff" * 64), "truncated"),
    "too large": (lambda path: path.write_bytes(bytes(1 << 20)), "larger than an answer can be"),
    "a head of lists": (lambda path: write_head(path, b'{"a":[' + b"[]," * 40000 + b"1]}"), "truncated"),
    "nested a thousand times": (lambda path: write_head(path, b"[" * 30000 + b"]" * 30000), "cannot be read"),
    "a list for the outer head": (lambda path: write_head(path, b"[1]"), "cannot be read"),
    "no head": (lambda path: write_head(path, b"{}"), "cannot be read"),
    "a head that is a list": (with_head(lambda head: ([1],)), "is not an answer"),
    "a head that is a number": (with_head(lambda head: (3,)), "is not an answer"),
    "a head that is null": (with_head(lambda head: (None,)), "is not an answer"),
    "a kind that is an object": (with_head(lambda head: head.update(kind={"a": 1})), "is not an answer"),
    "a version that is true": (with_head(lambda head: head.update(version=True)), "version"),
    "a round that is text": (with_head(lambda head: head.update(round="1")), "round"),
    "a round with a point": (with_head(lambda head: head.update(round=1.0)), "round"),
    "another round": (with_head(lambda head: head.update(round=2)), "answers round 2, not round 1"),
    "another question": (with_head(lambda head: head.update(question="0" * 64)), "another message of round 1"),
    "another last round": (with_head(lambda head: head.update(last_round=3)), "has lost its state"),
    "another pfl": (with_head(lambda head: head["versions"].update(pfl="9.9")), "pfl 9.9, and the federation"),
    "another code": (with_head(lambda head: head["versions"].update(code="x")), "other code of pfl"),
    "no versions": (with_head(lambda head: head.update(versions={})), "pfl None"),
    "a line for the log": (with_head(lambda head: head.update(site="x\nround 1: loss 0.1")), "not for 'a'"),
    "a client twice": (with_head(lambda head: head["clients"].append(head["clients"][0])), "that were asked"),
    "another client": (with_head(lambda head: head["clients"].append({**head["clients"][0], "client": 2})), "asked"),
    "no client": (with_head(lambda head: head["clients"].clear()), "that were asked"),
    "a huge client": (set_result(client=10**30), "that were asked"),
    "a weight below 0": (set_sent(weight=-1.0), "not a positive number"),
    "a weight of 0": (set_sent(weight=0.0), "not a positive number"),
    "an infinite weight": (set_sent(weight=math.inf), "not a positive number"),
    "a weight that is nan": (set_sent(weight=math.nan), "not a positive number"),
    "a weight that is true": (set_sent(weight=True), "weight"),
    "diverged, with an upload": (set_result(diverged=True), "has diverged"),
    "not trained, with an upload": (set_result(trained=False), "does not fit its result"),
    "trained, without an upload": (lambda path: rewrite(path, send_nothing_of_one), "does not fit its result"),
    "a channel twice": (with_head(lambda head: head["channels"].append(head["channels"][0])), "a channel twice"),
    "no channel": (with_head(lambda head: head["channels"].clear()), "lacks what the server waits for"),
    "a channel more": (with_head(lambda head: head["channels"].append({"number": 1, "sent": []})), "no channel 1"),
    "a client of another site": (set_sent(client=2), "not asked, or has diverged"),
    "another attempt": (with_head(lambda head: head.update(attempt=2)), "another message of round 1"),
    "another exchange": (with_head(lambda head: head.update(exchange=1)), "another message of round 1"),
    "a sample": (set_result(sample=[1.0]), "sample"),
    "a loss with a weight below 0": (with_head(lambda head: head["losses"].append([1.0, -1.0])), "not finite"),
    "an infinite loss": (with_head(lambda head: head["losses"].append([math.inf, 1.0])), "not finite"),
    "losses that overflow": (with_head(lambda head: head["losses"].extend([[1e308, 1e308]] * 2)), "too large"),
    "weights that overflow": (fill(1e38), "too large"),
    "all nan": (fill(np.nan), "not finite"),
    "one inf": (lambda path: rewrite(path, put_number(np.inf)), "not finite"),
    "a folder": (instead(lambda path: path.mkdir()), "is a folder"),
    "a pipe": (instead(os.mkfifo), "is a pipe"),
    "a link to a device": (instead(lambda path: path.symlink_to("/dev/zero")), "is a device"),
    "a link to another file": (instead(lambda path: path.symlink_to(__file__)), "truncated"),
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A world whose sites have been asked in round 1, and their right answers."""
    world = make_world("ditto", tmp_path_factory.mktemp("world"), participation=1.0)
    questions, paths = world.write_questions(world.make_server())
    stored = {site: world.make_site(site).answer(path) for site, path in paths.items()}
    return world, questions, paths, stored


@dataclass
class Round:
    """A server that has asked in round 1: its inbox, what this has said, the right answers, and the files for them."""

    server: Server
    inbox: Inbox
    said: list[str]
    right: dict[str, Path]
    files: dict[str, Path]

    def deliver(self, *sites):
        for site in sites or self.right:
            shutil.copy(self.right[site], self.files[site])


@pytest.fixture
def opened(asked, tmp_path):
    world, _, _, right = asked
    server, said = replace(world, folder=tmp_path).make_server(), []
    questions, paths = replace(world, folder=tmp_path).write_questions(server)
    inbox = Inbox(server, tmp_path / "answers", said.append)
    inbox.begin(questions, paths)
    return Round(server, inbox, said, right, {site: transport.answer_file(paths[site].parent, 1) for site in paths})


@pytest.mark.parametrize("name", ANSWERS)
def test_a_bad_answer_is_named_and_set_aside_and_its_site_answers_again(name, opened):
    box, said, path = opened.inbox, opened.said, opened.files["a"]
    change, words = ANSWERS[name]
    opened.deliver("a")
    change(path)
    box.look(is_last=True)
    assert "a" in box.missing
    (line,) = said
    assert line.startswith("WARNING: 'a' has not answered round 1: ")
    assert words in line
    assert "\n" not in line
    if name != "a folder":
        assert not os.path.lexists(path)
    else:
        path.rmdir()
    opened.deliver()
    box.look(is_last=True)
    assert box.missing == []
    assert opened.server.close(box.found)["clients"] == 6


@pytest.mark.parametrize("name", ANSWERS)
def test_a_round_is_closed_without_the_site_of_a_bad_answer(name, opened):
    box, path = opened.inbox, opened.files["a"]
    opened.deliver()
    ANSWERS[name][0](path)
    box.look(is_last=True)
    assert box.missing == ["a"]
    row = opened.server.close(box.found)
    assert (row["clients"], row["dropped"]) == (4, 2)
    assert opened.server.attendance[1] == {0: False, 1: False, 2: True, 3: True, 4: True, 6: True}


def test_a_file_that_is_being_written_is_not_set_aside(opened, monkeypatch):
    box, said, path = opened.inbox, opened.said, opened.files["a"]
    content, now = opened.right["a"].read_bytes(), [0.0]
    monkeypatch.setattr(exchange.time, "monotonic", lambda: now[0])
    for length in (10, 100, len(content) - 1):
        path.write_bytes(content[:length])
        for _ in range(3):
            box.look()
        now[0] += 0.6 * exchange.SETTLE_SECONDS
        box.look()
        assert said == []
        assert path.stat().st_size == length
    path.write_bytes(content)
    now[0] += exchange.SETTLE_SECONDS
    box.look()
    assert "a" not in box.missing
    assert said == []


def test_a_file_that_stays_unfinished_is_set_aside_after_a_while(opened, monkeypatch):
    box, said, path = opened.inbox, opened.said, opened.files["a"]
    now = [0.0]
    monkeypatch.setattr(exchange.time, "monotonic", lambda: now[0])
    path.write_bytes(opened.right["a"].read_bytes()[:100])
    for _ in range(3):
        box.look()
        now[0] += exchange.SETTLE_SECONDS / 2
    assert len(said) == 1
    assert not path.exists()
    (kept,) = (path.parent.parent.parent / "answers").glob("*/refused-answer-000001.msg")
    assert kept.read_bytes() == opened.right["a"].read_bytes()[:100]


def test_an_answer_that_comes_back_is_left_where_it_is(opened):
    """A site with no other answer would otherwise write it again and again."""
    box, said, path = opened.inbox, opened.said, opened.files["a"]
    for _ in range(3):
        path.write_bytes(b"nonsense!")
        box.look(is_last=True)
    assert len(said) == 2
    assert "the same file came back" in said[1]
    assert path.exists()


def test_the_copies_of_a_synchronizer_are_no_messages(opened):
    box, said, path = opened.inbox, opened.said, opened.files["a"]
    for name in ("answer-000001.sync-conflict-20261128-010203-ABCDEFG.msg", "answer-000001 (conflicted copy).msg"):
        path.with_name(name).write_bytes(b"nonsense!")
    for number in (1, 2, 3, 1_000_000):
        transport.question_file(path.parent, number).touch()
    path.with_name("question-000004.sync-conflict-20261128-010203-ABCDEFG.msg").touch()
    assert transport.find_last_question(path.parent) == 1_000_000
    opened.deliver("a")
    box.look(is_last=True)
    assert "a" not in box.missing
    assert len(said) == 2
    assert all("is not used" in line for line in said)


def test_an_answer_that_changes_after_it_was_read_changes_nothing(opened):
    box, path = opened.inbox, opened.files["a"]
    opened.deliver()
    box.look()
    fill(np.nan)(path)
    assert opened.server.close(box.found)["clients"] == 6


@pytest.mark.parametrize("weight", [1e300, 1.7e308, 99.0])
def test_a_weight_counts_at_most_the_agreed_number_of_samples(weight, opened, asked):
    box, said, path = opened.inbox, opened.said, opened.files["a"]
    opened.deliver()
    agreed = opened.server.max_weight(0)

    set_sent(weight=weight)(path)
    box.look()
    opened.server.close(box.found)
    world = asked[0]
    state = next(iter(world.simulate()))[1]
    for name, value in state["global"].items():
        assert value.numpy().tobytes() == opened.server.progress.state["global"][name].numpy().tobytes()
    (line,) = said
    assert all(word in line for word in ("'a'", f"{weight:g}", f"{agreed:g}"))


def test_the_versions_of_a_site_begin_no_line_of_the_log(opened):
    opened.deliver()
    with_head(lambda head: head["versions"].update(torch="2\nround 9: loss 0.1"))(opened.files["a"])
    opened.inbox.look()
    (line,) = opened.said
    assert "last bits may differ" in line
    assert "\n" not in line


@pytest.mark.parametrize("name", ["fedala", "fedavg", "scaffold"])
def test_a_round_without_an_upload_changes_nothing(name, tmp_path):
    """Sites may say that their clients have nothing to send, as those of pfedgp do whose samples have one class."""
    world = make_world(name, tmp_path, participation=1.0)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    questions, paths = world.write_questions(server)
    answers = {}
    for site, path in paths.items():
        answer = sites[site].answer(path)

        def send_nothing(head, entries, data):
            head["clients"] = [{**each, "trained": False} for each in head["clients"]]
            head["channels"] = [{**each, "sent": []} for each in head["channels"]]
            head["losses"] = []
            entries.clear()
            return b""

        rewrite(answer, send_nothing)
        answers[site] = server.check(answer, questions[site], digest(path))
    before = {key: value.clone() for key, value in server.progress.state["global"].items()}
    assert server.close(answers)["clients"] == 0
    for key, value in server.progress.state["global"].items():
        assert torch.equal(value, before[key])
    assert server.rounds == 1


@pytest.mark.parametrize("number", [0, 1])
def test_a_round_of_one_kind_takes_no_answer_of_another_kind(number, tmp_path):
    """In its warm-up, fedattn has one channel with a model; afterwards three, the first with a representation."""
    world = make_world("fedattn", tmp_path, participation=1.0, options={"warmup": 1})
    server, site = world.make_server(), world.make_site("a")
    questions, paths = world.write_questions(server)
    answer = site.answer(paths["a"])
    warm_up, later = world.terms.patterns["round"]
    (dtype, shape) = later.channels[0].layout["z"]
    clients = [0, 1]

    def change(head, entries, data):
        sent = [{"client": client, "weight": 1.0, "loss": 0.0} for client in clients]
        if number == 0:  # the representations of the other kind
            entries.clear()
            size = shape[0] * dtype.itemsize
            for place, client in enumerate(clients):
                entries[f"0/{client}/z"] = {
                    "dtype": "F32",
                    "shape": list(shape),
                    "data_offsets": [place * size, (place + 1) * size],
                }
            return bytes(len(clients) * size)
        head["channels"].append({"number": 1, "sent": sent})  # a channel without tensors
        return data

    rewrite(answer, change)
    assert len(warm_up.channels) == 1
    with pytest.raises(InputError):
        server.check(answer, questions["a"], digest(paths["a"]))


@pytest.mark.parametrize("cluster", [4, 1 << 62])
def test_a_client_that_chooses_no_cluster_drops_out_of_the_round(cluster, tmp_path):
    world = make_world("ifca", tmp_path, GROUPS["1 client a site"], participation=1.0, rounds=1)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    questions, paths = world.write_questions(server)
    answers = {}

    def lie(head, entries, data):
        begin, end = entries["0/0/cluster"]["data_offsets"]
        return data[:begin] + np.asarray([cluster], np.int64).tobytes() + data[end:]

    for site in questions:
        answer = sites[site].answer(paths[site])
        if site == "site 0":
            rewrite(answer, lie)
        answers[site] = server.check(answer, questions[site], digest(paths[site]))
    row = server.close(answers)
    assert (row["clients"], row["diverged"]) == (5, [0])
    _, state, _ = next(iter(world.simulate({0: [0]})))
    for name, value in state["models"].items():
        assert torch.equal(value, server.progress.state["models"][name])
