"""``tlaot cache``: look after the results that ``tlaot.autotune`` keeps."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict

from .parser import add_json
from .spelling import counted, spell_items

__all__ = ["add"]

_EXAMPLES = """\
examples:
  tlaot cache list
  tlaot cache clear --older-than 30d --kernel matmul
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("cache", help="list or clear the results that tlaot.autotune keeps", epilog=_EXAMPLES)
    _add_cache_commands(parser)


def _add_cache_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list the results, the newest last")
    add_json(listing, "the list")
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


def _list_cache(options: argparse.Namespace) -> int:
    # Here and below: what only looks into wheels imports nothing of the autotuner.
    from ..autotuner.cache import list_cache
    from ..autotuner.settings import read_settings

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
        print(f"{start}  {entry.kernel}  {entry.target}  {spell_items(entry.shape)}  {latency}")
    print(
        f"{counted(len(entries), 'result')}, {sum(entry.size for entry in entries)} bytes in {read_settings().cache_dir}"
    )
    return 0


def _clear_cache(options: argparse.Namespace) -> int:
    from ..autotuner.cache import clear_entries
    from ..autotuner.settings import read_settings

    root = read_settings().cache_dir
    try:
        removed = clear_entries(root, options.older_than, options.kernel)
    except OSError as error:
        print(f"tlaot: {root}: cannot be cleared ({error.strerror})\nRun it as the folder's owner.", file=sys.stderr)
        return 2
    print(f"{counted(len(removed), 'result')} removed, {sum(entry.size for entry in removed)} bytes, from {root}")
    return 0


def _print_cache_path(options: argparse.Namespace) -> int:
    from ..autotuner.settings import read_settings

    print(read_settings().cache_dir)
    return 0
