"""The file of claims: what is in it, what it takes over from settings, and clear errors for what is wrong."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from pflcli.core import config
from pflcli.core.errors import InputError, UsageError
from pflcli.core.settings import Settings
from pflcli.plugins.checks.new import new
from pflcli.plugins.claims import claims_file
from pflcli.plugins.claims.comparisons import plan
from pflcli.plugins.claims.experiments import read_experiments
from pflcli.workflow.comparison.variants import resolve_variants

SETTINGS = """
[one.base]
dataset = "writers"
[one.base.paper.partition]
scheme = "natural"
clients = 60
[one.base.paper.training]
model = "cnn"
rounds = 100
batch-size = 32
lr = 0.05
[one.base.cited]
clients = "Table 1"
rounds = "section 5"
batch-size = "section 5"
[one.base.small]
target = 0.4
link = "10:50"
tune = 6
[one.base.small.partition]
scheme = "natural"
clients = 10
[one.base.small.training]
model = "mlp"
rounds = 5
batch-size = 32
[one.classes]
like = "one.base"
[one.classes.small.partition]
scheme = "classes"
set = { n = 2 }
"""
EXPERIMENT = """
[experiments.writers]
dataset = "writers"
training = { rounds = 5 }
"""
CLAIM = """
[claims.better]
says = "kNN-Per is better"
on = ["writers"]
method = "knn-per"
direction = "higher"
against = ["fedavg"]
"""


@pytest.fixture
def read(tmp_path):
    def write_and_read(text, size="small"):
        (tmp_path / "settings.toml").write_text(SETTINGS)
        (tmp_path / "claims.toml").write_text(text)
        return claims_file.read(tmp_path / "claims.toml", size)

    return write_and_read


def test_an_experiment_takes_over_what_the_settings_say(read):
    text = (
        'settings = "settings.toml"\n[experiments.writers]\nlike = "one.classes"\ntraining = { rounds = 7 }\n' + CLAIM
    )
    experiment = read(text).experiments["writers"]
    assert experiment.dataset == "writers"
    assert experiment.partition == {"scheme": "classes", "clients": 10, "set": {"n": 2}}
    assert experiment.training == {"model": "mlp", "rounds": 7, "batch_size": 32}
    assert (experiment.target, experiment.link) == (0.4, "10:50")
    assert read(text.replace("[claims.", "target = 0.7\n[claims.")).experiments["writers"].target == 0.7
    # Of the paper: what differs and is cited. A change in the file of claims applies at both sizes.
    assert experiment.papers == {"clients": 60, "rounds": 100}
    paper = read(text, "paper").experiments["writers"]
    assert (paper.partition["clients"], paper.training["model"], paper.papers) == (60, "cnn", {"rounds": 100})


def test_another_scheme_drops_the_options_of_the_earlier_one(read):
    text = 'settings = "settings.toml"\n[experiments.writers]\nlike = "one.classes"\n' + CLAIM
    other = text.replace("[claims.", 'partition = { scheme = "iid" }\n[claims.')
    assert read(other).experiments["writers"].partition == {"scheme": "iid", "clients": 10}


def test_claims_on_the_same_experiment_share_a_comparison(read):
    more = CLAIM.replace("better]", "cheaper]").replace('"fedavg"', '"ditto"') + "seeds = 5\n"
    last = CLAIM.replace("better]", "best]") + "seeds = 2\n"
    file = read(EXPERIMENT + CLAIM + more + last)
    comparisons, cells = plan(file, file.claims, None)
    [comparison] = comparisons.values()
    assert list(comparison.methods) == ["knn-per", "fedavg", "ditto"]
    assert list(comparison.seeds) == [0, 1, 2, 3, 4]
    assert [cell.comparison for cell in (*cells["better"], *cells["cheaper"])] == ["writers", "writers"]
    assert plan(file, ["better"], [7])[0]["writers"].seeds == [7]


def test_a_grid_of_a_methods_option_makes_variants_and_one_of_training_makes_comparisons(read):
    grid = 'grid = { "knn-per.k" = [5, 10], "training.lr" = [0.1, 0.3], "partition.set.n" = [2] }\n'
    options = "[set.knn-per]\nweight = 0.5\nsigma = 2.0\n"  # the experiment's sigma counts
    file = read(
        options
        + EXPERIMENT
        + 'partition = { scheme = "classes", set = { n = 2 } }\nset.knn-per = { k = 3, sigma = 3.0 }\n'
        + CLAIM
        + grid
    )
    comparisons, cells = plan(file, file.claims, None)
    assert list(comparisons) == ["writers@lr-0.1+n-2", "writers@lr-0.3+n-2"]
    for comparison, lr in zip(comparisons.values(), (0.1, 0.3), strict=True):
        assert comparison.experiment.training == {"rounds": 5, "lr": lr}
        assert comparison.methods == {
            "knn-per@k-5": {"weight": 0.5, "sigma": 3.0, "k": 5},
            "fedavg": {},
            "knn-per@k-10": {"weight": 0.5, "sigma": 3.0, "k": 10},
        }
    assert [cell.pairs for cell in cells["better"]] == [[(f"knn-per@k-{k}", "fedavg")] for k in (5, 5, 10, 10)]
    assert [cell.at["training.lr"] for cell in cells["better"]] == [0.1, 0.3, 0.1, 0.3]


def test_a_grid_value_that_the_experiment_has_anyway_needs_no_comparison_of_its_own(read):
    file = read(EXPERIMENT + CLAIM + 'grid = { "training.rounds" = [5, 9] }\n')
    assert list(plan(file, file.claims, None)[0]) == ["writers", "writers@rounds-9"]


def test_a_tuned_experiment_has_a_comparison_for_each_seed_which_decide_together(read):
    grid = 'grid = { "training.rounds" = [5, 9] }\n'
    file = read(EXPERIMENT + "tune = 4\n" + CLAIM + grid)
    comparisons, cells = plan(file, file.claims, [3, 4])
    assert {name: (item.group, [*item.seeds]) for name, item in comparisons.items()} == {
        "writers@seed-3": ("writers", [3]),
        "writers@seed-4": ("writers", [4]),
        "writers@rounds-9+seed-3": ("writers@rounds-9", [3]),
        "writers@rounds-9+seed-4": ("writers@rounds-9", [4]),
    }
    assert [cell.comparison for cell in cells["better"]] == ["writers", "writers@rounds-9"]


def test_learning_rate_of_a_tuned_experiment_is_open_unless_the_grid_has_it(read):
    text = EXPERIMENT.replace("rounds = 5", "rounds = 5, lr = 0.5") + "tune = 4\n" + CLAIM
    for grid, expected in (("", {"rounds": 5}), ('grid = { "training.lr" = [0.1] }\n', {"rounds": 5, "lr": 0.1})):
        file = read(text + grid)
        assert [item.experiment.training for item in plan(file, file.claims, [0])[0].values()] == [expected]


def test_trials_of_the_settings_are_taken_over(read):
    text = 'settings = "settings.toml"\n[experiments.writers]\nlike = "one.classes"\n' + CLAIM
    assert read(text).experiments["writers"].tune == 6
    assert read(text.replace("[claims.", "tune = 2\n[claims.")).experiments["writers"].tune == 2
    assert read(text, "paper").experiments["writers"].tune is None
    with pytest.raises(UsageError, match="tune=0"):
        read(text.replace("[claims.", "tune = 0\n[claims."))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, False, id="one rival"),
        pytest.param({"against": ("fedavg", "ditto")}, True, id="two rivals"),
        pytest.param({"against": ("fedavg", "ditto"), "metric": "bottom_decile_unseen"}, True, id="bottom decile"),
        pytest.param({"against": ("fedavg", "ditto"), "metric": "megabytes"}, False, id="no score"),
        pytest.param({"against": ("fedavg", "ditto"), "metric": "log_loss"}, False, id="loss"),
        pytest.param({"against": ("fedavg", "ditto"), "direction": "lower"}, False, id="lower"),
        pytest.param({"against": ("fedavg", "knn-per@k7", "knn-per-extended")}, False, id="own variants"),
        pytest.param({"against": ("fedavg", "fedavg@small")}, False, id="variants of one rival"),
    ],
)
def test_claim_to_be_ahead_of_several_methods_depends_on_tuning(changes, expected):
    facts = {"says": "", "on": ("writers",), "direction": "higher", "method": "knn-per", "against": ("fedavg",)}
    assert claims_file.Claim(**{**facts, **changes}).ranks_first is expected


def test_grid_values_with_the_same_name_are_refused(read):
    file = read(EXPERIMENT + CLAIM + 'grid = { "training.model" = ["mlp:a", "mlp_a"] }\n')
    with pytest.raises(UsageError, match="same name"):
        plan(file, file.claims, None)


def test_a_method_in_a_file_is_found_beside_the_file_of_claims(read, tmp_path):
    template = Path(claims_file.__file__).parents[1] / "checks" / "templates" / "method.py"
    (tmp_path / "my_claimed_method.py").write_text(template.read_text())
    file = read(EXPERIMENT + CLAIM.replace('"knn-per"', '"./my_claimed_method.py@strong"'))
    assert file.claims["better"].method == "my-claimed-method@strong"


def test_a_dataset_in_a_folder_is_found_beside_the_file_of_claims_whatever_its_name(read, tmp_path, monkeypatch):
    text = EXPERIMENT.replace('"writers"', '"./cifar10"') + CLAIM
    assert read(text).experiments["writers"].dataset == str(tmp_path / "cifar10")
    monkeypatch.chdir(tmp_path)
    assert claims_file.read(Path("claims.toml")).experiments["writers"].dataset == "./cifar10"


def test_the_claim_in_the_template_of_a_method_can_be_read(tmp_path):
    template = new("method", tmp_path / "my_claimed_method.py").read_text()
    example = template.partition("claims.toml::")[2].partition('"""')[0]
    (tmp_path / "claims.toml").write_text(textwrap.dedent(example))
    [claim] = claims_file.read(tmp_path / "claims.toml").claims.values()
    assert claim.pairs == [("my-claimed-method", "fedavg-plus")]


