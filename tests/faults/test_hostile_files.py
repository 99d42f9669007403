"""Files that others wrote: what each reader makes of what it was not made for, in the short form."""

from __future__ import annotations

import pytest
from faults.hostile_files import NO_FILES, READERS, Case, lay, names_file, wrong

SLOW = {"a bomb", "a line without end", "a value in every row", "1,000 names"} | {
    f"{what} without end" for what in ("a record", "rows", "text", "zeros")
}
"""These take a second each; the program of the same name runs them."""


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_reader_refuses_non_files_and_oversized_files_by_name(reader, small, tmp_path, pfl, monkeypatch):
    (tmp_path / "p").symlink_to(small.p)
    traps = {name: lambda path, make=make: path.write_bytes(make()) for name, make in reader.traps.items()}
    no_files = {
        description: NO_FILES[description] for description in ("a pipe", "a link to /dev/zero", "a terabyte of holes")
    }
    for at, (description, write) in enumerate({**no_files, **traps}.items()):
        if description in SLOW:
            continue
        case, folder = Case(reader, description, write), tmp_path / str(at)
        folder.mkdir()
        monkeypatch.chdir(folder)
        ran = pfl(*lay(case, folder))
        assert wrong(folder, ran.code, ran.err) is None, description
        assert ran.code == 0 or names_file(case, ran.err), f"{description}: {ran.err}"
        assert ran.code != 0 or description not in NO_FILES, description
