"""Write runs for TensorBoard, MLflow or Weights & Biases: ``pfl track``, and ``Tracker`` for ``simulate``."""

COMMANDS = {
    "track": {"panel": "More", "options": "options:Track", "function": "track:track", "terminal": "terminal:TRACK"}
}
