"""The TVM kernels of the GPU tests, compiled without a GPU and launched on the fake driver."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from conftest import has_distribution, has_nvcc

pytest.importorskip("tvm_ffi")
pytest.importorskip("numpy")
if not has_nvcc():
    pytest.skip("needs nvcc", allow_module_level=True)
if not has_distribution("apache-tvm"):
    pytest.skip("needs apache-tvm", allow_module_level=True)

from native.programs import drive
from tvm_cases import compile_case

LAUNCH = "launch {} grid {} 1 block {} 1 shared {} stream 0 params"


@pytest.mark.parametrize(
    ("name", "calls", "widths", "expected"),
    [
        (
            "matmul_dynamic",
            ["cuda(256, 256), cuda(256, 192), cuda(256, 192)"],
            "",
            ["attribute 8 65536 main_kernel device 0", LAUNCH.format("main_kernel", "3 4", "16 16", 65536)],
        ),
        (
            "scale_shift",
            ["cuda(4096), -1.5, -7, cuda(4096)"],
            "0 0 4 4",
            [LAUNCH.format("main_kernel", "32 1", "128 1", 0) + "   " + struct.pack("<f", -1.5).hex() + " f9ffffff"],
        ),
        (
            "symbolic_rows",
            ["cuda(7, 100), cuda(7, 100)", "cuda(0, 100, data=0), cuda(0, 100, data=0)"],
            "",
            [LAUNCH.format("main_kernel", "6 1", "128 1", 0)],
        ),
        (
            "two_launches",
            ["*[cuda(1 << 20) for _ in range(3)]"],
            "",
            [LAUNCH.format(kernel, "8192 1", "128 1", 0) for kernel in ("main_kernel", "main_kernel_1")],
        ),
    ],
)
def test_launches(tmp_path: Path, name: str, calls: list[str], widths: str, expected: list[str]) -> None:
    compile_case(name, "cuda:sm_90a").save_to_disk(tmp_path / name)
    script = "f = open_call(sys.argv[1])\n" + "".join(f"f({arguments})\n" for arguments in calls)
    lines, _ = drive(script, tmp_path / name / "executable.so", widths=widths, log=tmp_path / "log")
    assert [line for line in lines if line.startswith(("launch", "attribute"))] == expected
