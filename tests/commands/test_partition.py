"""The partition step: splits, the artifact, clusters, new clients, the picture."""

from __future__ import annotations

import csv
import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

import worlds
from pflcli.artifacts.kinds import partition as artifact
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.evaluate import evaluate
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.show import plot
from pflcli.commands.train_global import train_global
from pflcli.core import datasets
from pflcli.core.datasets import Samples
from pflcli.core.errors import InputError, UsageError
from pflcli.data.preparation.deal import assemble


@pytest.fixture(scope="module")
def writers_samples():
    return datasets.load("writers").load(None)


def read(path):
    return artifact.read(open_artifact(path))


def test_assemble_splits_clients_of_every_size():
    sizes = [0, 1, 2, 3, 5, 10, 100]
    n = sum(sizes)
    samples = Samples(np.zeros((n, 2), np.float32), np.zeros(n, np.int64), 1)
    parts = np.split(np.arange(n), np.cumsum(sizes)[:-1])
    result = assemble(samples, parts, (0.6, 0.2, 0.2), seed=0)
    result.check("here")
    assert result.sizes.sum(axis=1).tolist() == sizes
    assert result.sizes.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0], [1, 1, 1], [3, 1, 1], [6, 2, 2], [60, 20, 20]]


def test_partition_contains_the_samples_of_the_dataset(tmp_path):
    outcome = partition("writers", tmp_path / "p", scheme="dirichlet", options={"alpha": 0.05}, clients=40)
    stored = artifact.read(open_artifact(tmp_path / "p"))
    source = datasets.load("writers").load(None)
    np.testing.assert_array_equal(source.x[stored.sample], stored.x)
    np.testing.assert_array_equal(source.y[stored.sample], stored.y)
    assert len(stored.y) == len(source.y) == outcome.summary["samples"]
    assert outcome.summary["empty"] == np.flatnonzero(stored.sizes.sum(axis=1) == 0).tolist()
    filled = partition("writers", tmp_path / "q", scheme="dirichlet", clients=40, min_samples=20)
    assert filled.summary["smallest"] >= 20


def blocks_of(stored):
    """Each client with its rows in the artifact."""
    bounds = stored.offsets[::3]
    return [(client, slice(bounds[client], bounds[client + 1])) for client in range(len(stored.names))]


def test_rotated_images_of_clusters_are_the_source_images_when_rotated_back(tmp_path, writers_samples):
    partition("writers", tmp_path / "p", scheme="clusters", options={"groups": 4}, clients=10)
    stored = read(tmp_path / "p")
    assert stored.cluster.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    for client, rows in blocks_of(stored):
        back = np.stack([np.rot90(image, -int(stored.cluster[client])) for image in stored.x[rows]])
        np.testing.assert_array_equal(back, writers_samples.x[stored.sample[rows]])
    np.testing.assert_array_equal(stored.y, writers_samples.y[stored.sample])
    assert not np.array_equal(stored.x, writers_samples.x[stored.sample])


def test_labels_of_a_cluster_are_permuted_by_one_bijection(tmp_path, writers_samples):
    outcome = partition("writers", tmp_path / "p", scheme="clusters", options={"groups": 3, "kind": "both"}, clients=9)
    stored = read(tmp_path / "p")
    maps: dict[int, set] = {group: set() for group in range(3)}
    for client, rows in blocks_of(stored):
        group = int(stored.cluster[client])
        maps[group] |= set(zip(writers_samples.y[stored.sample[rows]].tolist(), stored.y[rows].tolist(), strict=True))
        back = np.rot90(stored.x[rows], -group, axes=(1, 2))
        np.testing.assert_array_equal(back, writers_samples.x[stored.sample[rows]])
    for pairs in maps.values():
        assert sorted(a for a, _ in pairs) == sorted(b for _, b in pairs) == list(range(10))
    assert maps[0] == {(label, label) for label in range(10)}
    assert maps[1] != maps[0] != maps[2] != maps[1]
    assert outcome.summary["clusters"] == [3, 3, 3]
    rows = list(csv.DictReader((tmp_path / "p" / "clients.csv").open()))
    assert [int(row["cluster"]) for row in rows] == stored.cluster.tolist()


def test_new_clients_are_drawn_by_seed_and_recorded(tmp_path):
    outcomes = [partition("writers", tmp_path / str(i), new_clients=0.2, seed=seed) for i, seed in enumerate((0, 0, 1))]
    first, again, other = (read(tmp_path / str(i)).new for i in range(3))
    assert first.dtype == np.bool_
    assert first.sum() == other.sum() == outcomes[0].summary["new_clients"] == 12
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    rows = list(csv.DictReader((tmp_path / "0" / "clients.csv").open()))
    assert [row["new"] == "1" for row in rows] == first.tolist()
    # The samples are those of the partition without new clients.
    partition("writers", tmp_path / "all")
    without_new = read(tmp_path / "all")
    assert without_new.new is without_new.cluster is None
    np.testing.assert_array_equal(without_new.sample, read(tmp_path / "0").sample)


