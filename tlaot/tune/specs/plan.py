"""What is to be done: workloads and candidates, as plain data.

A workload is one kernel entry, one target and one shape; a candidate is a workload with one config.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ...target import Target
from .spec import KernelSpec

__all__ = ["Candidate", "Workload", "canonical", "counted", "workload_slug"]


@dataclass(frozen=True)
class Workload:
    """One kernel entry, one target and one shape, with the configs to try there.

    Attributes:
        kernel: The spec's entry.
        target: What to compile for.
        shape: Arguments of the factory that make the workload.
        configs: Configs in the order of the spec; the first one is the default that the winner is compared with.
        sizes: Where the workload is dynamic, and looked at for one size of each open dimension: these sizes.
        part: Where it is dynamic, and one of the variants that it ships is meant: that one's name.
    """

    kernel: KernelSpec
    target: Target
    shape: Mapping[str, Any]
    configs: tuple[Mapping[str, Any], ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    part: str = ""

    @cached_property
    def path(self) -> str:
        """Folder of the workload among the package's kernels: ``matmul/llvm-x86-64-v3/K64-M64-N64``.

        Unlike workloads have unlike paths, and so have the sizes and the parts of a dynamic one.
        """
        path = f"{self.kernel.name}/{self.target.slug}/{workload_slug(self.shape)}"
        if self.sizes:
            path = f"{path}/at-{workload_slug(self.sizes)}"
        return f"{path}/{self.part}" if self.part else path

    @property
    def label(self) -> str:
        """The workload in a message."""
        return f"{self.kernel.name} [{self.target}] ({_spell(self.values)})"

    @property
    def values(self) -> Mapping[str, Any]:
        """The arguments with the sizes that it is looked at for: what inputs are made of."""
        return {**self.shape, **self.sizes} if self.sizes else self.shape

    @property
    def is_dynamic(self) -> bool:
        """Whether it leaves sizes open."""
        return bool(self.kernel.dynamic)

    def at(self, sizes: Mapping[str, int]) -> Workload:
        """The workload at one size of each open dimension."""
        return replace(self, sizes=dict(sizes))

    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(Candidate(self, index, config) for index, config in enumerate(self.configs))


@dataclass(frozen=True)
class Candidate:
    """One config of one workload; ``index`` is its position among the workload's configs."""

    workload: Workload
    index: int
    config: Mapping[str, Any]

    @cached_property
    def binary(self) -> str:
        """What it is compiled of, as text: candidates that have it in common have one binary."""
        workload = self.workload
        return canonical([workload.kernel.name, str(workload.target), dict(workload.shape), dict(self.config)])

    @property
    def label(self) -> str:
        return f"{self.workload.label} #{self.index} {self.settings}"

    @property
    def settings(self) -> str:
        """The config in a message."""
        return f"{{{_spell(self.config)}}}"


def counted(number: int, noun: str) -> str:
    """A number of things in a message."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def workload_slug(shape: Mapping[str, Any]) -> str:
    """A shape as the name of a folder, keys sorted; long or unusual ones end in a digest, so that no two collide."""
    text = "-".join(f"{key}{value}" for key, value in sorted(shape.items())) or "default"
    slug = re.sub(r"[^A-Za-z0-9._-]", "_", text)
    if slug != text or len(slug) > 80 or _is_ambiguous(shape):
        slug = f"{slug[:60]}-{hashlib.sha256(canonical(shape).encode()).hexdigest()[:10]}"
    return slug


def canonical(value: Any) -> str:
    """JSON that is equal exactly where the values are."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _spell(items: Mapping[str, Any]) -> str:
    # With quotes about text: M='128' is another workload than M=128.
    return ", ".join(f"{key}={value!r}" for key, value in items.items())


def _is_ambiguous(shape: Mapping[str, Any]) -> bool:
    # "M1" with 2 and "M" with 12 would share a folder; so would 1, 1.0, True and "1".
    return any(key[-1:].isdigit() or type(value) is not int or value < 0 for key, value in shape.items())
