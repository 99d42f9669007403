"""Flower and NVFlare carry the messages of real sites: the scripts of examples/deploy, where these are installed.

What the relays decide by themselves is tested without Flower and NVFlare, whose interfaces are replaced.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from worlds_of_sites import digest, make_world

from helpers import ROOT
from pflcli.plugins.sites.exchange import answer_file, final_file, folder_of, question_file

RELAYS = {"flower": "flwr", "nvflare": "nvflare"}
"""The program of each relay; FLOWER_ENVIRONMENT and NVFLARE_ENVIRONMENT are the environments with them."""


def run_script(name, folder):
    """Run a script of examples/deploy, and return what it printed."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["bash", DEPLOY / f"{name}.sh", folder]
    ran = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.long
def test_hospitals_whose_tables_differ_have_the_bytes_of_the_simulation(tmp_path):
    assert run_script("study", tmp_path / "runs").splitlines()[-1].endswith("in the simulation: 0")


@pytest.mark.long
@pytest.mark.parametrize("relay", RELAYS)
def test_a_relay_gives_the_bytes_of_the_exchange_by_a_folder(relay, tmp_path):
    environment = os.environ.get(f"{relay.upper()}_ENVIRONMENT", "")
    if not Path(environment, "bin", RELAYS[relay]).exists():
        pytest.skip(f"{relay.upper()}_ENVIRONMENT is no environment with {RELAYS[relay]}")
    printed = [run_script(script, tmp_path / "runs") for script in ("four_hospitals", relay)]
    assert "have the bytes of the exchange by a folder" in printed[1]


NAMES = ("Charité Berlin", "São Paulo", "tiny")
DEPLOY = ROOT.parent / "examples" / "deploy"


def load_relay(path, monkeypatch, **modules):
    """Import a relay with these modules in place of those of its framework."""
    for name, members in modules.items():
        module = ModuleType(name.replace("_", "."))
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("relay_under_test", path)
    relay = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(relay)
    monkeypatch.setattr(relay, "POLL_SECONDS", 0.01)
    return relay


@pytest.fixture
def exchange(tmp_path):
    """A server that plays two rounds with three sites, whose names have spaces and accents, and the sites."""
    world = make_world("fedavg", tmp_path, dict(zip(NAMES, ((0, 1), (2, 3), (4, 6)), strict=True)), participation=1.0)
    server = world.make_server()
    world.write_questions(server)
    return world, server, {name: world.make_site(name) for name in NAMES}


def folder(world, name):
    return folder_of(world.folder / "exchange", [*NAMES], name)


class Grid:
    """Flower's grid: a node for each site, the last of which never replies while ``is_silent``."""

    def __init__(self, world, sites, names):
        self.world, self.sites, self.names = world, sites, dict(enumerate(names))
        self.is_silent, self.sent, self.codes = True, {}, {}

    def get_node_ids(self):
        return [*self.names]

    def push_messages(self, messages):
        for message in messages:
            message.number = f"message {len(self.sent)}"
            self.sent[message.number] = message
        return [message.number for message in messages]

    def pull_messages(self, numbers):
        for number in numbers:
            node, content = self.sent[number].node, self.sent[number].content["message"]["file"].data
            if not (self.is_silent and node == len(self.names) - 1):
                yield self.reply(number, self.names[node], content)

    def reply(self, number, name, content):
        code, answer = self.codes.pop(name, 0), b""
        if content and not code and b"question" in content[:4000]:
            path = self.world.folder / "carried"
            path.write_bytes(content)
            answer = self.sites[name].answer(path).read_bytes()
        return SimpleNamespace(
            metadata=SimpleNamespace(reply_to_message_id=number),
            content={"head": {"site": name, "code": code}, "message": {"file": SimpleNamespace(data=answer)}},
            has_error=lambda: False,
        )


def load_flower(monkeypatch):
    app = SimpleNamespace(main=lambda: lambda function: function)
    return load_relay(
        DEPLOY / "flower" / "relay" / "server.py",
        monkeypatch,
        flwr_app={
            **dict.fromkeys(("ArrayRecord", "RecordDict"), dict),
            "Array": lambda kind, shape, form, data: SimpleNamespace(data=data),
            "Context": None,
            "Message": lambda content, dst_node_id, message_type: SimpleNamespace(content=content, node=dst_node_id),
        },
        flwr_serverapp={"Grid": None, "ServerApp": lambda: app},
    )


