"""The TileLang frontend: a factory and one config become host C, CUDA C++ and a launch plan.

Lowering needs neither a GPU nor nvcc. It uses TileLang's own pipeline (``create_backend_context``,
``lower_to_host_device_ir``), which is internal to TileLang: the tested releases are those that the extra
``tilelang`` of this project admits. Everything about a launch is read from the lowered IR, never from source text.

This module imports tilelang (and torch with it): only a worker process imports it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilelang import tvm
from tilelang.backend.module import BackendContext, create_backend_context
from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH
from tilelang.transform import PassConfigKey
from tvm import tirx

from ...manifest import Param
from ...target import Target
from . import tilelang_factory as factories
from . import tilelang_usage as usage
from .lowered import DeviceKernel, Lowered

__all__ = ["lower", "versions"]

# TileLang's packages export functions under these modules' names, so a plain import gives the functions.
_lowering = importlib.import_module("tilelang.engine.lower")
_jit = importlib.import_module("tilelang.jit")

# Pass options that only steer the device compiler; the keys are TileLang's.
_FAST_MATH = PassConfigKey.TL_ENABLE_FAST_MATH.value
_REGISTER_LEVEL = PassConfigKey.TL_PTXAS_REGISTER_USAGE_LEVEL.value
_DEVICE_FLAGS = PassConfigKey.TL_DEVICE_COMPILE_FLAGS.value

# Reserved key of a config: pass options of this candidate alone (as in tilelang.autotune).
_CONFIG_PASS_CONFIGS = "pass_configs"

_LAUNCH_NAMES = {
    "tir.cluster_dim_x": "cluster.x",
    "tir.cluster_dim_y": "cluster.y",
    "tir.cluster_dim_z": "cluster.z",
    "tirx.use_dyn_shared_memory": "dyn_shared",
}


def lower(
    factory: Callable[..., Any],
    shape: Mapping[str, Any],
    config: Mapping[str, Any],
    target: Target,
    pass_configs: Mapping[str, Any] | None = None,
    out_idx: Sequence[int] | None = None,
) -> Lowered:
    """Elaborate a factory and lower the kernel for one target.

    Args:
        factory: Returns a PrimFunc (or a ``@tilelang.jit`` function), or is ``@tilelang.jit``-decorated itself,
            with or without ``@tilelang.autotune``, or a ``functools.partial`` of one of those; the target that a
            decorator names is overridden.
        shape: Arguments that make the workload. A value that is its own key (``{"M": "M"}``) makes that size
            symbolic, bound at each call.
        config: Tunables. The reserved key ``pass_configs`` holds compiler options of this candidate alone.
        target: ``cuda:sm_XX`` or ``c:LEVEL``.
        pass_configs: Compiler options; they win over the decorator's.
        out_idx: Outputs that the caller may leave out; None takes the decorator's.

    Raises:
        TypeError: The arguments do not fit the factory, or it returned something else than a kernel.
        ValueError: The kernel uses something that cannot be packaged.
        Exception: Whatever the factory or TileLang's lowering raises.
    """
    factory, shape = factories.unwrap(factory, shape, config)
    config = dict(config)
    own_pass_configs = config.pop(_CONFIG_PASS_CONFIGS, None) or {}
    context = _backend_context(target)
    with context.target:
        made = factories.elaborate(factory, factories.merge_arguments(factory, shape, config))
    options = {
        **made.pass_configs,
        **factories.plain_keys(pass_configs or {}),
        **factories.plain_keys(own_pass_configs),
    }
    func, outputs = factories.settle_outputs(made, out_idx)
    if target.is_cuda:
        lowered = _lower_cuda(func, context, options, made.compile_flags)
    else:
        lowered = _lower_cpu(func, context, options, made.compile_flags)
    return Lowered(**{**lowered, "out_idx": outputs, "frontend": versions()})


def versions() -> dict[str, str]:
    """Name and version of what lowers, and of the compiler packages that it stands on."""
    ours = {"name": "tilelang", "version": _version("tilelang")}
    return ours | {name: text for name in ("apache-tvm", "apache-tvm-ffi") if (text := _version(name))}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _backend_context(target: Target) -> BackendContext:
    if target.is_cuda:
        return create_backend_context({"kind": "cuda", "arch": target.sm}, None, "tvm_ffi")
    if target.kind == "c":
        return create_backend_context({"kind": "c"}, None, "cython")
    raise ValueError(f"the tilelang frontend compiles for cuda and c targets, got {target}")


# ----------------------------------------------------------------------------------------------------- CUDA


def _lower_cuda(
    func: tirx.PrimFunc, context: BackendContext, options: Mapping[str, Any], compile_flags: tuple[str, ...]
) -> dict[str, Any]:
    with tvm.transform.PassContext(opt_level=3, config=dict(options)), context.target:
        host_ir, device_ir, *_ = _lowering.lower_to_host_device_ir(func, context)
        # What the code generator sees: accesses are vectorized and intrinsics lowered there.
        final_ir = _lowering._prepare_device_codegen_mod(device_ir)
        device_source = context.codegen_device(final_ir, compile_device=False).inspect_source()
        host_source = _lowering.host_codegen(host_ir, context).inspect_source()
    if "TVMBackendAllocWorkspace" in host_source:
        raise ValueError(
            "the kernel allocates global memory (T.alloc_global); take the workspace as a tensor parameter"
        )
    functions = {_symbol(f): f for f in final_ir.functions.values()}
    if not functions:
        raise ValueError("the kernel launches nothing on the device: it has no T.Kernel")
    usages = {name: usage.read(f) for name, f in functions.items()}
    kernels = tuple(_launch_plan(name, f, usages[name]) for name, f in sorted(functions.items()))
    calls = _host_calls(host_ir, {k.name: k for k in kernels})
    aligns, written, narrow = _facts_of_tensors(func, calls, usages)
    params = _optional(func, calls, usage.params_of(func, aligns, written))
    return {
        "entry": _entry_symbol(host_ir),
        "entry_abi": "packed",
        "params": params,
        "narrow": _symbolic_of(func, params, narrow),
        "host_source": host_source,
        "device_source": device_source,
        "device_flags": _device_flags(options, compile_flags),
        "kernels": kernels,
    }


def _symbol(func: tirx.PrimFunc) -> str:
    return str(func.attrs["global_symbol"])


def _entry_symbol(host_ir: tvm.IRModule) -> str:
    entries = [_symbol(f) for f in host_ir.functions.values() if (f.attrs or {}).get("tirx.is_entry_func")]
    if len(entries) != 1:
        raise ValueError(f"expected one host entry, got {entries}")
    return entries[0]


def _launch_plan(name: str, func: tirx.PrimFunc, used: usage.Usage) -> DeviceKernel:
    attrs = func.attrs
    launch = [_LAUNCH_NAMES.get(str(tag), str(tag)) for tag in attrs["tirx.kernel_launch_params"]]
    # These two follow from what the kernel does, and have no value in the host's call.
    if attrs.get("use_cooperative_groups"):
        launch.append("cooperative")
    if attrs.get("has_cuda_pdl_sync"):
        launch.append("pdl")
    extents = {str(tag): extent for tag, extent in attrs["thread_extent"].items()}
    threads = [usage.constant(extent) for tag, extent in extents.items() if tag.startswith("threadIdx.")]
    return DeviceKernel(
        name=name,
        args=tuple(_argument_kind(name, var) for var in func.params),
        aligns=used.aligns,
        launch=tuple(launch),
        dyn_shared=usage.constant(attrs["dyn_shared_memory_buf"]) if "dyn_shared_memory_buf" in attrs else 0,
        threads=math.prod(t for t in threads if t is not None) if None not in threads else None,
    )


def _argument_kind(kernel: str, var: tirx.Var) -> str:
    if usage.is_tensormap(var):
        return "tensormap"
    if str(var.dtype) != "handle":
        return str(var.dtype)
    if usage.pointee(var) is None:
        raise ValueError(f"{kernel}: argument {var.name} is an untyped handle, not a tensor, a tensor map or a scalar")
    return "ptr"


@dataclass(frozen=True)
class _Call:
    """One launch in the host code: for each device argument, the kernel's tensor behind it ("" for none)."""

    kernel: str
    tensors: tuple[str, ...]


