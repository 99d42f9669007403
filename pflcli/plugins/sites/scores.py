"""The scores of several methods among real sites: what a site sends of its test samples, and the table of all of them.

After its last message of the last run, each site writes the records of its client for all runs. The server joins them,
stores each run as predictions without a single one, and makes the table that ``pfl compare`` makes of a simulation.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts import codebook, csv_file, disk, plain_output
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec, digest, is_artifact
from pflcli.artifacts.manifest import read as read_manifest
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import foreign, methods
from pflcli.core.errors import ComputationError, InputError
from pflcli.core.execution import Execution
from pflcli.core.metrics import catalogue
from pflcli.core.scores import weighted_mean
from pflcli.core.simulation import absences
from pflcli.core.tasks import CLASSES, Labels
from pflcli.core.wording import as_typed, counted, listed
from pflcli.evaluation import client_identity, records, scoring, summary
from pflcli.evaluation.metrics.looks import Looks
from pflcli.evaluation.presentation import conclusion
from pflcli.evaluation.summary import Scored
from pflcli.plugins.sites import client_records, opening, several
from pflcli.plugins.sites import exchange as exchanges
from pflcli.plugins.sites.client_records import ClientRecord, RunRecords, Scores, SiteRecords
from pflcli.plugins.sites.endpoints import Server
from pflcli.plugins.sites.federation_options import RunFederation
from pflcli.plugins.sites.several import RunName
from pflcli.plugins.sites.transport import POLL_SECONDS, RECORDS, folder_of, read_pieces, write_whole
from pflcli.workflow.comparison.table import NAME, SPLIT
from pflcli.workflow.comparison.until_decided import look
from pflcli.workflow.training.run_artifact import summarize
from pflcli.workflow.tuning.space import BACKBONE

FILE, VALIDATION = RECORDS, "validation.json"
"""The files with the records of a site in its folder in the exchange; a run's folder has those of all sites."""
CHOICE = "choice.json"
"""The file of the server that says which trial of each method is chosen."""
LOOK = "look-{}.json"
"""The file of the server that says, after a look at the scores of so many seeds, whether it was the last one."""
_MAX_CHOICE = 1 << 20
"""Maximum bytes of a choice."""
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
        """Return what a federation of several runs says; raises UsageError for a metric that this pfl lacks.

        Raises InputError for a baseline that is no run.
        """
        request = federation.manifest.request
        known, found = codebook.read(federation), request["scores"]
        labels = Labels(request["form"]["classes"], **request.get("task", {}))
        names, metrics = known.class_names(labels.outputs), catalogue.parse_names(found["metric"])
        catalogue.require_defined(metrics, labels)
        labels = replace(labels, positive=catalogue.positive_class(found["positive"], names))
        if found["baseline"] not in {run.label for run in several.read_names(request)}:
            raise InputError(f"{federation.path} has no run of its baseline {str(found['baseline'])[:80]!r}")
        return cls(metrics, found["baseline"], found["positive"], labels, names)


# At a site


def make_records(
    agreed: Agreed, runs: Mapping[RunName, Artifact], client: str, folder: Path, fewest: int, split: str = SPLIT
) -> tuple[RunRecords, ...]:
    """Return the records of the ``client`` of a site, from its predictions by run.

    A client with fewer than ``fewest`` samples of the ``split`` withholds all but their number. Digests of samples
    depend on a secret in ``folder``, so that nobody can guess the samples. Validation samples choose among trials.
    """
    secret, sources, empty = _read_secret(folder), [], []
    for run, artifact in runs.items():
        label = _label_of(run, split)
        if not predictions.read_shape(artifact, split)[0]:
            empty.append(RunRecords(client_records.VERSION, label, run.seed, split, (ClientRecord(client, 0, None),)))
            continue
        item = scoring.describe_run(artifact, label, split, agreed.metrics, agreed.positive)
        sources.append((replace(item, seed=run.seed), partial(predictions.read, artifact, split)))
    found = []
    for item in scoring.add_records(sources, agreed.baseline if split == SPLIT else BACKBONE) if sources else ():
        hidden = [hashlib.blake2b(str(each).encode(), digest_size=16, key=secret).hexdigest() for each in item.samples]
        names = codebook.read(item.artifact).client_names(len(item.n))
        whole = client_records.list_records(replace(item, samples=np.asarray(hidden)), split, names, fewest)
        found.append(replace(whole, clients=(whole.clients[names.index(client)],)))
    return (*found, *empty)


