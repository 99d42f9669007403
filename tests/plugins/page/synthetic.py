"""Comparisons of any size and with any names, written without a run: what a page shows comes from their files alone."""

from __future__ import annotations

import csv
import io
import json

import numpy as np

from pflcli.artifacts.make import Built, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import open_artifact
from pflcli.core import scores
from pflcli.core.execution import Execution
from pflcli.core.metrics import catalogue
from pflcli.evaluation.presentation import conclusion

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "]]>", "</script>", "<!--", "' || 1 || '",
    "a&amp;b", "\u2028", "${x}", "#0072B2", "constructor", "__proto__", "\x00\x1b[31m", "\ufffe",
)  # fmt: skip
"""Names that are markup, code or colours elsewhere."""


def write_comparison(at, methods, names, seed=0):
    """Write a comparison of ``methods``, the first of them the baseline, and clients of these names; return it."""
    rng = np.random.default_rng(seed)
    count = len(names)
    base = np.sort(rng.beta(6, 2, count))
    table = {
        label: np.clip(base + 0.02 * place + (0.05 * rng.standard_normal(count) if place else 0), 0, 1).round(6)
        for place, label in enumerate(methods)
    }
    rows = [_row(label, values, table[methods[0]], place) for place, (label, values) in enumerate(table.items())]
    metrics = {"split": "test", "baseline": methods[0], "reported": "last round", "methods": rows, "warnings": []}
    conclusion.judge_gains(rows, methods[0])
    concluded = conclusion.conclude(rows, methods[0])
    ones, clients = np.ones(count), np.arange(count)
    runs = {
        label: {0: conclusion.ClientScores(values, ones, ones.astype(np.int64), clients)}
        for label, values in table.items()
    }
    score = {label: float(values.mean()) for label, values in table.items()}
    accuracy = catalogue.METRICS["accuracy"]
    marks = conclusion.mark_column(runs, score, accuracy, concluded.level, concluded, methods[0])
    metrics |= {"conclusion": concluded.record(), "marks": {"accuracy": marks.record()}}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "seed", "client", "name", "n_test", "accuracy", "baseline_accuracy", "gain", "lambda"])
    for label, values in table.items():
        for client, name in enumerate(names):
            gain = values[client] - table[methods[0]][client]
            chosen = f"{client % 5 / 4:g}" if label == methods[-1] else ""
            cells = [values[client], table[methods[0]][client], gain]
            writer.writerow([label, 0, client, name, 20, *(f"{cell:.6g}" for cell in cells), chosen])
    request = {
        "methods": {label: {"options": {}, "settings": {}} for label in methods},
        "seeds": [0], "settings": {"model": "mlp"}, "split": "test", "baseline": methods[0], "statistics": 2,
    }  # fmt: skip

    def build(work):
        work.write("metrics.json", json.dumps(metrics).encode())
        work.write("clients.csv", text.getvalue().encode())
        work.write("table.csv", b"method\n")
        return Built({"methods": len(methods), "predictions": len(methods), "best": methods[-1], "failed": {}}, {})

    make(at, ArtifactSpec("comparison", request), Execution(), build)
    return open_artifact(at)


def _row(label, values, base, place):
    gain = values - base
    error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if place else 0.0
    mean = float(gain.mean())
    metrics = {
        "accuracy": {"value": float(values.mean()), "n": len(values)},
        "bottom_decile": {"value": scores.bottom_decile(values), "n": len(values)},
        "worst": {"value": float(values.min()), "n": len(values)},
        "gain": {"value": mean, "n": len(values)},
        "better_off": {"value": float((gain > 0).mean()), "n": len(values)},
        "worse_off": {"value": float((gain < 0).mean()), "n": len(values)},
        "megabytes": {"value": 100.0 * place, "n": 1},
        "seconds": {"value": 1.0 + place, "n": 1},
    }
    if place:
        metrics["gain"] |= {
            "interval": [mean - 2 * error, mean + 2 * error], "p": 1e-6,
            "baseline_bottom_decile": scores.bottom_decile(base), "baseline_worst": float(base.min()),
        }  # fmt: skip
    learned_from = ["train"]
    return {
        "label": label,
        "method": label.split("@")[0],
        "seeds": [0],
        "learned_from": learned_from,
        "metrics": metrics,
    }
