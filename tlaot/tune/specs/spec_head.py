"""What a ``tltune.toml`` says once for the whole package: its ``[tlaot]`` and ``[target."..."]`` tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import SpecError
from ...target import Target, parse_target
from .keys import HEAD, names_of
from .spec import EXECUTORS, SPLITS, KernelSpec, Spec
from .tables import fold, number, one_of, optional, required

__all__ = ["Head", "assemble", "read_head", "read_max_slowdown", "read_targets"]

_NAME = re.compile(r"[A-Za-z_]\w*")
_UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})?")
_GLIBC = re.compile(r"2\.\d{1,2}")


@dataclass(frozen=True)
class Head:
    """The ``[tlaot]`` table: what holds for the package, and what kernels have that do not say otherwise.

    Attributes:
        package: Import name of the package that embeds the kernels.
        targets: Targets of kernels that name none.
        when_available: As of :class:`~tlaot.tune.specs.spec.Spec`; so are the next four.
        split, size_budget, min_glibc, executor: As of :class:`~tlaot.tune.specs.spec.Spec`.
        ptx, max_slowdown: Defaults of the kernels' own.
    """

    package: str
    targets: tuple[Target, ...]
    when_available: tuple[Target, ...]
    split: str | None
    size_budget: int | None
    min_glibc: str | None
    executor: str
    ptx: bool
    max_slowdown: float | None


def read_head(table: Mapping[str, Any], file: str) -> Head:
    """Read ``[tlaot]``.

    Raises:
        SpecError: A key or a value is wrong.
    """
    where = f"{file} [tlaot]"
    keys = fold(table, names_of(HEAD), where)
    package = required(keys, "package", str, where)
    if not all(_NAME.fullmatch(part) for part in package.split(".")):
        raise SpecError(
            f"{where} package", f"is not an import name, got {package!r}", 'Write for instance package = "my_package".'
        )
    split = optional(keys, "split", str, where, None)
    return Head(
        package=package,
        targets=read_targets(keys.get("targets", ()), f"{where} targets"),
        when_available=read_targets(keys.get("when_available", ()), f"{where} when-available"),
        split=None if split is None else one_of(split, "split", SPLITS, where),
        size_budget=_read_size(keys.get("size_budget"), f"{where} size-budget"),
        min_glibc=_read_glibc(keys.get("min_glibc"), f"{where} min-glibc"),
        executor=one_of(optional(keys, "executor", str, where, "local"), "executor", EXECUTORS, where),
        ptx=optional(keys, "ptx", bool, where, False),
        max_slowdown=read_max_slowdown(keys, where, None),
    )


def assemble(path: Path, head: Head, kernels: tuple[KernelSpec, ...], targets: Mapping[str, Any]) -> Spec:
    """The whole spec, and what only the whole can tell to be wrong.

    Args:
        path: The file.
        head: Its ``[tlaot]``.
        kernels: Its ``[[kernel]]`` tables.
        targets: Its ``[target]`` table.

    Raises:
        SpecError: Two tables contradict each other.
    """
    devices, tuned_as = _read_target_tables(targets, path.name)
    spec = Spec(
        path,
        head.package,
        kernels,
        devices,
        head.when_available,
        head.split,
        head.size_budget,
        head.min_glibc,
        tuned_as,
        head.executor,
    )
    places = [(f'[target."{target}"]', target) for target in (*devices, *tuned_as)]
    places += [("[tlaot] when-available", str(target)) for target in head.when_available]
    for place, target in places:
        if target not in spec.targets:
            raise SpecError(
                f"{path.name} {place}",
                f"no kernel is built for {target}",
                f"Targets in use: {', '.join(spec.targets)}.",
            )
    _check_stand_ins(spec)
    _check_ptx(kernels)
    return spec


def read_targets(value: Any, where: str) -> tuple[Target, ...]:
    """A target, or a list of them."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise SpecError(
            where, f"is not a list of strings, got {value!r}", 'Write targets = ["cuda:sm_90a", "llvm:x86-64-v3"].'
        )
    return tuple(dict.fromkeys(parse_target(item, where) for item in value))


