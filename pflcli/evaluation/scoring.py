"""Score stored predictions per client, and write the files of an evaluation or a comparison."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook, csv_file
from pflcli.artifacts.kinds import evaluation, predictions, read_labels
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import registry, scores, tasks
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.core.metrics import catalogue
from pflcli.core.wording import counted, listed
from pflcli.evaluation import (
    changed_options,
    client_identity,
    convergence,
    coverage,
    failed_training,
    figures,
    records,
    round_costs,
    stored_scores,
    summary,
    training_alone,
)
from pflcli.evaluation.charts import clients as client_charts
from pflcli.evaluation.charts.vega import Spec
from pflcli.evaluation.metrics import fixed_clients, gains
from pflcli.evaluation.presentation import conclusion, further_tables, notes, tables
from pflcli.evaluation.presentation.conclusion import ClientScores, Conclusion, Marks, mark_column
from pflcli.evaluation.round_costs import Link
from pflcli.evaluation.summary import Scored, ScoredPredictions

_ONE_VERSUS_REST = {"auroc", "average_precision"}
_MAX_NAMED = 5
"""Most clients that a note names."""


def score(
    artifacts: Sequence[Artifact],
    split: str,
    baseline: str,
    labels: Sequence[str] | None = None,
    metric_names: tuple[str, ...] = catalogue.DEFAULT,
    positive: str | None = None,
    level: float | None = None,
    references: Collection[str] = (),
) -> list[Scored]:
    """Score predictions and pair each of them with its baseline.

    ``metric_names`` are optional metrics to compute as well; ``positive`` names the positive one of two classes, by
    default the second. Predictions with the same label belong to one method, one per seed; without ``labels`` the
    labels follow from the requests. Raises UsageError if the baseline is neither FedAvg nor among the predictions, if a
    metric is not defined for this number of classes, or for an unknown class; InputError without samples to score.

    ``level`` is the coverage of prediction sets, which are scored too; None for no sets. They need validation samples.
    ``references`` are the labels of methods that are not ranked, beside those of methods with ``REFERENCE``.
    """
    labelled = _label_artifacts(artifacts) if labels is None else list(zip(artifacts, labels, strict=True))
    runs = [describe_run(artifact, label, split, metric_names, positive) for artifact, label in labelled]
    runs = [replace(item, is_reference=item.is_reference or item.label in references) for item in runs]
    sources = [(item, partial(predictions.read, item.artifact, split)) for item in runs]
    if level is None:
        return add_records(sources, baseline)
    return add_records(sources, baseline, lambda item, own: {"sets": coverage.measure_sets(item.artifact, own, level)})


def require_suited(labels: tasks.Labels, target: float | None, level: float | None) -> None:
    """Raise UsageError for a target that is no value of the first metric, and for sets of other labels than numbers."""
    round_costs.check_target(target, labels.kind)
    if level is not None and labels.kind != tasks.CLASSES and not labels.task().has_intervals:
        raise UsageError(
            f"--coverage is for classes and numbers, and the task is {labels.kind}", "leave out --coverage"
        )


def summarize(
    scored: Sequence[Scored],
    split: str,
    baseline: str,
    target: float | None = None,
    link: Link | None = None,
    tried: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the content of ``metrics.json``: a row per method, over its seeds, best first, and the conclusion.

    With a ``target`` accuracy, rows have the time to reach it; with a ``link``, the simulated time of the rounds.
    ``tried`` is the number of models from which ``--tune`` chose, by label.
    """
    groups, metric_names = _group_by_label(scored), scored[0].metric_names
    table: dict[str, Any] = {
        "split": split,
        **({} if metric_names == catalogue.DEFAULT else {"metric": list(metric_names)}),
        "baseline": baseline if baseline in groups else "global" if has_baseline(scored) else None,
        "reported": " or ".join(sorted({_reported_round(item.artifact) for item in scored}, reverse=True)),
        "methods": [summary.summarize_method(label, items, target, link) for label, items in groups.items()],
        **({} if target is None else {"target": target}),
        **({} if link is None else {"link": str(link)}),
    }
    if scored[0].sets is not None:
        table["sets"] = coverage.summarize_sets(groups, tried or {})
    partitions = [client_identity.read_partition(item.artifact) for item in scored]
    if all(each is not None and not each.manifest.summary.get("validation", 1) for each in partitions):
        table["without_validation"] = True
    table |= _describe_split(partitions, next(iter(groups.values())))
    return judge(table, groups, {label: summary.identify_clients(items) for label, items in groups.items()})


