"""Whether a shipped file tells where, by whom or when it was built."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..manifest import MANIFEST_NAME
from .finding import Finding
from .subject import Case, Subject, variants_of

__all__ = ["build_names", "build_places", "check_manifest_traces", "check_traces"]

# Folders that are of a person, a build or a moment; a path below /usr, /lib, /proc or /sys is what any Linux has. Each is looked
# for as bytes first: a regular expression without a fixed start takes 100 times as long.
_ROOTS = (
    *(
        b"/home/",
        b"/root/",
        b"/tmp/",
        b"/var/tmp/",
        b"/var/folders/",
        b"/Users/",
        b"/mnt/",
        b"/workspace/",
        b"/github/",
    ),
    *(b"/build/", b"/builds/", b"/private/", b"/opt/conda/", b":\\Users\\", b"site-packages/", b"dist-packages/"),
)
_PATH = re.compile(rb"(?:(?<=-[ILo])|(?<![\w.)\]}/-]))(?:/|[A-Za-z]:\\)[\w.+-][\w.+/\\-]*")
_PATH_BEGINS = 300  # bytes before what was found in which its path begins
_MOST_LOOKS = 2000  # a file with more of them was made to keep this busy
# As ISO 8601 has it, as C's __DATE__, as ctime. A date alone may be a version's.
_ISO = re.compile(rb"20\d\d-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d")
_YEAR = re.compile(rb" 20\d\d(?!\w)")
_DAY = re.compile(
    rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ 0-3]?\d(?: [0-2]\d:[0-5]\d:[0-5]\d(?: [A-Z]{3,4})?)?\Z"
)
_DAY_LENGTH = 24
_NUMBER = re.compile(rb"(?<![\w.])1\d{9}(?:\.\d+)?(?![\w.])")
_NEAR = 2 * 24 * 3600

# A name of a user or a host is a trace where it stands for one: in a path, in an address, after such a word.
_BEFORE_NAME = rb"(?:[/\\@~]|\b(?:user|host|author|builder|by)\b\W{1,4})"
_AFTER_NAME = rb"(?![A-Za-z0-9_])"
# Users and hosts of build machines whose names are words that a file may have there of its own accord.
_COMMON = frozenset(
    [
        "admin",
        "appveyor",
        "bazel",
        "build",
        "builder",
        "buildkite",
        "buildkitd",
        "centos",
        "ciuser",
        "circleci",
        "code",
        "conda",
        "cuda",
        "data",
        "debian",
        "debug",
        "default",
        "docker",
        "fedora",
        "github",
        "gitlab",
        "home",
        "jenkins",
        "kernel",
        "linux",
        "local",
        "localhost",
        "main",
        "mock",
        "nobody",
        "nvidia",
        "project",
        "python",
        "root",
        "runner",
        "sandbox",
        "server",
        "shared",
        "source",
        "static",
        "test",
        "tester",
        "tilelang",
        "torch",
        "ubuntu",
        "user",
        "users",
        "vagrant",
        "work",
        "worker",
    ]
)

_REMEDY = (
    "Build it without the path, the name or the time: a compiler's flag, or a constant of the kernel, brought it in."
)


def build_places(*folders: str | Path) -> tuple[str, ...]:
    """Folders of this machine that no shipped file may name: a build's own, the home, the temporary one, Python's."""
    known = [*folders, os.path.expanduser("~"), tempfile.gettempdir(), os.getcwd(), sys.prefix, sys.base_prefix]
    real = [os.path.realpath(folder) for folder in known]
    # A folder directly below the root ("/usr", "/root") is a word that any Linux has; what is below it is found by pattern.
    named = {path for path in map(str, [*known, *real]) if path.count("/") > 1 and path != "/usr/local"}
    return tuple(sorted(named, key=len, reverse=True))


def build_names() -> tuple[str, ...]:
    """Names of this user and this host that no shipped file may have; a common word is none."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = ""
    names = {user, socket.gethostname().partition(".")[0]}
    return tuple(sorted(n for n in names if len(n) > 3 and n.lower() not in _COMMON and not n.isdigit()))


