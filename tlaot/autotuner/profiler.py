"""``kernel.get_profiler()``: time and check a compiled kernel by hand, in this process, with the clocks of tuning."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import CallError
from ..runtime.call import describe, make_caller
from ..tune.measuring.arrays import Arrays, NumpyArrays, Supply, TorchArrays
from ..tune.measuring.check import Tolerance, compare, pick_outputs
from ..tune.measuring.timing import time_cuda, time_wall

if TYPE_CHECKING:
    from .kernel import TunedKernel

__all__ = ["Profiler"]


@dataclass(frozen=True)
class Profiler:
    """Times and checks one kernel.

    Attributes:
        kernel: The kernel.
        supply: How inputs are made where none are given.
    """

    kernel: TunedKernel
    supply: Supply = field(default_factory=Supply)

    def do_bench(
        self,
        func: Callable[..., Any] | None = None,
        warmup: float = 25,
        rep: float = 100,
        input_tensors: Sequence[Any] | None = None,
        backend: str = "auto",
        dynamic_symbolic_constraints: Mapping[str, int] | None = None,
        device: int | None = None,
    ) -> float:
        """Median time of one call in ms.

        Args:
            func: What to time with the inputs in place of the kernel, a reference for instance.
            warmup, rep: Time in ms before the first sample, and over which samples are taken.
            input_tensors: Arguments of a call; None generates them.
            backend: A backend of ``ProfileArgs``; the CPU has ``"wall"`` only, and takes ``"auto"`` for it.
            dynamic_symbolic_constraints: Symbolic sizes by name, for generated inputs.
            device: Ordinal of the GPU; None takes torch's current one.

        Raises:
            CallError: The kernel takes a scalar or has a symbolic size, and it is not given.
        """
        if not self.kernel.target.is_cuda:
            call = self._call(func, self._inputs(input_tensors, dynamic_symbolic_constraints, self._arrays(None)))
            return time_wall(call, warmup, rep).latency
        import torch

        number = torch.cuda.current_device() if device is None else device
        with torch.cuda.device(number):
            call = self._call(func, self._inputs(input_tensors, dynamic_symbolic_constraints, self._arrays(number)))
            return time_cuda(call, warmup, rep, backend).latency

    def assert_allclose(
        self,
        reference_program: Callable[..., Any],
        input_tensors: Sequence[Any] | None = None,
        atol: float | None = None,
        rtol: float | None = None,
        max_mismatched_ratio: float = 0.01,
    ) -> None:
        """Compare the kernel's outputs with a reference's for the same inputs.

        Args:
            reference_program: Called with copies of the inputs; returns the outputs.
            input_tensors: The inputs; None generates them.
            atol, rtol, max_mismatched_ratio: As in ``ProfileArgs``.

        Raises:
            AssertionError: An output is wrong; the message says which and by how much.
        """
        variant = self.kernel.packed.variant
        arrays = self._arrays(0 if variant.target.startswith("cuda") else None)
        inputs = self._inputs(input_tensors, None, arrays)
        wanted = pick_outputs(reference_program(*[arrays.clone(x) for x in inputs]))
        used = [arrays.clone(x) for x in inputs]
        returned = self.kernel(*used)
        positions = list(variant.out_idx)
        found = list(returned) if len(positions) > 1 else [returned]
        if not positions:
            positions = [i for i, param in enumerate(variant.params) if param.written]
            found = [used[i] for i in positions]
        if len(found) != len(wanted):
            raise AssertionError(f"{self.kernel.name}: {len(found)} outputs, the reference returned {len(wanted)}")
        tolerance = Tolerance(rtol, atol, max_mismatched_ratio)
        for position, mine, theirs in zip(positions, found, wanted, strict=True):
            param = variant.params[position]
            reason = compare(arrays, param.name, param.dtype, arrays.adopt(mine), arrays.adopt(theirs), tolerance)
            if reason is not None:
                raise AssertionError(f"{self.kernel.name}: {reason}")

    def run_once(self, func: Callable[..., Any] | None = None) -> Any:
        """Call the kernel, or a function in its place, once with generated inputs."""
        inputs = self._inputs(None, None, self._arrays(0 if self.kernel.target.is_cuda else None))
        return (self.kernel if func is None else func)(*inputs)

    def _arrays(self, device: int | None) -> Arrays:
        if device is not None:
            import torch

            # Making it sets torch's current device; the caller's stays what it was.
            with torch.cuda.device(torch.cuda.current_device()):
                return TorchArrays(f"cuda:{device}")
        return TorchArrays("cpu") if "torch" in sys.modules else NumpyArrays()

    def _inputs(self, given: Sequence[Any] | None, sizes: Mapping[str, int] | None, arrays: Arrays) -> tuple[Any, ...]:
        if given is not None:
            return tuple(given)
        variant, sizes = self.kernel.packed.variant, sizes or {}
        inputs = [(i, p) for i, p in enumerate(variant.params) if i not in variant.out_idx]
        for _, param in inputs:
            where = f"{self.kernel.name}: argument {param.name}"
            if param.shape is None:
                raise CallError(where, "is a scalar, which no random value suits", "Pass input_tensors.")
            free = [size for size in param.shape if isinstance(size, str) and size not in sizes]
            if free:
                raise CallError(
                    where,
                    f"has the symbolic size {free[0]}",
                    f"Pass input_tensors, or dynamic_symbolic_constraints={{{free[0]!r}: ...}}.",
                )
        return tuple(arrays.supply(param, sizes, index, self.supply) for index, param in inputs)

    def _call(self, func: Callable[..., Any] | None, given: tuple[Any, ...]) -> Callable[[], Any]:
        """One call with every argument there, without what the loader does once for each kind of arguments."""
        if func is not None:
            return lambda: func(*given)
        kernel, variant = self.kernel, self.kernel.variants[0]
        returned = kernel(*given)  # refuses what does not fit, in the loader's words
        if len(given) < len(variant.params):
            rest, made = iter(given), returned if len(variant.out_idx) > 1 else [returned]
            made_at = dict(zip(variant.out_idx, made, strict=True))
            given = tuple(made_at[i] if i in made_at else next(rest) for i in range(len(variant.params)))
        strides = any(param.strides is not None for param in variant.params)
        described = describe(kernel.name, given, strides)
        caller = make_caller(kernel.name, variant, kernel.function, described, given)
        return lambda: caller(given)
