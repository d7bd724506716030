"""The package manifest: all that the build side and the run-time side share.

``<package>/_tlaot/manifest.json`` lists every packaged variant with its signature and
the SHA-256 of each of its files. It is plain JSON, written with sorted keys, and carries a digest
of itself, so that a damaged manifest is an error and never a wrong kernel. Its lines (``layout``) let a program that loads
thousands of variants parse those of the kernels that it calls. Each variant's folder has its own
entry in it as ``variant.json``, so that a folder can be read, checked and loaded without the rest of the package.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import PackageError
from .layout import Entries, lay_out, read_layout
from .plain import record

__all__ = [
    "BUCKETS_VERSION",
    "DIRECT",
    "DIRECT_TYPE",
    "EXECUTABLE",
    "FORMAT_VERSION",
    "VARIANT_NAME",
    "Bucket",
    "FileDigest",
    "Kernel",
    "Manifest",
    "Param",
    "Variant",
    "digest_of",
    "dumps",
    "group_by_factory",
    "loads",
    "open_manifest",
    "place_of",
    "read_manifest",
    "variant_dumps",
    "variant_loads",
    "verify_file",
]

# The second is written where variants serve ranges of sizes, which a reader of the first would not know how to choose between.
FORMAT_VERSION, BUCKETS_VERSION = 2, 3
_FORMATS = (FORMAT_VERSION, BUCKETS_VERSION)
MANIFEST_NAME = "manifest.json"
VARIANT_NAME = "variant.json"
EXECUTABLE = "executable.so"
# Of all variants the same: what takes calls from Python into executable.so.
DIRECT = "direct.so"
# What it exports; the number is that of the interface.
DIRECT_TYPE = "tlaot_direct_type_2"
FOLDER = "_tlaot"

_REBUILD = "Reinstall the package; if you built it, build it again."
_RESEAL = f"{_REBUILD} If it was changed on purpose (strip, patchelf...), accept that with: tlaot seal PATH"


@record(frozen=True)
class Param:
    """One parameter of a kernel, in the order of the kernel's own signature.

    Attributes:
        name: The parameter's name in the kernel's source.
        dtype: DLPack spelling of the element type, ``"float32"``, ``"bfloat16"``, ``"float8_e4m3fn"``.
        shape: Sizes of a tensor, a string for a symbolic size; None for a scalar.
        strides: Strides in elements; None for a compact row-major tensor (or a scalar).
        align: Alignment in bytes that the code assumes of the first element's address.
        written: Whether the kernel writes the tensor.
        optional: Whether the code never looks at the tensor, so that None may be passed for it.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    strides: tuple[int | str, ...] | None = None
    align: int = 1
    written: bool = False
    optional: bool = False


@record(frozen=True)
class FileDigest:
    """SHA-256 (hex) and size in bytes of one shipped file."""

    sha256: str
    size: int


@record(frozen=True)
class Bucket:
    """A range of sizes of a dynamic kernel that a variant serves.

    Attributes:
        sizes: For each open dimension the first and the last size; the last is None where there is no end.
        ms: Times at the first and the last size, as they were measured; None where they were not.
        regret: How many times the time of the best of all configs it takes where it is worst, among the sizes that were measured.
        bound: How many times that it may take at any size of the range, if no size takes less time than a smaller one.
    """

    sizes: Mapping[str, tuple[int, int | None]]
    ms: tuple[float | None, float | None] = (None, None)
    regret: float | None = None
    bound: float | None = None


