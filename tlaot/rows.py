"""What is packaged, or in a lock, as rows: one a variant of a package, or an entry of a lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import PackageError
from .github import Shipped
from .manifest import MANIFEST_NAME, Variant, loads
from .packaged import Found, find_packaged, open_wheel
from .runtime.dispatch import describe_params
from .spelling import spell_items

if TYPE_CHECKING:
    from .tune.locks.lock import Entry

__all__ = ["Listing", "Row", "as_json", "as_shipped", "label_of", "list_what"]


@dataclass(frozen=True)
class Row:
    """One kernel, target and shape.

    Attributes:
        package: Import name of the package; "" in a lock.
        kernel, target, shape: The workload.
        config: What ships.
        latency: As of :class:`~tlaot.manifest.Variant`.
        tuned, floor, frontend, properties: As of :class:`~tlaot.manifest.Variant`.
        signature: The kernel's parameters; "" in a lock.
        size: Bytes of the variant's files, those that are stored with another one left out; None in a lock.
        variant: The manifest's entry; None in a lock.
        source: Where the variant's files are; None in a lock.
    """

    package: str
    kernel: str
    target: str
    shape: Mapping[str, Any]
    config: Mapping[str, Any]
    latency: Mapping[str, float | None]
    tuned: Mapping[str, Any] = field(default_factory=dict)
    floor: Mapping[str, str] = field(default_factory=dict)
    frontend: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    signature: str = ""
    size: int | None = None
    variant: Variant | None = None
    source: Found | None = None

    @property
    def trusted(self) -> bool:
        """Whether the device was quiet when the times were taken."""
        return self.properties.get("trusted") is not False


@dataclass(frozen=True)
class Listing:
    """All rows of one package, or of one lock.

    Attributes:
        title: Name of the package, or of the lock's file.
        label: Where it is.
        writer: Version of tlaot that packaged it; "" for a lock.
        rows: By kernel, in the order of the manifest or the lock.
        companions: Of a split package, the distributions that have its other kernels, each with its targets.
        elsewhere: Names of kernels that only companions have.
        deflated: Bytes that all of it takes in its wheel; None where it is in none.
    """

    title: str
    label: str
    writer: str
    rows: tuple[Row, ...]
    companions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    deflated: int | None = None

    @property
    def is_lock(self) -> bool:
        return not self.writer


def list_what(what: str) -> list[Listing]:
    """The rows of a wheel (which may have several packages), an installed package, a lock, or a folder: of packages, or of wheels.

    Raises:
        PackageError: There are no packaged kernels, or a manifest is damaged.
        SpecError: A lock is malformed or of a newer version.
    """
    if _is_lock(Path(what)):
        return [_list_lock(Path(what))]
    wheels = sorted(Path(what).glob("*.whl")) if what and Path(what).is_dir() else []
    return [_list_package(found) for one in [*map(str, wheels)] or [what] for found in find_packaged(one)]


def label_of(row: Row) -> str:
    """The row in a message: ``matmul [cuda:sm_90a] (M=64, N=64)``."""
    return f"{row.kernel} [{row.target}] ({spell_items(row.shape)})"


def as_shipped(row: Row) -> Shipped:
    """The row for a summary."""
    notes = "; ".join(map(str, row.properties.get("notes", ()))) or "the device was not quiet"
    origin = str(row.tuned.get("device", ""))
    if "as" in row.tuned:
        origin = f"not measured: as {row.tuned['as']}"
    return Shipped(row.kernel, row.target, row.shape, row.config, row.latency, "" if row.trusted else notes, origin)


def as_json(row: Row) -> dict[str, Any]:
    """The row as ``tlaot inspect --json`` prints it."""
    return {
        "package": row.package,
        "kernel": row.kernel,
        "target": row.target,
        "shape": dict(row.shape),
        "config": dict(row.config),
        "latency": dict(row.latency),
        "signature": row.signature,
        "frontend": dict(row.frontend),
        "properties": dict(row.properties),
        "tuned": dict(row.tuned),
        "floor": dict(row.floor),
        "bytes": row.size,
        **({"buckets": [asdict(b) for b in row.variant.buckets]} if row.variant and row.variant.buckets else {}),
        "path": None if row.variant is None else row.variant.path,
        "stored": {} if row.variant is None else dict(row.variant.stored),
    }


def _is_lock(path: Path) -> bool:
    if path.suffix == ".lock":
        return True
    try:
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False


def _list_package(found: Found) -> Listing:
    manifest = loads(found.read(MANIFEST_NAME), found.label)
    rows = [
        Row(
            manifest.package,
            name,
            variant.target,
            variant.shape,
            variant.config,
            variant.latency,
            variant.tuned,
            variant.floor,
            variant.frontend,
            variant.properties,
            describe_params(variant),
            sum(digest.size for file, digest in variant.files.items() if file not in variant.stored),
            variant,
            found,
        )
        for name, kernel in sorted(manifest.kernels.items())
        for variant in kernel.variants
    ]
    elsewhere = tuple(name for name, kernel in sorted(manifest.kernels.items()) if not kernel.variants)
    return Listing(
        manifest.package,
        found.label,
        manifest.writer,
        tuple(rows),
        manifest.companions,
        elsewhere,
        _deflated(found) if found.inside else None,
    )


def _deflated(found: Found) -> int:
    with open_wheel(found.place) as wheel:
        return sum(member.compress_size for member in wheel.infolist() if member.filename.startswith(found.inside))


def _list_lock(path: Path) -> Listing:
    # Imported here: the lock belongs to the build side, which nothing that looks into packages needs.
    from .tune.locks.lock_file import read_lock

    if not path.is_file():
        raise PackageError(str(path), "there is no such file", "Name a tltune.lock, a wheel or a package.")
    return Listing(path.name, str(path), "", tuple(_of_entry(entry) for entry in read_lock(path).ordered()))


def _of_entry(entry: Entry) -> Row:
    tuned: dict[str, Any] = {"device": entry.device["name"]} if "name" in entry.device else {}
    tuned |= {"sm_count": entry.device["sm_count"]} if entry.device.get("sm_count") else {}
    tuned |= {"as": entry.tuned_as} if entry.tuned_as is not None else {}
    ships = entry.tried(entry.ships)
    first = entry.candidates[0] if entry.candidates else None
    latency: dict[str, float | None] = dict.fromkeys(("latency", "spread", "default_latency", "ref_latency"))
    if ships is not None and ships.timing is not None:
        latency |= {"latency": ships.timing.latency, "spread": ships.timing.spread}
    if first is not None and first.timing is not None:
        latency["default_latency"] = first.timing.latency
    if entry.reference is not None:
        latency["ref_latency"] = entry.reference.latency
    properties: dict[str, Any] = {"checked": entry.checked} if entry.tuned_as is None else {}
    if entry.winner and dict(entry.winner) != dict(entry.ships):
        properties["winner"] = dict(entry.winner)
    properties |= {} if entry.trusted else {"trusted": False, "notes": list(entry.notes)}
    return Row("", entry.kernel, entry.target, entry.shape, entry.ships, latency, tuned, {}, entry.tools, properties)
