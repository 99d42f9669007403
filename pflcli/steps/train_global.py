"""``pfl train-global``: train the shared backbone by FedAvg or one of its kin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save

from pflcli import config, methods, sources
from pflcli.artifacts import codebook
from pflcli.artifacts import partition as partitions
from pflcli.artifacts.artifact import Artifact, open_artifact
from pflcli.artifacts.backbone import WEIGHTS
from pflcli.artifacts.manifest import Draft
from pflcli.artifacts.store import Work
from pflcli.errors import UsageError
from pflcli.fl.channel import LINKS
from pflcli.steps import absences, convergence, machine, planned, states, training
from pflcli.steps import weights as initial
from pflcli.steps.making import Manner, Outcome, make


def train_global(
    source: Path | str | Artifact,
    out: Path | str,
    *,
    method: str = "fedavg",
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    weights: Path | str | initial.Weights | None = None,
    seed: int | None = None,
    manner: Manner | None = None,
) -> Outcome:
    """Train one global model over the clients of the partition ``source``.

    ``settings`` are fields of ``fl.run.Settings``, ``options`` those of the method, ``weights`` a file with the initial
    parameters. Raises UsageError for a method that makes no global model, InputError for weights that do not fit,
    ComputationError if training diverges.
    """
    manner = manner or Manner()
    partition = open_artifact(source, "partition")
    algorithm = methods.load(method)
    if "up" not in LINKS[algorithm.KIND]:
        raise UsageError(f"{method} is of kind {algorithm.KIND} and makes no global model", "--method fedavg")
    cfg = config.build(algorithm.Config, options or {}, method)
    plan = planned.settings({}, settings or {}, partition)
    seed = training.draws(seed, partition)
    begin = initial.read(weights) if weights is not None else None
    manner = manner.reading(None if begin is None else begin.path)
    request = {"method": method, "options": config.plain(cfg), "settings": training.requested(plan), "seed": seed}
    draft = Draft(
        "backbone",
        request if begin is None else {**request, "weights": begin.digest},
        (partition.as_input("partition", Path(out)),),
        code={
            name: sources.code_hash(*name.split("/", 1)) for name in (f"methods/{method}", *training.sources_of(plan))
        },
    )

    def build(work: Work) -> tuple[dict[str, Any], dict[str, Any]]:
        run = training.prepare(partitions.read(partition), algorithm, cfg, plan, seed, manner)
        if begin is not None:
            run.init = initial.begun(begin, plan, run.init, manner.watch.say)
            work.write(initial.INITIAL, bytes(save(states.flatten(run.init))))
        progress = training.resumed(run, algorithm, work, manner)
        training.rounds(run, method, algorithm, training.Checkpoints(run, progress, work), manner, shared=True)
        shared, rows, best = progress.reported["global"], progress.rows, progress.best
        work.write(WEIGHTS, bytes(save(states.flatten(shared))))
        work.write("rounds.csv", states.table(absences.columns([*progress.before, *rows])))
        codebook.write(work, names := codebook.read(partition))
        last = rows[-1]["validation_accuracy"] if rows else run.accuracy(shared, "validation")
        accuracy = last if best is None else best.accuracy
        missing = absences.summary([*progress.before, *rows], names.client_names(len(run.clients)))
        summary = {
            "rounds": len(rows),
            **progress.facts(),
            "parameters": sum(value.numel() for value in shared.values()),
            "validation_accuracy": None if math.isnan(accuracy) else accuracy,
            **{f"bytes_{link}": total for link, total in run.traffic.items()},
            **missing,
        }
        nothing = "validation samples were trained on" if plan.refit else "no validation samples"
        known = nothing if math.isnan(accuracy) else f"validation accuracy {accuracy:.4f}"
        risen = convergence.rise(*convergence.measured(rows, "validation_accuracy"))
        if risen is not None:
            points, last = risen
            manner.watch.say(convergence.sentence({method: points}, last, len(rows)))
        for line in absences.sentences(missing):
            manner.watch.say(line)
        manner.watch.say(f"{known} after round {best.round if best else f'{len(rows)} (the last)'}")
        return summary, {
            "device": machine.device(manner.device),
            "engine": run.engine.way,
            "threads": run.engine.threads,
            "jobs": run.engine.jobs,
            **({"weights": str(begin.path)} if begin is not None else {}),
        }

    return make(out, draft, manner, build)