@record(frozen=True)
class Variant:
    """One compiled kernel: a target, a workload and the config that won there.

    Attributes:
        target: The target as text, ``"cuda:sm_90a"``.
        shape: Arguments of the factory that make the workload, ``{"M": 1024, ...}``.
        config: The tunables that won.
        path: Folder of the variant, relative to the manifest's, with ``/``.
        params: Parameters of the kernel in order.
        out_idx: Positions in ``params`` of the outputs that the caller may leave out.
        latency: ``{"latency", "ref_latency", "default_latency", "spread"}`` in ms, null where not measured.
        files: Digest of each file in the folder, by name.
        frontend: Name and version of the frontend that lowered the kernel; as ``"device-compiler"``, what made the cubin:
            ``"nvrtc 13.0"``.
        properties: Wheel variant properties as data (PEP 817 drafts), and what the factory asked of its device.
        stored: Where the content of a file lies that another variant has too, by name: a path relative to the manifest's
            folder, with ``/``. A file that is not named lies in the variant's own folder.
        floor: The least versions of what runs it: ``"cuda"`` that the driver offers, ``"glibc"``; and the ``"toolkit"`` that
            made its device code. Each as ``"12.8"``.
        tuned: The evidence behind the config: the ``"device"`` it was measured on and its ``"sm_count"``; ``"as"``, the target
            whose winner this stand-in was given.
        buckets: Of a dynamic workload: the ranges of sizes that this variant serves; empty for all sizes that it takes.
    """

    target: str
    shape: Mapping[str, Any]
    config: Mapping[str, Any]
    path: str
    params: tuple[Param, ...]
    out_idx: tuple[int, ...]
    latency: Mapping[str, float | None]
    files: Mapping[str, FileDigest]
    frontend: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    floor: Mapping[str, str] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)
    buckets: tuple[Bucket, ...] = ()


@record(frozen=True)
class Kernel:
    """All packaged variants of one kernel name."""

    name: str
    variants: tuple[Variant, ...]


@record(frozen=True)
class Manifest:
    """What one package ships.

    Attributes:
        package: Import name of the package that embeds the kernels.
        kernels: Kernels by name.
        writer: Version of tlaot that wrote the manifest.
        project: ``"name"`` and ``"version"`` of the distribution that the package is of, where its wheel was split; a companion
            has its main wheel's.
        companions: What other wheels of a split have: their distributions' names, each with its targets. A kernel that is
            in companions only has no variants here.
        targets: The targets of each kernel, of a manifest that was read; so that they are known before the kernel is.
        factories: Of a manifest that was read, the kernels that each factory (``"module:function"``) makes.
        digest: The digest that the manifest carried, of one that was read.
    """

    package: str
    kernels: Mapping[str, Kernel]
    writer: str
    project: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    factories: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    digest: str = field(default="", compare=False)


def digest_of(data: bytes) -> FileDigest:
    """Digest of a file's content."""
    return FileDigest(hashlib.sha256(data).hexdigest(), len(data))


def dumps(manifest: Manifest) -> str:
    """Serialize; the same manifest always gives the same text."""
    body = {
        "format": _format_of(v for kernel in manifest.kernels.values() for v in kernel.variants),
        "package": manifest.package,
        "writer": manifest.writer,
        "project": dict(manifest.project),
        "companions": {name: list(targets) for name, targets in manifest.companions.items()},
        "factories": group_by_factory(manifest.kernels),
    }
    entries = {name: [_variant_to_json(v) for v in kernel.variants] for name, kernel in manifest.kernels.items()}
    return lay_out(body, entries)


def group_by_factory(kernels: Mapping[str, Kernel]) -> dict[str, list[str]]:
    """The kernels by what makes them."""
    found: dict[str, list[str]] = {}
    for name, kernel in sorted(kernels.items()):
        made = (variant.properties.get("made_by") for variant in kernel.variants)
        for factory in dict.fromkeys(str(one["factory"]) for one in made if isinstance(one, Mapping)):
            found.setdefault(factory, []).append(name)
    return found


def loads(text: str | bytes, where: str = MANIFEST_NAME) -> Manifest:
    """Parse and check a manifest.

    Raises:
        PackageError: The text is not a manifest, is damaged, or is of a newer format.
    """
    manifest = open_manifest(text, where)
    return replace(manifest, kernels=dict(manifest.kernels.items()))


