"""executable.so in action: argument checks, and the CUDA device module against a fake driver."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("tvm_ffi")
pytest.importorskip("numpy")

from native import programs
from native.programs import SET_DEVICE, build, drive, host_program, lowered, run, scalar, tensor

from tlaot.tune.frontends.lowered import DeviceKernel

GRID = ("blockIdx.x", "threadIdx.x")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "driver.log"


def launches(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("launch")]


# --- arguments -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """B[m, 4] = A[m, 4] on the CPU; s is an int8, f a float32, c a bool; A wants 16 bytes of alignment."""
    host = host_program(
        [],
        before="  for (long i = 0; i < SIZE(0, 0) * 4; i++) ((float *)DATA(1))[i] = ((float *)DATA(0))[i] * 2;\n"
        "  if (TENSOR(0)->byte_offset || TENSOR(0)->strides[0] != 4 || TENSOR(0)->strides[1] != 1) return -1;",
    )
    params = [
        tensor("A", "m", 4, align=16),
        tensor("B", "m", 4, written=True),
        scalar("s", "int8"),
        scalar("f", "float32"),
        scalar("c", "bool"),
    ]
    return build(lowered(host, params), tmp_path_factory.mktemp("copier"), "copier")


def test_arguments_are_checked_before_anything_else(copier: Path) -> None:
    script = """
f = open_call(sys.argv[1])
def aligned(rows, offset=0):
    raw = np.zeros(rows * 16 + 64, np.uint8)
    start = -raw.ctypes.data % 16 + offset
    return raw[start:start + rows * 16].view(np.float32).reshape(rows, 4)
