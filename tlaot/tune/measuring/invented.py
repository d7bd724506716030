"""Inputs of packaged kernels where nobody has the author's: made from the signature, in the measuring child.

``tlaot retune`` runs on a user's machine, without the package's sources. Floats and short integers are drawn at random; integers that may
index another tensor are not invented, since what they point to decides over the time, and over whether the kernel stays in its memory.
What is right is what the variant gives that runs without an overlay: the package's build has checked it.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import SpecError
from ...manifest import FileDigest, Param, param_from_json
from ...runtime.binary import load_function
from ..children.callables import call_with_known, resolve
from ..specs.supply import Supply, kind_of, supply_from_json
from .arrays import Arrays, NumpyArrays, TorchArrays, numpy_hands_over
from .check import pick_outputs

__all__ = ["INPUTS", "REFERENCE", "make_inputs", "run_default", "why_not_invented"]

INPUTS = f"{__name__}:make_inputs"
REFERENCE = f"{__name__}:run_default"

# The workload whose inputs were made last: a measuring child prepares one after the other.
_default: Callable[..., Any] | None = None


def why_not_invented(params: Sequence[Param], out_idx: Sequence[int], supply: Mapping[str, Any]) -> str | None:
    """Why no inputs can be made from a signature; None where they can."""
    ranges = supply_from_json(supply).ranges
    for index, param in enumerate(params):
        if index in out_idx or param.shape is None:
            continue
        if kind_of(param.dtype) is None:
            return f"the input {param.name} has type {param.dtype}, which cannot be drawn"
        wide = re.fullmatch(r"u?int(16|32|64)", param.dtype)
        if wide and param.name not in ranges:
            return f"the input {param.name} holds {param.dtype}, which may index another tensor"
    return None


def make_inputs(
    params: Sequence[Mapping[str, Any]],
    out_idx: Sequence[int],
    scalars: Mapping[str, Any],
    supply: Mapping[str, Any],
    device: str,
    default: Mapping[str, Any],
    workload: Mapping[str, Any],
    given: str | None,
) -> list[Any]:
    """The inputs of a workload, and from then on its default variant as the reference.

    Args:
        params: The signature with all sizes known, as JSON.
        out_idx: Positions of the outputs.
        scalars: Values of scalar parameters by name.
        supply: How random inputs are made.
        device: ``"cpu"`` or ``"cuda:0"``.
        default: ``"path"`` and ``"digest"`` of the default variant's binary.
        workload: Arguments of the factory, for a function that the user gives.
        given: ``"module:function"`` that makes the inputs; None: they are invented.
    """
    global _default
    _default = load_function(Path(default["path"]), FileDigest(**default["digest"]))
    _signature[:] = [(param_from_json(param), index in out_idx) for index, param in enumerate(params)]
    _arrays.clear()
    if given is not None:
        return list(pick_outputs(call_with_known(resolve(given, "inputs"), {**workload, **scalars})))
    _arrays.append(_choose(device, [param for param, _ in _signature]))
    drawn = supply_from_json(supply)
    return [
        _draw(param, index, scalars, drawn, _arrays[0])
        for index, (param, output) in enumerate(_signature)
        if not output
    ]


def run_default(*arguments: Any) -> Any:
    """What the default variant makes of the inputs; what it works on in place it writes there."""
    assert _default is not None
    arrays = _arrays[0] if _arrays else _arrays_of(arguments)
    whole = len(arguments) == len(_signature)
    inputs = iter(arguments)
    every = [next(inputs) if whole or not output else arrays.poisoned(param, {}) for param, output in _signature]
    _default(*every)
    arrays.synchronize()
    for value, (param, output) in zip(every, _signature, strict=True):
        if (output or param.written) and "float" in param.dtype:
            values = arrays.float64(value)
            if bool((values != values).any()):
                raise NotImplementedError(f"the packaged kernel gives NaN in {param.name} for these inputs")
    return None if whole else [value for value, (_, output) in zip(every, _signature, strict=True) if output]


_signature: list[tuple[Param, bool]] = []
_arrays: list[Arrays] = []


def _choose(device: str, params: Sequence[Param]) -> Arrays:
    if device != "cpu":
        return TorchArrays(device)
    fine = all(numpy_hands_over(param.dtype) for param in params if param.shape is not None)
    return NumpyArrays() if fine and importlib.util.find_spec("numpy") else TorchArrays("cpu")


def _arrays_of(arguments: Sequence[Any]) -> Arrays:
    torch = sys.modules.get("torch")
    tensor = next((a for a in arguments if torch is not None and isinstance(a, torch.Tensor)), None)
    return NumpyArrays() if tensor is None else TorchArrays(str(tensor.device))


def _draw(param: Param, index: int, scalars: Mapping[str, Any], supply: Supply, arrays: Arrays) -> Any:
    if param.shape is not None:
        return arrays.supply(param, {}, index, supply)
    if param.name not in scalars:
        raise SpecError(f"scalar {param.name}", "has no value", f"Give it one: --shape {param.name}=...")
    return scalars[param.name]
