"""Flower's ServerApp: a transport whose messages go to the node that has the public key of a site.

``pfl federation run FEDERATION --at EXCHANGE`` writes the questions and reads the answers, and ``relay`` of pfl carries
them. The app ends once ``sites`` sites have the last message of each of ``runs`` runs. ``keys`` is a folder with a
public key for each site, such as ``charite.pub``: a node with another key gets no message, whatever it says. A site has
the name of its folder in EXCHANGE, without the number.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from pflcli.plugins.sites.transport import Address, Arrived, Folder, relay

POLL_SECONDS = 0.25
TIMEOUT_SECONDS = 3600.0
"""How long a site may take to answer, before it is asked again."""
RETRY_SECONDS = 60.0
"""When a site whose relay failed is asked again."""

app = ServerApp()


def read_keys(folder: Path) -> dict[str, bytes]:
    """Return the public key of each site as Flower writes it: PEM of the SubjectPublicKeyInfo."""
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return {
        path.stem: serialization.load_ssh_public_key(path.read_bytes()).public_bytes(*form)
        for path in sorted(folder.glob("*.pub"))
    }


class Flower:
    """The transport between the ServerApp and the ClientApps."""

    def __init__(self, grid: Grid, keys: dict[str, bytes]) -> None:
        self._grid, self._keys = grid, keys
        self._sent: dict[str, tuple[Address, int]] = {}
        self._not_before: dict[Address, float] = {}
        self._said: set[str] = set()

    def post(self, address: Address, pieces: Iterable[bytes]) -> None:
        """Send a message to the node with the key of its site, unless it is on its way."""
        if time.monotonic() < self._not_before.get(address, 0.0) or (node := self._find_node(address.name)) is None:
            return
        self._not_before[address] = time.monotonic() + TIMEOUT_SECONDS
        content = b"".join(pieces)
        records = {
            "message": ArrayRecord({"file": Array("uint8", (len(content),), "raw", content)}),
            "head": ConfigRecord({"address": str(address)}),
        }
        message = Message(RecordDict(records), dst_node_id=node, message_type="train.deliver")
        for number in filter(None, self._grid.push_messages([message])):
            self._sent[number] = address, node

    def fetch(self, place: str) -> Arrived:
        """Yield the answers of nodes."""
        for reply in self._grid.pull_messages([*self._sent]) if self._sent else ():
            if (asked := self._sent.pop(reply.metadata.reply_to_message_id, None)) is None:
                continue
            address, node = asked
            if reply.has_error():
                self._not_before[address] = time.monotonic() + RETRY_SECONDS
                print(
                    f"no answer to {address} (node {node}, error {reply.error.code}); see the log of the site",
                    flush=True,
                )
                continue
            self._not_before.pop(address, None)  # the server may set an answer aside, and ask again
            content = reply.content["message"]["file"].data
            if address.number is None:
                yield address, ()
            if content:  # otherwise the site still computes
                yield address.answer, [content]

    def _find_node(self, name: str) -> int | None:
        """Return the node with the key of a site; None if it is not connected, or has no key."""
        nodes = {node.public_key: node.node_id for node in self._grid.get_nodes()}
        for key in nodes.keys() - {*self._keys.values()}:
            self._say_once(f"node {nodes[key]} gets no message: its key is that of no site")
        if name not in self._keys:
            self._say_once(f"'{name}' gets no message: there is no public key {name}.pub")
        return nodes.get(self._keys.get(name, b"none"))

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            print(text, flush=True)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Relay messages until every site has the last one of each run."""
    config = context.run_config
    transport = Flower(grid, read_keys(Path(str(config["keys"]))))
    exchange, last_messages = Folder(Path(str(config["exchange"]))), int(config["sites"]) * int(config["runs"])
    relay(exchange, transport, last_messages, print, POLL_SECONDS)
