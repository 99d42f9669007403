"""Metrics of stored predictions, computed with NumPy and SciPy only."""

RANKING = (
    "accuracy", "auroc", "average_precision", "f1", "balanced_accuracy", "sensitivity", "specificity", "brier_score",
    "log_loss",
)  # fmt: skip
"""The metrics that ``--metric`` accepts: methods are then ranked by them, and gains are in them."""
