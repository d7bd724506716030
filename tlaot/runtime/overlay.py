"""What ``tlaot retune`` found on this machine: which of the packaged variants is the fastest here.

An overlay chooses among variants that fit a call anyway; it has no code. One is honoured on the device model it was made on, for
the very kernels it was made for, and is ignored otherwise: a file that is damaged or out of date is said once and never an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..manifest import Variant
from ..target import DLPACK_CPU
from .device import cpu_name
from .dispatch import Argument, Place, given_params, resolve
from .places import OVERLAY_VARIABLE, Home, overlay_path

__all__ = [
    "VERSION",
    "Overlay",
    "digest_homes",
    "identity_of",
    "name_device",
    "read_overlay",
    "spell_inputs",
    "workload_key",
]

VERSION = 1
_LARGEST = 16 << 20

# Kernel, workload and inputs -> what tells the variant to take: see identity_of.
Choices = dict[tuple[str, str, tuple[str, ...]], tuple[str, str, str]]


@dataclass(frozen=True)
class Overlay:
    """An overlay file of one package.

    Attributes:
        path: The file.
        kernels: Digest of the package's manifests, as they are now.
        devices: What it has, by device model.
    """

    path: Path
    kernels: str
    devices: Mapping[str, Any]
    _choices: dict[str, Choices] = field(default_factory=dict, repr=False, compare=False)

    def choices(self, device: str) -> Choices:
        """The choices for a device model; none where there are none, or none that can be honoured."""
        found = self._choices.get(device)
        if found is None:
            found = self._choices[device] = self._read(device)
        return found

    def covers(self, place: Place) -> bool:
        """Whether variants were timed on the model of a device."""
        return bool(self.choices(name_device(place)))

    def replace(
        self,
        kernel: str,
        variants: Sequence[Variant],
        chosen: Variant,
        arguments: Sequence[Argument],
        place: Place,
        factory_args: Mapping[str, Any],
    ) -> Variant:
        """What a call runs in place of the variant that dispatch chose; that one, where nothing is said of the call."""
        choices = self.choices(name_device(place))
        wanted = choices.get((kernel, workload_key(chosen.shape), spell_inputs(chosen, arguments))) if choices else None
        if wanted is None:
            return chosen
        found = [v for v in variants if identity_of(v) == wanted]
        # Of a dynamic workload it may be one that serves other sizes by itself.
        fitting, _ = resolve(found, arguments, place, factory_args, any_size=True)
        return fitting[0] if fitting else chosen

    def variants_of(self, kernel: str, variants: Sequence[Variant], place: Place) -> list[Variant]:
        """The variants of a kernel that calls on a device run in place of others."""
        choices = self.choices(name_device(place))
        wanted = {choice for (name, *_), choice in choices.items() if name == kernel}
        return [v for v in variants if identity_of(v) in wanted]

    def _read(self, device: str) -> Choices:
        section = self.devices.get(device)
        if section is None:
            return {}
        try:
            if section["kernels"] != self.kernels:
                _say_once(
                    f"{self.path}: was made for other kernels than the package has now, and is not used for {device}"
                )
                return {}
            return {
                (
                    _text(choice["kernel"]),
                    workload_key(choice["workload"]),
                    tuple(_text(text) for text in choice["arguments"]),
                ): (_text(choice["target"]), workload_key(choice["shape"]), workload_key(choice.get("config", {})))
                for choice in section["choices"]
            }
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            _say_once(f"{self.path}: what it has for {device} is damaged ({error!r}), and is not used")
            return {}


def read_overlay(package: str, homes: Sequence[Home], environ: Mapping[str, str] | None = None) -> Overlay | None:
    """The overlay of a package; None where there is none that can be read. Never raises for what a file has in it."""
    path = overlay_path(package, environ)
    if path is None or not homes:
        return None
    try:
        data = _read(path)
        if data is None:
            _check_folder(path, environ)
            if str(path) == os.path.abspath((os.environ if environ is None else environ).get(OVERLAY_VARIABLE) or "."):
                _say_once(
                    f"{OVERLAY_VARIABLE} names {path}, which is not there: packaged kernels run as they were tuned"
                )
            return None
        body = json.loads(data)
        if not isinstance(body, dict) or not isinstance(body.get("devices"), dict):
            raise ValueError("it is no overlay")
        if body.get("version") != VERSION:
            raise ValueError(f"it has version {body.get('version')!r}, this tlaot reads version {VERSION}")
        if body.get("package") != package:
            if path.stem == package:
                raise ValueError(f"it is of the package {body.get('package')!r}")
            return None  # TLAOT_OVERLAY names one file for a process that loads several packages
    except (OSError, ValueError, RecursionError) as error:
        _say_once(f"{path}: the overlay cannot be used ({error}); make it again: tlaot retune {package}")
        return None
    return Overlay(path, digest_homes(homes), body["devices"])


def _check_folder(path: Path, environ: Mapping[str, str] | None) -> None:
    """A folder need not have an overlay of each package; one that has none at all was named by mistake."""
    said = (os.environ if environ is None else environ).get(OVERLAY_VARIABLE)
    if said and str(path.parent) == os.path.abspath(said) and not any(path.parent.glob("*.json")):
        _say_once(
            f"{OVERLAY_VARIABLE} names the folder {path.parent}, which has no overlay (<package>.json): "
            "packaged kernels run as they were tuned"
        )


def spell_inputs(variant: Variant, arguments: Sequence[Argument]) -> tuple[str, ...]:
    """A call's inputs as an overlay has them, ``("float16[300, 1024]", ...)``; outputs that were passed are left out."""
    if len(arguments) == len(given_params(variant, len(arguments)) or ()) == len(variant.params):
        arguments = [a for index, a in enumerate(arguments) if index not in variant.out_idx]
    return tuple(map(str, arguments))


def workload_key(shape: Mapping[str, Any]) -> str:
    """A workload as text that is equal exactly where the workloads are."""
    return json.dumps(dict(shape), sort_keys=True, separators=(",", ":"))


def identity_of(variant: Variant) -> tuple[str, str, str]:
    """What tells a variant from a package's others of its kernel: target and workload; and the config, where several share its sizes."""
    return variant.target, workload_key(variant.shape), workload_key(variant.config if variant.buckets else {})


def digest_homes(homes: Sequence[Home]) -> str:
    """Digest of all manifests together: it changes whenever a kernel comes, goes or is built again."""
    return hashlib.sha256("".join(sorted(home.digest for home in homes)).encode()).hexdigest()


def name_device(place: Place) -> str:
    """The model of the device that a call's tensors are on, ``"NVIDIA H200"``."""
    if place.device_type == DLPACK_CPU:
        return cpu_name()
    return place.device or str(place)


def _read(path: Path) -> bytes | None:
    """The file; None where it is not there. A pipe or a device in its place would keep the caller waiting."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        if OVERLAY_VARIABLE in os.environ:
            raise
        return None  # another user's home, as of a service that changed its user
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise ValueError("it is no regular file" if status.st_size <= _LARGEST else "it is too large")
        return file.read()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text in _said:
        return
    _said.add(text)
    try:
        warnings.warn(f"tlaot: {text}", RuntimeWarning, stacklevel=2)
    except RuntimeWarning:  # python -W error: an overlay stops nobody's program
        print(f"tlaot: {text}", file=sys.stderr)
