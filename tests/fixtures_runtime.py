"""Packages of hand-written kernels, for tests of the run-time side without a compiler of kernels."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tlaot.manifest import FOLDER, FileDigest, Kernel, Manifest, Param, Variant, digest_of, dumps

SOURCES = Path(__file__).parent / "native_fixture"


def tensor(name: str, *shape: int | str, dtype: str = "float32", **rest: Any) -> Param:
    return Param(name, dtype, tuple(shape), **rest)


def scalar(name: str, dtype: str = "float32") -> Param:
    return Param(name, dtype, None)


FLOAT32 = 2 * 256 + 32


def compile_kernel(
    count: int, out_mask: int, level: int = 1, label: int = 0, align: int = 1, dtype: int = 0, spin: int = 0
) -> bytes:
    """Bytes of an ``executable.so`` for a number of parameters, of which a mask says the outputs."""
    defines = {"COUNT": count, "OUT_MASK": out_mask, "LEVEL": level, "LABEL": label, "ALIGN": align, "DTYPE": dtype}
    if spin:
        defines["SPIN"] = spin
    return compile_source("elementwise.c", **defines)


@functools.cache
def compile_source(source: str, **defines: int) -> bytes:
    """Bytes of a shared library made of one of the C files in ``native_fixture``."""
    import tvm_ffi

    include = Path(tvm_ffi.__file__).parent / "include"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "executable.so"
        subprocess.run(
            ["gcc", "-std=c11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{include}", str(SOURCES / source)]
            + [f"-D{name}={value}" for name, value in defines.items()]
            # As link.py does. The C library runs what gcc's start files register for the end of the process, by addresses in
            # the library's data: once a test has overwritten the file, that is a jump to nowhere.
            + ["-nostartfiles", "-lm", "-Wl,-z,nodelete", "-o", str(out)],
            check=True,
        )
        return out.read_bytes()


def variant(
    kernel: str,
    params: Sequence[Param],
    out_idx: Sequence[int],
    shape: Mapping[str, Any],
    target: str = "llvm:x86-64",
    **rest: Any,
) -> Variant:
    """A variant without files, as the resolver needs it."""
    workload = "-".join(f"{k}{v}" for k, v in sorted(shape.items())) or "any"
    return Variant(
        target=target,
        shape=dict(shape),
        config={"block": 1},
        path=f"{kernel}/{target.replace(':', '-')}/{workload}",
        params=tuple(params),
        out_idx=tuple(out_idx),
        latency={"latency": 1.0, "ref_latency": 2.0, "default_latency": 3.0, "spread": 0.1},
        files=rest.pop("files", {}),
        **rest,
    )


def write_package(
    root: Path, package: str, kernels: Mapping[str, Sequence[tuple[Variant, bytes]]], init: str = ""
) -> Manifest:
    """Write ``root/package`` with a manifest and the binaries of its variants."""
    folder = root / package
    shutil.rmtree(folder, ignore_errors=True)
    (folder / FOLDER).mkdir(parents=True)
    (folder / "__init__.py").write_text(init)
    made = {}
    for name, built in kernels.items():
        variants = []
        for one, binary in built:
            place = folder / FOLDER / one.path
            place.mkdir(parents=True)
            (place / "executable.so").write_bytes(binary)
            variants.append(with_files(one, {"executable.so": digest_of(binary)}))
        made[name] = Kernel(name, tuple(variants))
    manifest = Manifest(package, made, "0.1.0")
    (folder / FOLDER / "manifest.json").write_text(dumps(manifest))
    return manifest


def with_files(one: Variant, files: Mapping[str, FileDigest]) -> Variant:
    return dataclasses.replace(one, files=dict(files))
