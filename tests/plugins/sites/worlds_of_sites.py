"""A server and sites in one process, that exchange message files in a folder, beside the simulation of the same run."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from pflcli.core import config, methods, sources
from pflcli.core.engine.federation import Federation
from pflcli.core.federation.run import Place, RunInputs
from pflcli.core.settings import Settings
from pflcli.core.simulation import loop
from pflcli.core.simulation.create_run import create_run
from pflcli.plugins.sites import messages, transport
from pflcli.plugins.sites.admission import keep_samples
from pflcli.plugins.sites.endpoints import Server, Site, Terms, inputs_at_site
from pflcli.plugins.sites.opening import rehearse
from pflcli.plugins.sites.places import AtServer
from pflcli.workflow.admission import small_federation as small

GROUPS = {
    "1 client a site": {f"site {client}": (client,) for client in range(7)},
    "2 or 3 clients a site": {"a": (0, 1), "b": (2, 3, 5), "c": (4, 6)},
    "all clients at one site": {"a": tuple(range(7))},
}


def make_run(name, data, inputs, *, mode="auto", options=None, **settings):
    chosen = {"model": "mlp", "rounds": 3, "participation": 0.5, "batch_size": 4, "apart": True, **settings}
    code = methods.load(name)
    plan = config.build(Settings, chosen, "")
    cfg = config.build(code.Config, options or {}, name)
    noise = partial(small.rng.generator, 1)
    return create_run(code, cfg, data, plan, 0, replace(inputs, private_rng=noise), mode=mode)


@dataclass
class World:
    """The endpoints of a deployment of the small federation in a folder."""

    name: str
    folder: Path
    sites: dict[str, tuple[int, ...]]
    settings: dict
    data: Federation
    waits: bool = False
    """whether sites wait in their phases"""

    def __post_init__(self):
        self.messages = messages
        self.method = methods.load(self.name)
        self.terms = Terms("hash", self.name, self.sites, versions=sources.read_versions())
        place = AtServer(rehearses=True)
        rehearsed = make_run(
            self.name, keep_samples(self.data, (), declared=True), RunInputs(place=place), **self.settings
        )
        self.terms = replace(self.terms, patterns=rehearse(self.name, self.method, rehearsed))

    def make_server(self, folder="server"):
        run = make_run(
            self.name, keep_samples(self.data, (), declared=True), RunInputs(place=AtServer()), **self.settings
        )
        return Server(self.terms, self.method, run, self.folder / folder)

    def make_site(self, site, folder=None, **records):
        plan = config.build(Settings, {"upload": self.settings.get("upload", ())}, "")
        given = inputs_at_site(plan, self.data.sizes("train"), **records)
        run = make_run(self.name, keep_samples(self.data, self.sites[site]), given, **self.settings)
        return Site(self.terms, self.method, run, site, self.folder / (folder or f"site {site}"), waits=self.waits)

    def simulate(self, absent=()):
        """Yield the state and the row after each round of the simulation."""
        run = make_run(self.name, self.data, RunInputs(place=Place(dict(absent))), **self.settings)
        state = loop.set_up(run, self.name, self.method).state
        for t in range(run.settings.rounds):
            state, row = loop.play_round(run, self.name, self.method, state, t)
            yield run, state, row

    def write_questions(self, server):
        """Return the path of each site's question, by site."""
        questions, paths = server.ask(), {}
        for site, question in questions.items():
            folder = transport.folder_of(self.folder / "exchange", [*self.sites], site)
            paths[site] = transport.question_file(folder, question.number)
            messages.write(paths[site], question, server.tensors(question))
        return questions, paths

    def exchange_once(self, server, sites, absent=(), late=()):
        """Ask and answer once; sites answer in reverse order, ``late`` ones to nobody. Returns the row of a round."""
        questions, paths = self.write_questions(server)
        for site in {*questions} & {*late}:
            sites[site].answer(paths[site])
        answers = {}
        for site in reversed([site for site in questions if site not in (*absent, *late)]):
            kept = paths[site].with_suffix(".answer")
            shutil.copy(sites[site].answer(paths[site]), kept)  # the site replaces its own in the next phase
            answers[site] = server.check(kept, questions[site], digest(paths[site]))
        return server.close(answers)

    def play(self, server, sites, absent=(), late=()):
        """Play a round over messages, after the setup if that has some, and return its row."""
        row = None
        while row is None:
            row = self.exchange_once(server, sites, absent, late)
        return row


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_world(name, folder, sites=GROUPS["2 or 3 clients a site"], data=None, **settings):
    return World(name, folder, dict(sites), settings, small.make_federation() if data is None else data)


def parse(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    return json.loads(entries.pop("__metadata__")["pfl"]), entries, content[8 + length :]


def rewrite(path, change):
    """Write the message again after ``change(head, entries, data)``, which may return other data."""
    head, entries, data = parse(path)
    changed = change(head, entries, data)
    text = json.dumps({"__metadata__": {"pfl": json.dumps(head)}, **entries}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + (data if changed is None else changed))


def put_number(number):
    def change(head, entries, data):
        return np.asarray([number], np.float32).tobytes() + data[4:]

    return change


def change_entry(**changes):
    def change(head, entries, data):
        entries[next(iter(entries))] |= changes

    return change


def add_tensor(head, entries, data):
    entries["0/0/more"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    return data + bytes(4)


def drop_tensor(head, entries, data):
    begin, _ = entries.popitem()[1]["data_offsets"]
    return data[:begin]


BOTH = {
    "one more tensor": (add_tensor, "which does not belong"),
    "one tensor less": (drop_tensor, "lacks the tensor"),
    "one more key": (lambda head, *_: head.update(note="x"), "note"),
    "another federation": (lambda head, *_: head.update(federation="other"), "another federation"),
    "another site": (lambda head, *_: head.update(site="b"), "not for 'a'"),
    "another version": (lambda head, *_: head.update(version=1), "another version"),
    "another kind": (lambda head, *_: head.update(kind="final"), "is not a"),
    "another type": (change_entry(dtype="I32"), "is int32"),
    "an unknown type": (change_entry(dtype="F8"), "unknown type"),
    "another shape": (change_entry(shape=[1000]), "is float32 1000"),
    "a huge shape": (change_entry(shape=[1 << 60]), "does not follow"),
    "a negative shape": (change_entry(shape=[-1]), "no valid shape"),
    "overlapping tensors": (change_entry(data_offsets=[0, 4]), "does not follow"),
    "not a number": (put_number(np.nan), "not finite"),
    "a huge number": (put_number(1e30), "too large"),
    "cut off": (lambda head, entries, data: data[:-1], "truncated"),
    "bytes at the end": (lambda head, entries, data: data + b"x", "truncated"),
}
