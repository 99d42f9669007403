"""Metrics of predictions: their formulas, and the catalogue with unit, weighting and heading of each."""
