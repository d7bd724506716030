"""Frontend for Apache TVM: CPU through LLVM, CUDA through TVM's own code generator.

Works with apache-tvm 0.25 (parameters are handles with a buffer map) and 0.27 (parameters are buffers).
Imports the installed ``tvm``; never in a process that imports TileLang.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import BuildError
from ...manifest import Param
from ...target import Target
from .arguments import check_arguments
from .lowered import DeviceKernel, Lowered

__all__ = ["lower", "versions"]

_LAUNCH_TAGS = {
    "tirx.use_dyn_shared_memory": "dyn_shared",
    "tirx.use_cooperative_launch": "cooperative",
    "tirx.use_programtic_dependent_launch": "pdl",  # the spelling is TVM's
    "tir.cluster_dim_x": "cluster.x",
    "tir.cluster_dim_y": "cluster.y",
    "tir.cluster_dim_z": "cluster.z",
}

# Vector types of CUDA C++ that a generated access may go through, with their size in bytes.
_VECTOR_ACCESS = re.compile(
    r"\(\s*(?:u?(?:char|short|int|long|longlong)|float|double|half|__half|nv_bfloat16|__nv_bfloat16|__nv_fp8_\w+)"
    r"\s*([248])\s*\*\s*\)|\(\s*(?:ulonglong4|uint[248]|__nv_fp8x[24]_\w+|half2|nv_bfloat162|__half2|__nv_bfloat162)\s*\*\s*\)"
)


def versions() -> dict[str, str]:
    """Name and version of what lowers."""
    return {"name": "tvm", "version": str(tvm.__version__)}


def lower(
    factory: Any,
    shape: Mapping[str, Any],
    config: Mapping[str, Any],
    target: Target,
    pass_configs: Mapping[str, Any] | None = None,
    out_idx: Sequence[int] | None = None,
) -> Lowered:
    """Call the factory and lower the PrimFunc, schedule or module that it returns.

    A value of the shape that is its own key (``{"M": "M"}``) makes that size symbolic: the factory gets an int64 variable of that name.

    Raises:
        TypeError: The factory does not take an argument of the shape or the config, or returns something else.
        Exception: Whatever the factory or TVM raises.
    """
    function = _prim_func(_call_factory(factory, shape, config))
    params = _params(function)
    config_of_passes = {**(pass_configs or {}), **config.get("pass_configs", {})}
    with tvm.transform.PassContext(opt_level=3, config=config_of_passes):
        lowered = _lower_cuda(function, params, target) if target.is_cuda else _lower_llvm(function, params, target)
    return lowered if out_idx is None else _with_out_idx(lowered, out_idx)


def _call_factory(factory: Any, shape: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    tunables = {key: value for key, value in config.items() if key != "pass_configs"}
    check_arguments(shape, tunables, inspect.signature(factory))
    # A value that is its own key stands for a size that is bound at each call.
    opened = {key: tirx.Var(key, "int64") if isinstance(v, str) and v == key else v for key, v in shape.items()}
    return factory(**opened, **tunables)


def _prim_func(made: Any) -> Any:
    """The one PrimFunc in what a factory returned, with a global symbol."""
    module = getattr(made, "mod", made)  # a schedule keeps its module in .mod
    if isinstance(module, tirx.PrimFunc):
        function = module
    elif isinstance(module, tvm.IRModule):
        functions = [function for function in module.functions.values() if isinstance(function, tirx.PrimFunc)]
        if len(functions) != 1:
            raise TypeError(f"the factory must return one PrimFunc, its module has {len(functions)}")
        function = functions[0]
    else:
        raise TypeError(f"the factory must return a PrimFunc, a schedule or a module, got {type(made).__name__}")
    if not (function.attrs and "global_symbol" in function.attrs):
        function = function.with_attr("global_symbol", "main")
    return function


def _buffers(function: Any) -> list[tuple[Any, Any | None]]:
    """Each parameter with its buffer's description: an object with shape, dtype, strides; None for a scalar."""
    if hasattr(function, "buffer_map"):  # 0.25
        return [(param, function.buffer_map.get(param)) for param in function.params]
    return [(param, param.ty if tirx.buffer.is_buffer_var(param) else None) for param in function.params]


def _params(function: Any) -> tuple[Param, ...]:
    written = _written(function)
    params = []
    for index, (var, buffer) in enumerate(_buffers(function)):
        if buffer is None:
            dtype = str(getattr(var, "ty", None) or var.dtype) if not hasattr(var, "dtype") else str(var.dtype)
            params.append(Param(name=str(var.name), dtype=_dtype_text(dtype), shape=None))
            continue
        dtype = _dtype_text(str(buffer.dtype))
        name = str(getattr(buffer, "name", None) or var.name).removesuffix("_handle")
        strides = tuple(_size(stride) for stride in buffer.strides)
        params.append(
            Param(
                name=name,
                dtype=dtype,
                shape=tuple(_size(size) for size in buffer.shape),
                strides=strides or None,
                align=_itemsize(dtype),
                written=index in written,
            )
        )
    return tuple(params)


