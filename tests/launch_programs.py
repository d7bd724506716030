"""Hand-written CUDA kernels that report how they were launched, with the host code that launches them.

Each function below gives a ``Lowered`` as a frontend would; :func:`pack` makes of it a folder that
:meth:`tlaot.AutotuneResult.load_from_disk` opens.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from native.programs import SET_DEVICE, build, host_program, lowered, scalar, scratch, tensor

from tlaot.manifest import VARIANT_NAME, Variant, digest_of, variant_dumps
from tlaot.target import parse_target
from tlaot.tune.compiling.link import EXECUTABLE
from tlaot.tune.compiling.nvcc import compile_cuda
from tlaot.tune.compiling.toolchain import CudaCompiler, find_nvcc
from tlaot.tune.frontends.lowered import DeviceKernel, Lowered
from tlaot.tune.shipping.package import Packed, write_packed

__all__ = ["PROGRAMS", "compile_programs", "compile_source", "pack"]

_LINE = ("blockIdx.x", "threadIdx.x")
_POINTER = "PTR(DATA({}))"


@functools.cache
def _nvcc() -> CudaCompiler:
    return find_nvcc(os.environ)


def compile_source(source: str | None, flags: Sequence[str], arch: str = "sm_90a") -> bytes:
    """Device code as a cubin.

    Raises:
        BuildError: There is no nvcc, or it refuses the source.
    """
    assert source is not None
    return compile_cuda(source, parse_target(f"cuda:{arch}"), flags, scratch(), 300, _nvcc()).data


def compile_programs(arch: str = "sm_90a") -> bytes:
    """The kernels of all programs of this file in one cubin: most of nvcc's time goes to headers."""
    sources = dict.fromkeys(make().device_source for make in PROGRAMS.values())
    return compile_source("\n".join(filter(None, sources)), ("-std=c++17",), arch)


def pack(program: Lowered, cubin: bytes, folder: Path, name: str, arch: str = "sm_90a") -> Path:
    """Link and write the folder of one variant."""
    target = parse_target(f"cuda:{arch}")
    path = build(program, scratch() / "launch" / arch / name, name, target, cubin)
    contents = {EXECUTABLE: path.read_bytes()}
    files = {EXECUTABLE: digest_of(contents[EXECUTABLE])}
    variant = Variant(str(target), {}, {}, name, program.params, program.out_idx, {}, files)
    entry = variant_dumps(name, variant).encode()
    variant = replace(variant, files={**files, VARIANT_NAME: digest_of(entry)})
    write_packed(folder, Packed(name, variant, {**contents, VARIANT_NAME: entry}))
    return folder


def clusters() -> Lowered:
    """out[block] = (size of its cluster, rank in it, number of a neighbour read from the neighbour's shared memory)."""
    source = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void ranks(int *out) {
  __shared__ int mine;
  cg::cluster_group cluster = cg::this_cluster();
  unsigned blocks = cluster.num_blocks(), rank = cluster.block_rank();
  if (threadIdx.x == 0) mine = blockIdx.x;
  cluster.sync();
  if (threadIdx.x == 0) {
    out[3 * blockIdx.x] = blocks;
    out[3 * blockIdx.x + 1] = rank;
    out[3 * blockIdx.x + 2] = *cluster.map_shared_rank(&mine, (rank + 1) % blocks);
  }
  cluster.sync();
}
"""
    call = ("ranks", [_POINTER.format(0), "INT(NUMBER(1))", "INT(1)", "INT(1)", "INT(SIZE(0, 0))", "INT(32)"])
    launch = ("cluster.x", "cluster.y", "cluster.z", *_LINE)
    return lowered(
        host_program([SET_DEVICE, call]),
        [tensor("out", "blocks", 3, dtype="int32", align=4, written=True), scalar("size", "int32")],
        [DeviceKernel("ranks", ("ptr",), (4,), launch)],
        device_source=source,
    )


_GRID = """
#include <cooperative_groups.h>
extern "C" __global__ void barrier(const int *in, int *cells, int *valid, int rounds) {
  cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  int block = blockIdx.x, blocks = gridDim.x;
  if (threadIdx.x == 0) valid[block] = grid.is_valid();
  if (!grid.is_valid()) return;
  if (threadIdx.x == 0) __stcg(&cells[block], in[block]);
  for (int round = 0; round < rounds; round++) {
    grid.sync();
    const int *now = cells + round % 2 * blocks;
    int *next = cells + (round + 1) % 2 * blocks;
    if (threadIdx.x == 0) __stcg(&next[block], __ldcg(&now[(block + 1) % blocks]) + 1);
  }
}
"""


def grid_barrier(*flags: str) -> Lowered:
    """Each round a block takes its neighbour's number plus one; valid: whether the launch lets a grid synchronize."""
    values = [*map(_POINTER.format, (0, 1, 2)), "INT(NUMBER(3))", "INT(SIZE(0, 0))", "INT(64)"]
    params = [
        tensor("numbers", "blocks", dtype="int32", align=4),
        tensor("cells", 2, "blocks", dtype="int32", align=4, written=True),
        tensor("valid", "blocks", dtype="int32", align=4, written=True),
        scalar("rounds", "int32"),
    ]
    return lowered(
        host_program([SET_DEVICE, ("barrier", values)]),
        params,
        [DeviceKernel("barrier", ("ptr", "ptr", "ptr", "int32"), (4, 4, 4, 0), (*_LINE, *flags))],
        device_source=_GRID,
    )


