"""``pfl federation``: agree on a method with real sites, and run its server."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pflcli.artifacts import codebook, locks, plain_output
from pflcli.artifacts.kinds import federation as federations
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import read_labels
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec, Manifest, digest
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import config, methods, sources
from pflcli.core.errors import ComputationError, ConflictError, GoneError, InputError, UnsuitedError, UsageError
from pflcli.core.federation import uploads
from pflcli.core.federation.privacy import guarantee
from pflcli.core.reporter import Reporter
from pflcli.core.settings import Settings
from pflcli.core.simulation import requirements
from pflcli.core.splits import FRACTIONS
from pflcli.core.wording import counted, listed
from pflcli.options.function import command
from pflcli.plugins.sites import messages, opening, scores, several
from pflcli.plugins.sites.admission import find_obstacle
from pflcli.plugins.sites.columns import table
from pflcli.plugins.sites.endpoints import Server
from pflcli.plugins.sites.exchange import Inbox
from pflcli.plugins.sites.federation_options import CheckFederation, CreateFederation, RunFederation, ShowStatus
from pflcli.plugins.sites.log_times import add_times
from pflcli.plugins.sites.several import Start
from pflcli.plugins.sites.status import read_status
from pflcli.plugins.sites.transport import Address, Folder
from pflcli.workflow.admission import private_rounds
from pflcli.workflow.training import attendance_record, run_request, run_settings
from pflcli.workflow.training.attendance_record import AttendanceRecord
from pflcli.workflow.training.dp_secret import FILE as SECRET
from pflcli.workflow.tuning.space import BACKBONE


@command(CreateFederation)
def create_federation(asked: CreateFederation) -> Outcome:
    """Make a federation of the method, options and settings of predictions, with the clients of their partition.

    Without a run, ``source`` is the table that sites agreed on, and ``method``, ``options`` and training settings say
    what they run. The federation contains no sample. Raises UnsuitedError if the method or a setting cannot run among
    real sites.

    >>> from pflcli import federation, partition, personalize
    >>> two = partition("writers", "runs/two", clients=2)
    >>> federation.create(personalize("fedavg", two, "runs/f", model="logistic", rounds=1), "fed").kind
    'federation'
    """
    starts = several.list_starts(asked, _start_from_table, _start_from_run)
    start = next(iter(starts.values()))
    partition, book = start.partition, start.book
    task = read_labels(partition.manifest, 0).facts()  # with the scale of all clients, which no site knows alone
    form, dealt = partitions.read_form(partition), partition.manifest.request
    request: dict[str, Any] = {
        "form": {"shape": list(form.shape), "type": form.dtype, "classes": form.labels.outputs},
        **task,
        "train": start.train,
        "split": {
            "fractions": dealt.get("fractions", list(FRACTIONS)),
            "seed": dealt.get("split_seed", dealt["seed"]),
            "keep_test": "keep_test" in dealt,
        },
        "import": start.imported,
        "codebook": digest(json.loads(json.dumps(codebook.to_fields(book)))),
    }
    names, runs = book.client_names(len(start.train)), dict[str, dict[str, Any]]()
    for name, each in starts.items():
        patterns = opening.derive_patterns({**request, **each.request}, names)
        runs[name] = {**each.request, "exchange": opening.write_patterns(patterns)}
    if "" in runs:
        request |= runs[""]
    else:
        request |= {"runs": runs, "scores": several.agree_on_scores(asked, runs, form.labels, book)}
    request["software"] = opening.describe_software()
    spec = ArtifactSpec("federation", request, code={k: v for each in starts.values() for k, v in each.code.items()})
    summary = {"clients": len(start.train), "participants": sum(count > 0 for count in start.train), **task}

    def build(writer: ArtifactWriter) -> Built:
        codebook.write(writer, book)
        for name, content in _read_imported_modules(spec).items():
            writer.write(name, content)
        return Built(summary, {})

    return make(asked.out, spec, asked.execution.reading(partition.path), build)


def _read_imported_modules(spec: ArtifactSpec) -> dict[str, bytes]:
    """Return the modules of the user that the method and the network import; ``make`` adds the files themselves.

    Raises InputError for a file in a package: sites read and name single files.
    """
    needed = {name.partition(":")[0] for name in spec.code}
    sent = [each for each in sources.read_used_files() if each.key in needed]
    if nested := [name for each in sent for name in each.contents if "/" in name]:
        raise InputError(
            f"{nested[0]} is in a package, and a federation carries single files",
            "put the method or network into a folder without __init__.py, beside what it imports",
        )
    return {name: content for each in sent for name, content in each.contents.items() if name != each.name}


def _start_from_run(predictions: Artifact, reporter: Reporter) -> Start:
    """Return the start from finished predictions, with the clients of their partition."""
    manifest, partition = predictions.manifest, ancestor(predictions, "partition")
    if partition is None or "later_clients" in manifest.request or "settings" not in manifest.request:
        raise InputError(
            f"{predictions.path} was not made by one method on a partition", "pfl personalize METHOD PARTITION"
        )
    trained = _find_rounds(predictions)
    for each in (trained, *([] if trained is predictions else [predictions])):
        name, method = each.manifest.request["method"], run_request.load_method(each)
        cfg = config.build(method.Config, each.manifest.request["options"], name)
        _require_deployable(each, partition, name, cfg, run_settings.read_settings(each))
    then = {} if trained is predictions else {"then": _describe_rest(predictions)}
    if then and run_settings.read_settings(trained).upload != run_settings.read_settings(predictions).upload:
        raise UnsuitedError(
            f"{predictions.path} cannot run among real sites: its upload steps are not those of {trained.path}",
            "run it without --upload, which it takes from its backbone",
        )
    return Start(
        request={**_describe_run(trained.manifest.request), **then},
        code={**trained.manifest.code, **manifest.code},
        partition=partition,
        train=partitions.read_sizes(partition)[:, 0].tolist(),
        imported=_import_request(partition, reporter),
        book=codebook.read(predictions),
    )


def _start_from_table(asked: CreateFederation) -> Start:
    """Return the start of ``method`` from the table that sites agreed on, whose sites are the clients.

    A method on a backbone gets that of FedAvg with the same settings, and a datastore with all defaults. Raises
    InputError for a table without sites, UnsuitedError for a method that needs something else.
    """
    assert not isinstance(asked.source, Artifact)
    earlier, name = table.read_earlier(Path(asked.source)), asked.method
    agreed, book = earlier.table, earlier.book
    assert agreed is not None
    if agreed.fractions is None or not agreed.is_measured:
        raise InputError(
            f"{earlier.name} has no sites yet, with their training samples and scales",
            f"pfl federation columns SUMMARY... --like {earlier.name} -o agreed.toml",
        )
    if name is None:
        raise UsageError(f"{earlier.name} does not say which method sites run", "--method fedavg")
    # A test fraction of 0 means that sites have a --split-column.
    dealt = {
        "fractions": [*agreed.fractions],
        "seed": agreed.seed,
        **({} if agreed.fractions[2] else {"keep_test": ""}),
    }
    task = {} if earlier.labels is None else earlier.labels.facts()
    summary = {"shape": [len(book.features)], "type": "float32", "classes": len(book.classes), **task}
    manifest = Manifest("partition", partitions.SCHEMA, earlier.digest, dealt, (), {}, {}, summary, {})
    partition, lineage = Artifact(Path(earlier.name), manifest), {"backbone": None}
    seed, runs, code = run_request.choose_seed(asked.seed, partition), dict[str, dict[str, Any]](), dict[str, str]()
    for each in dict.fromkeys((BACKBONE, name) if methods.load(name).NEEDS else (name,)):
        method = methods.load(each)
        cfg = config.build(method.Config, asked.options or {} if each == name else {}, each)
        settings = run_settings.settings_on_lineage(
            each, method, {**lineage, "partition": partition}, asked.settings or {}, asked.out
        )
        private_rounds.require_checked(each, method, cfg, settings, partition)
        _require_deployable(partition, partition, each, cfg, settings)
        for line in requirements.describe_ignored(each, method, settings) if not method.NEEDS else ():
            asked.execution.reporter.say(line)
        runs[each] = _describe_run(run_request.describe_run(each, cfg, settings, seed))
        for part in (f"methods/{each}", *run_request.code_files(settings)):
            code[part] = sources.code_hash(*part.split("/", 1))
    first, *rest = runs.values()
    store: dict[str, Any] = {"datastore": {}} if "datastore" in methods.load(name).NEEDS else {}
    return Start(
        request={**first, **({"then": {**rest[0], **store}} if rest else {}), "agreement": earlier.digest},
        code=code,
        partition=partition,
        train=[*agreed.sites.values()],
        imported={**earlier.request, **({"spellings": agreed.spellings} if agreed.spellings else {})},
        book=replace(book, clients=tuple(agreed.sites)),
    )


_STORE = ("index", "parameters", "capacity", "capacity_spread", "prototypes", "seed")
"""The keys of a datastore's request that are options of ``pfl build-datastore``."""


