"""NVFlare's Collab module: sends each question in the exchange folder to its site, and stores the answer beside it.

``pfl federation run FEDERATION --at EXCHANGE`` writes the questions and reads the answers; ``PFL_EXCHANGE`` names the
folder at the server. A client of NVFlare has the name of its site in the federation, with a hyphen for spaces, accented
letters and the like, which NVFlare does not allow: that of the site's folder, without its number. At the site,
``PFL_SITE`` is the folder that ``pfl site check`` made, and ``PFL`` the command; ``{site}`` in both stands for the name
of the client. Only the exit code leaves the site if the command fails, and it is asked again later; its messages are in
``FOLDER.log``.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nvflare.collab import collab

POLL_SECONDS = 0.1
TIMEOUT_SECONDS = 3600.0
"""How long a site may take to answer; NVFlare's default is a minute."""
RETRY_SECONDS = 60.0
"""When a site whose command failed is asked again."""
NOT_STARTED = 127
"""The exit code if the command could not be started."""


def find_open_message(folder: Path) -> Path | None:
    """Return what a site has not answered: the last question, or the last message; None if there is nothing."""
    questions = sorted(folder.glob("question-" + 6 * "[0-9]" + ".msg"))
    if (folder / "final.msg").exists():
        return folder / "final.msg"
    if questions and not (folder / questions[-1].name.replace("question", "answer")).exists():
        return questions[-1]
    return None


def serve(exchange: Path, client: object) -> None:
    """Relay the messages of one site until it has the last one."""
    path = Path()
    while path.name != "final.msg":
        folder = next((path for path in exchange.glob("*-*") if path.name.partition("-")[2] == client.name), None)
        found = None if folder is None else find_open_message(folder)
        if found is None:
            time.sleep(POLL_SECONDS)
            continue
        try:
            question = found.read_bytes()
        except FileNotFoundError:  # pfl has closed the round
            continue
        try:
            code, content = client(timeout=TIMEOUT_SECONDS).answer(question)
        except Exception as error:  # a site that is away must not end the relay for the others
            code, content = str(error), b""
        if code:
            print(f"{client.name}: no answer to {found.name} ({code}); see the site's log", flush=True)
            time.sleep(RETRY_SECONDS)
            continue
        path = found
        if path.name != "final.msg":
            target = path.with_name(path.name.replace("question", "answer"))
            target.with_suffix(".tmp").write_bytes(content)
            target.with_suffix(".tmp").replace(target)


@collab.main
def run() -> None:
    """Relay messages until every site has the last one."""
    exchange, clients = Path(os.environ["PFL_EXCHANGE"]), list(collab.clients)
    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(lambda client: serve(exchange, client), clients))


@collab.publish
def answer(content: bytes) -> tuple[int, bytes]:
    """Return the exit code of ``pfl site answer`` and the answer, which is empty after the last message."""
    folder = Path(os.environ["PFL_SITE"].format(site=collab.site_name))
    with tempfile.TemporaryDirectory() as temporary, folder.with_name(f"{folder.name}.log").open("ab") as log:
        question, reply = Path(temporary, "question"), Path(temporary, "answer")
        question.write_bytes(content)
        words = [os.environ["PFL"], "site", "answer", str(folder), str(question), "-o", str(reply), "--threads", "1"]
        try:
            code = subprocess.run(words, stdout=log, stderr=log, check=False).returncode
        except OSError as error:
            log.write(f"{error}\n".encode())
            code = NOT_STARTED
        return code, reply.read_bytes() if reply.exists() else b""
