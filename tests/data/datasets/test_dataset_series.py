"""Readers of text and air quality return the values that were written, and splits by time do not overlap."""

from __future__ import annotations

import csv
import gzip
import json
import math
from datetime import datetime, timedelta

import numpy as np
import pytest

from originals import SHARED, leaf, needs_shared
from pflcli.artifacts.kinds import partition as artifact
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.partition import partition
from pflcli.core.datasets import Samples
from pflcli.core.errors import InputError, UsageError
from pflcli.core.splits import LEFT_OUT, split_by_time
from pflcli.data.datasets import air_quality, air_quality_pm25, shakespeare

TEXT = "".join(f"{i} green bottles,\nhanging on the wall; " for i in range(12))


def write_roles(path, *roles):
    lines = [json.dumps({"user": user, "lines": text.split("\n")}) for user, text in roles]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


def test_shakespeare_vocabulary_equals_that_of_leaf():
    assert len(shakespeare.VOCABULARY) == len(set(shakespeare.VOCABULARY)) == shakespeare.CLASSES == 80
    assert shakespeare.VOCABULARY.index("A") == 25
    assert shakespeare.VOCABULARY.index("z") == 78
    assert shakespeare.VOCABULARY[shakespeare.UNKNOWN] == "}"
    for odd in "}{@é€\U0001f600\x00\t":
        assert shakespeare.encode(f"a{odd}b").tolist() == [53, 79, 54]


def decode_tokens(tokens):
    return "".join(shakespeare.VOCABULARY[token] for token in tokens)


@pytest.mark.parametrize("stride", [1, 20, 100])
def test_shakespeare_cuts_roles_into_windows(stride, tmp_path):
    write_roles(tmp_path / "shakespeare_roles.jsonl.gz", ("play/A", TEXT), ("play/B", TEXT[:99]), ("play/C", "Ay."))
    samples = shakespeare.load(tmp_path, cfg=shakespeare.Config(stride=stride, min_characters=100))
    samples.check("shakespeare")
    starts = range(0, len(TEXT) - 80, stride)
    assert [decode_tokens(x) for x in samples.x] == [TEXT[at : at + 80] for at in starts]
    assert decode_tokens(samples.y) == "".join(TEXT[at + 80] for at in starts)
    assert set(samples.owner) == {"play/A"}  # B speaks 99 characters, C three
    assert (samples.x.dtype, samples.ordered) == (np.int16, True)
    # The gap is the least that keeps 81 characters apart.
    assert (samples.gap + 1) * stride >= 81 > samples.gap * stride


def test_shakespeare_thins_the_windows_of_leaf(tmp_path):
    data = {"B": ([TEXT[i : i + 80] for i in range(45)], [TEXT[i + 80] for i in range(45)]), "none": ([], [])}
    leaf(tmp_path / "shakespeare" / "all_data.json", data)
    samples = shakespeare.load(tmp_path, cfg=shakespeare.Config(min_characters=81))
    assert [decode_tokens(x) for x in samples.x] == [TEXT[at : at + 80] for at in (0, 20, 40)]
    assert decode_tokens(samples.y) == TEXT[80] + TEXT[100] + TEXT[120]
    with pytest.raises(InputError, match="no role with 1000 characters"):
        shakespeare.load(tmp_path)


@pytest.mark.parametrize(
    ("x", "y"), [(["short"], ["a"]), (["x" * 80], ["ab"]), (["x" * 80], [""]), ([[0.0] * 784], [3]), (["x" * 80], [1])]
)
def test_shakespeare_refuses_users_without_texts(x, y, tmp_path):
    leaf(tmp_path / "all_data.json", {"B": (x, y)})
    with pytest.raises(InputError, match=r"all_data\.json: B: x is not a list of texts of 80"):
        shakespeare.load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"nonsense", gzip.compress(b"{", mtime=0), gzip.compress(b'{"user": "a"}', mtime=0), b"\x1f\x8b"]
)
def test_shakespeare_refuses_damaged_roles(content, tmp_path):
    (tmp_path / "shakespeare_roles.jsonl.gz").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as gzipped JSON lines"):
        shakespeare.load(tmp_path)


HEADING = ["No", "year", "month", "day", "hour", *list(air_quality.SCALES), "wd", "WSPM", "station"]
HEADING.remove("WSPM")  # stands once, after wd
COLUMNS = [name for name in HEADING if name in air_quality.SCALES]


