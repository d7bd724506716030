"""Records: what tuning a workload found, kept so that the next build of the same thing repeats none of it.

A record is valid as long as its key is: the spec's entry, the shape, the configs, the author's sources, the versions of
what compiles and the device. From one set of records every build packages the same winners.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .child import Failed
from .files import dump_json, write_atomically
from .measure import Decision
from .plan import Candidate, Workload, canonical
from .schedule import Outcome
from .search import Skipped
from .store import Keys

__all__ = [
    "candidate_keys",
    "digest_sources",
    "doubts_of",
    "latency_of",
    "load_record",
    "make_record",
    "record_key",
    "save_record",
]

_RECORD_VERSION = 2

# Of a kernel's entry, what its binary depends on; and what says where it stands, or how long to look for a winner.
_BUILD_FIELDS = ("name", "frontend", "factory", "out_idx", "pass_configs", "compile_flags")
_PLACE_FIELDS = ("where", "targets", "shapes", "configs")
_SEARCH_FIELDS = ("search", "budget", "profile")
# What ships of a tuning, which is no part of it.
_SHIP_FIELDS = ("ptx", "max_slowdown")


def record_key(workload: Workload, sources: str, tools: Mapping[str, Any], device: str) -> str:
    """Digest of everything that a tuning of the workload depends on.

    Args:
        workload: The workload.
        sources: Digest of the author's sources, see :func:`digest_sources`.
        tools: Versions of the compilers and frontends.
        device: What the candidates are measured on.
    """
    others = (*_PLACE_FIELDS, *_SHIP_FIELDS)
    kernel = {name: value for name, value in asdict(workload.kernel).items() if name not in others}
    return _sha256(
        canonical(
            {
                "record": _RECORD_VERSION,
                "kernel": kernel,
                "target": str(workload.target),
                "shape": dict(workload.shape),
                "configs": [dict(config) for config in workload.configs],
                "sources": sources,
                "tools": dict(tools),
                "device": device,
            }
        ).encode()
    )


def candidate_keys(candidate: Candidate, sources: str, tools: Mapping[str, Any], device: str) -> Keys:
    """Digests of all that a candidate's binary, and its measurement, depend on; arguments as for :func:`record_key`."""
    kernel = asdict(candidate.workload.kernel)
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
    others = (*_BUILD_FIELDS, *_PLACE_FIELDS, *_SEARCH_FIELDS, *_SHIP_FIELDS)
    rest = {name: value for name, value in kernel.items() if name not in others}
    # How long a candidate is timed does not make its time another one; by which clock does.
    clock = candidate.workload.kernel.profile.backend
    return Keys(build, _sha256(canonical({"build": build, "kernel": rest, "clock": clock, "device": device}).encode()))


def make_record(
    workload: Workload,
    key: str,
    device: str,
    outcomes: Sequence[Outcome],
    decision: Decision,
) -> dict[str, Any]:
    """The evidence of a tuning as JSON: the winner, what became of each candidate, the reference's time.

    ``trusted`` is false where the device was not quiet while it was decided; ``notes`` say why.
    """
    reference = decision.reference
    return {
        "key": key,
        "kernel": workload.kernel.name,
        "target": str(workload.target),
        "shape": dict(workload.shape),
        "device": device,
        "checked": workload.kernel.check,
        "winner": decision.winner_index,
        "trusted": decision.trusted,
        "notes": list(decision.notes),
        "reference": None if reference is None else asdict(reference),
        "candidates": [_candidate(config, outcome) for config, outcome in zip(workload.configs, outcomes, strict=True)],
    }


def latency_of(record: Mapping[str, Any]) -> dict[str, float | None]:
    """What of a record ships: times of the winner, the default and the reference in ms."""
    winner = record["candidates"][record["winner"]]["timing"]
    default = record["candidates"][0].get("timing")
    reference = record["reference"]
    return {
        "latency": winner["latency"],
        "spread": winner["spread"],
        "default_latency": None if default is None else default["latency"],
        "ref_latency": None if reference is None else reference["latency"],
    }


def doubts_of(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Why the times of a record are not to be trusted; nothing where they are."""
    if record.get("trusted", True):
        return ()
    return tuple(record.get("notes", ())) or ("measured while the device was not quiet",)


def save_record(folder: Path, workload: Workload, record: Mapping[str, Any]) -> None:
    path = _path(folder, workload)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, dump_json(record))


def load_record(folder: Path, workload: Workload, key: str) -> dict[str, Any] | None:
    """The record of a workload, if there is a valid one; a damaged one counts as none."""
    try:
        record: dict[str, Any] = json.loads(_path(folder, workload).read_bytes())
        valid = (
            record["key"] == key
            and 0 <= record["winner"] < len(workload.configs)
            and len(record["candidates"]) == len(workload.configs)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if valid else None


def digest_sources(root: Path, modules: Sequence[str]) -> str:
    """Digest of the Python files of the top-level packages that some modules are in.

    A whole package is taken, since a factory may call any helper in it; packages from elsewhere are in
    the versions that a record's key holds, or not tracked.
    """
    digest = hashlib.sha256()
    for name in sorted({module.partition(".")[0] for module in modules}):
        package, single = root / name, root / f"{name}.py"
        files = sorted(package.rglob("*.py")) if package.is_dir() else [single] if single.is_file() else []
        for path in files:
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _candidate(config: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Failed):
        return {"config": dict(config), "failed": {"stage": outcome.stage, "reason": outcome.reason}}
    if isinstance(outcome, Skipped):
        return {"config": dict(config), "skipped": outcome.reason}
    return {"config": dict(config), "timing": asdict(outcome.timing)}


def _path(folder: Path, workload: Workload) -> Path:
    return folder / f"{workload.path}.json"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
