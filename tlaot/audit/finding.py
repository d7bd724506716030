"""What the audit finds, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from ..errors import TlaotError
from ..packaged import UNREADABLE
from ..spelling import spell_table

__all__ = ["Finding", "findings_of", "plain", "show_findings"]

_Subject = TypeVar("_Subject")


@dataclass(frozen=True)
class Finding:
    """One thing that falls short.

    Attributes:
        check: Name of the check: ``"digest"``, ``"device code"``...
        where: The file or the variant, relative to the manifest's folder or to the wheel.
        what: What is wrong there.
        remedy: What to do about it.
    """

    check: str
    where: str
    what: str
    remedy: str = ""


def findings_of(
    check: str, where: str, look: Callable[[_Subject], Iterable[Finding]], subject: _Subject
) -> Iterator[Finding]:
    """The findings of one check.

    A hostile or damaged file must end a check with a finding, never with a traceback that hides all others.
    """
    try:
        yield from look(subject)
    except TlaotError as error:
        yield Finding(check, where, error.what, error.remedy)
    except (ArithmeticError, AttributeError, LookupError, TypeError, *UNREADABLE) as error:
        yield Finding(check, where, f"cannot be checked, as it has an unexpected form ({error!r})", "Build it again.")


def show_findings(findings: Sequence[Finding], width: int | None = None) -> list[str]:
    """Lines of a table; a remedy that several have in a row is shown once, below them.

    Args:
        findings: What to show.
        width: Columns of the terminal; None breaks no line.
    """
    rows = []
    for (_, remedy), group in groupby(findings, lambda finding: (finding.check, finding.remedy)):
        rows += [(plain(finding.check), plain(finding.where), plain(finding.what)) for finding in group]
        rows += [("", "", plain(remedy))] if remedy else []
    return spell_table(("CHECK", "WHERE", "WHAT IS WRONG, AND THE REMEDY"), rows, width=width)


def plain(text: str) -> str:
    """Text that any terminal takes: names in archives and on disks need not be Unicode, nor printable."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
