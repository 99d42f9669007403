"""Four hospitals agree on their columns, and have the features of one pooled import."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

import pflcli
from helpers import FORCE, ROOT, error_text
from pflcli import import_data
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import InputError, UsageError
from pflcli.data.preparation import imported_dataset, preprocessing
from pflcli.data.preparation.deal import assemble
from pflcli.plugins.sites.columns import measures, summary, table
from pflcli.plugins.sites.columns.agreement import agree
from pflcli.plugins.sites.columns.commands import agree_on_columns, summarize_columns
from pflcli.plugins.sites.columns.measures import Moments
from pflcli.plugins.sites.columns.summary import ColumnSummary, Frequency, Reading, Summary
from pflcli.plugins.sites.columns.table import Table, TableColumn

FILES = {"cleveland": "cleveland", "hungary": "hungarian", "long-beach": "va", "switzerland": "switzerland"}
NAMES = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
LEFT_OUT = ("slope", "ca", "thal")
SITES = list(FILES)
CHEST_PAIN = {"1": "typical", "2": "atypical", "3": "other pain", "4": "none"}
OPTIONS = {"label": "num>0", "client": "none", "missing": "median", "standardize": True}
MG_PER_MMOL = 38.67


def read_hospital(site):
    """The patients of a hospital as rows by column, with words for sex and chest pain."""
    rows = []
    for line in (ROOT / "data" / "datasets" / "hospitals" / f"processed.{FILES[site]}.data").read_text().split():
        row = dict(zip(NAMES, line.split(","), strict=True))
        row |= {"sex": "fm"[int(float(row["sex"]))], "cp": CHEST_PAIN[str(int(float(row["cp"])))]}
        rows.append({name: row[name] for name in NAMES if name not in LEFT_OUT})
    return rows


def write_table(path, rows, order=None, names=None):
    """Write rows as CSV, with the columns in this order, by these names."""
    order = order or list(rows[0])
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([(names or {}).get(name, name) for name in order])
        writer.writerows([[row[name] for name in order] for row in rows])
    return path


@pytest.fixture(scope="module")
def tables():
    return {site: read_hospital(site) for site in SITES}


@pytest.fixture
def own(tmp_path, tables):
    """The table of each hospital, each with another order of columns."""
    files = {}
    for at, site in enumerate(SITES):
        order = list(np.random.default_rng(at).permutation(list(tables[site][0])))
        files[site] = write_table(tmp_path / f"{site}.csv", tables[site], order)
    return files


def summarize(tmp_path, site, file, **options):
    made = import_data(file, tmp_path / f"{site}-own", **{**OPTIONS, **options})
    asked = {"client": site, "sites": SITES}
    return summarize_columns(made, tmp_path / f"{site}.json", **asked)


def summarize_all(tmp_path, own, **options):
    for site, file in own.items():
        summarize(tmp_path, site, file, **options)
    return [tmp_path / f"{site}.json" for site in own]


def features_at(tmp_path, site, file, agreed, **options):
    """The features (n, d) of a site's import with the agreement, after its split, and their names."""
    made = import_data(file, tmp_path / f"{site}-agreed", like=agreed, **options)
    source = open_artifact(made.path)
    samples, book = imported_dataset.load_samples(source, None), codebook.read(source)
    given = table.read(agreed)
    parts = [np.arange(len(samples.y)) if name == site else np.zeros(0, np.int64) for name in SITES]
    result = assemble(samples, parts, given.fractions, given.seed)
    return preprocessing.scale_partition(result, book, samples.scaling)


def pooled_partition(tmp_path, tables, **options):
    rows = [{"hospital": site, **row} for site in SITES for row in tables[site]]
    pooled = write_table(tmp_path / "pooled.csv", rows)
    made = import_data(pooled, tmp_path / "pooled", **{**OPTIONS, "client": "hospital", **options})
    artifact = open_artifact(pflcli.partition(made, tmp_path / "partition").path)
    return partitions.read(artifact), codebook.read(artifact)