a, b = aligned(6), aligned(6)
a[:] = np.arange(24).reshape(6, 4)
rest = (1, 0.5, True)
f(t(a), t(b), *rest)
assert (b == 2 * a).all()
say(attempt(f, t(a), t(b)))
say(attempt(f, 3, t(b), *rest))
say(attempt(f, t(a), None, *rest))
say(attempt(f, t(a.astype(np.float64)), t(b), *rest))
say(attempt(f, t(a[0]), t(b), *rest))
say(attempt(f, t(a), t(aligned(5)), *rest))
say(attempt(f, t(np.zeros((6, 5), np.float32)), t(b), *rest))
say(attempt(f, t(np.zeros((12, 4), np.float32)[::2]), t(b), *rest))
say(attempt(f, t(aligned(6, 4)), t(b), *rest))
say(attempt(f, t(a), cuda(6, 4), *rest))
say(attempt(f, t(a), t(b), 128, 0.5, True))
say(attempt(f, t(a), t(b), -129, 0.5, True))
say(attempt(f, t(a), t(b), 1.0, 0.5, True))
say(attempt(f, t(a), t(b), 1, "x", True))
say(attempt(f, t(a), t(b), 1, 0.5, 2))
say(attempt(f, t(a), t(b), -128, 3, 1))
# a dimension of size 1 may have any stride, an empty tensor too
say(attempt(f, cuda(1, 4, strides=(77, 1), data=a.ctypes.data, kind=1), t(aligned(1)), *rest))
say(attempt(f, cuda(0, 4, strides=(9, 9), data=0, kind=1), t(aligned(0)), *rest))
# a null pointer is no data, whatever alignment is wanted
say(attempt(f, cuda(2, 4, data=0, kind=1), t(aligned(2)), *rest))
say(attempt(f, t(aligned(2)), cuda(2, 4, data=0, kind=1), *rest))
# a byte offset belongs to the address: checked for alignment, and applied
b[:] = 0
f(cuda(2, 4, data=a.ctypes.data - 64, byte_offset=64, kind=1), cuda(2, 4, data=b.ctypes.data, kind=1), *rest)
assert (b[:2] == 2 * a[:2]).all()
say(attempt(f, cuda(2, 4, data=a.ctypes.data, byte_offset=8, kind=1), t(aligned(2)), *rest))
"""
    said = [eval(line.replace("null", "None")) for line in run(script, copier).splitlines()]
    address = r"0x[0-9a-f]+"
    expected = [
        ("TypeError", r"copier: wrong number of arguments, expected 5, got 2"),
        ("TypeError", r"copier: argument 0 \(A\): wrong kind, expected a tensor, got an int"),
        ("TypeError", r"copier: argument 1 \(B\): wrong kind, expected a tensor, got None"),
        ("TypeError", r"copier: argument 0 \(A\): wrong dtype, expected float32, got float64"),
        ("ValueError", r"copier: argument 0 \(A\): wrong number of dimensions, expected 2, got 1"),
        ("ValueError", r"copier: argument 1 \(B\): shape\[0\] does not fit, expected m = 6, got 5"),
        ("ValueError", r"copier: argument 0 \(A\): shape\[1\] does not fit, expected 4, got 5"),
        ("ValueError", r"copier: argument 0 \(A\): strides\[0\] does not fit \(.*contiguous\), expected 4, got 8"),
        ("ValueError", rf"copier: argument 0 \(A\): misaligned data, expected .* multiple of 16 bytes, got {address}"),
        ("ValueError", r"copier: argument 1 \(B\): wrong device, expected cpu, got cuda"),
        ("ValueError", r"copier: argument 2 \(s\): value out of range, expected int8, got 128"),
        ("ValueError", r"copier: argument 2 \(s\): value out of range, expected int8, got -129"),
        ("TypeError", r"copier: argument 2 \(s\): wrong kind, expected an int \(int8\), got a float"),
        ("TypeError", r"copier: argument 3 \(f\): wrong kind, expected a float \(float32\), got a string"),
        ("ValueError", r"copier: argument 4 \(c\): value out of range, expected bool, got 2"),
        None,
        None,
        None,
        ("ValueError", r"copier: argument 0 \(A\): no data, expected an address, got a .* pointer"),
        ("ValueError", r"copier: argument 1 \(B\): no data, expected an address, got a .* pointer"),
        ("ValueError", rf"copier: argument 0 \(A\): misaligned data, expected .* multiple of 16 bytes, got {address}"),
    ]
    assert len(said) == len(expected)
    for got, wanted in zip(said, expected, strict=True):
        if wanted is None:
            assert got is None
        else:
            assert got is not None
            assert got[0] == wanted[0]
            assert re.search(wanted[1], got[1]), got


def test_sizes_are_compared_in_64_bits(tmp_path: Path, log: Path) -> None:
    # The generated code compares (int32_t)shape[0] == 1024, which 2**32 + 1024 passes.
    host = host_program([SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(1)", "INT(32)"])], lookup="TVMBackendGetFuncFromEnv")
    kernel = DeviceKernel("k", ("ptr",), (4,), GRID)
    fixed = build(lowered(host, [tensor("A", 1024, written=True)], [kernel]), tmp_path / "fixed")
    symbolic = build(lowered(host, [tensor("A", "n", written=True)], [kernel]), tmp_path / "symbolic")
    script = """
fixed, symbolic = open_call(sys.argv[1]), open_call(sys.argv[2])
say(attempt(fixed, cuda(2**32 + 1024)))
say(attempt(symbolic, cuda(2**31)))
say(attempt(symbolic, cuda(2**31 - 1)))
"""
    lines, said = drive(script, fixed, symbolic, log=log)
    assert said[0] == ["ValueError", "kernel: argument 0 (A): shape[0] does not fit, expected 1024, got 4294968320"]
    assert (
        said[1][1] == "kernel: argument 0 (A): shape[0] (n) is out of range, expected 0 to 2147483647, got 2147483648"
    )
    assert said[2] is None
    assert len(launches(lines)) == 1


def test_code_that_addresses_in_32_bits_takes_no_larger_tensor(tmp_path: Path, log: Path) -> None:
    """By the distance from the first element to the last, whatever the sizes and strides; nothing is launched."""
    host = host_program([SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(1)", "INT(32)"])], lookup="TVMBackendGetFuncFromEnv")
    kernel = DeviceKernel("k", ("ptr",), (4,), GRID)
    params = [tensor("A", "m", 65536, written=True), tensor("B", "m", 2, strides=("s", "t"))]
    narrow = build(lowered(host, params, [kernel], narrow=frozenset({"A", "B"})), tmp_path / "narrow")
    wide = build(lowered(host, params, [kernel], narrow=frozenset({"B"})), tmp_path / "wide")
    script = """
