"""The server and a site of a deployment: a message in, a message out, and the state in a folder.

Both play the phases of a method as a simulation does, the rounds by ``simulation.loop.play_round``, and so give its
bytes. Neither needs a process that stays: the server plays a phase to ask, and again with every exchange of answers
until its end; a site plays it when it is asked, again or, if it ``waits``, further. What a phase changes is written to
a folder of its own, which gets its name in one step, when the phase is over. A killed process therefore repeats its
phase, with the same bytes, and a site that gets the same question again returns the answer that it has stored.

A question says in which round the server last received an answer of the site, and the site continues from its state
after that round. It keeps this state until the next answer has arrived: a round whose answer came too late is undone,
as the site has dropped out of it, and a site without the state is an error. If what clients have received in a phase
does not hold any more, as another one has diverged or is gone, the server begins another attempt at it.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from pflcli.artifacts import csv_file, disk, machine
from pflcli.core import foreign, parameters, sources
from pflcli.core.errors import ComputationError, InputError
from pflcli.core.federation import uploads
from pflcli.core.federation.run import NOBODY, Run, RunInputs
from pflcli.core.methods import Method, State
from pflcli.core.parameters import Params
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.settings import Settings
from pflcli.core.simulation import absences, loop
from pflcli.core.simulation.progress import Progress, Row, tables
from pflcli.core.wording import listed
from pflcli.plugins.sites import messages, norms
from pflcli.plugins.sites.messages import (
    VERSION,
    Answer,
    ClientResult,
    Completed,
    Final,
    Layout,
    Message,
    Pattern,
    Patterns,
    Question,
    SentByClient,
)
from pflcli.plugins.sites.places import Arrived, AtServer, AtSite, Pending, Reply, Sent, unpack
from pflcli.plugins.sites.transport import read_pieces, write_whole
from pflcli.plugins.sites.waiting import WaitingPhase
from pflcli.workflow.training import checkpoint, state_files

_MOST_TIMES = 1e6
"""Maximum ratio of the largest number that a client sends to that of the others: after more, no client could train."""
_MAX_NUMBER = float(np.finfo(np.float32).max)
"""Maximum training loss, and weight of one, in an answer: sums of their products are finite."""
_STATE, _ANSWER, _ROUNDS, _ATTENDANCE = "state.safetensors", "answer.msg", "rounds.csv", "attendance.json"
"""The files in the folder of a round."""
_PHASE, _ATTEMPT = "phase", "attempt.json"
"""The folder with the messages of a phase that is not over, at a site, and the file of its attempt, at the server."""
_ANSWERED = "answered.json"
"""At a site: which question it answered last."""
_ENTRY = "state/"
"""The beginning of the names of tensors with the server's part of the state."""


@dataclass(frozen=True)
class Terms:
    """What the server and all sites have agreed on.

    ``federation`` is its hash, ``sites`` are the clients of each site by name, and ``patterns`` what each client
    exchanges. ``versions`` are those that ``sources.read_versions`` returned where the federation was made.
    """

    federation: str
    method: str
    sites: Mapping[str, tuple[int, ...]]
    patterns: Patterns = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def patterns_of(self, number: int, rounds: int) -> tuple[Pattern, ...]:
        """Return what may be exchanged in phase ``number``: 0 is the setup, and what follows ``rounds`` the last."""
        return self.patterns.get(name_phase(number, rounds), ())

    def max_head(self, clients: int) -> int:
        """Return the maximum bytes of the head of a question to ``clients``, or of their answer."""
        patterns = [pattern for each in self.patterns.values() for pattern in each]
        tensors = [
            sum(map(len, each.deliveries)) + sum(1 + len(form.layout) for form in each.channels) for each in patterns
        ]
        return messages.max_head(clients, max(tensors, default=0))


def name_phase(number: int, rounds: int) -> str:
    """Return the name of a phase by its number: 0 is the setup, and what follows ``rounds`` the personalization."""
    return "setup" if number == 0 else "round" if number <= rounds else "personalize"


