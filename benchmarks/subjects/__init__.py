"""Libraries under measurement, one file each: every file runs as a process of its own, in its library's environment.

``python -m subjects.NAME TASK`` (TASK: a ``work.Task`` in JSON) trains a warm-up round and then ``rounds`` more, and
writes what it measured into ``task.out``. They use pfl's models and draws, which need only NumPy and PyTorch.
"""
