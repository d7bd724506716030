"""The tasks of benchmarks/tuning.py, each run in a process of its own, which imports and warms up before its clock starts."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tuning_shared import Config, listening, serve_task, summarize, text_of, time_interleaved

# The same for both systems. TileLang counts calls, tlaot ms of kernel time.
WARMUP, REP = 25, 100
CHECK: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-2, "max_mismatched_ratio": 0.01, "skip_check": False}

_TIMED_MS, _MOST_CALLS = 0.5, 10
_PLACES = 3


def tune_with_tilelang(shapes: Sequence[Config], configs: Sequence[Config], pipelined: bool) -> list[dict[str, Any]]:
    """Tune each shape with TileLang's AutoTuner, cold; wall time, winner and the time that it found."""
    import tilelang.autotuner

    options = {"use_pipeline": True, "early_stop": True} if pipelined else {}
    return _tune(tilelang.autotuner.AutoTuner, shapes, configs, options)


def tune_with_tlaot(shapes: Sequence[Config], configs: Sequence[Config]) -> list[dict[str, Any]]:
    """Tune each shape with tlaot's, cold; wall time, winner, the time that it found, and what it says of its measurement."""
    import tlaot

    return _tune(tlaot.AutoTuner, shapes, configs, {})


def _tune(
    tuner: Any, shapes: Sequence[Config], configs: Sequence[Config], options: dict[str, Any]
) -> list[dict[str, Any]]:
    import tuning_gemm

    with _cold_caches():
        _tuner(tuner, tuning_gemm.double, [{"threads": 128}], tuning_gemm.double_reference).run(warmup=WARMUP, rep=REP)
    found = []
    for shape in shapes:
        made = _tuner(tuner, tuning_gemm.matmul_of(**shape), configs, tuning_gemm.matmul_reference)
        with _cold_caches(), listening() as said:
            start = time.perf_counter()
            result = made.run(warmup=WARMUP, rep=REP, **options)
            wall = time.perf_counter() - start
        found.append({"wall": wall, "config": result.config, "latency": result.latency, "said": said})
        print(shape, wall, result.config, result.latency, flush=True)
    return found


def _tuner(tuner: Any, factory: Callable[..., Any], configs: Sequence[Config], reference: Callable[..., Any]) -> Any:
    made = tuner.from_kernel(factory, list(configs)).set_compile_args(out_idx=[-1], target="auto")
    return made.set_profile_args(warmup=WARMUP, rep=REP, ref_prog=reference, **CHECK)


@contextmanager
def _cold_caches() -> Iterator[None]:
    """Both systems' caches in folders that nobody has used."""
    with tempfile.TemporaryDirectory(prefix="tuning-", ignore_cleanup_errors=True) as folder:
        os.environ["TILELANG_CACHE_DIR"] = f"{folder}/tilelang"
        os.environ["TLAOT_CACHE_DIR"] = f"{folder}/tlaot"
        yield


def build(shapes: Sequence[Config], configs: Sequence[Config], search: str, target: str) -> dict[str, Any]:
    """Tune all shapes together, as ``pip wheel`` does for a project that declares them, after a build of one tiny shape."""
    from tlaot.manifest import read_manifest
    from tlaot.tune.pipeline import build_package

    project = Path.cwd() / "project"
    project.mkdir()
    output = project / "out" / "tuned" / "_tlaot"
    settings = SimpleNamespace(tune="on", targets=None, jobs=None, keep=False, lock="ignore")

    def run(shapes: Sequence[Config], configs: Sequence[Config]) -> tuple[float, list[str]]:
        (project / "tltune.toml").write_text(_spec(shapes, configs, search, target))
        lines: list[str] = []
        start = time.perf_counter()
        build_package(project / "tltune.toml", Path(__file__).parent, output, settings, lines.append)
        return time.perf_counter() - start, lines

    with _cold_caches():
        run([{"M": 128, "N": 128, "K": 128}], configs[:1])
        wall, lines = run(shapes, configs)
    manifest = read_manifest(output / "manifest.json")
    variants = [variant for kernel in manifest.kernels.values() for variant in kernel.variants]
    winners = {text_of(v.shape): {key: v.config[key] for key in configs[0]} for v in variants}
    return {"wall": wall, "winners": winners, "log": lines}


def _spec(shapes: Sequence[Config], configs: Sequence[Config], search: str, target: str) -> str:
    def table(items: Config) -> str:
        return "{ " + ", ".join(f"{key} = {value}" for key, value in items.items()) + " }"

    lines = [
        '[tlaot]\npackage = "tuned"',
        f'targets = ["{target}"]',
        '[[kernel]]\nname = "matmul"\nfrontend = "tilelang"\nfactory = "tuning_gemm:matmul"',
        f"shapes = [{', '.join(map(table, shapes))}]",
        f"configs = [{', '.join(map(table, configs))}]",
        'out-idx = [-1]\nreference = "tuning_gemm:matmul_reference"\nrtol = 1e-2\natol = 1e-2',
        f"profile = {{ warmup = {WARMUP}, rep = {REP} }}",
        f'search = "{search}"' if search else "",
    ]
    return "\n".join(lines) + "\n"