def test_new_clients_can_be_chosen_by_name(pfl, tmp_path):
    partition("writers", tmp_path / "all")
    names = read(tmp_path / "all").names
    chosen = [names[7], names[2]]
    assert pfl("partition", "writers", "-o", tmp_path / "p", "--new-clients", ",".join(chosen)).code == 0
    stored = read(tmp_path / "p")
    assert [name for name, new in zip(stored.names, stored.new, strict=True) if new] == [names[2], names[7]]
    partition("writers", tmp_path / "one", new_clients=names[7])
    assert read(tmp_path / "one").new.sum() == 1
    ran = pfl("partition", "writers", "-o", tmp_path / "q", "--new-clients", "nobody")
    assert (ran.code, "no client 'nobody'" in ran.err) == (2, True)
    ran = pfl("partition", "writers", "-o", tmp_path / "q", "--new-clients", ",".join(names))
    assert (ran.code, "no training samples" in ran.err) == (2, True)


def test_check_refuses_client_facts_of_the_wrong_length(small):
    stored = read(small.p)
    with pytest.raises(InputError, match=r"6 clients, new of shape \(5,\)"):
        dataclasses.replace(stored, new=np.zeros(5, dtype=bool)).check("here")


def test_new_clients_are_in_no_cohort():
    run = worlds.run(participation=0.5)
    participants = np.unique(np.concatenate([run.cohort(t) for t in range(200)]))
    assert participants.tolist() == [0, 1, 2, 3, 4, 6]  # client 5 is empty
    new = np.asarray([True, False, False, True, False, False, False])
    run.federation = dataclasses.replace(run.federation, new=new)
    cohorts = [run.cohort(t) for t in range(200)]
    assert np.unique(np.concatenate(cohorts)).tolist() == [1, 2, 4, 6]
    assert {len(cohort) for cohort in cohorts} == {2}
    assert run.clients.tolist() == list(range(7))


def test_validation_of_the_global_model_excludes_new_clients():
    run = worlds.run()
    model, data = run.initial_model(), run.federation
    for late in ([], [0], [0, 2, 6]):
        new = np.isin(np.arange(7), late)
        run.federation = dataclasses.replace(data, new=new)
        rows = np.concatenate([data.rows(c, "validation") for c in np.flatnonzero(~new)])
        guess = run.engine.infer(model, rows)[0].argmax(1)
        assert run.accuracy(model, "validation") == pytest.approx(float((guess == data.y[rows]).double().mean()))


def test_command_chain_trains_without_new_clients_and_evaluates_them(tmp_path):
    partition("writers", tmp_path / "p", clients=10, new_clients=0.3)
    new = read(tmp_path / "p").new
    settings = {"model": "mlp", "rounds": 3, "participation": 1.0}
    train_global(tmp_path / "p", tmp_path / "b", settings=settings)
    rounds = list(csv.DictReader((tmp_path / "b" / "rounds.csv").open()))
    assert [row["clients"] for row in rounds] == ["7"] * 3
    for method in ("fedavg", "fedavg-plus"):
        personalize(method, tmp_path / "b", tmp_path / method)
    evaluate([tmp_path / "fedavg", tmp_path / "fedavg-plus"], tmp_path / "e")
    rows = list(csv.DictReader((tmp_path / "e" / "clients.csv").open()))
    assert [row["unseen"] == "1" for row in rows] == new.tolist() * 2
    methods = json.loads((tmp_path / "e" / "metrics.json").read_text())["methods"]
    for method in methods:
        own_rows = [row for row in rows if row["method"] == method["label"]]
        for group, late in (("seen", "0"), ("unseen", "1")):
            chosen = [row for row in own_rows if row["unseen"] == late]
            n = np.asarray([int(row["n_test"]) for row in chosen])
            accuracy = np.asarray([float(row["accuracy"]) for row in chosen])
            metric = method["metrics"][f"accuracy_{group}"]
            assert metric["value"] == pytest.approx((accuracy * n).sum() / n.sum(), rel=1e-5)
            assert metric["n"] == len(chosen)
            assert method["metrics"][f"bottom_decile_{group}"]["value"] == pytest.approx(accuracy.min(), rel=1e-5)
    assert "| unseen % |" in (tmp_path / "e" / "table.md").read_text()


def test_evaluation_without_new_clients_does_not_mention_unseen_ones(small):
    assert "unseen" not in (small.ev / "metrics.json").read_text()
    assert "unseen" not in (small.ev / "clients.csv").read_text()