narrow, wide = open_call(sys.argv[1]), open_call(sys.argv[2])
def b(m, s=2, t=1): return cuda(m, 2, strides=(s, t))
say(attempt(narrow, cuda(32767, 65536), b(32767)))
say(attempt(narrow, cuda(32768, 65536), b(32768)))
say(attempt(wide, cuda(32768, 65536), b(32768)))
say(attempt(wide, cuda(4, 65536), b(4, 2**30)))
say(attempt(wide, cuda(2, 65536), b(2, 2**30, 2**30 - 2)))
say(attempt(narrow, cuda(0, 65536), b(0)))
"""
    lines, said = drive(script, narrow, wide, log=log)
    assert said[0] is None
    assert said[1] == [
        "ValueError",
        "kernel: argument 0 (A): too large for code that addresses elements with 32 bits, expected at most 2147483647 elements "
        "from the first to the last, got 2147483648",
    ]
    assert said[2] is None
    assert "argument 1 (B): too large" in said[3][1]
    assert "got 3221225474" in said[3][1]
    assert said[4] is None
    assert said[5] is None
    assert len(launches(lines)) == 3


def test_declared_and_symbolic_strides(tmp_path: Path) -> None:
    params = [tensor("A", "m", 4, strides=("s", 1)), tensor("B", "m", 4, strides=("s", 1), written=True)]
    path = build(lowered(host_program([]), params), tmp_path)
    script = """
f = open_call(sys.argv[1])
wide, narrow = np.zeros((6, 8), np.float32)[:, :4], np.zeros((6, 4), np.float32)
say(attempt(f, t(wide), t(wide)))
say(attempt(f, t(narrow), t(narrow)))
say(attempt(f, t(wide), t(narrow)))
say(attempt(f, t(np.zeros((6, 8), np.float32)[:, ::2]), t(wide)))
"""
    said = run(script, path).splitlines()
    assert said[:2] == ["null", "null"]
    assert "strides[0] does not fit, expected s = 8, got 4" in said[2]
    assert "strides[1] does not fit (in elements), expected 1, got 2" in said[3]


def test_cpu_level_is_refused_by_name(tmp_path: Path) -> None:
    level = int(
        run(
            "print(tvm_ffi.load_module(sys.argv[1])['tlaot_cpu_level']())",
            build(lowered(host_program([]), [tensor("A", 1, written=True)]), tmp_path),
        )
    )
    flags = Path("/proc/cpuinfo").read_text()
    expected = 4 if "avx512vl" in flags else 3 if " avx2 " in flags else 2 if "sse4_2" in flags else 1
    assert level == expected


# --- launches --------------------------------------------------------------------------------------------------


def test_scalars_of_every_width(tmp_path: Path, log: Path) -> None:
    kinds = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"]
    floats = ["float16", "float32", "float64", "bfloat16"]
    values = [-3, 250, -300, 65535, -70000, 4000000000, -(2**40), 2**63 - 1, 1]
    params = [tensor("A", 8, written=True), *(scalar(f"s{i}", d) for i, d in enumerate(kinds + floats))]
    passed = ["PTR(DATA(0))", *(f"INT(NUMBER({i + 1}))" for i in range(len(kinds)))]
    passed += [f"FLOAT(REAL({len(kinds) + i + 1}))" for i in range(len(floats))]
    kernel = DeviceKernel("k", ("ptr", *kinds, *floats), (16,) + (0,) * (len(kinds) + len(floats)), GRID)
    path = build(lowered(host_program([SET_DEVICE, ("k", [*passed, "INT(3)", "INT(64)"])]), params, [kernel]), tmp_path)
    # Halves: a tie rounds to even, a subnormal, an overflow, and a value that double rounding through float32 gets wrong.
    halves = [1 + 2**-11, 3 * 2**-25, 65520.0, 1 + 2**-11 + 2**-40, -0.0, float("inf")]
    script = f"""
f = open_call(sys.argv[1])
for half in {[h if h != float("inf") else 1e999 for h in halves]!r}:
    f(cuda(8), *{values!r}, half, 0.1, 0.1, 1.00390625)
