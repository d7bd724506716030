"""Build settings: what ``-C key=value`` and ``TLAOT_*`` variables may say.

Both channels have the same keys. ``-C`` wins, since it was typed for this one build. ``-C`` reaches the
``tlaot.build_hooks`` backend only; a project whose backend is ``setuptools.build_meta`` has the variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from ..errors import SpecError, did_you_mean

__all__ = ["CONFIG_SETTINGS", "ConfigSettings", "Settings", "read_settings", "show_settings"]

ConfigSettings: TypeAlias = "Mapping[str, str | list[str] | None] | None"
Tune: TypeAlias = Literal["on", "off", "force"]
Lock: TypeAlias = Literal["auto", "update", "frozen", "ignore"]

CONFIG_SETTINGS: ContextVar[ConfigSettings] = ContextVar("tlaot_config_settings", default=None)
"""The ``-C`` settings of the PEP 517 hook that runs now.

setuptools does not hand ``config_settings`` to commands; the backend sets this for the length of a hook, so that
neither ``os.environ`` nor a module's global state changes."""

PREFIX = "TLAOT_"
TUNE_CHOICES = ("on", "off", "force")
LOCK_CHOICES = ("auto", "update", "frozen", "ignore")
# What a build may be told, by -C and by a variable of the same name: its default, and what it means. docs/reference/settings.md is
# made of this and of the two tables below.
KEYS = {
    "tune": ("on", "`on` tunes what no record or lock has; `force` tunes everything again; `off` packages no kernels"),
    "lock": (
        "auto",
        "what `tltune.lock` is for: `auto` takes what holds and tunes the rest where a device is; `update` writes it, too; `frozen` tunes "
        "nothing, so that what is missing is an error; `ignore` builds as if there were none",
    ),
    "targets": ("the spec's", "build these of the declared targets only, with commas between them"),
    "jobs": ("every processor", "candidates that are compiled at the same time"),
    "keep": (
        "false",
        "ship `device_kernel.cu`, `host_kernel.c`, `kernel.cubin` beside each binary (CUDA and `c` targets)",
    ),
    "executor": ("the spec's", "where candidates are compiled and measured: `local`, or `ray` (a cluster)"),
    "devices": (
        "every visible one",
        "numbers of the GPUs to measure on, with commas: those that run the target, of one model",
    ),
}
# Of kernels at run time, of recording (tlaot capture sets them), and of the autotuner in Python (its autotuner/settings.py has the same list; a test compares
# them): a build leaves them alone.
RUN_TIME_VARIABLES = {
    "TLAOT_NUM_THREADS": "threads of the pool that CPU kernels share; default: the processors that the process may use",
    "TLAOT_ON_MISS": "what becomes of a call that no variant fits, where `load` does not say: `error`, `warn`, `jit`",
    "TLAOT_DIRECT": "`0`: calls go through Python code, not through a package's `direct.so`",
    "TLAOT_DROPIN": "what `tlaot.tilelang_for` gives a package: `tilelang` itself, or `packaged` kernels; default: packaged ones where there are some",
    "TLAOT_OVERLAY": "the file, or folder of files, that `tlaot retune` writes and calls follow; `off` for none",
    "TLAOT_PATH": "folders with more kernels, with colons between them, for every package; as `path=` of `load`",
    "TLAOT_PIN": "has calls run the variant with these items: `matmul=block_M:128,block_N:64;my_package.softmax=target:cuda:sm_80`",
    "TLAOT_PTX": "`0`: PTX is not compiled by the driver; a device without machine code of its own is an error",
    "TLAOT_CACHE_DIR": "where `tlaot.autotune` keeps results; default `~/.cache/tlaot`",
    "TLAOT_CAPTURE": "the folder of a recording; `tlaot capture` sets it",
    "TLAOT_CAPTURE_AS": "`none`: nothing is compiled or run; a CUDA target: questions about the GPU are answered for that; `tlaot capture` sets it",
    "TLAOT_DISABLE_CACHE": "`1`: neither read nor write that cache",
    "TLAOT_AUTO_TUNING_DISABLE_CACHE": "`1`: tune again, whatever is in the cache",
    "TLAOT_AUTO_TUNING_CPU_UTILITIES": "share of the processors that compile; default 0.9",
    "TLAOT_AUTO_TUNING_CPU_COUNTS": "number of processors that compile, in place of the share",
    "TLAOT_AUTO_TUNING_MAX_CPU_COUNT": "upper bound of either",
    "TLAOT_DEFAULT_TARGET": "target where a call of `tlaot.autotune` names none; default `auto`",
    "TLAOT_EXECUTION_BACKEND": "backend where it names none: `auto`, `tvm_ffi`",
    "TLAOT_VERBOSE": "`1`: report each candidate where the call does not say",
}

