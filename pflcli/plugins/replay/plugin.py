"""Repeat a run from its manifests, and say how far the result agrees: ``pfl replay``."""

COMMANDS = {
    "replay": {
        "panel": "More",
        "options": "options:Replay",
        "function": "replay:replay",
        "terminal": "terminal:REPLAY",
    }
}
