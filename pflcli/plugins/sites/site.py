"""``pfl site``: what a site sends, its answers to messages, and its predictions after the last round."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass
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
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.personalize import personalize
from pflcli.core import config, sources
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.core.methods import State
from pflcli.core.simulation import loop
from pflcli.core.simulation.progress import Progress
from pflcli.options.function import command
from pflcli.plugins.sites import client_records, messages, opening, scores, several
from pflcli.plugins.sites.client_records import SiteRecords
from pflcli.plugins.sites.endpoints import Site, Terms, find_other_packages
from pflcli.plugins.sites.exchange import retry_unfinished
from pflcli.plugins.sites.site_options import AnswerMessage, CheckSite, ServeSite
from pflcli.plugins.sites.transport import RECORDS, Address, Folder, read_pieces, write_whole
from pflcli.workflow.training import hardware, state_files
from pflcli.workflow.training.run_artifact import Job, summarize, write_predictions, write_rounds

_SHOWN = ("rounds", "epochs", "steps", "batch_size", "lr", "model", "upload", "aggregator", "dp_epsilon", "dp_noise")
"""The settings that ``check`` shows: how long a site computes, and what becomes of its updates."""


@dataclass(frozen=True)
class _Opened:
    """The folder of a site, with the artifacts that it belongs to."""

    folder: Path
    federation: Artifact
    partition: Artifact
    terms: Terms
    data: Partition
    client: str

    def site(self, execution: Execution) -> Site:
        return opening.open_site(self.federation, self.terms, self.data, self.client, self.folder, execution)


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
    runs = _open(out, agreed, own)
    for opened in runs.values():
        opening.require_derived(opened.federation, opened.terms)
    opened = next(iter(runs.values()))
    train = int(opened.data.sizes[:, 0].sum())
    declared = agreed.manifest.request["train"][opened.terms.sites[opened.client][0]]
    if not train:
        raise InputError(f"{own.path} has no training samples of client '{opened.client}'")
    if train != declared and "agreement" in opened.federation.manifest.request:
        raise InputError(
            f"{own.path} has {train} training samples of client '{opened.client}', and sites agreed on {declared}",
            "import the table that was summarized; for another one, all sites agree again (pfl federation columns)",
        )
    opening.claim(
        out,
        {
            "federation": agreed.manifest.fingerprint,
            "partition": own.manifest.fingerprint,
            "role": "site",
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
    scores = {**agreed.manifest.request["scores"], "test": test, "fewest": asked.fewest}
    return {**shared, "runs": {name: _describe(each) for name, each in runs.items()}, "scores": scores}


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
        "bytes_before_rounds": opened.terms.most_bytes("setup"),
        "bytes_after_rounds": opened.terms.most_bytes("personalize"),
    }


def _open(folder: Path, federation: Artifact, partition: Artifact) -> dict[str, _Opened]:
    """Open each run of a federation at a site, by its name; that of a single one is empty."""
    request = partition.manifest.request
    if request.get("federation") != federation.manifest.fingerprint:
        raise InputError(
            f"{partition.path} was not made for {federation.path}",
            f"pfl partition DATA --like {federation.path} --client NAME -o DIR",
        )
    data = partitions.read(partition)
    return {
        name: _Opened(folder / name, each, partition, opening.read_terms(each), data, request["client"])
        for name, each in opening.read_runs(federation).items()
    }


def _reopen(folder: Path) -> tuple[dict[str, _Opened], dict[str, Any]]:
    """Open the folder of a site; raises InputError if it is none, or its artifacts are gone."""
    facts = opening.read_claim(folder, "site", "pfl site check PARTITION FEDERATION -o DIR")
    federation, partition = (
        open_one(Path(os.path.normpath(folder / path)), kind)
        for path, kind in zip(facts["paths"], ("federation", "partition"), strict=True)
    )
    for kind, each in (("federation", federation), ("partition", partition)):
        if each.manifest.fingerprint != facts[kind]:
            raise InputError(f"{each.path} is not the {kind} that {folder} was made with")
    return _open(folder, federation, partition), facts


@command(ServeSite)
def serve_site(asked: ServeSite) -> Outcome:
    """Answer the questions in the ``exchange`` folder until the last message, and return the predictions.

    Of several runs, those of the first one are returned, and scores of all of them are sent. The state is in the folder
    of the site, after each round; the same command continues. Raises InputError for a message that does not fit.

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
    folder, exchange, execution = Path(asked.site), Folder(Path(asked.exchange)), asked.execution
    runs, facts = _reopen(folder)
    with locks.acquire(folder, execution.reporter.say):
        plays = {name: _answer_all(each, name, exchange, execution) for name, each in runs.items()}
        made = several.take_turns(plays)
        if "" not in runs:
            opened = next(iter(runs.values()))
            last = Address.make([*opened.terms.sites], opened.client, "", None)
            exchange.post(last.answer, read_pieces(_write_records(folder, runs, facts)))
            execution.reporter.say("the scores are sent")
        return next(iter(made.values()))


