"""The measuring child: loads what would ship through the run-time loader, checks it, times it.

Run as ``python -m tlaot.tune.measuring.measurer cpu`` or ``... cuda:0``; it answers the requests of :mod:`tlaot.tune.measuring.measure`. A kernel that
hangs, crashes or corrupts its context takes this process along and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import SpecError
from ...manifest import FileDigest
from ...runtime.binary import load_function
from ..children.callables import raised
from ..children.child import one_line, serve
from ..specs.spec import Profile
from .bench import BROKEN, Bench, count_arguments, fresh, make_bench, restore
from .check import Tolerance, compare
from .timing import Clock, CudaClock, Visit, WallClock

Announce = Callable[[str], None]

# Bytes of inputs and expected outputs that are kept for workloads that are not in hand.
_KEPT_BYTES = 1 << 30
# Finalists are timed on copies of the tensors in so many places, where they take no more than this.
_PLACES, _PLACED_BYTES = 3, 512 << 20


class WrongResult(Exception):
    """A candidate ran and its output is not the reference's."""


class Measurer:
    """The state of one measuring child: its device and the workload in hand."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._bench: Bench | None = None
        self._benches: dict[str, Bench] = {}
        self._broken: tuple[str, SpecError] | None = None
        self._clocks: dict[str, Clock] = {}
        self._visits: dict[tuple[int, str, int], tuple[Visit, str]] = {}
        self._places: list[list[Any]] = []
        self._turn = 0
        self._spoiled = False

    def answer(self, request: Mapping[str, Any], announce: Announce) -> Mapping[str, Any]:
        """Answer a request.

        ``wake``: say which device and process this is, having imported what it takes. ``prepare``: make the inputs and run the reference.
        ``probe``: time equal pieces of work, to see whether others use the device.
        ``measure``: check one candidate if asked to, and time it shortly. ``check``: check it only. ``rounds``: take the samples of
        several candidates in turns. ``reference``: time that.

        What fails at the stage ``prepare`` is the workload's fault, not the candidate's; an answer ``refused`` is one that no candidate
        can escape: the author's inputs or reference raised. An answer ``spoiled`` is a failure after which
        this process must not be used: memory ran out, or the device's context is lost, which nothing mends.
        """
        if self._spoiled:
            os._exit(70)
        stage = "start"

        def announced(name: str) -> None:
            nonlocal stage
            stage = name
            announce(name)

        try:
            return self._answer(request, announced)
        except Exception as error:
            if not self._lost(error):
                if stage == "prepare" and isinstance(error, SpecError) and _concerns_all(error, request):
                    print(traceback.format_exc(), flush=True)
                    return {"refused": {"where": error.where, "what": error.what, "remedy": error.remedy}}
                raise
            self._spoiled = True
            print(traceback.format_exc(), flush=True)
            return {"spoiled": {"stage": stage, "reason": one_line(error), "detail": traceback.format_exc()}}

    def _answer(self, request: Mapping[str, Any], announce: Announce) -> Mapping[str, Any]:
        op = request["op"]
        if op == "wake":
            return {"device": self._wake(), "pid": os.getpid()}
        if op == "probe":
            announce("probe")
            return {"times": self._clock("auto").probe()}
        announce("prepare")
        bench = self._prepare(request)
        if op == "prepare":
            return {"prepared": True}
        profile = Profile(**request["profile"])
        clock = self._clock(profile.backend)
        if op == "reference":
            announce("time-reference")
            return {} if bench.reference is None else asdict(clock.screen(bench.reference))
        if op == "rounds":
            return self._rounds(bench, request, profile, announce)
        call = _load(request["candidate"], announce)
        tensors = None
        if request["check"] or op == "check":
            announce("check")
            tensors = _check(bench, call, request, announce)
        if op == "check":
            return {"checked": True}
        announce("time")
        if tensors is None:
            tensors = fresh(bench, reuse=True)
            call(*tensors)
            bench.arrays.synchronize()
        else:
            restore(bench, tensors)
        return asdict(clock.screen(partial(call, *tensors), request.get("stop_above")))

    def _wake(self) -> str:
        import tvm_ffi  # noqa: F401 - imports torch, too, where it is installed

        if self._device == "cpu":
            return "cpu"
        import torch

        torch.cuda.set_device(torch.device(self._device))
        torch.cuda.synchronize()
        uuid = str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))
        return f"GPU-{uuid}" if uuid else self._device

    def _prepare(self, request: Mapping[str, Any]) -> Bench:
        key = request["key"]
        if self._broken is not None and self._broken[0] == key:
            raise self._broken[1].with_traceback(
                None
            )  # a slow reference that failed is not run again for every candidate
        if self._bench is None or self._bench.key != key:
            self._bench, self._broken, self._places = self._benches.pop(key, None), None, []
            self._visits.clear()
            if self._bench is None:
                self._make_room()
                try:
                    self._bench = make_bench(self._device, request)
                except SpecError as error:
                    self._broken = key, error
                    raise
            self._benches[key] = self._bench  # the last used one is the last
        return self._bench

    def _make_room(self) -> None:
        """Workloads are screened one after the other and decided later: keep what was made for them, if it is little."""
        while self._benches and sum(map(_size_of, self._benches.values())) > _KEPT_BYTES:
            del self._benches[next(iter(self._benches))]

    def _clock(self, backend: str) -> Clock:
        if backend not in self._clocks:
            self._clocks[backend] = WallClock() if self._device == "cpu" else CudaClock(backend)
        return self._clocks[backend]

    def _rounds(
        self, bench: Bench, request: Mapping[str, Any], profile: Profile, announce: Announce
    ) -> Mapping[str, Any]:
        """Visit candidates in the order that is asked for; they stay loaded from one request to the next.

        All have the same tensors, in another place each turn: where tensors lie in a GPU's memory changes times by a per cent, and
        by another one for each candidate.
        """
        clock = self._clock(profile.backend)
        wanted = {int(candidate["index"]): candidate for candidate in request["candidates"]}
        keys = {index: (index, candidate["digest"]["sha256"]) for index, candidate in wanted.items()}
        for key in [key for key in self._visits if key[:2] not in keys.values()]:
            del self._visits[key]
        if not self._places:
            several = self._device != "cpu" and _size_of(bench) <= _PLACED_BYTES
            self._places = [fresh(bench) for _ in range(_PLACES if several else 1)]
        for index, candidate in wanted.items():
            if (*keys[index], 0) not in self._visits:
                announce(f"load #{index}")
                call = load_function(Path(candidate["path"]), FileDigest(**candidate["digest"]))
                announce(f"time #{index}")
                for place, tensors in enumerate(self._places):
                    restore(bench, tensors)
                    key = (*keys[index], place)
                    self._visits[key] = clock.prepare(partial(call, *tensors), profile.rep)

        def visit(index: int, place: int) -> list[float]:
            announce(f"time #{index}")
            restore(bench, self._places[place])
            key = (*keys[index], place)
            samples = self._visits[key][0]()
            time.sleep(clock.rest(samples))
            return samples

        start = time.monotonic()
        while time.monotonic() - start < request["warmup"] / 1e3:
            for index in request["rounds"][0]:
                visit(index, 0)
        start = time.monotonic()
        visits = []
        for turn in request["rounds"]:
            visits += [[index, visit(index, self._turn % len(self._places))] for index in turn]
            self._turn += 1
        backend = next(iter(self._visits.values()))[1]
        return {"visits": visits, "seconds": time.monotonic() - start, "backend": backend}

    def _lost(self, error: Exception) -> bool:
        """Whether this process is of no use after an error: memory ran out, or the device's context is lost."""
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if self._device == "cpu" or "torch" not in sys.modules:
            return False
        torch = sys.modules["torch"]
        if not torch.cuda.is_initialized():
            return False
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False