def _narrow(function: Any, params: Sequence[Param]) -> frozenset[str]:
    """Tensors with a symbolic size or stride that is no int64: TVM computes their elements' offsets in that type.

    Of fixed sizes it refuses those that int32 does not hold.
    """
    return frozenset(
        param.name
        for param, (_, buffer) in zip(params, _buffers(function), strict=True)
        if buffer is not None
        and any(
            isinstance(_size(size), str) and "int64" not in str(getattr(size, "dtype", None) or getattr(size, "ty", ""))
            for size in (*buffer.shape, *buffer.strides)
        )
    )


def _written(function: Any) -> set[int]:
    """Positions of the parameters that the function stores to."""
    stored: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.BufferStore):
            stored.append(node.buffer)
        elif type(node).__name__ in ("SBlock", "Block"):
            # 0.25 names a region's tensor "buffer", 0.27 "source"
            stored.extend(getattr(region, "buffer", None) or region.source for region in node.writes)

    _walk(function, visit)
    buffers = [buffer if hasattr(function, "buffer_map") else var for var, buffer in _buffers(function)]
    found = {
        index
        for index, buffer in enumerate(buffers)
        if buffer is not None and any(buffer.same_as(other) for other in stored)
    }
    if not found:
        raise TypeError("the function writes none of its parameters")
    return found


def _walk(function: Any, visit: Callable[[Any], None]) -> None:
    if hasattr(tirx, "stmt_functor"):
        tirx.stmt_functor.post_order_visit(function.body, visit)
    else:
        # 0.27 walks with the FFI's structural visitor; a None result means "go on".
        tvm_ffi.structural_walk(function.body, (tvm_ffi.Object, lambda node: visit(node)))


def _size(size: Any) -> int | str:
    value = getattr(size, "value", size)
    if isinstance(value, int):
        return int(value)
    name = getattr(size, "name", None)
    # An expression as TileLang's frontend writes it: "m * T.int64(2)" is m*2.
    return str(name) if name is not None else re.sub(r"T\.\w+\((-?\d+)\)", r"\1", str(size)).replace(" ", "")


def _dtype_text(text: str) -> str:
    match = re.fullmatch(r"(?:T\.)?(\w+)", text.strip().strip('"'))
    return match[1] if match else text


