"""``tlaot report``: one page that shows why each winner won, how near it is to what the device can do, and what ships."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PackageError
from .spelling import counted, spell_bytes

if TYPE_CHECKING:
    from ..report.evidence import Work
    from ..tune.specs.spec import Spec

__all__ = ["add"]

_DESCRIPTION = """\
Writes one HTML page, which loads nothing from anywhere: of each workload every candidate's time with its spread, what failed and why,
the winner against the default and the reference, its place under the device's roofline, time over size of dynamic kernels, and the size
of what ships. A lock, or the records of a project's builds, has the candidates; a wheel or a package the signatures and sizes: name both
for all of it. Without arguments it takes what is in this folder: tltune.lock, else the records in build/tlaot.
"""
_EXAMPLES = """\
examples:
  tlaot report
  tlaot report tltune.lock dist -o report.html
  tlaot report my_package
"""

_RECORDS = Path("build", "tlaot", "records")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "report",
        help="write a page with plots of what was tuned and what ships",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "what",
        metavar="LOCK|WHEEL|PACKAGE",
        nargs="*",
        help="locks, wheels, installed packages, folders; build/tlaot/records, too",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default=Path("report.html"), help="default: report.html"
    )
    parser.add_argument("--title", metavar="TEXT", help="the page's title")
    parser.add_argument(
        "--spec",
        metavar="FILE",
        type=Path,
        help="the tltune.toml that says the kernels' FLOPs; default: the one beside the lock",
    )
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    # Imported here: it is of the build side.
    from ..autotuner.settings import read_settings
    from ..report.evidence import gather
    from ..report.library import find_library
    from ..report.page import write_page
    from ..report.roofline import place

    library = find_library(read_settings().cache_dir)
    whats = options.what or [_what_is_here()]
    sources, works = gather(whats)
    if not works:
        raise PackageError(", ".join(whats), "has no workload to report", "Tune first: tlaot tune, or pip wheel .")
    spec = _find_spec(options, whats)
    placed = [(work, place(work, _flops(work, spec), spec is not None)) for work in works]
    page = write_page(options.title or _title(whats, spec), sources, placed, library)
    options.output.write_text(page, encoding="utf-8")
    kernels = len({work.kernel for work in works})
    print(
        f"{options.output}: {counted(len(works), 'workload')} of {counted(kernels, 'kernel')}, {spell_bytes(len(page.encode()))}"
    )
    return 0


def _what_is_here() -> str:
    for path in (Path("tltune.lock"), _RECORDS):
        if path.exists():
            return str(path)
    raise PackageError(
        "report",
        "there is no tltune.lock in this folder, and no build/tlaot/records",
        "Name a lock, a wheel or a package.",
    )


def _find_spec(options: argparse.Namespace, whats: list[str]) -> Spec | None:
    """The spec that was named, or the one of the project that a lock or records lie in."""
    from ..tune.specs.spec_file import find_spec, read_spec

    if options.spec is not None:
        return read_spec(options.spec)
    for what in map(Path, whats):
        project = what.absolute().parents[2] if what.is_dir() and what.name == "records" else what.absolute().parent
        if what.exists() and (what.suffix == ".lock" or what.is_dir()):
            found = find_spec(project)
            if found is not None:
                return read_spec(found)
    return None


def _flops(work: Work, spec: Spec | None) -> str | None:
    for kernel in spec.kernels if spec is not None else ():
        targets = [str(target) for target in kernel.targets]
        if kernel.name == work.kernel and kernel.flops is not None and _is_of(work, targets):
            return kernel.flops
    return None


def _is_of(work: Work, targets: list[str]) -> bool:
    """Whether a kernel entry with these targets made the workload; PTX goes with the target that it is made of."""
    return work.target in targets or work.target.replace("compute_", "sm_") in targets


def _title(whats: list[str], spec: Spec | None) -> str:
    return f"{spec.package}: tuned kernels" if spec is not None else f"{Path(whats[0]).name}: tuned kernels"
