"""The TileLang frontend, end to end without a GPU: lowering, nvcc, the linker, and running the CPU target."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child_call import call

from tlaot.elf import cubin_architecture
from tlaot.errors import BuildError, SpecError
from tlaot.target import parse_target
from tlaot.tune.children.bound import TensorLayout
from tlaot.tune.compiling.link import link_executable
from tlaot.tune.compiling.nvcc import compile_cuda
from tlaot.tune.compiling.toolchain import Toolchain, find_cc, find_nvcc
from tlaot.tune.frontends import DeviceKernel, Lowered
from tlaot.tune.specs.dynamic import bind_params

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="tilelang is not installed")

ARCHES = {"sm_80": 80, "sm_90a": 90, "sm_100a": 100}
GEMM = {"M": 1024, "N": 1024, "K": 1024}

# The widest vector type through which CUDA source accesses an argument: *(uint4*)(A + ...).
_VECTOR_TYPE = re.compile(r"\*\((?:const )?([a-z_]+?)(\d)\s?\*\)\((\w+) \+")
_SCALAR_BYTES = {
    **{"uchar": 1, "char": 1, "ushort": 2, "short": 2, "half": 2, "uint": 4, "int": 4, "float": 4},
    **{"double": 8, "longlong": 8, "ulonglong": 8},
}


@pytest.fixture(scope="module")
def child() -> Iterator[Callable[..., Any]]:
    """One process that has TileLang imported, as a worker of tlaot has."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda *args, **kwargs: pool.submit(call, "tilelang_cases", *args, **kwargs).result(timeout=300)


@pytest.fixture(scope="module")
def lower(child: Callable[..., Any]) -> Callable[..., Lowered]:
    return lambda *args, **kwargs: child("lower", *args, **kwargs)


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    try:
        return Toolchain(find_cc(os.environ), find_nvcc(os.environ))
    except BuildError as error:
        pytest.skip(str(error))


def _only(lowered: Lowered) -> DeviceKernel:
    (kernel,) = lowered.kernels
    return kernel


@pytest.mark.parametrize("arch", ARCHES)
def test_gemm_becomes_an_executable(
    arch: str, lower: Callable[..., Lowered], toolchain: Toolchain, tmp_path: Path
) -> None:
    target = parse_target(f"cuda:{arch}")
    lowered = lower("matmul", str(target), GEMM, {"num_stages": 3}, out_idx=[-1])
    assert lowered.entry == "__tvm_ffi_matmul"
    assert (lowered.entry_abi, lowered.out_idx) == ("packed", (2,))
    assert [(p.name, p.dtype, p.shape, p.strides) for p in lowered.params] == [
        (name, "float16", (1024, 1024), None) for name in "ABC"
    ]
    assert [p.written for p in lowered.params] == [False, False, True]
    assert [p.align for p in lowered.params] == [16, 16, 16]
    kernel = _only(lowered)
    assert kernel.args == (("ptr",) * 3 if arch == "sm_80" else ("tensormap",) * 3)
    assert kernel.launch == ("blockIdx.x", "blockIdx.y", *(f"threadIdx.{axis}" for axis in "xyz"), "dyn_shared")
    assert kernel.dyn_shared == 49152
    # A group of threads that only loads is added where TMA is used.
    assert kernel.threads == (128 if arch == "sm_80" else 256)
    assert lowered.device_source is not None and toolchain.cuda is not None
    cubin = compile_cuda(lowered.device_source, target, lowered.device_flags, tmp_path, 300, toolchain.cuda)
    assert cubin_architecture(cubin.data, arch) == ARCHES[arch]
    link_executable(lowered, cubin.data, target, "matmul", tmp_path, tmp_path / "out", toolchain)
    assert (tmp_path / "out" / "executable.so").stat().st_size > len(cubin.data)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("kernel", "sizes"), [("softmax", (77, 1000)), ("rms_norm", (77, 4096))])