@pytest.mark.parametrize("fraction", ["-0.1", "1.5", "nan"])
def test_partition_refuses_a_fraction_of_new_clients_outside_0_to_1(pfl, tmp_path, fraction):
    ran = pfl("partition", "writers", "-o", tmp_path / "p", f"--new-clients={fraction}")
    assert (ran.code, ran.out) == (2, "")
    assert "is not a fraction from 0 to below 1" in ran.err


WRONG = {
    "nobody left": ("--clients 2 --new-clients 0.9", "leaves no training samples", "--new-clients 0.2"),
    "no coarse labels": ("--scheme pachinko --clients 4", "needs coarse labels", "--scheme dirichlet"),
    "groups": ("--scheme clusters --clients 3 --set groups=4", "groups=4 are more than the 3 clients", "--clients 4"),
    "rotations": ("--scheme clusters --clients 9 --set groups=5", "the 4 rotations there are", "--set kind=both"),
    "kind": ("--scheme clusters --clients 9 --set kind=shear", "kind=shear does not fit scheme clusters"),
    "shards": ("--scheme shards --clients 60 --set n=100", "need 6000 samples, there are 5486", "--set n=91"),
    "sizes": ("--scheme quantity --clients 9 --set beta=0", "beta=0 does not fit scheme quantity"),
}


@pytest.mark.parametrize("case", WRONG)
def test_partition_refuses_wrong_options_and_names_the_problem(pfl, tmp_path, case):
    line, *words = WRONG[case]
    ran = pfl("partition", "writers", "-o", tmp_path / "p", *line.split())
    assert (ran.code, ran.out) == (2, "")
    assert all(word in ran.err for word in words), ran.err
    assert list(tmp_path.iterdir()) == []


