"""The generated ``plan.c`` of an ``executable.so``: a kernel's signature and launch plans as C tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...errors import BuildError
from ...manifest import Param
from ...target import Target
from ..frontends.lowered import DeviceKernel, Lowered

__all__ = ["plan_source"]

# DLPack type codes (dlpack.h, DLDataTypeCode) of names that spell out their width.
_NARROW_FLOATS = {
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
    "float6_e2m3fn": (15, 6),
    "float6_e3m2fn": (16, 6),
    "float4_e2m1fn": (17, 4),
}
_DTYPE_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5}
_LAUNCH_CODES = {
    f"{group}.{axis}": base + i
    for group, base in (("blockIdx", 0), ("threadIdx", 3), ("cluster", 6))
    for i, axis in enumerate("xyz")
} | {"dyn_shared": 9}
_FLAGS = ("cooperative", "pdl")
_INTEGERS = {f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"bool": 1}
_C_TYPES = {
    **{name: f"{name}_t" for name in _INTEGERS if name != "bool"},
    "bool": "bool",
    "float32": "float",
    "float64": "double",
}
_LOOKUP = re.compile(r'(?:TVMBackendGetFuncFromEnv|TVMFFIEnvModLookupFromImports)\([^,;]*,\s*"([^"]+)"')
_PROVIDED = {
    "__tvm_set_device",
    "__tvm_tensormap_create_tiled",
    "__tvm_tensormap_create_im2col",
    "__tvm_cuda_stream_set_access_policy_window",
    "__tvm_cuda_stream_reset_access_policy_window",
}


def plan_source(lowered: Lowered, target: Target, kernel_name: str) -> str:
    """C source of the tables that entry.c and cuda.c read, and of the call into the host code.

    Raises:
        BuildError: The kernel needs something that the native part does not have.
    """
    _check_lookups(lowered, target, kernel_name)
    _check_alignments(lowered, kernel_name)
    symbols = _symbols(lowered.params)
    parts = ['#include "tlaot.h"', ""]
    parts += _tables(lowered, symbols, kernel_name)
    names = ", ".join(map(_quote, symbols)) or "0"
    parts.append(f"static const char *const tlaot_symbols[] = {{{names}}};")
    dims = sum(len(param.shape) for param in lowered.params if param.shape)
    rank = 0 if target.is_cuda else target.cpu_rank
    parts.append(
        f"const tlaot_plan tlaot_the_plan = {{{_quote(kernel_name)}, {_quote(str(target))}, tlaot_params, tlaot_symbols, "
        f"{len(lowered.params)}, {len(symbols)}, {dims}, {target.device_type}, {rank}}};"
    )
    parts += _host_call(lowered, symbols, kernel_name)
    if target.is_cuda:
        parts += _kernels(lowered.kernels, kernel_name)
    return "\n".join(parts) + "\n"


def _quote(text: str) -> str:
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _symbols(params: Sequence[Param]) -> list[str]:
    """Symbolic sizes in order of first use, then symbolic strides."""
    found: dict[str, None] = {}
    for field in ("shape", "strides"):
        for param in params:
            extents: Iterable[int | str] = getattr(param, field) or ()
            found.update((e, None) for e in extents if isinstance(e, str))
    return list(found)


def _dtype(name: str, kernel_name: str) -> tuple[int, int, int]:
    base, _, lanes = name.partition("x") if re.fullmatch(r".*\dx\d+|.*fnx\d+", name) else (name, "", "")
    if base == "bool":
        return 6, 8, int(lanes or 1)
    if base in _NARROW_FLOATS:
        return (*_NARROW_FLOATS[base], int(lanes or 1))
    match = re.fullmatch(r"(int|uint|float|bfloat|complex)(\d+)", base)
    if match is None:
        raise BuildError(kernel_name, f"unknown dtype {name!r}", "Report it: this is a gap in tlaot.")
    return _DTYPE_CODES[match[1]], int(match[2]), int(lanes or 1)


def _extents(values: Sequence[int | str], symbols: list[str]) -> str:
    cells = [f"{{0, {symbols.index(v)}}}" if isinstance(v, str) else f"{{INT64_C({v}), -1}}" for v in values]
    return ", ".join(cells) or "{0, -1}"


def _tables(lowered: Lowered, symbols: list[str], kernel_name: str) -> list[str]:
    lines, rows = [], []
    for i, param in enumerate(lowered.params):
        code, bits, lanes = _dtype(param.dtype, kernel_name)
        shape = strides = "0"
        if param.shape is not None:
            shape = f"shape_{i}"
            lines.append(f"static const tlaot_extent {shape}[] = {{{_extents(param.shape, symbols)}}};")
        if param.strides is not None:
            strides = f"strides_{i}"
            lines.append(f"static const tlaot_extent {strides}[] = {{{_extents(param.strides, symbols)}}};")
        ndim = -1 if param.shape is None else len(param.shape)
        rows.append(
            f"  {{{_quote(param.name)}, {shape}, {strides}, {max(param.align, 1)}, {ndim}, {lanes}, {code}, {bits}, "
            f"{int(param.written)}, {int(param.name in lowered.narrow)}, {int(param.optional)}}},"
        )
    return [*lines, "static const tlaot_param tlaot_params[] = {", *rows, "  {0},", "};"]


def _host_call(lowered: Lowered, symbols: list[str], kernel_name: str) -> list[str]:
    head = "int32_t tlaot_host(TVMFFIAny *args, const int64_t *sizes) {"
    entry = lowered.entry
    if not re.fullmatch(r"[A-Za-z_]\w*", entry):
        raise BuildError(kernel_name, f"the host function's name is not a C identifier, got {entry!r}")
    if lowered.entry_abi == "packed":
        return [
            f"int32_t {entry}(void *self, void *args, int32_t num_args, void *result);",
            head,
            "  TVMFFIAny result = {.type_index = kTVMFFINone};",
            "  (void)sizes;",
            f"  return {entry}(NULL, args, {len(lowered.params)}, &result);",
            "}",
        ]
    if lowered.entry_abi != "plain":
        raise BuildError(kernel_name, f"unknown entry_abi {lowered.entry_abi!r}", "Known: packed, plain.")
    types, values = [], []
    for i, param in enumerate(lowered.params):
        if param.shape is not None:
            types.append("void *")
            values.append(f"((DLTensor *)args[{i}].v_ptr)->data")
        elif param.dtype in _C_TYPES:
            types.append(_C_TYPES[param.dtype])
            values.append(f"number_{i}")
        else:
            raise BuildError(
                kernel_name,
                f"a CPU kernel cannot take a scalar of type {param.dtype} (parameter {param.name})",
                "Take it as float32.",
            )
    types += ["int32_t"] * len(symbols)
    values += [f"(int32_t)sizes[{i}]" for i in range(len(symbols))]
    numbers = [
        f"  {_C_TYPES[p.dtype]} number_{i} = args[{i}].type_index == kTVMFFIFloat ? "
        f"({_C_TYPES[p.dtype]})args[{i}].v_float64 : ({_C_TYPES[p.dtype]})args[{i}].v_int64;"
        for i, p in enumerate(lowered.params)
        if p.shape is None
    ]
    call = f"  {entry}({', '.join(values)});"
    unused = "  (void)sizes, (void)args;"
    return [f"void {entry}({', '.join(types) or 'void'});", head, unused, *numbers, call, "  return 0;", "}"]


def _kernels(kernels: Sequence[DeviceKernel], kernel_name: str) -> list[str]:
    lines, rows = [], []
    for i, kernel in enumerate(kernels):
        if len(kernel.aligns) != len(kernel.args):
            raise BuildError(
                kernel_name, f"{kernel.name}: {len(kernel.args)} arguments, {len(kernel.aligns)} alignments"
            )
        args = [_arg(code, align, kernel, kernel_name) for code, align in zip(kernel.args, kernel.aligns, strict=True)]
        values = [entry for entry in kernel.launch if entry not in _FLAGS]
        unknown = [entry for entry in values if entry not in _LAUNCH_CODES]
        if unknown:
            raise BuildError(kernel_name, f"{kernel.name}: unknown launch parameter {unknown[0]!r}")
        codes = ", ".join(str(_LAUNCH_CODES[entry]) for entry in values) or "0"
        lines.append(f"static const tlaot_arg args_{i}[] = {{{', '.join(args) or '{0}'}}};")
        lines.append(f"static const uint8_t launch_{i}[] = {{{codes}}};")
        rows.append(
            f"  {{{{tlaot_launch}}, {_quote(kernel.name)}, args_{i}, launch_{i}, {len(args)}, {len(values)}, "
            f"{int('cooperative' in kernel.launch)}, {int('pdl' in kernel.launch)}, "
            f"{-1 if kernel.dyn_shared is None else kernel.dyn_shared}}},"
        )
    lines += ["const tlaot_device_kernel tlaot_kernels[] = {", *rows, "  {{0}},", "};"]
    lines.append(f"const int32_t tlaot_num_kernels = {len(kernels)};")
    lines.append(f"tlaot_kernel_state tlaot_kernel_states[{max(len(kernels), 1)}];")
    return lines


def _arg(code: str, align: int, kernel: DeviceKernel, kernel_name: str) -> str:
    if code == "ptr":
        return f"{{TLAOT_ARG_PTR, 8, {align}}}"
    if code == "tensormap":
        return "{TLAOT_ARG_TENSORMAP, 128, 0}"
    if code in _INTEGERS:
        return f"{{TLAOT_ARG_INT, {_INTEGERS[code]}, 0}}"
    if code in ("float16", "float32", "float64"):
        return f"{{TLAOT_ARG_FLOAT, {int(code[5:]) // 8}, 0}}"
    if code == "bfloat16":
        return "{TLAOT_ARG_BFLOAT16, 2, 0}"
    raise BuildError(
        kernel_name, f"{kernel.name}: a device function cannot take a scalar of type {code!r}", "Take it as float32."
    )


def _check_lookups(lowered: Lowered, target: Target, kernel_name: str) -> None:
    """Host code that asks for a function that is not there would fail at its first call; say so now."""
    provided = _PROVIDED | {k.name for k in lowered.kernels} if target.is_cuda else set()
    for name in _LOOKUP.findall(lowered.host_source or ""):
        if name not in provided:
            raise BuildError(
                kernel_name,
                f"the host code calls the function {name!r} of its compiler's runtime, which is not packaged",
                "Write the kernel without it.",
            )


def _check_alignments(lowered: Lowered, kernel_name: str) -> None:
    aligns = [param.align for param in lowered.params] + [a for kernel in lowered.kernels for a in kernel.aligns]
    for align in aligns:
        if align & (align - 1) or not 0 <= align <= 4096:
            raise BuildError(kernel_name, f"an alignment must be a power of two up to 4096, got {align}")
