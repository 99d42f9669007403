"""Repeating a run from what its manifests record, and comparing the result with the original."""
