"""Print accuracy and AUC of each defence: python examples/defences.py DIR..., after examples/defences.sh has made DIR.

The accuracy is that of the class that leaves, on test samples. The AUC is that of the strongest attack on membership,
with its 95 % interval.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import follow, open_artifact
from pflcli.plugins.audits import kind as audits


def main() -> int:
    """Print a row for each audit below the folders, with columns for each folder."""
    folders = [Path(path) for path in sys.argv[1:]]
    defences = list(dict.fromkeys(path.name for folder in folders for path in sorted((folder / "audit").iterdir())))
    columns = [f"{folder.name}: {title}" for folder in folders for title in ("accuracy", "AUC")]
    print(f"| answers | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name in defences:
        print(f"| `{name}` | {' | '.join(_cells(folder / 'audit' / name) for folder in folders)} |")
    return 0


def _cells(path: Path) -> str:
    """Return accuracy and AUC of one audit; dashes if there is none."""
    if not path.is_dir():
        return "- | -"
    artifact = open_artifact(path)
    (source,) = [item for item in artifact.manifest.inputs if item.role == "predictions"]
    test = predictions.read(follow(artifact, source), "test")
    accuracy = float((test.parts["p"].argmax(axis=1) == test.y).mean())
    content = audits.read(artifact)
    best = max(content["attacks"], key=lambda row: row["auc"])
    area = f"{best['auc']:.2f} [{best['auc_low']:.2f}, {best['auc_high']:.2f}]"
    return f"{100 * accuracy:.1f} | {area}"


if __name__ == "__main__":
    raise SystemExit(main())
