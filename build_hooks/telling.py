"""How a build tells what went wrong: in pip's output, and to GitHub Actions."""

from __future__ import annotations

from pathlib import Path

from ..errors import TlaotError
from ..explain import explain
from ..github import annotate_error

__all__ = ["told"]


def told(error: TlaotError) -> str:
    """The error's text for who builds, with its line of ``tltune.toml``; GitHub Actions is told, too."""
    annotate_error(error, Path.cwd())
    return explain(error, Path.cwd())
