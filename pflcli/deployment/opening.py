"""Open the server or a site of a federation artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pflcli import config, foreign, methods, sources
from pflcli.artifacts import client_blocks, disk
from pflcli.artifacts.kinds import federation as federations
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.reader import Artifact
from pflcli.deployment.endpoints import Server, Site, Terms
from pflcli.deployment.messages import Layout
from pflcli.errors import ConflictError, InputError
from pflcli.execution import Execution
from pflcli.training import dp_secret, run_request
from pflcli.training.run_spec import RunSpec

_MARK = "deployment.json"
"""The file that marks the folder of a server or a site."""


def read_terms(federation: Artifact) -> Terms:
    """Return what server and sites have agreed on; every client is a site of its own.

    Raises InputError if the code of the method or of the network is another one here.
    """
    request, manifest = federation.manifest.request, federation.manifest
    federations.check(federation)
    changed = [name for name, digest in manifest.code.items() if sources.code_hash(*name.split("/", 1)) != digest]
    if changed:
        raise InputError(
            f"{federation.path} was made by another version of pfl (now {', '.join(changed)} is another code)",
            f"install the version that made it: {manifest.made.get('pfl', 'unknown')}",
        )
    names = federations.client_names(federation)
    sites = {name: (client,) for client, name in enumerate(names)}
    downloads = tuple(_read_layout(each) for each in request.get("downloads", ()))
    upload = _read_layout(request["upload"]) if "upload" in request else None
    return Terms(manifest.fingerprint, request["method"], sites, downloads, upload)


def write_layout(layout: Layout) -> list[list[object]]:
    """Return a layout as JSON."""
    return [[name, str(dtype).removeprefix("torch."), list(shape)] for name, (dtype, shape) in layout.items()]


def _read_layout(written: list[list[object]]) -> Layout:
    return {str(name): (getattr(torch, str(dtype)), tuple(shape)) for name, dtype, shape in written}  # type: ignore[arg-type]


def make_spec(federation: Artifact) -> RunSpec:
    """Return what determines the rounds of a federation, except for samples."""
    request = federation.manifest.request
    method = methods.load(request["method"])
    return RunSpec(
        name=request["method"],
        method=method,
        cfg=config.build(method.Config, request["options"], request["method"]),
        settings=run_request.resolve_settings(request["settings"], {}),
        seed=int(request["seed"]),
    )


def declare_samples(request: Mapping[str, Any], names: list[str]) -> Partition:
    """Return the numbers of training samples of all clients in the request of a federation, without samples."""
    sizes = np.zeros((len(request["train"]), len(client_blocks.SPLITS)), np.int64)
    sizes[:, 0] = request["train"]
    form, none = request["form"], np.zeros(0, np.int64)
    x = np.zeros((0, *form["shape"]), form["type"])
    offsets = client_blocks.offsets(sizes.ravel().tolist())
    return Partition(x, none, none, offsets, names, form["classes"])


def open_server(federation: Artifact, terms: Terms, folder: Path, execution: Execution) -> Server:
    """Return the server whose state is in ``folder``, with the secret of its noise, if there is noise."""
    spec = make_spec(federation)
    data = declare_samples(federation.manifest.request, federations.client_names(federation))
    run = spec.build(data, on_cpu(execution), private_rng=dp_secret.folder_draws(folder))
    return Server(terms, spec.method, run, folder)


def open_site(
    federation: Artifact, terms: Terms, data: Partition, site: str, folder: Path, execution: Execution
) -> Site:
    """Return the site of a client whose state is in ``folder``; ``data`` has the samples of this client alone."""
    spec = make_spec(federation)
    run = spec.build(data, on_cpu(execution))
    run.privacy = None  # noise is the server's
    return Site(terms, spec.method, run, site, folder)


def claim(folder: Path, facts: Mapping[str, Any]) -> None:
    """Mark a folder as that of a server or site; raises ConflictError if it has other files, or another mark."""
    path = folder / _MARK
    if path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if {**stored, "paths": None} != {**facts, "paths": None}:
            raise ConflictError(
                f"{folder} belongs to another {stored.get('role')} or federation", "choose another --out"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConflictError(f"{folder} contains other files", "choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        disk.write(temporary, [json.dumps(dict(facts)).encode()])
        temporary.replace(path)
    except OSError as error:
        raise disk.write_error(f"cannot write {path}", folder.parent, error) from None


def read_claim(folder: Path, role: str, command: str) -> dict[str, Any]:
    """Return the facts of ``claim``; raises InputError, with the ``command`` that makes it, for another folder."""
    path = folder / _MARK
    if not path.is_file():
        raise InputError(f"{folder} is not the folder of a {role}", command)
    with foreign.reading(path, "JSON"):
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if facts["role"] != role:
            raise InputError(f"{folder} is not the folder of a {role}, but of a {facts['role']}", command)
    return facts


def on_cpu(execution: Execution) -> Execution:
    """Return the execution on the CPU in this process: only there, all places have the same bytes."""
    return replace(execution, device="cpu", jobs=0, executor="local")
