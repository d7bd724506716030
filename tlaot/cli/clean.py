"""``tlaot clean``: remove what builds leave in a project's ``build/tlaot``."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import PackageError
from .spelling import counted, spell_bytes

__all__ = ["add"]

_DESCRIPTION = """\
Removes build/tlaot of a project: compiled candidates, measurements, records and the log. The next build tunes again what
tltune.lock does not have. Nothing else in build/ is touched.
"""
_EXAMPLES = """\
examples:
  tlaot clean                   of the project in this folder
  tlaot clean ~/my_project --dry-run
  tlaot clean --keep-records    measurements stay, binaries are compiled again
"""

# All that a build makes there.
_NAMES = frozenset({"autotuner.log", "capture", "records", "store", "lock", "wheels"})
_PREFIXES = ("run-",)
# What tuning found: records, and the measurements of the store.
_RECORDS = ("records", "store/measurements.jsonl")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "clean",
        help="remove what builds leave in build/tlaot",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "project",
        metavar="PROJECT",
        nargs="?",
        type=Path,
        default=Path(),
        help="the project's folder; default: this one",
    )
    parser.add_argument("--keep-records", action="store_true", help="keep what was measured")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed")
    parser.set_defaults(run=_clean)


def _clean(options: argparse.Namespace) -> int:
    folder = _work_folder(options.project)
    if folder is None:
        print(f"{options.project / 'build' / 'tlaot'}: there is none, nothing to remove")
        return 0
    keep = _RECORDS if options.keep_records else ()
    try:
        with _held(folder):
            going = list(_going(folder, keep))
            size = sum(path.lstat().st_size for path in going)
            if not options.dry_run:
                _remove(folder, going, keep)
    except OSError as error:
        raise PackageError(
            str(folder), f"cannot be removed ({error.strerror}: {error.filename})", "Run it as the folder's owner."
        ) from None
    does = "would remove" if options.dry_run else "removed"
    print(f"{folder}: {does} {counted(len(going), 'file')}, {spell_bytes(size)}")
    return 0


def _work_folder(project: Path) -> Path | None:
    """The project's work folder, after a look at whether it is one.

    Raises:
        PackageError: The project is no folder, or what is there was not made by tlaot.
    """
    if not project.is_dir():
        raise PackageError(
            str(project), "there is no such folder", "Name the folder of a project that tlaot has built."
        )
    folder = project / "build" / "tlaot"
    if not os.path.lexists(folder):
        if not any((project / name).is_file() for name in ("pyproject.toml", "setup.py", "setup.cfg", "tltune.toml")):
            raise PackageError(str(project), "is no project", "Name the folder that has pyproject.toml.")
        return None
    if folder.is_symlink() or not folder.is_dir():
        raise PackageError(str(folder), "is a link or a file, not a work folder of tlaot", "Remove it yourself.")
    foreign = sorted(
        path.name for path in folder.iterdir() if path.name not in _NAMES and not path.name.startswith(_PREFIXES)
    )
    if foreign:
        raise PackageError(
            str(folder),
            f"is no work folder of tlaot alone: it has {foreign[0]!r}",
            "Move that away, or remove it yourself.",
        )
    return folder


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Nothing is taken from under a build that runs."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PackageError(str(folder), "a build works in it", "Wait until it ends.") from None
        yield
    finally:
        os.close(handle)


def _going(folder: Path, keep: tuple[str, ...]) -> Iterator[Path]:
    """Files below the folder, less those to be kept; links are files, and are not followed."""
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(place, name)
            inside = path.relative_to(folder).as_posix()
            if not any(inside == kept or inside.startswith(f"{kept}/") for kept in keep) and inside != "lock":
                yield path


def _remove(folder: Path, going: list[Path], keep: tuple[str, ...]) -> None:
    if not keep:
        shutil.rmtree(folder)
        return
    for path in going:
        path.unlink()
    for place, folders, _ in os.walk(folder, topdown=False):
        for name in folders:
            path = Path(place, name)
            if path.is_symlink():
                path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()
