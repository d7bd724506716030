"""Locks for tests: evidence is data, so it can be made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tlaot.tune.locks.lock import Entry, Lock, Tried
from tlaot.tune.measuring.timing import Timing

TOOLS = {"tlaot": "0.1.0", "tilelang": "0.1.15", "cc": "gcc 12.2.0", "cuda": "13.0", "nvrtc": "13.0"}
H200 = {"name": "NVIDIA H200", "sm_count": 132, "capability": "9.0", "cuda": "13.0", "driver": "580.65.06"}
CONFIGS = ({"block": 64}, {"block": 128}, {"block": 256})


def timing(latency: float, spread: float = 0.01) -> Timing:
    return Timing(latency, spread, 100, "cudagraph", latency * 0.99)


def entry(n: int = 64, kernel: str = "add", target: str = "cuda:sm_90a", **fields: Any) -> Entry:
    """An entry of a workload ``N=n``, of which the second of three configs won and the third failed."""
    made: dict[str, Any] = {
        "kernel": kernel,
        "target": target,
        "shape": {"N": n},
        "spec": {"factory": "pkg.kernels:add", "frontend": "tilelang", "reference": "pkg.kernels:reference"},
        "sources": {"pkg.kernels": "0123456789ab"},
        "tools": TOOLS,
        "ships": CONFIGS[1],
        "winner": CONFIGS[1],
        "code": {"cubin": "c" * 64, "source": "d" * 64},
        "device": H200,
        "reference": timing(0.5),
        "candidates": tried(),
    }
    return Entry(**{**made, **fields})


def tried(
    times: Sequence[float | None] = (0.25, 0.125, None), configs: Sequence[Mapping[str, Any]] = CONFIGS
) -> tuple[Tried, ...]:
    """What became of configs that have these times, or failed."""
    return tuple(
        Tried(config, failed=("check", "1 of 64 elements differ from the reference"))
        if time is None
        else Tried(config, timing=timing(time), binary=f"{index:016x}")
        for index, (config, time) in enumerate(zip(configs, times, strict=True))
    )


def lock(*entries: Entry) -> Lock:
    return Lock().with_entries(entries)
