"""``pfl site join``: from a site's own table to the folder of the site, in one command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.kinds import federation as federations
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.core import registry
from pflcli.core.errors import ConflictError, InputError, UsageError, closest
from pflcli.core.execution import Execution
from pflcli.core.wording import listed
from pflcli.options.declaration import Options, TableOptions
from pflcli.options.function import command
from pflcli.plugins.sites import opening
from pflcli.plugins.sites.site import check_site
from pflcli.plugins.sites.site_options import JoinSite

_DATA, _PARTITION = opening.JOINED
_READING = (
    *(each.name for each in fields(TableOptions) if each.name not in {own.name for own in fields(Options)}),
    *("split_column", "fold_case", "label_map"),
)
"""The options of ``pfl import`` that say how a table is written."""


@command(JoinSite)
def join_federation(asked: JoinSite) -> dict[str, Any]:
    """Import and split the samples of a site, make its folder, and return what ``check_site`` returns; sends nothing.

    ``data`` is what ``import_data`` reads, an imported dataset, the name of one, or a partition that was made for the
    federation. What it is made to is in the folder of the site, and replaced until the site has joined. The same call
    continues after an interruption. If it fails, no folder is left behind. Raises UsageError if the ``client`` is
    unknown, and InputError for samples that do not fit, or are not as many as sites agreed on.

    >>> from pflcli import federation, partition, personalize, site
    >>> two = partition("writers", "runs/two", clients=2)
    >>> fed = federation.create(personalize("fedavg", two, "runs/f", model="logistic", rounds=1), "fed")
    >>> site.join(fed, "site", data="writers", client="w0371")["client"]
    'w0371'
    """
    out, data = Path(asked.out), asked.data
    if not isinstance(asked.federation, Artifact) and Path(asked.federation).suffix == ".toml":
        raise UsageError(
            f"{asked.federation} is a table that sites agree on, and no federation yet",
            f"pfl federation create {asked.federation} --method NAME -o DIR",
        )
    federation = open_one(asked.federation, "federation")
    for run in opening.read_runs(federation).values():
        opening.read_terms(run)  # before a long import: does this pfl have the same code?
    own = _open(data)
    client = _choose_client(asked, own, federations.client_names(federation))
    opening.require_free(out, {"federation": federation.manifest.fingerprint, "role": "site"})
    existed = out.exists()
    try:
        if own is None or own.kind != "partition":
            data = _make_partition(asked, federation, client, is_imported=own is not None or _is_name(data))
        sends = {"without_records": asked.without_records, "fewest": asked.fewest}
        return check_site(data, asked.federation, out, **sends, execution=asked.execution)
    except Exception:
        if not existed:  # all that is in the folder was made here
            shutil.rmtree(out, ignore_errors=True)
        raise


def _make_partition(asked: JoinSite, federation: Artifact, client: str, *, is_imported: bool) -> Path:
    """Return the partition of the samples that are given, in the folder of the site."""
    out, data, like = Path(asked.out), asked.data, federation.path
    given = {name: value for name in _READING if (value := getattr(asked, name)) is not None}
    if is_imported and given:
        flag = f"--{next(iter(given)).replace('_', '-')}"
        raise UsageError(f"{flag} has no effect on {data}, which is imported already", f"leave out {flag}")
    if not is_imported:
        # All samples are those of one client, also if the pilot's table had a column of clients.
        given = {"client": "none", "out": out / _DATA, "like": like, **given}
        data = _remake(import_data, out, asked.execution, data, **given)
    return _remake(partition, out, asked.execution, data, out=out / _PARTITION, like=like, client=client)


def _remake(make: Callable[..., Outcome], site: Path, execution: Execution, data: Path | str, **asked: Any) -> Path:
    """Return the artifact of a command, which replaces what an earlier call left if the site has not joined yet."""
    try:
        return make(data, **asked, execution=execution).path
    except ConflictError as error:
        if opening.has_mark(site):
            raise ConflictError(
                f"{site} takes part with other samples than {data}: {error.message}",
                "choose another --out, or delete this folder if it has answered no message",
            ) from None
        return make(data, **asked, execution=replace(execution, force=True)).path


def _open(data: Path | str) -> Artifact | None:
    """Return the artifact that the samples are, None if they are to be imported; raises InputError for another kind."""
    if not manifests.is_artifact(Path(data)):
        return None
    artifact = open_artifact(data)
    if artifact.kind not in ("dataset", "partition"):
        raise InputError(
            f"{data} is of the kind {artifact.kind}, which has no samples to take part with", "--data TABLE"
        )
    return artifact


def _is_name(data: Path | str) -> bool:
    return not Path(data).exists() and registry.exists("datasets", str(data))


def _choose_client(asked: JoinSite, own: Artifact | None, names: list[str]) -> str:
    """Return the client whose samples these are; raises UsageError, with all names, if nothing says which."""
    name, data = asked.client, Path(asked.data)
    if own is not None and own.kind == "partition":
        made_for = str(own.manifest.request.get("client", ""))
        if name not in (None, made_for):
            raise UsageError(f"{data} has the samples of client '{made_for}', not '{name}'", "leave out --client")
        return made_for
    if name is None:
        name = next((each for each in names if each in (data.name, data.name.partition(".")[0])), None)
    if name is None and len(names) > 1:
        raise UsageError(
            f"which client of {asked.federation} has the samples in {data}?",
            f"--client NAME, one of {listed(names, 12)}",
        )
    name = names[0] if name is None else name
    if name not in names:
        raise UsageError(f"{asked.federation} has no client '{name}', but {listed(names, 12)}", closest(name, names))
    return name
