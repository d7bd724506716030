"""Build the throw-away package of the fault tests, as a build backend does: ``python build_faulty.py PROJECT JOBS TUNE``."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from tlaot.errors import TlaotError
from tlaot.tune.measuring import device_lock
from tlaot.tune.pipeline import build_package


@dataclass(frozen=True)
class Settings:
    tune: str
    targets: tuple[str, ...] | None
    jobs: int | None
    keep: bool
    lock: str = "auto"
    executor: str | None = None
    devices: tuple[int, ...] | None = None


def main() -> None:
    project, jobs, tune = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    settings = Settings(tune, None, jobs, False)
    for name, limit in (("FAULTY_MEMORY", resource.RLIMIT_AS), ("FAULTY_FILE_SIZE", resource.RLIMIT_FSIZE)):
        if name in os.environ:
            resource.setrlimit(limit, (int(os.environ[name]), resource.getrlimit(limit)[1]))
    # What strikes one build is nothing to another one that runs meanwhile; on the machine's own lock they would wait for each other.
    device_lock.lock_folder = lambda: Path(os.environ["FAULTY_NOTES"])
    try:
        build_package(
            project / "tltune.toml",
            project,
            project / "lib" / "faulty" / "_tlaot",
            settings,
            lambda line: print(line, flush=True),
        )
    except TlaotError as error:
        sys.exit(f"refused: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
