"""The section of a page that shows audits, each with its answer, its table and its picture."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from pflcli.artifacts.kinds import audit
from pflcli.artifacts.reader import Artifact
from pflcli.evaluation.presentation import audits
from pflcli.evaluation.presentation.tables import Table

ID = "audits"
"""The HTML id of the section."""
TITLE = "What an attacker learns"

_PICTURE = (
    "Left, over all clients: the share of training samples that an attack recognizes (true positives) against the "
    "share of other samples that it mistakes for training samples (false positives); the dashed line is a guess. "
    "Right: the AUC of each client under the strongest attack, the most exposed first; 0.5 is a guess."
)


@dataclass(frozen=True)
class Audit:
    """An audit and its stored results."""

    artifact: Artifact

    @cached_property
    def results(self) -> Mapping[str, Any]:
        """The results; raises InputError if the file is damaged."""
        return audit.read(self.artifact)

    @property
    def title(self) -> str:
        """The name of the audit's folder."""
        return self.artifact.path.resolve().name

    @property
    def files(self) -> dict[str, bytes]:
        """The tables by name: one with a row per attack, one with a row per attack and client."""
        return {name: self.artifact.read(name) for name in (audit.TABLE, audit.CLIENTS)}


def render_section(shown: Sequence[Audit]) -> str:
    """Return the HTML of the section; empty without audits."""
    if not shown:
        return ""
    return f'<section id="{ID}"><h2>{TITLE}</h2>\n{"".join(map(_render_audit, shown))}</section>\n'


def _render_audit(item: Audit) -> str:
    answer, results = escape(audits.describe_strongest(item.results)), item.results
    notes = "".join(f"<li>{escape(line)}</li>" for line in [*audits.list_facts(results), *results["warnings"]])
    return (
        f'<h3>{escape(item.title)}</h3>\n<div class="answer"><p>{answer}</p></div>\n'
        f'{_table(audits.build_table(results), item.title)}<ul class="notes">{notes}</ul>\n{_picture(item)}'
    )


def _table(table: Table, title: str) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.heading)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in table.rows)
    return (
        f'<div class="scroll" role="region" aria-label="Attacks: {escape(title)}" tabindex="0"><table class="plain">'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>\n"
    )


def _picture(item: Audit) -> str:
    url = f"data:image/png;base64,{base64.b64encode(item.artifact.read(audit.PICTURE)).decode()}"
    words = escape(f"Attacks on {item.results['method']}. {_PICTURE}")
    return (
        f'<figure class="wide"><img class="picture" src="{url}" alt="{words}">\n<figcaption>{escape(_PICTURE)}'
        "</figcaption></figure>\n"
    )
