"""Show in a minute what pfl does, on data of its own: ``pfl demo``."""

COMMANDS = {"demo": {"panel": "More", "options": "options:Demo", "function": "demo:demo", "terminal": "terminal:DEMO"}}
