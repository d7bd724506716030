"""TileLang's autotuner, for TileLang and TVM kernels, on GPU and CPU, on the stages that ``pip wheel`` uses.

    import tlaot

    @tlaot.autotune(configs=[{"block_M": 64}, {"block_M": 128}], ref_prog=torch.matmul)
    @tilelang.jit(out_idx=[-1])
    def matmul(M, N, K, block_M=64): ...

    c = matmul(1024, 1024, 1024)(a, b)

docs/coming-from-tilelang.md says what differs from the original.
"""

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
