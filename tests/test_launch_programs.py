"""The launches of the GPU tests' kernels, compiled by nvcc and seen by the fake driver: what tests/gpu runs on a device."""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm_ffi")
pytest.importorskip("numpy")

from child_call import call
from conftest import has_nvcc
from launch_programs import PROGRAMS, compile_programs, pack
from native.programs import drive

if not has_nvcc():
    pytest.skip("needs nvcc", allow_module_level=True)

A = 0x7F0000000000  # where the fake driver's tensors are


def launches(folder: Path, arguments: str) -> list[str]:
    """Those of one call, less what all have in common, and the lines on limits and attributes."""
    script = f"open_call(sys.argv[1])({arguments})"
    lines, _ = drive(script, folder / "executable.so", log=folder / "log")
    kept = [line for line in lines if line.startswith(("launch", "limit", "attribute", "tiled", "im2col"))]
    return [line.removesuffix(" params").replace(" stream 0", "").replace(" shared 0", "") for line in kept]


def line(kernel: str, blocks: int, threads: int, rest: str = "") -> str:
    return f"launch {kernel} grid {blocks} 1 1 block {threads} 1 1{rest}"


I32 = "dtype='int32'"
CALLS = [
    ("calls", f"cuda(1, {I32}), 70000", [line("calls", 70000, 1)]),
    ("calls", f"cuda(1, {I32}), 0", []),
    ("calls", f"cuda(0, {I32}), 5", []),
    ("clusters", f"cuda(96, 3, {I32}), 1", [line("ranks", 96, 32)]),
    ("clusters", f"cuda(96, 3, {I32}), 2", [line("ranks", 96, 32, " cluster 2 1 1")]),
    (
        "clusters",
        f"cuda(96, 3, {I32}), 16",
        ["attribute 14 1 ranks device 0", line("ranks", 96, 32, " cluster 16 1 1")],
    ),
    (
        "grid_barrier",
        f"cuda(9, {I32}), cuda(2, 9, {I32}), cuda(9, {I32}), 3",
        [line("barrier", 9, 64, " cooperative 1")],
    ),
    ("plain_barrier", f"cuda(9, {I32}), cuda(2, 9, {I32}), cuda(9, {I32}), 3", [line("barrier", 9, 64)]),
    (
        "dependent",
        ", ".join(f"cuda({n}, {I32})" for n in (256, 1, 256, 256, 1)),
        [line("reset", 1, 1), line("produce", 1, 256), line("consume", 1, 256, " pdl 1")],
    ),
    (
        "serial",
        ", ".join(f"cuda({n}, {I32})" for n in (256, 1, 256, 256, 1)),
        [line("reset", 1, 1), line("produce", 1, 256), line("consume", 1, 256)],
    ),
    (
        "window",
        "cuda(1000), cuda(1000), 800, 0.5",
        ["limit 6 800", line("triple", 4, 256, f" window {A:x} 800 0.50 2 1"), line("triple", 4, 256)],
    ),
    (
        "shared",
        "cuda(9, 2, dtype='int64'), 100000",
        ["attribute 8 100000 fill device 0", line("fill", 9, 128, " shared 100000")],
    ),
    (
        "scalars",
        "cuda(9, dtype='int64'), cuda(4, dtype='float64'), *range(8), True, *[0.5] * 4",
        [line("scalars", 1, 1)],
    ),
    ("triple", "cuda(1000), cuda(1000), 16", [line("triple", 4, 256)]),
    ("triple", "cuda(0, data=0), cuda(4), 0", []),
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}
    cubin = compile_programs()

    def get(name: str) -> Path:
        if name not in made:
            made[name] = pack(PROGRAMS[name](), cubin, tmp_path_factory.mktemp(name), name)
        return made[name]

    return get


@pytest.mark.parametrize(("name", "arguments", "expected"), CALLS)
def test_hand_written(packed: Callable[[str], Path], name: str, arguments: str, expected: list[str]) -> None:
    folder = packed(name)
    (folder / "log").unlink(missing_ok=True)
    assert launches(folder, arguments) == expected


@pytest.fixture(scope="module")
def tilelang() -> Iterator[Callable[..., Any]]:
    """TileLang's lowering, in a process of its own."""
    if importlib.util.find_spec("tilelang") is None:
        pytest.skip("tilelang is not installed")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda *args: pool.submit(call, "launch_cases", "lower", *args).result(timeout=300)


HALF = "dtype='float16'"
IMAGES, WEIGHT = f"cuda(2, 14, 12, 64, {HALF})", f"cuda(3, 3, 64, 128, {HALF})"


def conv(stride: int) -> list[str]:
    """Maps and launch of the convolution of two images of 14 x 12 pixels: all its corners, steps and boxes."""
    pixels = 2 * (14 // stride) * (12 // stride)
    return [
        "im2col type 6 rank 4 dims 64 12 14 2 strides 128 1536 21504 lower -1 -1 upper -1 -1 "
        f"steps 1 {stride} {stride} 1 channels 32 pixels 64 rest 0 2 2 0",
        "tiled type 6 rank 2 dims 128 576 strides 256 box 64 32 steps 1 1 rest 0 3 2 0 aligned 1",
        f"tiled type 6 rank 2 dims 128 {pixels} strides 256 box 64 64 steps 1 1 rest 0 3 2 0 aligned 1",
        f"launch convolution_kernel grid 1 {-(-pixels // 64)} 1 block 256 1 1 shared 24576",
    ]


TILES = [
    (
        "cluster_exchange",
        {},
        f"cuda(1024, 128, {HALF}), cuda(1024, 128, {HALF})",
        [
            "attribute 8 65536 cluster_exchange_kernel device 0",
            line("cluster_exchange_kernel", 8, 128, " shared 65536 cluster 2 1 1"),
        ],
    ),
    (
        "chained",
        {},
        "*[cuda(4096, 128) for _ in range(3)]",
        [line("chained_kernel", 32, 128), line("chained_kernel_1", 32, 128, " pdl 1")],
    ),
    (
        "grid_exchange",
        {},
        "*[cuda(8192, 128) for _ in range(3)]",
        [line("grid_exchange_kernel", 64, 128, " cooperative 1")],
    ),
    (
        "resident",
        {},
        "cuda(1 << 20), cuda(1 << 20)",
        ["limit 6 1000", line("resident_kernel", 1024, 128, f" window {A:x} 3000 0.50 2 1")],
    ),
    ("convolution", {}, f"{IMAGES}, {WEIGHT}, cuda(2, 14, 12, 128, {HALF})", conv(1)),
    ("convolution", {"S": 2}, f"{IMAGES}, {WEIGHT}, cuda(2, 7, 6, 128, {HALF})", conv(2)),
]


@pytest.mark.parametrize(("case", "sizes", "arguments", "expected"), TILES)
def test_tilelang(
    tilelang: Callable[..., Any],
    tmp_path: Path,
    case: str,
    sizes: dict[str, int],
    arguments: str,
    expected: list[str],
) -> None:
    folder = pack(tilelang(case, "cuda:sm_90a", sizes), b"\x7fELF fake cubin", tmp_path / case, case)
    found = launches(folder, arguments)
    assert [x for x in found if not x.startswith("attribute 8 24576")] == expected
