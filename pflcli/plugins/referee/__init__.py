"""Predictions of other tools as artifacts, which pfl scores like those of its own methods."""
