"""Personalization methods, one file each: ``pflcli.core.methods`` says what such a file must have."""

from pflcli.core import registry

registry.search_used_folders("methods", __path__)
