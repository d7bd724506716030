"""Read ``tltune.toml``: which kernels to tune, over which shapes, for which targets.

The file's keys are described in the commented reference at the root of tlaot's repository. A key may be
written with ``-`` or ``_``. Callables are named ``"module:function"`` and are resolved later, in the worker
process that may import the author's code.
"""

from __future__ import annotations

import itertools
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..target import Target, parse_target
from .supply import SUPPLY_TYPES
from .tables import (
    callable_name,
    checked_callable,
    fold,
    nearest,
    number,
    optional,
    refuse_unknown,
    required,
    required_callable,
    table_of,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FRONTEND_TARGETS", "KernelSpec", "Profile", "Spec", "find_spec", "multiply_out", "read_spec"]

SPEC_NAME = "tltune.toml"

# Target kinds that each frontend can lower to.
FRONTEND_TARGETS = {"tvm": ("llvm", "cuda"), "tilelang": ("cuda", "c")}

_NAME = re.compile(r"[A-Za-z_]\w*")
_SCALARS = (bool, int, float, str)


@dataclass(frozen=True)
class Profile:
    """How a candidate is timed.

    Attributes:
        warmup: Time in ms spent calling the kernel before the first sample.
        rep: Time in ms over which samples are taken.
        timeout: Seconds after which a candidate that is being measured is killed.
        compile_timeout: Seconds after which a candidate that is being compiled is killed.
        backend: ``"wall"`` (CPU), ``"cudagraph"``, ``"event"`` or ``"cupti"`` (CUDA), or ``"auto"``.
    """

    warmup: float = 25.0
    rep: float = 100.0
    timeout: float = 60.0
    compile_timeout: float = 300.0
    backend: str = "auto"


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


@dataclass(frozen=True)
class Spec:
    """A whole ``tltune.toml``.

    Attributes:
        path: The file.
        package: Import name of the package that embeds the kernels.
        kernels: The ``[[kernel]]`` tables in order.
        devices: Overrides of the device table by target, from ``[target."cuda:sm_90a"]``.
        when_available: Targets that are skipped, with a line in the log, where this machine cannot build them.
    """

    path: Path
    package: str
    kernels: tuple[KernelSpec, ...]
    devices: Mapping[str, Mapping[str, Any]]
    when_available: tuple[Target, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """All targets of all kernels, as text, in order of appearance."""
        return tuple(dict.fromkeys(str(target) for kernel in self.kernels for target in kernel.targets))


def find_spec(project: Path) -> Path | None:
    """The spec of the project in a folder: ``tltune.toml``, or the file that ``[tool.tlaot] spec`` names.

    Raises:
        SpecError: ``pyproject.toml`` names a file that is not there.
    """
    pyproject = project / "pyproject.toml"
    if pyproject.is_file():
        try:
            tool = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("tool", {}).get("tlaot")
        except ValueError:
            tool = None  # setuptools reports a malformed pyproject.toml itself
        if tool is not None:
            refuse_unknown(tool, ("spec",), f"{pyproject.name} [tool.tlaot]")
            path = project.joinpath(str(tool.get("spec", SPEC_NAME)))
            if not path.is_file():
                raise SpecError(
                    f"{pyproject.name} [tool.tlaot]", f"there is no file {path.name}", "Write it, or remove the table."
                )
            return path
    path = project / SPEC_NAME
    return path if path.is_file() else None


def read_spec(path: Path) -> Spec:
    """Read and validate a ``tltune.toml``.

    Raises:
        SpecError: The file cannot be read or parsed, or a key or value is wrong; the message names file, key
            and kernel.
    """
    where = path.name
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(where, f"cannot be read ({error.strerror})", "Name an existing file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(
            where, f"is not valid TOML: {error}", "Correct the file at the place that the message names."
        ) from None
    refuse_unknown(body, ("tlaot", "target", "kernel"), where)
    head = fold(table_of(body, "tlaot", where), ("package", "targets", "when_available"), f"{where} [tlaot]")
    package = required(head, "package", str, f"{where} [tlaot]")
    if not all(_NAME.fullmatch(part) for part in package.split(".")):
        raise SpecError(
            f"{where} [tlaot] package",
            f"is not an import name, got {package!r}",
            'Write for instance package = "my_package".',
        )
    defaults = _targets(head.get("targets", ()), f"{where} [tlaot] targets")
    optional = _targets(head.get("when_available", ()), f"{where} [tlaot] when-available")
    tables = body.get("kernel", [])
    if not isinstance(tables, list) or not tables:
        raise SpecError(where, "declares no kernel", "Add a [[kernel]] table (two pairs of brackets).")
    kernels = tuple(_read_kernel(table, index, defaults, where) for index, table in enumerate(tables))
    _refuse_overlap(kernels)
    devices = _read_devices(table_of(body, "target", where), where)
    spec = Spec(path, package, kernels, devices, optional)
    for place, target in [(f'[target."{t}"]', t) for t in devices] + [
        ("[tlaot] when-available", str(t)) for t in optional
    ]:
        if target not in spec.targets:
            raise SpecError(
                f"{where} {place}", f"no kernel is built for {target}", f"Targets in use: {', '.join(spec.targets)}."
            )
    return spec


def multiply_out(table: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """All combinations of a table whose values may be lists: ``{M = [1, 2], N = 3}`` gives two dicts.

    The first key varies slowest, so that the first combination is made of every list's first value.
    """
    choices = [value if isinstance(value, list) else [value] for value in table.values()]
    return tuple(dict(zip(table, values, strict=True)) for values in itertools.product(*choices))


_KERNEL_KEYS = (
    "name", "frontend", "factory", "targets", "shapes", "configs", "space", "inputs", "reference", "check", "out_idx",
    "rtol", "atol", "max_mismatched_ratio", "pass_configs", "profile", "supply", "manual_check", "deterministic",
)  # fmt: skip


def _read_kernel(table: Any, index: int, defaults: tuple[Target, ...], file: str) -> KernelSpec:
    where = f"{file} [[kernel]] #{index + 1}"
    if not isinstance(table, dict):
        raise SpecError(where, f"is not a table, got {table!r}", "Write [[kernel]] on a line of its own.")
    if isinstance(table.get("name"), str):
        where += f" ({table['name']})"
    keys = fold(table, _KERNEL_KEYS, where)
    name = required(keys, "name", str, where)
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name.startswith("_"):
        raise SpecError(
            f"{where} name", f"is not a public Python name, got {name!r}", "Users call it as kernels.<name>(...)."
        )
    frontend = required(keys, "frontend", str, where)
    if frontend not in FRONTEND_TARGETS:
        raise SpecError(
            f"{where} frontend",
            f"unknown frontend {frontend!r}{nearest(frontend, FRONTEND_TARGETS)}",
            f"Known: {', '.join(FRONTEND_TARGETS)}.",
        )
    check = optional(keys, "check", bool, where, True)
    reference = callable_name(keys, "reference", where)
    if check and reference is None and "manual_check" not in keys:
        raise SpecError(
            where,
            "has no reference to check candidates against",
            'Add reference = "module:function", or check = false to package a kernel whose results nobody compared.',
        )
    ratio = number(keys, "max_mismatched_ratio", where, 0.01)
    assert ratio is not None
    if ratio > 1:
        raise SpecError(f"{where} max_mismatched_ratio", f"is a share of 0 to 1, got {ratio:g}", "Write 0.01 for 1 %.")
    return KernelSpec(
        name=name,
        frontend=frontend,
        factory=required_callable(keys, "factory", where),
        targets=_kernel_targets(keys, frontend, defaults, where),
        shapes=_read_shapes(keys.get("shapes"), where),
        configs=_read_configs(keys, where),
        where=where,
        inputs=callable_name(keys, "inputs", where),
        reference=reference,
        check=check,
        out_idx=_read_out_idx(keys.get("out_idx"), where),
        rtol=number(keys, "rtol", where, None),
        atol=number(keys, "atol", where, None),
        max_mismatched_ratio=ratio,
        pass_configs=optional(keys, "pass_configs", dict, where, {}),
        profile=_read_profile(optional(keys, "profile", dict, where, {}), f"{where} profile"),
        supply=_read_supply(optional(keys, "supply", dict, where, {}), f"{where} supply"),
        manual_check=callable_name(keys, "manual_check", where),
        deterministic=optional(keys, "deterministic", bool, where, True),
    )


def _kernel_targets(
    keys: Mapping[str, Any], frontend: str, defaults: tuple[Target, ...], where: str
) -> tuple[Target, ...]:
    kinds = FRONTEND_TARGETS[frontend]
    if "targets" in keys:
        targets = _targets(keys["targets"], f"{where} targets")
        for target in targets:
            if target.kind not in kinds:
                raise SpecError(
                    f"{where} targets",
                    f"frontend {frontend!r} cannot build {target}",
                    f"It builds: {', '.join(kinds)}.",
                )
    else:
        # A default list serves kernels of several frontends; each takes what it can build.
        targets = tuple(target for target in defaults if target.kind in kinds)
    if not targets:
        raise SpecError(
            f"{where} targets",
            "no target is declared that its frontend builds",
            f"frontend {frontend!r} builds: {', '.join(kinds)}.",
        )
    return targets


def _read_shapes(value: Any, where: str) -> tuple[Mapping[str, Any], ...] | str:
    where = f"{where} shapes"
    if isinstance(value, str):
        return checked_callable(value, where)
    tables = [value] if isinstance(value, dict) else value
    if not isinstance(tables, list) or not tables:
        raise SpecError(
            where,
            f"names no shape, got {value!r}",
            'Write shapes = [{ M = 1024, N = 1024 }], lists to be multiplied out, or "module:function".',
        )
    shapes = [shape for table in tables for shape in multiply_out(_scalar_table(table, where))]
    if not shapes:
        raise SpecError(where, "an empty list multiplies out to no shape", "Give every key at least one value.")
    return tuple(shapes)


def _read_configs(keys: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], ...] | str:
    if "configs" in keys and "space" in keys:
        raise SpecError(where, "has both configs and space", "Keep one of them.")
    if "space" in keys:
        configs = multiply_out(_scalar_table(keys["space"], f"{where} space"))
    elif "configs" not in keys:
        return ({},)  # a kernel with nothing to tune is compiled and checked all the same
    elif isinstance(keys["configs"], str):
        return checked_callable(keys["configs"], f"{where} configs")
    else:
        tables = keys["configs"]
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise SpecError(
                f"{where} configs",
                f"is not a list of tables, got {tables!r}",
                'Write configs = [{ block = 64 }, { block = 128 }] or "module:function".',
            )
        configs = tuple(tables)
    if not configs:
        raise SpecError(
            f"{where} configs",
            "there is no configuration to try",
            "Give at least one; {} means the factory's own defaults.",
        )
    return configs


def _scalar_table(table: Any, where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise SpecError(where, f"is not a table, got {table!r}", "Write { M = 1024, N = [512, 1024] }.")
    for key, value in table.items():
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, _SCALARS):
                raise SpecError(
                    f"{where} {key}",
                    f"is not a number, bool or string, got {item!r}",
                    "Use a callable for arguments of other kinds.",
                )
    return table


def _read_out_idx(value: Any, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        raise SpecError(
            f"{where} out_idx", f"is not an integer or a list of integers, got {value!r}", "Write out_idx = [-1]."
        )
    return tuple(items)


def _read_profile(table: Mapping[str, Any], where: str) -> Profile:
    keys = fold(table, ("warmup", "rep", "timeout", "compile_timeout", "backend"), where)
    backend = optional(keys, "backend", str, where, "auto")
    known = ("auto", "wall", "cudagraph", "event", "cupti")
    if backend not in known:
        raise SpecError(
            f"{where} backend", f"unknown backend {backend!r}{nearest(backend, known)}", f"Known: {', '.join(known)}."
        )
    numbers = {
        key: number(keys, key, where, getattr(Profile, key)) for key in ("warmup", "rep", "timeout", "compile_timeout")
    }
    for key in ("rep", "timeout", "compile_timeout"):
        if not numbers[key]:
            raise SpecError(f"{where} {key}", "must be above zero", "warmup and rep are in ms, timeouts in s.")
    return Profile(backend=backend, **numbers)  # type: ignore[arg-type]


def _read_supply(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    keys = fold(table, ("type", "seed", "ranges"), where)
    kind = optional(keys, "type", str, where, "auto")
    if kind not in SUPPLY_TYPES:
        known = ", ".join(SUPPLY_TYPES)
        raise SpecError(f"{where} type", f"unknown supply {kind!r}{nearest(kind, SUPPLY_TYPES)}", f"Known: {known}.")
    ranges = optional(keys, "ranges", dict, where, {})
    for name, bounds in ranges.items():
        if not (isinstance(bounds, list) and len(bounds) == 2 and all(type(b) is int for b in bounds)):
            raise SpecError(
                f"{where} ranges {name}", f"is not two integers, got {bounds!r}", "Write index = [0, 1024]."
            )
    seed = keys.get("seed", 0)
    if type(seed) is not int:
        raise SpecError(f"{where} seed", f"is not an integer, got {seed!r}", "Correct the value.")
    return {"type": kind, "seed": seed, "ranges": ranges} if keys else {}


def _read_devices(table: Mapping[str, Any], file: str) -> dict[str, Mapping[str, Any]]:
    devices: dict[str, Mapping[str, Any]] = {}
    for text, overrides in table.items():
        where = f'{file} [target."{text}"]'
        target = parse_target(text, where)
        if not isinstance(overrides, dict):
            raise SpecError(where, f"is not a table, got {overrides!r}", "Write for instance sm-count = 132.")
        devices[str(target)] = {key.replace("-", "_"): value for key, value in overrides.items()}
    return devices


def _targets(value: Any, where: str) -> tuple[Target, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise SpecError(
            where, f"is not a list of strings, got {value!r}", 'Write targets = ["cuda:sm_90a", "llvm:x86-64-v3"].'
        )
    return tuple(dict.fromkeys(parse_target(item, where) for item in value))


def _refuse_overlap(kernels: Sequence[KernelSpec]) -> None:
    seen: dict[tuple[str, str, str], str] = {}
    for kernel in kernels:
        for target in kernel.targets:
            for shape in kernel.shapes if not isinstance(kernel.shapes, str) else ():
                key = (kernel.name, target.slug, repr(sorted(shape.items())))
                if key in seen:
                    raise SpecError(
                        kernel.where, f"{target} {dict(shape)} is declared already by {seen[key]}", "Keep one of them."
                    )
                seen[key] = kernel.where
