"""Score what another tool predicted on a partition: ``pfl import-predictions``."""

COMMANDS = {
    "import-predictions": {
        "panel": "More",
        "options": "options:ImportPredictions",
        "function": "import_predictions:import_predictions",
    }
}