def read_choice(path: Path, federation: Artifact) -> list[str]:
    """Return the names of the runs that are chosen; raises InputError for a choice of another federation."""
    with foreign.reading(path, "the choice among trials"):
        if path.stat().st_size > _MAX_CHOICE:
            raise InputError(f"{path} is too large for a choice")
        found = json.loads(foreign.read_json_text(path))
        if found["federation"] != federation.manifest.fingerprint:
            raise InputError(f"{path} is the choice of another federation")
        trials = {str(label): str(trial) for label, trial in found["trials"].items()}
    return several.list_chosen(several.read_names(federation.manifest.request), trials)


def keep_choice(path: Path, folder: Path, federation: Artifact) -> list[str]:
    """Return the runs that the choice in ``path`` names, and keep it in the ``folder`` of the site.

    Test samples are scored for one choice only: raises InputError if the folder has another one.
    """
    chosen, own = read_choice(path, federation), folder / CHOICE
    names = [run for run in several.read_names(federation.manifest.request) if run.name in chosen]
    content = {"federation": federation.manifest.fingerprint, "trials": {run.label: run.trial for run in names}}
    if not own.exists():
        write_whole(own, [json.dumps(content).encode()])
    elif read_choice(own, federation) != chosen:
        raise InputError(
            f"{path} is not the choice that this site has scored test samples for, or is about to: {own}",
            "ask the coordinator why it was changed",
        )
    return chosen


def _read_secret(folder: Path) -> bytes:
    path = folder / _SECRET
    if not path.is_file():
        temporary = path.with_suffix(".tmp")
        disk.write(temporary, [secrets.token_bytes(32)])
        temporary.replace(path)
    return path.read_bytes()


# At the server


def choose(federation: Artifact, asked: RunFederation, sites: Sequence[str]) -> list[str]:
    """Return the runs of the trials that are best on validation samples, and tell the sites which ones.

    It waits for the records of all sites, and stores the choice, which is then never made again. Raises
    ComputationError if no site tells its scores.
    """
    stored, names = Path(asked.out) / CHOICE, several.read_names(federation.manifest.request)
    if not stored.is_file():
        agreed, first = Agreed.read(federation), {*several.list_first(names)}
        runs = [run for run in names if run.name in first]
        received = _collect(federation, agreed, runs, asked, sites, VALIDATION)
        if all(client.scores is None for site in received.values() for run in site.runs for client in run.clients):
            raise ComputationError(
                "no trial can be chosen: all sites withhold their scores of validation samples, or have none",
                "sites with enough of them type pfl site join again, with a lower --fewest, and pfl site serve",
            )
        trials, values = dict[str, str](), dict[str, dict[str, float]]()
        metric = catalogue.METRICS[agreed.metrics[0]]
        for run in runs:
            found = [
                (client.scores.client[metric.name], client.n)
                for client in _join(run, received, sites, VALIDATION).clients
                if client.scores is not None and client.scores.client[metric.name] is not None
            ]
            known = np.asarray(found, np.float64).reshape(-1, 2)
            values.setdefault(run.label, {})[run.trial] = weighted_mean(*known.T) if len(known) else math.nan
        for label, by_trial in values.items():
            trials[label] = max(by_trial, key=lambda trial: metric.rank(by_trial[trial]))
            asked.execution.reporter.say(
                f"{label}: {trials[label]} is chosen of {counted(len(by_trial), 'trial')} by {metric.heading} on"
                f" validation samples, {by_trial[trials[label]]:.4g}"
            )
        content = {"federation": federation.manifest.fingerprint, "trials": trials, "validation": values}
        plain_output.replace_file(stored, json.dumps(scoring.replace_nonfinite(content), indent=1).encode())
    for site in sites:
        write_whole(folder_of(Path(asked.exchange), [*sites], site) / CHOICE, read_pieces(stored))
    return read_choice(stored, federation)


def records_file(federation: Artifact, seeds: int) -> str:
    """Return the file with the scores of a site under this number of ``seeds``: of each look, if there are several."""
    has_looks = "looks" in federation.manifest.request["scores"]
    return FILE.replace(".", f"-{seeds}.") if has_looks else FILE


def ends_with(
    federation: Artifact, table: Outcome, asked: RunFederation, sites: Sequence[str], *, is_last: bool
) -> bool:
    """Return whether a table decides what seeds were added for, or is the last one, and tell the sites so."""
    looks = federation.manifest.request["scores"].get("looks")
    if looks is None:
        return True
    count = len(table.request["seeds"])
    is_decided, words = look(table)
    asked.execution.reporter.say(f"look after {count} of at most {looks[1]} seeds: {words}")
    content = {"federation": federation.manifest.fingerprint, "is_last": is_decided or is_last}
    for site in sites:
        at = folder_of(Path(asked.exchange), [*sites], site) / LOOK.format(count)
        write_whole(at, [json.dumps(content).encode()])
    return is_decided or is_last


