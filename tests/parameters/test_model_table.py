"""The table of per-client models: a dictionary of models, in memory or in a file, that survives a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import worlds
from pflcli.artifacts import safetensors_file
from pflcli.artifacts.row_file import RowFile
from pflcli.core.errors import InputError
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.parameters.row_storage import InMemoryRows

DEFAULT = {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(7), "empty": torch.zeros(0)}


def make_model(seed):
    draw = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(2, 3, generator=draw), "n": torch.tensor(seed), "empty": torch.zeros(0)}


def make_stack(*seeds):
    return {name: torch.stack([make_model(seed)[name] for seed in seeds]) for name in DEFAULT}


def make_storage(kind, folder, *, is_new=True):
    return InMemoryRows() if kind == "memory" else RowFile(folder / "table-0.rows", 0, empty=is_new)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_model_table_behaves_like_a_dictionary_of_models(kind, tmp_path):
    table, plain = ModelTable(DEFAULT, 5, make_storage(kind, tmp_path)), dict.fromkeys(range(5), DEFAULT)
    draw = np.random.default_rng(0)
    for seed in range(0, 60, 2):
        ids = draw.choice(5, size=2, replace=False)
        table[ids] = make_stack(seed, seed + 1)
        plain.update({int(ids[0]): make_model(seed), int(ids[1]): make_model(seed + 1)})
        if seed % 7 == 0:
            table.keep()
        clients = draw.integers(0, 5, 3)
        expected = {name: torch.stack([plain[int(client)][name] for client in clients]) for name in DEFAULT}
        assert worlds.same(table[clients], expected)
    assert table.written.tolist() == [client for client in plain if plain[client] is not DEFAULT]


def test_stack_with_appends_other_models():
    table = ModelTable(DEFAULT, 5, InMemoryRows())
    table[[1]] = make_stack(8)
    for padded in (False, True):
        models = table.stack_with(np.asarray([4, 1]), [make_model(9), make_model(8)], padded=padded)
        for name, value in models.items():
            assert torch.equal(value, torch.stack([DEFAULT[name], *make_stack(8, 9, 8)[name]]))


def test_model_table_stores_an_expanded_scalar():
    """Such as the counter of BatchNorm in the mixture of one client."""
    table = ModelTable({"count": torch.tensor(0)}, 2, InMemoryRows())
    table[[1]] = {"count": torch.tensor(7).expand(1)}
    assert table[np.array([1, 0])]["count"].tolist() == [7, 0]


def test_stack_with_reads_large_models_into_padded_rows():
    like, draw = {"w": torch.zeros(64, 64), "b": torch.zeros(64)}, torch.Generator().manual_seed(0)
    table, written = (
        ModelTable(like, 3, InMemoryRows()),
        {n: torch.randn(2, *v.shape, generator=draw) for n, v in like.items()},
    )
    table[[0, 2]] = written
    models = table.stack_with(np.asarray([0, 1, 2]), [like], padded=True)
    assert models["w"].stride() == (2048 * 2 + 1056, 64, 1)
    for name, (first, last) in written.items():
        assert torch.equal(models[name], torch.stack([first, like[name], last, like[name]]))


def test_row_file_grows_only_with_changed_models(tmp_path):
    table = ModelTable(DEFAULT, 1_000_000, make_storage("file", tmp_path))
    table[[3, 999_999]] = make_stack(1, 2)
    table[[3]] = make_stack(4)
    assert (tmp_path / "table-0.rows").stat().st_size == 2 * (24 + 8)
    table.keep()
    for seed in range(20):  # a kept row is not overwritten, its replacement is
        table[[3]] = make_stack(seed)
    assert (tmp_path / "table-0.rows").stat().st_size == 3 * (24 + 8)


def test_unpack_restores_the_kept_state_of_a_table(tmp_path):
    table = ModelTable(DEFAULT, 4, make_storage("file", tmp_path))
    table[[0, 1]] = make_stack(1, 2)
    packed = dict(reversed(table.pack().items()))  # a checkpoint gives names back in an order of its own
    table.keep()
    table[[0, 2]] = make_stack(3, 4)  # lost with the process that was killed here
    table[[0]] = make_stack(5)
    restored = ModelTable.unpack(packed, make_storage("file", tmp_path, is_new=False))
    assert worlds.same(
        restored[[0, 1, 2]], {k: torch.stack([make_model(1)[k], make_model(2)[k], DEFAULT[k]]) for k in DEFAULT}
    )
    restored[[3, 0]] = make_stack(6, 7)
    assert worlds.same(restored[[0, 1, 3]], make_stack(7, 2, 6))


def test_unpack_refuses_damaged_rows_that_a_checkpoint_needs(tmp_path):
    table = ModelTable(DEFAULT, 4, make_storage("file", tmp_path))
    table[[0, 1, 2]] = make_stack(1, 2, 3)
    table.keep()
    table[[0]] = make_stack(4)
    packed, path = table.pack(), tmp_path / "table-0.rows"
    content, size = path.read_bytes(), 24 + 8
    for row in range(4):
        place = row * size + 5
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        row_file = make_storage("file", tmp_path, is_new=False)
        if row == 0:  # what client 0 held before
            assert worlds.same(ModelTable.unpack(packed, row_file)[[0]], make_stack(4))
        else:
            with pytest.raises(InputError, match=f"row {row} differs from what was written"):
                ModelTable.unpack(packed, row_file)


def test_pack_hashes_only_rows_written_since_the_last_checkpoint(tmp_path, monkeypatch):
    table, hashed = ModelTable(DEFAULT, 4, make_storage("file", tmp_path)), []
    read = RowFile.read
    monkeypatch.setattr(RowFile, "read", lambda self, row, into: (hashed.append(row), read(self, row, into)))
    table[[0, 1, 2]] = make_stack(1, 2, 3)
    assert hashed == []
    table.pack()
    table.pack()
    assert hashed == [0, 1, 2]
    table[[1]] = make_stack(4)
    table.pack()
    assert hashed == [0, 1, 2, 1]


def test_truncated_row_file_is_refused(tmp_path):
    table = ModelTable(DEFAULT, 4, make_storage("file", tmp_path))
    table[[0, 1]] = make_stack(1, 2)
    (tmp_path / "table-0.rows").write_bytes(b"short")
    with pytest.raises(InputError, match="ends before row 0"):
        table[[0]]


def test_columns_of_a_table_are_written_as_safetensors(tmp_path):
    table = ModelTable(DEFAULT, 9, make_storage("file", tmp_path))
    table[[7, 2]] = make_stack(1, 2)
    (tmp_path / "t.safetensors").write_bytes(b"".join(safetensors_file.pieces(table.columns())))
    assert worlds.same(load_file(tmp_path / "t.safetensors"), make_stack(2, 1))


def test_table_of_many_large_models_uses_little_memory(tmp_path):
    # 3,550 models of 9 MB are 32 GB; a round touches few of them. In a process of its own, for its peak memory.
    code = """
