"""Columns of comparisons as a Markdown table.

python examples/table.py runs/examples/all-methods/writers accuracy,bottom_decile,gain,megabytes
python examples/table.py runs/c,runs/d accuracy,bottom_decile,gain fedavg,local,knn-per

The first prints one row per method, best first. The second prints the columns of two comparisons side by side, under
the names of their folders; the last argument names the methods, in the order of the rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.reader import open_artifact
from pflcli.evaluation.presentation import tables
from pflcli.evaluation.presentation.tables import Table


def main() -> None:
    """Print the table."""
    folders, columns, *methods = (argument.split(",") for argument in sys.argv[1:])
    built = {Path(folder).name: build(Path(folder), columns) for folder in folders}
    table = side_by_side(built, methods[0]) if methods else next(iter(built.values()))
    print(table.markdown(), end="")


def build(folder: Path, columns: list[str]) -> Table:
    """Return a comparison's table, one row per method."""
    return tables.build(evaluation.read(open_artifact(folder / "comparison")), columns=columns)


def side_by_side(built: dict[str, Table], methods: list[str]) -> Table:
    """Return the columns of several tables after one another, without the numbers of seeds."""
    heading = ["method", *(f"{name}: {title}" for name, table in built.items() for title in table.heading[2:])]
    rows = {name: {row[0]: row[2:] for row in table.rows} for name, table in built.items()}
    body = [[f"`{method}`", *(cell for name in built for cell in rows[name][method])] for method in methods]
    return Table(heading, body, [])


if __name__ == "__main__":
    main()
