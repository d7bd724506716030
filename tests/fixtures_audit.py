"""A package of small kernels that were really linked, and its wheel, to be doctored."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from native import programs
from native.programs import build, host_program, lowered, tensor

from tlaot.atomic import dump_json
from tlaot.audit.archive import record_line
from tlaot.manifest import FOLDER, Kernel, Manifest, Param, Variant, digest_of, dumps, param_to_json, variant_dumps
from tlaot.target import read_target
from tlaot.tune.frontends.lowered import DeviceKernel

PACKAGE = "pk_audit"
PTX = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"
DIST_INFO = "pk_audit-1.0.dist-info"
WHEEL_NAME = "pk_audit-1.0-py3-none-manylinux_2_17_x86_64.whl"
# Kernel, target, N.
VARIANTS = (
    ("scale", "llvm:x86-64", 8),
    ("scale", "llvm:x86-64", 16),
    ("scale", "cuda:sm_90a", 8),
    ("scale", "cuda:sm_80", 8),
    ("scale", "cuda:compute_80", 8),
)


def make_cubin(arch: str, note: bool = True, label: bytes = b"") -> bytes:
    """What the readers look at of a cubin of CUDA 13: ELF header, section names, and ptxas's note."""
    number = int("".join(filter(str.isdigit, arch)))
    told = b"Cuda compilation tools, release 13.0, V13.0.88\0-arch " + arch.encode() + b" -m 64 \0" + label
    names = b"\0.note.nv.tkinfo\0.shstrtab\0"
    note_at = 64
    names_at = note_at + len(told)
    sections_at = (names_at + len(names) + 7) // 8 * 8
    head = struct.pack(
        "<6sBB8xHHIQQQIHHHHHH", b"\x7fELF\2\1", 1, 65, 2, 190, 1, 0, 0, sections_at, number << 8, 64, 56, 0, 64, 3, 2
    )
    head = head[:8] + b"\x08" + head[9:]
    rows = [(0, 0, 0, 0, 0, 0), (1, 7, 0, 0, note_at, len(told) if note else 0), (17, 3, 0, 0, names_at, len(names))]
    if not note:
        told = bytes(len(told))
    table = b"".join(struct.pack("<IIQQQQIIQQ", *row, 0, 0, 1, 0) for row in rows)
    return (head + told + names).ljust(sections_at, b"\0") + table


def params_of(n: int) -> list[Param]:
    return [tensor("A", "m", n, align=16), tensor("C", "m", n, align=16, written=True)]


