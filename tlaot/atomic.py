"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["dump_json", "write_atomically"]


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file by way of a temporary sibling, so that no reader and no crash ever sees a part of it.

    Args:
        mode: The file's permissions, whatever they were and whatever the umask is; without one other users of an installation
            may read it, which they could not with a temporary file's own.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def dump_json(value: Any) -> bytes:
    """JSON for people: indented, keys sorted, the same bytes for the same value."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