def _concerns_all(error: SpecError, request: Mapping[str, Any]) -> bool:
    """Whether a workload's failure says nothing of the candidate that was in hand: an author's function raised.

    What is said of a kernel's signature may be true of one config alone, and so may what raises when it is given the signature.
    """
    return error.__cause__ is not None and request.get("inputs_style") != "supply_prog"


def _size_of(bench: Bench) -> int:
    """Bytes of the tensors that a bench holds: inputs, the reference's copies of them, and what is expected."""
    tensors = [*bench.pristine, *bench.pristine, *(bench.expected or {}).values()]
    return sum(int(getattr(tensor, "nbytes", 0)) for tensor in tensors)


def _load(candidate: Mapping[str, Any], announce: Announce) -> Callable[..., Any]:
    announce("load")
    return load_function(Path(candidate["path"]), FileDigest(**candidate["digest"]))


def _check(bench: Bench, call: Callable[..., Any], request: Mapping[str, Any], announce: Announce) -> list[Any]:
    """Run a candidate once and judge it: by the manual check, the reference's verdict, or its outputs.

    Returns:
        The arguments that it was called with.

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
    return tensors


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
        raise SpecError(f"{where} {what}", raised(error), "Mend the function.") from error
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


def preload(arguments: Sequence[str]) -> None:
    """Import what measuring children of a kind need, ``["cpu"]`` or ``["cuda"]``, once; the driver sleeps on: it does not survive a fork.

    Beside torch, ``tvm_ffi`` asks whether there is a GPU as it is imported, which wakes the driver: on CUDA each child imports it.
    """
    for name in ("numpy", "torch") if arguments[0] == "cuda" else ("numpy", "tvm_ffi"):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def make(arguments: Sequence[str]) -> Callable[[Mapping[str, Any], Announce], Mapping[str, Any]]:
    """What answers the requests of one measuring child."""
    return Measurer(arguments[0]).answer


def main() -> None:
    serve(Measurer(sys.argv[1]).answer, sys.argv)


if __name__ == "__main__":
    main()
