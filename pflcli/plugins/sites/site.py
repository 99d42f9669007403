"""``pfl site``: what a site sends, its answers to messages, and its predictions after the last round."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save

from pflcli.artifacts import codebook, locks
from pflcli.artifacts.kinds import federation as federations
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import WEIGHTS
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec, is_artifact
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact, require_ancestor
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.personalize import personalize
from pflcli.core import config, methods, sources
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.core.federation.run import Run
from pflcli.core.methods import State
from pflcli.core.simulation import loop
from pflcli.core.simulation.progress import Progress
from pflcli.options.function import command
from pflcli.plugins.sites import client_records, messages, opening, scores, several
from pflcli.plugins.sites.after_rounds import sends_after_rounds
from pflcli.plugins.sites.audit_log import AuditLog
from pflcli.plugins.sites.client_records import SiteRecords
from pflcli.plugins.sites.endpoints import Site, Terms, find_other_packages
from pflcli.plugins.sites.exchange import retry_unfinished
from pflcli.plugins.sites.gate import Door, Gate, Patience, release
from pflcli.plugins.sites.log_times import add_times
from pflcli.plugins.sites.site_options import AnswerMessage, CheckSite, ReleaseAnswer, ServeSite
from pflcli.plugins.sites.sizes import describe_messages
from pflcli.plugins.sites.transport import (
    POLL_SECONDS,
    Address,
    Folder,
    find_last_question,
    folder_of,
    read_pieces,
    write_whole,
)
from pflcli.workflow.training import hardware, state_files
from pflcli.workflow.training.run_artifact import Job, summarize, write_predictions, write_rounds

_SHOWN = ("rounds", "epochs", "steps", "batch_size", "lr", "model", "upload", "aggregator", "dp_epsilon", "dp_noise")
"""The settings that ``check`` shows: how long a site computes, and what becomes of its updates."""
_RUN = ("method", "options", "settings", "seed")
"""The keys of a run in the request of a federation."""


@dataclass(frozen=True)
class _Opened:
    """The folder of a site, with the artifacts that it belongs to."""

    folder: Path
    federation: Artifact
    partition: Artifact
    terms: Terms
    data: Partition
    client: str
    sends_records: bool

    def site(self, execution: Execution, *, waits: bool = False) -> Site:
        return opening.open_site(
            self.federation,
            self.terms,
            self.data,
            self.client,
            self.folder,
            execution,
            sends_records=self.sends_records,
            waits=waits,
        )


@command(CheckSite)
def check_site(asked: CheckSite) -> dict[str, Any]:
    """Make the folder of a site, and return what the site is asked to do, and what will leave it; sends nothing.

    What leaves it is not read in the federation: the run is built, and a round played until the server needs uploads.
    ``answer_message`` writes nothing else. Raises InputError if the federation declares something else, or the
    partition was not made for it, or has no training sample.

    >>> from pflcli import federation, partition, personalize, site
    >>> two = partition("writers", "runs/two", clients=2)
    >>> fed = federation.create(personalize("fedavg", two, "runs/f", model="logistic", rounds=1), "fed")
    >>> own = partition("writers", "runs/own", like=fed, client="w0371")
    >>> site.check(own, fed, "site")["client"]
    'w0371'
    """
    out = Path(asked.out)
    agreed, own = open_one(asked.federation, "federation"), open_one(asked.partition, "partition")
    runs = _open(out, agreed, own, sends_records=not asked.without_records)
    for opened in runs.values():
        opening.require_derived(opened.federation, opened.terms)
    opened = next(iter(runs.values()))
    if "" not in runs:
        scores.Agreed.read(agreed)
    _require_same_scales(agreed, own)
    train = int(opened.data.sizes[:, 0].sum())
    clients = dict(zip(opened.terms.sites, agreed.manifest.request["train"], strict=True))
    declared = clients[opened.client]
    if not train:
        raise InputError(f"{own.path} has no training samples of client '{opened.client}'")
    if train != declared and "agreement" in opened.federation.manifest.request:
        others = [name for name, count in clients.items() if count == train]
        raise InputError(
            f"there are {train} training samples of client '{opened.client}', and sites agreed on {declared}",
            f"is it the table of '{others[0]}'?" if len(others) == 1 else "",
            "import the table that was summarized; for another one, all sites agree again (pfl federation columns)",
        )
    opening.claim(
        out,
        {
            "federation": agreed.manifest.fingerprint,
            "partition": own.manifest.fingerprint,
            "role": "site",
            "sends_records": opened.sends_records,
            "fewest": asked.fewest,
            "paths": [os.path.relpath(each.path.resolve(), out.resolve()) for each in (agreed, own)],
        },
    )
    shared = {
        "path": str(out),
        "client": opened.client,
        "train": train,
        "declared_train": declared,
        "other_packages": find_other_packages(opened.terms.versions, sources.read_versions()),
        "most_attempts": len(opened.terms.sites),
    }
    if "" in runs:
        return {**shared, **_describe(opened)}
    test = int(opened.data.sizes[:, 2].sum())
    sent = {**agreed.manifest.request["scores"], "test": test, "fewest": asked.fewest}
    return {**shared, "runs": {name: _describe(each) for name, each in runs.items()}, "scores": sent}


def _describe(opened: _Opened) -> dict[str, Any]:
    """Return what a run asks of a site, and what leaves it in this run."""
    request = opened.federation.manifest.request
    spec, then = opening.make_spec(request), request.get("then")
    settings, facts = config.plain(spec.settings), federations.read_exchange(opened.federation)
    return {
        "method": opened.terms.method,
        **({"then": then["method"]} if then else {}),
        "options": config.plain(spec.cfg),
        "settings": {name: settings[name] for name in _SHOWN},
        **{key: facts[key] for key in ("uploads", "bytes_up", "bytes_down")},
        "messages": describe_messages(opened.terms.patterns, sends_records=opened.sends_records),
    }


def _open(folder: Path, federation: Artifact, partition: Artifact, *, sends_records: bool) -> dict[str, _Opened]:
    """Open each run of a federation at a site, by its name; that of a single one is empty."""
    request = partition.manifest.request
    if request.get("federation") != federation.manifest.fingerprint:
        raise InputError(
            f"{partition.path} was not made for {federation.path}",
            f"pfl partition DATA --like {federation.path} --client NAME -o DIR",
        )
    data, client = partitions.read(partition), request["client"]
    return {
        name: _Opened(folder / name, each, partition, opening.read_terms(each), data, client, sends_records)
        for name, each in opening.read_runs(federation).items()
    }


def _require_same_scales(federation: Artifact, partition: Artifact) -> None:
    """Raise InputError, with the column and both numbers, for samples that were not scaled as sites agreed on."""
    fix = f"pfl import TABLE --like {federation.path} -o DIR, and partition that"
    book, agreed = codebook.read(partition), codebook.read(federation)
    by_client = "client" in str(federation.manifest.request["import"].get("standardize") or "")
    if by_client and not book.scales:
        raise InputError(f"{partition.path} is not standardized by client, as {federation.path} is", fix)
    # Without a pilot, each site alone knows its own scales.
    scales = () if by_client and not agreed.scales else ("mean", "sd")
    codebook.require_same(partition, federation, "classes", "features", "median", *scales, fix=fix)


def _reopen(folder: Path) -> tuple[dict[str, _Opened], dict[str, Any]]:
    """Open the folder of a site; raises InputError if it is none, or its artifacts are gone."""
    facts = opening.read_claim(folder, "site", "pfl site join FEDERATION --data TABLE -o DIR")
    federation, partition = (
        open_one(Path(os.path.normpath(folder / path)), kind)
        for path, kind in zip(facts["paths"], ("federation", "partition"), strict=True)
    )
    for kind, each in (("federation", federation), ("partition", partition)):
        if each.manifest.fingerprint != facts[kind]:
            raise InputError(f"{each.path} is not the {kind} that {folder} was made with")
    return _open(folder, federation, partition, sends_records=facts.get("sends_records", True)), facts


@command(ServeSite)
def serve_site(asked: ServeSite) -> Outcome:
    """Answer the questions in the ``exchange`` folder until the last message, and return the predictions.

    Of several runs, those of the first one are returned, and scores of all of them are sent. The state is in the folder
    of the site, after each round; the same command continues. ``hold`` keeps each answer until ``release_answer``.
    Raises InputError for a message that does not fit, ComputationError if no question arrives within ``patience``
    seconds.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from pflcli import federation, partition, personalize, site
    >>> two = partition("writers", "runs/two", clients=2)
    >>> fed = federation.create(personalize("fedavg", two, "runs/f", model="logistic", rounds=1), "fed")
    >>> for name in ("w0371", "w2430"):
    ...     own = partition("writers", f"runs/{name}", like=fed, client=name)
    ...     _ = site.check(own, fed, f"site-{name}")
    >>> with ThreadPoolExecutor() as pool:  # each site in a place of its own, in truth
    ...     sites = [pool.submit(site.serve, f"site-{name}", "exchange") for name in ("w0371", "w2430")]
    ...     facts = federation.run(fed, "exchange", "server")
    >>> [site.result().kind for site in sites]
    ['predictions', 'predictions']
    """
    folder, exchange, execution = Path(asked.site), Folder(Path(asked.exchange)), add_times(asked.execution)
    runs, facts = _reopen(folder)
    patience = Patience(asked.patience, execution.command)
    with locks.acquire(folder, execution.reporter.say):
        say = execution.reporter.say

        def play(chosen: Iterable[str]) -> dict[str, Outcome]:
            doors = {name: Door(AuditLog(folder, name), say, holds=asked.hold) for name in chosen}
            return several.take_turns(
                {
                    name: _answer_all(runs[name], name, exchange, execution, door, patience)
                    for name, door in doors.items()
                }
            )

        def send(path: Path, target: Path, count: int) -> None:
            door = Door(AuditLog(folder), say, holds=asked.hold)
            while not door.opens_for_scores(path, count):
                time.sleep(POLL_SECONDS)
            write_whole(target, read_pieces(path))

        if "" in runs:
            return play(runs)[""]
        opened = next(iter(runs.values()))
        federation = open_one(opened.federation.path, "federation")
        names = several.read_names(federation.manifest.request)
        place = folder_of(exchange.path, [*opened.terms.sites], opened.client)
        first = several.list_first(names)
        made, chosen = play(first), [each.name for each in names]
        if first:
            if not (folder / scores.CHOICE).exists():
                records = _write_records(folder, runs, facts, first, scores.VALIDATION)
                send(records, place / scores.VALIDATION, len(first))
                say("the validation scores are sent")
            several.take_turns({"": _await(place / scores.CHOICE, patience)})
            keep = partial(scores.keep_choice, folder=folder, federation=federation)
            chosen = retry_unfinished(keep, place / scores.CHOICE)
        looks = several.list_looks(federation.manifest.request, names, chosen)
        for now in looks:
            seeds = len({run.seed for run in names if run.name in now})
            made |= play([name for name in now if name not in made])
            file = scores.records_file(federation, seeds)
            send(_write_records(folder, runs, facts, now, file), place / file, len(now))
            say("the scores are sent")
            if len(looks) > 1:
                look = place / scores.LOOK.format(seeds)
                several.take_turns({"": _await(look, patience)})
                if retry_unfinished(partial(scores.read_look, federation=federation), look):
                    break
        return made[chosen[0]]


def _await(path: Path, patience: Patience) -> Generator[bool, None, None]:
    while not path.exists():
        patience.require(path.name, 0)
        yield False


def _answer_all(
    opened: _Opened, name: str, exchange: Folder, execution: Execution, door: Door, patience: Patience
) -> Generator[bool, None, Outcome]:
    """Answer the questions of a run, ``name`` if it is one of several, until the last message; returns predictions."""
    own = Address.make([*opened.terms.sites], opened.client, name, None)
    site, run, place = opened.site(execution, waits=True), f"{name}: " if name else "", exchange.find(own).parent
    gate = Gate(site, door)
    if not exchange.find(own).exists():
        execution.reporter.say(f"{run}waiting for messages to '{opened.client}' in {place}")
    while True:
        address = next((each for each, _ in exchange.fetch(own.site) if each.run == own.run), None)
        if address is None:
            patience.require(name, find_last_question(place))
            yield False
        elif address.number is None:
            return _predict(opened, site, gate.finish(exchange.find(address)), execution)
        elif (answer := gate.answer(exchange.find(address))) is None:
            yield False
        else:
            exchange.post(address.answer, read_pieces(answer))
            execution.reporter.say(f"{run}message {address.number}: answered")
            yield True


def _write_records(
    folder: Path,
    runs: Mapping[str, _Opened],
    facts: Mapping[str, Any],
    chosen: Sequence[str],
    file: str = scores.FILE,
) -> Path:
    """Write the scores of the ``chosen`` runs of a site, once it has their predictions, and return their file."""
    opened = next(iter(runs.values()))
    federation = open_one(opened.federation.path, "federation")
    made = {
        run: open_one(runs[run.name].folder / "predictions", "predictions")
        for run in several.read_names(federation.manifest.request)
        if run.name in chosen
    }
    agreed, split = scores.Agreed.read(federation), "validation" if file == scores.VALIDATION else "test"
    found = scores.make_records(agreed, made, opened.client, folder, int(facts["fewest"]), split)
    path = folder / file
    whole = SiteRecords(client_records.VERSION, federation.manifest.fingerprint, opened.client, found)
    client_records.write(path, whole)
    return path


@command(ReleaseAnswer)
def release_answer(asked: ReleaseAnswer) -> dict[str, Any]:
    """Return what is in the answer that a site holds, and release it if ``sha256`` begins its SHA-256.

    Raises InputError for another SHA-256.

    >>> from pflcli import federation, partition, personalize, site
    >>> two = partition("writers", "runs/two", clients=2)
    >>> fed = federation.create(personalize("fedavg", two, "runs/f", model="logistic", rounds=1), "fed")
    >>> own = partition("writers", "runs/own", like=fed, client="w0371")
    >>> _ = site.check(own, fed, "site")
    >>> site.release("site")
    {'held': []}
    """
    folder = Path(asked.site)
    opening.read_claim(folder, "site", "pfl site check PARTITION FEDERATION -o DIR")
    return release(folder, asked.sha256)


@command(AnswerMessage)
def answer_message(asked: AnswerMessage) -> Path:
    """Answer one message, and return the file of the answer: a copy at ``out``; or the predictions, after the last one.

    Of several runs, the answer to the last message of the last one is the file of the site's scores. Raises InputError
    for a message that does not fit.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from pflcli import federation, partition, personalize, site
    >>> two = partition("writers", "runs/two", clients=2)
    >>> fed = federation.create(personalize("fedavg", two, "runs/f", model="logistic", rounds=1), "fed")
    >>> for name in ("w0371", "w2430"):
    ...     own = partition("writers", f"runs/{name}", like=fed, client=name)
    ...     _ = site.check(own, fed, f"site-{name}")
    >>> with ThreadPoolExecutor() as pool:  # each site in a place of its own, in truth
    ...     sites = [pool.submit(site.serve, f"site-{name}", "exchange") for name in ("w0371", "w2430")]
    ...     facts = federation.run(fed, "exchange", "server")
    >>> site.answer("site-w0371", "exchange/000-w0371/final.msg").name
    'predictions'
    """
    folder, message = Path(asked.site), Path(asked.message)
    runs, facts = _reopen(folder)
    kind, federation = messages.read_kind(message)
    opened = next(
        (each for each in runs.values() if each.federation.manifest.fingerprint == federation),
        next(iter(runs.values())),  # which says that it is not for this site
    )
    with locks.acquire(folder, asked.execution.reporter.say):
        site = opened.site(asked.execution)
        (name,) = (name for name, each in runs.items() if each is opened)
        gate = Gate(site, Door(AuditLog(folder, name), asked.execution.reporter.say))
        if kind == "final":
            made = _predict(opened, site, gate.finish(message), asked.execution).path
            whole = open_one(opened.federation.path, "federation")
            is_last = all(is_artifact(each.folder / "predictions") for each in runs.values())
            # Of trials, test samples of the chosen ones alone are scored, by pfl site serve.
            if "" in runs or not is_last or several.has_trials(several.read_names(whole.manifest.request)):
                return made
            stored = _write_records(folder, runs, facts, [*runs])
            Door(AuditLog(folder), asked.execution.reporter.say).opens_for_scores(stored, len(runs))
        elif (answer := gate.answer(message)) is None:
            raise InputError(f"{message} is gone")
        else:
            stored = answer
        if asked.out is None:
            return stored
        return write_whole(Path(asked.out), read_pieces(stored))


def _predict(opened: _Opened, site: Site, state: State, execution: Execution) -> Outcome:
    """Make the predictions of a site from the state after all rounds."""
    request = opened.federation.manifest.request
    if "then" in request:
        return _predict_from_backbone(opened, site, state, execution)
    job = _describe_job(opened, request, opened.partition, {"partition": opened.partition})
    return _make_predictions(opened, job, lambda: (site.run, state), execution)


def _describe_job(
    opened: _Opened, request: Mapping[str, Any], source: Artifact, lineage: Mapping[str, Artifact]
) -> Job:
    """Return the run of a method at a site, whose part of the federation's request is ``request``."""
    spec, recorded = opening.make_spec(request), {key: request[key] for key in _RUN}
    recorded["federation"] = opened.federation.manifest.fingerprint
    return Job(
        name=spec.name,
        method=spec.method,
        cfg=spec.cfg,
        settings=spec.settings,
        seed=spec.seed,
        lineage=lineage,
        source=source,
        spec=ArtifactSpec(
            "predictions",
            json.loads(json.dumps(recorded)),
            (source.as_input("source", opened.folder / "predictions"),),
            code=opened.federation.manifest.code,
        ),
    )


