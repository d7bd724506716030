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
from pathlib import Path
from typing import Any

from ...errors import SpecError
from ...keys import is_tagged
from ...target import Target
from .arithmetic import check_expression
from .dynamic import open_shape, read_dynamic
from .keys import BUDGET, KERNEL, PROFILE, SUPPLY, names_of
from .spec import BACKENDS, FRONTEND_TARGETS, ON_MISALIGNED, SEARCHES, Budget, KernelSpec, Profile, Spec
from .spec_head import Head, assemble, read_head, read_max_slowdown, read_targets
from .supply import SUPPLY_TYPES
from .tables import (
    callable_name,
    checked_callable,
    fold,
    number,
    one_of,
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

__all__ = ["find_spec", "multiply_out", "read_spec"]

SPEC_NAME = "tltune.toml"

# Of a dynamic kernel: what serves a range of sizes cannot be the fastest at each of them.
_MAX_SLOWDOWN = 1.05

# Methods of the object that a package's kernels are attributes of (tlaot.runtime.load.Kernels).
_TAKEN = ("preload",)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SCALARS = (bool, int, float, str)


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
    head = read_head(table_of(body, "tlaot", where), where)
    tables = body.get("kernel", [])
    if not isinstance(tables, list) or not tables:
        raise SpecError(where, "declares no kernel", "Add a [[kernel]] table (two pairs of brackets).")
    kernels = tuple(_read_kernel(table, index, head, where) for index, table in enumerate(tables))
    _refuse_overlap(kernels)
    return assemble(path, head, kernels, table_of(body, "target", where))


def multiply_out(table: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """All combinations of a table whose values may be lists: ``{M = [1, 2], N = 3}`` gives two dicts.

    The first key varies slowest, so that the first combination is made of every list's first value.
    """
    choices = [value if isinstance(value, list) else [value] for value in table.values()]
    return tuple(dict(zip(table, values, strict=True)) for values in itertools.product(*choices))


def _read_kernel(table: Any, index: int, head: Head, file: str) -> KernelSpec:
    where = f"{file} [[kernel]] #{index + 1}"
    if not isinstance(table, dict):
        raise SpecError(where, f"is not a table, got {table!r}", "Write [[kernel]] on a line of its own.")
    if isinstance(table.get("name"), str):
        where += f" ({table['name']})"
    keys = fold(table, names_of(KERNEL), where)
    name = required(keys, "name", str, where)
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name.startswith("_"):
        raise SpecError(
            f"{where} name", f"is not a public Python name, got {name!r}", "Users call it as kernels.<name>(...)."
        )
    if name in _TAKEN:
        raise SpecError(f"{where} name", f"kernels.{name} is a method of the loaded package", "Give it another name.")
    frontend = one_of(required(keys, "frontend", str, where), "frontend", tuple(FRONTEND_TARGETS), where)
    check = optional(keys, "check", bool, where, True)
    reference = callable_name(keys, "reference", where)
    if check and reference is None and "manual_check" not in keys:
        raise SpecError(
            where,
            "has no reference to check candidates against",
            'Add reference = "module:function", or check = false to package a kernel whose results nobody compared.',
        )
    measure = optional(keys, "measure", bool, where, True)
    if not measure:
        _refuse_measured(keys, check, where)
    ratio = number(keys, "max_mismatched_ratio", where, 0.01)
    assert ratio is not None
    if ratio > 1:
        raise SpecError(f"{where} max_mismatched_ratio", f"is a share of 0 to 1, got {ratio:g}", "Write 0.01 for 1 %.")
    targets = _kernel_targets(keys, frontend, head.targets, where)
    # What is dynamic may be all that there is to say of a kernel's shapes.
    shapes = ({},) if "dynamic" in keys and "shapes" not in keys else _read_shapes(keys.get("shapes"), where)
    dynamic = read_dynamic(keys, shapes, where)
    flops = optional(keys, "flops", str, where, None)
    return KernelSpec(
        name=name,
        frontend=frontend,
        factory=required_callable(keys, "factory", where),
        targets=targets,
        shapes=shapes,
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
        search=one_of(optional(keys, "search", str, where, "auto"), "search", SEARCHES, where),
        budget=_read_budget(optional(keys, "budget", dict, where, None), f"{where} budget"),
        # The default of [tlaot] means nothing to a kernel of the CPU; said of such a kernel itself it is a mistake.
        ptx=optional(keys, "ptx", bool, where, head.ptx and any(target.is_cuda for target in targets)),
        max_slowdown=read_max_slowdown(
            keys, where, (head.max_slowdown if measure else None) or (_MAX_SLOWDOWN if dynamic else None)
        ),
        on_misaligned=one_of(
            optional(keys, "on_misaligned", str, where, "error"), "on_misaligned", ON_MISALIGNED, where
        ),
        **dynamic,
        measure=measure,
        flops=None if flops is None else check_expression(flops, f"{where} flops"),
    )


# What says how to choose between candidates, or how to look at them.
_OF_MEASURING = ("dynamic", "search", "budget", "profile", "max_slowdown", "manual_check")


def _refuse_measured(keys: Mapping[str, Any], check: bool, where: str) -> None:
    """Refuse what an entry that is not measured says about measuring.

    Raises:
        SpecError: It does.
    """
    where = f"{where} measure"
    if check:
        raise SpecError(
            where, "what is not measured is not compared either", "Write check = false beside it, to say that you know."
        )
    for key in _OF_MEASURING:
        if key in keys:
            raise SpecError(where, f"{key.replace('_', '-')} says how to measure it", "Take out one of the two.")


def _kernel_targets(
    keys: Mapping[str, Any], frontend: str, defaults: tuple[Target, ...], where: str
) -> tuple[Target, ...]:
    kinds = FRONTEND_TARGETS[frontend]
    if "targets" in keys:
        targets = read_targets(keys["targets"], f"{where} targets")
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
            if not isinstance(item, _SCALARS) and not is_tagged(item):
                raise SpecError(
                    f"{where} {key}",
                    f"is not a number, bool or string, got {item!r}",
                    'Write { dtype = "bfloat16" }, { none = true }, { tuple = [1, 2] }, { object = "module:name" } or '
                    '{ make = "module:Class", with = { ... } } for arguments of other kinds, or use a callable.',
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
    keys = fold(table, names_of(PROFILE), where)
    names = [name for name in names_of(PROFILE) if name != "backend"]
    backend = one_of(optional(keys, "backend", str, where, "auto"), "backend", BACKENDS, where)
    numbers = {key: number(keys, key, where, getattr(Profile, key)) for key in names}
    for key in ("rep", "timeout", "compile_timeout"):
        if not numbers[key]:
            raise SpecError(f"{where} {key}", "must be above zero", "warmup and rep are in ms, timeouts in s.")
    return Profile(backend=backend, **numbers)  # type: ignore[arg-type]


def _read_budget(table: Mapping[str, Any] | None, where: str) -> Budget:
    if table is None:
        return Budget()
    keys = fold(table, names_of(BUDGET), where)
    if not keys:
        raise SpecError(where, "limits nothing", "Write budget = { trials = 200 }, { seconds = 600 } or both.")
    trials = keys.get("trials")
    if "trials" in keys and (type(trials) is not int or trials < 1):
        raise SpecError(
            f"{where} trials", f"is not a whole number of one or more, got {trials!r}", "Write trials = 200."
        )
    seconds = number(keys, "seconds", where, None)
    if seconds == 0:
        raise SpecError(f"{where} seconds", "must be above zero", "Leave it out where time does not matter.")
    return Budget(trials, seconds)


def _read_supply(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    keys = fold(table, names_of(SUPPLY), where)
    kind = one_of(optional(keys, "type", str, where, "auto"), "type", SUPPLY_TYPES, where)
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


def _refuse_overlap(kernels: Sequence[KernelSpec]) -> None:
    seen: dict[tuple[str, str, str], str] = {}
    for kernel in kernels:
        for target in kernel.targets:
            for shape in kernel.shapes if not isinstance(kernel.shapes, str) else ():
                key = (kernel.name, target.slug, repr(sorted(open_shape(kernel.dynamic, shape).items())))
                if key in seen:
                    raise SpecError(
                        kernel.where, f"{target} {dict(shape)} is declared already by {seen[key]}", "Keep one of them."
                    )
                seen[key] = kernel.where
