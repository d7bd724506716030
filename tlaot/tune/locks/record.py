"""Records: what tuning a workload found, kept so that the next build of the same thing repeats none of it.

A record is an entry of the lock that stays on this machine. It is valid as long as its key is: the spec's entry, the shape, the
configs, all of the author's sources, the versions of what compiles and the device. From one set of records every build
packages the same winners, and writes the same lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...atomic import dump_json, write_atomically
from ...manifest import FOLDER
from ..children.child import Failed
from ..measuring.measure import Decision, Measured
from ..searching.schedule import Outcome
from ..searching.search import Skipped
from ..searching.store import Keys
from ..specs.plan import Candidate, Workload, canonical
from ..specs.spec import KernelSpec
from .lock import Entry, Tried, digest_entry
from .lock_entry import entry_from_json, entry_to_json, round_timing

__all__ = [
    "Circumstances",
    "candidate_keys",
    "digest_sources",
    "load_record",
    "make_entry",
    "record_key",
    "save_record",
]

_RECORD_VERSION = 3

# Hex digits of a binary's digest, which tells the binaries of a kernel apart; and of a reason, what is read.
_BINARY_DIGITS = 16
# Bytes above which a file's size and time stand for its content.
_LARGE = 8 << 20
_LONGEST_REASON = 300

# Of a kernel's entry, what its binary depends on; and what says where it stands, or how long to look for a winner.
_BUILD_FIELDS = ("name", "frontend", "factory", "out_idx", "pass_configs", "compile_flags")
_PLACE_FIELDS = ("where", "targets", "shapes", "configs")
_SEARCH_FIELDS = ("search", "budget", "profile")
# What ships of a tuning and what is told of it, which are no part of it.
_SHIP_FIELDS = ("ptx", "max_slowdown", "on_misaligned", "flops", "measure")
# Which sizes of a dynamic kernel are measured, which is no part of what is found at one of them.
_SIZE_FIELDS = ("dynamic", "outside", "probes")


@dataclass(frozen=True)
class Circumstances:
    """What evidence depends on; the first four as of :class:`~tlaot.tune.locks.lock.Entry`.

    Attributes:
        spec, sources, tools, device: See there.
        folders: Folders of this machine, which no reason should name.
    """

    spec: Mapping[str, Any]
    sources: Mapping[str, str]
    tools: Mapping[str, str]
    device: Mapping[str, Any]
    folders: tuple[Path, ...] = ()


def record_key(workload: Workload, sources: str, tools: Mapping[str, Any], device: str) -> str:
    """Digest of everything that a tuning of the workload depends on.

    Args:
        workload: The workload.
        sources: Digest of the author's sources, see :func:`digest_sources`.
        tools: Versions of the compilers and frontends.
        device: What the candidates are measured on.
    """
    others = (*_PLACE_FIELDS, *_SHIP_FIELDS, *(_SIZE_FIELDS if workload.sizes else ()))
    kernel = {name: value for name, value in _fields_of(workload.kernel).items() if name not in others}
    return _sha256(
        canonical(
            {
                "record": _RECORD_VERSION,
                "kernel": kernel,
                "target": str(workload.target),
                "shape": dict(workload.shape),
                "sizes": dict(workload.sizes),
                "configs": [dict(config) for config in workload.configs],
                "sources": sources,
                "tools": dict(tools),
                "device": device,
            }
        ).encode()
    )


def candidate_keys(candidate: Candidate, sources: str, tools: Mapping[str, Any], device: str) -> Keys:
    """Digests of all that a candidate's binary, and its measurement, depend on; arguments as for :func:`record_key`."""
    kernel = _fields_of(candidate.workload.kernel)
    build = _sha256(
        canonical(
            {
                "record": _RECORD_VERSION,
                "kernel": {name: kernel[name] for name in _BUILD_FIELDS},
                "target": str(candidate.workload.target),
                "shape": dict(candidate.workload.shape),
                "config": dict(candidate.config),
                "sources": sources,
                "tools": dict(tools),
            }
        ).encode()
    )
    others = (*_BUILD_FIELDS, *_PLACE_FIELDS, *_SEARCH_FIELDS, *_SHIP_FIELDS, *_SIZE_FIELDS)
    rest = {name: value for name, value in kernel.items() if name not in others}
    # How long a candidate is timed does not make its time another one; by which clock does.
    clock = candidate.workload.kernel.profile.backend
    measured = {
        "build": build,
        "kernel": rest,
        "clock": clock,
        "device": device,
        "sizes": dict(candidate.workload.sizes),
    }
    return Keys(build, _sha256(canonical(measured).encode()))