def _make_predictions(
    opened: _Opened, job: Job, begin: Callable[[], tuple[Run, State]], execution: Execution
) -> Outcome:
    """Make the predictions of a run, which ``begin`` returns with the state from which clients personalize."""

    def build(writer: ArtifactWriter) -> Built:
        run, state = begin()
        progress = Progress(state)
        loop.predict_all(run, job.name, job.method, progress)
        write_predictions(job, run, opened.data, progress.join_predictions(), writer)
        write_rounds(job, run, opened.data, progress, {}, writer)
        costs = [each for kind, each in job.lineage.items() if kind != "partition" and each is not None]
        played = job.settings.rounds if job.method.has_rounds else 0
        summary = summarize(job.name, run, progress.facts(), played, costs)
        return Built(summary, hardware.facts(run.engine, execution))

    return make(opened.folder / "predictions", job.spec, execution, build)


def _predict_after_exchange(opened: _Opened, site: Site, embedded: Artifact, execution: Execution) -> Outcome:
    """Predict by a method on embeddings, whose clients have exchanged what its setup sends."""
    backbone, then = require_ancestor(embedded, "backbone"), opened.federation.manifest.request["then"]
    lineage = {"partition": opened.partition, "backbone": backbone, "embeddings": embedded}
    job = _describe_job(opened, then, embedded, lineage)

    def begin() -> tuple[Run, State]:
        inputs = replace(job.read_inputs(opened.data, execution), place=site.run.inputs.place, uploads=site.run.uploads)
        run = job.build(opened.data, execution, inputs)
        return run, loop.set_up(run, job.name, job.method).state

    return _make_predictions(opened, job, begin, execution)


