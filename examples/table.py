"""Columns of a comparison as a Markdown table.

python examples/table.py runs/examples/all-methods/writers accuracy,bottom_decile,gain,megabytes
"""

from __future__ import annotations

import sys
from pathlib import Path

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.reader import open_artifact
from pflcli.evaluation.presentation import tables


def main() -> None:
    """Print one row per method, best first."""
    folder, columns = Path(sys.argv[1]), sys.argv[2].split(",")
    print(tables.build(evaluation.read(open_artifact(folder / "comparison")), columns=columns).markdown(), end="")


if __name__ == "__main__":
    main()
