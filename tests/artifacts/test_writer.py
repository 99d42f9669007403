"""The writer of artifacts: an output is either complete and as requested, or absent."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import FORCE, NAMES, build, error_text, kill, listing, spec
from pflcli.artifacts import disk, kinds
from pflcli.artifacts.decision import Decision, decide
from pflcli.artifacts.kinds import partition as artifact
from pflcli.artifacts.make import make
from pflcli.artifacts.manifest import ArtifactSpec, Input
from pflcli.artifacts.reader import ancestor, follow, open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.commands.evaluate import evaluate
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.show import show
from pflcli.commands.train_global import train_global
from pflcli.core.errors import ComputationError, ConflictError, InputError, PflError, UsageError
from pflcli.core.execution import Execution

# What a request means for the output that it names


def test_make_builds_a_new_artifact_and_then_finds_it_up_to_date(tmp_path, tree):
    out = tmp_path / "deep" / "er" / "out"
    assert make(out, spec(), Execution(), build).decision == Decision.NEW
    assert listing(out) == ["a.txt", "manifest.json"]
    assert listing(out.parent) == ["out"]
    before = {name: content for name, (content, _) in tree(tmp_path).items()}

    def unwanted(work):
        raise AssertionError("nothing is to be built")

    outcome = make(out, spec(), Execution(), unwanted)
    assert (outcome.decision, outcome.summary) == (Decision.UP_TO_DATE, {"n": 1})
    assert {name: content for name, (content, _) in tree(tmp_path).items()} == before


def test_empty_output_folder_is_used(tmp_path):
    (tmp_path / "out").mkdir()
    assert make(tmp_path / "out", spec(), Execution(), build).decision == Decision.NEW
    assert listing(tmp_path) == ["out"]
    assert listing(tmp_path / "out") == ["a.txt", "manifest.json"]


def test_dry_run_writes_nothing(tmp_path):
    outcome = make(tmp_path / "deep" / "out", spec(), Execution(dry_run=True), build)
    assert outcome.decision == "dry run: new"
    assert listing(tmp_path) == []


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (spec(alpha=0.1), "alpha: 0.3 -> 0.1"),
        (spec(settings={"rounds": 3}), "settings.rounds: 2 -> 3"),
        (spec(clients=5), "clients: null -> 5"),
        (spec("evaluation"), "kind: partition -> evaluation"),
        (spec(settings={"rounds": 2}, inputs=[Input("source", "x", "f" * 64, "p")]), 'input source: null -> "ffffff'),
        (spec(settings={"rounds": 2}, code={"methods/x": "1"}), "it does not record the code of methods/x"),
    ],
)
def test_conflict_shows_the_differences_of_requests(tmp_path, tree, changed, line):
    make(tmp_path / "out", spec(settings={"rounds": 2}), Execution(), build)
    before = tree(tmp_path)
    for execution in (Execution(), Execution(dry_run=True)):
        with pytest.raises(ConflictError) as error:
            make(tmp_path / "out", changed, execution, build)
        assert any(fix.startswith(line) for fix in error.value.fix), error.value.fix
        assert "--force" in error_text(error)
    assert tree(tmp_path) == before


def test_conflict_shows_only_the_differences(tmp_path):
    make(tmp_path / "out", spec(seed=1), Execution(), build)
    with pytest.raises(ConflictError) as error:
        make(tmp_path / "out", spec(seed=2), Execution(), build)
    assert error.value.fix == ("seed: 1 -> 2", "--force replaces it")


def test_force_replaces_the_whole_artifact(tmp_path):
    def other(work):
        work.write("b.txt", b"other")
        return {}, {}

    out = tmp_path / "out"
    make(out, spec(), Execution(), build)
    assert make(out, spec(alpha=0.1), FORCE, other).decision == Decision.REPLACE
    assert listing(out) == ["b.txt", "manifest.json"]
    assert listing(tmp_path) == ["out"]
    assert make(out, spec(alpha=0.1), FORCE, build).decision == Decision.REPLACE
    assert listing(out) == ["a.txt", "manifest.json"]


def make_foreign_folder(at):
    at.mkdir()
    (at / "notes.txt").write_text("mine")


def make_web_application(at):
    make_foreign_folder(at)
    (at / "manifest.json").write_text('{"name": "app", "kind": "partition"}')


def make_foreign_file(at):
    at.write_text("mine")


def make_foreign_partial_folder(at):
    make_foreign_folder(at.with_name(at.name + ".partial"))


def make_partial_folder_beside_an_artifact(at):
    make(at, spec(alpha=7), Execution(), build)
    make_foreign_partial_folder(at)


@pytest.mark.parametrize(
    "create",
    [
        make_foreign_folder,
        make_web_application,
        make_foreign_file,
        make_foreign_partial_folder,
        make_partial_folder_beside_an_artifact,
    ],
)
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("dry_run", [False, True])
def test_files_not_made_by_pfl_are_never_changed(tmp_path, tree, create, force, dry_run):
    create(tmp_path / "out")
    before = tree(tmp_path)
    with pytest.raises(ConflictError, match=r"not.* pfl"):
        make(tmp_path / "out", spec(), Execution(force=force, dry_run=dry_run), build)
    assert tree(tmp_path) == before


def test_foreign_folder_created_during_a_build_is_kept(tmp_path):
    out = tmp_path / "out"

    def slow(work):
        make_foreign_folder(out)
        work.write_checkpoint(b"state")
        return build(work)

    with pytest.raises(ConflictError, match="not a pfl artifact"):
        make(out, spec(), FORCE, slow)
    assert listing(out) == ["notes.txt"]
    shutil.rmtree(out)
    assert make(out, spec(), Execution(), build).decision == Decision.RESUME


@pytest.mark.parametrize("force", [False, True])
def test_output_that_is_an_input_is_refused(small_copy, tree, force):
    before = tree(small_copy.root)
    with pytest.raises(ConflictError, match="is an input of"):
        train_global(
            small_copy.p, small_copy.p, settings={"model": "mlp", "rounds": 0}, execution=Execution(force=force)
        )
    assert tree(small_copy.root) == before


def test_force_replaces_a_damaged_artifact(tmp_path):
    out = tmp_path / "out"
    make(out, spec(), Execution(), build)
    os.truncate(out / "manifest.json", (out / "manifest.json").stat().st_size - 20)
    with pytest.raises(ConflictError) as error:
        make(out, spec(), Execution(), build)
    assert "damaged" in error_text(error)
    assert "--force" in error_text(error)
    make(out, spec(), FORCE, build)
    open_artifact(out).verify()


def test_force_on_a_link_replaces_the_link(tmp_path):
    make(tmp_path / "there", spec(), Execution(), build)
    (tmp_path / "out").symlink_to("there")
    make(tmp_path / "out", spec(alpha=0.1), FORCE, build)
    assert listing(tmp_path) == ["out", "there"]
    assert open_artifact(tmp_path / "there").manifest.request["alpha"] == 0.3
    assert open_artifact(tmp_path / "out").manifest.request["alpha"] == 0.1


@pytest.mark.parametrize("out", [".", "..", ""])
def test_output_without_a_name_is_refused(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="name"):
        make(out, spec(), Execution(), build)
    assert listing(tmp_path) == []


# Interrupted, failed, refused


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("late", [False, True])
def test_failed_build_leaves_nothing(tmp_path, error, late):
    def failing(work):
        if late:
            work.write("a.txt", b"content")
        raise error

    with pytest.raises(error):
        make(tmp_path / "out", spec(), Execution(), failing)
    assert listing(tmp_path) == []
    make(tmp_path / "out", spec(), Execution(), build)


def test_failed_replacement_keeps_the_old_artifact(tmp_path, tree):
    make(tmp_path / "out", spec(), Execution(), build)
    before = tree(tmp_path / "out")

    def failing(work):
        work.write("a.txt", b"other")
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        make(tmp_path / "out", spec(alpha=0.1), FORCE, failing)
    assert tree(tmp_path / "out") == before
    assert listing(tmp_path) == ["out"]


def leave_unfinished(out, request, *states):
    """Interrupt a build after it has kept some checkpoints."""

    def failing(work):
        for state in states:
            work.write_checkpoint(state)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(out, request, Execution(), failing)


def test_same_request_resumes_from_the_last_checkpoint(tmp_path):
    out = tmp_path / "out"
    leave_unfinished(out, spec(), b"one", b"two")
    assert listing(tmp_path) == ["out.partial"]
    assert decide(out, spec(), force=False)[0] == Decision.RESUME
    checkpoints = []

    def resumed(work):
        checkpoints.append(work.read_checkpoint())
        return build(work)

    assert make(out, spec(), Execution(), resumed).decision == Decision.RESUME
    assert checkpoints == [b"two"]
    assert listing(tmp_path) == ["out"]
    assert listing(out) == ["a.txt", "manifest.json"]


@pytest.mark.parametrize("change", [
    lambda raw: raw[:-1], lambda raw: raw.replace(b"0.3", b"0.4"), lambda raw: b"[]", lambda raw: b"",
    lambda raw: raw.replace(b'"force": false', b'"force": true'), lambda raw: raw.replace(b'"seal"', b'"none"'),
])  # fmt: skip
def test_damaged_draft_is_refused_with_the_command_to_remove_it(tmp_path, change, tree):
    leave_unfinished(tmp_path / "out", spec(), b"one")
    path = tmp_path / "out.partial" / "draft.json"
    path.write_bytes(change(path.read_bytes()))
    before = tree(tmp_path)
    for execution in (Execution(), FORCE):
        with pytest.raises(InputError, match=r"draft\.json is damaged") as error:
            make(tmp_path / "out", spec(), execution, build)
        assert f"rm -r {tmp_path / 'out.partial'}" in error_text(error)
    assert tree(tmp_path) == before


def test_incomplete_draft_of_a_killed_writer_is_discarded(tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "draft.tmp").write_bytes(b'{"kin')
    make(tmp_path / "out", spec(), Execution(), build)
    assert listing(tmp_path) == ["out"]
    assert listing(tmp_path / "out") == ["a.txt", "manifest.json"]


def test_checkpoint_survives_further_interruptions(tmp_path):
    leave_unfinished(tmp_path / "out", spec(), b"one")
    leave_unfinished(tmp_path / "out", spec())
    with ArtifactWriter(tmp_path / "out", spec()).prepare(resumes=True) as work:
        assert work.read_checkpoint() == b"one"


def test_another_request_conflicts_with_an_unfinished_run(tmp_path, tree):
    out = tmp_path / "out"
    leave_unfinished(out, spec(), b"one")
    before = tree(tmp_path)
    with pytest.raises(ConflictError) as error:
        make(out, spec(alpha=0.1), Execution(), build)
    assert "alpha: 0.3 -> 0.1" in error.value.fix
    assert "--force" in error_text(error)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("new_spec", [spec(), spec(alpha=0.1)])
def test_force_discards_the_checkpoint_of_an_unfinished_run(tmp_path, new_spec):
    out = tmp_path / "out"
    leave_unfinished(out, spec(), b"one")
    checkpoints = []

    def build_anew(work):
        checkpoints.append(work.read_checkpoint())
        return build(work)

    assert make(out, new_spec, FORCE, build_anew).decision == Decision.NEW
    assert checkpoints == [None]
    assert listing(out) == ["a.txt", "manifest.json"]


def test_draft_is_removed_last_when_an_unfinished_run_is_discarded(tmp_path, monkeypatch):
    leave_unfinished(tmp_path / "out", spec(), b"one")
    removed, unlink = [], Path.unlink

    def watched(self, missing_ok=False):
        removed.extend([self.name] if self.exists() else [])
        unlink(self, missing_ok)

    (tmp_path / "out.partial" / "a.txt").touch()
    monkeypatch.setattr(Path, "unlink", watched)
    with ArtifactWriter(tmp_path / "out", spec(alpha=0.1), force=True).prepare():
        assert removed == ["a.txt"]


def test_failed_computation_leaves_no_checkpoint(tmp_path):
    """It would fail again at the same place, and stand in the way of a request with a smaller learning rate."""

    def diverging(work):
        work.write_checkpoint(b"one")
        raise ComputationError("client 3 became non-finite")

    with pytest.raises(ComputationError):
        make(tmp_path / "out", spec(), Execution(), diverging)
    assert listing(tmp_path) == []


def test_read_checkpoint_is_none_before_the_first_checkpoint(tmp_path):
    with ArtifactWriter(tmp_path / "out", spec()).prepare() as work:
        assert work.read_checkpoint() is None


@pytest.mark.parametrize("force", [False, True])
def test_second_writer_of_an_output_is_refused(tmp_path, force):
    out = tmp_path / "out"
    with ArtifactWriter(out, spec()).prepare() as first:
        first.write("a.txt", b"first")
        for request in (spec(), spec(alpha=0.1)) if force else (spec(),):
            with pytest.raises(ConflictError, match="another pfl"):
                ArtifactWriter(out, request, force=force)
        assert (first.folder / "a.txt").read_bytes() == b"first"
        first.commit({}, {})
    open_artifact(out).verify()
    with ArtifactWriter(out, spec(), force=True).prepare():
        pass


def test_lock_of_a_dead_writer_is_released(tmp_path):
    out = tmp_path / "out"
    work = ArtifactWriter(out, spec()).prepare()
    work.write("stale.txt", b"")
    work.write_checkpoint(b"one")
    with pytest.raises(ConflictError, match="another pfl"):
        make(out, spec(), Execution(), build)
    kill(work)
    assert make(out, spec(), Execution(), build).decision == Decision.RESUME


@pytest.mark.parametrize("out", ["file/out", "file/deep/out"])
def test_output_below_a_file_is_refused(tmp_path, out):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        make(tmp_path / out, spec(), Execution(), build)
    assert listing(tmp_path) == ["file"]


def raise_full_disk(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["draft", "file", "checkpoint", "manifest"])
def test_full_disk_at_any_step_is_one_error_and_leaves_nothing(tmp_path, monkeypatch, step):
    def fill(work=None):
        monkeypatch.setattr(os, "fsync", raise_full_disk)

    def filling(work):
        if step == "file":
            fill()
        work.write("a.txt", b"content")
        if step == "checkpoint":
            fill()
            work.write_checkpoint(b"state")
        if step == "manifest":
            fill()
        return {}, {}

    if step == "draft":
        fill()
    with pytest.raises(InputError, match="No space left"):
        make(tmp_path / "out", spec(), Execution(), filling)
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()
    make(tmp_path / "out", spec(), Execution(), build)
    assert listing(tmp_path) == ["out"]


def test_full_disk_at_the_end_keeps_the_checkpoint(tmp_path, monkeypatch):
    def filling(work):
        work.write_checkpoint(b"one")
        monkeypatch.setattr(os, "fsync", raise_full_disk)
        return {}, {}

    with pytest.raises(InputError, match="No space left"):
        make(tmp_path / "out", spec(), Execution(), filling)
    monkeypatch.undo()
    with ArtifactWriter(tmp_path / "out", spec()).prepare(resumes=True) as work:
        assert work.read_checkpoint() == b"one"


def test_manifest_is_written_after_all_other_files(tmp_path, monkeypatch):
    """What is under the output's name is whole; what is not yet whole has no manifest."""
    order = []
    write = disk.write

    def watched(path, content):
        assert not (tmp_path / "out").exists()
        order.append(path.name)
        write(path, content)

    monkeypatch.setattr(disk, "write", watched)
    make(tmp_path / "out", spec(), Execution(), build)
    assert order == ["draft.tmp", "a.txt", "manifest.json"]


