"""What a client sends and receives among real sites, with names and bytes, of the patterns that a rehearsal finds."""

from __future__ import annotations

from typing import Any

from pflcli.plugins.sites import messages
from pflcli.plugins.sites.messages import Layout, Patterns

_WHEN = {"setup": "before the rounds", "round": "in a round", "personalize": "after the rounds"}
"""When each phase takes place, in the order of time."""
_MAX_NAMES = 4
"""Maximum number of tensors whose names are listed; of more, such as those of a model, only the first and the last."""


def describe_messages(patterns: Patterns, *, sends_records: bool = True) -> list[dict[str, Any]]:
    """Return what a client receives and sends, in the order of phases.

    Each entry has ``when``, what a client ``does`` (sends or receives), the ``tensors`` in words, their maximum
    ``bytes``, and whether they are a ``record``; records are left out unless the site ``sends_records``.
    """
    found = list[dict[str, Any]]()
    for phase, when in _WHEN.items():
        for kind in patterns.get(phase, ()):
            received = [(each, "receives", False) for each in kind.deliveries]
            sent = [(each.layout, "sends", each.is_record) for each in kind.channels]
            for layout, does, is_record in (*received, *sent):
                tensors, size = _describe(layout), messages.size(layout)
                entry = {"when": when, "does": does, "tensors": tensors, "bytes": size, "record": is_record}
                if entry not in found and (sends_records or not is_record):
                    found.append(entry)
    return found


def _describe(layout: Layout) -> str:
    """Return the names of tensors with their types and shapes."""
    each = [f"`{name}` {messages.describe_form(*form)}" for name, form in layout.items()]
    if len(each) > _MAX_NAMES:
        return f"{each[0]} to {each[-1]}, {len(each)} tensors"
    return ", ".join(each)