def judge(
    table: dict[str, Any],
    groups: Mapping[str, Sequence[ScoredPredictions]],
    identities: Mapping[str, Mapping[int, NDArray[np.str_]]],
) -> dict[str, Any]:
    """Add the conclusion, marks, definitions and warnings to a table with ``methods``, and sort these, best first.

    ``groups`` has the runs of each method, ``identities`` those of their clients (m,), by label and seed.
    """
    rows, baseline, scored = table["methods"], table["baseline"], [item for items in groups.values() for item in items]
    metric, level = scored[0].metric_names[0], scored[0].level
    if level != gains.LEVEL:
        table["level"] = level
    conclusion.judge_gains(rows, baseline, level)
    training_alone.add_gains(rows, groups, identities, baseline, level)
    are_classes = metric in tasks.find(tasks.CLASSES).metrics
    shares = [item.counts[:, 0].sum(axis=0).max() / item.n.sum() for item in scored] if are_classes else []
    majority = float(np.mean(shares)) if shares else None
    if unit := scored[0].labels.unit:
        table["unit"] = unit
    concluded = conclusion.conclude(rows, baseline, metric, level, majority, unit)
    table["conclusion"] = concluded.record()
    table["marks"] = {
        name: marks.record() for name, marks in _mark_columns(groups, rows, identities, concluded, baseline).items()
    }
    remarks = _define_metrics(rows, scored[0].metric_names, scored[0].class_names, scored[0].labels.positive)
    remarks += [*_describe_repetitions(groups, baseline), *_describe_untested(scored, table["split"])]
    given = [f"`{label}`" for label, items in groups.items() if (items[0].labels.fields or {}).get("by_client")]
    if given:
        who = "every method" if len(given) == len(groups) else ", ".join(given)
        remarks += [f"given each client's mean and deviation of the target (--standardize-target client): {who}"]
    table |= {"definitions": remarks} if remarks else {}
    learning = {label: items for label, items in groups.items() if not items[0].is_reference}
    table["warnings"] = [
        *(failed_training.find_warnings(learning) if are_classes else []),
        *(failed_training.find_below_constant(rows) if are_classes else []),
        *convergence.find_warnings(rows),
    ]
    rows.sort(key=lambda row: summary.sort_key(row, catalogue.METRICS[metric]))
    return table


def _mark_columns(
    groups: Mapping[str, Sequence[ScoredPredictions]],
    rows: Sequence[Mapping[str, Any]],
    identities: Mapping[str, Mapping[int, NDArray[np.str_]]],
    concluded: Conclusion,
    baseline: str | None,
) -> dict[str, Marks]:
    """Return the marks of each column of means over clients.

    References are not marked, and nothing is in a table of a single method.
    """
    ranked = {row["label"]: row["metrics"] for row in rows if not row.get("reference")}
    if len(ranked) < 2:
        return {}
    clients = _encode({label: identities[label] for label in ranked})
    names = next(iter(groups.values()))[0].metric_names
    marks = {}
    for metric in filter(lambda metric: metric.is_client_mean, catalogue.prediction_metrics(names)):
        known = {label: metrics[metric.name]["value"] for label, metrics in ranked.items() if metric.name in metrics}
        score = {label: value for label, value in known.items() if not math.isnan(value)}
        column, alike = metric.score or metric.name, metric.over is scores.mean
        runs = {
            label: {
                item.seed: ClientScores(
                    item.client[column],
                    np.ones(len(item.n)) if alike else item.n.astype(np.float64),
                    item.n,
                    clients[label][item.seed],
                )
                for item in groups[label]
            }
            for label in score
        }
        if len(score) > 1:
            judge = (concluded, baseline) if metric.name == names[0] else ()
            marks[metric.name] = mark_column(runs, score, metric, concluded.level, *judge)
    return marks


