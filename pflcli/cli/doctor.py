"""``pfl doctor``."""

from __future__ import annotations

from pflcli.cli import console
from pflcli.cli.from_options import Json
from pflcli.core.errors import InputError


def command(as_json: Json = False) -> None:
    """Check this installation, and print the versions and devices that it uses.

    Examples:
        pfl doctor
        pfl doctor --json
    """
    from pflcli.commands.doctor import doctor

    checks = doctor()
    if as_json:
        console.data(checks)
    else:
        rows = [[c["check"], "ok" if c["ok"] else "BROKEN", c["found"]] for c in checks]
        console.table(["check", "state", "result"], rows)
    broken = [check["check"] for check in checks if not check["ok"]]
    if broken:
        raise InputError(f"this installation is broken: {', '.join(broken)}", "pip install --force-reinstall pflcli")
