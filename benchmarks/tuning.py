"""How long tuning takes and how good its winners are, on a GPU: TileLang's AutoTuner against tlaot, in one run.

The space is the article's float16 GEMM: block_M, block_N in (64, 128), block_K in (32, 64), num_stages in (2, 3), threads in
(128, 256), 32 configs.

    1024, 4096  this space at 1024^3 and 4096^3: TileLang's AutoTuner plain (AutoTuner.from_kernel, which compiles in parallel;
                its decorator compiles one by one), the same with use_pipeline and early_stop, and tlaot
    shapes      16 shapes of this GEMM: one build of all together against 16 single tunings in one warm process
    table       only the times of all configs on the 16 shapes (not by default: shapes makes them)
    load        tlaot at 1024^3 in quiet, with a process spinning on every processor, and with another process on the GPU

Each system runs in a process of its own, which imports everything and tunes one tiny kernel before its clock starts; its caches
are empty folders for each tuning. Both get the same reference, tolerances, warmup = 25 and rep = 100 (TileLang counts calls,
tlaot ms of kernel time), and check every candidate's outputs (skip_check = False).

Regret is a winner's time over the best config's. For it all configs are compiled once and timed again in quiet, in turns, by
CUDA graph replay with the L2 cache overwritten before each launch, a new order each round; a time is the median over rounds.

    PYTHONPATH=. python benchmarks/tuning.py --json tuning.json
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuning_shared import (
    Bench,
    Config,
    TaskFailed,
    Times,
    brief,
    busy_cpus,
    distrusts,
    judge_load,
    microseconds,
    print_systems,
    spinning,
    text_of,
    times_of,
)

TASKS = Path(__file__).with_name("tuning_tasks.py")

_KEYS = ("block_M", "block_N", "block_K", "num_stages", "threads")
CONFIGS = [
    dict(zip(_KEYS, values, strict=True))
    for values in itertools.product((64, 128), (64, 128), (32, 64), (2, 3), (128, 256))
]
SQUARES = {size: {"M": size, "N": size, "K": size} for size in (1024, 4096)}
# The two squares, and tokens x layers of models of 1 to 8 billion parameters.
SHAPES = [
    *SQUARES.values(),
    *({"M": M, "N": N, "K": K} for N, K, tokens in (
        (2048, 2048, (512, 4096)),
        (4096, 4096, (256, 1024, 8192)),
        (6144, 4096, (256, 2048, 8192)),
        (8192, 2048, (1024,)),
        (28672, 4096, (256, 1024)),
        (4096, 14336, (512, 2048, 8192)),
    ) for M in tokens),
]  # fmt: skip

SYSTEMS = {
    "TileLang": ("tune_with_tilelang", {"pipelined": False}),
    "TileLang, pipelined, early stop": ("tune_with_tilelang", {"pipelined": True}),
    "tlaot": ("tune_with_tlaot", {}),
}


class Truth:
    """The re-timed times of every config of a shape, made when they are first asked for."""

    def __init__(self, bench: Bench, rounds: int, table: Path | None) -> None:
        self._bench, self._rounds, self._table_file = bench, rounds, table
        self._found: dict[str, dict[str, Any]] = {}

    def of(self, shapes: Sequence[Config]) -> list[Times]:
        """The times of each shape by config; none where they cannot be had."""
        missing = [shape for shape in shapes if text_of(shape) not in self._found]
        if missing:
            self._bench.note(f"timing {len(missing)} x {len(CONFIGS)} configs in turns, {self._rounds} rounds")
            try:
                made = self._bench.run("retime", shapes=missing, configs=CONFIGS, rounds=self._rounds)
            except TaskFailed as error:
                self._bench.note(str(error))
                return [Times() for _ in shapes]
            self._found.update((text_of(one["shape"]), one) for one in made)
            self._bench.keep("times", list(self._found.values()))
            if self._table_file is not None:
                Bench(TASKS, self._table_file, Path()).keep("times", list(self._found.values()))
        return [times_of(self._found[text_of(shape)]["times"]) for shape in shapes]


def compare_systems(bench: Bench, truth: Truth, sizes: Sequence[int], runs: int, tilelang_runs: int) -> None:
    """Wall time, winner and regret of each system at each size, run by run."""
    shapes = [SQUARES[size] for size in sizes]
    runs_made: list[dict[str, Any]] = []
    for number in range(runs):
        for system, (task, options) in SYSTEMS.items():
            if system != "tlaot" and number >= tilelang_runs:
                continue
            bench.note(f"run {number + 1}: {system}")
            try:
                found = bench.run(task, shapes=shapes, configs=CONFIGS, **options)
            except TaskFailed as error:
                bench.note(str(error))
                continue
            for size, one in zip(sizes, found, strict=True):
                bench.note(f"  {size}^3: {one['wall']:.1f} s, {brief(one['config'])}, {one['latency']:.4g} ms")
                for line in one["said"]:
                    bench.note(f"    it says: {line}")
                runs_made.append({"size": size, "run": number + 1, "system": system, **one})
            bench.keep("systems", runs_made)
    for size, times in zip(sizes, truth.of(shapes), strict=True):
        title = f"{size}^3, {len(CONFIGS)} configs, cold"
        print_systems(bench, title, times, [run for run in runs_made if run["size"] == size], "TileLang")
    bench.keep("systems", runs_made)


def compare_many_shapes(bench: Bench, truth: Truth, search: str, target: str) -> None:
    """One tuning of 16 shapes together against 16 single ones."""
    together, single = {}, []
    bench.note(f"one build of {len(SHAPES)} shapes, search = {search or 'default'}")
    try:
        together = bench.run("build", shapes=SHAPES, configs=CONFIGS, search=search, target=target)
        bench.note(f"  {together['wall']:.1f} s")
        for line in filter(lambda line: distrusts([line]), together["log"]):
            bench.note(f"    it says: {line}")
        bench.keep("build", together)
    except TaskFailed as error:
        bench.note(str(error))
    bench.note(f"{len(SHAPES)} single tunings in one process")
    try:
        single = bench.run("tune_with_tlaot", shapes=SHAPES, configs=CONFIGS)
        bench.note(f"  {sum(one['wall'] for one in single):.1f} s")
        bench.keep("single", single)
    except TaskFailed as error:
        bench.note(str(error))
    all_times = truth.of(SHAPES)
    rows: list[list[Any]] = []
    for position, (shape, times) in enumerate(zip(SHAPES, all_times, strict=True)):
        winner = together.get("winners", {}).get(text_of(shape))
        alone = single[position] if single else {}
        rows.append(
            ["x".join(map(str, shape.values())), microseconds(times.best), "-" if winner is None else brief(winner),
             times.regret(winner), brief(alone.get("config", {})), times.regret(alone.get("config")), alone.get("wall")]
        )  # fmt: skip
    head = ["M x N x K", "best us", "winner together", "regret", "winner alone", "regret", "wall alone s"]
    noisiest = max(all_times, key=lambda times: times.error)
    bench.table(f"{len(SHAPES)} shapes x {len(CONFIGS)} configs, {noisiest.precision} or better", head, rows)
    for name, column in (("together", 3), ("alone", 5)):
        known = [row[column] for row in rows if row[column] is not None]
        if known:
            over = sum(value > 1.02 for value in known)
            bench.say(f"worst regret {name}: {max(known):.4f}; above 1.02 on {over} of {len(known)} shapes")
    if together and single:
        total = sum(one["wall"] for one in single)
        bench.say(f"together {together['wall']:.1f} s, alone {total:.1f} s: ratio {together['wall'] / total:.3f}")


def tune_under_load(bench: Bench, truth: Truth) -> None:
    """tlaot at 1024^3 while others use the processors, then the GPU."""
    shape = SQUARES[1024]
    quiet: Config | None = None
    runs: dict[str, Any] = {}
    for load in ("none", "every processor", "the GPU"):
        bench.note(f"load: {load}")
        try:
            if load == "every processor":
                with busy_cpus():
                    (found,) = bench.run("tune_with_tlaot", shapes=[shape], configs=CONFIGS)
            elif load == "the GPU":
                with (
                    tempfile.TemporaryDirectory() as folder,
                    spinning([[sys.executable, str(TASKS), "load_gpu"]], cwd=folder),
                ):
                    _wait_for(Path(folder, "ready"))
                    (found,) = bench.run("tune_with_tlaot", shapes=[shape], configs=CONFIGS)
            else:
                (found,) = bench.run("tune_with_tlaot", shapes=[shape], configs=CONFIGS)
                quiet = found["config"]
            bench.note(f"  {found['wall']:.1f} s, {brief(found['config'])}")
            runs[load] = found
        except TaskFailed as error:
            bench.note(str(error))
            runs[load] = str(error)
    bench.keep("load", runs)
    if quiet is not None:
        judge_load(bench, "1024^3 under load", truth.of([shape])[0], quiet, runs, 0.01)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > deadline:
            raise TaskFailed("the process that uses the GPU did not start within 60 s")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=["1024", "4096", "shapes", "load", "table"], metavar="PART",
        help="of 1024, 4096, shapes, load, table; default: all but table",
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=5, help="runs of tlaot at 1024^3 and 4096^3 (5)")
    parser.add_argument("--tilelang-runs", type=int, default=1, help="runs of TileLang beside them (1)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of re-timing (15)")
    parser.add_argument(
        "--search", default="guided", help='search of the build of 16 shapes ("guided"; "" for the default)'
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE, as they come")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="write the times of all configs on the shapes that were re-timed to FILE",
    )
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep what each process printed and autotuner.log")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes of a task end with this one
    parts = options.only or ["1024", "4096", "shapes", "load"]
    with tempfile.TemporaryDirectory(prefix="tuning-", ignore_cleanup_errors=True) as scratch:
        bench = Bench(TASKS, options.json, (options.logs or Path(scratch)).resolve())
        truth = Truth(bench, options.rounds, options.table)
        machine = bench.run("device")
        bench.keep("device", machine)
        bench.say(f"{machine['gpu']}, {machine['target']}, {machine['cpus']} processors, {machine['versions']}")
        bench.say(f"load average when it began: {os.getloadavg()[0]:.1f}")
        sizes = [int(part) for part in parts if part in ("1024", "4096")]
        if sizes:
            compare_systems(bench, truth, sizes, options.runs, options.tilelang_runs)
        if "shapes" in parts:
            compare_many_shapes(bench, truth, options.search, machine["target"])
        elif "table" in parts:
            truth.of(SHAPES)
        if "load" in parts:
            tune_under_load(bench, truth)
        bench.note("done")


if __name__ == "__main__":
    main()