def _encode(identities: Mapping[str, Mapping[int, NDArray[np.str_]]]) -> dict[str, dict[int, NDArray[np.int64]]]:
    """Return a number for each identity of a client, which is faster to compare than a name; (m,) by label and seed."""
    different: list[NDArray[np.str_]] = []
    for names in (names for by_seed in identities.values() for names in by_seed.values()):
        if not any(np.array_equal(names, other) for other in different):
            different.append(names)
    known = np.unique(np.concatenate(different))
    return {
        label: {seed: np.searchsorted(known, names) for seed, names in by_seed.items()}
        for label, by_seed in identities.items()
    }


def _define_metrics(
    methods: Sequence[Mapping[str, Any]], metrics: Sequence[str], classes: Sequence[str], positive: int
) -> list[str]:
    """Return sentences that define the ``metrics``, and count the clients for which they are undefined.

    ``methods`` are the rows of the table, ``classes`` the names of all classes, and ``positive`` is the index of the
    positive one of two classes.
    """
    lines = []
    entries = [catalogue.METRICS[name] for name in metrics]
    if len(classes) == 2 and any(metric.binary_formula is not None for metric in entries):
        lines.append(f"the positive class is {classes[positive]}")
    against = [metric.heading for metric in entries if metric.name in _ONE_VERSUS_REST]
    if len(classes) > 2 and against:
        lines.append(f"{' and '.join(against)}: mean over the classes that a client has, each against all others")
    if entries[0].lower_is_better:
        lines.append(f"a gain is by how much lower the {entries[0].heading} is")
    for metric in entries:
        n, of = max(((r["n"], r.get("of", r["n"])) for r in (m["metrics"][metric.name] for m in methods)), key=sum)
        if n < of:
            seeds = max(len(method["seeds"]) for method in methods)
            together = f" ({seeds} seeds together)" if seeds > 1 else ""
            lines.append(
                f"{metric.heading} is not defined for {of - n} of {of} clients{together}, which lack {metric.needs} and"
                " are left out"
            )
    return lines


def is_reference(method: str) -> bool:
    """Return whether a method is known to have ``REFERENCE``."""
    return registry.exists("methods", method) and bool(registry.card("methods", method).facts.get("REFERENCE"))


def _describe_repetitions(groups: Mapping[str, Sequence[ScoredPredictions]], baseline: str | None) -> list[str]:
    """Return a sentence per reason that names the methods whose predictions are those of the baseline."""
    labels: dict[str, list[str]] = {}
    for label, items in groups.items():
        if all(item.repeats_baseline for item in items):
            method = items[0].method
            known = registry.exists("methods", method)
            why = registry.card("methods", method).facts.get("NO_EFFECT", "") if known else ""
            labels.setdefault(f", as it must if {why}" if why else "", []).append(f"`{label}`")
    return [
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} the same predictions as {baseline}{reason}"
        for reason, names in labels.items()
    ]


def _describe_untested(scored: Sequence[ScoredPredictions], split: str) -> list[str]:
    """Return sentences that count and name the clients without samples to score, and those that withhold scores."""
    lines = []
    for withhold, what in ((False, f"no {split} samples"), (True, f"few {split} samples, whose scores they withhold,")):
        untested = {item.seed: np.flatnonzero((item.n == 0) & ((item.withheld > 0) == withhold)) for item in scored}
        seed, missing = max(untested.items(), key=lambda pair: len(pair[1]))
        if len(missing):
            first = next(item for item in scored if item.seed == seed)
            words = [summary.name_client(first, client) for client in missing.tolist()]
            of = f"{len(missing)} of {counted(len(first.n), 'client')}"
            lines.append(f"{of} have {what} and are not counted: {listed(words, _MAX_NAMED)}")
    return lines


def _describe_split(partitions: Sequence[Artifact | None], items: Sequence[Scored]) -> dict[str, Any]:
    """Return whether samples were split by ``time`` or as ``published``, and whether all seeds share this split.

    ``items`` are the runs of one method; empty for a split that was drawn.
    """
    known = [each.manifest for each in partitions if each is not None]
    if len(known) < len(partitions):
        return {}
    if all(each.summary.get("by_time") for each in known):
        given = "time"
    elif all(each.request.get("keep_test") for each in known):
        given = "published"
    else:
        return {}
    same = len(items) > 1 and all(np.array_equal(items[0].samples, item.samples) for item in items)
    return {"given_split": given, **({"same_split": True} if same else {})}


