"""What a page says about a federation of real sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pflcli.artifacts import csv_file
from pflcli.artifacts.kinds import federation
from pflcli.artifacts.reader import Artifact
from pflcli.core.wording import counted, listed
from pflcli.evaluation.presentation.section import Section
from pflcli.evaluation.presentation.tables import Table
from pflcli.plugins.sites import opening


def section(artifact: Artifact) -> Section:
    """Return what leaves each site in a sentence and a table for each run, and the samples of all sites."""
    title = artifact.path.resolve().name
    runs = {name: federation.read_exchange(each) for name, each in opening.read_runs(artifact).items()}
    facts = next(iter(runs.values()))
    sent = [
        (
            f"What leaves a site of {title}{f' in {name}' if name else ''}",
            Table(["tensor", "type", "shape"], tensors, []),
        )
        for name, run in runs.items()
        if (tensors := _list_tensors(run))
    ]
    samples = [[name, f"{count:,}"] for name, count in facts["clients"].items()]
    rows = [[*pair] for pair in facts["clients"].items()]
    entry = facts if "" in runs else {"runs": runs, "scores": dict(artifact.manifest.request["scores"])}
    return Section(
        key="federations",
        heading="What leaves the sites",
        title=title,
        answer=_describe(facts) if "" in runs else _describe_several(runs, artifact.manifest.request["scores"]),
        tables=(*sent, (f"Sites of {title}", Table(["site", "training samples"], samples, []))),
        files={"sites.csv": csv_file.encode(["site", "training_samples"], rows)},
        entry={"title": title, **entry},
        page_title="Personalization among real sites",
    )


def _list_tensors(run: Mapping[str, Any]) -> list[list[str]]:
    return [[each["tensor"], each["type"], "x".join(map(str, each["shape"])) or "number"] for each in run["uploads"]]


def _describe_several(runs: Mapping[str, Mapping[str, Any]], scores: Mapping[str, Any]) -> str:
    """Return what sites compare, and what they send of it."""
    facts = next(iter(runs.values()))
    methods = [*dict.fromkeys(name.partition("/")[2] for name in runs)]
    return (
        f"{counted(len(facts['clients']), 'site')} compare {listed(methods)} in {counted(len(runs), 'run')}. They send"
        " the tensors below, with weights, training losses, and whether training diverged; and, after the last run,"
        f" scores of their test samples: {listed(scores['metric'])}. No sample leaves a site."
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
