"""Flower and NVFlare carry the messages of real sites: the scripts of examples/deploy, where these are installed.

What the relays decide by themselves is tested without Flower and NVFlare, whose interfaces are replaced; a thread for
each site does what ``pfl site serve`` does.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from worlds_of_sites import digest, make_world

from helpers import ROOT, imports
from pflcli.plugins.sites import transport
from pflcli.plugins.sites.transport import (
    Folder,
    answer_file,
    deliver,
    final_file,
    folder_of,
    question_file,
    read_pieces,
    relay,
)

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
SHORT = {"Charité Berlin": "Charit-Berlin", "São Paulo": "S-o-Paulo", "tiny": "tiny"}
"""The names of folders in an exchange, without numbers."""
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
    return relay


class Deployment:
    """A server that asks three sites, whose names have spaces and accents, and a thread for each site.

    ``away`` sites never reply, and ``failures`` calls of a site fail first.
    """

    def __init__(self, folder):
        sites = dict(zip(NAMES, ((0, 1), (2, 3), (4, 6)), strict=True))
        self.world = make_world("fedavg", folder, sites, participation=1.0)
        self.server = self.world.make_server()
        self.exchange = Folder(folder / "exchange")
        self.world.write_questions(self.server)
        self.away, self.failures, self.delivered = set(), dict.fromkeys(SHORT.values(), 0), []
        self.ends = threading.Event()
        self._threads = [threading.Thread(target=self._serve, args=(name,), daemon=True) for name in NAMES]
        for thread in self._threads:
            thread.start()

    def stop(self):
        self.ends.set()
        for thread in self._threads:
            thread.join(30)

    def at_site(self, short):
        return Folder(self.world.folder / "at sites" / short)

    def _serve(self, name):
        site, own = self.world.make_site(name), self.at_site(SHORT[name])
        while not self.ends.is_set():
            for address, _ in own.fetch(folder_of(own.path, [*NAMES], name).name):
                if address.number is not None:
                    own.post(address.answer, read_pieces(site.answer(own.find(address))))
            time.sleep(0.01)

    def receive(self, short, address, content):
        """Do what a relay at a site does: return its answer."""
        self.delivered.append(address)
        if self.failures[short]:
            self.failures[short] -= 1
            raise TimeoutError("no result")
        return deliver(self.at_site(short), address, content, 20.0)

    def folder(self, name):
        return folder_of(self.exchange.path, [*NAMES], name)

    def answered(self, number):
        return {name for name in NAMES if answer_file(self.folder(name), number).exists()}


@pytest.fixture
def deployment(tmp_path):
    made = Deployment(tmp_path)
    yield made
    made.stop()


class Grid:
    """Flower's grid: a node for each public key."""

    def __init__(self, deployment, keys):
        self.deployment, self.sent = deployment, {}
        self.nodes = dict(enumerate(keys))

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, public_key=key) for node, key in self.nodes.items()]

    def push_messages(self, messages):
        for message in messages:
            message.number = f"message {len(self.sent)}"
            self.sent[message.number] = message
        return [message.number for message in messages]

    def pull_messages(self, numbers):
        for number in numbers:
            message = self.sent[number]
            short = self.nodes[message.node].decode().removeprefix("key of ")
            if short not in self.deployment.away:
                yield self.reply(number, short, message.content)

    def reply(self, number, short, content):
        metadata = SimpleNamespace(reply_to_message_id=number)
        try:
            answer = self.deployment.receive(short, content["head"]["address"], content["message"]["file"].data)
        except TimeoutError:
            return SimpleNamespace(metadata=metadata, has_error=lambda: True, error=SimpleNamespace(code=3))
        records = {"message": {"file": SimpleNamespace(data=answer)}}
        return SimpleNamespace(metadata=metadata, content=records, has_error=lambda: False)


def load_flower(monkeypatch):
    pytest.importorskip("cryptography")
    app = SimpleNamespace(main=lambda: lambda function: function)
    return load_relay(
        DEPLOY / "flower" / "relay" / "server.py",
        monkeypatch,
        flwr_app={
            **dict.fromkeys(("ArrayRecord", "ConfigRecord", "RecordDict"), dict),
            "Array": lambda kind, shape, form, data: SimpleNamespace(data=data),
            "Context": None,
            "Message": lambda content, dst_node_id, message_type: SimpleNamespace(content=content, node=dst_node_id),
        },
        flwr_serverapp={"Grid": None, "ServerApp": lambda: app},
    )