DIE = """
import os, sys
from pathlib import Path
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.writer import ArtifactWriter

left, real = int(sys.argv[2]), os.fsync

def fsync(handle):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    real(handle)

os.fsync = fsync
spec = ArtifactSpec("partition", {"alpha": 0.3})
with ArtifactWriter(Path(sys.argv[1]), spec, force=sys.argv[3] == "force").prepare() as work:
    work.write("a.txt", b"content")
    work.write_checkpoint(b"state")
    work.commit({}, {})
"""


@pytest.mark.parametrize("force", [False, True])
def test_killed_writer_leaves_a_complete_artifact_or_none(tmp_path, force):
    for survived in range(20):
        folder = tmp_path / str(survived)
        folder.mkdir()
        out = folder / "out"
        if force:
            make(out, spec(alpha=7), Execution(), build)
        code = subprocess.run(
            [sys.executable, "-c", DIE, str(out), str(survived), "force" if force else ""], check=False
        ).returncode
        if out.exists() or force:
            open_artifact(out).verify()
        assert make(out, spec(), Execution(force=force), build).path == out
        assert listing(folder) == ["out"]
        assert listing(out) == ["a.txt", "manifest.json"]
        open_artifact(out).verify()
        if code == 0:
            break
    assert code == 0
    assert survived >= 6


