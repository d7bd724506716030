"""Lay out what ships: one folder a variant, and the manifest that names every byte."""

from __future__ import annotations

import numbers
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from ...atomic import dump_json
from ...errors import PackageError
from ...manifest import (
    DIRECT,
    MANIFEST_NAME,
    VARIANT_NAME,
    Bucket,
    Kernel,
    Manifest,
    Variant,
    digest_of,
    dumps,
    param_to_json,
    place_of,
    variant_dumps,
    variant_loads,
)
from ...target import Target
from ..compiling.compile import EXECUTABLE, Built
from ..specs.plan import Workload
from ..specs.spec import KernelSpec
from .floors import find_floors

__all__ = [
    "Packed",
    "Winner",
    "find_executable",
    "pack_winner",
    "plain_config",
    "read_packed",
    "write_folders",
    "write_package",
    "write_packed",
]

_KEPT_SOURCES = ("kernel.cubin", "kernel.ptx", "device_kernel.cu", "host_kernel.c")
# A callable of the package; one from Python is a file of this build's.
_IMPORTED = re.compile(r"[\w.]+:[\w.]+")
# Shared memory that a block has on every device.
_EVERYWHERE = 48 << 10
_AGAIN = "Remove the folder and tune again; if it is part of an installed package, reinstall that."


@dataclass(frozen=True)
class Winner:
    """What one workload ships.

    Attributes:
        workload: The workload.
        config: The config that won.
        built: Its files and signature.
        latency: ``latency``, ``ref_latency``, ``default_latency`` in ms and ``spread``; None where not measured.
        tuned: The evidence, as of :class:`~tlaot.manifest.Variant`: ``"device"``, ``"sm_count"``, ``"as"``; empty for none.
        doubts: Why its times are not to be trusted; empty where they are.
        buckets: As of :class:`~tlaot.manifest.Variant`.
    """

    workload: Workload
    config: Mapping[str, Any]
    built: Built
    latency: Mapping[str, float | None]
    tuned: Mapping[str, Any]
    doubts: tuple[str, ...] = ()
    buckets: tuple[Bucket, ...] = ()


@dataclass(frozen=True)
class Packed:
    """The folder of one variant, in memory and whole: it refers to no other variant's files.

    Attributes:
        kernel: Name of the kernel.
        variant: The manifest's entry.
        contents: The files by name; those that ``variant.files`` lists.
    """

    kernel: str
    variant: Variant
    contents: Mapping[str, bytes]


def write_package(
    output: Path, package: str, writer: str, winners: Sequence[Winner], keep: bool, direct: bytes | None = None
) -> tuple[Path, ...]:
    """Write the folder that the wheel embeds; it appears whole, in place of what was there.

    Args:
        output: The folder, ``<build_lib>/<package>/_tlaot``.
        package: Import name of the package.
        writer: Version of tlaot.
        winners: What ships.
        keep: Ship sources and cubin beside each binary too.
        direct: Content of ``direct.so``; None: calls from Python go without.

    Returns:
        The files, relative to ``output``, sorted.
    """
    ordered = sorted(winners, key=lambda winner: winner.workload.path)
    return write_folders(output, package, writer, (pack_winner(winner, keep, direct) for winner in ordered))


