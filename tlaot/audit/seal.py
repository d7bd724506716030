"""Accept a deliberate change of packaged files: new digests, where everything else is still right."""

from __future__ import annotations

import csv
import io
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..atomic import write_atomically
from ..errors import PackageError
from ..manifest import (
    MANIFEST_NAME,
    VARIANT_NAME,
    Kernel,
    Variant,
    digest_of,
    dumps,
    loads,
    place_of,
    variant_dumps,
)
from ..packaged import Found, find_packaged, open_wheel, read_member
from .archive import read_record, read_wheel, record_line
from .audit import audit_found, audit_wheel
from .finding import Finding, show_findings
from .subject import Demands

__all__ = ["Sealed", "seal"]


@dataclass(frozen=True)
class Sealed:
    """What a seal did.

    Attributes:
        label: The package's manifest, or the wheel.
        changed: Files that were not what was packaged, spelled out.
        written: Files that were written, relative to the folder or to the wheel.
    """

    label: str
    changed: tuple[str, ...]
    written: tuple[str, ...]


def seal(what: str, load: bool = True) -> list[Sealed]:
    """Write new digests into the manifest, ``variant.json`` and RECORD of packaged kernels that were changed on purpose.

    Args:
        what: A wheel, which is written anew; the import name of an installed package; a folder: a package's, an unpacked wheel's.
        load: Load each binary in a fresh process before it is accepted.

    Returns:
        What was done: one for a wheel, one a package in a folder. Nothing is written where nothing was changed.

    Raises:
        PackageError: Something other than digests is wrong; nothing has been written.
    """
    path, found = Path(what), find_packaged(what)
    plans = [(one, *_plan(one)) for one in found]
    for one, contents, _ in plans:
        _refuse(one.label, audit_found(_with_contents(one, contents), Demands(), load).findings)
    try:
        if path.is_file():
            return _seal_wheel(path, plans)
        return [_seal_folder(one, contents, changed) for one, contents, changed in plans]
    except OSError as error:
        raise PackageError(what, f"cannot be written ({error.strerror})", "Run it as its owner.") from None


def _refuse(label: str, findings: tuple[Finding, ...] | list[Finding]) -> None:
    if findings:
        table = "\n".join(show_findings(findings))
        raise PackageError(
            label, f"is not sealed, as more is wrong with it than digests:\n{table}", "Nothing was written."
        )