def check_traces(case: Case) -> Iterator[Finding]:
    """No file of the variant names a place, a user, a host or a time of its build."""
    own = set(_words(case))
    for name, data in sorted(case.contents.items()):
        where = f"{case.variant.path}/{name}"
        for trace in find_traces(data, case.demands.places, [n for n in case.demands.names if n not in own]):
            yield Finding("traces", where, trace, _REMEDY)
        if name.endswith(".json") and case.demands.now is not None:
            yield from _times_near(data, where, case.demands.now)


def check_manifest_traces(subject: Subject) -> Iterator[Finding]:
    """Nor does the manifest, as far as it says anything of its own: its entries are checked with their variants."""
    bare = {"package": subject.manifest.package, "writer": subject.manifest.writer, "project": subject.manifest.project}
    entries = [
        {"frontend": v.frontend, "properties": v.properties, "floor": v.floor, "tuned": v.tuned}
        for _, v in variants_of(subject.manifest)
    ]
    text = json.dumps([bare, entries], default=dict).encode()
    for trace in find_traces(text, subject.demands.places, ()):
        yield Finding("traces", MANIFEST_NAME, trace, _REMEDY)


def find_traces(data: bytes, places: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    """What in a file's content tells of its build, spelled out; of each kind the first."""
    path = next(filter(None, (p.encode() for p in places if _names_place(data, p.encode()))), None) or _find_path(data)
    if path:
        yield f"names the absolute path {path[:200].decode('utf-8', 'replace')}"
    for name in names:
        word = re.escape(name.encode())
        named = _BEFORE_NAME + word + _AFTER_NAME + rb"|(?<![A-Za-z0-9_.])" + word + rb"@"
        if name.encode() in data and re.search(named, data, re.IGNORECASE):
            yield f"names the user or the host that built it, {name}"
    time = _find_time(data)
    if time:
        yield f"has a time in it: {time.decode()}"


def _find_path(data: bytes) -> bytes:
    for root in _ROOTS:
        at = data.find(root)
        for _ in range(_MOST_LOOKS):
            if at < 0:
                break
            # A root that ends a path's name is found anywhere in it, one that begins it at its begin.
            begin = at if root[:1] == b"/" else max(0, at - _PATH_BEGINS)
            match = _PATH.match(data, at, at + 1000) if begin == at else _path_around(data, begin, at)
            if match and len(match[0]) > len(root):
                return match[0]
            at = data.find(root, at + len(root))
    return b""


def _path_around(data: bytes, begin: int, at: int) -> re.Match[bytes] | None:
    paths = _PATH.finditer(data, begin, at + 1000)
    return next((match for match in paths if match.start() <= at < match.end()), None)


def _find_time(data: bytes) -> bytes:
    for match in _ISO.finditer(data):
        if not re.match(rb"[\d.-]", data[max(match.start() - 1, 0) : match.start()]):
            return match[0]
    for match in _YEAR.finditer(data):
        day = _DAY.search(data[max(0, match.start() - _DAY_LENGTH) : match.start()])
        if day:
            return day[0] + match[0]
    return b""


def _names_place(data: bytes, place: bytes) -> bool:
    at = data.find(place)
    while at >= 0:
        after = data[at + len(place) : at + len(place) + 1]
        if not re.match(rb"[\w.-]", after) and not re.match(rb"[\w.]", data[at - 1 : at] if at else b""):
            return True
        at = data.find(place, at + 1)
    return False


def _times_near(data: bytes, where: str, now: float) -> Iterator[Finding]:
    for match in _NUMBER.finditer(data):
        if abs(float(match[0]) - now) < _NEAR:
            yield Finding("traces", where, f"has the time of its build in it: {match[0].decode()}", _REMEDY)


def _words(case: Case) -> Iterator[str]:
    """Words that the author chose; where one of them is the builder's name, that is no trace."""
    variant = case.variant
    values: list[Any] = [
        case.kernel,
        variant.shape,
        variant.config,
        variant.path,
        [param.name for param in variant.params],
    ]
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            values += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            values += value
        else:
            yield from re.findall(r"\w+", str(value))