def _predict_from_backbone(opened: _Opened, site: Site, state: State, execution: Execution) -> Outcome:
    """Make the backbone of a site from the state after all rounds, and predict by the method that needs it."""
    request, cpu = opened.federation.manifest.request, opening.on_cpu(execution)
    then, path = request["then"], opened.folder / "backbone"
    recorded = {key: request[key] for key in _RUN}
    recorded["federation"] = opened.federation.manifest.fingerprint
    spec = ArtifactSpec(
        "backbone",
        json.loads(json.dumps(recorded)),
        (opened.partition.as_input("partition", path),),
        code=opened.federation.manifest.code,
    )

    def build(writer: ArtifactWriter) -> Built:
        model = state["global"]
        writer.write(WEIGHTS, bytes(save(state_files.flatten(model))))
        codebook.write(writer, codebook.read(opened.partition))
        accuracy, task = site.run.accuracy(model, "validation"), opened.data.labels.facts()
        summary = {
            "rounds": site.run.settings.rounds,
            "reported": "last round",
            "parameters": sum(value.numel() for value in model.values()),
            **({} if task else {"validation_accuracy": None if math.isnan(accuracy) else accuracy}),
            **task,
            **{f"bytes_{link}": total for link, total in site.run.traffic.items()},
        }
        return Built(summary, hardware.facts(site.run.engine, execution))

    source = make(path, spec, cpu, build).path
    if {*methods.load(then["method"]).NEEDS} & {"embeddings", "datastore"}:
        source = extract(source, opened.folder / "embeddings", layer=then.get("layer"), execution=cpu).path
    if sends_after_rounds(methods.load(then["method"])):
        return _predict_after_exchange(opened, site, open_one(source, "embeddings"), cpu)
    if "datastore" in then:
        source = build_datastore(source, opened.folder / "datastore", **then["datastore"], execution=cpu).path
    run = {key: then[key] for key in _RUN if key != "method"}
    return personalize(then["method"], source, opened.folder / "predictions", **run, execution=cpu)