def _host_calls(host_ir: tvm.IRModule, kernels: Mapping[str, DeviceKernel]) -> list[_Call]:
    """Find every launch in the host's IR, and which tensor each device argument comes from."""
    packed: list[tuple[str, list[Any]]] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Call) and node.op.name == "tirx.tvm_call_packed":
            packed.append((str(node.args[0].value), list(node.args[1:])))

    for func in host_ir.functions.values():
        tirx.stmt_functor.post_order_visit(func.body, visit)
    bases = {args[0]: _only_var(args[3]) for name, args in packed if name.startswith("__tvm_tensormap_create")}
    calls = []
    for name, args in packed:
        if name not in kernels:
            continue
        plan = kernels[name]
        valued = [entry for entry in plan.launch if entry not in ("cooperative", "pdl")]
        if len(args) != len(plan.args) + len(valued):
            raise ValueError(
                f"{name}: the host passes {len(args)} values, the launch plan has {len(plan.args)} arguments "
                f"and {len(valued)} launch parameters"
            )
        sources = [bases[a] if kind == "tensormap" else _only_var(a) for kind, a in zip(plan.args, args, strict=False)]
        calls.append(_Call(name, tuple(sources)))
    missing = kernels.keys() - {call.kernel for call in calls}
    if missing:
        raise ValueError(f"the host never launches {', '.join(sorted(missing))}")
    return calls


