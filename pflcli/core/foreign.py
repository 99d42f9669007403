"""Open untrusted files safely: refuse special files and excessive sizes, and turn parser errors into clear messages."""

from __future__ import annotations

import math
import os
import stat
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from pflcli.core.errors import InputError, PflError

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME_LENGTH = 255
"""Maximum characters in the name of a client or class, because an array of names is as wide as the longest one."""

_MAX_RATIO = 500
_ALWAYS_ALLOWED_BYTES = 256 * 10**6
"""Compressed data may declare ``_MAX_RATIO`` times their size in the file, or ``_ALWAYS_ALLOWED_BYTES`` if that is more
(zeros are compressed by a factor of 1,000)."""
_JSON_RATIO = 8
"""Bytes of Python objects for each byte of JSON: 5 to 6 for short numbers, and the text itself."""

_LOCAL_HEADER_BYTES = 30
"""Bytes before the name of a member in a ZIP file: APPNOTE.TXT, section 4.3.7."""

_MIN_MAPPED_BYTES = 1 << 24
"""Minimum bytes of an array of an NPZ file that is mapped."""


@contextmanager
def reading(path: Path, form: str, *fix: str) -> Iterator[None]:
    """Read a file within the block; raises InputError if it is not a regular file, or as ``parsing`` does."""
    require_file(path)
    with parsing(str(path), form, *fix):
        yield


@contextmanager
def parsing(name: str, form: str, *fix: str) -> Iterator[None]:
    """Turn any error of a parser within the block into an InputError that names the file."""
    try:
        yield
    except PflError:
        raise
    except MemoryError:
        raise InputError(f"reading {name} takes more than the free memory ({size(free_memory())})") from None
    except Exception as error:  # each parser raises its own errors for unexpected bytes
        reason = (str(error).strip() or type(error).__name__).partition("\n")[0]
        raise InputError(f"{name} cannot be read as {form}: {reason[:300]}", *fix) from error


def require_file(path: Path) -> None:
    """Raise InputError for a path that is not a regular file, such as a pipe, or a file larger than free memory."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is {_describe_type(status.st_mode)}, not a file", "copy its content to a file first")
    if status.st_size > free_memory():
        raise InputError(f"{path} has {size(status.st_size)}, more than the free memory ({size(free_memory())})")


def _describe_type(mode: int) -> str:
    """Return what a path is that is not a regular file, such as ``a pipe``."""
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((words for test, words in kinds.items() if test(mode)), "a device")


def require_room(name: str, declared: int, stored: int | None = None) -> None:
    """Raise InputError if data that declare this many bytes cannot be read.

    The limit is half of the free memory, because two copies exist while data are read and checked. Compressed data of
    ``stored`` bytes in the file are also limited to a multiple of these.
    """
    largest = None if stored is None else max(_ALWAYS_ALLOWED_BYTES, _MAX_RATIO * stored)
    if largest is not None and declared > largest:
        raise InputError(
            f"{name} declares {size(declared)} but takes {size(stored or 0)} in the file; the maximum is {_MAX_RATIO}"
            f" times that, or {size(_ALWAYS_ALLOWED_BYTES)}"
        )
    free = free_memory()
    if declared > free // 2:
        raise InputError(f"{name} declares {size(declared)}, more than half of the free memory ({size(free)})")


def read_json_text(path: Path) -> str:
    """Return the text of a JSON file; raises InputError if its objects could take more than half of the free memory."""
    require_room(f"{path}, as objects of JSON,", _JSON_RATIO * path.stat().st_size)
    return path.read_text(encoding="utf-8-sig")


def require_short(where: str, name: str) -> None:
    """Raise InputError for a name of a client or class, or a word of a column, longer than ``NAME_LENGTH``."""
    if len(name) > NAME_LENGTH:
        raise InputError(
            f"{where}: a name has {len(name)} characters, but the maximum is {NAME_LENGTH}: {name[:20]!r}..."
        )


def free_memory() -> int:
    """Return the bytes of memory that this process may still use: the least of all limits that are known."""
    page, free = 4096, []
    with suppress(OSError, ValueError, AttributeError):
        page = os.sysconf("SC_PAGE_SIZE")
        free.append(page * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="ascii"))  # "max" raises ValueError: there is no limit
        free.append(limit - int((group / "memory.current").read_text(encoding="ascii")))
    with suppress(OSError, ValueError):
        address_space = read_address_limit()
        if address_space is not None:
            free.append(address_space - page * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]))
    return max(0, min(free, default=sys.maxsize))  # without any information, nothing is refused


def read_address_limit() -> int | None:
    """Return the largest address space of this process in bytes, as set by ``ulimit -v``; None without a limit."""
    try:
        import resource
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def size(count: float) -> str:
    """Return a number of bytes as text, such as 4.0 TB."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


