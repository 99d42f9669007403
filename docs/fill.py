"""Fill the tables of a page from the comparisons that recipes made.

    python docs/fill.py docs/results.md [WORD]

A table stands between two comments, of which the first names the command that prints it:

    <!-- table: python examples/table.py runs/examples/all-methods/writers accuracy,gain -->
    <!-- end -->

Commands run in the folder that one types this in. With WORD only commands that contain it run; a command that fails
leaves its table as it is, and is named at the end.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_TABLE = re.compile(r"(?P<open><!-- table: (?P<command>.*?) -->\n).*?(?P<close><!-- end -->)", flags=re.DOTALL)


def main() -> int:
    """Rewrite the page; return 1 if a table could not be filled."""
    page, word = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    failed: list[str] = []

    def filled(table: re.Match[str]) -> str:
        command = table["command"]
        if word not in command:
            return table[0]
        ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        if ran.returncode or not ran.stdout.strip():
            failed.append(f"{command}: {(ran.stderr.strip().splitlines() or ['nothing printed'])[-1]}")
            return table[0]
        return f"{table['open']}{ran.stdout.strip()}\n{table['close']}"

    page.write_text(_TABLE.sub(filled, page.read_text(encoding="utf-8")), encoding="utf-8")
    for line in failed:
        print(f"not filled: {line}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