def test_row_kernels_lower_with_every_config(
    kernel: str, sizes: tuple[int, int], arch: str, child: Callable[..., Any], lower: Callable[..., Lowered]
) -> None:
    shape = dict(zip(("M", "N"), sizes, strict=True))
    space = child("configs", kernel, *sizes)
    assert len(space) >= 8
    sources = set()
    for config in space if arch == "sm_90a" else space[:2]:
        lowered = lower(kernel, f"cuda:{arch}", shape, config, out_idx=[-1])
        assert [p.written for p in lowered.params] == [False] * (len(lowered.params) - 1) + [True]
        assert _only(lowered).threads == config["threads"]
        assert _assumed_by_source(lowered) == list(_only(lowered).aligns)
        sources.add(lowered.device_source)
    if arch == "sm_90a":
        assert len(sources) == len(space)


@pytest.mark.parametrize("kernel", ["softmax", "rms_norm"])
def test_row_kernels_compile(kernel: str, lower: Callable[..., Lowered], toolchain: Toolchain, tmp_path: Path) -> None:
    target = parse_target("cuda:sm_90a")
    lowered = lower(kernel, str(target), {"M": 77, "N": 1000}, {"chunk": 1024, "threads": 256})
    assert lowered.device_source is not None and toolchain.cuda is not None
    cubin = compile_cuda(lowered.device_source, target, lowered.device_flags, tmp_path, 300, toolchain.cuda)
    assert cubin.spills == 0


def test_symbolic_size(lower: Callable[..., Lowered]) -> None:
    lowered = lower("matmul", "cuda:sm_90a", {"M": "M", "N": 1024, "K": 1024})
    assert [p.shape for p in lowered.params] == [("M", 1024), (1024, 1024), ("M", 1024)]
    assert [p.strides for p in lowered.params] == [None] * 3
    assert _only(lowered).args == ("tensormap", "tensormap", "tensormap", "int32")
    assert not lowered.narrow


def test_a_size_that_the_code_opens_itself(lower: Callable[..., Lowered]) -> None:
    """It is named as a dynamic one, and is no argument; what is neither is refused where the sizes are bound."""
    lowered = lower("cpu_add", "c", {"m": "m", "other": "other"})
    assert lowered.params[0].shape == lower("cpu_add", "c").params[0].shape and lowered.params[0].shape[0] == "m"
    with pytest.raises(SpecError, match="other is the size of no tensor of the kernel; sizes that it leaves open: m"):
        bind_params(lowered.params, {"other": 3}, "kernel")


def test_offsets_that_may_not_fit_in_32_bits_are_computed_in_64(lower: Callable[..., Lowered]) -> None:
    """So that a tensor of any size may be taken."""
    for target in ("cuda:sm_80", "c:x86-64-v3"):
        lowered = lower("rows", target)
        assert not lowered.narrow
        assert "int64_t" in (lowered.device_source or lowered.host_source or "")


def test_strided_tensor(lower: Callable[..., Lowered]) -> None:
    x, y = lower("strided", "cuda:sm_80").params
    assert (x.shape, x.strides, x.align, x.dtype) == (("m", 4), ("stride", 1), 2, "bfloat16")
    assert (y.shape, y.strides, y.align) == (("m", 4), None, 4)


def test_scalars_keep_their_width(lower: Callable[..., Lowered], toolchain: Toolchain, tmp_path: Path) -> None:
    lowered = lower("scalars", "cuda:sm_80")
    expected = {"f": "float32", "q": "uint8", "big": "int64", "h": "float16", "flag": "bool"}
    assert {p.name: p.dtype for p in lowered.params if p.shape is None} == expected
    kernel = _only(lowered)
    assert sorted(kernel.args) == sorted(["ptr", "ptr", *expected.values()])
    # The device function's own order, which is not the kernel's.
    assert lowered.device_source is not None and toolchain.cuda is not None
    signature = re.search(r"scalars_kernel\((.*?)\);", lowered.device_source)
    assert signature is not None
    names = [part.split()[-1] for part in signature[1].split(",")]
    assert [expected.get(name, "ptr") for name in names] == list(kernel.args)
    # One access of four bytes a thread: any float32 address will do.
    assert [p.align for p in lowered.params if p.shape] == [4, 4]
    target = parse_target("cuda:sm_80")
    compile_cuda(lowered.device_source, target, lowered.device_flags, tmp_path, 300, toolchain.cuda)