def load_nvflare(monkeypatch):
    collab = SimpleNamespace(main=lambda function: function, publish=lambda function: function)
    return load_relay(DEPLOY / "nvflare" / "relay.py", monkeypatch, nvflare_collab={"collab": collab})


KEYS = {short: f"key of {short}".encode() for short in SHORT.values()}


def make_flower(deployment, monkeypatch):
    return load_flower(monkeypatch).Flower(Grid(deployment, KEYS.values()), KEYS)


class Client:
    """A client of NVFlare."""

    def __init__(self, deployment, name):
        self.deployment, self.name = deployment, name

    def __call__(self, timeout):
        return self

    def deliver(self, address, content):
        if self.name in self.deployment.away:
            self.deployment.ends.wait()
            raise TimeoutError("no result")
        return self.deployment.receive(self.name, address, content)


def make_nvflare(deployment, monkeypatch):
    clients = [Client(deployment, short) for short in SHORT.values()]
    return load_nvflare(monkeypatch).Collab(clients, ThreadPoolExecutor(len(clients)))


MAKE = {"flower": make_flower, "nvflare": make_nvflare}


@pytest.fixture(params=MAKE)
def carried(request, deployment, monkeypatch):
    """A deployment, and the transport that carries its messages."""
    return deployment, MAKE[request.param](deployment, monkeypatch)


def carry(deployment, made, is_done, limit=60.0):
    """Relay in steps until ``is_done``, as ``relay`` does until the last messages have arrived."""
    until = time.monotonic() + limit
    while not is_done() and time.monotonic() < until:
        for site in deployment.exchange.sites:
            for address, pieces in deployment.exchange.fetch(site):
                made.post(address, pieces)
        for address, pieces in made.fetch(transport.SERVER):
            if address.number is not None:
                deployment.exchange.post(address, pieces)
        time.sleep(0.01)
    assert is_done()


def close(deployment, number, names):
    """Let the server close a phase with the answers of these sites, and ask again."""
    paths = {name: question_file(deployment.folder(name), number) for name in NAMES}
    server, questions = deployment.server, deployment.server.ask()
    server.close({n: server.check(answer_file(paths[n].parent, number), questions[n], digest(paths[n])) for n in names})
    return deployment.world.write_questions(server)


def test_a_transport_carries_questions_answers_and_the_last_message(carried):
    deployment, made = carried
    carry(deployment, made, lambda: deployment.answered(1) == {*NAMES})
    for name in NAMES:
        own = deployment.at_site(SHORT[name])
        at_site = answer_file(folder_of(own.path, [*NAMES], name), 1)
        assert at_site.read_bytes() == answer_file(deployment.folder(name), 1).read_bytes()
    assert len(deployment.delivered) == 3  # nothing is sent again while it is on its way
    for name in NAMES:
        deployment.world.messages.write(final_file(deployment.folder(name)), *deployment.server.final(name))
    said = []
    relay(deployment.exchange, made, 3, said.append)
    assert sorted(said) == sorted(f"{deployment.folder(name).name}/final.msg" for name in NAMES)
    for name in NAMES:
        own = deployment.at_site(SHORT[name])
        assert final_file(folder_of(own.path, [*NAMES], name)).exists()


def test_a_silent_site_does_not_block_the_others(carried):
    deployment, made = carried
    deployment.away = {"tiny"}
    carry(deployment, made, lambda: deployment.answered(1) == {*NAMES[:2]})
    # The server goes on without the silent site, which has a question of its own.
    close(deployment, 1, NAMES[:2])
    carry(deployment, made, lambda: deployment.answered(2) >= {*NAMES[:2]})
    assert "tiny" not in deployment.answered(1) | deployment.answered(2)


