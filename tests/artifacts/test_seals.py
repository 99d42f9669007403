"""Edited or forged manifests are refused with the file's name, and no file that they point to is opened."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from safetensors.torch import load, save

from helpers import NAMES
from pflcli.__main__ import main
from pflcli.artifacts import kinds
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.extract import extract
from pflcli.commands.personalize import personalize
from pflcli.core.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden" / "schema-1"


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], Any], *, reseal: bool = False) -> None:
    """Change the manifest of an artifact, and leave its seal as it is or, with ``reseal``, renew it."""
    path = folder / "manifest.json"
    raw = json.loads(path.read_text())
    change(raw)
    if reseal:
        raw["seal"] = manifests.digest({key: value for key, value in raw.items() if key != "seal"})
    path.write_text(json.dumps(raw, indent=2) + "\n")


def run_and_get_exit_code(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def knn_copy(small, tmp_path_factory) -> Path:
    """A copy of predictions whose manifest the tests rewrite, each from the whole one."""
    copy = tmp_path_factory.mktemp("sealed") / "knn"
    shutil.copytree(small.knn, copy)
    return copy


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "method": lambda raw: raw["request"].update(method="ditto"),
    "seed": lambda raw: raw["request"].update(seed=7),
    "kind": lambda raw: raw.update(kind="partition"),
    "fingerprint": lambda raw: raw.update(fingerprint="0" * 64),
    "input": lambda raw: raw["inputs"][0].update(fingerprint="0" * 64),
    "path": lambda raw: raw["inputs"][0].update(path="../elsewhere"),
    "code": lambda raw: raw["code"].update(more="0"),
    "summary": lambda raw: raw["summary"].update(bytes_up=1),
    "no summary": lambda raw: raw.update(summary={}),
    "made": lambda raw: raw["made"].update(seconds=0),
    "no made": lambda raw: raw.update(made={}),
    "files": lambda raw: raw["files"].popitem(),
    "seal": lambda raw: raw.update(seal="0" * 64),
    "no seal": lambda raw: raw.pop("seal"),
    "itself": lambda raw: raw["inputs"][0].update(fingerprint=raw["fingerprint"], path="."),
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_edited_manifest_is_refused(small, knn_copy, change, capsys):
    shutil.copy(small.knn / "manifest.json", knn_copy)
    edit_manifest(knn_copy, change)
    for arguments in (
        ("show", knn_copy, "--verify"),
        ("show", knn_copy, "--lineage"),
        ("evaluate", knn_copy, "-o", knn_copy.parent / "e"),
    ):
        assert run_and_get_exit_code(*arguments) == 3
        assert "manifest.json was edited or damaged" in capsys.readouterr().err


def test_manifest_with_other_whitespace_or_times_is_accepted(small_copy):
    edit_manifest(small_copy.knn, lambda raw: None)
    path = small_copy.knn / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1, sort_keys=True))
    os.utime(path, (0, 0))
    open_artifact(small_copy.knn).verify()


@pytest.mark.parametrize("name", NAMES)
def test_manifest_of_every_kind_has_a_seal(small, name):
    assert len(json.loads((getattr(small, name) / "manifest.json").read_text())["seal"]) == 64


@pytest.mark.parametrize("kind", kinds.schemas())
def test_fingerprint_is_checked_beside_the_seal(tmp_path, kind):
    shutil.copytree(GOLDEN / kind, tmp_path / kind)
    open_artifact(tmp_path / kind).verify()
    edit_manifest(tmp_path / kind, lambda raw: raw["request"].update(seed=12345), reseal=True)
    with pytest.raises(InputError, match="was edited or damaged"):
        open_artifact(tmp_path / kind)


WRITTEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"{key} {value!r}": lambda raw, key=key, value=value: raw.update({key: value})
       for key in ("request", "inputs", "code", "files", "summary", "made")
       for value in (None, 5, "x", [1], {"a": [1]} if key in ("inputs", "code", "files") else 1.5)},
    "fingerprint": lambda raw: raw.update(fingerprint=5),
    "file of no hash": lambda raw: raw["files"].update(a={}),
    "input of more": lambda raw: raw["inputs"][0].update(more=1),
    "deep": lambda raw: raw["summary"].update(x=json.loads("[" * 500 + "]" * 500)),
    **{f"file {name!r}": lambda raw, name=name: raw["files"].update({name: {"sha256": "0" * 64, "bytes": 1}})
       for name in ("/dev/zero", "../p/samples.h5", "..", ".", "", "a/b", "a\\b", "a\0b", "manifest.json")},
}  # fmt: skip


@pytest.mark.parametrize("change", WRITTEN.values(), ids=WRITTEN)
def test_malformed_manifest_is_refused(tmp_path, change, capsys):
    shutil.copytree(GOLDEN / "predictions", tmp_path / "a")
    edit_manifest(tmp_path / "a", change)
    assert run_and_get_exit_code("show", tmp_path / "a", "--verify") == 3
    assert "manifest.json is damaged" in capsys.readouterr().err


def test_deeply_nested_manifest_is_refused(tmp_path, capsys):
    shutil.copytree(GOLDEN / "predictions", tmp_path / "a")
    path = tmp_path / "a" / "manifest.json"
    path.write_text(path.read_text().rstrip()[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}")
    assert run_and_get_exit_code("show", tmp_path / "a") == 3
    assert "manifest.json is damaged" in capsys.readouterr().err


# What its files are


def replace_and_reseal(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of an artifact, and its hash, so that only its reader is left to refuse it."""
    (folder / name).write_bytes(content)

    facts = {"sha256": sha256(content).hexdigest(), "bytes": len(content)}
    edit_manifest(folder, lambda raw: raw["files"].update({name: facts}), reseal=True)