def make_records(count):
    """Made-up records: every feature of every hour tells its hour."""
    return [{name: 10.0 * place + hour / 100 for place, name in enumerate(HEADING)} for hour in range(count)]


def write_station(folder, station, records, winds, first=datetime(2013, 3, 1)):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"PRSA_Data_{station}_20130301-20170228.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(HEADING)
        for number, (record, wind) in enumerate(zip(records, winds, strict=True)):
            if record is None:
                continue
            when = first + timedelta(hours=number)
            values = {**record, "year": when.year, "month": when.month, "day": when.day, "hour": when.hour}
            rows.writerow(
                ["NA" if v is None else v for v in ({**values, "wd": wind, "station": station}[n] for n in HEADING)]
            )


def scale_by_hand(record, wind):
    scaled = [(record[name] - shift) / scale for name, (shift, scale) in air_quality.SCALES.items()]
    turn = math.radians(22.5 * air_quality.DIRECTIONS.index(wind))
    return [*scaled, math.sin(turn), math.cos(turn)]


@pytest.mark.parametrize("folder", [".", "PRSA_Data_20130301-20170228"])
def test_air_quality_windows_match_hand_computed_values(folder, tmp_path):
    records, winds = make_records(120), [air_quality.DIRECTIONS[hour % 16] for hour in range(120)]
    for hour, value in ((48, 35.0), (60, 35.1), (72, 75.1), (84, 150.0), (96, 150.1), (108, None)):
        records[hour]["PM2.5"] = value  # targets of windows at a stride of 12
    write_station(tmp_path / folder, "Dongsi", records, winds)
    write_station(tmp_path / folder, "Short", records[:48], winds[:48])
    samples = air_quality.load(tmp_path, cfg=air_quality.Config(stride=12))
    samples.check("air-quality")
    assert samples.y.tolist() == [0, 1, 2, 3, 4]  # 108 has no target
    assert samples.owner.tolist() == ["Dongsi"] * 5
    assert samples.x.shape == (5, 48, 13)
    assert samples.x.dtype == np.float32
    for row, start in enumerate(range(0, 60, 12)):
        expected = [scale_by_hand(records[hour], winds[hour]) for hour in range(start, start + 48)]
        np.testing.assert_allclose(samples.x[row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("hours", "horizon"), [(48, 1), (48, 6), (48, 24), (6, 6), (1, 3)])
def test_pm25_is_that_of_the_horizon_and_windows_are_those_of_levels(hours, horizon, tmp_path):
    records = make_records(120)
    records[52 + horizon]["PM2.5"] = None
    write_station(tmp_path, "Dongsi", records, ["N"] * 120)
    samples = air_quality_pm25.load(tmp_path, cfg=air_quality_pm25.Config(stride=1, hours=hours, horizon=horizon))
    samples.check("air-quality-pm25")
    ends = [hour for hour in range(hours - 1, 120 - horizon) if hour != 52]
    pm = [record["PM2.5"] for record in records]
    assert samples.y.tolist() == [pm[hour + horizon] for hour in ends]
    channel, shift, scale = samples.task.past
    past = shift + scale * samples.x[:, -1, channel].astype(np.float64)
    np.testing.assert_allclose(past[:5], [pm[hour] for hour in ends[:5]], rtol=1e-5)
    assert (samples.task.unit, samples.gap) == ("\N{MICRO SIGN}g/m\N{SUPERSCRIPT THREE}", hours + horizon + 6 - 1)
    levels = air_quality.load(tmp_path, cfg=air_quality.Config(stride=1))
    np.testing.assert_array_equal(samples.x[48 - hours : 53 - hours], levels.x[:5, -hours:])


def test_air_quality_carries_missing_values_for_six_hours(tmp_path):
    records, winds = make_records(200), ["N"] * 200
    for hour in range(50, 56):
        records[hour]["CO"] = None  # six hours: carried on
    for hour in range(100, 107):
        records[hour]["O3"] = None  # seven: not the seventh
    records[20] = None  # no row at all
    winds[150] = "NA"
    records[180]["PM2.5"] = None
    write_station(tmp_path, "A", records, winds)
    samples = air_quality.load(tmp_path, cfg=air_quality.Config(stride=1))
    starts = [s for s in range(152) if not s <= 106 < s + 48 and s + 48 not in (20, 180)]
    assert len(samples.y) == len(starts)
    co = list(air_quality.SCALES).index("CO")
    first = samples.x[starts.index(50)]
    np.testing.assert_array_equal(first[:6, co], np.repeat(samples.x[starts.index(49)][0, co], 6))
    np.testing.assert_array_equal(samples.x[0][20], samples.x[0][19])
    assert samples.x[starts.index(150)][0, 11:].tolist() == [0, 1]


def test_air_quality_reads_both_layouts_alike(tmp_path):
    records, winds = make_records(70), [air_quality.DIRECTIONS[hour % 16] for hour in range(70)]
    records[5]["SO2"], winds[9] = None, "NA"
    write_station(tmp_path, "A", records, winds)
    values = np.asarray([[np.nan if r[name] is None else r[name] for name in COLUMNS] for r in records])
    names = np.asarray(["", *air_quality.DIRECTIONS])
    code = np.asarray([0 if wind == "NA" else names.tolist().index(wind) for wind in winds], np.int8)
    other = tmp_path / "npz"
    other.mkdir()
    np.savez(
        other / "beijing_air.npz", values=values[None], wind_dir=code[None], wind_dir_names=names,
        features=np.asarray(COLUMNS), stations=np.asarray(["A"]),
    )  # fmt: skip
    csv_samples, npz_samples = air_quality.load(tmp_path), air_quality.load(other)
    np.testing.assert_array_equal(csv_samples.x, npz_samples.x)
    np.testing.assert_array_equal(csv_samples.y, npz_samples.y)


def make_replacement(old, new):
    def change(path):
        path.write_text(path.read_text().replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (make_replacement("PM2.5", "PM3"), "has no column 'PM2.5'"),
        (make_replacement(",N,", ",up,"), "line 2: 'up' is not a wind direction"),
        (make_replacement("2013,3,1,1,", "2013,3,32,1,"), "line 3: day is out of range"),
        (make_replacement("2013,3,1,1,", "2013,3,1,0,"), "line 3: 2013-03-01 00h is a duplicate"),
        (make_replacement("2013,3,1,1,", "9013,3,1,1,"), "has rows for only 60 of 61"),
        (make_replacement("50.01", "fifty"), "line 3: could not convert string to float: 'fifty'"),
        (make_replacement(",A\n", "\n"), "line 2 has 17 columns, and the header has 18"),
        (make_replacement(",A\n", ",B\n"), "has 2 stations"),
        (lambda path: path.write_text(""), "has no column 'year'"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read as CSV"),
        (lambda path: path.write_text(path.read_text()[:3000]), r"line \d+ has \d+ columns"),
    ],
)
def test_air_quality_refuses_damaged_stations(change, words, tmp_path):
    write_station(tmp_path, "A", make_records(60), ["N"] * 60)
    change(next(tmp_path.glob("*.csv")))
    with pytest.raises(InputError, match=words):
        air_quality.load(tmp_path)


@pytest.mark.parametrize(("sizes", "gap"), [([100, 7, 1, 2, 30], 3), ([100, 50], 0), ([9, 9], 50)])
def test_split_by_time_cuts_owners_in_order_with_gaps(sizes, gap):
    owner = np.random.default_rng(0).permutation(np.repeat([f"o{i}" for i in range(len(sizes))], sizes))
    n = sum(sizes)
    samples = Samples(np.zeros((n, 2)), np.zeros(n, np.int64), 1, owner, ordered=True, gap=gap)
    split = split_by_time(samples, (0.6, 0.2, 0.2))
    for name, size in zip(np.unique(owner), sizes, strict=True):
        own_splits = split[owner == name]
        part, rest = round(0.2 * size), size - 2 * round(0.2 * size)
        expected = np.full(size, LEFT_OUT)
        expected[:rest], expected[rest + gap : rest + part], expected[rest + part + gap :] = 0, 1, 2
        assert own_splits.tolist() == expected.tolist()


@pytest.mark.parametrize("fractions", [(0.8, 0, 0.2), (0.5, 0.5, 0), (1, 0, 0)])
def test_split_by_time_leaves_splits_of_fraction_0_empty(fractions):
    samples = Samples(np.zeros((50, 2)), np.zeros(50, np.int64), 1, np.full(50, "a"), ordered=True, gap=2)
    counts = [int((split_by_time(samples, fractions) == part).sum()) for part in range(3)]
    assert [count > 0 for count in counts] == [share > 0 for share in fractions]


@needs_shared
@pytest.mark.parametrize(
    ("name", "scheme", "reach"),
    [
        ("air-quality", "natural", 55),
        ("shakespeare", "natural", 81),
        ("air-quality", "iid", 55),
        ("air-quality-pm25", "natural", 55),
    ],
)
def test_windows_of_different_splits_do_not_overlap(name, scheme, reach, tmp_path):
    """Kept windows of an owner are at least a stride apart, so rows that are far apart are so in time."""
    outcome = partition(name, tmp_path / "p", root=SHARED, scheme=scheme, clients=None if scheme == "natural" else 5)
    assert outcome.summary["samples"] > 0
    stored = artifact.read(open_artifact(tmp_path / "p"))
    module = {"air-quality": air_quality, "shakespeare": shakespeare, "air-quality-pm25": air_quality_pm25}[name]
    source = module.load(SHARED)
    stride = module.Config().stride
    split = np.repeat(np.tile(np.arange(3), len(stored.names)), np.diff(stored.offsets))
    of = np.full(len(source.y), -1)
    of[stored.sample] = split
    for owner in np.unique(source.owner):
        own_splits = of[source.owner == owner]
        ends = {part: np.flatnonzero(own_splits == part) for part in range(3)}
        for earlier, later in ((0, 1), (1, 2), (0, 2)):
            if len(ends[earlier]) and len(ends[later]):
                assert (ends[later].min() - ends[earlier].max()) * stride >= reach


@needs_shared
def test_air_quality_of_the_shared_folder_is_plausible():
    samples = air_quality.load(SHARED)
    samples.check("air-quality")
    assert len(np.unique(samples.owner)) == 9
    assert np.unique(samples.owner, return_counts=True)[1].min() > 4000
    # Scaled features are of order one, and the last hour's PM2.5 foretells the level.
    assert np.abs(samples.x.mean(axis=(0, 1))).max() < 0.5
    assert samples.x.std(axis=(0, 1)).max() < 1.5
    last = np.digitize(samples.x[:, -1, 0] * 80 + 80, air_quality.LEVELS, right=True)
    assert (last == samples.y).mean() > 0.8


@needs_shared
@pytest.mark.parametrize(("horizon", "expected"), [(1, 19.4), (6, 57.5), (24, 90.6)])
def test_persistence_has_the_error_of_the_records(horizon, expected):
    """RMSE in ug/m3 of the last value at 23 h: in windows, and in the records by NumPy alone, gaps and all."""
    samples = air_quality_pm25.load(SHARED, cfg=air_quality_pm25.Config(stride=24, horizon=horizon))
    assert len(np.unique(samples.owner)) == 9
    error = samples.y - (80 + 80 * samples.x[:, -1, 0].astype(np.float64))
    assert np.sqrt(np.mean(error**2)) == pytest.approx(expected, abs=0.05)
    with np.load(SHARED / "beijing_air.npz", allow_pickle=False) as file:
        pm = file["values"][:, :, file["features"].tolist().index("PM2.5")].astype(np.float64)
    changes = (
        pm[:, 47 + horizon :: 24] - pm[:, 47 : pm.shape[1] - horizon : 24][:, : pm[:, 47 + horizon :: 24].shape[1]]
    )
    assert np.sqrt(np.nanmean(changes**2)) == pytest.approx(expected, rel=0.05)


def test_air_quality_stations_can_be_chosen_by_name(tmp_path):
    winds = [air_quality.DIRECTIONS[hour % 16] for hour in range(70)]
    for name in ("A", "B"):
        write_station(tmp_path, name, make_records(70), winds)
    all_stations = air_quality.load(tmp_path)
    chosen = air_quality.load(tmp_path, cfg=air_quality.Config(stations=("B",)))
    assert {*chosen.owner} == {"B"}
    np.testing.assert_array_equal(chosen.x, all_stations.x[all_stations.owner == "B"])
    with pytest.raises(UsageError, match="no station 'C'"):
        air_quality.load(tmp_path, cfg=air_quality.Config(stations=("A", "C")))


@needs_shared
def test_shakespeare_of_the_shared_folder_is_plausible():
    samples = shakespeare.load(SHARED)
    samples.check("shakespeare")
    assert len(np.unique(samples.owner)) == 493
    assert (samples.x == shakespeare.UNKNOWN).mean() < 1e-4
    assert decode_tokens(samples.x[0]).isascii()
