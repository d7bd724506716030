"""The audit at the end of a build, which fails it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BuildError
from .audit import Audited, audit_folder, audit_wheel
from .finding import show_findings
from .subject import Demands, promise_of
from .traces import build_names, build_places

__all__ = ["audit_built_folder", "audit_built_wheel", "fail_build"]


def audit_built_folder(
    folder: Path,
    promised: Iterable[tuple[str, str, Mapping[str, Any]]],
    by: str,
    places: Sequence[Path],
    min_glibc: str | None = None,
) -> None:
    """Audit what is packaged before it reaches the wheel; every binary is loaded in a fresh process.

    Args:
        folder: ``<build_lib>/<package>/_tlaot``.
        promised: Kernels, targets and shapes that must be there.
        by: Who promises them, for messages.
        places: Folders of the build, which no file may name.
        min_glibc: The oldest glibc that must load the binaries.

    Raises:
        BuildError: Something falls short; the message has it as a table.
    """
    wanted = {promise_of(kernel, target, shape): by for kernel, target, shape in promised}
    demands = Demands((), min_glibc, wanted, build_places(folder, *places), build_names(), time.time())
    fail_build([audit_folder(folder, demands)], str(folder))


def audit_built_wheel(path: Path, places: Sequence[Path]) -> None:
    """Audit a finished wheel; its binaries were loaded before.

    Raises:
        BuildError: Something falls short; the message has it as a table.
    """
    demands = Demands(places=build_places(*places), names=build_names(), now=time.time())
    fail_build(audit_wheel(path, demands, load=False), path.name)


def fail_build(outcomes: Sequence[Audited], where: str) -> None:
    """End a build whose result falls short.

    Raises:
        BuildError: There are findings; the message has them as a table.
    """
    findings = [finding for audited in outcomes for finding in audited.findings]
    if findings:
        table = "\n".join(show_findings(findings))
        count = f"{len(findings)} finding" + ("" if len(findings) == 1 else "s")
        raise BuildError(where, f"the audit of what was built has {count}:\n{table}", "Nothing was packaged.")
