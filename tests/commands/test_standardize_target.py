"""``pfl partition --standardize-target client``: commands predict and score in the unit of the target."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from pflcli import (
    build_datastore,
    compare,
    evaluate,
    export,
    extract,
    import_data,
    new_client,
    partition,
    personalize,
    predict,
    report,
    stack,
    train_global,
)
from pflcli.core.errors import InputError, UsageError
from pflcli.plugins.sites.federation import create_federation, run_federation
from pflcli.plugins.sites.site import check_site, serve_site

SETTINGS = {"model": "logistic", "rounds": 25, "participation": 1.0, "batch_size": 10, "lr": 0.05, "eval_every": 1}
SCALES = {"high": (1000.0, 1.0), "low": (0.0, 1.0), "steep": (-200.0, 30.0)}
"""The level and the unit of each client's target."""


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Return a folder with a table of clients of one slope but other levels, a partition ``p`` and runs of it."""
    folder, draw = tmp_path_factory.mktemp("chain"), np.random.default_rng(0)
    rows = []
    for who, (level, unit) in SCALES.items():
        x = draw.normal(size=(60, 2))
        y = level + unit * (5 * x[:, 0] + 0.5 * draw.normal(size=60))
        rows += [f"{who},{a:.4f},{b:.4f},{label:.4f}" for (a, b), label in zip(x, y, strict=True)]
    (folder / "t.csv").write_text("\n".join(["who,a,b,y", *rows]) + "\n", encoding="utf-8")
    import_data(folder / "t.csv", folder / "data", client="who", label="y", task="quantity", unit="EUR")
    partition(folder / "data", folder / "p", standardize_target="client")
    for name, method in (("f", "fedavg"), ("d", "ditto")):
        personalize(method, folder / "p", folder / name, **SETTINGS)
    train_global(folder / "p", folder / "g", **SETTINGS)
    build_datastore(extract(folder / "g", folder / "em"), folder / "ds")
    personalize("knn-per", folder / "ds", folder / "knn", options={"k": 5})
    return folder


def read_answers(run, split="test"):
    """Return the stored predictions (n,), labels (n,) and sample numbers (n,) of each client."""
    with h5py.File(run / "predictions.h5") as file:
        names, bounds = ("p", "y", "sample"), file[f"{split}/offsets"][1:-1]
        arrays = [np.split(np.squeeze(file[f"{split}/{name}"][...]), bounds) for name in names]
    return [*zip(*arrays, strict=True)]


def scale_of(client, chain):
    """Return the mean and the deviation of a client's training labels."""
    with h5py.File(chain / "p" / "samples.h5") as file:
        first = 3 * [*SCALES].index(client)
        y = file["y"][slice(*file["offsets"][first : first + 2])]
    return y.mean(), y.std()


def test_scores_are_those_of_predictions_in_the_unit_of_the_target(chain, tmp_path):
    made = compare(
        [chain / "p"], tmp_path / "c", methods=["fedavg", "ditto"], metrics=["rmse", "mae", "r2"], seeds=[0, 1],
        settings=SETTINGS, references=False,
    )  # fmt: skip
    table, labels = made.table(), {float(line.split(",")[-1]) for line in (chain / "t.csv").read_text().split()[1:]}
    for method in ("fedavg", "ditto"):
        scores = {"rmse": [], "mae": [], "r2": []}
        for seed in (0, 1):
            (run,) = (
                at.parent for at in (tmp_path / "c").rglob(f"*{method}*/predictions.h5") if f"seed-{seed}" in str(at)
            )
            for p, y, _ in read_answers(run):
                assert {*y.tolist()} <= labels
                error = p.astype(float) - y
                scores["rmse"].append(np.sqrt(np.mean(error**2)))
                scores["mae"].append(np.mean(np.abs(error)))
                scores["r2"].append(1 - np.sum(error**2) / np.sum((y - y.mean()) ** 2))
        for metric, values in scores.items():
            assert table.loc[method, metric] == pytest.approx(np.mean(values), rel=1e-5)  # 12 samples of each client
        assert np.mean(scores["r2"]) > 0.95
    words = "given each client's mean and deviation of the target (--standardize-target client): every method"
    assert words in (tmp_path / "c" / "comparison" / "table.md").read_text(encoding="utf-8")
    report([tmp_path / "c"], tmp_path / "page.html")
    assert words.replace("'", "&#x27;") in (tmp_path / "page.html").read_text(encoding="utf-8").replace(
        "&#39;", "&#x27;"
    )


def test_rounds_reach_a_target_in_its_unit(chain, tmp_path):
    p, y = (np.concatenate(each) for each in [*zip(*read_answers(chain / "f", "validation"), strict=True)][:2])
    last = np.sqrt(np.mean((p.astype(float) - y) ** 2))
    for target, rounds in ((1.01 * last, 1), (0.5 * last, 0)):
        made = evaluate([chain / "f"], tmp_path / f"e{rounds}", target=target)
        metrics = json.loads((made.path / "metrics.json").read_text())["methods"][0]["metrics"]
        assert metrics["rounds_to_target"]["n"] == rounds


