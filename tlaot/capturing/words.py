"""Recorded calls and workloads as the table shows them, and what an author may want to know of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..keys import is_tagged, spell_value
from .recording import Called
from .workloads import Workload

__all__ = ["hints_of", "in_common", "spell_call", "spell_workload"]

# A static kernel that is made for more values of a size than this is pointed out.
_MANY_VALUES = 8

# Arguments by whose name one can tell that callers ask the GPU for them.
_OF_DEVICE = re.compile(r"(num_|n_)?sms?|sm_(count|num)|num_multiprocessors")


def spell_call(one: Called) -> str:
    given = {name: value for name, value in one.arguments.items() if name not in one.defaults}
    return ", ".join([*_items(given), *(f"{name} = ..." for name in one.opaque)])


def spell_workload(workload: Workload, common: Collection[str]) -> str:
    """A workload in the table, without what is the same in all of the kernel's."""
    items = [item for item in _items(workload.shape) if item not in common]
    for name, counter in workload.sizes.items():
        low, high = min(counter), max(counter)
        items.append(f"{name} {low}" if low == high else f"{name} {low} to {high} ({len(counter)} sizes)")
    return ", ".join(items) or ("as below" if common else "(no arguments)")


def in_common(workloads: Sequence[Workload]) -> list[str]:
    """What is the same in all of several workloads."""
    if len(workloads) < 2:
        return []
    first, *others = [_items(workload.shape) for workload in workloads]
    return [item for item in first if all(item in other for other in others)]


def _items(shape: Mapping[str, Any]) -> list[str]:
    """The arguments for people, one by one; the fields of an object each for itself."""
    found = []
    for name, value in shape.items():
        if is_tagged(value) and "make" in value:
            found += [f"{name}.{item}" for item in _items(value.get("with", {}))]
        else:
            found.append(f"{name} = {_short(value)}")
    return found


def _short(value: Any) -> str:
    if not is_tagged(value):
        return "none" if value is None else spell_value(value)
    ((tag, content),) = value.items()
    if tag == "tuple":
        return f"({', '.join(map(_short, content))})"
    return "none" if tag == "none" else str(content).rpartition(".")[2]


def hints_of(
    where: str, calls: Sequence[Called], workloads: Sequence[Workload], chosen: Sequence[Workload], has_inputs: bool
) -> Iterator[str]:
    """What the author of an entry should know of what was recorded; ``has_inputs``: it says what it is tuned with."""
    seen: dict[str, set[int]] = {}
    for workload in chosen:
        for name, counter in workload.sizes.items():
            seen.setdefault(name, set()).update(counter)
    for name in sorted({name for workload in workloads for name in workload.unbound} - seen.keys()):
        yield f"{where}: the size {name} is open in its code, and no launch told it: declare dynamic = {{ {name} = [...] }} yourself"
    for name, sizes in seen.items():
        if len(sizes) == 1:
            yield f"{where}: {name} was {min(sizes)} in every launch; it is declared from 1: widen it to what callers have"
    if len(seen) > 1:
        yield f"{where}: {', '.join(seen)} are multiplied out: where they depend on each other, inputs makes what fits"
    values: dict[str, set[int]] = {}
    for workload in workloads:
        for name, value in workload.shape.items():
            if type(value) is int:
                values.setdefault(name, set()).add(value)
    for name, own in values.items():
        if len(own) > _MANY_VALUES:
            yield (
                f"{where}: {name} has {len(own)} values from {min(own)} to {max(own)}; if the code takes it as a size of tensors only, "
                f"dynamic = {{ {name} = [{min(own)}, ..., {max(own)}] }} in place of these serves all with a few variants"
            )
        if _OF_DEVICE.fullmatch(name):
            numbers = ", ".join(map(str, sorted(own)))
            yield f"{where}: {name} = {numbers} is of the GPU that was recorded on: another model needs entries of its own"
    scalars = sorted({name for one in calls for name in _scalars(one)})
    if scalars and not has_inputs:
        kind = "scalar" if len(scalars) == 1 else "scalars"
        yield (
            f'{where}: its kernel takes the {kind} {", ".join(scalars)}, whose values nobody can guess: inputs = "module:function" '
            "makes the arguments that it is tuned with"
        )
    given = [argument for one in calls for launch in one.launches for argument in launch.arguments or ()]
    if any(argument.get("align", 16) < 16 for argument in given):
        yield f'{where}: some tensors lie at addresses that 16 does not divide: on-misaligned = "copy" takes such calls'
    if any("strides" in argument for argument in given):
        yield f"{where}: some tensors are not dense: what is packaged takes them where the factory declares their strides"


def _scalars(one: Called) -> Iterator[str]:
    """Names of a kernel's scalars that callers pass."""
    for launch in one.launches[:1]:
        given = launch.arguments or ()
        params = [param["name"] for i, param in enumerate(one.params) if i not in one.outputs]
        names = params if len(given) == len(params) else [param["name"] for param in one.params]
        for position, argument in enumerate(given):
            if "scalar" in argument:
                yield str(names[position]) if position < len(names) else f"argument {position}"
