"""Other systems, simulated: functions that only Linux has are missing, those of macOS are there; and old shells."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from helpers import listing
from pflcli.core import foreign
from pflcli.core.engine import process_settings
from pflcli.core.engine.executors.shared_memory import Arena, attach

ROOT = Path(__file__).parents[1]


# Windows


def test_windows_is_refused_with_a_message(monkeypatch, capsys):
    from pflcli.__main__ import main

    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 3
    streams = capsys.readouterr()
    assert (streams.out, streams.err.count("\n")) == ("", 2)
    assert "Windows is not supported" in streams.err


def test_windows_is_refused_before_missing_modules_are_imported():
    code = (
        "import sys; sys.platform = 'win32'; sys.modules.update(fcntl=None, resource=None)\nimport pflcli.__main__ as m"
    )
    ran = subprocess.run([sys.executable, "-c", f"{code}\nm.main([])"], capture_output=True, text=True, check=False)
    assert (ran.returncode, "Traceback" in ran.stderr) == (3, False)


# Without modules of Unix


def test_package_can_be_imported_without_fcntl_and_resource():
    code = (
        "import sys; sys.modules.update(fcntl=None, resource=None)\nimport pflcli.artifacts.make, pflcli.core.foreign"
    )
    subprocess.run([sys.executable, "-c", f"{code}\nassert pflcli.core.foreign.free_memory() > 0"], check=True)


# Memory


def raise_permission_error(*_):
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("how", ["missing", "forbidden", "no /proc"])
def test_shared_memory_without_memfd_uses_a_temporary_file(tmp_path, monkeypatch, how):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if how == "missing":
        monkeypatch.delattr(os, "memfd_create")
    elif how == "forbidden":
        monkeypatch.setattr(os, "memfd_create", raise_permission_error)
    else:
        monkeypatch.setattr(os, "getpid", lambda: 2**30)
    arena = Arena()
    layout, views = arena.fill({"x": torch.arange(5.0)}, {"out": torch.zeros(3)})
    attached = attach(layout)
    attached["out"].fill_(2)
    assert torch.equal(attached["x"], torch.arange(5.0))
    assert torch.equal(views["out"], torch.full((3,), 2.0))
    assert len(listing(tmp_path)) == 1
    arena.close()
    assert listing(tmp_path) == []


class Library:
    """A C library with some functions; each call is recorded."""

    def __init__(self, **functions):
        self.calls = []
        for name, function in functions.items():
            setattr(self, name, lambda *args, function=function: self.calls.append(args) or function(*args))


def test_keep_freed_memory_does_nothing_on_macos_or_without_mallopt(monkeypatch):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    process_settings.keep_freed_memory()  # musl has no mallopt
    library = Library(mallopt=lambda *_: 1)
    monkeypatch.setattr(process_settings, "_ask_for_huge_pages", lambda: None)
    monkeypatch.setattr(sys, "platform", "darwin")
    process_settings.keep_freed_memory()
    assert library.calls == []
    monkeypatch.setattr(sys, "platform", "linux")
    process_settings.keep_freed_memory()
    assert len(library.calls) == 3


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_keep_freed_memory_reuses_large_blocks_without_page_faults():
    code = """
import ctypes, resource, threading
from pflcli.core.engine.process_settings import keep_freed_memory

keep_freed_memory()
library, size = ctypes.CDLL(None), 64 << 20
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def allocate():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = library.malloc(size)
        ctypes.memset(block, 1, size)
        library.free(block)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=allocate)
thread.start()
thread.join()
"""
    faults = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert int(faults[1]) < 100


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="Linux has no huge pages")
def test_keep_freed_memory_asks_for_huge_pages_once():
    code = """
import re, torch
from pathlib import Path
from pflcli.core.engine.process_settings import keep_freed_memory

def pages():
    areas = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) |^VmFlags: (.*)", Path("/proc/self/smaps").read_text(), re.M)
    pairs = zip(areas[::2], areas[1::2])  # the addresses of an area, and its flags
    return [(int(start, 16), int(end, 16)) for (start, end, _), (*_, flags) in pairs if "hg" in flags.split()]

assert not pages()
keep_freed_memory()
areas = pages()
keep_freed_memory()
middle = torch.ones(16 << 20)[8 << 20 :].data_ptr()
print(len(areas), pages() == areas, any(start <= middle < end for start, end in areas))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1", "True", "True"]


def test_keep_freed_memory_works_where_memory_cannot_be_reserved(monkeypatch):
    library = Library(malloc=lambda size: None)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    process_settings._ask_for_huge_pages.__wrapped__()
    assert len(library.calls) == 1


@pytest.mark.parametrize("how", ["no /proc", "unknown names", "no sysconf"])
def test_free_memory_is_positive_without_proc_or_sysconf(monkeypatch, how):
    read = Path.read_text

    def without_proc(path, *args, **kwargs):
        if path.is_relative_to("/proc") or path.is_relative_to("/sys"):
            raise FileNotFoundError(path)
        return read(path, *args, **kwargs)

    def unknown(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(Path, "read_text", without_proc)
    if how == "unknown names":
        monkeypatch.setattr(os, "sysconf", unknown)
    elif how == "no sysconf":
        monkeypatch.delattr(os, "sysconf")
    known = foreign.free_memory()
    assert (known == sys.maxsize) if how != "no /proc" else (10**8 < known < 10**15)


# Scripts: macOS has bash 3.2 and the tools of BSD

SCRIPTS = sorted([*ROOT.glob("examples/**/*.sh"), *ROOT.glob("tests/*.sh"), ROOT / ".ci" / "run"])
FOREIGN = {
    "bash 4": r"(?:declare|local|typeset) -[A-Za-z]*[An]|\b(?:mapfile|readarray|coproc)\b|\$\{\w+(?:,|\^|@[A-Z])"
    r"|\bwait -n|&>>|\|&|\[\[ -v|;;&|;&(?!;)|\bshopt -s globstar",
    "GNU tools": r"\breadlink -f|\brealpath\b|\bsed (?:-\w+ )*-i|\bgrep -\w*P|\bdate -[dI]|\bstat -c|\bnproc\b|\btac\b"
    r"|\bshuf\b|\bhead -n ?-|\bsort -\w*V|\bxargs -\w*[dr]|\btimeout \d|\bmktemp --|\bcp --|\bmd5sum|\bsha\d+sum"
    r"|\bfind .* -printf",
    "blanks of wc in a name": r"=\$\([^()]*\bwc -[lcw]\)",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_use_only_portable_shell_constructs(script):
    text = re.sub(r"^\s*#.*$", "", script.read_text(encoding="utf-8"), flags=re.M)
    for construct, pattern in FOREIGN.items():
        assert re.findall(pattern, text) == [], construct


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_expand_possibly_empty_arrays_for_old_shells(script):
    """Before bash 4.4, ``set -u`` takes an empty array for an unset one: "${x[@]+"${x[@]}"}"."""
    texts = [path.read_text(encoding="utf-8") for path in (script, ROOT / "examples" / "papers" / "setup.sh")]
    empty = set(re.findall(r"(\w+)=\(\)", "".join(texts))) - {
        "partitions"
    }  # one for each seed, of which there are some
    bare = set(re.findall(r'(?<!\+)"\$\{(\w+)\[@\]\}"', texts[0]))
    assert empty & bare == set()


def test_scripts_are_valid_bash():
    for script in SCRIPTS:
        subprocess.run(["bash", "-n", script], check=True)
