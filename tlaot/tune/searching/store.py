"""The tuning store: every binary and every measurement, kept as soon as it is made.

    <folder>/measurements.jsonl         one line a candidate, appended in one write
    <folder>/built/<xx>/<key>/          executable.so and sources of a candidate, moved here whole; built.json describes it

A tuning that is killed at any moment goes on from here and repeats nothing; one new config or shape costs one candidate. A
torn line, a damaged or half-removed binary counts as none. What cannot be written costs a warning line, never a tuning.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...atomic import dump_json
from ...errors import PackageError
from ...manifest import FileDigest, digest_of, param_from_json, param_to_json
from ..children.child import STOPPED, Failed
from ..compiling.compile import EXECUTABLE, Built
from ..compiling.toolchain import KILLED
from ..measuring.timing import Timing
from ..specs.plan import Candidate

__all__ = ["Keys", "Store", "is_passing"]

_MEASUREMENTS = "measurements.jsonl"
_BUILT = "built.json"
# Failures that say nothing of the candidate: the next tuning tries it again.
_PASSING_STAGES = ("start", "prepare")
_PASSING_REASONS = (STOPPED, "SIGKILL", "SIGTERM", "SIGINT", *KILLED, "out of memory", "No space left", "MemoryError")


@dataclass(frozen=True)
class Keys:
    """The identity of a candidate, as digests.

    Attributes:
        build: Of all that its binary depends on.
        measure: Of all that its check and its time depend on as well.
    """

    build: str
    measure: str


class Store:
    """The store of one build, or of one kernel of the autotuner's cache; safe to use from several threads and processes.

    Args:
        folder: Where it is kept; None keeps nothing.
        keys: Identity of a candidate.
        say: Takes a line for the person who waits, where the folder does not take what is made.
        fresh: Do not read what is there.
    """

    def __init__(
        self,
        folder: Path | None,
        keys: Callable[[Candidate], Keys],
        say: Callable[[str], None],
        fresh: bool = False,
    ) -> None:
        self._folder = folder
        self._keys = keys
        self._say = say
        self._fresh = fresh
        self._lock = threading.Lock()
        self._known = {} if folder is None or fresh else _read_measurements(folder / _MEASUREMENTS)
        self._made: set[str] = set()

    def measurement(self, candidate: Candidate) -> Timing | Failed | None:
        """What an earlier tuning found of a candidate; None where there is nothing."""
        if self._folder is None:
            return None
        with self._lock:
            return self._known.get(self._keys(candidate).measure)

    def built(self, candidate: Candidate) -> Built | None:
        """The binary that an earlier tuning made of a candidate; None where there is none, or not a whole one."""
        folder = self._built_folder(candidate)
        if folder is None or (self._fresh and folder.name not in self._made):
            return None
        return _read_built(folder)

    def keep_built(self, candidate: Candidate, built: Built) -> Built:
        """Move a candidate's files into the store; the result says where they are now."""
        folder = self._built_folder(candidate)
        if folder is None:
            return built
        body = {
            "config": dict(candidate.config),
            "digest": asdict(built.digest),
            "params": [param_to_json(param) for param in built.params],
            "out_idx": list(built.out_idx),
            "frontend": dict(built.frontend),
            "asked": dict(built.asked),
            "compiler": built.compiler,
            "code": dict(built.code),
            "shared_memory": built.shared_memory,
        }
        try:
            (built.folder / _BUILT).write_bytes(dump_json(body))
            folder.parent.mkdir(parents=True, exist_ok=True)
            _place(built.folder, folder, built.digest)
        except OSError as error:
            self._complain(error)
            return built
        with self._lock:
            self._made.add(folder.name)
        return replace(built, folder=folder)

    def keep_measurement(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        """Append what was found of a candidate; a failure that is no fault of its own is not kept."""
        if self._folder is None or (isinstance(outcome, Failed) and is_passing(outcome)):
            return
        key = self._keys(candidate).measure
        line: dict[str, Any] = {"key": key, "candidate": candidate.label}
        if isinstance(outcome, Failed):
            line["failed"] = {"stage": outcome.stage, "reason": outcome.reason}
        else:
            line["timing"] = asdict(outcome)
        with self._lock:
            self._known[key] = outcome
            try:
                _append(self._folder / _MEASUREMENTS, json.dumps(line).encode())
            except OSError as error:
                self._complain(error)

    def drop_sources(self, candidate: Candidate) -> None:
        """Remove what only a winner's folder needs: the sources and the cubin beside a binary."""
        folder = self._built_folder(candidate)
        if folder is None:
            return
        try:
            for path in folder.iterdir():
                if path.name not in (EXECUTABLE, _BUILT):
                    path.unlink()
        except OSError:
            pass  # another process has removed it, or the whole folder

    def _built_folder(self, candidate: Candidate) -> Path | None:
        if self._folder is None:
            return None
        key = self._keys(candidate).build
        return self._folder / "built" / key[:2] / key

    def _complain(self, error: OSError) -> None:
        self._say(f"tlaot: {self._folder} cannot be written ({error.strerror or error}); a killed tuning starts anew")
        self._folder = None


def _read_built(folder: Path) -> Built | None:
    try:
        body = json.loads((folder / _BUILT).read_bytes())
        built = Built(
            folder=folder,
            digest=FileDigest(**body["digest"]),
            params=tuple(param_from_json(param) for param in body["params"]),
            out_idx=tuple(body["out_idx"]),
            frontend=body["frontend"],
            asked=body["asked"],
            compiler=str(body.get("compiler", "")),  # others have none
            code=dict(body.get("code", {})),
            shared_memory=int(body.get("shared_memory", 0)),
        )
        whole = digest_of((folder / EXECUTABLE).read_bytes()) == built.digest
    except (OSError, ValueError, KeyError, TypeError, PackageError):
        return None
    return built if whole else None


def _place(source: Path, folder: Path, digest: FileDigest) -> None:
    """Rename a folder to its place, where another process may have put the same one."""
    try:
        os.rename(source, folder)
    except OSError as error:
        if error.errno == errno.EXDEV:
            staging = folder.with_name(f"{folder.name}.{os.getpid()}-{threading.get_ident()}")
            shutil.copytree(source, staging)
            _place(staging, folder, digest)
        elif error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            there = _read_built(folder)
            if there is None or there.digest != digest or not _has_sources(folder):
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(source, folder)
        else:
            raise


def _has_sources(folder: Path) -> bool:
    return any(path.name not in (EXECUTABLE, _BUILT) for path in folder.iterdir())


def is_passing(failed: Failed) -> bool:
    """Whether a failure says nothing of the candidate, and the next attempt may succeed."""
    return failed.stage in _PASSING_STAGES or any(word in failed.reason for word in _PASSING_REASONS)


def _append(path: Path, line: bytes) -> None:
    """Append a line; after a torn one of a process that died, on a line of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + line + b"\n"
        if os.write(handle, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(handle)


def _read_measurements(path: Path) -> dict[str, Timing | Failed]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return {}
    found: dict[str, Timing | Failed] = {}
    for line in lines:
        try:
            body: Mapping[str, Any] = json.loads(line)
            outcome = Failed(**body["failed"]) if "failed" in body else Timing(**body["timing"])
            found[str(body["key"])] = outcome
        except (ValueError, KeyError, TypeError):
            continue  # torn, or of another version
    return found
