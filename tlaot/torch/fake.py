"""What a call would return, without running it: shapes, dtypes and layouts of the outputs, for tracing.

Sizes may be symbolic (``torch.SymInt``). They are compared by their example values first, which decides nothing for good; only
what the chosen variant demands of them becomes a guard, so that a kernel with symbolic sizes is traced once for all of them. That
is right where every other variant that may run instead has outputs of the same shape, which is proved, not assumed;
where it cannot be, all sizes are fixed to their examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..errors import CallError
from ..manifest import Param, Variant
from ..runtime.dispatch import Argument, Place, given_params, resolve, spell_workload, symbolic_sizes, target_of
from ..runtime.refusal import check_factory_names, refuse_all, refuse_ambiguous
from ..target import DLPACK_CPU, DLPACK_CUDA
from .schema import Form

__all__ = ["make_fake"]

Size: TypeAlias = Any  # int or torch.SymInt
Term: TypeAlias = "int | tuple[int, str]"

_DEVICES = {"cpu": DLPACK_CPU, "cuda": DLPACK_CUDA}


class _Unknown(int):
    """The size of a data-dependent dimension: it may be any."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    # It is in every range.
    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__

    def __repr__(self) -> str:
        return "?"

    __str__ = __repr__


@dataclass(frozen=True)
class _Call:
    """A call that is traced.

    Attributes:
        where: The kernel in messages.
        args: Its arguments; sizes may be symbolic.
        arguments: The same with example values for sizes.
        named: The factory's arguments that it names.
    """

    where: str
    args: tuple[Any, ...]
    arguments: tuple[Argument, ...]
    named: Mapping[str, Any]


def make_fake(where: str, form: Form, variants: Sequence[Variant]) -> Callable[..., Any]:
    """The function that torch calls with tensors without memory, in place of the kernel.

    Args:
        where: The kernel, ``"package.name"``.
        form: The overload.
        variants: The kernel's variants.
    """
    strides = any(p.strides is not None for v in variants for p in v.params)

    def fake(*args: Any, **named: Any) -> Any:
        args = (*args, *(named.pop(name) for name in form.names[len(args) :]))
        _refuse_gradients(where, form, args)
        named = {name: value for name, value in named.items() if value is not None}
        call = _Call(where, args, tuple(_describe(x, strides) for x in args), named)
        like, place = _find_place(call)
        accepted = _accept(call, variants, place)
        variant = _choose(call, variants, accepted, place)
        if form.returned == 0:
            return None
        sizes = _bind(call, variant)
        outs = [_allocate(where, variant.params[i], sizes, like) for i in variant.out_idx]
        return outs[0] if form.returned == 1 else tuple(outs)

    return fake


def _refuse_gradients(where: str, form: Form, args: Sequence[Any]) -> None:
    """As a real call does; a compiled graph would run without gradients and never say so."""
    if not torch.is_grad_enabled():
        return
    wanting = [name for name, x in zip(form.names, args, strict=True) if getattr(x, "requires_grad", False)]
    if wanting:
        raise CallError(
            f"{where}: argument {', '.join(wanting)}",
            "requires a gradient, and a packaged kernel has none",
            "Call under torch.no_grad(), pass x.detach(), or give the operator one: torch.library.register_autograd.",
        )


def _describe(x: Any, strides: bool) -> Argument:
    if isinstance(x, torch.Tensor):
        dtype = str(x.dtype).removeprefix("torch.")
        return Argument(dtype, _examples(x.shape), _examples(x.stride()) if strides else None)
    if isinstance(x, (bool, torch.SymBool)):
        return Argument("bool", None)
    return Argument("int" if isinstance(x, (int, torch.SymInt)) else "float", None)


def _examples(sizes: Iterable[Size]) -> tuple[int, ...]:
    """The sizes that the trace was begun with; these are read, so that no guard comes of them."""
    return tuple(n if isinstance(n, int) else _example(n) for n in sizes)


def _example(size: Size) -> int:
    node = size.node
    known = node.maybe_as_int()
    if known is not None:
        return int(known)
    if not node.has_hint():
        return _Unknown(2)
    return int(node.hint)


