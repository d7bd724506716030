"""What a call through tlaot costs on top of the FFI function itself, in nanoseconds.

The kernel does next to nothing (32 elements), so that what is timed is the way to it: dispatch by shape, dtype and
device, and the allocation of the output. Prints a line a way; the last column is the cost on top of the bare FFI call
(for an allocating call: on top of the framework's own ``empty`` and the bare call).

    python benchmarks/call_overhead.py
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fixtures_runtime import compile_kernel, tensor, variant, write_package  # noqa: E402

import tlaot  # noqa: E402

ROUNDS = 60
CALLS = 500


def best_of(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Nanoseconds a call of each way: the least of many short rounds, taken in turn so that all see the same machine."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                way()
            best[name] = min(best[name], (time.perf_counter_ns() - start) / CALLS)
    return best


def measure(framework: str, make: Callable[[int], Any], empty: Callable[[], Any], kernels: Any) -> None:
    add = kernels.add
    a, b, c = make(8), make(8), make(8)
    wide = make(9), make(9), make(9)
    bare = add.module_of(add.variants[0])["tlaot_call"]
    ways = {
        "bare FFI call": lambda: bare(a, b, c),
        "output given": lambda: add(a, b, c),
        "two bare FFI calls": lambda: (bare(a, b, c), bare(*wide)),
        "two shapes in turn": lambda: (add(a, b, c), add(*wide)),
        "bare FFI call and empty": lambda: bare(a, b, empty()),
        "output allocated": lambda: add(a, b),
        "the framework's own a + b": lambda: a + b,
    }
    best = best_of(ways)
    base = {
        "output given": "bare FFI call",
        "two shapes in turn": "two bare FFI calls",
        "output allocated": "bare FFI call and empty",
    }
    for name, ns in best.items():
        extra = f"{ns - best[base[name]]:8.0f}" if name in base else ""
        print(f"{framework:8}{name:28}{ns:8.0f}{extra}")


def main() -> None:
    params = [tensor("A", 4, 8), tensor("B", 4, 8), tensor("C", 4, 8, written=True)]
    other = [tensor("A", 4, 9), tensor("B", 4, 9), tensor("C", 4, 9, written=True)]
    binary = compile_kernel(3, 0b100)
    with tempfile.TemporaryDirectory() as folder:
        built = [(variant("add", params, [2], {"N": 8}), binary), (variant("add", other, [2], {"N": 9}), binary)]
        write_package(Path(folder), "overhead_pkg", {"add": built})
        sys.path.insert(0, folder)
        kernels = tlaot.load("overhead_pkg")
        print(f"{'':8}{'':28}{'ns':>8}{'on top':>8}")
        if importlib.util.find_spec("numpy"):
            import numpy

            measure("numpy", lambda n: numpy.ones((4, n), "f4"), lambda: numpy.empty((4, 8), "f4"), kernels)
        if importlib.util.find_spec("torch"):
            import torch

            measure("torch", lambda n: torch.ones(4, n), lambda: torch.empty(4, 8), kernels)


if __name__ == "__main__":
    main()
