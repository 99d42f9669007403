"""``pfl report``: where it writes, which files it replaces, and messages about missing parts."""

from __future__ import annotations

import base64
import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers import error_text
from pflcli.artifacts import plain_output
from pflcli.artifacts.kinds import federation as federations
from pflcli.artifacts.open_by_path import open_one
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.plugins.audits.audit import audit
from pflcli.plugins.page.report import report

GOLDEN = Path(__file__).parents[2] / "golden"


pytestmark = pytest.mark.usefixtures("without_vega")


def list_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_report_prints_its_path_and_the_conclusion(small, tmp_path, pfl):
    result = pfl("report", small.ev, "-o", tmp_path / "report.html")
    assert (result.code, result.out) == (0, f"{tmp_path / 'report.html'}\n")
    assert "fedavg" in result.err
    data = ["1-clients.csv", "1-methods.csv", "1-rounds.csv", "report.json"]
    assert list_files(tmp_path) == ["report.html", *(f"report_data/{name}" for name in data)]
    index = json.loads((tmp_path / "report_data" / "report.json").read_text())
    assert index["comparisons"][0]["answer"][0] == result.err.strip()
    assert (tmp_path / "report_data" / "1-clients.csv").read_bytes() == (small.ev / "clients.csv").read_bytes()


def test_report_shows_audits_in_the_last_section(small, tmp_path):
    folder = tmp_path / "<audit>"
    audit(small.fedavg, folder)
    page = report([folder, small.ev], tmp_path / "report.html")
    assert len(page.answers) == 1
    *_, last = page.path.read_text().split("<section")
    assert last.startswith(' id="audits"')
    rows = list(csv.DictReader((folder / "table.csv").open()))
    assert last.count("<tr>") == len(rows) + 1
    assert all(f"<td>{row['attack']}</td>" in last for row in rows)
    assert "&lt;audit&gt;" in last
    assert base64.b64encode((folder / "audit.png").read_bytes()).decode() in last
    assert (page.data / "audit-1-table.csv").read_bytes() == (folder / "table.csv").read_bytes()
    strongest = max(rows, key=lambda row: float(row["auc"]))
    answer = json.loads((page.data / "report.json").read_text())["audits"][0]["answer"]
    assert answer.startswith("fedavg: an attacker who sees")
    assert f"AUC {float(strongest['auc']):.3f}" in answer


@pytest.mark.parametrize("at", sorted(GOLDEN.glob("schema-*")), ids=lambda path: path.name)
def test_report_shows_artifacts_of_old_schema_versions(at, tmp_path):
    page = report([at / "comparison", at / "evaluation"], tmp_path / "report.html")
    assert len(page.answers) == 2
    text = page.path.read_text()
    assert text.count('class="comparison"') == 2
    for answer in ("No gain was shown: stay with the global model", "local has the best accuracy, "):
        assert answer in text


def test_report_says_what_leaves_the_sites_of_a_federation(small, tmp_path):
    federation = GOLDEN / "schema-1" / "federation"
    agreed = federations.read_exchange(open_one(federation))
    page = report(federation, tmp_path / "report.html")
    (answer,) = page.answers
    assert f"{agreed['method']} runs among {len(agreed['clients'])} sites in {agreed['rounds']} round" in answer
    assert f"receives {agreed['bytes_down']:,} bytes and sends {agreed['bytes_up']:,}:" in answer
    text = page.path.read_text()
    assert text.count("<section") == 1
    for name, count in agreed["clients"].items():
        assert f"<tr><td>{name}</td><td>{count}</td></tr>" in text
    (channel,) = open_one(federation).manifest.request["exchange"]["round"][0]["channels"]
    uploads = channel["tensors"]
    assert agreed["bytes_up"] == sum(int(np.prod(shape)) * np.dtype(kind).itemsize for _, kind, shape in uploads)
    assert all(f"<td>{name}</td><td>{kind}</td>" in text for name, kind, _ in uploads)
    (stored,) = json.loads((page.data / "report.json").read_text())["federations"]
    assert stored["clients"] == agreed["clients"]
    both = report([federation, small.ev], tmp_path / "both.html")
    *_, last = both.path.read_text().split("<section")
    assert last.startswith(' id="federations"')
    assert both.answers[1:] == [answer]