""".replace("inf", "float('inf')")
    lines, _ = drive(script, path, widths="8 1 1 2 2 4 4 8 8 1 2 4 8 2", log=log)
    found = launches(lines)
    assert len(found) == len(halves)
    assert found[0].startswith("launch k grid 3 1 1 block 64 1 1 shared 0 stream 0 params")
    for line, half in zip(found, halves, strict=True):
        raw = [bytes.fromhex(word) for word in line.split("params ")[1].split()]
        assert struct.unpack("<Q", raw[0])[0] == 0x7F0000000000
        assert [struct.unpack(f"<{c}", r)[0] for c, r in zip("bBhHiIqQ?", raw[1:10], strict=True)] == [
            *values[:8],
            True,
        ]
        assert raw[10] == (struct.pack("<e", half) if abs(half) < 65520 else b"\x00\x7c")
        assert raw[11] == struct.pack("<f", 0.1)
        assert raw[12] == struct.pack("<d", 0.1)
        assert raw[13] == bytes.fromhex("803f")  # 1 + 2**-8 is halfway; to even is 1.0


def test_geometry_attributes_and_device_state(tmp_path: Path, log: Path) -> None:
    launch = (
        *("cluster.x", "cluster.y", "cluster.z", "blockIdx.x", "blockIdx.y", "blockIdx.z"),
        *("threadIdx.x", "threadIdx.y", "threadIdx.z", "dyn_shared"),
    )
    sizes = ["INT(NUMBER(1))", "INT(2)", "INT(1)", "INT(16)", "INT(4)", "INT(2)", "INT(64)", "INT(2)", "INT(1)"]
    host = host_program(
        [
            SET_DEVICE,
            ("wide", ["PTR(DATA(0))", *sizes, "INT(NUMBER(2))"]),
            ("flat", ["PTR(DATA(0))", "INT(5)", "INT(32)"]),
            ("coop", ["PTR(DATA(0))", "INT(5)", "INT(32)"]),
        ]
    )
    kernels = [
        DeviceKernel("wide", ("ptr",), (1,), launch),
        DeviceKernel("flat", ("ptr",), (1,), (*GRID, "pdl")),
        DeviceKernel("coop", ("ptr",), (1,), (*GRID, "cooperative")),
    ]
    params = [tensor("A", 8, written=True), scalar("c", "int32"), scalar("shared", "int32")]
    path = build(lowered(host, params, kernels), tmp_path)
    script = """
f = open_call(sys.argv[1])
f(cuda(8), 4, 50000)
f(cuda(8), 4, 50000)
f(cuda(8), 8, 40000)
f(cuda(8), 8, 60000)
f(cuda(8, device=1), 4, 50000)
say(attempt(f, cuda(8), 1, 300000))
with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 0xabc):
    f(cuda(8), 1, 0)
"""
    lines, said = drive(script, path, log=log)
    wide = [line for line in launches(lines) if " wide " in line]
    assert wide[0] == "launch wide grid 16 4 2 block 64 2 1 shared 50000 stream 0 cluster 4 2 1 params"
    assert wide[2] == "launch wide grid 16 4 2 block 64 2 1 shared 40000 stream 0 cluster 8 2 1 params"
    assert wide[5] == "launch wide grid 16 4 2 block 64 2 1 shared 0 stream abc cluster 1 2 1 params"
    others = [line for line in launches(lines) if " wide " not in line]
    assert others[0] == "launch flat grid 5 1 1 block 32 1 1 shared 0 stream 0 pdl 1 params"
    assert others[1] == "launch coop grid 5 1 1 block 32 1 1 shared 0 stream 0 cooperative 1 params"
    # Shared memory: once a device and function, again only for more; never lowered. Clusters above 8 blocks: once.
    assert [line for line in lines if line.startswith("attribute")] == [
        "attribute 8 50000 wide device 0",
        "attribute 14 1 wide device 0",
        "attribute 8 60000 wide device 0",
        "attribute 8 50000 wide device 1",
    ]
    assert said == [["RuntimeError", "kernel: wide needs 300000 bytes of dynamic shared memory, cuda:0 allows 232448"]]
    assert [line for line in lines if line.startswith("load")] == ["load ELF  0 0"]
    assert sorted(line for line in lines if line.startswith("kernel")) == ["kernel coop", "kernel flat", "kernel wide"]
    # No context was current: the device's primary one is pushed for the call and popped after it, errors included.
    assert lines.count("retain 0") == lines.count("retain 1") == lines.count("init 0") == 1
    pushes = [line for line in lines if line.startswith(("push", "pop"))]
    assert pushes == ["push 0", "pop 0"] * 4 + ["push 1", "pop 1"] + ["push 0", "pop 0"] * 2


def test_context_that_is_current_stays(tmp_path: Path, log: Path) -> None:
    host = host_program([SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(1)", "INT(32)"])])
    path = build(lowered(host, [tensor("A", 8, written=True)], [DeviceKernel("k", ("ptr",), (1,), GRID)]), tmp_path)
    script = """
