"""What a comparison needs before it starts: seconds, memory and disk by step, and what to change if it does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pflcli import config, methods, models
from pflcli.artifacts import disk
from pflcli.artifacts.decision import Decision
from pflcli.artifacts.reader import Artifact
from pflcli.commands.comparison.plan import BACKBONE
from pflcli.commands.comparison.steps import CHOOSING, NOT_NEEDED, Step, Variant
from pflcli.errors import PflError, UnsuitedError
from pflcli.estimates import costs, machine, memory
from pflcli.estimates.costs import Cost
from pflcli.estimates.excerpt import Excerpt, excerpt
from pflcli.estimates.rehearsal import rehearse
from pflcli.estimates.sampled_executor import Rates
from pflcli.execution import Execution
from pflcli.foreign import size
from pflcli.reporter import SILENT, Reporter
from pflcli.settings import Settings
from pflcli.training import hardware, pair_costs
from pflcli.wording import duration


@dataclass
class Needs:
    """Estimated costs: of each step under one seed by its name, and of all steps that are still to be made."""

    costs: dict[str, Cost] = field(default_factory=dict)
    peaks: dict[str, memory.Peak] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """methods that have no estimate, and why; what of a method grows with the square of the clients"""
    total: Cost = field(default_factory=Cost)
    memory: float = 0.0
    workers: int = 1

    @property
    def seconds(self) -> float:
        """Seconds from start to end, where each worker has a core of its own."""
        return self.total.seconds.parallel / self.workers + self.total.seconds.serial

    @property
    def processor_seconds(self) -> float:
        """Seconds of all cores."""
        return self.total.seconds.total

    @property
    def disk(self) -> float:
        """Bytes on the disk at the end, and what the largest step takes beside them while it is made."""
        return self.total.disk + self.total.scratch

    def facts(self) -> dict[str, Any]:
        """Return the totals for the summary of a dry run; nothing if nothing was estimated."""
        if not self.costs:
            return {}
        totals = {
            "seconds": round(self.seconds, 1),
            "processor_seconds": round(self.processor_seconds, 1),
            "memory_bytes": round(self.memory),
            "disk_bytes": round(self.total.disk),
            "disk_bytes_at_most": round(self.disk),
        }
        return {"needs": totals}

    def beside(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of a plan, those of pending steps with what they cost."""
        return [
            {
                **row,
                "processor_seconds": round(self.costs[row["step"]].seconds.total, 2),
                "disk_bytes": round(self.costs[row["step"]].disk),
            }
            if row["step"] in self.costs and row["decision"] not in (Decision.UP_TO_DATE, NOT_NEEDED)
            else dict(row)
            for row in rows
        ]

    def announce(self, out: Path, reporter: Reporter) -> None:
        """Say what is needed, and what to change if it does not fit."""
        for line in self.lines(out):
            reporter.say(line)

    def lines(self, out: Path) -> list[str]:
        """Return sentences on the totals, and for what does not fit a sentence with what to change."""
        if not self.costs:
            return self.remarks
        workers = "" if self.workers == 1 else f" ({duration(self.processor_seconds)} of one core)"
        scratch = f", {size(self.disk)} while it works" if self.total.scratch > 0.1 * self.total.disk else ""
        text = (
            f"needs about {duration(self.seconds)}{workers}, {size(self.memory)} of memory and "
            f"{size(self.total.disk)} of disk{scratch}"
        )
        return [text, *self.remarks, *self._warnings(out)]

    def _warnings(self, out: Path) -> list[str]:
        lines, free, available = [], disk.free_bytes(out), machine.available_memory() + machine.peak_memory()
        if self.memory > available:
            name, peak = max(self.peaks.items(), key=lambda item: item[1].total)
            lines.append(
                f"WARNING: {size(self.memory)} of memory are needed, and {size(available)} are available: "
                + _MEMORY_REMEDIES[peak.largest].format(name=name)
            )
        if self.disk > free:
            name = max(self.costs, key=lambda step: self.costs[step].disk)
            lines.append(
                f"WARNING: {size(self.disk)} of disk are needed, and {size(free)} are free: another --out, "
                f"fewer --seeds, or leave out {name} ({size(self.costs[name].disk)} per seed)"
            )
        return lines


_MEMORY_REMEDIES = {
    "samples": "the samples take most of it; partition fewer of them, such as --clients 1000",
    "models": "the models of a round take most of it with {name}; a smaller --participation or --model takes less",
    "state": "{name} keeps most of it; leave it out of --methods, or take a smaller --model",
    "answers": "the answers of all clients take most of it with {name}; leave it out of --methods",
    "pairs": "{name} keeps a number for every pair of clients; leave it out of --methods",
}
"""What to change, by the largest part of a peak of memory."""


