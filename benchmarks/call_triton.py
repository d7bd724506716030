"""Kernels of Triton's that do nothing, for benchmarks/call.py: what is timed is the way to them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

import triton


@triton.jit
def nothing(a, b, c):
    pass


@triton.jit
def nothing_of_19(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s):  # noqa: E741
    pass
