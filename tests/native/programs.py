"""Host programs for tests: C in the form that TileLang and TVM generate, and their linking into executable.so."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tlaot.manifest import Param
from tlaot.target import Target, parse_target
from tlaot.tune.compiling.link import NATIVE, link_executable
from tlaot.tune.compiling.toolchain import Toolchain, find_cc
from tlaot.tune.frontends.lowered import DeviceKernel, Lowered

HERE = Path(__file__).parent
LLVM = parse_target("llvm:x86-64")
CUDA = parse_target("cuda:sm_90a")

_HEAD = """
#include "tvm/ffi/extra/c_env_api.h"
#include "tvm/runtime/base.h"
#include "tvm/runtime/c_backend_api.h"
#include "tvm/ffi/c_api.h"
#include <stdbool.h>
#define TENSOR(i) ((DLTensor *)((TVMFFIAny *)args)[i].v_ptr)
#define DATA(i) (TENSOR(i)->data)
#define SIZE(i, d) (TENSOR(i)->shape[d])
#define NUMBER(i) (((TVMFFIAny *)args)[i].v_int64)
#define REAL(i) (((TVMFFIAny *)args)[i].v_float64)
#define PTR(value) (TVMFFIAny){.type_index = 4, .v_ptr = (value)}
#define INT(value) (TVMFFIAny){.type_index = 1, .v_int64 = (value)}
#define FLOAT(value) (TVMFFIAny){.type_index = 3, .v_float64 = (value)}
void *__tvm_ffi__library_ctx = NULL;
"""


@functools.cache
def toolchain() -> Toolchain:
    return Toolchain(find_cc(os.environ))


@functools.cache
def scratch() -> Path:
    """One folder for the session, so that the fixed C files are compiled once."""
    folder = tempfile.TemporaryDirectory(prefix="tlaot-native-")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[Any] = []


def tensor(name: str, *shape: int | str, dtype: str = "float32", **rest: Any) -> Param:
    return Param(name, dtype, tuple(shape), **rest)


def scalar(name: str, dtype: str) -> Param:
    return Param(name, dtype, None)


def host_program(calls: Sequence[tuple[str, Sequence[str]]], before: str = "", lookup: str = "") -> str:
    """A packed entry ``__tvm_ffi_main`` that calls named functions, each with values written with the macros above."""
    lookup = lookup or "TVMFFIEnvModLookupFromImports"
    body = []
    for i, (name, values) in enumerate(calls):
        body.append(f"  static void *function_{i} = NULL;")
        body.append(f"  TVMFFIAny values_{i}[] = {{{', '.join([*values, '{0}'])}}};")
        body.append(
            f'  if (!function_{i} && {lookup}(__tvm_ffi__library_ctx, "{name}", &function_{i}) != 0) return -1;'
        )
        body.append(f"  TVMFFIAny result_{i} = {{0}};")
        body.append(f"  if (TVMFFIFunctionCall(function_{i}, values_{i}, {len(values)}, &result_{i}) != 0) return -1;")
    lines = "\n".join(body)
    return (
        f"{_HEAD}\nTVM_DLL int32_t __tvm_ffi_main(void *self, void *args, int32_t num_args, void *result) {{\n"
        f"  int32_t dev_id = TENSOR(0)->device.device_id; (void)dev_id;\n{before}\n{lines}\n  return 0;\n}}\n"
    )


SET_DEVICE = ("__tvm_set_device", ["INT(2)", "INT(dev_id)"])


def lowered(host: str, params: Sequence[Param], kernels: Sequence[DeviceKernel] = (), **rest: Any) -> Lowered:
    rest = {"entry": "__tvm_ffi_main", "entry_abi": "packed", **rest}
    return Lowered(params=tuple(params), host_source=host, kernels=tuple(kernels), **rest)


def build(
    program: Lowered, out: Path, name: str = "kernel", target: Target | None = None, cubin: bytes | None = None
) -> Path:
    """Link into ``out/executable.so``; a program with device functions is for CUDA."""
    target = target or (CUDA if program.kernels else LLVM)
    if target.is_cuda and cubin is None:
        cubin = b"\x7fELF fake cubin"
    link_executable(program, cubin, target, name, scratch(), out, toolchain())
    return out / "executable.so"


def run(script: str, *arguments: object, environ: Mapping[str, str] | None = None, check: bool = True) -> str:
    """Run Python in a process of its own, with tests/native/driver.py importable; its standard output."""
    paths = [str(HERE), str(NATIVE.parents[2]), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, "-c", "from driver import *\n" + script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=240,
    )
    if check:
        assert result.returncode == 0, f"exit status {result.returncode}\n{result.stdout}\n{result.stderr[-3000:]}"
    return result.stdout


@functools.cache
def fake_driver() -> Path:
    """The folder of a ``libcuda.so.1`` that logs its calls."""
    folder = scratch() / "fake"
    folder.mkdir()
    command = [*toolchain().host.cc, "-shared", "-fPIC", "-Wall", "-Werror", f"-I{NATIVE}"]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1"), str(HERE / "fake_cuda.c")], check=True)
    return folder


def drive(
    script: str, *arguments: object, widths: str = "", fail: str = "", log: Path, **more: str
) -> tuple[list[str], list[Any]]:
    """Run a script against the fake driver; ``more``: its other variables, ``jit_log`` for ``FAKE_CUDA_JIT_LOG``.

    Returns:
        The driver's log, and what the script printed, a JSON value a line.
    """
    environ = {
        "LD_LIBRARY_PATH": str(fake_driver()),
        "FAKE_CUDA_LOG": str(log),
        "FAKE_CUDA_WIDTHS": widths,
        "FAKE_CUDA_FAIL": fail,
        **{f"FAKE_CUDA_{name.upper()}": value for name, value in more.items()},
    }
    output = run(script, *arguments, environ=environ)
    lines = log.read_text().splitlines() if log.exists() else []
    return lines, [json.loads(line) for line in output.splitlines()]
