"""Damaged files are refused by name, or change nothing: a few of each kind, and with ``--long`` 2,000."""

from __future__ import annotations

import pytest

import mutations

NAMES = (*mutations.READERS, *mutations.UNFINISHED)


@pytest.fixture(scope="module")
def artifacts_of_every_kind(tmp_path_factory):
    """An artifact of every kind."""
    folder = tmp_path_factory.mktemp("damaged")
    mutations.make(folder)
    return folder


def check_damaged_files(root, name, count, *, resealed):
    tallies = [*mutations.tallies(root, count, [name], resealed=resealed)]
    assert [fault for tally in tallies for fault in tally.faults] == []
    assert all(tally.tried and tally.ends["refused"] for tally in tallies), [*map(str, tallies)]


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_refused_or_change_nothing(artifacts_of_every_kind, name):
    check_damaged_files(artifacts_of_every_kind, name, 4, resealed=4)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_damaged_files_are_refused_or_change_nothing(artifacts_of_every_kind, name):
    check_damaged_files(artifacts_of_every_kind, name, 2000, resealed=2000)
