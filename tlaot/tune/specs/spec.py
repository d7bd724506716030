"""What a ``tltune.toml`` declares, as plain data: kernels, shapes, candidates, targets, how to measure.

``spec_file.py`` reads it from the file; ``tlaot.autotune`` makes the same of a call in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...target import Target

__all__ = [
    "BACKENDS",
    "EXECUTORS",
    "FRONTEND_TARGETS",
    "ON_MISALIGNED",
    "OUTSIDES",
    "SEARCHES",
    "SPLITS",
    "Budget",
    "KernelSpec",
    "Profile",
    "Spec",
]

# Target kinds that each frontend can lower to.
FRONTEND_TARGETS = {"tvm": ("llvm", "cuda"), "tilelang": ("cuda", "c")}

# Ways to time a candidate.
BACKENDS = ("auto", "wall", "cudagraph", "event", "cupti")

# Ways to choose candidates: "auto" tries all of a space up to a size and is guided above it.
SEARCHES = ("auto", "exhaustive", "guided", "optuna")

# Where the work of a tuning is done: by processes of this host, or by the nodes of a Ray cluster.
EXECUTORS = ("local", "ray")

# What a call does with a misaligned argument: refuse it, or run on an aligned copy (and copy back what is written).
ON_MISALIGNED = ("error", "copy")

# What becomes of a size of a dynamic dimension that lies outside of what was measured.
OUTSIDES = ("error", "clamp")

# Ways to spread a package's kernels over several wheels: "arch" makes a companion wheel of each CUDA architecture.
SPLITS = ("arch",)


@dataclass(frozen=True)
class Profile:
    """How a candidate is timed.

    Attributes:
        warmup: Time in ms spent calling the kernel before the first sample.
        rep: Time in ms over which samples are taken.
        timeout: Seconds after which a candidate that is being measured is killed.
        compile_timeout: Seconds after which a candidate that is being compiled is killed.
        backend: ``"wall"`` (CPU), ``"cudagraph"``, ``"event"`` or ``"cupti"`` (CUDA), or ``"auto"``.
        decide_budget: Seconds of measuring spent on telling the finalists of a workload apart.
        quiet_timeout: Seconds to wait for foreign load on the device to end before deciding.
    """

    warmup: float = 25.0
    rep: float = 100.0
    timeout: float = 60.0
    compile_timeout: float = 300.0
    backend: str = "auto"
    decide_budget: float = 2.0
    quiet_timeout: float = 30.0


@dataclass(frozen=True)
class Budget:
    """How much a search may try, for one kernel entry and one target over all its shapes.

    Attributes:
        trials: Candidates at most; None sets no limit.
        seconds: Seconds at most; None sets no limit.
    """

    trials: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class KernelSpec:
    """One ``[[kernel]]`` table.

    Attributes:
        name: Name under which users of the package find the kernel.
        frontend: ``"tvm"`` or ``"tilelang"``.
        factory: ``"module:function"``; called with a shape's and a config's items as keywords.
        targets: Targets that this entry is built for.
        shapes: Workloads as dicts, or the ``"module:function"`` that returns them.
        configs: Candidates as dicts, or the ``"module:name"`` of a list, a callable or a generator function.
        inputs: ``"module:function"`` that makes the input tensors of a shape, or None for random ones.
        reference: ``"module:function"`` that computes the right outputs, or None when ``check`` is off.
        check: Whether outputs are compared with the reference.
        out_idx: Positions of the outputs that a caller may leave out; None takes the frontend's own.
        rtol, atol: Tolerance of an element, ``|x - ref| <= atol + rtol * |ref|``; None chooses by dtype.
        max_mismatched_ratio: Share of elements that may miss the tolerance (never by more than 10 times).
        pass_configs: Compiler pass options for every candidate.
        profile: How candidates are timed.
        supply: How random inputs are made: ``type``, ``seed``, ``ranges`` of index tensors by parameter name.
        manual_check: ``"module:function"`` called with the outputs and the reference's; raises or returns False.
        deterministic: Whether a winner must give the same bits twice; false for kernels that add up with atomics.
        inputs_style: What ``inputs`` is called with: a ``"shape"``'s items, or, from Python, ``"supply_prog"``: the parameters.
        compile_flags: From Python: further options of nvcc for every candidate.
        inputs_file: From Python: where the tensors of ``set_autotune_inputs`` were written.
        search: How candidates are chosen, one of :data:`SEARCHES`.
        budget: Where the search ends at the latest.
        ptx: Whether PTX ships as well, for devices that no packaged machine code runs on; see ``ptx_from``.
        on_misaligned: What a call does with an argument whose address the code does not take, one of :data:`ON_MISALIGNED`.
        max_slowdown: How many times the fastest's time a variant may take, so that fewer ship; None ships the fastest.
        dynamic: Dimensions that the code leaves open, and the sizes at which it is tuned, ascending; ``shapes`` give the rest.
        outside: What becomes of other sizes, one of :data:`OUTSIDES`: an error, or they are served like the nearest that was measured.
        probes: How many sizes may be measured between each two declared ones.
        measure: Whether its candidates are compared and timed; where not, its one config is compiled as it is, on no device.
        flops: Operations of a workload as an expression of its shape, ``"2*M*N*K"``; for reports. None where nobody said.
        where: File and table, for messages.
    """

    name: str
    frontend: str
    factory: str
    targets: tuple[Target, ...]
    shapes: tuple[Mapping[str, Any], ...] | str
    configs: tuple[Mapping[str, Any], ...] | str
    where: str
    inputs: str | None = None
    reference: str | None = None
    check: bool = True
    out_idx: tuple[int, ...] | None = None
    rtol: float | None = None
    atol: float | None = None
    max_mismatched_ratio: float = 0.01
    pass_configs: Mapping[str, Any] = field(default_factory=dict)
    profile: Profile = Profile()
    supply: Mapping[str, Any] = field(default_factory=dict)
    manual_check: str | None = None
    deterministic: bool = True
    inputs_style: str = "shape"
    inputs_file: Mapping[str, Any] | None = None
    compile_flags: tuple[str, ...] = ()
    search: str = "auto"
    budget: Budget = Budget()
    ptx: bool = False
    max_slowdown: float | None = None
    on_misaligned: str = "error"
    dynamic: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    outside: str = "error"
    probes: int = 16
    flops: str | None = None
    measure: bool = True

    @property
    def ptx_from(self) -> Target | None:
        """The target that the PTX is made of: the lowest CUDA target that is compatible with later devices; None for none."""
        plain = [target for target in self.targets if target.is_cuda and not target.cuda_suffix]
        return min(plain, key=lambda target: target.capability, default=None) if self.ptx else None


@dataclass(frozen=True)
class Spec:
    """A whole ``tltune.toml``.

    Attributes:
        path: The file.
        package: Import name of the package that embeds the kernels.
        kernels: The ``[[kernel]]`` tables in order.
        devices: Overrides of the device table by target, from ``[target."cuda:sm_90a"]``.
        when_available: Targets that are skipped, with a line in the log, where this machine cannot build them.
        split: How the kernels are spread over wheels, one of :data:`SPLITS`; None for one wheel.
        size_budget: Bytes that the packaged kernels may take.
        min_glibc: The oldest glibc that must load them, ``"2.17"``.
        tuned_as: Targets that are not tuned but take the winners of another one, by target.
        executor: Where the work of a tuning is done, one of :data:`EXECUTORS`; it has no part in what is found.
    """

    path: Path
    package: str
    kernels: tuple[KernelSpec, ...]
    devices: Mapping[str, Mapping[str, Any]]
    when_available: tuple[Target, ...]
    split: str | None = None
    size_budget: int | None = None
    min_glibc: str | None = None
    tuned_as: Mapping[str, str] = field(default_factory=dict)
    executor: str = "local"

    @property
    def targets(self) -> tuple[str, ...]:
        """All targets of all kernels, as text, in order of appearance."""
        return tuple(dict.fromkeys(str(target) for kernel in self.kernels for target in kernel.targets))
