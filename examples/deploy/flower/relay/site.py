"""Flower's ClientApp: puts a message into the folder of ``pfl site serve``, and sends back what that answers.

``--node-config 'exchange="/data/exchange"'`` names the folder, which is all that this app has to reach: the samples may
belong to another account. Flower starts a process for each message; pfl is not started, and its site stays open.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from pflcli.plugins.sites.transport import Folder, deliver

WAIT_SECONDS = 600.0
"""How long to wait for the answer; after that, an empty reply makes the server ask again."""

app = ClientApp()


@app.train("deliver")
def answer(message: Message, context: Context) -> Message:
    """Answer a message."""
    content, address = message.content["message"]["file"].data, str(message.content["head"]["address"])
    reply = deliver(Folder(Path(str(context.node_config["exchange"]))), address, content, WAIT_SECONDS)
    records = {"message": ArrayRecord({"file": Array("uint8", (len(reply),), "raw", reply)})}
    return Message(RecordDict(records), reply_to=message)