import json, resource, sys
from pathlib import Path
import numpy as np, torch
from pflcli.artifacts.row_file import RowFile
from pflcli.core.parameters.model_table import ModelTable
torch.set_num_threads(1)
table = ModelTable({"w": torch.zeros(2_250_000)}, 3550, RowFile(Path(sys.argv[1]), 0, empty=True))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ids = np.random.default_rng(0).choice(3550, 60, replace=False)
for first in range(0, 60, 6):
    part = ids[first : first + 6]
    models = table[part]
    models["w"] += 1
    table[part] = models
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([grown, float(table[ids[:6]]["w"].min())]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "rows")], capture_output=True, text=True, check=True
    )
    grown, least = json.loads(ran.stdout)
    scale = 1 if sys.platform == "darwin" else 1024
    assert grown * scale < 60 * 9e6 / 2
    assert least == 1


def test_overlay_replaces_the_default_by_models_of_newcomers():
    table = ModelTable(DEFAULT, 5, InMemoryRows())
    table[[3]] = make_stack(1)
    assert table.unwritten(np.asarray([4, 3, 0])).tolist() == [4, 0]
    parts = [SimpleNamespace(clients=np.asarray([0]), params=make_stack(8))]
    parts.append(SimpleNamespace(clients=np.asarray([4]), params=make_stack(9)))
    actual = table.overlay(np.asarray([4, 3, 0]), parts)
    assert worlds.same(actual, make_stack(9, 1, 8))
    assert table.written.tolist() == [3]