def test_report_replaces_its_own_page_and_removes_leftover_files(small, tmp_path):
    shutil.copytree(small.ev, tmp_path / "ev2")
    report([small.ev, tmp_path / "ev2"], tmp_path / "report.html")
    assert "report_data/2-clients.csv" in list_files(tmp_path)
    (tmp_path / "report_data" / "notes.txt").write_text("mine")
    report([small.ev], tmp_path / "report.html")
    assert "report_data/2-clients.csv" not in list_files(tmp_path)
    assert "report_data/notes.txt" in list_files(tmp_path)


@pytest.mark.parametrize("name", ["report.html", "report_data/thesis.txt"])
def test_report_replaces_a_foreign_file_only_with_force(small, tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("<html>my thesis</html>")
    with pytest.raises(ConflictError) as error:
        report([small.ev], tmp_path / "report.html")
    assert "--force" in error_text(error)
    assert list_files(tmp_path) == [name]
    report([small.ev], tmp_path / "report.html", force=True)
    assert (tmp_path / "report_data" / "report.json").is_file()
    assert name == "report.html" or path.read_text() == "<html>my thesis</html>"


@pytest.mark.parametrize("name", ["report", "report.pdf", ""])
def test_report_refuses_an_output_without_html_suffix(small, tmp_path, name):
    with pytest.raises(UsageError):
        report([small.ev], tmp_path / name)


def test_report_refuses_to_write_into_its_input(small_copy):
    with pytest.raises(ConflictError):
        report([small_copy.ev], small_copy.ev / "report.html")


def test_report_refuses_artifacts_of_the_wrong_kind_or_given_twice(small, tmp_path):
    with pytest.raises(InputError, match="needs a comparison or an evaluation"):
        report([small.p], tmp_path / "report.html")
    with pytest.raises(UsageError, match="not only audits"):
        report([audit(small.fedavg, tmp_path / "audit").path], tmp_path / "report.html")
    with pytest.raises(UsageError, match="given twice"):
        report([small.ev, small.root / "." / "ev"], tmp_path / "report.html")


def test_report_shows_a_folder_name_that_is_not_utf8(small, tmp_path):
    folder = tmp_path / "runs-\udcff"
    shutil.copytree(small.ev, folder / "ev")
    assert b"runs-?" in report([folder / "ev"], tmp_path / "report.html").path.read_bytes()


def test_failed_report_keeps_the_old_page(small, tmp_path, monkeypatch):
    report([small.ev], tmp_path / "report.html")
    before = (tmp_path / "report.html").read_bytes()
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InputError, match="No space left"):
        report([small.ev], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == before
    assert not [name for name in list_files(tmp_path) if "/." in name or name.startswith(".")]


@pytest.mark.parametrize("written", [1, 2])
def test_report_can_be_repeated_after_a_failed_write(small, tmp_path, monkeypatch, written):
    replace, paths = plain_output.replace_file, []

    def full(path, content):
        if len(paths) == written:
            raise OSError(28, "No space left on device")
        paths.append(path)
        replace(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(plain_output, "replace_file", full)
        with pytest.raises(InputError, match="No space left"):
            report([small.ev], tmp_path / "report.html")
    report([small.ev], tmp_path / "report.html")


def test_report_error_lists_the_artifacts_in_a_folder(small, tmp_path, pfl):
    result = pfl("report", small.root, "-o", tmp_path / "report.html")
    assert result.code == 3
    assert f"{small.root} is not a pfl artifact: it has no manifest.json\n     it contains: {small.au}, " in result.err
    (tmp_path / "empty").mkdir()
    assert pfl("report", tmp_path / "empty", "-o", tmp_path / "report.html").err.count("\n") == 1
