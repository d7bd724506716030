"""How good the ranges of sizes of a dynamic kernel are: at sizes drawn at random, what dispatch takes against the best of all configs.

A float16 GEMM in TileLang with N = K = 4096 and M from 1 to 16384 (``sample_pkg.cuda``), tuned at seven sizes of M as ``pip wheel``
tunes it; or with ``--cpu`` the row-wise norm of ``sample_pkg.cpu`` through Apache TVM. Half of the sizes are drawn evenly, half by
their logarithms, with a fixed seed. At each of them all configs are timed in turns, in rounds of a new order: by CUDA graph replay with the
L2 cache overwritten before each launch and over three places of the tensors in memory, or by the wall clock. Those within 1.3 times
the best of a first look take part in the rounds.

    PYTHONPATH=. python benchmarks/dynamic.py --json dynamic.json
    PYTHONPATH=. python benchmarks/dynamic.py --cpu
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tuning_shared import ROOT, Bench, brief, serve_task, summarize, text_of, time_interleaved

# Configs that take more than this many times the best's time at a first look are not timed again.
_FAR = 1.3

CUDA: dict[str, Any] = {
    "kernel": "matmul",
    "largest": 16384,
    "spec": """
[tlaot]
package = "tuned"
targets = ["{target}"]
[[kernel]]
name = "matmul"
frontend = "tilelang"
factory = "sample_pkg.cuda:matmul"
shapes = [{{ N = 4096, K = 4096 }}]
dynamic = {{ M = [1, 16, 64, 256, 1024, 4096, 16384] }}
configs = "sample_pkg.serving:matmul_configs"
reference = "sample_pkg.reference:matmul"
out-idx = [-1]
""",
}
CPU: dict[str, Any] = {
    "kernel": "rms_norm",
    "largest": 4096,
    "spec": """
