"""Manifests that somebody edited, or wrote: refused by name, and nothing they point at is opened."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import NAMES

from pflcli.__main__ import main
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.artifact import open_artifact
from pflcli.errors import InputError

GOLDEN = Path(__file__).parent / "golden" / "schema-1"


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest of an artifact and leave its seal as it is."""
    path = folder / "manifest.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw, indent=2) + "\n")


def exit_code(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def knn(small, tmp_path_factory) -> Path:
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
    "itself": lambda raw: raw["inputs"][0].update(fingerprint=raw["fingerprint"], path="."),
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_an_edited_manifest_is_refused(small, knn, change, capsys):
    shutil.copy(small.knn / "manifest.json", knn)
    edit(knn, change)
    for arguments in (("show", knn, "--verify"), ("show", knn, "--lineage"), ("evaluate", knn, "-o", knn.parent / "e")):
        assert exit_code(*arguments) == 3
        assert "manifest.json is not what was written" in capsys.readouterr().err


def test_a_touched_or_indented_manifest_is_the_same(mine):
    edit(mine.knn, lambda raw: None)
    path = mine.knn / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1, sort_keys=True))
    os.utime(path, (0, 0))
    open_artifact(mine.knn).verify()


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_is_sealed(small, name):
    assert len(json.loads((getattr(small, name) / "manifest.json").read_text())["seal"]) == 64


@pytest.mark.parametrize("kind", manifests.SCHEMAS)
def test_without_a_seal_the_fingerprint_is_checked(tmp_path, kind):
    shutil.copytree(GOLDEN / kind, tmp_path / kind)
    open_artifact(tmp_path / kind).verify()
    edit(tmp_path / kind, lambda raw: raw["request"].update(seed=12345))
    with pytest.raises(InputError, match="not what was written"):
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
def test_a_manifest_of_another_form_is_refused(tmp_path, change, capsys):
    shutil.copytree(GOLDEN / "predictions", tmp_path / "a")
    edit(tmp_path / "a", change)
    assert exit_code("show", tmp_path / "a", "--verify") == 3
    assert "manifest.json is damaged" in capsys.readouterr().err


def test_a_manifest_nested_beyond_any_parser_is_refused(tmp_path, capsys):
    shutil.copytree(GOLDEN / "predictions", tmp_path / "a")
    path = tmp_path / "a" / "manifest.json"
    path.write_text(path.read_text().rstrip()[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}")
    assert exit_code("show", tmp_path / "a") == 3
    assert "manifest.json is damaged" in capsys.readouterr().err
