"""The bench of a workload: its inputs, and what is right for it; made once, and the same for every candidate."""

from __future__ import annotations

import inspect
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import SpecError
from ...manifest import Param, param_from_json
from ..children.callables import bind_known, call_with_known, raised, resolve
from ..specs.supply import InputParam, Supply, supply_from_json, validate_supply
from .arrays import Arrays, NumpyArrays, TorchArrays, bind_sizes, numpy_hands_over
from .check import pick_outputs
from .transport import read_tensors

__all__ = ["BROKEN", "Bench", "count_arguments", "fresh", "make_bench", "restore"]

# What an author's function raises when it is broken; anything else may be its verdict.
BROKEN = (NameError, AttributeError, ImportError, TypeError, NotImplementedError, MemoryError)


@dataclass
class Bench:
    """What the candidates of one workload share.

    Attributes:
        key: Of the request that it was made for.
        arrays: The library of its tensors.
        params, out_idx: The kernel's signature.
        outputs: Positions of what the kernel writes and nobody passes in, or else of all that it writes.
        pristine: Inputs in the order of the parameters, None for ``out_idx``.
        sizes: Values of symbolic sizes.
        expected: The right content of parameters, by position; None where no reference gives it.
        verdict: Judges all arguments of a call: raises or returns False where they are wrong.
        manual_check: The author's comparison, of the outputs with the expected ones.
        reference: One call of the reference, to be timed; None for one that only judges.
        reuse: Whether candidates get the same memory, filled anew for each.
    """

    key: str
    arrays: Arrays
    params: tuple[Param, ...]
    out_idx: tuple[int, ...]
    outputs: tuple[int, ...]
    pristine: list[Any]
    sizes: Mapping[str, int]
    expected: dict[int, Any] | None = None
    verdict: Callable[[Sequence[Any]], Any] | None = None
    manual_check: Callable[..., Any] | None = None
    reference: Callable[[], Any] | None = None
    reuse: bool = False
    _work: list[Any] | None = field(default=None, repr=False)


def make_bench(device: str, request: Mapping[str, Any]) -> Bench:
    """Make the inputs and run the reference.

    Raises:
        SpecError: The inputs, the reference or the manual check are wrong: the workload's fault, no candidate's.
    """
    params = tuple(param_from_json(param) for param in request["params"])
    out_idx = tuple(request["out_idx"])
    supply = supply_from_json(request.get("supply"))
    _seed_everything(supply.seed)
    given = _given_values(request, params, out_idx, device)
    asked = request.get("arrays")
    arrays = _choose_arrays(device, asked, params, given)
    try:
        return _make_bench(arrays, request, params, out_idx, supply, given)
    except SpecError as error:
        # A reference that is written for torch fails so on numpy's arrays.
        unfit = isinstance(error.__cause__, (TypeError, AttributeError)) and isinstance(arrays, NumpyArrays)
        if not unfit or given is not None or asked is not None or "torch" not in sys.modules:
            raise
        try:
            return _make_bench(TorchArrays("cpu"), request, params, out_idx, supply, given)
        except Exception:
            pass  # the first error is the one to read
        raise


def fresh(bench: Bench, reuse: bool = False) -> list[Any]:
    """Arguments of one call: inputs as they were, outputs poisoned.

    Args:
        bench: The workload's bench.
        reuse: Whether the tensors of the last such call may be filled anew, where the bench says so.
    """
    arrays = bench.arrays
    if reuse and bench.reuse and bench._work is not None:
        for index, (param, array) in enumerate(zip(bench.params, bench._work, strict=True)):
            if param.shape is None:
                continue
            if index in bench.out_idx:
                arrays.poison(array, param)
            else:
                arrays.copy_into(array, bench.pristine[index])
        return list(bench._work)
    made = [
        arrays.poisoned(param, bench.sizes) if index in bench.out_idx else arrays.clone(bench.pristine[index])
        for index, param in enumerate(bench.params)
    ]
    if reuse and bench.reuse:
        bench._work = list(made)
    return made