f = open_call(sys.argv[1])
driver = ctypes.CDLL("libcuda.so.1")
driver.cuCtxPushCurrent_v2(ctypes.c_void_p(1))
f(cuda(8))
f(cuda(8, device=1))
"""
    lines, _ = drive(script, path, log=log)
    assert [line for line in lines if line.startswith(("push", "pop", "launch"))] == [
        "push 0",
        "launch k grid 1 1 1 block 32 1 1 shared 0 stream 0 params",
        "push 1",
        "launch k grid 1 1 1 block 32 1 1 shared 0 stream 0 params",
        "pop 1",
    ]


def test_tensor_maps(tmp_path: Path, log: Path) -> None:
    def ints(*values: object) -> list[str]:
        return [f"INT({v})" for v in values]

    before = "  _Alignas(128) TVMFFIAny tiled[8], im2col[8];"
    tiled = [
        *ints(6),
        *ints(2),
        "PTR(DATA(0))",
        *ints("SIZE(0, 1)", "SIZE(0, 0)", 2, "SIZE(0, 1) * 2", 32, 128, 1, 1, 0, 2, 3, 1),
    ]
    im2col = [
        *ints(6, 4),
        "PTR(DATA(0))",
        *ints(64, 28, 28, 2, 2, 128, 3584, 100352, 1, 1, 1, 2, -1, -2, 3, 4, 96, 64, 0, 1, 2, 0),
    ]
    host = host_program(
        [
            SET_DEVICE,
            ("__tvm_tensormap_create_tiled", ["PTR(tiled)", *tiled]),
            ("__tvm_tensormap_create_im2col", ["PTR(im2col)", *im2col]),
            ("k", ["PTR(tiled)", "PTR(im2col)", "PTR(DATA(1))", "INT(NUMBER(2))", "INT(128)"]),
        ],
        before=before,
    )
    params = [tensor("A", "m", 64, dtype="float16"), tensor("C", 64, written=True), scalar("grid", "int32")]
    kernel = DeviceKernel("k", ("tensormap", "tensormap", "ptr"), (0, 0, 16), GRID)
    path = build(lowered(host, params, [kernel]), tmp_path, "conv")
    script = """
f = open_call(sys.argv[1])
f(cuda(100, 64, dtype="float16"), cuda(64), 7)
say(attempt(f, cuda(0, 64, dtype="float16", data=0), cuda(64), 0))
say(attempt(f, cuda(0, 64, dtype="float16", data=0), cuda(64), 1))
"""
    lines, said = drive(script, path, widths="8 8 8", log=log)
    maps = [line for line in lines if line.startswith(("tiled", "im2col"))]
    assert maps[0] == "tiled type 6 rank 2 dims 64 100 strides 128 box 32 128 steps 1 1 rest 0 2 3 1 aligned 1"
    assert maps[1] == (
        "im2col type 6 rank 4 dims 64 28 28 2 strides 128 3584 100352 lower -1 -2 upper 3 4 steps 1 1 1 2 "
        "channels 64 pixels 96 rest 0 1 2 0"
    )
    address = struct.pack("<Q", 0x7F0000000000).hex()
    assert launches(lines) == [
        f"launch k grid 7 1 1 block 128 1 1 shared 0 stream 0 params {address} {address} {address}"
    ]
    # No items: no map can be encoded, no blocks are fine, blocks are an error that says why.
    assert said[0] is None
    assert said[1] == [
        "ValueError",
        "conv: k: argument 0 is a tensor map of a tensor with no items, which the hardware cannot describe",
    ]
    _, said = drive(
        script.replace("f(cuda(100", "say(attempt(f, cuda(100").replace(", 7)", ", 7))"),
        path,
        fail="cuTensorMapEncodeTiled:1",
        log=log,
    )
    assert said[0][0] == "RuntimeError"
    assert "dimensions [64, 100], strides in bytes [128], box [32, 128]" in said[0][1]
    assert "FAKE_ERROR_1" in said[0][1]


def test_l2_window_is_an_attribute_of_the_launch(tmp_path: Path, log: Path) -> None:
    kernel_call = ("k", ["PTR(DATA(0))", "INT(1)", "INT(32)"])
    host = host_program(
        [
            SET_DEVICE,
            ("__tvm_cuda_stream_set_access_policy_window", ["PTR(DATA(0))", "INT(NUMBER(1))", "FLOAT(0.75)"]),
            kernel_call,
            ("__tvm_cuda_stream_reset_access_policy_window", []),
            kernel_call,
        ]
    )
    params = [tensor("A", 8, written=True), scalar("bytes", "int64")]
    path = build(lowered(host, params, [DeviceKernel("k", ("ptr",), (1,), GRID)]), tmp_path)
    script = """
