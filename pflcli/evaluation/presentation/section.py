"""What a page says about an artifact that is no comparison: text alone, which the page escapes and arranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pflcli.evaluation.presentation.tables import Table


class Picture(NamedTuple):
    """A PNG, its description for those who do not see it, and its caption."""

    png: bytes
    description: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of a page; those with the same ``key`` stand together below one ``heading``."""

    key: str
    """where ``report.json`` lists the entries of such artifacts"""
    heading: str
    title: str
    answer: str = ""
    tables: Sequence[tuple[str, Table]] = ()
    """with the name of each"""
    notes: Sequence[str] = ()
    picture: Picture | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    """CSV files by name"""
    entry: Mapping[str, Any] = field(default_factory=dict)
    page_title: str = ""
    """the title of a page without comparisons; without a title, there is no such page"""
