"""The recipes of the papers run the settings of settings.toml, and print what pfl found."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from pflcli.cli import app
from pflcli.core.settings import Settings

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "examples" / "papers"
COMMANDS = typer.main.get_command(app).commands

# Instead of pfl: notes the command line, and makes the files that recipes look into. In bash, which starts at once.
STUB = r"""#!/usr/bin/env bash
(IFS=$'\t'; echo "$*") >> "$STUB_LOG"
command=$1 out='' methods='' clients=60
while (($#)); do
  case $1 in -o) out=$2 ;; --methods) methods=$2 ;; --clients) clients=$2 ;; esac
  shift
done
[ -n "$out" ] || exit 0
mkdir -p "$out"
scores='{"value": 0.5}'
metrics='{"methods": [{"label": "knn-per", "method": "knn-per", "metrics": {"accuracy": S, "accuracy_unseen": S, '
metrics+='"bottom_decile": S, "gain": S, "last_rounds_accuracy": S}}]}'
rows=$'method,seed,client,name,n_test,accuracy\nknn-per,0,0,Tiantan,4,0.5\nknn-per,0,1,Gucheng,4,0.25'
case $command in
  partition)
    echo client,name,train,validation,test > "$out/clients.csv"
    for ((i = 0; i < clients; i++)); do echo "$i,$([ $i != 0 ] || echo Tiantan),6,2,2"; done >> "$out/clients.csv"
    ;;
  build-datastore)
    printf 'client,capacity\n0,0.2\n1,0.8\n' > "$out/clients.csv"
    echo '{"summary": {"bytes_client": {"mean": 1}}}' > "$out/manifest.json"
    ;;
  evaluate) echo "$rows" > "$out/clients.csv"; echo "${metrics//S/$scores}" > "$out/metrics.json" ;;
  compare)
    mkdir "$out/comparison"
    echo "${metrics//S/$scores}" > "$out/comparison/metrics.json"
    echo "$rows" > "$out/comparison/clients.csv"
    IFS=, read -ra methods <<< "$methods"
    for method in "${methods[@]}"; do
      mkdir -p "$out/seed-0/$method"
      printf 'round\n1\n' > "$out/seed-0/$method/neighbours.csv"
      printf 'round,validation_accuracy,bytes_up,bytes_down,bytes_peer\n1,.5,1,1,1\n' > "$out/seed-0/$method/rounds.csv"
    done
    ;;
  sweep) printf 'capacity,k,sigma,lambda,accuracy\n1,10,1,0,0.5\n1,10,1,1,0.25\n' > "$out/table.csv" ;;
esac
"""

# Every recipe, what it is given, and the experiments whose partition and training it runs.
IMAGES = ("fashion-mnist", "emnist", "cifar10", "cifar100")
RECIPES = [
    *((f"knn-per/tables.sh {name}", f"knn-per.{name}") for name in (
        "writers", "femnist", "shakespeare", "cifar10-v2", "cifar100-v2", *IMAGES
    )),
    *((f"knn-per/{recipe}.sh {name}", f"knn-per.{name}")
      for recipe in ("figures", "quality", "shift", "capacity", "hardware", "compression")
      for name in ("cifar100",)),
    *((f"fedham/tables.sh {name}", f"fedham.{name}") for name in ("v-mnist", "v-mnist-balanced", "air-quality")),
    ("fedham/stations.sh", "fedham.stations"),
    *((f"fedattn/collapse.sh {name}", f"fedattn.{name}") for name in ("writers", "emnist", "femnist")),
    ("panm/clusters.sh mnist labels 2", "panm.clusters"),
    ("panm/ablations.sh mnist rotation 4", "panm.clusters"),
]  # fmt: skip
# What a recipe itself decides about a partition, beside the table.
FREE = {"--new-clients", "--new-capacity", "--seed", "--root", "-o", "-q", "--download"}
VARIED = {"alpha", "stations", "kind", "groups"}
# Options that define a control or a part of a method (their values are no choice), or that an argument gives.
DEFINING = {"ham_epochs", "fedattn@k1.k", "panm@cni.t1", "panm@hnm.t1", "ifca.k"}
# The setting of an option, where its name differs.
SETTING_OF = {
    **dict.fromkeys(("fedham@k3.k", "fedham@k5.k", "fedham@k10.k"), "clusters"),
    **dict.fromkeys(("fedham.k", "fedham@faithful.k"), "fedham-k"),
    "fedham@nearest.k": "nearest",
    "warmup": "figure-5-warmup",
}
TRAINING = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Settings)} - {"--test-last"}


@pytest.fixture
def record_recipe(tmp_path):
    """Run a recipe with a stub in place of pfl, and return the command lines."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "pfl").write_text(STUB)
    (folder / "pfl").chmod(0o755)
    (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "python").chmod(0o755)
    log = tmp_path / "log"
    short = tmp_path / "settings.toml"  # a hundred steps of a shift are like four
    text = (PAPERS / "settings.toml").read_text(encoding="utf-8")
    text = re.sub(r"^batches = \d+", "batches = 2", text, flags=re.M)
    short.write_text(re.sub(r"^capacities = .*", "capacities = [0.1, 1.0]", text, flags=re.M))

    def run(recipe, *options, code=0):
        path, *arguments = recipe.split()
        log.write_text("")
        line = ["bash", str(PAPERS / path), *arguments, "--seeds", "0", "--out", str(tmp_path / "out"), *options]
        line += ["--settings", str(short)]
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "STUB_LOG": str(log)}
        ran = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
        assert ran.returncode == code, ran.stderr
        run.printed = ran.stdout
        return [entry.split("\t") for entry in log.read_text().splitlines()]

    return run


