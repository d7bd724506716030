"""The measuring child: loads what would ship through the run-time loader, checks it, times it.

Run as ``python -m tlaot.tune.measurer cpu`` or ``... cuda:0``; it answers the requests of :mod:`tlaot.tune.measure`. A kernel that
hangs, crashes or corrupts its context takes this process along and nothing else.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..manifest import FileDigest, Param, param_from_json
from ..runtime.load import load_function
from .arrays import Arrays, NumpyArrays, TorchArrays, bind_sizes
from .callables import call_with_known, resolve
from .check import Tolerance, compare, pick_outputs
from .child import serve
from .spec import Profile
from .timing import Timing, time_cuda, time_wall

Announce = Callable[[str], None]


class WrongResult(Exception):
    """A candidate ran and its output is not the reference's."""


@dataclass
class Bench:
    """Pristine tensors of the workload that is being measured, and what is right for it."""

    key: str
    params: tuple[Param, ...]
    out_idx: tuple[int, ...]
    pristine: list[Any]
    sizes: Mapping[str, int]
    expected: list[tuple[int, Any]] | None
    verdict: Callable[[list[Any]], Any] | None
    reference: Callable[[], Any] | None


class Measurer:
    """The state of one measuring child: its device and the workload in hand."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._arrays: Arrays | None = None
        self._bench: Bench | None = None

    def answer(self, request: Mapping[str, Any], announce: Announce) -> Mapping[str, Any]:
        """Answer ``measure`` (check and time one candidate), ``reference`` (time it) ``finals`` (time several, interleaved)
        or ``open`` (load packaged files, no device needed)."""
        if request["op"] == "open":
            announce("load")
            for candidate in request["candidates"]:
                load_function(Path(candidate["path"]), FileDigest(**candidate["digest"]))
            return {"opened": len(request["candidates"])}
        announce("prepare")
        if self._arrays is None:
            self._arrays = NumpyArrays() if self._device == "cpu" else TorchArrays(int(self._device.partition(":")[2]))
        arrays = self._arrays
        profile = Profile(**request["profile"])
        bench = self._prepare(arrays, request)
        if request["op"] == "reference":
            announce("time-reference")
            return {} if bench.reference is None else asdict(self._time(bench.reference, profile))
        if request["op"] == "finals":
            return self._finals(arrays, bench, request, profile, announce)
        call = self._load(bench, request["candidate"], announce)
        if request["check"]:
            announce("check")
            self._check(arrays, bench, call, _tolerance(request))
        announce("time")
        tensors = self._fresh(arrays, bench)
        return asdict(self._time(lambda: call(*tensors), profile))

    def _prepare(self, arrays: Arrays, request: Mapping[str, Any]) -> Bench:
        if self._bench is not None and self._bench.key == request["key"]:
            return self._bench
        self._bench = None
        params = tuple(param_from_json(param) for param in request["params"])
        out_idx = tuple(request["out_idx"])
        where = request["where"]
        pristine, sizes = _make_inputs(arrays, params, out_idx, request["inputs"], request["shape"], where)
        expected, verdict, reference = None, None, None
        if request["reference"] is not None:
            function = resolve(request["reference"], f"{where} reference")
            expected, verdict = _expect(arrays, function, params, out_idx, pristine, request["shape"])
            inputs = [arrays.clone(array) for index, array in enumerate(pristine) if index not in out_idx]
            reference = lambda: function(*inputs)  # noqa: E731
        self._bench = Bench(request["key"], params, out_idx, pristine, sizes, expected, verdict, reference)
        return self._bench

    def _load(self, bench: Bench, candidate: Mapping[str, Any], announce: Announce) -> Callable[..., Any]:
        announce("load")
        return load_function(Path(candidate["path"]), FileDigest(**candidate["digest"]))

    def _fresh(self, arrays: Arrays, bench: Bench) -> list[Any]:
        """Arguments of one call: inputs as they were, outputs poisoned."""
        return [
            arrays.poisoned(param, bench.sizes) if index in bench.out_idx else arrays.clone(array)
            for index, (param, array) in enumerate(zip(bench.params, bench.pristine, strict=True))
        ]

    def _check(self, arrays: Arrays, bench: Bench, call: Callable[..., Any], tolerance: Tolerance) -> None:
        tensors = self._fresh(arrays, bench)
        call(*tensors)
        arrays.synchronize()
        for param, before, after in zip(bench.params, bench.pristine, tensors, strict=True):
            if before is not None and not param.written and not arrays.same_bits(before, after):
                raise WrongResult(
                    f"input {param.name} was changed, though the kernel does not declare that it writes it"
                )
        if bench.verdict is not None:
            if bench.verdict(tensors) is False:
                raise WrongResult("the reference function says that the outputs are wrong")
            return
        assert bench.expected is not None
        for index, wanted in bench.expected:
            param = bench.params[index]
            reason = compare(arrays, param.name, param.dtype, tensors[index], wanted, tolerance)
            if reason is not None:
                raise WrongResult(reason)

    def _time(self, call: Callable[[], Any], profile: Profile) -> Timing:
        if self._device == "cpu":
            return time_wall(call, profile.warmup, profile.rep)
        return time_cuda(call, profile.warmup, profile.rep, profile.backend)

    def _finals(
        self, arrays: Arrays, bench: Bench, request: Mapping[str, Any], profile: Profile, announce: Announce
    ) -> Mapping[str, Any]:
        calls = []
        for candidate in request["candidates"]:
            call, tensors = self._load(bench, candidate, announce), self._fresh(arrays, bench)
            calls.append(lambda call=call, tensors=tensors: call(*tensors))
        announce("time")
        rounds = int(request["rounds"])
        share = Profile(profile.warmup / rounds, profile.rep / rounds, profile.timeout, backend=profile.backend)
        timings: list[list[Timing]] = [[] for _ in calls]
        for _ in range(rounds):
            for call, kept in zip(calls, timings, strict=True):
                kept.append(self._time(call, share))
        return {"timings": [[asdict(timing) for timing in kept] for kept in timings]}


def _make_inputs(
    arrays: Arrays,
    params: tuple[Param, ...],
    out_idx: tuple[int, ...],
    inputs: str | None,
    shape: Mapping[str, Any],
    where: str,
) -> tuple[list[Any], dict[str, int]]:
    """Pristine tensors in the order of the parameters, None for outputs, and the symbolic sizes."""
    positions = [index for index in range(len(params)) if index not in out_idx]
    made: list[Any] = [None] * len(params)
    if inputs is None:
        for index in positions:
            made[index] = arrays.random(params[index], {}, index)
        return made, bind_sizes(params, made, where)
    where = f"{where} inputs"
    returned = pick_outputs(call_with_known(resolve(inputs, where), shape))
    if len(returned) != len(positions):
        names = ", ".join(params[index].name for index in positions)
        raise SpecError(
            where, f"{inputs} returned {len(returned)} values, the kernel takes {len(positions)}", f"Return {names}."
        )
    for index, value in zip(positions, returned, strict=True):
        if params[index].shape is not None:
            reason = arrays.check_kind(value, params[index])
            if reason is not None:
                raise SpecError(where, f"{params[index].name} {reason}", "Mend the inputs function.")
        made[index] = value
    return made, bind_sizes(params, made, where)


def _expect(
    arrays: Arrays,
    function: Callable[..., Any],
    params: tuple[Param, ...],
    out_idx: tuple[int, ...],
    pristine: list[Any],
    shape: Mapping[str, Any],
) -> tuple[list[tuple[int, Any]] | None, Callable[[list[Any]], Any] | None]:
    """Run the reference once: what every output must be, or a function that judges all arguments of a call.

    A reference is called with the inputs (all parameters but ``out_idx``) in order. It returns the outputs; or, for a kernel
    that works in place, nothing after having changed its arguments. One that has a parameter for the outputs too, or that returns
    a bool, judges: it is called with all arguments after the kernel has run, and returns False or raises where they are wrong.
    """
    inputs = [arrays.clone(array) for index, array in enumerate(pristine) if index not in out_idx]
    outputs = list(out_idx) or [index for index, param in enumerate(params) if param.written]
    if out_idx and _takes(function, len(params)):
        return None, lambda tensors: function(*tensors)
    returned = function(*inputs)
    if isinstance(returned, bool):
        return None, lambda tensors: function(*tensors)
    if returned is None:
        positions = [index for index in range(len(params)) if index not in out_idx]
        changed = dict(zip(positions, inputs, strict=True))
        missing = [params[index].name for index in outputs if index not in changed]
        if missing:
            raise SpecError(
                "reference", f"returned nothing for the output {missing[0]}", "Return the outputs in order."
            )
        return [(index, changed[index]) for index in outputs], None
    values = pick_outputs(returned)
    if len(values) != len(outputs):
        names = ", ".join(params[index].name for index in outputs)
        raise SpecError("reference", f"returned {len(values)} values for {len(outputs)} outputs", f"Return {names}.")
    return list(zip(outputs, values, strict=True)), None


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function needs exactly this many positional arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(needed) == count


def _tolerance(request: Mapping[str, Any]) -> Tolerance:
    return Tolerance(request["rtol"], request["atol"], request["max_mismatched_ratio"])


def main() -> None:
    serve(Measurer(sys.argv[1]).answer, sys.argv)


if __name__ == "__main__":
    main()