# What an artifact is


def test_folder_without_a_manifest_is_not_an_artifact(small_copy):
    (small_copy.p / "manifest.json").unlink()
    with pytest.raises(InputError, match="not a pfl artifact"):
        open_artifact(small_copy.p)
    with pytest.raises(InputError, match="does not exist"):
        open_artifact(small_copy.root / "nowhere")


def test_open_artifact_accepts_the_path_of_a_manifest(small):
    assert open_artifact(small.p / "manifest.json").path == small.p


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda raw: raw | {"schema": 99}, "newer pfl"),
        (lambda raw: raw | {"kind": "wonder"}, "newer pfl"),
        (lambda raw: raw | {"schema": "one"}, "damaged"),
        (lambda raw: raw | {"kind": []}, "damaged"),
        (lambda raw: raw | {"more": 1}, "damaged"),
        (lambda raw: {key: value for key, value in raw.items() if key != "files"}, "damaged"),
        (lambda raw: raw | {"inputs": [{"role": "x"}]}, "damaged"),
        (lambda raw: [raw], "damaged"),
    ],
)
def test_manifest_with_unknown_or_wrong_fields_is_refused(small_copy, edit, words):
    path = small_copy.p / "manifest.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    with pytest.raises(InputError, match=words):
        open_artifact(small_copy.p)


