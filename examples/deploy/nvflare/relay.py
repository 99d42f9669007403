"""NVFlare's Collab module: a transport whose messages go to the client that has the certificate of a site.

``pfl federation run FEDERATION --at EXCHANGE`` writes the questions and reads the answers, and ``relay`` of pfl carries
them; at the server, ``PFL_EXCHANGE`` names the folder, and ``PFL_RUNS`` the number of runs, if there are several. A
client of NVFlare has the name of its site's folder in EXCHANGE, without the number. At the site, ``PFL_SITE_EXCHANGE``
is the folder of ``pfl site serve``, which holds the site open; ``{site}`` in it stands for the name of the client.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from nvflare.collab import collab

from pflcli.plugins.sites.transport import Address, Arrived, Folder, relay
from pflcli.plugins.sites.transport import deliver as deliver_to_folder

WAIT_SECONDS = 600.0
"""How long a site waits for the answer; after that, an empty reply makes the server ask again."""
TIMEOUT_SECONDS = 3600.0
"""How long a call may take; NVFlare's default is a minute."""
RETRY_SECONDS = 60.0
"""When a site whose relay failed is asked again."""


class Collab:
    """The transport between the server and the clients of a job."""

    def __init__(self, clients: Iterable[object], pool: ThreadPoolExecutor) -> None:
        self._clients, self._pool = {client.name: client for client in clients}, pool
        self._calls: dict[Address, Future[bytes]] = {}
        self._not_before: dict[Address, float] = {}

    def post(self, address: Address, pieces: Iterable[bytes]) -> None:
        """Send a message to the client with the name of its site, unless it is on its way."""
        client, is_early = self._clients.get(address.name), time.monotonic() < self._not_before.get(address, 0.0)
        if client is None or address in self._calls or is_early:
            return
        call = client(timeout=TIMEOUT_SECONDS).deliver
        self._calls[address] = self._pool.submit(call, str(address), b"".join(pieces))

    def fetch(self, place: str) -> Arrived:
        """Yield the answers of clients."""
        for address in [address for address, call in self._calls.items() if call.done()]:
            call = self._calls.pop(address)
            if error := call.exception():  # a site that is away must not end the relay for the others
                self._not_before[address] = time.monotonic() + RETRY_SECONDS
                print(f"no answer to {address} ({error}); see the log of the site", flush=True)
                continue
            if address.number is None:
                yield address, ()
            if content := call.result():  # otherwise the site still computes
                yield address.answer, [content]


@collab.main
def run() -> None:
    """Relay messages until every site has the last one of each run."""
    exchange, clients = Folder(Path(os.environ["PFL_EXCHANGE"])), [*collab.clients]
    last_messages = len(clients) * int(os.environ.get("PFL_RUNS", "1"))
    with ThreadPoolExecutor(last_messages) as pool:
        relay(exchange, Collab(clients, pool), last_messages, print)


@collab.publish
def deliver(address: str, content: bytes) -> bytes:
    """Answer a message."""
    folder = Folder(Path(os.environ["PFL_SITE_EXCHANGE"].format(site=collab.site_name)))
    return deliver_to_folder(folder, address, content, WAIT_SECONDS)
