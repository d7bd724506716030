"""What a tuning from Python is known by: the key of its result, and the keys of its candidates in the store."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from typing import Any

from ..tune.searching.store import Keys
from ..tune.specs.plan import Candidate
from .args import ProfileArgs
from .here import machine_identity, resolve_target
from .identity import UnidentifiedError, fingerprint
from .request import Request

__all__ = ["RequestKeys", "identify"]

# How long to measure and to look does not make a candidate's time another one.
_PATIENCE = ("timeout", "warmup", "rep")


@dataclass(frozen=True)
class RequestKeys:
    """Digests of a request.

    Attributes:
        build: Of all that the binaries of its candidates depend on, but for their configs.
        measure: Of all that their checks and times depend on as well.
        configs: Of each config.
        result: Of everything that can change which of them wins.
    """

    build: str
    measure: str
    configs: tuple[str, ...]
    result: str

    def of(self, candidate: Candidate) -> Keys:
        """The keys of one candidate in the store."""
        config = self.configs[candidate.index]
        build = _sha256(f"{self.build} {config}")
        return Keys(build, _sha256(f"{build} {self.measure}"))


def identify(request: Request) -> RequestKeys | None:
    """The keys of a request; None, with a warning, where something of it has no identity."""
    inputs, profile, compile_args = request.captured, request.profile_args, request.compile_args
    profile_fields = {name: getattr(profile, name) for name in ProfileArgs.__dataclass_fields__}
    patience = {name: profile_fields.pop(name) for name in _PATIENCE}
    machine = machine_identity(request)
    try:
        build = fingerprint(
            {
                "factory": request.factory.call,
                "frontend": request.factory.frontend,
                "arguments": dict(request.arguments),
                "target": str(resolve_target(request)),
                "out_idx": compile_args.out_idx,
                "pass_configs": dict(compile_args.pass_configs or {}),
                "compile_flags": compile_args.compile_flags,
                "machine": {name: value for name, value in machine.items() if name != "device"},
            }
        )
        measure = fingerprint(
            {
                "inputs": None if inputs is None else [_input_identity(value) for value in inputs],
                "profile": profile_fields,
                "device": machine["device"],
            }
        )
        configs = tuple(fingerprint(dict(config)) for config in request.configs)
    except UnidentifiedError as error:
        warnings.warn(f"tlaot.autotune: the result is not cached: {error}", stacklevel=5)
        return None
    run = request.run_args
    search = {name: getattr(run, name) for name in ("search", "trials", "seconds", "early_stop", "early_stop_factor")}
    del patience["timeout"]
    return RequestKeys(build, measure, configs, fingerprint([build, measure, list(configs), patience, search]))


def _input_identity(value: Any) -> Any:
    """What of a given tensor can change the choice: its type, shape and layout, not its values."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        strides = value.stride() if callable(getattr(value, "stride", None)) else getattr(value, "strides", None)
        return ("tensor", str(value.dtype), tuple(value.shape), tuple(strides or ()), str(getattr(value, "device", "")))
    return value


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
