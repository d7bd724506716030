"""The TVM frontend, in its worker: CPU kernels on any array that numpy makes, CUDA without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import has_distribution, has_nvcc
from native.programs import run

from tlaot import CompileArgs, par_compile
from tlaot.errors import BuildError, CallError

np = pytest.importorskip("numpy")


pytestmark = pytest.mark.skipif(not has_distribution("apache-tvm"), reason="needs apache-tvm")


def plus_one(N: int, threads: int = 128, lanes: int = 8, gpu: bool = False) -> Any:
    from tvm import te
    from tvm.s_tir import Schedule

    a = te.placeholder((N,), "float32", name="A")
    b = te.compute((N,), lambda i: a[i] + 1.0, name="B")
    schedule = Schedule(te.create_prim_func([a, b]))
    (i,) = schedule.get_loops(schedule.get_sblock("B"))
    outer, middle, inner = schedule.split(i, [None, threads, lanes])
    schedule.vectorize(inner)
    if gpu:
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(middle, "threadIdx.x")
    else:
        schedule.parallel(outer)
    return schedule


def compiled(target: str, **config: Any) -> Any:
    (kernel,) = par_compile(
        plus_one, [{"N": 4096, **config}], compile_args=CompileArgs(target=target, out_idx=[-1]), frontend="tvm"
    )
    return kernel


def test_vectorized_code_takes_arrays_at_any_address_of_an_element() -> None:
    """TVM's own default of 64 bytes makes LLVM use aligned moves, which crash on most of numpy's arrays."""
    kernel = compiled("llvm")
    assert [(param.name, param.align, param.written) for param in kernel.packed.variant.params] == [
        ("A", 4, False),
        ("B", 4, True),
    ]
    memory = np.arange(4096 + 17, dtype=np.float32)
    for offset in range(17):
        a = memory[offset : offset + 4096]
        assert (kernel(a) == a + 1).all()


@pytest.mark.skipif(not has_nvcc(), reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_cuda_is_compiled_and_linked_without_a_gpu(arch: str) -> None:
    kernel = compiled(f"cuda:{arch}", lanes=4, gpu=True)
    assert kernel.target.arch == arch
    # float4 accesses: a view that starts between them must be refused before the launch
    assert [param.align for param in kernel.packed.variant.params] == [16, 16]
    assert "__global__" in kernel.get_kernel_source()


def test_a_config_that_the_factory_does_not_take() -> None:
    with pytest.raises((BuildError, ValueError), match="tiles"):
        compiled("llvm", tiles=3)


def doubled() -> Any:
    from tvm import te, tirx

    m = tirx.Var("m", "int64")
    a = te.placeholder((m,), "float32", name="A")
    return te.create_prim_func([a, te.compute((m * 2,), lambda i: a[i // 2], name="B")])


def test_an_output_size_that_is_computed_from_others() -> None:
    """Nobody allocates it; one that is given is compared with what the kernel computes."""
    (kernel,) = par_compile(doubled, [{}], compile_args=CompileArgs(target="llvm", out_idx=[-1]), frontend="tvm")
    assert [param.shape for param in kernel.packed.variant.params] == [("m",), ("m*2",)]
    a = np.arange(4, dtype=np.float32)
    with pytest.raises(CallError, match=r"output B has the size m\*2, computed from others"):
        kernel(a)
    assert kernel(a, np.empty(8, np.float32)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match=r"Invalid B.shape\[0\]"):
        kernel(a, np.empty(7, np.float32))


def cut(N: int, factors: tuple[int, int] = (3, 5)) -> Any:
    from tvm import te
    from tvm.s_tir import Schedule

    a = te.placeholder((N,), "float32", name="A")
    schedule = Schedule(te.create_prim_func([a, te.compute((N,), lambda i: a[i] + 1.0, name="B")]))
    schedule.split(schedule.get_loops(schedule.get_sblock("B"))[0], list(factors))
    return schedule


def test_why_a_schedule_is_refused() -> None:
    with pytest.raises(BuildError, match="ScheduleError: split: The product of factors is not larger than or equal to"):
        par_compile(cut, [{"N": 64}], compile_args=CompileArgs(target="llvm", out_idx=[-1]), frontend="tvm")


def rows_plus_one(wide: bool) -> Any:
    """``B = A + 1`` for any number of rows, which is an int32 or an int64."""
    from tvm.script import tirx as T  # noqa: N812

    size = T.int64 if wide else T.int32

    @T.prim_func
    def main(a: T.handle, b: T.handle):
        m = size()
        A = T.match_buffer(a, (m, 65536), "float32")
        B = T.match_buffer(b, (m, 65536), "float32")
        for i in range(m):
            for j in range(65536):
                B[i, j] = A[i, j] + T.float32(1)

    return main


def test_int32_code_takes_no_tensor_that_it_cannot_address(tmp_path: Path) -> None:
    """TVM computes an element's offset in the type of the symbolic sizes; one that overflows would be anywhere in memory."""
    options = CompileArgs(target="llvm")
    for wide, kernel in enumerate(
        par_compile(rows_plus_one, [{"wide": False}, {"wide": True}], compile_args=options, frontend="tvm")
    ):
        a = np.zeros((3, 65536), "f4")
        b = np.zeros_like(a)
        kernel(a, b)
        assert (b == 1).all()
        kernel.export_library(tmp_path / f"{wide}.so")
    # Memory that is not there: what is not refused ends the process.
    script = """
f = open_call(sys.argv[1])
print(attempt(f, cuda(32768, 65536, data=64, kind=1), cuda(32768, 65536, data=64, kind=1)))
"""
    assert "argument 0 (A): too large for code that addresses elements with 32 bits" in run(script, tmp_path / "0.so")
    with pytest.raises(AssertionError, match="exit status -11"):
        run(script, tmp_path / "1.so")
