"""From a call's arguments to the FFI function: what the arguments are, and who allocates the outputs.

A call is described once for each combination of types, dtypes, shapes and devices. From the second time on it is a look at
the arguments by a function that was made for their types (``make_probe``), a comparison, and the plain function that
``make_caller`` returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import CallError
from ..manifest import Param, Variant
from ..plain import record
from .dispatch import NONE, Argument, Place, given_params
from .framework import Allocate, Framework, Function, Own
from .frameworks import framework_of

__all__ = [
    "Caller",
    "Described",
    "Probe",
    "bind_strides",
    "bind_symbols",
    "describe",
    "make_caller",
    "make_callers",
    "make_probe",
]

Caller = Callable[[tuple[Any, ...]], Any]
Probe = Callable[[tuple[Any, ...]], Any]


@record(frozen=True)
class Described:
    """A call's arguments as plain data.

    Attributes:
        arguments: Each argument, for dispatch.
        device: DLPack type and ordinal of the tensors' common device; None without a tensor.
        framework: Framework of the first tensor: it allocates the outputs.
        like: The first tensor.
        position: Its position.
    """

    arguments: tuple[Argument, ...]
    device: tuple[int, int] | None
    framework: Framework | None
    like: Any
    position: int


def make_probe(where: str, args: Sequence[Any], strides: bool, dtypes: bool) -> Probe:
    """A function from a call's arguments to its key; None where they are of other types, or more or fewer, than these.

    It is made of source, as dataclasses make theirs: a loop over the arguments would cost more than all that is asked of them.

    Args:
        where: The kernel, for errors.
        args: The arguments of one call.
        strides: Whether some variant of the kernel tells layouts apart.
        dtypes: Whether some variant of the kernel tells dtypes apart.

    Raises:
        CallError: An argument is of a type that no kernel takes.
    """
    names = [f"x{i}" for i in range(len(args))]
    scope: dict[str, Any] = {}
    checks = [f"len(args) == {len(args)}"]
    values: list[str] = []
    placed = False
    for name, arg in zip(names, args, strict=True):
        framework = _known_framework(where, arg)
        scope[f"type_{name}"] = type(arg)
        checks.append(f"type({name}) is type_{name}")
        parts = list(framework.key(strides, dtypes))
        if framework.name not in ("number", "none") and not placed:
            parts += framework.place
            placed = True
        for part in parts:
            if isinstance(part, str):
                values.append(part.format(name))
            else:
                scope[f"ask_{len(values)}"] = part
                values.append(f"ask_{len(values)}({name})")
    unpack = f"    {', '.join(names)}, = args\n" if names else ""
    source = (
        f"def probe(args):\n    if not {checks[0]}:\n        return None\n{unpack}"
        f"    if {' and '.join(checks[1:]) or 'True'}:\n        return ({', '.join([*values, ''])})\n    return None\n"
    )
    exec(source, scope)  # of names and expressions that are all from here
    probe: Probe = scope["probe"]
    return probe


def _known_framework(where: str, arg: Any) -> Framework:
    framework = framework_of(type(arg))
    if framework is not None:
        return framework
    try:
        memoryview(arg)
        remedy = "Pass numpy.asarray(x)."
    except TypeError:
        remedy = "Pass tensors, and Python numbers for scalars."
    kind = type(arg).__qualname__
    what = f"an argument of type {kind} is neither a tensor (torch, numpy, or with __dlpack__) nor a number"
    raise CallError(where, what, remedy)


def describe(where: str, args: Sequence[Any], strides: bool) -> Described:
    """Read what dispatch needs from the arguments.

    Raises:
        CallError: An argument cannot be passed to any kernel, or the tensors are on different devices.
    """
    arguments: list[Argument] = []
    first: tuple[int, tuple[int, int], Framework, Any] | None = None
    for position, arg in enumerate(args):
        framework = _known_framework(where, arg)
        try:
            argument, device = framework.describe(arg, strides)
        except CallError as error:
            raise CallError(f"{where}: argument {position}", error.what, error.remedy) from None
        arguments.append(argument)
        if device is None:
            continue
        if first is None:
            first = position, device, framework, arg
        elif device != first[1]:
            raise CallError(
                where,
                f"argument {position} is on {Place(*device)}, argument {first[0]} on {Place(*first[1])}",
                "Move all tensors to one device.",
            )
    if first is None:
        return Described(tuple(arguments), None, None, None, -1)
    return Described(tuple(arguments), first[1], first[2], first[3], first[0])


def make_callers(
    where: str, variant: Variant, function: Function, call: Described, args: Sequence[Any]
) -> tuple[Caller, Caller]:
    """The plain function that runs a variant on a call's arguments, and on all later ones that look the same; and one to take
    after a BufferError, which passes on what DLPack's export refuses.

    With as many arguments as the kernel has parameters, outputs are the caller's and are written in place;
    with as many as it has inputs, they are allocated, on the inputs' device, by the inputs' framework. Either way
    the outputs are returned as TileLang returns them: one tensor, or a list of several; None without ``out_idx``.

    Raises:
        CallError: Outputs were left out and cannot be allocated.
    """
    given = given_params(variant, len(args)) or ()
    positions = [i for i, param in enumerate(variant.params) if any(param is one for one in given)]
    own: dict[str, tuple[Framework, list[Own]]] = {}
    for position, param, arg in zip(positions, given, args, strict=True):
        framework = _known_framework(where, arg)
        own.setdefault(framework.name, (framework, []))[1].append((position, param, arg))
    for framework, mine in own.values():
        function = framework.protect(function, mine)
    lending = _lending(function, variant.params)
    if len(args) == len(variant.params):
        return _in_place(function, variant.out_idx), _in_place(lending, variant.out_idx)
    return _allocating(where, variant, function, call), _allocating(where, variant, lending, call)


def make_caller(where: str, variant: Variant, function: Function, call: Described, args: Sequence[Any]) -> Caller:
    """The two of :func:`make_callers` as one function."""
    caller, lending = make_callers(where, variant, function, call, args)

    def either(args: tuple[Any, ...]) -> Any:
        try:
            return caller(args)
        except BufferError:
            return lending(args)

    return either


def _lending(function: Function, params: Sequence[Param]) -> Function:
    def lend(param: Param, x: Any) -> Any:
        framework = framework_of(type(x))
        return x if framework is None or framework.lend is None else framework.lend(param, x)

    return lambda *args: function(*[lend(param, x) for param, x in zip(params, args, strict=True)])


def _in_place(function: Function, out_idx: Sequence[int]) -> Caller:
    if not out_idx:
        return lambda args: function(*args)
    if len(out_idx) == 1:
        position = out_idx[0]

        def one(args: tuple[Any, ...]) -> Any:
            function(*args)
            return args[position]

        return one

    def several(args: tuple[Any, ...]) -> Any:
        function(*args)
        return [args[i] for i in out_idx]

    return several


def _allocating(where: str, variant: Variant, function: Function, call: Described) -> Caller:
    params, out_idx = variant.params, variant.out_idx
    if call.framework is None:
        raise CallError(where, "no argument is a tensor, so outputs have no device", "Pass the outputs too.")
    sizes, late = bind_symbols(variant, call.arguments)
    makers = [_output_maker(where, params[i], call, sizes, late) for i in out_idx]
    finish = call.framework.finish
    if finish is None and len(makers) == 1 and out_idx[0] == len(params) - 1:
        make = makers[0]

        def one_last(args: tuple[Any, ...]) -> Any:
            out = make(args)
            function(*args, out)
            return out

        return one_last
    order = _interleaving(len(params), out_idx)

    def general(args: tuple[Any, ...]) -> Any:
        outs = [make(args) for make in makers]
        pool = (*args, *outs)
        function(*[pool[i] for i in order])
        if finish is not None:
            outs = [finish(out) for out in outs]
        return outs[0] if len(outs) == 1 else outs

    return general


def _output_maker(
    where: str, param: Param, call: Described, sizes: Mapping[str, int], late: Mapping[str, int]
) -> Allocate:
    """A function from a call's arguments to a new output; only a size that a scalar gives depends on them."""
    assert call.framework is not None
    shape = param.shape or ()
    unknown = [s for s in shape if isinstance(s, str) and s not in sizes and s not in late]
    if unknown:
        computed = [size for size in unknown if not size.isidentifier()]
        what = f"the inputs do not give the size {', '.join(unknown)} of the output {param.name}"
        if computed:
            what = f"the output {param.name} has the size {computed[0]}, computed from others, which tlaot does not do"
        raise CallError(where, what, "Pass the outputs too, after the inputs.")
    allocator, bound = call.framework.allocator, bind_strides(param, sizes)

    def fixed(scalars: Mapping[str, int], like: Any) -> Allocate:
        known = {**sizes, **scalars}
        try:
            return allocator(bound, like, tuple(known[s] if isinstance(s, str) else s for s in shape))
        except CallError as error:
            raise CallError(f"{where}: {error.where}", error.what, error.remedy) from None

    scalars = {s: late[s] for s in shape if isinstance(s, str) and s in late}
    if not scalars:
        return fixed({}, call.like)
    position = call.position
    return lambda args: fixed({name: int(args[i]) for name, i in scalars.items()}, args[position])(args)