def _describe_run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a run's request that says which run it is; sites compute apart, as the simulation may not."""
    run = {key: request[key] for key in ("method", "options", "settings", "seed")}
    return {**run, "settings": {**run["settings"], "apart": True}}


def _find_rounds(predictions: Artifact) -> Artifact:
    """Return the artifact whose rounds sites play: the backbone of a method that needs one."""
    backbone = ancestor(predictions, "backbone")
    return backbone if backbone is not None and run_request.load_method(predictions).NEEDS else predictions


def _describe_rest(predictions: Artifact) -> dict[str, Any]:
    """Return what sites do by themselves after the rounds of the backbone, for the request.

    Raises UnsuitedError if the datastore is not what sites can build from their own samples.
    """
    then, needs = _describe_run(predictions.manifest.request), run_request.load_method(predictions).NEEDS
    if not {*needs} & {"embeddings", "datastore"}:
        return then
    embedded, store = (ancestor(predictions, kind) for kind in ("embeddings", "datastore"))
    assert embedded is not None  # every datastore has some
    moved = any(item.role == "partition" for item in embedded.manifest.inputs)
    if moved or (store is not None and any(item.kind == "datastore" for item in store.manifest.inputs)):
        moved_on = "embeddings have other samples" if store is None else "datastore was updated, or has other samples"
        raise UnsuitedError(
            f"{predictions.path} cannot run among real sites: its {moved_on}",
            f"pfl {'extract BACKBONE' if store is None else 'build-datastore EMBEDDINGS'} -o DIR, and the method on it",
        )
    then |= {key: value for key, value in embedded.manifest.request.items() if key == "layer"}
    if store is None or "datastore" not in needs:
        return then
    return {**then, "datastore": {key: value for key, value in store.manifest.request.items() if key in _STORE}}


