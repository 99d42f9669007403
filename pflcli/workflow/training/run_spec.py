"""``RunSpec``: everything that determines a run of a method except its samples, and the run that it builds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pflcli.artifacts import initial_weights as initial
from pflcli.artifacts.kinds import datastore, embeddings
from pflcli.artifacts.kinds.backbone import WEIGHTS, read_tensors, require_alike
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.reader import Artifact
from pflcli.core import config, parameters
from pflcli.core.engine import backend
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.execution import Execution
from pflcli.core.federation.attack import Attack
from pflcli.core.federation.run import Place, Run, RunInputs
from pflcli.core.knn.stores import Stores
from pflcli.core.methods import Method
from pflcli.core.parameters import Params
from pflcli.core.reporter import Reporter
from pflcli.core.settings import Settings
from pflcli.core.simulation.create_run import create_run
from pflcli.core.tasks import CLASSES
from pflcli.workflow.training import earlier_choices, hardware, run_request, run_settings
from pflcli.workflow.training.attendance_record import AttendanceRecord


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What determines a run except its samples: a method with its options, settings, a seed and artifacts.

    ``lineage`` contains artifacts by kind, None for kinds that are missing; a run reads its backbone, embeddings and
    datastore. Models start from the initial weights of the backbone, or from the file ``weights``; without either, at
    random. With ``refit``, choices are those of the predictions ``earlier_run``. With ``attendance``, the clients that
    it lists as absent drop out. Images are normalized like those of ``normalized_like``, by default like those of the
    run.
    """

    name: str
    method: Method
    cfg: Any
    settings: Settings
    seed: int
    lineage: Mapping[str, Artifact | None] = field(default_factory=dict)
    weights: initial.Weights | None = None
    attendance: AttendanceRecord | None = None
    earlier_run: Artifact | None = None
    normalized_like: Partition | None = None

    @classmethod
    def of_backbone(cls, backbone: Artifact) -> RunSpec:
        """Return the spec of a run on a trained ``backbone``, with its method and settings."""
        request = backbone.manifest.request
        method = run_request.load_method(backbone)
        return cls(
            name=request["method"],
            method=method,
            cfg=config.build(method.Config, request["options"], request["method"]),
            settings=run_settings.read_settings(backbone),
            seed=int(request["seed"]),
            lineage={"backbone": backbone},
        )

    @property
    def partition(self) -> Artifact:
        """The partition whose clients take part."""
        artifact = self.lineage["partition"]
        assert artifact is not None  # every run of a command has one
        return artifact

    def read_inputs(self, data: Partition, execution: Execution) -> RunInputs:
        """Read what the run on the samples ``data`` needs from the artifacts."""
        device, other = hardware.device(execution.device), self.normalized_like
        backbone, embedded, stored = (self.lineage.get(kind) for kind in ("backbone", "embeddings", "datastore"))
        representations = None if embedded is None else embeddings.read(embedded)
        stores, arrived = None, None if stored is None else datastore.read_arrived(stored)
        if stored is not None:
            assert representations is not None  # a datastore is built from embeddings
            packed = datastore.read_stores(stored, data.classes, representations["train"].z.shape[1])
            threads = hardware.threads(execution.threads)
            stores = Stores(packed.blob, packed.bytes, packed.y, packed.offsets, threads)
        if representations is not None and data.labels.task().by_client:
            scales = _federation(data, "cpu").standardized().label_scales
            assert scales is not None
            representations = {split: scales.standardize_labels(each) for split, each in representations.items()}
            stores = stores and scales.standardize_labels(stores)
            arrived = arrived and scales.standardize_labels(arrived)
        attack = None
        if data.update_factor is not None and data.update_noise is not None:
            attack = Attack(data.update_factor, data.update_noise, self.seed)
        return RunInputs(
            initial_weights=_initial_weights(backbone, self.weights, self.settings, execution),
            normalized_like=None if other is None else _federation(other, device),
            backbone=None if backbone is None else parameters.move(read_tensors(backbone), torch.device(device)),
            embeddings=representations,
            stores=stores,
            arrived=arrived,
            choices={}
            if self.earlier_run is None
            else earlier_choices.read_choices(self.earlier_run, self.method.choices(self.cfg)),
            attack=attack,
            place=Place({} if self.attendance is None else self.attendance.list_absent(data.names)),
        )

    def build(self, data: Partition, execution: Execution, inputs: RunInputs | None = None) -> Run:
        """Return the run on the samples ``data``, by default with the inputs that ``read_inputs`` returns."""
        threads = hardware.threads(execution.threads)
        torch.set_num_threads(threads)
        run = create_run(
            self.method,
            self.cfg,
            _federation(data, hardware.device(execution.device)),
            self.settings,
            self.seed,
            self.read_inputs(data, execution) if inputs is None else inputs,
            threads=threads,
            mode=execution.engine,
            jobs=execution.jobs,
            ray=hardware.ray_cluster(execution),
        )
        _report(run.engine, f"{self.settings.model} on {run.federation.y.device}", execution.reporter)
        if (backbone := self.lineage.get("backbone")) is not None:
            require_alike(run.backbone or {}, run.init, f"{backbone.path / WEIGHTS}")
        if self.attendance is not None:
            self.attendance.require_drawn(run, data.names)
        return run


def _report(engine: Engine, what: str, reporter: Reporter) -> None:
    """Report how an engine works on ``what``, and let it report what it finds."""
    workers = f"{engine.threads} threads"
    if engine.jobs or engine.on_ray:
        workers = f"{engine.jobs} {'Ray workers' if engine.on_ray else 'processes'}"
    why_off = backend.why_off()
    acceleration = "acceleration on" if why_off is None else f"acceleration off ({why_off})"
    reporter.detail(f"{what}, engine mode {engine.mode}, {workers}, {acceleration}")
    engine.explain = lambda strategy: reporter.detail(f"clients train by {strategy}")
    engine.warn, engine.detail = reporter.say, reporter.detail


def _initial_weights(
    backbone: Artifact | None, weights: initial.Weights | None, settings: Settings, execution: Execution
) -> Callable[[Params], Params] | None:
    """Return what replaces random initial parameters: the weights of the backbone, or those of a file; None if none."""
    if backbone is not None and "weights" in backbone.manifest.request:
        return lambda drawn: read_tensors(backbone, initial.INITIAL, drawn)
    if weights is not None:
        return lambda drawn: initial.apply_weights(weights, settings, drawn, execution.reporter.say)
    return None


def _federation(data: Partition, device: str) -> Federation:
    task = data.labels.outputs if data.labels.kind == CLASSES else data.labels.task()
    return Federation.from_blocks(np.asarray(data.x), data.y, data.offsets, task, device, data.new, data.cluster)