_DEPENDENT = """
extern "C" __global__ void reset(int *state) { state[0] = 0; }
extern "C" __global__ void produce(int *state, int *data, const int *in) {
  asm volatile("griddepcontrol.launch_dependents;");
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < 5000000);
  data[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  __threadfence();
  if (threadIdx.x == 0) *(volatile int *)state = 1;
}
extern "C" __global__ void consume(const int *state, const int *data, int *out, int *early) {
  if (threadIdx.x == 0) early[0] = *(const volatile int *)state == 0;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  out[threadIdx.x] = 2 * *(const volatile int *)&data[threadIdx.x];
}
"""


def dependent(*flags: str) -> Lowered:
    """out = 2 * numbers in two kernels; early: the second had started while the first was still at work (5 ms)."""
    line = ["INT(1)", "INT(256)"]
    calls = [
        SET_DEVICE,
        ("reset", [_POINTER.format(1), "INT(1)", "INT(1)"]),
        ("produce", [*map(_POINTER.format, (1, 2, 0)), *line]),
        ("consume", [*map(_POINTER.format, (1, 2, 3, 4)), *line]),
    ]
    params = [
        tensor("numbers", 256, dtype="int32", align=4),
        tensor("state", 1, dtype="int32", align=4, written=True),
        tensor("data", 256, dtype="int32", align=4, written=True),
        tensor("out", 256, dtype="int32", align=4, written=True),
        tensor("early", 1, dtype="int32", align=4, written=True),
    ]
    kernels = [
        DeviceKernel("reset", ("ptr",), (4,), _LINE),
        DeviceKernel("produce", ("ptr",) * 3, (4,) * 3, _LINE),
        DeviceKernel("consume", ("ptr",) * 4, (4,) * 4, (*_LINE, *flags)),
    ]
    return lowered(host_program(calls), params, kernels, device_source=_DEPENDENT)


_TRIPLE = """
extern "C" __global__ void triple(const float *in, float *out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 3 * in[i];
}
"""


def window() -> Lowered:
    """out = 3 * in, and once more: the first launch keeps the first bytes of in in the L2 cache, the second is plain."""
    values = [*map(_POINTER.format, (0, 1)), "INT(SIZE(0, 0))", "INT((SIZE(0, 0) + 255) / 256)", "INT(256)"]
    region = ("__tvm_cuda_stream_set_access_policy_window", [_POINTER.format(0), "INT(NUMBER(2))", "FLOAT(REAL(3))"])
    calls = [
        SET_DEVICE,
        region,
        ("triple", values),
        ("__tvm_cuda_stream_reset_access_policy_window", []),
        ("triple", values),
    ]
    params = [
        tensor("in", "n", align=4),
        tensor("out", "n", align=4, written=True),
        scalar("bytes", "int64"),
        scalar("ratio", "float32"),
    ]
    kernel = DeviceKernel("triple", ("ptr", "ptr", "int32"), (4, 4, 0), _LINE)
    return lowered(host_program(calls), params, [kernel], device_source=_TRIPLE)


