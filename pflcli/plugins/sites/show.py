"""What a page says about a federation of real sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pflcli.artifacts import csv_file
from pflcli.artifacts.kinds import federation
from pflcli.artifacts.reader import Artifact
from pflcli.core.wording import counted
from pflcli.evaluation.presentation.section import Section
from pflcli.evaluation.presentation.tables import Table
from pflcli.plugins.sites import opening
from pflcli.plugins.sites.sizes import describe_messages


def section(artifact: Artifact) -> Section:
    """Return what leaves each site in a sentence and a table, and the samples of all sites."""
    facts, title = federation.read_exchange(artifact), artifact.path.resolve().name
    tensors = [
        [each["tensor"], each["type"], "x".join(map(str, each["shape"])) or "number"] for each in facts["uploads"]
    ]
    messages = [
        [
            each["when"],
            "a record that it may refuse" if each["record"] else each["does"],
            each["tensors"],
            each["bytes"],
        ]
        for each in describe_messages(opening.read_patterns(artifact.manifest.request.get("exchange", {})))
    ]
    exchanged = Table(
        ["when", "a site", "tensors", "bytes, at most"], [[*row[:3], f"{row[3]:,}"] for row in messages], []
    )
    samples = [[name, f"{count:,}"] for name, count in facts["clients"].items()]
    sent = [(f"What leaves a site of {title}", Table(["tensor", "type", "shape"], tensors, []))] if tensors else []
    rows = [[*pair] for pair in facts["clients"].items()]
    return Section(
        key="federations",
        heading="What leaves the sites",
        title=title,
        answer=_describe(facts),
        tables=(
            *sent,
            *([(f"Messages of a site of {title}", exchanged)] * bool(messages)),
            (f"Sites of {title}", Table(["site", "training samples"], samples, [])),
        ),
        files={"sites.csv": csv_file.encode(["site", "training_samples"], rows)},
        entry={"title": title, **facts},
        page_title="Personalization among real sites",
    )


def _describe(facts: Mapping[str, Any]) -> str:
    """Return what a site sends, in a sentence."""
    sites = counted(len(facts["clients"]), "site")
    if not facts["rounds"]:
        return f"{facts['method']} sends nothing: {sites} train alone."
    return (
        f"{facts['method']} runs among {sites} in {counted(facts['rounds'], 'round')}. In a round, a site receives"
        f" {facts['bytes_down']:,} bytes and sends {facts['bytes_up']:,}: the tensors below, with weights,"
        " training losses, and whether training diverged. No sample leaves a site."
    )
