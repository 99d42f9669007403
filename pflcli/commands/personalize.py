"""``pfl personalize``: run a method and store its predictions for every sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pflcli.artifacts import codebook
from pflcli.artifacts import initial_weights as initial
from pflcli.artifacts.kinds import LINEAGE, missing_input_error, predictions, required_kinds
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import config, methods, registry, sources
from pflcli.core.engine import backend
from pflcli.core.errors import UsageError
from pflcli.core.execution import Execution
from pflcli.core.federation.privacy import guarantee
from pflcli.core.federation.run import LINKS, Run
from pflcli.core.methods import Method
from pflcli.core.simulation import absences, requirements
from pflcli.core.simulation.progress import Progress
from pflcli.options.function import command
from pflcli.options.personalize import Personalize
from pflcli.workflow.admission import private_rounds
from pflcli.workflow.training import (
    attendance_record,
    checkpointed,
    dp_secret,
    earlier_choices,
    hardware,
    more_rounds,
    notices,
    run_request,
    run_settings,
)
from pflcli.workflow.training.checkpoint import Checkpoints
from pflcli.workflow.training.run_artifact import Job, summarize, write_predictions, write_rounds


@command(Personalize)
def personalize(asked: Personalize) -> Outcome:
    """Run ``method`` on the lineage of ``source`` and store its predictions for every sample.

    ``source`` is a partition, backbone, embeddings or datastore; the others are found by its lineage. The training
    settings are those of the backbone, if there is one, changed by ``settings``. If the same method and settings made
    the backbone, its rounds are not run again. Models start from the initial weights of the backbone or, without a
    backbone, from the file ``weights``. With the setting ``refit``, a method that chooses on validation samples takes
    its choices from the earlier predictions ``choices``. With the record ``attendance`` of a
    deployment, the clients that did not answer drop out. Raises InputError if the lineage lacks an artifact that the
    method needs, ``weights`` do not fit or the record is that of another run; UsageError if ``choices`` are missing, or
    if the settings contradict the backbone.

    >>> from pflcli import partition, personalize
    >>> made = personalize("ditto", partition("writers", "runs/p", clients=6), "runs/ditto", model="mlp", rounds=2)
    >>> made.kind, made.summary["rounds"]
    ('predictions', 2)
    """
    definition = methods.load(asked.method)
    cfg = config.build(definition.Config, asked.options or {}, asked.method)
    nearest = open_one(asked.source, *LINEAGE, chosen=Chosen(seed=asked.seed, draws=True))
    lineage = _lineage(asked.method, definition, nearest)
    training = run_settings.settings_on_lineage(asked.method, definition, lineage, asked.settings or {}, asked.out)
    private_rounds.require_checked(asked.method, definition, cfg, training, nearest)
    seed = run_request.choose_seed(asked.seed, nearest)
    request = run_request.describe_run(asked.method, cfg, training, seed)
    file = initial.read(asked.weights) if asked.weights is not None else None
    execution = asked.execution.reading(asked.attendance, *(each.path for each in (file, *lineage.values()) if each))
    digest = _initial_digest(nearest, lineage["backbone"], file)
    initial.require_weights(training, digest)
    if digest is not None:
        request["weights"] = digest
    record = None
    if asked.attendance is not None:
        record = attendance_record.read_for_method(asked.attendance, asked.method, definition, training)
    if record is not None and record.absent:
        request["absent"] = record.absent
    # A method that needs embeddings trains no model: the code of the model is part of the embeddings' fingerprint.
    trains = "embeddings" not in required_kinds(definition.NEEDS)
    names = (f"methods/{asked.method}", *(run_request.code_files(training) if trains else ()))
    code = {name: sources.code_hash(*name.split("/", 1)) for name in names}
    earlier_run = earlier_choices.open_run(definition.choices(cfg), request, asked.choices, lineage["partition"])
    named = {"source": nearest, **({} if earlier_run is None else {"choices": earlier_run})}
    inputs = tuple(artifact.as_input(role, Path(asked.out)) for role, artifact in named.items())
    job = Job(
        name=asked.method,
        method=definition,
        cfg=cfg,
        settings=training,
        seed=seed,
        lineage=lineage,
        weights=file,
        attendance=record,
        earlier_run=earlier_run,
        source=nearest,
        spec=ArtifactSpec("predictions", request, inputs, code=code),
    )
    shorter = more_rounds.find_shorter(Path(asked.out), job.spec, definition, training, force=execution.force)
    return make(
        asked.out,
        job.spec,
        execution,
        partial(_build, job, shorter, execution),
        extends=more_rounds.describe(shorter),
        continued=shorter,
        remarks=_remarks(job),
        uncharged=backend.compile_seconds,
    )


def _remarks(job: Job) -> Iterator[str]:
    """Yield what a user should know before a run, such as settings without effect and costs."""
    name, method, settings, partition = job.name, job.method, job.settings, job.lineage["partition"]
    yield from notices.describe_seed(name, method, job.cfg, settings)
    yield from requirements.describe_ignored(name, method, settings)
    if partition is not None:
        yield from notices.describe_pair_costs(name, method, job.cfg, settings, partition)
        yield from notices.describe_lone_samples(name, method, job.cfg, settings, partition)
        if method.has_rounds and LINKS[method.KIND]:
            yield from guarantee.describe_plan(settings, partial(partitions.read_able_clients, partition))


def _lineage(name: str, method: Method, source: Artifact) -> dict[str, Artifact | None]:
    """Return the artifacts, from partition to datastore, that ``source`` descends from.

    Raises InputError if one that the method needs is missing, or if two do not fit together.
    """
    lineage = {kind: ancestor(source, kind) for kind in LINEAGE}
    for need in method.NEEDS:
        if lineage[need] is None:
            raise missing_input_error(name, need, source)
    partition, backbone, datastore = (lineage[kind] for kind in ("partition", "backbone", "datastore"))
    if partition is not None and backbone is not None:
        codebook.require_same(partition, backbone, *codebook.INPUTS)
    if partition is not None and datastore is not None:
        codebook.require_same(partition, datastore, "clients", *codebook.INPUTS)
    return lineage


def _initial_digest(source: Artifact, backbone: Artifact | None, weights: initial.Weights | None) -> str | None:
    """Return the hash of the initial weights, None for random ones.

    Raises UsageError if the backbone started from other weights than those of the file.
    """
    digest: str | None
    if backbone is not None:
        digest = backbone.manifest.request.get("weights")
    else:
        digest = None if weights is None else weights.digest
    if weights is not None and weights.digest != digest:
        raise UsageError(f"{source.path} descends from a backbone that did not start from {weights.path}")
    return digest


def _build(job: Job, shorter: Artifact | None, execution: Execution, writer: ArtifactWriter) -> Built:
    """Run the rounds, those after the ``shorter`` run if there is one, predict for all clients, and write all."""
    data = partitions.read(job.partition)
    draws = dp_secret.noise_draws(job.settings, job.spec, job.partition, writer, shorter)
    given = replace(job.read_inputs(data, execution), private_rng=draws, storage=writer.row_files())
    run = job.build(data, execution, given)
    progress = checkpointed.resume(run, job.name, job.method, writer, execution, shorter)
    checkpoints = Checkpoints(run, progress, writer)
    # The backbone stores only the global model: a method with more state must run its rounds again.
    reuses_rounds = job.repeats_backbone and progress.state.keys() == {"global"}
    if reuses_rounds:
        backbone = job.lineage["backbone"]
        assert backbone is not None
        assert run.backbone is not None
        execution.reporter.say(f"{job.name}: reusing the {job.settings.rounds} rounds of {backbone.path}")
        progress.state, progress.before, progress.rows = {"global": run.backbone}, [], []
        run.traffic = dict.fromkeys(run.traffic, 0)  # the bytes of setup are already counted for the backbone
    else:
        checkpointed.run_rounds(run, job.name, job.method, checkpoints, execution)
    checkpointed.predict_all(run, job.name, job.method, checkpoints, execution)
    needed = required_kinds(job.method.NEEDS) | ({"backbone"} if reuses_rounds else set())
    inputs = {kind: item for kind in LINEAGE if kind in needed and (item := job.lineage[kind]) is not None}
    backbone = inputs.get("backbone") if not progress.rows else None
    reported = progress.facts() if backbone is None else run_request.reported_round(backbone)
    tuned, flags = write_predictions(job, run, data, progress.join_predictions(), writer)
    write_rounds(job, run, data, progress, reported, writer)
    if job.method.has_rounds and not reuses_rounds:
        more_rounds.write(progress, writer)
    clients = codebook.read(job.source).client_names(len(run.clients))
    missing = absences.summarize([*progress.before, *progress.rows], clients) | absences.name_flagged(flags, clients)
    for line in absences.describe(missing):
        execution.reporter.say(f"{job.name}: {line}")
    # The costs of the run that made the choices count too.
    costs = [*inputs.values(), *([] if job.earlier_run is None else [job.earlier_run])]
    summary = {
        **summarize(job.name, run, reported, len(progress.rows), costs),
        "tuned": predictions.summarize_tuned(tuned),
        **_privacy(job, run, progress, backbone, execution),
        **({"transductive": True} if job.method.TRANSDUCTIVE else {}),
        **({"paper": job.method.PAPER} if registry.is_foreign("methods", job.name) else {}),
        **missing,
    }
    return Built(summary, _circumstances(job, run, costs, execution))


def _privacy(job: Job, run: Run, progress: Progress, backbone: Artifact | None, execution: Execution) -> dict[str, Any]:
    """Return the guarantee of a run with differential privacy; without rounds of its own, that of its ``backbone``."""
    if backbone is not None:
        return {key: value for key, value in backbone.manifest.summary.items() if key == "privacy"}
    if run.privacy is None or not job.method.has_rounds:
        return {}
    clients = len(run.federation.participants)
    return guarantee.summarize_guarantee(job.settings, clients, progress.rows, execution.reporter.say)


def _circumstances(job: Job, run: Run, costs: Sequence[Artifact], execution: Execution) -> dict[str, Any]:
    seconds, processor = (_seconds(costs, job.earlier_run, name) for name in ("seconds", "processor_seconds"))
    return {
        **hardware.facts(run.engine, execution),
        "seconds_inputs": round(seconds, 3),
        **({} if math.isnan(processor) else {"processor_seconds_inputs": round(processor, 3)}),
    }


def _seconds(costs: Sequence[Artifact], earlier_run: Artifact | None, name: str) -> float:
    """Return the seconds in which the artifacts ``costs`` were made; nan if one of them was not measured."""
    total = sum(float(item.manifest.made.get(name, math.nan)) for item in costs)
    return total + (0.0 if earlier_run is None else float(earlier_run.manifest.made.get(f"{name}_inputs", math.nan)))
