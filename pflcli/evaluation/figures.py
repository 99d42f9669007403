"""The figures of artifacts: stored as a PNG and a Vega-Lite specification, or drawn from what the artifact contains."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook, csv_file, kinds
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions as predictions_kind
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.errors import NotDrawnError, UsageError
from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.curves import draw_collapse
from pflcli.evaluation.charts.matrices import draw_attention, draw_holdings, draw_labels, draw_neighbours
from pflcli.evaluation.charts.vega import Spec
from pflcli.evaluation.metrics import client_relations

SUFFIX = ".vl.json"
"""The end of the name of a Vega-Lite specification in an artifact."""
_DRAWN_STATES = (
    ("history/rho", "history/largest", "history/rejected", "history/validation"),
    ("attention/first", "attention/second"),
    ("graph",),
    ("cluster",),
)
"""The arrays that each chart needs; the first chart whose arrays are all stored is drawn."""


def write(work: ArtifactWriter, name: str, spec: Spec) -> None:
    """Write ``NAME.png`` and ``NAME.vl.json``, from which other formats are rendered.

    If the PNG cannot be drawn, say so: the rest of the artifact is complete without it.
    """
    try:
        work.write(f"{name}.png", vega.render(spec))
    except (NotDrawnError, UsageError) as error:
        work.reporter.say(f"{name}.png is left out: {error.describe()}")
    work.write(f"{name}{SUFFIX}", vega.encode(spec))


def render(artifact: Artifact, form: str, rounds: Sequence[int] = ()) -> bytes:
    """Return the figure of an artifact in a format of ``vega.FORMATS``: one that it contains, or one that is drawn.

    ``rounds`` choose the rounds of attention, see ``draw_predictions``. Raises UsageError if there is nothing to draw,
    InputError if the artifact is damaged.
    """
    if artifact.kind == "partition":
        return vega.render(draw_partition(artifact), form)
    if artifact.kind == "predictions":
        return vega.render(draw_predictions(artifact, rounds), form)
    name = next((name for name in artifact.manifest.files if name.endswith(SUFFIX)), None)
    if name is None:
        raise UsageError(
            f"{artifact.path} is {kinds.add_article(artifact.kind)}, of which there is no figure",
            "partitions, predictions, and artifacts with a .vl.json file have one",
        )
    spec = artifact.json(name)
    with artifact.parsing(name):
        return vega.render(spec, form)


def draw_partition(artifact: Artifact) -> Spec:
    """Return a chart of each client's samples by class, or of its numbers."""
    data, request = partitions.read(artifact), artifact.manifest.request
    options = ", ".join(f"{key}={value}" for key, value in request["options"].items() if value is not None)
    known, clients = codebook.read(artifact), len(data.names)
    dataset, count = known.dataset or request["dataset"], f"{clients} client{'s' * (clients != 1)}"
    title = f"{dataset}, {request['scheme']}{f' ({options})' if options else ''}, {count}"
    names = _name_clients(known, clients)
    if data.labels.fields is not None:
        heading = f"label, {data.labels.unit}" if data.labels.unit else "label"
        return draw_labels(data.list_labels(), heading, title, data.new, names)
    return draw_holdings(data.label_counts, title, data.cluster, data.new, names, known.classes)


