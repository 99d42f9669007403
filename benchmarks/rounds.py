"""Seconds per FedAvg round: the modes of pfl, a plain PyTorch loop, other libraries, and the ceiling of the machine.

    python benchmarks/rounds.py [--models cnn,mlp] [--python peers=VENV/bin/python] [--rounds 4] [--repeats 3] [--json]
    python benchmarks/rounds.py --check

Every measurement is a process of its own (``subjects/``) that trains a warm-up round, not counted, and then
``--rounds`` more. Subjects take turns, ``--repeats`` times, so that drift of the machine hits all; a ratio is that of
medians within one turn, and the median over turns is printed with the smallest and the largest. Each library first
shows, in a turn that is not counted, with which of its arrangements of workers and threads it is faster. Memory is the
largest sum of proportional set sizes of a subject's processes, looked at twice a second. Processor time is that of all
its processes: where others use the machine too, it says more than the clock.

Each library also tries the settings of the allocator that pfl chooses for itself: arrangements marked with "kept". The
ceiling is the arithmetic of a round at the best rate of any large convolution or matrix product on all threads,
measured before each turn; a 5x5 convolution by Winograd's minimal filtering takes less arithmetic than is counted.
``--check`` shows that all do the same work: from the same weights, over the same minibatches, every library must arrive
at pfl's model after a round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from subjects import ceiling, children, work

from pflcli.core.engine.engine import MODES

PEERS = ("flower", "fluke", "apple", "blazefl")

_TOLERANCE = 0.02
"""By how much models may differ, in the largest change of a parameter. Where a value lies on a corner of ReLU or of max
pooling up to rounding, its gradient goes one way or the other: PyTorch's own steps then part from those in float64."""


@dataclass
class Subject:
    """A library or a mode of pfl: where it runs, its arrangements (workers, threads), and what was measured.

    With ``keeps_memory`` its allocator keeps freed memory, as that of pfl does.
    """

    name: str
    module: str
    arrangements: list[tuple[int, int]]
    distribution: str = ""
    mode: str = "auto"
    keeps_memory: bool = False
    version: str = ""
    seconds: list[list[float]] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    memory: int = 0
    took: str = ""


def subjects(threads: int, names: list[str]) -> list[Subject]:
    """Return those with these names (all if none), pfl's own mode first."""
    spread, joined, single = (threads, 1), (1, threads), (1, 1)
    listed = [Subject("pfl", "ours", [joined])]
    listed += [Subject(f"pfl-{mode}", "ours", [joined], mode=mode) for mode in MODES if mode != "auto"]
    listed += [
        Subject("plain", "plain", [joined, single], "torch"),
        Subject("flower", "flower", [spread, joined], "flwr"),
        Subject("fluke", "fluke", [joined, single], "fluke-fl"),
        Subject("apple", "apple", [spread, joined], "pfl"),
        Subject("blazefl", "blazefl", [spread, joined], "blazefl"),
    ]
    return [subject for subject in listed if not names or subject.name in {"pfl", *names}]


def installed(subject: Subject, python: str) -> bool:
    """Note the version of a subject's distribution; if there is none, say how to install it."""
    if not subject.distribution:
        return True
    ask = f"from importlib.metadata import version; print(version({subject.distribution!r}))"
    answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    subject.version = answer.stdout.strip()
    if answer.returncode:
        say(
            f"{subject.name} is skipped: {subject.distribution} is not installed; python -m venv VENV && "
            f"VENV/bin/pip install -r benchmarks/requirements.txt, then --python peers=VENV/bin/python"
        )
    return answer.returncode == 0


def say(text: str) -> None:
    """Tell whoever watches."""
    print(text, file=sys.stderr, flush=True)


def tried(subject: Subject, python: str, task: work.Task) -> children.Outcome | None:
    """Run a subject once, or say why it does not run."""
    try:
        return children.run(python, subject.module, task)
    except children.Failed as reason:
        say(f"{subject.name} is skipped for {task.model}: {reason}")
        return None