def test_clusters_scheme_refuses_to_rotate_features(pfl, tmp_path):
    x, y = np.zeros((8, 4), np.float32), np.arange(8)
    np.savez(tmp_path / "fashion_mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    line = ["--root", tmp_path, "--scheme", "clusters", "--clients", "4", "-o", tmp_path / "p"]
    ran = pfl("partition", "fashion-mnist", *line)
    assert ran.code == 2
    assert "kind=rotation turns images; these samples are float32 4" in ran.err
    assert pfl("partition", "fashion-mnist", *line, "--set", "kind=labels").code == 0


def test_summary_contains_the_label_divergence(pfl, tmp_path):
    divergences = {}
    for name, options in (("iid", {}), ("classes", {"n": 1})):
        outcome = partition("writers", tmp_path / name, scheme=name, options=options, clients=10)
        divergences[name] = outcome.summary["label_divergence"]
    assert divergences["iid"]["from_overall"] < divergences["iid"]["between_clients"] < 0.05
    assert divergences["classes"]["between_clients"] == 1.0  # ten clients, ten classes, no label shared
    alone = partition("writers", tmp_path / "alone", scheme="iid", clients=1)
    assert alone.summary["label_divergence"] == {"from_overall": 0.0, "between_clients": None}
    assert "between_clients: 1.0" in pfl("show", tmp_path / "classes", "-v").out


@pytest.mark.parametrize(
    ("line", "clients"),
    [("", None), ("--scheme clusters --set groups=2 --new-clients 0.2", 20), ("--scheme dirichlet", 300)],
)
def test_show_plots_the_partition(pfl, tmp_path, line, clients):
    many = [] if clients is None else ["--clients", clients]
    pfl("partition", "writers", "-o", tmp_path / "p", *line.split(), *many)
    ran = pfl("show", tmp_path / "p", "--plot", tmp_path / "p.png")
    assert ran.code == 0
    assert ran.out == f"{tmp_path / 'p.png'}\n"
    first = (tmp_path / "p.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    plot(tmp_path / "p", tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == first


def test_plot_refuses_wrong_formats_and_artifacts(small, tmp_path):
    with pytest.raises(UsageError, match="not the name of a PNG, SVG or PDF file"):
        plot(small.p, tmp_path / "p.gif")
    with pytest.raises(UsageError, match="is a backbone, of which there is no figure"):
        plot(small.b, tmp_path / "b.png")
    with pytest.raises(InputError, match="cannot write"):
        plot(small.p, tmp_path / "nowhere" / "p.png")


@pytest.fixture
def fashion_mnist_folder(tmp_path):
    """A folder with Fashion-MNIST of 300 training and 60 test images; the latter are all dark."""
    draw = np.random.default_rng(0)
    x = draw.integers(1, 256, (300, 28, 28), dtype=np.uint8)
    y = np.arange(300) % 10
    root = tmp_path / "data"
    root.mkdir()
    np.savez(root / "fashion_mnist.npz", x_train=x, y_train=y, x_test=0 * x[:60], y_test=y[:60])
    return root


@pytest.mark.parametrize("scheme", ["dirichlet", "classes", "iid"])
def test_keep_test_uses_the_published_test_samples(fashion_mnist_folder, tmp_path, scheme):
    outcome = partition(
        "fashion-mnist",
        tmp_path / "p",
        scheme=scheme,
        clients=10,
        keep_test=True,
        root=fashion_mnist_folder,
        min_samples=10,
    )
    stored = read(tmp_path / "p")
    split = np.repeat(np.tile([0, 1, 2], 10), stored.sizes.ravel())
    np.testing.assert_array_equal(split == 2, ~stored.x.any(axis=(1, 2)))
    assert outcome.summary["test"] == 60
    of_others = stored.sizes[:, :2].sum(axis=1)
    np.testing.assert_array_equal(stored.sizes[:, 1], np.round(0.2 * of_others))
    part = partition(
        "fashion-mnist", tmp_path / "q", scheme="iid", clients=3, keep_test=True, root=fashion_mnist_folder, part=(1, 2)
    )
    assert part.summary["test"] == (read(tmp_path / "q").sample >= 300).sum() > 0


def test_keep_test_draws_mostly_the_same_validation_samples_for_other_seeds(fashion_mnist_folder, tmp_path):
    sets = []
    for seed, alpha in ((0, 100.0), (1, 1.0)):
        options = {"alpha": alpha}
        out = tmp_path / str(seed)
        partition(
            "fashion-mnist",
            out,
            scheme="dirichlet",
            clients=2,
            options=options,
            keep_test=True,
            root=fashion_mnist_folder,
            seed=seed,
        )
        stored = read(out)
        split = np.repeat(np.tile([0, 1, 2], 2), stored.sizes.ravel())
        sets.append([set(stored.sample[split == part]) for part in (0, 1)])
    (_train, validation), (other, others) = sets
    assert len(validation & others) > 0.7 * len(validation)
    assert len(other & validation) < 0.3 * len(validation)  # by chance it would be 0.8


def test_keep_test_is_refused_without_published_test_samples(fashion_mnist_folder, tmp_path):
    with pytest.raises(UsageError, match="writers has no published test samples"):
        partition("writers", tmp_path / "p", keep_test=True)
    with pytest.raises(UsageError, match="fraction for test must be 0"):
        partition("fashion-mnist", tmp_path / "p", keep_test=True, fractions=(0.6, 0.2, 0.2), root=fashion_mnist_folder)


def test_new_capacity_reduces_only_the_samples_of_new_clients(tmp_path):
    wholes = partition("writers", tmp_path / "1", clients=12, new_clients=0.25)
    by_capacity = {"1": read(wholes.path)}
    for fraction in ("0.6", "0.2"):
        partition("writers", tmp_path / fraction, clients=12, new_clients=0.25, new_capacity=float(fraction))
        by_capacity[fraction] = read(tmp_path / fraction)
        assert by_capacity[fraction].new.sum() == 3
    for client, new in enumerate(by_capacity["1"].new):
        for split in range(3):
            rows = [
                set(part.sample[part.offsets[3 * client + split] :][: part.sizes[client, split]])
                for part in by_capacity.values()
            ]
            assert rows[0] >= rows[1] >= rows[2]
            if new and split < 2:
                assert [len(row) for row in rows[1:]] == [np.ceil(round(f * len(rows[0]), 6)) for f in (0.6, 0.2)]
            else:
                assert rows[0] == rows[2]
    with pytest.raises(UsageError, match="--new-capacity"):
        partition("writers", tmp_path / "p", new_capacity=0.5)


def test_new_capacity_does_not_change_the_global_model(tmp_path):
    states = []
    for capacity in (1.0, 0.3):
        partition("writers", tmp_path / f"p{capacity}", clients=8, new_clients=0.25, new_capacity=capacity)
        out = tmp_path / f"b{capacity}"
        train_global(tmp_path / f"p{capacity}", out, settings={"model": "mlp", "rounds": 2})
        states.append((out / "weights.safetensors").read_bytes())
    assert states[0] == states[1]


@pytest.mark.parametrize("download", [False, True])
def test_partition_passes_the_download_option_to_the_dataset(tmp_path, monkeypatch, download):
    calls = []

    def load(root, *, download=False):
        calls.append((root, download))
        raise UsageError("there are no files")

    monkeypatch.setattr(datasets, "load", lambda name: SimpleNamespace(load=load, Config=None))
    with pytest.raises(UsageError, match="no files"):
        partition("fashion-mnist", tmp_path / "p", root=tmp_path, download=download)
    assert calls == [(tmp_path, download)]
