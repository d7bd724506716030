"""From a packaged kernel to the schema of a torch operator: pure functions on plain data, without torch.

matmul(Tensor A, Tensor B, *, int? K=None, int? M=None, int? N=None) -> Tensor
matmul.out(Tensor A, Tensor B, Tensor(a2!) C, *, int? K=None, int? M=None, int? N=None) -> ()
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..manifest import Param, Variant
from ..runtime.dispatch import describe_params

__all__ = ["Form", "LeftOut", "Operator", "describe_operator", "input_params"]

# How a kernel's parameter is called where no keyword of TorchScript's grammar may be.
_RESERVED = frozenset(
    {"and", "as", "def", "else", "for", "from", "if", "in", "is", "not", "or", "return", "self", "while"}
)


@dataclass(frozen=True)
class Form:
    """One overload of an operator.

    Attributes:
        overload: ``"default"``, which allocates the outputs, or ``"out"``, which takes all parameters.
        schema: What torch is told, ``"matmul(Tensor A, Tensor B) -> Tensor"``.
        names: Names of the positional arguments.
        written: Positions of the arguments that are written in place.
        returned: How many tensors the call returns.
    """

    overload: str
    schema: str
    names: tuple[str, ...]
    written: tuple[int, ...]
    returned: int

    @property
    def name(self) -> str:
        """The operator's name with its overload, as torch.library has it."""
        return self.schema.partition("(")[0]


@dataclass(frozen=True)
class Operator:
    """A kernel that torch can call.

    Attributes:
        name: The kernel's name.
        forms: Its overloads.
        variants: The variants that take torch tensors; they have one signature.
    """

    name: str
    forms: tuple[Form, ...]
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class LeftOut:
    """A kernel that is no operator, and why."""

    name: str
    reason: str


Signature: TypeAlias = tuple[tuple[str, ...], tuple[int, ...]]


def describe_operator(name: str, variants: Sequence[Variant], has_dtype: Callable[[str], bool]) -> Operator | LeftOut:
    """The operator of one kernel.

    Args:
        name: The kernel's name.
        variants: All its variants.
        has_dtype: Whether torch has an element type of a name.
    """
    if not variants:
        return LeftOut(name, "no variant of it is installed here")
    if name == "name":
        return LeftOut(name, "torch.ops.<namespace>.name is the namespace's own name")
    foreign = sorted({p.dtype for v in variants for p in v.params if p.shape is not None and not has_dtype(p.dtype)})
    fitting = tuple(v for v in variants if not any(p.shape is not None and p.dtype in foreign for p in v.params))
    if not fitting:
        return LeftOut(name, f"torch has no dtype {', '.join(foreign)}")
    if not any(p.shape is not None for p in fitting[0].params):
        return LeftOut(name, "it takes no tensor, by which torch would know the device")
    signatures: dict[Signature, Variant] = {}
    for variant in fitting:
        signatures.setdefault(_signature(variant), variant)
    if len(signatures) > 1:
        shown = "; ".join(describe_params(v) for v in signatures.values())
        return LeftOut(name, f"its variants have different signatures, and an operator has one: {shown}")
    return Operator(name, _forms(name, fitting), fitting)


def input_params(variant: Variant) -> tuple[Param, ...]:
    """The parameters that are not outputs."""
    return tuple(p for i, p in enumerate(variant.params) if i not in variant.out_idx)


def _signature(variant: Variant) -> Signature:
    return tuple(_type_of(p) for p in variant.params), variant.out_idx


def _type_of(param: Param) -> str:
    """Symbolic where torch can keep it so: a size that a scalar gives may change without tracing anew."""
    if param.shape is not None:
        return "Tensor"
    if param.dtype == "bool":
        return "bool"
    return "SymInt" if param.dtype.startswith(("int", "uint")) else "float"


def _forms(name: str, variants: Sequence[Variant]) -> tuple[Form, ...]:
    first = variants[0]
    keywords = _keywords(variants)
    taken = set(keywords)
    names = []
    for param in first.params:
        names.append(_free_name(param.name, taken))
        taken.add(names[-1])
    written = {i for v in variants for i, p in enumerate(v.params) if p.written or i in v.out_idx}
    count = len(first.params)
    whole = _form(f"{name}.out" if first.out_idx else name, first, names, written, range(count), keywords, 0)
    if not first.out_idx:
        return (whole,)
    inputs = [i for i in range(count) if i not in first.out_idx]
    # Where no variant's inputs give the sizes of its outputs, or there is no tensor to allocate beside, outputs are passed.
    if not any(first.params[i].shape is not None for i in inputs) or not any(map(_sizes_are_given, variants)):
        return (whole,)
    return _form(name, first, names, written, inputs, keywords, len(first.out_idx)), whole


def _form(
    name: str,
    variant: Variant,
    names: Sequence[str],
    written: set[int],
    positions: Sequence[int],
    keywords: Mapping[str, str],
    returned: int,
) -> Form:
    shown = []
    for i in positions:
        kind = _type_of(variant.params[i])
        shown.append(f"{f'Tensor(a{i}!)' if i in written and kind == 'Tensor' else kind} {names[i]}")
    if keywords:
        shown += ["*", *(f"{kind} {key}=None" for key, kind in keywords.items())]
    returns = {0: "()", 1: "Tensor"}.get(returned, f"({', '.join(['Tensor'] * returned)})")
    return Form(
        overload=name.partition(".")[2] or "default",
        schema=f"{name}({', '.join(shown)}) -> {returns}",
        names=tuple(names[i] for i in positions),
        written=tuple(n for n, i in enumerate(positions) if i in written),
        returned=returned,
    )


def _keywords(variants: Sequence[Variant]) -> dict[str, str]:
    """The factory's arguments that a call may name, each with its type; one of several kinds cannot be named."""
    kinds: dict[str, set[type]] = {}
    for variant in variants:
        for key, value in variant.shape.items():
            kinds.setdefault(key, set()).add(type(value))
    found = {key: _keyword_type(kinds[key] - {type(None)}) for key in sorted(kinds) if _usable(key)}
    return {key: kind for key, kind in found.items() if kind}


def _keyword_type(kinds: set[type]) -> str:
    if len(kinds) == 1:
        return {bool: "bool?", int: "int?", float: "float?", str: "str?"}.get(kinds.copy().pop(), "")
    return "Scalar?" if kinds and kinds <= {bool, int, float} else ""


def _usable(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is not None and name not in _RESERVED


def _free_name(name: str, taken: set[str]) -> str:
    """The parameter's name, or the nearest to it that a schema can have and that is not taken."""
    name = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not _usable(name):
        name = f"{name}_" if name in _RESERVED else f"arg_{name}"
    while name in taken:
        name += "_"
    return name


def _sizes_are_given(variant: Variant) -> bool:
    """Whether the inputs give every size of every output."""
    given: set[Any] = set()
    for param in input_params(variant):
        given |= {param.name} if param.shape is None else {*param.shape, *(param.strides or ())}
    outputs = (variant.params[i] for i in variant.out_idx)
    return all(
        isinstance(size, int) or size in given for p in outputs for size in (*(p.shape or ()), *(p.strides or ()))
    )