def triple() -> Lowered:
    """out = 3 * in for any number of elements; in starts ``shift`` bytes further than the tensor."""
    values = ["PTR((char *)DATA(0) + NUMBER(2))", _POINTER.format(1), "INT(SIZE(0, 0))"]
    values += ["INT((SIZE(0, 0) + 255) / 256)", "INT(256)"]
    params = [tensor("in", "n", align=16), tensor("out", "m", align=4, written=True), scalar("shift", "int64")]
    kernel = DeviceKernel("triple", ("ptr", "ptr", "int32"), (16, 4, 0), _LINE)
    return lowered(host_program([SET_DEVICE, ("triple", values)]), params, [kernel], device_source=_TRIPLE)


def shared() -> Lowered:
    """out[block] = (bytes of dynamic shared memory, sum of what was stored in all of them)."""
    source = """
extern "C" __global__ void fill(long long *out, int bytes) {
  extern __shared__ int memory[];
  __shared__ unsigned long long total;
  unsigned given;
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(given));
  if (threadIdx.x == 0) total = 0;
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) memory[i] = i + blockIdx.x;
  __syncthreads();
  unsigned long long sum = 0;
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) sum += memory[bytes / 4 - 1 - i];
  atomicAdd(&total, sum);
  __syncthreads();
  if (threadIdx.x == 0) out[2 * blockIdx.x] = given, out[2 * blockIdx.x + 1] = total;
}
"""
    values = [_POINTER.format(0), "INT(NUMBER(1))", "INT(SIZE(0, 0))", "INT(128)", "INT(NUMBER(1))"]
    return lowered(
        host_program([SET_DEVICE, ("fill", values)]),
        [tensor("out", "blocks", 2, dtype="int64", align=8, written=True), scalar("bytes", "int32")],
        [DeviceKernel("fill", ("ptr", "int32"), (8, 0), (*_LINE, "dyn_shared"))],
        device_source=source,
    )


_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
_FLOATS = ("float16", "float32", "float64", "bfloat16")


def scalars() -> Lowered:
    """Scalars of every type, handed back: integers as int64, floats as float64."""
    source = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void scalars(long long *ints, double *floats, signed char a, unsigned char b, short c, unsigned short d,
                                   int e, unsigned f, long long g, unsigned long long h, bool i, __half j, float k, double l,
                                   __nv_bfloat16 m) {
  ints[0] = a, ints[1] = b, ints[2] = c, ints[3] = d, ints[4] = e, ints[5] = f, ints[6] = g, ints[7] = (long long)h, ints[8] = i;
  floats[0] = __half2float(j), floats[1] = k, floats[2] = l, floats[3] = __bfloat162float(m);
}
"""
    first = 2 + len(_INTEGERS)
    values = [*map(_POINTER.format, (0, 1)), *(f"INT(NUMBER({i}))" for i in range(2, first))]
    values += [*(f"FLOAT(REAL({i}))" for i in range(first, first + len(_FLOATS))), "INT(1)", "INT(1)"]
    params = [
        tensor("ints", 9, dtype="int64", align=8, written=True),
        tensor("floats", 4, dtype="float64", align=8, written=True),
        *(scalar(f"s_{dtype}", dtype) for dtype in _INTEGERS + _FLOATS),
    ]
    kernel = DeviceKernel("scalars", ("ptr", "ptr", *_INTEGERS, *_FLOATS), (8, 8, *[0] * 13), _LINE)
    return lowered(host_program([SET_DEVICE, ("scalars", values)]), params, [kernel], device_source=source)


def calls() -> Lowered:
    """count[0] += 1 for each block; there are as many blocks as ``blocks`` says."""
    source = 'extern "C" __global__ void calls(int *count) { atomicAdd(count, 1); }\n'
    return lowered(
        host_program([SET_DEVICE, ("calls", [_POINTER.format(0), "INT(NUMBER(1))", "INT(1)"])]),
        [tensor("count", "n", dtype="int32", align=4, written=True), scalar("blocks", "int64")],
        [DeviceKernel("calls", ("ptr",), (4,), _LINE)],
        device_source=source,
    )


PROGRAMS: dict[str, Callable[[], Lowered]] = {
    "calls": calls,
    "clusters": clusters,
    "dependent": functools.partial(dependent, "pdl"),
    "grid_barrier": functools.partial(grid_barrier, "cooperative"),
    "plain_barrier": grid_barrier,
    "scalars": scalars,
    "serial": dependent,
    "shared": shared,
    "triple": triple,
    "window": window,
}