def _require_deployable(source: Artifact, partition: Artifact, name: str, cfg: Any, settings: Settings) -> None:
    """Raise UnsuitedError for a method, a setting or a partition that real sites cannot have.

    ``source`` are predictions of a run, or the partition itself if there was none.
    """
    steps = [uploads.load(step) for step in settings.upload]
    dealt = partition.manifest.request
    reasons = {
        "its models began with the weights of a file": "weights" in source.manifest.request,
        "--adapter needs the weights of a file": settings.adapter is not None,
        "--refit needs the choices of an earlier run": settings.refit,
        "--report best and --patience need validation samples at the server": settings.report == "best"
        or bool(settings.patience),
        "--personal-every needs validation samples at the server": bool(settings.personal_every),
        "--normalize dataset needs the samples of all clients": settings.normalize == "dataset",
        "--dp-seed would let everybody who knows it compute the noise": settings.dp_seed is not None,
        "the noise of an upload step follows from what sites share": any(step.is_random for step in steps),
        "an upload step follows one that packs uploads": any(step.packs for step in steps[:-1]),
        "its partition has poisoned clients": "poison" in dealt,
        "its partition has new clients, which join later": bool(dealt.get("new_clients")),
        "the scheme of its partition changes samples": "clusters" in partition.manifest.summary,
    }
    for reason, is_so in reasons.items():
        if is_so:
            fix = "leave it out" if source is partition else "run it without, first"
            raise UnsuitedError(f"{source.path} cannot run among real sites: {reason}", fix)
    if obstacle := find_obstacle(name, config.plain(cfg), settings.rounds, settings.upload):
        raise UnsuitedError(
            f"{name} cannot run among real sites: {obstacle}", "docs/deployment.md lists the methods that can"
        )


