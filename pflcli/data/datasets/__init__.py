"""Datasets, one file each: ``pflcli.core.datasets`` says what such a file must have."""

from pflcli.core import registry

registry.search_used_folders("datasets", __path__)
