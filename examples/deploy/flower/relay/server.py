"""Flower's ServerApp: sends each question in the exchange folder to its site, and stores the answer beside it.

``pfl federation run FEDERATION --at EXCHANGE`` writes the questions and reads the answers. This app ends once every
site has the last message. A site that does not answer, or whose command fails, is asked again later; the others do not
wait for it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

POLL_SECONDS = 0.5
TIMEOUT_SECONDS = 3600.0
"""How long a site may take to answer, before it is asked again."""
RETRY_SECONDS = 60.0
"""When a site whose command failed is asked again."""

app = ServerApp()


def find_open_messages(exchange: Path, finished: set[Path]) -> list[Path]:
    """Return the messages that no site has answered: the last question in each folder, or the last message."""
    found = []
    for folder in sorted(path for path in exchange.glob("*-*") if path.is_dir() and path not in finished):
        questions = sorted(folder.glob("question-" + 6 * "[0-9]" + ".msg"))
        if (folder / "final.msg").exists():
            found.append(folder / "final.msg")
        elif questions and not (folder / questions[-1].name.replace("question", "answer")).exists():
            found.append(questions[-1])
    return found


def read_site(content: bytes) -> str:
    """Return the name of the site that a message of pfl is for, from its head."""
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return str(json.loads(head["__metadata__"]["pfl"])["site"])


class Relay:
    """The nodes of sites by name, and the messages that are on their way to them."""

    def __init__(self, grid: Grid, exchange: Path) -> None:
        self.grid, self.exchange = grid, exchange
        self.nodes: dict[str, int] = {}
        self.finished: set[Path] = set()
        """the folders of sites that have the last message"""
        self._sent: dict[str, tuple[int, Path | None]] = {}
        self._not_before: dict[tuple[int, Path | None], float] = {}

    def step(self) -> None:
        """Send what has not been sent, and store the answers that have arrived."""
        present = set(self.grid.get_node_ids())
        self.nodes = {site: node for site, node in self.nodes.items() if node in present}
        for node in present - set(self.nodes.values()):
            self._send(node, None, b"")  # an empty message asks a node which site it is
        for path in find_open_messages(self.exchange, self.finished):
            try:
                content = path.read_bytes()
            except FileNotFoundError:  # pfl has closed the round
                continue
            if (site := read_site(content)) in self.nodes:
                self._send(self.nodes[site], path, content)
        for reply in self.grid.pull_messages([*self._sent]) if self._sent else ():
            if (asked := self._sent.pop(reply.metadata.reply_to_message_id, None)) is None:
                continue
            node, path = asked
            self._not_before[node, path] = time.monotonic() + RETRY_SECONDS
            if reply.has_error():
                print(f"node {node}: error {reply.error.code}; see the site's log", flush=True)
            elif code := int(reply.content["head"]["code"]):
                print(f"{reply.content['head']['site']}: pfl ended with exit code {code}; see its log", flush=True)
            else:
                self._store(node, path, str(reply.content["head"]["site"]), reply.content["message"]["file"].data)

    def _send(self, node: int, path: Path | None, content: bytes) -> None:
        if time.monotonic() < self._not_before.get((node, path), 0.0):
            return
        self._not_before[node, path] = time.monotonic() + TIMEOUT_SECONDS
        record = RecordDict({"message": ArrayRecord({"file": Array("uint8", (len(content),), "raw", content)})})
        message = Message(record, dst_node_id=node, message_type="train.answer")
        for number in filter(None, self.grid.push_messages([message])):
            self._sent[number] = (node, path)

    def _store(self, node: int, path: Path | None, site: str, content: bytes) -> None:
        if path is None:
            if self.nodes.setdefault(site, node) != node:
                print(f"node {node} says that it is '{site}', which node {self.nodes[site]} is", flush=True)
            return
        if path.name == "final.msg":
            self.finished.add(path.parent)
        else:
            target = path.with_name(path.name.replace("question", "answer"))
            target.with_suffix(".tmp").write_bytes(content)
            target.with_suffix(".tmp").replace(target)
            self._not_before.pop((node, path))  # pfl may set an answer aside, and ask again
        print(f"{site}: {path.name}", flush=True)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Relay messages until every site has the last one."""
    relay = Relay(grid, Path(str(context.run_config["exchange"])))
    while len(relay.finished) < int(context.run_config["sites"]):
        relay.step()
        time.sleep(POLL_SECONDS)