f = open_call(sys.argv[1])
with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 0x77):
    f(cuda(8), 800)
    f(cuda(8), 5000)
"""
    lines, _ = drive(script, path, log=log)
    start = "launch k grid 1 1 1 block 32 1 1 shared 0 stream 77"
    assert launches(lines) == [
        f"{start} window 7f0000000000 800 0.75 2 1 params",
        f"{start} params",
        f"{start} window 7f0000000000 3000 0.75 2 1 params",
        f"{start} params",
    ]
    assert [line for line in lines if line.startswith("limit")] == ["limit 6 800", "limit 6 1000"]


def test_no_work_reaches_no_driver(tmp_path: Path, log: Path) -> None:
    host = host_program([SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(SIZE(0, 0))", "INT(32)"])])
    params = [tensor("A", "n"), tensor("C", "m", written=True)]
    path = build(lowered(host, params, [DeviceKernel("k", ("ptr",), (1,), GRID)]), tmp_path)
    lines, _ = drive("open_call(sys.argv[1])(cuda(4), cuda(0, data=0))", path, log=log)
    assert lines == []
    lines, _ = drive("open_call(sys.argv[1])(cuda(0, data=0), cuda(4))", path, log=log)  # a grid of 0
    assert [line for line in lines if line.startswith(("load", "launch"))] == []
    assert "push 0" in lines and "pop 0" in lines


def test_alignment_and_devices_are_checked_before_a_launch(tmp_path: Path, log: Path) -> None:
    host = host_program([SET_DEVICE, ("k", ["PTR((char *)DATA(0) + NUMBER(2))", "INT(1)", "INT(32)"])])
    params = [tensor("A", 8, align=16, written=True), tensor("B", 8), scalar("shift", "int64")]
    path = build(lowered(host, params, [DeviceKernel("k", ("ptr",), (16,), GRID)]), tmp_path, "scale")
    script = """
