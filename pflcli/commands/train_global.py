"""``pfl train-global``: train the global model by FedAvg or another method that has one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from safetensors.torch import save

from pflcli.artifacts import codebook, csv_file
from pflcli.artifacts import initial_weights as initial
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import WEIGHTS
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import config, methods, parameters, sources
from pflcli.core.engine import backend
from pflcli.core.errors import UsageError
from pflcli.core.execution import Execution
from pflcli.core.federation.privacy import guarantee
from pflcli.core.federation.run import LINKS, Run
from pflcli.core.methods import Method
from pflcli.core.simulation import absences
from pflcli.core.simulation.progress import Progress
from pflcli.evaluation import convergence
from pflcli.options.function import command
from pflcli.options.train_global import TrainGlobal
from pflcli.workflow.admission import private_rounds
from pflcli.workflow.training import (
    attendance_record,
    checkpointed,
    dp_secret,
    hardware,
    more_rounds,
    notices,
    run_request,
    run_settings,
    state_files,
)
from pflcli.workflow.training.checkpoint import Checkpoints
from pflcli.workflow.training.run_spec import RunSpec


@command(TrainGlobal)
def train_global(asked: TrainGlobal) -> Outcome:
    """Train a global model on the clients of the partition ``source``.

    ``settings`` are fields of ``pflcli.core.settings.Settings``, ``options`` those of the method, and ``weights`` is a
    file with initial parameters. With the record ``attendance`` of a deployment, the clients that did not answer drop
    out. Raises UsageError for a method without a global model, InputError for weights that do not fit or the record of
    another run, ComputationError if training diverges.

    >>> from pflcli import partition, train_global
    >>> made = train_global(partition("writers", "runs/p", clients=6), "runs/g", model="mlp", rounds=2)
    >>> made.kind, made.summary["rounds"]
    ('backbone', 2)
    """
    execution = asked.execution
    partition = open_one(asked.source, "partition", chosen=Chosen(seed=asked.seed, draws=True))
    definition = methods.load(asked.method)
    _require_global_model(asked.method, definition)
    cfg = config.build(definition.Config, asked.options or {}, asked.method)
    training = run_settings.resolve_settings({}, asked.settings or {}, partition)
    run_settings.require_suited(asked.method, definition, training, partition)
    private_rounds.require_checked(asked.method, definition, cfg, training, partition)
    seed = run_request.choose_seed(asked.seed, partition)
    file = initial.read(asked.weights) if asked.weights is not None else None
    initial.require_weights(training, None if file is None else file.digest)
    execution = execution.reading(None if file is None else file.path, asked.attendance)
    request = run_request.describe_run(asked.method, cfg, training, seed)
    record = None
    if asked.attendance is not None:
        record = attendance_record.read_for_method(asked.attendance, asked.method, definition, training)
    if record is not None and record.absent:
        request["absent"] = record.absent
    artifact_spec = ArtifactSpec(
        "backbone",
        request if file is None else {**request, "weights": file.digest},
        (partition.as_input("partition", Path(asked.out)),),
        code={
            at: sources.code_hash(*at.split("/", 1))
            for at in (f"methods/{asked.method}", *run_request.code_files(training))
        },
    )

    spec = RunSpec(
        name=asked.method,
        method=definition,
        cfg=cfg,
        settings=training,
        seed=seed,
        lineage={"partition": partition},
        weights=file,
        attendance=record,
    )
    shorter = more_rounds.find_shorter(Path(asked.out), artifact_spec, definition, training, force=execution.force)

    return make(
        asked.out,
        artifact_spec,
        execution,
        partial(_build, spec, artifact_spec, shorter, execution),
        extends=more_rounds.describe(shorter),
        continued=shorter,
        remarks=chain(
            notices.describe_seed(asked.method, definition, cfg, training),
            guarantee.describe_plan(training, partial(partitions.read_able_clients, partition)),
        ),
        uncharged=backend.compile_seconds,
    )


def _build(
    spec: RunSpec, artifact_spec: ArtifactSpec, shorter: Artifact | None, execution: Execution, writer: ArtifactWriter
) -> Built:
    """Run the rounds, those after the ``shorter`` run if there is one, and write the global model."""
    partition, training, name = spec.partition, spec.settings, spec.name
    draws = dp_secret.noise_draws(training, artifact_spec, partition, writer, shorter)
    data = partitions.read(partition)
    inputs = replace(spec.read_inputs(data, execution), private_rng=draws, storage=writer.row_files())
    run = spec.build(data, execution, inputs)
    if spec.weights is not None:
        assert run.whole_network is not None
        writer.write(initial.INITIAL, bytes(save(parameters.copy_params(run.whole_network))))
    progress = checkpointed.resume(run, name, spec.method, writer, execution, shorter)
    if "global" not in progress.state:
        raise UsageError(f"{name} makes no global model", "--method fedavg")
    checkpointed.run_rounds(run, name, spec.method, Checkpoints(run, progress, writer), execution, shared=True)
    writer.write(WEIGHTS, bytes(save(state_files.flatten(progress.reported["global"]))))
    writer.write("rounds.csv", csv_file.encode_rounds(absences.count_clients([*progress.before, *progress.rows])))
    more_rounds.write(progress, writer)
    codebook.write(writer, book := codebook.read(partition))
    missing = absences.summarize([*progress.before, *progress.rows], book.client_names(len(run.clients)))
    accuracy = _accuracy(run, progress)
    _report(name, run, progress, accuracy, missing, execution)
    weights_file = {} if spec.weights is None else {"weights": str(spec.weights.path)}
    summary = {**_summary(run, data, progress, accuracy, missing), **_privacy(run, progress, execution)}
    return Built(summary, {**hardware.facts(run.engine, execution), **weights_file})


def _require_global_model(name: str, method: Method) -> None:
    """Raise UsageError for a method whose clients upload nothing, or that needs a finished backbone."""
    reason = f"is of kind {method.KIND}" if "up" not in LINKS[method.KIND] else ""
    if method.NEEDS and not reason:
        reason = f"needs {' and '.join(method.NEEDS)}"
    if reason:
        raise UsageError(f"{name} {reason} and makes no global model", "--method fedavg")


def _accuracy(run: Run, progress: Progress) -> float:
    """Return the validation accuracy of the global model after the reported round; nan if it was not measured."""
    if progress.rows:
        reported = len(progress.rows) if progress.best is None else progress.best.round
        return float(progress.rows[reported - 1]["validation_accuracy"])
    return run.accuracy(progress.reported["global"], "validation")


def _summary(
    run: Run, data: partitions.Partition, progress: Progress, accuracy: float, missing: Mapping[str, Any]
) -> dict[str, Any]:
    has_accuracy = run.task.score == "accuracy"
    return {
        "rounds": len(progress.rows),
        **progress.facts(),
        "parameters": sum(value.numel() for value in progress.reported["global"].values()),
        **({"validation_accuracy": None if math.isnan(accuracy) else accuracy} if has_accuracy else {}),
        **data.labels.facts(),
        **{f"bytes_{link}": total for link, total in run.traffic.items()},
        **missing,
    }


def _privacy(run: Run, progress: Progress, execution: Execution) -> dict[str, Any]:
    """Report and return the guarantee of a run with differential privacy."""
    return guarantee.summarize_guarantee(
        run.settings, len(run.federation.participants), progress.rows, execution.reporter.say
    )


def _report(
    method: str, run: Run, progress: Progress, accuracy: float, missing: Mapping[str, Any], execution: Execution
) -> None:
    """Report whether validation accuracy still rises, which clients were absent, and the final accuracy."""
    rows, best = progress.rows, progress.best
    samples = int(run.federation.sizes("validation")[run.federation.seen_clients].sum())
    curve, stopped = (
        convergence.select_measured(rows, "validation_accuracy"),
        convergence.is_stopped(vars(run.settings), len(rows)),
    )
    rise = convergence.measure_mean_rise([curve], samples, stopped=stopped)
    if rise is not None and run.task.score == "accuracy":
        execution.reporter.say(convergence.format_warning({method: rise["rise"]}, len(rows), rise["advised"]))
    for line in absences.describe(missing):
        execution.reporter.say(line)
    unknown = "validation samples were trained on" if run.settings.refit else "no validation samples"
    result = unknown if math.isnan(accuracy) else f"validation {run.task.score} {accuracy:.4f}"
    execution.reporter.say(f"{result} after round {best.round if best else f'{len(rows)} (the last)'}")
