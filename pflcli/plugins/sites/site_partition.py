"""``pfl partition --like FEDERATION``: the partition of one site, which has the samples of one client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from pflcli.artifacts import codebook
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kinds import federation as federations
from pflcli.artifacts.kinds import partition as artifact
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.commands.partition import load_samples, sample_width, summarize
from pflcli.core import schemes, sources
from pflcli.core.datasets import SPLITS, Samples
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.core.tasks import CLASSES, Labels
from pflcli.core.wording import counted, listed
from pflcli.data.formats import ABSENT
from pflcli.data.preparation import imported_dataset, preprocessing
from pflcli.data.preparation.deal import Deal, assemble
from pflcli.options.partition import Partition


def partition_site(asked: Partition) -> Outcome:
    """Return the partition of one client of the federation ``like``, whose other clients have no samples."""
    if asked.like is None or asked.client is None:
        raise UsageError(
            "--like and --client belong together", "pfl partition DATA --like FEDERATION --client NAME -o DIR"
        )
    decided = ("scheme", "clients", "min_samples", "fractions", "keep_test", "new_clients", "part", "poison", "seed")
    for name in (*decided, "standardize_target"):
        if getattr(asked, name) != getattr(Partition, name):
            word = name.replace("_", "-")
            raise UsageError(f"--{word} has no effect with --like: the federation decides", f"leave out --{word}")
    federation, dataset = open_one(asked.like, "federation"), str(asked.dataset)
    split, names = federation.manifest.request["split"], federations.client_names(federation)
    if asked.client not in names:
        raise UsageError(f"{federation.path} has no client '{asked.client}'", closest(asked.client, names))
    source, splitter = imported_dataset.open_dataset(dataset), schemes.load("natural")
    deal = Deal("natural", None, 0, 0.0, 1.0, (1, 1), split["seed"])
    samples, cfg, dataset_cfg = load_samples(
        dataset, source, splitter, deal, asked.options or {}, asked.root, asked.download
    )
    rows = np.arange(len(samples.y))
    if samples.owner is not None and len(owners := np.unique(samples.owner)) > 1:
        if asked.client not in owners:
            raise UsageError(
                f"{dataset} has {len(owners)} clients, none of them '{asked.client}'", "import one client's data"
            )
        rows = np.flatnonzero(samples.owner == asked.client)
    book = codebook.read(federation) if source is None else codebook.read(source)
    _require_form(federation, dataset, samples, book, is_imported=source is not None)
    fractions: tuple[float, float, float] = tuple(split["fractions"])
    request = {
        "dataset": dataset if source is None else "imported",
        **deal.request(samples, cfg, dataset_cfg, fractions, keep_test=split["keep_test"]),
        "federation": federation.manifest.fingerprint,
        "client": asked.client,
    }
    inputs = () if source is None else (source.as_input("dataset", Path(asked.out)),)

    def build(writer: ArtifactWriter) -> Built:
        chosen = samples if split["keep_test"] else replace(samples, is_test=None)
        parts = [rows if name == asked.client else rows[:0] for name in names]
        labels = Labels(samples.classes, **federation.manifest.request.get("task", {}))
        result = replace(assemble(chosen, parts, fractions, split["seed"]), names=names, labels=labels)
        known = replace(book, clients=tuple(names))
        if samples.scaling is not None:
            result, known = preprocessing.scale_partition(result, known, samples.scaling)
        artifact.write(writer, result, known)
        sizes = dict(zip(SPLITS, result.sizes.sum(axis=0).tolist(), strict=True))
        asked.execution.reporter.say(
            f"{counted(len(result.y), 'sample')} of client '{asked.client}': {sizes['train']} for training, "
            f"{sizes['validation']} for validation, {sizes['test']} for test"
        )
        return Built(summarize(result, samples, len(samples.y), split["seed"]), {})

    spec = ArtifactSpec("partition", request, inputs, code={"schemes/natural": sources.code_hash("schemes", "natural")})
    execution = asked.execution.reading(asked.root, federation.path)
    return make(asked.out, spec, execution, build, needed_bytes=len(samples.y) * sample_width(samples))


def _require_form(federation: Artifact, dataset: str, samples: Samples, book: Codebook, *, is_imported: bool) -> None:
    """Raise InputError if samples do not have the task, shape, classes, features and splits of a federation."""
    request, features, expected = (
        federation.manifest.request,
        samples.features or book.features,
        codebook.read(federation).features,
    )
    form, fix, split = request["form"], f"pfl import FILE --like {federation.path}", request["split"]
    task = request.get("task", {"kind": CLASSES})["kind"]
    if (CLASSES if samples.task is None else samples.task.kind) != task:
        raise InputError(
            f"{dataset} has labels of another task than {federation.path}, which is for {task}", f"{fix} -o DIR"
        )
    if list(samples.x.shape[1:]) != form["shape"] or samples.classes != form["classes"]:
        shape = f"{list(samples.x.shape[1:])} and {samples.classes} classes"
        raise InputError(
            f"{dataset} has samples of shape {shape}; {federation.path} has {form['shape']} and {form['classes']}",
            f"{fix} -o DIR",
        )
    if expected and features and expected != features:
        difference = f"{listed(features)} against {listed(expected)}"
        raise InputError(f"{dataset} has other features than {federation.path}: {difference}", f"{fix} -o DIR")
    own = samples.is_validation is not None, samples.is_test is not None
    kept = split["keep_test"] and split["fractions"][0] == 1, split["keep_test"]
    if own != kept and (is_imported or kept[1]):  # published test samples of pfl's datasets may be dealt out
        words = [
            "training, validation and test samples" if v else "training and test samples" if t else "none"
            for v, t in (own, kept)
        ]
        raise InputError(
            f"{dataset} has splits of its own: {words[0]}; {federation.path} has {words[1]}",
            f"{fix} --split-column {'COL' if kept[1] else ABSENT} -o DIR",
        )
