"""The server and a site of a deployment: a message in, a message out, and the state in a folder.

Both play the rounds of a method by ``simulation.loop.play_round``, as a simulation does, and so give its bytes. Neither
needs a process that stays: the server plays a round once to ask, and again to its end when the answers are there; a
site plays it when it is asked. What a round changes is written to a folder of its own, which gets its name in one step.
A killed process therefore repeats its round, with the same bytes, and a site that gets the same question again returns
the answer that it has stored.

A question says in which round the server last received an answer of the site, and the site continues from its state
after that round. It keeps this state until the next answer has arrived: a round whose answer came too late is undone,
as the site has dropped out of it, and a site without the state is an error.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from pflcli.artifacts import csv_file, disk
from pflcli.core import foreign, parameters, sources
from pflcli.core.errors import ComputationError, InputError
from pflcli.core.federation import uploads
from pflcli.core.federation.run import Run, RunInputs
from pflcli.core.federation.uploads import Step
from pflcli.core.methods import Method, State
from pflcli.core.parameters import Params, Stacked
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.settings import Settings
from pflcli.core.simulation import absences, loop
from pflcli.core.simulation.progress import Row, tables
from pflcli.core.wording import listed
from pflcli.plugins.sites import messages
from pflcli.plugins.sites.messages import VERSION, Answer, ClientResult, Final, Layout, Message, Question
from pflcli.plugins.sites.places import AtServer, AtSite, Pending, Reply
from pflcli.workflow.training import checkpoint, state_files

_MAX_NUMBER = float(np.finfo(np.float32).max)
"""Maximum training loss, and weight of one, in an answer: sums of their products are finite."""
_STATE, _ANSWER, _ROUNDS, _ATTENDANCE = "state.safetensors", "answer.msg", "rounds.csv", "attendance.json"
"""The files in the folder of a round."""


@dataclass(frozen=True)
class Terms:
    """What the server and all sites have agreed on.

    ``federation`` is its hash, ``sites`` are the clients of each site by name. ``downloads`` and ``upload`` are the
    layouts of what a client downloads in a round, one after the other, and of what it sends. ``versions`` are those
    that ``sources.read_versions`` returned where the federation was made.
    """

    federation: str
    method: str
    sites: Mapping[str, tuple[int, ...]]
    downloads: tuple[Layout, ...] = ()
    upload: Layout = field(default_factory=Layout)
    versions: Mapping[str, str] = field(default_factory=dict)

    def layout_of_uploads(self, clients: Iterable[int]) -> Layout:
        """Return the layout of an answer with the uploads of these clients."""
        return {f"{client}/{name}": form for client in clients for name, form in self.upload.items()}

    def max_head(self, clients: int) -> int:
        """Return the maximum bytes of the head of a question to ``clients``, or of their answer."""
        return messages.max_head(clients, max(len(self.upload), sum(map(len, self.downloads))))


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
    """The server of a deployment, whose state is in ``folder``: a checkpoint after each round."""

    def __init__(self, terms: Terms, method: Method, run: Run, folder: Path) -> None:
        """Continue after the last round in ``folder``, if there is one. ``run`` has no sample, but their numbers."""
        self.terms, self.folder = terms, folder
        self._method, self.run = method, run
        assert isinstance(run.inputs.place, AtServer)
        self._place = run.inputs.place
        self.attendance: dict[int, dict[int, bool]] = {}
        """whether each client that was asked answered, by round from 1"""
        if (last := _find_last_round(folder)) is None:
            self.progress = loop.set_up(run, terms.method, method)
            return
        self.progress, run.traffic, run.engine.mode = checkpoint.unpack(
            (last / _STATE).read_bytes(), last / _STATE, run
        )
        with foreign.parsing(str(last / _ATTENDANCE), "JSON"):
            for number, clients in json.loads((last / _ATTENDANCE).read_text()).items():
                self.attendance[int(number)] = {int(client): bool(answered) for client, answered in clients.items()}
        if run.privacy is not None and self.progress.rows:
            run.privacy.resume(len(self.progress.rows) - 1, self.progress.rows[-1])

    @property
    def rounds(self) -> int:
        """The number of rounds that are closed."""
        return len(self.progress.rows)

    @property
    def is_finished(self) -> bool:
        """Whether all rounds are closed."""
        return not self._method.has_rounds or self.rounds >= self.run.settings.rounds

    def ask(self) -> tuple[dict[str, Question], Params]:
        """Return the question of the next round to each site that has clients in it, and the tensors of all questions.

        Rounds without a client to ask are closed.
        """
        while not self.is_finished:
            self._place.replies, self._place.losses, self._place.gone = None, (), ()
            try:
                row = self._play()
            except Pending:
                return self._questions(), self._question_tensors()
            self._commit(row, {})
        return {}, {}

    def _questions(self) -> dict[str, Question]:
        asked, number = set(self._place.asked.tolist()), self.rounds + 1
        chosen = {site: tuple(c for c in clients if c in asked) for site, clients in self.terms.sites.items()}
        return {
            site: Question(VERSION, self.terms.federation, site, number, self._last_round(site), clients)
            for site, clients in chosen.items()
            if clients
        }

    def _last_round(self, site: str) -> int:
        """Return the last round in which a site answered, from 1; 0 if there is none."""
        clients = self.terms.sites[site]
        rounds = reversed(self.attendance.items())
        return next((number for number, answered in rounds if any(answered.get(client) for client in clients)), 0)

    def _question_tensors(self) -> Params:
        return {
            f"{place}/{name}": value
            for place, params in enumerate(self._place.downloads)
            for name, value in params.items()
        }

    def exchanged(self) -> tuple[tuple[Layout, ...], Layout]:
        """Return the layouts of a client's downloads and of its upload, after ``ask``."""
        assert self._place.uploaded is not None
        sent = _pack(self.run.uploads, self._place.uploaded, self._place.uploaded)
        return tuple(parameters.outline(params) for params in self._place.downloads), parameters.outline(sent)

    def max_bytes(self, question: Question) -> int:
        """Return the maximum size of a file with the answer to a ``question``."""
        clients = len(question.clients)
        return 8 + self.terms.max_head(clients) + clients * messages.size(self.terms.upload)

    def check(self, path: Path, question: Question, digest: str) -> Message:
        """Return the answer in a file to a ``question`` with this SHA-256; raises InputError if it does not fit.

        A round can be closed with every answer that fits, whatever is in it.
        """
        with foreign.parsing(str(path), "the answer of a site"):
            head = self.terms.max_head(len(question.clients))
            message = messages.read(path, Answer, self.terms.federation, question.site, head)
            self._check_head(path, message.head, question, digest)
            sent = [result.client for result in message.head.clients if result.weight is not None]
            message.require_layout(self.terms.layout_of_uploads(sent))
            for client in sent:
                if not parameters.finite(_stack_one(self._reader(message, client)())).all():
                    raise InputError(f"{path} has a number that is not finite, or too large")
        return message

    def _check_head(self, path: Path, answer: Answer, question: Question, digest: str) -> None:
        """Raise InputError if an answer does not belong to a question, or says what no site can say."""
        if answer.round != question.round:
            raise InputError(f"{path} answers round {answer.round}, not round {question.round}")
        if answer.question != digest:
            raise InputError(f"{path} answers another message of round {question.round}")
        if answer.last_round != question.last_round:
            raise InputError(
                f"{path}: the site continued after round {answer.last_round}, but its last answer was that of round"
                f" {question.last_round}: it has lost its state"
            )
        if difference := find_other_code(self.terms.versions, answer.versions):
            raise InputError(f"{path} is by {difference}", f"install pfl {self.terms.versions.get('pfl')} at the site")
        if tuple(result.client for result in answer.clients) != question.clients:
            raise InputError(f"{path} does not answer for the clients {list(question.clients)} that were asked")
        for result in answer.clients:
            if result.trained is (result.weight is None) or (result.trained and result.diverged):
                raise InputError(f"{path}: client {result.client} has an upload that does not fit its result")
            if result.weight is not None and not 0 < result.weight < math.inf:
                raise InputError(f"{path}: the weight of client {result.client} is not a positive number")
        for loss, weight in answer.losses:
            if not 0 <= weight <= _MAX_NUMBER or abs(loss or 0.0) > _MAX_NUMBER:
                raise InputError(f"{path} has a loss or a weight that is not finite, or too large")

    def max_weight(self, client: int) -> float:
        """Return the number of training samples that the federation knows of a client: no upload weighs more."""
        return float(self.run.federation.sizes("train")[client])

    def close(self, answers: Mapping[str, Message]) -> Row:
        """Play the round that was asked with these answers by site, and write the state after it; return its row.

        Clients of sites without an answer count as dropped out.
        """
        replies, losses = dict[int, Reply](), list[tuple[float, float]]()
        for message in answers.values():
            for result in message.head.clients:
                reader = None if result.weight is None else self._reader(message, result.client)
                weight = min(result.weight or 0.0, self.max_weight(result.client))
                replies[result.client] = Reply(result.trained, result.diverged, weight, reader)
            losses += [(math.nan if loss is None else loss, weight) for loss, weight in message.head.losses]
        answered = {client: client in replies for client in self._place.asked.tolist()}
        self._place.replies, self._place.losses = replies, losses
        self._place.gone = [client for client in answered if not answered[client]]
        row = self._play()
        self._commit(row, answered)
        return row

    def _reader(self, message: Message, client: int) -> Callable[[], Params]:
        def read() -> Params:
            assert self._place.uploaded is not None
            return _unpack(self.run.uploads, message.tensors(f"{client}/"), self._place.uploaded)

        return read

    def _play(self) -> Row:
        with self.progress.round(self.run):
            t, state = self.rounds, self.progress.state
            self.progress.state, row = loop.play_round(self.run, self.terms.method, self._method, state, t)
            self.progress.rows.append(row)
        return row

    def _commit(self, row: Row, answered: dict[int, bool]) -> None:
        if answered:
            self.attendance[self.rounds] = answered
        rows = absences.count_clients([*self.progress.before, *self.progress.rows])
        files = {
            _STATE: [checkpoint.pack(self.run, self.progress)],
            _ROUNDS: [csv_file.encode_rounds(rows)],
            _ATTENDANCE: [json.dumps(self.attendance).encode()],
        }
        _write_round(self.folder, self.rounds, files)

    def final(self, site: str) -> tuple[Final, Params]:
        """Return the last message to a site, and its tensors."""
        head = Final(VERSION, self.terms.federation, site, self.rounds, self._last_round(site))
        known = server_entries(self._method, self._method.setup(self.run))
        entries = server_entries(self._method, self.progress.state)
        return head, {name: entries[name] for name in known}