WRONG = {
    "metrc": (CLAIM + 'metrc = "worst"\n', "unknown option 'metrc' for [claims.better]", "metric"),
    "metric": (CLAIM + 'metric = "wurst"\n', "unknown metric 'wurst'", "worst"),
    "gain": (CLAIM + 'metric = "gain"\n', "unknown metric 'gain'", ""),
    "direction": (CLAIM.replace('"higher"', '"up"'), "direction=up does not fit [claims.better]", ""),
    "no direction": (CLAIM.replace('direction = "higher"', ""), "has no 'direction'", 'direction = "higher"'),
    "no sentence": (CLAIM.replace('says = "kNN-Per is better"', ""), "has no 'says'", "says"),
    "experiment": (CLAIM.replace('["writers"]', '["writer"]'), "'writer', which is no experiment", "writers"),
    "no experiment": (CLAIM.replace('["writers"]', "[]"), "on=[] does not fit", ""),
    "method": (CLAIM.replace("knn-per", "knn-pre"), "unknown method 'knn-pre'", "knn-per"),
    "no method": (CLAIM.replace('method = "knn-per"', ""), "names no method", "method ="),
    "itself": (CLAIM.replace('["fedavg"]', '["knn-per"]'), "compares knn-per with itself", "@other"),
    "two forms": (CLAIM + "value = 0.5\n", "and has 2", "against"),
    "no form": (CLAIM.replace('against = ["fedavg"]', ""), "and has 0", "against"),
    "short order": (
        CLAIM.replace('against = ["fedavg"]', 'order = ["local"]').replace('method = "knn-per"', ""),
        "needs two",
        "order",
    ),
    "margin": (CLAIM + "margin = -1\n", "margin=-1 does not fit", ""),
    "margin in words": (CLAIM + 'margin = "much"\n', "margin=much does not fit", ""),
    "level": (CLAIM.replace('"higher"', '"level"'), "level needs a margin", "margin = 0.01"),
    "seeds": (CLAIM + "seeds = 0\n", "seeds=0 does not fit", ""),
    "grid of nobody": (CLAIM + 'grid = { "ditto.lam" = [1] }\n', "'ditto.lam' in grid belongs to none", "training"),
    "grid without values": (CLAIM + 'grid = { "knn-per.k" = [] }\n', "'knn-per.k' in grid is not", "training.lr"),
    "grid without list": (CLAIM + 'grid = { "knn-per.k" = 3 }\n', "does not fit [claims.better]", ""),
    "name": (CLAIM.replace("claims.better", 'claims."a/b"'), "'a/b' is no name of claims", "[claims.a-b]"),
    "options of nobody": (
        "[set.knn-pre]\nk = 3\n" + CLAIM,
        "options are set for knn-pre, which no claim is about",
        "knn-per",
    ),
    "name of an experiment": (
        CLAIM + '[experiments.verdicts]\ndataset = "writers"\n',
        "cannot be called verdicts",
        "[experiments.other]",
    ),
    "no claims": ("", "has no claims", "[claims.NAME]"),
    "table": (CLAIM + "[claim.x]\n", "unknown option 'claim'", "claims"),
}


