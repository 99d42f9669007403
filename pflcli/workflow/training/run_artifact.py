"""The artifact of a run: the predictions of all clients, the state, tables of its rounds, and a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pflcli.artifacts import client_blocks, codebook, csv_file
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import parameters
from pflcli.core.federation.run import Run
from pflcli.core.simulation import absences
from pflcli.core.simulation.progress import Progress
from pflcli.core.tasks import Labels
from pflcli.evaluation.metrics.client_relations import summarize_attention, summarize_neighbours, unpack_graph
from pflcli.workflow.training import state_files
from pflcli.workflow.training.run_spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Job(RunSpec):
    """A run that is stored, with the artifact that it starts from, and the one that it makes."""

    source: Artifact
    spec: ArtifactSpec

    @property
    def repeats_backbone(self) -> bool:
        """Whether the same method, options, settings and code have made the backbone."""
        backbone = self.lineage["backbone"]
        return (
            self.method.has_rounds
            and backbone is not None
            and (dict(backbone.manifest.request), backbone.manifest.code) == (self.spec.request, self.spec.code)
        )


def write_predictions(
    job: Job,
    run: Run,
    data: partitions.Partition,
    joined: dict[str, dict[str, Tensor]],
    writer: ArtifactWriter,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the predictions of all clients; return their choices and their flags of ``absences``, (m,) each."""
    tuned, flags = (
        {name: values.numpy() for name, values in joined.pop(key, {}).items()} for key in ("tuned", "flags")
    )
    absences.require_finite(run, job.name, flags)
    splits = {split: _label_predictions(run, data, split, parts) for split, parts in joined.items()}
    predictions.write(writer, predictions.Predictions(splits, tuned, data.new, data.labels))
    codebook.write(writer, codebook.read(job.source))
    return tuned, flags


def _label_predictions(
    run: Run, data: partitions.Partition, split: str, parts: Mapping[str, Tensor]
) -> predictions.SplitPredictions:
    """Return the predictions of all clients on a split, with their labels and sample ids."""
    rows = run.federation.rows_of(run.clients, split)
    return predictions.SplitPredictions(
        parts={name: values.numpy() for name, values in parts.items()},
        y=data.y[rows],
        sample=data.sample[rows],
        offsets=client_blocks.offsets(run.federation.sizes(split)),
    )


def write_rounds(
    job: Job,
    run: Run,
    data: partitions.Partition,
    progress: Progress,
    reported: Mapping[str, Any],
    writer: ArtifactWriter,
) -> None:
    """Write the state, and tables with one row per round: costs and losses, and the ``RECORDS`` of the method."""
    state, rows = progress.reported, progress.rows
    state_files.write_state(state, writer)
    if progress.before or rows:
        writer.write("rounds.csv", csv_file.encode_rounds(absences.count_clients([*progress.before, *rows])))
    last = reported.get("reported_round", len(rows))
    records = job.method.RECORDS
    if "graph" in records and (count := len(state["graph"])):
        graphs = (unpack_graph(packed, len(run.clients)) for packed in state["graph"].cpu().numpy())
        matches = summarize_neighbours(graphs, data.cluster, run.federation.participants, last - count + 1)
        writer.write("neighbours.csv", csv_file.encode_rounds(matches))
    if "attention" in records and len(attention := state["attention"]["first"]):
        first, second = attention.cpu().numpy(), state["attention"]["second"].cpu().numpy()
        numbers = range(last - len(first) + 1, last + 1)
        means = summarize_attention(first, second, numbers, data.cluster)
        writer.write("attention.csv", csv_file.encode_rounds(means))


def summarize(
    name: str, run: Run, reported: Mapping[str, Any], played: int, costs: Sequence[Artifact]
) -> dict[str, Any]:
    """Return the summary; its bytes include those of the artifacts ``costs``, on which the run depends."""
    before = [item.manifest.summary.get("rounds", 0) for item in costs if item.kind == "backbone"]
    return {
        "method": name,
        "clients": len(run.clients),
        "participants": len(run.federation.participants),
        "model_bytes": parameters.size(run.init),
        **reported,
        "rounds": played or max(before, default=0),
        **{
            f"bytes_{link}": total + sum(item.manifest.summary.get(f"bytes_{link}", 0) for item in costs)
            for link, total in run.traffic.items()
        },
        **Labels.of(run.label_task).facts(),
    }
