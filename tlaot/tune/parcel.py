"""Objects that cross to a child process: functions of any module, closures and all.

A parcel is a file named in a request as ``"pickle:<path>"``. It is made by cloudpickle and lives in a build's scratch folder;
nothing of the kind is ever shipped.
"""

from __future__ import annotations

import inspect
import linecache
import pickle
from pathlib import Path
from typing import Any

from ..errors import SpecError

__all__ = ["PREFIX", "open_parcel", "write_parcel"]

PREFIX = "pickle:"


def write_parcel(value: Any, path: Path, where: str) -> str:
    """Pickle a value for a child.

    Args:
        value: A function, or an object that holds functions.
        path: File to write.
        where: What to call the value in an error.

    Returns:
        The name by which a request refers to it.

    Raises:
        SpecError: The value holds something that cannot leave this process.
    """
    import cloudpickle

    try:
        content = pickle.dumps((_sources(value), cloudpickle.dumps(value)))
    except (TypeError, pickle.PicklingError, ValueError, RecursionError, AttributeError) as error:
        raise SpecError(
            where,
            f"cannot be sent to the processes that compile and measure ({type(error).__name__}: {error})",
            "Make what it holds (locks, files, modules of C objects) inside the function, or define it in an importable module.",
        ) from error
    path.write_bytes(content)
    return f"{PREFIX}{path}"


def open_parcel(name: str) -> Any:
    """The value that a parcel holds; in the child."""
    import cloudpickle  # noqa: F401 - its reducers are needed by name

    # The sources come first and apart: loading the value may parse them already.
    sources, content = pickle.loads(Path(name.removeprefix(PREFIX)).read_bytes())
    for filename, text in sources.items():
        if filename not in linecache.cache:
            # Frontends parse a function's source; no modification time means that the entry is never dropped.
            linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    return pickle.loads(content)


def _sources(value: Any) -> dict[str, str]:
    """Texts of the files in which a function and those that it closes over are defined."""
    found: dict[str, str] = {}
    waiting: list[Any] = [value]
    seen: set[int] = set()
    while waiting and len(seen) < 1000:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        function = inspect.unwrap(item) if callable(item) and not isinstance(item, type) else item
        code = getattr(function, "__code__", None)
        if code is not None:
            text = "".join(linecache.getlines(code.co_filename))
            if text:
                found[code.co_filename] = text
            waiting.extend(cell.cell_contents for cell in function.__closure__ or () if _filled(cell))
        else:
            waiting.extend(part for part in _parts(function) if callable(part))
    return found


def _parts(value: Any) -> list[Any]:
    named = [getattr(value, name, None) for name in ("func", "__wrapped__", "__func__", "factory", "orig_func")]
    args = getattr(value, "args", ())
    return [part for part in named if part is not None] + (list(args) if isinstance(args, tuple) else [])


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises where the cell is empty
    except ValueError:
        return False
    return True