def compare_with_pooled(tmp_path, own, tables, agreed, **options):
    """Return the largest difference of a feature, in deviations, of values that were there, and of those filled in."""
    pooled, book = pooled_partition(tmp_path, tables, **options)
    there, filled = 0.0, 0.0
    for at, (site, file) in enumerate(own.items()):
        result, known = features_at(tmp_path, site, file, agreed)
        assert known.classes == book.classes
        assert sorted(known.features) == sorted(book.features)
        order = [known.features.index(name) for name in book.features]
        rows = slice(*pooled.offsets[[3 * at, 3 * at + 3]])
        np.testing.assert_array_equal(pooled.y[rows], result.y)
        difference = np.abs(np.asarray(result.x)[:, order] - np.asarray(pooled.x)[rows])
        gaps = np.zeros_like(difference, np.bool_)
        for number, name in enumerate(book.features):
            if f"{name} missing" in book.features:
                gaps[:, number] = np.asarray(pooled.x)[rows][:, book.features.index(f"{name} missing")] == 1
        there = max(there, difference[~gaps].max())
        filled = max(filled, difference[gaps].max(initial=0))
    return there, filled


def test_four_sites_have_the_features_of_one_pooled_import(tmp_path, own, tables):
    """Words, classes, splits and marks of missing values are equal; scales are as near as rounding allows."""
    agreed = tmp_path / "agreed.toml"
    facts = agree_on_columns(summarize_all(tmp_path, own), agreed)
    assert facts["train"] == dict(zip(SITES, pooled_partition(tmp_path, tables)[0].sizes[:, 0].tolist(), strict=True))
    there, filled = compare_with_pooled(tmp_path, own, tables, agreed)
    assert there < 0.05
    assert filled < 0.25  # the codes 0 to 2 of restecg, which are not normal; below 0.1 for all others


def test_without_rounding_only_the_median_differs(tmp_path, own, tables, monkeypatch):
    """Where only sums matter, the agreement is exact, up to the rounding of float32."""
    monkeypatch.setattr(measures, "count", lambda rows: rows)
    monkeypatch.setattr(measures, "measure_rounded", lambda values, known: measures.measure(values) if known else None)
    agreed = tmp_path / "agreed.toml"
    agree_on_columns(summarize_all(tmp_path, own, missing="drop"), agreed)
    there, filled = compare_with_pooled(tmp_path, own, tables, agreed, missing="drop")
    assert there < 1e-6
    assert filled == 0


def test_the_scale_with_filled_values_is_that_of_the_agreed_median(tmp_path, own, tables, monkeypatch):
    """Means and deviations are exact if the pooled import fills in the medians that sites agree on."""
    monkeypatch.setattr(measures, "count", lambda rows: rows)
    monkeypatch.setattr(measures, "measure_rounded", lambda values, known: measures.measure(values) if known else None)
    agreed = tmp_path / "agreed.toml"
    agree_on_columns(summarize_all(tmp_path, own), agreed)
    book = table.read(agreed).codebook()
    pooled, names = pooled_partition(tmp_path, tables, standardize=None)
    order = [names.features.index(name) for name in book.features]
    train = np.concatenate([np.arange(*pooled.offsets[3 * at : 3 * at + 2]) for at in range(4)])
    x = np.asarray(pooled.x, np.float64)[train][:, order]
    for at, name in enumerate(book.features):
        if f"{name} missing" in book.features:
            x[x[:, book.features.index(f"{name} missing")] == 1, at] = book.median[at]
        if book.sd[at] != 1 or book.mean[at] != 0:
            assert book.mean[at] == pytest.approx(x[:, at].mean(), rel=1e-6), name
            assert book.sd[at] == pytest.approx(x[:, at].std(), rel=1e-6), name