@pytest.mark.parametrize("kind", ["fifo", "device", "link"])
def test_verify_refuses_links_devices_and_pipes(tmp_path, kind, capsys):
    shutil.copytree(GOLDEN / "predictions", tmp_path / "a")
    path = tmp_path / "a" / "predictions.h5"
    if kind == "link":
        path.rename(tmp_path / "elsewhere.h5")
        path.symlink_to(tmp_path / "elsewhere.h5")
    else:
        path.unlink()
        os.mkfifo(path) if kind == "fifo" else path.symlink_to("/dev/null")
    assert run_and_get_exit_code("show", tmp_path / "a", "--verify") == 3
    assert "predictions.h5 is " in capsys.readouterr().err


def make_external(file: Any) -> None:
    del file["test/y"]
    file.create_dataset("test/y", (3,), "i8", external=[("/etc/hostname", 0, 24)])


def make_virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((3,), "i8")
    layout[:] = h5py.VirtualSource("other.h5", "y", (3,))
    file.create_virtual_dataset("more", layout)


def make_linked(file: Any) -> None:
    file["more"] = h5py.ExternalLink("other.h5", "y")


def make_ring(file: Any) -> None:
    file["test/ring"] = file["test"]


def _set_value(name: str, values: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file[name]
        if values is not None:
            file[name] = values

    return change


def set_probability(number: float) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        file["test/p"][0, 0] = number

    return change


HOSTILE: dict[str, Callable[[Any], None]] = {
    "external": make_external,
    "virtual": make_virtual,
    "external link": make_linked,
    "soft link": lambda file: file.update({"more": h5py.SoftLink("/test/y")}),
    "ring": make_ring,
    "huge": lambda file: file.create_dataset("more", (10**12,), "f8"),
    "no labels": _set_value("test/y", None),
    "labels are words": _set_value("test/y", ["a", "b"]),
    "offsets are floats": _set_value("test/offsets", [0.0, 1.0]),
    "no rows": _set_value("test/p", 1.0),
    "NaN": set_probability(np.nan),
    "7.0": set_probability(7.0),
    "a label below": lambda file: file["test/y"].write_direct(np.full(file["test/y"].shape, -1)),
    "a label above": lambda file: file["test/y"].write_direct(np.full(file["test/y"].shape, 1000)),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_hostile_hdf5_files_are_refused(tmp_path, change):
    shutil.copytree(GOLDEN / "predictions", tmp_path / "a")
    memory = io.BytesIO((tmp_path / "a" / "predictions.h5").read_bytes())
    with h5py.File(memory, "r+") as file:
        change(file)
    replace_and_reseal(tmp_path / "a", "predictions.h5", memory.getvalue())
    with pytest.raises(InputError, match=r"predictions\.h5"):
        predictions.read(open_artifact(tmp_path / "a"), "test")


@pytest.mark.parametrize("change", [make_external, make_virtual])
def test_import_refuses_hdf5_data_stored_in_other_files(tmp_path, change, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["test/y"], file["owner"] = np.ones((3, 2)), [0, 1, 0], [0, 0, 1]
        change(file)
    label = "more" if change is make_virtual else "test/y"
    assert run_and_get_exit_code("import", tmp_path / "a.h5", "--label", label, "-o", tmp_path / "d") == 3
    assert "is stored in other files" in capsys.readouterr().err


# What its values are


def change_tensors(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        stored = load(content)
        change(stored)
        return bytes(save(stored))

    return changed


def change_arrays(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        memory = io.BytesIO(content)
        with h5py.File(memory, "r+") as file:
            change(file)
        return memory.getvalue()

    return changed


def replace_integer(place: int, number: int, width: int = 8) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:place] + number.to_bytes(width, "little", signed=True) + raw[place + width :]


def set_first(name: str, value: float) -> Callable[[bytes], bytes]:
    def change(file: Any) -> None:
        file[name][(0,) * file[name].ndim] = value

    return change_arrays(change)


def replace_bytes(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda raw: raw.replace(old, new, 1)


def _retype(file: Any, name: str, dtype: str) -> None:
    values = file[name][...] if name in file else np.zeros(4)
    if name in file:
        del file[name]
    file[name] = values.astype(dtype)


VALUES: dict[str, tuple[str, str, Callable[[bytes], bytes]]] = {
    "weight not finite": ("backbone", "weights.safetensors", change_tensors(lambda t: t["head.bias"].fill_(np.inf))),
    "weights cut": ("backbone", "weights.safetensors", lambda raw: raw[:200]),
    "round not a number": ("backbone", "rounds.csv", replace_bytes(b"364880", b"much")),
    "round too short": ("backbone", "rounds.csv", replace_bytes(b"364880,", b"")),
    "no seconds": ("backbone", "rounds.csv", lambda raw: re.sub(rb",[\d.]+\n", b",\n", raw, count=1)),
    "no bytes": ("backbone", "rounds.csv", replace_bytes(b"bytes_up", b"bytes_UP")),
    "embedding not finite": ("embeddings", "embeddings.h5", set_first("train/z", np.nan)),
    "logit not finite": ("embeddings", "embeddings.h5", set_first("test/logits", np.inf)),
    "embedded label": ("embeddings", "embeddings.h5", set_first("validation/y", 1000)),
    "offset": ("embeddings", "embeddings.h5", set_first("test/offsets", 5)),
    "sample not finite": ("partition", "samples.h5", change_arrays(_set_value("x", np.full((3, 3), np.nan)))),
    "label of a sample": ("partition", "samples.h5", set_first("y", -1)),
    "label of another type": ("partition", "samples.h5", change_arrays(lambda file: _retype(file, "y", ">i8"))),
    "cluster that is no number": (
        "partition",
        "samples.h5",
        change_arrays(lambda file: _retype(file, "cluster", "f8")),
    ),
    "sample of another byte order": ("partition", "samples.h5", change_arrays(lambda file: _retype(file, "x", ">f4"))),
    "more classes than the manifest has": (
        "partition",
        "samples.h5",
        change_arrays(lambda file: file.attrs.update(classes=2**60)),
    ),
    "no classes": ("partition", "samples.h5", change_arrays(lambda file: file.attrs.pop("classes"))),
    "label of a dataset": ("dataset", "samples.h5", set_first("y", 99)),
    "stored label": ("datastore", "labels.h5", set_first("y", -1)),
    "stored rows": ("datastore", "labels.h5", set_first("offsets", 10**6)),
    "index of no kind": ("datastore", "stores.faiss", replace_bytes(b"IxF2", b"Ix??")),
    "index of another kind": ("datastore", "stores.faiss", replace_bytes(b"IxF2", b"IHNf")),
    "index that declares too many rows": ("datastore", "stores.faiss", replace_integer(8, 10**12)),
    "index that declares negative rows": ("datastore", "stores.faiss", replace_integer(8, -1)),
    "index of another dimension": ("datastore", "stores.faiss", replace_integer(4, 3, 4)),
    "index that holds what is not finite": ("datastore", "stores.faiss", lambda raw: raw[:-4] + b"\xff" * 4),
    "probability": ("predictions", "predictions.h5", set_first("test/p", 7)),
    "scores": ("evaluation", "metrics.json", replace_bytes(b'"methods"', b'"method"')),
    "no scores": ("evaluation", "metrics.json", lambda raw: b"[" * 10**5),
    "picture": ("evaluation", "accuracy.png", replace_bytes(b"IDAT", b"IDAS")),
    "audited": ("audit", "audit.json", replace_bytes(b'"attacks"', b'"attack"')),
    "audited rows": ("audit", "clients.csv", replace_bytes(b",", b"")),
    "leaked": ("leakage", "leakage.json", replace_bytes(b'"attackers"', b'"attacker"')),
    "compared": ("comparison", "metrics.json", replace_bytes(b'"seeds"', b'"seed"')),
    "swept": ("sweep", "metrics.json", lambda raw: raw[:-5]),
    "tried": ("tuning", "trials.json", replace_bytes(b'"best"', b'"worst"')),
    "tried rows": ("tuning", "table.csv", replace_bytes(b",", b"")),
    "judged": ("verdicts", "verdicts.json", replace_bytes(b'"verdict"', b'"verdicts"')),
    "judged rows": ("verdicts", "settings.csv", replace_bytes(b",", b"")),
    "swept rows": ("sweep", "table.csv", replace_bytes(b",", b"")),
}


@pytest.mark.parametrize(("kind", "name", "change"), VALUES.values(), ids=VALUES)
def test_verify_checks_the_content_of_resealed_files(tmp_path, kind, name, change, capsys):
    shutil.copytree(GOLDEN / kind, tmp_path / "a")
    assert run_and_get_exit_code("show", tmp_path / "a", "--verify") == 0
    before = (tmp_path / "a" / name).read_bytes()
    assert change(before) != before
    replace_and_reseal(tmp_path / "a", name, change(before))
    assert run_and_get_exit_code("show", tmp_path / "a", "--verify") == 3
    assert str(tmp_path / "a" / name) in capsys.readouterr().err.splitlines()[0]


def test_codebook_with_too_many_client_names_is_refused(small_copy, capsys):
    codebook = json.loads((small_copy.knn / "codebook.json").read_text())
    codebook["clients"].append("one more")
    replace_and_reseal(small_copy.knn, "codebook.json", json.dumps(codebook).encode())
    assert run_and_get_exit_code("evaluate", small_copy.knn, "-o", small_copy.root / "scores") == 3
    assert "codebook.json" in capsys.readouterr().err


def test_manifest_of_a_newer_schema_version_is_refused(small_copy, capsys):
    edit_manifest(small_copy.knn, lambda raw: raw.update(schema=99))
    assert run_and_get_exit_code("show", small_copy.knn) == 3
    message = capsys.readouterr().err
    assert str(small_copy.knn / "manifest.json") in message
    assert "newer pfl" in message


@pytest.mark.parametrize("change", [
    lambda weights: weights.pop("head.bias"),
    lambda weights: weights.update({"head.bias": weights["head.bias"][1:].clone()}),
    lambda weights: weights.update(more=weights["head.bias"].clone()),
])  # fmt: skip
def test_resealed_weights_of_another_model_are_refused(small_copy, change):
    path = small_copy.b / "weights.safetensors"
    content = change_tensors(change)(path.read_bytes())
    replace_and_reseal(small_copy.b, path.name, content)
    for step in (extract, lambda source, out: personalize("fedavg", source, out)):
        with pytest.raises(InputError, match=r"weights\.safetensors does not fit its model"):
            step(small_copy.b, small_copy.root / "new")


def test_manifest_with_an_incomplete_request_is_refused(tmp_path, capsys):
    """As a whole: the fingerprint follows from what is left."""
    shutil.copytree(GOLDEN / "predictions", tmp_path / "a")

    def change(raw: dict[str, Any]) -> None:
        raw["request"].pop("settings")
        names = ("kind", "schema", "request", "code")
        inputs = [[item["role"], item["fingerprint"]] for item in raw["inputs"]]
        raw["fingerprint"] = manifests.digest({**{name: raw[name] for name in names}, "inputs": inputs})

    edit_manifest(tmp_path / "a", change, reseal=True)
    assert run_and_get_exit_code("show", tmp_path / "a", "--verify") == 0
    assert run_and_get_exit_code("evaluate", tmp_path / "a", "-o", tmp_path / "e") == 3
    assert "manifest.json is damaged: it lacks 'settings'" in capsys.readouterr().err


def test_evaluate_refuses_a_damaged_backbone_in_the_lineage(small_copy, capsys):
    """Rounds are those of the backbone; that it is gone changes an evaluation, and that it is damaged does not."""
    path = small_copy.b / "rounds.csv"
    path.write_bytes(path.read_bytes().replace(b"2,", b"3,"))
    assert run_and_get_exit_code("evaluate", small_copy.knn, "-o", small_copy.root / "scored") == 3
    assert "rounds.csv differs from what was written" in capsys.readouterr().err