def load_experiments():
    sys.path.insert(0, str(PAPERS))
    try:
        import settings
    finally:
        sys.path.pop(0)
    return settings.read_experiments(PAPERS / "settings.toml"), settings


def parse_options(line):
    """The options of a command line, with those of --set by themselves."""
    options, own, place = {}, {}, 0
    flags = {opt for param in COMMANDS[line[0]].params if getattr(param, "is_flag", False) for opt in param.opts}
    while place < len(line):
        word = line[place]
        if word == "--set":
            key, _, value = line[place + 1].partition("=")
            own[key] = value
            place += 1
        elif word in flags:
            options[word] = True
        elif word.startswith("-"):
            options[word] = line[place + 1]
            place += 1
        place += 1
    return options, own


def make_options(table):
    return {f"--{key}": value if value is True else str(value) for key, value in table.items() if key != "set"}, {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in table.get("set", {}).items()
    }


@pytest.mark.parametrize("size", ["paper", "small"])
@pytest.mark.parametrize(("recipe", "name"), RECIPES, ids=[recipe for recipe, _ in RECIPES])
def test_recipe_runs_the_settings_of_the_table(record_recipe, recipe, name, size):
    table, settings = load_experiments()
    lines = record_recipe(recipe, *(["--paper"] if size == "paper" else []))
    listed, listed_own = make_options(table[name][size]["partition"])
    if "shift" in recipe:
        listed["--clients"] = str(table["knn-per.shift"][size]["clients"])
    for line in (line for line in lines if line[0] == "partition"):
        assert line[1] == table[name].get("dataset", "mnist")
        options, own = parse_options(line)
        assert {key: value for key, value in options.items() if key not in FREE} == listed
        fixed = VARIED if listed_own.keys() & VARIED or "shift" not in recipe else set()
        assert {k: v for k, v in own.items() if k not in VARIED} == {
            k: v for k, v in listed_own.items() if k not in fixed
        }
    numbers = settings._flat(table[name][size])
    if "ablations" in recipe:
        numbers |= settings._flat(table["panm.ablations"][size])
    for line in (line for line in lines if line[0] in ("compare", "personalize")):
        for key, value in parse_options(line)[1].items():
            option = key.rpartition(".")[2]
            if re.fullmatch(r"[\d.e-]+", value) and not {key, option} & DEFINING:
                number = numbers[SETTING_OF.get(key, option.replace("_", "-"))]
                assert value in map(str, number if isinstance(number, list) else [number]), key
    training, _ = make_options(table[name][size]["training"])
    trained = [line for line in lines if line[0] in ("compare", "train-global")]
    assert trained
    for line in trained:
        options, _ = parse_options(line)
        training_options = {key: value for key, value in options.items() if key in TRAINING}
        if "tables" in recipe and name.startswith("knn-per"):
            assert training_options.pop("--refit", False) == table[name][size]["refit"]
            assert training_options.pop("--answer-train")
        if "quality" in recipe:
            training_options["--rounds"] = training["--rounds"]
        if name.startswith("fedattn"):
            share = float(training_options.pop("--participation"))
            clients = int(listed.get("--clients", 60))
            assert round(share * clients) == table[name][size]["clients-a-round"]
        assert training_options == training


