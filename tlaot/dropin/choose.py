"""Which packaged variants a key of a factory means, and the words for when there is none: pure functions on plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import CallError, DispatchError
from ..keys import KeyValueError, encode, key_of, spell_key
from ..manifest import Variant
from ..plain import record

__all__ = ["Choices", "Packaged", "refuse_key", "runtime_names"]

# Of many keys that are packaged the nearest are shown.
_MOST_SHOWN = 4


@record(frozen=True)
class Packaged:
    """A variant with the name of its kernel."""

    kernel: str
    variant: Variant


class Choices:
    """The packaged variants of one factory, found by key.

    An argument that is in a variant's shape must have its value there, whatever way that is spelled; where the size is open, any. One
    that its config gives is the build's to choose, so that any value means this variant. Of any other the default was compiled.

    Args:
        packaged: The variants.
        names: The factory's parameters.
        defaults: Of those that have one.
    """

    def __init__(self, packaged: Sequence[Packaged], names: Iterable[str], defaults: Mapping[str, Any]) -> None:
        self._names = frozenset(names)
        self._defaults = defaults
        self.packaged = tuple(packaged)
        # Variants whose shapes and configs have the same names, by the values of the shape's.
        self._tables: dict[tuple[tuple[str, ...], frozenset[str]], dict[Any, list[Packaged]]] = {}
        for one in packaged:
            shape = one.variant.shape
            fixed = tuple(name for name in sorted(shape) if name in self._names and shape[name] != name)
            free = frozenset((*one.variant.config, *shape))
            values = tuple(key_of(shape[name]) for name in fixed)
            self._tables.setdefault((fixed, free), {}).setdefault(values, []).append(one)

    def find(self, where: str, given: Mapping[str, Any]) -> list[Packaged]:
        """The variants of a key, of one kernel.

        Args:
            where: The factory, for messages.
            given: Its arguments by name, with the defaults.

        Raises:
            CallError: Two kernels of the package were made with this key.
            KeyValueError: A value cannot be part of a key.
        """
        keys: dict[str, Any] = {}

        def key(name: str) -> Any:
            if name not in keys:
                keys[name] = key_of(encode(given[name], f"{where} {name}"))
            return keys[name]

        found: list[Packaged] = []
        for (fixed, free), table in self._tables.items():
            if not all(name in given for name in fixed):
                continue
            if not all(name in free or self._is_default(name, given[name], key) for name in given):
                continue
            found += table.get(tuple(map(key, fixed)), ())
        # Of an eager function's sizes (T.const), which are no parameters of it, some may be named as well.
        sizes = [name for name in given if name not in self._names]
        if sizes:
            found = [one for one in found if all(_is_size(one.variant, name, key(name)) for name in sizes)]
        if len({one.kernel for one in found}) > 1:
            listed = ", ".join(sorted({one.kernel for one in found}))
            raise CallError(
                where,
                f"several kernels are packaged with this key: {listed}",
                "Call the one that you mean through tlaot.load, or have only one of them name this factory in tltune.toml.",
            )
        return found

    def lacking(self, given: Iterable[str]) -> list[str]:
        """Parameters without a default that are not given and that no packaged config gives."""
        configs = {name for one in self.packaged for name in one.variant.config}
        return [n for n in self._names if n not in given and n not in self._defaults and n not in configs]

    def _is_default(self, name: str, value: Any, key: Any) -> bool:
        if name not in self._defaults:
            return False
        default = self._defaults[name]
        if value is default:
            return True
        try:
            return bool(key(name) == key_of(encode(default)))
        except KeyValueError:
            return False

    def nearest(self, key: Mapping[str, Any]) -> list[Packaged]:
        """The variants, those that differ least from an encoded key first; one of each workload."""
        unique = {(one.kernel, repr(sorted(one.variant.shape.items()))): one for one in self.packaged}
        return sorted(unique.values(), key=lambda one: _distance(one.variant, key, self._names))


def runtime_names(packaged: Sequence[Packaged], names: Iterable[str]) -> tuple[str, ...]:
    """Of an eager factory the parameters that are the kernel's own, in the kernel's order; of a lazy one none.

    An eager function is called with the kernel's tensors, so that all of the kernel's inputs are parameters of it; the inputs of a lazy
    one are those of another function, inside.
    """
    names = set(names)
    for one in packaged:
        variant = one.variant
        inputs = [param.name for i, param in enumerate(variant.params) if i not in variant.out_idx]
        if inputs and all(name in names and name not in variant.shape for name in inputs):
            return tuple(param.name for param in variant.params if param.name in names)
    return ()


def refuse_key(where: str, package: str, choices: Choices, given: Mapping[str, Any]) -> DispatchError:
    """What to raise where no packaged variant has a key.

    Args:
        where: The factory, ``"module:function"``.
        package: The package whose kernels these are.
        choices: The factory's variants.
        given: Its arguments by name, with the defaults.
    """
    nearest = choices.nearest(_encoded(where, given))
    tunables = {name for one in nearest for name in one.variant.config}
    key = _encoded(where, {name: value for name, value in given.items() if name not in tunables})
    what = f"no kernel of {package} was packaged for {spell_key(key)}"
    lines = []
    for one in nearest[:_MOST_SHOWN]:
        differing = [n for n in sorted({*key, *one.variant.shape}) if not _is_alike(n, one.variant, key)]
        told = ", ".join(differing) or "what it leaves to defaults"
        lines.append(f"  {one.kernel} {spell_key(one.variant.shape)} differs in {told}")
    if len(nearest) > _MOST_SHOWN:
        lines.append(f"  and {len(nearest) - _MOST_SHOWN} more that are further from it")
    if not nearest:
        name = where.rpartition(":")[2].rpartition(".")[2].strip("_")
        table = f'[[kernel]] name = "{name}", frontend = "tilelang", factory = "{where}", shapes = [{spell_key(key)}]'
        return DispatchError(where, f"{what}: of this factory nothing is packaged", f"In tltune.toml: {table}")
    # As the nearest says it: of what is left to its default nobody needs to speak.
    best = nearest[0].variant
    spoken = {n: v for n, v in key.items() if n in best.shape or not _is_default_of(n, v, choices)}
    remedy = f"Add it to tltune.toml and build the package again:\n    [[kernel]] {nearest[0].kernel}: shapes = [{spell_key(spoken)}]"
    return DispatchError(where, "\n".join([what, *lines]), remedy)


def _is_size(variant: Variant, name: str, key: Any) -> bool:
    return bool(variant.shape[name] == name) or key_of(variant.shape[name]) == key


def _encoded(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in given.items():
        try:
            found[name] = encode(value, f"{where} {name}")
        except KeyValueError:
            found[name] = repr(value)
    return found


def _is_default_of(name: str, value: Any, choices: Choices) -> bool:
    try:
        return name in choices._defaults and key_of(encode(choices._defaults[name])) == key_of(value)
    except KeyValueError:
        return False


def _is_alike(name: str, variant: Variant, key: Mapping[str, Any]) -> bool:
    if name in variant.shape and name in key:
        return bool(variant.shape[name] == name) or key_of(variant.shape[name]) == key_of(key[name])
    return name not in variant.shape or name not in key


def _distance(variant: Variant, key: Mapping[str, Any], names: Iterable[str]) -> tuple[int, float]:
    """How many arguments differ, and how far the numbers are apart, in doublings."""
    differing = [n for n in names if n in key and n in variant.shape and not _is_alike(n, variant, key)]
    far = 0.0
    for name in differing:
        left, right = key[name], variant.shape[name]
        numbers = type(left) in (int, float) and type(right) in (int, float) and left >= 0 and right >= 0
        far += abs(math.log2((left + 1) / (right + 1))) if numbers else 1.0
    return len(differing), far
