"""Differential privacy of whole clients: epsilon, noise multipliers, and the guarantee of a run."""
