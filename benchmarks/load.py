"""What it costs until packaged kernels run: import, load and first call in new processes, and how it grows with the variants.

In each new process torch is imported and a CUDA context made beforehand, where there are such (else torch's or numpy's arrays on
the CPU). TileLang, where it is installed, makes and calls the same kernel in processes of its own, in turns with tlaot's: from its
disk cache, which one process has filled before. Times are the host's, in milliseconds: the median of some processes, and the least.
On a GPU tlaot's kernel is that of the installed sample_pkg; on the CPU a compiled C function (gcc).

    python benchmarks/load.py [--runs 5] [--peer-runs 3] [--import-runs 7]
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))
if importlib.util.find_spec("tlaot") is None:  # not installed: the source tree
    sys.path.append(str(ROOT))

SIZE = 1024  # of the GEMM on a GPU
SMALL = (4, 8)  # of the sum on the CPU
VARIANTS = 2000
KERNELS = 40

Marks = dict[str, float]


class Clock:
    """Times of steps in ms, by name."""

    def __init__(self) -> None:
        self.marks: Marks = {}
        self._start = time.perf_counter()

    def mark(self, name: str) -> None:
        self.marks[name] = (time.perf_counter() - self._start) * 1e3
        self._start = time.perf_counter()


# ------------------------------------------------------------------------------------ in the processes that are timed


def arrays(device: str) -> tuple[Any, Any, Callable[[], None]]:
    """Two inputs, beside whatever a program has done by then, and what waits for the device."""
    if device == "cuda":
        import torch

        a, b = (torch.ones(SIZE, SIZE, dtype=torch.float16, device="cuda") for _ in range(2))
        torch.cuda.synchronize()
        return a, b, torch.cuda.synchronize
    if importlib.util.find_spec("torch"):
        import torch

        return torch.ones(SMALL), torch.ones(SMALL), lambda: None
    import numpy

    return numpy.ones(SMALL, "f4"), numpy.ones(SMALL, "f4"), lambda: None


def call_twice(clock: Clock, kernel: Callable[..., Any], a: Any, b: Any, wait: Callable[[], None]) -> None:
    out = kernel(a, b)
    clock.mark("first call")
    wait()
    clock.mark("its result")
    kernel(a, b)
    clock.mark("second call")
    expected = SIZE if len(out) == SIZE else 2
    assert float(out[0][0]) == expected, out


def run_tlaot(device: str, package: str, preload: str) -> Marks:
    a, b, wait = arrays(device)
    gc.collect()  # what torch's import leaves takes 80 ms, whoever's objects make it due
    clock = Clock()
    import tvm_ffi  # noqa: F401

    clock.mark("import of the FFI")
    import tlaot

    load = tlaot.load
    clock.mark("import")
    kernels = load(package)
    clock.mark("load")
    if preload:
        kernels.preload(only="matmul", device=device)
        clock.mark("preload")
    call_twice(clock, kernels.matmul, a, b, wait)
    return clock.marks


def run_tilelang(device: str) -> Marks:
    a, b, wait = arrays(device)
    gc.collect()
    clock = Clock()
    import tilelang

    clock.mark("import")
    if device == "cuda":
        spec = importlib.util.spec_from_file_location("sample_cuda", ROOT / "sample_pkg" / "cuda.py")
        assert spec is not None and spec.loader is not None
        sample = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sample)
        clock = _again(clock)
        kernel = tilelang.compile(sample.matmul(SIZE, SIZE, SIZE), out_idx=[-1], target="cuda")
    else:
        function = _tilelang_sum()
        clock = _again(clock)
        kernel = tilelang.compile(function, out_idx=[-1], target="c", execution_backend="cython")
    clock.mark("load")
    call_twice(clock, kernel, a, b, wait)
    return clock.marks


def _again(clock: Clock) -> Clock:
    """The clock, started again: what a program does in between is not timed."""
    gc.collect()
    made = Clock()
    made.marks = clock.marks
    return made


def _tilelang_sum() -> Any:
    import tilelang.language as T  # noqa: N812

    globals()["T"] = T  # TileLang evaluates annotations, which are text here

    @T.prim_func
    def add(A: T.Tensor(SMALL, "float32"), B: T.Tensor(SMALL, "float32"), C: T.Tensor(SMALL, "float32")):  # type: ignore[no-untyped-def,valid-type]
        with T.Kernel(1):
            for i, j in T.grid(*SMALL):
                C[i, j] = A[i, j] + B[i, j]  # type: ignore[index]

    return add


def run_import(package: str) -> Marks:
    """``import`` of a package that loads its kernels; with the FFI, whose own import takes longer than all the rest, already there."""
    import tvm_ffi  # noqa: F401

    gc.collect()
    clock = Clock()
    kernels = importlib.import_module(package).kernels
    clock.mark("import of the package")
    variants = kernels.k0.variants
    clock.mark(f"its first kernel, {len(variants)} variants")
    return clock.marks


TASKS: dict[str, Callable[..., Marks]] = {"tlaot": run_tlaot, "tilelang": run_tilelang, "import": run_import}


# ----------------------------------------------------------------------------------------------- what compares them


def start(task: Sequence[str], folder: Path) -> Marks:
    """One task in a process of its own, with compiled bytecode as an installed package has it."""
    paths = [str(folder), *(p for p in sys.path if p == str(ROOT)), os.environ.get("PYTHONPATH", "")]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "TILELANG_CACHE_DIR": str(folder / "tilelang"),
    }
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, __file__, "--task", *task], env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"exit status {done.returncode}")
    marks: Marks = json.loads(done.stdout.splitlines()[-1])
    return marks


def write_sum(folder: Path) -> str:
    """A package with one kernel for the CPU, ``matmul`` by name, that adds."""
    import fixtures_runtime
    from fixtures_runtime import compile_kernel, tensor, variant, write_package

    fixtures_runtime.has_direct = True  # as what is built
    params = [tensor(name, *SMALL, written=name == "C") for name in "ABC"]
    built = [(variant("matmul", params, [2], {"N": 8}), compile_kernel(3, 0b100))]
    write_package(folder, "load_sum", {"matmul": built})
    return "load_sum"


def write_many(folder: Path, count: int, kernels: int) -> str:
    """A package whose manifest has many variants, as long as those of real ones; it loads them when it is imported."""
    from fixtures_runtime import tensor, variant

    from tlaot.manifest import FOLDER, Kernel, Manifest, digest_of, dumps

    names = ("executable.so", "best_config.json", "latency.json", "out_idx.json", "params.json", "variant.json")
    made: dict[str, list[Any]] = {f"k{i}": [] for i in range(kernels)}
    for i in range(count):
        size, name = 64 * (i // kernels + 1), f"k{i % kernels}"
        params = [
            tensor("A", size, 1024, dtype="float16", align=16),
            tensor("B", 1024, 1024, dtype="float16", align=16),
            tensor("C", size, 1024, dtype="float16", align=16, written=True),
        ]
        made[name].append(
            variant(
                name,
                params,
                [2],
                {"M": size, "N": 1024, "K": 1024},
                "cuda:sm_90a",
                files={file: digest_of(f"{name} {size} {file}".encode()) for file in names},
                frontend={
                    "name": "tilelang",
                    "version": "0.1.15",
                    "apache-tvm-ffi": "0.1.12",
                    "device-compiler": "nvcc",
                },
                properties={"variant": "nvidia :: sm_arch :: 90a_real", "asked": {}, "checked": True},
                floor={"cuda": "12.8", "glibc": "2.5", "toolkit": "13.0"},
                tuned={"device": "NVIDIA H200", "sm_count": 132},
            )
        )
    package = f"load_{count}"
    manifest = Manifest(package, {name: Kernel(name, tuple(found)) for name, found in made.items()}, "0.1.0")
    place = folder / package / FOLDER
    place.mkdir(parents=True)
    (place.parent / "__init__.py").write_text("import tlaot\n\nkernels = tlaot.load(__name__)\n")
    (place / "manifest.json").write_text(dumps(manifest))
    return package


def in_turns(tasks: dict[str, tuple[Sequence[str], int]], folder: Path) -> dict[str, list[Marks]]:
    """Each task as often as it says, in turns; once before, untimed, for caches of every kind. What fails is told, and left out."""
    found: dict[str, list[Marks]] = {}
    for name, (task, _) in tasks.items():
        try:
            start(task, folder)
            found[name] = []
        except RuntimeError as error:
            print(f"{name}: left out: {str(error).splitlines()[-1][:300]}")
    for turn in range(max(runs for _, runs in tasks.values())):
        for name, marks in found.items():
            task, runs = tasks[name]
            if turn < runs:
                marks.append(start(task, folder))
    return found


def spell(runs: Sequence[Marks], step: str) -> str:
    times = [marks[step] for marks in runs if step in marks]
    return f"{statistics.median(times):9.3f} ({min(times):.3f})" if times else "-"


def show(found: dict[str, list[Marks]]) -> None:
    steps = dict.fromkeys(step for runs in found.values() for marks in runs for step in marks)
    order = ("import of the FFI", "import", "load", "preload", "first call", "its result", "second call")
    names = list(found)
    print(f"{'ms, median (least)':24}" + "".join(f"{name:>26}" for name in names))
    for step in sorted(steps, key=lambda step: order.index(step) if step in order else len(order)):
        print(f"{step:24}" + "".join(f"{spell(found[name], step):>26}" for name in names))
    if {"tlaot", "TileLang"} <= set(names):
        for label, summed in (("import", order[:2]), ("load and first call", ("load", "first call"))):
            ours, theirs = (
                statistics.median(sum(marks.get(step, 0.0) for step in summed) for marks in found[name])
                for name in ("tlaot", "TileLang")
            )
            print(f"{label}: {ours:.3f} ms against TileLang's {theirs:.3f}, ratio {ours / theirs:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="processes of tlaot (5)")
    parser.add_argument("--peer-runs", type=int, default=3, help="processes of TileLang (3)")
    parser.add_argument("--import-runs", type=int, default=7, help="processes that import a package (7)")
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(TASKS[options.task[0]](*options.task[1:])))
        return
    began = time.perf_counter()
    device = find_device()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package = "sample_pkg" if device == "cuda" else write_sum(folder)
        tasks: dict[str, tuple[Sequence[str], int]] = {
            "tlaot": (["tlaot", device, package, ""], options.runs),
            "tlaot, preloaded": (["tlaot", device, package, "preload"], options.runs),
        }
        if importlib.util.find_spec("tilelang"):
            tasks["TileLang"] = (["tilelang", device], options.peer_runs)
        print(f"a {'GEMM of 1024^3, float16' if device == 'cuda' else 'sum of 32 floats'} on {spell_device(device)}")
        show(in_turns(tasks, folder))
        one, many = write_many(folder, 1, 1), write_many(folder, VARIANTS, KERNELS)
        print(f"\nmanifests: 1 variant, and {VARIANTS} of {KERNELS} kernels")
        found = in_turns({n: (["import", n], options.import_runs) for n in (one, many)}, folder)
        for marks in found[many][0]:
            print(f"{marks:44}{spell(found[many], marks):>26}")
        first, more = ([marks["import of the package"] for marks in found[n]] for n in (one, many))
        for word, of in (("median", statistics.median), ("least", min)):
            print(f"{word}: import with 1 variant {of(first):.3f} ms, with {VARIANTS} {of(more) - of(first):+.3f} ms")
    print(f"({time.perf_counter() - began:.0f} s)")


def find_device() -> str:
    """``"cuda"`` or ``"cpu"``, asked in another process: this one starts many."""
    code = "import torch; print(torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return "cuda" if done.stdout.strip() == "True" else "cpu"


def spell_device(device: str) -> str:
    if device == "cuda":
        code = "import torch; print(torch.cuda.get_device_name())"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    from tlaot.runtime.device import cpu_name

    return cpu_name()


if __name__ == "__main__":
    main()
