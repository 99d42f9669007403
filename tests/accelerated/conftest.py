"""Leaves out the tests of compiled code where there is none: they import it."""

from __future__ import annotations

from pflcli.engine import backend

collect_ignore_glob = ["test_*.py"] if backend.why_off() else []
