"""Host time of a packaged kernel's call from torch, in microseconds: plain, as an operator, and as torch.library.custom_op.

The kernel is a hand-written C library (4 x 8 floats), so that the path of the call is all there is. Times are of this
thread's processor, each the least of many short rounds, taken in turns.

    python benchmarks/torch_operators.py [--rounds 200]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from fixtures_torch import write  # noqa: E402

import tlaot.torch  # noqa: E402

CALLS = 300
PACKAGE = "benchmark_operators"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), PACKAGE, "add", "flagged")
        start = time.perf_counter()
        tlaot.torch.register(PACKAGE, path=folder)
        registering = time.perf_counter() - start
        cases = list_cases(tlaot.load(PACKAGE, folder))
        for run in cases.values():
            run()
        best = time_in_turns(cases, rounds)
    plain = best["kernels.add(a, b)"]
    for name, value in best.items():
        print(f"{name:44} {value:6.2f} us  {value / plain:5.2f} of the plain call")
    print(f"registering 2 kernels: {registering * 1e3:.1f} ms")


def list_cases(kernels: Any) -> dict[str, Callable[[], Any]]:
    add, flagged, ops = kernels.add, kernels.flagged, getattr(torch.ops, PACKAGE)
    a, b, c = torch.ones(4, 8), torch.ones(8), torch.zeros(4, 8)
    default, out, named = ops.add.default, ops.add.out, ops.flagged.default

    @torch.library.custom_op("benchmark_custom::add", mutates_args=())
    def custom(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return add(x, y)  # type: ignore[no-any-return]

    packet = torch.ops.benchmark_custom.add.default
    return {
        "kernels.add(a, b)": lambda: add(a, b),
        "torch.ops.pkg.add(a, b)": lambda: ops.add(a, b),
        "torch.ops.pkg.add.default(a, b), bound": lambda: default(a, b),
        "custom_op around kernels.add": lambda: packet(a, b),
        "kernels.add(a, b, c)": lambda: add(a, b, c),
        "torch.ops.pkg.add(a, b, c)": lambda: ops.add(a, b, c),
        "torch.ops.pkg.add.out(a, b, c), bound": lambda: out(a, b, c),
        "kernels.flagged(a, causal=True)": lambda: flagged(a, causal=True),
        "torch.ops.pkg.flagged(a, causal=True), bound": lambda: named(a, causal=True),
        "torch.add(a, b)": lambda: torch.add(a, b),
        "torch.ops.aten.add.Tensor(a, b)": lambda: torch.ops.aten.add.Tensor(a, b),
    }


def time_in_turns(cases: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for name, run in cases.items():
            start = time.thread_time_ns()
            for _ in range(CALLS):
                run()
            best[name] = min(best[name], (time.thread_time_ns() - start) / CALLS / 1e3)
    return best


if __name__ == "__main__":
    main()
