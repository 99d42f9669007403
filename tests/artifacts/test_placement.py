"""Moving a finished artifact to its place: a failure loses no results, and files that pfl did not make are kept."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers import FORCE, build, error_text, kill, listing, spec
from pflcli.artifacts import disk, locks, placement
from pflcli.artifacts.decision import Decision, decide
from pflcli.artifacts.make import make
from pflcli.artifacts.reader import open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.errors import ComputationError, ConflictError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.reporter import SILENT


class Killed(BaseException):
    """What a test raises where a process is killed."""


class Notes:
    """Whoever watches, and remembers what is said."""

    def __init__(self):
        self.said = []
        self.detail, self.progress = SILENT.detail, SILENT.progress

    def say(self, text):
        self.said.append(text)


def fail_on_build(work):
    raise AssertionError("nothing is to be computed")


def build_other(work):
    work.write_checkpoint(b"state")
    work.write("b.txt", b"new")
    return {"n": 2}, {}


STEPS = [
    (disk, "write"),
    (disk, "sync_folder"),
    (Path, "rename"),
    (shutil, "rmtree"),
    (Path, "unlink"),
    (Path, "rmdir"),
]


def make_dying_step(steps_done, survived, name, step, raised=Killed):
    """A step that adds its name to what is done, and raises where there are as many as survive.

    Steps on the lock do not count: the lock of this process would not be that of a dead one (see test_locks.py).
    """

    def stepping(*args, **kwargs):
        if any(".partial.lock" in str(arg) for arg in args):
            return step(*args, **kwargs)
        if len(steps_done) >= survived:
            raise raised
        steps_done.append(name)
        return step(*args, **kwargs)

    return stepping


def die_in_commit(monkeypatch, survived, raised=Killed):
    """Let every step of a commit but the first ``survived`` raise; returns the steps done."""
    steps_done = []
    commit = ArtifactWriter.commit

    def commits(work, *args):
        for where, name in STEPS:
            monkeypatch.setattr(where, name, make_dying_step(steps_done, survived, name, getattr(where, name), raised))
        return commit(work, *args)

    monkeypatch.setattr(ArtifactWriter, "commit", commits)
    if raised is Killed:
        monkeypatch.setattr(ArtifactWriter, "__exit__", lambda work, *_: kill(work))
    return steps_done


@pytest.mark.parametrize("stands", ["nothing", "an empty folder", "another request", "the same request", "a link"])
def test_the_same_command_finishes_a_commit_when_it_was_killed_anywhere(tmp_path, monkeypatch, stands):
    survived, killed = 0, True
    while killed:
        folder = tmp_path / str(survived)
        folder.mkdir()
        out, force = folder / "out", stands in ("another request", "the same request", "a link")
        if stands == "an empty folder":
            out.mkdir()
        if force:
            make(out, spec(**({} if stands == "the same request" else {"alpha": 7})), Execution(), build)
        if stands == "a link":
            out.rename(tmp_path / f"there-{survived}")
            out.symlink_to(tmp_path / f"there-{survived}")
        with monkeypatch.context() as patched:
            steps_done = die_in_commit(patched, survived)
            try:
                make(out, spec(), Execution(force=force), build_other)
                killed = False
            except Killed:
                pass
        if force:
            there = out if os.path.lexists(out) else placement.replaced_folder(out)
            open_artifact(there).verify()  # the old one or the new one
        is_written = steps_done.count("_write") > 0
        if killed:
            notes, old = Notes(), placement.find_replaced(out)
            make(out, spec(), Execution(force=force, reporter=notes), fail_on_build if is_written else build_other)
            assert old is None or any(f"found {old}" in line for line in notes.said)
        assert listing(folder) == ["out"], steps_done
        assert listing(out) == ["b.txt", "manifest.json"], steps_done
        open_artifact(out).verify()
        assert make(out, spec(), Execution(), fail_on_build).decision == Decision.UP_TO_DATE
        survived += 1
    assert survived > 5
    assert steps_done.count("rename") == (2 if force else 1)


@pytest.mark.parametrize(("renames", "force"), [(0, False), (0, True), (1, True)])
def test_a_commit_loses_nothing_when_a_rename_fails(tmp_path, monkeypatch, tree, renames, force):
    out, renamed, rename = tmp_path / "out", [], Path.rename
    if force:
        make(out, spec(alpha=7), Execution(), build)
    before = tree(tmp_path)

    def busy(path, target):
        if ".partial.lock" in str(path):
            return rename(path, target)
        renamed.append(path)
        if len(renamed) == renames + 1:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", busy)
        with pytest.raises(InputError, match=r"cannot finish .*busy") as error:
            make(out, spec(), Execution(force=force), build_other)
        assert "all files are kept" in error.value.fix[0]
        assert {name: old for name, old in tree(tmp_path).items() if "partial" not in name} == before
    make(out, spec(), Execution(force=force), fail_on_build)
    assert listing(tmp_path) == ["out"]
    assert listing(out) == ["b.txt", "manifest.json"]


@pytest.mark.parametrize(("force", "survived"), [(False, 4), (True, 6)])
def test_error_after_a_kill_says_where_the_artifact_is(tmp_path, monkeypatch, pfl, force, survived):
    out = tmp_path / "my out"
    if force:
        make(out, spec(alpha=7), Execution(), build)
    with monkeypatch.context() as patched:
        steps_done = die_in_commit(patched, survived)
        with pytest.raises(Killed):
            make(out, spec(), Execution(force=force), build_other)
    assert not out.exists(), steps_done
    for line in (["show", out], ["show", out / "manifest.json"], ["train-global", out, "-o", tmp_path / "x"]):
        ran = pfl(*line)
        assert ran.code == InputError.exit_code
        assert f"{out} is missing" in ran.err
        assert f"{out}.partial" in ran.err
        assert f"pfl partition DATASET -o '{out}'" in ran.err
        assert ("old partition" in ran.err) == force
    if force:
        word = next(line for line in ran.err.splitlines() if "mv" in line).partition(": ")[2]
        subprocess.run(word, shell=True, check=True)
        assert open_artifact(out).manifest.request == {"alpha": 7}
    make(out, spec(), Execution(force=force), fail_on_build)
    assert listing(tmp_path) == ["my out"]
    open_artifact(out).verify()


REMOVING = [(os, "unlink"), (os, "rmdir"), (Path, "rename")]  # also what shutil.rmtree does, one by one


def die_while_removing(monkeypatch, survived):
    """Let every removal or rename but the first ``survived`` raise."""
    steps_done = []
    for where, name in REMOVING:
        monkeypatch.setattr(where, name, make_dying_step(steps_done, survived, name, getattr(where, name)))
    return steps_done


@pytest.mark.parametrize("same", [True, False], ids=["the same command", "another command"])
def test_tidying_is_finished_and_deletes_nothing_else_when_it_was_killed_anywhere(tmp_path, monkeypatch, same):

    def begin(folder):
        out = folder / "out"
        make(out, spec(), Execution(), build)
        make(folder / "out.partial.old", spec(), Execution(), build_other)
        (folder / "out.partial.old.txt").touch()
        return out

    again = spec() if same else spec(alpha=9)
    survived, killed = 0, True
    while killed:
        folder = tmp_path / str(survived)
        folder.mkdir()
        out = begin(folder)
        with monkeypatch.context() as patched:
            steps_done = die_while_removing(patched, survived)
            if not same:
                patched.setattr(ArtifactWriter, "__exit__", lambda work, *_: kill(work))
            try:
                ended = make(out, again, FORCE, fail_on_build if same else build_other).decision
                killed = False
            except Killed:
                killed = True
        if killed:
            ended = make(out, again, FORCE, fail_on_build if same else build_other).decision
        assert not same or ended == Decision.UP_TO_DATE
        assert listing(folder) == ["out", "out.partial.old.txt"], steps_done
        assert listing(out) == ["a.txt" if same else "b.txt", "manifest.json"]
        open_artifact(out).verify()
        survived += 1
    assert survived > 3


@pytest.mark.parametrize(("name", "error"), [("out.partial", ConflictError), ("out.partial.old", InputError)])
def test_a_folder_with_a_name_that_pfl_needs_stays_when_it_has_other_files(tmp_path, tree, name, error):
    out = tmp_path / "out"
    make(out, spec(), Execution(), build)
    make(tmp_path / name, spec(alpha=7), Execution(), build)
    (tmp_path / name / "notes.txt").touch()
    before = tree(tmp_path / name)
    make(out, spec(), Execution(), fail_on_build)  # which tidies up
    with pytest.raises(error, match=r"not made by pfl|cannot finish .*not empty"):
        make(out, spec(alpha=9), FORCE, build)
    assert tree(tmp_path / name) == before
    open_artifact(out).verify()


def test_missing_dataset_in_the_working_directory_is_located_after_a_kill(tmp_path, monkeypatch, pfl):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "data.partial.old", spec("dataset"), Execution(), build)
    ran = pfl("partition", "data", "-o", "p")
    assert ran.code == InputError.exit_code
    assert "mv data.partial.old data" in ran.err


def test_damaged_file_of_an_unfinished_commit_is_rebuilt(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        die_in_commit(patched, 2)
        with pytest.raises(Killed):
            make(out, spec(), Execution(), build_other)
    assert "out.partial contains all files of the same request" in decide(out, spec(), force=False)[1]
    (tmp_path / "out.partial" / "b.txt").write_bytes(b"not")
    saved = []

    def remade(work):
        assert not (work.folder / "manifest.json").exists()
        saved.append(work.read_checkpoint())
        return build_other(work)

    make(out, spec(), Execution(), remade)
    assert saved == [b"state"]
    open_artifact(out).verify()


def test_build_killed_while_discarding_a_failure_can_be_repeated(tmp_path, monkeypatch):
    def failing(work):
        work.row_files()(0)
        for name in "a.txt", "z.txt":
            work.write(name, b"content")
        raise ComputationError("it cannot be computed")

    survived, raised = 0, Killed
    steps = [step for step in STEPS if step[1] in ("rmtree", "unlink")]
    while raised is Killed:
        out, steps_done = tmp_path / str(survived), []
        with monkeypatch.context() as patched:
            for where, name in steps:
                patched.setattr(where, name, make_dying_step(steps_done, survived, name, getattr(where, name)))
            with pytest.raises((Killed, ComputationError)) as error:
                make(out, spec(), Execution(), failing)
        raised, survived = error.type, survived + 1
        make(out, spec(), Execution(), build)
        assert listing(tmp_path) == sorted(map(str, range(survived)))
    assert survived > 3


def test_output_occupied_at_the_end_keeps_the_computation(tmp_path):
    out = tmp_path / "out"

    def slow(work):
        out.mkdir()
        (out / "notes.txt").touch()
        return build(work)

    with pytest.raises(ConflictError, match="not a pfl artifact"):
        make(out, spec(), FORCE, slow)
    shutil.rmtree(out)
    assert make(out, spec(), FORCE, fail_on_build).decision == Decision.RESUME
    open_artifact(out).verify()


# Places that are refused before anything is computed


def assert_refused(out, *inputs, error=ConflictError, match, force=False):
    for execution in (Execution(force=force), Execution(force=force, dry_run=True)):
        with pytest.raises(error, match=match) as raised:
            make(out, spec(inputs=inputs), execution, fail_on_build)
        assert raised.value.fix
    return error_text(raised)


def test_output_that_is_a_dangling_link_is_refused(tmp_path):
    (tmp_path / "out").symlink_to("nowhere")
    assert_refused(tmp_path / "out", match="link to nowhere, which does not exist")
    assert listing(tmp_path) == ["out"]


def test_output_that_is_a_mount_point_is_refused():
    assert "--out /proc/partition" in assert_refused(Path("/proc"), match="/proc is a mount point")


@pytest.mark.parametrize("force", [False, True])
def test_output_name_too_long_for_its_suffixes_is_refused(tmp_path, force):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") - locks.LONGEST_SUFFIX
    message = assert_refused(tmp_path / ("é" * (longest // 2 + 1)), error=UsageError, match="too long", force=force)
    assert f"at most {longest} bytes" in message
    assert listing(tmp_path) == []
    out = tmp_path / ("x" * longest)
    make(out, spec(alpha=7), Execution(), build)
    make(out, spec(), FORCE, build)
    assert listing(tmp_path) == [out.name]


# What force must not delete


@pytest.mark.parametrize("name", ["notes.txt", "b"])
def test_force_keeps_files_that_the_manifest_does_not_list(tmp_path, tree, name):
    out = tmp_path / "out"
    make(out, spec(), Execution(), build)
    (out / name).mkdir() if name == "b" else (out / name).touch()
    before = tree(tmp_path)
    for force in (True, False):
        with pytest.raises(ConflictError) as error:
            make(out, spec(alpha=7), Execution(force=force), fail_on_build)
        assert f"{name}" in error_text(error)
        assert "move" in error_text(error)
    assert tree(tmp_path) == before


def test_file_added_to_the_old_output_during_a_build_is_kept(tmp_path):
    out = tmp_path / "out"
    make(out, spec(), Execution(), build)

    def slow(work):
        (out / "notes.txt").touch()
        return build(work)

    with pytest.raises(ConflictError, match=r"notes\.txt"):
        make(out, spec(alpha=7), FORCE, slow)
    (out / "notes.txt").unlink()
    make(out, spec(alpha=7), FORCE, fail_on_build)


def test_force_on_a_damaged_manifest_replaces_only_files_still_listed(tmp_path):
    out = tmp_path / "out"
    make(out, spec(), Execution(), build)
    content = (out / "manifest.json").read_bytes()
    (out / "manifest.json").write_bytes(content[:50])
    with pytest.raises(ConflictError, match=r"a\.txt"):
        make(out, spec(alpha=7), FORCE, fail_on_build)
    (out / "manifest.json").write_bytes(content[:-20])
    make(out, spec(alpha=7), FORCE, build)


def test_output_that_contains_an_input_is_refused(tmp_path, tree):
    out = tmp_path / "out"
    make(out, spec(), Execution(), build)
    make(out / "p", spec(alpha=7), Execution(), build)
    before = tree(tmp_path)
    source = open_artifact(out / "p").as_input("source", out)
    assert_refused(out, source, match="out/p is an input of", force=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("below", ["b", "b/c"])
def test_output_inside_an_input_is_refused(tmp_path, tree, force, below):
    make(tmp_path / "p", spec(), Execution(), build)
    before = tree(tmp_path)
    source = open_artifact(tmp_path / "p").as_input("source", tmp_path / "p" / below)
    assert_refused(tmp_path / "p" / below, source, match="is inside the partition", force=force)
    assert tree(tmp_path) == before


# A forced run that was interrupted


def interrupt(work):
    work.write_checkpoint(b"one")
    raise KeyboardInterrupt


@pytest.mark.parametrize("stands", [None, {"alpha": 7}, {}])
def test_interrupted_force_resumes_when_repeated(tmp_path, stands):
    out = tmp_path / "out"
    if stands is not None:
        make(out, spec(**stands), Execution(), build)
    with pytest.raises(KeyboardInterrupt):
        make(out, spec(), FORCE, interrupt)
    assert make(out, spec(), Execution(force=True, dry_run=True), fail_on_build).decision == "dry run: resume"
    saved = []
    again = make(out, spec(), FORCE, lambda work: (saved.append(work.read_checkpoint()), build(work))[1])
    assert (saved, again.decision) == ([b"one"], Decision.RESUME)
    assert listing(tmp_path) == ["out"]


def test_force_discards_what_another_forced_run_began(tmp_path):
    out = tmp_path / "out"
    make(out, spec(), Execution(), build)
    with pytest.raises(KeyboardInterrupt):
        make(out, spec(alpha=7), FORCE, interrupt)
    with pytest.raises(KeyboardInterrupt):
        make(out, spec(alpha=8), FORCE, interrupt)
    saved = []
    make(out, spec(alpha=7), FORCE, lambda work: (saved.append(work.read_checkpoint()), build(work))[1])
    assert saved == [None]


def test_a_writer_is_refused_while_another_one_replaces_the_artifact(tmp_path, monkeypatch):
    out, rename, refusals = tmp_path / "out", Path.rename, []
    make(out, spec(alpha=7), Execution(), build)

    def watched(path, target):
        rename(path, target)
        if path == out:  # the old artifact is aside, and the new one is not in its place yet
            with pytest.raises(ConflictError, match="another pfl") as error:
                ArtifactWriter(out, spec(alpha=9), force=True)
            refusals.append(error)

    monkeypatch.setattr(Path, "rename", watched)
    make(out, spec(), FORCE, build)
    assert len(refusals) == 1
    assert listing(tmp_path) == ["out"]