def retime(shapes: Sequence[Config], configs: Sequence[Config], rounds: int) -> list[dict[str, Any]]:
    """Compile every config of every shape, once each, and time those of a shape in turns, by CUDA graph replay.

    Each launch has the L2 cache overwritten before it and a pair of events around it. A round replays every config's
    graph once, in a new order; its sample is the median over the graph's launches. Rounds go through three places of the
    tensors in memory, which alone changes times by a per cent.
    """
    import torch
    import tuning_gemm

    import tlaot

    flush = torch.empty(flush_bytes(torch) // 4, dtype=torch.int32, device="cuda")
    found = []
    start = time.perf_counter()
    with _cold_caches():
        keyed = [{**shape, **config} for shape in shapes for config in configs]
        kernels = tlaot.par_compile(
            tuning_gemm.matmul, keyed, ignore_error=True, compile_args=tlaot.CompileArgs(out_idx=[-1])
        )
    print(f"compiled {len(kernels)} in {time.perf_counter() - start:.1f} s", flush=True)
    for number, shape in enumerate(shapes):
        mine = kernels[number * len(configs) : (number + 1) * len(configs)]
        start = time.perf_counter()
        timers = _graph_timers(torch, shape, configs, mine, flush)
        summary = summarize(time_interleaved(timers, rounds, seed=number))
        found.append({"shape": dict(shape), "times": summary, "seconds": time.perf_counter() - start})
        del timers
        torch.cuda.empty_cache()
    return found


def _graph_timers(
    torch: Any, shape: Config, configs: Sequence[Config], kernels: Sequence[Any], flush: Any
) -> dict[str, Callable[[], float]]:
    M, N, K = shape["M"], shape["N"], shape["K"]
    torch.manual_seed(0)
    places = []
    for _ in range(_PLACES):
        a = torch.empty(M, K, dtype=torch.float16, device="cuda").uniform_(-1, 1)
        b = torch.empty(K, N, dtype=torch.float16, device="cuda").uniform_(-1, 1)
        places.append((a, b, torch.empty(M, N, dtype=torch.float16, device="cuda")))
    timers = {}
    for config, kernel in zip(configs, kernels, strict=True):
        if kernel is not None:
            for place in places:
                kernel(*place)
            graphs = [graph_timer(torch, lambda k=kernel, p=place: k(*p), flush) for place in places]
            turns = itertools.cycle(graphs)
            timers[text_of(config)] = lambda turns=turns: next(turns)()
    return timers


def graph_timer(torch: Any, call: Callable[[], None], flush: Any) -> Callable[[], float]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    count = int(min(_MOST_CALLS, max(2, _TIMED_MS / max(start.elapsed_time(end), 1e-3))))
    # One more than is read: the first follows a gap in which the device idled.
    pairs = [[torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)] for _ in range(count + 1)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for before, after in pairs:
            flush.zero_()
            before.record()
            call()
            after.record()

    def replay() -> float:
        graph.replay()
        torch.cuda.synchronize()
        return statistics.median(before.elapsed_time(after) for before, after in pairs[1:])

    return replay


def flush_bytes(torch: Any) -> int:
    return max(2 * int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)), 64 << 20)


def device() -> dict[str, Any]:
    """What this machine is, for the head of the results."""
    from importlib.metadata import version

    import torch

    names = ("tilelang", "torch", "apache-tvm-ffi")
    major, minor = torch.cuda.get_device_capability(0)
    return {
        "gpu": torch.cuda.get_device_name(0),
        "target": f"cuda:sm_{major}{minor}{'a' if major >= 9 else ''}",
        "cpus": len(os.sched_getaffinity(0)),
        "versions": {name: version(name) for name in names},
    }


def load_gpu() -> None:
    """Use the GPU until the parent ends: matmuls, one after another. Says so by a file ``ready``."""
    import torch

    parent = os.getppid()
    a = torch.randn(4096, 4096, dtype=torch.float16, device="cuda")
    while os.getppid() == parent:
        for _ in range(50):
            a @ a
        torch.cuda.synchronize()
        Path("ready").touch()


TASKS: dict[str, Callable[..., Any]] = {
    "tune_with_tilelang": tune_with_tilelang,
    "tune_with_tlaot": tune_with_tlaot,
    "build": build,
    "retime": retime,
    "device": device,
}

if __name__ == "__main__":
    if sys.argv[1:] == ["load_gpu"]:
        load_gpu()
    else:
        serve_task(TASKS)