def _only_var(expr: Any) -> str:
    """Name of the one handle in a host expression, "" where it is a scalar."""
    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Var) and str(node.dtype) == "handle":
            found.append(str(node.name))

    tirx.stmt_functor.post_order_visit(tirx.Evaluate(expr), visit)
    if len(set(found)) > 1:
        raise ValueError(f"a device argument depends on more than one pointer: {', '.join(found)}")
    return found[0] if found else ""


def _facts_of_tensors(
    func: tirx.PrimFunc, calls: Sequence[_Call], usages: Mapping[str, usage.Usage]
) -> tuple[dict[str, int], set[str], set[str]]:
    """Of tensors by the names of their pointers: the alignment that the code assumes, those written, those addressed in 32 bits."""
    aligns: dict[str, int] = {}
    written: set[str] = set()
    narrow: set[str] = set()
    for call in calls:
        used = usages[call.kernel]
        for position, tensor in enumerate(call.tensors):
            if tensor:
                aligns[tensor] = max(aligns.get(tensor, 1), used.address_aligns[position])
                if used.written[position]:
                    written.add(tensor)
                if used.narrow[position]:
                    narrow.add(tensor)
    return aligns, written, narrow


def _optional(func: tirx.PrimFunc, calls: Sequence[_Call], params: Sequence[Param]) -> tuple[Param, ...]:
    """The parameters, with those marked that reach no kernel: TileLang's host code takes None for them."""
    used = {tensor for call in calls for tensor in call.tensors}
    return tuple(
        replace(param, optional=True)
        if var in func.buffer_map and str(func.buffer_map[var].data.name) not in used
        else param
        for var, param in zip(func.params, params, strict=True)
    )


def _symbolic_of(func: tirx.PrimFunc, params: Sequence[Param], pointers: set[str]) -> frozenset[str]:
    """Of tensors by the names of their pointers, the names of those that have symbolic sizes or strides.

    Of fixed sizes TileLang itself computes offsets in as many bits as they need.
    """
    return frozenset(
        param.name
        for var, param in zip(func.params, params, strict=True)
        if var in func.buffer_map
        and str(func.buffer_map[var].data.name) in pointers
        and any(isinstance(size, str) for size in (*(param.shape or ()), *(param.strides or ())))
    )


def _device_flags(options: Mapping[str, Any], compile_flags: tuple[str, ...]) -> tuple[str, ...]:
    """nvcc's options, as TileLang's own CUDA backend passes them."""
    flags = ["-std=c++20", f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}"]
    extra = options.get(_DEVICE_FLAGS) or ()
    for flag in [extra] if isinstance(extra, str) else extra:
        flags += shlex.split(str(flag))
    flags += compile_flags
    if options.get(_FAST_MATH):
        flags.append("--use_fast_math")
    if options.get(_REGISTER_LEVEL) is not None:
        flags.append(f"--ptxas-options=--register-usage-level={int(options[_REGISTER_LEVEL])}")
    return tuple(flags)


# ------------------------------------------------------------------------------------------------------ CPU

