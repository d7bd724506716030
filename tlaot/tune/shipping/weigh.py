"""``size-budget``: what the packaged kernels add to the wheel, and what takes the space where that is too much."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import BuildError
from ...manifest import DIRECT, FOLDER, MANIFEST_NAME, read_manifest
from ...spelling import spell_bytes, spell_table
from ..compiling.compile import EXECUTABLE
from ..specs.spec import Spec

__all__ = ["Weight", "check_budget", "weigh"]

# Rows of the table; what takes less is added up.
_MOST_ROWS = 20

# Of each member of a zip archive: the fixed parts of its two headers; its name is in both.
_ENTRY = 30 + 46


@dataclass(frozen=True)
class Weight:
    """What the variants of one kernel and one target take.

    Attributes:
        kernel: Name of the kernel.
        target: The target.
        variants: How many there are.
        binaries: How many different binaries they have.
        installed: Bytes of their files.
        deflated: Bytes of their files in a wheel, with the archive's entries.
        sources: Of these, bytes of the sources and the device code that ``keep`` ships beside the binaries.
    """

    kernel: str
    target: str
    variants: int
    binaries: int
    installed: int
    deflated: int
    sources: int


def weigh(output: Path, package: str) -> tuple[list[Weight], int]:
    """What a packaged folder takes in a wheel.

    Args:
        output: The folder, with its manifest.
        package: Import name of the package, which is part of each file's name in the wheel.

    Returns:
        The weights by kernel and target, the heaviest first; and the bytes of the manifest in the wheel.
    """
    inside = f"{package.replace('.', '/')}/{FOLDER}"
    weights = []
    for name, kernel in read_manifest(output / MANIFEST_NAME).kernels.items():
        for target in sorted({variant.target for variant in kernel.variants}):
            variants = [variant for variant in kernel.variants if variant.target == target]
            files = [f"{v.path}/{file}" for v in variants for file in v.files if file not in v.stored]
            sizes = {file: _deflated(output / file, f"{inside}/{file}") for file in files}
            weights.append(
                Weight(
                    name,
                    target,
                    len(variants),
                    sum(file.endswith(f"/{EXECUTABLE}") for file in files),
                    sum((output / file).stat().st_size for file in files),
                    sum(sizes.values()),
                    sum(
                        size
                        for file, size in sizes.items()
                        if not file.endswith((f"/{EXECUTABLE}", f"/{DIRECT}", ".json"))
                    ),
                )
            )
    weights.sort(key=lambda w: (-w.deflated, w.kernel, w.target))
    return weights, _deflated(output / MANIFEST_NAME, f"{inside}/{MANIFEST_NAME}")


def check_budget(output: Path, spec: Spec) -> None:
    """Fail where the packaged kernels add more to the wheel than the spec's ``size-budget``.

    Compared is what is downloaded and what an index limits: the files' compressed sizes, and the archive's entries for them.
    With ``split`` the budget is that of each wheel.

    Raises:
        BuildError: They do; the message has a table of what takes the space, and what would help.
    """
    if spec.size_budget is None:
        return
    weights, manifest = weigh(output, spec.package)
    if not weights:
        return
    count = sum(weight.variants for weight in weights)
    for wheel, parts in _wheels(weights, spec):
        share = round(manifest * sum(weight.variants for weight in parts) / count)
        total = share + sum(weight.deflated for weight in parts)
        if total > spec.size_budget:
            over = total / spec.size_budget
            much = f"{over:.1f} times" if over >= 2 else f"{over - 1:.1%} more than"
            raise BuildError(
                f"{spec.path.name} [tlaot] size-budget",
                f"the kernels take {spell_bytes(total)} of {wheel}, {much} the {spell_bytes(spec.size_budget)} of the budget:\n"
                + "\n".join(f"  {line}" for line in _table(parts, share, total)),
                "What would help:\n" + "\n".join(f"  {line}" for line in _advise(parts, spec)),
            )


def _wheels(weights: Sequence[Weight], spec: Spec) -> list[tuple[str, list[Weight]]]:
    """What goes into which wheel, the heaviest first."""
    if spec.split is None:
        return [("the wheel", list(weights))]
    parts: dict[str, list[Weight]] = {}
    for weight in weights:
        own = weight.target.startswith("cuda:")
        parts.setdefault(f"the companion wheel for {weight.target}" if own else "the main wheel", []).append(weight)
    return sorted(parts.items(), key=lambda part: (-sum(weight.deflated for weight in part[1]), part[0]))


def _table(weights: Sequence[Weight], manifest: int, total: int) -> list[str]:
    rows = [
        (
            w.kernel,
            w.target,
            str(w.variants),
            str(w.binaries),
            spell_bytes(w.deflated),
            f"{w.deflated / total:.0%}",
            spell_bytes(w.installed),
        )
        for w in weights[:_MOST_ROWS]
    ]
    rest = weights[_MOST_ROWS:]
    if rest:
        size = sum(w.deflated for w in rest)
        counts = (str(sum(w.variants for w in rest)), str(sum(w.binaries for w in rest)))
        installed = spell_bytes(sum(w.installed for w in rest))
        rows.append((f"{len(rest)} more", "", *counts, spell_bytes(size), f"{size / total:.0%}", installed))
    rows.append((MANIFEST_NAME, "", "", "", spell_bytes(manifest), f"{manifest / total:.0%}", ""))
    numbers = ("variants", "binaries", "in the wheel", "share", "installed")
    return spell_table(("kernel", "target", *numbers), rows, numbers)


def _advise(weights: Sequence[Weight], spec: Spec) -> list[str]:
    """What would make it smaller, for this spec; at the least that the author changes his mind."""
    advice = []
    sources = sum(weight.sources for weight in weights)
    if sources:
        advice.append(f"-C keep=off: sources and device code beside the binaries take {spell_bytes(sources)}")
    targets: dict[str, int] = {}
    for weight in weights:
        targets[weight.target] = targets.get(weight.target, 0) + weight.deflated
    if len(targets) > 1:
        heaviest = max(targets, key=lambda target: (targets[target], target))
        advice.append(f"fewer targets: {heaviest} takes {spell_bytes(targets[heaviest])}")
        if spec.split is None and any(target.startswith("cuda:") for target in targets):
            advice.append(
                'split = "arch": a companion wheel for each CUDA architecture; the budget is then that of each wheel'
            )
    several = {weight.kernel: weight.binaries for weight in weights if weight.binaries > 1}
    if any(kernel.max_slowdown is None and kernel.name in several for kernel in spec.kernels):
        advice.append(f"max-slowdown = 1.05: the fewest of {max(several.values())} binaries that are near the fastest")
    return [*advice, "fewer shapes, or a larger size-budget"]


def _deflated(path: Path, name: str) -> int:
    """Bytes of a file in a wheel, compressed as setuptools does it."""
    deflate = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = path.read_bytes()
    return len(deflate.compress(data)) + len(deflate.flush()) + _ENTRY + 2 * len(name)
