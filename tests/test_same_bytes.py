"""Same input, same bytes: wheels of one project that different people build in different places are equal.

No build but the first tunes: it writes tltune.lock, from which the others build, frozen.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environ, copy_project

pytest.importorskip(
    "tlaot.build_hooks", reason="tlaot is not installed here: pip install a wheel of it, as .ci/run does"
)
pytest.importorskip("tvm", reason="the project's kernels are lowered by apache-tvm")

pytestmark = pytest.mark.slow

EPOCH = "1700000000"

BUILD = """
import os, sys
umask, user, hook, out = int(sys.argv[1], 8), int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.umask(umask)
if user:
    os.setgroups([]), os.setgid(user), os.setuid(user)
import setuptools.build_meta as backend
print(getattr(backend, hook)(out))
"""


@dataclass(frozen=True)
class Builder:
    """Somebody, somewhere.

    Attributes:
        folder: The project's folder, below a temporary one.
        umask: His umask.
        environ: Variables that are his own.
        user: The user id to build as, where this process may become another one; 0 for its own.
        mtime: When his files were checked out.
    """

    folder: str
    umask: int = 0o022
    environ: dict[str, str] = field(default_factory=dict)
    user: int = 0
    mtime: int = 1_600_000_000


# Names that would be found again if they got into a wheel.
AUTHOR = Builder("author", 0o022, {"USER": "authorsname", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "TZ": "UTC"})
OTHERS = {
    "another place, a careful umask, another locale and seed": Builder(
        "in some/deeper folder/with spaces, and an umlaut: \u00e4/project-renamed",
        0o077,
        {"USER": "othersname", "LOGNAME": "othersname", "LC_ALL": "C", "PYTHONHASHSEED": "4242", "TZ": "Pacific/Apia"},
        mtime=1_650_000_001,
    ),
    "an open umask, Turkish where it is installed, one job": Builder(
        "x", 0o000, {"USER": "x", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "TLAOT_JOBS": "1", "COLUMNS": "40"}
    ),
    "another user": Builder("nobodys", 0o027, {"USER": "nobody", "PYTHONDONTWRITEBYTECODE": "1"}, user=65534),
}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that every user may enter, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="tlaot-bytes-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build(builder: Builder, place: Path, lock: Path | None = None, epoch: str | None = EPOCH) -> tuple[Path, str]:
    """Build the wheel through the hook, as pip would call it; it, and what was said."""
    top = place / builder.folder.partition("/")[0]
    project = copy_project("flat_plugin", place / builder.folder)
    if lock is not None:
        shutil.copy(lock, project / "tltune.lock")
    return run_hook(builder, top, project, frozen=lock is not None, epoch=epoch)


def run_hook(
    builder: Builder, top: Path, project: Path, frozen: bool, epoch: str | None, hook: str = "build_wheel"
) -> tuple[Path, str]:
    """Call a hook in a project as its builder would, and give what it made."""
    (top / "out").mkdir()
    (top / "tmp").mkdir()
    for path in [top, *top.rglob("*")]:
        # As version control writes files: by the umask.
        path.chmod((0o777 if path.is_dir() else 0o666) & ~builder.umask)
        os.utime(path, (builder.mtime, builder.mtime))
        if builder.user:
            os.chown(path, builder.user, builder.user)
    environ = {**clean_environ(), "HOME": str(top), "TMPDIR": str(top / "tmp"), **builder.environ}
    environ["TLAOT_LOCK"] = "frozen" if frozen else "update"
    environ |= {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    environ |= {} if epoch is None else {"SOURCE_DATE_EPOCH": epoch}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, f"{builder.umask:o}", str(builder.user), hook, str(top / "out")],
        cwd=project,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout
    (made,) = (top / "out").iterdir()
    return made, done.stdout


@pytest.fixture(scope="module")
def first(place: Path) -> tuple[Path, Path]:
    """The author's lock and wheel; this build tuned."""
    wheel, said = build(AUTHOR, place)
    assert "2 workloads" in said
    return place / AUTHOR.folder / "tltune.lock", wheel


