"""``tlaot split``: a wheel becomes a main wheel and companions, one a CUDA architecture."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PackageError, TlaotError
from .parser import add_json
from .spelling import show_table, spell_bytes

if TYPE_CHECKING:
    from ..split import Wheel

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "split",
        help="split a wheel: a main one, and a companion for each CUDA architecture",
        description="Split a wheel: the main one keeps what runs on the CPU, and each CUDA architecture's kernels become a "
        "companion, which requires exactly the main wheel's version and is found once it is installed beside it.",
        epilog="examples:\n  tlaot split dist/my_package-1.0-py3-none-manylinux_2_5_x86_64.whl -o wheels\n",
    )
    parser.add_argument("wheel", metavar="WHEEL", type=Path, help="the wheel that has all kernels")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="folder for the wheels")
    add_json(parser, "a list with one object a wheel")
    parser.set_defaults(run=_split)


def _split(options: argparse.Namespace) -> int:
    from ..split import split_wheel, write_wheels

    split = split_wheel(options.wheel)
    if not split.companions:
        raise PackageError(
            str(options.wheel),
            f"has kernels for {', '.join(split.main.targets) or 'nothing'} alone",
            "Ship it as it is.",
        )
    wheels = (split.main, *split.companions)
    if any(
        (options.output / made.name).exists() and (options.output / made.name).samefile(options.wheel)
        for made in wheels
    ):
        raise PackageError(
            str(options.output), "has the wheel itself, which would be overwritten", "Name another folder."
        )
    write_wheels(wheels, options.output)
    if options.json:
        bodies = [{"wheel": made.name, "bytes": len(made.content), "targets": list(made.targets)} for made in wheels]
        print(json.dumps(bodies, indent=1, sort_keys=True))
    else:
        rows = [(made.name, spell_bytes(len(made.content)), ", ".join(made.targets) or "no kernels") for made in wheels]
        print("\n".join(show_table(("wheel", "size", "kernels for"), rows, right=("size",))))
    for whole in _whole_wheels(options.wheel, wheels, options.output):
        print(f"tlaot: {whole} has all kernels still: neither install nor upload it beside its parts", file=sys.stderr)
    return 0


def _whole_wheels(wheel: Path, made: Sequence[Wheel], folder: Path) -> Iterator[Path]:
    """Wheels in a folder of the same project and version as one that was split, and with CUDA kernels still."""
    from ..packaged import open_packaged
    from ..runtime.companions import normal_name
    from ..target import read_target
    from ..wheel_file import parse_name

    own, parts = parse_name(wheel.name), {part.name for part in made}
    for path in sorted(folder.glob("*.whl")):
        try:
            name = parse_name(path.name)
            if path.name in parts or name.version != own.version:
                continue
            if normal_name(name.project) != normal_name(own.project):
                continue
            manifests = [packaged.manifest for packaged in open_packaged(str(path))]
            targets = {v.target for m in manifests for kernel in m.kernels.values() for v in kernel.variants}
            if any(read_target(target, "manifest").is_cuda for target in targets):
                yield path
        except TlaotError:
            continue  # not a wheel of this project that anybody could install with kernels
