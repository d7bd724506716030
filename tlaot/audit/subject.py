"""What is audited: a manifest's folder and what is asked of it; one variant of it with its files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import PackageError
from ..manifest import Manifest, Variant, place_of
from ..packaged import Found
from ..target import Target, read_target

__all__ = ["EXECUTABLE", "Case", "Demands", "Promise", "Subject", "open_case", "promise_of", "variants_of"]

EXECUTABLE = "executable.so"

# A kernel, a target and a workload as JSON: what somebody counts on.
Promise = tuple[str, str, str]


@dataclass(frozen=True)
class Demands:
    """What is asked of packaged kernels beyond what holds for all.

    Attributes:
        platforms: Platform tags of the wheel that they are in, ``("manylinux_2_17_x86_64",)``; empty where there is none.
        min_glibc: The oldest glibc that must load them, ``"2.17"``.
        promised: Kernels, targets and workloads that must be there, each with who promised it.
        places: Folders of the machine that builds, which no file may name.
        names: The user and the host that build, which no file may name.
        now: Seconds since 1970 while a build runs; no file may have a number near it.
    """

    platforms: tuple[str, ...] = ()
    min_glibc: str | None = None
    promised: Mapping[Promise, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    now: float | None = None


@dataclass(frozen=True)
class Subject:
    """One package's kernels, their manifest read."""

    found: Found
    manifest: Manifest
    demands: Demands


@dataclass(frozen=True)
class Case:
    """One variant.

    Attributes:
        kernel: Name of its kernel.
        variant: The manifest's entry.
        contents: Its files by name, those that can be read.
        demands: What is asked of it.
    """

    kernel: str
    variant: Variant
    contents: Mapping[str, bytes]
    demands: Demands

    @property
    def target(self) -> Target:
        return read_target(self.variant.target, self.variant.path)

    @property
    def executable(self) -> str:
        """Where its binary lies, relative to the manifest's folder."""
        return place_of(self.variant, EXECUTABLE)


def promise_of(kernel: str, target: str, shape: Mapping[str, Any]) -> Promise:
    """A kernel, a target and a workload, to be looked up in :attr:`Demands.promised`."""
    return kernel, target, json.dumps(dict(shape), sort_keys=True)


def variants_of(manifest: Manifest) -> Iterator[tuple[str, Variant]]:
    """All variants, each with its kernel's name."""
    for name, kernel in sorted(manifest.kernels.items()):
        yield from ((name, variant) for variant in kernel.variants)


def open_case(subject: Subject, kernel: str, variant: Variant) -> Case:
    """A variant with its files; what cannot be read is left to the check of files to name."""
    contents = {}
    for name in variant.files:
        try:
            contents[name] = subject.found.read(place_of(variant, name))
        except PackageError:
            continue
    return Case(kernel, variant, contents, subject.demands)
