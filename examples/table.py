"""Columns of comparisons as a Markdown table.

python examples/table.py runs/examples/all-methods/writers accuracy,bottom_decile,gain,megabytes

It prints one row per method, best first.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.reader import open_artifact
from pflcli.evaluation.presentation import tables


def main() -> None:
    """Print the table."""
    folder, columns = sys.argv[1:]
    comparison = open_artifact(Path(folder) / "comparison")
    print(tables.build(evaluation.read(comparison), columns=columns.split(",")).markdown(), end="")


if __name__ == "__main__":
    main()
