"""The file in which ``tlaot retune`` keeps what it found; the runtime's ``overlay`` module reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from ...atomic import dump_json, write_atomically
from ...errors import PackageError
from ...manifest import Variant
from ...runtime.overlay import VERSION, workload_key
from ..children.child import Failed
from ..measuring.timing import Timing
from .retune import Outcome

__all__ = ["write_overlay"]


def write_overlay(
    path: Path, package: str, device: str, kernels: str, outcomes: Sequence[Outcome], say: Callable[[str], None]
) -> None:
    """Put outcomes into an overlay; what it has for other devices and workloads stays.

    Args:
        path: The file; it appears whole, in place of what was there.
        package: Import name of the package.
        device: Model of the device.
        kernels: Digest of the package's manifests.
        outcomes: What was found.
        say: Told where the old file cannot be read.

    Raises:
        PackageError: The file cannot be written.
    """
    devices = _old_devices(path, package, say)
    section = devices.get(device)
    kept = section["choices"] if isinstance(section, dict) and section.get("kernels") == kernels else []
    new = [_choice(outcome) for outcome in outcomes]
    choices = {_identity(choice): choice for choice in [*kept, *new]}
    devices[device] = {"kernels": kernels, "tlaot": __version__, "choices": [choices[key] for key in sorted(choices)]}
    body = {"version": VERSION, "package": package, "devices": devices}
    target = Path(os.path.realpath(path))  # a link stays one
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, dump_json(body))
    except OSError as error:
        raise PackageError(
            str(path), f"cannot be written ({error.strerror})", "Name another file: TLAOT_OVERLAY or -o."
        ) from None


def _old_devices(path: Path, package: str, say: Callable[[str], None]) -> dict[str, Any]:
    try:
        body = json.loads(path.read_bytes())
        if body["version"] != VERSION or body["package"] != package or not isinstance(body["devices"], dict):
            raise ValueError(f"it is not an overlay of {package} and version {VERSION}")
        for section in body["devices"].values():
            for choice in section["choices"]:
                _identity(choice)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        say(f"tlaot: {path}: what was there is replaced: {error}")
        return {}
    return dict(body["devices"])


def _choice(outcome: Outcome) -> dict[str, Any]:
    contest = outcome.contest
    return {
        "kernel": contest.kernel,
        "workload": dict(contest.workload),
        "arguments": list(contest.arguments),
        **_told_variant(outcome.variant),
        "times": [
            {**_told_variant(variant), **_told_time(time)}
            for (variant, _), time in zip(contest.variants, outcome.times, strict=True)
        ],
    }


def _told_variant(variant: Variant) -> dict[str, Any]:
    """A variant by what tells it from the others, see :func:`~tlaot.runtime.overlay.identity_of`."""
    config = {"config": dict(variant.config)} if variant.buckets else {}
    return {"target": variant.target, "shape": dict(variant.shape), **config}


def _told_time(time: Timing | Failed) -> dict[str, Any]:
    if isinstance(time, Failed):
        return {"failed": f"{time.stage}: {time.reason}"}
    return {"latency": time.latency, "spread": time.spread}


def _identity(choice: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(choice["kernel"]), workload_key(choice["workload"]), json.dumps(choice["arguments"])
