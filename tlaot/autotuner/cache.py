"""Tuned results, kept: in memory, and on disk as the folders that wheels embed.

    <root>/tlaot-<version>/<first two digits of key>/<key>/    a result's folder (README, "What ships")
    <root>/tlaot-<version>/locks/<key>.lock                    there while someone tunes that key
    <root>/tlaot-<version>/candidates/<kernel>-<digits>/       binaries and times of single candidates (tune/searching/store.py)
    <root>/tlaot-<version>/staging/                            folders in the making

A key is the digest of all that can change the result (identity.py). A cache that cannot be written, locked or read costs a
warning and a tuning, never an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from .. import __version__
from ..errors import LoadError, PackageError
from ..manifest import VARIANT_NAME, variant_loads
from .flight import hold, sweep
from .settings import read_settings

__all__ = ["Cache", "Entry", "TuningCache", "clear_cache", "clear_entries", "list_cache", "list_entries"]

Value = TypeVar("Value")

_NAMESPACE = re.compile(r"tlaot-[\w.+!-]+")
_KEY = re.compile(r"[0-9a-f]{16,128}")
_LOCKS, _STAGING, _CANDIDATES = "locks", "staging", "candidates"
# What is left in the staging folder by a process that died is this old before anyone removes it.
_ABANDONED_S = 3600.0


@dataclass(frozen=True)
class Entry:
    """One result on disk.

    Attributes:
        key: Its key.
        path: Its folder.
        kernel: Name of the kernel; None where the entry is broken.
        target: What it was compiled for, ``"cuda:sm_90a"``.
        shape: Arguments of the factory.
        latency: ms; None where not measured.
        size: Bytes of all its files.
        date: When it was stored, in s since the epoch.
        broken: Why it cannot be read; empty where it can.
    """

    key: str
    path: Path
    kernel: str | None
    target: str | None
    shape: Mapping[str, Any]
    latency: float | None
    size: int
    date: float
    broken: str = ""


class Memory:
    """The values used last, by root and key; safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, root: Path, key: str) -> Any:
        with self._lock:
            if (str(root), key) not in self._values:
                return None
            self._values.move_to_end((str(root), key))
            return self._values[str(root), key]

    def put(self, root: Path, key: str, value: Any) -> None:
        with self._lock:
            self._values[str(root), key] = value
            self._values.move_to_end((str(root), key))
            while len(self._values) > self.limit:
                self._values.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()


_MEMORY = Memory(limit=256)


@dataclass(frozen=True)
class Cache(Generic[Value]):
    """Values by key, in memory and on disk.

    Attributes:
        root: The folder of the disk level; made when the first value is stored.
        save: Writes a value's folder, which does not exist yet.
        read: Reads it; None or a PackageError, OSError or ValueError where it is not a whole entry.
        enabled: False: nothing is read or written, and everybody tunes.
        memory: The memory level; one for the whole process by default.
        namespace: Folder in ``root`` of this version's entries.
    """

    root: Path
    save: Callable[[Value, Path], None]
    read: Callable[[Path], Value | None]
    enabled: bool = True
    memory: Memory = field(default=_MEMORY, repr=False)
    namespace: str = f"tlaot-{__version__}"

    def path_of(self, key: str) -> Path:
        """The folder of an entry, there or not.

        Raises:
            ValueError: ``key`` is not a digest, and might name a place outside of the cache.
        """
        if not _KEY.fullmatch(key):
            raise ValueError(f"expected a hexadecimal digest as key, got {key!r}")
        return self.root / self.namespace / key[:2] / key

    def candidates(self, kernel: str, digest: str) -> Path:
        """The folder of what is known of single candidates of one factory, there or not."""
        return self.root / self.namespace / _CANDIDATES / f"{kernel}-{digest[:16]}"

    def load(self, key: str) -> Value | None:
        """The value of a key, or None. A broken entry is reported and removed."""
        if not self.enabled:
            return None
        found: Value | None = self.memory.get(self.root, key)
        if found is not None:
            return found
        path = self.path_of(key)
        try:
            if not path.is_dir():
                return None
            found = self.read(path)
            reason = "it is incomplete"
        except LoadError as error:
            # Whole, but of no use to this process.
            _warn(f"the cached result {path} cannot be loaded here and is made again: {error}")
            return None
        except (PackageError, OSError, ValueError, KeyError, TypeError) as error:
            found, reason = None, str(error).partition("\n")[0]
        if found is None:
            _warn(f"the cached result {path} is broken and is made again: {reason}")
            self._remove(path)
            return None
        self.memory.put(self.root, key, found)
        return found

    def store(self, key: str, value: Value) -> None:
        """Keep a value. Where the disk does not take it, it is kept in memory, with a warning, once for the folder."""
        if not self.enabled:
            return
        self.memory.put(self.root, key, value)
        path = self.path_of(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._staging() as staging:
                self.save(value, staging / key)
                _publish(staging / key, path)
        except OSError as error:
            _warn_once(self.root, f"cannot be written ({error.strerror or error}), so results are not kept there")

    @contextlib.contextmanager
    def single_flight(self, key: str) -> Iterator[None]:
        """While one thread of one process is in this block, all others that come with the key wait.

        Load in the block, and make what is not there: so each value is made once. A process that dies frees its keys.
        """
        if not self.enabled:
            yield
            return
        self.path_of(key)
        path = self.root / self.namespace / _LOCKS / f"{key}.lock"

        def report(reason: str) -> None:
            _warn_once(self.root, f"takes no lock ({reason}), so two processes may tune the same kernel")

        with hold(path, report):
            yield

    def _remove(self, path: Path) -> None:
        try:
            with self._staging() as staging:
                os.rename(path, staging / path.name)
        except FileNotFoundError:
            pass
        except OSError as error:
            _warn_once(self.root, f"cannot be written ({error.strerror or error}), so broken results stay there")

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        base = self.root / self.namespace / _STAGING
        base.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(dir=base))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            yield folder


