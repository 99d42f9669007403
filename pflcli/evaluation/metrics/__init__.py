"""Statistics of stored predictions, computed with NumPy and SciPy only."""
