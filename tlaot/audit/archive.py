"""Whether a wheel is a sound archive: its members, its RECORD, its tags."""

from __future__ import annotations

import csv
import io
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath

from ..elf import EM_CUDA, is_elf
from ..errors import PackageError
from ..packaged import UNREADABLE, read_member
from ..wheel_file import parse_name, record_digest
from .finding import Finding

__all__ = [
    "Wheel",
    "check_members",
    "check_record",
    "check_tags",
    "platforms_of",
    "read_wheel",
    "record_line",
]

_REPACK = "Pack it again: python -m wheel pack, or pip wheel."
_UNLISTED = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class Wheel:
    """A wheel that was opened.

    Attributes:
        path: The file.
        archive: Its archive.
        info: Name of its ``.dist-info`` folder with ``/``; empty where there is not exactly one.
    """

    path: Path
    archive: zipfile.ZipFile
    info: str


def read_wheel(path: Path, archive: zipfile.ZipFile) -> Wheel:
    """Find the metadata of a wheel."""
    folders = {name.partition("/")[0] for name in archive.namelist() if "/" in name}
    found = [folder for folder in folders if folder.endswith(".dist-info")]
    return Wheel(path, archive, f"{found[0]}/" if len(found) == 1 else "")


def platforms_of(path: Path) -> tuple[str, ...]:
    """Platform tags in a wheel's file name; none for ``any``, and where the name is not a wheel's."""
    try:
        return tuple(tag for tag in parse_name(path.name).platform.split(".") if tag != "any")
    except PackageError:
        return ()


def check_members(wheel: Wheel) -> Iterator[Finding]:
    """Members have one name each, inside the tree, are plain files that can be unpacked."""
    infos = wheel.archive.infolist()
    counts = Counter(info.filename for info in infos)
    for name, count in counts.items():
        if count > 1:
            yield Finding("archive", name, f"is in the archive {count} times", _REPACK)
    for info in infos:
        for what in _wrong_member(info):
            yield Finding("archive", info.filename, what, _REPACK)
    packed = sum(info.compress_size for info in infos)
    if packed > wheel.path.stat().st_size:
        what = f"its members' {packed} packed bytes overlap in a file of {wheel.path.stat().st_size}"
        yield Finding("archive", wheel.path.name, what, "Get the wheel from where you trust it.")


def _wrong_member(info: zipfile.ZipInfo) -> Iterator[str]:
    path = PurePosixPath(info.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in info.filename or re.match(r"[A-Za-z]:", info.filename):
        yield "names a place outside the tree"
    if "\ufffd" in info.filename or (not info.flag_bits & 0x800 and not info.filename.isascii()):
        yield "has a name that is not UTF-8"
    mode = info.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        yield f"is no regular file, but a {'link' if kind == stat.S_IFLNK else 'device or pipe'}"
    elif not info.is_dir() and mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX | stat.S_IWOTH):
        yield f"has the mode {stat.S_IMODE(mode):o}, which others may write to or run as its owner"
    if info.flag_bits & 1:
        yield "is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        yield f"is packed by method {info.compress_type}, which not every installer has"
    year, month, day, hour, minute, second = info.date_time
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 62 and year >= 1980):
        yield f"has the time {info.date_time}, which does not exist"


def check_record(wheel: Wheel) -> Iterator[Finding]:
    """RECORD lists every member with its digest and size, and nothing else."""
    if not wheel.info:
        yield Finding("record", wheel.path.name, "has not exactly one .dist-info folder", _REPACK)
        return
    name = f"{wheel.info}RECORD"
    remedy = "Pack it again; after a deliberate change run tlaot seal on it."
    try:
        rows = read_record(read_member(wheel.archive, name))
    except (ValueError, csv.Error) as error:
        what = error.what if isinstance(error, PackageError) else f"is not a RECORD ({error})"
        yield Finding("record", name, what, remedy)
        return
    members = {info.filename for info in wheel.archive.infolist() if not info.is_dir()}
    unlisted = {name, *(f"{wheel.info}{other}" for other in _UNLISTED)}
    for member in sorted(members - set(rows) - unlisted):
        yield Finding("record", member, "is not in RECORD", remedy)
    for member, (digest, size) in rows.items():
        if member not in members:
            yield Finding("record", member, "is in RECORD, but not in the wheel", remedy)
        elif member not in unlisted:
            what = _wrong_line(wheel.archive, member, digest, size)
            if what:
                yield Finding("record", member, what, remedy)


def _wrong_line(archive: zipfile.ZipFile, member: str, digest: str, size: str) -> str:
    try:
        data = read_member(archive, member)
    except PackageError as error:
        return error.what
    algorithm = digest.partition("=")[0]
    if algorithm not in ("sha256", "sha384", "sha512"):
        return f"has the digest {digest!r} in RECORD, expected one of sha256 or better"
    found = record_digest(data, algorithm)
    if found != digest or size not in ("", str(len(data))):
        return f"is not what RECORD says: {len(data)} bytes, {found[:19]}..."
    return ""


def read_record(data: bytes) -> dict[str, tuple[str, str]]:
    """Lines of a RECORD: digest and size by name.

    Raises:
        ValueError: It is not UTF-8 or not a table of three columns.
    """
    rows = list(csv.reader(io.StringIO(data.decode("utf-8"), newline="")))
    if any(len(row) != 3 for row in rows):
        raise ValueError("a line has not three fields")
    return {row[0]: (row[1], row[2]) for row in rows}


def record_line(data: bytes) -> tuple[str, str]:
    """Digest and size of a file as RECORD has them."""
    return record_digest(data), str(len(data))


def check_tags(wheel: Wheel) -> Iterator[Finding]:
    """The file's name, its .dist-info folder and its WHEEL agree, and a wheel with binaries is of a platform."""
    named = parse_name(wheel.path.name)
    if not wheel.info:
        return  # the check of RECORD has said it
    name = f"{wheel.info}WHEEL"
    told = Parser().parsestr(read_member(wheel.archive, name).decode("utf-8"))
    if _plain_name(wheel.info.rstrip("/")) != _plain_name(named.info):
        yield Finding("tags", wheel.info, f"does not belong to {wheel.path.name}", _REPACK)
    tags = set(told.get_all("Tag") or ())
    if tags != set(named.tags):
        what = f"says {', '.join(sorted(tags)) or 'no tag'}, the file's name {', '.join(sorted(named.tags))}"
        yield Finding("tags", name, what, "Give it its tags with python -m wheel tags.")
    pure = (told.get("Root-Is-Purelib") or "").strip().lower()
    if pure not in ("true", "false"):
        yield Finding("tags", name, f"says Root-Is-Purelib: {pure or 'nothing'}, expected true or false", _REPACK)
    first = next(binaries_in(wheel.archive), None)
    if first is not None:
        if pure == "true":
            yield Finding("tags", name, f"says Root-Is-Purelib: true, but the wheel has binaries ({first})", _REPACK)
        if "any" in named.platform.split("."):
            what = f"is tagged for any platform, but has binaries ({first})"
            yield Finding("tags", wheel.path.name, what, "Give it the platform of its binaries: auditwheel show.")


def binaries_in(archive: zipfile.ZipFile) -> Iterator[str]:
    """Names of the wheel's binaries for a host; device code is for none."""
    for info in archive.infolist():
        if info.filename.endswith((".py", ".json", ".txt", "/")):
            continue
        try:
            with archive.open(info) as file:
                head = file.read(20)
        except UNREADABLE:
            continue
        if is_elf(head) and int.from_bytes(head[18:20], "little") != EM_CUDA:
            yield info.filename


def _plain_name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()
