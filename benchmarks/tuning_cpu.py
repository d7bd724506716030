"""How long tuning takes and how good its winners are, on the CPU: a plain loop over Apache TVM against tlaot, in one run.

Two kernels of the sample, float32: matmul 512^3 with 32 configs, softmax 1024 x 4096 with 13. The loop compiles one config after
the other with tvm.compile, checks it and times it, and keeps the fastest. Each system runs in a process of its own, which imports
everything and tunes one tiny kernel before its clock starts; caches are empty folders for each tuning. Both get the same
reference, tolerance, warmup = 25 ms and rep = 100 ms.

Regret is a winner's time over the best config's. For it all configs are compiled once by tlaot and timed again, in turns, a new
order each round; a time is the median over rounds. At last matmul is tuned with a process spinning on every processor.

    PYTHONPATH=. python benchmarks/tuning_cpu.py --json tuning_cpu.json
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuning_shared import (
    Bench,
    Config,
    TaskFailed,
    brief,
    busy_cpus,
    judge_load,
    listening,
    print_systems,
    serve_task,
    summarize,
    text_of,
    time_interleaved,
    times_of,
)

TARGET = "x86-64-v3"
WARMUP, REP = 25, 100
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
_SAMPLE_MS = 4.0

SHAPES: dict[str, Config] = {"matmul": {"M": 512, "N": 512, "K": 512}, "softmax": {"M": 1024, "N": 4096}}
SYSTEMS = {"loop": "tune_with_loop", "tlaot": "tune_with_tlaot"}


def configs_of(kernel: str) -> list[Config]:
    """The configs of a kernel, of matmul two register tiles x four blocks of C x four depths."""
    if kernel == "softmax":
        from sample_pkg.cpu import softmax_configs

        return softmax_configs(**SHAPES[kernel])
    M, N = SHAPES[kernel]["M"], SHAPES[kernel]["N"]
    tiles, blocks = ((6, 16), (4, 24)), ((M // 2, N), (M, N // 2), (M, 128), (96, 256))
    return [
        {"bm": -(-bm // mr) * mr, "bn": -(-bn // nr) * nr, "bk": bk, "mr": mr, "nr": nr, "unroll": 4, "pack": True}
        for (mr, nr), (bm, bn), bk in itertools.product(tiles, blocks, (64, 128, 256, 512))
    ]


def _factory(kernel: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    from sample_pkg import cpu, reference

    return getattr(cpu, kernel), getattr(reference, kernel)


def _inputs(kernel: str, shape: Config) -> tuple[list[Any], Any]:
    """Inputs and an output, the same for everybody."""
    import numpy

    random = numpy.random.default_rng(0)
    sizes = [(shape["M"], shape["K"]), (shape["K"], shape["N"])] if kernel == "matmul" else [(shape["M"], shape["N"])]
    inputs = [random.uniform(-1, 1, size).astype("float32") for size in sizes]
    return inputs, numpy.empty((shape["M"], shape["N"]), "float32")


def tune_with_loop(kernels: Sequence[str]) -> list[dict[str, Any]]:
    """Tune each kernel with a plain loop: compile, check, time, next."""
    _loop("softmax", {"M": 4, "N": 64}, [{"rows": 1, "lanes": 8}])
    return [_loop(kernel, SHAPES[kernel], configs_of(kernel)) for kernel in kernels]


def _loop(kernel: str, shape: Config, configs: Sequence[Config]) -> dict[str, Any]:
    import numpy
    import tvm

    factory, reference = _factory(kernel)
    start = time.perf_counter()
    inputs, output = _inputs(kernel, shape)
    expected = reference(*inputs)
    given = [tvm.runtime.tensor(value) for value in (*inputs, output)]
    target = tvm.target.Target({"kind": "llvm", "mcpu": TARGET})
    best: tuple[float, Config] | None = None
    for config in configs:
        function = tvm.compile(factory(**shape, **config), target=target)["main"]
        function(*given)
        numpy.testing.assert_allclose(given[-1].numpy(), expected, **TOLERANCE)
        _seconds_of(function, given, WARMUP / 1e3)
        latency = statistics.median(_seconds_of(function, given, REP / 1e3)) * 1e3
        if best is None or latency < best[0]:
            best = latency, config
    assert best is not None
    return {"wall": time.perf_counter() - start, "config": best[1], "latency": best[0], "said": []}


def _seconds_of(function: Callable[..., Any], given: Sequence[Any], duration: float) -> list[float]:
    """Calls, one by one, for so many seconds, and how long each took."""
    samples: list[float] = []
    end = time.perf_counter() + duration
    while not samples or time.perf_counter() < end:
        start = time.perf_counter()
        function(*given)
        samples.append(time.perf_counter() - start)
    return samples


def tune_with_tlaot(kernels: Sequence[str]) -> list[dict[str, Any]]:
    """Tune each kernel with tlaot's AutoTuner, cold."""
    _tlaot("softmax", {"M": 4, "N": 64}, [{"rows": 1, "lanes": 8}])
    return [_tlaot(kernel, SHAPES[kernel], configs_of(kernel)) for kernel in kernels]


