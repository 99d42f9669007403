"""One run of one method: rounds, checkpoints, initial weights, and the facts that it reports."""
