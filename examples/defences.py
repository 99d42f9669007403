"""Print accuracy and AUC of each defence: `python examples/defences.py DIR`, after examples/defences.sh has made DIR.

The accuracy is that of the class that leaves, on test samples. The AUC is that of the strongest attack on membership.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pflcli.artifacts.kinds import audit as audits
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import follow, open_artifact


def main() -> int:
    """Print a row for each audit below the folder."""
    print("| answers | accuracy | strongest attack | AUC | classes recognized | correlation |")
    print("|---|---:|---|---:|---:|---:|")
    for path in sorted((Path(sys.argv[1]) / "audit").iterdir()):
        artifact = open_artifact(path)
        (source,) = [item for item in artifact.manifest.inputs if item.role == "predictions"]
        test = predictions.read(follow(artifact, source), "test")
        accuracy = float((test.parts["p"].argmax(axis=1) == test.y).mean())
        content = audits.read(artifact)
        best = max(content["attacks"], key=lambda row: row["auc"])
        inverted = content.get("inverted")
        drawn = (
            f"{inverted['recognized']} of {inverted['classes']} | {inverted['correlation']:.2f}" if inverted else "|"
        )
        area = f"{best['auc']:.2f} [{best['auc_low']:.2f}, {best['auc_high']:.2f}]"
        print(f"| {path.name} | {100 * accuracy:.1f} | `{best['attack']}` | {area} | {drawn} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
