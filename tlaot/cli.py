"""The ``tlaot`` command: look into what was packaged, and check it; look after the cache of tuned results.

``inspect`` and ``verify`` take the import name of an installed package or the path of a wheel; neither imports the
package, loads a binary or touches a device. Nor do ``cache list``, ``cache clear`` and ``cache path``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from . import __version__
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
        status: int = options.run(options)
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
    if "/" in what:
        raise PackageError(
            what,
            "is neither a file nor the import name of a package",
            "Write tlaot inspect my_package, or name a wheel.",
        )
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
    parser.add_argument("--version", action="version", version=f"tlaot {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    inspect = commands.add_parser("inspect", help="list the packaged kernels, their variants and what was measured")
    inspect.add_argument("what", metavar="PACKAGE|WHEEL")
    inspect.add_argument("--json", action="store_true", help="print the list as JSON")
    inspect.set_defaults(run=lambda options: _inspect(open_packaged(options.what), options))
    verify = commands.add_parser("verify", help="check every packaged file against the manifest")
    verify.add_argument("what", metavar="PACKAGE|WHEEL")
    verify.set_defaults(run=lambda options: _verify(open_packaged(options.what)))
    _add_cache_commands(commands.add_parser("cache", help="list or clear the results that tlaot.autotune keeps"))
    return parser


def _add_cache_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list the results, the newest last")
    listing.add_argument("--json", action="store_true", help="print the list as JSON")
    listing.set_defaults(run=_list_cache)
    clear = commands.add_parser("clear", help="remove results")
    clear.add_argument(
        "--older-than", metavar="AGE", type=_age, help="only those stored before that: 90m, 12h, 30d, 2w"
    )
    clear.add_argument("--kernel", metavar="NAME", help="only those of this kernel")
    clear.set_defaults(run=_clear_cache)
    path = commands.add_parser("path", help="print the folder; TLAOT_CACHE_DIR sets it")
    path.set_defaults(run=_print_cache_path)


def _age(text: str) -> float:
    """Seconds in ``30d`` and the like."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected a number and s, m, h, d or w, got {text!r}: write 30d, for instance"
        )
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[match[2]]


def _inspect(found: Sequence[Packaged], options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps([row for packaged in found for row in _rows(packaged)], indent=1, sort_keys=True))
        return 0
    for packaged in found:
        manifest = packaged.manifest
        variants = [variant for kernel in manifest.kernels.values() for variant in kernel.variants]
        targets = ", ".join(sorted({variant.target for variant in variants}))
        print(f"{manifest.package} ({packaged.label})")
        counts = f"{_count(len(variants), 'variant')} of {_count(len(manifest.kernels), 'kernel')}"
        print(f"{counts} for {targets}: {_spell_size(*variants)}, packaged by tlaot {manifest.writer}")
        for name, kernel in sorted(manifest.kernels.items()):
            print(f"\n{name}")
            for variant in kernel.variants:
                print(f"  {variant.target}  {_spell(variant.shape)}")
                print(f"    {describe_params(variant)}")
                print(f"    {_spell_time(variant)}")
                if variant.properties.get("trusted") is False:
                    notes = "; ".join(map(str, variant.properties.get("notes", ())))
                    print(f"    times not to be trusted: {notes or 'the device was not quiet'}")
                print(f"    config: {_spell(variant.config) or 'the defaults of the factory'}")
                print(f"    {_spell_size(variant)}; {_spell_origin(variant)}")
    return 0


def _verify(found: Sequence[Packaged]) -> int:
    failed = False
    for packaged in found:
        wrong = list(_wrong_files(packaged))
        failed = failed or bool(wrong)
        for line in wrong:
            print(f"{packaged.label}: {line}", file=sys.stderr)
        count = sum(len(v.files) for k in packaged.manifest.kernels.values() for v in k.variants)
        print(
            f"{packaged.manifest.package}: {_count(count, 'file')}, {f'{len(wrong)} wrong' if wrong else 'all as packaged'}"
        )
    return 1 if failed else 0


def _list_cache(options: argparse.Namespace) -> int:
    # Here and below: what only looks into wheels imports nothing of the autotuner.
    from .autotuner.cache import list_cache
    from .autotuner.settings import read_settings

    entries = list_cache()
    if options.json:
        rows = [{**asdict(entry), "path": str(entry.path), "shape": dict(entry.shape)} for entry in entries]
        print(json.dumps(rows, indent=1, sort_keys=True))
        return 0
    for entry in entries:
        stored = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.date))
        start = f"{entry.key[:12]}  {stored}  {entry.size:>9} bytes"
        if entry.broken:
            print(f"{start}  broken: {entry.broken}")
            continue
        latency = "not measured" if entry.latency is None else f"{entry.latency:.4g} ms"
        print(f"{start}  {entry.kernel}  {entry.target}  {_spell(entry.shape)}  {latency}")
    print(
        f"{_count(len(entries), 'result')}, {sum(entry.size for entry in entries)} bytes in {read_settings().cache_dir}"
    )
    return 0


def _clear_cache(options: argparse.Namespace) -> int:
    from .autotuner.cache import clear_entries
    from .autotuner.settings import read_settings

    root = read_settings().cache_dir
    try:
        removed = clear_entries(root, options.older_than, options.kernel)
    except OSError as error:
        print(f"tlaot: {root}: cannot be cleared ({error.strerror})\nRun it as the folder's owner.", file=sys.stderr)
        return 2
    print(f"{_count(len(removed), 'result')} removed, {sum(entry.size for entry in removed)} bytes, from {root}")
    return 0


def _print_cache_path(options: argparse.Namespace) -> int:
    from .autotuner.settings import read_settings

    print(read_settings().cache_dir)
    return 0


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
    return ", ".join(f"{name}={value!r}" for name, value in sorted(values.items()))


def _spell_time(variant: Variant) -> str:
    latency, device = variant.latency, variant.properties.get("device")
    if not latency.get("latency"):
        return "not measured"
    others = {"default_latency": "first config", "ref_latency": "reference"}
    compared = [f"{word} {latency[key]:.4g} ms" for key, word in others.items() if latency.get(key)]
    time = f"{latency['latency']:.4g} ms" + (f" on {device}" if device else "")
    return time + (f" ({', '.join(compared)})" if compared else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _spell_size(*variants: Variant) -> str:
    return f"{sum(digest.size for variant in variants for digest in variant.files.values()) / 1024:.1f} KiB"


def _spell_origin(variant: Variant) -> str:
    origin = "compiled by " + (
        " ".join(filter(None, map(variant.frontend.get, ("name", "version")))) or "no known frontend"
    )
    checked = {True: "; results checked when it was built", False: "; results NOT checked (check = false)"}
    return origin + checked.get(variant.properties.get("checked"), "")  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
