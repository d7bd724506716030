"""Facts about a TileLang kernel's parameters: shapes, strides, what is written, what alignment is assumed.

Usage is read from the IR that TileLang's CUDA code generator consumes. There a vector access is a load or store of
several lanes, which becomes one machine access of that many bytes and needs the address to be a multiple of it (PTX
ISA, "Addresses as Operands"); offsets are proved to be multiples by TileLang's vectorizer, so the condition falls on the
first element's address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilelang import tvm
from tvm import tirx

from ...manifest import Param

__all__ = ["Usage", "constant", "is_tensormap", "params_of", "pointee", "read", "symbols_of"]

# TMA requires it of every global address (CUDA Driver API, cuTensorMapEncodeTiled; PTX ISA, cp.async.bulk).
# Also assumed of a pointer that goes to code which we cannot see: CUDA's widest plain access.
_TMA_ALIGN = 16

# Device operations that only read through a tensor map or prefetch it; every other use counts as a write.
_TENSORMAP_READS = {
    "tl.tma_load",
    "tl.tma_load_im2col",
    "tl.tma_load_multicast",
    "tl.tma_load_gather4",
    "tl.prefetch_tma_descriptor",
}

# Operations that take a pointer and access a fixed number of bytes there.
_ACCESS_BYTES = {f"tl.{kind}{bits}": bits // 8 for kind in ("ldg", "stg") for bits in (32, 64, 128, 256)}

_ADDRESSES = ("tirx.address_of", "tirx.tvm_access_ptr")


@dataclass(frozen=True)
class Usage:
    """For each parameter of a device function, in order.

    Attributes:
        aligns: Alignment in bytes assumed of a pointer argument; 0 for a tensor map or a scalar.
        address_aligns: The same, of the tensor behind a tensor map too.
        written: Whether the function may write through it.
        narrow: Whether it computes an element's offset in 32 bits.
    """

    aligns: tuple[int, ...]
    address_aligns: tuple[int, ...]
    written: tuple[bool, ...]
    narrow: tuple[bool, ...] = ()


def is_tensormap(var: tirx.Var) -> bool:
    """Whether a device parameter is a CUtensorMap passed by value."""
    kind = var.type_annotation
    return isinstance(kind, tvm.ir.PointerType) and kind.storage_scope == "grid_constant"


def pointee(var: tirx.Var) -> str | None:
    """Element type of a typed pointer parameter, else None."""
    kind = var.type_annotation
    if isinstance(kind, tvm.ir.PointerType) and isinstance(kind.element_type, tvm.ir.PrimType):
        return str(kind.element_type.dtype)
    return None


def read(func: tirx.PrimFunc) -> Usage:
    """Collect the usage of one device function."""
    handles = [var for var in func.params if str(var.dtype) == "handle"]
    opaque = "code_block_source" in func.attrs
    seen = _Accesses(handles)
    tirx.stmt_functor.post_order_visit(func.body, seen.visit)
    readonly = {int(i) for i in func.attrs.get("tl.readonly_param_indices", ())}
    aligns, addresses, written = [], [], []
    for position, var in enumerate(func.params):
        if is_tensormap(var):
            aligns.append(0)
            addresses.append(_TMA_ALIGN)
            # TileLang's own list calls a tensor map read-only even where the kernel stores through it.
            written.append(opaque or seen.stored_through(var))
        elif str(var.dtype) == "handle":
            needed = max(seen.bytes_of(var), _bytes(pointee(var) or "uint8", 1), _TMA_ALIGN if opaque else 1)
            aligns.append(needed)
            addresses.append(needed)
            written.append(opaque or position not in readonly)
        else:
            aligns.append(0)
            addresses.append(0)
            written.append(False)
    return Usage(tuple(aligns), tuple(addresses), tuple(written), tuple(map(seen.narrowly, func.params)))


class _Accesses:
    """Widest access through each pointer, gathered in one walk over a function's body.

    The walk comes to a node that occurs twice only once, so it judges a variable by the nodes around it.
    """

    def __init__(self, handles: list[tirx.Var]) -> None:
        self._widest: dict[tirx.Var, int] = dict.fromkeys(handles, 1)
        self._widest_of_all = 1
        # Pointers that go where the walk cannot follow: into another variable, or into foreign code.
        self._escaped: set[tirx.Var] = set()
        self._narrow: set[tirx.Var] = set()

    def visit(self, node: Any) -> None:
        if isinstance(node, (tirx.BufferLoad, tirx.BufferStore)):
            if any("int64" not in str(index.dtype) for index in node.indices):
                self._narrow.add(node.buffer.data)
            self._access(node.buffer.data, _bytes(str(node.buffer.dtype), _lanes(node.indices)))
        if isinstance(node, tirx.Call):
            self._visit_call(node)
        elif isinstance(node, tirx.Select):
            self._escape(node.true_value, node.false_value)
        elif isinstance(node, (tirx.Bind, tirx.Let, tirx.Cast, tirx.BufferStore)):
            self._escape(node.value)

    def bytes_of(self, var: tirx.Var) -> int:
        if var in self._escaped:
            return max(_TMA_ALIGN, self._widest_of_all)
        return self._widest[var]

    def narrowly(self, var: tirx.Var) -> bool:
        return var in self._narrow

    def stored_through(self, tensormap: tirx.Var) -> bool:
        return tensormap in self._escaped

    def _visit_call(self, call: tirx.Call) -> None:
        name = getattr(call.op, "name", "")
        if name in _ADDRESSES:
            return
        if name not in _TENSORMAP_READS:
            self._escape(*call.args)
        for argument in call.args:
            target = _address(argument)
            if target is not None:
                self._access(target[0], _bytes_accessed(name, call, target[1]))

    def _access(self, var: tirx.Var, size: int) -> None:
        self._widest_of_all = max(self._widest_of_all, size)
        if var in self._widest:
            self._widest[var] = max(self._widest[var], size)

    def _escape(self, *values: Any) -> None:
        self._escaped.update(v for v in values if isinstance(v, tirx.Var) and v in self._widest)


def _address(expr: Any) -> tuple[tirx.Var, str] | None:
    """The pointer and element type behind an address expression."""
    name = getattr(getattr(expr, "op", None), "name", "")
    if name == "tirx.address_of" and isinstance(expr.args[0], tirx.BufferLoad):
        buffer = expr.args[0].buffer
        return buffer.data, str(buffer.dtype)
    if name == "tirx.tvm_access_ptr" and isinstance(expr.args[1], tirx.Var):
        return expr.args[1], str(getattr(expr.args[0], "dtype", "uint8"))
    return None


def _bytes_accessed(name: str, call: tirx.Call, dtype: str) -> int:
    """Bytes that an operation accesses at once at an address that it is given."""
    if name in _ACCESS_BYTES:
        return _ACCESS_BYTES[name]
    if name == "tl.ptx_cp_async":
        return _bytes(dtype, int(call.args[2]))
    if name == "tirx.ptx_cp_async":
        return int(call.args[2])
    if name == "tl.__ldg":
        return _bytes(str(call.dtype), 1)
    if name.startswith("tl.atomic_") and name.endswith("_elem_op"):
        return _bytes(dtype, 4 if "x4" in name else 2 if "x2" in name else 1)
    return max(_TMA_ALIGN, _bytes(dtype, 1))


def _lanes(indices: Any) -> int:
    """Lanes of one access; a strided or gathered one is made of scalar accesses."""
    last = indices[-1]
    if not isinstance(last, tirx.Ramp):
        return 1
    return int(last.lanes) if int(last.stride) == 1 else 1


def _bytes(dtype: str, lanes: int) -> int:
    """Alignment of one access: its size, or the largest power of two in it."""
    kind = tvm.DataType(dtype)
    size = max(1, kind.bits * kind.lanes * lanes // 8)
    return int(size & -size)


def params_of(func: tirx.PrimFunc, aligns: Mapping[str, int], written: set[str]) -> tuple[Param, ...]:
    params = []
    for var in func.params:
        if var not in func.buffer_map:
            if str(var.dtype) == "handle":
                raise ValueError(f"parameter {var.name} is a raw pointer; tlaot packages tensors and scalars")
            params.append(Param(name=str(var.name), dtype=str(var.dtype), shape=None))
            continue
        buffer = func.buffer_map[var]
        pointer = str(buffer.data.name)
        params.append(
            Param(
                name=str(buffer.name),
                dtype=str(buffer.dtype),
                shape=tuple(_size(dim) for dim in buffer.shape),
                strides=_strides(buffer),
                align=max(aligns.get(pointer, 1), _element_bytes(buffer.dtype)),
                written=pointer in written,
            )
        )
    return tuple(params)


def _size(dim: Any) -> int | str:
    """A size as a number, a symbol's name, or an expression's text (bound at each call like a symbol)."""
    number = constant(dim)
    if number is not None:
        return number
    return str(dim.name) if isinstance(dim, tirx.Var) else str(dim).replace(" ", "")


def _strides(buffer: tirx.Buffer) -> tuple[int | str, ...] | None:
    if not buffer.strides:
        return None
    analyzer = tvm.arith.Analyzer()
    compact: Any = 1
    for dim, stride in zip(reversed(list(buffer.shape)), reversed(list(buffer.strides)), strict=True):
        if not analyzer.can_prove_equal(stride, compact):
            return tuple(_size(s) for s in buffer.strides)
        compact = compact * dim
    return None


def _element_bytes(dtype: Any) -> int:
    return max(1, int(tvm.DataType(str(dtype)).bits) // 8)


def symbols_of(params: Sequence[Param]) -> list[str]:
    """Symbolic sizes in the order in which a plain entry takes them: of the shapes, then of the strides."""
    sizes = [size for param in params for size in param.shape or ()]
    sizes += [size for param in params for size in param.strides or ()]
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str)))


def constant(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, tirx.IntImm)) else None
