"""A package of hand-written kernels that torch's operators are made of, for the tests of tlaot.torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fixtures_runtime
import pytest
from fixtures_runtime import compile_kernel, scalar, tensor, variant, write_package

from tlaot.manifest import Param, Variant


def adding(
    name: str, rows: int | str, label: int = 0, out: Sequence[int | str] = (), **shape: Any
) -> tuple[Variant, bytes]:
    """C = label + A + B, of which A and C have ``rows`` rows."""
    params = [tensor("A", rows, 8), tensor("B", 8), tensor("C", *(out or (rows, 8)), written=True)]
    return variant(name, params, [2], shape), compile_kernel(3, 0b100, label=label)


def copying(name: str, rows: int, dtype: str = "float32", label: int = 0, **shape: Any) -> tuple[Variant, bytes]:
    """Y = label + X; for other dtypes than float32, Y = X."""
    params = [tensor("X", rows, 8, dtype=dtype), tensor("Y", rows, 8, dtype=dtype, written=True)]
    return variant(name, params, [1], shape), compile_kernel(2, 0b10, label=label)


def listed() -> dict[str, list[tuple[Variant, bytes]]]:
    """Kernels by name."""
    state = tensor("S", 4, 8, written=True)
    return {
        "add": [adding("add", 4, M=4)],
        # one variant for 4 rows, which adds 100, and one for any number
        "any": [adding("any", 4, label=100, M=4), adding("any", "m")],
        # 4 and 6 rows and no other
        "fixed": [copying("fixed", n, label=n, M=n) for n in (4, 6)],
        "only": [copying("only", 4)],
        # the output's shape is another one for 4 rows
        "turned": [adding("turned", "m"), adding("turned", 4, out=(8, 4), M=4)],
        "square": [
            (variant("square", [tensor("X", "m", "m"), tensor("Y", "m", written=True)], [1], {}), compile_kernel(2, 2))
        ],
        "typed": [copying("typed", 4, dtype, D=dtype) for dtype in ("float32", "float16", "int8")],
        "update": [(variant("update", [tensor("X", 4, 8), state], [], {}), compile_kernel(2, 0b10))],
        "both": [
            (
                variant("both", [tensor("X", 4, 8), state, tensor("Y", 4, 8, written=True)], [2], {}),
                compile_kernel(3, 0b110),
            )
        ],
        # outputs before and after the inputs, returned last first
        "several": [
            (
                variant(
                    "several",
                    [tensor("Y", 4, written=True), tensor("X", 4), scalar("s"), tensor("Z", 5, written=True)],
                    [3, 0],
                    {},
                ),
                compile_kernel(4, 0b1001),
            )
        ],
        # a scalar is the size of the output
        "sized": [
            (
                variant("sized", [tensor("X", 4), scalar("n", "int32"), tensor("Y", "n", written=True)], [2], {}),
                compile_kernel(3, 4),
            )
        ],
        "flagged": [copying("flagged", 4, label=10 * flag, causal=bool(flag)) for flag in (0, 1)],
        "column": [
            (
                variant("column", [tensor("X", 4, 3), Param("Y", "float32", (4, 3), (3, 1), 4, True)], [1], {}),
                compile_kernel(2, 2),
            )
        ],
        # what torch cannot call, or not without the output
        "unheard": [(variant("unheard", [tensor("X", 4, dtype="float5"), tensor("Y", 4, written=True)], [1], {}), b"")],
        "scalars": [(variant("scalars", [scalar("n"), tensor("Y", 4, written=True)], [1], {}), compile_kernel(2, 2))],
        "computed": [
            (variant("computed", [tensor("X", "m"), tensor("Y", "m*2", written=True)], [1], {}), compile_kernel(2, 2))
        ],
    }


def write(folder: Path, package: str, *names: str) -> None:
    """Write ``folder/package`` with those kernels; all by default."""
    kernels = listed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixtures_runtime, "has_direct", True)  # as what is built
        write_package(folder, package, {name: kernels[name] for name in names or kernels})
