"""Environment variables of the autotuner, read when they are needed and never at import.

Each has two names: ours, ``TLAOT_X``, and TileLang's, ``TILELANG_X``, which counts where ours is unset. An empty value
is as good as none.
"""

from __future__ import annotations

import functools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import SpecError

__all__ = [
    "VARIABLES",
    "Settings",
    "count_available_cpus",
    "log_path",
    "read_default_target",
    "read_execution_backend",
    "read_settings",
    "resolve_num_workers",
]

_OURS, _THEIRS = "TLAOT_", "TILELANG_"
_KEYS = (
    "CACHE_DIR",
    "DISABLE_CACHE",
    "AUTO_TUNING_DISABLE_CACHE",
    "AUTO_TUNING_CPU_UTILITIES",
    "AUTO_TUNING_CPU_COUNTS",
    "AUTO_TUNING_MAX_CPU_COUNT",
    "DEFAULT_TARGET",
    "EXECUTION_BACKEND",
    "VERBOSE",
)
VARIABLES = tuple(_OURS + key for key in _KEYS)

_LOG_NAME = "autotuner.log"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Settings:
    """What the environment says now.

    Attributes:
        cache_dir: Root of the disk cache (``TLAOT_CACHE_DIR``); ``$XDG_CACHE_HOME/tlaot`` or ``~/.cache/tlaot``.
            TileLang's directory, where only that is named, gets a folder ``tlaot`` in it.
        disable_cache: Neither read nor write any cache (``TLAOT_DISABLE_CACHE``).
        disable_tuning_cache: Tune again, whatever is cached (``TLAOT_AUTO_TUNING_DISABLE_CACHE``).
        cpu_utilities: Share of the available processors that compile (``TLAOT_AUTO_TUNING_CPU_UTILITIES``).
        cpu_counts: Number of processors that compile; 0 or less for the share (``TLAOT_AUTO_TUNING_CPU_COUNTS``).
        max_cpu_count: Upper bound of either; 0 or less for none (``TLAOT_AUTO_TUNING_MAX_CPU_COUNT``).
        default_target: Target where the caller names none: a string or a dict (``TLAOT_DEFAULT_TARGET``, JSON for a dict).
        execution_backend: Backend where the caller names none (``TLAOT_EXECUTION_BACKEND``).
        verbose: Whether to report where the caller does not say (``TLAOT_VERBOSE``).
    """

    cache_dir: Path
    disable_cache: bool = False
    disable_tuning_cache: bool = False
    cpu_utilities: float = 0.9
    cpu_counts: int = -1
    max_cpu_count: int = -1
    default_target: str | dict[str, Any] = "auto"
    execution_backend: str = "auto"
    verbose: bool = False

    @property
    def use_cache(self) -> bool:
        """Whether tuned results may be taken from, and kept in, memory and disk."""
        return not (self.disable_cache or self.disable_tuning_cache)


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the variables, as they are at this moment.

    Args:
        environ: The variables; those of this process by default.

    Raises:
        SpecError: A value is malformed; the variable is named.
    """
    environ = os.environ if environ is None else environ
    texts = dict(_given(environ))
    return Settings(
        cache_dir=_cache_dir(texts.get("CACHE_DIR"), environ),
        disable_cache=_flag(*texts.get("DISABLE_CACHE", ("", "0"))),
        disable_tuning_cache=_flag(*texts.get("AUTO_TUNING_DISABLE_CACHE", ("", "0"))),
        cpu_utilities=_share(*texts.get("AUTO_TUNING_CPU_UTILITIES", ("", "0.9"))),
        cpu_counts=_whole(*texts.get("AUTO_TUNING_CPU_COUNTS", ("", "-1"))),
        max_cpu_count=_whole(*texts.get("AUTO_TUNING_MAX_CPU_COUNT", ("", "-1"))),
        default_target=_target(*texts.get("DEFAULT_TARGET", ("", "auto"))),
        execution_backend=texts.get("EXECUTION_BACKEND", ("", "auto"))[1],
        verbose=_flag(*texts.get("VERBOSE", ("", "0"))),
    )


def read_default_target() -> str | dict[str, Any]:
    """The target where the caller names none."""
    return read_settings().default_target


def read_execution_backend() -> str:
    """The execution backend where the caller names none."""
    return read_settings().execution_backend


def log_path() -> Path:
    """Where ``autotuner.log`` can be appended to: the current folder, else the cache's, else the temporary one.

    Returns:
        An absolute path; ``/dev/null`` where no folder takes the file.
    """
    folders: list[Callable[[], Path]] = [Path.cwd, lambda: read_settings().cache_dir, _private_folder]
    for give in folders:
        try:
            folder = give().absolute()
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / _LOG_NAME).open("a", encoding="utf-8"):
                return folder / _LOG_NAME
        except OSError:  # read-only, another user's, deleted
            continue
    return Path(os.devnull)


@functools.lru_cache(maxsize=1)
def _private_folder() -> Path:
    # Not a fixed name: in a shared temporary folder another user could lay a link there first.
    return Path(tempfile.mkdtemp(prefix="tlaot-"))


def resolve_num_workers(n_tasks: int, settings: Settings | None = None, available: int | None = None) -> int:
    """How many candidates to compile at once: at least 1, at most one a task.

    Args:
        n_tasks: How many there are.
        settings: What the environment says; read by default.
        available: Processors that this process may use; counted by default.
    """
    settings = read_settings() if settings is None else settings
    available = count_available_cpus() if available is None else available
    if settings.cpu_counts > 0:
        workers = min(settings.cpu_counts, available)
    else:
        workers = int(available * settings.cpu_utilities)
    if 0 < settings.max_cpu_count < workers:
        warnings.warn(
            f"tlaot: compiling on {settings.max_cpu_count} processors instead of {workers}, since "
            "TLAOT_AUTO_TUNING_MAX_CPU_COUNT (or TileLang's variable) says so",
            stacklevel=2,
        )
        workers = settings.max_cpu_count
    return max(1, min(workers, n_tasks))


def count_available_cpus(root: Path = Path("/")) -> int:
    """Processors that this process may use: its affinity, and its control group's quota where that is less.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *_cgroup_quotas(root)])))


