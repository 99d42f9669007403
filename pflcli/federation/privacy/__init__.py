"""Differential privacy of whole clients: how much is guaranteed, for how much noise, and what is not covered."""