@functools.cache
def binary_of(kernel: str, target: str, n: int, image: bytes | None = None, before: str = "") -> bytes:
    """A linked ``executable.so``; device code is a made-up cubin unless it is given."""
    parsed = read_target(target)
    if not parsed.is_cuda:
        program = lowered(host_program([], before=before), params_of(n))
    else:
        device = DeviceKernel("k", ("ptr",), (1,), ("blockIdx.x", "threadIdx.x"))
        program = lowered(
            host_program([programs.SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(1)", "INT(32)"])], before=before),
            params_of(n),
            [device],
        )
        image = image or (PTX if parsed.is_virtual else make_cubin(parsed.arch))
    with tempfile.TemporaryDirectory() as folder:
        return build(program, Path(folder), kernel, parsed, image).read_bytes()


def files_of(variant: Variant, binary: bytes) -> dict[str, bytes]:
    """The files of a variant's folder but for ``variant.json``."""
    return {
        "executable.so": binary,
        "best_config.json": dump_json({"config": dict(variant.config), "shape": dict(variant.shape)}),
        "latency.json": dump_json(dict(variant.latency)),
        "out_idx.json": dump_json(list(variant.out_idx)),
        "params.json": dump_json([param_to_json(param) for param in variant.params]),
    }


def make_variant(kernel: str, target: str, n: int, **rest: Any) -> Variant:
    return Variant(
        target=target,
        shape={"N": n},
        config={"block": 1},
        path=f"{kernel}/{target.replace(':', '-')}/N{n}",
        params=tuple(params_of(n)),
        out_idx=(1,),
        latency={"latency": 1.5, "ref_latency": 2.0, "default_latency": 3.0, "spread": 0.1},
        files={},
        frontend={"name": "tvm", "version": "0.27"},
        properties={"checked": True},
        **rest,
    )


@dataclasses.dataclass
class Package:
    """A package's content in memory: the manifest, and files by their names below the manifest's folder."""

    manifest: Manifest
    files: dict[str, bytes]

    def reseal(self) -> Package:
        """With digests, entries and manifest that fit the files, as somebody would write who knows the format."""
        kernels, files = {}, dict(self.files)
        for name, kernel in self.manifest.kernels.items():
            variants = []
            for variant in kernel.variants:
                places = {file: variant.stored.get(file, f"{variant.path}/{file}") for file in variant.files}
                own = {file: digest_of(files[place]) for file, place in places.items() if file != "variant.json"}
                entry = variant_dumps(name, dataclasses.replace(variant, files=own)).encode()
                files[f"{variant.path}/variant.json"] = entry
                variants.append(dataclasses.replace(variant, files={**own, "variant.json": digest_of(entry)}))
            kernels[name] = Kernel(name, tuple(variants))
        manifest = dataclasses.replace(self.manifest, kernels=kernels)
        return Package(manifest, {**files, "manifest.json": dumps(manifest).encode()})

    def change(self, path: str, **fields: Any) -> Package:
        """With other fields of the variant at a path; its JSON files say so too, and all is sealed again."""
        kernels, files = {}, dict(self.files)
        for name, kernel in self.manifest.kernels.items():
            variants = []
            for variant in kernel.variants:
                if variant.path == path:
                    variant = dataclasses.replace(variant, **fields)
                    made = files_of(variant, files[f"{path}/executable.so"])
                    files.update({f"{path}/{file}": data for file, data in made.items()})
                variants.append(variant)
            kernels[name] = Kernel(name, tuple(variants))
        return Package(dataclasses.replace(self.manifest, kernels=kernels), files).reseal()

    def write_folder(self, root: Path) -> Path:
        """``root/pk_audit/_tlaot``."""
        folder = root / PACKAGE / FOLDER
        shutil.rmtree(root / PACKAGE, ignore_errors=True)
        for name, data in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        (root / PACKAGE / "__init__.py").write_text("raise AssertionError('imported')\n")
        return folder

    def write_wheel(self, root: Path, name: str = WHEEL_NAME, **changes: bytes | None) -> Path:
        """A wheel with a right RECORD; ``changes`` are further members, or None for one to leave out."""
        tag = name.removesuffix(".whl").split("-", 2)[2]
        members: dict[str, bytes | None] = {
            f"{PACKAGE}/__init__.py": b"",
            **{f"{PACKAGE}/{FOLDER}/{file}": data for file, data in self.files.items()},
            f"{DIST_INFO}/METADATA": b"Metadata-Version: 2.1\nName: pk-audit\nVersion: 1.0\n",
            f"{DIST_INFO}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n\n".encode(),
            **changes,
        }
        return write_wheel(root / name, {member: data for member, data in members.items() if data is not None})


def write_wheel(path: Path, members: Mapping[str, bytes]) -> Path:
    """A wheel of these members and a RECORD of them, unless they have one."""
    record = f"{DIST_INFO}/RECORD"
    if record not in members:
        lines = [f"{name},{','.join(record_line(data))}" for name, data in members.items()]
        members = {**members, record: "\n".join([*lines, f"{record},,", ""]).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, (2020, 2, 2, 0, 0, 0))
            info.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path


@functools.cache
def _sound() -> Package:
    files: dict[str, bytes] = {}
    variants = []
    for kernel, target, n in VARIANTS:
        variant = make_variant(kernel, target, n)
        made = files_of(variant, binary_of(kernel, target, n))
        files.update({f"{variant.path}/{file}": data for file, data in made.items()})
        variants.append(dataclasses.replace(variant, files={file: digest_of(data) for file, data in made.items()}))
    return Package(Manifest(PACKAGE, {"scale": Kernel("scale", tuple(variants))}, "0.1.0"), files).reseal()


def sound_package() -> Package:
    """Five variants of one kernel with which nothing is wrong."""
    made = _sound()
    return Package(made.manifest, dict(made.files))
