"""What a build needs beside tlaot itself, from what the spec declares.

The same lists are the extras ``tvm``, ``tilelang`` and ``search`` in tlaot's ``pyproject.toml``; a test compares them. They are
repeated here because the in-tree backend builds tlaot before there is metadata to read them from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .settings import Settings

if TYPE_CHECKING:
    from ..target import Target
    from ..tune.specs.spec import Spec

__all__ = ["FRONTEND_REQUIRES", "NVCC_REQUIRES", "SEARCH_REQUIRES", "requirements_of"]

FRONTEND_REQUIRES: dict[str, tuple[str, ...]] = {
    "tvm": ("apache-tvm>=0.25.0.post1,<0.28", "cloudpickle", "numpy", "tqdm"),
    "tilelang": ("tilelang>=0.1.15,<0.2", "cloudpickle", "numpy", "tqdm"),
}

# Of search = "optuna"; search = "auto" does without it where it is not installed.
SEARCH_REQUIRES = ("optuna>=4.0",)

# nvcc with the headers that device code includes; some 300 MB, so only where the machine has no CUDA toolkit.
NVCC_REQUIRES = ("nvidia-cuda-nvcc>=13", "nvidia-cuda-runtime>=13", "nvidia-cuda-cccl>=13")


def requirements_of(spec: Spec, settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """Requirements of the frontends and targets that this build compiles.

    A target that the spec builds only ``when-available`` is not made available by a download of gigabytes,
    unless the settings name it; Apache TVM for the CPU is asked for in any case.
    """
    if settings.tune == "off":
        return []
    needed: dict[str, None] = {}
    for kernel in spec.kernels:
        targets = [target for target in kernel.targets if _is_built(target, spec, settings)]
        if targets:
            needed |= dict.fromkeys(FRONTEND_REQUIRES[kernel.frontend])
            if kernel.search == "optuna":
                needed |= dict.fromkeys(SEARCH_REQUIRES)
        if any(target.is_cuda for target in targets) and not _has_nvcc(environ):
            needed |= dict.fromkeys(NVCC_REQUIRES)
    return list(needed)


def _is_built(target: Target, spec: Spec, settings: Settings) -> bool:
    if settings.targets is not None:
        return str(target) in settings.targets
    # apache-tvm alone is small; TileLang brings torch, and nvcc hundreds of megabytes.
    return target.kind == "llvm" or target not in spec.when_available


def _has_nvcc(environ: Mapping[str, str]) -> bool:
    from ..errors import BuildError
    from ..tune.compiling.toolchain import find_nvcc

    try:
        find_nvcc(environ)
    except BuildError:
        return False
    return True