def test_unpack_does_not_depend_on_the_order_of_names():
    """A checkpoint is read back with its tensors in any order."""
    default = {"b": torch.zeros(3), "a": torch.zeros(2, dtype=torch.int64), "c": torch.zeros(())}
    table = ModelTable(default, 2, InMemoryRows())
    table[[1]] = {"b": torch.tensor([[1.0, 2, 3]]), "a": torch.tensor([[4, 5]]), "c": torch.tensor([6.0])}
    packed = table.pack()
    for order in (sorted(packed), sorted(packed, reverse=True)):
        again = ModelTable.unpack({name: packed[name] for name in order}, InMemoryRows())
        assert worlds.same(again[[0, 1]], table[[0, 1]])


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_snapshot_does_not_change_with_the_table(kind, tmp_path):
    """Whatever is written, kept, read back and released around it, as a plain copy would."""
    rows = make_storage(kind, tmp_path)
    table, plain = ModelTable(DEFAULT, 5, rows), dict.fromkeys(range(5), DEFAULT)
    draw, snapshots = np.random.default_rng(0), []
    for seed in range(60):
        client = int(draw.integers(5))
        table[[client]] = make_stack(seed)
        plain[client] = make_model(seed)
        if seed % 4 == 1:
            snapshots.append((table.snapshot(), dict(plain)))
        if seed % 9 == 3:
            table.keep()
        if len(snapshots) == 3:
            snapshots.pop(int(draw.integers(3)))[0].release()
        if seed % 13 == 12:  # killed and resumed
            packed = [one.pack() for one in (table, *(snapshot for snapshot, _ in snapshots))]
            table = ModelTable.unpack(packed[0], rows if kind == "file" else InMemoryRows())
            snapshots = [(table.unpack_snapshot(k), copy) for k, (_, copy) in zip(packed[1:], snapshots, strict=True)]
        for one, copy in [(table, plain), *snapshots]:
            assert worlds.same(one[range(5)], {n: torch.stack([copy[c][n] for c in range(5)]) for n in DEFAULT})
            assert one.written.tolist() == [c for c in range(5) if copy[c] is not DEFAULT]


def test_rows_of_a_released_snapshot_are_reused(tmp_path):
    table = ModelTable(DEFAULT, 4, make_storage("file", tmp_path))
    for seed in range(20):
        table[[0, 1]] = make_stack(seed, seed + 1)
        snapshot = table.snapshot()
        table[[0]] = make_stack(seed)
        snapshot.release()
    assert (tmp_path / "table-0.rows").stat().st_size <= 3 * (24 + 8)


def test_checkpoint_keeps_the_rows_of_its_snapshots(tmp_path):
    """A snapshot that is released after the checkpoint is there again when the run resumes."""
    table = ModelTable(DEFAULT, 2, make_storage("file", tmp_path))
    table[[0]] = make_stack(1)
    best = table.snapshot()
    table[[0]] = make_stack(2)
    packed = table.pack(), best.pack()
    table.keep()
    best.release()
    for seed in range(3, 9):
        table[[0, 1]] = make_stack(seed, seed)
    resumed = ModelTable.unpack(packed[0], make_storage("file", tmp_path, is_new=False))
    assert worlds.same(resumed.unpack_snapshot(packed[1])[[0]], make_stack(1))
    assert worlds.same(resumed[[0]], make_stack(2))


def test_writing_to_a_snapshot_is_an_error():
    table = ModelTable(DEFAULT, 2, InMemoryRows())
    table[[0]] = make_stack(1)
    with pytest.raises(TypeError, match="snapshot"):
        table.snapshot()[[0]] = make_stack(2)
