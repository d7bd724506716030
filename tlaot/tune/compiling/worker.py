"""The compiling worker: a process that serves one frontend and makes finished ``executable.so`` files.

A fork server prepares it (:func:`preload`, :func:`make`); it answers the requests of :mod:`tlaot.tune.compiling.compile`.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...atomic import dump_json, write_atomically
from ...elf import is_elf
from ...errors import BuildError, SpecError
from ...keys import decode
from ...manifest import param_to_json
from ...target import Target, read_target
from ..children.bound import Bound
from ..children.callables import check_callables, expand_configs, expand_shapes, resolve
from ..children.child import Rejected
from ..frontends import Lowered, import_frontend, tilelang_headers
from ..specs.dynamic import grid_of, open_shape, refuse_both
from ..specs.plan import canonical
from .devices import device_for, impersonate
from .limits import find_excess, find_excess_after_compiling, find_excess_in_error
from .link import link_executable
from .nvcc import DeviceCode, compile_cuda, preload_cuda
from .precompiled import Headers
from .toolchain import CudaCompiler, HostCompiler, Toolchain

Announce = Callable[[str], None]
Answer = Callable[[Mapping[str, Any], Announce], Mapping[str, Any]]


# Of the fork server and all its children.
_headers: Headers | None = None


def preload(arguments: Sequence[str]) -> list[int]:
    """Import a frontend, once for all workers of a kind; meanwhile the headers of its CUDA sources are precompiled.

    Args:
        arguments: The frontend; for a CUDA target also that, and the overrides of its device as JSON. Device queries are answered
            before anything is imported that may ask.

    Returns:
        The processes that it started and that nobody waits for.
    """
    global _headers
    started: list[int] = []
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one worker a core: its libraries must not start teams
    if arguments[1:]:
        target = read_target(arguments[1])
        _impersonate(target, json.loads(arguments[2]))
        if target.is_cuda:
            common, flags = _usual_headers(arguments[0], target)
            _headers, started = preload_cuda(os.environ, target, common, flags)
    import_frontend(arguments[0])
    return started


def _usual_headers(frontend: str, target: Target) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What most sources of a frontend include, and the flags that they are compiled with."""
    flags = tilelang_headers.default_flags(os.environ) if frontend == "tilelang" else None
    return ((), ()) if flags is None else (tilelang_headers.common_headers(target.sm), flags)


def make(arguments: Sequence[str]) -> Answer:
    """What answers the requests of one worker."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return Worker(arguments[0]).answer


def _impersonate(target: Target, overrides: Mapping[str, Any]) -> dict[str, int | str]:
    return impersonate(device_for(target, overrides)) if target.is_cuda else {}


class Worker:
    """The state of one worker process: its frontend, and what its author's modules asked of the target's device."""

    def __init__(self, frontend: str) -> None:
        self._name = frontend
        self._asked: dict[str, int | str] = {}

    def answer(self, request: Mapping[str, Any], announce: Announce) -> Mapping[str, Any]:
        """Answer ``expand`` (shapes and configs) or ``build`` (one candidate)."""
        target = read_target(request["target"])
        announce("start")
        self._asked = _impersonate(target, request["device"])
        if request["op"] == "expand":
            announce("expand")
            try:
                return self._expand(request)
            except SpecError as error:
                print(traceback.format_exc(), flush=True)
                return {"wrong": [error.where, error.what, error.remedy]}
        with _temporary_files(Path(request["scratch"])):
            return self._build(request, target, announce)

    def _expand(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        check_callables(request["callables"], request["where"])
        shapes = expand_shapes(request["shapes"], request["where"])
        return {
            "frontend": import_frontend(self._name).versions(),
            "workloads": [
                {"shape": open_shape(request["dynamic"], shape), "configs": _configs_of(request, shape)}
                for shape in shapes
            ],
        }

    def _build(self, request: Mapping[str, Any], target: Target, announce: Announce) -> Mapping[str, Any]:
        toolchain = _toolchain(request["toolchain"])
        announce("elaborate")
        frontend = import_frontend(self._name)
        factory = resolve(request["factory"], request["where"])
        shape = decode(request["shape"], f"{request['where']} shapes")
        config = decode(request["config"], f"{request['where']} configs")
        if isinstance(factory, Bound):
            factory, shape, config = factory.unwrap(shape, config)
        announce("lower")
        out_idx = request["out_idx"]
        lowered = _without_places(
            frontend.lower(factory, shape, config, target, request["pass_configs"], out_idx), sys.path
        )
        names = [lowered.params[index].name for index in lowered.out_idx]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise TypeError(f"out_idx names the parameter {sorted(twice)[0]} twice")
        scratch, out = Path(request["scratch"]), Path(request["out"])
        code = None
        if lowered.device_source is not None:
            lowered = replace(lowered, device_flags=(*lowered.device_flags, *request.get("compile_flags", ())))
            device = device_for(target, request["device"])
            announce("prune")
            _reject(find_excess(lowered.kernels, device, target))
            announce("device-compile")
            try:
                code = _compile_device(lowered, target, toolchain, scratch, out, request["timeout"])
            except BuildError as error:
                reason = find_excess_in_error(error.what, target)
                if reason is None:
                    raise
                announce("prune")
                raise Rejected(reason) from error
            announce("prune")
            _reject(find_excess_after_compiling(lowered.kernels, code, device, target))
        announce("link")
        link_executable(lowered, None if code is None else code.data, target, request["name"], scratch, out, toolchain)
        _keep_sources(lowered, code, out)
        return {
            "params": [param_to_json(param) for param in lowered.params],
            "out_idx": list(lowered.out_idx),
            "frontend": dict(lowered.frontend),
            "asked": {**self._asked, **lowered.asked},
            "registers": None if code is None else code.registers,
            "compiler": None if code is None else code.maker,
            "code": _digest_code(lowered, code),
            "shared_memory": max((kernel.dyn_shared or 0 for kernel in lowered.kernels), default=0),
        }


def _without_places(lowered: Lowered, search_path: Sequence[str]) -> Lowered:
    """The code with the author's files named as they are from where they are imported: what a failed ``T.device_assert`` prints has
    the file in it, and what ships must not depend on the folder that it was built in.

    Args:
        lowered: The code.
        search_path: Folders that modules are imported from.
    """

    def plain(source: str | None) -> str | None:
        for folder in sorted(search_path, key=len, reverse=True):
            if source and os.path.isabs(folder) and os.path.dirname(folder) != folder:
                prefix = f"{folder.rstrip(os.sep)}{os.sep}"
                # In text of the generated code TileLang writes a slash as "\\/".
                source = source.replace(prefix, "").replace(prefix.replace("/", "\\/"), "")
        return source

    return replace(lowered, host_source=plain(lowered.host_source), device_source=plain(lowered.device_source))


def _configs_of(request: Mapping[str, Any], shape: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configs of a workload; where it is dynamic, those of all declared sizes, each once."""
    refuse_both(request["dynamic"], shape, request["where"])
    found: list[dict[str, Any]] = []
    for sizes in grid_of(request["dynamic"]) if isinstance(request["configs"], str) else [{}]:
        found += [c for c in expand_configs(request["configs"], {**sizes, **shape}, request["where"]) if c not in found]
    return found