def test_a_silent_site_does_not_block_the_others_in_flower(exchange, monkeypatch):
    world, server, sites = exchange
    relay = load_flower(monkeypatch)
    grid = Grid(world, sites, NAMES)
    carrier = relay.Relay(grid, world.folder / "exchange")
    for _ in range(3):
        carrier.step()
    answered = {name for name in NAMES if answer_file(folder(world, name), 1).exists()}
    assert answered == {*NAMES[:2]}
    assert carrier.nodes == {NAMES[0]: 0, NAMES[1]: 1}
    # The server goes on without the silent site, which answers the next question when it is back.
    answer_file(folder(world, NAMES[2]), 1).touch()
    paths = {name: question_file(folder(world, name), 1) for name in NAMES}
    questions = server.ask()
    server.close({n: server.check(answer_file(paths[n].parent, 1), questions[n], digest(paths[n])) for n in answered})
    world.write_questions(server)
    grid.is_silent = False
    for _ in range(3):
        carrier.step()
    assert all(answer_file(folder(world, name), 2).exists() for name in NAMES)


def test_a_question_that_is_removed_while_it_is_read_does_not_end_the_relay_of_flower(exchange, monkeypatch):
    world, _, sites = exchange
    relay = load_flower(monkeypatch)
    grid = Grid(world, sites, NAMES)
    grid.is_silent = False
    carrier, find = relay.Relay(grid, world.folder / "exchange"), relay.find_open_messages
    gone = question_file(folder(world, NAMES[0]), 1)

    def find_then_remove(*args):
        found = find(*args)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(relay, "find_open_messages", find_then_remove)
    for _ in range(3):
        carrier.step()
    assert {name for name in NAMES if answer_file(folder(world, name), 1).exists()} == {*NAMES[1:]}


def test_a_site_that_fails_is_asked_again_in_flower(exchange, monkeypatch, capsys):
    world, _, sites = exchange
    relay = load_flower(monkeypatch)
    monkeypatch.setattr(relay, "RETRY_SECONDS", 0.0)
    grid = Grid(world, sites, NAMES)
    grid.is_silent = False
    carrier = relay.Relay(grid, world.folder / "exchange")
    carrier.step()
    grid.codes = {NAMES[1]: 3}
    carrier.step()
    assert "São Paulo: pfl ended with exit code 3" in capsys.readouterr().out
    assert not answer_file(folder(world, NAMES[1]), 1).exists()
    carrier.step()
    assert all(answer_file(folder(world, name), 1).exists() for name in NAMES)


def test_a_node_cannot_take_the_name_of_another_in_flower(exchange, monkeypatch, capsys):
    world, _, sites = exchange
    grid = Grid(world, sites, [*NAMES, "tiny"])
    grid.is_silent = False
    carrier = load_flower(monkeypatch).Relay(grid, world.folder / "exchange")
    for _ in range(3):
        carrier.step()
    assert carrier.nodes["tiny"] == 2
    assert "node 3 says that it is 'tiny', which node 2 is" in capsys.readouterr().out


def test_the_relay_of_flower_ends_when_every_site_has_the_last_message(exchange, monkeypatch):
    world, server, sites = exchange
    relay = load_flower(monkeypatch)
    grid = Grid(world, sites, NAMES)
    grid.is_silent = False
    for name in NAMES:
        world.messages.write(final_file(folder(world, name)), *server.final(name))
    context = SimpleNamespace(run_config={"exchange": str(world.folder / "exchange"), "sites": 3})
    relay.main(grid, context)
    assert len(grid.sent) == 6


class Client:
    """A client of NVFlare; ``failures`` calls raise an error first."""

    def __init__(self, world, site, name, failures=0):
        self.world, self.site, self.name, self.failures = world, site, name, failures

    def __call__(self, timeout):
        return self

    def answer(self, content):
        if self.failures:
            self.failures -= 1
            raise TimeoutError("no result")
        if b"final" in content[:4000]:
            return 0, b""
        path = self.world.folder / f"carried {self.name}"
        path.write_bytes(content)
        return 0, self.site.answer(path).read_bytes()


def test_names_with_spaces_and_failures_in_nvflare(exchange, monkeypatch, capsys):
    world, server, sites = exchange
    collab = SimpleNamespace(main=lambda function: function, publish=lambda function: function)
    relay = load_relay(DEPLOY / "nvflare" / "relay.py", monkeypatch, nvflare_collab={"collab": collab})
    monkeypatch.setattr(relay, "RETRY_SECONDS", 0.01)
    names = {name: folder(world, name).name[4:] for name in NAMES}
    assert names["Charité Berlin"] == "Charit-Berlin"
    collab.clients = [Client(world, sites[name], names[name], failures=2 * (name == "tiny")) for name in NAMES]
    monkeypatch.setenv("PFL_EXCHANGE", str(world.folder / "exchange"))
    carrier = threading.Thread(target=relay.run, daemon=True)
    carrier.start()
    until = time.monotonic() + 30
    while time.monotonic() < until and not all(answer_file(folder(world, name), 1).exists() for name in NAMES):
        time.sleep(0.01)
    assert all(answer_file(folder(world, name), 1).exists() for name in NAMES)
    for name in NAMES:
        world.messages.write(final_file(folder(world, name)), *server.final(name))
    carrier.join(30)
    assert not carrier.is_alive()
    assert capsys.readouterr().out.count("tiny: no answer to question-000001.msg (no result)") == 2
