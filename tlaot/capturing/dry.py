"""Recording without a GPU: factories are elaborated, nothing is compiled, and a launch returns zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["DryKernel", "elaborate_only"]


def elaborate_only(impl: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> DryKernel:
    """What ``JITImpl.compile`` returns, less the compiling: what the factory itself refuses is refused here, too."""
    func = impl.get_tir(*args, **kwargs)
    attributes = func.attrs or {}
    own = attributes.get("tilelang_out_idx", None)
    outputs = impl.out_idx if own is None else [int(index) for index in own]
    outputs = [] if outputs is None else [outputs] if isinstance(outputs, int) else outputs
    return DryKernel(func, [index % len(func.params) for index in outputs])


class DryKernel:
    """Stands for a ``JITKernel`` that was not compiled. A launch makes its outputs, zeros, beside its first tensor.

    Attributes:
        prim_func, out_idx, params: As of a ``JITKernel``.
        latency, config, ref_latency: Of a tuning, which there is none of.
    """

    latency = config = ref_latency = None

    def __init__(self, prim_func: Any, out_idx: list[int]) -> None:
        self.prim_func = prim_func
        self.out_idx = out_idx

    @property
    def params(self) -> list[Any]:
        """The parameters, as TileLang describes them."""
        from tilelang.engine.param import KernelParam

        func = self.prim_func
        return [
            KernelParam.from_buffer(func.buffer_map[param]) if param in func.buffer_map else KernelParam.from_var(param)
            for param in func.params
        ]

    def __call__(self, *args: Any) -> Any:
        func = self.prim_func
        wanted = len(func.params)
        if len(args) == wanted or not self.out_idx:
            if len(args) != wanted:
                raise ValueError(f"the kernel expects {wanted} arguments, got {len(args)}")
            return None
        inputs = [i for i in range(wanted) if i not in self.out_idx]
        if len(args) != len(inputs):
            raise ValueError(f"the kernel expects {len(inputs)} inputs, got {len(args)}")
        sizes: dict[Any, Any] = {}
        for i, arg in zip(inputs, args, strict=True):
            param = func.params[i]
            if param not in func.buffer_map:
                sizes[param] = arg
                continue
            for extent, size in zip(func.buffer_map[param].shape, arg.shape, strict=False):
                if type(extent).__name__ in ("Var", "SizeVar"):
                    sizes[extent] = int(size)
        device = next((arg.device for arg in args if hasattr(arg, "device")), "cpu")
        made = [_zeros(func.buffer_map[func.params[i]], sizes, device) for i in self.out_idx]
        return made[0] if len(made) == 1 else made

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """There is none: nothing was compiled."""
        return ""

    get_host_source = get_kernel_source


def _zeros(buffer: Any, sizes: Mapping[Any, Any], device: Any) -> Any:
    import tilelang.language as T  # noqa: N812
    import torch
    from tvm import arith, tirx

    analyzer = arith.Analyzer()
    shape = []
    for extent in buffer.shape:
        value = analyzer.simplify(tirx.stmt_functor.substitute(extent, dict(sizes)))
        if not hasattr(value, "value"):
            raise ValueError(f"the size {extent} of {buffer.name} does not follow from the inputs")
        shape.append(int(value.value))
    return torch.zeros(shape, dtype=T.dtype(buffer.dtype).as_torch(), device=device)