def _digest_code(lowered: Lowered, code: DeviceCode | None) -> dict[str, str]:
    """SHA-256 of what was generated: the source (of the device, or of the host where there is none) and the device's code."""
    source = lowered.device_source or lowered.host_source or lowered.host_object or b""
    data = source.encode() if isinstance(source, str) else source
    digests = {"source": hashlib.sha256(data).hexdigest()}
    if code is not None:
        digests["cubin" if is_elf(code.data) else "ptx"] = hashlib.sha256(code.data).hexdigest()
    return digests


def _reject(reason: str | None) -> None:
    if reason is not None:
        raise Rejected(reason)


@contextmanager
def _temporary_files(scratch: Path) -> Iterator[None]:
    """Have temporary files made in a folder that is removed in any case: a worker may be killed before it has removed its own."""
    folder = scratch / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable


def _compile_device(
    lowered: Lowered, target: Target, toolchain: Toolchain, scratch: Path, out: Path, timeout: float
) -> DeviceCode:
    """Compile device code, or take it from a candidate or shape that gave the same source, also from one that is being compiled."""
    assert lowered.device_source is not None
    if toolchain.cuda is None:
        raise BuildError("toolchain", f"there is no nvcc for {target}", "Run tlaot's build where one is found.")
    key = canonical([lowered.device_source, list(lowered.device_flags), str(target), asdict(toolchain.cuda)])
    cached = scratch / "cubins" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    cached.parent.mkdir(parents=True, exist_ok=True)
    with _locked(cached.with_suffix(".lock")):
        if cached.is_file():
            kept = json.loads(cached.read_bytes())
            return DeviceCode(**{**kept, "data": base64.b64decode(kept["data"])})
        code = compile_cuda(
            lowered.device_source,
            target,
            lowered.device_flags,
            out,
            timeout,
            toolchain.cuda,
            headers=_headers,
        )
        write_atomically(cached, dump_json({**asdict(code), "data": base64.b64encode(code.data).decode()}))
        return code


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file; whoever dies gives it back, and whoever waits too long is ended by its parent."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _toolchain(body: Mapping[str, Any]) -> Toolchain:
    """The toolchain that the parent found; JSON made lists of its tuples."""

    def tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}

    cuda = body["cuda"]
    return Toolchain(HostCompiler(**tuples(body["host"])), None if cuda is None else CudaCompiler(**tuples(cuda)))


def _keep_sources(lowered: Lowered, code: DeviceCode | None, out: Path) -> None:
    if lowered.host_source is not None:
        write_atomically(out / "host_kernel.c", lowered.host_source.encode())
    if lowered.device_source is not None:
        write_atomically(out / "device_kernel.cu", lowered.device_source.encode())
    if code is not None:
        write_atomically(out / ("kernel.cubin" if is_elf(code.data) else "kernel.ptx"), code.data)
