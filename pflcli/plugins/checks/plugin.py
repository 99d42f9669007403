"""Write files of one's own, and judge them by laws: ``pfl new`` and ``pfl check``."""

COMMANDS = {
    "new": {
        "panel": "Write your own",
        "options": "new_options:New",
        "function": "new:new",
        "terminal": "terminal:NEW",
    },
    "check": {
        "panel": "Write your own",
        "options": "check_options:Check",
        "function": "check:check",
        "terminal": "terminal:CHECK",
    },
}
