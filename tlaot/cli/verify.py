"""``tlaot verify``: every packaged file against the manifest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from ..errors import PackageError
from ..manifest import digest_of
from ..packaged import Packaged, open_packaged
from .spelling import counted

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("verify", help="check every packaged file against the manifest")
    parser.add_argument("what", metavar="PACKAGE|WHEEL")
    parser.set_defaults(run=lambda options: _verify(open_packaged(options.what)))


def _verify(found: Sequence[Packaged]) -> int:
    failed = False
    for packaged in found:
        wrong = list(_wrong_files(packaged))
        failed = failed or bool(wrong)
        for line in wrong:
            print(f"{packaged.label}: {line}", file=sys.stderr)
        count = sum(len(v.files) for k in packaged.manifest.kernels.values() for v in k.variants)
        print(
            f"{packaged.manifest.package}: {counted(count, 'file')}, {f'{len(wrong)} wrong' if wrong else 'all as packaged'}"
        )
    return 1 if failed else 0


def _wrong_files(packaged: Packaged) -> Iterator[str]:
    expected = {
        f"{variant.path}/{name}": digest
        for kernel in packaged.manifest.kernels.values()
        for variant in kernel.variants
        for name, digest in variant.files.items()
    }
    for name, digest in sorted(expected.items()):
        if name not in packaged.names:
            yield f"{name} is missing"
            continue
        try:
            there = digest_of(packaged.read(name))
        except PackageError as error:
            yield f"{name} {error.what}"
            continue
        if there != digest:
            yield f"{name} is not what was packaged: {there.size} bytes, expected {digest.size}, or other content"
    for name in sorted(packaged.names - set(expected)):
        yield f"{name} is not in the manifest"
