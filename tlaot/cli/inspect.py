"""``tlaot inspect``: the packaged kernels, their variants, what was measured and on what, as a table."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import PackageError, TlaotError
from ..manifest import Variant
from ..rows import Listing, Row, as_json, list_what
from ..runtime.buckets import spell_range
from ..runtime.dispatch import describe_params
from ..spelling import CANNOT_BE_TRUSTED
from .extract import CODE, extract_code
from .filters import add_filters, choose
from .parser import add_json
from .spelling import columns, counted, headline, show_table, spell_bytes, spell_items

__all__ = ["add"]

# A doubt of more characters stands below the table.
_LONG = 60

_DESCRIPTION = """\
Shows the kernels that a wheel, an installed package, a folder or a tltune.lock has: workloads, targets, configs, times,
sizes, and what they were tuned on and need. The package is not imported, no binary is loaded, no device is touched.
"""
_EXAMPLES = """\
examples:
  tlaot inspect my_package
  tlaot inspect dist --target cuda --shape M=1024
  tlaot inspect tltune.lock --json
  tlaot inspect my_package --target cuda:sm_90a --extract cubin -o cubins
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "inspect",
        help="show packaged kernels: workloads, targets, configs, times, sizes",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "what",
        metavar="WHEEL|PACKAGE|LOCK",
        help="a wheel, an installed package, a folder (also one of wheels) or a lock",
    )
    add_filters(parser)
    add_json(parser, "a list with one object a variant")
    parser.add_argument("--extract", choices=CODE, help="write device code or kept sources, one file a variant")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="where to write what is extracted; default: .")
    parser.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> int:
    if options.output is not None and options.extract is None:
        raise PackageError("--output", "is where --extract writes", f"Say what to extract: {', '.join(CODE)}.")
    listings = list_what(options.what)
    chosen = choose([row for listing in listings for row in listing.rows], options)
    kept = {id(row) for row in chosen}
    if options.extract:
        extract_code(chosen, options.extract, options.output or Path())
    elif options.json:
        print(json.dumps([as_json(row) for row in chosen], indent=1, sort_keys=True))
    else:
        for number, listing in enumerate(listings):
            rows = [row for row in listing.rows if id(row) in kept]
            print("\n" * (number > 0) + "\n".join(_show(listing, rows)))
        for line in _show_overlay(options.what):
            print(f"\n{line}")
    return 0


def _show(listing: Listing, rows: Sequence[Row]) -> Iterator[str]:
    yield headline(listing.title if listing.title == listing.label else f"{listing.title} ({listing.label})")
    yield _summarise(listing, rows)
    for name, targets in listing.companions.items():
        yield f"companion {name}: {', '.join(targets)}"
    if listing.elsewhere:
        yield f"in companions only: {', '.join(listing.elsewhere)}"
    for kernel in dict.fromkeys(row.kernel for row in rows):
        yield ""
        yield from _show_kernel(kernel, [row for row in rows if row.kernel == kernel])
    if any(row.variant is not None and row.variant.buckets for row in rows):
        yield ""
        yield from _show_buckets(rows)
    if rows:
        yield ""
        yield from _show_provenance(rows)


def _show_overlay(what: str) -> Iterator[str]:
    """What `tlaot retune` has found for an installed package."""
    if os.sep in what or Path(what).exists():
        return
    from ..runtime.overlay import read_overlay
    from ..runtime.places import find_homes

    try:
        overlay = read_overlay(what, find_homes(what))
    except TlaotError:
        return
    for device, section in sorted(overlay.devices.items()) if overlay is not None else ():
        if overlay is not None and isinstance(section, dict) and isinstance(section.get("choices"), list):
            stale = "" if section.get("kernels") == overlay.kernels else ", of other kernels than these: not used"
            yield f"overlay for {device}: {counted(len(section['choices']), 'choice')}{stale} ({overlay.path})"


def _summarise(listing: Listing, rows: Sequence[Row]) -> str:
    kernels = len({row.kernel for row in rows})
    targets = ", ".join(sorted({row.target for row in rows})) or "no target"
    what = "entry" if listing.is_lock else "variant"
    count = counted(len(rows), what).replace("entrys", "entries")
    text = f"{count} of {counted(kernels, 'kernel')} for {targets}"
    if listing.is_lock:
        return text
    shared = sum(1 for row in rows if row.variant is not None and row.variant.stored)
    size = f"{spell_bytes(sum(row.size or 0 for row in rows))} installed"
    if listing.deflated is not None and len(rows) == len(listing.rows):
        size += f", {spell_bytes(listing.deflated)} in the wheel"
    size += f", {shared} with a binary that another one has" if shared else ""
    return f"{text}: {size}; packaged by tlaot {listing.writer}"


def _show_kernel(name: str, rows: Sequence[Row]) -> Iterator[str]:
    alike: dict[Any, list[Row]] = {}
    for row in rows:
        params = () if row.variant is None else row.variant.params
        outputs = () if row.variant is None else row.variant.out_idx
        alike.setdefault((tuple((p.name, p.dtype, p.shape and len(p.shape)) for p in params), outputs), []).append(row)
    header = ("target", "shape", "time", "vs first", "vs reference", "size", "config", "note")
    for number, group in enumerate(alike.values()):
        yield from [""] if number else []
        yield headline(name + _signature([row.variant for row in group if row.variant is not None]))
        told: dict[str, list[Row]] = {}
        for row in group:
            told.setdefault(_doubt(row), []).append(row)
        # What is long, or said of several rows, is said once, below them.
        below = [doubt for doubt, rows in told.items() if doubt and (len(rows) > 1 or len(doubt) > _LONG)]
        cells = [_cells(row, below) for row in group]
        shown = [column for column in header if column in ("target", "time") or any(cell[column] for cell in cells)]
        table = [[cell[column] for column in shown] for cell in cells]
        yield from show_table(shown, table, ("time", "vs first", "vs reference", "size"))
        for mark, doubt in enumerate(below, 1):
            yield from _wrapped(f"[{mark}] times not to be trusted: {doubt}")