def test_spelling_and_units_are_mended_by_what_the_messages_say(tmp_path, own, tables):
    """Hungary calls columns by other names, Long Beach measures cholesterol in mmol/l, Switzerland shouts."""
    reference = tmp_path / "reference.toml"
    agree_on_columns(summarize_all(tmp_path, own), reference)
    write_table(own["hungary"], tables["hungary"], names={"age": "Age", "trestbps": "trest bps", "num": "NUM"})
    other = [
        {**row, "chol": row["chol"] if row["chol"] == "?" else repr(float(row["chol"]) / MG_PER_MMOL)}
        for row in tables["long-beach"]
    ]
    write_table(own["long-beach"], other)
    write_table(own["switzerland"], [{**row, "sex": row["sex"].upper()} for row in tables["switzerland"]])
    for site in ("long-beach", "switzerland"):
        summarize(tmp_path, f"{site}", own[site], execution=FORCE)
    summarize(tmp_path, "hungary", own["hungary"], label="NUM>0", execution=FORCE)
    paths = [tmp_path / f"{site}.json" for site in SITES]
    with pytest.raises(InputError) as error:
        agree_on_columns(paths, tmp_path / "agreed.toml")
    for name in ("Age", "trest bps", "NUM"):
        assert f"site 'hungary', column '{name}'" in error_text(error)
    assert not (tmp_path / "agreed.toml").exists()
    given = tmp_path / "table.toml"
    given.write_text(hand_written())
    summarize(
        tmp_path,
        "hungary",
        own["hungary"],
        label=None,
        client=None,
        missing=None,
        standardize=None,
        like=given,
        execution=FORCE,
    )
    facts = agree_on_columns(paths, tmp_path / "agreed.toml", like=given)
    assert any("'chol' of 'long-beach'" in line and "mmol/l" in line for line in facts["remarks"])
    assert any("'switzerland' writes the word 'f'" in line and "--fold-case" in line for line in facts["remarks"])
    write_table(own["long-beach"], tables["long-beach"])
    summarize(tmp_path, "long-beach", own["long-beach"], execution=FORCE)
    facts = agree_on_columns(paths, tmp_path / "agreed.toml", like=given)
    assert not any("long-beach" in line for line in facts["remarks"])
    with pytest.raises(InputError, match="'M' is not among the words") as error:
        import_data(own["switzerland"], tmp_path / "s", like=tmp_path / "agreed.toml")
    assert "--fold-case" in error_text(error)
    mended, expected = table.read(tmp_path / "agreed.toml").codebook(), table.read(reference).codebook()
    assert (mended.columns, mended.classes) == (
        tuple(sorted(expected.columns, key=lambda each: NAMES.index(each.name))),
        expected.classes,
    )
    for site, options in (("hungary", {}), ("switzerland", {"fold_case": True})):
        again = features_at(tmp_path, site, own[site], tmp_path / "agreed.toml", **options)[0]
        plain = write_table(tmp_path / f"plain-{site}.csv", tables[site])
        before = features_at(tmp_path / site, site, plain, tmp_path / "agreed.toml")[0]
        np.testing.assert_array_equal(np.asarray(again.x), np.asarray(before.x))
        np.testing.assert_array_equal(again.y, before.y)


def hand_written():
    """A coordinator's table, which accepts the names of Hungary."""
    names = {"age": '["Age", "alter"]', "trestbps": '["trest bps"]', "num": '["NUM"]'}
    lines = ['label = "num>0"', 'missing = "median"', 'standardize = "federation"']
    for name in NAMES:
        if name in LEFT_OUT:
            continue
        lines += [f"[columns.{name}]"]
        lines += ['kind = "words"'] if name in ("sex", "cp") else []
        lines += ['kind = "target"'] if name == "num" else []
        lines += [f"names = {names[name]}"] if name in names else []
    return "\n".join(lines) + "\n"


def make_summary(site, sites=("north", "south", "west"), train=60, **changes):
    """A summary of a site with the features age and sex."""
    columns = {
        "age": ColumnSummary("age", "number", "years", mean=50.0, deviation=10.0, median=50.0),
        "sex": ColumnSummary("sex", "words", words=(Frequency("f", 40), Frequency("m", 60))),
        "ill": ColumnSummary("ill", "target", words=(Frequency("no", 70), Frequency("yes", 30))),
    } | changes.pop("columns", {})
    kept = tuple(column for column in columns.values() if column is not None)
    base = Summary(1, site, sites, 0, (0.6, 0.2, 0.2), train, Reading("ill", "median", "federation"), kept)
    return replace(base, **changes)


def three(site="west", **changes):
    return [make_summary("north"), make_summary("south"), make_summary(site, **changes)]


def number(name, unit="", mean=50.0):
    return ColumnSummary(name, "number", unit, mean=mean, deviation=10.0, median=mean)


def words(name, *each, kind="words"):
    return ColumnSummary(name, kind, words=tuple(Frequency(word, 50) for word in each))