f = open_call(sys.argv[1])
say(attempt(f, cuda(8, data=0x1008), cuda(8), 0))
say(attempt(f, cuda(8), cuda(8), 8))
say(attempt(f, cuda(8), cuda(8, device=1), 0))
say(attempt(f, t(np.zeros(8, np.float32)), cuda(8), 0))
say(attempt(f, cuda(8, dtype="float16"), cuda(8), 0))
say(attempt(f, cuda(8, strides=(2,)), cuda(8), 0))
say(attempt(f, cuda(8, device=9), cuda(8, device=9), 0))
"""
    lines, said = drive(script, path, log=log)
    assert [message for _, message in said[:6]] == [
        "scale: argument 0 (A): misaligned data, expected an address that is a multiple of 16 bytes, got 0x1008",
        "scale: k: argument 0: misaligned pointer, expected an address that is a multiple of 16 bytes, got 0x7f0000000008",
        "scale: argument 1 (B): tensors on several devices, expected cuda:0, got cuda:1",
        "scale: argument 0 (A): wrong device, expected cuda, got cpu",
        "scale: argument 0 (A): wrong dtype, expected float32, got float16",
        "scale: argument 0 (A): strides[0] does not fit (the tensor must be contiguous), expected 1, got 2",
    ]
    assert said[6] == ["RuntimeError", "scale: cuDeviceGet failed: FAKE_ERROR_101 (made up)"]
    assert launches(lines) == []


@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        ("cuInit:100", r"kernel: cuInit failed: FAKE_ERROR_100 \(made up\)$"),
        ("cuLaunchKernelEx:719", r"kernel: launching k \(grid 2 x 1 x 1, block 32 x 1 x 1, 0 bytes .*FAKE_ERROR_719"),
        (
            "cuLibraryLoadData:209",
            r"This variant is for cuda:sm_90a; cuda:0 \(Fake GPU\) has .* 8\.6, .* offers CUDA 13\.0\.\nBuild .* cuda:sm_86",
        ),
        ("cuLibraryGetKernel:200", r"FAKE_ERROR_200 .*\n.*update the NVIDIA driver"),
        ("cuDevicePrimaryCtxRetain:2", r"kernel: cuDevicePrimaryCtxRetain failed: FAKE_ERROR_2"),
    ],
)
def test_errors_of_the_driver_say_what_failed(tmp_path: Path, log: Path, fail: str, expected: str) -> None:
    host = host_program([SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(2)", "INT(32)"])])
    path = build(lowered(host, [tensor("A", 8, written=True)], [DeviceKernel("k", ("ptr",), (1,), GRID)]), tmp_path)
    _, said = drive(
        "f = open_call(sys.argv[1])\nsay(attempt(f, cuda(8)))\nsay(attempt(f, cuda(8)))", path, fail=fail, log=log
    )
    for kind, message in said:  # the second call fails as the first: nothing half-made is kept
        assert kind == "RuntimeError"
        assert re.search(expected, message, re.S), message


def test_cuda_after_a_fork_and_without_a_driver(tmp_path: Path, log: Path) -> None:
    host = host_program([SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(2)", "INT(32)"])])
    path = build(lowered(host, [tensor("A", 8, written=True)], [DeviceKernel("k", ("ptr",), (1,), GRID)]), tmp_path)
    script = """
f = open_call(sys.argv[1])
f(cuda(8))
if os.fork() == 0:
    os.environ["FAKE_CUDA_FAIL"] = "cuLaunchKernelEx:3"
    say(attempt(f, cuda(8)))
    os._exit(0)
os.wait()
"""
    _, said = drive(script, path, log=log)
    assert "CUDA was used before this process was forked; start it with the spawn method" in said[0][1]
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a driver")
    output = run("say(attempt(open_call(sys.argv[1]), cuda(8)))", path, environ={"LD_LIBRARY_PATH": ""})
    assert "libcuda.so.1 cannot be loaded, so there is no CUDA here" in output


def test_threads_load_the_code_once(tmp_path: Path, log: Path) -> None:
    host = host_program([SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(2)", "INT(32)", "INT(50000)"])])
    kernel = DeviceKernel("k", ("ptr",), (1,), (*GRID, "dyn_shared"))
    path = build(lowered(host, [tensor("A", 8, written=True)], [kernel]), tmp_path)
    script = """
f, tensors = open_call(sys.argv[1]), [cuda(8, device=i % 2) for i in range(8)]
threads = [threading.Thread(target=lambda x=x: [f(x) for _ in range(50)]) for x in tensors]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    lines, _ = drive(script, path, log=log)
    starts = [line.split(" ")[0] for line in lines]
    assert starts.count("load") == 1
    assert sorted(line for line in lines if line.startswith(("attribute", "retain"))) == [
        "attribute 8 50000 k device 0",
        "attribute 8 50000 k device 1",
        "retain 0",
        "retain 1",
    ]
    assert starts.count("launch") == 400


