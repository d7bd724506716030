"""The ``tlaot`` command: look into what was packaged, and check it.

``inspect`` and ``verify`` take the import name of an installed package or the path of a wheel; neither imports the
package, loads a binary or touches a device.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import PackageError, TlaotError
from .manifest import FOLDER, MANIFEST_NAME, Manifest, Variant, digest_of, loads
from .runtime.dispatch import describe_params
from .runtime.locate import find_manifest

__all__ = ["main"]


@dataclass(frozen=True)
class Packaged:
    """One package's kernels, wherever they are.

    Attributes:
        label: What to call it: the manifest's path, with the wheel's if it is in one.
        manifest: The manifest.
        names: Files beside the manifest, relative to it.
        read: Content of one of them.
    """

    label: str
    manifest: Manifest
    names: frozenset[str]
    read: Callable[[str], bytes]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 1 where a check failed, 2 where it could not be made."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        found = open_packaged(options.what)
        status: int = options.run(found, options)
    except TlaotError as error:
        print(f"tlaot: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # `tlaot inspect ... | head`
        sys.stderr.close()
        return 0
    return status


def open_packaged(what: str) -> list[Packaged]:
    """The kernels in an installed package, or of all packages in a wheel.

    Raises:
        PackageError: There are none, or a manifest is damaged.
    """
    path = Path(what)
    if what.endswith(".whl") or path.is_file():
        return list(_in_wheel(path))
    manifest = find_manifest(what)
    folder = manifest.parent
    names = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [
        Packaged(
            str(manifest),
            loads(manifest.read_bytes(), str(manifest)),
            frozenset(names) - {MANIFEST_NAME},
            lambda name: (folder / name).read_bytes(),
        )
    ]


def _in_wheel(path: Path) -> Iterator[Packaged]:
    try:
        wheel = zipfile.ZipFile(path)
        members = wheel.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise PackageError(str(path), f"is not a readable wheel ({error})", "Name a wheel or a package.") from None
    manifests = [m for m in members if PurePosixPath(m).parts[-2:] == (FOLDER, MANIFEST_NAME)]
    if not manifests:
        raise PackageError(
            str(path), "has no packaged kernels", "Build it with a tltune.toml, and without -C tune=off."
        )
    for member in manifests:
        folder = member[: -len(MANIFEST_NAME)]
        names = [m[len(folder) :] for m in members if m.startswith(folder) and not m.endswith("/")]
        yield Packaged(
            f"{path}:{member}",
            loads(_read_member(wheel, "", member), f"{path}:{member}"),
            frozenset(names) - {MANIFEST_NAME},
            partial(_read_member, wheel, folder),
        )


def _read_member(wheel: zipfile.ZipFile, folder: str, name: str) -> bytes:
    try:
        return wheel.read(folder + name)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        # RuntimeError: damage that reads as encrypted, or as packed by a method that zipfile does not have.
        where, why = f"{wheel.filename}:{folder}{name}", str(error)[:200]
        raise PackageError(where, f"cannot be read ({why})", "Get the wheel again.") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tlaot", description=__doc__.partition("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    inspect = commands.add_parser("inspect", help="list the packaged kernels, their variants and what was measured")
    inspect.add_argument("what", metavar="PACKAGE|WHEEL")
    inspect.add_argument("--json", action="store_true", help="print the list as JSON")
    inspect.set_defaults(run=_inspect)
    verify = commands.add_parser("verify", help="check every packaged file against the manifest")
    verify.add_argument("what", metavar="PACKAGE|WHEEL")
    verify.set_defaults(run=_verify)
    return parser


def _inspect(found: Sequence[Packaged], options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps([row for packaged in found for row in _rows(packaged)], indent=1, sort_keys=True))
        return 0
    for packaged in found:
        manifest = packaged.manifest
        print(f"{manifest.package}, packaged by tlaot {manifest.writer} ({packaged.label})")
        for name, kernel in sorted(manifest.kernels.items()):
            print(f"\n{name}")
            for variant in kernel.variants:
                print(f"  {variant.target}  {_spell(variant.shape)}  {_spell_time(variant)}")
                print(f"    {describe_params(variant)}")
                size = sum(digest.size for digest in variant.files.values())
                print(f"    config {_spell(variant.config)}; {size} bytes; {_spell(variant.frontend) or 'no frontend'}")
    return 0


def _verify(found: Sequence[Packaged], options: argparse.Namespace) -> int:
    failed = False
    for packaged in found:
        wrong = list(_wrong_files(packaged))
        failed = failed or bool(wrong)
        for line in wrong:
            print(f"{packaged.label}: {line}", file=sys.stderr)
        count = sum(len(v.files) for k in packaged.manifest.kernels.values() for v in k.variants)
        print(f"{packaged.manifest.package}: {count} files, {f'{len(wrong)} wrong' if wrong else 'all as packaged'}")
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


def _rows(packaged: Packaged) -> Iterator[dict[str, Any]]:
    for name, kernel in sorted(packaged.manifest.kernels.items()):
        for variant in kernel.variants:
            yield {
                "package": packaged.manifest.package,
                "kernel": name,
                "target": variant.target,
                "shape": dict(variant.shape),
                "config": dict(variant.config),
                "latency": dict(variant.latency),
                "signature": describe_params(variant),
                "frontend": dict(variant.frontend),
                "properties": dict(variant.properties),
                "bytes": sum(digest.size for digest in variant.files.values()),
            }


def _spell(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items()))


def _spell_time(variant: Variant) -> str:
    shown = {"latency": "tuned", "default_latency": "default", "ref_latency": "reference"}
    times = [f"{word} {variant.latency[key]:.4g} ms" for key, word in shown.items() if variant.latency.get(key)]
    return ", ".join(times) or "not measured"


if __name__ == "__main__":
    sys.exit(main())