def test_cluster_comes_first_in_the_launch(lower: Callable[..., Lowered]) -> None:
    kernel = _only(lower("cluster", "cuda:sm_90a"))
    assert kernel.launch[:4] == ("cluster.x", "cluster.y", "cluster.z", "blockIdx.x")
    assert kernel.launch[-1] == "dyn_shared"
    assert kernel.aligns == (16, 16)  # the bulk copy's


def test_several_kernels_with_dependent_launch(lower: Callable[..., Lowered]) -> None:
    lowered = lower("chained", "cuda:sm_90a")
    first, second = lowered.kernels
    assert "pdl" not in first.launch
    assert second.launch[-1] == "pdl"
    assert [p.written for p in lowered.params] == [False, True, True]


def test_grid_synchronization_is_a_cooperative_launch(lower: Callable[..., Lowered]) -> None:
    assert _only(lower("cooperative", "cuda:sm_80")).launch[-1] == "cooperative"


@pytest.mark.parametrize(("arch", "align"), [("sm_80", 16), ("sm_90a", 16), ("sm_100a", 32)])
def test_alignment_is_that_of_the_widest_access(arch: str, align: int, lower: Callable[..., Lowered]) -> None:
    lowered = lower("wide", f"cuda:{arch}")
    assert lowered.device_source is not None
    assert ("global_256" in lowered.device_source) == (align == 32)
    assert [p.align for p in lowered.params] == [align, align]


def test_atomics_write_and_need_an_element(lower: Callable[..., Lowered]) -> None:
    a, total = lower("atomic", "cuda:sm_80").params
    assert (a.written, total.written, total.align) == (False, True, 4)


@pytest.mark.parametrize("case", ["lazy", "wrapping"])
def test_decorator_options_are_taken_and_its_target_is_not(case: str, lower: Callable[..., Lowered]) -> None:
    lowered = lower(case, "cuda:sm_90a", {"N": 4096}, {"threads": 128})
    assert lowered.out_idx == (1,)
    assert {"--use_fast_math", "-DONE", "-DTWO=2", "-DTHREE"} <= set(lowered.device_flags)
    assert _only(lowered).threads == 128


def test_spec_options_win(lower: Callable[..., Lowered]) -> None:
    options = {"TL_ENABLE_FAST_MATH": False, "tl.ptxas_register_usage_level": 5}
    lowered = lower(
        "lazy", "cuda:sm_80", {"N": 64}, {"pass_configs": {"tl.ptxas_register_usage_level": 7}}, options, [0]
    )
    assert "--use_fast_math" not in lowered.device_flags
    assert "--ptxas-options=--register-usage-level=7" in lowered.device_flags
    assert lowered.out_idx == (0,)


def test_autotuned_and_returned_jit_functions(lower: Callable[..., Lowered]) -> None:
    assert _only(lower("autotuned", "cuda:sm_80", {"N": 512}, {"threads": 128})).threads == 128
    assert lower("returning_jit", "cuda:sm_80", {"N": 512}).out_idx == (1,)


def test_eager_kernels(lower: Callable[..., Lowered]) -> None:
    lowered = lower("eager", "cuda:sm_80", {"M": 16, "N": 256}, {"threads": 128})
    assert [(p.name, p.shape, p.written) for p in lowered.params] == [("A", (16, 256), False), ("B", (16, 256), True)]
    lowered = lower("eager_returning", "cuda:sm_80", {"M": 16, "N": 256})
    assert lowered.out_idx == (1,)
    assert lowered.host_source is not None and "EnvTensorAlloc" not in lowered.host_source