def test_a_site_whose_relay_fails_is_asked_again_later(carried, capsys, monkeypatch):
    deployment, made = carried
    monkeypatch.setitem(type(made).post.__globals__, "RETRY_SECONDS", 0.5)
    deployment.failures["S-o-Paulo"] = 2
    begun = time.monotonic()
    carry(deployment, made, lambda: deployment.answered(1) == {*NAMES})
    assert time.monotonic() - begun > 2 * 0.5
    assert capsys.readouterr().out.count("no answer to 001-S-o-Paulo/question-000001.msg") == 2
    assert sum("S-o-Paulo" in address for address in deployment.delivered) == 3


def test_several_runs_of_a_site_and_its_scores_are_carried_beside_each_other(carried):
    deployment, made = carried
    runs = ("seed-0-fedavg", "seed-1-ditto")
    site = deployment.folder("tiny")
    for run in runs:
        (site / run).mkdir()
        (site / run / "final.msg").write_bytes(run.encode())
    (site / "question-000001.msg").unlink()
    own = folder_of(deployment.at_site("tiny").path, [*NAMES], "tiny")

    def score():
        """Send the scores, as a site does that has the last messages of all runs."""
        while not all((own / run / "final.msg").exists() for run in runs):
            time.sleep(0.01)
        (own / transport.RECORDS).write_bytes(b"scores")

    scoring = threading.Thread(target=score, daemon=True)
    scoring.start()
    for name in NAMES[:2]:
        question_file(deployment.folder(name), 1).unlink()
    relay(deployment.exchange, made, 2, lambda text: None)
    assert [(own / run / "final.msg").read_bytes().decode() for run in runs] == [*runs]
    assert (site / transport.RECORDS).read_bytes() == b"scores"


def test_in_flower_only_the_node_with_the_key_of_a_site_gets_its_messages(deployment, monkeypatch, capsys):
    """Names that nodes give themselves do not count."""
    keys = {short: key for short, key in KEYS.items() if short != "S-o-Paulo"}
    grid = Grid(deployment, [*(key for key in KEYS.values() if key != KEYS["tiny"]), b"key of a stranger"])
    made = load_flower(monkeypatch).Flower(grid, keys)
    carry(deployment, made, lambda: deployment.answered(1) == {"Charité Berlin"})
    carry(deployment, made, lambda: len(capsys.readouterr().out) == 0)
    assert {message.node for message in grid.sent.values()} == {0}
    # A site whose node connects later gets its messages then.
    grid.nodes[7] = KEYS["tiny"]
    carry(deployment, made, lambda: deployment.answered(1) == {"Charité Berlin", "tiny"})


def test_what_the_relay_of_flower_says_about_nodes_and_keys(deployment, monkeypatch, capsys):
    made = load_flower(monkeypatch).Flower(Grid(deployment, [b"key of a stranger"]), {"tiny": KEYS["tiny"]})
    for _ in range(3):
        for site in deployment.exchange.sites:
            for address, pieces in deployment.exchange.fetch(site):
                made.post(address, pieces)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "node 0 gets no message" in lines[0]
    assert {line.partition(" ")[0] for line in lines[1:]} == {"'Charit-Berlin'", "'S-o-Paulo'"}


def test_keys_in_a_folder_are_read_as_flower_writes_them(tmp_path, monkeypatch):
    from cryptography.hazmat.primitives import serialization  # beside MLflow, and in Flower's environment
    from cryptography.hazmat.primitives.asymmetric import ec

    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    (tmp_path / "charite.pub").write_bytes(public.public_bytes(*ssh) + b" somebody@somewhere")
    (tmp_path / "charite").write_text("not a public key")
    pem = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    assert load_flower(monkeypatch).read_keys(tmp_path) == {"charite": public.public_bytes(*pem)}


def test_relays_start_no_program_and_need_no_package_of_pfl():
    files = [*DEPLOY.glob("flower/relay/*.py"), DEPLOY / "nvflare" / "relay.py"]
    assert len(files) == 4
    names = {name for path in files for name in imports(ast.parse(path.read_text()))}
    assert {name for name in names if name.startswith("pflcli")} == {"pflcli.plugins.sites.transport"}
    assert not names & {"subprocess", "os.system"}
    code = "import sys, pflcli.plugins.sites.transport; print(*{name.partition('.')[0] for name in sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert not {*ran.stdout.split()} & {"torch", "numpy", "pandas", "pydantic", "h5py", "safetensors"}
