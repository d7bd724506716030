"""Kernels that were tuned and compiled when the package was built.

    import tlaot
    kernels = tlaot.load("sample_pkg")
    c = kernels.matmul(a, b)

Importing this package imports nothing else of it: names are looked up on first use, so that
``import tlaot`` costs next to nothing and touches no device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .autotuner import (
        AutoTuner,
        AutotuneResult,
        CompileArgs,
        ProfileArgs,
        TensorSupplyType,
        autotune,
        par_compile,
        set_autotune_inputs,
    )
    from .capturing.session import capture
    from .dropin import JITKernel, kernel, tilelang_for
    from .errors import (
        BuildError,
        CallError,
        DispatchError,
        LoadError,
        PackageError,
        SpecError,
        TlaotError,
        TuningError,
    )
    from .runtime.coverage import Coverage, Seen, coverage
    from .runtime.kernel import Kernel
    from .runtime.load import Kernels, load
    from .runtime.miss import Miss
    from .runtime.preload import Preloaded
    from .target import Target, parse_target

__version__ = "0.1.0"

__all__ = [
    "AutoTuner",
    "AutotuneResult",
    "BuildError",
    "CallError",
    "CompileArgs",
    "Coverage",
    "DispatchError",
    "JITKernel",
    "Kernel",
    "Kernels",
    "LoadError",
    "Miss",
    "PackageError",
    "Preloaded",
    "ProfileArgs",
    "Seen",
    "SpecError",
    "Target",
    "TensorSupplyType",
    "TlaotError",
    "TuningError",
    "__version__",
    "autotune",
    "capture",
    "coverage",
    "kernel",
    "load",
    "par_compile",
    "parse_target",
    "set_autotune_inputs",
    "tilelang_for",
]

_HOMES = {
    ".autotuner": (
        "AutoTuner",
        "AutotuneResult",
        "CompileArgs",
        "ProfileArgs",
        "TensorSupplyType",
        "autotune",
        "par_compile",
        "set_autotune_inputs",
    ),
    ".capturing.session": ("capture",),
    ".dropin": ("JITKernel", "kernel", "tilelang_for"),
    ".errors": (
        "BuildError",
        "CallError",
        "DispatchError",
        "LoadError",
        "PackageError",
        "SpecError",
        "TlaotError",
        "TuningError",
    ),
    ".runtime.coverage": ("Coverage", "Seen", "coverage"),
    ".runtime.miss": ("Miss",),
    ".runtime.preload": ("Preloaded",),
    ".runtime.kernel": ("Kernel",),
    ".runtime.load": ("Kernels", "load"),
    ".target": ("Target", "parse_target"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "torch":
        # tlaot.torch, which imports torch; not in __all__, where it would hide torch from who imports all names.
        return importlib.import_module(".torch", __name__)
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