class TuningCache(Cache[Any]):
    """The cache of tuned kernels."""

    @classmethod
    def open(cls) -> TuningCache:
        """The cache that the environment names now; not enabled where the environment says so."""
        from .result import AutotuneResult  # here, for `tlaot cache` needs no part of it

        settings = read_settings()
        return cls(
            root=settings.cache_dir,
            save=lambda result, path: result.save_to_disk(path),
            read=AutotuneResult.load_from_disk,
            enabled=settings.use_cache,
        )


def list_cache() -> list[Entry]:
    """The tuned results on disk, the newest last."""
    return list_entries(read_settings().cache_dir)


def clear_cache(older_than: float | None = None, kernel: str | None = None) -> int:
    """Forget tuned results, in memory and on disk.

    Args:
        older_than: Only those stored longer ago than this many seconds.
        kernel: Only those of the kernel of this name.

    Returns:
        How many were removed from the disk.

    Raises:
        OSError: The cache's folder cannot be written.
    """
    _MEMORY.clear()
    return len(clear_entries(read_settings().cache_dir, older_than, kernel))


def list_entries(root: Path) -> list[Entry]:
    """The entries under a root, of all versions of tlaot, the newest last."""
    found = [_describe(path) for namespace in _namespaces(root) for path in _entry_folders(namespace)]
    return sorted(found, key=lambda entry: (entry.date, entry.key))


def clear_entries(root: Path, older_than: float | None = None, kernel: str | None = None) -> list[Entry]:
    """Remove entries of all versions of tlaot from the disk, with what is known of single candidates and what dead
    processes have left; nothing else.

    Args:
        root: The cache's folder.
        older_than: Only entries stored longer ago than this many seconds.
        kernel: Only those of the kernel of this name.

    Returns:
        What was removed.

    Raises:
        OSError: The folder cannot be written.
    """
    now = time.time()
    removed = []
    for namespace in _namespaces(root):
        for entry in map(_describe, _entry_folders(namespace)):
            if (older_than is None or now - entry.date > older_than) and kernel in (None, entry.kernel):
                shutil.rmtree(_move_aside(entry.path, namespace), ignore_errors=True)
                removed.append(entry)
        for folder in _children(namespace / _CANDIDATES):
            date = folder.stat().st_mtime
            if (older_than is None or now - date > older_than) and kernel in (None, folder.name.rpartition("-")[0]):
                shutil.rmtree(_move_aside(folder, namespace), ignore_errors=True)
        _tidy(namespace, now)
    return removed


def _namespaces(root: Path) -> Iterator[Path]:
    return (path for path in _children(root) if _NAMESPACE.fullmatch(path.name))


def _entry_folders(namespace: Path) -> Iterator[Path]:
    for shelf in _children(namespace):
        yield from (path for path in _children(shelf) if _KEY.fullmatch(path.name) and path.name[:2] == shelf.name)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _describe(path: Path) -> Entry:
    size, date = 0, 0.0
    with contextlib.suppress(OSError):
        date = path.stat().st_mtime
        size = sum(file.stat().st_size for file in path.iterdir())
    try:
        kernel, variant = variant_loads((path / VARIANT_NAME).read_bytes(), str(path / VARIANT_NAME))
    except (PackageError, OSError) as error:
        return Entry(path.name, path, None, None, {}, None, size, date, str(error).partition("\n")[0])
    return Entry(path.name, path, kernel, variant.target, variant.shape, variant.latency.get("latency"), size, date)


def _move_aside(path: Path, namespace: Path) -> Path:
    """Take a folder out of sight at once, so that no reader sees a part of it while it is removed."""
    staging = namespace / _STAGING
    staging.mkdir(exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=staging))
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside / path.name)
    return aside


def _tidy(namespace: Path, now: float) -> None:
    """Remove what dead processes have left, and empty folders."""
    for path in _children(namespace / _STAGING):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path)
    sweep(namespace / _LOCKS)
    for path in (*_children(namespace), namespace):
        with contextlib.suppress(OSError):
            path.rmdir()


def _publish(staged: Path, path: Path) -> None:
    """Move a whole entry to its place; one that is there already, of another process, is kept."""
    try:
        os.rename(staged, path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


_warned: set[tuple[str, str]] = set()


def _warn_once(root: Path, what: str) -> None:
    if (str(root), what) in _warned:
        return
    _warned.add((str(root), what))
    _warn(f"the cache {root} {what}. TLAOT_CACHE_DIR names another folder")


def _warn(text: str) -> None:
    warnings.warn(f"tlaot: {text}", stacklevel=3)
