"""Names of files in device code, which assertions put there: as a file is included, not by the folders of the machine that compiles."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

__all__ = ["find_file_names", "include_folders", "rename_in_ptx", "renaming_flags"]

_ABSOLUTE = re.compile(rb"(?<![^\0\n\r\t '\"(=:,])/[^\0\n\r\t'\"]{2,1000}")
# A string among PTX's module variables: its bytes, as numbers.
_STRING = re.compile(r"(\.b8 [\w$]+\[)(\d+)(\] = \{)([\d, ]+)(\};)")


def include_folders(flags: Sequence[str]) -> list[str]:
    """Folders that a compiler's flags have it search, in order."""
    folders, rest = [], iter(flags)
    for flag in rest:
        if flag in ("-I", "--include-path"):
            folders.append(next(rest, ""))
        elif flag.startswith("-I"):
            folders.append(flag[2:])
        elif flag.startswith("--include-path="):
            folders.append(flag.partition("=")[2])
    return [folder for folder in folders if folder]


def find_file_names(data: bytes) -> list[str]:
    """Files of this machine that are named in device code by their whole paths, each once."""
    found = (match.decode(errors="replace") for match in _ABSOLUTE.findall(data))
    return [path for path in dict.fromkeys(found) if os.path.isfile(path)]


def rename_in_ptx(ptx: str, folders: Iterable[str]) -> str:
    """PTX whose strings name files as they are included.

    Args:
        ptx: What NVRTC or nvcc has made.
        folders: Those that were searched for includes.
    """
    folders = list(folders)

    def rename(match: re.Match[str]) -> str:
        renamed = data = bytes(int(number) & 255 for number in match[4].split(","))
        for path in find_file_names(data):
            renamed = renamed.replace(path.encode(), path.removeprefix(_prefix(path, folders)).encode())
        if renamed == data:
            return match[0]
        size = int(match[2]) - len(data) + len(renamed)  # of what is longer than its initial value, too
        return f"{match[1]}{size}{match[3]}{', '.join(map(str, renamed))}{match[5]}"

    return _STRING.sub(rename, ptx)


def renaming_flags(names: Iterable[str], folders: Iterable[str]) -> list[str]:
    """nvcc's flags that have these files named as they are included: its preprocessor is the host's compiler, gcc 8 or clang 10 and later."""
    folders = list(folders)
    prefixes = dict.fromkeys(_prefix(name, folders) for name in names)
    # nvcc takes a comma for the end of a flag, and hands a space to a shell.
    return [f"-Xcompiler=-fmacro-prefix-map={prefix}=" for prefix in prefixes if not re.search(r"[\s,]", prefix)]


def _prefix(path: str, folders: Iterable[str]) -> str:
    """What is left out of a file's name: the folder that it was found in, else its own."""
    # NVRTC shortens what has ".." in it, nvcc does not.
    spelled = (f"{one.rstrip('/')}/" for folder in folders for one in (folder, os.path.normpath(folder)))
    return max((one for one in spelled if path.startswith(one)), key=len, default=path[: path.rindex("/") + 1])
