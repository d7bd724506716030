"""Whether the files beside a manifest are those that it names, byte for byte, and say what it says."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from ..errors import PackageError
from ..manifest import MANIFEST_NAME, VARIANT_NAME, Variant, digest_of, param_to_json, place_of, variant_loads
from .finding import Finding
from .subject import EXECUTABLE, Case, Subject, promise_of, variants_of

__all__ = ["check_coverage", "check_digests", "check_entry", "check_layout", "check_manifest"]

_REBUILD = "Build it again."
_RESEAL = "Build it again; after a deliberate change (strip, patchelf...) run tlaot seal on it."


def check_coverage(subject: Subject) -> Iterator[Finding]:
    """What was promised is there, once."""
    offered = Counter(promise_of(name, v.target, v.shape) for name, v in variants_of(subject.manifest))
    shared = {promise_of(name, v.target, v.shape) for name, v in variants_of(subject.manifest) if v.buckets}
    for (kernel, target, shape), count in offered.items():
        if count > 1 and (kernel, target, shape) not in shared:
            yield Finding("coverage", kernel, f"has {count} variants of {target} and {shape}", _REBUILD)
    for promise, by in subject.demands.promised.items():
        if promise not in offered:
            kernel, target, shape = promise
            yield Finding("coverage", kernel, f"has no variant of {target} and {shape}, which {by} promises", _REBUILD)


def check_manifest(subject: Subject) -> Iterator[Finding]:
    """The manifest says whose it is."""
    manifest = subject.manifest
    if not isinstance(manifest.package, str) or not all(part.isidentifier() for part in manifest.package.split(".")):
        yield Finding(
            "manifest", MANIFEST_NAME, f"is of the package {manifest.package!r}, which is no import name", _REBUILD
        )
    if not isinstance(manifest.writer, str) or not re.fullmatch(r"\d[\w.+-]*", manifest.writer):
        yield Finding(
            "manifest", MANIFEST_NAME, f"was written by tlaot {manifest.writer!r}, which is no version", _REBUILD
        )


def check_layout(subject: Subject) -> Iterator[Finding]:
    """Every file of the manifest is there, a plain file inside the folder, and there is none beside."""
    expected = {MANIFEST_NAME}
    for _, variant in variants_of(subject.manifest):
        if not _is_inside(variant.path):
            yield Finding("files", repr(variant.path), "is no folder inside the package", "Do not install it.")
            continue
        for name in variant.files:
            if not _is_plain(name):
                yield Finding("files", variant.path, f"lists {name!r}, which is no file's name", "Do not install it.")
                continue
            try:
                place = place_of(variant, name)
            except PackageError as error:
                yield Finding("files", variant.path, error.what, "Do not install it.")
                continue
            expected.add(place)
            if place not in subject.found.entries:
                yield Finding("files", place, "is missing", _REBUILD)
        yield from _check_stored(variant)
        if EXECUTABLE not in variant.files:
            yield Finding("files", variant.path, f"has no {EXECUTABLE}", _REBUILD)
    for name, entry in subject.found.entries.items():
        if name not in expected:
            yield Finding("files", name, "is not in the manifest", "Remove it, or build the package again.")
        elif entry.kind != "file":
            yield Finding("files", name, f"is no regular file, but a {entry.kind}", _REBUILD)


def _check_stored(variant: Variant) -> Iterator[Finding]:
    for name in variant.stored:
        if name not in variant.files:
            yield Finding("files", variant.path, f"says where {name!r} is stored, which it does not list", _REBUILD)


def check_digests(case: Case) -> Iterator[Finding]:
    """Every file has the content that the manifest says."""
    for name, expected in case.variant.files.items():
        data = case.contents.get(name)
        if data is None:
            continue
        found = digest_of(data)
        if found != expected:
            what = f"{found.size} bytes, expected {expected.size}" if found.size != expected.size else "other content"
            yield Finding("digest", place_of(case.variant, name), f"is not what was packaged: {what}", _RESEAL)


def check_entry(case: Case) -> Iterator[Finding]:
    """``variant.json`` and the JSON files say what the manifest says, and the sizes of what they describe fit."""
    variant, path = case.variant, case.variant.path
    expected: dict[str, Any] = {
        "best_config.json": {"config": dict(variant.config), "shape": dict(variant.shape)},
        "latency.json": dict(variant.latency),
        "out_idx.json": list(variant.out_idx),
        "params.json": [param_to_json(param) for param in variant.params],
    }
    for name, value in expected.items():
        data = case.contents.get(name)
        if data is not None and _read_json(data) != _normal(value):
            yield Finding("entries", f"{path}/{name}", "does not say what the manifest says", _REBUILD)
    if VARIANT_NAME in case.contents:
        where = f"{path}/{VARIANT_NAME}"
        kernel, told = variant_loads(case.contents[VARIANT_NAME], where)
        # Of itself it has no digest; a changed one is the digest check's to find.
        mine, theirs = _without_digests(variant), _without_digests(told)
        if kernel != case.kernel or mine != theirs:
            differs = "kernel" if kernel != case.kernel else next(k for k in mine if mine[k] != theirs[k])
            yield Finding("entries", where, f"does not say what the manifest says of {differs!r}", _REBUILD)
    count = len(variant.params)
    for index in variant.out_idx:
        if not -count <= index < count or not variant.params[index].written:
            what = f"declares the output {index}, which is no tensor that the kernel writes"
            yield Finding("entries", path, what, _REBUILD)


def _without_digests(variant: Variant) -> Mapping[str, Any]:
    fields = {name: getattr(variant, name) for name in variant.__dataclass_fields__ if name != "files"}
    return {**_normal_fields(fields), "files": sorted(set(variant.files) - {VARIANT_NAME})}


def _normal_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if name in ("params", "buckets") else _normal(value) for name, value in fields.items()}


def _normal(value: Any) -> Any:
    """A value as it is after a journey through JSON."""
    return json.loads(json.dumps(value, default=dict))


def _read_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return object()


def _is_inside(path: str) -> bool:
    inside = PurePosixPath(path)
    return bool(inside.parts) and not inside.is_absolute() and ".." not in inside.parts and inside.as_posix() == path


def _is_plain(name: str) -> bool:
    return bool(name) and PurePosixPath(name).name == name and name not in ("..", ".")
