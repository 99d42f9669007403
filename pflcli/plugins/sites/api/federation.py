"""The commands of ``pfl federation``, by their last words: what sites agree on, and the server.

>>> from pflcli import federation, partition, personalize
>>> two = partition("writers", "runs/two", clients=2)
>>> fed = federation.create(personalize("fedavg", two, "runs/f", model="logistic", rounds=1), "fed")
>>> federation.check(fed)["method"]
'fedavg'
"""

from __future__ import annotations

from pflcli.plugins.sites.columns.commands import agree_on_columns as columns
from pflcli.plugins.sites.federation import check_federation as check
from pflcli.plugins.sites.federation import create_federation as create
from pflcli.plugins.sites.federation import run_federation as run
from pflcli.plugins.sites.federation import show_status as status

__all__ = ["check", "columns", "create", "run", "status"]