@pytest.mark.parametrize("content", [b"", b'{\n  "kind": "par', b"\xff\xfe"])
def test_manifest_that_is_not_json_is_refused(small_copy, content):
    (small_copy.p / "manifest.json").write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        open_artifact(small_copy.p)


@pytest.mark.parametrize("name", NAMES)
def test_manifest_is_standard_json(small, name):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    raw = json.loads((getattr(small, name) / "manifest.json").read_text(), parse_constant=refuse)
    assert raw["schema"] == kinds.schemas()[raw["kind"]]


def test_manifest_has_null_for_undefined_values(tmp_path):
    partition("writers", tmp_path / "p", clients=2, fractions=(0.8, 0.0, 0.2))
    train_global(tmp_path / "p", tmp_path / "b", settings={"model": "mlp", "rounds": 1})
    assert "NaN" not in (tmp_path / "b" / "manifest.json").read_text()
    assert open_artifact(tmp_path / "b").manifest.summary["validation_accuracy"] is None


@pytest.mark.parametrize("name", NAMES)
def test_verify_finds_a_flipped_byte_in_every_file(small_copy, name):
    artifact = open_artifact(getattr(small_copy, name))
    assert set(artifact.manifest.files) == {*listing(artifact.path)} - {"manifest.json"}
    artifact.verify()
    for file in artifact.manifest.files:
        path = artifact.path / file
        content = path.read_bytes()
        assert len(content) == artifact.manifest.files[file]["bytes"]
        for place in (0, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(InputError, match=file) as error:
                show(artifact.path, verify=True)
            assert "--force" in error_text(error)
            with pytest.raises(InputError, match=file):
                artifact.read(file)
        path.unlink()
        with pytest.raises(InputError, match=file):
            artifact.verify()
        path.write_bytes(content)
    artifact.verify()


@pytest.mark.parametrize(
    ("name", "file", "use"),
    [
        ("p", "samples.h5", lambda at, out: train_global(at.p, out, settings={"model": "mlp"})),
        ("b", "weights.safetensors", lambda at, out: personalize("fedavg", at.b, out)),
        ("e", "embeddings.h5", lambda at, out: personalize("knn-per", at.d, out)),
        ("d", "stores.faiss", lambda at, out: personalize("knn-per", at.d, out)),
        ("d", "labels.h5", lambda at, out: personalize("knn-per", at.d, out)),
        ("knn", "predictions.h5", lambda at, out: evaluate([at.knn], out)),
    ],
)
def test_commands_refuse_damaged_input_files(small_copy, tmp_path, name, file, use):
    path = getattr(small_copy, name) / file
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=file):
        use(small_copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


# Fingerprints and bytes


def test_fingerprint_depends_on_request_inputs_and_code():
    one = Input("source", "partition", "a" * 64, "../p")
    base = spec(inputs=[one], code={"methods/x": "1"}, seed=0)
    others = [
        spec("backbone", [one], {"methods/x": "1"}, seed=0),
        spec(inputs=[one], code={"methods/x": "1"}, seed=1),
        spec(inputs=[one], code={"methods/x": "1"}),
        spec(inputs=[one], code={"methods/x": "2"}, seed=0),
        spec(inputs=[one], code={"methods/y": "1"}, seed=0),
        spec(inputs=[one], seed=0),
        spec(inputs=[], code={"methods/x": "1"}, seed=0),
        spec(inputs=[one, one], code={"methods/x": "1"}, seed=0),
        spec(inputs=[Input("source", "partition", "b" * 64, "../p")], code={"methods/x": "1"}, seed=0),
        spec(inputs=[Input("other", "partition", "a" * 64, "../p")], code={"methods/x": "1"}, seed=0),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)


def test_fingerprint_does_not_depend_on_paths_or_key_order():
    near, far = (Input("source", "partition", "a" * 64, path) for path in ("../p", "/elsewhere"))
    assert spec(inputs=[near]).fingerprint == spec(inputs=[far]).fingerprint
    forth, back = ArtifactSpec("partition", {"a": 1, "b": 2}), ArtifactSpec("partition", {"b": 2, "a": 1})
    assert forth.fingerprint == back.fingerprint


def test_fingerprint_depends_on_the_schema_version(monkeypatch):
    before = spec().fingerprint
    monkeypatch.setitem(kinds.schemas(), "partition", 2)
    assert spec().fingerprint != before


@pytest.mark.usefixtures("drawn_pictures")
def test_same_request_gives_the_same_bytes(small, again):
    for name in NAMES:
        one, two = (open_artifact(getattr(at, name)) for at in (small, again))
        assert one.manifest.fingerprint == two.manifest.fingerprint
        for file in one.manifest.files:
            if file == "rounds.csv":
                assert drop_seconds(one.read(file)) == drop_seconds(two.read(file))
            elif name != "ev":  # an evaluation also says how long its inputs took
                assert one.read(file) == two.read(file), f"{name}/{file}"


def drop_seconds(content):
    return [{**row, "seconds": ""} for row in csv.DictReader(content.decode().splitlines())]


@pytest.mark.usefixtures("drawn_pictures")
def test_same_predictions_give_the_same_evaluation(small, tmp_path):
    evaluate([small.fedavg, small.knn], tmp_path / "ev")
    for file in open_artifact(small.ev).manifest.files:
        assert (tmp_path / "ev" / file).read_bytes() == (small.ev / file).read_bytes(), file


def test_another_seed_gives_other_samples(small, tmp_path):
    partition("writers", tmp_path / "p", clients=6, seed=1)
    one, two = open_artifact(small.p), open_artifact(tmp_path / "p")
    assert one.manifest.fingerprint != two.manifest.fingerprint
    assert one.read("samples.h5") != two.read("samples.h5")


# Lineage


def test_lineage_survives_moving_all_artifacts_together(small_copy, tmp_path):
    moved = tmp_path / "another" / "place"
    moved.parent.mkdir()
    small_copy.root.rename(moved)
    facts = show(moved / "knn", lineage=True, verify=True)
    kinds = []
    while facts["inputs"]:
        (facts,) = facts["inputs"]
        kinds.append(facts["kind"])
        assert Path(facts["path"]).parent == moved
    assert kinds == ["datastore", "embeddings", "backbone", "partition"]
    assert personalize("knn-per", moved / "d", moved / "knn").decision == Decision.UP_TO_DATE


def test_lineage_finds_a_renamed_input(small_copy):
    small_copy.b.rename(small_copy.root / "backbone")
    backbone = ancestor(open_artifact(small_copy.d), "backbone")
    assert backbone.path == small_copy.root / "backbone"


def test_lineage_ignores_a_damaged_neighbour(small_copy):
    small_copy.b.rename(small_copy.root / "backbone")
    (small_copy.root / "aa").mkdir()
    (small_copy.root / "aa" / "manifest.json").write_text("{")
    assert ancestor(open_artifact(small_copy.d), "backbone").path == small_copy.root / "backbone"


def test_ancestor_is_none_beyond_the_lineage(small):
    assert ancestor(open_artifact(small.p), "backbone") is None
    assert ancestor(open_artifact(small.p), "partition").path == small.p


def test_input_replaced_by_another_request_is_refused(small_copy):
    train_global(small_copy.p, small_copy.b, settings={"model": "mlp", "rounds": 1}, execution=FORCE)
    embeddings = open_artifact(small_copy.e)
    with pytest.raises(InputError, match="was replaced by another request"):
        follow(embeddings, embeddings.manifest.inputs[0])
    with pytest.raises(InputError, match="was replaced by another request"):
        personalize("knn-per", small_copy.d, small_copy.root / "new")
    assert not (small_copy.root / "new").exists()


def test_input_rebuilt_by_the_same_request_is_accepted(small_copy):
    train_global(
        small_copy.p, small_copy.b, settings={"model": "mlp", "rounds": 2, "participation": 0.5}, execution=FORCE
    )
    personalize("knn-per", small_copy.d, small_copy.root / "new")


def test_missing_input_is_reported(small_copy):
    shutil.rmtree(small_copy.b)
    with pytest.raises(InputError, match="no longer exists"):
        personalize("knn-per", small_copy.d, small_copy.root / "new")
    assert show(small_copy.d)["kind"] == "datastore"


@pytest.mark.parametrize("name", NAMES)
def test_artifact_of_the_wrong_kind_is_refused(small, tmp_path, name):
    at = getattr(small, name)
    if name != "e":
        with pytest.raises(PflError) as error:
            open_artifact(at, "embeddings")
        assert isinstance(error.value, InputError)
        assert "but this command needs embeddings" in error_text(error)
        assert "pfl extract" in error_text(error)


def test_partition_stores_more_client_names_than_an_hdf5_attribute_holds(tmp_path):
    # HDF5 keeps attributes to 64 KiB, which 4,500 client names do not fit.
    partition("writers", tmp_path / "p", scheme="iid", clients=4500)
    assert show(tmp_path / "p")["summary"]["clients"] == 4500
    assert len(artifact.read(open_artifact(tmp_path / "p", "partition")).names) == 4500
