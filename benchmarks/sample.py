"""The installed sample_pkg against its own record and its peers: each packaged kernel that runs here, on GPU and CPU.

For each: the time that the package's manifest records, the time now, and in the same turns the time of torch's operator (numpy's on
the CPU) and of a copy of as many bytes as the kernel reads and writes. All by the clock that a build measures with: on a GPU the
device's own, by CUDA graph replay with the L2 cache overwritten before each launch.

    python benchmarks/sample.py [--json FILE] [--rounds 15]

Exits with 1 where a result is wrong, with 2 where nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import tlaot
from sample_pkg import kernels, reference
from sample_pkg.__main__ import RIVALS, TOLERANCE, make_inputs, worst_error
from tlaot.manifest import Variant
from tlaot.spelling import spell_items
from tlaot.tune.measuring.timing import Clock, CudaClock, WallClock

REP = 100.0  # ms of samples in 20 visits


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the table there too")
    parser.add_argument("--rounds", type=int, default=15, help="times that each is visited, in turns")
    options = parser.parse_args()
    clocks: dict[bool, Clock] = {}
    rows, skipped = [], []
    for name in kernels():
        for variant in kernels()[name].variants:
            on_cuda = variant.target.startswith("cuda")
            reason = why_not(on_cuda) or why_open(variant)
            if reason is None:
                clock = clocks.setdefault(on_cuda, CudaClock("cudagraph") if on_cuda else WallClock())
                reason = take(name, variant, clock, options.rounds, rows)
            if reason is not None:
                skipped.append((name, variant.target, reason))
    show(rows)
    for name, target, reason in sorted(set(skipped)):
        print(f"not run: {name} {target}: {reason}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if not rows:
        return 2
    return 0 if all(row["correct"] for row in rows) else 1


def why_not(on_cuda: bool) -> str | None:
    """Why kernels for a kind of device cannot be run here; None where they can."""
    if not on_cuda:
        return None
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "there is no CUDA device"


def why_open(variant: Variant) -> str | None:
    """Symbolic sizes have a benchmark of their own."""
    sizes = {size for param in variant.params for size in param.shape or () if isinstance(size, str)}
    return f"its sizes {', '.join(sorted(sizes))} are open" if sizes else None


def take(name: str, variant: Variant, clock: Clock, rounds: int, rows: list[dict[str, Any]]) -> str | None:
    """Append a variant's row; or say why there is none."""
    kernel, args = kernels()[name], make_inputs(variant)
    try:
        chosen = kernel.resolve(*args)
    except tlaot.DispatchError as error:
        return error.what.partition("\n")[0]
    if chosen != variant:
        return f"{chosen.target} is taken here"
    on_cuda = variant.target.startswith("cuda")
    error = worst_error(kernel(*args), getattr(reference, name)(*args))
    rival, moved = RIVALS["torch" if on_cuda else "numpy"][name], bytes_of(variant)
    kernel_ms, rival_ms, copy_ms = time_in_turns(
        clock, [lambda: kernel(*args), lambda: rival(*args), make_copy(moved, on_cuda)], rounds
    )
    recorded = variant.latency.get("latency")
    rows.append(
        {
            "kernel": name,
            "target": variant.target,
            "shape": dict(variant.shape),
            "recorded_ms": recorded,
            "now_ms": kernel_ms,
            "rival_ms": rival_ms,
            "copy_ms": copy_ms,
            "now_over_recorded": kernel_ms / recorded if recorded else None,
            "rival_over_now": rival_ms / kernel_ms,
            "copy_over_now": copy_ms / kernel_ms,
            "correct": error <= TOLERANCE[variant.params[variant.out_idx[0]].dtype],
        }
    )
    return None


def bytes_of(variant: Variant) -> int:
    """Bytes that a kernel reads and writes at least: each parameter once."""
    sizes = {"float16": 2, "bfloat16": 2, "float32": 4}
    return sum(prod(map(int, param.shape or ())) * sizes[param.dtype] for param in variant.params)


def make_copy(moved: int, on_cuda: bool) -> Callable[[], Any]:
    """A copy that reads and writes so many bytes in all."""
    if on_cuda:
        import torch

        source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return lambda: target.copy_(source)
    old = np.ones(moved // 2, dtype=np.uint8)
    new = np.empty_like(old)
    return lambda: np.copyto(new, old)


def time_in_turns(clock: Clock, calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Median over rounds of each call's time in ms, a new order each round."""
    for call in calls:
        call()
    visits = [clock.prepare(call, REP)[0] for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    shuffled = random.Random(0)
    for turn in range(rounds + 1):
        for index in shuffled.sample(range(len(calls)), len(calls)):
            samples = visits[index]()
            time.sleep(clock.rest(samples))
            if turn:  # the first warms up
                times[index].append(statistics.median(samples))
    return [statistics.median(taken) for taken in times]


def show(rows: list[dict[str, Any]]) -> None:
    """The table, in Markdown."""
    print("| kernel | target | shape | recorded ms | now ms | now / recorded | rival ms | rival / now | copy / now |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        ratio = "-" if row["now_over_recorded"] is None else f"{row['now_over_recorded']:.3f}"
        recorded = "-" if row["recorded_ms"] is None else f"{row['recorded_ms']:.4g}"
        wrong = "" if row["correct"] else " WRONG"
        print(
            f"| {row['kernel']}{wrong} | {row['target']} | {spell_items(row['shape'])} | {recorded} | {row['now_ms']:.4g} | {ratio} "
            f"| {row['rival_ms']:.4g} | {row['rival_over_now']:.2f} | {row['copy_over_now']:.2f} |"
        )


if __name__ == "__main__":
    sys.exit(main())
