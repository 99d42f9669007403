"""Benchmark programs for other hardware run at tiny sizes."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from contextlib import suppress
from types import ModuleType

import numpy as np
import pytest
import torch

from helpers import ROOT
from pflcli.core import config, methods

PROJECT = ROOT.parent


@pytest.fixture
def import_benchmark(monkeypatch):
    """Imports a program of benchmarks/ as a module."""
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    yield importlib.import_module
    for name in ("gpu", "gpu_methods", "pfllib"):
        sys.modules.pop(name, None)


@pytest.fixture
def gpu(import_benchmark):
    """benchmarks/gpu.py as a module."""
    return import_benchmark("gpu")


def get_exit_code(program, *words):
    """The exit code of a program."""
    with pytest.raises(SystemExit) as end:
        program.main(list(words))
    return end.value.code


def test_every_benchmark_program_can_be_imported():
    """In a process of its own, as some change the package that they measure."""
    names = sorted(path.stem for path in (PROJECT / "benchmarks").glob("*.py"))
    code = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (PROJECT, PROJECT / "benchmarks")))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_cost_of_a_method_is_measured_beside_that_of_fedavg():
    """In a process of its own, as the program counts products in the package that it measures."""
    options = ["--dataset", "heart-disease", "--model", "logistic", "--rounds", "1", "--only", "fedprox"]
    command = [sys.executable, str(PROJECT / "benchmarks" / "methods.py"), *options]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name, *numbers = done.stdout.splitlines()[-1].split()
    assert name == "fedprox"
    assert float(numbers[2]) == 1, "FedProx has as many passes as FedAvg"


@pytest.mark.parametrize("file", sorted((PROJECT / "benchmarks").rglob("*.py")), ids=lambda file: file.stem)
def test_benchmark_program_uses_existing_names_of_the_package(file):
    tree = ast.parse(file.read_text())
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pflcli":
            package = importlib.import_module(node.module)
            for alias in node.names:
                with suppress(ImportError):  # a class or a function
                    importlib.import_module(f"{node.module}.{alias.name}")
                assert hasattr(package, alias.name), f"{file.name}:{node.lineno}: {node.module} has no {alias.name}"
                if isinstance(member := getattr(package, alias.name), ModuleType):
                    modules[alias.asname or alias.name] = member
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            known = hasattr(modules[node.value.id], node.attr)
            assert known, f"{file.name}:{node.lineno}: {node.value.id} has no {node.attr}"


def test_gpu_benchmark_without_a_gpu_prints_one_line(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = get_exit_code(gpu, "--parts", "stacked")
    assert "no CUDA device" in message
    assert "--device cpu" in message
    assert len(message.splitlines()) == 1


def test_gpu_benchmark_refuses_an_unknown_part(gpu, capsys):
    assert get_exit_code(gpu, "--device", "cpu", "--parts", "speed") == 2
    assert "no part speed: choose from stacked,pfllib,agree,tf32" in capsys.readouterr().err


def test_gpu_benchmark_parts_run_on_a_cpu(gpu, capsys):
    assert get_exit_code(gpu, "--device", "cpu", "--parts", "stacked,agree,tf32", "--methods", "fedprox") == 0
    printed = capsys.readouterr().out
    assert "times the plain loop" in printed
    assert "fedprox, mlp" in printed
    assert "TF32 is not used unless forced" in printed


@pytest.mark.parametrize(("difference", "agreed"), [(0.0, True), (0.019, True), (0.021, False)])
def test_gpu_benchmark_accepts_predictions_within_the_tolerance(gpu, difference, agreed):
    answers = gpu.gpu_methods.predictions.SplitPredictions
    rows = (np.array([0]), np.array([0]), np.array([0, 1]))
    first = answers({"p": np.array([[0.7, 0.3]], np.float32)}, *rows)
    second = answers({"p": np.array([[0.7 - difference, 0.3 + difference]], np.float32)}, *rows)
    assert gpu.gpu_methods.compared("fedavg", first, second) is agreed


def test_options_of_methods_shared_with_pfllib_are_valid(gpu, import_benchmark):
    pairs = {
        pair.method: dict(option.split("=") for option in pair.options) for pair in import_benchmark("pfllib").PAIRS
    }
    for name, options in [*pairs.items(), *gpu.gpu_methods.SHARED.items()]:
        config.build(methods.load(name).Config, options, name)
    assert len(pairs) == 10
    assert set(pairs) <= set(gpu.gpu_methods.SHARED)


@pytest.mark.long
def test_pfllib_part_runs_and_says_that_it_extrapolates(gpu, capsys):
    assert get_exit_code(gpu, "--device", "cpu", "--parts", "pfllib", "--methods", "fedavg", "--rounds", "2") == 0
    assert "extrapolated from 2 rounds, not measured" in capsys.readouterr().out


@pytest.mark.compiled
def test_ceiling_matches_hand_computed_operations_of_a_cnn(monkeypatch):
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    ceiling = importlib.import_module("subjects.ceiling")
    # Of an image: 25 taps x 784 pixels x 32 x 2, 800 x 196 x 64 x 3, 3136 x 512 x 3, 512 x 62 x 3; 2,500 of them.
    per_image = 2 * (25 * 784 * 32 * 2 + 800 * 196 * 64 * 3 + 3136 * 512 * 3 + 512 * 62 * 3)
    assert ceiling.of_round("cnn") == per_image * 2500
