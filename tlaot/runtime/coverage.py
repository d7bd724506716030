"""``tlaot.coverage``: which calls of this process a packaged variant fits, and which none does."""

from __future__ import annotations

from dataclasses import dataclass

from .seen import notes

__all__ = ["Coverage", "Seen", "coverage"]


@dataclass(frozen=True)
class Seen:
    """Calls that look the same.

    Attributes:
        kernel: ``"package.name"``.
        arguments: The arguments, ``"(float16[300, 1024], float16[1024, 1024])"``.
        device: ``"cuda:0"`` or ``"cpu"``.
        outcome: ``"hit"``: a packaged variant runs. ``"miss"``: none fits, and the call raised. ``"fallback"``, ``"jit"`` or
            ``"callback"``: none fits, and what the miss policy gave runs. ``"copy"``: a hit whose misaligned arguments were copied.
        what: The variant, ``"cuda:sm_90a {M=1024}"``; of a miss the line that ``tltune.toml`` lacks, where it is known.
        times: How often that was decided. Each miss that raises is; a hit once for each process and kernel object, and again
            where its arguments had been forgotten among thousands.
    """

    kernel: str
    arguments: str
    device: str
    outcome: str
    what: str
    times: int


@dataclass(frozen=True)
class Coverage:
    """What this process has seen; ``print`` shows it.

    Attributes:
        seen: Calls in order of appearance.
        left_out: How many decisions are not listed, after the first 65,536 kinds.
    """

    seen: tuple[Seen, ...]
    left_out: int = 0

    @property
    def hits(self) -> tuple[Seen, ...]:
        """Those that a packaged variant runs."""
        return tuple(one for one in self.seen if one.outcome == "hit")

    @property
    def misses(self) -> tuple[Seen, ...]:
        """Those that no packaged variant fits, whatever ran in its place."""
        return tuple(one for one in self.seen if one.outcome not in ("hit", "copy"))

    def __str__(self) -> str:
        lines = [f"{len(self.hits)} kinds of calls hit, {len(self.misses)} missed"]
        for one in sorted(self.seen, key=lambda one: (one.outcome in ("hit", "copy"), one.kernel)):
            times = f" x{one.times}" if one.times > 1 else ""
            lines.append(
                f"  {one.outcome:8} {one.kernel}{one.arguments} on {one.device}{times}{f': {one.what}' if one.what else ''}"
            )
        if self.left_out:
            lines.append(f"  and {self.left_out} more that were not kept")
        return "\n".join(lines)


def coverage(package: str | None = None) -> Coverage:
    """What calls of packaged kernels have found in this process: which combinations of arguments hit, which missed.

    Args:
        package: Import name of a package; None for all.
    """
    items, left_out = notes()
    seen = (
        Seen(kernel, arguments, device, outcome, what, times)
        for (kernel, arguments, device, outcome), (what, times) in items
        if package is None or kernel.rpartition(".")[0] == package
    )
    return Coverage(tuple(seen), left_out)