# Read by a stage itself, in a build and in Python alike.
STAGE_VARIABLES = {"TLAOT_NVRTC": "`0`: CUDA is compiled by nvcc alone"}

# What setuptools.build_meta itself reads of config_settings.
SETUPTOOLS_KEYS = (
    "--global-option",
    "--build-option",
    "--quiet",
    "--verbose",
    "editable-mode",
    "editable_mode",
    "quiet",
    "verbose",
)

_TRUE = ("true", "on", "yes", "1")
_FALSE = ("false", "off", "no", "0")


@dataclass(frozen=True)
class Settings:
    """The effective settings of one build.

    Attributes:
        tune: ``"on"`` tunes what has no valid record yet, ``"force"`` tunes everything again, ``"off"`` packages no kernels.
        targets: Build only these targets; None for those that the spec declares.
        jobs: Compile this many candidates at once; None for what the machine has.
        keep: Ship ``device_kernel.cu``, ``host_kernel.c`` and ``kernel.cubin`` beside each binary.
        lock: What ``tltune.lock`` is to the build. ``"auto"`` takes what holds of it and tunes the rest where there is a device;
            ``"update"`` also writes what it found; ``"frozen"`` tunes nothing; ``"ignore"`` builds as if there were none.
        executor: Where it is compiled and measured, one of ``tlaot.tune.specs.spec.EXECUTORS``; None for what the spec says.
        devices: Numbers of the GPUs to measure on; None for every one that is visible and runs the target.
    """

    tune: Tune = "on"
    targets: tuple[str, ...] | None = None
    jobs: int | None = None
    keep: bool = False
    lock: Lock = "auto"
    executor: str | None = None
    devices: tuple[int, ...] | None = None


def read_settings(config_settings: ConfigSettings, environ: Mapping[str, str]) -> Settings:
    """Merge ``-C`` settings over ``TLAOT_*`` variables.

    Raises:
        SpecError: A key or a ``TLAOT_*`` variable is unknown, or a value is malformed.
    """
    texts: dict[str, tuple[str, str]] = {}  # key: (where it was said, value)
    variables = {PREFIX + key.upper(): key for key in KEYS}
    for name in sorted(n for n in environ if n.startswith(PREFIX)):
        if name in variables:
            texts[variables[name]] = (name, environ[name])
        elif name not in (*STAGE_VARIABLES, *RUN_TIME_VARIABLES):
            known = (*variables, *STAGE_VARIABLES, *RUN_TIME_VARIABLES)
            raise _unknown(f"environment variable {name}", name, known)
    for key, value in (config_settings or {}).items():
        if key in KEYS:
            texts[key] = (f"-C {key}", _join(f"-C {key}", value, several=key in ("targets", "devices")))
        elif key not in SETUPTOOLS_KEYS:
            raise _unknown(f"-C {key}", key, (*KEYS, *SETUPTOOLS_KEYS))

    # An empty value is as good as none, as for most variables that a CI matrix sets.
    given = {key: (where, text.strip()) for key, (where, text) in texts.items() if text.strip()}
    tune = _tune(*given["tune"]) if "tune" in given else "on"
    lock = _lock(*given["lock"]) if "lock" in given else "auto"
    if (tune, lock) == ("force", "frozen"):
        raise SpecError(
            f"{given['tune'][0]} and {given['lock'][0]}",
            "tune=force tunes everything again and lock=frozen tunes nothing",
            "Leave out one of them.",
        )
    return Settings(
        tune=tune,
        lock=lock,
        targets=_targets(*given["targets"]) if "targets" in given else None,
        jobs=_jobs(*given["jobs"]) if "jobs" in given else None,
        keep=_flag(*given["keep"]) if "keep" in given else False,
        executor=_executor(*given["executor"]) if "executor" in given else None,
        devices=_devices(*given["devices"]) if "devices" in given else None,
    )


