"""Whether binaries load: in a fresh process, without the frontends, a device or a driver."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import LoadError
from ..packaged import Found
from .binary import MACHINES, Binary
from .finding import Finding

__all__ = ["check_opening"]

_CHILD = Path(__file__).with_name("opening_child.py")
_START, _EACH = 120.0, 2.0  # seconds for the process and for one file
_MOST_CRASHES = 3


def check_opening(found: Found, binaries: Mapping[str, Binary]) -> Iterator[Finding]:
    """Every binary loads, and its entry answers.

    Args:
        found: Where they are.
        binaries: Those to load, by name; those of another machine than this are passed over.
    """
    names = [name for name, binary in binaries.items() if MACHINES.get(binary.dynamic.machine) == platform.machine()]
    if not found.inside:
        yield from _open_all(names, [str(found.place.resolve() / name) for name in names])
        return
    with tempfile.TemporaryDirectory(prefix="tlaot-check-") as folder:
        paths = [Path(folder, str(i), "executable.so") for i in range(len(names))]
        for name, path in zip(names, paths, strict=True):
            path.parent.mkdir()
            path.write_bytes(found.read(name))
        yield from _open_all(names, [str(path) for path in paths])


def _open_all(names: Sequence[str], paths: Sequence[str]) -> Iterator[Finding]:
    start, crashes = 0, 0
    while start < len(paths):
        answers, ended = _run_child(paths[start:])
        for index, error in answers.items():
            if error:
                yield Finding("opens", names[start + index], f"cannot be loaded: {error}", "Build it again.")
        start += len(answers)
        if start < len(paths):
            crashes += 1
            more = f"; {len(paths) - start - 1} more were not tried" if crashes == _MOST_CRASHES else ""
            yield Finding("opens", names[start], f"{ended} the process that loads it{more}", "Build it again.")
            start = len(paths) if crashes == _MOST_CRASHES else start + 1


def _run_child(paths: Sequence[str]) -> tuple[dict[int, str], str]:
    """What happened to the first files, and how the process ended that got no further.

    Raises:
        LoadError: The process could not begin.
    """
    request = json.dumps({"path": [entry or os.getcwd() for entry in sys.path], "files": list(paths)})
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_CHILD)],
            input=request,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_START + _EACH * len(paths),
        )
        output, said, ended = done.stdout, done.stderr, _spell_status(done.returncode)
    except subprocess.TimeoutExpired as error:
        output, said, ended = _as_text(error.stdout), "", "hangs"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    if not lines:
        last = said.strip().splitlines()[-1:] or [ended]
        raise LoadError(
            "opens",
            f"no process could be started to load binaries ({last[0]})",
            "pip install apache-tvm-ffi, or --no-load.",
        )
    return {line["end"]: line.get("error", "") for line in lines if "end" in line}, ended


def _spell_status(status: int) -> str:
    return f"ends by signal {-status}" if status < 0 else f"ends with status {status}"


def _as_text(data: bytes | str | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""
