"""Personalized federated learning as composable commands over artifacts on disk.

Each command is a function: ``from pflcli import partition, compare``; ``pfl site check`` is
``pflcli.site.check``. ``simulate`` runs a method on a ``Federation`` in memory. A name is imported when it is first
used, so that ``pfl --help`` imports neither NumPy nor torch.
"""

from __future__ import annotations

import gc
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pflcli.commands.build_datastore import build_datastore
    from pflcli.commands.compare import compare
    from pflcli.commands.embed import embed
    from pflcli.commands.evaluate import evaluate
    from pflcli.commands.extract import extract
    from pflcli.commands.import_data import import_data
    from pflcli.commands.new_client import new_client
    from pflcli.commands.partition import partition
    from pflcli.commands.personalize import personalize
    from pflcli.commands.predict import predict
    from pflcli.commands.stack import stack
    from pflcli.commands.train_global import train_global
    from pflcli.commands.tune import tune
    from pflcli.core.simulation.callbacks import Callback, EarlyStopping
    from pflcli.core.simulation.federation import Federation
    from pflcli.core.simulation.simulate import simulate
    from pflcli.evaluation.in_memory import table
    from pflcli.plugins.audits.audit import audit
    from pflcli.plugins.checks.check import check
    from pflcli.plugins.checks.new import new
    from pflcli.plugins.claims.verify import verify
    from pflcli.plugins.demo.demo import demo
    from pflcli.plugins.export.export import export
    from pflcli.plugins.knn_tools.sweep import sweep
    from pflcli.plugins.knn_tools.update_datastore import update_datastore
    from pflcli.plugins.page.plot import plot
    from pflcli.plugins.page.report import report
    from pflcli.plugins.referee.import_predictions import import_predictions
    from pflcli.plugins.replay.replay import replay
    from pflcli.plugins.sites.api import federation, site
    from pflcli.plugins.tracking.live import Tracker
    from pflcli.plugins.tracking.track import track

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "EarlyStopping",
    "Federation",
    "Tracker",
    "audit",
    "build_datastore",
    "check",
    "compare",
    "demo",
    "embed",
    "evaluate",
    "export",
    "extract",
    "federation",
    "import_data",
    "import_predictions",
    "new",
    "new_client",
    "partition",
    "personalize",
    "plot",
    "predict",
    "replay",
    "report",
    "simulate",
    "site",
    "stack",
    "sweep",
    "table",
    "track",
    "train_global",
    "tune",
    "update_datastore",
    "verify",
]


_PLUGINS = {
    "audits": ("audit",), "checks": ("check", "new"), "claims": ("verify",), "demo": ("demo",), "export": ("export",),
    "knn_tools": ("sweep", "update_datastore"), "page": ("plot", "report"), "referee": ("import_predictions",),
    "replay": ("replay",), "tracking": ("track",),
}  # fmt: skip
"""The functions of plug-ins that are in the module of their name."""
_MODULES = {
    "Callback": "core.simulation.callbacks",
    "EarlyStopping": "core.simulation.callbacks",
    "Federation": "core.simulation.federation",
    "Tracker": "plugins.tracking.live",
    "simulate": "core.simulation.simulate",
    "table": "evaluation.in_memory",
    **{name: f"plugins.{plug}.{name}" for plug, names in _PLUGINS.items() for name in names},
    **{name: f"plugins.sites.api.{name}" for name in ("federation", "site")},
}
"""The modules that define public names, if they are not named like a module of ``commands``."""
for _name, _module in _MODULES.items():
    _folder = Path(__file__).parent.joinpath(*_module.split(".")[:2])
    if _module.startswith("plugins.") and not (_folder / "plugin.py").is_file():
        __all__.remove(_name)  # of a plug-in that is not installed


def __getattr__(name: str) -> Any:
    """Import a public name; raises AttributeError for every other name, and for one of a plug-in that is missing."""
    module = _MODULES.get(name, f"commands.{name}")
    if name not in __all__:
        plug = f": it is of the plug-in {module.split('.')[1]}, which is not installed" if name in _MODULES else ""
        raise AttributeError(f"module 'pflcli' has no attribute '{name}'{plug}")
    collects = gc.isenabled()
    gc.disable()  # collections, which free nothing, would take a fifth of the time to import PyTorch
    try:
        home = importlib.import_module(f"pflcli.{module}")
    finally:
        (gc.enable if collects else gc.disable)()
    return globals().setdefault(name, getattr(home, name, home))  # the commands of a group are a module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
