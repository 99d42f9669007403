"""Write one client's model to a folder that works without pfl: ``pfl export``."""

COMMANDS = {
    "export": {
        "panel": "From data to an answer",
        "options": "options:Export",
        "function": "export:export",
        "terminal": "terminal:EXPORT",
    }
}
