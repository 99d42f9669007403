"""``compare --plan``: scripts whose jobs make the same artifacts and the same table as one command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import slurm_cluster
import trying
from pflcli.commands.compare import compare
from pflcli.commands.partition import partition
from pflcli.core.errors import ComputationError
from pflcli.methods import ditto

HOSTILE = 'it\'s a "run" of $HOME `x` & 50'
FEW = ("--model", "logistic", "--rounds", 1, "--participation", 1.0)
LINE = ("--no-references", "--methods", "fedavg,knn-per,local,stack", "--seeds", "1", *FEW)
# One write for all words: programs that run at the same time must not mix their lines.
RECORDER = '#!/bin/sh\nwords=$(printf "%s\\n" "$@")\nprintf "%s\\nEND\\n" "$words" >> "$LOG"\n'
REAL = '#!/bin/sh\nexec "{python}" -m pflcli "$@"\n'
STAND_IN = """#!/bin/sh
path=comparison before=
for word; do [ "$before" != --only ] || path=$word; before=$word; done
echo "$path" >> "$LOG"
case $path in seed-0/local) exit 5;; esac
mkdir -p "$OUT/$path"; touch "$OUT/$path/manifest.json"
[ $path != comparison ] || [ -e "$OUT/seed-0/local" ] || exit 5
"""


@pytest.fixture(scope="module")
def writers_folder(tmp_path_factory):
    """A folder of a hostile name with a partition ``p``, and ``one``, the comparison as one command makes it."""
    at = tmp_path_factory.mktemp("plan") / HOSTILE
    partition("writers", at / "p", clients=4, seed=0)
    line = ["compare", at / "p", "-o", at / "one", *LINE, "--threads", 1]
    subprocess.run([sys.executable, "-m", "pflcli", *map(str, line)], check=True, capture_output=True)
    return at


@pytest.fixture
def install_programs(tmp_path, monkeypatch):
    """Put programs in the path, by name; ``pfl`` writes its words to the file LOG."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("COUNTER", str(tmp_path / "jobs"))

    def install(**programs):
        for name, text in programs.items():
            (tmp_path / "bin" / name).write_text(text)
            (tmp_path / "bin" / name).chmod(0o755)

    install(pfl=RECORDER, sbatch=slurm_cluster.SBATCH)
    return install


def read_log(tmp_path):
    return [text.splitlines() for text in (tmp_path / "log").read_text().split("END\n") if text]


def print_plan(pfl, form, *line):
    ran = pfl("compare", *line, f"--plan={form}")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    return ran.out


def run_all(pfl, lines, every_time=lambda line: None):
    """Run command lines in this process; a run that fails by itself holds up nothing."""
    for line in lines:
        ran = pfl(*line)
        assert ran.code in (0, 5 if "--only" in line else 0), ran.err
        every_time(line)


def fail_on_training(*args):
    raise AssertionError("something is trained")


@pytest.mark.parametrize("form", ["sh", "make", pytest.param("slurm", marks=pytest.mark.long)])
@pytest.mark.usefixtures("drawn_pictures")
def test_jobs_of_a_planned_script_make_the_table_of_a_single_command(
    form, writers_folder, tmp_path, install_programs, pfl, monkeypatch
):
    """The shell and make really run the script, with a ``pfl`` that records its words; these then run here."""
    work = tmp_path / HOSTILE
    shutil.copytree(writers_folder / "p", work / "p")
    out = work / "c"
    script = tmp_path / "script"
    script.write_text(print_plan(pfl, form, work / "p", "-o", out, *LINE))
    programs = {"sh": ["sh"], "slurm": ["bash"], "make": ["make", "-j2", "-f"]}
    subprocess.run([*programs[form], script], check=True, cwd=tmp_path, capture_output=True)
    lines = read_log(tmp_path)
    *jobs, (*_, last) = lines
    assert last != "--only"
    assert all(line[-2] == "--only" for line in jobs)
    assert len({line[-1] for line in jobs}) == len(jobs) == 7
    run_all(pfl, jobs)
    assert not (out / "comparison").exists()
    monkeypatch.setattr("pflcli.core.simulation.create_run.Engine", fail_on_training)  # the table needs no further run
    run_all(pfl, lines[-1:])
    assert trying.content(out) == trying.content(writers_folder / "one")
    if form == "make":
        again = subprocess.run(["make", "-n", "-f", script], check=True, cwd=tmp_path, capture_output=True, text=True)
        assert "is up to date" in again.stdout
        assert "pfl" not in again.stdout.replace("pfl-", "").replace(str(out), "")
    else:
        (tmp_path / "log").unlink()
        subprocess.run([*programs[form], script], check=True, cwd=tmp_path, capture_output=True)
        assert len(read_log(tmp_path)) == {"sh": 8, "slurm": 1}[form]  # a job that finds its artifact starts no pfl