@pytest.mark.parametrize("name", OTHERS)
def test_whoever_builds_wherever_gets_the_same_wheel(name: str, place: Path, first: tuple[Path, Path]) -> None:
    builder = OTHERS[name]
    if builder.user and (os.getuid() != 0 or not can_run_as(builder.user)):
        pytest.skip("needs root, and a Python that other users can run")
    wheel, said = build(builder, place, first[0])
    assert "candidates of" not in said, f"it tuned:\n{said}"
    assert wheel.name == first[1].name
    assert differences(first[1], wheel) == []
    assert hashlib.sha256(wheel.read_bytes()).digest() == hashlib.sha256(first[1].read_bytes()).digest()


def test_a_source_distribution_gives_the_same_wheel(place: Path, first: tuple[Path, Path]) -> None:
    """It has the spec, the lock and the modules; whoever unpacks it builds what the author built."""
    packer = Builder("packer")
    project = copy_project("flat_plugin", place / "packer" / "project")
    shutil.copy(first[0], project / "tltune.lock")
    archive, _ = run_hook(packer, place / "packer", project, True, EPOCH, "build_sdist")
    unpacker = Builder("unpacker", 0o077)
    with tarfile.open(archive) as members:
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        members.extractall(place / "unpacker", **safely)
    (unpacked,) = (place / "unpacker").iterdir()
    wheel, said = run_hook(unpacker, place / "unpacker", unpacked, True, EPOCH)
    assert "candidates of" not in said
    assert differences(first[1], wheel) == []


def test_without_source_date_epoch_the_date_is_a_fixed_one(place: Path, first: tuple[Path, Path]) -> None:
    """The members' bytes are the same, their dates are not the clock's."""
    wheel, _ = build(Builder("undated", environ={"LC_ALL": "C.UTF-8"}), place, first[0], epoch=None)
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(first[1]) as dated:
        assert {member.date_time[:3] for member in archive.infolist()} == {(2020, 2, 2)}
        assert {member.date_time[:3] for member in dated.infolist()} == {(2023, 11, 14)}
        assert {n: archive.read(n) for n in archive.namelist()} == {n: dated.read(n) for n in dated.namelist()}


def test_nothing_of_the_builder_is_in_the_wheel(place: Path, first: tuple[Path, Path]) -> None:
    """No path of his, no name, in any file; not in the archive's own fields either."""
    names = {str(place), "authorsname", str(Path(sys.executable).parent.parent)}
    # "vm" or "root" may be in anything.
    names |= {name for name in (os.uname().nodename, pwd.getpwuid(os.getuid()).pw_name) if len(name) > 5}
    with zipfile.ZipFile(first[1]) as archive:
        for member in archive.infolist():
            data = archive.read(member)
            assert not [name for name in names if name.encode() in data], member.filename
            assert (member.extra, member.comment) == (b"", b"")
            record = member.filename.endswith(".dist-info/RECORD")  # setuptools gives it this one
            expected = 0o664 if record else 0o755 if member.filename.endswith(".so") else 0o644
            assert (member.external_attr >> 16) & 0o777 == expected, member.filename
        manifest = json.loads(archive.read("flat_kernels/_tlaot/manifest.json"))
    assert len(manifest["kernels"]["add"]) == 2


def can_run_as(user: int) -> bool:
    command = [
        sys.executable,
        "-c",
        "import os; os.setuid(int(__import__('sys').argv[1])); import setuptools, tlaot, tvm",
    ]
    return subprocess.run([*command, str(user)], capture_output=True).returncode == 0


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two wheels, in words."""
    with zipfile.ZipFile(one) as a, zipfile.ZipFile(other) as b:
        if a.namelist() != b.namelist():
            return [f"members: {a.namelist()} / {b.namelist()}"]
        found = []
        for x, y in zip(a.infolist(), b.infolist(), strict=True):
            if a.read(x) != b.read(y):
                found.append(f"{x.filename}: content: {a.read(x)[:2000]!r} / {b.read(y)[:2000]!r}")
            fields = ("date_time", "external_attr", "create_system", "extra", "flag_bits", "compress_type")
            found += [f"{x.filename}: {f}" for f in fields if getattr(x, f) != getattr(y, f)]
        return found
