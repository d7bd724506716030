"""What device code says of itself: architecture, release, and that PTX names no files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tlaot.errors import BuildError
from tlaot.image import Image, read_image
from tlaot.tune.compiling.toolchain import find_nvcc

PTX = "//\n.version {}\n.target {}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"


@pytest.mark.parametrize(
    ("version", "cuda"),
    [
        ("7.0", "11.0"),
        ("7.8", "11.8"),
        ("8.0", "12.0"),
        ("8.5", "12.5"),
        ("8.6", "12.7"),
        ("8.7", "12.8"),
        ("8.8", "12.9"),
        ("9.0", "13.0"),
        ("9.1", "13.1"),
    ],
)
def test_ptx_says_what_reads_it(version: str, cuda: str) -> None:
    """PTX ISA, table "PTX Release History"."""
    image = read_image(PTX.format(version, "sm_90a").encode(), "k")
    assert image == Image("compute_90a", True, cuda)
    assert image.is_ptx
    assert image.is_for("compute_90a")
    assert not image.is_for("compute_90")
    assert not image.is_for("sm_90a")


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (b"", "neither a cubin nor PTX"),
        (b"\xff\xfe", "neither a cubin nor PTX"),
        (b".version 9.0\n", "neither a cubin nor PTX"),
        (b"\x50\xed\x55\xba fatbin", "neither a cubin nor PTX"),
        (b"\x7fELF", "is not a cubin"),
        ((PTX.format("9.0", "sm_80, debug") + '\t.file\t1 "/home/me/k.cu"\n').encode(), "names files of the machine"),
        ((PTX.format("9.0", "sm_80") + "\t.loc\t1 2 3\n").encode(), "names files of the machine"),
    ],
)
def test_other_bytes_are_refused(image: bytes, says: str) -> None:
    with pytest.raises(BuildError, match=says) as caught:
        read_image(image, "matmul")
    assert caught.value.where == "matmul"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a", "sm_100f", "sm_100a"])
def test_cubins_say_what_they_are_for(tmp_path: Path, arch: str) -> None:
    """Also whether they are of an architecture or a family: read without NVIDIA's tools."""
    try:
        compiler = find_nvcc(os.environ)
    except BuildError as error:
        pytest.skip(str(error))
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(float *a) { a[threadIdx.x] *= 2; }\n')
    number = arch.removeprefix("sm_")
    command = [compiler.nvcc, "-cubin", "-gencode", f"arch=compute_{number},code={arch}", "k.cu"]
    subprocess.run(command, cwd=tmp_path, check=True)
    cubin = (tmp_path / "k.cubin").read_bytes()
    image = read_image(cubin, "k")
    assert image.is_for(arch)
    assert not image.is_for("sm_86")
    assert not image.is_ptx
    if compiler.version.startswith("13."):
        assert image == Image(arch, True, compiler.version)
        assert [a for a in ("sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f") if a != arch and image.is_for(a)] == []
    # As of an older release, without the note: the number is all there is to go by.
    plain = read_image(cubin.replace(b".note.nv.tkinfo", b".note.nv.xxinfo").replace(b"-arch sm", b"-xxxx sm"), "k")
    assert (plain.arch, plain.exact, plain.toolkit) == (arch.rstrip("af"), False, "")
    assert plain.is_for(arch)
    assert plain.is_for(arch.rstrip("af"))
    for end in (70, len(cubin) // 2):
        with pytest.raises(BuildError):
            read_image(cubin[:end], "k")
