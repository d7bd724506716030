"""Kernels that go wrong as their config says: copied into the throw-away package that the fault tests tune.

TVM is imported where a kernel is made only. ``work`` is how often a kernel does what it need not: candidates differ in it, so that
the fastest is known beforehand and no two give the same binary.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any


def copy(N: int, work: int = 0, fault: str = "") -> Any:
    """B = A. A fault whose name begins with "kernel-" is one of the kernel, any other strikes while it is made."""
    _note("factory", f"{N} {work}")
    if fault and not fault.startswith("kernel-"):
        _strike(fault)
    from tvm.script import tirx as T  # noqa: N812

    if fault == "kernel-segfault":

        @T.prim_func(s_tir=True)
        def copy(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for i in T.serial(N):
                B[T.int64(i) + T.int64(1 << 44)] = A[i] * T.float32(work)

        return copy
    if fault in ("kernel-overrun", "kernel-nudge"):
        beyond = N * 64 if fault == "kernel-overrun" else N + 8

        @T.prim_func(s_tir=True)
        def copy(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for i in T.serial(beyond):
                B[i] = T.float32(1e30) + T.float32(work)

        return copy
    if fault == "kernel-spin":

        @T.prim_func(s_tir=True)
        def copy(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for _i in T.serial(T.int64(1) << T.int64(60)):
                B[0] = B[0] * T.float32(work) + A[0]

        return copy
    if fault in ("kernel-abort", "kernel-hang"):
        function = "abort" if fault == "kernel-abort" else "pause"

        @T.prim_func(s_tir=True)
        def copy(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for i in T.serial(N):
                B[i] = A[i] * T.float32(work)
            T.evaluate(T.call_extern("int32", function))

        return copy
    if fault == "kernel-exit":

        @T.prim_func(s_tir=True)
        def copy(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for i in T.serial(N):
                B[i] = A[i] * T.float32(work)
            T.evaluate(T.call_extern("int32", "_exit", 0))

        return copy
    if fault == "kernel-wrong":

        @T.prim_func(s_tir=True)
        def copy(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for i in T.serial(N):
                B[i] = A[i] * T.float32(1 + 1 / (1 + work))

        return copy
    assert not fault.startswith("kernel-"), fault

    @T.prim_func(s_tir=True)
    def copy(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
        for _t in T.serial(work):
            for i in T.serial(N):
                B[i] = B[i] * T.float32(0.5) + A[N - 1 - i] * T.float32(0.5)
        for i in T.serial(N):
            B[i] = A[i]

    return copy


def _strike(fault: str) -> None:
    if fault == "raise":
        raise ValueError("this config is refused")
    if fault == "recursion":
        _strike(fault)
    if fault == "exit":
        os._exit(3)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "abort":
        os.abort()
    if fault == "close":  # what the protocol and the log are written to
        os.closerange(1, 256)
    if fault == "spin":
        while True:
            pass
    if fault == "hang":
        with contextlib.suppress(BaseException):  # nor does it go for an exception
            while True:
                time.sleep(1000)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "blocked":  # deaf for every signal that can be blocked
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(1000)
    if fault == "children":  # that outlive it
        for _ in range(3):
            if os.fork() == 0:
                time.sleep(1000)
        os._exit(4)
    if fault == "memory":
        exhausted = []
        try:
            while True:  # the address space alone: the machine's memory is not the limit here
                exhausted.append(mmap.mmap(-1, 1 << 26))
        except OSError:
            raise MemoryError from None
    if fault == "memory-at-once":
        bytearray(1 << 50)
    if fault == "memory-limit":  # nothing is left for what comes after the factory either
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
        bytearray(1 << 24)
    if fault == "late":  # the first time, and never again
        time.sleep(60 if _count("late") == 0 else 0)
        return
    raise AssertionError(f"the fault {fault!r} did not strike")


def reference(a: Any) -> Any:
    return a.copy()


def inputs(N: int) -> list[Any]:
    """Inputs whose making goes wrong when the environment says so: always, or every other time."""
    import numpy

    fault, when = os.environ.get("FAULTY_INPUTS", ":never").split(":")
    turn = _count("inputs")
    if when == "always" or (when == "every-other" and turn % 2 == 1):
        if fault == "memory":
            numpy.ones(1 << 50)
        if fault == "kill":  # as the kernel does with who took too much
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(1000)
    return [numpy.arange(N, dtype="float32")]


def _note(name: str, text: str) -> None:
    """A line in the notes of what ran, in one write."""
    folder = os.environ.get("FAULTY_NOTES")
    if folder:
        with contextlib.suppress(OSError), open(Path(folder) / name, "ab", buffering=0) as file:
            file.write(f"{text}\n".encode())


def _count(name: str) -> int:
    """How many calls there were before this one."""
    turn = 0
    while True:
        try:
            os.close(os.open(Path(os.environ["FAULTY_NOTES"]) / f"{name}-{turn}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            turn += 1
        else:
            return turn
