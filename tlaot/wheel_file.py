"""Wheels as data: their names, members and metadata; read with every member checked, written with the same bytes each time."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from .errors import PackageError
from .packaged import open_wheel, read_member

__all__ = [
    "Date",
    "Member",
    "Members",
    "WheelName",
    "header",
    "headers_of",
    "parse_name",
    "read_wheel",
    "record_digest",
    "wheel_bytes",
]

Date: TypeAlias = tuple[int, int, int, int, int, int]

_AGAIN = "Build the wheel again."
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class WheelName:
    """A wheel's file name in its parts; ``build`` is empty or begins with the hyphen that joins it."""

    project: str
    version: str
    build: str
    python: str
    abi: str
    platform: str

    def __str__(self) -> str:
        return f"{self.project}-{self.version}{self.build}-{self.python}-{self.abi}-{self.platform}.whl"

    @property
    def info(self) -> str:
        return f"{self.project}-{self.version}.dist-info"

    @property
    def tags(self) -> list[str]:
        """Each tag that the compressed ones stand for."""
        parts = [self.python.split("."), self.abi.split("."), self.platform.split(".")]
        return [f"{python}-{abi}-{platform}" for python in parts[0] for abi in parts[1] for platform in parts[2]]


@dataclass(frozen=True)
class Member:
    """One file: what is in it, its mode as of ``stat``, and its date."""

    content: bytes
    mode: int
    date: Date


Members: TypeAlias = dict[str, Member]


def parse_name(text: str) -> WheelName:
    """The parts of a wheel's file name.

    Raises:
        PackageError: It is none.
    """
    parts = text.removesuffix(".whl").split("-")
    if not text.endswith(".whl") or len(parts) not in (5, 6):
        raise PackageError(text, "is not the file name of a wheel", "Name a wheel as its build named it.")
    project, version, *build, python, abi, platform = parts
    return WheelName(project, version, "".join(f"-{tag}" for tag in build), python, abi, platform)


def read_wheel(wheel: Path) -> tuple[Members, str]:
    """All members of a wheel, and the name of its ``.dist-info``.

    Raises:
        PackageError: It is no wheel, is signed, or a member is not what RECORD says.
    """
    members = _read_members(wheel)
    info = _find_info(members, wheel)
    _check_record(members, info, wheel)
    return members, info


def _read_members(wheel: Path) -> Members:
    with open_wheel(wheel) as archive:
        members: Members = {}
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            if entry.filename in members:
                raise PackageError(f"{wheel}:{entry.filename}", "is there twice", _AGAIN)
            content = read_member(archive, entry.filename)
            members[entry.filename] = Member(content, entry.external_attr >> 16, entry.date_time)
        return members


def _find_info(members: Members, wheel: Path) -> str:
    found = sorted({path.partition("/")[0] for path in members if path.partition("/")[0].endswith(".dist-info")})
    needed = ("METADATA", "WHEEL", "RECORD")
    if len(found) != 1 or not all(f"{found[0]}/{name}" in members for name in needed):
        raise PackageError(str(wheel), f"has no .dist-info with {', '.join(needed)}", _AGAIN)
    for signature in _SIGNATURES:
        if f"{found[0]}/{signature}" in members:
            raise PackageError(str(wheel), f"is signed ({signature})", "Split the wheel, then sign what comes of it.")
    return found[0]


def _check_record(members: Members, info: str, wheel: Path) -> None:
    """Refuse what would be given a new digest and so pass for whole."""
    text = members[f"{info}/RECORD"].content.decode(errors="replace")
    recorded = {row[0]: row[1] for row in csv.reader(text.splitlines()) if len(row) == 3}
    for path, member in members.items():
        said = recorded.get(path, "")
        if path != f"{info}/RECORD" and said != record_digest(member.content, said.partition("=")[0]):
            raise PackageError(f"{wheel}:{path}", "is not what the wheel's RECORD says", _AGAIN)


def headers_of(content: bytes) -> list[tuple[str, str]]:
    """Headers of METADATA or WHEEL: names in lower case, values as they are, with their continuation lines."""
    headers: list[tuple[str, str]] = []
    for line in content.decode("utf-8", errors="replace").splitlines():
        if not line.strip():
            break
        if line[0] in " \t" and headers:
            headers[-1] = headers[-1][0], f"{headers[-1][1]}\n{line}"
        else:
            key, _, value = line.partition(":")
            headers.append((key.strip().lower(), value.strip()))
    return headers


def header(headers: Sequence[tuple[str, str]], name: str, wheel: Path) -> str:
    """The value of a header that there must be.

    Raises:
        PackageError: There is none.
    """
    for key, value in headers:
        if key == name:
            return value
    raise PackageError(str(wheel), f"its METADATA has no {name.title()}", _AGAIN)


def wheel_bytes(members: Members, info: str) -> bytes:
    """The archive: files in order of their names, the metadata after all others and RECORD last of all."""
    record = f"{info}/RECORD"
    paths = sorted((path for path in members if path != record), key=lambda path: (path.startswith(info), path))
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerows((path, record_digest(members[path].content), len(members[path].content)) for path in paths)
    writer.writerow((record, "", ""))
    like = members[f"{info}/WHEEL"]
    written = {**members, record: replace(like, content=rows.getvalue().encode())}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (*paths, record):
            entry = zipfile.ZipInfo(path, written[path].date)
            entry.create_system = 3  # Unix, whatever this is: what the mode means
            entry.external_attr = written[path].mode << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, written[path].content)
    return buffer.getvalue()


def record_digest(content: bytes, algorithm: str = "sha256") -> str:
    """A file's digest as RECORD has it, ``sha256=...``."""
    if algorithm not in ("sha256", "sha384", "sha512"):
        algorithm = "sha256"
    digest = hashlib.new(algorithm, content).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