def find_other_code(agreed: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Return the difference if ``own`` versions are those of another pfl than ``agreed``; empty if they are not.

    Other versions of PyTorch and NumPy are not one: they differ in last bits.
    """
    if own.get("pfl") != agreed.get("pfl"):
        return f"pfl {str(own.get('pfl'))[:40]}, and the federation was made by pfl {agreed.get('pfl')}"
    is_same = own.get("code") == agreed.get("code")
    return "" if is_same else f"other code of pfl {agreed.get('pfl')} than the federation was made by"


def find_other_packages(agreed: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Return the packages of which there is another version than agreed on, so that last bits may differ."""
    differing = [name for name in agreed if name not in ("pfl", "code") and own.get(name) != agreed[name]]
    return listed([f"{name} {str(own.get(name))[:40]}, not {agreed[name]}" for name in differing])


class Server:
    """The server of a deployment, whose state is in ``folder``: a checkpoint after each phase."""

    def __init__(self, terms: Terms, method: Method, run: Run, folder: Path) -> None:
        """Continue after the last phase in ``folder``, if there is one. ``run`` has no sample, but their numbers."""
        self.terms, self.folder = terms, folder
        self._method, self.run = method, run
        assert isinstance(run.inputs.place, AtServer)
        self._place = run.inputs.place
        self.attendance: dict[int, dict[int, bool]] = {}
        """whether each client that was asked answered, by round from 1"""
        self.outliers: list[str] = []
        """a line for each outlier of the last round"""
        self.progress = Progress({})
        self._closed, self._number = -1, 0
        """the last phase that is closed, and the number of the last question"""
        self._asked = NOBODY
        """the clients that were asked in this phase, in any attempt"""
        self.implausible: list[str] = []
        """the sites whose last answers do not count, as their numbers are so much larger than those of others"""
        if (last := _find_last_round(folder)) is not None:
            self._closed = _number(last)
            self.progress, run.traffic, run.engine.mode = checkpoint.unpack(
                (last / _STATE).read_bytes(), last / _STATE, run
            )
            with foreign.parsing(str(last / _ATTENDANCE), "JSON"):
                facts = json.loads((last / _ATTENDANCE).read_text())
                self._number = int(facts["messages"])
                for number, clients in facts["rounds"].items():
                    self.attendance[int(number)] = {int(client): bool(answered) for client, answered in clients.items()}
            if run.privacy is not None and self.progress.rows:
                run.privacy.resume(len(self.progress.rows) - 1, self.progress.rows[-1])
        self._begin_phase()
        if self._closed < 0 and not self._patterns:
            self._play()
            self._closed = 0
            self._begin_phase()

    @property
    def rounds(self) -> int:
        """The number of rounds that are closed."""
        return len(self.progress.rows)

    @property
    def phase(self) -> int:
        """The number of the phase that is open: 0 is the setup."""
        return self._closed + 1

    @property
    def _rounds(self) -> int:
        return self.run.settings.rounds if self._method.has_rounds else 0

    def name_phase(self, number: int) -> str:
        """Return the name of a phase by its number: ``setup``, ``round`` or ``personalize``."""
        return name_phase(number, self._rounds)

    @property
    def _patterns(self) -> tuple[Pattern, ...]:
        return self.terms.patterns_of(self.phase, self._rounds)

    @property
    def _possible(self) -> tuple[Pattern, ...]:
        """Return what may be exchanged in this phase: rounds of another kind begin with other channels."""
        played = tuple(self._place.channels)
        return tuple(each for each in self._patterns if each.channels[: len(played)] == played)

    @property
    def _here(self) -> dict[str, tuple[int, ...]]:
        """Return the clients of each site that has not vanished in this phase."""
        gone = {*self._place.gone}
        return {site: clients for site, clients in self.terms.sites.items() if not {*clients} & gone}

    @property
    def is_finished(self) -> bool:
        """Whether all phases are closed."""
        return self.phase > self._rounds and not (self.phase == self._rounds + 1 and self._patterns)

    def _begin_phase(self) -> None:
        """Begin the next phase, or the attempt at it that was begun before this process was started."""
        self._asked, self._place.gone, self._diverged, self._attempt = NOBODY, (), set[int](), 1
        stored = self.folder / _ATTEMPT
        if stored.is_file():
            with foreign.parsing(str(stored), "JSON"):
                facts = json.loads(stored.read_text())
                if facts["phase"] == self.phase:
                    self._attempt, self._number = facts["attempt"], facts["messages"]
                    self._asked = np.asarray(facts["asked"], dtype=np.int64)
                    self._place.gone, self._diverged = facts["gone"], set(facts["diverged"])
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        self._delivered: list[dict[int, str]] = []
        """the hash of what each client has received, by delivery"""
        self._exchange, self._hashes, self._open = 0, dict[str, str](), dict[str, Question]()
        self._place.replies = {client: Reply(diverged=True) for client in self._diverged}
        self._losses: dict[str, list[tuple[float, float]]] = {}
        self._largest: dict[int, dict[int, float]] = {}
        """the largest number that each client sends, by channel"""
        self._place.losses = ()

    def _repeat_phase(self) -> None:
        """Begin another attempt at the phase, as clients received what does not hold any more."""
        self._attempt += 1
        self._diverged |= {client for client, reply in self._place.replies.items() if reply.diverged}
        self._store_attempt(self._attempt)
        self._begin_attempt()

    def _store_attempt(self, attempt: int) -> None:
        """Store with which attempt, and without which clients, another process continues the phase."""
        facts = {
            "phase": self.phase,
            "attempt": attempt,
            "messages": self._number,
            "asked": self._asked.tolist(),
            "gone": [*self._place.gone],
            "diverged": sorted(self._diverged),
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self.folder / f"{_ATTEMPT}.tmp"
            disk.write(temporary, [json.dumps(facts).encode()])
            temporary.replace(self.folder / _ATTEMPT)
        except OSError as error:
            raise disk.write_error(f"cannot write {self.folder / _ATTEMPT}", self.folder, error) from None

    def ask(self) -> dict[str, Question]:
        """Return the next question to each site that has clients in the phase; phases without a question are closed."""
        while not self._open and not self.is_finished:
            self._advance()
        return self._open

    def _advance(self) -> Row | None:
        """Play the phase as far as possible, then ask or close it; returns the row of a round that is closed."""
        while True:
            try:
                row = self._play()
            except Pending:
                hashes = self._hash_deliveries()
                if self._is_stale(hashes):
                    self._repeat_phase()
                    continue
                self._open = self._questions(hashes)
                return None
            self._commit(row)
            return row

    def _hash_deliveries(self) -> list[dict[int, str]]:
        """Return the hash of what each client receives in the last play, by delivery."""
        return [_hash_packages(packages) for _, packages in self._place.deliveries]

    def _is_stale(self, hashes: list[dict[int, str]]) -> bool:
        """Return whether a client that is asked has received something else in this attempt."""
        pairs = [*zip(self._delivered, hashes, strict=False)]
        return any(before.get(c) != now.get(c) for before, now in pairs for c in self._place.asked.tolist())

    def _require_delivered(self) -> None:
        """Raise Pending, which undoes the play, unless clients have received all that it has delivered."""
        hashes = self._hash_deliveries()
        if len(hashes) > len(self._delivered) or self._is_stale(hashes):
            self._place.awaited = None
            raise Pending

    def _questions(self, hashes: list[dict[int, str]]) -> dict[str, Question]:
        asked, first = set(self._place.asked.tolist()), len(self._delivered)
        self._asked = np.union1d(self._asked, self._place.asked)
        self._delivered, self._number = hashes, max(self._number + 1, self.phase)
        questions = {}
        for site, clients in self.terms.sites.items():
            if chosen := tuple(client for client in clients if client in asked):
                holders = tuple(_share(hashes[k], chosen) for k in range(first, len(hashes)))
                questions[site] = Question(
                    version=VERSION,
                    federation=self.terms.federation,
                    site=site,
                    number=self._number,
                    round=self.phase,
                    last_round=self._last_round(site),
                    attempt=self._attempt,
                    exchange=self._exchange,
                    previous=self._hashes.get(site, ""),
                    clients=chosen,
                    first=first,
                    deliveries=holders,
                )
        self._exchange += 1
        return questions

    def tensors(self, question: Question) -> Params:
        """Return the tensors of a question of ``ask``: what is delivered, and before clients personalize the state."""
        delivered = {
            f"{number}/{holder}/{name}": value
            for number, holders in enumerate(question.deliveries, question.first)
            for holder in dict(holders).values()
            for name, value in self._place.deliveries[number][1][holder].items()
        }
        if question.round <= self._rounds or question.exchange:
            return delivered
        entries = final_entries(self._method, self.progress.state)
        return {**delivered, **{f"{_ENTRY}{name}": value for name, value in entries.items()}}

    def _last_round(self, site: str) -> int:
        """Return the last phase in which a site answered; 0 if there is none, or the setup."""
        clients = self.terms.sites[site]
        rounds = reversed(self.attendance.items())
        return next((number for number, answered in rounds if any(answered.get(client) for client in clients)), 0)

    def max_bytes(self, question: Question) -> int:
        """Return the maximum size of a file with the answer to a ``question``."""
        clients = len(question.clients)
        sizes = [sum(messages.size(form.layout) for form in each.channels) for each in self._patterns]
        return 8 + self.terms.max_head(clients) + clients * max(sizes, default=0)

    def check(self, path: Path, question: Question, digest: str) -> Message:
        """Return the answer in a file to a ``question`` with this SHA-256; raises InputError if it does not fit.

        A phase can be closed with every answer that fits, whatever is in it.
        """
        with foreign.parsing(str(path), "the answer of a site"):
            head = self.terms.max_head(len(question.clients))
            message = messages.read(path, Answer, self.terms.federation, question.site, head)
            self._check_head(path, message.head, question, digest)
            last = max((channel.number for channel in message.head.channels), default=-1)
            possible = [each for each in self._possible if last < len(each.channels)]
            message.require_one_of(possible, partial(_layout_of_answer, message.head))
            for channel in message.head.channels:
                for sent in channel.sent:
                    upload = message.tensors(f"{channel.number}/{sent.client}/")
                    start = self._place.starts.get(channel.number)
                    received = upload if start is None else unpack(self.run.uploads, upload, start)
                    if not messages.are_finite(received):
                        raise InputError(f"{path} has a number that is not finite, or too large")
                    self._largest.setdefault(channel.number, {})[sent.client] = _find_largest(received)
        return message

    def _check_head(self, path: Path, answer: Answer, question: Question, digest: str) -> None:
        """Raise InputError if an answer does not belong to a question, or says what no site can say."""
        if answer.round != question.round:
            raise InputError(f"{path} answers round {answer.round}, not round {question.round}")
        if answer.question != digest or (answer.attempt, answer.exchange) != (question.attempt, question.exchange):
            raise InputError(f"{path} answers another message of round {question.round}")
        if answer.last_round != question.last_round:
            raise InputError(
                f"{path}: the site continued after round {answer.last_round}, but its last answer was that of round"
                f" {question.last_round}: it has lost its state"
            )
        if difference := find_other_code(self.terms.versions, answer.versions):
            raise InputError(f"{path} is by {difference}", f"install pfl {self.terms.versions.get('pfl')} at the site")
        results = {result.client: result for result in answer.clients}
        if tuple(result.client for result in answer.clients) != question.clients:
            raise InputError(f"{path} does not answer for the clients {list(question.clients)} that were asked")
        if any(each.diverged and (each.trained or not 1 <= answer.round <= self._rounds) for each in answer.clients):
            raise InputError(f"{path}: a client has diverged, and has trained or is in no round")
        present = [client for client, result in results.items() if not result.diverged]
        self._check_channels(path, answer, present)
        for loss, weight in answer.losses:
            if not 0 <= weight <= _MAX_NUMBER or abs(loss or 0.0) > _MAX_NUMBER:
                raise InputError(f"{path} has a loss or a weight that is not finite, or too large")

    def _check_channels(self, path: Path, answer: Answer, present: Sequence[int]) -> None:
        """Raise InputError unless the channels are those that the server waits for, and clients may send over them."""
        known = {client: self._place.replies.get(client, Reply()).complete for client in present}
        numbers = [channel.number for channel in answer.channels]
        if len(set(numbers)) < len(numbers) or any(set(numbers) & complete for complete in known.values()):
            raise InputError(f"{path} has a channel twice")
        if present and self._place.awaited is not None and self._place.awaited not in numbers:
            raise InputError(f"{path} lacks what the server waits for")
        most = max((len(each.channels) for each in self._possible), default=0)
        for channel in answer.channels:
            if channel.number >= most:
                raise InputError(f"{path}: there is no channel {channel.number} in round {answer.round}")
            senders = [sent.client for sent in channel.sent]
            if len(set(senders)) < len(senders) or not set(senders) <= set(present):
                raise InputError(f"{path} sends for a client that is not asked, or has diverged")
            for sent in channel.sent:
                if not 0 <= sent.weight < math.inf or abs(sent.loss or 0.0) > _MAX_NUMBER:
                    raise InputError(f"{path}: the weight or loss of client {sent.client} is not a positive number")
        if 1 <= answer.round <= self._rounds:
            self._check_updates(path, answer)

    def _check_updates(self, path: Path, answer: Answer) -> None:
        """Raise InputError unless the clients that have trained are those that send an update."""
        updates = [channel for channel in answer.channels if self._is_update(channel.number)]
        weights = {sent.client: sent.weight for channel in updates for sent in channel.sent}
        for result in answer.clients if updates else ():
            if result.trained is (result.client not in weights):
                raise InputError(f"{path}: client {result.client} has an upload that does not fit its result")
        if 0 in weights.values():
            raise InputError(f"{path}: the weight of an update is not a positive number")

    def _is_update(self, number: int) -> bool:
        return any(number < len(each.channels) and each.channels[number].is_update for each in self._possible)

    def max_weight(self, client: int) -> float:
        """Return the number of training samples that the federation knows of a client: no upload weighs more."""
        return float(self.run.federation.sizes("train")[client])

    def close(self, answers: Mapping[str, Message]) -> Row | None:
        """Take the answers to the last questions by site; returns the row of the phase if it is closed with them.

        Clients of sites without an answer count as dropped out, and so do those of ``implausible`` ones. Raises
        ComputationError if one is missing in the setup, of which all clients need to know.
        """
        self.implausible = [site for site, message in answers.items() if self._is_implausible(message.head)]
        answers = {site: message for site, message in answers.items() if site not in self.implausible}
        asked, answered = set(self._place.asked.tolist()), set[int]()
        replies = dict(self._place.replies)
        for site, message in answers.items():
            self._hashes[site] = message.head.question
            self._losses[site] = [(math.nan if loss is None else loss, weight) for loss, weight in message.head.losses]
            for result in message.head.clients:
                answered.add(result.client)
                reply = replies.get(result.client, Reply())
                reply = Reply(result.trained, result.diverged, set(reply.complete), dict(reply.sent))
                reply.complete |= {channel.number for channel in message.head.channels}
                replies[result.client] = reply
            for channel in message.head.channels:
                for sent in channel.sent:
                    weight = min(sent.weight, self.max_weight(sent.client))
                    read = partial(message.tensors, f"{channel.number}/{sent.client}/")
                    loss = math.nan if sent.loss is None else sent.loss
                    replies[sent.client].sent[channel.number] = Sent(read, weight, loss)
        if (missing := asked - answered) and self.phase == 0:
            raise ComputationError(f"the setup needs all clients, and {len(missing)} did not answer")
        self._place.replies = replies
        self._place.gone = sorted({*self._place.gone, *missing})
        if missing:  # a late answer must not bring them back after a kill: the others may have gone on without them
            self._store_attempt(self._attempt + 1)
        here = self._here
        self._place.losses = [pair for site, pairs in self._losses.items() if site in here for pair in pairs]
        self._open = {}
        return self._advance()

    def _is_implausible(self, answer: Answer) -> bool:
        """Return whether a client sends a number that is far larger than those of all others over the same channel."""
        for channel in answer.channels:
            by_client = self._largest.get(channel.number, {})
            for sent in channel.sent:
                others = [largest for client, largest in by_client.items() if client != sent.client]
                if others and by_client[sent.client] > _MOST_TIMES * max(1.0, float(np.median(others))):
                    return True
        return False

    def _play(self) -> Row | None:
        """Play the open phase; returns the row of a round. Raises Pending if it needs answers."""
        run, number = self.run, self.phase
        self._place.reset()
        before = dict(run.traffic)
        row = None
        try:
            if number == 0:
                run.tables = 0
                progress = loop.set_up(run, self.terms.method, self._method)
                self._require_delivered()
                self.progress = progress
            elif number <= self._rounds:
                with self.progress.round(run):
                    state = self.progress.state
                    self.progress.state, row = loop.play_round(run, self.terms.method, self._method, state, number - 1)
                    if not run.attendance.all_absent:  # else the round is undone, with what it would have delivered
                        self._require_delivered()
                    self.progress.rows.append(row)
            else:
                self._place.asked = np.setdiff1d(run.clients, [*self._place.gone])
                with run.personalizing():
                    self._method.personalize(run, self.progress.state, NOBODY)
                self._require_delivered()
        except Pending:
            run.traffic = before
            raise
        return row

    def _commit(self, row: Row | None) -> None:
        number = self.phase
        if number and len(self._asked):
            gone = {*self._place.gone}
            self.attendance[number] = {client: client not in gone for client in self._asked.tolist()}
        self.outliers = []
        if 1 <= number <= self._rounds and self.run.privacy is None:  # otherwise who takes part is a secret
            updates = norms.measure_updates(self._place, self.run.uploads, number, self._here, self._losses)
            norms.write_updates(self.folder, number, updates)
            self.outliers = norms.find_outliers(updates)
        rows = absences.count_clients([*self.progress.before, *self.progress.rows])
        files = {
            _STATE: [checkpoint.pack(self.run, self.progress)],
            _ROUNDS: [csv_file.encode_rounds(rows)],
            _ATTENDANCE: [json.dumps({"messages": self._number, "rounds": self.attendance}).encode()],
        }
        _write_round(self.folder, number, files)
        self._closed = number
        self._begin_phase()

    def final(self, site: str) -> tuple[Final, Params]:
        """Return the last message to a site, and its tensors."""
        head = Final(VERSION, self.terms.federation, site, self.rounds, self._last_round(site))
        is_known = self.terms.patterns.get("personalize")  # from the first question after the rounds
        return head, {} if is_known else final_entries(self._method, self.progress.state)


def _find_largest(params: Params) -> float:
    """Return the largest absolute value of the numbers in a model; 0 without any."""
    values = [value.abs().max() for value in params.values() if value.is_floating_point() and value.numel()]
    return max(map(float, values), default=0.0)


def _hash_packages(packages: Mapping[int, Params]) -> dict[int, str]:
    """Return the SHA-256 of what each client receives."""
    known = {id(package): parameters.digest(package) for package in packages.values()}
    return {client: known[id(package)] for client, package in packages.items()}


def _share(hashes: Mapping[int, str], clients: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the ``clients`` that receive something, each with the first of them that receives the same."""
    first = dict[str, int]()
    return tuple((client, first.setdefault(hashes[client], client)) for client in clients if client in hashes)


def _layout_of_answer(answer: Answer, pattern: Pattern) -> Layout:
    """Return the tensors of an answer by a pattern, without channels that it has not."""
    return {
        f"{channel.number}/{sent.client}/{name}": form
        for channel in answer.channels
        if channel.number < len(pattern.channels)
        for sent in channel.sent
        for name, form in pattern.channels[channel.number].layout.items()
    }


def _layout_of_question(question: Question, pattern: Pattern) -> Layout:
    """Return the tensors of a question by a pattern, without deliveries that it has not."""
    return {
        f"{number}/{holder}/{name}": form
        for number, holders in enumerate(question.deliveries, question.first)
        if number < len(pattern.deliveries)
        for holder in dict(holders).values()
        for name, form in pattern.deliveries[number].items()
    }


class Site:
    """A site of a deployment, whose state is in ``folder``: what its clients keep after the last two of its rounds."""

    def __init__(self, terms: Terms, method: Method, run: Run, site: str, folder: Path, *, waits: bool = False) -> None:
        """Continue after the last phase in ``folder``, if there is one. ``run`` has the samples of this site alone.

        If it ``waits``, it does not play a phase again for each exchange, but plays on, while this object exists.
        """
        self.terms, self.site, self.folder, self.waits = terms, site, folder, waits
        self._waiting: tuple[Question, WaitingPhase] | None = None
        """the last question of a phase that waits"""
        self.note_message: Callable[[Message], None] = lambda message: None
        """called with each message that fits, before anything is computed for it"""
        self._method, self.run = method, run
        assert isinstance(run.inputs.place, AtSite)
        self._place = run.inputs.place
        self._clients = np.asarray(terms.sites[site], dtype=np.int64)
        self._rounds = run.settings.rounds if method.has_rounds else 0
        self.state: State = {}
        self._in_rows: set[str] = set()
        """what clients keep in a row each"""
        self._return_to(_find_last_round(folder))

    def _return_to(self, last: Path | None) -> None:
        """Take the state in the folder of a phase; None is the state before the first one."""
        self._last = last
        self._place.asked, self._place.arrived = self._clients, self._read_deliveries(_folder_of_round(self.folder, 0))
        with suppress(Pending):  # the setup is a phase that the server has not begun
            self._set_up()
        if last is not None and _number(last):
            self._restore(last / _STATE)

    def _set_up(self) -> None:
        """Let the method set up its state; raises Pending if a delivery for that is missing."""
        self.run.tables = 0
        self.state = loop.set_up(self.run, self.terms.method, self._method).state
        self._in_rows = kept_in_rows(self._method, self.state, len(self.run.clients))

    @property
    def rounds(self) -> int:
        """The last phase that this site has played; 0 before the first round."""
        return 0 if self._last is None else _number(self._last)

    def name_phase(self, number: int) -> str:
        """Return the name of a phase by its number: ``setup``, ``round`` or ``personalize``."""
        return name_phase(number, self._rounds)

    def answer(self, path: Path) -> Path:
        """Answer the question in a file, write the state if the phase is over, and return the file of the answer.

        A question that was answered before in the phase gets the same answer again. Raises InputError for a message
        that does not fit, ComputationError if the method fails.
        """
        head = self.terms.max_head(len(self._clients))
        message = messages.read(path, Question, self.terms.federation, self.site, head)
        question: Question = message.head
        digest = messages.hash_file(message.path)
        patterns = self.terms.patterns_of(question.round, self._rounds)
        if question.round > self._rounds + 1 or not patterns:
            raise InputError(f"{path} is for round {question.round} of {self._rounds}")
        if (stored := self._stored_answer(path, question, digest)) is not None:
            self.note_message(message)
            return stored
        self._require_later(path, question, digest)
        own = tuple(client for client in self._clients.tolist() if client in question.clients)
        if not question.clients or question.clients != own:
            raise InputError(
                f"{path} asks clients {list(question.clients)}; those of {self.site} are {self._clients.tolist()}"
            )
        if not {pair for holders in question.deliveries for pair in holders} <= {(c, h) for c in own for h in own}:
            raise InputError(f"{path} delivers to clients that it does not ask")
        if not self._plays_on(question):
            self._abandon()
            self._continue_after(question, path)
        known = {}
        if question.round > self._rounds and not question.exchange:
            entries = parameters.outline(final_entries(self._method, self.state))
            known = {f"{_ENTRY}{name}": form for name, form in entries.items()}
        message.require_one_of(patterns, lambda pattern: {**_layout_of_question(question, pattern), **known})
        arrived = self._store_question(message, digest)
        self.note_message(message)
        is_over = self._play(question, arrived)
        answer, tensors = self._answer(question, digest, is_over=is_over)
        if misfit := messages.find_misfit(patterns, partial(_layout_of_answer, answer), parameters.outline(tensors)):
            self._abandon()
            shutil.rmtree(self.folder / _PHASE, ignore_errors=True)
            raise ComputationError(
                f"{self.terms.method}, round {question.round}: the method would send other tensors than those that pfl"
                f" site check has shown ({misfit}); no answer was written"
            )
        facts = {"question": _position(question), "sha256": digest}
        write_whole(self.folder / _ANSWERED, [json.dumps(facts).encode()])
        pieces = messages.pieces(answer, tensors)
        if not is_over:
            return write_whole(self.folder / _PHASE / f"answer-{question.exchange}.msg", pieces)
        files = {_STATE: [bytes(save(state_files.flatten(self._kept())))], _ANSWER: pieces}
        if not 1 <= question.round <= self._rounds:  # later processes read what was delivered
            files |= {each.name: [each.read_bytes()] for each in sorted((self.folder / _PHASE).glob("question-*.msg"))}
        self._last = _write_round(self.folder, question.round, files, keep=question.last_round)
        shutil.rmtree(self.folder / _PHASE, ignore_errors=True)
        return self._last / _ANSWER

    def _stored_answer(self, path: Path, question: Question, digest: str) -> Path | None:
        """Return the answer that was given to a question before; raises InputError for one that is late."""
        for copy in sorted((self.folder / _PHASE).glob("question-*.msg")):
            stored = copy.with_name(copy.name.replace("question", "answer"))
            if stored.exists() and messages.hash_file(copy) == digest:
                return stored
        if self._last is None or question.round > self.rounds:
            return None
        stored_head = self._read_answer().head
        if stored_head.question == digest:
            return self._last / _ANSWER
        if question.round < self.rounds:
            raise InputError(
                f"{path} is late: it is for round {question.round}, and {self.site} has played round {self.rounds}"
            )
        if question.attempt == stored_head.attempt:
            raise InputError(
                f"{path} is another message of round {question.round} than the one that {self.site} answered"
            )
        return None

    def _require_later(self, path: Path, question: Question, digest: str) -> None:
        """Raise InputError unless a question follows the last one that was answered, or is that one.

        Each answer with other deliveries tells more about the samples, so that none can be asked for at will. A phase
        begins again only without a client, and so at most as often as there are clients.
        """
        attempts = len(self.run.clients)
        if question.attempt > attempts:
            raise InputError(
                f"{path} is attempt {question.attempt} at round {question.round}: there are at most {attempts}, one for"
                " each site that may drop out"
            )
        stored = self.folder / _ANSWERED
        if stored.is_file():
            with foreign.reading(stored, "JSON"):
                facts = json.loads(stored.read_text())
                is_later = facts["sha256"] == digest or _position(question) > facts["question"]
            if not is_later:
                raise InputError(
                    f"{path} is late: {self.site} has answered a later message, or another one in its place"
                )

    def _store_question(self, message: Message, digest: str) -> list[Arrived]:
        """Copy a question beside the earlier ones of its phase; returns the deliveries that have arrived by then.

        Raises InputError if an earlier one is missing.
        """
        question, folder = message.head, self.folder / _PHASE
        earlier = [folder / f"question-{number}.msg" for number in range(question.exchange)]
        if earlier:
            is_known = earlier[-1].exists() and messages.hash_file(earlier[-1]) == question.previous
            head = self.terms.max_head(len(self._clients))
            before = messages.read(earlier[-1], Question, self.terms.federation, self.site, head) if is_known else None
            if before is None or _position(before.head)[:2] != _position(question)[:2]:
                raise InputError(f"{message.path} continues a message that {self.site} has not answered")
        if not earlier:
            shutil.rmtree(folder, ignore_errors=True)
        for later in folder.glob("*.msg"):
            if _exchange_of(later) >= question.exchange:
                later.unlink()
        copy = write_whole(folder / f"question-{question.exchange}.msg", read_pieces(message.path))
        if messages.hash_file(copy) != digest:
            raise InputError(f"{message.path} has changed while it was read")
        return self._read_deliveries(folder)

    def _read_deliveries(self, folder: Path) -> list[Arrived]:
        """Return what the questions in a folder delivered."""
        arrived = list[Arrived]()
        for path in sorted(folder.glob("question-*.msg"), key=_exchange_of):
            message = messages.read(path, Question, self.terms.federation, self.site)
            if message.head.first != len(arrived):
                raise InputError(f"{path} does not continue what was delivered before")
            for number, holders in enumerate(message.head.deliveries, message.head.first):
                arrived.append(Arrived(dict(holders), partial(_read_package, message, number)))
        return arrived

    def _continue_after(self, question: Question | Final, path: Path) -> None:
        """Take the state after a phase, the last one whose answer has arrived; raises InputError if it is lost.

        That is the last phase played or, if its answer did not arrive, the one before it.
        """
        number = question.last_round
        played = question.round if isinstance(question, Question) else question.rounds + 2
        keeps_nothing = len(self._kept()) == 1 and not self.terms.patterns.get("setup")
        if played == 0 or keeps_nothing or (number == self.rounds and (self.state or self._last is not None)):
            return
        if number > self.rounds or self._last is None or number != self._read_answer().head.last_round:
            raise InputError(
                f"{path} continues after round {number}, but {self.folder} has the state after round {self.rounds}:"
                f" {self.site} has lost its folder, or has an old one",
                "put the folder back from where it was moved, or from a copy made after that round",
                "without it, the site cannot take part any more: the server needs --patience to go on",
            )
        folder = _folder_of_round(self.folder, number)
        self._return_to(folder if folder.is_dir() else None)

    def _read_answer(self) -> Message:
        """Read the stored answer of the last phase."""
        assert self._last is not None
        return messages.read(self._last / _ANSWER, Answer, self.terms.federation, self.site)

    def _plays_on(self, question: Question) -> bool:
        """Return whether the phase that waits is that of a question, the next one to the same clients."""
        if self._waiting is None:
            return False
        before = self._waiting[0]
        return question == replace(
            question,
            round=before.round,
            attempt=before.attempt,
            exchange=before.exchange + 1,
            last_round=before.last_round,
            clients=before.clients,
        )

    def _abandon(self) -> None:
        """Undo the phase that waits, if there is one."""
        if self._waiting is not None:
            self._waiting[1].abandon()
        self._waiting = None

    def _play(self, question: Question, arrived: Sequence[Arrived]) -> bool:
        """Play a phase, or play on; returns whether it is over. Clients that diverge are noted in the attendance."""
        self._place.arrived = arrived
        if self._waiting is None:
            self._place.reset()
            self._place.asked = np.asarray(question.clients, dtype=np.int64)
        phase = self._waiting[1] if self._waiting else self._begin(question.round) if self.waits else None
        self._waiting = None
        is_over = self._play_phase(question.round) if phase is None else phase.advance()
        if phase is not None and not is_over:
            self._waiting = question, phase
        return is_over

    def _begin(self, number: int) -> WaitingPhase:
        """Return a phase that waits, which has not begun."""

        def play() -> bool:
            self._place.wait = phase.wait
            try:
                return self._play_phase(number)
            finally:
                self._place.wait = None

        phase = WaitingPhase(play)
        return phase

    def _play_phase(self, number: int) -> bool:
        """Play a phase until it is over, or a delivery is missing; returns whether it is over."""
        name, before, traffic = self.terms.method, self.state, dict(self.run.traffic)
        try:
            if number == 0:
                self._set_up()
            elif number <= self._rounds:
                self.state, _ = loop.play_round(self.run, name, self._method, self.state, number - 1)
            else:
                first = self.folder / _PHASE / "question-0.msg"
                message = messages.read(first, Question, self.terms.federation, self.site)
                state = replace_entries(self.state, message.tensors(_ENTRY))
                with self.run.personalizing():
                    self._method.personalize(self.run, state, self._place.asked)
        except Pending:
            self.run.traffic = traffic
            return False
        except ComputationError:
            if not self.run.attendance.all_absent:
                raise
            self._place.sent = {}
            return True
        if number and tables(self.state).keys() != tables(before).keys():
            new = ", ".join(tables(self.state).keys() - tables(before).keys())
            raise ComputationError(
                f"{name}, round {number}: the method made the table '{new}' in a round, which a client that is not in"
                " it would lack",
                "make it in setup",
            )
        if self._place.received < len(self._place.arrived):
            raise InputError(f"the server has delivered more than {name} receives in round {number}")
        return True

    def _answer(self, question: Question, digest: str, *, is_over: bool) -> tuple[Answer, Params]:
        place, notes = self._place, self.run.notes
        in_round = 1 <= question.round <= self._rounds
        diverged, trained = (self.run.attendance.diverged, notes.trained) if in_round else (set[int](), set[int]())
        known = set[int]()
        for number in range(question.exchange):
            stored = messages.read(
                self.folder / _PHASE / f"answer-{number}.msg", Answer, self.terms.federation, self.site
            )
            known |= {channel.number for channel in stored.head.channels}
        complete = range(len(place.channels)) if is_over and place.sent else sorted(place.complete)
        channels, tensors = list[Completed](), Params()
        for number in (number for number in complete if number not in known):
            sent = sorted(place.sent.get(number, {}).items())
            heads = [SentByClient(c, weight, _storable(loss)) for c, (_, weight, loss) in sent]
            channels.append(Completed(number, tuple(heads)))
            for client, (params, _, _) in sent:
                tensors |= {f"{number}/{client}/{name}": value for name, value in params.items()}
        results = tuple(ClientResult(c, c in trained and c not in diverged, c in diverged) for c in question.clients)
        losses = tuple((_storable(loss), weight) for loss, weight in notes.losses)
        head = Answer(
            version=VERSION,
            federation=self.terms.federation,
            site=self.site,
            round=question.round,
            last_round=question.last_round,
            attempt=question.attempt,
            exchange=question.exchange,
            question=digest,
            versions={**sources.read_versions(), "processor": machine.describe()["processor"]},
            clients=results,
            channels=tuple(channels),
            losses=losses if in_round and any(place.sent.values()) else (),
        )
        return head, tensors

    def _kept(self) -> State:
        """Return what the clients of this site keep: rows of tables, and of the method's ``KEEPS``."""
        kept: State = {"clients": torch.from_numpy(self._clients)}
        for key, table in tables(self.state).items():
            written = np.setdiff1d(self._clients, table.unwritten(self._clients))
            kept[f"table {key}"] = {**table[written], ":clients": torch.from_numpy(written)}
        for key in self._method.KEEPS:
            if key in self.state:
                kept[f"keeps {key}"] = self.state[key][self._clients] if key in self._in_rows else self.state[key]
        return kept

    def _restore(self, path: Path) -> None:
        """Read what ``_kept`` returned into the state; raises InputError if the file is damaged."""
        with foreign.reading(path, "the state of a site"):
            # Copies: tensors at odd places of a file give products with other last bits.
            flat = {name: value.clone() for name, value in load(path.read_bytes()).items()}
            if not torch.equal(flat["clients"], torch.from_numpy(self._clients)):
                raise InputError(f"{path} belongs to other clients")
            for key, table in tables(self.state).items():
                rows = parameters.unprefixed(flat, f"table {key}/")
                table[rows.pop(":clients").numpy()] = {name: rows[name] for name in table.default}
            for key in self._method.KEEPS:
                if key in self._in_rows:
                    self.state[key][self._clients] = flat[f"keeps {key}"]
                elif key in self.state:
                    whole = f"keeps {key}"
                    self.state[key] = flat[whole] if whole in flat else parameters.unprefixed(flat, f"{whole}/")

    def finish(self, path: Path) -> State:
        """Return the state after all rounds, with the server's entries in the last message."""
        message = messages.read(path, Final, self.terms.federation, self.site)
        self._abandon()
        if message.head.rounds != self._rounds:
            raise InputError(f"{path} ends after round {message.head.rounds} of {self._rounds}")
        self._continue_after(message.head, path)
        self._place.asked, self._place.arrived = self._clients, []
        if not self.terms.patterns.get("personalize"):
            message.require_layout(parameters.outline(final_entries(self._method, self.state)))
            self.note_message(message)
            return replace_entries(self.state, message.tensors())
        message.require_layout({})
        if self.rounds <= self._rounds:
            raise InputError(f"{path} comes before the messages that {self.site} needs to predict")
        assert self._last is not None
        self._place.arrived = self._read_deliveries(self._last)
        self.note_message(message)
        first = messages.read(self._last / "question-0.msg", Question, self.terms.federation, self.site)
        return replace_entries(self.state, first.tensors(_ENTRY))


def inputs_at_site(settings: Settings, sizes: NDArray[np.int64], *, sends_records: bool = True) -> RunInputs:
    """Return the inputs of a run at a site: noise is the server's, and a last upload step that packs travels packed.

    ``sizes`` (m,) are the numbers of training samples that all clients have declared.
    """
    steps = [uploads.load(step) for step in settings.upload]
    applied = steps[:-1] if steps and steps[-1].packs else steps
    place = AtSite(sizes=sizes, steps=steps, sends_records=sends_records)
    return RunInputs(place=place, uploads=applied, private_mean=lambda mean: None)


def server_entries(method: Method, state: State) -> Params:
    """Return the server's part of a state by path: without tables, and without what clients keep."""
    return _list_entries({key: value for key, value in state.items() if key not in method.KEEPS})


def kept_in_rows(method: Method, state: State, clients: int) -> set[str]:
    """Return the ``KEEPS`` of a method that have a row for each of ``clients`` in its state after the setup."""
    shapes = {key: tuple(getattr(state.get(key), "shape", ())) for key in method.KEEPS}
    return {key for key, shape in shapes.items() if shape[:1] == (clients,)}


def final_entries(method: Method, state: State) -> Params:
    """Return what clients receive of a state after the rounds: what they may read of the server's part."""
    kept_back = {*method.RECORDS, *method.SERVES}
    return server_entries(method, {key: value for key, value in state.items() if key not in kept_back})


def _list_entries(state: Mapping[str, Any], prefix: str = "") -> Params:
    found = Params()
    for key, value in state.items():
        if isinstance(value, Mapping):
            found |= _list_entries(value, f"{prefix}{key}/")
        elif not isinstance(value, ModelTable):
            found[prefix + key] = value
    return found


def replace_entries(state: Mapping[str, Any], entries: Mapping[str, Tensor], prefix: str = "") -> State:
    """Return a state with other ``entries``, by path."""
    return {
        key: replace_entries(value, entries, f"{prefix}{key}/")
        if isinstance(value, Mapping)
        else entries.get(prefix + key, value)
        for key, value in state.items()
    }


def _storable(loss: float) -> float | None:
    return loss if abs(loss) <= _MAX_NUMBER else None


def _position(question: Question) -> list[int]:
    """Return the round, attempt and exchange of a question, by which those to a site are in order."""
    return [question.round, question.attempt, question.exchange]


def _exchange_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _read_package(message: Message, number: int, holder: int, layout: Layout) -> Params:
    """Read what a client receives in a delivery; raises InputError if it has another layout."""
    prefix = f"{number}/{holder}/"
    own = {name.removeprefix(prefix): form for name, form in message.layout.items() if name.startswith(prefix)}
    if misfit := messages.compare(layout, own):
        raise InputError(f"{message.path}: {misfit}")
    return message.tensors(prefix)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("round-"))


def _list_rounds(folder: Path) -> list[Path]:
    """Return the folders of rounds, the last one at the end."""
    found = [path for path in folder.glob("round-*") if re.fullmatch(r"round-\d+", path.name) and path.is_dir()]
    return sorted(found, key=_number)


def _find_last_round(folder: Path) -> Path | None:
    return next(reversed(_list_rounds(folder)), None)


def _folder_of_round(folder: Path, number: int) -> Path:
    return folder / f"round-{number:06d}"


def _write_round(folder: Path, number: int, files: Mapping[str, Iterable[bytes]], *, keep: int = 0) -> Path:
    """Write the folder of a round, which gets its name in one step, and return it; others than ``keep`` are removed."""
    target, temporary = _folder_of_round(folder, number), folder / "round.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, content in files.items():
            disk.write(temporary / name, content)
        disk.sync_folder(temporary)
        if target.exists():  # of an earlier attempt: the state before it is still there
            shutil.rmtree(target)
        temporary.rename(target)
        disk.sync_folder(folder)
    except OSError as error:
        raise disk.write_error(f"cannot write {target}", folder, error) from None
    for earlier in _list_rounds(folder)[:-1]:
        if _number(earlier) not in (0, keep):  # later processes need the setup
            shutil.rmtree(earlier, ignore_errors=True)
    return target