def restore(bench: Bench, tensors: Sequence[Any]) -> None:
    """Fill what a kernel works on in place as it was; what it only reads is so, and what it only writes does not matter."""
    for index, param in enumerate(bench.params):
        if param.written and param.shape is not None and index not in bench.out_idx:
            bench.arrays.copy_into(tensors[index], bench.pristine[index])


def count_arguments(function: Callable[..., Any]) -> tuple[int, float] | None:
    """The least and the largest number of positional arguments that a function takes; None where it does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    most = float("inf") if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)
    return sum(p.default is p.empty for p in positional), most


def _make_bench(
    arrays: Arrays,
    request: Mapping[str, Any],
    params: tuple[Param, ...],
    out_idx: tuple[int, ...],
    supply: Supply,
    given: list[Any] | None,
) -> Bench:
    where = request["where"]
    if given is None:
        validate_supply(params, out_idx, where, supply)
        pristine = [
            None if index in out_idx else arrays.supply(param, {}, index, supply) for index, param in enumerate(params)
        ]
    else:
        pristine = _place(arrays, params, out_idx, given, f"{where} inputs")
    written = tuple(index for index, param in enumerate(params) if param.written)
    bench = Bench(
        request["key"],
        arrays,
        params,
        out_idx,
        out_idx or written,
        [None if index in out_idx else value for index, value in enumerate(pristine)],
        bind_sizes(params, pristine, f"{where} inputs"),
        reuse=bool(request.get("cache_input_tensors", False)),
    )
    if request["check"] and request.get("manual_check") is not None:
        bench.manual_check = _with_options(request, "manual_check", params)
    if request["reference"] is not None:
        function = _with_options(request, "reference", params)
        _seed_everything(supply.seed)
        _consult(bench, function, f"{where} reference")
        if not request["check"]:
            bench.expected, bench.verdict = None, None
    return bench


def _with_options(request: Mapping[str, Any], role: str, params: Sequence[Param]) -> Any:
    """What the author named as reference or manual check, with the factory's arguments as its options."""
    where = f"{request['where']} {role.replace('_', ' ')}"
    return bind_known(resolve(request[role], where), request["shape"], [param.name for param in params], where)


