"""What is known of each workload, gathered from locks, a project's records, wheels and installed packages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import PackageError
from ..manifest import MANIFEST_NAME, Param, Variant, loads
from ..packaged import find_packaged
from ..runtime.dispatch import describe_params
from ..tune.locks.lock import Entry, Tried, key_of
from ..tune.locks.lock_entry import entry_from_json
from ..tune.locks.lock_file import read_lock

__all__ = ["Bucket", "Size", "Source", "Try", "Work", "gather"]

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Try:
    """What became of one config.

    Attributes:
        config: The config.
        roles: Of ``"fastest"``, ``"ships"`` and ``"default"`` (the first one declared), those that it is.
        ms: Median time; None where there is none.
        spread: Interquartile range over the median.
        low: First decile in ms.
        samples: Number of samples.
        stage, reason: Of one that failed; the stage of one that was not tried is ``"not tried"``.
    """

    config: Mapping[str, Any]
    roles: tuple[str, ...] = ()
    ms: float | None = None
    spread: float | None = None
    low: float | None = None
    samples: int | None = None
    stage: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Size:
    """What was found of a dynamic workload at one size.

    Attributes:
        sizes: The open dimensions' sizes.
        times: Times in ms by the config's position among the tries.
        fastest: Position of the fastest one.
        reference: The reference's time in ms.
    """

    sizes: Mapping[str, int]
    times: Mapping[int, float]
    fastest: int
    reference: float | None = None


@dataclass(frozen=True)
class Bucket:
    """A range of sizes that one packaged variant serves.

    Attributes:
        config: The variant's config.
        sizes: First and last size of each open dimension; the last is None where there is no end.
        regret: How many times the best time it takes where it is worst, among the sizes that were measured.
        ms: Times at the first and the last size; None where they were not measured.
    """

    config: Mapping[str, Any]
    sizes: Mapping[str, tuple[int, int | None]]
    regret: float | None = None
    ms: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Work:
    """One kernel, target and shape, with all that the sources say of it.

    Attributes:
        kernel, target, shape: The workload.
        config: What ships.
        ms, spread: The time of what ships, and its interquartile range over it.
        default_ms, reference_ms: Times of the first config declared, and of the reference.
        tries: What became of every config; nothing where only a package was looked at.
        device: What was measured on, by the names of a lock's entry.
        tuned_as: Of a stand-in, the target whose winner it has.
        checked: Whether results were compared; None where that is not known.
        doubts: Why the times are not to be trusted.
        notes: What else is to be said of the measurement.
        tools: Versions of what compiled.
        params: The signature; nothing where only a lock was looked at.
        signature: The same as text.
        size: Bytes of what ships; None where only a lock was looked at.
        sizes, buckets: Of a dynamic workload.
    """

    kernel: str
    target: str
    shape: Mapping[str, Any]
    config: Mapping[str, Any]
    ms: float | None = None
    spread: float | None = None
    default_ms: float | None = None
    reference_ms: float | None = None
    tries: tuple[Try, ...] = ()
    device: Mapping[str, Any] = field(default_factory=dict)
    tuned_as: str | None = None
    checked: bool | None = None
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict)
    params: tuple[Param, ...] = ()
    signature: str = ""
    size: int | None = None
    sizes: tuple[Size, ...] = ()
    buckets: tuple[Bucket, ...] = ()

    @property
    def key(self) -> Key:
        return key_of(self.kernel, self.target, self.shape)

    @property
    def failed(self) -> tuple[Try, ...]:
        return tuple(one for one in self.tries if one.ms is None and one.stage != "not tried")


@dataclass(frozen=True)
class Source:
    """Where evidence came from.

    Attributes:
        kind: ``"lock"``, ``"records"`` or ``"package"``.
        label: What to call it.
        count: Workloads that it has.
    """

    kind: str
    label: str
    count: int


def gather(whats: Sequence[str]) -> tuple[list[Source], list[Work]]:
    """What locks, folders of records, wheels and packages say; of a workload that several have, each what it knows.

    A lock knows every candidate, a package the signature, the size and the ranges of sizes.

    Raises:
        PackageError: One of them is not there, has no kernels, or is damaged.
        SpecError: A lock is malformed.
    """
    sources: list[Source] = []
    entries: dict[Key, Entry] = {}
    variants: dict[Key, tuple[str, list[Variant]]] = {}
    for what in whats:
        path = Path(what)
        if path.suffix == ".lock" or _is_records(path):
            found = _read_entries(path)
            sources.append(Source("records" if path.is_dir() else "lock", _label(path), len(found)))
            # What is named first counts.
            entries = {**{entry.key: entry for entry in found}, **entries}
        else:
            shipped = list(_read_variants(what))
            sources.append(Source("package", _label(path), len(shipped)))
            for kernel, variant in shipped:
                variants.setdefault(key_of(kernel, variant.target, variant.shape), (kernel, []))[1].append(variant)
    keys = dict.fromkeys([*entries, *variants])
    works = [_unite(entries.get(key), *variants.get(key, ("", []))) for key in keys]
    # Stand-ins, of which there is less to see, after what was measured.
    return sources, sorted(works, key=lambda work: (work.kernel, work.ms is None, work.target, _order(work.shape)))


def _order(shape: Mapping[str, Any]) -> list[tuple[str, str, float, str]]:
    """Sizes by their values, whatever else a shape has."""
    return [
        (name, "", float(value), "") if isinstance(value, (int, float)) else (name, "x", 0.0, str(value))
        for name, value in sorted(shape.items())
    ]


def _label(path: Path) -> str:
    """What the page calls it: nothing of the folders of whoever wrote the page."""
    return "build/tlaot/records" if path.is_dir() and _is_records(path) else path.name


def _is_records(path: Path) -> bool:
    return path.is_dir() and path.name == "records" and path.parent.name == "tlaot"


def _read_entries(path: Path) -> list[Entry]:
    if not path.exists():
        raise PackageError(str(path), "there is no such file", "Name a tltune.lock, a wheel or a package.")
    if path.is_file():
        return read_lock(path).ordered()
    entries = []
    for file in sorted(path.rglob("*.json")):
        try:
            body = json.loads(file.read_bytes())
            body.pop("key", None)
            entries.append(entry_from_json(body, file.name))
        except (ValueError, AttributeError):
            continue  # a torn record counts as none, as it does in a build
    return entries


def _read_variants(what: str) -> Iterable[tuple[str, Variant]]:
    for found in find_packaged(what):
        manifest = loads(found.read(MANIFEST_NAME), found.label)
        for name, kernel in sorted(manifest.kernels.items()):
            for variant in kernel.variants:
                yield name, variant


def _unite(entry: Entry | None, kernel: str, variants: Sequence[Variant]) -> Work:
    first = variants[0] if variants else None
    size = sum(d.size for v in variants for file, d in v.files.items() if file not in v.stored) if variants else None
    params = first.params if first is not None else ()
    signature = "" if first is None else describe_params(first)
    buckets = tuple(
        Bucket(variant.config, dict(bucket.sizes), bucket.regret, bucket.ms)
        for variant in variants
        for bucket in variant.buckets
    )
    if entry is None:
        assert first is not None
        return _of_variant(kernel, first, size, buckets)
    ships, default = entry.tried(entry.ships), entry.candidates[0] if entry.candidates else None
    timing = None if ships is None else ships.timing
    return Work(
        entry.kernel,
        entry.target,
        entry.shape,
        entry.ships,
        ms=None if timing is None else timing.latency,
        spread=None if timing is None else timing.spread,
        default_ms=None if default is None or default.timing is None else default.timing.latency,
        reference_ms=None if entry.reference is None else entry.reference.latency,
        tries=tuple(_try(tried, index, entry) for index, tried in enumerate(entry.candidates)),
        device=entry.device,
        tuned_as=entry.tuned_as,
        checked=entry.checked if entry.tuned_as is None else None,
        doubts=() if entry.trusted else (entry.notes or ("the device was not quiet",)),
        notes=entry.notes if entry.trusted else (),
        tools=entry.tools,
        params=params,
        signature=signature,
        size=size,
        sizes=tuple(
            Size(
                sized.sizes,
                {index: timing.latency for index, timing in sized.times.items()},
                sized.winner,
                None if sized.reference is None else sized.reference.latency,
            )
            for sized in entry.sizes
        ),
        buckets=buckets,
    )


def _of_variant(kernel: str, variant: Variant, size: int | None, buckets: tuple[Bucket, ...]) -> Work:
    tuned, properties = variant.tuned, variant.properties
    device = {"name": tuned["device"]} if tuned.get("device") else {}
    device |= {"sm_count": tuned["sm_count"]} if tuned.get("sm_count") else {}
    doubts = (
        ()
        if properties.get("trusted") is not False
        else tuple(map(str, properties.get("notes") or ("the device was not quiet",)))
    )
    return Work(
        kernel,
        variant.target,
        variant.shape,
        variant.config,
        ms=variant.latency.get("latency"),
        spread=variant.latency.get("spread"),
        default_ms=variant.latency.get("default_latency"),
        reference_ms=variant.latency.get("ref_latency"),
        device=device,
        tuned_as=tuned.get("as"),
        checked=properties.get("checked"),
        doubts=doubts,
        tools=variant.frontend,
        params=variant.params,
        signature=describe_params(variant),
        size=size,
        buckets=buckets,
    )


def _try(tried: Tried, index: int, entry: Entry) -> Try:
    parts = [part.config for part in entry.parts] or [entry.ships]
    config = dict(tried.config)
    roles = (
        *(("fastest",) if config == dict(entry.winner) else ()),
        *(("ships",) if config in [dict(part) for part in parts] else ()),
        *(("default",) if index == 0 else ()),
    )
    if tried.timing is not None:
        timing = tried.timing
        return Try(config, roles, timing.latency, timing.spread, timing.low, timing.samples)
    if tried.failed is not None:
        return Try(config, roles, stage=tried.failed[0], reason=tried.failed[1])
    return Try(config, roles, stage="not tried", reason=tried.skipped or "")