def _itemsize(dtype: str) -> int:
    bits = int((re.search(r"(\d+)", dtype) or ["8", "8"])[1]) if dtype != "bool" else 8
    return max(1, bits // 8)


def _relax_alignment(function: Any) -> Any:
    """Assume of every argument no more than its element's alignment.

    TVM's default of 64 bytes makes LLVM use aligned vector moves, which crash on a plain numpy array; unaligned moves cost the
    same on every processor of level v2 or above.
    """
    if hasattr(function, "buffer_map"):
        return _relax_alignment_in_json(function)
    replaced = []
    for var, buffer in _buffers(function):
        if buffer is not None:
            plain = tirx.decl_buffer(
                buffer.shape,
                str(buffer.dtype),
                name=var.name,
                strides=list(buffer.strides),
                elem_offset=buffer.elem_offset,
                data_alignment=_itemsize(_dtype_text(str(buffer.dtype))),
                offset_factor=buffer.offset_factor,
                layout=buffer.layout,
            )
            replaced.append((var, plain))

    def substitute(var: Any) -> Any:
        return next((new for old, new in replaced if var.same_as(old)), var)

    return tvm_ffi.structural_map(function, (tvm.ir.Var, substitute))


def _relax_alignment_in_json(function: Any) -> Any:
    # 0.25 has no rewriting of buffers from Python; its JSON form is complete and documented by the nodes' own names.
    body = json.loads(tvm.ir.save_json(function))
    nodes = body["nodes"]
    for node in nodes:
        if node["type"] == "tirx.PrimFunc":
            buffers = nodes[node["data"]["buffer_map"]]["data"][1::2]
            for index in buffers:
                buffer = nodes[index]["data"]
                dtype = buffer["dtype"]
                text = dtype if isinstance(dtype, str) else str(nodes[dtype]["data"])
                buffer["data_alignment"] = _itemsize(text)
    return tvm.ir.load_json(json.dumps(body))


def _lower_llvm(function: Any, params: tuple[Param, ...], target: Target) -> Lowered:
    options = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": target.arch}
    symbol = str(function.attrs["global_symbol"])
    module = tvm.IRModule({symbol: _relax_alignment(function)})
    built = tirx.build(module, target=tvm.target.Target(options))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.o"
        built.write_to_file(str(path))
        host = path.read_bytes()
    return Lowered(
        entry=f"__tvm_ffi_{symbol}",
        entry_abi="packed",
        params=params,
        host_object=host,
        frontend=versions(),
        narrow=_narrow(function, params),
    )


def _lower_cuda(function: Any, params: tuple[Param, ...], target: Target) -> Lowered:
    build = importlib.import_module("tvm.tirx.build")  # the package's attribute of that name is the function
    full = tvm.target.Target({"kind": "cuda", "arch": target.sm}, host={"kind": "c"})
    symbol = str(function.attrs["global_symbol"])
    module = tirx.transform.BindTarget(full)(tvm.IRModule({symbol: function}))
    pipeline, finalize_host, finalize_device = tirx.get_default_tir_pipeline(full)
    host, devices = build.split_host_device_mods(pipeline(module))
    host = finalize_host()(host)
    if len(devices) != 1:
        raise BuildError(
            f"kernel {symbol}",
            f"lowered to {len(devices)} device modules instead of 1",
            "Bind its loops to blockIdx and threadIdx.",
        )
    ((device_target, device),) = devices.items()
    device = finalize_device()(device)
    source = _cuda_source(build, device, device_target)
    widest = _widest_access(source)
    kernels = tuple(_device_kernel(kernel, widest) for kernel in device.functions.values())
    host_source = build.codegen_build(host, tvm.target.Target({"kind": "c"})).inspect_source()
    aligned = tuple(_aligned(param, widest) for param in params)
    return Lowered(
        entry=f"__tvm_ffi_{symbol}",
        entry_abi="packed",
        params=aligned,
        host_source=host_source,
        device_source=source,
        device_flags=("-std=c++17",),
        kernels=kernels,
        frontend=versions(),
        narrow=_narrow(function, params),
    )


def _aligned(param: Param, widest: int) -> Param:
    if param.shape is None:
        return param
    return Param(param.name, param.dtype, param.shape, param.strides, max(param.align, widest), param.written)


def _cuda_source(build: Any, device: Any, target: Any) -> str:
    # TVM calls its own CUDA compiler while it builds the module; the source is all that is wanted here.
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", lambda code, *_: bytearray(b"\0"), override=True)
    source: str = build.codegen_build(device, target).inspect_source()
    return source


def _device_kernel(function: Any, widest: int) -> DeviceKernel:
    args, aligns = [], []
    for var in function.params:
        text = str(getattr(var, "ty", None) or getattr(var, "type_annotation", None) or var.dtype)
        if "grid_constant" in text:
            args.append("tensormap")
            aligns.append(0)
        elif "handle" in text or "PointerType" in text:
            args.append("ptr")
            aligns.append(widest)
        else:
            args.append(_dtype_text(text))
            aligns.append(0)
    tags = [str(tag) for tag in function.attrs["tirx.kernel_launch_params"]]
    return DeviceKernel(
        name=str(function.attrs["global_symbol"]),
        args=tuple(args),
        aligns=tuple(aligns),
        launch=tuple(_LAUNCH_TAGS.get(tag, tag) for tag in tags),
        dyn_shared=_dynamic_shared(function),
        threads=_threads(function),
    )


def _threads(function: Any) -> int | None:
    """Threads of a block; None where they depend on a size."""
    extents: dict[str, int | str] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tirx.AttrStmt) and node.attr_key == "thread_extent":
            tag = str(node.node.thread_tag)
            if tag.startswith("threadIdx."):
                extents[tag] = _size(node.value)

    _walk(function, visit)
    sizes = [extent for extent in extents.values() if isinstance(extent, int)]
    return math.prod(sizes) if len(sizes) == len(extents) else None


def _dynamic_shared(function: Any) -> int | None:
    """Bytes of dynamic shared memory; None where they depend on a size."""
    found: list[int | None] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.AllocBuffer) and node.buffer.scope() == "shared.dyn":
            found.append(_bytes(node.buffer.shape, str(node.buffer.dtype)))

    _walk(function, visit)
    return None if None in found else sum(size for size in found if size is not None)


def _bytes(shape: Sequence[Any], dtype: str) -> int | None:
    sizes = [size for size in map(_size, shape) if isinstance(size, int)]
    return math.prod(sizes) * _itemsize(_dtype_text(dtype)) if len(sizes) == len(shape) else None


def _widest_access(source: str) -> int:
    """Alignment in bytes that any vector access of the source can need: 16 where there is one, 1 otherwise."""
    kernels = source[source.find('extern "C" __global__') :] if "__global__" in source else source
    return 16 if _VECTOR_ACCESS.search(kernels) else 1


def _with_out_idx(lowered: Lowered, out_idx: Sequence[int]) -> Lowered:
    count = len(lowered.params)
    positions = []
    for index in out_idx:
        if not -count <= index < count:
            raise TypeError(f"out_idx {index} is outside the kernel's {count} parameters")
        positions.append(index % count)
    fields = {name: getattr(lowered, name) for name in lowered.__dataclass_fields__}
    return Lowered(**{**fields, "out_idx": tuple(positions)})
