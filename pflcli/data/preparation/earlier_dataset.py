"""What ``pfl import NEW --like OLD`` takes from what was imported before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pflcli.artifacts import codebook
from pflcli.artifacts.chosen import open_one
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.reader import ancestor
from pflcli.data.formats import Column, Like, Roles
from pflcli.errors import GoneError, InputError


@dataclass(frozen=True)
class Earlier:
    """Data that others are to be read like: what their numbers stand for and, if it is still there, how they were read.

    ``request`` is that of their import, empty if it is gone.
    """

    name: str
    book: Codebook
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def like(self) -> Like:
        """What readers have to agree with."""
        columns = tuple(Column(column.name, column.words, column.gaps) for column in self.book.columns)
        return Like(self.name, self.book.classes, columns)

    @property
    def standardize(self) -> str:
        """By whose training samples features were standardized, or are to be: federation, client, or empty if not."""
        option = str(self.request.get("standardize") or "")
        if self.book.scales or "client" in option:
            return "client"
        return "federation" if self.book.mean or option else ""

    @property
    def fill(self) -> bool:
        """Whether missing values were filled in, or are to be."""
        return bool(self.book.median) or self.request.get("missing") == "median"

    @property
    def missing(self) -> str | None:
        """What was done about missing values."""
        return "median" if self.fill else self.request.get("missing")

    def chosen(self, option: str, value: Any) -> Any:
        """Return the value of an option, or that of the old import where none is given."""
        return self.request.get(option) if value is None else value

    def roles(self, roles: Roles) -> Roles:
        """Return ``roles`` with the old columns where none are named; one that says how to split stands for all."""
        client, label = self.chosen("client", roles.client), self.chosen("label", roles.label)
        if roles.split is None and roles.group is None and roles.order is None:
            return Roles(client, label, group=self.request.get("group"), order=self.request.get("order"))
        return replace(roles, client=client, label=label)

    @property
    def digest(self) -> str:
        """A hash of all that new data take from here."""
        facts = codebook.fields(replace(self.book, dataset="", clients=()))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def hint(self) -> str:
        """Say what is not known here, as only a partition's training samples tell it; empty if all is known."""
        if (self.standardize and not (self.book.mean or self.book.scales)) or (self.fill and not self.book.median):
            return (
                f"{self.name} was not partitioned yet: mean, deviation and medians will be those of the new training "
                "samples; --like PARTITION takes the old ones"
            )
        return ""


def old(path: Path | str) -> Earlier:
    """Return what the artifact at ``path`` knows; raises InputError for one that does not know its classes."""
    artifact = open_one(path)
    book = codebook.read(artifact)
    if not book.classes:
        raise InputError(
            f"{path} has no class names, so --like cannot use it",
            "--like takes an imported dataset, or its partition",
        )
    try:
        dataset = ancestor(artifact, "dataset")
    except GoneError:
        dataset = None
    return Earlier(str(path), book, {} if dataset is None else dataset.manifest.request)
