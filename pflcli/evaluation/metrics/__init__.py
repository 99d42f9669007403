"""Metrics over stored predictions, in NumPy alone."""
