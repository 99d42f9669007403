"""``pfl list``: methods, datasets, models and schemes, read from their files without importing them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pflcli import registry
from pflcli.errors import UsageError, closest


def listing(group: str, root: Path | None = None) -> list[dict[str, Any]]:
    """Return one entry for each name in ``group``; datasets say whether their files are found in ``root``."""
    if group not in registry.GROUPS:
        raise UsageError(f"unknown kind '{group}'", closest(group, registry.GROUPS))
    return [_entry(card, root) for card in registry.cards(group)]


def everything() -> list[dict[str, Any]]:
    """Return one entry for each name of every group."""
    return [
        {"kind": group, "name": card.name, "summary": card.summary}
        for group in registry.GROUPS
        for card in registry.cards(group)
    ]


def options(group: str, name: str) -> dict[str, Any]:
    """Return the card of one name, with its options; raises UsageError with the nearest name if there is none."""
    card = registry.card(group, name)
    fields = [{"option": o.name, "type": o.type, "default": o.default, "meaning": o.help} for o in card.options]
    return {**_entry(card, None), "doc": card.doc, "options": fields}


def _entry(card: registry.Card, root: Path | None) -> dict[str, Any]:
    facts = card.facts
    if card.group == "methods":
        shown: dict[str, Any] = {
            "paper": facts.get("PAPER", ""),
            "year": facts.get("YEAR", ""),
            "kind": facts.get("KIND", ""),
            "needs": ", ".join(facts.get("NEEDS", ())) or "partition",
            "options": ", ".join(f"{o.name}={o.default}" for o in card.options),
        }
    elif card.group == "datasets":
        shown = {
            "classes": facts.get("CLASSES", ""),
            "shape": facts.get("SHAPE", ""),
            "licence": facts.get("LICENCE", ""),
            "options": ", ".join(f"{o.name}={o.default}" for o in card.options),
            "found": ", ".join(_found(card, root)) or f"no: --root with {_wanted(card)}",
        }
    elif card.group == "models":
        shown = {"takes": ", ".join(facts.get("TAKES", ())), "representation": facts.get("REPRESENTATION", "")}
    else:
        shown = {"options": ", ".join(f"{o.name}={o.default}" for o in card.options)}
    return {"name": card.name, **shown, "summary": card.summary}


def _found(card: registry.Card, root: Path | None) -> list[str]:
    """Return where a dataset is found: with pfl, or in which files of ``root``; empty if it is not."""
    sources = [_found(registry.card("datasets", name), root) for name in card.facts.get("MADE_FROM", ())]
    if sources:
        return [place for source in sources for place in source] if all(sources) else []
    embedded = (registry.folder("datasets") / f"{card.name.replace('-', '_')}.npz").is_file()
    here = [name for name in card.facts.get("FILES", ()) if root is not None and any(root.glob(name))]
    return [*(["with pfl"] if embedded else []), *here]


def _wanted(card: registry.Card) -> str:
    return " and ".join(card.facts.get("MADE_FROM", ())) or " or ".join(card.facts.get("FILES", ()))
