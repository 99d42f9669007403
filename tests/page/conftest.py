"""Pages without a browser: the script and the pictures that stand in are left out, as making them takes seconds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import synthetic

from pflcli.commands.compare import compare
from pflcli.page import bundle


@pytest.fixture
def quick(monkeypatch):
    """Leave out what takes seconds."""
    monkeypatch.setattr(bundle, "javascript", lambda: "/* Vega */")
    monkeypatch.setattr(bundle, "still", lambda spec, is_wide: "data:image/png;base64,AA==")


@pytest.fixture(scope="session")
def compared(small, tmp_path_factory):
    """A real comparison of four methods, beside it its runs; only to be read."""
    at = tmp_path_factory.mktemp("compared")
    compare(
        [small.p],
        at / "c",
        methods=["fedavg", "knn-per", "panm"],
        seeds=[0, 1],
        settings={"model": "logistic", "rounds": 3, "participation": 1.0, "eval_every": 1},
    )
    return SimpleNamespace(path=at / "c" / "comparison", out=at / "c", partition=small.p)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """A comparison whose clients and methods have names that are markup elsewhere."""
    at = tmp_path_factory.mktemp("hostile") / "comparison"
    return synthetic.comparison(at, ["fedavg", "local@</script>", "<b>knn</b>"], synthetic.HOSTILE)