@pytest.mark.parametrize("name", ["tvm_scale_host.c", "tvm025_scale_host.c"])
def test_host_code_of_tvm(tmp_path: Path, log: Path, name: str) -> None:
    host = (programs.HERE / name).read_text()
    params = [tensor("A", 1024), tensor("B", 1024, written=True)]
    path = build(lowered(host, params, [DeviceKernel("main_kernel", ("ptr", "ptr"), (4, 4), GRID)]), tmp_path)
    lines, _ = drive("open_call(sys.argv[1])(cuda(1024), cuda(1024, data=0x2000))", path, widths="8 8", log=log)
    a, b = struct.pack("<Q", 0x7F0000000000).hex(), struct.pack("<Q", 0x2000).hex()
    assert launches(lines) == [f"launch main_kernel grid 8 1 1 block 128 1 1 shared 0 stream 0 params {a} {b}"]


def test_host_code_of_tilelang(tmp_path: Path, log: Path) -> None:
    host = (programs.HERE / "tilelang_gemm_host.c").read_text()
    params = [tensor(n, 1024, 1024, dtype="float16", align=16, written=n == "C") for n in "ABC"]
    launch = ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y", "threadIdx.z", "dyn_shared")
    kernel = DeviceKernel("gemm_kernel", ("tensormap", "tensormap", "ptr"), (0, 0, 16), launch)
    path = build(lowered(host, params, [kernel], entry="__tvm_ffi_gemm"), tmp_path, "gemm")
    script = """
f = open_call(sys.argv[1])
f(*[cuda(1024, 1024, dtype="float16", data=d) for d in (0x1000, 0x2000, 0x3000)])
f(*[cuda(1024, 1024, dtype="float16", data=d, byte_offset=0x1000) for d in (0x1000, 0x2000, 0x3000)])
"""
    lines, _ = drive(script, path, widths="8 8 8", log=log)
    maps = [line for line in lines if line.startswith("tiled")]
    assert maps[:2] == [
        "tiled type 6 rank 2 dims 1024 1024 strides 2048 box 32 128 steps 1 1 rest 0 2 2 0 aligned 1",
        "tiled type 6 rank 2 dims 1024 1024 strides 2048 box 64 32 steps 1 1 rest 0 3 2 0 aligned 1",
    ]
    start = "launch gemm_kernel grid 8 8 1 block 256 1 1 shared 49152 stream 0 params"
    for line, addresses in zip(launches(lines), ((0x1000, 0x2000, 0x3000), (0x2000, 0x3000, 0x4000)), strict=True):
        assert line == " ".join([start, *(struct.pack("<Q", a).hex() for a in addresses)])


def test_declarations_are_those_of_cuda_h(tmp_path: Path) -> None:
    """Sizes, offsets and values of cuda_api.h against NVIDIA's header, where there is one."""
    roots = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", *sorted(map(str, Path("/usr/local").glob("cuda-*")))]
    include = next((Path(r) / "include" for r in roots if r and (Path(r) / "include" / "cuda.h").is_file()), None)
    if include is None:
        pytest.skip("no cuda.h here")
    text = (programs.NATIVE / "cuda_api.h").read_text()
    constants = re.findall(r"\b((?:CUDA_ERROR|CU_(?:FUNC|DEVICE|LIMIT|ACCESS|STREAM|LAUNCH))_\w+) = ", text)
    fields = {
        "CUlaunchConfig": ("gridDimX", "blockDimZ", "sharedMemBytes", "hStream", "attrs", "numAttrs"),
        "CUlaunchAttribute": ("id", "value"),
        "CUaccessPolicyWindow": ("base_ptr", "num_bytes", "hitRatio", "hitProp", "missProp"),
    }
    lines = [f'  printf("{c} %d\\n", (int){c});' for c in [*constants, "CUDA_SUCCESS"]]
    lines += [f'  printf("{s} %zu\\n", sizeof({s}));' for s in [*fields, "CUtensorMap", "CUlaunchAttributeValue"]]
    lines += [f'  printf("{s}.{f} %zu\\n", offsetof({s}, {f}));' for s, names in fields.items() for f in names]
    body = "#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\n  return 0;\n}\n"
    answers = []
    for header, folder in (("cuda.h", include), ("cuda_api.h", programs.NATIVE)):
        source, program = tmp_path / f"{header}.c", tmp_path / f"{header}.out"
        source.write_text(f'#include "{header}"\n{body}')
        subprocess.run([*programs.toolchain().host.cc, f"-I{folder}", "-o", program, source], check=True)
        answers.append(subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines())
    assert len(constants) > 20
    assert answers[0] == answers[1]