[tlaot]
package = "tuned"
targets = ["{target}"]
[[kernel]]
name = "rms_norm"
frontend = "tvm"
factory = "sample_pkg.cpu:rms_norm"
shapes = [{{ N = 1024 }}]
dynamic = {{ M = [1, 16, 256, 4096] }}
probes = 6
space = {{ rows = [1, 16, 128], lanes = [8, 32] }}
reference = "sample_pkg.reference:rms_norm"
out-idx = [-1]
""",
}


def draw_sizes(count: int, largest: int, seed: int) -> list[int]:
    """Sizes from 1 to the largest: every other one evenly, the others by their logarithms; ascending."""
    draw = random.Random(seed)
    even = [draw.randint(1, largest) for _ in range(count - count // 2)]
    octaves = [round(math.exp(draw.uniform(0, math.log(largest)))) for _ in range(count // 2)]
    return sorted([*even, *octaves])


def tune(project: str, spec: str) -> dict[str, Any]:
    """Build the package; what it said, how long it took, and what it ships."""
    from tlaot.manifest import read_manifest
    from tlaot.tune.pipeline import build_package

    folder, lines = Path(project), list[str]()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tltune.toml").write_text(spec)
    output = folder / "out" / "_tlaot"
    settings = SimpleNamespace(tune="on", targets=None, jobs=None, keep=False, lock="update")
    start = time.perf_counter()
    build_package(folder / "tltune.toml", ROOT, output, settings, lines.append)
    wall = time.perf_counter() - start
    (kernel,) = read_manifest(output / "manifest.json").kernels.values()
    buckets = [(variant.config, bucket) for variant in kernel.variants for bucket in variant.buckets]
    (entry,) = json.loads((folder / "tltune.lock").read_text())["entries"]
    return {
        "wall": wall,
        "log": lines,
        "variants": len(kernel.variants),
        "measured": len(entry["sizes"]),
        "buckets": [
            {
                "sizes": dict(bucket.sizes),
                "config": dict(config),
                "ms": bucket.ms,
                "regret": bucket.regret,
                "bound": bucket.bound,
            }
            for config, bucket in sorted(
                buckets, key=lambda one: str([low for low, _ in one[1].sizes.values()]).zfill(12)
            )
        ],
    }


def retime(project: str, kernel: str, sizes: Sequence[int], rounds: int, cpu: bool) -> list[dict[str, Any]]:
    """At each size the time of each config that is near the best, and the config that dispatch takes."""
    from tlaot.manifest import FileDigest, read_manifest
    from tlaot.runtime.binary import load_function
    from tlaot.runtime.load import open_manifest

    output = Path(project) / "out" / "_tlaot"
    packaged = open_manifest(read_manifest(output / "manifest.json"), output)[kernel]
    configs, functions = {}, {}
    for path in sorted(Path(project).glob("build/tlaot/store/built/*/*/built.json")):
        body = json.loads(path.read_text())
        name = text_of(body["config"])
        configs[name] = body["config"]
        functions[name] = load_function(path.with_name("executable.so"), FileDigest(**body["digest"]))
    stage = _Wall() if cpu else _Graphs()
    found = []
    for number, size in enumerate(sizes):
        places = stage.places(size)
        chosen = text_of(packaged.resolve(*places[0][:-1]).config)
        first = {name: stage.timer(function, places[:1], few=True)() for name, function in functions.items()}
        best = min(first.values())
        near = [name for name, ms in first.items() if ms <= _FAR * best or name == chosen]
        timers = {name: stage.timer(functions[name], places) for name in near}
        summary = summarize(time_interleaved(timers, rounds, seed=number))
        winner = min(summary, key=lambda name: summary[name]["median"])
        found.append(
            {
                "size": size,
                "chosen": configs[chosen],
                "best": configs[winner],
                "ms": summary[chosen]["median"],
                "best_ms": summary[winner]["median"],
                "ratio": summary[chosen]["median"] / summary[winner]["median"],
                "error": statistics.median(one["error"] for one in summary.values()),
                "timed": len(near),
                "configs": len(functions),
            }
        )
        print(found[-1], flush=True)
    return found


class _Graphs:
    """Times on the GPU; a GEMM's tensors."""

    def __init__(self) -> None:
        import torch
        import tuning_tasks

        self._torch, self._tasks = torch, tuning_tasks
        self._flush = torch.empty(tuning_tasks.flush_bytes(torch) // 4, dtype=torch.int32, device="cuda")

    def places(self, size: int) -> list[tuple[Any, ...]]:
        torch = self._torch
        torch.cuda.empty_cache()
        torch.manual_seed(size)

        def make(*shape: int) -> Any:
            return torch.empty(*shape, dtype=torch.float16, device="cuda").uniform_(-1, 1)

        return [(make(size, 4096), make(4096, 4096), make(size, 4096)) for _ in range(3)]

    def timer(
        self, function: Callable[..., Any], places: Sequence[tuple[Any, ...]], few: bool = False
    ) -> Callable[[], float]:
        graphs = []
        for place in places:
            function(*place)
            graphs.append(self._tasks.graph_timer(self._torch, lambda p=place: function(*p), self._flush))
        turns = itertools.cycle(graphs)
        return lambda: next(turns)()


class _Wall:
    """Times on the CPU; a norm's tensors."""

    def __init__(self) -> None:
        import numpy

        self._numpy = numpy

    def places(self, size: int) -> list[tuple[Any, ...]]:
        draw = self._numpy.random.default_rng(size)
        x, w = draw.random((size, 1024), dtype="float32"), draw.random(1024, dtype="float32")
        return [(x, w, self._numpy.empty_like(x))]

    def timer(
        self, function: Callable[..., Any], places: Sequence[tuple[Any, ...]], few: bool = False
    ) -> Callable[[], float]:
        place = places[0]
        function(*place)

        def once(batch: int) -> float:
            start = time.perf_counter()
            for _ in range(batch):
                function(*place)
            return (time.perf_counter() - start) * 1e3 / batch

        batch = max(1, int(0.3 / max(min(once(1) for _ in range(3)), 1e-4)))
        count = 3 if few else 5
        # Of several: what else runs here takes a processor for a while.
        return lambda: sorted(once(batch) for _ in range(count))[1]


def device() -> dict[str, Any]:
    """What this machine's GPU is."""
    import tuning_tasks

    return tuning_tasks.device()


TASKS: dict[str, Callable[..., Any]] = {"tune": tune, "retime": retime, "device": device}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="the row-wise norm through Apache TVM on the CPU")
    parser.add_argument("--sizes", type=int, default=40, help="sizes that are drawn (40)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of timing (9)")
    parser.add_argument("--seed", type=int, default=20261201)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE, as they come")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the project and what each process printed")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="dynamic-", ignore_cleanup_errors=True) as scratch:
        folder = (options.logs or Path(scratch)).resolve()
        bench = Bench(Path(__file__), options.json, folder)
        case, target = (CPU, "llvm:x86-64-v3") if options.cpu else (CUDA, "")
        if not options.cpu:
            machine = bench.run("device")
            bench.keep("device", machine)
            bench.say(f"{machine['gpu']}, {machine['target']}, {machine['cpus']} processors, {machine['versions']}")
            target = machine["target"]
        project = str(folder / "project")
        bench.note("tuning")
        tuned = bench.run("tune", project=project, spec=case["spec"].format(target=target))
        bench.keep("tuned", tuned)
        for line in tuned["log"]:
            bench.note(f"  {line}")
        _show_buckets(bench, tuned)
        sizes = draw_sizes(options.sizes, case["largest"], options.seed)
        bench.note(f"timing all configs at {len(sizes)} sizes")
        arguments = {"kernel": case["kernel"], "sizes": sizes, "rounds": options.rounds, "cpu": options.cpu}
        found = bench.run("retime", project=project, **arguments)
        bench.keep("sizes", found)
        _show(bench, found, tuned)


def _show_buckets(bench: Bench, tuned: Mapping[str, Any]) -> None:
    rows = []
    for bucket in tuned["buckets"]:
        sizes = ", ".join(f"{name} {low} to {high}" for name, (low, high) in bucket["sizes"].items())
        rows.append([sizes, brief(bucket["config"]), *bucket["ms"], bucket["regret"], bucket["bound"]])
    head = ["sizes", "config", "ms at first", "ms at last", "regret where measured", "bound"]
    bench.table(f"{tuned['variants']} variants, tuned in {tuned['wall']:.1f} s", head, rows)


def _show(bench: Bench, found: Sequence[Mapping[str, Any]], tuned: Mapping[str, Any]) -> None:
    rows = [
        [one["size"], brief(one["chosen"]), one["ms"] * 1e3, brief(one["best"]), one["best_ms"] * 1e3, one["ratio"]]
        for one in found
    ]
    head = ["M", "dispatch takes", "us", "best", "us", "ratio"]
    error = statistics.median(one["error"] for one in found)
    bench.table(f"{len(found)} sizes x {found[0]['configs']} configs, re-timed to +-{error:.2%}", head, rows)
    ratios = sorted(one["ratio"] for one in found)
    bench.say(
        f"time over the best of all configs: median {statistics.median(ratios):.4f}, worst {ratios[-1]:.4f}; "
        f"{sum(ratio > 1.05 for ratio in ratios)} of {len(ratios)} above 1.05"
    )
    bench.say(
        f"{tuned['variants']} variants for {len(tuned['buckets'])} ranges, from {tuned['measured']} measured sizes; "
        f"tuned in {tuned['wall']:.1f} s"
    )
    bench.note("done")


if __name__ == "__main__" and not serve_task(TASKS):
    main()