def write_folders(output: Path, package: str, writer: str, packed: Iterable[Packed]) -> tuple[Path, ...]:
    """:func:`write_package` for folders that are packed already, such as saved results.

    A file that an earlier variant of the same target has too, JSON aside, is written once: ``Variant.stored``
    says where.

    Raises:
        PackageError: Two of them have one kernel, target and shape, or one names a place outside the package.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}."))
    try:
        variants = defaultdict(list)
        places: dict[tuple[str, str, str], str] = {}
        for one in packed:
            folder = _place(staging, one)
            shared = _share(one, places)
            write_packed(folder, shared)
            variants[one.kernel].append(shared.variant)
        kernels = {name: Kernel(name, tuple(found)) for name, found in sorted(variants.items())}
        (staging / MANIFEST_NAME).write_text(dumps(Manifest(package, kernels, writer)), encoding="utf-8")
        # Others read it, whatever the builder's umask is, and mkdtemp's 0700.
        (staging / MANIFEST_NAME).chmod(0o644)
        for folder in (staging, *(path for path in staging.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
        shutil.rmtree(output, ignore_errors=True)
        os.replace(staging, output)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return tuple(sorted(path.relative_to(output) for path in output.rglob("*") if path.is_file()))


def pack_winner(winner: Winner, keep: bool, direct: bytes | None = None) -> Packed:
    """The folder of a winner; ``keep`` and ``direct`` as in :func:`write_package`."""
    workload, built, config = winner.workload, winner.built, plain_config(winner.config)
    contents = {
        EXECUTABLE: (built.folder / EXECUTABLE).read_bytes(),
        "best_config.json": dump_json({"config": config, "shape": dict(workload.shape)}),
        "latency.json": dump_json(dict(winner.latency)),
        "out_idx.json": dump_json(list(built.out_idx)),
        "params.json": dump_json([param_to_json(param) for param in built.params]),
    }
    if direct is not None:
        contents[DIRECT] = direct
    for name in _KEPT_SOURCES if keep else ():
        if (built.folder / name).is_file():
            contents[name] = (built.folder / name).read_bytes()
    variant = Variant(
        target=str(workload.target),
        shape=workload.shape,
        config=config,
        path=workload.path,
        params=built.params,
        out_idx=built.out_idx,
        latency=winner.latency,
        files={name: digest_of(data) for name, data in contents.items()},
        frontend={**built.frontend, **({"device-compiler": built.compiler} if built.compiler else {})},
        properties={
            "variant": _variant_property(workload.target),
            "asked": dict(built.asked),
            **({"shared_memory": built.shared_memory} if built.shared_memory > _EVERYWHERE else {}),
            "checked": workload.kernel.check,
            **({} if workload.kernel.measure else {"measured": False}),
            **({"on_misaligned": "copy"} if workload.kernel.on_misaligned == "copy" else {}),
            **({} if workload.kernel.deterministic else {"deterministic": False}),
            **({"made_by": _made_by(workload.kernel)} if _IMPORTED.fullmatch(workload.kernel.factory) else {}),
            # What a refused size is told to add itself to.
            **({"dynamic": _plain(dict(workload.kernel.dynamic))} if workload.is_dynamic else {}),
            # Of random inputs, for whoever times it again without the author's sources.
            **({"supply": dict(workload.kernel.supply)} if workload.kernel.supply else {}),
            **({"trusted": False, "notes": list(winner.doubts)} if winner.doubts else {}),
        },
        floor=find_floors(contents[EXECUTABLE], workload.target, built.compiler, workload.label),
        tuned=dict(winner.tuned),
        buckets=winner.buckets,
    )
    return _describe(workload.kernel.name, variant, contents)


def _made_by(kernel: KernelSpec) -> dict[str, Any]:
    """What makes such a kernel again, for a workload that is not packaged."""
    options = {
        "inputs": kernel.inputs,
        "reference": kernel.reference if kernel.check else None,
        "pass_configs": plain_config(kernel.pass_configs) or None,
        "rtol": kernel.rtol,
        "atol": kernel.atol,
    }
    return {"factory": kernel.factory, **{name: value for name, value in options.items() if value is not None}}


def _describe(kernel: str, variant: Variant, contents: Mapping[str, bytes]) -> Packed:
    """With ``variant.json``, which says what is in the folder."""
    entry = variant_dumps(kernel, variant).encode()
    files = {**variant.files, VARIANT_NAME: digest_of(entry)}
    return Packed(kernel, replace(variant, files=files), {**contents, VARIANT_NAME: entry})


def _share(packed: Packed, places: dict[tuple[str, str, str], str]) -> Packed:
    """The variant less what an earlier one holds; ``places`` says where content lies, and is told what is new.

    Content is shared within a target only, so that a package can be split by targets.
    """
    variant, stored = packed.variant, {}
    for name, digest in sorted(variant.files.items()):
        if not name.endswith(".json"):
            place = places.setdefault((variant.target, name, digest.sha256), place_of(variant, name))
            if place != place_of(variant, name):
                stored[name] = place
    if not stored:
        return packed
    contents = {name: data for name, data in packed.contents.items() if name not in stored}
    return _describe(packed.kernel, replace(variant, stored=stored), contents)


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as JSON: what JSON lacks (a dtype, a function, an enumeration's member) as what a person calls it."""
    return {str(_plain(key)): _plain(value) for key, value in config.items()}


