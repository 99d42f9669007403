"""Attack the clients of stored predictions: ``pfl audit``."""

COMMANDS = {
    "audit": {"panel": "More", "options": "options:Audit", "function": "audit:audit", "terminal": "terminal:AUDIT"}
}
KINDS = {
    "audit": {"module": "kind", "print": "terminal:print_attacks", "facts": "show:facts", "section": "show:section"}
}