def arranged(chosen: list[Subject], pythons: dict[str, str], model: str) -> list[Subject]:
    """Return the subjects that run, each with its faster arrangement first."""
    fit, own = [], ""
    for subject in chosen:
        trials: list[tuple[float, tuple[int, int], bool]] = []
        for (workers, threads), keeps_memory in itertools.product(subject.arrangements, (False, True)):
            if keeps_memory and subject.module == "ours":
                continue
            task = work.Task(model, 1, workers, threads, False, "", subject.mode, keeps_memory)
            outcome = tried(subject, pythons[subject.module], task)
            if outcome is None:
                continue
            trials.append((min(outcome.facts["seconds"]), (workers, threads), keeps_memory))
            say(f"  {subject.name} {workers}x{threads}{', kept' if keeps_memory else ''} {trials[-1][0]:.3f} s")
            subject.took = outcome.facts["mode"]
        if subject.name == "pfl":
            own = subject.took
        if trials and not (subject.name != "pfl" and subject.took and subject.took == own):
            subject.arrangements = [arrangement for _, arrangement, _ in sorted(trials)]
            subject.keeps_memory = min(trials)[2]
            fit.append(subject)
    return fit


def measure(model: str, chosen: list[Subject], pythons: dict[str, str], args: argparse.Namespace) -> dict[str, Any]:
    """Let the subjects take turns on one model."""
    say(f"{model}: which arrangement is faster")
    chosen = arranged(chosen, pythons, model)
    rate = ceiling.rate(args.threads)
    for turn in range(args.repeats):
        rate = max(rate, ceiling.rate(args.threads), key=lambda rate: rate.operations)
        for subject in chosen:
            task = work.Task(
                model, args.rounds, *subject.arrangements[0], False, "", subject.mode, subject.keeps_memory
            )
            try:
                outcome = children.run(pythons[subject.module], subject.module, task)
            except children.Failed as error:  # launchers of several processes now and then do not come up
                say(f"  turn {turn + 1} {subject.name} once more: {error}")
                outcome = children.run(pythons[subject.module], subject.module, task)
            subject.seconds.append(outcome.facts["seconds"])
            subject.processor.append(outcome.facts["processor"])
            subject.memory = max(subject.memory, outcome.memory)
            say(f"  turn {turn + 1} {subject.name} {statistics.median(subject.seconds[-1]):.3f} s")
    arithmetic, rows = ceiling.of_round(model), []
    for subject in chosen:
        median = statistics.median(second for turn in subject.seconds for second in turn)
        ratios = [
            statistics.median(other) / statistics.median(pfl)
            for other, pfl in zip(subject.seconds, chosen[0].seconds, strict=True)
        ]
        shares = [other / pfl for other, pfl in zip(subject.processor, chosen[0].processor, strict=True)]
        rows.append(
            {
                "subject": f"pfl ({subject.took})" if subject.took else f"{subject.name} {subject.version}",
                "workers": "x".join(map(str, subject.arrangements[0])) + (", kept" if subject.keeps_memory else ""),
                "seconds": median,
                "ratio": statistics.median(ratios),
                "ratios": sorted(ratios),
                "processor_seconds": statistics.median(subject.processor),
                "processor_ratio": statistics.median(shares),
                "gflops": arithmetic / median / 1e9,
                "of_ceiling": arithmetic / rate.operations / median,
                "memory_mb": subject.memory / 1e6,
                "rounds": subject.seconds,
            }
        )
    return {
        "model": model,
        "cpu": ceiling.cpu(),
        "arithmetic_gflop": arithmetic / 1e9,
        "ceiling_seconds": arithmetic / rate.operations,
        "ceiling_gflops": rate.operations / 1e9,
        "ceiling_kernel": rate.kernel,
        "subjects": rows,
    }