def _reported_round(artifact: Artifact) -> str:
    """Return the rule for the reported round of a run, such as ``last round``, without its number."""
    words: str = artifact.manifest.summary["reported"]
    return words.partition(":")[0]


def write(work: ArtifactWriter, scored: Sequence[Scored], metrics: Mapping[str, Any], kind: str) -> None:
    """Write ``metrics.json``, scores of clients and runs, the tables, and a figure named after the ranking metric."""
    place = {method["label"]: number for number, method in enumerate(metrics["methods"])}
    scored = sorted(scored, key=lambda item: place[item.label])
    work.write(evaluation.METRICS, (json.dumps(replace_nonfinite(metrics), indent=2) + "\n").encode())
    link = Link.parse(metrics["link"]) if "link" in metrics else None
    stored_scores.write(work, {"": scored}, {"": (metrics.get("target"), link)}, metrics["split"])
    groups = _group_by_label(scored)
    identities = {label: summary.identify_clients(items) for label, items in groups.items()}
    figures.write(work, scored[0].metric_names[0], draw_clients(groups, identities, metrics))
    if "sets" in metrics:
        work.write(coverage.TABLE, coverage.render_table(metrics["sets"], [row["label"] for row in metrics["methods"]]))
        work.write(coverage.CLIENTS, coverage.render_client_table(scored))
    for name, cells in further_tables.list_numbers(metrics).items():
        work.write(name, csv_file.encode_rounded(*cells))
    work.write("table.md", render_markdown(metrics, kind).encode())
    work.write("table.csv", csv_file.encode_rounded(*tables.list_numbers(metrics)))


def render_markdown(metrics: Mapping[str, Any], kind: str) -> str:
    """Return ``table.md``: the tables, the conclusion and the notes."""
    shown = tables.build(metrics, kind).markdown()
    shown += "".join(f"\n{title}:\n\n{table.markdown()}" for title, table, _ in further_tables.list_tables(metrics))
    lines = [*conclusion.Conclusion.read(metrics).sentences, *notes.list_notes(metrics)]
    return shown + "".join(f"\n{line}\n" for line in lines)


def _group_by_label(scored: Sequence[Scored]) -> dict[str, list[Scored]]:
    groups: dict[str, list[Scored]] = {}
    for item in sorted(scored, key=lambda item: item.seed):
        groups.setdefault(item.label, []).append(item)
    return {label: groups[label] for label in dict.fromkeys(item.label for item in scored)}


def _label_artifacts(artifacts: Sequence[Artifact]) -> list[tuple[Artifact, str]]:
    """Label each artifact by its method and the options in which it differs from others of the same method."""
    labelled = list(zip(artifacts, changed_options.label_by_options(artifacts), strict=True))
    # Runs of the same method, options and seed on another partition or backbone get rows of their own.
    rows = Counter((label, artifact.manifest.request["seed"]) for artifact, label in labelled)
    twice = {label for (label, _), count in rows.items() if count > 1}
    return [(artifact, f"{label} ({artifact.path})" if label in twice else label) for artifact, label in labelled]


def describe_run(
    artifact: Artifact, label: str, split: str, metric_names: tuple[str, ...], positive_name: str | None = None
) -> Scored:
    """Return a run of stored predictions without records; ``score`` documents the arguments and errors."""
    samples, outputs = predictions.read_shape(artifact, split)
    if not samples:
        predictions.read(artifact, split)  # which says if the split was not predicted
        raise InputError(
            f"{artifact.path} has no {split} samples to score",
            "pfl partition DATASET -o DIR --fractions 0.6,0.2,0.2",
        )
    labels = read_labels(artifact.manifest, outputs)
    catalogue.require_defined(metric_names, labels)
    curve, losses = round_costs.read_progress(artifact)
    class_names = codebook.read(artifact).class_names(outputs)
    labels = replace(labels, positive=catalogue.positive_class(positive_name, class_names))
    method = str(artifact.manifest.request["method"])
    known = method in conclusion.ALONE and predictions.has_split(artifact, "validation")
    held_out = predictions.read(artifact, "validation") if known else None
    return Scored(
        label=label,
        method=method,
        seed=int(artifact.manifest.request["seed"]),
        artifact=artifact,
        names=client_identity.read_names(artifact),
        class_names=class_names,
        learned_from=predictions.learned_splits(artifact),
        is_transductive=predictions.is_transductive(artifact),
        is_reference=is_reference(method),
        curve=curve,
        validation_samples=predictions.read_shape(artifact, "validation")[0],
        losses=losses,
        is_stopped=convergence.is_stopped(artifact.manifest.request["settings"], max(curve[0], default=0)),
        validation=math.nan if held_out is None else score_validation(held_out, metric_names, labels),
        metric_names=metric_names,
        labels=labels,
        tuned=predictions.read_tuned(artifact),
        new=predictions.read_new_clients(artifact),
    )