def read_max_slowdown(keys: Mapping[str, Any], where: str, default: float | None) -> float | None:
    """``max-slowdown``: how many times the best time a variant that ships may take."""
    factor = number(keys, "max_slowdown", where, default)
    if factor is not None and factor < 1:
        raise SpecError(
            f"{where} max-slowdown",
            f"is how many times the fastest's time is allowed, at least 1, got {factor:g}",
            "Write max-slowdown = 1.05 for 5 %.",
        )
    return factor


def _read_size(value: Any, where: str) -> int | None:
    if value is None:
        return None
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        value = int(float(match[1]) * _UNITS[match[2] or "B"])
    if type(value) is not int or value < 1:
        raise SpecError(
            where, f"is not a size above zero, got {value!r}", 'Write size-budget = "2 MiB", or a number of bytes.'
        )
    return value


def _read_glibc(value: Any, where: str) -> str | None:
    if value is None:
        return None
    # As a number 2.30 would be 2.3.
    if not isinstance(value, str) or not _GLIBC.fullmatch(value):
        raise SpecError(where, f"is not a version of glibc as a string, got {value!r}", 'Write min-glibc = "2.17".')
    return value


def _read_target_tables(table: Mapping[str, Any], file: str) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Overrides of the device table, and stand-ins, by target."""
    devices: dict[str, Mapping[str, Any]] = {}
    tuned_as: dict[str, str] = {}
    for text, entries in table.items():
        where = f'{file} [target."{text}"]'
        target = str(parse_target(text, where))
        if not isinstance(entries, dict):
            raise SpecError(where, f"is not a table, got {entries!r}", "Write for instance sm-count = 132.")
        if target in devices:
            raise SpecError(where, f"{target} has a table already", "Keep one of them.")
        keys = {key.replace("-", "_"): value for key, value in entries.items()}
        stand_in = keys.pop("tuned_as", None)
        if stand_in is not None:
            if not isinstance(stand_in, str):
                raise SpecError(f"{where} tuned-as", f"is not a target, got {stand_in!r}", 'Write "cuda:sm_90a".')
            tuned_as[target] = str(parse_target(stand_in, f"{where} tuned-as"))
        devices[target] = keys
    return devices, tuned_as


def _check_stand_ins(spec: Spec) -> None:
    for target, stand_in in spec.tuned_as.items():
        where = f'{spec.path.name} [target."{target}"] tuned-as'
        if target == stand_in:
            raise SpecError(where, "is the target itself", "Name the target whose winners it takes, or remove it.")
        if stand_in in spec.tuned_as:
            raise SpecError(
                where,
                f"{stand_in} is not tuned either, but as {spec.tuned_as[stand_in]}",
                f'Write tuned-as = "{spec.tuned_as[stand_in]}".',
            )
        if target.partition(":")[0] != stand_in.partition(":")[0]:
            raise SpecError(
                where, f"winners of {stand_in} mean nothing for {target}", "Name a target of the same kind."
            )
        for kernel in spec.kernels:
            names = [str(mine) for mine in kernel.targets]
            if target in names and stand_in not in names:
                raise SpecError(
                    where,
                    f"{kernel.where} is built for {target}, but not for {stand_in}",
                    f"Add {stand_in} to its targets, so that there are winners to take.",
                )


def _check_ptx(kernels: Sequence[KernelSpec]) -> None:
    for kernel in kernels:
        others = (other for other in kernels if other.name == kernel.name and other.ptx)
        if kernel.ptx and not any(other.ptx_from is not None for other in others):
            raise SpecError(
                f"{kernel.where} ptx",
                "there is no cuda target without a suffix to make PTX of",
                "Add one to its targets, for instance cuda:sm_80: what sm_90a and its like compile to runs nowhere else.",
            )
