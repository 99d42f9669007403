"""``pfl list``: describe methods, datasets, models and schemes, without importing their files."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from pflcli.core import registry
from pflcli.core.errors import UsageError, closest
from pflcli.core.wording import as_typed


def listing(group: str, root: Path | None = None) -> list[dict[str, Any]]:
    """Return one entry per name in ``group``; for datasets, with the files that were found in ``root``."""
    if group not in registry.GROUPS:
        raise UsageError(f"unknown kind '{group}'", closest(group, registry.GROUPS))
    return [_entry(card, root) for card in registry.cards(group)]


def overview() -> list[dict[str, Any]]:
    """Return one entry per name of every group."""
    return [
        {"kind": group, "name": card.name, "summary": card.summary}
        for group in registry.GROUPS
        for card in registry.cards(group)
    ]


def options(group: str, name: str) -> dict[str, Any]:
    """Return the card of one name or of a user's file, with its options.

    Raises UsageError for an unknown name and for a file of another group.
    """
    if group in registry.GROUPS and registry.is_file(name):
        found = registry.group_of(Path(registry.split_file(name)[0]))
        if found != group:
            raise UsageError(f"{name} belongs to {found}, not to {group}", f"pfl list {found} {name}")
        name = registry.use(group, name)
    card = registry.card(group, name)
    fields = [
        {"option": o.name, "type": _describe_type(o, card), "default": _default(o), "meaning": o.help}
        for o in card.options
    ]
    more = {"transductive": True} if card.facts.get("TRANSDUCTIVE") else {}
    return {**_entry(card, None), **more, "doc": card.doc, "options": fields}


_KINDS = {"float": "number", "int": "whole number", "bool": "true or false", "str": "text"}


def _describe_type(option: registry.Option, card: registry.Card) -> str:
    """Return the type of an option in words, such as ``number >= 0, or none`` or ``one of k-means, nearest``."""
    alternatives, several, _ = option.type.partition(", ...")
    split = [alternative.partition(" ") for alternative in alternatives.split(" | ")]
    words = [f"{_KINDS[kind]}{space}{bounds}" for kind, space, bounds in split if kind in _KINDS]
    named = [kind for kind, _, _ in split if kind not in _KINDS]
    text = ", or ".join([*words, *named]) if words else f"one of {', '.join(named)}"
    for name, value in card.facts.items():  # a bound such as LENGTH + 1
        text = text.replace(f"{name} + 1", str(value + 1)) if isinstance(value, int) else text
    return f"{text}; several with commas between" if several else text


def _default(option: registry.Option) -> str:
    """Return the default of an option as one types it; an expression stays as it is."""
    try:
        value = ast.literal_eval(option.default)
    except (ValueError, SyntaxError):
        return option.default
    return "none" if value == () else as_typed(value)


def _entry(card: registry.Card, root: Path | None) -> dict[str, Any]:
    facts = card.facts
    if card.group == "methods":
        fields: dict[str, Any] = {
            "paper": facts.get("PAPER", ""),
            "year": facts.get("YEAR", ""),
            "kind": facts.get("KIND", ""),
            "needs": ", ".join(facts.get("NEEDS", ())) or "partition",
            "options": ", ".join(f"{o.name}={_default(o)}" for o in card.options),
        }
    elif card.group == "datasets":
        needed = " and ".join(facts.get("MADE_FROM", ())) or " or ".join(facts.get("FILES", ()))
        fields = {
            "classes": facts.get("CLASSES", ""),
            "shape": facts.get("SHAPE", ""),
            "licence": facts.get("LICENCE", ""),
            "options": ", ".join(f"{o.name}={_default(o)}" for o in card.options),
            "found": ", ".join(_places(card, root)) or f"no: --root with {needed}",
        }
    elif card.group == "models":
        fields = {"takes": ", ".join(facts.get("TAKES", ())), "representation": facts.get("REPRESENTATION", "")}
    else:
        fields = {"options": ", ".join(f"{o.name}={_default(o)}" for o in card.options)}
    return {"name": card.name, **fields, "from": registry.origin(card.group, card.name), "summary": card.summary}


def _places(card: registry.Card, root: Path | None) -> list[str]:
    """Return the places of a dataset: beside its code, as ``with pfl``, or in ``root``; empty if there are none."""
    sources = [_places(registry.card("datasets", name), root) for name in card.facts.get("MADE_FROM", ())]
    if sources:
        return [place for source in sources for place in source] if all(sources) else []
    embedded = "Path(__file__).parent" in registry.path("datasets", card.name).read_text(encoding="utf-8")
    files = [name for name in card.facts.get("FILES", ()) if root is not None and any(root.glob(name))]
    return [*([f"with {registry.origin('datasets', card.name)}"] if embedded else []), *files]
