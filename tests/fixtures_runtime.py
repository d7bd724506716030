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

import pytest

from tlaot.manifest import FOLDER, FileDigest, Kernel, Manifest, Param, Variant, digest_of, dumps

SOURCES = Path(__file__).parent / "native_fixture"


def tensor(name: str, *shape: int | str, dtype: str = "float32", **rest: Any) -> Param:
    return Param(name, dtype, tuple(shape), **rest)


def scalar(name: str, dtype: str = "float32") -> Param:
    return Param(name, dtype, None)


FLOAT32 = 2 * 256 + 32


def compile_kernel(
    count: int,
    out_mask: int,
    level: int = 1,
    label: int = 0,
    align: int = 1,
    dtype: int = 0,
    spin: int = 0,
    loose: bool = False,
) -> bytes:
    """Bytes of an ``executable.so`` for a number of parameters, of which a mask says the outputs."""
    defines = {"COUNT": count, "OUT_MASK": out_mask, "LEVEL": level, "LABEL": label, "ALIGN": align, "DTYPE": dtype}
    if spin:
        defines["SPIN"] = spin
    if loose:
        defines["LOOSE"] = 1
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


@functools.cache
def direct_library() -> bytes:
    """Bytes of a ``direct.so``."""
    import os

    from tlaot.tune.compiling.link import link_direct
    from tlaot.tune.compiling.toolchain import find_cc

    with tempfile.TemporaryDirectory() as folder:
        return link_direct(Path(folder), find_cc(os.environ))


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
    root: Path,
    package: str,
    kernels: Mapping[str, Sequence[tuple[Variant, bytes]]],
    init: str = "",
) -> Manifest:
    """Write ``root/package`` with a manifest and the files of its variants."""
    folder = root / package
    shutil.rmtree(folder, ignore_errors=True)
    (folder / FOLDER).mkdir(parents=True)
    (folder / "__init__.py").write_text(init)
    made = {}
    for name, built in kernels.items():
        variants = []
        for one, binary in built:
            variants.append(write_variant(folder / FOLDER, one, binary))
        made[name] = Kernel(name, tuple(variants))
    manifest = Manifest(package, made, "0.1.0")
    (folder / FOLDER / "manifest.json").write_text(dumps(manifest))
    return manifest


# Whether what is written has a direct.so, as a package that tlaot builds.
has_direct = False


@pytest.fixture
def direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls through ``direct.so``."""
    monkeypatch.setitem(globals(), "has_direct", True)


@pytest.fixture(params=["direct", "python"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls through ``direct.so``, and the way of a package without."""
    monkeypatch.setitem(globals(), "has_direct", request.param == "direct")


def write_variant(folder: Path, one: Variant, binary: bytes) -> Variant:
    """Write a variant's files below the manifest's folder; the variant that lists them."""
    place = folder / one.path
    place.mkdir(parents=True)
    contents = {"executable.so": binary, **({"direct.so": direct_library()} if has_direct else {})}
    for file, data in contents.items():
        (place / file).write_bytes(data)
    return with_files(one, {file: digest_of(data) for file, data in contents.items()})


def with_files(one: Variant, files: Mapping[str, FileDigest]) -> Variant:
    return dataclasses.replace(one, files=dict(files))