def _plan(found: Found) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The manifest and the entries with new digests, by name, and what was changed, spelled out."""
    manifest = loads(found.read(MANIFEST_NAME), found.label)
    contents: dict[str, bytes] = {}
    changed: dict[str, str] = {}
    kernels = {}
    for name, kernel in manifest.kernels.items():
        variants = [_seal_variant(found, name, variant, contents, changed) for variant in kernel.variants]
        kernels[name] = Kernel(name, tuple(variants))
    if contents:
        contents[MANIFEST_NAME] = dumps(replace(manifest, kernels=kernels)).encode()
    return contents, tuple(changed.values())


def _seal_variant(
    found: Found, kernel: str, variant: Variant, contents: dict[str, bytes], changed: dict[str, str]
) -> Variant:
    files = dict(variant.files)
    for name, expected in variant.files.items():
        place = place_of(variant, name)
        now = digest_of(found.read(place))
        if now != expected and name != VARIANT_NAME:
            files[name] = now
            changed[place] = (
                f"{place}: {expected.size} bytes ({expected.sha256[:12]}) are now {now.size} ({now.sha256[:12]})"
            )
    if files == variant.files:
        return variant
    sealed = replace(variant, files=files)
    if VARIANT_NAME in files:
        entry = variant_dumps(kernel, sealed).encode()
        contents[place_of(variant, VARIANT_NAME)] = entry
        sealed = replace(sealed, files={**files, VARIANT_NAME: digest_of(entry)})
    else:
        contents.setdefault(MANIFEST_NAME, b"")
    return sealed


def _with_contents(found: Found, contents: Mapping[str, bytes]) -> Found:
    return replace(found, read=lambda name: contents[name] if name in contents else found.read(name))


def _seal_folder(found: Found, contents: Mapping[str, bytes], changed: tuple[str, ...]) -> Sealed:
    # The manifest last: until it is there, the loader refuses the changed files as it did before.
    for name in sorted(contents, key=lambda name: name == MANIFEST_NAME):
        _replace(found.place / name, contents[name])
    written = list(contents)
    touched = [found.place / name for name in contents] + [found.place / line.partition(":")[0] for line in changed]
    for record in _records_beside(found.place):
        if _renew_record(record, touched):
            written.append(str(record))
    return Sealed(found.label, changed, tuple(written))


def _records_beside(folder: Path) -> Iterator[Path]:
    """RECORD of the distributions in the folder that the package is installed or unpacked in."""
    for parent in folder.parents:
        records = sorted(parent.glob("*.dist-info/RECORD"))
        if records:
            yield from records
            return


def _renew_record(path: Path, touched: list[Path]) -> bool:
    """Write new lines for files that a RECORD lists; whether it lists any whose line is another."""
    try:
        rows = read_record(path.read_bytes())
    except (OSError, ValueError):
        return False
    root = path.parent.parent
    new = dict(rows)
    for file in touched:
        name = Path(os.path.relpath(file, root)).as_posix()
        if name in rows:
            new[name] = record_line(file.read_bytes())
    if new == rows:
        return False
    _replace(path, _dump_record(new))
    return True


def _seal_wheel(path: Path, plans: list[tuple[Found, dict[str, bytes], tuple[str, ...]]]) -> list[Sealed]:
    contents = {one.inside + name: data for one, new, _ in plans for name, data in new.items()}
    with open_wheel(path) as archive:
        record, rows = _record_of(path, archive)
        names = [info.filename for info in archive.infolist() if not info.is_dir() and info.filename != record]
        right = {name: record_line(contents.get(name) or read_member(archive, name)) for name in names}
        new = {name: right.get(name, line) for name, line in rows.items() if name in right or name == record}
        new.update((name, line) for name, line in right.items() if name not in new)
        if new != rows:
            contents[record] = _dump_record(new)
        if contents:
            _rewrite(path, archive, contents)
    ours = tuple(one.inside for one, _, _ in plans)
    beside = [
        f"{name}: is not what RECORD said"
        for name in names
        if not name.startswith(ours) and rows.get(name) != right[name]
    ]
    beside += [f"{name}: is in RECORD no more" for name in rows if name not in new]
    changed = [line for _, _, lines in plans for line in lines]
    return [Sealed(str(path), (*changed, *beside), tuple(contents))]


def _record_of(path: Path, archive: zipfile.ZipFile) -> tuple[str, dict[str, tuple[str, str]]]:
    record = f"{read_wheel(path, archive).info}RECORD"
    try:
        return record, read_record(read_member(archive, record))
    except PackageError:
        raise
    except ValueError as error:
        raise PackageError(f"{path}:{record}", f"is not a RECORD ({error})", "Pack the wheel again.") from None


def _rewrite(path: Path, archive: zipfile.ZipFile, contents: Mapping[str, bytes]) -> None:
    """The wheel with other content of some members, in the same order, with the same times and modes; it is audited before it appears."""
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:40]}."))
    made = folder / path.name  # its name has the tags
    try:
        with zipfile.ZipFile(made, "w") as out:
            for info in archive.infolist():
                member = _header_of(info)
                out.writestr(member, contents[info.filename] if info.filename in contents else archive.read(info))
        _refuse(str(path), [finding for audited in audit_wheel(made, load=False) for finding in audited.findings])
        made.chmod(stat.S_IMODE(path.stat().st_mode))
        with made.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)
        folder.rmdir()


def _header_of(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """A new member's header with the name, time, mode and packing of another's."""
    made = zipfile.ZipInfo(info.filename, info.date_time)
    made.external_attr, made.create_system, made.compress_type = (
        info.external_attr,
        info.create_system,
        info.compress_type,
    )
    return made


def _dump_record(rows: Mapping[str, tuple[str, str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((name, *row) for name, row in rows.items())
    return text.getvalue().encode()


def _replace(path: Path, data: bytes) -> None:
    """Another content for a file that is there; its mode stays."""
    write_atomically(path, data, stat.S_IMODE(path.stat().st_mode))