def of(
    steps: Sequence[Step],
    variants: Sequence[Variant],
    training: Settings,
    partition: Artifact,
    execution: Execution,
) -> Needs:
    """Return what the steps cost that are still to be made, from a rehearsal of each method on a ``partition``.

    A rehearsal takes a fraction of a second, and writes nothing. Without a reporter nothing is estimated.
    """
    pending = [step for step in steps if step.is_ahead]
    needs = Needs(workers=hardware.jobs(execution.jobs) or hardware.threads(execution.threads))
    if not pending or execution.reporter is SILENT:
        return needs
    estimator = _Estimator(needs, {variant.name: variant for variant in variants}, training, partition, execution)
    for name in dict.fromkeys(step.name for step in pending):
        estimator.add(name)
    names = [step.name for step in steps if step.is_method]
    table = costs.of_table(len({*names}), len(names), len(estimator.part.sizes))
    needs.total = sum((needs.costs[step.name] for step in pending if step.name in needs.costs), table)
    largest = max((peak.total for peak in needs.peaks.values()), default=0.0)
    # The rehearsals had the few clients of the excerpt in memory, beside all that such a process loads.
    needs.memory = machine.peak_memory() + max(largest - estimator.rehearsed, 0.0) + _PICTURE
    return needs


_PICTURE = 120e6
"""Bytes of what draws the picture of a comparison, which a dry run does not load."""


class _Estimator:
    """Estimates the costs of one step after the other."""

    def __init__(
        self,
        needs: Needs,
        variants: Mapping[str, Variant],
        training: Settings,
        partition: Artifact,
        execution: Execution,
    ) -> None:
        self.needs, self.rehearsed = needs, 0.0
        self.part: Excerpt = excerpt(partition, hardware.device(execution.device))
        self._variants, self._training, self._mode = variants, training, hardware.engine(execution.engine)
        self._partition = partition
        self._rates, self._embeddings = Rates(), Cost()

    def add(self, name: str) -> None:
        """Add the costs of the step ``name`` to the needs, or a remark if its method refuses the data."""
        plain = name.removeprefix(f"{CHOOSING} ")
        if plain == "embeddings":
            self.needs.costs[name] = self._embeddings = costs.of_embeddings(
                self._prediction(), self._dimension(), self.part
            )
        elif plain == "datastore":
            self.needs.costs[name] = costs.of_datastore(self._dimension(), self.part, self._embeddings)
        elif plain in self._variants and self._variants[plain].is_stack:
            self.needs.costs[name] = costs.of_stack(self.part, len(self._variants[plain].options["pool"]))
        else:
            try:
                self._rehearse(name, plain)
            except UnsuitedError as error:
                self.needs.remarks.append(f"{name} would be left out: {error.message}")
            except Exception as error:  # made-up answers may confuse a method, which is no reason to refuse a plan
                reason = error.message if isinstance(error, PflError) else f"{type(error).__name__}: {error}"
                self.needs.remarks.append(f"{name} has no estimate: {reason}")

    def _rehearse(self, name: str, plain: str) -> None:
        is_backbone = plain == "backbone"
        variant = self._backbone() if is_backbone else self._variants[plain]
        method, answers_backbone = methods.load(variant.method), plain == BACKBONE and variant.source == "backbone"
        changes = {**variant.settings, **({"refit": False} if plain != name else {})}
        if answers_backbone:
            changes["rounds"] = 0  # the backbone answers
        settings: Settings = config.build(Settings, {**config.plain(self._training), **changes}, plain)
        cfg = config.build(method.Config, variant.options, variant.method)
        remarks = pair_costs.remarks(plain, method, cfg, settings, self._partition)
        self.needs.remarks.extend(remark for remark in remarks if remark not in self.needs.remarks)
        rehearsal = rehearse(
            method,
            cfg,
            settings,
            self.part,
            0,
            self._mode,
            self._rates,
            shared=is_backbone,
            on_backbone=answers_backbone,
        )
        rounds = settings.rounds if method.has_rounds else 0
        of_kind = costs.of_backbone if is_backbone else costs.of_predictions
        self.needs.costs[name] = of_kind(rehearsal, self.part, rounds)
        self.needs.peaks[name] = memory.of_run(method, rehearsal, self.part)
        self.rehearsed = max(self.rehearsed, memory.of_rehearsal(method, rehearsal, self.part).total)

    def _backbone(self) -> Variant:
        """Return FedAvg with its options in the comparison, as it trains the backbone."""
        options = self._variants[BACKBONE].options if BACKBONE in self._variants else {}
        return Variant(BACKBONE, options, {}, "partition", 0.0)

    def _prediction(self) -> float:
        """Return the seconds in which the model predicts a sample."""
        rates = [sample for kind, (_, sample) in self._rates.measured.items() if kind[:2] == ("predict", True)]
        return max(rates, default=0.0)

    def _dimension(self) -> int:
        """Return the dimension of representations."""
        data = self.part.federation
        tokens = data.x.dtype not in (torch.uint8, torch.float32)
        head = models.outline(self._training.model, data.in_shape, data.classes, tokens=tokens).head
        return int(next(head.parameters()).shape[1])
