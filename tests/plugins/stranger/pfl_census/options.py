"""The options of ``pfl census``."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pflcli.options.declaration import ArtifactPath, Options, Out, artifact_argument


@dataclass(frozen=True)
class Census(Options):
    """Count the classes of each client.

    Examples:
        pfl census runs/p -o runs/census
    """

    NAME: ClassVar[str] = "census"

    partition: Annotated[ArtifactPath, artifact_argument("Count in this partition.", "partition")]
    out: Out