MISFITS = {
    "lacks": ({"age": None}, ["site 'west'", "has no column 'age'", "north, south", "--features 'age,sex'"]),
    "extra": ({"slope": number("slope")}, ["'west', column 'slope'", "--leave-out 'slope'"]),
    "spelled": ({"age": None, "x": number(" AGE_")}, ["column ' AGE_'", "rename it to 'age'", "[columns.\"age\"]"]),
    "unit in name": ({"age": None, "x": number("age (months)")}, ["column 'age (months)'", "rename it to 'age'"]),
    "near": ({"age": None, "x": number("ages")}, ["did you mean 'ages'"]),
    "unit": ({"age": number("age", "months")}, ["'west', column 'age'", "in months, and in years", "by 0.0833333"]),
    "words for numbers": ({"age": words("age", "old", "young")}, ["'west', column 'age'", "kind words, and number"]),
    "numbers for words": ({"sex": number("sex")}, ["'west', column 'sex'", "--categorical 'sex'"]),
    "other words": ({"sex": words("sex", "w", "k")}, ["'west', column 'sex'", "'k', 'w' against 'f', 'm'"]),
    "other classes": ({"ill": words("ill", "0", "1", kind="target")}, ["'west', column 'ill'", "--label-map"]),
    "other target": (
        {"ill": None, "x": words("dead", "no", "yes", kind="target")},
        ["'west', column 'dead'", "has no column 'ill'"],
    ),
    "group": ({"patient": ColumnSummary("patient", "identifier")}, ["'west', column 'patient'", "without --group"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_named_by_site_and_column_with_what_to_type(name):
    columns, expected = MISFITS[name]
    with pytest.raises(InputError) as error:
        agree(three(columns=columns))
    for text in expected:
        assert text in error_text(error)
    assert "'north', column" not in error_text(error)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reading": Reading("ill", "drop", "federation")}, ["site 'west'", "--missing 'median'"]),
        ({"reading": Reading("ill", "median", "none")}, ["site 'west'", "--standardize 'federation'"]),
        ({"reading": Reading("ill>0", "median", "federation")}, ["site 'west'", "--label 'ill'"]),
        ({"seed": 1}, ["'west'", "other seed", "--seed"]),
        ({"sites": ("north", "west", "south")}, ["'west'", "other sites", "--sites"]),
        ({"fractions": (0.8, 0.2, 0.0)}, ["'west'", "--split-column"]),
    ],
)
def test_sites_that_were_imported_or_summarized_otherwise_are_named(changes, words):
    with pytest.raises(InputError) as error:
        agree(three(**changes))
    assert all(text in error_text(error) for text in words)


@pytest.mark.parametrize(("out", "words"), [("agreed", "agreed.toml"), ("agreed.toml", "no summary")])
def test_an_agreement_that_cannot_be_written(tmp_path, out, words):
    with pytest.raises(UsageError) as error:
        agree_on_columns([], tmp_path / out)
    assert words in error_text(error)


def test_all_problems_are_in_one_message():
    with pytest.raises(InputError) as error:
        agree(three(columns={"age": number("age", "months"), "sex": number("sex"), "slope": number("slope")}))
    assert len(error.value.fix) == 3


def test_a_missing_or_second_summary_is_named():
    with pytest.raises(InputError, match="no summary of west"):
        agree(three()[:2])
    with pytest.raises(InputError, match="two different summaries of 'west'"):
        agree([*three(), make_summary("west", train=61)])
    assert agree([*three(), make_summary("west")])[0].sites == {"north": 60, "south": 60, "west": 60}


def test_words_are_united_in_the_spelling_of_most_rows():
    agreed, remarks = agree(three(columns={"sex": words("sex", "F", "m", "x")}))
    assert agreed.columns["sex"].words == ("F", "m", "x") or agreed.columns["sex"].words == ("f", "m", "x")
    assert agreed.columns["sex"].words[0] == "f"  # 80 rows against 50
    assert any("'west' writes the word 'f' of 'sex' as 'F'" in line for line in remarks)
    assert any("'west' alone has the word 'x' of 'sex'" in line for line in remarks)


def test_words_that_one_site_tells_apart_stay_apart():
    agreed, _ = agree(three(columns={"sex": words("sex", "F", "f", "m")}))
    assert agreed.columns["sex"].words == ("F", "f", "m")


def test_the_coordinators_table_decides():
    given = Table(
        {
            "sex": TableColumn("words", words=("m", "f", "d")),
            "age": TableColumn(unit="years", names=("Age",)),
            "ill": TableColumn("target"),
        },
        classes=("yes", "no"),
        missing="median",
        standardize="federation",
    )
    agreed, _ = agree(three(), given)
    assert list(agreed.columns) == ["sex", "age", "ill"]
    assert (agreed.columns["sex"].words, agreed.classes) == (("m", "f", "d"), ("yes", "no"))
    assert agreed.columns["age"].names == ("Age",)
    for columns, expected in (
        ({"sex": words("sex", "m", "z")}, "'z', which the coordinator's table lacks"),
        ({"x": number("x")}, "a column that the coordinator's table has not"),
        ({"age": None, "x": number("Age")}, "rename it to 'age'"),
        ({"age": number("age", "days")}, "multiply it by 0.00273785"),
    ):
        with pytest.raises(InputError) as error:
            agree(three(columns=columns), given)
        assert expected in error_text(error)


def test_moments_of_all_sites_by_hand():
    """20 values with mean 40 and 60 with mean 60, deviation 10 each, 20 missing, filled in with the median 57.6."""
    parts = [
        make_summary(
            "a", ("a", "b"), 40, columns={"age": replace(number("age", mean=40.0), has_missing=True, lacking=20)}
        ),
        make_summary("b", ("a", "b"), 60, columns={"age": number("age", mean=60.0)}),
    ]
    agreed = agree(parts)[0].columns["age"]
    filled = measures.pool_medians([Moments(20, 40, 10, 40), Moments(60, 60, 10, 60)])
    mean = (20 * 40 + 60 * 60 + 20 * filled) / 100
    variance = (20 * (100 + (40 - mean) ** 2) + 60 * (100 + (60 - mean) ** 2) + 20 * (filled - mean) ** 2) / 100
    assert (agreed.mean, agreed.deviation, agreed.median) == pytest.approx((mean, variance**0.5, filled))
    assert agreed.has_missing
    dropped = [replace(part, reading=Reading("ill", "drop", "federation")) for part in parts]
    assert agree(dropped)[0].columns["age"].mean == pytest.approx(55)


def test_a_table_is_read_as_it_was_written(tmp_path):
    awkward = {'a "b" \\': TableColumn(unit="µg/l", mean=0.1 + 0.2, deviation=1e-300, median=0.0)}
    agreed = replace(agree(three())[0], classes=("nein ✗", "'ja'"))
    agreed = replace(agreed, columns={**agreed.columns, **awkward}, sites={"Charité Berlin": 60, "a.b": 0})
    path = tmp_path / "agreed.toml"
    path.write_bytes(agreed.encode())
    assert table.read(path) == agreed


BAD_SUMMARIES = {
    "no json": "{",
    "a list": "[]",
    "deep": "[" * 100_000,
    "version": {"version": 2},
    "unknown field": {"more": 1},
    "negative": {"train": -1},
    "fraction of a row": {"train": 1.5},
    "true": {"train": True},
    "another site": {"site": "east"},
    "twice": {"sites": ["north", "north"]},
    "not finite": '{"train": NaN}',
    "kind": {"columns.0.kind": "image"},
    "deviation": {"columns.0.deviation": -1.0},
    "half of the moments": {"columns.0.median": None},
    "words of a number": {"columns.0.words": [{"word": "x", "rows": 5}]},
    "mean of words": {"columns.1.mean": 1.0, "columns.1.deviation": 1.0, "columns.1.median": 1.0},
    "word twice": {"columns.1.words": [{"word": "x", "rows": 5}] * 2},
    "long name": {"columns.0.name": "x" * 300},
    "control character": {"columns.0.name": "x\n"},
    "lacks more than there are": {"columns.0.lacking": 70},
    "no target": {"columns.2.kind": "kept", "columns.2.words": []},
    "no columns": {"columns": []},
}


@pytest.mark.parametrize("name", BAD_SUMMARIES)
def test_a_summary_is_read_like_any_foreign_file(tmp_path, name):
    path, changes = tmp_path / "north.json", BAD_SUMMARIES[name]
    if isinstance(changes, dict):
        values = json.loads(make_summary("north").encode())
        for key, value in changes.items():
            *way, last = [int(word) if word.isdigit() else word for word in key.split(".")]
            target = values
            for step in way:
                target = target[step]
            target[last] = value
        changes = json.dumps(values)
    path.write_text(changes)
    with pytest.raises(InputError, match=r"north\.json"):
        summary.read(path)


def test_a_summary_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "north.json"
    path.write_bytes(make_summary("north").encode())
    assert summary.read(path) == make_summary("north")
    path.write_bytes(b" " * ((1 << 22) + 1))
    with pytest.raises(InputError, match=r"north\.json"):
        summary.read(path)


BAD_TABLES = {
    "no toml": "columns = ",
    "unknown key": "[columns.ill]\nkind = 'target'\n[columns.age]\nunits = 'years'",
    "unknown kind": "[columns.ill]\nkind = 'targets'\n[columns.age]",
    "no target": "[columns.age]",
    "no feature": "[columns.ill]\nkind = 'target'",
    "two targets": "[columns.ill]\nkind = 'target'\n[columns.dead]\nkind = 'target'\n[columns.age]",
    "one name for two columns": "[columns.ill]\nkind = 'target'\n[columns.a]\nnames = ['x']\n[columns.x]",
    "words of a number": "[columns.ill]\nkind = 'target'\n[columns.a]\nwords = ['x']",
    "sites without scales": "fractions = [0.6, 0.2, 0.2]\nclasses = ['a', 'b']\n[sites]\nn = 3\n[columns.ill]\n"
    "kind = 'target'\n[columns.a]",
    "columns is no table": "columns = 3",
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_table_that_is_none_is_refused(tmp_path, own, name):
    path = tmp_path / "table.toml"
    path.write_text(BAD_TABLES[name])
    with pytest.raises(InputError, match=r"table\.toml"):
        import_data(own["hungary"], tmp_path / "d", like=path)
    assert not (tmp_path / "d").exists()


def test_little_leaves_a_site(tmp_path, own):
    """Words of fewer than five rows stay, counts are multiples of five, and what is shown is what is on disk."""
    facts = summarize(tmp_path, "switzerland", own["switzerland"])
    path = tmp_path / "switzerland.json"
    assert facts["bytes"] == path.stat().st_size
    stored = json.loads(path.read_text())
    assert stored == {key: facts[key] for key in stored}
    by_name = {column["name"]: column for column in stored["columns"]}
    assert [each["word"] for each in by_name["cp"]["words"]] == ["none", "other pain"]
    assert any("'atypical', 'typical'" in line for line in facts["remarks"])
    assert any("'chol' is 0 in all" in line for line in facts["remarks"])
    counts = [each["rows"] for column in stored["columns"] for each in column.get("words", ())]
    assert all(count % 5 == 0 for count in (*counts, *(column.get("lacking", 0) for column in stored["columns"])))
    assert not any(key in path.read_text() for key in ("atypical", "first", "least", str(tmp_path)))


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"client": "basel"}, UsageError, "basel"),
        ({"sites": ["switzerland", "switzerland"]}, UsageError, "twice"),
        ({"units": {"ag": "years"}}, UsageError, "did you mean 'age'"),
        ({"dataset": "nothing"}, InputError, "nothing"),
    ],
)
def test_a_summary_that_cannot_be_made(tmp_path, own, asked, error, words):
    made = import_data(own["switzerland"], tmp_path / "d", **OPTIONS)
    given = {"dataset": made, "client": "switzerland", "sites": SITES, **asked}
    with pytest.raises(error) as caught:
        summarize_columns(given.pop("dataset"), tmp_path / "s.json", **given)
    assert words in error_text(caught)
    assert not (tmp_path / "s.json").exists()


