"""The output folders of ``pfl compare`` and ``pfl tune`` are accepted in place of an artifact."""

from __future__ import annotations

import pytest

QUICK = ("--model", "logistic", "--rounds", 1)


@pytest.fixture
def comparison_folder(pfl, small, tmp_path):
    ran = pfl("compare", small.p, "-o", tmp_path / "c", "--methods", "fedavg,local", "--seeds", "0,1", *QUICK)
    assert ran.code == 0, ran.err
    return tmp_path / "c"


def test_commands_accept_the_folder_of_a_comparison(pfl, comparison_folder, tmp_path):
    assert pfl("show", comparison_folder).out == pfl("show", comparison_folder / "comparison").out
    all_of_it = pfl("evaluate", comparison_folder, "-o", tmp_path / "e", "--json")
    assert all_of_it.code == 0, all_of_it.err
    one = pfl("evaluate", comparison_folder, "-o", tmp_path / "one", "--method", "local", "--seed", 1)
    assert one.code == 0, one.err
    direct = pfl("evaluate", comparison_folder / "seed-1" / "local", "-o", tmp_path / "direct")
    assert direct.code == 0, direct.err
    for name in ("clients.csv", "metrics.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "direct" / name).read_bytes()
    assert pfl("stack", comparison_folder, "-o", tmp_path / "stack", "--seed", 0).code == 0


def test_predict_on_a_comparison_needs_one_method_and_seed(pfl, comparison_folder, small, tmp_path):
    words = ("predict", comparison_folder, tmp_path / "x.csv", "--client", "none")
    several = pfl(*words)
    assert several.code == 2
    assert "contains 4 predictions, but one is needed" in several.err
    assert "seed-0/fedavg" in several.err
    none = pfl(*words, "--method", "ditto", "--seed", 1)
    assert none.code == 2
    assert "has no predictions of --method ditto and --seed 1" in none.err
    found = pfl(*words, "--method", "local", "--seed", 1)
    assert "x.csv" in found.err  # the predictions were found; the data are missing


def test_commands_accept_the_folder_of_a_tuning(pfl, small, tmp_path):
    ran = pfl("tune", "fedavg", small.p, "-o", tmp_path / "t", "--search", "training.lr=0.01,0.1", *QUICK)
    assert ran.code == 0, ran.err
    assert pfl("show", tmp_path / "t").out == pfl("show", tmp_path / "t" / "tuning").out
    ran = pfl("evaluate", tmp_path / "t", "-o", tmp_path / "e")
    assert ran.code == 0, ran.err


def test_show_refuses_a_folder_without_an_artifact(pfl, tmp_path):
    (tmp_path / "empty").mkdir()
    ran = pfl("show", tmp_path / "empty")
    assert ran.code == 3
    assert "is not a pfl artifact" in ran.err
