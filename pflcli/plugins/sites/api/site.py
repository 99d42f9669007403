"""The commands of ``pfl site``, by their last words: what a site sends, and its answers to messages.

>>> from pflcli import federation, partition, personalize, site
>>> two = partition("writers", "runs/two", clients=2)
>>> fed = federation.create(personalize("fedavg", two, "runs/f", model="logistic", rounds=1), "fed")
>>> own = partition("writers", "runs/own", like=fed, client="w0371")
>>> site.check(own, fed, "site")["train"]
58
"""

from __future__ import annotations

from pflcli.plugins.sites.columns.commands import summarize_columns as columns
from pflcli.plugins.sites.join import join_federation as join
from pflcli.plugins.sites.site import answer_message as answer
from pflcli.plugins.sites.site import check_site as check
from pflcli.plugins.sites.site import release_answer as release
from pflcli.plugins.sites.site import serve_site as serve

__all__ = ["answer", "check", "columns", "join", "release", "serve"]