def _import_request(partition: Artifact, reporter: Reporter) -> dict[str, Any]:
    """Return the options by which the samples of a partition were imported, for ``pfl import --like``.

    They are empty, with a message, if the dataset is gone, and for a dataset that was not imported.
    """
    try:
        dataset = ancestor(partition, "dataset")
    except GoneError:
        reporter.say(
            f"the dataset of {partition.path} is gone, and with it the options of pfl import: sites have to type them, "
            "such as --label, beside --like"
        )
        dataset = None
    if dataset is None:
        return {}
    request = {key: value for key, value in dataset.manifest.request.items() if key != "sha256"}
    return {**request, "client": request.get("client") or "none"}  # a site's table has the samples of one client


@command(RunFederation)
def run_federation(asked: RunFederation) -> dict[str, Any]:
    """Run the server of a federation: write questions to ``exchange`` and read the answers there, until the last round.

    The state is in ``out``, after each round; the same command continues. Sites that do not answer within ``patience``
    seconds count as dropped out in the round, if ``at_least`` so many do answer, or all that are asked if they are
    fewer; by default half of them, rounded up. Otherwise raises ComputationError, and the round stays open. An answer
    that does not fit is set aside to ``out``, and does not count. In the end, ``attendance.csv`` says who answered,
    with which a simulation has the same bytes.

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
    >>> facts["rounds"]
    1
    """
    asked = replace(asked, execution=add_times(asked.execution))
    execution, out, exchange = asked.execution, Path(asked.out), Path(asked.exchange)
    federation = open_one(asked.federation, "federation")
    runs = {name: (each, opening.read_terms(each)) for name, each in opening.read_runs(federation).items()}
    terms = next(terms for _, terms in runs.values())
    _require_possible(asked, federation, len(terms.sites))
    if "" not in runs:
        scores.Agreed.read(federation)  # before a round, not after the last one
    opening.claim(out, {"federation": federation.manifest.fingerprint, "role": "server"})
    names, say = [*terms.sites], execution.reporter.say
    heard = dict.fromkeys(names, time.monotonic())
    with locks.acquire(out, say):

        def play(chosen: Sequence[str]) -> tuple[dict[str, Server], dict[str, Any]]:
            hubs = {}
            for name in chosen:
                folder = several.state_folder(out, name)
                server = opening.open_server(*runs[name], folder, execution)
                hubs[name] = _Hub(server, name, folder, asked, heard)
            ended = several.take_turns({name: _serve(hub) for name, hub in hubs.items()})
            return {name: hub.server for name, hub in hubs.items()}, ended

        if "" in runs:
            (servers, absent), facts = play([*runs]), dict[str, Any]()
        else:
            servers, facts = _compare(federation, asked, names, play)
        private = [server.run.settings for server in servers.values() if server.run.privacy is not None]
        if private:
            secret = several.state_folder(out, "") if "" in runs else out / several.SERVER
            say(
                f"never release {secret} or {exchange}, or what this command has printed: they tell who took part in"
                f" each round, and {SECRET} the noise"
            )
        if total := guarantee.compose_runs(private):
            say(guarantee.describe_composition(total))
        if "" not in runs:
            return facts
    (server,) = servers.values()
    privacy = guarantee.summarize_guarantee(
        server.run.settings, len(server.run.federation.participants), server.progress.rows, say
    )
    return {"path": str(out), "rounds": server.rounds, "absent": absent[""], **privacy}


def _compare(
    federation: Artifact,
    asked: RunFederation,
    sites: Sequence[str],
    play: Callable[[Sequence[str]], tuple[dict[str, Server], Any]],
) -> tuple[dict[str, Server], dict[str, Any]]:
    """Play the runs of a federation of several, and make their table; returns all servers, and what it says.

    Trials are chosen by the first seed, and then seeds are added until the table is decided, if sites agreed on that.
    """
    request = federation.manifest.request
    names = several.read_names(request)
    servers, _ = play(several.list_first(names))
    chosen = scores.choose(federation, asked, sites) if servers else [each.name for each in names]
    looks = several.list_looks(request, names, chosen)
    for now in looks:
        later, _ = play([name for name in now if name not in servers])
        servers |= later
        table, facts = scores.make_table(federation, {name: servers[name] for name in now}, asked, sites)
        if scores.ends_with(federation, table, asked, sites, is_last=now == looks[-1]):
            break
    return servers, facts