def test_slurm_array_depends_on_the_previous_one_and_its_tasks_divide_the_jobs(
    writers_folder, tmp_path, install_programs, pfl, monkeypatch
):
    line = ["0,1" if word == "1" else word for word in LINE]
    script = print_plan(pfl, "slurm", writers_folder / "p", "-o", tmp_path / "c", *line)
    monkeypatch.setenv("PFL_TASKS", "3")
    subprocess.run(["bash", "-s", "--", "--time=5"], input=script, check=True, text=True, capture_output=True)
    submitted = (tmp_path / "jobs.log").read_text().splitlines()
    usual = "--parsable --requeue --kill-on-invalid-dep=yes"
    assert submitted[0] == f"{usual} --job-name=pfl-1 --array=0-2 --time=5"
    assert submitted[1] == f"{usual} --dependency=afterok:100 --job-name=pfl-2 --array=0-2 --time=5"
    assert submitted[-1] == f"{usual} --dependency=afterok:104 --job-name=pfl-table --time=5"
    first = [line[-1] for line in read_log(tmp_path)[:3]]
    assert first == ["seed-0/backbone,seed-1/local", "seed-0/local", "seed-1/backbone"]
    assert read_log(tmp_path)[0][-4:-2] == ["--threads", "1"]


def make_tuned_line(*more):
    return ("--methods", "fedavg,knn-per,ditto,fedavg-plus", *FEW, *more)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(make_tuned_line("--tune", 2, "--seeds", "0,1"), marks=pytest.mark.long),
        pytest.param(make_tuned_line("--refit"), marks=pytest.mark.long),
        pytest.param(make_tuned_line("--tune", 2, "--refit"), marks=pytest.mark.long),
        ("--methods", "fedavg,ditto,knn-per", *FEW, "--tune", 1, "--refit"),
    ],
    ids=["tune", "refit", "tune and refit", "one trial"],
)
def test_planned_jobs_in_any_order_within_a_level_make_the_same_result(
    line, writers_folder, tmp_path, pfl, monkeypatch
):
    """Jobs of one level run in the reverse of their order: none may need another of its level."""
    ran = pfl("compare", writers_folder / "p", "-o", tmp_path / "one", *line)
    assert ran.code == 0, ran.err
    script = print_plan(pfl, "sh", writers_folder / "p", "-o", tmp_path / "c", *line)
    levels = [text.splitlines() for text in script.split("# Any order, or at the same time:\n")[1:]]
    for lines in levels:
        paths = [text.split(" --only ")[1].split()[0] for text in lines if " --only " in text]
        for path in reversed(paths):
            ran = pfl("compare", writers_folder / "p", "-o", tmp_path / "c", *line, "--only", path)
            assert ran.code == 0, ran.err
            assert ran.out.strip() == str(tmp_path / "c" / path)
    monkeypatch.setattr("pflcli.core.simulation.create_run.Engine", fail_on_training)
    assert pfl("compare", writers_folder / "p", "-o", tmp_path / "c", *line).code == 0
    assert trying.content(tmp_path / "c") == trying.content(tmp_path / "one")


