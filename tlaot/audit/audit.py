"""The checks in order, over a folder of kernels or over a wheel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..errors import PackageError, TlaotError
from ..manifest import MANIFEST_NAME, Manifest, Variant, loads
from ..packaged import Found, find_packaged, open_wheel
from .archive import check_members, check_record, check_tags, platforms_of, read_wheel
from .binary import Binary, check_binary, check_device_code, check_glibc, read_binary
from .direct import check_direct
from .files import check_coverage, check_digests, check_entry, check_layout, check_manifest
from .finding import Finding, findings_of
from .opening import check_opening
from .subject import EXECUTABLE, Case, Demands, Subject, open_case, variants_of
from .traces import check_manifest_traces, check_traces

__all__ = ["Audited", "audit_folder", "audit_found", "audit_wheel"]

# What is asked of a wheel, of a package, of each variant, and of each variant's binary.
WHEEL_CHECKS = {"archive": check_members, "record": check_record, "tags": check_tags}
PACKAGE_CHECKS = {
    "manifest": check_manifest,
    "coverage": check_coverage,
    "files": check_layout,
    "traces": check_manifest_traces,
}
VARIANT_CHECKS = {
    "digest": check_digests,
    "entries": check_entry,
    "traces": check_traces,
    "direct": check_direct,
}
BINARY_CHECKS: dict[str, Callable[[Case, Binary], Iterable[Finding]]] = {
    "binary": check_binary,
    "glibc": check_glibc,
    "device code": check_device_code,
}


@dataclass(frozen=True)
class Audited:
    """The outcome.

    Attributes:
        label: What was audited.
        manifest: Its manifest, None where it cannot be read.
        findings: What falls short; empty where nothing does.
        binaries: How many distinct binaries were read.
        loaded: Whether they were loaded, too.
    """

    label: str
    manifest: Manifest | None
    findings: tuple[Finding, ...]
    binaries: int = 0
    loaded: bool = False


def audit_folder(folder: Path, demands: Demands = Demands(), load: bool = True) -> Audited:  # noqa: B008
    """Audit a folder with a ``manifest.json``, ``<package>/_tlaot``.

    Args:
        folder: The folder.
        demands: What is asked of it beyond what holds for all.
        load: Load each binary in a fresh process, too.
    """
    try:
        (found,) = (one for one in find_packaged(str(folder.absolute())) if one.place == folder.absolute())
    except (PackageError, ValueError):
        finding = Finding("manifest", str(folder / MANIFEST_NAME), "is missing", "Build the package again.")
        return Audited(str(folder), None, (finding,))
    return audit_found(found, demands, load)


def audit_found(found: Found, demands: Demands = Demands(), load: bool = True) -> Audited:  # noqa: B008
    """Audit one package's kernels, wherever they are."""
    try:
        manifest = loads(found.read(MANIFEST_NAME), MANIFEST_NAME)
    except TlaotError as error:
        return Audited(found.label, None, (Finding("manifest", MANIFEST_NAME, error.what, error.remedy),))
    subject = Subject(found, manifest, demands)
    findings = [*_audit_package(subject)]
    binaries: dict[str, Binary] = {}
    for name, variant in variants_of(manifest):
        look = partial(_audit_variant, subject, binaries)
        findings += findings_of("entries", f"{name}: {variant.path}", look, (name, variant))
    # Nothing is loaded that is not what was packaged: loading runs it.
    doubtful = {finding.where for finding in findings if finding.check in ("binary", "digest", "files")}
    if load:
        sound = {name: binary for name, binary in binaries.items() if name not in doubtful}
        findings += findings_of("opens", found.label, partial(check_opening, found), sound)
    return Audited(found.label, manifest, tuple(dict.fromkeys(findings)), len(binaries), load)


def audit_wheel(path: Path, demands: Demands = Demands(), load: bool = True) -> list[Audited]:  # noqa: B008
    """Audit a wheel: the archive, and the kernels of each package in it.

    Returns:
        The archive's outcome, then one a package.
    """
    try:
        archive = open_wheel(path)
    except PackageError as error:
        return [Audited(str(path), None, (Finding("archive", path.name, error.what, "Build it again."),))]
    with archive:
        wheel = read_wheel(path, archive)
        findings = [f for name, check in WHEEL_CHECKS.items() for f in findings_of(name, path.name, check, wheel)]
        try:
            packages = find_packaged(str(path))
        except PackageError as error:
            findings.append(Finding("manifest", path.name, error.what, error.remedy))
            packages = []
        own = replace(demands, platforms=platforms_of(path))
        return [Audited(str(path), None, tuple(findings)), *(audit_found(found, own, load) for found in packages)]


def _audit_package(subject: Subject) -> Iterator[Finding]:
    for name, check in PACKAGE_CHECKS.items():
        yield from findings_of(name, MANIFEST_NAME, check, subject)


def _audit_variant(subject: Subject, binaries: dict[str, Binary], named: tuple[str, Variant]) -> Iterator[Finding]:
    case = open_case(subject, *named)
    for name, check in VARIANT_CHECKS.items():
        yield from findings_of(name, case.variant.path, check, case)
    if EXECUTABLE in case.contents:
        yield from findings_of("binary", case.executable, partial(_audit_binary, binaries), case)


def _audit_binary(binaries: dict[str, Binary], case: Case) -> Iterator[Finding]:
    place = case.executable
    binary = binaries.get(place)  # of another variant that has it, too
    if binary is None:
        binary = binaries[place] = read_binary(case.contents[EXECUTABLE], place)
    for name, check in BINARY_CHECKS.items():
        yield from findings_of(name, place, partial(check, case), binary)