class Site:
    """A site of a deployment, whose state is in ``folder``: what its clients keep after the last two of its rounds."""

    def __init__(self, terms: Terms, method: Method, run: Run, site: str, folder: Path) -> None:
        """Continue after the last round in ``folder``, if there is one. ``run`` has the samples of this site alone."""
        self.terms, self.site, self.folder = terms, site, folder
        self._method, self.run = method, run
        assert isinstance(run.inputs.place, AtSite)
        self._place = run.inputs.place
        self._steps = tuple(uploads.load(step) for step in run.settings.upload)
        self._clients = np.asarray(terms.sites[site], dtype=np.int64)
        self.state = method.setup(run)
        self._last = _find_last_round(folder)
        if self._last is not None:
            self._restore(self._last / _STATE)

    @property
    def rounds(self) -> int:
        """The last round that this site has played, from 1; 0 before the first."""
        return 0 if self._last is None else _number(self._last)

    def answer(self, path: Path) -> Path:
        """Answer the question in a file, write the state, and return the file of the answer.

        The question that was answered last gets the same answer again. Raises InputError for a message that does not
        fit, ComputationError if the method fails.
        """
        head = self.terms.max_head(len(self._clients))
        message = messages.read(path, Question, self.terms.federation, self.site, head)
        question: Question = message.head
        digest = messages.hash_file(message.path)
        if not 1 <= question.round <= self.run.settings.rounds:
            raise InputError(f"{path} is for round {question.round} of {self.run.settings.rounds}")
        if question.round <= self.rounds:
            return self._stored_answer(path, question, digest)
        if not question.clients or question.clients != tuple(
            c for c in self._clients.tolist() if c in question.clients
        ):
            raise InputError(
                f"{path} asks clients {list(question.clients)}; those of {self.site} are {self._clients.tolist()}"
            )
        layouts = enumerate(self.terms.downloads)
        message.require_layout({f"{place}/{name}": form for place, each in layouts for name, form in each.items()})
        self._place.asked = np.asarray(question.clients, dtype=np.int64)
        self._place.downloads = [message.tensors(f"{place}/") for place in range(len(self.terms.downloads))]
        self._continue_after(question.last_round, path)
        self._play(question.round - 1)
        answer, tensors = self._answer(question, digest)
        sent = [result.client for result in answer.clients if result.weight is not None]
        if parameters.outline(tensors) != self.terms.layout_of_uploads(sent):
            raise ComputationError(
                f"{self.terms.method}, round {question.round}: the method would send other tensors than those that pfl"
                " site check has shown; no answer was written"
            )
        state = bytes(save(state_files.flatten(self._kept())))
        files = {_STATE: [state], _ANSWER: messages.pieces(answer, tensors)}
        self._last = _write_round(self.folder, question.round, files, keep=question.last_round)
        return self._last / _ANSWER

    def _continue_after(self, number: int, path: Path) -> None:
        """Take the state after a round, the last one whose answer has arrived; raises InputError if it is lost.

        That is the last round played or, if its answer did not arrive, the one before it.
        """
        if number == self.rounds or len(self._kept()) == 1:  # all sites that keep nothing have the same state
            return
        if number > self.rounds or number != self._read_answer().head.last_round:
            raise InputError(
                f"{path} continues after round {number}, but {self.folder} has the state after round {self.rounds}:"
                f" {self.site} has lost its folder, or has an old one",
                "put the folder back from where it was moved, or from a copy made after that round",
                "without it, the site cannot take part any more: the server needs --patience to go on",
            )
        self.state = self._method.setup(self.run)
        self._last = None
        if number:
            self._last = _folder_of_round(self.folder, number)
            self._restore(self._last / _STATE)

    def _read_answer(self) -> Message:
        """Read the stored answer of the last round."""
        assert self._last is not None
        return messages.read(self._last / _ANSWER, Answer, self.terms.federation, self.site)

    def _stored_answer(self, path: Path, question: Question, digest: str) -> Path:
        stored = self._read_answer()
        if stored.head.question == digest:
            return stored.path
        if question.round == self.rounds:
            raise InputError(
                f"{path} is another message of round {question.round} than the one that {self.site} answered"
            )
        raise InputError(
            f"{path} is late: it is for round {question.round}, and {self.site} has played round {self.rounds}"
        )

    def _play(self, t: int) -> None:
        """Play a round; clients that diverge are noted in the attendance, also if all of them do."""
        try:
            after, _ = loop.play_round(self.run, self.terms.method, self._method, self.state, t)
        except ComputationError:
            if not self.run.attendance.all_absent:
                raise
            self._place.sent = {}
            return
        if tables(after).keys() != tables(self.state).keys():
            new = ", ".join(tables(after).keys() - tables(self.state).keys())
            raise ComputationError(
                f"{self.terms.method}, round {t + 1}: the method made the table '{new}' in a round, which a client that"
                " is not in it would lack",
                "make it in setup",
            )
        self.state = after

    def _answer(self, question: Question, digest: str) -> tuple[Answer, Params]:
        notes, sent = self.run.notes, self._place.sent
        diverged = self.run.attendance.diverged
        results = tuple(
            ClientResult(c, c in notes.trained and c not in diverged, c in diverged, sent[c][1] if c in sent else None)
            for c in question.clients
        )
        losses = tuple((loss if abs(loss) <= _MAX_NUMBER else None, weight) for loss, weight in notes.losses)
        if not sent:
            losses = ()
        packed = {c: _pack(self._steps, params, self._place.uploaded) for c, (params, _) in sorted(sent.items())}
        tensors = {f"{c}/{name}": value for c, params in packed.items() for name, value in params.items()}
        head = Answer(
            version=VERSION,
            federation=self.terms.federation,
            site=self.site,
            round=question.round,
            last_round=question.last_round,
            question=digest,
            versions=sources.read_versions(),
            clients=results,
            losses=losses,
        )
        return head, tensors

    def _kept(self) -> State:
        """Return what the clients of this site keep: rows of tables, and of the method's ``KEEPS``."""
        kept: State = {"clients": torch.from_numpy(self._clients)}
        for key, table in tables(self.state).items():
            written = np.setdiff1d(self._clients, table.unwritten(self._clients))
            kept[f"table {key}"] = {**table[written], ":clients": torch.from_numpy(written)}
        return kept | {
            f"keeps {key}": self.state[key][self._clients] for key in self._method.KEEPS if key in self.state
        }

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
                if key in self.state:
                    self.state[key][self._clients] = flat[f"keeps {key}"]

    def finish(self, path: Path) -> State:
        """Return the state after all rounds, with the server's entries in the last message."""
        message = messages.read(path, Final, self.terms.federation, self.site)
        rounds = self.run.settings.rounds if self._method.has_rounds else 0
        if message.head.rounds != rounds:
            raise InputError(f"{path} ends after round {message.head.rounds} of {rounds}")
        entries = server_entries(self._method, self.state)
        message.require_layout(parameters.outline(entries))
        self._continue_after(message.head.last_round, path)
        return _replace_entries(self.state, message.tensors())