def _tlaot(kernel: str, shape: Config, configs: Sequence[Config]) -> dict[str, Any]:
    import tlaot

    factory, reference = _factory(kernel)
    tuner = tlaot.AutoTuner.from_kernel(functools.partial(factory, **shape), list(configs), frontend="tvm")
    tuner.set_compile_args(out_idx=[-1], target=f"llvm:{TARGET}")
    tuner.set_profile_args(warmup=WARMUP, rep=REP, ref_prog=reference, **TOLERANCE)
    with _cold_cache(), listening() as said:
        start = time.perf_counter()
        result = tuner.run()
        wall = time.perf_counter() - start
    return {"wall": wall, "config": result.config, "latency": result.latency, "said": said}


@contextmanager
def _cold_cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="tuning-", ignore_cleanup_errors=True) as folder:
        os.environ["TLAOT_CACHE_DIR"] = folder
        yield


def retime(kernels: Sequence[str], rounds: int) -> dict[str, Any]:
    """Compile every config once and time those of a kernel in turns; a sample is the mean over some ms of calls."""
    import tlaot

    found = {}
    for name in kernels:
        shape, configs = SHAPES[name], configs_of(name)
        compile_args = tlaot.CompileArgs(out_idx=[-1], target=f"llvm:{TARGET}")
        with _cold_cache():
            keyed = [{**shape, **config} for config in configs]
            kernels_made = tlaot.par_compile(_factory(name)[0], keyed, compile_args=compile_args, frontend="tvm")
        inputs, output = _inputs(name, shape)
        timers = {
            text_of(config): _timer(kernel, [*inputs, output])
            for config, kernel in zip(configs, kernels_made, strict=True)
        }
        found[name] = summarize(time_interleaved(timers, rounds, seed=0))
    return found


def _timer(kernel: Callable[..., Any], given: Sequence[Any]) -> Callable[[], float]:
    kernel(*given)
    start = time.perf_counter()
    kernel(*given)
    batch = max(1, int(_SAMPLE_MS / ((time.perf_counter() - start) * 1e3)))

    def sample() -> float:
        start = time.perf_counter()
        for _ in range(batch):
            kernel(*given)
        return (time.perf_counter() - start) * 1e3 / batch

    return sample


def device() -> dict[str, Any]:
    """What this machine is, for the head of the results."""
    from importlib.metadata import version

    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    versions = {name: version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy")}
    return {"cpu": names[0] if names else "?", "cpus": len(os.sched_getaffinity(0)), "versions": versions}


def compare_systems(bench: Bench, runs: int, loop_runs: int) -> list[dict[str, Any]]:
    """Tune both kernels with both systems, run by run."""
    made: list[dict[str, Any]] = []
    for number in range(runs):
        for system, task in SYSTEMS.items():
            if system == "loop" and number >= loop_runs:
                continue
            try:
                found = bench.run(task, kernels=list(SHAPES))
            except TaskFailed as error:
                bench.note(f"run {number + 1}: {error}")
                continue
            for kernel, one in zip(SHAPES, found, strict=True):
                bench.note(f"run {number + 1}: {system}, {kernel}: {one['wall']:.1f} s, {brief(one['config'])}")
                for line in one["said"]:
                    bench.note(f"    it says: {line}")
                made.append({"kernel": kernel, "run": number + 1, "system": system, **one})
            bench.keep("systems", made)
    return made


def tune_under_load(bench: Bench) -> dict[str, Any]:
    """tlaot's tuning of matmul while every processor is taken."""
    try:
        with busy_cpus():
            (found,) = bench.run("tune_with_tlaot", kernels=["matmul"])
    except TaskFailed as error:
        return {"every processor": str(error)}
    bench.note(f"load on every processor: matmul: {found['wall']:.1f} s, {brief(found['config'])}")
    return {"every processor": found}


TASKS: dict[str, Callable[..., Any]] = {
    "tune_with_loop": tune_with_loop,
    "tune_with_tlaot": tune_with_tlaot,
    "retime": retime,
    "device": device,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of tlaot (5)")
    parser.add_argument("--loop-runs", type=int, default=2, help="runs of the loop beside them (2)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of re-timing (15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE, as they come")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep what each process printed and autotuner.log")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes of a task end with this one
    with tempfile.TemporaryDirectory(prefix="tuning-", ignore_cleanup_errors=True) as scratch:
        bench = Bench(Path(__file__), options.json, (options.logs or Path(scratch)).resolve())
        machine = bench.run("device")
        bench.keep("device", machine)
        bench.say(f"{machine['cpu']}, {machine['cpus']} processors, {machine['versions']}")
        bench.say(f"load average when it began: {os.getloadavg()[0]:.1f}")
        made = compare_systems(bench, options.runs, options.loop_runs)
        loaded = tune_under_load(bench)
        bench.keep("load", loaded)
        summary = bench.run("retime", kernels=list(SHAPES), rounds=options.rounds)
        bench.keep("times", summary)
        for kernel, by_config in summary.items():
            times = times_of(by_config)
            mine = [run for run in made if run["kernel"] == kernel]
            shape = "x".join(map(str, SHAPES[kernel].values()))
            print_systems(
                bench, f"{kernel} {shape}, {len(times.medians)} configs, llvm:{TARGET}, cold", times, mine, "loop"
            )
            quiet = [run["config"] for run in mine if run["system"] == "tlaot"]
            if kernel == "matmul" and quiet:
                judge_load(bench, "matmul under load", times, quiet[0], loaded, 0.03)
        bench.keep("systems", made)
        bench.note("done")


if __name__ == "__main__" and not serve_task(TASKS):
    main()
