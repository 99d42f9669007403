"""Flower's ClientApp: answers a message by ``pfl site answer``, which has an environment of its own.

``--node-config 'site="charite" folder="/data/site" pfl="/opt/pfl/bin/pfl"'`` names the site, its folder and the
command. Only the exit code leaves the site if the command fails; its messages are in ``FOLDER.log``.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

NOT_STARTED = 127
"""The exit code if the command could not be started."""

app = ClientApp()


def run_pfl(command: str, folder: Path, content: bytes) -> tuple[int, bytes]:
    """Return the exit code of ``pfl site answer`` and the answer, which is empty after the last message."""
    with tempfile.TemporaryDirectory() as temporary, folder.with_name(f"{folder.name}.log").open("ab") as log:
        question, answer = Path(temporary, "question"), Path(temporary, "answer")
        question.write_bytes(content)
        words = [command, "site", "answer", str(folder), str(question), "-o", str(answer), "--threads", "1"]
        try:
            code = subprocess.run(words, stdout=log, stderr=log, check=False).returncode
        except OSError as error:
            log.write(f"{error}\n".encode())
            code = NOT_STARTED
        return code, answer.read_bytes() if answer.exists() else b""


@app.train("answer")
def answer(message: Message, context: Context) -> Message:
    """Answer a message; an empty one asks for the name of the site."""
    config, content = context.node_config, message.content["message"]["file"].data
    code, reply = run_pfl(str(config["pfl"]), Path(str(config["folder"])), content) if content else (0, b"")
    records = {
        "message": ArrayRecord({"file": Array("uint8", (len(reply),), "raw", reply)}),
        "head": ConfigRecord({"site": str(config["site"]), "code": code}),
    }
    return Message(RecordDict(records), reply_to=message)