def bind_strides(param: Param, sizes: Mapping[str, int]) -> Param:
    """The parameter with its symbolic strides replaced by the sizes that are known."""
    if param.strides is None:
        return param
    return replace(param, strides=tuple(sizes.get(s, s) if isinstance(s, str) else s for s in param.strides))


def bind_symbols(variant: Variant, arguments: Sequence[Argument]) -> tuple[dict[str, int], dict[str, int]]:
    """Symbolic sizes that the inputs' shapes give, and for those that a scalar gives its position in the call."""
    given = given_params(variant, len(arguments)) or ()
    sizes: dict[str, int] = {}
    late: dict[str, int] = {}
    for position, (param, argument) in enumerate(zip(given, arguments, strict=True)):
        if argument.shape is None:
            if argument.dtype != NONE:
                late[param.name] = position
            continue
        pairs = list(zip(param.shape or (), argument.shape, strict=True))
        if param.strides is not None and argument.strides is not None:
            pairs += zip(param.strides, argument.strides, strict=True)
        for want, got in pairs:
            if isinstance(want, str):
                sizes.setdefault(want, got)
    return sizes, {name: position for name, position in late.items() if name not in sizes}


def _interleaving(count: int, out_idx: Sequence[int]) -> tuple[int, ...]:
    """For each parameter, its position in inputs followed by outputs."""
    inputs = iter(range(count - len(out_idx)))
    return tuple(count - len(out_idx) + out_idx.index(i) if i in out_idx else next(inputs) for i in range(count))
