"""Open the server or a site of a federation artifact."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pflcli.artifacts import client_blocks, disk
from pflcli.artifacts.kinds import federation as federations
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.manifest import NAME as MANIFEST
from pflcli.artifacts.manifest import ManifestDict, digest
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.safetensors_file import TYPES
from pflcli.core import config, foreign, methods, registry, sources
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import ConflictError, InputError
from pflcli.core.execution import Execution
from pflcli.core.federation.run import NOBODY, Run, RunInputs
from pflcli.core.methods import Method
from pflcli.core.simulation import loop
from pflcli.core.tasks import Labels
from pflcli.core.wording import listed
from pflcli.plugins.sites.after_rounds import AfterRounds, Rest, sends_after_rounds
from pflcli.plugins.sites.endpoints import Server, Site, Terms, find_other_code, inputs_at_site
from pflcli.plugins.sites.messages import Form, Layout, Pattern, Patterns
from pflcli.plugins.sites.places import AtServer
from pflcli.workflow.training import dp_secret, run_request, run_settings
from pflcli.workflow.training.run_spec import RunSpec

_MARK = "deployment.json"
"""The file that marks the folder of a server or a site."""
JOINED = ("data", "partition")
"""What ``pfl site join`` makes in the folder of a site, before it is marked."""
_CHANGEABLE = ("paths", "sends_records", "fewest")
"""The facts of a site's folder that a person may change: where things are, and what more it sends."""
_RUN = re.compile(r"seed-\d{1,20}/[A-Za-z0-9_-]+(@[A-Za-z0-9_-]+)?")
"""The name of a run of several: the folder in which ``pfl compare`` makes it."""
_RUN_KEYS = {"label", "reference", "method", "options", "settings", "seed", "agreement", "exchange", "then"}


def read_runs(federation: Artifact) -> dict[str, Artifact]:
    """Return what a federation runs: for each of several runs, by its name, the federation of this run alone.

    A federation of a single run is itself, by an empty name. Raises InputError for a run that is none.
    """
    manifest = federation.manifest
    if "runs" not in manifest.request:
        return {"": federation}
    shared = {key: value for key, value in manifest.request.items() if key not in ("runs", "scores")}
    found = {}
    with foreign.parsing(str(federation.path), "a federation"):
        for name, run in manifest.request["runs"].items():
            label = run.get("label", name.partition("/")[2])
            is_named = (
                _RUN.fullmatch(name) and _RUN.fullmatch(f"seed-0/{label}") and name.startswith(f"seed-{run['seed']}/")
            )
            if not is_named or not run.keys() <= _RUN_KEYS:
                raise InputError(f"{federation.path} has a run {name[:80]!r}, which no pfl has made")
            request = ManifestDict.wrap(federation.path / MANIFEST, {**shared, **run})
            fingerprint = digest({"federation": manifest.fingerprint, "run": name})
            found[name] = Artifact(federation.path, replace(manifest, request=request, fingerprint=fingerprint))
    if not found:
        raise InputError(f"{federation.path} has no run")
    return found


def read_terms(federation: Artifact) -> Terms:
    """Return what server and sites have agreed on; every client is a site of its own.

    Raises InputError if pfl, or the code of the method or of the network, is another one here.
    """
    request, manifest = federation.manifest.request, federation.manifest
    with foreign.parsing(str(federation.path), "a federation"):
        federations.check(federation)
        _require_same_code(federation)
        names = federations.client_names(federation)
        sites = {name: (client,) for client, name in enumerate(names)}
        patterns, versions = read_patterns(request["exchange"]), request["software"]["versions"]
        return Terms(manifest.fingerprint, request["method"], sites, patterns, versions)


def describe_software() -> dict[str, Any]:
    """Return the versions of pfl and of the packages that it computes with, and the hash of each part of pfl."""
    return {"versions": sources.read_versions(), "parts": sources.part_hashes()}


def _require_same_code(federation: Artifact) -> None:
    """Raise InputError, which names what differs, unless a federation was made by the pfl that reads it."""
    request, manifest, own = federation.manifest.request, federation.manifest, describe_software()
    made = f"{federation.path} was made by"
    agreed = request["software"]
    if find_other_code(agreed["versions"], own["versions"]):
        pfl, here = agreed["versions"].get("pfl"), own["versions"]["pfl"]
        names = sorted(
            name for name in {*agreed["parts"], *own["parts"]} if agreed["parts"].get(name) != own["parts"].get(name)
        )
        what = f"pfl {pfl}, and this is pfl {here}" if pfl != here else f"other code of pfl {pfl}"
        raise InputError(
            f"{made} {what} ({listed(names, most=5) or 'no part'} differs)",
            f"install pfl {pfl} as the coordinator has it; every place of a federation needs the same code",
        )
    _require_files(federation)
    settings = run_settings.resolve_settings(request["settings"], {})
    needed = {f"methods/{request['method']}", *run_request.code_files(settings)}
    if "then" in request:
        needed.add(f"methods/{request['then']['method']}")
    for name in sorted({*needed, *manifest.code}):
        if sources.code_hash(*name.split("/", 1)) != manifest.code.get(name):
            raise InputError(f"{made} another code of {name}", f"use the file of {name} that the coordinator has")