def read_look(path: Path, federation: Artifact) -> bool:
    """Return whether a look was the last one; raises InputError for one of another federation."""
    with foreign.reading(path, "what the server says after a look"):
        found = json.loads(foreign.read_json_text(path)) if path.stat().st_size <= _MAX_CHOICE else {}
        if found.get("federation") != federation.manifest.fingerprint or type(found.get("is_last")) is not bool:
            raise InputError(f"{path} says nothing about this federation")
        return bool(found["is_last"])


def make_table(
    federation: Artifact, servers: Mapping[str, Server], asked: RunFederation, sites: Sequence[str]
) -> tuple[Outcome, dict[str, Any]]:
    """Wait for the records of all sites, and make the table of the runs; returns it, and what the command returns."""
    agreed, out, views = Agreed.read(federation), Path(asked.out), opening.read_runs(federation)
    names = several.read_names(federation.manifest.request)
    runs = [run for run in names if run.name in servers]
    seeds, looks = {run.seed for run in runs}, federation.manifest.request["scores"].get("looks")
    received = _collect(federation, agreed, runs, asked, sites, records_file(federation, len(seeds)))
    silent = [site for site in sites if site not in received]
    scored, execution = list[Scored](), replace(asked.execution, jobs=0)
    for run in runs:
        server, joined = servers[run.name], _join(run, received, sites, FILE)
        at = out / f"seed-{run.seed}" / run.label
        artifact = _store_run(federation, views[run.name], server, joined, at, execution)
        is_marked = "reference" in views[run.name].manifest.request
        scored.append(_score(agreed, run, artifact, server, joined, sites, is_marked=is_marked))
    if looks is not None:
        level = Looks(*looks).level(len(seeds))
        scored = [replace(item, level=level) for item in scored]
    scored = scoring.pair_with_baseline(scored, agreed.baseline)
    spec = _describe_table(federation, agreed, scored, out / NAME)

    def build(writer: ArtifactWriter) -> Built:
        metrics = {**scoring.summarize(scored, SPLIT, agreed.baseline), "failed": {}}
        metrics |= {} if looks is None else {"looks": {"first": looks[0], "most": looks[1]}}
        remarks = ["seconds are those in which the server computed: sites do not tell theirs"]
        if silent:
            remarks.append(f"without scores, and not counted: {listed(silent)}")
        if several.has_trials(names):
            remarks.append(_describe_choice(names, runs, views, agreed))
        metrics["definitions"] = [*metrics.get("definitions", ()), *remarks]
        scoring.write(writer, scored, metrics, NAME)
        best = metrics["methods"][0]["label"]
        facts = {"methods": len(metrics["methods"]), "predictions": len(scored), "best": best, "failed": {}}
        return Built(facts, {})

    outcome = make(out / NAME, spec, execution, build, extends=_describe_change(out / NAME, spec))
    best = {"path": str(outcome.path), "best": outcome.summary["best"]}
    return outcome, {**best, "runs": len(scored), "without_scores": silent}


def _describe_choice(
    names: Sequence[RunName], runs: Sequence[RunName], views: Mapping[str, Artifact], agreed: Agreed
) -> str:
    """Return which options and settings were chosen, for the table."""
    lines = []
    for run in runs:
        trials = [each.name for each in names if (each.label, each.seed) == (run.label, names[0].seed)]
        if run.seed == names[0].seed and len(trials) > 1:
            own, others = (_list_values(views[name].manifest.request) for name in (run.name, trials[0]))
            every = [_list_values(views[name].manifest.request) for name in trials]
            varied = [key for key in own if any(each.get(key) != others.get(key) for each in every)]
            values = ", ".join(f"{key} {as_typed(own[key])}" for key in varied)
            lines.append(f"`{run.label}` {values} of {len(trials)}")
    return f"chosen among trials by {agreed.metrics[0]} on validation samples of the first seed: {'; '.join(lines)}"