def test_plan_supports_several_partitions_and_a_config_file(writers_folder, tmp_path, pfl):
    partition("writers", tmp_path / "p1", clients=4, seed=1)
    (tmp_path / "o.toml").write_text(
        '[compare]\nmethods = "fedavg,ditto"\nrounds = 1\nmodel = "logistic"\n[compare.set.ditto]\nlam = 0.5\n'
    )
    line = (
        writers_folder / "p",
        tmp_path / "p1",
        "--config",
        tmp_path / "o.toml",
        "--set",
        "ditto.epochs=2",
        "--steps",
        1,
    )
    assert pfl("compare", *line, "-o", tmp_path / "one").code == 0
    script = print_plan(pfl, "sh", *line, "-o", tmp_path / "c")
    jobs = [text.split(" --only ")[1].split()[0] for text in script.splitlines() if " --only " in text]
    assert sorted(jobs) == [f"seed-{seed}/{name}" for seed in (0, 1) for name in ("backbone", "ditto", "fedavg")]
    for path in jobs:
        assert pfl("compare", *line, "-o", tmp_path / "c", "--only", path).code == 0
    assert pfl("compare", *line, "-o", tmp_path / "c").code == 0
    assert trying.content(tmp_path / "c") == trying.content(tmp_path / "one")


def test_plan_leaves_out_existing_artifacts(writers_folder, tmp_path, pfl):
    shutil.copytree(writers_folder / "one", tmp_path / "c")
    shutil.rmtree(tmp_path / "c" / "seed-1" / "knn-per")
    shutil.rmtree(tmp_path / "c" / "comparison")
    script = print_plan(pfl, "sh", writers_folder / "p", "-o", tmp_path / "c", *LINE)
    assert [line.split("--only ")[1] for line in script.splitlines() if "--only" in line] == [
        "seed-1/knn-per || [ $? -eq 5 ]",
    ]
    shutil.rmtree(tmp_path / "c")
    shutil.copytree(writers_folder / "one", tmp_path / "c")
    assert "--only" not in print_plan(pfl, "slurm", writers_folder / "p", "-o", tmp_path / "c", *LINE)


# What fails


def test_planned_job_of_an_unsuited_method_succeeds_only_with_methods_all(writers_folder, tmp_path, pfl):
    line = ("compare", writers_folder / "p", "-o", tmp_path / "c", "--methods", "all", "--only", "seed-0/oracle", *FEW)
    ran = pfl(*line)
    assert ran.code == 0
    assert "oracle is left out" in ran.err
    explicit = ["fedavg,oracle" if word == "all" else word for word in line]
    assert pfl(*explicit).code == 5  # as the comparison of the others ends, if a method was named


def test_planned_job_makes_its_other_runs_when_one_fails(writers_folder, tmp_path, monkeypatch):
    def fail(run, t, state):
        raise ComputationError("ditto: round 1 diverged", "--lr 0.01")

    monkeypatch.setattr(ditto, "train_round", fail)
    settings = {"model": "logistic", "rounds": 1}
    request = {"methods": ["fedavg", "ditto", "local"], "settings": settings}
    only = ["seed-0/ditto", "seed-0/local", "seed-0/fedavg"]
    with pytest.raises(ComputationError, match="diverged"):
        compare([writers_folder / "p"], tmp_path / "c", only=only, references=False, **request)
    assert sorted(path.name for path in (tmp_path / "c" / "seed-0").iterdir()) == ["local"]
    with pytest.raises(ComputationError, match="needs seed-0/backbone") as error:
        compare([writers_folder / "p"], tmp_path / "c", only=["seed-0/fedavg"], references=False, **request)
    assert error.value.fix == ("first --only seed-0/backbone",)


