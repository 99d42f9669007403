"""What tables say of methods that learn from unlabelled test samples."""

from __future__ import annotations

from pathlib import Path

from pflcli.artifacts.reader import open_artifact

TRANSDUCTIVE = Path(__file__).parents[2] / "laws" / "plugins" / "right" / "method_transductive.py"


def test_transductive_method_is_marked_in_artifacts_tables_and_lists(small, tmp_path, pfl):
    settings = ("--model", "mlp", "--rounds", 1, "--threads", 1)
    out = tmp_path / "c"
    ran = pfl("compare", small.p, "-o", out, "--methods", f"fedavg,{TRANSDUCTIVE}", *settings)
    assert ran.code == 0, ran.err
    sentence = "transductive: method-transductive predicts a test sample with the help of the client's other test"
    assert sentence in ran.err
    assert sentence in (out / "comparison" / "table.md").read_text()
    (made,) = [path for path in (out / "seed-0").iterdir() if "transductive" in path.name]
    assert open_artifact(made).manifest.summary["transductive"] is True
    assert "transductive" not in open_artifact(out / "seed-0" / "fedavg").manifest.summary
    assert '"transductive": true' in pfl("list", "methods", TRANSDUCTIVE, "--json").out
