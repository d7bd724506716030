"""What TileLang's generated CUDA includes; known without importing TileLang, so that it can be compiled meanwhile."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

__all__ = ["common_headers", "default_flags"]

_FOLDER = "tl_templates/cuda"
# In the order of TileLang's code generator. Left out is what few kernels need and all would pay for: curand, fp4 and fp6, sparse
# and block-scaled MMA.
_OF_ALL = (
    "atomic.h",
    "math.h",
    "copy.h",
    "cluster.h",
    "reduce.h",
    "scan.h",
    "ldsm.h",
    "threadblock_swizzle.h",
    "debug.h",
)
_HOPPER = ("intrin.h", "barrier.h", "copy_sm90.h")


def common_headers(arch: str) -> tuple[str, ...]:
    """The headers of which a kernel for an architecture includes some, in an order in which all can be included.

    Args:
        arch: The architecture, ``"sm_90a"``.
    """
    number = int("".join(filter(str.isdigit, arch)))
    own = ["instruction/mma.h"] if number >= 75 else ["instruction/mma_sm70.h"]
    if 90 <= number < 100:
        own.append("instruction/wgmma.h")
    elif 100 <= number < 120:
        own.append("instruction/tcgen05mma.h")
    if number >= 90:
        own += _HOPPER
    if number >= 100:
        own.append("copy_sm100.h")
    return (
        "cuda.h",
        "cuda_device_runtime_api.h",
        f"{_FOLDER}/nvrtc_std.h",
        *(f"{_FOLDER}/{name}" for name in (*own, *_OF_ALL)),
        "math_constants.h",
        "cooperative_groups.h",
    )


def default_flags(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The device compiler's flags of a kernel that asks for none; None where TileLang is not found."""
    spec = importlib.util.find_spec("tilelang")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    templates = environ.get("TL_TEMPLATE_PATH", str(root / "src"))
    cutlass = environ.get("TL_CUTLASS_PATH", str(root / "3rdparty" / "cutlass" / "include"))
    return "-std=c++20", f"-I{templates}", f"-I{cutlass}"
