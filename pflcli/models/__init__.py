"""Backbones, one file each: ``pflcli.core.models`` says what such a file must have."""

from pflcli.core import registry

registry.search_used_folders("models", __path__)
