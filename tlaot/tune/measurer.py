"""The measuring child: loads what would ship through the run-time loader, checks it, times it.

Run as ``python -m tlaot.tune.measurer cpu`` or ``... cuda:0``; it answers the requests of :mod:`tlaot.tune.measure`. A kernel that
hangs, crashes or corrupts its context takes this process along and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..manifest import FileDigest
from ..runtime.load import load_function
from .bench import BROKEN, Bench, count_arguments, fresh, make_bench
from .check import Tolerance, compare
from .child import one_line, serve
from .spec import Profile
from .timing import Timing, time_cuda, time_wall

Announce = Callable[[str], None]


class WrongResult(Exception):
    """A candidate ran and its output is not the reference's."""


class Measurer:
    """The state of one measuring child: its device and the workload in hand."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._bench: Bench | None = None
        self._broken: tuple[str, SpecError] | None = None

    def answer(self, request: Mapping[str, Any], announce: Announce) -> Mapping[str, Any]:
        """Answer a request.

        ``measure``: check one candidate if asked to, and time it. ``check``: check it only. ``reference``: time that.
        ``finals``: time several candidates in turns. ``prepare``: make the inputs and run the reference, nothing else.
        ``open``: load packaged files, which needs no device.

        What fails at the stage ``prepare`` is the workload's fault, not the candidate's.
        """
        if request["op"] == "open":
            announce("load")
            for candidate in request["candidates"]:
                load_function(Path(candidate["path"]), FileDigest(**candidate["digest"]))
            return {"opened": len(request["candidates"])}
        announce("prepare")
        bench = self._prepare(request)
        if request["op"] == "prepare":
            return {"prepared": True}
        profile = Profile(**request["profile"])
        if request["op"] == "reference":
            announce("time-reference")
            return {} if bench.reference is None else asdict(self._time(bench.reference, profile))
        if request["op"] == "finals":
            return self._finals(bench, request, profile, announce)
        call = _load(request["candidate"], announce)
        if request["check"] or request["op"] == "check":
            announce("check")
            _check(bench, call, request, announce)
        if request["op"] == "check":
            return {"checked": True}
        announce("time")
        tensors = fresh(bench, reuse=True)
        return asdict(self._time(lambda: call(*tensors), profile, request.get("stop_above")))

    def _prepare(self, request: Mapping[str, Any]) -> Bench:
        key = request["key"]
        if self._broken is not None and self._broken[0] == key:
            raise self._broken[1]  # a slow reference that failed is not run again for every candidate
        if self._bench is None or self._bench.key != key:
            self._bench, self._broken = None, None
            try:
                self._bench = make_bench(self._device, request)
            except SpecError as error:
                self._broken = key, error
                raise
        return self._bench

    def _time(self, call: Callable[[], Any], profile: Profile, stop_above: float | None = None) -> Timing:
        if self._device == "cpu":
            return time_wall(call, profile.warmup, profile.rep, stop_above)
        return time_cuda(call, profile.warmup, profile.rep, profile.backend, stop_above)

    def _finals(
        self, bench: Bench, request: Mapping[str, Any], profile: Profile, announce: Announce
    ) -> Mapping[str, Any]:
        calls = []
        for candidate in request["candidates"]:
            call, tensors = _load(candidate, announce), fresh(bench)
            calls.append(lambda call=call, tensors=tensors: call(*tensors))
        announce("time")
        rounds = int(request["rounds"])
        share = Profile(profile.warmup / rounds, profile.rep / rounds, profile.timeout, backend=profile.backend)
        timings: list[list[Timing]] = [[] for _ in calls]
        for _ in range(rounds):
            for call, kept in zip(calls, timings, strict=True):
                kept.append(self._time(call, share))
        return {"timings": [[asdict(timing) for timing in kept] for kept in timings]}


def _load(candidate: Mapping[str, Any], announce: Announce) -> Callable[..., Any]:
    announce("load")
    return load_function(Path(candidate["path"]), FileDigest(**candidate["digest"]))


def _check(bench: Bench, call: Callable[..., Any], request: Mapping[str, Any], announce: Announce) -> None:
    """Run a candidate once and judge it: by the manual check, the reference's verdict, or its outputs.

    Raises:
        WrongResult: It is wrong.
        SpecError: What judges is broken; the stage ``prepare`` has been announced.
    """
    arrays = bench.arrays
    tensors = fresh(bench, reuse=True)
    call(*tensors)
    arrays.synchronize()
    for param, before, after in zip(bench.params, bench.pristine, tensors, strict=True):
        if before is not None and not param.written and not arrays.same_bits(before, after):
            raise WrongResult(f"input {param.name} was changed, though the kernel does not declare that it writes it")
    written = sorted({*bench.out_idx, *(index for index, param in enumerate(bench.params) if param.written)})
    first = [arrays.clone(tensors[index]) for index in written] if request.get("deterministic") else []
    if bench.verdict is not None:
        _ask(bench.verdict, (tensors,), "reference", request["where"], announce)
    if bench.manual_check is not None:
        _check_by_hand(bench, bench.manual_check, tensors, request["where"], announce)
    elif bench.expected is not None:
        tolerance = Tolerance(request["rtol"], request["atol"], request["max_mismatched_ratio"])
        for index, wanted in sorted(bench.expected.items()):
            param = bench.params[index]
            reason = compare(arrays, param.name, param.dtype, tensors[index], wanted, tolerance)
            if reason is not None:
                raise WrongResult(reason)
    if request.get("deterministic"):
        _repeat(bench, call, written, first)


def _check_by_hand(
    bench: Bench, manual_check: Callable[..., Any], tensors: Sequence[Any], where: str, announce: Announce
) -> None:
    """Have the author's function compare; it gets copies of what the reference gave, which is None without one."""
    expected = bench.expected
    outputs = [tensors[index] for index in bench.outputs]
    wanted = None
    if expected is not None:
        wanted = [bench.arrays.clone(expected.get(index)) for index in bench.outputs]
    both = count_arguments(manual_check) != (1, 1)
    _ask(manual_check, (outputs, wanted) if both else (outputs,), "manual check", where, announce)


def _ask(function: Callable[..., Any], arguments: tuple[Any, ...], what: str, where: str, announce: Announce) -> None:
    try:
        right = function(*arguments)
    except BROKEN as error:
        announce("prepare")
        raise SpecError(f"{where} {what}", f"raised {one_line(error)}", "Mend the function.") from error
    except Exception as error:
        raise WrongResult(f"the {what} says that the outputs are wrong: {one_line(error)}") from error
    if right is not None and getattr(right, "ndim", 0) == 0 and not right:
        raise WrongResult(f"the {what} says that the outputs are wrong")


def _repeat(bench: Bench, call: Callable[..., Any], written: Sequence[int], first: Sequence[Any]) -> None:
    """Run a candidate again on the same data; atomics in no fixed order and races show."""
    tensors = fresh(bench)
    call(*tensors)
    bench.arrays.synchronize()
    for index, before in zip(written, first, strict=True):
        if not bench.arrays.same_bits(before, tensors[index]):
            raise WrongResult(
                f"not deterministic: two runs on the same data give different bits in {bench.params[index].name}"
            )


def main() -> None:
    serve(Measurer(sys.argv[1]).answer, sys.argv)


if __name__ == "__main__":
    main()
