"""Which files and folders ``pfl import`` reads, and what to do about others."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from pflcli import registry
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.reader import open_artifact
from pflcli.data.formats import unprintable
from pflcli.errors import InputError, UsageError
from pflcli.foreign import require_file

FORMS = {
    ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".npz": "npz", ".h5": "hdf5", ".hdf5": "hdf5",
}  # fmt: skip
_TELL = {
    ".xlsx": "save the sheet as CSV",
    ".xls": "save the sheet as CSV",
    ".zip": "unzip it first",
    ".npy": "np.savez('data.npz', x=x, y=y, owner=owner)",
    ".txt": "name it .csv or .tsv, and say --delimiter if it is neither comma nor tab",
}


def form(path: Path) -> str:
    """Return a path's form; raises InputError or UsageError for what pfl does not read."""
    unprintable(path)
    if path.is_dir():
        if manifests.is_artifact(path):
            raise InputError(f"{path} is an artifact of pfl ({open_artifact(path).kind}), not data to import")
        return "images"
    require_file(path)
    suffix = path.suffix.lower()
    if suffix not in FORMS:
        known = f"{', '.join(FORMS)}, or a folder of images"
        raise UsageError(f"{path} is of no form that pfl imports ({known})", *_ways(path))
    return FORMS[suffix]


def _ways(path: Path) -> list[str]:
    """Return what can be done about a file that is not imported as it is."""
    cards = registry.cards("datasets")
    readers = [card.name for card in cards for name in card.facts.get("FILES", ()) if fnmatch(path.name, name)]
    if readers:
        return [f"it is a file of the dataset {readers[0]}: pfl partition {readers[0]} --root {path.parent} -o DIR"]
    suffix = path.suffix.lower()
    if suffix == ".gz":
        inner = Path(path.stem).suffix.lower()
        return ["gunzip it first" if inner in FORMS else "unpack it, and write what is in it as CSV, Parquet or NPZ"]
    return [_TELL[suffix]] if suffix in _TELL else []