def test_partials_of_jit_functions_are_taken_apart(child: Callable[..., Any]) -> None:
    lowered = child("lower_partial", "eager", "cuda:sm_80", (), {"M": 16, "N": 256, "threads": 32}, {"threads": 128})
    assert [p.shape for p in lowered.params] == [(16, 256), (16, 256)]
    assert _only(lowered).threads == 128
    lowered = child("lower_partial", "lazy", "cuda:sm_80", (4096,), {"threads": 32})
    assert (lowered.params[0].shape, _only(lowered).threads) == ((4096,), 32)
    with pytest.raises(TypeError, match="the partial fixes 3 arguments"):
        child("lower_partial", "lazy", "cuda:sm_80", (1, 2, 3), {})


def test_eager_kernels_take_sizes_from_tensors(child: Callable[..., Any]) -> None:
    tensor = TensorLayout((16, 256), (256, 1), "float32", "cuda:0")
    lowered = child("lower_called", "eager_typed", "cuda:sm_80", {}, tensor, tensor)
    assert [(p.shape, p.dtype) for p in lowered.params] == [((16, 256), "float32"), ((16, 256), "float32")]
    assert _only(lowered).threads == 128


def test_eager_kernels_with_symbolic_sizes_need_no_tensors(child: Callable[..., Any]) -> None:
    lowered = child("lower_called", "eager_symbolic", "cuda:sm_80", {})
    assert [(p.name, p.shape) for p in lowered.params] == [("A", ("rows", 64)), ("B", ("rows", 64)), ("f", None)]


def test_eager_functions_are_tuned_as_they_are_called(child: Callable[..., Any], tmp_path: Path) -> None:
    errors, tunings = child("tune_eager_cpu", str(tmp_path))
    assert errors == [0.0, 0.0, 0.0]
    assert tunings == [1, 1], "a scalar of a call makes no other kernel"


def test_layouts_of_tensors() -> None:
    whole = np.zeros((4, 6), "float32")
    assert TensorLayout.of(whole[:, ::2]) == TensorLayout((4, 3), (6, 2), "float32", str(getattr(whole, "device", "")))
    assert TensorLayout.of(whole).stride() == (6, 1)