def score_validation(
    answers: predictions.SplitPredictions, metric_names: tuple[str, ...], labels: tasks.Labels
) -> float:
    """Return the ranking metric of predictions on validation samples; nan without samples."""
    if not len(answers.y):
        return math.nan
    metric = catalogue.METRICS[metric_names[0]]
    return metric.score_answers(answers.parts["p"], answers.y, answers.offsets, labels)


Item = TypeVar("Item", bound=ScoredPredictions)


def add_records(
    runs: Sequence[tuple[Item, Callable[[], predictions.SplitPredictions]]],
    baseline: str,
    measure: Callable[[Item, predictions.SplitPredictions], dict[str, Any]] = lambda *_: {},
) -> list[Item]:
    """Add the records of clients to runs, each with a function that reads its predictions, and pair them.

    Each run is read once. Predictions of one method are in memory at a time, with those of the baseline and of training
    alone. ``measure`` returns further fields.
    """
    items, references = [item for item, _ in runs], {baseline, *conclusion.ALONE}
    kept = {place: read() for place, (item, read) in enumerate(runs) if references & {item.label, item.method}}
    for label in dict.fromkeys(item.label for item in items):
        places = [place for place, item in enumerate(items) if item.label == label]
        answers = {place: kept[place] if place in kept else runs[place][1]() for place in places}
        differences = list[dict[str, NDArray[np.int8]]]()
        for place, own in answers.items():
            item, known = items[place], {at: each for at, each in kept.items() if records.are_same(each, own)}
            twins = {items[at].label: each for at, each in known.items() if items[at].seed == item.seed}
            others = {"" if label == baseline else label: each for label, each in twins.items()}
            fields, difference = records.make(own, item.metric_names, item.labels, others)
            items[place] = replace(item, **fields, pairs={}, **measure(item, own))
            differences.append(difference)
        if len(places) > 1 and all((items[place].n > 0).sum() <= fixed_clients.MAX_FIXED for place in places):
            names = [items[place].names or range(len(items[place].n)) for place in places]
            for name in set.intersection(*({*each} for each in differences)):
                sums = records.pair([*answers.values()], [each[name] for each in differences], names)
                for place, each in zip(places, sums, strict=True):
                    items[place].pairs[name] = each
    return pair_with_baseline(items, baseline)


def pair_with_baseline(scored: Sequence[Item], baseline: str) -> list[Item]:
    """Add the scores of each item's baseline: its predictions on the same samples, else those of the global model."""
    bases = [item for item in scored if item.label == baseline]
    if baseline != "fedavg" and not bases:
        known = {item.label.partition(" ")[0] for item in scored}
        raise UsageError(f"the baseline '{baseline}' is not among the predictions", closest(baseline, known))
    paired = []
    for item in scored:
        same = (base for base in bases if base.seed == item.seed and np.array_equal(base.samples, item.samples))
        twin = next(same, None)
        paired.append(replace(item, baseline=item.shared if twin is None else twin.score))
    return _share_variance(paired, baseline)


