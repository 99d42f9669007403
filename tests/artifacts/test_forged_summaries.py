"""Summaries that do not describe their files, with a seal made anew: commands end with one error and no traceback."""

from __future__ import annotations

import json

import pytest

from pflcli.artifacts import manifest as manifests

COMMANDS = {
    "p": ("compare {path} -o {out} --methods constant,local --rounds 1 --model logistic --no-references",),
    "b": ("extract {path} -o {out}",),
    "e": ("build-datastore {path} -o {out}", "sweep {path} -o {out}"),
    "d": ("personalize knn-per {path} -o {out}",),
    "knn": ("evaluate {path} -o {out}", "audit {path} -o {out}"),
}
"""Commands that compute with what they read, by the artifact of the chain that is forged."""


def forge(folder, change):
    file = folder / manifests.NAME
    fields = json.loads(file.read_text())
    fields.pop("seal", None)
    change(fields["summary"])
    file.write_text(json.dumps({**fields, "seal": manifests.digest(fields)}))


def replace_integers(value):
    def change(summary):
        for name in [name for name, old in summary.items() if type(old) is int]:
            summary[name] = value

    return change


@pytest.mark.parametrize("value", [-(10**30), -1, 2**60])
@pytest.mark.parametrize("name", COMMANDS)
def test_counts_that_no_artifact_has_are_refused_when_they_are_read(small_copy, tmp_path, pfl, name, value):
    path = small_copy.root / name
    forge(path, replace_integers(value))
    for line in COMMANDS[name]:
        ran = pfl(*line.format(path=path, out=tmp_path / "out").split())
        assert ran.code == 3, ran.err
        assert "is damaged: its summary has" in ran.err


@pytest.mark.parametrize(
    ("name", "field"),
    [("p", "clients"), ("p", "train"), ("p", "samples"), ("e", "dimension"), ("e", "samples"), ("e", "clients")],
)
@pytest.mark.parametrize("other", [1, 2**20])
def test_a_summary_that_differs_from_the_data_is_refused(small_copy, tmp_path, pfl, name, field, other):
    path = small_copy.root / name
    forge(path, lambda summary: summary.update({field: other}))
    ran = pfl(*COMMANDS[name][0].format(path=path, out=tmp_path / "out").split())
    assert ran.code in (3, 5), ran.err
    assert "inconsistent" in ran.err
    assert "a bug" not in ran.err


def test_a_dataset_without_clients_is_not_damaged(tmp_path, pfl):
    (tmp_path / "t.csv").write_text("y,a\n" + "0,1\n1,2\n" * 12)
    pfl("import", tmp_path / "t.csv", "--client", "none", "--label", "y", "-o", tmp_path / "d")
    assert pfl("partition", tmp_path / "d", "--scheme", "iid", "--clients", 2, "-o", tmp_path / "p").code == 0
