"""Damage what is on disk, one file at a time: ``python tests/faults/mutations.py COUNT [KIND...]``, COUNT times a kind.

A hash of the turn says what is done to which file: bits flipped, bytes cut off, overwritten, removed or repeated, and
in text a digit, a word or a line changed. A finished artifact is asked ``pfl show --verify`` and a command that reads
it; an unfinished run is gone on with. Each refuses by the file's name with exit code 3, or ends as if nothing had
happened. Resealed, so that only its parser is left to refuse a file, other answers are right, too, and so is exit code
5 in words: finite weights may overflow. No other end is.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout that this file belongs to

import numpy as np

from pflcli.__main__ import main
from pflcli.artifacts import manifest as manifests
from pflcli.commands.personalize import personalize
from pflcli.core.execution import Execution

PATIENCE = 10.0
"""Seconds after which a command counts as one that hangs."""

COMMANDS = (
    "import d.npz -o dataset --client none",
    "partition dataset -o partition --scheme iid --clients 3 --fractions 0.5,0.2,0.3",
    "train-global partition -o backbone --model mlp --rounds 1",
    "extract backbone -o embeddings",
    "build-datastore embeddings -o datastore",
    "build-datastore embeddings -o graphs --index HNSW4",
    "personalize knn-per datastore -o predictions",
    "personalize fedrep partition -o rounds --model mlp --rounds 2",
    "personalize ditto partition -o served --model mlp --rounds 1",
    "new-client served d.npz --client late -o client",
    "evaluate predictions -o evaluation",
    "audit predictions -o audit --threads 1",
    "stack predictions rounds -o stack",
    "compare partition -o . --methods fedavg,local,stack --seeds 1 --model mlp --rounds 1",
    "sweep embeddings -o sweep --capacity 0.5,1 --k 1,3",
    "tune local partition -o . --search lr=0.1,1 --model mlp --rounds 1",
)
"""The commands that make what is damaged."""

READERS = {
    "dataset": "partition dataset -o out --scheme iid --clients 3",
    "partition": "train-global partition -o out --model mlp --rounds 1 --threads 1",
    "backbone": "extract backbone -o out --threads 1",
    "embeddings": "build-datastore embeddings -o out",
    "datastore": "personalize knn-per datastore -o out --threads 1",
    "graphs": "personalize knn-per graphs -o out --threads 1",
    "predictions": "evaluate predictions -o out",
    "rounds": "evaluate rounds -o out --target 0.5",
    "stack": "evaluate stack -o out",
    "served": "predict served x.npy --client client-0001 --threads 1",
    "client": "predict client x.npy --client late --threads 1",
    "evaluation": "show evaluation",
    "audit": "show audit --verify",
    "comparison": "show comparison",
    "sweep": "show sweep",
    "tuning": "show tuning",
}
"""A command that reads each artifact: ``graphs`` is a datastore too, ``rounds`` predictions with a table of rounds,
``served`` those with a table of models and ``client`` those with a client that came after the rounds."""

UNFINISHED = ("ditto", "fedrep")
"""Methods with a table, whose unfinished runs are damaged."""


def number(*key: object) -> int:
    """Return a number that belongs to a key, as if drawn."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")


# What is done to a file


def flip(content: bytes, draw: Callable[[str], int]) -> bytes:
    changed = bytearray(content)
    for turn in range(1 + draw("bits") % 3):
        changed[draw(f"at {turn}") % len(content)] ^= 1 << draw(f"bit {turn}") % 8
    return bytes(changed)


def cut(content: bytes, draw: Callable[[str], int]) -> bytes:
    return content[: draw("end") % len(content)]


def overwrite(content: bytes, draw: Callable[[str], int]) -> bytes:
    at, size = draw("at") % len(content), 1 + draw("size") % 64
    filling = (b"\0", b"\xff", b"\x7f", b"9")[draw("filling") % 4]
    return (content[:at] + filling * size + content[at + size :])[: len(content)]


def remove(content: bytes, draw: Callable[[str], int]) -> bytes:
    at = draw("at") % len(content)
    return content[:at] + content[at + 1 + draw("size") % 64 :]


def repeat(content: bytes, draw: Callable[[str], int]) -> bytes:
    at, size = draw("at") % len(content), 1 + draw("size") % 64
    return content[: at + size] + content[at:]


def append(content: bytes, draw: Callable[[str], int]) -> bytes:
    return content + b"\0" * (1 + draw("size") % 64)