def write_packed(folder: Path, packed: Packed) -> None:
    """Write a variant's files, its own; the folder is made where it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in packed.contents.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o755 if name in (EXECUTABLE, DIRECT) else 0o644)


def read_packed(folder: Path) -> Packed:
    """Read a variant's folder, in a package, a wheel's tree or anywhere else, and check every byte of it.

    What its package has stored in another variant's folder is read from there, and the result is as if it were its own.

    Raises:
        PackageError: A file is missing, unreadable, or not the one that was packed; the message names it.
    """
    kernel, variant, contents = _read_entry(folder)
    for name, expected in variant.files.items():
        if name == VARIANT_NAME:
            continue
        path = _locate(folder, variant, name)
        contents[name] = _read(path)
        found = digest_of(contents[name])
        if found != expected:
            raise PackageError(
                str(path),
                f"the file is not the one that was packed: {found.size} bytes with SHA-256 {found.sha256[:12]}..., "
                f"{VARIANT_NAME} says {expected.size} bytes with {expected.sha256[:12]}...",
                f"{_AGAIN} If it was changed on purpose in a package, accept that with: tlaot seal PATH",
            )
    if EXECUTABLE not in contents:
        raise PackageError(str(folder / VARIANT_NAME), f"lists no {EXECUTABLE}", _AGAIN)
    if not variant.stored:
        return Packed(kernel, variant, contents)
    return _describe(kernel, replace(variant, stored={}), contents)


def find_executable(folder: Path) -> Path:
    """The binary of a variant's folder; in a package it may lie in another variant's.

    Raises:
        PackageError: The folder's ``variant.json`` is missing or damaged.
    """
    return _locate(folder, _read_entry(folder)[1], EXECUTABLE)


def _read_entry(folder: Path) -> tuple[str, Variant, dict[str, bytes]]:
    entry = _read(folder / VARIANT_NAME)
    try:
        kernel, variant = variant_loads(entry, str(folder / VARIANT_NAME))
    except PackageError as error:
        raise PackageError(error.where, error.what, _AGAIN) from None
    return kernel, variant, {VARIANT_NAME: entry}


def _locate(folder: Path, variant: Variant, name: str) -> Path:
    """Where a file of a variant lies whose folder this is, in its package or alone."""
    if PurePosixPath(name).name != name or name == "..":
        raise PackageError(str(folder / VARIANT_NAME), f"lists {name!r}, which is no file of its folder", _AGAIN)
    if name not in variant.stored or (folder / name).is_file():
        return folder / name
    inside = PurePosixPath(variant.path)
    real = folder.resolve()
    if real.parts[-len(inside.parts) :] != inside.parts:
        raise PackageError(
            str(folder),
            f"has no {name}: its package has it in {variant.stored[name]}, and this folder was taken out of it",
            f"Name the folder inside its package, {variant.path}.",
        )
    return real.parents[len(inside.parts) - 1] / place_of(variant, name)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PackageError(str(path), f"a packed file cannot be read ({error.strerror})", _AGAIN) from None


def _place(root: Path, packed: Packed) -> Path:
    inside = PurePosixPath(packed.variant.path)
    if inside.is_absolute() or ".." in inside.parts or not inside.parts:
        raise PackageError(packed.kernel, f"names the folder {packed.variant.path!r}, outside the package", _AGAIN)
    folder = root.joinpath(*inside.parts)
    if folder.exists():
        raise PackageError(
            packed.kernel,
            f"has two variants of {packed.variant.target} and {dict(packed.variant.shape)}",
            "Pack one of them.",
        )
    return folder


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return plain_config(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    name = getattr(value, "__qualname__", None)  # str() of a function has its address in it
    return str(value) if name is None else f"{getattr(value, '__module__', '')}.{name}".lstrip(".")


def _variant_property(target: Target) -> str:
    """The property of the wheel variant drafts (PEP 817, 825) that says where the code runs."""
    if not target.is_cuda:
        rank = target.cpu_rank
        return f"x86_64 :: level :: v{rank}"
    number = target.arch.partition("_")[2]
    return f"nvidia :: sm_arch :: {number}_{'virtual' if target.is_virtual else 'real'}"