@pytest.mark.parametrize(("text", "message", "fix"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_in_a_claim_is_named(read, text, message, fix):
    with pytest.raises(UsageError) as raised:
        read(text + EXPERIMENT)
    assert message in raised.value.message
    assert fix in " ".join(raised.value.fix)


WRONG_EXPERIMENTS = {
    "key": (
        'dataset = "writers"\ntrainings = {}\n',
        "unknown option 'trainings' for [experiments.writers]",
        "training",
    ),
    "no dataset": ("", "has no 'dataset'", "dataset ="),
    "like": ('like = "one.bse"\n', "'one.bse', which the settings do not have", "one.base"),
    "partition": (
        'dataset = "writers"\npartition = { client = 3 }\n',
        "unknown option 'client' for the partition",
        "clients",
    ),
    "training": (
        'dataset = "writers"\ntraining = { round = 3 }\n',
        "unknown option 'round' for the training",
        "rounds",
    ),
    "training value": ('dataset = "writers"\ntraining = { rounds = "many" }\n', "rounds=many does not fit", ""),
    "options of nobody": (
        'dataset = "writers"\nset = { ditto = { lam = 1 } }\n',
        "set for ditto, which no claim",
        "fedavg",
    ),
    "papers": ('dataset = "writers"\npapers = {}\n', "unknown option 'papers'", ""),
}


@pytest.mark.parametrize(("text", "message", "fix"), WRONG_EXPERIMENTS.values(), ids=WRONG_EXPERIMENTS)
def test_what_is_wrong_in_an_experiment_is_named(read, text, message, fix):
    with pytest.raises(UsageError) as raised:
        read('settings = "settings.toml"\n[experiments.writers]\n' + text + CLAIM)
    assert message in raised.value.message
    assert fix in " ".join(raised.value.fix)


def test_a_grid_of_unknown_settings_is_refused_before_anything_runs(read):
    file = read(EXPERIMENT + CLAIM + 'grid = { "training.round" = [1, 2] }\n')
    with pytest.raises(UsageError, match="unknown option 'round'"):
        plan(file, file.claims, None)


def test_files_that_are_missing_or_no_toml_are_input_errors(read, tmp_path):
    with pytest.raises(InputError, match="TOML"):
        read("[claims")
    with pytest.raises(InputError, match="nothing"):
        read('settings = "nothing.toml"\n' + EXPERIMENT + CLAIM)
    (tmp_path / "other.toml").write_text("a = 1\n")
    with pytest.raises(InputError, match="has no experiments"):
        read('settings = "other.toml"\n' + EXPERIMENT + CLAIM)
    (tmp_path / "circle.toml").write_text('[a.b]\nlike = "a.b"\n')
    with pytest.raises(InputError, match="has no experiments"):
        read('settings = "circle.toml"\n' + EXPERIMENT + CLAIM)


def test_an_experiment_starts_from_weights_if_the_settings_say_so_for_its_size(read, tmp_path):
    (tmp_path / "other.toml").write_text(
        "[p.data]\ndataset = 'writers'\ncited = { weights = 'the code' }\n[p.data.paper]\nweights = true\n"
    )
    text = 'settings = "other.toml"\n[experiments.writers]\nlike = "p.data"\n'
    small, paper = (read(text + CLAIM, size).experiments["writers"] for size in claims_file.SIZES)
    assert (small.weights, small.papers) == (False, {"weights": True})
    assert (paper.weights, paper.papers) == (True, {})
    own = read(text + "weights = true\n" + CLAIM).experiments["writers"]
    assert (own.weights, own.papers) == (True, {})
    (tmp_path / "other.toml").write_text("[p.data]\ndataset = 'writers'\n[p.data.paper]\nweights = true\n")
    assert read(text + CLAIM).experiments["writers"].papers == {}


EXAMPLES = Path(__file__).parents[3] / "examples"
PAPERS = sorted((EXAMPLES / "papers").glob("*/*.toml"))


@pytest.mark.parametrize("size", claims_file.SIZES)
@pytest.mark.parametrize(
    "path", [*PAPERS, EXAMPLES / "frozen-encoder.toml"], ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_the_claims_of_a_paper_can_be_run(path, size):
    file = claims_file.read(path, size)
    comparisons, cells = plan(file, file.claims, None)
    assert all(cells.values())
    for comparison in comparisons.values():
        training = config.build(Settings, comparison.experiment.training, comparison.name)
        variants = resolve_variants([*comparison.methods], comparison.methods, training)
        assert {item.name for item in variants} == {*comparison.methods}
        if path in PAPERS:  # the table of verdicts shows what the paper has instead, and nothing that it does not say
            cited = read_experiments(EXAMPLES / "papers" / "settings.toml")[comparison.experiment.like]["cited"]
            assert {*comparison.experiment.papers} <= {key.replace("-", "_") for key, place in cited.items() if place}


def test_every_paper_has_claims():
    papers = [path.parent.name for path in PAPERS if path.name == "claims.toml"]
    assert papers == ["fedattn", "fedham", "knn-per", "panm"]