def _share_variance(paired: Sequence[Item], baseline: str) -> list[Item]:
    """Add to each item the variance over seeds that methods share: those that are ranked and have the same seeds."""
    means: dict[str, dict[int, float]] = defaultdict(dict)
    for item in paired:
        known = ~np.isnan(item.gain)
        if known.any() and not item.is_reference and not item.repeats_baseline:
            means[item.label][item.seed] = scores.weighted_mean(item.gain[known], item.n[known])
    means.setdefault(baseline, {})  # the global model, which the gains are measured against
    seeds = sorted({item.seed for item in paired})
    means[baseline] = dict.fromkeys(seeds, 0.0)
    complete = {
        label: [by_seed[seed] for seed in seeds] for label, by_seed in means.items() if len(by_seed) == len(seeds)
    }
    shared = gains.share_variance(complete)
    if shared is None:
        return [*paired]
    return [
        replace(item, seed_variance=shared.of_difference(item.label, baseline) if item.label in complete else None)
        for item in paired
    ]


def has_baseline(scored: Sequence[ScoredPredictions]) -> bool:
    """Return whether a run is paired with a baseline."""
    return any(item.baseline is not None for item in scored)


def draw_clients(
    groups: Mapping[str, Sequence[ScoredPredictions]],
    identities: Mapping[str, Mapping[int, NDArray[np.str_]]],
    metrics: Mapping[str, Any],
) -> Spec:
    """Return the figure of an evaluation: the score of each client; ``judge`` documents the arguments."""
    scored = [item for items in groups.values() for item in items]
    metric = tables.find_entry(metrics, scored[0].metric_names[0])
    seeds = max(len(items) for items in groups.values())
    heading = metric.title[:1].upper() + metric.title[1:]
    over = f", {seeds} seeds" if seeds > 1 else ""
    few = _mean_by_client(
        groups, [*(names for each in identities.values() for names in each.values())], metrics["baseline"]
    )
    if few is not None:
        names, score = few
        title = f"{heading} by client, {metrics['split']} split{over and f', mean of {seeds} seeds'}"
        return client_charts.draw_clients(names, score, metrics["baseline"], title, metric)
    counts = {item.seed: len(item.n) for item in scored}

    def join_seeds(by_seed: Mapping[int, NDArray[np.float64]]) -> NDArray[np.float64]:
        # A method without this seed has no scores for its clients.
        return np.concatenate([by_seed.get(seed, np.full(counts[seed], np.nan)) for seed in sorted(counts)])

    score = {label: join_seeds({i.seed: i.score for i in items}) for label, items in groups.items()}
    reference = metrics["baseline"] if len({len(values) for values in score.values()}) == 1 else None
    if reference == "global":
        score = {"global": join_seeds(_collect_baselines(scored)), **score}
    title = f"{heading} by client, {metrics['split']} split{over}"
    return client_charts.draw_ranked(score, reference, title, metric)


def _collect_baselines(scored: Sequence[ScoredPredictions]) -> dict[int, NDArray[np.float64]]:
    return {item.seed: item.baseline for item in scored if item.baseline is not None}


def _mean_by_client(
    groups: Mapping[str, Sequence[ScoredPredictions]], identities: Sequence[NDArray[np.str_]], baseline: str | None
) -> tuple[list[str], dict[str, NDArray[np.float64]]] | None:
    """Return the names of the clients and their scores (m,) by method, means over seeds.

    None if there are many clients, or if they differ between seeds or methods.
    """
    items = [item for group in groups.values() for item in group]
    if len(identities[0]) >= client_charts.MIN_MANY_CLIENTS or any(
        not np.array_equal(identities[0], other) for other in identities[1:]
    ):
        return None
    names = list(items[0].names or ()) or [f"client {client}" for client in range(len(identities[0]))]
    score = {label: _average_seeds([item.score for item in group]) for label, group in groups.items()}
    if baseline == "global":
        score = {"global": _average_seeds([*_collect_baselines(items).values()]), **score}
    tested = np.flatnonzero(~np.isnan(np.stack([*score.values()])).all(axis=0))
    return [names[client] for client in tested], {label: values[tested] for label, values in score.items()}


def _average_seeds(values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the mean over seeds (m,), ignoring nan; nan if all values are."""
    table = np.stack(values)
    known = ~np.isnan(table)
    total: NDArray[np.float64] = scores.ratio(np.nansum(table, axis=0), known.sum(axis=0))
    return total


def replace_nonfinite(value: Any) -> Any:
    """Return ``value`` with nan and infinity replaced by None, because JSON has neither."""
    if isinstance(value, Mapping):
        return {key: replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
