"""The kernel, which simulates a federation in memory, and what a method, model, dataset and scheme is."""
