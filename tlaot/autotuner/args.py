"""What a tuning is told: how to compile, how to make inputs, how to check and time.

The names, fields and defaults are those of ``tilelang.autotuner``; where one differs the docstring says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["CompileArgs", "ProfileArgs", "TensorSupplyType"]


class TensorSupplyType(Enum):
    """How input tensors are filled.

    ``Auto``: floats uniform in [-1, 1), signed integers in [-2, 2], unsigned ones in [0, 2]. ``Normal`` and ``Randn``
    are the normal distribution of mean 0 and standard deviation 1.
    """

    Integer = 1
    Uniform = 2
    Normal = 3
    Randn = 4
    Zero = 5
    One = 6
    Auto = 7


@dataclass(frozen=True)
class CompileArgs:
    """How candidates are compiled.

    Attributes:
        out_idx: Positions of the outputs that a caller leaves out; None takes those of ``@tilelang.jit``.
        execution_backend: ``"auto"`` or ``"tvm_ffi"``: what an ``executable.so`` is. Others cannot be shipped and are an error.
        target: ``"auto"``, a target as in ``tltune.toml`` (``"cuda:sm_90a"``, ``"llvm"``, ``"c"``), TileLang's
            ``{"kind": "cuda", "arch": "sm_90a"}``, or a TVM target.
        target_host: Accepted for compatibility; the host code is C for x86-64 (or LLVM's) in any case.
        verbose: Print each candidate's result.
        pass_configs: Compiler pass options for every candidate.
        compile_flags: Extra flags for nvcc, for every candidate.
    """

    out_idx: int | Sequence[int] | None = None
    execution_backend: str | None = "auto"
    target: Any = "auto"
    target_host: Any = None
    verbose: bool | None = False
    pass_configs: Mapping[str, Any] | None = None
    compile_flags: Sequence[str] | str | None = None


@dataclass(frozen=True)
class ProfileArgs:
    """How candidates are checked and timed.

    Attributes:
        warmup: Kernel time in ms before the first sample.
        rep: Kernel time in ms over which samples are taken.
        timeout: Seconds after which a candidate's measurement is killed.
        backend: ``"auto"``, ``"event"``, ``"cudagraph"``, ``"cupti"`` (CUDA) or ``"wall"`` (CPU).
        supply_type: How inputs are filled where neither ``set_autotune_inputs`` nor ``supply_prog`` gives them.
        ref_prog: Called with the inputs; returns the outputs, or judges (see README, "reference").
        supply_prog: Called with the list of input parameters; returns the inputs.
        manual_check_prog: Called with the outputs and the reference's outputs (None without a reference); raises or returns
            False where they are wrong.
        rtol, atol: Tolerances; None (the default here; TileLang's is 1e-2) chooses by dtype.
        max_mismatched_ratio: Share of elements that may miss the tolerance, none of them by more than 10 times.
        skip_check: Compare nothing.
        cache_input_tensors: Make the inputs once for all candidates; every candidate sees the same values either way.
        seed: Seed of generated inputs.
        index_ranges: Half-open integer range of a generated index tensor, by parameter name.
        deterministic: The winner must give the same bits twice; False for kernels that add up with atomics.
    """

    warmup: float = 25
    rep: float = 100
    timeout: float = 30
    backend: str = "auto"
    supply_type: TensorSupplyType = TensorSupplyType.Auto
    ref_prog: Callable[..., Any] | None = None
    supply_prog: Callable[..., Any] | None = None
    manual_check_prog: Callable[..., Any] | None = None
    rtol: float | None = None
    atol: float | None = None
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    cache_input_tensors: bool = True
    seed: int = 0
    index_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    deterministic: bool = True
