"""Compiled loops of the engine and of some methods, which change nothing but speed."""

BACKENDS = {"accelerated": {"needs": "numba"}}
