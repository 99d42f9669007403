"""``pfl import``: check a user's own data, and convert them to a dataset for ``pfl partition``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts import disk
from pflcli.artifacts.codebook import Codebook, Encoder
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds.dataset import ColumnProfile
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import plugins, tasks
from pflcli.core.engine.tasks import Task
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.wording import counted, listed
from pflcli.data.formats import ABSENT, Roles
from pflcli.data.formats.columns import split_names
from pflcli.data.formats.images import Decoding
from pflcli.data.preparation import cleaning, earlier_dataset, imported_dataset
from pflcli.data.preparation.earlier_dataset import Earlier
from pflcli.data.preparation.profile import find_scale_remarks, format_lines, profile
from pflcli.data.preparation.user_data import UserData, choose_dialect, locate, takes_option
from pflcli.options.function import command
from pflcli.options.import_data import ImportData

UNNAMED = "an encoder without a name"
STANDARDIZE = {
    "federation": "by training samples",
    "client": "by each client's own training samples",
}
"""The words of ``standardize``, and how a request records them."""


@command(ImportData)
def import_data(asked: ImportData) -> Outcome:
    """Import samples from a table, an array file or a folder, as a dataset for ``partition``.

    An error about a cell, a file or an image proposes the option that reads it. Several tables with the same columns,
    as a sequence or in a folder, have one client per file unless ``client`` is given. "FORMAT:PATH" reads a
    format of another tool. Splits that the data have are kept unless ``split_column`` is "none".
    ``partition`` computes medians and scales, from training samples only. Only one of ``split_column``, ``group`` and
    ``order`` can be given. With ``like``, classes, columns, words, roles and options are those of that dataset or
    partition unless they are given, and also means, standard deviations and medians if it is a partition. A dry run
    reads and checks all data.

    Raises UsageError for contradictory options; InputError, with the place, for errors in the data.

    >>> from pathlib import Path
    >>> from pflcli import import_data
    >>> rows = [f"{'ABC'[n % 3]},{n % 2},{n % 7},{n % 5}" for n in range(60)]
    >>> _ = Path("visits.csv").write_text("hospital,outcome,age,pulse\\n" + "\\n".join(rows))
    >>> made = import_data("visits.csv", "runs/data", client="hospital", label="outcome", standardize=True)
    >>> made.summary["samples"]
    60
    """
    form, path, files = locate(asked.data)
    execution = asked.execution.reading(*(files or (path,)), asked.like)
    earlier = None if asked.like is None else earlier_dataset.read_earlier(asked.like)
    standardize_by = "federation" if asked.standardize is True else asked.standardize or ""
    missing = asked.missing
    _check_effects(asked, standardize_by, earlier)
    encoder = Encoder(asked.encoder_name or UNNAMED) if asked.embeddings else None
    keep = None if asked.keep is None else tuple(split_names(asked.keep))
    roles = Roles(asked.client, asked.label, asked.split_column, asked.group, asked.order, keep)
    options = {name: getattr(asked, name) for name in (*vars(Decoding()), "layout", "samples")}
    typed, dialect = choose_dialect(asked, None if earlier is None else earlier.book.dialect)
    if earlier is not None:
        roles = earlier.roles(roles)
        options = {name: earlier.option(name, value) for name, value in options.items()}
        dialect = dialect if dialect.delimiter else replace(dialect, delimiter=earlier.option("delimiter", None))
    decoding = Decoding(**{name: options.pop(name) for name in vars(Decoding())})
    source = UserData(
        path,
        form,
        roles,
        _columns(asked.features),
        decoding,
        dialect,
        _columns(asked.categorical),
        **options,
        like=None if earlier is None else earlier.like,
        leave_out=_columns(asked.leave_out),
        files=files,
    )
    source.check(typed)
    if earlier is not None:
        missing, standardize_by = missing or earlier.missing, earlier.standardize
    is_folder = path.is_dir() and (not files or isinstance(asked.data, Path | str))
    if is_folder and Path(asked.out).resolve().is_relative_to(path.resolve()):
        raise ConflictError(f"{asked.out} is inside its source {path}", "choose a folder outside it for --out")
    task = tasks.parse(asked.task or tasks.CLASSES, asked.unit or "")
    if asked.unit and task is None:
        raise UsageError(f"--unit {asked.unit} is for labels that are numbers", "--task quantity, or --task count")
    given = {name: value for name in ("window", "horizon", "every") if (value := getattr(asked, name)) is not None}
    series = {**given, **({} if earlier is None else earlier.series())}
    conversion = Conversion(
        source,
        missing or "error",
        standardize_by,
        earlier,
        task if earlier is None else earlier.task(),
        asked.task,
        encoder,
        asked.drop_duplicates,
        series,
    )
    build = partial(conversion.build, execution=execution)
    outcome = make(asked.out, ArtifactSpec("dataset", conversion.request()), execution, build)
    if not outcome.decision.startswith("dry run"):
        return outcome
    dataset, _, summary, _ = conversion.read_dataset(execution)
    disk.require_disk(outcome.path, dataset.x.nbytes)
    return replace(outcome, summary=summary)


def _columns(names: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    return names if names is None or isinstance(names, str) else tuple(names)


def _check_effects(asked: ImportData, standardize_by: str, earlier: Earlier | None) -> None:
    """Raise UsageError for an option that has no effect or contradicts the ``earlier`` import."""
    for name in ("task", "unit", "window", "horizon", "every"):
        if getattr(asked, name) is not None and earlier is not None:
            raise UsageError(f"--{name} has no effect with --like, which gives it", f"leave out --{name}")
    if asked.encoder_name is not None and not asked.embeddings:
        raise UsageError("--encoder-name has an effect only with --embeddings", "add --embeddings, or leave it out")
    if asked.embeddings and earlier is not None:
        raise UsageError("--embeddings has no effect with --like, which gives the encoder", "leave out --embeddings")
    if earlier is not None and standardize_by and standardize_by != earlier.standardize:
        how = f"standardized by {earlier.standardize}" if earlier.standardize else "not standardized"
        raise UsageError(f"--like {earlier.name} is {how}, and new data must be too", "leave out --standardize")


@dataclass(frozen=True)
class Conversion:
    """The conversion of a source to a dataset, with the options ``missing`` and ``standardize`` of ``import_data``.

    ``task`` is what models learn, None for classes, and ``task_word`` what the user typed: with ``classes``, every
    distinct label is one. ``encoder`` computed the features, if it is not None. With ``drop_duplicates``, equal rows
    are kept once. ``series`` are the options that cut records into windows, by name.
    """

    source: UserData
    missing: str
    standardize_by: str
    earlier: Earlier | None
    task: Task | None = None
    task_word: str | None = None
    encoder: Encoder | None = None
    drop_duplicates: bool = False
    series: Mapping[str, int] = field(default_factory=dict)

    def request(self) -> dict[str, Any]:
        """Return the request of the dataset: the hash of the source and all options."""
        source = self.source
        return {
            "form": source.form,
            "sha256": source.sha256(),
            "client": source.roles.client,
            "label": source.roles.label,
            "features": source.features if isinstance(source.features, str | None) else list(source.features),
            "missing": self.missing,
            "standardize": STANDARDIZE.get(self.standardize_by, False),
            "resize": source.decoding.resize,
            "delimiter": source.dialect.delimiter,
            # Options that are not used are left out, as those will be that a later version adds.
            **({"categorical": source.categorical or "words"} if takes_option(source.form, "categorical") else {}),
            **({} if source.leave_out is None else {"leave_out": source.leave_out}),
            **{name: value for name, value in source.decoding.options().items() if name != "resize"},
            **{name: value for name, value in source.dialect.given().items() if name != "delimiter"},
            **({"drop_duplicates": True} if self.drop_duplicates else {}),
            **({} if source.layout is None else {"layout": source.layout}),
            **({} if source.samples is None else {"samples": source.samples}),
            **({"split_column": ABSENT} if source.roles.split == ABSENT else {}),
            **{"split_column" if role == "split" else role: name for role, name in source.roles.splitting.items()},
            **({} if not source.roles.kept else {"keep": source.roles.kept}),
            **({} if self.earlier is None else {"like": self.earlier.digest}),
            **({} if self.task_word is None else {"task": self.task_word}),
            **({"unit": self.task.unit} if self.task_word and self.task and self.task.unit else {}),
            **({} if self.encoder is None else {"encoder": asdict(self.encoder)}),
            **self.series,
        }

    def build(self, writer: ArtifactWriter, *, execution: Execution) -> Built:
        """Convert the source and write the dataset."""
        dataset, book, summary, rows = self.read_dataset(execution)
        disk.require_disk(writer.out, dataset.x.nbytes)
        datasets.write(writer, dataset, book)
        datasets.write_profile(writer, rows)
        return Built(summary, {"source": self.source.path.name})

    def read_dataset(
        self, execution: Execution
    ) -> tuple[datasets.Dataset, Codebook, dict[str, Any], list[ColumnProfile]]:
        """Read, check and clean all samples, report them, and return the dataset, its codebook, summary and profile."""
        source, earlier = self.source, self.earlier
        raw = source.read(execution.reporter)
        clean = cleaning.clean(
            raw,
            source.path.name,
            missing=self.missing,
            standardize_by=self.standardize_by,
            like=source.like,
            task=self.task,
            are_classes=self.task_word == tasks.CLASSES,
            drop_duplicates=self.drop_duplicates,
        )
        if (cut := plugins.load("STEPS", "window", "apply")) is not None:
            clean = cut(clean, source.path.name, self.series, asks=earlier is None)
        elif self.series:
            raise UsageError(f"--window is not available: {plugins.why_missing('window')}")
        dataset = clean.dataset
        if self.encoder is not None and (
            dataset.x.ndim != 2 or dataset.x.dtype.kind != "f" or any(column.words for column in raw.columns)
        ):
            raise InputError(
                f"{source.path.name} does not contain embeddings, which are numbers (samples, features)",
                "leave out --embeddings",
            )
        summary = imported_dataset.summarize(dataset, clean.dropped) | {**clean.facts}
        fixed = {} if earlier is None else {name: getattr(earlier.book, name) for name in _SCALES}
        book = Codebook(
            dataset=source.path.name,
            classes=tuple(dataset.classes),
            features=dataset.features,
            columns=clean.columns,
            encoder=self.encoder if earlier is None else earlier.book.encoder,
            dialect=source.dialect if source.dialect.given() else None,
            unit="" if dataset.labels is None else dataset.labels.unit,
            **fixed,
        )
        rows = profile(clean.raw, are_classes=dataset.labels is None)
        is_scaled = bool(self.standardize_by) or dataset.x.dtype == np.uint8
        later = self.standardize_by and not (book.mean or book.scales)
        hints = [f"standardized by `pfl partition`, {STANDARDIZE[self.standardize_by]}"] if later else []
        hints += [earlier.hint()] if earlier and earlier.hint() else []
        partition = "pfl partition --scheme dirichlet --clients 100"
        if earlier is not None and earlier.is_federation:
            partition = f"pfl partition --like {earlier.name} --client NAME"
        scales = [] if is_scaled else find_scale_remarks(rows)
        _report(dataset, summary, rows, [*clean.remarks, *scales, *hints], partition, execution)
        return dataset, book, summary, rows


_SCALES = ("mean", "sd", "median", "scales")


MAX_LISTED = 12
MAX_COLUMNS = 20
"""Columns of the profile that are printed; ``pfl show`` prints more."""


def _report(
    dataset: datasets.Dataset,
    summary: dict[str, Any],
    rows: Sequence[ColumnProfile],
    remarks: Sequence[str],
    partition: str,
    execution: Execution,
) -> None:
    """Report what was imported, with the command ``partition`` that assigns samples to clients."""
    say = execution.reporter.say
    clients = f"no clients yet ({partition})"
    if summary["clients"] is not None:
        clients = (
            f"{counted(summary['clients'], 'client')} with "
            f"{summary['smallest']} / {summary['median']:g} / {summary['largest']} samples (min / median / max)"
        )
    shape = "x".join(map(str, summary["shape"]))
    kind = "pixels" if summary["type"] == "uint8" else "feature" if shape == "1" else "features"
    classes: dict[str, int] = summary.get("classes", {})
    what = f"of {len(classes)} classes"
    if dataset.labels is not None:
        what = f"with a {dataset.labels.kind} as label" + (f" in {dataset.labels.unit}" if dataset.labels.unit else "")
    say(f"{counted(summary['samples'], 'sample')} {what}, {shape} {kind}, {clients}")
    if classes:
        say(f"classes: {listed([f'{name} {count}' for name, count in classes.items()], MAX_LISTED)}")
    for line in (*format_lines(rows, MAX_COLUMNS), *remarks):
        say(line)
