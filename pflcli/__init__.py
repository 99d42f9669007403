"""Personalized federated learning as composable commands over artifacts on disk."""

__version__ = "0.1.0"
