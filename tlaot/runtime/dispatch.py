"""Which variants fit a call, and why the others do not: pure functions on plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from ..keys import KeyValueError, encode, key_of
from ..manifest import Param, Variant
from ..plain import record
from ..target import CPU_LEVELS, DLPACK_CPU, DLPACK_CUDA, Target, read_target
from .buckets import find_bucket, spell_range

__all__ = [
    "NONE",
    "Argument",
    "Place",
    "Rejection",
    "bind_sizes",
    "copies",
    "describe_call",
    "describe_params",
    "differs",
    "find_mismatches",
    "given_params",
    "refuse_place",
    "resolve",
    "scalar_fits",
    "spell_variant",
    "spell_workload",
    "symbolic_sizes",
    "target_of",
    "wants_factory_args",
]

Sizes: TypeAlias = tuple[int | str, ...]

# The dtype of an argument that is None.
NONE = "None"

# Ranges of sizes that a message lists of a variant.
_MOST_BUCKETS = 4


@record(frozen=True)
class Place:
    """Where a call runs.

    Attributes:
        device_type: DLPack device type of its tensors.
        device_id: Ordinal of the device.
        capability: Compute capability of a CUDA device; None: unknown, then every CUDA target may run.
        cpu_level: Rank of the processor's instruction level, 1 to 4; None: unknown, then every level may run.
        ptx: Whether PTX may run, for which the driver's compiler is needed.
        device: Name of a CUDA device; "" where it is not known.
        sm_count: Streaming multiprocessors of a CUDA device; None where that is not known.
        shared_memory: Bytes of shared memory that a block may have on a CUDA device; None: unknown, then any number.
    """

    device_type: int
    device_id: int = 0
    capability: tuple[int, int] | None = None
    cpu_level: int | None = None
    ptx: bool = True
    device: str = ""
    sm_count: int | None = None
    shared_memory: int | None = None

    def __str__(self) -> str:
        if self.device_type == DLPACK_CPU:
            return "cpu"
        return f"cuda:{self.device_id}" if self.device_type == DLPACK_CUDA else f"device type {self.device_type}"


@record(frozen=True)
class Argument:
    """What dispatch knows of one argument.

    Attributes:
        dtype: DLPack spelling of a tensor's element type; ``"int"``, ``"float"`` or ``"bool"`` for a scalar; ``"None"`` for None.
        shape: Sizes of a tensor; None for a scalar.
        strides: Strides in elements, where a variant of the kernel asks for them; else None.
    """

    dtype: str
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return self.dtype if self.shape is None else f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@record(frozen=True)
class Rejection:
    """Why one variant does not fit.

    Attributes:
        variant: The variant.
        reasons: ``(kind, text)`` of each mismatch; the kinds are ``"device"``, ``"target"``, ``"factory"``,
            ``"count"``, ``"kind"``, ``"dtype"``, ``"shape"``, ``"strides"``, ``"ptx"`` and ``"size"``.
    """

    variant: Variant
    reasons: tuple[tuple[str, str], ...]

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(kind for kind, _ in self.reasons)


def resolve(
    variants: Sequence[Variant],
    arguments: Sequence[Argument],
    place: Place,
    factory_args: Mapping[str, Any],
    any_size: bool = False,
) -> tuple[list[Variant], list[Rejection]]:
    """Split variants into those that fit a call and those that do not, with every reason.

    Args:
        variants: All packaged variants of the kernel.
        arguments: The call's arguments in order, outputs included or left out.
        place: Where the call's tensors are.
        factory_args: Arguments of the factory that the caller named.
        any_size: Whether a variant of a dynamic workload fits sizes that another one serves, too: somebody names it.
    """
    accepted: list[Variant] = []
    rejected: list[Rejection] = []
    for variant in variants:
        reasons = tuple(find_mismatches(variant, arguments, place, factory_args))
        if any_size:
            reasons = tuple(reason for reason in reasons if reason[0] != "size")
        if reasons:
            rejected.append(Rejection(variant, reasons))
        else:
            accepted.append(variant)
    return accepted, rejected


def describe_params(variant: Variant) -> str:
    """The variant's signature as text: ``(A: float32[1024, 1024], B: ...) -> C: ...``."""
    shown = [f"{p.name}: {_spell_param(p)}" for p in variant.params]
    inputs = [text for i, text in enumerate(shown) if i not in variant.out_idx]
    outputs = [shown[i] for i in variant.out_idx]
    return f"({', '.join(inputs)})" + (f" -> {', '.join(outputs)}" if outputs else "")


