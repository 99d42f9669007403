"""An input inside the output folder is refused before anything is deleted."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path

import pytest
import typer.main

from helpers import build, spec
from originals import write_idx, write_network, write_weights
from pflcli import embed, partition
from pflcli.artifacts.make import make
from pflcli.cli import app
from pflcli.cli.from_options import walk_commands
from pflcli.commands.personalize import personalize
from pflcli.core.errors import ConflictError
from pflcli.core.execution import Execution

MODEL = ("--model", "mlp", "--rounds", "1")
MOBILE = "torchvision:mobilenet_v2"
CLAIMS = """
[experiments.writers]
dataset = "writers"
training = { model = "mlp", rounds = 1 }
[claims.personal]
says = "Local models are better than the global one"
on = ["writers"]
method = "local"
direction = "higher"
against = ["fedavg"]
"""
COMMANDS = {
    "import": ("{table}", "--client", "who", "--label", "class"),
    "embed": ("writers", "--encoder", "onnx:{net}"),
    "partition": ("writers", "--clients", "4"),
    "train-global": ("{p}", *MODEL),
    "extract": ("{b}",),
    "build-datastore": ("{e}",),
    "update-datastore": ("{d}", "{e}"),
    "personalize": ("local", "{p}", *MODEL),
    "evaluate": ("{fedavg}",),
    "federation create": ("{fedavg}",),
    "compare": ("{p}", "--methods", "local", "--baseline", "local", *MODEL),
    "audit": ("{fedavg}",),
    "demo": (),
    "sweep": ("{e}",),
    "stack": ("{fedavg}", "{knn}"),
    "tune": ("local", "{p}", *MODEL, "--search", "lr=0.1"),
    "new-client": ("{fedavg}", "{samples}", "--client", "late"),
    "verify": ("{claims}",),
    "import-predictions": ("{table}", "--like", "{p}", "--name", "theirs"),
}
OPTIONS = {
    ("import", "data"): ("{inside}/table.csv", "--client", "who", "--label", "class"),
    ("import", "like"): (*COMMANDS["import"], "--like", "{inside}/p"),
    ("embed", "root"): ("mnist", "--encoder", "onnx:{net}", "--root", "{inside}"),
    ("embed", "weights"): ("writers", "--encoder", MOBILE, "--size", "32", "--weights", "{inside}/weights.safetensors"),
    ("partition", "root"): ("mnist", "--scheme", "iid", "--clients", "2", "--root", "{inside}"),
    ("train-global", "weights"): (*COMMANDS["train-global"], "--weights", "{inside}/weights.safetensors"),
    ("train-global", "attendance"): (*COMMANDS["train-global"], "--attendance", "{inside}/attendance.csv"),
    ("extract", "partition"): ("{b}", "--partition", "{inside}/p"),
    ("personalize", "weights"): (*COMMANDS["personalize"], "--weights", "{inside}/weights.safetensors"),
    ("personalize", "attendance"): ("fedavg", "{p}", *MODEL, "--attendance", "{inside}/attendance.csv"),
    ("personalize", "choices"): ("ditto", "{p}", *MODEL, "--refit", "--choices", "{inside}/q"),
    ("tune", "weights"): (*COMMANDS["tune"], "--weights", "{inside}/weights.safetensors"),
    ("compare", "weights"): (*COMMANDS["compare"], "--weights", "{inside}/weights.safetensors"),
    ("new-client", "data"): ("{fedavg}", "{inside}/late.npz", "--client", "late"),
    ("new-client", "weights"): ("{began}", *COMMANDS["new-client"][1:], "--weights", "{inside}/weights.safetensors"),
    ("new-client", "encoder_weights"): (
        *("{embedded}", *COMMANDS["new-client"][1:]),
        *("--encoder-weights", "{inside}/net.onnx"),
    ),
    ("verify", "claims"): ("{inside}/claims.toml",),
    ("verify", "root"): (*COMMANDS["verify"], "--root", "{inside}"),
    ("verify", "weights"): (*COMMANDS["verify"], "--weights", "{inside}/weights.safetensors"),
    ("import-predictions", "data"): ("{inside}/table.csv", "--like", "{p}", "--name", "theirs"),
    ("import-predictions", "like"): ("{table}", "--like", "{inside}/p", "--name", "theirs"),
    ("audit", "weights"): ("{began}", "--weights", "{inside}/weights.safetensors"),
    **{(name, "config_file"): (*line, "--config", "{inside}/x.toml") for name, line in COMMANDS.items()},
}
ARTIFACTS = {"source", "sources", "arriving", "references"}
"""Arguments: inputs, which test_placing holds to the same law."""
NO_ARTIFACT = {
    *("predict", "export", "replay", "report", "track", "federation columns", "federation run"),
    *("site answer", "site check", "site columns", "site join"),
}
"""Commands that replace a single file, or that write nothing but files of their own to a folder."""


def test_cases_cover_every_path_option_of_every_command():
    path_options = set()
    for command_name, command in walk_commands(typer.main.get_command(app)):
        assert command.params  # they are made now, with the callback that has their types
        hints = inspect.signature(inspect.unwrap(command.callback), eval_str=True).parameters
        paths = {name for name, parameter in hints.items() if "pathlib" in str(parameter.annotation)}
        if "out" in paths and command_name not in NO_ARTIFACT:
            path_options |= {(command_name, name) for name in paths - ARTIFACTS - {"out"}}
    # The federation of one site's partition is tested with real sites, tests/plugins/sites.
    assert path_options - {("partition", "like")} == set(OPTIONS)


def interrupt(work):
    work.write_checkpoint(b"one")
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "line",
    [
        *("extract {b}", "personalize fedavg {b}", "personalize knn-per {d}", "build-datastore {e}"),
        *("update-datastore {d} {e}", "evaluate {knn}", "audit {knn}", "sweep {e}", "stack {knn}"),
    ],
)
def test_output_over_an_ancestor_of_the_source_is_refused(small_copy, pfl, tree, line):
    before = tree(small_copy.root)
    ran = pfl(*line.format(**vars(small_copy)).split(), "-o", small_copy.p, "--force")
    assert ran.code == ConflictError.exit_code
    assert f"{small_copy.p} is in the lineage" in ran.err
    assert tree(small_copy.root) == before


@pytest.mark.parametrize("beside", ["", ".partial"])
@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_input_inside_the_output_folder_is_refused_and_kept(small, tmp_path, pfl, tree, command, option, beside):
    out = tmp_path / "out"
    place = out / {"compare": "seed-0/local", "tune": "tuning", "demo": "partition", "verify": "verdicts"}.get(
        command, ""
    )
    make(place, spec(alpha=7), Execution(), build)
    if beside:
        with pytest.raises(KeyboardInterrupt):
            make(place, spec(alpha=8), Execution(force=True), interrupt)
    inside = place.with_name(place.name + beside)
    for folder in (tmp_path, inside):
        (folder / "table.csv").write_text("who,class,a\nann,yes,1\nbob,no,2\nann,no,3\nbob,yes,4\n")
        (folder / "claims.toml").write_text(CLAIMS)
    (inside / "x.toml").touch()
    (inside / "attendance.csv").write_text("round,client,answered\n")
    if option == "weights":
        weights = Path(shutil.copy(small.b / "weights.safetensors", inside))
        if command == "embed":
            write_weights(weights)
        if command in ("audit", "new-client"):  # which read them only for a run that began with them
            personalize("local", small.p, tmp_path / "began", settings={"model": "mlp", "rounds": 1}, weights=weights)
    elif option in ("like", "partition"):
        shutil.copytree(small.p, inside / "p")
    elif option == "data" and command == "new-client":
        shutil.copy(small.samples, inside)
    elif option == "root":
        write_idx(inside, "train", "t10k")
    elif option == "choices":
        settings = {"model": "mlp", "rounds": 1}
        personalize("ditto", small.p, inside / "q", settings=settings)
    elif option == "encoder_weights":
        write_network(inside / "net.onnx")
        embed("writers", tmp_path / "features", encoder=f"onnx:{inside / 'net.onnx'}")
        partition(tmp_path / "features", tmp_path / "p", clients=4, scheme="iid")
        personalize("local", tmp_path / "p", tmp_path / "embedded", settings={"model": "logistic", "rounds": 1})
    if command == "embed":
        write_network(tmp_path / "net.onnx")
    words = {
        **vars(small),
        "net": tmp_path / "net.onnx",
        "inside": inside,
        "table": tmp_path / "table.csv",
        "claims": tmp_path / "claims.toml",
        "began": tmp_path / "began",
        "embedded": tmp_path / "embedded",
    }
    line = [word.format(**words) for word in OPTIONS[command, option]]
    before = tree(tmp_path)
    ran = pfl(*command.split(), *line, "-o", out, "--force")
    assert (ran.code, ran.out) == (ConflictError.exit_code, ""), ran.err
    assert str(inside) in ran.err
    assert "--out" in ran.err
    assert tree(tmp_path) == before


@pytest.mark.parametrize("option", ["data", "weights"])
def test_predict_refuses_to_overwrite_its_inputs(small, tmp_path, pfl, tree, option):
    data = shutil.copy(small.samples, tmp_path / "data.npz")
    out = {"data": data, "weights": tmp_path / "weights.npz"}[option]
    shutil.copy(small.b / "weights.safetensors", tmp_path / "weights.npz")
    before = tree(tmp_path)
    ran = pfl("predict", small.knn, data, "--client", "0", "--weights", tmp_path / "weights.npz", "-o", out, "--force")
    assert ran.code == ConflictError.exit_code
    assert f"{out} is an input" in ran.err
    assert tree(tmp_path) == before