def open_manifest(text: str | bytes, where: str = MANIFEST_NAME) -> Manifest:
    """Check a manifest; a kernel is parsed when it is asked for, which raises PackageError where its entry lacks a field.

    Raises:
        PackageError: The text is not a manifest, is damaged, or is of a newer format.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    found = read_layout(data)
    if found is not None and found[0].get("format") in _FORMATS:
        body, entries = found
    else:
        body, entries = _unseal(data, where, "the kernel manifest"), None
        body["digest"] = _body_digest(body)
    try:
        if entries is None:
            entries = Entries.of(body["kernels"])
        return Manifest(
            package=body["package"],
            writer=body["writer"],
            kernels=_Kernels(entries, where),
            project=dict(body["project"]),
            companions={name: tuple(targets) for name, targets in body["companions"].items()},
            targets=entries.targets,
            # Older ones do not say it.
            factories={factory: tuple(names) for factory, names in body.get("factories", {}).items()},
            digest=body["digest"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _lacks(where, error) from None


class _Kernels(Mapping[str, Kernel]):
    """A manifest's kernels, each parsed when it is first asked for."""

    def __init__(self, entries: Entries, where: str) -> None:
        self._entries = entries
        self._where = where
        self._parsed: dict[str, Kernel] = {}

    def __getitem__(self, name: str) -> Kernel:
        found = self._parsed.get(name)
        if found is None:
            if name not in self._entries.targets:
                raise KeyError(name)
            try:
                made = Kernel(name, tuple(map(_variant_from_json, self._entries.read(name))))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise _lacks(self._where, error) from None
            found = self._parsed.setdefault(name, made)  # of two threads one is first
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries.targets)

    def __len__(self) -> int:
        return len(self._entries.targets)

    def __contains__(self, name: object) -> bool:
        return name in self._entries.targets


def _lacks(where: str, error: Exception) -> PackageError:
    return PackageError(where, f"the kernel manifest lacks a field ({error!r})", _REBUILD)


def variant_dumps(kernel: str, variant: Variant) -> str:
    """``variant.json``: the manifest's entry of one variant and the name of its kernel, with a digest of itself.

    Of the folder's files it lists all but itself.
    """
    entry = _variant_to_json(variant)
    entry["files"].pop(VARIANT_NAME, None)
    return _seal({"format": _format_of([variant]), "kernel": kernel, **entry})


def variant_loads(data: bytes, where: str = VARIANT_NAME) -> tuple[str, Variant]:
    """Parse and check a ``variant.json``.

    Returns:
        The kernel's name, and the variant as the package's manifest has it (``files`` with ``variant.json`` itself).

    Raises:
        PackageError: The bytes are not a variant's entry, are damaged, or are of a newer format.
    """
    body = _unseal(data, where, "the variant's entry")
    try:
        kernel, variant = body["kernel"], _variant_from_json(body)
    except (KeyError, TypeError, AttributeError) as error:
        raise PackageError(where, f"the variant's entry lacks a field ({error!r})", _REBUILD) from None
    return kernel, replace(variant, files={**variant.files, VARIANT_NAME: digest_of(data)})


def place_of(variant: Variant, name: str) -> str:
    """Where a file of a variant lies, relative to the manifest's folder, with ``/``: in the variant's folder, or in that of
    another variant with equal content.

    Raises:
        PackageError: The variant has no such file, or names a place outside the package.
    """
    place = variant.stored.get(name, f"{variant.path}/{name}")
    inside = PurePosixPath(place)
    if name not in variant.files or inside.is_absolute() or ".." in inside.parts:
        raise PackageError(variant.path, f"the variant has no {name} in this package, but names {place!r}", _REBUILD)
    return place


def read_manifest(path: Path) -> Manifest:
    """Read ``manifest.json``.

    Raises:
        PackageError: It is missing, unreadable, damaged, or of a newer format.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PackageError(str(path), f"the kernel manifest cannot be read ({error.strerror})", _REBUILD) from None
    return loads(data, str(path))


def verify_file(path: Path, expected: FileDigest) -> None:
    """Check a shipped file before a byte of it reaches the dynamic linker.

    Raises:
        PackageError: The file is missing or its content is not what was packaged.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise PackageError(str(path), "a packaged file is no regular file any more", _REBUILD)
        data = path.read_bytes()
    except OSError as error:
        raise PackageError(str(path), f"a packaged file cannot be read ({error.strerror})", _REBUILD) from None
    found = digest_of(data)
    if found != expected:
        raise PackageError(
            str(path),
            f"the file is not the one that was packaged: {found.size} bytes with SHA-256 {found.sha256[:12]}..., "
            f"the manifest says {expected.size} bytes with {expected.sha256[:12]}...",
            _RESEAL,
        )


