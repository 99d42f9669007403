"""Judge claims about methods by the comparisons that they need: ``pfl verify``."""

COMMANDS = {
    "verify": {
        "panel": "From data to an answer",
        "after": "compare",
        "options": "options:Verify",
        "function": "verify:verify",
        "terminal": "terminal:VERIFY",
    }
}
KINDS = {
    "verdicts": {"module": "kind", "print": "terminal:print_verdicts", "facts": "show:facts", "section": "show:section"}
}