def describe_call(arguments: Iterable[Argument], place: Place) -> str:
    """The call's arguments as text."""
    return f"({', '.join(map(str, arguments))}) on {place}"


def find_mismatches(
    variant: Variant, arguments: Sequence[Argument], place: Place, factory_args: Mapping[str, Any]
) -> Iterable[tuple[str, str]]:
    """Why a variant does not fit a call, each reason with its kind; nothing where it does."""
    yield from refuse_place(variant, place)
    yield from _factory_mismatches(variant, factory_args)
    given = given_params(variant, len(arguments))
    if given is None:
        least = len(variant.params) - len(variant.out_idx)
        expected = f"{least} or {len(variant.params)}" if variant.out_idx else str(least)
        yield "count", f"takes {expected} arguments, got {len(arguments)}"
        return
    sizes: dict[str, int] = {}
    fits = True
    for position, (param, argument) in enumerate(zip(given, arguments, strict=True)):
        what = f"argument {position} ({param.name})"
        for kind, text in _argument_mismatches(param, argument, sizes):
            fits = False
            yield kind, f"{what} {text}"
    if fits and variant.buckets and find_bucket(variant, sizes) is None:
        told = ", ".join(f"{name} = {sizes.get(name, 'not given')}" for name in variant.buckets[0].sizes)
        served = [
            ", ".join(f"{name} {spell_range(ends)}" for name, ends in bucket.sizes.items())
            for bucket in variant.buckets[:_MOST_BUCKETS]
        ]
        more = [f"{len(variant.buckets) - _MOST_BUCKETS} ranges more"] if len(variant.buckets) > _MOST_BUCKETS else []
        yield "size", f"{told} is not in what it serves: {'; '.join([*served, *more])}"


def wants_factory_args(variant: Variant, factory_args: Mapping[str, Any]) -> bool:
    """Whether a variant was made with these arguments of its factory."""
    return not any(_factory_mismatches(variant, factory_args))


def given_params(variant: Variant, count: int) -> tuple[Param, ...] | None:
    """The parameters that ``count`` positional arguments stand for: all, or all but the outputs; else None."""
    if count == len(variant.params):
        return variant.params
    if count == len(variant.params) - len(variant.out_idx):
        return tuple(p for i, p in enumerate(variant.params) if i not in variant.out_idx)
    return None


def bind_sizes(variant: Variant, arguments: Sequence[Argument]) -> dict[str, int]:
    """What a call's tensors make of a variant's symbolic sizes."""
    sizes: dict[str, int] = {}
    for param, argument in zip(given_params(variant, len(arguments)) or (), arguments, strict=False):
        for want, got in zip(param.shape or (), argument.shape or (), strict=False):
            if isinstance(want, str):
                sizes.setdefault(want, got)
    return sizes


def refuse_place(variant: Variant, place: Place) -> Iterable[tuple[str, str]]:
    """Why a variant does not run on a device, whatever it is called with; nothing where it does."""
    yield from _target_mismatches(target_of(variant.target), place)
    yield from _memory_mismatches(variant, place)


