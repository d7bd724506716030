"""What a call costs on the host, beside the peers' and beside what no call can do without; in nanoseconds, with ratios.

Ways are timed in short bursts in turns, so that all see the same machine; shown is the least burst of each, and the median. On a GPU
nothing waits for the device inside a burst, and each kernel is called through tlaot, TileLang's own kernel object, and beside
Triton's compiled kernel of as many arguments and torch's operator. The floor there is an empty TVM FFI function with the same
tensors plus a C loop of cuLaunchKernelEx with parameters, grid, threads and shared memory as the kernel's.

    python benchmarks/call.py [--json FILE] [--rounds 60] [--no-gpu]

Needs gcc; on a GPU torch, TileLang and nvcc too, and Triton for its part. Takes a minute there.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import itertools
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]
if importlib.util.find_spec("tlaot") is None:  # not installed: the source tree
    sys.path.append(str(ROOT))

import fixtures_runtime  # noqa: E402
import tvm_ffi  # noqa: E402
from fixtures_runtime import compile_kernel, tensor, variant, write_package  # noqa: E402

import tlaot  # noqa: E402

Way = Callable[[], Any]
BURST = 200
EMPTY = "empty TVM FFI function"
PACKAGES = itertools.count()


@dataclass
class Group:
    """Ways to do one thing.

    Attributes:
        title: The thing.
        ways: By name.
        base: The way that the others are held against.
        aims: Ratios that are aimed at: ``(way, other, bound)``.
        launch: Nanoseconds of a launch in C: with that the floor is shown, a launch and an empty function.
        wait: Waits for the device.
    """

    title: str
    ways: dict[str, Way]
    base: str
    aims: list[tuple[str, str, float]] = field(default_factory=list)
    launch: float | None = None
    wait: Callable[[], None] = lambda: None


def measure(group: Group, rounds: int) -> dict[str, tuple[float, float]]:
    """The least and the median nanoseconds a call of each way."""
    times: dict[str, list[float]] = {name: [] for name in group.ways}
    for way in group.ways.values():
        way()
    group.wait()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, way in group.ways.items():
                start = time.perf_counter_ns()
                for _ in range(BURST):
                    way()
                times[name].append((time.perf_counter_ns() - start) / BURST)
                group.wait()
    finally:
        gc.enable()
    loop = min(loop_cost() for _ in range(20))
    found = {name: (min(of) - loop, statistics.median(of) - loop) for name, of in times.items()}
    if group.launch is None:
        return found
    least, median = found[EMPTY]
    return {"floor": (least + group.launch, median + group.launch), **found}


def loop_cost() -> float:
    """Nanoseconds of the loop itself and of calling a Python function that does nothing."""
    way: Way = lambda: None  # noqa: E731
    start = time.perf_counter_ns()
    for _ in range(BURST):
        way()
    return (time.perf_counter_ns() - start) / BURST


def show(group: Group, found: Mapping[str, tuple[float, float]]) -> None:
    base = found[group.base][0]
    print(f"\n{group.title}\n  {'':46}{'ns':>8}{'median':>9}   x {group.base}")
    for name, (least, median) in found.items():
        print(f"  {name:46}{least:8.0f}{median:9.0f}{least / base:8.2f}")
    for way, other, bound in group.aims:
        if way in found and other in found:
            ratio = found[way][0] / found[other][0]
            print(f"  {way} / {other}: {ratio:.2f}, aim {bound:g}: {'met' if ratio <= bound else 'MISSED'}")


def write(kernels: Mapping[str, Any], direct: bool, folder: Path) -> Any:
    """The kernels of a new package, with ``direct.so`` or without."""
    fixtures_runtime.has_direct = direct
    package = f"call_{next(PACKAGES)}"
    write_package(folder, package, kernels)
    return tlaot.load(package, folder)


def bare_of(kernel: Any) -> Any:
    """The FFI function of a kernel's only or first variant."""
    return kernel.module_of(kernel.variants[0])["tlaot_call"]


# ------------------------------------------------------------------------------------------------------ on the CPU


def build_floor(folder: Path) -> Any:
    """The functions of call_floor.c."""
    include = Path(tvm_ffi.__file__).parent / "include"
    source, out = ROOT / "benchmarks" / "call_floor.c", folder / "floor.so"
    command = ["gcc", "-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{include}", str(source), "-ldl", "-o", str(out)]
    subprocess.run(command, check=True)
    return tvm_ffi.load_module(out)


