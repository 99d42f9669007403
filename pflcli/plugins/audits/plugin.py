"""Attack the clients of stored predictions, and their updates: ``pfl audit``."""

COMMANDS = {
    "audit": {"panel": "More", "options": "options:Audit", "function": "audit:audit", "terminal": "terminal:AUDIT"}
}
KINDS = {
    "audit": {"module": "kind", "print": "terminal:print_attacks", "facts": "show:facts", "section": "show:section"},
    "leakage": {
        "module": "leakage_kind",
        "print": "terminal:print_leakage",
        "facts": "leakage_presentation:facts",
        "section": "leakage_presentation:section",
    },
}