def _find_place(call: _Call) -> tuple[Any, Place | None]:
    """The first tensor, and where the call would run; None for the meta device, which stands for all."""
    tensors = [(i, x) for i, x in enumerate(call.args) if isinstance(x, torch.Tensor)]
    first, like = tensors[0]
    for position, x in tensors:
        if x.device != like.device:
            raise CallError(
                call.where,
                f"argument {position} is on {x.device}, argument {first} on {like.device}",
                "Move all tensors to one device.",
            )
    if like.device.type == "meta":
        return like, None
    device_type = _DEVICES.get(like.device.type)
    if device_type is None:
        raise CallError(call.where, f"the tensors are on {like.device}", "Pass tensors on cpu or cuda.")
    # The device itself is not asked: a program may be traced for one that this machine does not have.
    return like, Place(device_type, like.device.index or 0)


def _accept(call: _Call, variants: Sequence[Variant], place: Place | None) -> list[Variant]:
    check_factory_names(call.where, variants, call.named)
    accepted, rejected = _resolve(call, variants, place)
    if not accepted:
        raise refuse_all(call.where, variants, call.arguments, place or Place(DLPACK_CPU), rejected)
    return accepted


def _resolve(call: _Call, variants: Sequence[Variant], place: Place | None) -> tuple[list[Variant], list[Any]]:
    accepted, rejected = [], []
    for variant in variants:
        there = place or Place(target_of(variant.target).device_type)
        fit, unfit = resolve([variant], call.arguments, there, call.named)
        accepted += fit
        rejected += unfit
    return accepted, rejected


def _choose(call: _Call, variants: Sequence[Variant], accepted: list[Variant], place: Place | None) -> Variant:
    """A variant whose outputs stand for those of whatever runs, with a guard for each size that it demands."""
    if not any(isinstance(n, torch.SymInt) for n in _sizes(call)):
        return _pick_exact(call, accepted)
    general = max(accepted, key=symbolic_sizes)
    unknown = any(isinstance(n, _Unknown) for a in call.arguments for n in a.shape or ())
    if unknown:
        _require_decided(call, general, accepted)
    if all(_agree(general, other, len(call.args)) for other in _rivals(call, variants, place)):
        _guard(call, general)
        return general
    if unknown:
        raise CallError(
            call.where,
            "the shape of the output depends on a data-dependent size, and differs from variant to variant",
            "Fix the size before the call with torch._check(x.size(0) == n).",
        )
    for n in _sizes(call):
        int(n)  # a constant of the trace; another size traces anew
    return _pick_exact(call, accepted)


def _sizes(call: _Call) -> list[Size]:
    return [n for x in call.args if isinstance(x, torch.Tensor) for n in (*x.shape, *x.stride())]


def _pick_exact(call: _Call, accepted: Sequence[Variant]) -> Variant:
    """For sizes that are known: what is made for them goes before what has symbolic sizes, as in a call that runs."""
    fewest = min(map(symbolic_sizes, accepted))
    exact = [v for v in accepted if symbolic_sizes(v) == fewest]
    if not all(_agree(exact[0], other, len(call.args)) for other in exact):
        raise refuse_ambiguous(call.where, exact)
    return exact[0]


def _require_decided(call: _Call, general: Variant, accepted: Sequence[Variant]) -> None:
    """Refuse a data-dependent size that one packaged size or another might be."""
    for position, argument in enumerate(call.arguments):
        for axis, size in enumerate(argument.shape or ()):
            if not isinstance(size, _Unknown):
                continue
            wanted = {_wanted(v, position, axis, len(call.args)) for v in accepted}
            if isinstance(_wanted(general, position, axis, len(call.args)), str) or len(wanted) == 1:
                continue
            raise CallError(
                f"{call.where}: argument {position}",
                f"has a data-dependent size in dimension {axis}, and variants are packaged for {sorted(map(str, wanted))}",
                "Say which with torch._check(x.size(0) == n), or package a variant with a dynamic size.",
            )


def _wanted(variant: Variant, position: int, axis: int, count: int) -> int | str:
    shape = (given_params(variant, count) or ())[position].shape
    assert shape is not None
    return shape[axis]


def _rivals(call: _Call, variants: Sequence[Variant], place: Place | None) -> list[Variant]:
    """The variants that may run for some sizes."""
    unsized = tuple(
        Argument(a.dtype, None if a.shape is None else (_Unknown(2),) * len(a.shape)) for a in call.arguments
    )
    return _resolve(_Call(call.where, call.args, unsized, call.named), variants, place)[0]


