"""The oldest driver and C library that a binary runs with."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tvm_ffi")
pytest.importorskip("numpy")

from native import programs
from native.programs import build, host_program, lowered, tensor

from tlaot.errors import BuildError
from tlaot.manifest import digest_of
from tlaot.target import parse_target, read_target
from tlaot.tune.compiling.compile import Built
from tlaot.tune.frontends.lowered import DeviceKernel
from tlaot.tune.shipping.floors import find_floors, first_cuda
from tlaot.tune.shipping.package import Winner, pack_winner
from tlaot.tune.specs.plan import Workload
from tlaot.tune.specs.spec import KernelSpec

KERNEL = DeviceKernel("k", ("ptr",), (1,), ("blockIdx.x", "threadIdx.x"))
HOST = host_program([programs.SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(1)", "INT(32)"])])
PARAMS = [tensor("A", 8, written=True)]


def cubin(number: int, told: str = "") -> bytes:
    """The head of a cubin of CUDA 13, which is all that is read of it; with the note that names tool and target."""
    head = bytearray(64)
    head[:9] = b"\x7fELF\x02\x01\x01\x41\x08"
    head[18:20] = (190).to_bytes(2, "little")
    head[48:52] = (0x06000002 | number << 8).to_bytes(4, "little")
    note = b"Cuda compilation tools, release 13.0, V13.0.88\0-arch %s -m 64 \0" % told.encode() if told else b""
    names = b"\0.shstrtab\0.note.nv.tkinfo\0"
    rows = [(0, 0, 0, 0), (1, 3, 64, len(names)), (11, 7, 64 + len(names), len(note))]
    table = b"".join(
        name.to_bytes(4, "little") + kind.to_bytes(4, "little") + bytes(16) + at.to_bytes(8, "little")
        + size.to_bytes(8, "little") + bytes(24)
        for name, kind, at, size in rows
    )  # fmt: skip
    head[40:48] = (64 + len(names) + len(note)).to_bytes(8, "little")
    head[58:64] = (64).to_bytes(2, "little") + (3).to_bytes(2, "little") + (1).to_bytes(2, "little")
    return bytes(head) + names + note + table


def floors(tmp_path: Path, target: str, image: bytes, compiler: str) -> dict[str, str]:
    path = build(lowered(HOST, PARAMS, [KERNEL]), tmp_path, target=read_target(target), cubin=image)
    return find_floors(path.read_bytes(), read_target(target), compiler, "k")


@pytest.mark.parametrize(
    ("arch", "compiler", "cuda"),
    [
        # Minor version compatibility: the major release of the toolkit...
        ("sm_80", "nvcc 12.8", "12.0"),
        ("sm_90a", "nvrtc 12.4", "12.0"),
        ("sm_90a", "nvcc 13.0", "13.0"),
        ("sm_80", "nvcc 13.2", "13.0"),
        # ... or the first that knows the architecture.
        ("sm_100", "nvcc 12.9", "12.8"),
        ("sm_100a", "nvcc 12.8", "12.8"),
        ("sm_100f", "nvcc 12.9", "12.9"),
        ("sm_103", "nvcc 12.9", "12.9"),
        ("sm_120", "nvcc 12.8", "12.8"),
        ("sm_121", "nvcc 12.9", "12.9"),
        ("sm_103a", "nvcc 13.1", "13.0"),
        ("sm_110", "nvcc 13.0", "13.0"),
        # One that came after the table: no driver older than its toolkit is promised to know it.
        ("sm_107", "nvcc 13.4", "13.4"),
    ],
)
def test_a_cubin_needs_its_toolkits_major_release(tmp_path: Path, arch: str, compiler: str, cuda: str) -> None:
    image = cubin(int("".join(filter(str.isdigit, arch))))
    found = floors(tmp_path, f"cuda:{arch}", image, compiler)
    assert found == {"toolkit": compiler.split()[1], "cuda": cuda, "glibc": found["glibc"]}
    assert tuple(map(int, found["glibc"].split("."))) <= (2, 17)


@pytest.mark.parametrize(
    ("version", "compiler", "cuda"),
    [("9.0", "nvrtc 13.0", "13.0"), ("9.1", "nvcc 13.1", "13.1"), ("8.7", "nvcc 12.8", "12.8"), ("7.8", "", "12.0")],
)
def test_ptx_needs_the_release_that_it_is_written_for(tmp_path: Path, version: str, compiler: str, cuda: str) -> None:
    ptx = f".version {version}\n.target sm_80\n".encode()
    found = floors(tmp_path, "cuda:compute_80", ptx, compiler)
    assert (found["cuda"], found.get("toolkit", "")) == (cuda, compiler.partition(" ")[2])


def test_the_cubin_itself_says_what_made_it(tmp_path: Path) -> None:
    assert floors(tmp_path, "cuda:sm_90a", cubin(90, "sm_90a"), "")["toolkit"] == "13.0"
    unknown = floors(tmp_path, "cuda:sm_90a", cubin(90), "")
    assert (unknown["cuda"], "toolkit" in unknown) == ("12.0", False)


def test_the_cpu_needs_the_c_library_alone(tmp_path: Path) -> None:
    path = build(lowered(host_program([]), PARAMS), tmp_path)
    found = find_floors(path.read_bytes(), parse_target("llvm:x86-64"), "", "k")
    assert set(found) <= {"glibc"}
    assert all(tuple(map(int, v.split("."))) <= (2, 17) for v in found.values())
    with pytest.raises(BuildError):
        find_floors(b"\x7fELF", parse_target("llvm"), "", "k")


def test_the_first_release_of_each_architecture() -> None:
    """Releases that added architectures, by CUDA's release notes; of the suffixes too."""
    known = {
        "sm_75": (10, 0),
        "sm_80": (11, 0),
        "sm_86": (11, 1),
        "sm_89": (11, 8),
        "sm_90": (11, 8),
        "sm_90a": (12, 0),
        "sm_100a": (12, 8),
        "sm_120": (12, 8),
        "sm_100f": (12, 9),
        "sm_120f": (12, 9),
        "sm_103": (12, 9),
        "sm_121a": (12, 9),
        "sm_88": (13, 0),
        "sm_110f": (13, 0),
        "sm_107": None,
    }
    assert {arch: first_cuda(read_target(f"cuda:{arch}")) for arch in known} == known


def test_the_manifest_has_them(tmp_path: Path) -> None:
    """As a build packs a winner: beside the kept PTX."""
    target = read_target("cuda:compute_80")
    ptx = b".version 9.0\n.target sm_80\n"
    folder = build(lowered(HOST, PARAMS, [KERNEL]), tmp_path, target=target, cubin=ptx).parent
    (folder / "kernel.ptx").write_bytes(ptx)
    digest = digest_of((folder / "executable.so").read_bytes())
    built = Built(
        folder,
        digest,
        tuple(PARAMS),
        (),
        {"name": "tvm", "version": "0"},
        {},
        compiler="nvrtc 13.0",
        shared_memory=65536,
    )
    kernel = KernelSpec("k", "tvm", "m:f", (target,), (), (), "here")
    variant = pack_winner(Winner(Workload(kernel, target, {}, ({},)), {}, built, {}, {}), keep=True).variant
    assert {"cuda": "13.0", "toolkit": "13.0"}.items() <= variant.floor.items()
    assert tuple(map(int, variant.floor["glibc"].split("."))) <= (2, 17)
    assert "kernel.ptx" in variant.files
    assert variant.properties["shared_memory"] == 65536
    assert variant.properties["variant"] == "nvidia :: sm_arch :: 80_virtual"