@pytest.mark.parametrize("method", ["f", "d", "knn"])
def test_predict_and_export_give_the_stored_predictions(chain, method, tmp_path):
    lines = (chain / "t.csv").read_text(encoding="utf-8").splitlines()
    for client, (p, y, sample) in zip(("high", "low", "steep"), read_answers(chain / method), strict=True):
        own = [lines[at + 1] for at in sample]
        assert [float(line.split(",")[-1]) for line in own] == y.tolist()
        (tmp_path / "x.csv").write_text("\n".join([lines[0], *own]) + "\n", encoding="utf-8")
        assert np.array_equal(predict(chain / method, tmp_path / "x.csv", client=client).p[:, 0], p)
    made = export(chain / method, tmp_path / "model", client="steep")
    assert (made.model["unit"], made.model["agreement"]["beyond"]) == ("EUR", 0)
    words = [sys.executable, tmp_path / "model" / "reader.py", tmp_path / "model", tmp_path / "x.csv"]
    rows = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    assert [float(row.split(",")[1]) for row in rows] == pytest.approx(p.tolist(), rel=1e-5)
    with pytest.raises(InputError, match=r"\w+ predicts in deviations from the mean of a client") as raised:
        predict(chain / method, tmp_path / "x.csv", client="none")
    assert "pfl new-client" in raised.value.fix[0]


@pytest.mark.parametrize("method", ["f", "d", "knn"])
def test_a_new_client_has_the_scale_of_its_own_training_samples(chain, method, tmp_path):
    x = np.random.default_rng(1).normal(size=(50, 2))
    y = 7e4 + 500 * (5 * x[:, 0] + 0.5 * np.random.default_rng(2).normal(size=50))
    use = np.resize(["train", "train", "train", "validation", "test"], 50)
    rows = [f"{a:.4f},{b:.4f},{label:.4f},{word}" for (a, b), label, word in zip(x, y, use, strict=True)]
    (tmp_path / "n.csv").write_text("\n".join(["a,b,y,use", *rows]) + "\n", encoding="utf-8")
    made = new_client(chain / method, tmp_path / "n.csv", tmp_path / "n", client="far", split_column="use")
    *before, (p, known, _) = read_answers(made.path)
    assert known == pytest.approx(y[4::5], abs=1e-4)
    assert np.sqrt(np.mean((p - known) ** 2)) < 0.5 * y.std()
    for first, second in zip(before, read_answers(chain / method), strict=True):
        assert np.array_equal(first[0], second[0])
    (tmp_path / "q.csv").write_text("\n".join(["a,b", *(row.rsplit(",", 2)[0] for row in rows)]) + "\n")
    assert predict(made.path, tmp_path / "q.csv", client="far").p[4::5, 0] == pytest.approx(p, rel=1e-6)
    if method == "f":  # all clients have one model, so their predictions differ by their scales alone
        other, (mean, deviation) = (
            predict(made.path, tmp_path / "q.csv", client="high").p[4::5, 0],
            scale_of("high", chain),
        )
        z = (p - y[use == "train"].mean()) / y[use == "train"].std()
        assert z == pytest.approx((other - mean) / deviation, abs=1e-3)


def test_embeddings_have_labels_in_their_unit_and_a_stack_mixes_predictions_in_it(chain, tmp_path):
    with h5py.File(chain / "em" / "embeddings.h5") as stored, h5py.File(chain / "p" / "samples.h5") as samples:
        kept = np.isin(samples["sample"][...], stored["train/sample"][...])
        assert np.array_equal(stored["train/y"][...], samples["y"][...][kept])
    made = stack([chain / "f", chain / "d", chain / "knn"], tmp_path / "s", gate=False)
    for (p, y, _), spread in zip(read_answers(made.path), (1, 1, 30), strict=True):
        assert np.sqrt(np.mean((p - y) ** 2)) < 2 * spread


def test_sites_standardize_by_themselves(chain, tmp_path):
    agreed = create_federation(chain / "f", tmp_path / "fed")
    header, *rows = (chain / "t.csv").read_text(encoding="utf-8").splitlines()
    for who in SCALES:
        own = [row for row in rows if row.startswith(f"{who},")]
        (tmp_path / f"{who}.csv").write_text("\n".join([header, *own]) + "\n", encoding="utf-8")
        import_data(tmp_path / f"{who}.csv", tmp_path / f"d-{who}", like=agreed)
        made = partition(tmp_path / f"d-{who}", tmp_path / f"p-{who}", like=agreed, client=who)
        check_site(made, agreed, tmp_path / f"s-{who}")
    with ThreadPoolExecutor() as pool:
        sites = [pool.submit(serve_site, tmp_path / f"s-{who}", tmp_path / "exchange") for who in SCALES]
        run_federation(agreed, tmp_path / "exchange", tmp_path / "server")
    for site, (p, *_) in zip(sites, read_answers(chain / "f"), strict=True):
        with h5py.File(site.result().path / "predictions.h5") as file:
            assert np.array_equal(file["test/p"][:, 0], p)
    with pytest.raises(UsageError, match="--standardize-target has no effect with --like"):
        partition(tmp_path / "d-low", tmp_path / "x", like=agreed, client="low", standardize_target="client")


def test_the_option_is_part_of_the_request_and_refused_for_classes(chain, tmp_path):
    stored = json.loads((chain / "p" / "manifest.json").read_text())
    assert stored["request"]["standardize_target"] == "client"
    plain = json.loads((partition(chain / "data", tmp_path / "q").path / "manifest.json").read_text())
    assert "standardize_target" not in plain["request"]
    assert not plain["summary"]["task"]["fields"]["by_client"]
    with pytest.raises(UsageError, match="for quantities, and the task is classes"):
        partition("writers", tmp_path / "w", standardize_target="client")
    with pytest.raises(UsageError, match="each"):
        partition(chain / "data", tmp_path / "w", standardize_target="each")
    assert not (tmp_path / "w").exists()


def test_a_backbone_of_other_scales_embeds_no_samples(chain, tmp_path):
    partition(chain / "data", tmp_path / "q")
    with pytest.raises(InputError, match=r"targets standardized by client: False, but .* was trained on True"):
        extract(chain / "g", tmp_path / "x", partition=tmp_path / "q")
