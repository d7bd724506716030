"""``tlaot inspect``: the packaged kernels, their variants and what was measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..manifest import Variant
from ..packaged import Packaged, open_packaged
from ..runtime.dispatch import describe_params
from .spelling import counted, spell_items, spell_size

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("inspect", help="list the packaged kernels, their variants and what was measured")
    parser.add_argument("what", metavar="PACKAGE|WHEEL")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    parser.set_defaults(run=lambda options: _inspect(open_packaged(options.what), options))


def _inspect(found: Sequence[Packaged], options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps([row for packaged in found for row in _rows(packaged)], indent=1, sort_keys=True))
        return 0
    for packaged in found:
        manifest = packaged.manifest
        variants = [variant for kernel in manifest.kernels.values() for variant in kernel.variants]
        targets = ", ".join(sorted({variant.target for variant in variants}))
        print(f"{manifest.package} ({packaged.label})")
        counts = f"{counted(len(variants), 'variant')} of {counted(len(manifest.kernels), 'kernel')}"
        print(f"{counts} for {targets}: {spell_size(*variants)}, packaged by tlaot {manifest.writer}")
        for name, kernel in sorted(manifest.kernels.items()):
            print(f"\n{name}")
            for variant in kernel.variants:
                print(f"  {variant.target}  {spell_items(variant.shape)}")
                print(f"    {describe_params(variant)}")
                print(f"    {_spell_time(variant)}")
                if variant.properties.get("trusted") is False:
                    notes = "; ".join(map(str, variant.properties.get("notes", ())))
                    print(f"    times not to be trusted: {notes or 'the device was not quiet'}")
                print(f"    config: {spell_items(variant.config) or 'the defaults of the factory'}")
                print(f"    {spell_size(variant)}; {_spell_origin(variant)}")
    return 0


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


def _spell_time(variant: Variant) -> str:
    latency, device = variant.latency, variant.properties.get("device")
    if not latency.get("latency"):
        return "not measured"
    others = {"default_latency": "first config", "ref_latency": "reference"}
    compared = [f"{word} {latency[key]:.4g} ms" for key, word in others.items() if latency.get(key)]
    time = f"{latency['latency']:.4g} ms" + (f" on {device}" if device else "")
    return time + (f" ({', '.join(compared)})" if compared else "")


def _spell_origin(variant: Variant) -> str:
    origin = "compiled by " + (
        " ".join(filter(None, map(variant.frontend.get, ("name", "version")))) or "no known frontend"
    )
    checked = {True: "; results checked when it was built", False: "; results NOT checked (check = false)"}
    return origin + checked.get(variant.properties.get("checked"), "")  # type: ignore[arg-type]
