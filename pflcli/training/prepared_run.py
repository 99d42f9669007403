"""The run of a method with all that it stands on: samples, model, artifacts of the lineage, weights and choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pflcli.artifacts.kinds.backbone import tensors
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.make import Execution
from pflcli.artifacts.reader import Artifact
from pflcli.federation.run import Run
from pflcli.methods import Method
from pflcli.settings import Settings
from pflcli.training import answers, rounds
from pflcli.training import earlier_choices as earlier
from pflcli.training import initial_weights as initial


def prepared(
    data: Partition,
    method: Method,
    cfg: Any,
    settings: Settings,
    seed: int,
    lineage: Mapping[str, Artifact | None],
    execution: Execution,
    *,
    begins_with_weights: bool = False,
    weights: initial.Weights | None = None,
    earlier_run: Artifact | None = None,
    measured_on: Partition | None = None,
) -> Run:
    """Return the run of a method on the samples ``data``, with its lineage, initial weights and earlier choices.

    ``lineage`` has the artifacts by kind, None for those that are missing. If the run ``begins_with_weights`` of a
    file, they are the initial ones of the backbone, or without one those of ``weights``. Choices are those of
    ``earlier_run``. ``measured_on`` are the samples by which images are normalized, if those are not ``data``.
    """
    run = rounds.prepare(data, method, cfg, settings, seed, execution, measured_on)
    answers.provide(run, lineage)
    backbone = lineage["backbone"]
    if backbone is not None and begins_with_weights:
        device, first = run.federation.x.device, tensors(backbone, initial.INITIAL, run.init)
        run.init = {name: value.to(device) for name, value in first.items()}
    elif weights is not None:
        run.init = initial.begun(weights, settings, run.init, execution.reporter.say)
    run.choices = earlier.read(earlier_run, method.choices(cfg))
    return run