def show_settings(settings: Settings) -> str:
    """One line for the log: every setting, defaults too, as it could be typed after ``-C``."""
    targets = "(the spec's)" if settings.targets is None else ",".join(settings.targets)
    jobs = "(all processors)" if settings.jobs is None else str(settings.jobs)
    executor = settings.executor or "(the spec's)"
    devices = "(all)" if settings.devices is None else ",".join(map(str, settings.devices))
    shown = f"tune={settings.tune} lock={settings.lock} targets={targets} jobs={jobs} keep={str(settings.keep).lower()}"
    return f"tlaot: {shown} executor={executor} devices={devices}"


def _unknown(where: str, name: str, known: Iterable[str]) -> SpecError:
    known = tuple(known)
    return SpecError(where, f"tlaot knows no such setting{did_you_mean(name, known)}", f"Known: {', '.join(known)}.")


def _join(where: str, value: str | list[str] | None, *, several: bool) -> str:
    """``build`` collects a repeated key in a list where pip keeps the last."""
    if isinstance(value, list):
        if not several and len(value) > 1:
            raise SpecError(where, f"given {len(value)} times with {', '.join(value)}", "Give it once.")
        return ",".join(value)
    return value or ""


def _tune(where: str, text: str) -> Tune:
    if text not in TUNE_CHOICES:
        raise SpecError(where, f"expected {', '.join(TUNE_CHOICES)}, got {text!r}", f"Write {where}=off, for instance.")
    return cast(Tune, text)


def _lock(where: str, text: str) -> Lock:
    if text not in LOCK_CHOICES:
        hint = did_you_mean(text, LOCK_CHOICES)
        raise SpecError(
            where, f"expected {', '.join(LOCK_CHOICES)}, got {text!r}{hint}", f"Write {where}=frozen, for instance."
        )
    return cast(Lock, text)


def _targets(where: str, text: str) -> tuple[str, ...]:
    from ..target import parse_target

    names = [name.strip() for name in text.split(",") if name.strip()]
    return tuple(dict.fromkeys(str(parse_target(name, where)) for name in names))


def _jobs(where: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(
            where, f"expected a whole number of at least 1, got {text!r}", f"Write {where}=2, for instance."
        )
    return int(text)


def _executor(where: str, text: str) -> str:
    from ..tune.specs.spec import EXECUTORS

    if text not in EXECUTORS:
        hint = did_you_mean(text, EXECUTORS)
        raise SpecError(where, f"expected {', '.join(EXECUTORS)}, got {text!r}{hint}", f"Write {where}=local.")
    return text


def _devices(where: str, text: str) -> tuple[int, ...]:
    """Whether there are such devices shows later; those that there are not are told of and ignored."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not all(name.isdecimal() for name in names):
        raise SpecError(
            where,
            f"expected numbers of GPUs, got {text!r}",
            f"Write {where}=0,1, as CUDA counts those that are visible.",
        )
    return tuple(dict.fromkeys(map(int, names)))


def _flag(where: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise SpecError(where, f"expected true or false, got {text!r}", f"Write {where}=true.")
