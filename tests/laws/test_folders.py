"""Every command that reads an artifact accepts the folder of compare or tune, or refuses it with a list of choices."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import typer.main

from pflcli.artifacts import codebook, open_by_path
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.manifest import ArtifactSpec, draft_content
from pflcli.artifacts.reader import open_artifact
from pflcli.cli import app
from pflcli.cli.from_options import walk_commands

QUICK = ("--model", "logistic", "--rounds", 1)
ARTIFACTS = ("PARTITION", "PREDICTIONS", "BACKBONE", "EMBEDDINGS", "DATASTORE", "SOURCE", "COMPARISON", "ARTIFACT")
LINES = {
    "audit": [("audit", "{f}"), ("audit", "{predictions}", "--reference", "{f}", "--reference", "{knn}")],
    "build-datastore": [("build-datastore", "{f}")],
    "check": [("check", "logistic", "--like", "{f}")],
    "compare": [("compare", "{f}", "--methods", "local", *QUICK)],
    "evaluate": [("evaluate", "{f}")],
    "export": [("export", "{f}", "--client", "{client}")],
    "extract": [("extract", "{f}"), ("extract", "{backbone}", "--partition", "{f}")],
    "federation create": [("federation", "create", "{f}")],
    "import": [("import", "{data}", "--client", "none", "--like", "{f}")],
    "import-predictions": [("import-predictions", "{theirs}", "--like", "{f}", "--name", "theirs")],
    "new-client": [("new-client", "{f}", "{data}", "--client", "late")],
    "partition": [("partition", "{f}")],
    "personalize": [
        ("personalize", "local", "{f}", *QUICK),
        ("personalize", "knn-per", "{datastore}", "--refit", "--choices", "{f}"),
    ],
    "predict": [("predict", "{f}", "{data}", "--client", "{client}")],
    "replay": [("replay", "{f}")],
    "report": [("report", "{f}")],
    "show": [("show", "{f}")],
    "stack": [("stack", "{f}", "--no-gate")],
    "sweep": [("sweep", "{f}")],
    "track": [("track", "{f}", "--to", "tensorboard")],
    "train-global": [("train-global", "{f}", *QUICK)],
    "tune": [("tune", "local", "{f}", "--search", "training.lr=0.01", *QUICK)],
    "update-datastore": [("update-datastore", "{f}", "{embeddings}"), ("update-datastore", "{datastore}", "{f}")],
}
"""The lines of each command that reads artifacts, with ``{f}`` in turn at each place where it reads one."""
UNSUITABLE = [LINES["audit"][1], LINES["personalize"][1]]
"""Lines for which the predictions of the folders are of another method or model than is needed."""
if importlib.util.find_spec("tensorboard") is None:
    UNSUITABLE += LINES["track"]
FORMS = {"report": ".html", "predict": ".csv"}
COMMANDS = dict(walk_commands(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def comparison_and_tuning(small, tmp_path_factory):
    """The folders of a comparison and a tuning of one method."""
    from pflcli.commands.compare import compare
    from pflcli.commands.tune import tune

    at = tmp_path_factory.mktemp("folders")
    quick = {"model": "logistic", "rounds": 1}
    compare([small.p], at / "compared", methods=["fedavg"], settings=quick, references=False)
    tune("fedavg", small.p, at / "tuned", search={"training.lr": [0.01, 0.1]}, settings=quick)
    return at


@pytest.fixture(scope="module")
def comparison_of_two_seeds(small, tmp_path_factory):
    """The folder of a comparison of a method, its variant and another method with two seeds."""
    from pflcli.commands.compare import compare

    at = tmp_path_factory.mktemp("several") / "c"
    compare(
        small.p,
        at,
        methods="fedavg,knn-per,knn-per@one",
        seeds="0,1",
        settings={"model": "logistic", "rounds": 1},
        references=False,
    )
    return at


def write_probabilities(partition, path):
    """Write probabilities of another tool for the test samples of a partition."""
    made = partitions.read(open_artifact(partition))
    block = np.repeat(np.arange(3 * len(made.names)), np.diff(made.offsets))
    test = block % 3 == 2
    p, split = np.full((test.sum(), made.classes), 1 / made.classes), np.full(test.sum(), "test")
    np.savez(path, client=np.asarray(made.names)[block[test] // 3], sample=made.sample[test], split=split, p=p)
    return path


def test_folder_cases_cover_every_command_that_reads_artifacts():
    """The arguments say what they read by their metavar, which the help shows; three have none."""
    reading = {
        name
        for name, command in COMMANDS.items()
        for parameter in command.params
        if any(word in str(parameter.metavar or "") for word in ARTIFACTS)
    }
    assert {*LINES, "site check"} == reading | {"partition", "show", "tune"}  # no comparison has a site's partition


@pytest.mark.parametrize("made_by", ["compared", "tuned"])
@pytest.mark.parametrize(
    "line", [line for lines in LINES.values() for line in lines], ids=lambda line: " ".join(map(str, line))
)
def test_command_accepts_a_compare_or_tune_folder_or_lists_the_choices(
    pfl, small, comparison_and_tuning, tmp_path, made_by, line
):
    data = tmp_path / "data.npz"
    samples = np.load(small.samples)
    np.savez(data, x=samples["x"], y=samples["y"])
    places = {
        "client": codebook.read(open_artifact(small.p)).clients[0],
        "knn": small.knn,
        "data": data,
        "theirs": write_probabilities(small.p, tmp_path / "theirs.npz"),
        "predictions": small.fedavg,
        "partition": small.p,
        "backbone": small.b,
        "embeddings": small.e,
        "datastore": small.d,
    }
    out = () if line[0] in ("show", "check") else ("-o", tmp_path / f"out{FORMS.get(line[0], '')}")

    def run(place):
        return pfl(*(str(word).format(f=place, **places) for word in line), *out)

    ran = run(comparison_and_tuning / made_by)
    assert "is not a pfl artifact" not in ran.err
    if ran.code and "choose one of" not in ran.err and "it contains" not in ran.err:
        # What is wrong then is wrong with the predictions in the folder: with their own path it is the same.
        predictions, *others = open_by_path.open_all(comparison_and_tuning / made_by, "predictions")
        assert not others
        assert (ran.code, ran.err) == (run(predictions.path).code, run(predictions.path).err)
        assert line in UNSUITABLE


CHOOSING = [
    line
    for name, (line, *_) in LINES.items()
    if name
    not in (
        *("check", "compare", "federation create", "import", "import-predictions", "partition", "replay", "report"),
        *("show", "track"),
    )
]
"""A line of each command that needs artifacts of one run, or of several, from a folder with many, and records them."""


@pytest.mark.parametrize("line", CHOOSING, ids=lambda line: line[0])
def test_method_and_seed_options_select_a_run_of_a_folder(pfl, small, comparison_of_two_seeds, tmp_path, line):
    samples = np.load(small.samples)
    np.savez(tmp_path / "data.npz", x=samples["x"], y=samples["y"])
    places = {"client": codebook.read(open_artifact(small.p)).clients[0], "data": tmp_path / "data.npz"}
    seed = comparison_of_two_seeds / "seed-1"
    places |= {name: seed / name for name in ("backbone", "embeddings", "datastore")}
    options = {name for parameter in COMMANDS[line[0]].params for name in parameter.opts}
    choice = ["--method", "knn-per"] if "--method" in options and line[0] != "train-global" else []
    assert "--seed" in options
    out = tmp_path / f"out{FORMS.get(line[0], '')}"
    words = [str(word).format(f=comparison_of_two_seeds, **places) for word in line]
    ran = pfl(*words, *choice, "--seed", 1, "-o", out)
    if line[0] in ("personalize", "tune"):  # they read several kinds, of which the user chooses one
        choices = ran.err.splitlines()[1].split(", ")
        assert (ran.code, len(choices), sum("/seed-1/" in choice for choice in choices)) == (2, 4, 3)
    else:
        assert ran.code == 0, ran.err
    if (out / "manifest.json").exists() and line[0] != "train-global":
        used = [item.path for item in open_artifact(out).manifest.inputs if item.kind != "partition"]
        assert used
        assert not [path for path in used if "/seed-1/" not in path or "@" in path]


def test_error_for_an_ambiguous_folder_suggests_the_method_and_seed_options(pfl, comparison_of_two_seeds, tmp_path):
    ran = pfl("audit", comparison_of_two_seeds, "-o", tmp_path / "a")
    assert (ran.code, "or choose by --method NAME and --seed N" in ran.err) == (2, True)
    ran = pfl("sweep", comparison_of_two_seeds, "-o", tmp_path / "s")
    assert (ran.code, "or choose by --seed N" in ran.err) == (2, True)


def test_seed_option_sets_the_random_seed_when_a_folder_has_one_seed(pfl, comparison_and_tuning, tmp_path):
    assert pfl("audit", comparison_and_tuning / "compared", "-o", tmp_path / "a", "--seed", 7).code == 0
    assert open_artifact(tmp_path / "a").manifest.request["seed"] == 7


@pytest.mark.parametrize(
    "line",
    [line for lines in LINES.values() for line in lines if "--choices" not in line],
    ids=lambda line: " ".join(map(str, line)),
)
@pytest.mark.parametrize(
    "state", ["unfinished comparison", "unfinished tuning", "file of samples", "file of an artifact"]
)
def test_command_says_what_is_missing_when_its_input_is_not_an_artifact(pfl, small, tmp_path, state, line):
    unfinished = {"unfinished comparison": "seed-0/backbone.partial", "unfinished tuning": "trials/000.partial"}
    path = {"file of samples": tmp_path / "har.csv", "file of an artifact": small.ev / "table.csv"}.get(
        state, tmp_path / "c"
    )
    if state in unfinished:
        (path / unfinished[state]).mkdir(parents=True)
        (path / unfinished[state] / "draft.json").write_bytes(draft_content(ArtifactSpec("backbone", {}), force=False))
    elif not path.exists():
        path.write_text("writer,a,y\nw1,0.5,c\n")
    expected = {
        "unfinished comparison": f"{path} has no finished comparison\n     run the command again",
        "unfinished tuning": f"{path} has no finished tuning\n     run the command again",
        "file of samples": f"data must be imported first\n     pfl import {path} ",
        "file of an artifact": f"     give its folder: {small.ev}\n",
    }[state]
    data = ("client", "late"), ("data", small.samples), ("partition", small.p), ("backbone", small.b)
    places = dict(data, knn=small.knn, predictions=small.fedavg, embeddings=small.e, datastore=small.d)
    places["theirs"] = write_probabilities(small.p, tmp_path / "theirs.npz")
    out = () if line[0] in ("show", "check") else ("-o", tmp_path / f"out{FORMS.get(line[0], '')}")
    ran = pfl(*(str(word).format(f=path, **places) for word in line), *out)
    assert (ran.code, expected in ran.err) == (3, True), ran.err
    assert not (tmp_path / "out").exists()
