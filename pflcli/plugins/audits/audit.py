"""``pfl audit``: measure membership inference against the clients of stored predictions, or attack their updates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts import csv_file
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import read_labels
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.errors import UnsuitedError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.wording import counted
from pflcli.evaluation import figures
from pflcli.options.function import command
from pflcli.plugins.audits import attacks, canary_training, first_round, leakage, membership, queries
from pflcli.plugins.audits import charts as attack_charts
from pflcli.plugins.audits import kind as artifact_kind
from pflcli.plugins.audits import presentation as audits
from pflcli.plugins.audits.attacks import Exposure
from pflcli.plugins.audits.membership import Area, Mask, Rate
from pflcli.plugins.audits.options import Audit
from pflcli.workflow.prediction import disclosure, reopened_run, stored_predictor
from pflcli.workflow.prediction.disclosure import Disclosure
from pflcli.workflow.prediction.stored_predictor import StoredPredictor

STATISTICS = 1
"""The version of the statistics; it changes when the results of the same request may change."""


@command(Audit)
def audit(asked: Audit) -> Outcome:
    """Measure what an attacker learns about clients' training samples, from predictions or from updates.

    The attacker queries a client of ``source`` with samples whose class it knows, and scores how likely each sample is
    a member of the client's training data. Members are the client's training samples (with refit also its validation
    samples), non-members its test samples: the same number of each, drawn by ``seed``. Clients that took part in no
    round are excluded and counted.

    ``references`` are predictions of the same method on other splits of the same samples; they add the likelihood-ratio
    attack. ``canaries`` is the number of clients with random updates that are added to a run with differential privacy;
    its rounds are repeated with them to bound epsilon from below.
    With ``answers``, the attacker sees only what the client publishes: ``full`` probabilities, ``rounded:1`` or the
    ``label``, but neither its model nor its store. ``weights`` is the file of initial weights of a run without a
    backbone.

    With ``updates``, the attacker is the server, or everybody who receives the global model, in round 1 of a run of
    fedavg or fedsgd on a table: it estimates how many training samples of each class a client has, and recovers single
    ones. The result is an artifact of another kind.

    Raises UsageError for invalid options; InputError for an incomplete lineage, unsuitable references, or clients
    without members or non-members; ComputationError if the method cannot predict.

    >>> from pflcli import audit, partition, personalize
    >>> trained = personalize("ditto", partition("writers", "runs/p", clients=6), "runs/ditto", model="mlp", rounds=2)
    >>> audit(trained, "runs/audit").kind
    'audit'
    """
    execution = asked.execution.reading(asked.weights)
    canary_training.require_count(asked.canaries)
    disclosure.parse(asked.answers)
    artifact = open_one(asked.source, "predictions", chosen=Chosen(asked.method, asked.seed, draws=True))
    if asked.updates:
        return _attack_updates(asked, artifact, execution)
    disclosed = disclosure.parse(asked.answers, read_labels(artifact.manifest, 0).kind)
    predictor = stored_predictor.open_predictor(artifact, asked.weights)
    compared = [open_one(path, "predictions") for path in asked.references]
    reference_predictors = attacks.open_references(predictor, compared, asked.weights) if compared else []
    seed = int(artifact.manifest.request["seed"]) if asked.seed is None else asked.seed
    spec = ArtifactSpec(
        "audit",
        {
            "statistics": STATISTICS,
            "seed": seed,
            **{name: value for name in ("canaries", "answers") if (value := getattr(asked, name))},
        },
        (
            artifact.as_input("predictions", Path(asked.out)),
            *(item.as_input(f"reference {number}", Path(asked.out)) for number, item in enumerate(compared)),
        ),
    )

    build = partial(_build, predictor, reference_predictors, asked.canaries, disclosed, seed, execution)
    return make(asked.out, spec, execution, build)


def _attack_updates(asked: Audit, artifact: Artifact, execution: Execution) -> Outcome:
    for option, given in (("reference", asked.references), ("canaries", asked.canaries), ("answers", asked.answers)):
        if given:
            raise UsageError(f"--{option} is for attacks on predictions, and --updates attacks updates", "give one")
    model = stored_predictor.open_predictor(artifact, asked.weights).run
    if model is None:
        raise UnsuitedError(
            "a stack has no rounds whose updates could be attacked", "pfl audit one of the predictions that it pools"
        )
    first_round.require_covered(model)
    seed = model.seed if asked.seed is None else asked.seed
    spec = ArtifactSpec(
        "leakage",
        {"statistics": leakage.STATISTICS, "seed": seed},
        (artifact.as_input("predictions", Path(asked.out)),),
    )
    return make(asked.out, spec, execution, partial(leakage.build_leakage, model, seed, execution))


def _build(
    predictor: StoredPredictor,
    compared: Sequence[StoredPredictor],
    canaries: int,
    disclosed: Disclosure | None,
    seed: int,
    execution: Execution,
    work: ArtifactWriter,
) -> Built:
    path = predictor.artifact.path
    for name in predictor.find_changed_code():
        execution.reporter.say(f"WARNING: {name} has changed since {path} was made: predictions may differ from it")
    result = _attack(predictor, compared, seed, disclosed, execution)
    strongest = attacks.find_strongest(result.exposures)
    names = reopened_run.client_names(predictor.artifact)
    facts: dict[str, Any] = {}
    if canaries:
        facts["canaries"] = canary_training.audit_epsilon(predictor, canaries, execution)
        line = audits.describe_canaries(facts["canaries"])
        if facts["canaries"]["contradicts"]:
            result.warnings.append(line)
        else:
            execution.reporter.say(line)
    # A client is queried with as many members as non-members.
    facts |= queries.account_noisy_votes(predictor, 2 * max(item.count for item in result.exposures[0].clients))
    if votes := facts.get("noisy_votes"):
        execution.reporter.say(audits.describe_noisy_votes(votes))
    _write(work, result, names, facts)
    for line in result.warnings:
        execution.reporter.say(f"WARNING: {line}")
    summary = {
        "method": predictor.method,
        "clients": result.clients,
        "members": int(result.member.sum()),
        "attack": strongest.attack,
        "auc": round(strongest.area.value, 6),
    }
    return Built(summary, {})


@dataclass(frozen=True)
class _Result:
    """The results of all attacks; ``clients`` is the number of audited clients."""

    method: str
    exposures: list[Exposure]
    member: Mask
    clients: int
    left_out: int
    warnings: list[str]
    sees: Mapping[str, str]
    """what the attacker observes, by attack"""


def _attack(
    predictor: StoredPredictor,
    compared: Sequence[StoredPredictor],
    seed: int,
    disclosed: Disclosure | None,
    execution: Execution,
) -> _Result:
    """Query all clients with samples, and score the samples by every attack."""
    data = partitions.read(predictor.partition)
    is_unseen = queries.find_unseen(data)
    sent_queries = queries.draw_queries(predictor, data, is_unseen, seed)
    member = queries.find_members(predictor.artifact, data)[sent_queries.rows]
    parts, remarks = queries.predict_queries(predictor, sent_queries, execution)
    by_attack = attacks.score_samples(parts, sent_queries.y, disclosed, data.labels)
    if compared:
        logits, learned = attacks.score_with_references(sent_queries, member, compared, disclosed, execution)
        by_attack["likelihood-ratio"] = membership.likelihood_ratios(by_attack["confidence"], logits, learned)
    if disclosed is not None and disclosed.is_label:
        del by_attack["confidence"]  # without probabilities it is the attack ``label``
    exposures = [
        attacks.measure_exposure(name, by_attack[name], member, sent_queries.client, len(data.names))
        for name in attacks.SEES
        if name in by_attack
    ]
    audited = int((np.diff(sent_queries.offsets) > 0).sum())
    few = sum(item.area is None for item in exposures[0].clients) - int(is_unseen.sum())
    warnings = [*remarks, *_warnings(predictor, few, int(is_unseen.sum()))]
    sees = {item.attack: attacks.describe_sight(item.attack, data.labels) for item in exposures}
    return _Result(predictor.method, exposures, member, audited, int(is_unseen.sum()), warnings, sees)


def _warnings(predictor: StoredPredictor, few: int, unseen: int) -> list[str]:
    """Return warnings that concern the interpretation of the results."""
    lines = []
    if few:
        lines.append(
            f"{counted(few, 'client')} with fewer than {attacks.MIN_MEMBERS} members or non-members: their AUC is not "
            "defined, but their samples count in the AUC of all clients"
        )
    if unseen:
        lines.append(f"{counted(unseen, 'unseen client')} left out: the rounds did not use their samples")
    request = predictor.partition.manifest.request
    if "keep_test" in request or "keep_validation" in request:
        lines.append(
            "test samples were given, not drawn at random: if they differ systematically from training samples, "
            "attacks detect this difference too, not only membership"
        )
    return lines


def _write(work: ArtifactWriter, result: _Result, names: Sequence[str], more: dict[str, Any]) -> None:
    rows = [_row(item, result.member, result.sees[item.attack]) for item in result.exposures]
    content = {
        "method": result.method,
        "audited_clients": result.clients,
        "unseen_clients": result.left_out,
        "attacks": rows,
        **more,
        "warnings": result.warnings,
    }
    work.write(artifact_kind.AUDIT, (json.dumps(content, indent=2) + "\n").encode())
    heading = [name for name in rows[0] if name != "sees"]
    work.write(artifact_kind.TABLE, csv_file.encode_rounded(heading, [[row[name] for name in heading] for row in rows]))
    work.write(artifact_kind.CLIENTS, _client_table(result, names))
    strongest = attacks.find_strongest(result.exposures)
    ranked = strongest.ranked_clients
    areas = [[area.value, area.low, area.high] for _, area in ranked]
    curves = {item.attack: membership.roc_curve(item.scores, result.member) for item in result.exposures}
    labels = [names[item.client] for item, _ in ranked]
    chart = attack_charts.draw_roc(curves, labels, np.asarray(areas, np.float64).reshape(-1, 3), strongest.attack)
    figures.write(work, artifact_kind.FIGURE, chart)


def _rates(rates: Sequence[Rate | None]) -> dict[str, float | None]:
    names = ("tpr_at_1_percent", "tpr_at_0_1_percent")
    columns: dict[str, float | None] = {}
    for name, rate in zip(names, rates, strict=True):
        columns[name] = None if rate is None else rate.value
        columns[f"{name}_low"] = None if rate is None else rate.low
        columns[f"{name}_high"] = None if rate is None else rate.high
    return columns


def _row(item: Exposure, member: Mask, sees: str) -> dict[str, Any]:
    """Return the row of one attack, over all clients together."""
    defined = [area for _, area in item.ranked_clients]
    return {
        "attack": item.attack,
        "sees": sees,
        "auc": item.area.value,
        "auc_low": item.area.low,
        "auc_high": item.area.high,
        **_rates(item.rates),
        "members": int(member.sum()),
        "non_members": int((~member).sum()),
        "clients": len(defined),
        "undefined": len(item.clients) - len(defined),
        "worst_client_auc": max((area.value for area in defined), default=None),
        "above_chance": sum(area.low > 0.5 for area in defined),
        "above_chance_by_chance": 0.025 * len(defined),
    }


def _client_table(result: _Result, names: Sequence[str]) -> bytes:
    """Return ``clients.csv``: one row per client and attack, the clients most exposed to the strongest attack first."""
    strongest = attacks.find_strongest(result.exposures)
    order = [item.client for item, _ in strongest.ranked_clients]
    order += [item.client for item in strongest.clients if item.area is None]
    rows = []
    for client in order:
        for item in result.exposures:
            own = item.clients[client]
            area: Area | None = own.area
            values = [None] * 3 if area is None else [area.value, area.low, area.high]
            rates = [*_rates(own.rates).values()]
            rows.append([client, names[client], item.attack, own.count, *values, *rates])
    heading = ["client", "name", "attack", "members", "auc", "auc_low", "auc_high", *_rates((None, None))]
    return csv_file.encode_rounded(heading, rows)