def _seed_everything(seed: int) -> None:
    """An author's function that draws numbers gives the same ones in every child."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _given_values(
    request: Mapping[str, Any], params: Sequence[Param], out_idx: Sequence[int], device: str
) -> list[Any] | None:
    """Inputs that the author gave: captured tensors come before a function; None where they are to be generated."""
    carried = request.get("inputs_file")
    if carried is not None:
        description = carried if isinstance(carried, Mapping) else json.loads(Path(carried).read_bytes())
        return read_tensors(description, device)
    name = request["inputs"]
    if name is None:
        return None
    where = f"{request['where']} inputs"
    function = resolve(name, where)
    try:
        if request.get("inputs_style", "inputs") != "supply_prog":
            returned = call_with_known(function, request["shape"])
        elif count_arguments(function) == (0, 0):
            returned = function()
        else:
            returned = function([InputParam.of(p) for index, p in enumerate(params) if index not in out_idx])
    except Exception as error:
        raise SpecError(where, f"{_name_of(function)} {raised(error)}", "Mend the inputs function.") from error
    return list(pick_outputs(returned))


def _choose_arrays(device: str, asked: str | None, params: Sequence[Param], given: Sequence[Any] | None) -> Arrays:
    """torch on CUDA; on the CPU what the given tensors are of, or else numpy where it has all the types."""
    if device != "cpu":
        return TorchArrays(device)
    if asked is not None:
        return TorchArrays(device) if asked == "torch" else NumpyArrays()
    if any(type(value).__module__.partition(".")[0] == "torch" for value in given or ()):
        return TorchArrays(device)
    tensors = [param.dtype for param in params if param.shape is not None]
    if all(map(numpy_hands_over, tensors)):
        return NumpyArrays()
    try:
        return TorchArrays(device)
    except ImportError:
        return NumpyArrays()


def _place(
    arrays: Arrays, params: Sequence[Param], out_idx: Sequence[int], given: Sequence[Any], where: str
) -> list[Any]:
    """Given values in the order of the parameters; None for outputs that were left out."""
    inputs = [index for index in range(len(params)) if index not in out_idx]
    if len(given) not in (len(inputs), len(params)):
        names = ", ".join(params[index].name for index in inputs)
        every = ", ".join(param.name for param in params)
        also = f", or {len(params)} with its outputs ({every})" if out_idx else ""
        raise SpecError(where, f"the kernel takes {len(inputs)} ({names}){also}, got {len(given)}", f"Give {names}.")
    positions = inputs if len(given) == len(inputs) else range(len(params))
    placed: list[Any] = [None] * len(params)
    for index, value in zip(positions, given, strict=True):
        param = params[index]
        adopted = arrays.adopt(value)
        if param.shape is not None:
            reason = arrays.check_kind(adopted, param)
            if reason is not None:
                raise SpecError(where, f"{param.name} {reason}", "Mend the inputs.")
        elif hasattr(adopted, "item"):
            adopted = adopted.item()
        elif not isinstance(adopted, (bool, int, float)):
            raise SpecError(
                where, f"{param.name} is a {type(adopted).__name__}, the kernel takes a number", "Mend the inputs."
            )
        placed[index] = adopted
    return placed


def _consult(bench: Bench, function: Callable[..., Any], where: str) -> None:
    """Run the reference once and take down what it says.

    It is called with the inputs (all parameters but ``out_idx``), with all parameters, or with those that the kernel only reads:
    whichever its signature fits first, or, where several fit, whichever it does not fail with. It returns the outputs; or
    nothing, having changed its arguments as the kernel does; or, where it gets the outputs, it judges: it returns a bool,
    or raises where they are wrong.
    """
    styles = _styles(bench, function, where)
    failure: Exception | None = None
    for positions in styles:
        before = _arguments(bench, positions)
        arguments = [bench.arrays.clone(argument) for argument in before]
        try:
            returned = function(*arguments)
            bench.arrays.synchronize()
        except Exception as error:
            if not isinstance(error, BROKEN) and set(positions) & {*bench.out_idx, *bench.outputs}:
                bench.verdict = _judge(function, positions)  # it was shown poisoned outputs and objects, as it should
                return
            failure = failure or error
            continue
        _take_down(bench, function, positions, before, arguments, returned, where)
        return
    assert failure is not None
    raise SpecError(where, f"{_name_of(function)} {raised(failure)}", "Mend the reference.") from failure


def _styles(bench: Bench, function: Callable[..., Any], where: str) -> list[list[int]]:
    """The sets of parameters that a reference's signature takes, the likeliest first."""
    every = list(range(len(bench.params)))
    inputs = [index for index in every if index not in bench.out_idx]
    read = [index for index in inputs if not bench.params[index].written]
    styles = [style for n, style in enumerate((inputs, every, read)) if style not in (inputs, every, read)[:n]]
    bounds = count_arguments(function)
    fitting = [style for style in styles if bounds is None or bounds[0] <= len(style) <= bounds[1]]
    if not fitting:
        raise SpecError(
            where,
            f"{_name_of(function)} does not take the kernel's {len(inputs)} inputs "
            f"({', '.join(bench.params[index].name for index in inputs)})",
            "Give it a parameter for each, in order.",
        )
    least = -1 if bounds is None else bounds[0]
    return sorted(fitting, key=lambda style: len(style) != least)  # its options are rather its own than parameters