def cpu_kernels() -> dict[str, Any]:
    """C functions that do next to nothing: a sum of 32 numbers, one of 19 arguments, one of any number of columns, one with a choice."""

    def adding(n: int | str, label: int = 0, **shape: Any) -> Any:
        params = [tensor(name, 4, n, written=name == "C") for name in "ABC"]
        return variant("add", params, [2], shape or {"N": n}), compile_kernel(3, 0b100, label=label)

    many = [*(tensor(f"X{i}", 4) for i in range(18)), tensor("Y", 4, written=True)]
    return {
        "add": [adding(8), adding(9)],
        "many": [(variant("many", many, [18], {}), compile_kernel(19, 1 << 18))],
        "dynamic": [adding("n")],
        "choice": [adding(8, int(causal), causal=causal) for causal in (True, False)],
    }


def cpu_groups(
    framework: str, make: Callable[..., Any], empty: Callable[..., Any], floor: Any, folder: Path
) -> Iterator[Group]:
    """The ways on the CPU with the arrays of a framework."""
    kernels, plain = write(cpu_kernels(), True, folder), write(cpu_kernels(), False, folder)
    nothing = floor["empty"]
    add, bare = kernels.add, bare_of(kernels.add)
    a, b, c = make(4, 8), make(4, 8), make(4, 8)
    wide = make(4, 9), make(4, 9), make(4, 9)
    ways: dict[str, Way] = {
        EMPTY: lambda: nothing(a, b, c),
        "bare TVM FFI call": lambda: bare(a, b, c),
        "tlaot": lambda: add(a, b, c),
        "tlaot without direct.so": lambda: plain.add(a, b, c),
        "tlaot, output allocated": lambda: add(a, b),
        "tlaot without direct.so, output allocated": lambda: plain.add(a, b),
        "the framework's empty": lambda: empty(4, 8),
        f"{framework}'s own a + b": lambda: a + b,
        **tilelang_on_cpu(a, b, c),
    }
    aims = [("tlaot", "bare TVM FFI call", 1.3)]
    yield Group(f"{framework}, CPU: 3 arrays of 4 x 8", ways, "bare TVM FFI call", aims)

    pair = itertools.cycle([(a, b, c), wide])
    sizes = itertools.cycle([(make(4, n), make(4, n), make(4, n)) for n in range(1, 65)])
    ways = {
        "bare TVM FFI call": lambda: (next(pair), bare(a, b, c)),
        "tlaot, one size": lambda: (next(pair), add(a, b, c)),
        "tlaot, two sizes in turn": lambda: add(*next(pair)),
        "tlaot, dynamic, one size": lambda: (next(sizes), kernels.dynamic(a, b, c)),
        "tlaot, dynamic, another size at each call": lambda: kernels.dynamic(*next(sizes)),
        "without direct.so, another size at each call": lambda: plain.dynamic(*next(sizes)),
    }
    aims = [("tlaot, dynamic, another size at each call", "tlaot, dynamic, one size", 2)]
    yield Group(f"{framework}, CPU: sizes that change", ways, "bare TVM FFI call", aims)

    bound = kernels.choice.bind(causal=True)
    ways = {
        "bare TVM FFI call": lambda: bare(a, b, c),
        "a kernel without a choice": lambda: add(a, b, c),
        "bound: kernel.bind(causal=True)": lambda: bound(a, b, c),
        "named at the call: causal=True": lambda: kernels.choice(a, b, c, causal=True),
        "without direct.so, named at the call": lambda: plain.choice(a, b, c, causal=True),
    }
    yield Group(f"{framework}, CPU: factory arguments", ways, "bare TVM FFI call")

    nineteen = [make(4) for _ in range(19)]
    many, bare_many = kernels.many, bare_of(kernels.many)
    ways = {
        EMPTY: lambda: nothing(*nineteen),
        "bare TVM FFI call": lambda: bare_many(*nineteen),
        "tlaot": lambda: many(*nineteen),
        "tlaot without direct.so": lambda: plain.many(*nineteen),
    }
    yield Group(f"{framework}, CPU: 19 arrays", ways, "bare TVM FFI call", [("tlaot", "bare TVM FFI call", 1.3)])


def tilelang_on_cpu(a: Any, b: Any, c: Any) -> dict[str, Way]:
    """TileLang's own call of the same sum, where TileLang is there and the arrays are torch's."""
    if importlib.util.find_spec("tilelang") is None or type(a).__module__ != "torch":
        return {}
    import tilelang
    from load import _tilelang_sum

    kernel = tilelang.compile(_tilelang_sum(), out_idx=[-1], target="c", execution_backend="cython")
    return {"TileLang's own call, output allocated": lambda: kernel(a, b)}


# ------------------------------------------------------------------------------------------------------ on a GPU


