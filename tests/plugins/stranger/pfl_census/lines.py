"""Lines ``client label number number``, which ``lines:FILE`` names."""

import hashlib

import numpy as np

from pflcli.data.formats import RawSamples


class Lines:
    """A file."""

    count = 1

    def __init__(self, path):
        """Open it."""
        self.text = path.read_text()

    def sha256(self):
        """Return the hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


find = Lines


def recognize(path):
    """Return the file, if its name says so."""
    return (path, [f"pfl import lines:{path} -o DIR"]) if path.suffix == ".lines" else None


def read(found, asked, advance):
    """Read a client, a label and numbers from each line."""
    rows = [line.split() for line in found.text.splitlines()]
    advance(1, "")
    return RawSamples(
        x=np.array([row[2:] for row in rows], np.float32),
        label=np.array([row[1] for row in rows]),
        owner=np.array([row[0] for row in rows]),
        place=lambda sample, role, index: f"line {sample + 1}",
        declares_classes=True,
    )
