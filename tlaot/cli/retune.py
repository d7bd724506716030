"""``tlaot retune``: time the packaged variants on this machine, and remember which is the fastest."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LoadError, PackageError
from .filters import read_shape
from .parser import add_json, fails
from .spelling import show_table, spell_items

if TYPE_CHECKING:
    from ..runtime.dispatch import Place
    from ..runtime.load import Kernels
    from ..tune.retuning.retune import Contest, Options, Outcome, Skipped

__all__ = ["add"]

_CPU, _CUDA = 1, 2


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "retune",
        help="time the packaged variants on this machine, and have calls run the fastest",
        description="Time the variants that a package ships, on this machine and without a compiler, and write an overlay into the "
        "user's configuration folder: later calls on this device model run the variant that was the fastest. "
        "TLAOT_OVERLAY names another file, or turns overlays off.",
        epilog="examples:\n  tlaot retune my_package\n  tlaot retune my_package --kernel matmul --shape M=300 --device cuda:0",
    )
    parser.add_argument("package", metavar="PACKAGE", help="import name of the package")
    parser.add_argument("--kernel", metavar="NAME", help="only this kernel")
    parser.add_argument(
        "--shape",
        metavar="NAME=VALUE,...",
        type=read_shape,
        action="append",
        default=[],
        help="a new workload in place of the packaged ones: sizes of symbolic dimensions, scalars, arguments of the factory",
    )
    parser.add_argument(
        "--device", metavar="DEVICE", type=_device, help="cpu or cuda:N; default: cpu and cuda:0, as packaged"
    )
    parser.add_argument(
        "--inputs", metavar="MODULE:FUNCTION", help="makes the inputs of a workload; default: random ones"
    )
    parser.add_argument(
        "--path", metavar="DIR", type=Path, action="append", help="a folder with more kernels, as of tlaot.load"
    )
    parser.add_argument(
        "--seconds", metavar="S", type=_seconds, default=2.0, help="of measuring at most, a workload (2)"
    )
    parser.add_argument("--busy", action="store_true", help="use the times although others use the device")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="the overlay to write")
    add_json(parser, "what was found")
    fails(parser, "a variant that calls run by themselves cannot be run here")
    parser.set_defaults(run=_retune)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 86400:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return seconds


def _device(text: str) -> tuple[int, int]:
    kind, _, number = text.partition(":")
    if text == "cpu":
        return _CPU, 0
    if kind != "cuda" or not (number or "0").isdecimal():
        raise argparse.ArgumentTypeError(f"expected cpu or cuda:N, got {text!r}")
    return _CUDA, int(number or 0)


def _retune(options: argparse.Namespace) -> int:
    from ..runtime.load import Kernels
    from ..runtime.places import find_homes, overlay_path
    from ..tune.retuning.retune import Options

    asked = Options(options.kernel, tuple(options.shape), options.inputs, options.seconds, options.busy)
    path = options.output or overlay_path(options.package)
    if path is None and not options.dry_run:
        what = "there is no place for the overlay: TLAOT_OVERLAY is off, or the user has no home"
        raise PackageError("tlaot retune", what, "Name a file with -o, or print the times only: --dry-run.")
    homes = find_homes(options.package, options.path)
    kernels = Kernels(options.package, homes)
    outcomes: list[Outcome] = []
    skipped: list[Skipped] = []
    written = False
    for device in _devices(kernels, options.device):
        found, left = _run(kernels, device, asked)
        skipped += left
        outcomes += found
        usable = [outcome for outcome in found if outcome.usable]
        if usable and path is not None and not options.dry_run:
            _write(path, options.package, homes, usable)
            written = True
    print(json.dumps(_rows(outcomes, skipped), indent=1, sort_keys=True) if options.json else _table(outcomes, skipped))
    if written:
        _say(f"tlaot: written to {path}")
    return 1 if any(_failed(outcome) for outcome in outcomes) else 0


def _devices(kernels: Kernels, asked: tuple[int, int] | None) -> list[tuple[int, int]]:
    """Devices to time on; where the user names none, those of the packaged kernels that are here."""
    from ..runtime.device import cuda_device
    from ..tune.retuning.retune import devices_of

    devices = []
    for device in [asked] if asked else devices_of(kernels):
        needed = ("torch",) if device[0] == _CUDA else ("numpy", "torch")
        try:
            if device[0] == _CUDA:
                cuda_device(device[1])
            if not any(importlib.util.find_spec(name) for name in needed):
                raise LoadError(_spell_device(device), f"needs {' or '.join(needed)}", f"pip install {needed[0]}")
        except LoadError as error:
            if asked:
                raise
            _say(f"tlaot: left out: {error.where}: {error.what}")
            continue
        devices.append(device)
    return devices


def _run(kernels: Kernels, device: tuple[int, int], asked: Options) -> tuple[list[Outcome], list[Skipped]]:
    from ..tune.retuning.retune import Contest, Skipped, measuring_child, plan_contests, run_contest

    plans = plan_contests(kernels, device, asked)
    contests = [plan for plan in plans if isinstance(plan, Contest)]
    skipped = [plan for plan in plans if isinstance(plan, Skipped)]
    outcomes: list[Outcome] = []
    if contests:
        with tempfile.TemporaryDirectory(prefix="tlaot-") as folder:
            child = measuring_child(_spell_device(device), Path(folder, "log"))
            try:
                for number, contest in enumerate(contests, 1):
                    _say(f"tlaot: {number} of {len(contests)}: {_spell_call(contest)} on {_spell_device(device)}")
                    outcomes.append(run_contest(contest, child, asked, _say))
            finally:
                child.kill()
    return outcomes, skipped


def _write(path: Path, package: str, homes: Sequence[Any], outcomes: Sequence[Outcome]) -> None:
    from ..runtime.overlay import digest_homes, name_device
    from ..tune.retuning.overlay_file import write_overlay

    place: Place = outcomes[0].contest.place
    write_overlay(path, package, name_device(place), digest_homes(homes), outcomes, _say)


def _table(outcomes: Sequence[Outcome], skipped: Sequence[Skipped]) -> str:
    from ..tune.measuring.timing import Timing

    rows = []
    for outcome in outcomes:
        for index, ((variant, _), time) in enumerate(zip(outcome.contest.variants, outcome.times, strict=True)):
            words = ["dispatch's own"] if index == 0 else []
            words += ["taken"] if index == outcome.winner else []
            latency = f"{time.latency:.4g}" if isinstance(time, Timing) else "failed"
            workload = spell_items(variant.shape)
            workload += f" with {spell_items(variant.config)}" if variant.buckets else ""
            rows.append((_spell_call(outcome.contest), variant.target, workload, latency, ", ".join(words)))
    lines = show_table(("kernel", "target", "workload", "ms", ""), rows, ("ms",), {"failed": "bad"})
    lines += [f"{_spell_call(o.contest)}: {note}" for o in outcomes for note in o.notes]
    lines += [
        f"{_spell_call(o.contest)}: these times are not used; leave the device alone, or say --busy"
        for o in outcomes
        if not o.usable and not _failed(o)
    ]
    lines += [f"{s.kernel} ({spell_items(s.workload)}): not timed: {s.reason}" for s in skipped]
    return "\n".join(lines) or "no kernels for the devices here"


def _rows(outcomes: Sequence[Outcome], skipped: Sequence[Skipped]) -> list[dict[str, Any]]:
    timed = [
        {
            "kernel": outcome.contest.kernel,
            "workload": dict(outcome.contest.workload),
            "arguments": list(outcome.contest.arguments),
            "taken": {"target": outcome.variant.target, "shape": dict(outcome.variant.shape)},
            "usable": outcome.usable,
            "notes": list(outcome.notes),
            "variants": [
                {"target": variant.target, "shape": dict(variant.shape), **asdict(time)}
                for (variant, _), time in zip(outcome.contest.variants, outcome.times, strict=True)
            ],
        }
        for outcome in outcomes
    ]
    return [*timed, *({"kernel": s.kernel, "workload": dict(s.workload), "skipped": s.reason} for s in skipped)]


def _failed(outcome: Outcome) -> bool:
    """Whether the variant that calls run by themselves cannot be run here."""
    from ..tune.children.child import Failed

    return isinstance(outcome.times[0], Failed)


def _spell_call(contest: Contest) -> str:
    return f"{contest.kernel}({', '.join(contest.arguments)})"


def _spell_device(device: tuple[int, int]) -> str:
    return "cpu" if device[0] == _CPU else f"cuda:{device[1]}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