def _seal(body: dict[str, Any]) -> str:
    """JSON of an object that carries its own digest."""
    return json.dumps({**body, "digest": _body_digest(body)}, indent=1, sort_keys=True) + "\n"


def _unseal(text: str | bytes, where: str, what: str) -> dict[str, Any]:
    """The object that :func:`_seal` wrote, without its digest."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PackageError(where, f"{what} is not valid JSON ({error})", _REBUILD) from None
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        raise PackageError(where, f"{what} has no format version", _REBUILD)
    if body["format"] not in _FORMATS:
        raise PackageError(
            where,
            f"{what} has format {body['format']}, this tlaot reads formats {FORMAT_VERSION} and {BUCKETS_VERSION}",
            "Upgrade tlaot (pip install -U tlaot)."
            if body["format"] > BUCKETS_VERSION
            else "Build the package again with this tlaot.",
        )
    recorded = body.pop("digest", None)
    if recorded != _body_digest(body):
        raise PackageError(where, f"{what} does not match its own digest: it was changed or damaged", _REBUILD)
    return body


def _body_digest(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _format_of(variants: Iterable[Variant]) -> int:
    return BUCKETS_VERSION if any(variant.buckets for variant in variants) else FORMAT_VERSION


def _variant_to_json(variant: Variant) -> dict[str, Any]:
    # A package without dynamic kernels is as it ever was.
    buckets = {"buckets": [_bucket_to_json(bucket) for bucket in variant.buckets]} if variant.buckets else {}
    return {
        **buckets,
        "target": variant.target,
        "shape": dict(variant.shape),
        "config": dict(variant.config),
        "path": variant.path,
        "params": [param_to_json(p) for p in variant.params],
        "out_idx": list(variant.out_idx),
        "latency": dict(variant.latency),
        "files": {name: {"sha256": d.sha256, "size": d.size} for name, d in variant.files.items()},
        "frontend": dict(variant.frontend),
        "properties": dict(variant.properties),
        "stored": dict(variant.stored),
        "floor": dict(variant.floor),
        "tuned": dict(variant.tuned),
    }


def _variant_from_json(body: Mapping[str, Any]) -> Variant:
    return Variant(
        target=body["target"],
        shape=body["shape"],
        config=body["config"],
        path=body["path"],
        params=tuple(param_from_json(p) for p in body["params"]),
        out_idx=tuple(body["out_idx"]),
        latency=body["latency"],
        files={name: FileDigest(d["sha256"], d["size"]) for name, d in body["files"].items()},
        frontend=body["frontend"],
        properties=body["properties"],
        stored=body["stored"],
        floor=body["floor"],
        tuned=body["tuned"],
        buckets=tuple(map(_bucket_from_json, body.get("buckets", ()))),
    )


def _bucket_to_json(bucket: Bucket) -> dict[str, Any]:
    return {
        "sizes": {name: list(ends) for name, ends in bucket.sizes.items()},
        "ms": list(bucket.ms),
        "regret": bucket.regret,
        "bound": bucket.bound,
    }


def _bucket_from_json(body: Mapping[str, Any]) -> Bucket:
    sizes = {}
    for name, (low, high) in body["sizes"].items():
        if type(low) is not int or not (high is None or type(high) is int):
            raise ValueError(f"a bucket's sizes {low!r} to {high!r}")
        sizes[name] = (low, high)
    first, last = body["ms"]
    return Bucket(sizes, (first, last), body["regret"], body["bound"])


def param_to_json(param: Param) -> dict[str, Any]:
    return {
        "name": param.name,
        "dtype": param.dtype,
        "shape": None if param.shape is None else list(param.shape),
        "strides": None if param.strides is None else list(param.strides),
        "align": param.align,
        "written": param.written,
        # Of most there is none, and a package without is as it ever was.
        **({"optional": True} if param.optional else {}),
    }


def param_from_json(body: Mapping[str, Any]) -> Param:
    return Param(
        name=body["name"],
        dtype=body["dtype"],
        shape=None if body["shape"] is None else tuple(body["shape"]),
        strides=None if body["strides"] is None else tuple(body["strides"]),
        align=body["align"],
        written=body["written"],
        optional=body.get("optional", False),
    )