def _list_values(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options and settings of a run that may differ between trials."""
    run = request.get("then", request)
    return {**run["options"], **request["settings"]}


def _collect(
    federation: Artifact,
    agreed: Agreed,
    runs: Sequence[RunName],
    asked: RunFederation,
    sites: Sequence[str],
    file: str,
) -> dict[str, SiteRecords]:
    """Return the records of the sites that send some in time; raises ComputationError without any.

    A file that has something else is named, and its site may send another one.
    """
    say, began, is_late = asked.execution.reporter.say, time.monotonic(), False
    paths = {site: folder_of(Path(asked.exchange), [*sites], site) / file for site in sites}
    received, refused = dict[str, SiteRecords](), dict[str, exchanges.Refusal]()
    say(f"waiting for the {'validation ' if file == VALIDATION else ''}scores of {counted(len(sites), 'site')}")
    while len(received) < len(sites) and not is_late:
        is_late = asked.patience is not None and time.monotonic() - began > asked.patience
        for site in sites:
            found = exchanges.signature(paths[site])
            if site in received or found is None:
                continue
            refusal = refused.get(site)
            if refusal is None or refusal.file != found:
                try:
                    received[site] = _read(paths[site], federation, agreed, runs, site)
                    continue
                except InputError as error:
                    reason = " ".join(error.message.split())[:400]
                    refusal = refused[site] = exchanges.Refusal(found, time.monotonic(), reason)
            if not refusal.is_told and (is_late or refusal.is_settled):
                refusal.is_told = True
                say(f"WARNING: '{site}': {refusal.reason}")
        if len(received) < len(sites):
            time.sleep(POLL_SECONDS)
    for site in _find_odd(received):
        say(f"WARNING: '{site}' tells other things than most sites, and is not counted")
        del received[site]
    if not received:
        raise ComputationError("no site has sent scores", "the same command waits for them again")
    return received


def _find_odd(received: Mapping[str, SiteRecords]) -> list[str]:
    """Return the sites whose records of a run have another form than those of most sites."""
    forms = {
        site: {(each.label, each.seed): client_records.describe_form(each.clients[0].scores) for each in found.runs}
        for site, found in received.items()
    }
    odd = set[str]()
    for key in next(iter(forms.values()), {}):
        told = {site: form for site, each in forms.items() if (form := each[key]) is not None}
        usual = next(iter(Counter(told.values()).most_common(1)), (None, 0))[0]
        odd |= {site for site, form in told.items() if form != usual}
    return sorted(odd)


def _read(path: Path, federation: Artifact, agreed: Agreed, runs: Sequence[RunName], site: str) -> SiteRecords:
    """Read the records of a site; raises InputError for others, or for those of other runs, metrics or classes."""
    most = len(runs) * (_RUN_BYTES + _CLASS_BYTES * agreed.labels.outputs * len(runs))
    with foreign.reading(path, "the scores of a site"):  # which may be gone, or another one, at any time
        if path.stat().st_size > most:
            raise InputError(f"{path} has more than {most:,} bytes, and is no file of scores")
    found = client_records.read_site(path)
    if found.federation != federation.manifest.fingerprint or found.client != site:
        raise InputError(f"{path} has the scores of another site or federation")
    split = _split_of(path.name)
    told = sorted((each.seed, each.label) for each in found.runs)
    if told != sorted((run.seed, _label_of(run, split)) for run in runs):
        raise InputError(f"{path} has scores of other runs than those of the federation")
    if any([client.name for client in each.clients] != [site] or each.split != split for each in found.runs):
        raise InputError(f"{path} has scores of other clients or samples")
    clients = [client for each in found.runs for client in each.clients]
    expected = _expect(agreed)
    for scores in [client.scores for client in clients if client.scores is not None]:
        if (tuple(scores.client), len(scores.counts[0]), len(scores.gaps)) != expected:
            raise InputError(f"{path} has other scores than those that were agreed on: {', '.join(agreed.metrics)}")
    if len({(client.n, client.scores and client.scores.samples) for client in clients}) > 1:
        raise InputError(f"{path} has other numbers of test samples for each run, or other samples")
    of_methods = _list_methods(federation)
    for each in found.runs:
        own = each.clients[0].scores
        if own is not None and not _is_paired(agreed, each, found.runs, own, of_methods):
            raise InputError(f"{path} does not compare {each.label} with the methods that were agreed on")
    return found


def _list_methods(federation: Artifact) -> dict[str, str]:
    """Return the method of each label of records."""
    found = dict[str, str]()
    for run in several.read_names(federation.manifest.request):
        request = federation.manifest.request["runs"][run.name]
        found |= dict.fromkeys((run.label, run.trial), str(request.get("then", request)["method"]))
    return found


def _is_paired(
    agreed: Agreed, run: RunRecords, runs: Sequence[RunRecords], scores: Scores, methods_of: Mapping[str, str]
) -> bool:
    """Return whether the scores of a run have the sums with other runs that ``scoring.add_records`` makes."""
    baseline = agreed.baseline if run.split == SPLIT else BACKBONE
    are_classes, seeds = agreed.labels.kind == CLASSES, [each.seed for each in runs if each.label == run.label]
    references = {baseline, *conclusion.ALONE}
    by_seed = [
        {
            "" if each.label == baseline else each.label
            for each in runs
            if each.seed == seed and references & {each.label, methods_of[each.label]}
        }
        for seed in seeds
    ]
    others = set.intersection(*by_seed) if len(seeds) > 1 and are_classes else set[str]()
    has_twin = "" in by_seed[seeds.index(run.seed)]
    # Without the baseline, the global model beside the method may take its place, which only the site knows.
    told = {*scores.pairs} if has_twin or len(seeds) == 1 or not are_classes else {*scores.pairs} - {""}
    return (
        told == others
        and all(len(sums) == len(seeds) for sums in scores.pairs.values())
        and (scores.differs is not None) == has_twin
        and (not has_twin or (scores.discordant is not None) == are_classes)
    )


def _expect(agreed: Agreed) -> tuple[tuple[str, ...], int, int]:
    """Return the names of the scores of a client, and the numbers of its classes and bins, from a made-up sample."""
    outputs = agreed.labels.outputs
    p = np.full((1, outputs), 1 / outputs, np.float32)
    none = np.zeros(1, np.int64)
    answers = predictions.SplitPredictions({"p": p}, none, none, np.asarray([0, 1]))
    made, _ = records.make(answers, agreed.metrics, agreed.labels, {})
    return tuple(made["client"]), made["counts"].shape[2], made["gaps"].shape[1]


def _split_of(file: str) -> str:
    return "validation" if file == VALIDATION else SPLIT


def _label_of(run: RunName, split: str) -> str:
    """Return the label of a run in records: trials are told apart on validation samples alone."""
    return run.label if split == SPLIT else run.trial


def _join(run: RunName, received: Mapping[str, SiteRecords], sites: Sequence[str], file: str) -> RunRecords:
    """Return the records of all clients for a run; those of sites that sent none have no samples."""
    split = _split_of(file)
    key = run.seed, _label_of(run, split)
    clients = {
        site: client
        for site, each in received.items()
        for found in each.runs
        for client in found.clients
        if (found.seed, found.label) == key
    }
    kept = [clients.get(site, ClientRecord(site, 0, None)) for site in sites]
    return RunRecords(client_records.VERSION, key[1], run.seed, split, tuple(kept))


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
    agreed: Agreed,
    run: RunName,
    artifact: Artifact,
    server: Server,
    joined: RunRecords,
    names: Sequence[str],
    *,
    is_marked: bool,
) -> Scored:
    """Return a run with the records of its clients, as ``scoring.score`` returns one of stored predictions."""
    method = str(artifact.manifest.request["method"])
    try:
        found = client_records.join(joined)
    except ValueError as error:
        raise ComputationError(f"{run.name}: {error}, and there is no table") from None
    return Scored(
        label=run.label,
        method=method,
        seed=run.seed,
        artifact=artifact,
        names=None if client_identity.are_numbered(names) else names,
        class_names=agreed.class_names,
        learned_from=predictions.learned_splits(artifact),
        is_transductive=bool(methods.load(method).TRANSDUCTIVE),
        is_reference=is_marked or scoring.is_reference(method),
        losses=[float(row["loss"]) for row in server.progress.rows],
        metric_names=agreed.metrics,
        labels=agreed.labels,
        **found,
    )


def _describe_table(federation: Artifact, agreed: Agreed, scored: Sequence[Scored], out: Path) -> ArtifactSpec:
    """Return the table's request, in the form of one that ``pfl compare`` makes."""
    requests = {item.label: item.artifact.manifest.request for item in scored}
    marks = {item.label for item in scored if item.is_reference and not scoring.is_reference(item.method)}
    training = next(iter(requests.values()))["settings"]
    compared = {
        label: {
            "options": dict(request["options"]),
            "settings": {k: v for k, v in request["settings"].items() if v != training.get(k)},
            **({"reference": True} if label in marks else {}),
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
        **({"looks": looks} if (looks := federation.manifest.request["scores"].get("looks")) else {}),
        "federation": federation.manifest.fingerprint,
    }
    ordered = sorted(scored, key=lambda item: (item.label, item.seed))
    inputs = tuple(item.artifact.as_input(f"{item.label}, seed {item.seed}", out) for item in ordered)
    return ArtifactSpec(NAME, request, inputs)
