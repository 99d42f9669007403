"""``pfl partition``: assign samples to clients, split each client's samples, and store them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from pflcli.artifacts import codebook
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kinds import partition as artifact
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import config, datasets, foreign, plugins, registry, rng, schemes, sources
from pflcli.core.datasets import SPLITS, Samples
from pflcli.core.errors import UsageError
from pflcli.core.execution import Execution
from pflcli.core.schemes import Scheme
from pflcli.core.simulation import heterogeneity
from pflcli.core.splits import FRACTIONS, FRACTIONS_BESIDE_TEST, require_task
from pflcli.core.tasks import CLASSES, Labels
from pflcli.core.wording import counted
from pflcli.data.preparation import imported_dataset, preprocessing
from pflcli.data.preparation.deal import Deal, select_part
from pflcli.data.preparation.poison import Poison
from pflcli.options.function import command
from pflcli.options.partition import Partition


@command(Partition)
def partition(asked: Partition) -> Outcome:
    """Partition ``dataset`` among clients and split each client's samples into train, validation and test.

    ``dataset`` is a name, or the folder of an imported one. ``fractions`` of train, validation and test add up to 1.
    With ``keep_test``, clients' test samples are exactly the dataset's published ones. An imported dataset with a
    split column keeps its test samples, and its validation samples if there are any.

    ``new_clients`` are the names of the clients that join after the global model is trained (kNN-Per, Table 3), or the
    fraction of such clients, drawn uniformly; they keep ``new_capacity`` of their training and validation samples
    (Figures 1 and 10). ``part`` (i, n) is the i-th of n random parts of the samples; the parts do not depend on the
    seed and are disjoint. With ``split_seed``, only the splits are drawn from that seed. ``poison`` is described in
    ``preparation.poison``. With ``like``, a federation of real sites, all samples are those of ``client``, which keeps
    its number; the other clients have none. ``root`` is the folder with the dataset's files. Raises UsageError for
    invalid options, InputError for damaged files.

    >>> from pflcli import partition
    >>> made = partition("writers", "runs/p", clients=6)
    >>> made.kind, made.summary["clients"]
    ('partition', 6)
    """
    if asked.like is not None or asked.client is not None:
        if (partition_site := plugins.load("KINDS", "federation", "partition")) is None:
            raise UsageError(f"--like is not available: {plugins.why_missing('federation')}")
        return cast(Outcome, partition_site(asked))
    execution, dataset = asked.execution.reading(asked.root), str(asked.dataset)
    deal = Deal(
        asked.scheme,
        asked.clients,
        asked.min_samples,
        _new_clients(asked.new_clients),
        asked.new_capacity,
        asked.part,
        asked.seed,
        asked.split_seed,
        Poison.parse(asked.poison),
    )
    deal.check(asked.fractions)
    source, splitter = imported_dataset.open_dataset(dataset), schemes.load(asked.scheme)
    samples, cfg, dataset_cfg = load_samples(
        dataset, source, splitter, deal, asked.options or {}, asked.root, asked.download
    )
    if asked.standardize_target == "client":
        samples = replace(samples, task=(samples.task or Labels(samples.classes).task()).scaled_by_client())
    unit = "" if samples.task is None else samples.task.unit
    own = Codebook(dataset, (), samples.names, samples.features, unit=unit)
    names = own if source is None else codebook.read(source)
    keep_test = asked.keep_test or (source is not None and samples.is_test is not None)
    fractions = _fractions(dataset, samples, asked.fractions, keep_test=keep_test)
    spec = ArtifactSpec(
        "partition",
        {"dataset": dataset if source is None else "imported"}
        | deal.request(samples, cfg, dataset_cfg, fractions, keep_test=keep_test),
        () if source is None else (source.as_input("dataset", Path(asked.out)),),
        code={name: sources.code_hash(*name.split("/")) for name in _code_files(asked.scheme, dataset, source)},
    )

    def build(writer: ArtifactWriter) -> Built:
        result = deal.make_partition(samples if keep_test else replace(samples, is_test=None), splitter, cfg, fractions)
        # Clusters that permute labels leave classes without names.
        classes = () if splitter.permutes_labels(cfg) else names.classes
        known = replace(names, clients=tuple(result.names), classes=classes)
        if samples.scaling is not None:
            result, known = preprocessing.scale_partition(result, known, samples.scaling)
        artifact.write(writer, result, known)
        summary = summarize(result, samples, len(select_part(len(samples.y), *asked.part)), asked.seed)
        _report(summary, result, samples, execution)
        return Built(summary, {})

    return make(asked.out, spec, execution, build, needed_bytes=len(samples.y) // asked.part[1] * sample_width(samples))


def _new_clients(chosen: float | str | Sequence[str]) -> float | tuple[str, ...]:
    """Return the fraction of new clients, or their names."""
    if isinstance(chosen, float | int):
        return chosen
    return (chosen,) if isinstance(chosen, str) else tuple(chosen)


def _code_files(scheme: str, dataset: str, source: Artifact | None) -> list[str]:
    """Return the files whose code the partition depends on; of a dataset in pfl, the content is hashed instead."""
    is_own = source is None and registry.origin("datasets", dataset) != "pfl"
    return [f"schemes/{scheme}", *([f"datasets/{dataset}"] if is_own else [])]


def sample_width(samples: Samples) -> int:
    """Return the bytes of a sample on disk, where features are float32."""
    return min(samples.x.itemsize, 4) * math.prod(samples.x.shape[1:])


def load_samples(
    dataset: str,
    source: Artifact | None,
    splitter: Scheme,
    deal: Deal,
    options: Mapping[str, Any],
    root: Path | str | None,
    download: bool,
) -> tuple[Samples, Any, Any]:
    """Return the samples, the options of the scheme, and those of the dataset, None if it has none."""
    if source is None:
        definition = datasets.load(dataset)
        load, options_class = definition.load, definition.Config
    else:
        load, options_class = partial(imported_dataset.load_samples, source), None
    owners = {f"scheme {deal.scheme}": splitter.Config, f"dataset {dataset}": options_class}
    cfg, dataset_cfg = config.build_each(owners, options)
    more = {} if dataset_cfg is None else {"cfg": dataset_cfg}
    with foreign.parsing(str(root or dataset), dataset):
        samples: Samples = load(Path(root) if root is not None else None, download=download, **more)
        samples.check(dataset)
    if samples.task is not None:
        require_task(deal.scheme, splitter, samples.task.kind)
    if deal.part != (1, 1) and samples.ordered:
        raise UsageError(f"--part draws samples at random, but the samples of {dataset} are ordered by time")
    if deal.part != (1, 1) and samples.group is not None:
        raise UsageError(f"--part draws samples at random, but {dataset} keeps the samples of one --group together")
    return samples, cfg, dataset_cfg


def _fractions(
    dataset: str, samples: Samples, fractions: tuple[float, float, float] | None, *, keep_test: bool
) -> tuple[float, float, float]:
    """Return the fractions for samples without a given split; raises UsageError if they contradict given splits."""
    if keep_test and samples.group is not None:
        raise UsageError(
            "--keep-test contradicts --group: samples of one group may be in both training and test data",
            "leave out --keep-test",
        )
    if keep_test and samples.is_test is None:
        raise UsageError(f"{dataset} has no published test samples to keep", "leave out --keep-test")
    if samples.is_validation is not None:
        if fractions is not None:
            raise UsageError(f"{dataset} has a split for every sample", "leave out --fractions")
        return (1.0, 0.0, 0.0)
    if keep_test and fractions is not None and fractions[2]:
        raise UsageError("test samples are given, so the fraction for test must be 0", "--fractions 0.8,0.2,0")
    return fractions or (FRACTIONS_BESIDE_TEST if keep_test else FRACTIONS)


def _report_split(result: artifact.Partition, samples: Samples, execution: Execution) -> None:
    """Report a split by time or by group, and groups that several clients share."""
    if samples.ordered:
        left_out = f"; {samples.gap} overlapping samples are left out after each cut" if samples.gap else ""
        execution.reporter.say(f"split by time{left_out}")
    if samples.group is None:
        return
    shares = ", ".join(f"{count / max(len(result.y), 1):.2f}" for count in result.sizes.sum(axis=0))
    execution.reporter.say(f"samples of one --group are in one split: {shares} of all for training, validation, test")
    client = np.repeat(np.arange(len(result.names)), result.sizes.sum(axis=1))
    pairs = np.unique(np.stack([samples.group[result.sample], client]), axis=1)
    shared = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
    if shared:
        execution.reporter.say(
            f"{counted(shared, 'value')} of --group with samples of several clients: each client splits its own samples"
        )


def summarize(result: artifact.Partition, samples: Samples, total: int, seed: int) -> dict[str, Any]:
    """Return the summary of a partition made of ``total`` samples; pairs of clients are drawn from the ``seed``."""
    sizes = result.sizes.sum(axis=1)
    return {
        "clients": len(result.names),
        "samples": len(result.y),
        "unused": total - len(result.y),
        **{split: int(count) for split, count in zip(SPLITS, result.sizes.sum(axis=0), strict=True)},
        **({"classes": result.classes} if result.labels.fields is None else {}),
        "shape": list(result.x.shape[1:]),
        "type": str(result.x.dtype),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "empty": np.flatnonzero(sizes == 0).tolist(),
        "without_test": int((result.sizes[:, 2] == 0).sum()),
        **({"by_time": True} if samples.ordered else {}),
        **(_measure_divergence(result, seed) if result.labels.kind == CLASSES else result.labels.facts()),
        **({"kept": [*result.kept]} if result.kept else {}),
        **({} if result.cluster is None else {"clusters": np.bincount(result.cluster).tolist()}),
        **({} if result.new is None else {"new_clients": int(result.new.sum())}),
        **({} if result.poisoned is None else {"poisoned": int(result.poisoned.sum())}),
    }


def _measure_divergence(result: artifact.Partition, seed: int) -> dict[str, Any]:
    """Return how far the classes of clients differ."""
    counts = result.label_counts
    overall = heterogeneity.divergence_from_overall(counts)
    between = heterogeneity.divergence_between_clients(counts, rng.generator(seed, "pairs"))
    return {"label_divergence": {"from_overall": _round(overall), "between_clients": _round(between)}}


def _round(value: float) -> float | None:
    """Round to four decimals, which are the same on every processor; return None for nan, which JSON lacks."""
    return None if math.isnan(value) else round(value, 4)


def _report(summary: dict[str, Any], result: artifact.Partition, samples: Samples, execution: Execution) -> None:
    kind = result.labels.kind
    described = f"of {result.classes} classes" if kind == CLASSES else f"with a {kind} as label"
    execution.reporter.say(
        f"{counted(summary['samples'], 'sample')} {described}, "
        f"{counted(summary['clients'], 'client')} with "
        f"{summary['smallest']} / {summary['median']:g} / {summary['largest']} samples (min / median / max)"
    )
    if summary.get("label_divergence", {}).get("between_clients") is not None:
        overall, between = summary["label_divergence"].values()
        execution.reporter.say(
            f"label divergence {overall:.2f} from overall, {between:.2f} between clients (0 iid, 1 disjoint)"
        )
    if summary.get("new_clients"):
        execution.reporter.say(
            f"unseen: {counted(summary['new_clients'], 'client')}, excluded from training the global model"
        )
    if summary.get("poisoned"):
        execution.reporter.say(f"poisoned: {counted(summary['poisoned'], 'client')}, which have only training samples")
    if summary["empty"]:
        first_ids = ", ".join(map(str, summary["empty"][:10])) + (", ..." if len(summary["empty"]) > 10 else "")
        execution.reporter.say(
            f"without samples: {counted(len(summary['empty']), 'client')}, {first_ids} (--min-samples 10 fills them)"
        )
    untested = summary["without_test"] - len(summary["empty"]) - summary.get("poisoned", 0)
    if untested > 0:
        execution.reporter.say(
            f"without test samples: {counted(untested, 'client')} with too few samples, which no metric will count"
        )
    if summary["unused"]:
        execution.reporter.say(f"assigned to no client: {counted(summary['unused'], 'sample')}")
    _report_split(result, samples, execution)
