"""Type random command lines: each does what it says, or ends with one error and a code that docs/commands.md lists.

    python tests/faults/command_lines.py [COUNT] [--seed N]

The lines are made from the options that commands declare: missing and unknown ones, numbers without end, strange
strings, artifacts of the wrong kind, files that are none. Commands that train are typed with ``--dry-run`` alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from pflcli.cli import app
from pflcli.cli.from_options import walk_commands
from pflcli.core import registry

CODES = (0, 2, 3, 4, 5)
ARTIFACTS = ("p", "b", "e", "d", "knn", "fedavg")
FILES = ("/dev/zero", "/dev/null", "nowhere", "", ".", "/", "data.npz", "pipe", "\x1b[31m", "\udcff", "n" * 300, "-")
NUMBERS = (
    *("0", "1", "2", "-1", "0.5", "1.5", "-0.0", "1e400", "-1e400", "nan", "inf", "1e-400", "1_0", "٣", "1e5", "0x10"),
    *("9" * 30, "9" * 5000, str(2**31), str(2**63), str(-(2**63) - 1), "1,2", ",", "1:2", "0:0", "1/2", "3/2"),
)
STRINGS = (
    *("", " ", ",", "=", "a=b", "none", "auto", "é", "\x00", "\n", "\x1b]0;x\x07", "%s%n", "{0}", "$(id)", "../../x"),
    *("[red]", "\udcff", "x" * 10_000, "--", "-", "k=1", "k=1e400", "k=-1", "lam=nan", "grid=", "alpha=0", "sigma=inf"),
)
HEAVY = ("train-global", "personalize", "compare", "tune")
SMALL = ("--rounds", "1", "--model", "mlp", "--participation", "0.5", "--threads", "1")


def lines(count: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield command lines: most of them nearly right, so that they come far before they end."""
    draw = random.Random(seed)
    group: Any = typer.main.get_command(app)
    commands = sorted((name, command) for name, command in walk_commands(group) if name != "doctor")  # it compiles
    for _ in range(count):
        name, command = draw.choice(commands)
        words = name.split()
        options = []
        for param in command.params:
            if param.name in ("download", "help") or "--version" in param.opts:
                continue
            if param.param_type_name == "argument":
                for _ in range(1 if param.nargs == 1 else draw.randint(0, 3)):
                    if draw.random() < 0.95:
                        words.append(_argument(str(param.name), draw))
            elif "--out" in param.opts:
                if draw.random() < 0.9:
                    options.append(["--out", draw.choice(FILES) if draw.random() < 0.15 else "out"])
            elif draw.random() < (0.9 if param.required else 0.12):
                option = draw.choice([opt for opt in (*param.opts, *param.secondary_opts)])
                options.append([option] if getattr(param, "is_flag", False) else [option, _value(param, draw)])
        if draw.random() < 0.03:
            options.append([draw.choice(("--nothing", "-x", "--ou", "--rounds=", "--set="))])
        if name in HEAVY:
            options += [["--dry-run"]] if draw.random() < 0.8 else [list(SMALL), ["--dry-run"]]
        draw.shuffle(options)
        yield [*words, *(word for option in options for word in option)]


def _argument(name: str, draw: random.Random) -> str:
    groups = {"method": "methods", "dataset": "datasets", "group": "groups"}
    if draw.random() < 0.15:
        return draw.choice((*FILES, *STRINGS))
    if name == "data":
        return "data.npz"
    if name in groups and draw.random() < 0.9:
        known = registry.GROUPS if name == "group" else registry.names(groups[name])
        return draw.choice(("writers", "data") if name == "dataset" else sorted(known))
    return draw.choice(ARTIFACTS)


def _value(param: Any, draw: random.Random) -> str:
    kind = getattr(param.type_descriptor.annotation, "__name__", "").lower()
    chance = draw.random()
    if chance < 0.2:
        return draw.choice((*NUMBERS, *STRINGS, *FILES))
    if "int" in kind or "float" in kind:
        return draw.choice(NUMBERS)
    if "path" in kind:
        return draw.choice((*ARTIFACTS, *FILES))
    if "--set" in param.opts:
        option = draw.choice(
            ("k", "lam", "alpha", "weight", "grid", "sigma", "groups", "steps", "q", "fedavg.x", "stack.pool")
        )
        return f"{option}={draw.choice((*NUMBERS, *STRINGS))}"
    known = {"model": "models", "scheme": "schemes", "methods": "methods"}.get(str(param.name))
    if known and chance < 0.7:
        names = [*registry.names(known), *(["fedavg,local,stack"] if known == "methods" else [])]
        return draw.choice(names)
    return draw.choice((*STRINGS, *NUMBERS, *ARTIFACTS))


def wrong(folder: Path, before: set[str], code: int, err: str) -> tuple[str, str] | None:
    """Return what kind of fault a command line has shown, and what it is, if any."""
    if code not in CODES or "Traceback" in err or "a bug" in err:
        return "tracebacks", f"exit {code}: {err[-300:]}"
    if code and not err.strip():
        return "silent", f"exit {code} without a word"
    left = [name for name in {item.name for item in folder.iterdir()} - before if name.endswith((".partial", ".tmp"))]
    return ("broken", f"left {left}") if left else None


def program() -> None:
    import os
    import shlex
    import shutil

    import trying

    args = trying.arguments(__doc__, 2000, "command lines")
    trying.warm()
    trying.heading()
    tally = trying.Tally("command lines")
    codes = dict.fromkeys(CODES, 0)
    slowest, worst = 0.0, ""
    with trying.place() as root:
        first = root / "inputs"
        first.mkdir()
        trying.inputs(first)
        os.mkfifo(first / "pipe")
        known = {item.name for item in first.iterdir()}
        for words in lines(args.count, args.seed):
            tally.tried += 1
            if any("\x00" in word for word in words):
                words = [word.replace("\x00", "") for word in words]  # no system passes these to a program
            line = ascii(shlex.join(word if len(word) < 400 else word[:40] + "..." for word in words))
            ended = trying.Command(words, first).end(trying.PATIENCE)
            if ended.seconds > slowest:
                slowest, worst = ended.seconds, line
            if ended.hung:
                tally.fault("hangs", line)
            else:
                codes[ended.code] = codes.get(ended.code, 0) + 1
                if fault := wrong(first, known, ended.code, ended.err):
                    tally.fault(fault[0], f"{line}: {fault[1]}")
            for item in first.iterdir():
                if item.name not in known:
                    shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
    tally.notes = [f"exit codes {codes}", f"slowest {slowest:.1f} s: {worst}"]
    print(tally.row(), flush=True)
    trying.report([tally])


if __name__ == "__main__":
    program()