def edit(content: bytes, draw: Callable[[str], int]) -> bytes:
    """Change a number, a word or a line of a text, as an editor or a program would."""
    pattern_number = draw("way") % 4
    pattern = (rb"-?\d+(\.\d+)?(e-?\d+)?", rb"\b[A-Za-z_]+\b", rb"[^\n]*\n", rb"[\[\]{}:,\"]")[pattern_number]
    places = [*re.finditer(pattern, content)]
    if not places:
        return flip(content, draw)
    place = places[draw("place") % len(places)]
    others = (
        b"0",
        b"-1",
        b"1e400",
        b"NaN",
        b"99999999999999999999",
        b'"x"',
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"",
        b"0.5",
    )
    return content[: place.start()] + others[draw("other") % len(others)] + content[place.end() :]


BINARY = (flip, flip, cut, overwrite, remove, repeat, append)
TEXT = (edit, edit, edit, flip, cut, remove, repeat)


def mutated(path: Path, *key: object) -> bytes:
    """Return the file's content with damage that belongs to a key."""
    content = path.read_bytes()

    def draw(purpose: str) -> int:
        return number(*key, purpose)

    ways = TEXT if path.suffix in (".json", ".csv", ".md") else BINARY
    return ways[draw("kind") % len(ways)](content, draw) if content else b"\0"


# What comes of it


@dataclass
class Tally:
    """How the commands on damaged files ended, and each that ended as none may."""

    name: str
    tried: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {end}" for end, count in self.ends.most_common())
        return f"{self.name}: {self.tried} damaged: {ends}; slowest {self.slowest:.1f} s; {len(self.faults)} faults"


@dataclass(frozen=True)
class Ran:
    """How a command ended: its exit code, what it printed and said, and how long it took."""

    code: int
    out: str
    err: str
    seconds: float


class Hung(BaseException):
    """A command did not end."""


def run(words: str) -> Ran:
    """Run a command line in this process and in this folder."""
    out, err, began = io.StringIO(), io.StringIO(), time.monotonic()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)}

    def hang(*_: object) -> None:
        raise Hung

    signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    code: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(words.split())
    except SystemExit as end:
        code = end.code
    except Hung:
        code = -1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Ran(int(code or 0), out.getvalue(), err.getvalue(), time.monotonic() - began)


def answer(ran: Ran, out: Path) -> object:
    """Return what a command has answered: what it printed, and what it made but for times."""
    contents = {}
    for path in sorted(out.iterdir()) if out.is_dir() else ():
        text = path.read_bytes()
        if path.name == "rounds.csv":
            text = b"\n".join(line.rpartition(b",")[0] for line in text.splitlines())
        if path.name == "manifest.json":
            manifest = json.loads(text)
            text = json.dumps([manifest["fingerprint"], manifest["request"], _timeless(manifest["summary"])]).encode()
        if path.name in ("metrics.json", "table.csv", "table.md"):
            text = re.sub(rb'(?m)("seconds"|"processor_seconds").*|.*(?:seconds|CPU|\bs\b).*', b"", text)
        contents[path.name] = text
    return ran.out, contents


def _timeless(summary: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in summary.items() if "seconds" not in key}


def judge(tally: Tally, description: str, ran: Ran, name: str, same: bool, *, resealed: bool = False) -> None:
    """Count how a command ended on a damaged file; ``same`` says whether it answered what it would have."""
    tally.slowest = max(tally.slowest, ran.seconds)
    refused = ran.code == 3 and name in ran.err and "Traceback" not in ran.err
    failed = resealed and ran.code == 5 and "Traceback" not in ran.err
    if refused or failed or (ran.code == 0 and same):
        tally.ends["refused" if refused else "failed in words" if failed else "the same"] += 1
        return
    end = "hung" if ran.code == -1 else "silent" if ran.code == 0 else f"exit {ran.code}"
    tally.ends[end] += 1
    tally.faults.append(f"{description}: {end}: {ran.err.strip().splitlines()[-1:] or ''}")


def says_the_same(path: Path, content: bytes, listed: bytes) -> bool:
    """Whether a changed file is as good as the old one: a manifest with other spaces, and no other file."""
    with contextlib.suppress(ValueError):
        return path.name == manifests.NAME and json.loads(content) == json.loads(listed)
    return False


