"""Whether this machine has what a variant's binary needs: the driver, the C library. Asked before the file is loaded."""

from __future__ import annotations

import os

from ..errors import LoadError, PackageError
from ..manifest import Variant
from ..target import read_target
from .device import cuda_version

__all__ = ["require_floors"]

Version = tuple[int, int]


def require_floors(where: str, variant: Variant) -> None:
    """Refuse a variant that this machine's driver or C library is too old for.

    Args:
        where: The kernel, for errors.
        variant: The variant; its ``floor`` says what it needs.

    Raises:
        LoadError: The driver or the C library is too old; the message names both versions.
        PackageError: The floor in the manifest is no version.
    """
    _require_libc(where, variant)
    if "cuda" in variant.floor and read_target(variant.target, "manifest").is_cuda:
        _require_driver(where, variant)


def _require_driver(where: str, variant: Variant) -> None:
    needed = _read(where, variant, "cuda")
    try:
        offered = cuda_version()
    except LoadError:
        return  # a build loads what it has made where there is no GPU; a call says that there is no driver
    if needed <= offered:
        return
    toolkit = variant.floor.get("toolkit")
    made = f", made with CUDA {toolkit}," if toolkit else ""
    code = "PTX" if read_target(variant.target).is_virtual else "code"
    raise LoadError(
        where,
        f"the {code} for {variant.target}{made} needs a driver that offers CUDA {needed[0]}.{needed[1]}; the driver here "
        f"offers CUDA {offered[0]}.{offered[1]}",
        f"Update the NVIDIA driver (nvidia-smi shows its CUDA version), or build the package with CUDA {offered[0]}.x.",
    )


def _require_libc(where: str, variant: Variant) -> None:
    if "glibc" not in variant.floor:
        return
    needed, offered = _read(where, variant, "glibc"), _libc_version()
    if offered is None or needed <= offered:
        return
    raise LoadError(
        where,
        f"the binary for {variant.target} needs glibc {needed[0]}.{needed[1]}; the system here has {offered[0]}.{offered[1]}",
        "Use a newer system, or build the package on one as old as this (a manylinux image; min-glibc in tltune.toml).",
    )


def _libc_version() -> Version | None:
    """The version of glibc; None where it is another C library, which the dynamic linker judges."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = map(int, version.split(".")[:2])
    except (OSError, ValueError):
        return None
    return (major, minor) if name == "glibc" else None


def _read(where: str, variant: Variant, what: str) -> Version:
    text = variant.floor[what]
    try:
        major, minor = map(int, text.split("."))
    except (AttributeError, ValueError):
        raise PackageError(
            where,
            f"the manifest's floor of {what} for {variant.target} is no version, got {text!r}",
            "Reinstall the package.",
        ) from None
    return major, minor
