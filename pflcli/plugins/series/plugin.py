"""Windows of long records: ``--window``, ``--horizon`` and ``--every`` of ``pfl import``."""

STEPS = {"window": {"apply": "windows:apply"}}