@pytest.mark.parametrize(("recipe", "name"), RECIPES[::4], ids=[recipe for recipe, _ in RECIPES[::4]])
def test_recipe_uses_existing_options(record_recipe, recipe, name):
    for line in record_recipe(recipe, "--paper", "--download", "--root", "data", "--weights", "w.pt"):
        known = {opt for param in COMMANDS[line[0]].params for opt in (*param.opts, *param.secondary_opts)}
        assert {word for word in line if word.startswith("-")} <= known
        if line[0] == "partition":
            assert {"--download", "--root"} <= set(line)
        if line[0] in ("train-global", "compare"):
            assert line[line.index("--weights") + 1] == "w.pt"


def test_recipe_prints_the_accuracies_that_pfl_found(record_recipe):
    record_recipe("fedham/stations.sh")
    assert record_recipe.printed.splitlines()[1:] == [f"{stations},knn-per,0.5" for stations in (1, 4, 7, 9)]
    record_recipe("knn-per/quality.sh cifar100")
    assert record_recipe.printed.splitlines()[1].endswith(",0.5,0.25")


def test_tables_of_the_stub_begin_with_the_columns_of_pfl(compared, small):
    for path in (compared.path / "clients.csv", small.sw / "table.csv", compared.partition / "clients.csv"):
        columns = path.read_text(encoding="utf-8").splitlines()[0].split(",")
        heading = ",".join(columns[: columns.index("accuracy" if "accuracy" in columns else "test") + 1])
        assert re.search(rf"['\s]{heading}(\\n|\s)", STUB), heading


def test_figures_vary_what_the_papers_vary(record_recipe):
    lines = record_recipe("knn-per/figures.sh cifar10", "--paper")
    alphas = {parse_options(line)[1]["alpha"] for line in lines if line[0] == "partition"}
    assert alphas == {"0.1", "0.3", "0.5", "0.7", "1.0"}
    lines = record_recipe("knn-per/capacity.sh cifar10", "--paper")
    varied = [
        (parse_options(line)[1]["alpha"], parse_options(line)[0]["--new-capacity"])
        for line in lines
        if "--new-capacity" in line
    ]
    assert len(set(varied)) == 3 * 2
    assert len(load_experiments()[0]["knn-per.capacity"]["paper"]["capacities"]) == 10
    lines = record_recipe("knn-per/tables.sh cifar10-v2", "--paper")
    assert [parse_options(line)[0]["--new-clients"] for line in lines if line[0] == "partition"] == ["0", "0.2"]
    methods = parse_options(lines[-1])[0]["--methods"].split(",")
    assert len(methods) == 9
    assert "pfedgp" in methods


@pytest.mark.parametrize(
    "recipe", ["knn-per/tables.sh writers", "fedham/tables.sh v-mnist", "../all-methods.sh writers"]
)
def test_recipe_of_rivals_tunes_them_on_one_partition_under_all_seeds(record_recipe, recipe):
    lines = record_recipe(recipe, "--seeds", "3,4", "--tune", "8")
    drawn = {parse_options(line)[0]["--seed"] for line in lines if line[0] == "partition"}
    assert drawn == {"3"}
    for line in (line for line in lines if line[0] == "compare"):
        options = parse_options(line)[0]
        assert (options["--tune"], options["--seeds"]) == ("8", "3,4")
        assert "--lr" not in options
        assert sum("partition-" in word for word in line) == 1


def test_recipe_without_rivals_refuses_to_tune(record_recipe):
    assert record_recipe("knn-per/figures.sh cifar10", "--tune", "8", code=2) == []


def test_recipe_refuses_misspelt_arguments(record_recipe):
    assert record_recipe("knn-per/tables.sh cifar11", code=2) == []
    assert record_recipe("knn-per/figures.sh writers", code=2) == []
    assert record_recipe("fedham/tables.sh", code=1) == []