def test_make_retries_failed_jobs_when_run_again(writers_folder, tmp_path, install_programs, pfl):
    """A stand-in for pfl fails to make ``local``, and ends with 5 when it makes the table of the others."""
    script, out = tmp_path / "script", tmp_path / HOSTILE
    line = ("--methods", "fedavg,local", *FEW)
    script.write_text(print_plan(pfl, "make", writers_folder / "p", "-o", out, *line))
    install_programs(pfl=STAND_IN)

    def make():
        (tmp_path / "log").write_text("")
        environment = {**os.environ, "OUT": str(out)}
        ran = subprocess.run(["make", "-f", script], cwd=tmp_path, env=environment, capture_output=True)
        return ran.returncode, sorted((tmp_path / "log").read_text().split())

    assert make() == (2, ["comparison", "seed-0/backbone", "seed-0/fedavg", "seed-0/local"])
    assert make() == (2, ["comparison", "seed-0/local"])
    install_programs(pfl=STAND_IN.replace("exit 5", "true"))
    assert make() == (0, ["comparison", "seed-0/local"])
    assert make() == (0, [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--plan", "snakemake"), "there is no --plan snakemake"),
        (("--plan", "sh", "-n"), "--plan cannot be combined with --dry-run"),
        (("--plan", "sh", "--force"), "--plan cannot be combined with --force"),
        (("--plan", "sh", "--json"), "--plan cannot be combined with --json"),
        (("--plan", "sh", "--only", "seed-0/fedavg"), "--plan cannot be combined with --only"),
        (("--plan", "sh", "--set", "ditto.lam=0.5"), "options are set for ditto, which is not compared"),
        (("--plan", "make", "-o", "a%b"), "make cannot name"),
        (("--plan", "sh", "-o", "a\nb"), "a script cannot contain"),
        (("--only", "seed-0/ditto"), "seed-0/ditto does not belong to this comparison"),
        (("--only", "seed-7/fedavg"), "seed-7/fedavg does not belong to this comparison"),
        (("--only", "tune/fedavg/tuning"), "tune/fedavg/tuning does not belong to this comparison"),
        (("--tune", 2, "--only", "tune/x/tuning"), "tune/x/tuning does not belong to this comparison"),
        (("--only", ""), "--only names no artifact"),
    ],
)
def test_wrong_plan_or_only_options_end_in_one_error(words, message, writers_folder, tmp_path, pfl, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = () if "-o" in words else ("-o", "c")
    ran = pfl("compare", writers_folder / "p", *out, "--methods", "fedavg,local", *FEW, *words)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.startswith("pfl: ")
    assert ran.out == ""
    assert not [*tmp_path.iterdir()]


def test_plan_in_a_config_file_is_refused(writers_folder, tmp_path, pfl):
    (tmp_path / "o.toml").write_text('[compare]\nplan = "sh"\n')
    ran = pfl("compare", writers_folder / "p", "-o", tmp_path / "c", "--config", tmp_path / "o.toml")
    assert ran.code == 2
    assert "configuration file" in ran.err


def test_planned_job_fails_when_the_tuning_it_needs_is_missing(writers_folder, tmp_path, pfl):
    line = ("compare", writers_folder / "p", "-o", tmp_path / "c", *make_tuned_line("--tune", 2), "--only")
    for path, missing in (
        ("tune/knn-per/tuning", "tune/fedavg/tuning"),
        ("seed-0/ditto", "tune/fedavg/tuning"),
        ("seed-0/backbone", "tune/fedavg/tuning"),
    ):
        ran = pfl(*line, path)
        assert (ran.code, ran.out) == (5, "")
        assert f"cannot make {path}: it needs {missing}" in ran.err


# In processes of their own


@pytest.mark.long
@pytest.mark.parametrize("form", ["sh", "make"])
def test_killed_script_makes_the_same_result_when_run_again(form, writers_folder, tmp_path, install_programs, pfl):
    install_programs(pfl=REAL.format(python=sys.executable))
    work = tmp_path / HOSTILE
    work.mkdir()
    script = tmp_path / "script"
    script.write_text(print_plan(pfl, form, writers_folder / "p", "-o", work / "c", *LINE))
    program = {"sh": ["sh"], "make": ["make", "-j2", "-f"]}[form]
    first = subprocess.Popen([*program, script], cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    while not any(work.glob("c/seed-1/*/manifest.json")):
        assert first.poll() is None
        trying.time.sleep(0.2)
    os.killpg(first.pid, 9)
    first.wait()
    subprocess.run([*program, script], check=True, cwd=tmp_path, capture_output=True)
    assert trying.content(work / "c") == trying.content(writers_folder / "one")
