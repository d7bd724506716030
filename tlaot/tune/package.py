"""Lay out what ships: one folder a winner, and the manifest that names every byte."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..manifest import MANIFEST_NAME, FileDigest, Kernel, Manifest, Variant, digest_of, dumps, param_to_json
from ..target import Target
from .compile import EXECUTABLE, Built
from .files import dump_json
from .plan import Workload

__all__ = ["Winner", "write_package"]

_KEPT_SOURCES = ("kernel.cubin", "device_kernel.cu", "host_kernel.c")


@dataclass(frozen=True)
class Winner:
    """What one workload ships.

    Attributes:
        workload: The workload.
        config: The config that won.
        built: Its files and signature.
        latency: ``latency``, ``ref_latency``, ``default_latency`` in ms and ``spread``; None where not measured.
        device: What it was measured on.
    """

    workload: Workload
    config: Mapping[str, Any]
    built: Built
    latency: Mapping[str, float | None]
    device: str


def write_package(output: Path, package: str, writer: str, winners: Sequence[Winner], keep: bool) -> tuple[Path, ...]:
    """Write the folder that the wheel embeds; it appears whole, in place of what was there.

    Args:
        output: The folder, ``<build_lib>/<package>/_tlaot``.
        package: Import name of the package.
        writer: Version of tlaot.
        winners: What ships.
        keep: Ship sources and cubin beside each binary too.

    Returns:
        The files, relative to ``output``, sorted.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}."))
    try:
        variants = defaultdict(list)
        for winner in sorted(winners, key=lambda winner: winner.workload.path):
            variants[winner.workload.kernel.name].append(_write_variant(staging, winner, keep))
        kernels = {name: Kernel(name, tuple(found)) for name, found in sorted(variants.items())}
        (staging / MANIFEST_NAME).write_text(dumps(Manifest(package, kernels, writer)), encoding="utf-8")
        os.chmod(staging, 0o755)  # mkdtemp's 0700 would reach the wheel
        shutil.rmtree(output, ignore_errors=True)
        os.replace(staging, output)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return tuple(sorted(path.relative_to(output) for path in output.rglob("*") if path.is_file()))


def _write_variant(root: Path, winner: Winner, keep: bool) -> Variant:
    workload, built = winner.workload, winner.built
    folder = root / workload.path
    folder.mkdir(parents=True)
    contents = {
        EXECUTABLE: (built.folder / EXECUTABLE).read_bytes(),
        "best_config.json": dump_json({"config": dict(winner.config), "shape": dict(workload.shape)}),
        "latency.json": dump_json(dict(winner.latency)),
        "out_idx.json": dump_json(list(built.out_idx)),
        "params.json": dump_json([param_to_json(param) for param in built.params]),
    }
    for name in _KEPT_SOURCES if keep else ():
        if (built.folder / name).is_file():
            contents[name] = (built.folder / name).read_bytes()
    files: dict[str, FileDigest] = {}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o755 if name == EXECUTABLE else 0o644)
        files[name] = digest_of(data)
    return Variant(
        target=str(workload.target),
        shape=workload.shape,
        config=winner.config,
        path=workload.path,
        params=built.params,
        out_idx=built.out_idx,
        latency=winner.latency,
        files=files,
        frontend=built.frontend,
        properties={
            "variant": _variant_property(workload.target),
            "asked": dict(built.asked),
            "device": winner.device,
            "checked": workload.kernel.check,
        },
    )


def _variant_property(target: Target) -> str:
    """The property of the wheel variant drafts (PEP 817, 825) that says where the code runs."""
    if not target.is_cuda:
        rank = target.cpu_rank
        return f"x86_64 :: level :: v{rank}"
    return f"nvidia :: sm_arch :: {target.arch.removeprefix('sm_')}_real"
