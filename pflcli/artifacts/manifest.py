"""The records of an artifact: ``manifest.json`` when it is finished, ``draft.json`` before.

A manifest has the kind, request, inputs and code, and the hash of every file. Both records end with a seal over all
their fields.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflcli.artifacts import kinds
from pflcli.core import plugins
from pflcli.core.errors import InputError
from pflcli.core.wording import listed

if TYPE_CHECKING:
    from pydantic import TypeAdapter

NAME = "manifest.json"

DRAFT = "draft.json"
"""Records the request of an unfinished artifact, until all its files are written."""

UNFINISHED_DRAFT = "draft.tmp"
"""The temporary name of the draft, which a writer leaves if it is killed while it writes the draft."""

_CLOSED = {"extra": "forbid"}


@dataclass(frozen=True)
class Input:
    """A reference to an input artifact; ``path`` is relative to the folder of the manifest."""

    __pydantic_config__ = _CLOSED
    role: str
    kind: str
    fingerprint: str
    path: str


@dataclass(frozen=True)
class ArtifactSpec:
    """The identity of an artifact before it exists: its kind, request, inputs and code."""

    kind: str
    request: Mapping[str, Any]
    inputs: tuple[Input, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that can change the result, without time, device and paths."""
        return _fingerprint(self, kinds.schemas()[self.kind])


def _fingerprint(identity: ArtifactSpec | Manifest, schema: int) -> str:
    return digest(
        {
            "kind": identity.kind,
            "schema": schema,
            "request": identity.request,
            "inputs": [[item.role, item.fingerprint] for item in identity.inputs],
            "code": identity.code,
        }
    )


