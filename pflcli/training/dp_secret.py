"""The seed of the noise of a run with differential privacy: a secret of that run, or derived from ``--dp-seed``.

Composition of guarantees assumes that the noise of two runs is independent. Anything that two runs can share, such as
``--seed``, must therefore not determine the noise. A run draws a secret from the operating system when it starts. The
secret is stored with the unfinished run, so that a resumed run gives the same bytes, and then in the artifact.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets

from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.errors import InputError
from pflcli.settings import Settings

FILE = "dp_secret.txt"
"""The file of an artifact that contains the secret of its noise. It must not be released."""
_TEXT = "The noise of this run can be computed from this secret and subtracted. Never release this file.\n"


def noise_seed(settings: Settings, spec: ArtifactSpec, partition: Artifact, writer: ArtifactWriter) -> int | None:
    """Return the seed of noise and cohorts of the run that ``writer`` writes, None without differential privacy.

    With ``dp_seed``, the seed also depends on the request and on the samples of the ``partition``, so that two runs
    with different options or data have independent noise even then. Raises InputError if the file is damaged.
    """
    if not settings.dp:
        return None
    if settings.dp_seed is not None:
        samples = sorted((name, facts["sha256"]) for name, facts in partition.manifest.files.items())
        key = json.dumps([settings.dp_seed, spec.fingerprint, samples])
        return int.from_bytes(hashlib.sha256(key.encode()).digest())
    content = writer.read_or_make(FILE, f"{_TEXT}{secrets.token_hex(32)}\n".encode)
    match = re.fullmatch(rf"{re.escape(_TEXT)}([0-9a-f]{{64}})\n", content.decode("utf-8", "replace"))
    if match is None:
        raise InputError(f"{writer.folder / FILE} is damaged", f"remove it (rm -r {writer.folder}), and start again")
    return int(match[1], 16)
