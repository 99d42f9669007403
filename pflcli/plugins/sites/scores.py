"""The scores of several methods among real sites: what a site sends of its test samples, and the table of all of them.

After its last message of the last run, each site writes the records of its client for all runs. The server joins them,
stores each run as predictions without a single one, and makes the table that ``pfl compare`` makes of a simulation.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts import codebook, csv_file, disk
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.make import Built, make
from pflcli.artifacts.manifest import ArtifactSpec, digest, is_artifact
from pflcli.artifacts.manifest import read as read_manifest
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import methods
from pflcli.core.errors import ComputationError, InputError
from pflcli.core.execution import Execution
from pflcli.core.metrics import catalogue
from pflcli.core.simulation import absences
from pflcli.core.tasks import Labels
from pflcli.core.wording import counted, listed
from pflcli.evaluation import client_identity, records, scoring, summary
from pflcli.evaluation.summary import Scored
from pflcli.plugins.sites import client_records, opening
from pflcli.plugins.sites import exchange as exchanges
from pflcli.plugins.sites.client_records import ClientRecord, RunRecords, SiteRecords
from pflcli.plugins.sites.endpoints import Server
from pflcli.plugins.sites.federation_options import RunFederation
from pflcli.plugins.sites.transport import POLL_SECONDS, RECORDS, folder_of
from pflcli.workflow.comparison.table import NAME, SPLIT
from pflcli.workflow.training.run_artifact import summarize

_SECRET = "records.key"
"""The file of a site with which it makes the digests of its samples."""
_RUN_BYTES, _CLASS_BYTES = 1 << 14, 1 << 6
"""Maximum bytes of the records of a run, and of what they have of a class."""


@dataclass(frozen=True)
class Agreed:
    """Which scores sites send: ``metrics``, the first of which ranks, and by which ``baseline`` and positive class."""

    metrics: tuple[str, ...]
    baseline: str
    positive: str | None
    labels: Labels
    class_names: Sequence[str]

    @classmethod
    def read(cls, federation: Artifact) -> Agreed:
        """Return what a federation of several runs says; raises UsageError for a metric that this pfl lacks."""
        request = federation.manifest.request
        known, found = codebook.read(federation), request["scores"]
        labels = Labels(request["form"]["classes"], **request.get("task", {}))
        names, metrics = known.class_names(labels.outputs), catalogue.parse_names(found["metric"])
        catalogue.require_defined(metrics, labels)
        labels = replace(labels, positive=catalogue.positive_class(found["positive"], names))
        return cls(metrics, found["baseline"], found["positive"], labels, names)


def _split(name: str) -> tuple[int, str]:
    """Return the seed and the label of a run by its name."""
    folder, _, label = name.partition("/")
    return int(folder.removeprefix("seed-")), label


# At a site


def make_records(
    agreed: Agreed, runs: Mapping[str, Artifact], client: str, folder: Path, fewest: int
) -> tuple[RunRecords, ...]:
    """Return the records of the ``client`` of a site, from its predictions by run.

    A client with fewer than ``fewest`` test samples withholds all but their number. Digests of samples depend on a
    secret in ``folder``, so that nobody can guess the samples.
    """
    secret, sources, empty = _read_secret(folder), [], []
    for name, artifact in runs.items():
        seed, label = _split(name)
        if not predictions.read_shape(artifact, SPLIT)[0]:
            empty.append(RunRecords(client_records.VERSION, label, seed, SPLIT, (ClientRecord(client, 0, None),)))
            continue
        item = scoring.describe_run(artifact, label, SPLIT, agreed.metrics, agreed.positive)
        sources.append((replace(item, seed=seed), partial(predictions.read, artifact, SPLIT)))
    found = []
    for item in scoring.add_records(sources, agreed.baseline) if sources else ():
        hidden = [hashlib.blake2b(str(each).encode(), digest_size=16, key=secret).hexdigest() for each in item.samples]
        names = codebook.read(item.artifact).client_names(len(item.n))
        whole = client_records.list_records(replace(item, samples=np.asarray(hidden)), SPLIT, names, fewest)
        found.append(replace(whole, clients=(whole.clients[names.index(client)],)))
    return (*found, *empty)


def _read_secret(folder: Path) -> bytes:
    path = folder / _SECRET
    if not path.is_file():
        temporary = path.with_suffix(".tmp")
        disk.write(temporary, [secrets.token_bytes(32)])
        temporary.replace(path)
    return path.read_bytes()


# At the server


def make_table(
    federation: Artifact, servers: Mapping[str, Server], asked: RunFederation, names: Sequence[str]
) -> dict[str, Any]:
    """Wait for the records of all sites, and make the table of the runs; returns its path and what it says."""
    agreed, out = Agreed.read(federation), Path(asked.out)
    received = _collect(federation, agreed, [*servers], asked, names)
    silent = [name for name in names if name not in received]
    scored, execution = list[Scored](), replace(asked.execution, jobs=0)
    for name, server in servers.items():
        joined = _join(name, received, names)
        view = opening.read_runs(federation)[name]
        artifact = _store_run(federation, view, server, joined, out / name, execution)
        scored.append(_score(agreed, name, artifact, server, joined, names))
    scored = scoring.pair_with_baseline(scored, agreed.baseline)
    spec = _describe_table(federation, agreed, scored, out / NAME)

    def build(writer: ArtifactWriter) -> Built:
        metrics = {**scoring.summarize(scored, SPLIT, agreed.baseline), "failed": {}}
        remarks = ["seconds are those in which the server computed: sites do not tell theirs"]
        if silent:
            remarks.append(f"without scores, and not counted: {listed(silent)}")
        metrics["definitions"] = [*metrics.get("definitions", ()), *remarks]
        scoring.write(writer, scored, metrics, NAME)
        return Built({"methods": len(metrics["methods"]), "predictions": len(scored), "failed": {},
                      "best": metrics["methods"][0]["label"]}, {})  # fmt: skip

    outcome = make(out / NAME, spec, execution, build, extends=_describe_change(out / NAME, spec))
    return {"path": str(outcome.path), "best": outcome.summary["best"], "runs": len(scored), "without_scores": silent}


def _collect(
    federation: Artifact, agreed: Agreed, runs: Sequence[str], asked: RunFederation, names: Sequence[str]
) -> dict[str, SiteRecords]:
    """Return the records of the sites that send some in time; raises ComputationError without any.

    A file that has something else is named, and its site may send another one.
    """
    say, began, is_late = asked.execution.reporter.say, time.monotonic(), False
    paths = {site: folder_of(Path(asked.exchange), [*names], site) / RECORDS for site in names}
    received, refused = dict[str, SiteRecords](), dict[str, exchanges.Signature]()
    say(f"waiting for the scores of {counted(len(names), 'site')}")
    while len(received) < len(names) and not is_late:
        is_late = asked.patience is not None and time.monotonic() - began > asked.patience
        for site in names:
            file = exchanges.signature(paths[site])
            if site in received or file is None or refused.get(site) == file:
                continue
            try:
                received[site] = exchanges.retry_unfinished(
                    partial(_read, federation=federation, agreed=agreed, runs=runs, site=site), paths[site]
                )
            except InputError as error:
                refused[site] = file
                say(f"WARNING: '{site}': {' '.join(error.message.split())[:400]}")
        if len(received) < len(names):
            time.sleep(POLL_SECONDS)
    if not received:
        raise ComputationError("no site has sent scores", "the same command waits for them again")
    return received


def _read(path: Path, federation: Artifact, agreed: Agreed, runs: Sequence[str], site: str) -> SiteRecords:
    """Read the records of a site; raises InputError for others, or for those of other runs, metrics or classes."""
    most = len(runs) * (_RUN_BYTES + _CLASS_BYTES * agreed.labels.outputs * len(runs))
    if path.stat().st_size > most:
        raise InputError(f"{path} has more than {most:,} bytes, and is no file of scores")
    found = client_records.read_site(path)
    if found.federation != federation.manifest.fingerprint or found.client != site:
        raise InputError(f"{path} has the scores of another site or federation")
    told = [(each.seed, each.label) for each in found.runs]
    if sorted(told) != sorted(map(_split, runs)):
        raise InputError(f"{path} has scores of other runs than those of the federation")
    if any([client.name for client in each.clients] != [site] or each.split != SPLIT for each in found.runs):
        raise InputError(f"{path} has scores of other clients or samples")
    known = [client.scores for each in found.runs for client in each.clients]
    expected = _expect(agreed)
    for scores in known:
        if scores is not None and (tuple(scores.client), len(scores.counts[0]), len(scores.gaps)) != expected:
            raise InputError(f"{path} has other scores than those that were agreed on: {', '.join(agreed.metrics)}")
    if len({client.n for each in found.runs for client in each.clients}) > 1:
        raise InputError(f"{path} has other numbers of test samples for each run")
    return found


def _expect(agreed: Agreed) -> tuple[tuple[str, ...], int, int]:
    """Return the names of the scores of a client, and the numbers of its classes and bins, from a made-up sample."""
    outputs = agreed.labels.outputs
    p = np.full((1, outputs), 1 / outputs, np.float32)
    none = np.zeros(1, np.int64)
    answers = predictions.SplitPredictions({"p": p}, none, none, np.asarray([0, 1]))
    made, _ = records.make(answers, agreed.metrics, agreed.labels, {})
    return tuple(made["client"]), made["counts"].shape[2], made["gaps"].shape[1]


def _join(name: str, received: Mapping[str, SiteRecords], names: Sequence[str]) -> RunRecords:
    """Return the records of all clients for a run; those of sites that sent none have no samples."""
    seed, label = _split(name)
    clients = {
        site: client
        for site, each in received.items()
        for run in each.runs
        for client in run.clients
        if (run.seed, run.label) == (seed, label)
    }
    forms = Counter(form for each in clients.values() if (form := client_records.describe_form(each.scores)))
    usual = next(iter(forms.most_common(1)), (None, 0))[0]
    odd = {site for site, each in clients.items() if client_records.describe_form(each.scores) not in (None, usual)}
    kept = [ClientRecord(site, 0, None) if site in odd or site not in clients else clients[site] for site in names]
    return RunRecords(client_records.VERSION, label, seed, SPLIT, tuple(kept))


def _store_run(
    federation: Artifact, view: Artifact, server: Server, joined: RunRecords, out: Path, execution: Execution
) -> Artifact:
    """Store what the server knows of a run: its rounds and costs, and the records of clients, but no prediction."""
    request = view.manifest.request
    run = request.get("then", request)
    recorded = {key: run[key] for key in ("method", "options", "settings", "seed")}
    content = json.dumps(asdict(joined), allow_nan=False)
    recorded |= {"federation": view.manifest.fingerprint, "records": digest(json.loads(content))}
    code = {name: value for name, value in view.manifest.code.items() if name == f"methods/{run['method']}"}
    spec = ArtifactSpec("predictions", recorded, (federation.as_input("federation", out),), code)

    def build(writer: ArtifactWriter) -> Built:
        writer.write_h5(predictions.FILE, {})
        writer.write(RECORDS, content.encode())
        codebook.write(writer, codebook.read(federation))
        rows = [*server.progress.before, *server.progress.rows]
        writer.seconds = sum(float(row["seconds"]) for row in rows)
        if rows:
            writer.write("rounds.csv", csv_file.encode_rounds(absences.count_clients(rows)))
        facts = summarize(run["method"], server.run, server.progress.facts(), len(server.progress.rows), [])
        paper = methods.load(run["method"]).PAPER
        return Built({**facts, "at_sites": True, **({"paper": paper} if paper else {})}, {"seconds_inputs": 0})

    return open_artifact(make(out, spec, execution, build, extends=_describe_change(out, spec)).path)


def _describe_change(out: Path, spec: ArtifactSpec) -> str:
    """Return what an artifact adds to the one at ``out``; empty if there is none, or it is the same."""
    if not is_artifact(out) or read_manifest(out).fingerprint == spec.fingerprint:
        return ""
    return "has scores that sites have sent since"


def _score(
    agreed: Agreed, name: str, artifact: Artifact, server: Server, joined: RunRecords, names: Sequence[str]
) -> Scored:
    """Return a run with the records of its clients, as ``scoring.score`` returns one of stored predictions."""
    seed, label = _split(name)
    method = str(artifact.manifest.request["method"])
    try:
        found = client_records.join(joined)
    except ValueError as error:
        raise ComputationError(f"{name}: {error}, and there is no table") from None
    return Scored(
        label=label,
        method=method,
        seed=seed,
        artifact=artifact,
        names=None if client_identity.are_numbered(names) else names,
        class_names=agreed.class_names,
        learned_from=predictions.learned_splits(artifact),
        is_transductive=bool(methods.load(method).TRANSDUCTIVE),
        is_reference=scoring.is_reference(method),
        losses=[float(row["loss"]) for row in server.progress.rows],
        metric_names=agreed.metrics,
        labels=agreed.labels,
        **found,
    )


def _describe_table(federation: Artifact, agreed: Agreed, scored: Sequence[Scored], out: Path) -> ArtifactSpec:
    """Return the table's request, in the form of one that ``pfl compare`` makes."""
    requests = {item.label: item.artifact.manifest.request for item in scored}
    training = next(iter(requests.values()))["settings"]
    compared = {
        label: {
            "options": dict(request["options"]),
            "settings": {k: v for k, v in request["settings"].items() if v != training.get(k)},
        }
        for label, request in requests.items()
    }
    request = {
        "methods": compared,
        "seeds": sorted({item.seed for item in scored}),
        "settings": dict(training),
        "split": SPLIT,
        "baseline": agreed.baseline,
        "statistics": summary.STATISTICS,
        **({} if agreed.metrics == catalogue.DEFAULT else {"metric": [*agreed.metrics]}),
        **({} if agreed.positive is None else {"positive": agreed.positive}),
        "federation": federation.manifest.fingerprint,
    }
    ordered = sorted(scored, key=lambda item: (item.label, item.seed))
    inputs = tuple(item.artifact.as_input(f"{item.label}, seed {item.seed}", out) for item in ordered)
    return ArtifactSpec(NAME, request, inputs)
