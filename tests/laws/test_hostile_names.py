"""Every client and class name that ``pfl import`` accepts works in all other commands."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from pflcli.artifacts import csv_file

NAMES = [
    *(
        "constructor",
        "toString",
        "__proto__",
        "hasOwnProperty",
        "=1+1|cmd",
        "-@x",
        "../../x",
        "$(touch PWN)",
        "a,b\n'c'",
    ),
    *("\x1b[31mred", "\x01", "\x7f", "\ufffe", "\u202eleft", "<script>alert(1)</script>", "n" * 255, "日本", "🙂"),
]
CLASSES = ["constructor", "\x1btoString"]
QUICK = ("--model", "logistic", "--rounds", "1", "--threads", "1")


def write_dataset(path, names=NAMES, classes=CLASSES):
    rng = np.random.default_rng(0)
    owner = np.repeat(np.asarray(names), 10)
    y = np.asarray(classes)[rng.integers(0, len(classes), len(owner))]
    np.savez(path, x=rng.normal(size=(len(owner), 3)), y=y, owner=owner)
    return path


def test_every_client_and_class_name_that_import_accepts_works_in_all_commands(pfl, tmp_path):
    d, p, c = tmp_path / "d", tmp_path / "p", tmp_path / "c"
    data = write_dataset(tmp_path / "data.npz")
    assert pfl("import", data, "-o", d, "--client", "owner", "--label", "y").code == 0
    assert pfl("partition", d, "-o", p, "--scheme", "natural").code == 0
    assert pfl("show", p).code == 0
    ran = pfl("compare", p, "-o", c, "--methods", "fedavg,local", *QUICK)
    assert ran.code == 0, ran.err
    assert pfl("compare", p, "-o", c, "--methods", "fedavg,local,ditto", *QUICK, "--plan", "sh").code == 0
    assert pfl("show", c / "comparison").code == 0
    assert pfl("evaluate", c / "seed-0" / "local", c / "seed-0" / "fedavg", "-o", tmp_path / "e").code == 0
    ran = pfl("report", c / "comparison", "-o", tmp_path / "report.html")
    assert ran.code == 0, ran.err
    assert not (tmp_path / "PWN").exists()
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    for name in NAMES:
        ran = pfl("predict", c / "seed-0" / "local", tmp_path / "x.npy", f"--client={name}")
        assert ran.code == 0, (name, ran.err)
    for name in ("constructor", "\x1b[31mred", "../../x"):
        pytest.importorskip("onnxruntime")
        ran = pfl("export", c / "seed-0" / "local", "-o", tmp_path / "out", f"--client={name}", "-f")
        assert ran.code == 0, (name, ran.err)
        assert json.loads((tmp_path / "out" / "model.json").read_text())["client"] == name


def test_escape_formulas_quotes_csv_cells_that_a_spreadsheet_would_evaluate():
    table = csv_file.encode(["client", "score"], [["=1+1|cmd", -0.5], ["-@x", "-inf"], ["+a", "+1e3"], ["\tb", "@c"]])
    rows = list(csv.reader(csv_file.escape_formulas(table).decode().splitlines()))
    assert rows[1:] == [["'=1+1|cmd", "-0.5"], ["'-@x", "-inf"], ["'+a", "+1e3"], ["'\tb", "'@c"]]


@pytest.mark.parametrize("name", ["a\ud800b", "a\0b"])
@pytest.mark.parametrize("role", ["client", "class"])
def test_import_refuses_a_client_or_class_name_that_cannot_be_stored(pfl, tmp_path, name, role):
    names, classes = (["ok", name], CLASSES) if role == "client" else (["ok", "too"], ["ok", name])
    ran = pfl("import", write_dataset(tmp_path / "data.npz", names, classes), "-o", tmp_path / "d", "--client", "owner")
    assert ran.code == 3
    assert "cannot be stored" in ran.err
    assert ascii(name) in ran.err
    assert not (tmp_path / "d").exists()
