"""Reading a user's files as ``pfl import`` does, without making an artifact."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest

from helpers import error_text
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.core.errors import InputError, PflError, UsageError
from pflcli.core.execution import Execution


def read_dataset(source, **options):
    """Return the dataset that ``import_data`` would store."""
    read_in = []

    def keep(_out, _spec, execution, build):
        read_in.append(build.func.__self__.read_dataset(execution)[0])
        return SimpleNamespace(decision="new")

    with mock.patch("pflcli.commands.import_data.make", keep):
        import_data(source, "nowhere", **options)
    (dataset,) = read_in
    return dataset


def refuse(kind, expected, source, **options):
    """Require an error of a kind whose message matches a pattern, or has some words with its remedies; return both."""
    with pytest.raises(kind, match=expected if isinstance(expected, str) else None) as error:
        read_dataset(source, **options)
    assert isinstance(error.value, InputError | UsageError) or kind is not PflError
    text = error_text(error)
    assert isinstance(expected, str) or all(word in text for word in expected), text
    return text


def import_and_read(source, out, **options):
    """Import a file, and return the dataset that is stored."""
    import_data(source, out, execution=Execution(force=True), **options)
    return datasets.read(open_artifact(out, "dataset"))