# C types of the scalars that a CPU kernel may take.
_C_SCALARS = {
    "bool": "bool",
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

# The generated function takes pointers, scalars and sizes in an order of its own, and typed; the entry
# has the kernel's order.
_ENTRY_SOURCE = """
struct tlaot_pointer {{
  void *address;
  template <typename T> operator T *() const {{ return static_cast<T *>(address); }}
}};

extern "C" void {entry}({declared}) {{
{unused}  {kernel}({passed});
}}
"""

# The generated code reads arrays through vector types, and TileLang's header for it has a throw that nothing reaches.
_CPU_FLAGS = ("-std=c++17", "-fno-strict-aliasing", "-fexceptions")


def _lower_cpu(
    func: tirx.PrimFunc, context: BackendContext, options: Mapping[str, Any], compile_flags: tuple[str, ...]
) -> dict[str, Any]:
    with tvm.transform.PassContext(opt_level=3, config=dict(options)), context.target:
        try:
            _, device_ir, *_ = _lowering.lower_to_host_device_ir(func, context)
            source = _lowering.device_codegen_without_compile(device_ir, context).inspect_source()
        except Exception as error:
            if re.search(r'scope="(?:local\.fragment|shared)', func.script()):
                said = str(error).strip().partition("\n")[0]
                raise ValueError(
                    "a processor has no fragments and no shared memory: use T.alloc_local in place of T.alloc_fragment and "
                    f"T.alloc_shared, T.grid in place of T.Parallel (TileLang: {said})"
                ) from error
            raise
    functions = list(device_ir.functions.values())
    if len(functions) != 1:
        raise ValueError(f"the c target packages kernels of one generated function, got {len(functions)}")
    device = functions[0]
    readonly = {int(i) for i in device.attrs.get("tl.readonly_param_indices", ())}
    written = {str(v.name) for i, v in enumerate(device.params) if str(v.dtype) == "handle" and i not in readonly}
    params = usage.params_of(func, {}, written)
    used = usage.read(device)
    narrow = {str(var.name) for var, is_narrow in zip(device.params, used.narrow, strict=True) if is_narrow}
    for param in params:
        for size in (*(param.shape or ()), *(param.strides or ())):
            if isinstance(size, str) and not size.isidentifier():
                # CUDA's host code compares such a size at each call; the code for the CPU would write past the tensor's end.
                raise ValueError(
                    f"{param.name} has the size {size}, computed from others, which nothing checks at a call of a c target; "
                    "fix the sizes in the shape, or give that one a name of its own (T.dynamic)"
                )
    kernel = _symbol(device)
    entry = f"{kernel}_tlaot"
    return {
        "entry": entry,
        "entry_abi": "plain",
        "params": params,
        "narrow": _symbolic_of(func, params, narrow),
        "host_source": source + _cpu_entry(func, device, params, entry),
        "host_flags": (*_CPU_FLAGS, f"-I{TILELANG_TEMPLATE_PATH}", *compile_flags),
    }


def _cpu_entry(func: tirx.PrimFunc, device: tirx.PrimFunc, params: Sequence[Param], entry: str) -> str:
    declared: list[str] = []
    arguments: dict[str, str] = {}
    for position, (var, param) in enumerate(zip(func.params, params, strict=True)):
        name = f"p{position}"
        if var in func.buffer_map:
            declared.append(f"void *{name}")
            arguments[str(func.buffer_map[var].data.name)] = f"tlaot_pointer{{{name}}}"
        elif param.dtype in _C_SCALARS:
            declared.append(f"{_C_SCALARS[param.dtype]} {name}")
            arguments[str(var.name)] = name
        else:
            raise ValueError(f"scalar {param.name} is {param.dtype}; the c target takes {', '.join(_C_SCALARS)}")
    for position, symbol in enumerate(usage.symbols_of(params)):
        declared.append(f"int32_t s{position}")
        arguments.setdefault(symbol, f"s{position}")
    passed = [arguments[str(var.name)] for var in device.params]
    unused = [f"  (void){d.split()[-1].lstrip('*')};\n" for d in declared]
    return _ENTRY_SOURCE.format(
        entry=entry,
        kernel=_symbol(device),
        declared=", ".join(declared),
        passed=", ".join(passed),
        unused="".join(unused),
    )