def inputs_at_site(settings: Settings) -> RunInputs:
    """Return the inputs of a run at a site: noise is the server's, and a last upload step that packs travels packed."""
    steps = [uploads.load(step) for step in settings.upload]
    applied = steps[:-1] if steps and steps[-1].packs else steps
    return RunInputs(place=AtSite(), uploads=applied, private_mean=lambda mean: None)


def server_entries(method: Method, state: State) -> Params:
    """Return the server's part of a state by path: without tables, and without what clients keep."""
    return _list_entries({key: value for key, value in state.items() if key not in method.KEEPS})


def _list_entries(state: Mapping[str, Any], prefix: str = "") -> Params:
    found = Params()
    for key, value in state.items():
        if isinstance(value, Mapping):
            found |= _list_entries(value, f"{prefix}{key}/")
        elif not isinstance(value, ModelTable):
            found[prefix + key] = value
    return found


def _replace_entries(state: Mapping[str, Any], entries: Mapping[str, Tensor], prefix: str = "") -> State:
    return {
        key: _replace_entries(value, entries, f"{prefix}{key}/")
        if isinstance(value, Mapping)
        else entries.get(prefix + key, value)
        for key, value in state.items()
    }


def _pack(steps: Sequence[Step], upload: Params, downloaded: Params) -> Params:
    """Return the tensors that travel of one client's upload, to which all steps but one that packs were applied."""
    if not steps or not steps[-1].packs:
        return upload
    one, start = _stack_one(upload), _stack_one({name: downloaded[name] for name in upload})
    return parameters.pick(steps[-1].file.pack(one, start, steps[-1].cfg), 0)


def _unpack(steps: Sequence[Step], sent: Params, downloaded: Params) -> Params:
    """Undo ``_pack``."""
    if not steps or not steps[-1].packs:
        return sent
    return parameters.pick(steps[-1].file.unpack(_stack_one(sent), _stack_one(downloaded), steps[-1].cfg), 0)


def _stack_one(params: Params) -> Stacked:
    return {name: value.unsqueeze(0) for name, value in params.items()}


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
        temporary.rename(target)
        disk.sync_folder(folder)
    except OSError as error:
        raise disk.write_error(f"cannot write {target}", folder, error) from None
    for earlier in _list_rounds(folder)[:-1]:
        if earlier != _folder_of_round(folder, keep):
            shutil.rmtree(earlier, ignore_errors=True)
    return target
