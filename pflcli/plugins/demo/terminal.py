"""Output of ``pfl demo``."""

from pflcli.cli import results
from pflcli.cli.from_options import Terminal

DEMO = Terminal(results.show_table)