@dataclass(frozen=True)
class _Hub:
    """The server of a run, the ``folder`` of its state, and where its messages are.

    ``name`` is that of the run among several, or empty; ``heard`` has the time of the last answer of each site.
    """

    server: Server
    name: str
    folder: Path
    asked: RunFederation
    heard: dict[str, float]

    @property
    def names(self) -> list[str]:
        """The names of the sites."""
        return [*self.server.terms.sites]

    @property
    def exchange(self) -> Folder:
        """The folder of all messages."""
        return Folder(Path(self.asked.exchange))

    def address(self, site: str, number: int | None) -> Address:
        """Return the address of the question of this ``number`` to a site, or of the last message."""
        return Address.make(self.names, site, self.name, number)

    def post(self, site: str, number: int | None, pieces: Iterable[bytes]) -> Path:
        """Put a message for a site, and return its file."""
        return self.exchange.post(self.address(site, number), pieces)

    def say(self, text: str) -> None:
        """Report a line about the run."""
        self.asked.execution.reporter.say(f"{self.name}: {text}" if self.name else text)


def _serve(hub: _Hub) -> Generator[bool, None, dict[str, Any]]:
    """Play the rounds of a run that are left, and send the last messages; returns in which rounds sites were absent."""
    server = hub.server
    for line in guarantee.describe_plan(server.run.settings, lambda: server.run.federation.participants):
        hub.say(line)
    if server.rounds:
        hub.say(f"continuing after round {server.rounds}")
    elif not server.is_finished and any(
        hub.exchange.find(hub.address(site, None)).exists() for site in hub.names
    ):  # with which sites would end before they began
        raise ConflictError(
            f"{hub.asked.exchange} has the messages of an earlier run", "choose another folder for --at"
        )
    yield from _play(hub)
    for site in hub.names:
        hub.post(site, None, messages.pieces(*server.final(site)))
    record = _record_attendance(server, hub.names)
    if server.run.privacy is None:  # otherwise who takes part is a secret
        plain_output.replace_file(hub.folder / attendance_record.FILE, record.encode())
    hub.say(f"{counted(server.rounds, 'round')} played; the last message is there for every site")
    return record.absent


def _require_possible(asked: RunFederation, federation: Artifact, sites: int) -> None:
    """Raise UsageError for options that no federation, or none of this number of ``sites``, can have."""
    patience, at_least = asked.patience, asked.at_least
    if patience is not None and not 0 < patience < math.inf:
        raise UsageError(f"--patience {patience:g} is not a positive number", "--patience 3600")
    if at_least is not None and at_least < 1:
        raise UsageError(f"--at-least {at_least} is not a positive number", "--at-least 1")
    if at_least is not None and patience is None:
        raise UsageError("--at-least has no effect without --patience: the server waits for all", "--patience 3600")
    if at_least is not None and at_least > sites:
        raise UsageError(f"--at-least {at_least} is more than the {counted(sites, 'site')} of {federation.path}")
    if Path(asked.out).resolve().is_relative_to(Path(asked.exchange).resolve()):
        raise UsageError(
            f"{asked.out} is inside {asked.exchange}: sites could read the server's state",
            "choose a folder elsewhere for --out",
        )


