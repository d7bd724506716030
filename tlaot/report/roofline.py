"""How near a kernel is to what its device can do: the bytes it must move, the operations it does, and the device's own figures.

Bytes are those of the signature, each tensor moved once: a lower bound, so that what is shown of the bandwidth is one, too.
Operations are what the spec says (``flops``); nobody can tell them from a signature.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..manifest import Param
from ..tune.specs.arithmetic import evaluate
from .evidence import Work

__all__ = ["DEVICES", "Peak", "Place", "bytes_of", "place", "width_of"]


@dataclass(frozen=True)
class Peak:
    """What a device can do at most, by its vendor: dense, with tensor cores where the type has them.

    Attributes:
        bandwidth: Bytes a second of its memory.
        flops: Operations a second by width class: ``"16"`` (float16, bfloat16), ``"8"`` (float8, int8), ``"32"`` (TF32).
    """

    bandwidth: float
    flops: Mapping[str, float]


def _peak(tb_s: float, half: float, eight: float | None, single: float) -> Peak:
    found = {"16": half * 1e12, "32": single * 1e12}
    return Peak(tb_s * 1e12, found if eight is None else {**found, "8": eight * 1e12})


# NVIDIA's data sheets of A100, H100, H200, L4, L40S and HGX B200, without sparsity; by what the driver calls the device. A device
# that is not here has no roof in the report.
DEVICES = {
    "NVIDIA A100-SXM4-40GB": _peak(1.555, 312, 624, 156),
    "NVIDIA A100-PCIE-40GB": _peak(1.555, 312, 624, 156),
    "NVIDIA A100-SXM4-80GB": _peak(2.039, 312, 624, 156),
    "NVIDIA A100 80GB PCIe": _peak(1.935, 312, 624, 156),
    "NVIDIA H100 80GB HBM3": _peak(3.35, 989.5, 1979, 494.7),
    "NVIDIA H100 PCIe": _peak(2.0, 756.5, 1513, 378),
    "NVIDIA H200": _peak(4.8, 989.5, 1979, 494.7),
    "NVIDIA B200": _peak(8.0, 2250, 4500, 1125),
    "NVIDIA L4": _peak(0.3, 121, 242, 60),
    "NVIDIA L40S": _peak(0.864, 362, 733, 183),
}


@dataclass(frozen=True)
class Place:
    """Where a workload stands; what is not known is None, and ``unknown`` says why.

    Attributes:
        bytes: Bytes that it must move.
        flops: Operations that it does.
        bandwidth: Bytes a second.
        rate: Operations a second.
        of_bandwidth, of_rate: Shares of the device's.
        width: The class of the type that it computes in, a key of :class:`Peak`'s ``flops``.
        unknown: What is not known, each as a sentence.
    """

    bytes: int | None = None
    flops: float | None = None
    bandwidth: float | None = None
    rate: float | None = None
    of_bandwidth: float | None = None
    of_rate: float | None = None
    width: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def intensity(self) -> float | None:
        """Operations a byte."""
        return self.flops / self.bytes if self.flops and self.bytes else None


def place(work: Work, flops: str | None, told: bool) -> Place:
    """Where a workload stands.

    Args:
        work: The workload.
        flops: The expression that the spec has for it, ``"2*M*N*K"``; None where it has none.
        told: Whether a spec was looked at.
    """
    unknown = []
    sizes = {**work.shape, **(work.sizes[-1].sizes if work.sizes else {})}
    moved = bytes_of(work.params, sizes) if work.params else None
    if not work.params:
        unknown.append("Bytes: a lock has no signatures; name the wheel or the package, too.")
    elif moved is None:
        unknown.append("Bytes: the signature has sizes that are not known.")
    done = None if flops is None else evaluate(flops, sizes)
    if flops is None:
        unknown.append(
            'FLOPs: tltune.toml does not say (flops = "2*M*N*K").'
            if told
            else "FLOPs: no tltune.toml was looked at; name it with --spec."
        )
    elif done is None:
        unknown.append(f"FLOPs: {flops!r} cannot be worked out for this shape.")
    name = str(work.device.get("name", ""))
    peak, width = DEVICES.get(name), width_of(work.params)
    if peak is None and name:
        unknown.append(f"Peak: the figures of {name} are not in the report's table.")
    seconds = work.ms / 1e3 if work.ms else None
    bandwidth = moved / seconds if moved and seconds else None
    rate = done / seconds if done and seconds else None
    most = None if peak is None else peak.flops.get(width)
    return Place(
        moved,
        done,
        bandwidth,
        rate,
        bandwidth / peak.bandwidth if bandwidth and peak else None,
        rate / most if rate and most else None,
        width,
        tuple(unknown),
    )


def _bits(dtype: str) -> int | None:
    """Bits of an element: ``float16``, ``float8_e4m3fn``, ``float4_e2m1fnx2``."""
    if dtype == "bool":
        return 8
    match = re.match(r"[a-z]+(\d+)", dtype)
    lanes = re.search(r"x(\d+)$", dtype)
    return None if match is None else int(match[1]) * (int(lanes[1]) if lanes else 1)


def bytes_of(params: tuple[Param, ...], sizes: Mapping[str, Any]) -> int | None:
    """Bytes of all tensors of a signature, each once; None where a size is not known.

    Args:
        params: The signature.
        sizes: Of symbolic sizes, by name.
    """
    total = 0
    for param in params:
        if param.shape is None:
            continue
        bits = _bits(param.dtype)
        known = [sizes.get(size) if isinstance(size, str) else size for size in param.shape]
        if bits is None or not all(type(size) is int for size in known):
            return None
        total += math.ceil(math.prod(size for size in known if size is not None) * bits / 8)
    return total


def width_of(params: tuple[Param, ...]) -> str:
    """The class of the narrowest floating-point input: what tensor cores would compute it in; "" where there is none."""
    inputs = [param for param in params if param.shape is not None and not param.written]
    bits = [_bits(param.dtype) for param in inputs if "float" in param.dtype] or [
        _bits(param.dtype) for param in inputs if param.dtype == "int8"
    ]
    return min((str(found) for found in bits if found in (8, 16, 32)), key=int, default="")