def gpu_groups(floor: Any, folder: Path) -> Iterator[Group]:
    """The ways on a GPU."""
    import tilelang
    import torch
    from call_kernels import COLUMNS, SIZE, make

    from tlaot.autotuner.args import CompileArgs

    names = ("matmul", "many", "scale")
    made = tlaot.par_compile(make, [{"which": name} for name in names], compile_args=CompileArgs(out_idx=[-1]))
    packed = {name: one.packed for name, one in zip(names, made, strict=True)}
    built = {name: [(rename(one.variant, name), one.contents["executable.so"])] for name, one in packed.items()}
    kernels, plain = write(built, True, folder), write(built, False, folder)
    own = {name: tilelang.compile(make(name), target="cuda") for name in ("matmul", "many")}
    allocating = {name: tilelang.compile(make(name), out_idx=[-1], target="cuda") for name in ("matmul", "scale")}
    nothing, wait = floor["empty"], torch.cuda.synchronize

    a, b, c = (torch.ones(SIZE, SIZE, dtype=torch.float16, device="cuda") for _ in range(3))
    matmul, bare = kernels.matmul, bare_of(kernels.matmul)
    launch = launcher(floor, packed["matmul"].contents["device_kernel.cu"].decode(), kernels.matmul, folder)
    ways: dict[str, Way] = {
        EMPTY: lambda: nothing(a, b, c),
        "bare TVM FFI call": lambda: bare(a, b, c),
        "tlaot": lambda: matmul(a, b, c),
        "tlaot without direct.so": lambda: plain.matmul(a, b, c),
        "TileLang's own call": lambda: own["matmul"](a, b, c),
        **triton_ways((a, b, c), launch),
        "torch.matmul(out=)": lambda: torch.matmul(a, b, out=c),
    }
    aims = [("tlaot", "floor", 1.3), ("tlaot", "TileLang's own call", 0.6), ("tlaot", "Triton's compiled kernel", 1)]
    yield Group(f"CUDA: GEMM {SIZE}^3, float16, output given", ways, "floor", aims, launch.nanoseconds, wait)

    ways = {
        "bare TVM FFI call and torch.empty": lambda: bare(
            a, b, torch.empty((SIZE, SIZE), dtype=c.dtype, device=c.device)
        ),
        "tlaot": lambda: matmul(a, b),
        "tlaot without direct.so": lambda: plain.matmul(a, b),
        "TileLang's own call": lambda: allocating["matmul"](a, b),
        "torch.matmul": lambda: torch.matmul(a, b),
    }
    aims = [("tlaot", "TileLang's own call", 0.6)]
    yield Group(f"CUDA: GEMM {SIZE}^3, output allocated", ways, "torch.matmul", aims, wait=wait)

    rows = [torch.ones(n, COLUMNS, device="cuda") for n in range(1, 257)]
    outs = [torch.ones(n, COLUMNS, device="cuda") for n in range(1, 257)]
    pairs = itertools.cycle(zip(rows, outs, strict=True))
    inputs = itertools.cycle(rows)
    scale, bare_scale = kernels.scale, bare_of(kernels.scale)
    one, its_out = rows[99], outs[99]
    ways = {
        "bare TVM FFI call": lambda: bare_scale(*next(pairs)),
        "tlaot, one size": lambda: (next(pairs), scale(one, its_out)),
        "tlaot, another size at each call": lambda: scale(*next(pairs)),
        "tlaot, output allocated, one size": lambda: (next(inputs), scale(one)),
        "tlaot, output allocated, another size": lambda: scale(next(inputs)),
        "without direct.so, another size": lambda: plain.scale(*next(pairs)),
        "TileLang's own call, output allocated, another": lambda: allocating["scale"](next(inputs)),
    }
    aims = [
        ("tlaot, another size at each call", "tlaot, one size", 2),
        ("tlaot, output allocated, another size", "TileLang's own call, output allocated, another", 0.6),
    ]
    yield Group("CUDA: any number of rows", ways, "bare TVM FFI call", aims, wait=wait)

    nineteen = [torch.ones(1024, device="cuda") for _ in range(19)]
    many, bare_many = kernels.many, bare_of(kernels.many)
    launch_many = launcher(floor, packed["many"].contents["device_kernel.cu"].decode(), kernels.many, folder)
    ways = {
        EMPTY: lambda: nothing(*nineteen),
        "bare TVM FFI call": lambda: bare_many(*nineteen),
        "tlaot": lambda: many(*nineteen),
        "tlaot without direct.so": lambda: plain.many(*nineteen),
        "TileLang's own call": lambda: own["many"](*nineteen),
        **triton_ways(tuple(nineteen), launch_many),
    }
    aims = [("tlaot", "bare TVM FFI call", 1), ("tlaot", "TileLang's own call", 0.6)]
    yield Group("CUDA: 19 tensors", ways, "bare TVM FFI call", aims, launch_many.nanoseconds, wait)