def _signature(variants: Sequence[Variant]) -> str:
    """Parameters of variants that have the same ones; a size in which they differ is a ``*``."""
    if not variants:
        return ""
    params = []
    for same in zip(*(variant.params for variant in variants), strict=True):
        shapes = list(zip(*(param.shape or () for param in same), strict=True))
        shape = tuple(sizes[0] if len(set(sizes)) == 1 else "*" for sizes in shapes)
        params.append(replace(same[0], shape=None if same[0].shape is None else shape, strides=None))
    return describe_params(replace(variants[0], params=tuple(params)))


def _wrapped(text: str) -> list[str]:
    width = columns()
    return [text] if width is None else textwrap.wrap(text, width, subsequent_indent="    ", break_on_hyphens=False)


def _cells(row: Row, below: Sequence[str]) -> dict[str, str]:
    latency = row.latency
    return {
        "target": row.target,
        "shape": spell_items(row.shape),
        "time": f"{latency['latency']:.4g} ms" if latency.get("latency") else "-",
        "vs first": _times(latency.get("default_latency"), latency.get("latency")),
        "vs reference": _times(latency.get("ref_latency"), latency.get("latency")),
        "size": "" if row.size is None else spell_bytes(row.size),
        "config": spell_items(row.config) or "(the factory's own)",
        "note": "; ".join(_notes(row, below)),
    }


def _times(other: float | None, own: float | None) -> str:
    """How many times the variant's own time another one takes."""
    return f"{other / own:.2f}x" if other and own else ""


def _doubt(row: Row) -> str:
    """Why a row's times are not to be trusted; "" where they are."""
    if row.trusted:
        return ""
    notes = dict.fromkeys(str(note).removesuffix(CANNOT_BE_TRUSTED) for note in row.properties.get("notes", ()))
    return "; ".join(notes) or "the device was not quiet"


def _notes(row: Row, below: Sequence[str]) -> Iterator[str]:
    """What is said of a row; doubts that stand below the table by their number."""
    if not row.latency.get("latency"):
        yield "not measured"
    if doubt := _doubt(row):
        yield f"doubtful [{below.index(doubt) + 1}]" if doubt in below else f"times not to be trusted: {doubt}"
    if row.properties.get("checked") is False:
        yield "results NOT checked (check = false)"
    if "winner" in row.properties:
        yield f"in place of the fastest, {spell_items(row.properties['winner'])} (max-slowdown)"
    if row.variant is not None and row.variant.stored:
        yield "shared binary"


def _show_buckets(rows: Sequence[Row]) -> Iterator[str]:
    """Which variant of a dynamic workload serves which sizes, in their order."""
    header = ("kernel", "target", "shape", "sizes", "config", "time at first", "at last", "regret", "bound")
    found: list[tuple[Any, list[str]]] = []
    for row in rows:
        for bucket in () if row.variant is None else row.variant.buckets:
            sizes = ", ".join(f"{name} {spell_range(ends)}" for name, ends in bucket.sizes.items())
            place = (row.kernel, row.target, spell_items(row.shape))
            figures = [f"{ms:.4g} ms" if ms else "-" for ms in bucket.ms]
            figures += [f"{ratio:.3f}x" if ratio else "-" for ratio in (bucket.regret, bucket.bound)]
            order = (*place, [low for low, _ in bucket.sizes.values()])
            found.append((order, [*place, sizes, spell_items(row.config), *figures]))
    found.sort(key=lambda one: one[0])
    yield headline("dynamic sizes: what serves which; regret: times the best of all configs, where measured")
    yield from show_table(header, [cells for _, cells in found], header[5:])


def _show_provenance(rows: Sequence[Row]) -> Iterator[str]:
    """By target: what it was tuned on, what it needs and what made it."""
    counts: dict[tuple[str, str, str, str], int] = {}
    for row in rows:
        key = (row.target, _spell_tuned(row), _spell_floor(row), _spell_makers(row))
        counts[key] = counts.get(key, 0) + 1
    header = ["target", "variants", "tuned on", "needs", "made by"]
    cells = [[key[0], str(count), *key[1:]] for key, count in sorted(counts.items())]
    shown = [i for i, name in enumerate(header) if any(cell[i] for cell in cells)]
    table = [[cell[i] for i in shown] for cell in cells]
    yield from show_table([header[i] for i in shown], table, ("variants",))


def _spell_tuned(row: Row) -> str:
    device, count = row.tuned.get("device"), row.tuned.get("sm_count")
    text = f"{device} ({count} SMs)" if device and count else str(device or "")
    if "as" in row.tuned:
        return f"stand-in: the configs of {row.tuned['as']}" + (f", tuned on {text}" if text else "")
    return text


def _spell_floor(row: Row) -> str:
    words = {"cuda": "a driver for CUDA {}", "glibc": "glibc {}"}
    return ", ".join(word.format(row.floor[name]) for name, word in words.items() if row.floor.get(name))


def _spell_makers(row: Row) -> str:
    if row.variant is None:  # a lock's tools
        return ", ".join(f"{name} {version}" for name, version in sorted(row.frontend.items()) if name != "tlaot")
    parts = [
        " ".join(filter(None, map(row.frontend.get, ("name", "version")))),
        row.frontend.get("device-compiler", ""),
    ]
    if not parts[1] and row.floor.get("toolkit"):
        parts[1] = f"CUDA {row.floor['toolkit']}"
    return ", ".join(filter(None, parts))
