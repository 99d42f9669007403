"""Write one page about comparisons: ``pfl report``."""

COMMANDS = {
    "report": {
        "panel": "From data to an answer",
        "after": "compare",
        "options": "options:Report",
        "function": "report:report",
        "terminal": "terminal:REPORT",
    }
}
