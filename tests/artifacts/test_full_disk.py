"""A full disk is reported before the work starts where possible, with the bytes needed and the bytes free."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from pflcli.artifacts import disk
from pflcli.core.knn.indexes import flat_indexes
from pflcli.core.knn.stores import Stores

LINES = {
    "partition": ("partition", "writers"),
    "extract": ("extract", "{b}"),
    "build-datastore": ("build-datastore", "{e}"),
}


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize("line", LINES)
def test_too_little_disk_space_is_refused_before_the_work(line, dry, small, tmp_path, pfl, monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 1000)
    words = [word.format(b=small.b, e=small.e) for word in LINES[line]]
    ran = pfl(*words, "--out", tmp_path / "out", *dry)
    assert ran.code == 3
    assert "needs about" in ran.err
    assert "1.0 kB are free" in ran.err
    assert not list(tmp_path.iterdir())


def test_import_is_refused_when_disk_space_is_too_small(tmp_path, pfl, monkeypatch):
    np.savez(tmp_path / "x.npz", x=np.zeros((50, 9), np.float32), y=np.arange(50) % 2, owner=np.arange(50) % 5)
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 10)
    ran = pfl("import", tmp_path / "x.npz", "--out", tmp_path / "out", "--dry-run")
    assert ran.code == 3
    assert "needs about 1.8 kB of disk space, but 10 bytes are free" in ran.err


def test_partition_estimates_four_bytes_per_standardized_feature(tmp_path, pfl, monkeypatch):
    cells = np.random.default_rng(0).normal(size=(50, 9))
    lines = [",".join([*map(str, row), "ab"[i % 2], str(i % 5)]) for i, row in enumerate(cells)]
    (tmp_path / "x.csv").write_text("\n".join([",".join([*"efghijklm", "label", "owner"]), *lines]) + "\n")
    words = ("--label", "label", "--client", "owner", "--standardize", "--out", tmp_path / "d")
    assert pfl("import", tmp_path / "x.csv", *words).code == 0
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 10)
    ran = pfl("partition", tmp_path / "d", "--out", tmp_path / "p", "--dry-run")
    assert "needs about 1.8 kB of disk space" in ran.err


def test_extract_warns_when_disk_space_is_tight(small, tmp_path, pfl, monkeypatch):
    size = (small.e / "embeddings.h5").stat().st_size
    monkeypatch.setattr(disk, "free_bytes", lambda folder: int(size * 0.9))
    ran = pfl("extract", small.b, "--out", tmp_path / "out")
    assert ran.code == 0
    assert "WARNING" in ran.err


def test_full_disk_error_states_needed_and_free_bytes(small, tmp_path, pfl, monkeypatch):
    def full(file, content, position):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    ran = pfl("extract", small.b, "--out", tmp_path / "out")
    assert ran.code == 3
    assert "No space left on device; " in ran.err
    assert " are needed, " in ran.err
    assert "free disk space" in ran.err
    assert not (tmp_path / "out").exists()


def test_a_limit_of_the_size_of_files_is_not_a_full_disk(small, tmp_path, pfl, monkeypatch):
    def limited(file, content, position):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "pwrite", limited)
    ran = pfl("extract", small.b, "--out", tmp_path / "out")
    assert ran.code == 3
    assert "File too large" in ran.err
    assert "ulimit -f" in ran.err
    assert "free" not in ran.err


def test_search_with_k_above_the_number_of_samples_allocates_little():
    z = np.arange(8, dtype=np.float32).reshape(4, 2)
    blob, ends = flat_indexes([z[:1], z[1:]])
    y, offsets = np.arange(4), np.asarray([0, 1, 4])
    stores = Stores(blob, ends, y, offsets)
    near = stores.search([0, 1], z[:2], np.asarray([0, 1, 2]), 10**12)
    assert near.label.tolist() == [[0, -1, -1], [1, 2, 3]]
