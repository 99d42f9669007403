"""``pfl site columns`` and ``pfl federation columns``: what a site tells of its table, and what all agree on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pflcli.artifacts import disk, plain_output
from pflcli.artifacts.open_by_path import open_one
from pflcli.core.errors import UsageError
from pflcli.options.function import command
from pflcli.plugins.sites.column_options import AgreeOnColumns, SummarizeColumns
from pflcli.plugins.sites.columns import summary, table
from pflcli.plugins.sites.columns.agreement import agree


@command(SummarizeColumns)
def summarize_columns(asked: SummarizeColumns) -> dict[str, Any]:
    """Write the summary of an imported dataset for the coordinator, and return all that is in it; sends nothing.

    Training samples are those that ``client`` will have: the split depends on its place among the ``sites``, and on
    the ``seed``. ``units`` are those of columns, by name. Raises InputError for data that are no table with classes.

    >>> from pathlib import Path
    >>> from pflcli import import_data, site
    >>> rows = [f"{20 + n % 30},{n % 2}" for n in range(60)]
    >>> _ = Path("north.csv").write_text("age,ill\\n" + "\\n".join(rows))
    >>> own = import_data("north.csv", "runs/north", client="none", label="ill", standardize=True)
    >>> made = site.columns(own, "north.json", client="north", sites=["north", "south"])
    >>> made["train"], made["bytes"] == Path("north.json").stat().st_size
    (36, True)
    """
    out, sites = Path(asked.out), [asked.sites] if isinstance(asked.sites, str) else [*asked.sites]
    found, remarks = summary.summarize(
        open_one(asked.dataset, "dataset"), asked.client, sites, asked.seed, dict(asked.units or {})
    )
    content = found.encode()
    _write(out, content)
    # Shown is what is in the file, and not what was to be written.
    return {"path": str(out), "bytes": len(content), **summary.facts(summary.read(out)), "remarks": remarks}


@command(AgreeOnColumns)
def agree_on_columns(asked: AgreeOnColumns) -> dict[str, Any]:
    """Write the table that sites agree on, from the summaries of all of them, and return it with remarks.

    ``like`` is a table that the coordinator wrote. Raises InputError, with all that does not fit by site and column and
    what to type there.

    >>> from pathlib import Path
    >>> from pflcli import federation, import_data, site
    >>> for name, first in (("north", 20), ("south", 50)):
    ...     rows = [f"{first + n % 30},{n % 2}" for n in range(60)]
    ...     _ = Path(f"{name}.csv").write_text("age,ill\\n" + "\\n".join(rows))
    ...     own = import_data(f"{name}.csv", name, client="none", label="ill", standardize=True)
    ...     _ = site.columns(own, f"{name}.json", client=name, sites=["north", "south"])
    >>> federation.columns(["north.json", "south.json"], "agreed.toml")["train"]
    {'north': 36, 'south': 36}
    """
    out = Path(asked.out)
    if out.suffix != ".toml":
        raise UsageError(
            f"{out} does not end in .toml, by which --like knows a table", f"-o {out.with_suffix('.toml')}"
        )
    paths = [asked.summaries] if isinstance(asked.summaries, Path | str) else asked.summaries
    if not paths:
        raise UsageError("there is no summary", "pfl federation columns SUMMARY... -o FILE")
    found = [summary.read(Path(path)) for path in paths]
    given = None if asked.like is None else table.read(Path(asked.like))
    if given is not None and given.is_measured:
        raise UsageError(f"{asked.like} was agreed on already", "pfl import TABLE --like FILE reads it at each site")
    agreed, remarks = agree(found, given)
    _write(out, agreed.encode())
    return {"path": str(out), "train": dict(agreed.sites), "columns": len(agreed.columns), "remarks": remarks}


def _write(path: Path, content: bytes) -> None:
    try:
        plain_output.replace_file(path, content)
    except OSError as error:
        raise disk.write_error(f"cannot write {path}", path.parent, error) from None