def _play(hub: _Hub) -> Generator[bool, None, None]:
    """Play the rounds that are left; raises ComputationError if too few sites answer one in time."""
    server, asked = hub.server, hub.asked
    inbox = Inbox(server, hub.folder / "answers", hub.say)
    while True:
        questions, paths, phase = server.ask(), {}, server.phase
        if not questions:
            break
        for site, question in questions.items():
            paths[site] = hub.post(site, question.number, messages.pieces(question, server.tensors(question)))
        inbox.begin(questions, paths)
        yield from _wait(inbox, hub)
        least = min(-(-len(questions) // 2) if asked.at_least is None else asked.at_least, len(questions))
        if len(inbox.found) < least:
            raise ComputationError(
                f"{hub.name}{', ' if hub.name else ''}round {phase}: {len(inbox.found)} of"
                f" {counted(len(questions), 'site')} answered in {asked.patience:g} s, and at least {least} must;"
                f" without an answer: {listed(inbox.missing)}",
                f"{shlex.join(asked.execution.command)} asks this round again",
            )
        row, silent = server.close(inbox.found), inbox.missing
        for site in server.implausible:
            asked.execution.reporter.say(
                f"round {phase}: {site} counts as absent: it sends numbers over a million times as large as others do"
            )
        if row is not None:
            hub.say(
                f"round {server.rounds}: loss {row['loss']:.4f}, {counted(row['clients'], 'client')}"
                + (f"; no answer from {listed(silent)}" if silent else "")
            )
        if server.phase != phase:
            inbox.clear()
    inbox.clear()


def _record_attendance(server: Server, names: Sequence[str]) -> AttendanceRecord:
    """Return which clients, by their ``names`` (m,), were asked in each round, and which of them answered."""
    return AttendanceRecord(
        {
            number: {names[client]: answered for client, answered in clients.items()}
            for number, clients in server.attendance.items()
            if number <= server.rounds
        }
    )


def _wait(inbox: Inbox, hub: _Hub) -> Generator[bool, None, None]:
    """Wait for the answers of all sites, or of those that answer in time; one that answers another run is not late."""
    began, patience, is_late = time.monotonic(), hub.asked.patience, False
    while inbox.missing and not is_late:
        now, before = time.monotonic(), {*inbox.missing}
        is_late = patience is not None and all(now - max(began, hub.heard[site]) > patience for site in before)
        inbox.look(is_last=is_late)
        hub.heard.update(dict.fromkeys(before - {*inbox.missing}, now))
        yield len(inbox.missing) < len(before)
    seconds = time.monotonic() - began
    hub.asked.execution.reporter.detail(f"{len(inbox.found)} answers in {seconds:.2f} s, {len(inbox.missing)} missing")


@command(CheckFederation)
def check_federation(asked: CheckFederation) -> dict[str, Any]:
    """Return what a federation agrees on; raises InputError if its code is another one here, or exchanges others.

    >>> from pflcli import federation, partition, personalize
    >>> two = partition("writers", "runs/two", clients=2)
    >>> fed = federation.create(personalize("fedavg", two, "runs/f", model="logistic", rounds=1), "fed")
    >>> federation.check(fed)["method"]
    'fedavg'
    """
    federation = open_one(asked.federation, "federation")
    runs = opening.read_runs(federation)
    for each in runs.values():
        opening.require_derived(each, opening.read_terms(each))
    fingerprint = {"fingerprint": federation.manifest.fingerprint}
    described = {name: _describe_exchange(each) for name, each in runs.items()}
    clients = federations.read_exchange(next(iter(runs.values())))["clients"]
    if "" in described:
        return {**described[""], "clients": clients, **fingerprint}
    return {"runs": described, "scores": dict(federation.manifest.request["scores"]), "clients": clients, **fingerprint}


def _describe_exchange(federation: Artifact) -> dict[str, Any]:
    """Return the method of a run, its rounds, and the bytes of a round."""
    request, facts = federation.manifest.request, federations.read_exchange(federation)
    return {
        "method": facts["method"],
        "paper": methods.load(facts["method"]).PAPER,
        **({"rounds_of": request["method"]} if "then" in request else {}),
        **{key: facts[key] for key in ("rounds", "bytes_down", "bytes_up")},
    }


@command(ShowStatus)
def show_status(asked: ShowStatus) -> dict[str, Any]:
    """Return what a server is doing: the round, who is awaited since when, and what each site answered last.

    The server may run. Raises InputError if the folder is not that of a server.

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
    >>> federation.status("server")["runs"][""]["phase"]
    'final'
    """
    folder = Path(asked.server)
    opening.read_claim(folder, "server", "pfl federation run FEDERATION --at DIR -o DIR")
    return read_status(folder)
