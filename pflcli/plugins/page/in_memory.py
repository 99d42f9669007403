"""Results in memory as what a page and a figure are made of: an evaluation without a folder, and its runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import TypeIs

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact
from pflcli.core import config, registry
from pflcli.core.datasets import SPLITS
from pflcli.core.tasks import CLASSES
from pflcli.evaluation import changed_options, figures, in_memory, scoring, stored_scores
from pflcli.evaluation.charts import vega
from pflcli.evaluation.in_memory import Compared
from pflcli.evaluation.lineage import Lineage
from pflcli.evaluation.stored_comparison import Comparison
from pflcli.plugins.page import runs
from pflcli.plugins.page.runs import Runs

if TYPE_CHECKING:
    from pflcli.core.simulation.simulate import Result
    from pflcli.evaluation.in_memory import Source

NOTHING = Lineage((), (), Path())
"""The lineage of results in memory: they were made from no artifact."""


@dataclass(frozen=True)
class Unwritten(Artifact):
    """An evaluation whose files are in memory; its path is only its name."""

    content: Mapping[str, bytes] = field(default_factory=dict)

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        return self.content[name]


def evaluate(compared: Compared, name: str) -> Artifact:
    """Return scored results as an evaluation with this name."""
    metrics, scored = compared.metrics, [item for items in compared.groups.values() for item in items]
    known = [names for by_seed in compared.identities.values() for names in by_seed.values()]
    if scored[0].names is None and all(np.array_equal(known[0], other) for other in known):
        numbers = [f"client {client}" for client in range(len(known[0]))]  # the same ones under every seed
        scored = [replace(item, names=numbers) for item in scored]
    content = {
        evaluation.METRICS: json.dumps(scoring.replace_nonfinite(metrics)).encode(),
        stored_scores.CLIENTS: stored_scores.render_clients({"": scored}, metrics["split"]),
        f"{metrics['metric'][0]}{figures.SUFFIX}": vega.encode(
            scoring.draw_clients(compared.groups, compared.identities, metrics)
        ),
    }
    manifest = Manifest("evaluation", evaluation.SCHEMA, "", {}, (), {}, {file: {} for file in content}, {}, {})
    return Unwritten(Path(name), manifest, content=content)


def collect_runs(results: Mapping[str, Source | Sequence[Source]], comparison: Comparison) -> Runs:
    """Return what a page takes from the runs of ``results``, as ``table`` takes them."""
    given = {label: in_memory.list_sources(results[label]) for label in comparison.methods}
    curves, relations = dict[str, runs.Curve](), list[runs.Relation | None]()
    for label, sources in given.items():
        found = [_trace(source) if _is_result(source) else runs.read_curve(_open(source)) for source in sources]
        if known := [curve for curve in found if curve is not None]:
            curves[label] = runs.average(known)
        relations += [_relate(label, source, comparison) for source in sources[:1] if _is_result(source)]
    played = [source for sources in given.values() for source in sources if _is_result(source)]
    holdings, validation, labels = None, 0, None
    answers = [
        answer
        for label, sources in given.items()
        if sources and _is_result(sources[0])
        for answer in _list_answers(label, sources[0], comparison)
    ]
    if played and played[0].federation.task.kind == CLASSES:
        federation = played[0].federation
        counts, classes = federation.count_labels(), federation.class_names or [*map(str, range(federation.classes))]
        holdings = runs.arrange_holdings(counts, federation.client_names, classes, comparison)
        validation = int(federation.sizes("validation")[federation.participants].sum())
    elif played:
        federation = played[0].federation
        own = [[federation.labels_of(np.asarray([at]), split) for split in SPLITS] for at in federation.clients]
        names, unit = federation.client_names, federation.task.unit
        labels = runs.arrange_numbers([np.concatenate(each) for each in own], names, unit, comparison)
    related = tuple(each for each in relations if each is not None)
    return Runs(curves, validation, holdings, labels, tuple(answers), related)


def _list_answers(label: str, result: Result, comparison: Comparison) -> list[runs.Answers]:
    """Return the test predictions of a result, if they are numbers and there are any."""
    found, federation = result.predictions.get("test"), result.federation
    if found is None or federation.task.kind == CLASSES:
        return []
    rows, seed = federation.rows_of(federation.clients, "test"), int(result.run.seed)
    sample = rows if federation.sample is None else federation.sample[rows]
    return runs.arrange_answers(label, federation.task, found.p, found.y, found.client, sample, seed, comparison)


def spell_calls(results: Mapping[str, Source | Sequence[Source]]) -> list[str]:
    """Return the lines of Python that make the results again."""
    return [
        "results = {",
        *(f"    {label!r}: {_spell(in_memory.list_sources(given))}," for label, given in results.items()),
        "}",
    ]


def _is_result(source: Source) -> TypeIs[Result]:
    return not isinstance(source, str | Path)


def _open(source: Path | str) -> Artifact:
    return open_one(source, "predictions")


def _trace(result: Result) -> tuple[list[runs.Point], runs.Point] | None:
    """Return the measured rounds of a result, and the round that it reports; None if scores are no accuracies."""
    if result.federation.task.kind != CLASSES:
        return None
    played = result if len(result.rounds) or result.backbone is None else result.backbone
    rows = [
        {name: "" if math.isnan(value) else format(value, ".17g") for name, value in row.items()}
        for row in in_memory.list_rows(played)
    ]
    is_measured = played is result and any(row.get("personal_accuracy") for row in rows)
    method, best = result._method, in_memory.find_reported(played)
    return runs.trace_curve(
        "personal_accuracy" if is_measured else "validation_accuracy",
        rows,
        sum(result.bytes.values()),
        played.run.engine.threads,
        None if best is None else int(rows[best]["round"]),
        is_known=is_measured or not (method.KIND == "posthoc" or method.ADAPTS),
        sent=sum(result.bytes.values()) / 1e6,
        score=lambda split: _score(result, split),
    )


def _score(result: Result, split: str) -> float:
    """Return the accuracy on a split of clients that can take part in rounds; nan if it is unknown."""
    found, new = result.predictions.get(split), result.federation.new
    if found is None:
        return math.nan
    right = found.correct if new is None else found.correct[~new[found.client]]
    return float(right.mean()) if len(right) else math.nan


def _relate(label: str, result: Result, comparison: Comparison) -> runs.Relation | None:
    """Return the relation of clients in the last state of a result, or None if the state has none."""
    recorded = getattr(result._method, "RECORDS", ())
    for key in runs.STATES:
        value: Any = result.state if key.partition("/")[0] in recorded else {}
        for part in key.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            clients = len(result.federation.clients)
            return runs.relate(label, key, value.cpu().numpy(), clients, result.seed, comparison)
    return None


def _spell(sources: Sequence[Source]) -> str:
    """Return the expression that makes the results of one label again."""
    first = sources[0]
    if not _is_result(first):
        return repr([*map(str, sources)])
    settings = config.plain(first.settings)
    options = changed_options.list_set_options(first.method, config.plain(first.run.cfg))
    words = [f"{name}={value!r}" for name, value in changed_options.list_set_settings(settings).items()]
    if not registry.exists("models", str(settings["model"]).partition(":")[0]):
        words[0] = f"model={settings['model']}"  # a class or a function of the user
    words += [f"options={options!r}"] if options else []
    call = ", ".join([f"simulate({first.method!r}", "federation", *words, "seed="])
    seeds = [source.seed for source in sources if _is_result(source)]
    return f"{call}{seeds[0]})" if len(seeds) == 1 else f"[{call}seed) for seed in {seeds}]"