def draw_predictions(artifact: Artifact, chosen: Sequence[int] = ()) -> Spec:
    """Return a chart of the attention, the collapse or the neighbours in the state of a method.

    Attention is that of each client's last round, or of the rounds ``chosen``. Raises UsageError if the state has none
    of these, or not that round; InputError if it is damaged or the partition no longer exists.
    """
    summary, state = artifact.manifest.summary, predictions_kind.read_state(artifact, _DRAWN_STATES)
    method, clients = summary["method"], summary["clients"]
    rounds = summary.get("reported_round", summary["rounds"])
    known = codebook.read(artifact)
    dataset, names = f"{known.dataset}: " if known.dataset else "", _name_clients(known, clients)
    title = f"{dataset}{method}, {clients} client{'s' * (clients != 1)}, after {rounds} round{'s' * (rounds != 1)}"
    if not state:
        raise UsageError(
            f"{artifact.path} has nothing to draw: {method} stores no attention, neighbours or history of its rounds",
            f"pfl evaluate {artifact.path} -o DIR draws the accuracy of all clients",
        )
    if not len(next(iter(state.values()))):
        from pflcli.methods.parts.records import MAX_CLIENTS_WITH_ATTENTION

        too_many = (
            f"{method} stores attention for at most {MAX_CLIENTS_WITH_ATTENTION} clients, and there are {clients}"
        )
        why = too_many if clients > MAX_CLIENTS_WITH_ATTENTION else f"no round of {method} went beyond its warm-up"
        raise UsageError(f"{artifact.path} has nothing to draw: {why}")
    if chosen and "attention/first" not in state:
        raise UsageError(f"{artifact.path} has no attention, and rounds can only be chosen for attention")
    if "history/rho" in state:
        history = {name.removeprefix("history/"): values for name, values in state.items()}
        return draw_collapse(history, _number_rounds(rounds, len(history["rho"])), title)
    source = ancestor(artifact, "partition")
    cluster, able = (
        (None, None) if source is None else (partitions.read_clusters(source), partitions.read_able_clients(source))
    )
    if "attention/first" in state:
        numbers = _number_rounds(rounds, len(state["attention/first"]))
        places = _find_rounds(artifact, numbers, chosen)
        first, second = state["attention/first"][places], state["attention/second"][places]
        return draw_attention(first, second, numbers[places], title, cluster, names, separate=bool(chosen))
    if "graph" in state:
        graphs = [client_relations.unpack_graph(packed, clients) for packed in state["graph"]]
    else:  # neighbours are the clients that get the same model
        assigned = state["cluster"]
        graphs = [client_relations.share_cluster(assigned) & (assigned >= 0)]
    rows = client_relations.summarize_neighbours(graphs, cluster, able, rounds - len(graphs) + 1)
    return draw_neighbours(graphs[-1], rows, title, cluster, names)


def list_attention(artifact: Artifact, chosen: Sequence[int] = ()) -> bytes:
    """Return the stored attention weights of all rounds, or of the rounds ``chosen``, as CSV.

    Raises UsageError if there are none, or none of a chosen round.
    """
    summary, state = artifact.manifest.summary, predictions_kind.read_state(artifact, _DRAWN_STATES)
    if "attention/first" not in state or not len(state["attention/first"]):
        raise UsageError(f"{artifact.path} has no attention: {summary['method']} stores none, or none for these rounds")
    first, second = state["attention/first"], state["attention/second"]
    numbers = _number_rounds(summary.get("reported_round", summary["rounds"]), len(first))
    places = _find_rounds(artifact, numbers, chosen)
    names = codebook.read(artifact).client_names(summary["clients"])
    rows = client_relations.list_weights(first[places], second[places], numbers[places].tolist(), names)
    return csv_file.encode(["round", "client", "layer", "attends_to", "weight"], rows)


def _find_rounds(artifact: Artifact, numbers: NDArray[np.int64], chosen: Sequence[int]) -> NDArray[np.int64]:
    """Return the indices of the rounds ``chosen`` in ``numbers``; all indices if none is chosen."""
    for number in chosen:
        if number not in numbers:
            stored = f"rounds {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"round {numbers[0]}"
            raise UsageError(f"{artifact.path} has no attention of round {number}", f"it has that of {stored}")
    return np.searchsorted(numbers, sorted(set(chosen))) if chosen else np.arange(len(numbers))


def _name_clients(known: Codebook, clients: int) -> list[str]:
    """Return the names of clients for a chart; empty if they are only numbers from a partition scheme."""
    names = known.client_names(clients)
    return [] if all(re.fullmatch(r"(client-)?\d+", name) for name in names) else names


def _number_rounds(rounds: int, count: int) -> NDArray[np.int64]:
    """Return the numbers of the last ``count`` rounds."""
    return np.arange(rounds - count + 1, rounds + 1)