def digest(value: Any) -> str:
    """Return a SHA-256 over a JSON value; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class ManifestDict(dict[str, Any]):
    """A dict in a manifest; a missing key raises InputError: another program must have changed the manifest."""

    path = Path(NAME)

    @classmethod
    def wrap(cls, path: Path, value: Any) -> Any:
        """Return a value of the manifest at ``path``, with every dict in it as a ManifestDict."""
        if not isinstance(value, dict):
            return value
        wrapped = cls({key: cls.wrap(path, item) for key, item in value.items()})
        wrapped.path = path
        return wrapped

    def __missing__(self, name: str) -> Any:
        raise InputError(f"{self.path} is damaged: it lacks '{name}'", "make it again with --force")


@dataclass(frozen=True)
class Manifest:
    """The facts of a finished artifact, as stored in its ``manifest.json``."""

    __pydantic_config__ = _CLOSED
    kind: str
    schema: int
    fingerprint: str
    request: dict[str, Any]
    inputs: tuple[Input, ...]
    code: dict[str, str]
    files: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    made: dict[str, Any]

    def to_json(self) -> str:
        """Return the text of ``manifest.json``: the fields, followed by ``seal``, a SHA-256 over all of them."""
        fields = asdict(self)
        return json.dumps({**fields, "seal": digest(fields)}, indent=2) + "\n"


def is_artifact(folder: Path) -> bool:
    """Whether pfl made a folder, even if its manifest is damaged; other programs also write a ``manifest.json``."""
    path, start = folder / NAME, b'{\n  "kind": '
    try:
        if not path.is_file():  # opening a pipe would block
            return False
        with path.open("rb") as file:
            return file.read(len(start)) == start
    except OSError:
        return False


def _list_artifacts(folder: Path) -> list[str]:
    """Return the artifacts in a folder, such as the output folder of ``compare``."""
    try:
        return [str(path) for path in sorted(folder.iterdir()) if is_artifact(path)]
    except OSError:
        return []


def read(folder: Path) -> Manifest:
    """Read a folder's manifest; raises InputError if it is missing, edited, or of a newer version.

    A manifest was edited if its fingerprint or its seal do not match its content.
    """
    path = folder / NAME
    if not folder.exists():
        raise InputError(f"{folder} does not exist")
    if not path.is_file():
        inner = listed(_list_artifacts(folder), most=5)
        raise InputError(f"{folder} is not a pfl artifact: it has no {NAME}", f"it contains: {inner}" if inner else "")
    known = kinds.schemas()
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        kind, schema = fields["kind"], fields["schema"]
        newer = schema > known.get(kind, 0)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{path} is damaged: it is not a manifest") from None
    if newer and (why := plugins.why_missing(str(kind))):
        raise InputError(f"{path} describes {kinds.add_article(kind)}, but {why}")
    if newer and kind not in known:
        raise InputError(
            f"{path} describes {kinds.add_article(str(kind))}, which no installed plug-in knows",
            "install the package that made it, or a newer pfl",
        )
    if newer:
        raise InputError(
            f"{path} describes a {kind} with schema {schema} of a newer pfl", "pip install --upgrade pflcli"
        )
    return _parse(path, fields)


_COUNTS = {
    *("clients", "samples", "train", "validation", "test", "classes", "dimension", "rounds", "reported_round"),
    *("participants", "new_clients", "poisoned", "smallest", "median", "largest", "model_bytes", "bytes"),
    *("bytes_up", "bytes_down", "bytes_peer", "models"),
}
"""Fields of summaries with which commands compute."""
_MAX_COUNT = 2**53
"""Above all counts of samples and bytes; larger ones would not fit into what computes with them."""


def require_summary(where: str, summary: Mapping[str, Any], **counts: int) -> None:
    """Raise InputError if a field of the summary is there and differs from what the files contain."""
    for name, count in counts.items():
        if summary.get(name, count) != count:
            raise InputError(f"{where} is inconsistent: it has {count} {name}, its manifest {summary[name]}")


def _parse(path: Path, fields: dict[str, Any]) -> Manifest:
    """Return the manifest with these fields; raises InputError if they are invalid, or differ from what pfl wrote."""
    seal = fields.pop("seal", None)
    try:
        # Each check relies on the one before.
        if _is_deeper(fields, _DEPTH):
            raise ValueError("nested too deeply")
        manifest: Manifest = validate(Manifest, fields)
        _require_types(manifest)
        fingerprint, expected_seal = _fingerprint(manifest, manifest.schema), digest(fields)
    except ValueError:
        raise InputError(f"{path} is damaged: it is not a manifest") from None
    for name, entry in manifest.files.items():
        if name in ("", ".", "..", NAME) or {"/", "\\", "\0"} & {*name}:
            raise InputError(f"{path} is damaged: {json.dumps(name)} does not name a file of its folder")
        if not (isinstance(entry.get("sha256"), str) and isinstance(entry.get("bytes"), int)):
            raise InputError(f"{path} is damaged: it has no hash or size of {name}")
    counts = _COUNTS
    if manifest.kind == "dataset":  # it counts the samples of each class, and may have no clients yet
        counts = counts - {"classes", *(["clients"] if manifest.summary.get("clients") is None else [])}
    for name in counts & {*manifest.summary}:
        value = manifest.summary[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_COUNT:
            raise InputError(f"{path} is damaged: its summary has {name} {json.dumps(value)[:40]}")
    if (manifest.fingerprint, seal) != (fingerprint, expected_seal):
        raise InputError(f"{path} was edited or damaged after it was written", "make it again with --force")
    return replace(
        manifest, **{name: ManifestDict.wrap(path, getattr(manifest, name)) for name in ("request", "summary", "made")}
    )


_TYPES: dict[str, dict[str, type | tuple[type, ...]]] = {
    "request": {"settings": dict, "options": dict, "seed": int, "method": str},
    "summary": {
        **dict.fromkeys(("participants", "rounds", "reported_round", "model_bytes", "dimension"), int),
        **dict.fromkeys(("bytes_up", "bytes_down", "bytes_peer"), int),
        "clients": (int, type(None)),  # samples without clients
        "reported": str,
        "tuned": dict,
    },
    "made": {
        **dict.fromkeys(("seconds", "seconds_inputs"), (int, float)),
        **dict.fromkeys(("processor_seconds", "processor_seconds_inputs"), (int, float)),
        "threads": int,
        "jobs": int,
    },
}
"""Types of the values that pfl reads from requests, summaries and circumstances."""


def _require_types(manifest: Manifest) -> None:
    """Raise ValueError if a value that pfl reads has the wrong type; missing ones raise when they are read."""
    for part, types in _TYPES.items():
        values = getattr(manifest, part)
        if any(name in values and not isinstance(values[name], kind) for name, kind in types.items()):
            raise ValueError


_DEPTH = 32
"""Maximum depth of nesting; requests and summaries have about five levels."""


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in items)


def validate(record: Any, value: Any, *, strict: bool = False) -> Any:
    """Return a value from JSON as a ``record``, a dataclass or TypedDict.

    Raises ValueError, which names the first wrong field. ``strict`` allows no conversions, such as of lists to tuples;
    without it, those of fields that are ``pydantic.Strict`` are not allowed either.
    """
    from pydantic import ValidationError

    try:
        return _type_adapter(record).validate_python(value, strict=strict or None)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _type_adapter(record: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(record)


def draft_content(spec: ArtifactSpec, *, force: bool) -> bytes:
    """Return the bytes of ``draft.json``; ``force`` is true for a request with ``--force``."""
    fields = json.loads(json.dumps({**asdict(spec), "fingerprint": spec.fingerprint, "force": force}))
    return json.dumps({**fields, "seal": digest(fields)}).encode()


def read_draft(folder: Path) -> dict[str, Any]:
    """Return the fields of a folder's draft, or of its manifest if all files are written; empty if it has neither.

    Raises InputError if they are damaged.
    """
    path = folder / DRAFT
    if not path.is_file():
        return {**asdict(read(folder)), "force": True} if is_artifact(folder) else {}
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("seal") != digest(fields):
            raise ValueError
    except Exception:  # a parser raises anything on a damaged file
        raise InputError(
            f"{path} is damaged",
            f"if pfl made {folder}, remove it (rm -r {folder}) and start again; or choose another --out",
        ) from None
    return fields


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the differences between two requests, such as ``alpha: 0.3 -> 0.1``."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{prefix}{key}.")
        elif json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):  # 1 and 1.0 are different here
            lines.append(f"{prefix}{key}: {_shorten(before)} -> {_shorten(after)}")
    return lines


def has_fewer_rounds(old: Manifest, spec: ArtifactSpec) -> bool:
    """Whether an artifact has the kind, code and request of ``spec``, but for fewer rounds or none of its own."""
    before, after = (json.loads(json.dumps(each.request)) for each in (old, spec))
    fewer, more = (request.get("settings", {}).pop("rounds", 0) for request in (before, after))
    return bool(fewer <= more) and (old.kind, old.code, before) == (spec.kind, spec.code, after)


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