@contextmanager
def damaged(path: Path, content: bytes, *, reseal: bool = False) -> Iterator[None]:
    """Let a file have another content, and with ``reseal`` its manifest say so."""
    listing = path.parent / manifests.NAME
    before, listed = path.read_bytes(), listing.read_bytes() if listing.exists() else b""
    path.write_bytes(content)
    if reseal:
        fields = json.loads(listed)
        fields.pop("seal")
        fields["files"][path.name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        listing.write_text(json.dumps({**fields, "seal": manifests.digest(fields)}, indent=2) + "\n")
    try:
        yield
    finally:
        path.write_bytes(before)
        if reseal:
            listing.write_bytes(listed)


def artifacts(root: Path, name: str, count: int, *, reseal: bool) -> Tally:
    """Damage the files of a finished artifact in ``root``, where this process runs."""
    tally, reader, out = Tally(name + ", resealed" * reseal), READERS[name], root / "out"
    files = sorted(path for path in (root / name).iterdir() if path.is_file())
    files = [path for path in files if path.name != manifests.NAME] if reseal else files
    expected, listed = answer(run(reader), out), (root / name / manifests.NAME).read_bytes()
    shutil.rmtree(out, ignore_errors=True)
    for turn in range(count):
        path = files[number(name, turn, "file") % len(files)]
        content = mutated(path, name, turn)
        if content == path.read_bytes():
            continue
        tally.tried += 1
        description = f"{name}/{path.name}, turn {turn}"
        with damaged(path, content, reseal=reseal):
            verified = run(f"show {name} --verify")
            known = name if reseal else path.name
            judge(tally, f"{description}, verified", verified, known, reseal or says_the_same(path, content, listed))
            ran = run(reader)
            judge(tally, description, ran, known, reseal or answer(ran, out) == expected, resealed=reseal)
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(root / "out.partial", ignore_errors=True)
    return tally


class Stop:
    """Watches a run and interrupts it after a number of rounds."""

    def __init__(self, after: int) -> None:
        self.left = after

    def say(self, text: str) -> None:
        pass

    detail = say

    @contextmanager
    def progress(self, label: str, total: int, completed: int = 0) -> Iterator[Callable[[float, str], None]]:
        def advance(steps: float, note: str) -> None:
            self.left -= int(steps)
            if self.left <= 0:
                raise KeyboardInterrupt

        yield advance


def unfinished(root: Path, method: str, count: int) -> Tally:
    """Damage what an unfinished run of ``method`` has on disk: its draft, its checkpoint and its table."""
    tally, out, copy = Tally(f"unfinished {method}"), root / "out", root / "kept"
    line = f"personalize {method} partition -o out --model mlp --rounds 3 --participation 0.7 --threads 1"
    expected = answer(run(line), out)
    shutil.rmtree(out)
    with contextlib.suppress(KeyboardInterrupt):
        settings = {"model": "mlp", "rounds": 3, "participation": 0.7}
        personalize(
            method, Path("partition"), Path("out"), settings=settings, execution=Execution(reporter=Stop(2), threads=1)
        )
    (root / "out.partial").rename(copy)
    files = sorted(path.relative_to(copy) for path in copy.rglob("*") if path.is_file())
    assert len(files) >= 3, files
    for turn in range(count):
        file = files[number(method, turn, "file") % len(files)]
        content = mutated(copy / file, method, turn)
        if content == (copy / file).read_bytes():
            continue
        shutil.copytree(copy, root / "out.partial")
        (root / "out.partial" / file).write_bytes(content)
        tally.tried += 1
        ran = run(line)
        judge(tally, f"{method}, {file}, turn {turn}", ran, file.name, answer(ran, out) == expected)
        shutil.rmtree(root / "out.partial", ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(copy)
    return tally


def make(root: Path) -> None:
    """Make an artifact of every kind in ``root``, from three clients of a few samples."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 60)
    x = (draw.normal(size=(60, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32)
    np.savez(root / "d.npz", x=x, y=y)
    np.save(root / "x.npy", x[:3])
    with contextlib.chdir(root):
        for line in COMMANDS:
            ran = run(line)
            assert ran.code == 0, (line, ran.err)


def tallies(root: Path, count: int, names: list[str], *, resealed: int) -> Iterator[Tally]:
    """Damage all in ``root`` that is named ``count`` times, and the files of artifacts ``resealed`` times more."""
    with contextlib.chdir(root):
        for name in names:
            if name in UNFINISHED:
                yield unfinished(root, name, count)
            else:
                yield artifacts(root, name, count, reseal=False)
                yield artifacts(root, name, resealed, reseal=True)


if __name__ == "__main__":
    count, names = int(sys.argv[1]), sys.argv[2:] or [*READERS, *UNFINISHED]
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        is_clean = True
        for one in tallies(Path(folder), count, names, resealed=count):
            print(one, *one.faults, sep="\n    ", flush=True)
            is_clean = is_clean and not one.faults
    sys.exit(not is_clean)