@pytest.mark.parametrize(
    ("case", "shape", "config", "error", "text"),
    [
        ("raising", {"N": 8}, {}, ValueError, "no kernel for N = 8"),
        ("matmul", GEMM, {"blokM": 64}, TypeError, "unused config key 'blokM': the factory takes (M, N, K, block_M"),
        ("matmul", {**GEMM, "B": 1}, {}, TypeError, "unused shape key 'B'"),
        ("matmul", {"M": 8, "N": 8}, {}, TypeError, "argument 'K' is in neither shape nor config"),
        ("matmul", GEMM, {"K": 8}, TypeError, "shape and config both set K"),
        ("matmul", {**GEMM, "N": 1001}, {}, ValueError, "are not multiples of 8"),
        ("returning_text", {"N": 8}, {}, TypeError, "returned str, expected a TileLang PrimFunc"),
        ("raw_pointer", {}, {}, ValueError, "is a raw pointer"),
        ("workspace", {}, {}, ValueError, "allocates global memory"),
        ("eager", {"M": 16, "N": 256}, {"thread": 4}, TypeError, "unused config key 'thread'"),
    ],
)
def test_bad_factories(
    case: str, shape: Any, config: Any, error: type[Exception], text: str, lower: Callable[..., Lowered]
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        lower(case, "cuda:sm_80", shape, config)


@pytest.mark.parametrize(("out_idx", "text"), [([3], "out of range"), ([1], "f, a scalar")])
def test_bad_out_idx(out_idx: list[int], text: str, lower: Callable[..., Lowered]) -> None:
    with pytest.raises(ValueError, match=text):
        lower("matmul" if out_idx == [3] else "scalars", "cuda:sm_80", GEMM if out_idx == [3] else {}, out_idx=out_idx)


def test_cpu_kernel_with_strides_scalars_and_symbols(
    lower: Callable[..., Lowered], toolchain: Toolchain, tmp_path: Path
) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    call = _link_cpu(lower("cpu_add", "c"), "cpu_add", toolchain, tmp_path, tvm_ffi)
    x = np.arange(60, dtype=np.float32).reshape(5, 12)[:, :7]
    b, a = np.linspace(0, 1, 7, dtype=np.float32), np.zeros((5, 7), np.float32)
    call(tvm_ffi.from_dlpack(x), 3, 0.5, tvm_ffi.from_dlpack(b), tvm_ffi.from_dlpack(a))
    np.testing.assert_allclose(a, x * np.float32(0.5) + b + 3, rtol=1e-6)


def test_cpu_matmul(lower: Callable[..., Lowered], toolchain: Toolchain, tmp_path: Path) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    lowered = lower("cpu_matmul", "c:x86-64-v2", {"M": 48, "N": 32, "K": 64}, out_idx=[2])
    assert [(p.align, p.written) for p in lowered.params] == [(4, False), (4, False), (4, True)]
    call = _link_cpu(lowered, "cpu_matmul", toolchain, tmp_path, tvm_ffi, "c:x86-64-v2")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((48, 64), (64, 32)))
    c = np.full((48, 32), np.nan, np.float32)
    call(*(tvm_ffi.from_dlpack(array) for array in (a, b, c)))
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_tiles_of_a_gpu_are_named_where_a_processor_has_none(lower: Callable[..., Lowered]) -> None:
    with pytest.raises(ValueError, match=r"no fragments and no shared memory: use T\.alloc_local.*\(TileLang: .+\)"):
        lower("matmul", "c:x86-64-v2", {"M": 64, "N": 64, "K": 64})


def test_cpu_refuses_a_scalar_that_c_lacks(lower: Callable[..., Lowered]) -> None:
    with pytest.raises(ValueError, match="scalar h is float16"):
        lower("scalars", "c")


@pytest.mark.parametrize("strided", [False, True])
def test_a_size_computed_from_others(strided: bool, lower: Callable[..., Lowered]) -> None:
    """The host code for CUDA compares it at each call; for the CPU nothing would, so that a short tensor were overrun."""
    with pytest.raises(ValueError, match=r"B has the size m\*2, computed from others, which nothing checks"):
        lower("computed_size", "c", {}, {"strided": strided})
    if not strided:
        lowered = lower("computed_size", "cuda:sm_80")
        assert [param.shape for param in lowered.params] == [("m",), ("m*2",)]
        assert "B shape[0] violates packed ABI constraint" in (lowered.host_source or "")


def _link_cpu(
    lowered: Lowered, name: str, toolchain: Toolchain, folder: Path, tvm_ffi: Any, target: str = "c:x86-64-v3"
) -> Callable[..., Any]:
    link_executable(lowered, None, parse_target(target), name, folder, folder / "out", toolchain)
    function: Callable[..., Any] = tvm_ffi.load_module(str(folder / "out" / "executable.so"))["tlaot_call"]
    return function


def _assumed_by_source(lowered: Lowered) -> list[int]:
    """A second opinion on alignments: from the vector types in the CUDA text, where there is no other access."""
    assert lowered.device_source is not None
    elements = {"half_t": 2, "bfloat16_t": 2, "float": 4}
    signature = re.search(r"_kernel\((.*?)\);", lowered.device_source)
    assert signature is not None
    widest = {}
    for part in signature[1].split(","):
        *words, name = part.replace("*", " ").split()
        widest[name] = next(elements[word] for word in words if word in elements)
    for scalar, lanes, name in _VECTOR_TYPE.findall(lowered.device_source):
        if name in widest:
            widest[name] = max(widest[name], _SCALAR_BYTES[scalar] * int(lanes))
    return list(widest.values())