def _take_down(
    bench: Bench,
    function: Callable[..., Any],
    positions: Sequence[int],
    before: Sequence[Any],
    arguments: Sequence[Any],
    returned: Any,
    where: str,
) -> None:
    """Read what a reference returned, or did to its arguments."""
    arrays, params = bench.arrays, bench.params
    if _is_bool(returned):
        if not set(positions) & {*bench.out_idx, *bench.outputs}:
            raise SpecError(
                where,
                "returned a bool without having been given the outputs",
                "Let it take them, or return what is right.",
            )
        if _accepts_poison(bench, function, positions):
            raise SpecError(where, "finds outputs right that were never written", "Let it compare, or set skip_check.")
        bench.verdict = _judge(function, positions)
        return
    changed = {
        index: after
        for index, old, after in zip(positions, before, arguments, strict=True)
        if params[index].shape is not None
        and (index in bench.out_idx or params[index].written)
        and not arrays.same_bits(old, after)
    }
    if returned is None:
        unwritten = [
            params[index].name for index in bench.out_idx if index not in changed and 0 not in _shape_of(bench, index)
        ]
        if unwritten:
            raise SpecError(
                where, f"neither returned nor wrote the output {unwritten[0]}", "Return the outputs in order."
            )
        whole = dict(zip(positions, arguments, strict=True))
        missing = [params[index].name for index in bench.outputs if index not in whole]
        if missing:
            raise SpecError(where, f"returned nothing for the output {missing[0]}", "Return the outputs in order.")
        bench.expected = {**{index: whole[index] for index in bench.outputs}, **changed}
    else:
        bench.expected = {**changed, **_returned(bench, returned, where)}
    inputs = [arrays.clone(argument) for argument in before]
    bench.reference = lambda: function(*inputs)


def _accepts_poison(bench: Bench, function: Callable[..., Any], positions: Sequence[int]) -> bool:
    """Whether a judge is none: it finds outputs right that hold nothing but NaN, or the largest integers."""
    written = {index for index in (*bench.out_idx, *bench.outputs) if 0 not in _shape_of(bench, index)}
    if not written & set(positions):
        return False
    arrays = bench.arrays
    arguments = [
        arrays.poisoned(bench.params[index], bench.sizes) if index in written else arrays.clone(bench.pristine[index])
        for index in positions
    ]
    try:
        return bool(function(*arguments))
    except Exception:
        return False


def _returned(bench: Bench, returned: Any, where: str) -> dict[int, Any]:
    """Returned tensors by position; the author leaves out what None stands for."""
    values = pick_outputs(returned)
    written = sorted({*bench.out_idx, *(index for index, param in enumerate(bench.params) if param.written)})
    outputs = bench.outputs if len(values) == len(bench.outputs) else written
    if len(values) != len(outputs):
        names = ", ".join(bench.params[index].name for index in bench.outputs)
        raise SpecError(where, f"returned {len(values)} values for {len(bench.outputs)} outputs", f"Return {names}.")
    kept = {index: value for index, value in zip(outputs, values, strict=True) if value is not None}
    if not kept and values:
        raise SpecError(where, "returned None for every output", "Return at least one.")
    return kept


def _arguments(bench: Bench, positions: Sequence[int]) -> list[Any]:
    return [
        bench.arrays.poisoned(bench.params[index], bench.sizes) if index in bench.out_idx else bench.pristine[index]
        for index in positions
    ]


def _judge(function: Callable[..., Any], positions: Sequence[int]) -> Callable[[Sequence[Any]], Any]:
    return lambda tensors: function(*(tensors[index] for index in positions))


def _shape_of(bench: Bench, index: int) -> tuple[int, ...]:
    return tuple(bench.sizes[s] if isinstance(s, str) else s for s in bench.params[index].shape or ())


def _is_bool(value: Any) -> bool:
    """A Python bool, or the bool of an array library; a tensor of bools with a dimension is an output."""
    return isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"))


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__name__)