def _factory_mismatches(variant: Variant, factory_args: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in factory_args.items():
        if name not in variant.shape or not _has_key(value):
            yield "factory", f"has no factory argument {name} of this kind"
            continue
        if not _is_same(variant.shape[name], value):
            yield "factory", f"{name} is {variant.shape[name]!r}, asked for {value!r}"


def _has_key(value: Any) -> bool:
    if isinstance(value, (bool, int, float, str, type(None))):
        return True
    try:
        encode(value)
    except KeyValueError:
        return False
    return True


def _is_same(packaged: Any, asked: Any) -> bool:
    if isinstance(packaged, (bool, int, float, str)) and isinstance(asked, (bool, int, float, str)):
        # True == 1 in Python, yet they are different workloads.
        return packaged == asked and isinstance(packaged, bool) == isinstance(asked, bool)
    return key_of(encode(asked)) == key_of(packaged)


def _target_mismatches(target: Target, place: Place) -> Iterable[tuple[str, str]]:
    if target.device_type != place.device_type:
        yield "device", f"is for {'CUDA' if target.is_cuda else 'the CPU'}, the tensors are on {place}"
    elif target.is_cuda and place.capability is not None and not target.runs_on(place.capability):
        yield "target", f"does not run on compute capability {place.capability[0]}.{place.capability[1]} ({place})"
    elif target.is_virtual and not place.ptx:
        yield "ptx", "is PTX, which the driver would have to compile; TLAOT_PTX=0 forbids it"
    elif not target.is_cuda and place.cpu_level is not None and target.cpu_rank > place.cpu_level:
        yield "target", f"needs {target.arch}, this processor has {CPU_LEVELS[place.cpu_level - 1]}"


def _memory_mismatches(variant: Variant, place: Place) -> Iterable[tuple[str, str]]:
    needed = variant.properties.get("shared_memory")
    if isinstance(needed, int) and place.shared_memory is not None and needed > place.shared_memory:
        yield (
            "target",
            f"needs {needed / 1024:g} KiB of shared memory per block, {place} has {place.shared_memory / 1024:g}",
        )


def _argument_mismatches(param: Param, argument: Argument, sizes: dict[str, int]) -> Iterable[tuple[str, str]]:
    if argument.dtype == NONE:
        if not param.optional:
            yield "kind", f"is None, expected {_spell_param(param)}"
        return
    if param.shape is None:
        if argument.shape is not None:
            yield "kind", f"is a tensor, expected a scalar {param.dtype}"
        elif not scalar_fits(param.dtype, argument.dtype):
            yield "kind", f"is a Python {argument.dtype}, expected {param.dtype}"
        return
    if argument.shape is None:
        yield "kind", f"is a Python {argument.dtype}, expected a tensor {_spell_param(param)}"
        return
    if argument.dtype != param.dtype:
        yield "dtype", f"has dtype {argument.dtype}, expected {param.dtype}"
    if not _sizes_fit(param.shape, argument.shape, sizes):
        expected = tuple(sizes.get(s, s) if isinstance(s, str) else s for s in param.shape)
        yield "shape", f"has shape {_spell_sizes(argument.shape)}, expected {_spell_sizes(expected)}"
    elif param.strides is not None and argument.strides is not None and 0 not in argument.shape:
        # The stride of a dimension of size one addresses nothing.
        told = [i for i, n in enumerate(argument.shape) if n != 1]
        if not _sizes_fit([param.strides[i] for i in told], [argument.strides[i] for i in told], sizes):
            yield "strides", f"has strides {_spell_sizes(argument.strides)}, expected {_spell_sizes(param.strides)}"


def scalar_fits(dtype: str, python_type: str) -> bool:
    """Whether a Python scalar may stand for a scalar parameter: as the FFI converts, without loss of kind."""
    if dtype == "bool":
        return python_type == "bool"
    if dtype.startswith(("int", "uint")):
        return python_type in ("int", "bool")
    return python_type in ("float", "int")


def _sizes_fit(expected: Sequence[int | str], found: Sequence[int], sizes: dict[str, int]) -> bool:
    if len(expected) != len(found):
        return False
    for want, got in zip(expected, found, strict=True):
        if (sizes.setdefault(want, got) if isinstance(want, str) else want) != got:
            return False
    return True


def copies(variant: Variant) -> bool:
    """Whether misaligned arguments of a variant are to be copied."""
    return variant.properties.get("on_misaligned") == "copy"


def differs(variant: Variant) -> bool:
    """Whether a variant may give other bits each time."""
    return variant.properties.get("deterministic") is False


def symbolic_sizes(variant: Variant) -> int:
    """Number of sizes and strides that a variant leaves open."""
    names = {s for p in variant.params for s in (*(p.shape or ()), *(p.strides or ())) if isinstance(s, str)}
    return len(names)


@cache
def target_of(text: str) -> Target:
    """A target as a manifest names it."""
    return read_target(text, "manifest")


def _spell_param(param: Param) -> str:
    return param.dtype if param.shape is None else f"{param.dtype}[{', '.join(map(str, param.shape))}]"


def _spell_sizes(sizes: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def spell_variant(variant: Variant) -> str:
    """The variant's target and workload in a message."""
    return f"{variant.target} {spell_workload(variant)}"


def spell_workload(variant: Variant) -> str:
    """The variant's workload in a message."""
    return "{" + ", ".join(f"{k}={v!r}" for k, v in sorted(variant.shape.items())) + "}"