class Npz:
    """The arrays of an NPZ file, each checked before it is read; nothing is unpickled."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, as a context manager; raises InputError for an NPY file, BadZipFile for other files."""
        with path.open("rb") as file:
            if file.read(6) == b"\x93NUMPY":
                raise InputError(f"{path} is one array, not an NPZ file", "np.savez('data.npz', x=x, y=y, owner=owner)")
        self.path = path
        self._zip = zipfile.ZipFile(path)
        self.names = [name.removesuffix(".npy") for name in self._zip.namelist()]

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file."""
        self._zip.close()

    def load(self, name: str) -> Any:
        """Return an array; raises InputError if it contains Python objects or declares more bytes than it has."""
        member = f"{name}.npy" if f"{name}.npy" in self._zip.namelist() else name
        info = self._zip.getinfo(member)
        source = f"{self.path}: array '{name}'"
        with self._zip.open(info) as file:
            declared = _declared_bytes(source, name, file, info.file_size)
        if info.compress_type == zipfile.ZIP_STORED and declared >= _MIN_MAPPED_BYTES:
            mapped = self._map_bytes(info)
            if mapped is not None:
                return mapped
        require_room(source, declared, info.compress_size)
        from numpy.lib import format as npy

        with self._zip.open(info) as file:
            return npy.read_array(file, allow_pickle=False)

    def _map_bytes(self, info: zipfile.ZipInfo) -> NDArray[Any] | None:
        """Return an uncompressed array of bytes, such as images, as a read-only memory map; None for other arrays.

        The checksum is verified first. Numbers of other types are not mapped, because they are checked and converted in
        memory.
        """
        import numpy as np

        with self._zip.open(info) as file:
            shape, is_fortran, dtype = _read_npy_header(file)
            header = file.tell()
            if dtype != np.uint8 or is_fortran:
                return None
            while file.read(1 << 20):
                pass  # at the end, zipfile verifies the checksum
        with self.path.open("rb") as archive:
            archive.seek(info.header_offset)
            local = archive.read(_LOCAL_HEADER_BYTES)
        lengths = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")  # its name and extras
        start = info.header_offset + _LOCAL_HEADER_BYTES + lengths + header
        return np.asarray(np.memmap(self.path, np.uint8, "r", start, shape))


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of an NPY file; raises InputError if it contains Python objects or declares too many bytes."""
    from numpy.lib import format as npy

    with path.open("rb") as file:
        require_room(str(path), _declared_bytes(str(path), "x", file, path.stat().st_size))
        file.seek(0)
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
        return array


def _declared_bytes(source: str, name: str, file: IO[bytes], stored: int) -> int:
    """Return the bytes that the array in a ``file`` of ``stored`` bytes declares; raises InputError if it has fewer."""
    shape, _, dtype = _read_npy_header(file)
    if dtype.hasobject:
        raise InputError(
            f"{source} contains Python objects, which pfl does not unpickle",
            f"save it as numbers or text: {name}=np.asarray({name}.tolist())",
        )
    declared, actual = math.prod(shape) * dtype.itemsize, stored - file.tell()
    if min(shape, default=0) < 0 or declared > actual:
        raise InputError(f"{source} declares {size(declared)} but contains {size(actual)}")
    return int(declared)


def _read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, Any]:
    """Return the shape of the array in an NPY file, whether its first axis varies fastest, and its dtype."""
    from numpy.lib import format as npy

    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    return shape, is_fortran, dtype


def read_npz(path: Path, *keys: str) -> list[NDArray[Any]]:
    """Read arrays from an NPZ file without unpickling; raises InputError if it is damaged or lacks a key."""
    with reading(path, "NPZ"), Npz(path) as file:
        missing = [key for key in keys if key not in file.names]
        if missing:
            raise InputError(f"{path} has no array '{missing[0]}'")
        return [file.load(key) for key in keys]
