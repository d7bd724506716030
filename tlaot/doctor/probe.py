"""``python -m tlaot.doctor.probe NAME``: whether a module can be imported here, in a process of its own; torch says of its CUDA, too.

Two frontends must never meet in one process, and an import may crash: so nobody imports them to find out.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["start_probes"]

_PATIENCE = 180.0  # s; the first import of TileLang on a slow disk takes a minute
_MARK = "tlaot-probe:"


def start_probes(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Import modules, each in a process of its own, all at once.

    Args:
        names: The modules.
        environ: Environment of the processes.

    Returns:
        By module: ``error``, why it cannot be imported, or nothing; of torch ``cuda`` (the version that it was built for, or
        None) and ``available`` (whether it finds a device).
    """
    path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tlaot.doctor.probe", name],
            env={**environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for name in names
    }
    return {name: _answer(process) for name, process in running.items()}


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        output, _ = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": f"its import had not ended after {_PATIENCE:.0f} s"}
    # What a module prints at import comes before it.
    for line in reversed(output.splitlines()):
        if line.startswith(_MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return answer
    last = next((line for line in reversed(output.strip().splitlines()) if line.strip()), "")
    return {"error": f"its import ended the process (exit status {process.returncode}) {last}".strip()}


def _probe(name: str) -> dict[str, Any]:
    try:
        module = importlib.import_module(name)
        if name != "torch":
            return {}
        return {"cuda": module.version.cuda, "available": bool(module.cuda.is_available())}
    except Exception as error:  # whatever a module raises when it is imported
        text = " ".join(str(error).split())
        return {"error": f"{type(error).__name__}: {text}"[:300]}


if __name__ == "__main__":
    answer = _probe(sys.argv[1])
    sys.stdout.flush()
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)
    os._exit(0)  # what is unloaded at exit may crash, which says nothing of the import
