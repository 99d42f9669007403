"""The commands of ``pfl federation`` and ``pfl site`` in Python: ``pflcli.federation`` and ``pflcli.site``."""
