"""Columns of a comparison as a Markdown table.

python examples/table.py runs/examples/all-methods/writers accuracy,bottom_decile,gain,megabytes
"""

from __future__ import annotations

import sys
from pathlib import Path

from pflcli.artifacts.artifact import open_artifact
from pflcli.report import tables
from pflcli.steps import scoring


def main() -> None:
    """Print one row per method, best first."""
    folder, columns = Path(sys.argv[1]), sys.argv[2].split(",")
    print(tables.of(scoring.read(open_artifact(folder / "comparison")), columns).markdown(), end="")


if __name__ == "__main__":
    main()