def _cgroup_quotas(root: Path) -> Iterator[float]:
    """Quotas, in processors, of this process's control groups and of all above them.

    Version 2 has ``cpu.max`` (quota and period in us), version 1 ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``
    (Linux, Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst). A container often sees its own group
    as the root of the mount while /proc still has the host's path; so each ancestor is tried, down to the mount itself.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        names = controllers.split(",")
        groups = [path.lstrip("/"), *map(str, PurePosixPath(path.lstrip("/")).parents)]
        if controllers == "":
            for base in (mount, mount / "unified"):
                for group in groups:
                    yield _ratio(_words(base / group / "cpu.max"))
        elif "cpu" in names:
            for base in (mount / controllers, mount / "cpu"):
                for group in groups:
                    folder = base / group
                    yield _ratio(_words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us"))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []


def _ratio(words: list[str]) -> float:
    """Quota over period; infinite where there is none ("max" in version 2, -1 in version 1)."""
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return math.inf
    return int(words[0]) / int(words[1])


def _given(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    for key in _KEYS:
        for name in (_OURS + key, _THEIRS + key):
            text = environ.get(name, "").strip()
            if text:
                yield key, (name, text)
                break


def _cache_dir(given: tuple[str, str] | None, environ: Mapping[str, str]) -> Path:
    if given is not None:
        name, text = given
        folder = Path(text).expanduser().absolute()
        return folder / "tlaot" if name.startswith(_THEIRS) else folder
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else _home(environ) / ".cache") / "tlaot"


def _home(environ: Mapping[str, str]) -> Path:
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path.home()
    except RuntimeError:  # a user id without an entry, as containers have: their HOME is mostly this
        return Path("/")


def _flag(name: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise SpecError(name, f"expected one of {', '.join(_TRUE + _FALSE)}, got {text!r}", f"Write {name}=1.")


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SpecError(
            name, f"expected a whole number, got {text!r}", f"Write {name}=4, or unset it for the default."
        ) from None


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share < math.inf:
        raise SpecError(name, f"expected a number above 0, got {text!r}", f"Write {name}=0.9, for instance.")
    return share


def _target(name: str, text: str) -> str | dict[str, Any]:
    if not text.startswith("{"):
        return text
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SpecError(
            name,
            f"looks like a dict but could not be parsed ({error}), got {text!r}",
            f'Write {name}=\'{{"kind": "cuda", "arch": "sm_90a"}}\', as JSON.',
        ) from None
    if not isinstance(found, dict):
        raise SpecError(name, f"expected a target or a JSON object, got {text!r}", "Write a name or a JSON object.")
    return found
