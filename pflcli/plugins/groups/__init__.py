"""Scores by group of samples."""