def test_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(30, 3)), y=np.arange(30) % 2)
    made = import_data(tmp_path / "a.npz", tmp_path / "a", client="none", label="y")
    with pytest.raises(InputError, match="no table"):
        summarize_columns(made, tmp_path / "s.json", client="cleveland", sites=SITES)


def test_commands(tmp_path, own, pfl):
    """Four people and a coordinator by the command line."""
    for site in SITES:
        options = ["--label", "num>0", "--client", "none", "--missing", "median", "--standardize"]
        assert pfl("import", own[site], *options, "-o", tmp_path / site).code == 0
        line = ["site", "columns", tmp_path / site, "--client", site, "--sites", ",".join(SITES)]
        shown = pfl(*line, "--units", "age=years", "-o", tmp_path / f"{site}.json")
        assert "deviation" in shown.err
    assert (tmp_path / "hungary.json").read_text().count("years") == 1
    paths = [tmp_path / f"{site}.json" for site in SITES]
    made = pfl("federation", "columns", *paths, "-o", tmp_path / "agreed.toml", "--json")
    assert json.loads(made.out)["columns"] == 11
    assert pfl("federation", "columns", *paths[:3], "-o", tmp_path / "b.toml").code == 3
    assert pfl("import", own["hungary"], "--like", tmp_path / "agreed.toml", "-o", tmp_path / "again").code == 0
    again = pfl("federation", "columns", *paths, "--like", tmp_path / "agreed.toml", "-o", tmp_path / "b.toml")
    assert (again.code, (tmp_path / "b.toml").exists()) == (2, False)
