"""A package that some author wrote; importing it imports no tlaot."""

from typing import Any

__version__ = "1.0"


def add(a: Any, b: Any) -> Any:
    """The sum of two float32 arrays, by a kernel that was tuned when this package was built."""
    import tlaot

    return tlaot.load(__name__).add(a, b)