def _answer_all(opened: _Opened, name: str, exchange: Folder, execution: Execution) -> Generator[bool, None, Outcome]:
    """Answer the questions of a run, ``name`` if it is one of several, until the last message; returns predictions."""
    own = Address.make([*opened.terms.sites], opened.client, name, None)
    site, run = opened.site(execution), f"{name}: " if name else ""
    if not exchange.find(own).exists():
        execution.reporter.say(f"{run}waiting for messages to '{opened.client}' in {exchange.find(own).parent}")
    while True:
        address = next((each for each, _ in exchange.fetch(own.site) if each.run == own.run), None)
        if address is None:
            yield False
        elif address.number is None:
            return _predict(opened, site, retry_unfinished(site.finish, exchange.find(address)), execution)
        else:
            answer = retry_unfinished(site.answer, exchange.find(address))
            exchange.post(address.answer, read_pieces(answer))
            execution.reporter.say(f"{run}round {address.number}: answered")
            yield True


def _write_records(folder: Path, runs: Mapping[str, _Opened], facts: Mapping[str, Any]) -> Path:
    """Write the scores of a site, once it has the predictions of all runs, and return their file."""
    opened = next(iter(runs.values()))
    federation = open_one(opened.federation.path, "federation")
    made = {name: open_one(each.folder / "predictions", "predictions") for name, each in runs.items()}
    agreed = scores.Agreed.read(federation)
    found = scores.make_records(agreed, made, opened.client, folder, int(facts["fewest"]))
    path = folder / RECORDS
    whole = SiteRecords(client_records.VERSION, federation.manifest.fingerprint, opened.client, found)
    client_records.write(path, whole)
    return path


@command(AnswerMessage)
def answer_message(asked: AnswerMessage) -> Path:
    """Answer one message, and return the file of the answer: a copy at ``out``; or the predictions, after the last one.

    Of several runs, the answer to the last message of the last one is the file of the site's scores. Raises InputError
    for a message that does not fit.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from pflcli import federation, site
    >>> from pflcli import federation, partition, personalize, site
    >>> two = partition("writers", "runs/two", clients=2)
    >>> fed = federation.create(personalize("fedavg", two, "runs/f", model="logistic", rounds=1), "fed")
    >>> for name in ("w0371", "w2430"):
    ...     own = partition("writers", f"runs/{name}", like=fed, client=name)
    ...     _ = site.check(own, fed, f"site-{name}")
    >>> with ThreadPoolExecutor() as pool:  # each site in a place of its own, in truth
    ...     sites = [pool.submit(site.serve, f"site-{name}", "exchange") for name in ("w0371", "w2430")]
    ...     facts = federation.run(fed, "exchange", "server")
    >>> site.answer("site-w0371", "exchange/000-w0371/question-000001.msg").suffix
    '.msg'
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
        if kind == "final":
            made = _predict(opened, site, site.finish(message), asked.execution).path
            if "" in runs or not all(is_artifact(each.folder / "predictions") for each in runs.values()):
                return made
            stored = _write_records(folder, runs, facts)
        else:
            stored = site.answer(message)
        if asked.out is None:
            return stored
        return write_whole(Path(asked.out), read_pieces(stored))


def _predict(opened: _Opened, site: Site, state: State, execution: Execution) -> Outcome:
    """Make the predictions of a site from the state after all rounds."""
    spec, request = opening.make_spec(opened.federation.manifest.request), opened.federation.manifest.request
    out = opened.folder / "predictions"
    if "then" in request:
        return _predict_from_backbone(opened, site, state, out, execution)
    recorded = {key: request[key] for key in ("method", "options", "settings", "seed")}
    recorded["federation"] = opened.federation.manifest.fingerprint
    artifact = ArtifactSpec(
        "predictions",
        json.loads(json.dumps(recorded)),
        (opened.partition.as_input("source", out),),
        code=opened.federation.manifest.code,
    )
    job = Job(
        name=spec.name,
        method=spec.method,
        cfg=spec.cfg,
        settings=spec.settings,
        seed=spec.seed,
        lineage={"partition": opened.partition},
        source=opened.partition,
        spec=artifact,
    )

    def build(writer: ArtifactWriter) -> Built:
        run, progress = site.run, Progress(state)
        loop.predict_all(run, spec.name, spec.method, progress)
        write_predictions(job, run, opened.data, progress.join_predictions(), writer)
        write_rounds(job, run, opened.data, progress, {}, writer)
        summary = summarize(spec.name, run, progress.facts(), spec.settings.rounds, [])
        return Built(summary, hardware.facts(run.engine, execution))

    return make(out, artifact, execution, build)


def _predict_from_backbone(opened: _Opened, site: Site, state: State, out: Path, execution: Execution) -> Outcome:
    """Make the backbone of a site from the state after all rounds, and predict by the method that needs it."""
    request, cpu = opened.federation.manifest.request, opening.on_cpu(execution)
    then, path = request["then"], opened.folder / "backbone"
    recorded = {key: request[key] for key in ("method", "options", "settings", "seed")}
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
    if "datastore" in then:
        embedded = extract(source, opened.folder / "embeddings", layer=then.get("layer"), execution=cpu).path
        source = build_datastore(embedded, opened.folder / "datastore", **then["datastore"], execution=cpu).path
    run = {key: then[key] for key in ("settings", "options", "seed")}
    return personalize(then["method"], source, out, **run, execution=cpu)