# What was made of each entry, with the entry, whose identity stands for it: each candidate is asked for its keys several times.
_fields: dict[int, tuple[KernelSpec, dict[str, Any]]] = {}
_MOST_FIELDS = 1024


def _fields_of(kernel: KernelSpec) -> dict[str, Any]:
    """An entry as plain data, but for its shapes and configs, of which there may be thousands, and which are in no key."""
    known = _fields.get(id(kernel))
    if known is not None:
        return known[1]
    if len(_fields) >= _MOST_FIELDS:
        _fields.clear()
    made = asdict(replace(kernel, shapes=(), configs=(), targets=()))
    _fields[id(kernel)] = kernel, made
    return made


def make_entry(
    workload: Workload,
    outcomes: Sequence[Outcome],
    decision: Decision,
    circumstances: Circumstances,
) -> Entry:
    """The evidence of a tuning: the winner, what became of each candidate, the reference's time.

    Args:
        workload: The workload.
        outcomes: One a config, in order.
        decision: The decision, of a winner.
        circumstances: What it depends on.
    """
    assert decision.winner_index is not None
    config, winner = workload.configs[decision.winner_index], outcomes[decision.winner_index]
    return Entry(
        kernel=workload.kernel.name,
        target=str(workload.target),
        shape=dict(workload.values),
        spec=circumstances.spec,
        sources=circumstances.sources,
        tools=circumstances.tools,
        ships=dict(config),
        code=dict(winner.built.code) if isinstance(winner, Measured) else {},
        winner=dict(config),
        device=circumstances.device,
        checked=workload.kernel.check,
        trusted=decision.trusted,
        notes=tuple(decision.notes),
        reference=None if decision.reference is None else round_timing(decision.reference),
        candidates=tuple(
            _tried(config, outcome, circumstances.folders)
            for config, outcome in zip(workload.configs, outcomes, strict=True)
        ),
    )


def save_record(folder: Path, workload: Workload, key: str, entry: Entry) -> None:
    path = _path(folder, workload)
    path.parent.mkdir(parents=True, exist_ok=True)
    body = entry_to_json(entry)
    write_atomically(path, dump_json({**body, "key": key, "digest": digest_entry(body)}))


def load_record(folder: Path, workload: Workload, key: str) -> Entry | None:
    """The record of a workload, if there is a valid one; a damaged one counts as none."""
    try:
        body: dict[str, Any] = json.loads(_path(folder, workload).read_bytes())
        if body.pop("key") != key:
            return None
        entry = entry_from_json(body, "record")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    known = all(entry.tried(config) is not None for config in workload.configs)
    return entry if known and len(entry.candidates) == len(workload.configs) else None


def digest_sources(root: Path, modules: Sequence[str]) -> str:
    """Digest of the files of the top-level packages that some modules are in.

    A whole package is taken, since a factory may call any helper in it and read any file; packages from elsewhere are in
    the versions that a record's key holds, or not tracked.
    """
    digest = hashlib.sha256()
    for name in sorted({module.partition(".")[0] for module in modules}):
        package, single = root / name, root / f"{name}.py"
        files = sorted(filter(_is_source, package.rglob("*"))) if package.is_dir() else [single]
        for path in files:
            if path.is_file():
                digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
                digest.update(_digest_file(path))
    return digest.hexdigest()


def _is_source(path: Path) -> bool:
    """Whether a file of a package may bear on its kernels: not what Python, compilers and builds leave there."""
    made = path.suffix in (".pyc", ".o", ".so") or {"__pycache__", FOLDER} & set(path.parts)
    return not made and not path.name.startswith(".")


def _digest_file(path: Path) -> bytes:
    stat = path.stat()
    if stat.st_size > _LARGE:
        return f"{stat.st_size} {stat.st_mtime_ns}".encode()
    return hashlib.sha256(path.read_bytes()).digest()


def _tried(config: Mapping[str, Any], outcome: Outcome, folders: Sequence[Path]) -> Tried:
    if isinstance(outcome, Failed):
        return Tried(dict(config), failed=(outcome.stage, _shorten(outcome.reason, folders)))
    if isinstance(outcome, Skipped):
        return Tried(dict(config), skipped=_shorten(outcome.reason, folders))
    return Tried(dict(config), timing=round_timing(outcome.timing), binary=outcome.built.digest.sha256[:_BINARY_DIGITS])


def _shorten(reason: str, folders: Sequence[Path]) -> str:
    """A reason as one line that says nothing of this machine's folders."""
    text = " ".join(reason.split())
    for folder in folders:
        text = text.replace(f"{folder}/", "")
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."


def _path(folder: Path, workload: Workload) -> Path:
    return folder / f"{workload.path}.json"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
