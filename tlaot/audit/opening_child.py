"""Opens binaries in a fresh process; run as a file, it imports nothing of tlaot.

Reads one JSON object: ``path``, what ``sys.path`` is to be, and ``files``. Writes a line of JSON before each file and after it, so that
whoever waits knows which one ended this process.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    sys.modules["torch"] = None  # type: ignore[assignment]  # the FFI imports it where it is installed, which takes seconds
    import tvm_ffi

    for index, path in enumerate(request["files"]):
        _say({"begin": index})
        try:
            _open(tvm_ffi.load_module(path))
        except Exception as error:
            _say({"end": index, "error": str(error).strip()[:1000] or repr(error)})
        else:
            _say({"end": index})


def _open(module: Any) -> None:
    """Find the entry and have it refuse a call: no kernel takes so many arguments."""
    call = module["tlaot_call"]
    try:
        call(*[None] * 5000)
    except (TypeError, RuntimeError, ValueError) as error:  # RuntimeError: this processor lacks the variant's level
        if "number of arguments" not in str(error) and "needs a processor" not in str(error):
            raise
    else:
        raise RuntimeError("took 5000 arguments")


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