def rename(one: Any, name: str) -> Any:
    """A variant on a path of its own, without files: what is written lists them."""
    from dataclasses import replace

    return replace(one, path=f"{name}/kernel", files={}, stored={})


@dataclass
class Launcher:
    """A C loop of launches of a kernel that does nothing, of a real one's geometry.

    Attributes:
        nanoseconds: What one launch costs; the least of some bursts.
        grid, threads: The geometry.
    """

    nanoseconds: float
    grid: tuple[int, int, int]
    threads: int


def launcher(floor: Any, source: str, kernel: Any, folder: Path) -> Launcher:
    """Measure launches with parameters and geometry as those of a kernel whose CUDA source this is."""
    import torch

    signature = re.search(
        r'extern "C" __global__ void\s+(?:__launch_bounds__\((\d+)[^)]*\)\s*)?\w+\(([^)]*)\)\s*\{', source
    )
    assert signature is not None, "TileLang's CUDA source has another form"
    params = signature[2].split(",")
    maps = sum("CUtensorMap" in param for param in params)
    threads, shared = int(signature[1] or 128), int(kernel.variants[0].properties.get("shared_memory", 0))
    grid = (8, 8, 1) if maps or "matmul" in kernel.name else (8, 1, 1)
    major, minor = torch.cuda.get_device_capability()
    text = "struct alignas(64) map { char bytes[128]; };\n" + 'extern "C" __global__ void nothing({}) {{}}\n'.format(
        ", ".join(f"const __grid_constant__ map p{i}" if i < maps else f"void *p{i}" for i in range(len(params)))
    )
    (folder / "nothing.cu").write_text(text)
    cubin = folder / f"nothing-{kernel.name}.cubin"
    subprocess.run(
        ["nvcc", "-cubin", f"-arch=sm_{major}{minor}", str(folder / "nothing.cu"), "-o", str(cubin)], check=True
    )
    image = ctypes.create_string_buffer(cubin.read_bytes())
    torch.zeros(1, device="cuda")
    given = (ctypes.addressof(image), maps, len(params) - maps, grid[0], grid[1], threads, shared)
    # Of a module of its own: it keeps the first kernel that it is given.
    launches = tvm_ffi.load_module(copy_of(folder, kernel.name))["launches"]
    found = []
    for _ in range(40):
        torch.cuda.synchronize()
        found.append(float(launches(*given, BURST)))
    torch.cuda.synchronize()
    return Launcher(min(found), grid, threads)


def copy_of(folder: Path, name: str) -> Path:
    made = folder / f"floor-{name}.so"
    made.write_bytes((folder / "floor.so").read_bytes())
    return made


def triton_ways(args: tuple[Any, ...], launch: Launcher) -> dict[str, Way]:
    """Triton's compiled kernel, and its just-in-time launcher, of as many arguments and blocks."""
    if importlib.util.find_spec("triton") is None:
        print("Triton is not installed: not compared")
        return {}
    import call_triton

    function = call_triton.nothing if len(args) == 3 else call_triton.nothing_of_19
    ways: dict[str, Way] = {}
    try:
        run = function[launch.grid](*args)[launch.grid]
        run(*args)
        ways["Triton's compiled kernel"] = lambda: run(*args)
    except Exception as error:  # its interface differs between releases; the rest of the table is worth having
        print(f"Triton's compiled kernel could not be called: {error}")
    return {**ways, "Triton's launcher": lambda: function[launch.grid](*args)}


def cuda_is_there() -> bool:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("tilelang") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def groups(options: argparse.Namespace, folder: Path) -> Iterator[Group]:
    floor = build_floor(folder)
    if importlib.util.find_spec("numpy"):
        import numpy

        yield from cpu_groups("numpy", lambda *n: numpy.ones(n, "f4"), lambda *n: numpy.empty(n, "f4"), floor, folder)
    if importlib.util.find_spec("torch"):
        import torch

        yield from cpu_groups("torch", lambda *n: torch.ones(n), lambda *n: torch.empty(n), floor, folder)
    if not options.no_gpu and cuda_is_there():
        yield from gpu_groups(floor, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the times there too")
    parser.add_argument("--rounds", type=int, default=60, help="bursts of each way, in turns")
    parser.add_argument("--no-gpu", action="store_true", help="the CPU's part only")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, apache-tvm-ffi {tvm_ffi.__version__}, {platform.machine()}")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for group in groups(options, Path(folder)):
            results[group.title] = found = measure(group, options.rounds)
            show(group, found)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
