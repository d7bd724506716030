"""TileLang's autotuner, for TileLang and TVM kernels, on GPU and CPU, on the stages that ``pip wheel`` uses.

    import tlaot

    @tlaot.autotune(configs=[{"block_M": 64}, {"block_M": 128}], ref_prog=torch.matmul)
    @tilelang.jit(out_idx=[-1])
    def matmul(M, N, K, block_M=64): ...

    c = matmul(1024, 1024, 1024)(a, b)

docs/coming-from-tilelang.md says what differs from the original.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .args import CompileArgs, ProfileArgs, TensorSupplyType
    from .cache import clear_cache, list_cache
    from .decorator import AutotunedFactory, autotune
    from .inputs import get_autotune_inputs, set_autotune_inputs
    from .request import RunArgs
    from .result import AutotuneResult, TunedKernel
    from .tuner import AutoTuner, par_compile

__all__ = [
    "AutoTuner",
    "AutotuneResult",
    "AutotunedFactory",
    "CompileArgs",
    "ProfileArgs",
    "RunArgs",
    "TensorSupplyType",
    "TunedKernel",
    "autotune",
    "clear_cache",
    "get_autotune_inputs",
    "list_cache",
    "par_compile",
    "set_autotune_inputs",
]

# Looked up at first use, as those of tlaot itself: to look after the cache needs nothing of what tunes.
_HOMES = {
    "args": ("CompileArgs", "ProfileArgs", "TensorSupplyType"),
    "cache": ("clear_cache", "list_cache"),
    "decorator": ("AutotunedFactory", "autotune"),
    "inputs": ("get_autotune_inputs", "set_autotune_inputs"),
    "request": ("RunArgs",),
    "result": ("AutotuneResult", "TunedKernel"),
    "tuner": ("AutoTuner", "par_compile"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