# What a reader of the papers finds there, typed once more.
FACTS = {
    "knn-per.cifar10": {"clients": 200, "alpha": 0.3, "rounds": 200, "participation": 1, "milestones": "100,150"},
    "knn-per.cifar10-v2": {"scheme": "classes", "n": 2, "clients": 200, "rounds": 200, "keep-test": True},
    "knn-per.cifar100": {"scheme": "pachinko", "alpha": 0.3, "beta": 10, "clients": 200, "rounds": 200},
    "knn-per.cifar100-v2": {"scheme": "classes", "n": 10, "clients": 200, "milestones": "100,150"},
    "knn-per.femnist": {"rounds": 1000, "participation": 0.05, "milestones": "500,750", "fractions": "0.6,0.2,0.2"},
    "knn-per.shakespeare": {"rounds": 300, "participation": 0.1, "milestones": None, "model": "lstm"},
    "knn-per.shift": {"clients": 100, "batches": 50},
    "fedham.v-mnist": {"rounds": 150, "epochs": 1, "lr": 0.02, "batch-size": 32, "model": "alexnet", "report": "best"},
    "fedham.v-mnist-balanced": {"rounds": 150, "epochs": 1, "lr": 0.02, "batch-size": 32, "balanced": True},
    "fedham.air-quality": {"rounds": 175, "epochs": 2, "lr": 0.01, "batch-size": 32, "stride": 6, "model": "gru"},
    "fedham.stations": {"rounds": 175, "epochs": 2, "lr": 0.01, "stride": 6},
    "fedattn.femnist": {"rounds": 1500, "epochs": 5, "clients-a-round": 10, "last": 100},
    "fedattn.writers": {"rounds": 1500, "epochs": 5, "clients-a-round": 10},
}


@pytest.mark.parametrize("name", FACTS)
def test_settings_table_matches_the_papers(name):
    table, settings = load_experiments()
    flat = settings._flat(table[name]["paper"])
    assert {key: flat.get(key) for key in FACTS[name]} == FACTS[name]
    for key, value in FACTS[name].items():
        assert value is None or key in table[name]["cited"], f"{key} has no source"


def test_learning_rates_of_knn_per_lie_within_its_grid():
    table = load_experiments()[0]
    for name, experiment in table.items():
        if name.startswith("knn-per.") and "training" in experiment["paper"]:
            assert 10**-2.5 <= experiment["paper"]["training"]["lr"] <= 10**-0.5, name


def test_every_cited_source_belongs_to_a_setting():
    table, settings = load_experiments()
    for name, experiment in table.items():
        known = settings._flat(experiment["paper"])
        assert experiment["cited"].keys() - known.keys() - {"alpha", "beta"} == set(), name
        assert settings._flat(experiment["small"]).keys() >= known.keys() - {"milestones", "weight-decay"}, name


@pytest.mark.parametrize("paper", ["knn-per", "fedham", "fedattn", "panm"])
def test_docs_show_the_settings_table(paper):
    table, settings = load_experiments()
    with (ROOT / "docs" / "results" / f"settings-{paper}.csv").open(encoding="utf-8", newline="") as file:
        shown = list(csv.reader(file))
    heading, _, *rows = (line[2:-2].split(" | ") for line in settings.markdown(table, paper).splitlines())
    assert shown == [[cell.strip() for cell in row] for row in (heading, *rows)]


def test_docs_show_every_note_of_the_settings():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    table = load_experiments()[0]
    assert [name for name, experiment in table.items() if experiment.get("note", "") not in page] == []


@pytest.mark.parametrize(("paper", "where"), [("knn-per", "new-clients-0.2/"), ("panm", "")])
@pytest.mark.parametrize(("folder", "name"), [("tables", "writers"), ("writers-v2", "writers-v2")])
def test_combined_table_names_the_dataset_for_any_folder(tmp_path, paper, where, folder, name):
    score = {"value": 0.5, "n": 4}
    keys = ("accuracy", "bottom_decile", "macro_precision", "megabytes", "seconds")
    rows = [{"label": "fedavg", "seeds": [0], "metrics": dict.fromkeys(keys, score)}]
    files = {
        f"{where}partition-0/manifest.json": {"request": {"dataset": "writers"}},
        f"{where}comparison/metrics.json": {"methods": rows},
    }
    for file, content in files.items():
        path = tmp_path / folder / file
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    line = [sys.executable, str(PAPERS / paper / "combine.py"), str(tmp_path / folder)]
    table = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert f"| {name} |" in table
