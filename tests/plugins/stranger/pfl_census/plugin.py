"""Count the classes of each client."""

COMMANDS = {
    "census": {"panel": "Look up", "after": "partition", "options": "options:Census", "function": "census:census"}
}
KINDS = {"census": {"module": "kind", "print": "show:print_counts", "facts": "show:facts", "section": "show:section"}}
FORMATS = {
    "lines": {"reader": "lines", "tool": "the census", "title": "a list of lines", "words": "lines:FILE", "deals": True}
}
BACKENDS = {"census": {}}
