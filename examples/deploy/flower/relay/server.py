"""Flower's ServerApp: sends each question in the exchange folder to its site, and stores the answer beside it.

``pfl federation run FEDERATION --at EXCHANGE`` writes the questions and reads the answers. This app ends once every
site has the last message.
"""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

POLL_SECONDS = 0.5
TIMEOUT_SECONDS = 3600.0
"""How long a site may take to answer."""

app = ServerApp()


def find_open_messages(exchange: Path, finished: set[Path]) -> list[Path]:
    """Return the messages that no site has answered: the last question in each folder, or the last message."""
    found = []
    for folder in sorted(path for path in exchange.glob("*-*") if path.is_dir() and path not in finished):
        questions = sorted(folder.glob("question-*.msg"))
        if (folder / "final.msg").exists():
            found.append(folder / "final.msg")
        elif questions and not (folder / questions[-1].name.replace("question", "answer")).exists():
            found.append(questions[-1])
    return found


def ask(grid: Grid, questions: dict[int, bytes]) -> list[Message]:
    """Send a message to each node, and return the replies that are not errors."""
    messages = [
        Message(
            RecordDict({"message": ArrayRecord({"file": Array("uint8", (len(content),), "raw", content)})}),
            dst_node_id=node,
            message_type="train.answer",
        )
        for node, content in questions.items()
    ]
    replies = list(grid.send_and_receive(messages, timeout=TIMEOUT_SECONDS))
    for reply in replies:
        if reply.has_error():
            print(f"node {reply.metadata.src_node_id}: error {reply.error.code}; see the site's log", flush=True)
    return [reply for reply in replies if not reply.has_error()]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Relay messages until every site has the last one."""
    exchange, count = Path(str(context.run_config["exchange"])), int(context.run_config["sites"])
    sites: dict[str, int] = {}
    while len(sites) < count:  # an empty message asks a node which site it is
        new = [node for node in grid.get_node_ids() if node not in sites.values()]
        for reply in ask(grid, dict.fromkeys(new, b"")):
            sites[str(reply.content["head"]["site"])] = reply.metadata.src_node_id
        time.sleep(POLL_SECONDS)
    finished: set[Path] = set()
    while len(finished) < count:
        if not (paths := find_open_messages(exchange, finished)):
            time.sleep(POLL_SECONDS)
            continue
        by_node = {sites[path.parent.name.partition("-")[2]]: path for path in paths}
        began = time.monotonic()
        for reply in ask(grid, {node: path.read_bytes() for node, path in by_node.items()}):
            path, code = by_node[reply.metadata.src_node_id], int(reply.content["head"]["code"])
            if code:
                raise SystemExit(f"{path.parent.name}: pfl ended with exit code {code}; see the site's log")
            if path.name == "final.msg":
                finished.add(path.parent)
                continue
            target = path.with_name(path.name.replace("question", "answer"))
            target.with_suffix(".tmp").write_bytes(reply.content["message"]["file"].data)
            target.with_suffix(".tmp").replace(target)
        print(f"{len(paths)} messages: {time.monotonic() - began:.1f} s", flush=True)
