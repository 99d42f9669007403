"""Personalized federated learning as composable commands over artifacts on disk.

Each command is a function: ``from pflcli import partition, compare``. ``simulate`` runs a method on a ``Federation`` in
memory. A name is imported when it is first used, so that ``pfl --help`` imports neither NumPy nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pflcli.commands.audit import audit
    from pflcli.commands.build_datastore import build_datastore
    from pflcli.commands.check import check
    from pflcli.commands.compare import compare
    from pflcli.commands.demo import demo
    from pflcli.commands.embed import embed
    from pflcli.commands.evaluate import evaluate
    from pflcli.commands.export import export
    from pflcli.commands.extract import extract
    from pflcli.commands.federation import check_federation, create_federation, run_federation
    from pflcli.commands.import_data import import_data
    from pflcli.commands.new_client import new_client
    from pflcli.commands.partition import partition
    from pflcli.commands.personalize import personalize
    from pflcli.commands.predict import predict
    from pflcli.commands.report import report
    from pflcli.commands.site import answer_message, check_site, serve_site
    from pflcli.commands.stack import stack
    from pflcli.commands.sweep import sweep
    from pflcli.commands.track import track
    from pflcli.commands.train_global import train_global
    from pflcli.commands.tune import tune
    from pflcli.commands.update_datastore import update_datastore
    from pflcli.commands.verify import verify
    from pflcli.core.simulation.callbacks import Callback, EarlyStopping
    from pflcli.core.simulation.federation import Federation
    from pflcli.core.simulation.simulate import simulate
    from pflcli.evaluation.in_memory import table
    from pflcli.tracking.live import Tracker

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "EarlyStopping",
    "Federation",
    "Tracker",
    "answer_message",
    "audit",
    "build_datastore",
    "check",
    "check_federation",
    "check_site",
    "compare",
    "create_federation",
    "demo",
    "embed",
    "evaluate",
    "export",
    "extract",
    "import_data",
    "new_client",
    "partition",
    "personalize",
    "predict",
    "report",
    "run_federation",
    "serve_site",
    "simulate",
    "stack",
    "sweep",
    "table",
    "track",
    "train_global",
    "tune",
    "update_datastore",
    "verify",
]


_MODULES = {
    "Callback": "core.simulation.callbacks",
    "EarlyStopping": "core.simulation.callbacks",
    "Federation": "core.simulation.federation",
    "Tracker": "tracking.live",
    "simulate": "core.simulation.simulate",
    "table": "evaluation.in_memory",
    **dict.fromkeys(("check_federation", "create_federation", "run_federation"), "commands.federation"),
    **dict.fromkeys(("answer_message", "check_site", "serve_site"), "commands.site"),
}
"""The modules that define public names, if they are not named like a module of ``commands``."""


def __getattr__(name: str) -> Any:
    """Import a public name; raises AttributeError for every other name."""
    if name not in __all__:
        raise AttributeError(f"module 'pflcli' has no attribute '{name}'")
    module = _MODULES.get(name, f"commands.{name}")
    value = getattr(importlib.import_module(f"pflcli.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
