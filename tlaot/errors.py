"""The errors that users of tlaot see.

Every message has the same form: ``<where>: <what is wrong>``, then the remedy
on a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "BuildError",
    "CallError",
    "DispatchError",
    "LoadError",
    "PackageError",
    "SpecError",
    "TlaotError",
    "TuningError",
    "did_you_mean",
]


class TlaotError(Exception):
    """Base of all errors raised by tlaot.

    Args:
        where: The file, key, kernel, shape or argument that the error is about.
        what: What is wrong there, with the value that was found.
        remedy: What to do about it; shown on a line of its own.
    """

    def __init__(self, where: str, what: str, remedy: str = "") -> None:
        self.where = where
        self.what = what
        self.remedy = remedy
        super().__init__(f"{where}: {what}" + (f"\n{remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type[TlaotError], tuple[str, str, str]]:
        return type(self), (self.where, self.what, self.remedy)


class SpecError(TlaotError, ValueError):
    """``tltune.toml``, a setting or a callable that it names is wrong."""


class BuildError(TlaotError, RuntimeError):
    """A kernel, a toolchain or a wheel could not be built."""


class TuningError(BuildError):
    """No candidate of a workload compiled, was correct and could be timed."""


class PackageError(TlaotError, ValueError):
    """A packaged manifest or binary is missing, damaged or of another format."""


class LoadError(TlaotError, RuntimeError):
    """Packaged kernels exist, but this machine or process cannot load them."""


class DispatchError(TlaotError, LookupError):
    """No packaged variant fits the arguments of a call."""


class CallError(TlaotError, TypeError):
    """The arguments of a call are malformed, whatever was packaged."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: ``", did you mean 'shapes'?"``, or nothing."""
    # Imported here: users' programs import this module, and few of them misspell anything.
    from difflib import get_close_matches

    match = get_close_matches(word, list(known), n=1)
    return f", did you mean {match[0]!r}?" if match else ""