def _agree(one: Variant, other: Variant, count: int) -> bool:
    """Whether two variants give outputs of the same shape, dtype and layout for all sizes that both take."""
    if other is one:
        return True
    find = _unify(zip(_terms(one, 0, count), _terms(other, 1, count), strict=True))
    if find is None:
        return True
    for left, right in zip(one.out_idx, other.out_idx, strict=True):
        a, b = one.params[left], other.params[right]
        if a.dtype != b.dtype or (a.strides is None) != (b.strides is None):
            return False
        sizes_a, sizes_b = (*(a.shape or ()), *(a.strides or ())), (*(b.shape or ()), *(b.strides or ()))
        if len(sizes_a) != len(sizes_b):
            return False
        for m, n in zip(sizes_a, sizes_b, strict=True):
            if find(_term(m, 0)) != find(_term(n, 1)):
                return False
    return True


def _term(size: int | str, side: int) -> Term:
    return (side, size) if isinstance(size, str) else size


def _terms(variant: Variant, side: int, count: int) -> list[Term]:
    """The sizes that a call's arguments have, in a variant's terms; a scalar may be a size as well."""
    given = given_params(variant, count) or ()
    bound = {size for p in given for size in p.shape or ()}
    terms: list[Term] = []
    for position, param in enumerate(given):
        if param.shape is None:
            # One that a tensor's size has the name of is that size, whatever its value.
            terms.append((side, param.name if param.name not in bound else f"{position}: {param.name}"))
        else:
            terms += [_term(size, side) for size in param.shape]
    return terms


def _unify(pairs: Iterable[tuple[Term, Term]]) -> Callable[[Term], Term] | None:
    """A function to what a term is known to be equal to, if the pairs are; None if they cannot be."""
    parent: dict[Term, Term] = {}

    def find(term: Term) -> Term:
        while term in parent:
            term = parent[term]
        return term

    for left, right in pairs:
        left, right = find(left), find(right)
        if left == right:
            continue
        if isinstance(left, int):
            if isinstance(right, int):
                return None
            left, right = right, left
        parent[left] = right
    return find


def _guard(call: _Call, variant: Variant) -> None:
    """Demand of the sizes what the variant does: at once for what is known, when the program runs for data-dependent ones."""
    sizes: dict[str, Size] = {}
    given = given_params(variant, len(call.args)) or ()
    for position, param in enumerate(given):
        for axis, want, got in _demands(param, call.args[position], call.arguments[position]):
            expected = sizes.setdefault(want, got) if isinstance(want, str) else want
            if expected is got or (isinstance(expected, int) and isinstance(got, int)):
                continue
            text = f"{call.where}: argument {position}: dimension {axis} does not fit {spell_workload(variant)}"
            torch._check(got == expected, lambda text=text: text)


def _demands(param: Param, x: Any, argument: Argument) -> Iterable[tuple[int, int | str, Size]]:
    """Each axis with the size or stride that the parameter wants there, and what the tensor has."""
    if param.shape is None or argument.shape is None:
        return
    for axis, want in enumerate(param.shape):
        yield axis, want, x.shape[axis]
    if param.strides is None or 0 in argument.shape:
        return
    for axis, want in enumerate(param.strides):
        if argument.shape[axis] != 1:
            yield axis, want, x.stride(axis)


def _bind(call: _Call, variant: Variant) -> dict[str, Size]:
    """The value of each symbolic size."""
    given = given_params(variant, len(call.args)) or ()
    sizes: dict[str, Size] = {}
    for param, x in zip(given, call.args, strict=True):
        wanted = [] if param.shape is None else [*zip(param.shape, x.shape, strict=True)]
        if param.shape is not None and param.strides is not None:
            wanted += zip(param.strides, x.stride(), strict=True)
        for want, got in wanted:
            if isinstance(want, str):
                sizes.setdefault(want, got)
    for param, x in zip(given, call.args, strict=True):
        if param.shape is None:
            sizes.setdefault(param.name, x)
    return sizes


def _allocate(where: str, param: Param, sizes: Mapping[str, Size], like: Any) -> Any:
    unknown = [s for s in (*(param.shape or ()), *(param.strides or ())) if isinstance(s, str) and s not in sizes]
    if unknown:
        raise CallError(
            where,
            f"the inputs do not give the size {', '.join(unknown)} of the output {param.name}",
            "Pass the outputs too, after the inputs.",
        )
    dtype = getattr(torch, param.dtype)
    shape = [sizes[s] if isinstance(s, str) else s for s in param.shape or ()]
    if param.strides is None:
        return torch.empty(shape, dtype=dtype, device=like.device)
    strides = [sizes[s] if isinstance(s, str) else s for s in param.strides]
    return torch.empty_strided(shape, strides, dtype=dtype, device=like.device)
