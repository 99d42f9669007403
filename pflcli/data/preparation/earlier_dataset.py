"""What ``pfl import NEW --like OLD`` takes over from OLD."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pflcli.artifacts import codebook
from pflcli.artifacts.codebook import Codebook, Column
from pflcli.artifacts.kinds import read_labels
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import ancestor
from pflcli.core import plugins
from pflcli.core.engine.tasks import Task
from pflcli.core.errors import GoneError, InputError
from pflcli.core.tasks import Labels
from pflcli.data.formats import Like, Roles


@dataclass(frozen=True)
class Earlier:
    """An earlier dataset or a federation: its codebook, and the ``request`` of its import, empty if that is unknown."""

    name: str
    book: Codebook
    request: Mapping[str, Any] = field(default_factory=dict)
    is_federation: bool = False
    labels: Labels | None = None

    def task(self) -> Task | None:
        """Return the task that labels are for, None for classes."""
        return None if self.labels is None or self.labels.fields is None else self.labels.task()

    @property
    def like(self) -> Like:
        """The columns and classes that new data must have; a dataset of pfl has a column for each feature."""
        columns = self.book.columns or tuple(Column(name) for name in self.book.features)
        columns = columns[:-1] if self.series() else columns  # the last one of a window is the label
        return Like(self.name, self.book.classes, columns, self.request.get("spellings", {}))  # those of a federation

    @property
    def standardize(self) -> str:
        """Whose training samples features are standardized by: federation, client, or empty if by none."""
        option = str(self.request.get("standardize") or "")
        if self.book.scales or "client" in option:
            return "client"
        return "federation" if self.book.mean or option else ""

    @property
    def fill(self) -> bool:
        """Whether missing values are filled in."""
        return bool(self.book.median) or self.request.get("missing") == "median"

    @property
    def missing(self) -> str | None:
        """The value of ``--missing``."""
        return "median" if self.fill else self.request.get("missing")

    def option(self, option: str, value: Any) -> Any:
        """Return the value of an option, or that of the old import if it is None."""
        return self.request.get(option) if value is None else value

    def series(self) -> dict[str, int]:
        """Return the options by which records were cut into windows; empty if they were not."""
        names = ("window", "horizon", "every")
        return (
            {name: self.request[name] for name in names if name in self.request} if self.request.get("window") else {}
        )

    def roles(self, roles: Roles) -> Roles:
        """Return ``roles`` with the old columns for those not given; if one defines splits, no old one does."""
        client, label = self.option("client", roles.client), self.option("label", roles.label)
        keep = tuple(self.option("keep", roles.keep) or ())
        if roles.split is None and roles.group is None and roles.order is None:
            return Roles(client, label, group=self.request.get("group"), order=self.request.get("order"), keep=keep)
        return replace(roles, client=client, label=label, keep=keep)

    @property
    def digest(self) -> str:
        """Return a hash of everything that new data take over."""
        facts = codebook.to_fields(replace(self.book, dataset="", clients=()))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def hint(self) -> str:
        """Return a hint if scales or medians are unknown, as only a partition has them; empty otherwise."""
        if (self.standardize and not (self.book.mean or self.book.scales)) or (self.fill and not self.book.median):
            return (
                f"{self.name} is not partitioned: mean, deviation and medians will be computed from the new training "
                "samples; use --like PARTITION to keep the old ones"
            )
        return ""


def read_earlier(path: Path | str) -> Earlier:
    """Read the artifact, or the table that sites agree on, at ``path``; raises InputError if it has no class names."""
    if Path(path).suffix == ".toml" and (read := plugins.load("KINDS", "federation", "like")) is not None:
        earlier: Earlier = read(Path(path))
        return earlier
    artifact = open_one(path)
    # A comparison and the like have no codebook of their own.
    source = artifact if codebook.FILE in artifact.manifest.files else ancestor(artifact, "partition")
    if source is None or not ((book := codebook.read(source)).classes or read_labels(source.manifest, 0).fields):
        raise InputError(
            f"{path} has no class names, so --like cannot use it",
            "--like takes an imported dataset, its partition, or a federation",
        )
    if artifact.kind == "federation":
        request, labels = artifact.manifest.request["import"], read_labels(artifact.manifest, 0)
        return Earlier(str(path), book, request, is_federation=True, labels=labels)
    try:
        dataset = ancestor(artifact, "dataset")
    except GoneError:
        dataset = None
    request = {} if dataset is None else dataset.manifest.request
    return Earlier(str(path), book, request, labels=read_labels(source.manifest, 0))