def _require_files(federation: Artifact) -> None:
    """Raise InputError if a federation needs files of the coordinator that nobody has named here with --use.

    The copies in the federation are never run unless the person at a site names them.
    """
    manifest = federation.manifest
    needed = sorted({key.partition(":")[0] for key in manifest.code})
    if missing := [name for name in needed if not registry.exists(*name.split("/", 1))]:
        files = [manifest.made.get("files", {}).get(name) for name in missing]
        paths = [federation.path / file if file in manifest.files else "FILE" for file in files]
        code = [name for name in manifest.files if name.endswith(".py")]
        raise InputError(
            f"{federation.path} runs {listed(missing)}, not part of pfl: you have to name what runs at your site",
            f"read it first: {listed(code) or 'ask the coordinator for it'}",
            f"pfl {' '.join(f'--use {path}' for path in paths)} COMMAND ...",
        )


def write_patterns(patterns: Patterns) -> dict[str, Any]:
    """Return what is exchanged as JSON."""
    return {
        phase: [
            {
                "deliveries": [_write_layout(layout) for layout in each.deliveries],
                "channels": [_write_form(form) for form in each.channels],
            }
            for each in kinds
        ]
        for phase, kinds in patterns.items()
    }


def read_patterns(written: Mapping[str, Any]) -> Patterns:
    """Undo ``write_patterns``; raises ValueError for an unknown type, or a shape that is none."""
    return {
        str(phase): tuple(
            Pattern(
                tuple(_read_layout(each) for each in kind["deliveries"]),
                tuple(_read_form(each) for each in kind["channels"]),
            )
            for kind in kinds
        )
        for phase, kinds in written.items()
    }


def _write_form(form: Form) -> dict[str, Any]:
    written = {"tensors": _write_layout(form.layout), "update": form.is_update}
    return {**written, **({"record": True} if form.is_record else {})}


def _read_form(written: Mapping[str, Any]) -> Form:
    return Form(_read_layout(written["tensors"]), bool(written["update"]), bool(written.get("record")))


def _write_layout(layout: Layout) -> list[list[object]]:
    return [[name, str(dtype).removeprefix("torch."), list(shape)] for name, (dtype, shape) in layout.items()]


def _read_layout(written: list[list[Any]]) -> Layout:
    layout = Layout()
    for name, dtype, shape in written:
        is_shape = all(type(count) is int and (count >= 0 or place == 0) for place, count in enumerate(shape))
        if dtype not in TYPES or not is_shape:
            raise ValueError(f"the tensor {str(name)[:80]!r} has no valid type or shape")
        layout[str(name)] = (getattr(torch, dtype), tuple(shape))
    return layout


def derive_patterns(request: Mapping[str, Any], names: list[str]) -> Patterns:
    """Return what each client exchanges in the setup, in a round, and to personalize.

    It is not read in the ``request`` of the federation: it follows from the method, its options, the settings and the
    network. A server rehearses the run with clients that send what the method says that they send. ``names`` are those
    of the clients.
    """
    spec, execution = make_spec(request), on_cpu(Execution(threads=1))
    data, place = declare_samples(request, names), AtServer(rehearses=True)
    run = spec.build(data, execution, RunInputs(place=place))
    return rehearse(spec.name, find_phases(request, data, execution), run)


