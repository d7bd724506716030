"""The lock, ``tltune.lock``: what tuning found, as data that is committed and that machines without a device build from.

An entry holds one workload's evidence: what became of every candidate, what it was measured on and made with, and of
which sources. ``lock_file.py`` reads and writes it, ``fit.py`` says whether it still holds, ``merge.py`` unites two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..measuring.timing import Timing
from ..specs.plan import Workload, canonical

__all__ = [
    "LOCK_NAME",
    "Entry",
    "Key",
    "Lock",
    "Part",
    "Sized",
    "Tried",
    "digest_entry",
    "doubts_of",
    "key_of",
    "key_of_workload",
    "latencies",
    "latency_of",
]

LOCK_NAME = "tltune.lock"

# Kernel, target and shape (as canonical JSON): what an entry is the evidence of.
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Tried:
    """What became of one config: it has a time, or failed, or was not tried.

    Attributes:
        config: The config.
        timing: Its time, where it was right and was measured.
        failed: Stage and reason, where it failed.
        skipped: Why it was not tried.
        binary: Start of the SHA-256 of its ``executable.so``: candidates of several workloads that have it in common can share it.
    """

    config: Mapping[str, Any]
    timing: Timing | None = None
    failed: tuple[str, str] | None = None
    skipped: str | None = None
    binary: str = ""


@dataclass(frozen=True)
class Sized:
    """What was found of a dynamic workload at one size of each open dimension.

    Attributes:
        sizes: The sizes.
        winner: Position of the fastest config among the entry's candidates.
        times: Times by position: of those that were right there and were measured.
        failed: Stage and reason by position.
        reference: The reference's time there.
        trusted, notes: As of :class:`Entry`.
    """

    sizes: Mapping[str, int]
    winner: int
    times: Mapping[int, Timing]
    failed: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    reference: Timing | None = None
    trusted: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """One of the variants that a dynamic workload ships.

    Attributes:
        config: Its config.
        code: As of :class:`Entry`.
    """

    config: Mapping[str, Any]
    code: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """The evidence of one workload.

    That of a dynamic one is all that was found at any size, in ``sizes``; what is not named by size (``winner``, ``ships``, ``code``,
    ``reference``, the candidates' times) is that of its largest declared sizes.

    Attributes:
        kernel, target, shape: The workload.
        spec: What of the spec's entry the evidence depends on, see :func:`~tlaot.tune.locks.fit.spec_fields`.
        sources: Digests of the author's modules, see :func:`~tlaot.tune.locks.sources.digest_modules`.
        tools: Versions of what compiled: ``tlaot``, the frontend by its distribution's name, ``cc``, ``cuda``, ``nvrtc``.
        ships: The config that is packaged: the winner, unless ``max-slowdown`` let another one serve.
        code: SHA-256 of what was generated for it: ``source`` and, for CUDA, ``cubin`` (or ``ptx``).
        winner: The fastest config.
        device: What was measured on: ``name``; for CUDA ``sm_count``, ``capability``, ``cuda`` (what the driver offers), ``driver``.
        checked: Whether outputs were compared with the reference.
        trusted: Whether the device was quiet; ``notes`` say what was the matter.
        reference: The reference's time.
        candidates: Every config, in the order of the spec.
        sizes: Of a dynamic workload: what was found at each size, ascending.
        parts: Of a dynamic workload: all variants that are packaged, in the order of the candidates.
        tuned_as: Of a target that is not tuned: the target whose winner it has. It has no evidence of its own.
        measured: Whether it is evidence at all: what stands for a workload with ``measure = false`` is in no lock.
    """

    kernel: str
    target: str
    shape: Mapping[str, Any]
    spec: Mapping[str, Any]
    sources: Mapping[str, str]
    tools: Mapping[str, str]
    ships: Mapping[str, Any]
    code: Mapping[str, str] = field(default_factory=dict)
    winner: Mapping[str, Any] = field(default_factory=dict)
    device: Mapping[str, Any] = field(default_factory=dict)
    checked: bool = True
    trusted: bool = True
    notes: tuple[str, ...] = ()
    reference: Timing | None = None
    candidates: tuple[Tried, ...] = ()
    sizes: tuple[Sized, ...] = ()
    parts: tuple[Part, ...] = ()
    tuned_as: str | None = None
    measured: bool = True

    @property
    def key(self) -> Key:
        return key_of(self.kernel, self.target, self.shape)

    @property
    def label(self) -> str:
        """The entry in a message, as the workload is called."""
        shape = ", ".join(f"{name}={value!r}" for name, value in self.shape.items())
        return f"{self.kernel} [{self.target}] ({shape})"

    def tried(self, config: Mapping[str, Any]) -> Tried | None:
        """What became of a config; None where it is not among the candidates."""
        wanted = canonical(dict(config))
        return next((tried for tried in self.candidates if canonical(dict(tried.config)) == wanted), None)


@dataclass(frozen=True)
class Lock:
    """A whole lock.

    Attributes:
        entries: By workload.
        edited: Those whose content is not what was written.
    """

    entries: Mapping[Key, Entry] = field(default_factory=dict)
    edited: frozenset[Key] = frozenset()

    def with_entries(self, entries: Iterable[Entry]) -> Lock:
        """With some entries in place of those of the same workloads."""
        new = {entry.key: entry for entry in entries}
        return replace(self, entries={**self.entries, **new}, edited=self.edited - set(new))

    def without(self, keys: Iterable[Key]) -> Lock:
        gone = set(keys)
        kept = {key: entry for key, entry in self.entries.items() if key not in gone}
        return replace(self, entries=kept, edited=self.edited - gone)

    def ordered(self) -> list[Entry]:
        """The entries in the order of the file: by kernel, target and shape, numbers as such."""
        return sorted(self.entries.values(), key=_order)


def key_of(kernel: str, target: str, shape: Mapping[str, Any]) -> Key:
    return kernel, target, canonical(dict(shape))


def key_of_workload(workload: Workload) -> Key:
    return key_of(workload.kernel.name, str(workload.target), workload.shape)


def digest_entry(body: Mapping[str, Any]) -> str:
    """Digest of an entry as JSON, less the digest itself: it tells what was written from what was changed by hand."""
    content = {key: value for key, value in body.items() if key != "digest"}
    return hashlib.sha256(canonical(content).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def latency_of(entry: Entry) -> dict[str, float | None]:
    """What of the evidence ships: times in ms of what is packaged, of the default and of the reference.

    The default is the first config as it was tuned: configs that come in another order since then change nothing that ships.
    """
    shipped, first = entry.tried(entry.ships), next(iter(entry.candidates), None)
    return latencies(
        None if shipped is None else shipped.timing, None if first is None else first.timing, entry.reference
    )


def latencies(timing: Timing | None, default: Timing | None, reference: Timing | None) -> dict[str, float | None]:
    """Times in ms as a package has them: null where nothing was measured."""
    return {
        "latency": None if timing is None else timing.latency,
        "spread": None if timing is None else timing.spread,
        "default_latency": None if default is None else default.latency,
        "ref_latency": None if reference is None else reference.latency,
    }


def doubts_of(trusted: bool, notes: Sequence[str]) -> tuple[str, ...]:
    """Why times are not to be trusted; nothing where they are."""
    return () if trusted else tuple(notes) or ("measured while the device was not quiet",)


def _order(entry: Entry) -> tuple[Any, ...]:
    items = [
        (name, (0, value, "") if isinstance(value, (int, float)) else (1, 0, canonical(value)))
        for name, value in sorted(entry.shape.items())
    ]
    return entry.kernel, entry.target, items
