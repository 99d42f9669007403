"""Formats in which other tools have stored federated datasets."""