def rehearse(name: str, method: Method, run: Run) -> Patterns:
    """Return what clients exchange in a run whose place is a server that rehearses it.

    Rounds are the first, one in the middle, and the last, as a method may begin with other ones.
    """
    place, found = run.inputs.place, dict[str, list[Pattern]]()
    assert isinstance(place, AtServer)

    def note(phase: str) -> None:
        forms = tuple(place.channels)
        pattern = Pattern(tuple(layout for layout, _ in place.deliveries), forms)
        if pattern != Pattern() and pattern not in found.setdefault(phase, []):
            found[phase].append(pattern)
        place.reset()

    state = loop.set_up(run, name, method).state
    note("setup")
    rounds = run.settings.rounds if method.has_rounds else 0
    for t in sorted({0, rounds // 2, rounds - 1} if rounds else ()):
        state, _ = loop.play_round(run, name, method, state, t)
        note("round")
    place.asked = run.clients
    try:
        with run.personalizing():
            method.personalize(run, state, NOBODY)
    except (Exception, SystemExit):  # only the server of a method that exchanges something personalizes nobody
        if place.deliveries or place.channels:
            raise
    note("personalize")
    return {phase: tuple(kinds) for phase, kinds in found.items() if kinds}


def require_derived(federation: Artifact, terms: Terms) -> None:
    """Raise InputError if a federation declares another exchange than its method has."""
    with foreign.parsing(str(federation.path), "a federation"):
        derived = derive_patterns(federation.manifest.request, federations.client_names(federation))
    for what in ("channels", "deliveries"):
        declared, right = (
            [getattr(each, what) for p in sorted(derived) for each in found.get(p, ())]
            for found in (terms.patterns, derived)
        )
        if declared != right:
            name = {"channels": "uploads", "deliveries": "downloads"}[what]
            raise InputError(
                f"{federation.path} declares other {name} than {terms.method} has with these settings: do not take part"
                " before the coordinator has explained this",
                "pfl federation create PREDICTIONS -o DIR declares the right ones",
            )
    if terms.patterns.keys() != derived.keys():
        raise InputError(f"{federation.path} declares other phases than {terms.method} has")


def make_spec(request: Mapping[str, Any]) -> RunSpec:
    """Return what determines the rounds of a federation with this ``request``, except for samples."""
    method = methods.load(request["method"])
    return RunSpec(
        name=request["method"],
        method=method,
        cfg=config.build(method.Config, request["options"], request["method"]),
        settings=run_settings.resolve_settings(request["settings"], {}),
        seed=int(request["seed"]),
    )


def find_phases(request: Mapping[str, Any], data: Partition, execution: Execution) -> Method:
    """Return the method whose phases a federation plays: that of its rounds, with what clients exchange after them."""
    method, then = make_spec(request).method, request.get("then")
    if then is None or not sends_after_rounds(methods.load(then["method"])):
        return method
    spec = make_spec(then)
    return AfterRounds(method, Rest(spec.name, spec.method, partial(spec.build, data, execution), then.get("layer")))


def declare_samples(request: Mapping[str, Any], names: list[str]) -> Partition:
    """Return the numbers of training samples of all clients in the request of a federation, without samples."""
    if not all(type(count) is int and 0 <= count < 1 << 40 for count in request["train"]):
        raise InputError("the numbers of training samples in the federation are not valid")
    sizes = np.zeros((len(request["train"]), len(SPLITS)), np.int64)
    sizes[:, 0] = request["train"]
    form, none = request["form"], np.zeros(0, np.int64)
    x = np.zeros((0, *form["shape"]), form["type"])
    offsets = client_blocks.offsets(sizes.ravel().tolist())
    labels = Labels(form["classes"], **request.get("task", {}))
    return Partition(x, none.astype(np.int64 if labels.fields is None else np.float64), none, offsets, names, labels)


def open_server(federation: Artifact, terms: Terms, folder: Path, execution: Execution) -> Server:
    """Return the server whose state is in ``folder``, with the secret of its noise, if there is noise."""
    spec = make_spec(federation.manifest.request)
    data = declare_samples(federation.manifest.request, federations.client_names(federation))
    inputs = RunInputs(place=AtServer(), private_rng=dp_secret.folder_draws(folder))
    cpu = on_cpu(execution)
    method = find_phases(federation.manifest.request, data, cpu)
    return Server(terms, method, spec.build(data, cpu, inputs), folder)


def open_site(
    federation: Artifact,
    terms: Terms,
    data: Partition,
    site: str,
    folder: Path,
    execution: Execution,
    *,
    sends_records: bool = True,
    waits: bool = False,
) -> Site:
    """Return the site of a client whose state is in ``folder``; ``data`` has the samples of this client alone.

    It ``waits`` within a phase if this process stays.
    """
    spec = make_spec(federation.manifest.request)
    sizes = np.asarray(federation.manifest.request["train"], dtype=np.int64)
    cpu = on_cpu(execution)
    run = spec.build(data, cpu, inputs_at_site(spec.settings, sizes, sends_records=sends_records))
    return Site(terms, find_phases(federation.manifest.request, data, cpu), run, site, folder, waits=waits)


def claim(folder: Path, facts: Mapping[str, Any]) -> None:
    """Mark a folder as that of a server or site; raises ConflictError as ``require_free`` does."""
    require_free(folder, facts)
    path = folder / _MARK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        disk.write(temporary, [json.dumps(dict(facts)).encode()])
        temporary.replace(path)
    except OSError as error:
        raise disk.write_error(f"cannot write {path}", folder.parent, error) from None


def require_free(folder: Path, facts: Mapping[str, Any]) -> None:
    """Raise ConflictError for a folder with other ``facts`` in its mark, or without one but with other files."""
    if has_mark(folder):
        stored = json.loads((folder / _MARK).read_text(encoding="utf-8"))
        if any(stored.get(key) != value for key, value in facts.items() if key not in _CHANGEABLE):
            raise ConflictError(
                f"{folder} belongs to another {stored.get('role')} or federation", "choose another --out"
            )
    elif folder.exists() and not (folder.is_dir() and all(_is_joined(each) for each in folder.iterdir())):
        raise ConflictError(f"{folder} contains other files", "choose another --out")


def has_mark(folder: Path) -> bool:
    """Return whether a folder is that of a server or site."""
    return (folder / _MARK).is_file()


def _is_joined(path: Path) -> bool:
    return path.name in JOINED or any(path.name.startswith(f"{name}.partial") for name in JOINED)


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
