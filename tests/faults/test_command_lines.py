"""Random command lines, in the short form: the program of the same name in ``faults`` types thousands."""

from __future__ import annotations

import os

from faults.command_lines import HEAVY, lines, wrong


def test_random_command_lines_succeed_or_end_in_one_error(small, tmp_path, pfl, monkeypatch):
    for name in ("p", "b", "e", "d", "knn", "fedavg"):
        (tmp_path / name).symlink_to(getattr(small, name))
    (tmp_path / "data.npz").write_bytes(b"no arrays")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    known = {item.name for item in tmp_path.iterdir()}
    for words in lines(60, seed=1):
        typed = [*words, "--dry-run"] if words[0] in (*HEAVY, "sweep", "extract", "update-datastore") else words
        ran = pfl(*typed)
        assert wrong(tmp_path, known, ran.code, ran.err) is None, typed