def table(result: dict[str, Any]) -> str:
    """Return a Markdown table of one model."""
    setting = work.SETTINGS[result["model"]]
    lines = [
        f"`{result['model']}`: {setting.cohort} of {setting.clients} clients, {setting.samples} samples, batches of "
        f"{setting.batch}; {result['cpu']}; ceiling {result['ceiling_seconds']:.3f} s "
        f"({result['ceiling_gflops']:.0f} GFLOP/s, {result['ceiling_kernel']})",
        "",
        "| subject | workers x threads | s a round | times pfl | processor s | times pfl | of ceiling | peak MB |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["subjects"]:
        low, high = row["ratios"][0], row["ratios"][-1]
        lines.append(
            f"| {row['subject']} | {row['workers']} | {row['seconds']:.3f} | {row['ratio']:.2f} ({low:.2f}-{high:.2f}) "
            f"| {row['processor_seconds']:.3f} | {row['processor_ratio']:.2f} | {row['of_ceiling']:.0%} "
            f"| {row['memory_mb']:.0f} |"
        )
    return "\n".join([*lines, ""])


def check(model: str, chosen: list[Subject], pythons: dict[str, str]) -> list[dict[str, Any]]:
    """Compare every subject's model after one round with that of pfl's first mode, and count its batches.

    ``difference`` is the largest over all parameters, ``change`` the largest by which the round changed one.
    """
    task = work.Task(model, 1, 1, 1, True, "")
    start = {name: value.detach().numpy() for name, value in work.net(task).named_parameters()}
    cut = [min(task.setting.batch, task.setting.samples - first) for first in task.setting.firsts] * task.clients
    rows, reference = [], start
    for subject in chosen:
        for workers, threads in subject.arrangements[:1]:
            one_round = work.Task(model, 1, workers, threads, True, "", subject.mode)
            outcome = tried(subject, pythons[subject.module], one_round)
            if outcome is None:
                continue
            trained = {name: outcome.parameters[name] for name in start}
            reference = trained if reference is start else reference
            difference = max(float(np.abs(trained[name] - reference[name]).max()) for name in start)
            change = max(float(np.abs(trained[name] - start[name]).max()) for name in start)
            same = not outcome.steps or sorted(outcome.steps) == sorted(cut)
            counted = f"{len(outcome.steps)} batches" if outcome.steps else "batches not seen"
            verdict = "same" if same and difference < _TOLERANCE * change else "DIFFERENT"
            say(f"  {model} {subject.name}: {verdict}, {counted}, difference {difference:.1e} of {change:.1e}")
            rows.append({"model": model, "subject": subject.name, "same": verdict == "same", "batches": outcome.steps})
            rows[-1] |= {"difference": difference, "change": change}
    return rows


def main() -> None:
    """Measure, or check, every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(work.SETTINGS), help="separated by commas")
    parser.add_argument("--subjects", default="", help="separated by commas; pfl is always among them")
    parser.add_argument("--rounds", type=int, default=4, help="counted rounds of a process")
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    parser.add_argument("--threads", type=int, default=2, help="cores to use")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--check", action="store_true", help="compare the models after one round instead of times")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    # So that a subject under way ends with this program.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pythons = dict.fromkeys(("ours", "plain", *PEERS), sys.executable)
    for option in args.python:
        name, _, path = option.partition("=")
        if not path or name not in {*pythons, "peers"}:
            parser.error(f"--python {option}: NAME is one of {', '.join(PEERS)}, or peers for all")
        pythons |= dict.fromkeys(PEERS if name == "peers" else [name], path)
    results = []
    for model in args.models.split(","):
        chosen = [
            subject
            for subject in subjects(args.threads, [name for name in args.subjects.split(",") if name])
            if installed(subject, pythons[subject.module])
        ]
        results.append(check(model, chosen, pythons) if args.check else measure(model, chosen, pythons, args))
        if not args.check and not args.json:
            print(table(results[-1]), flush=True)
    if args.json:
        print(json.dumps({"check" if args.check else "models": results}, indent=1))
    if args.check and not all(row["same"] for rows in results for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
