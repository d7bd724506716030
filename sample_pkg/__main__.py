"""``python -m sample_pkg [--json]``: run every packaged kernel that this machine can run, check it and time it.

What was measured when the package was built (tuned and default time) comes from the manifest; everything else is
measured now, in this process. Needs numpy; the CUDA kernels need torch. Exits with 1 if a result is wrong, with 2 if
nothing could be run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tlaot
from tlaot.manifest import Variant

from . import kernels, reference

# Largest error, as a part of the reference's value there plus its mean magnitude.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}

MEASURE_SECONDS = 0.2

Call = Callable[[], Any]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sample_pkg", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    options = parser.parse_args(argv)
    start = time.perf_counter()
    import tvm_ffi  # noqa: F401  its import is no part of a kernel's first call

    import_ms = (time.perf_counter() - start) * 1e3
    try:
        rows, skipped = run_all()
    except tlaot.TlaotError as error:
        print(f"sample_pkg: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"rows": rows, "skipped": skipped, "import_tvm_ffi_ms": import_ms}, indent=1, sort_keys=True))
    else:
        print_table(rows, skipped, import_ms)
    if not rows:
        return 2
    return 0 if all(row["correct"] for row in rows) else 1


def run_all() -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """A row for each variant that runs here, and for each other one why it does not."""
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    packaged = kernels()
    for name in packaged:
        kernel = packaged[name]
        for variant in kernel.variants:
            reason = _why_not(variant)
            if reason is None:
                try:
                    rows.append(run_one(name, variant, make_inputs(variant)))
                    continue
                except tlaot.DispatchError as error:
                    reason = error.remedy or error.what
            label = {"kernel": name, "target": variant.target, "shape": _spell(variant.shape)}
            skipped.append({**label, "reason": reason})
    return rows, skipped


def run_one(name: str, variant: Variant, args: list[Any]) -> dict[str, Any]:
    """Check one variant against the reference and time it beside what the framework offers.

    Raises:
        DispatchError: Another variant, or none, is what runs here.
    """
    kernel = kernels()[name]
    on_cuda = variant.target.startswith("cuda")
    start = time.perf_counter()
    out = kernel(*args)
    _synchronize(on_cuda)
    first_ms = (time.perf_counter() - start) * 1e3
    chosen = kernel.resolve(*args)
    if chosen != variant:
        raise tlaot.DispatchError(name, f"{chosen.target} is chosen here", f"{chosen.target} is chosen here")
    error = worst_error(out, getattr(reference, name)(*args))
    dtype = variant.params[variant.out_idx[0]].dtype
    rival = RIVALS["torch" if on_cuda else "numpy"][name]
    now_ms, rival_ms = time_ms([lambda: kernel(*args), lambda: rival(*args)], on_cuda)
    tuned, default = variant.latency.get("latency"), variant.latency.get("default_latency")
    return {
        "kernel": name,
        "target": variant.target,
        "shape": dict(variant.shape),
        "dtype": dtype,
        "config": dict(variant.config),
        "tuned_ms_at_build": tuned,
        "default_ms_at_build": default,
        "speedup_over_default_at_build": default / tuned if default and tuned else None,
        "now_ms": now_ms,
        "rival": "torch" if on_cuda else "numpy",
        "rival_ms": rival_ms,
        "speedup_over_rival": rival_ms / now_ms,
        "first_call_ms": first_ms,
        "error": error,
        "correct": error <= TOLERANCE[dtype],
    }


def _size_of(variant: Variant, size: int | str) -> int:
    """A size as it is, or where it is open the largest that the variant was measured at, of its first range."""
    if isinstance(size, int):
        return size
    low, high = variant.buckets[0].sizes[size] if variant.buckets else (64, 64)
    return low if high is None else high


def make_inputs(variant: Variant) -> list[Any]:
    """Normally distributed inputs of a variant, the same on every run: numpy for the CPU, torch for CUDA."""
    random = np.random.default_rng(0)
    made: list[Any] = []
    for position, param in enumerate(variant.params):
        if position in variant.out_idx:
            continue
        sizes = [_size_of(variant, size) for size in param.shape or ()]
        values = np.asarray(random.standard_normal(sizes), dtype=np.float32)
        if variant.target.startswith("cuda"):
            import torch

            made.append(torch.from_numpy(values).to("cuda", getattr(torch, param.dtype)))
        else:
            made.append(values.astype(param.dtype))
    return made


def worst_error(out: Any, expected: Any) -> float:
    """Largest error relative to the reference plus its mean magnitude; infinite where the result is not finite."""
    if not isinstance(out, np.ndarray):
        out, expected = out.double().cpu().numpy(), expected.double().cpu().numpy()
    size = np.abs(expected.astype(np.float64))
    worst = float(np.max(np.abs(out.astype(np.float64) - expected) / (size + size.mean())))
    return worst if np.isfinite(worst) else float("inf")


def time_ms(calls: Sequence[Call], on_cuda: bool) -> list[float]:
    """Median time of each call, timed in turns; on CUDA of enough calls in a row to hide the launch."""
    repeat = 20 if on_cuda else 1
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    stop = time.perf_counter() + MEASURE_SECONDS * len(calls)
    while time.perf_counter() < stop or len(times[-1]) < 5:
        for call, kept in zip(calls, times, strict=True):
            call()  # the other call's threads have gone to sleep, its data left the cache
            _synchronize(on_cuda)
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            _synchronize(on_cuda)
            kept.append((time.perf_counter() - start) * 1e3 / repeat)
    return [statistics.median(kept) for kept in times]


def _numpy_softmax(x: Any) -> Any:
    exps = np.exp(x - x.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def _numpy_rms_norm(x: Any, w: Any) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-6)) * w


def _torch_rms_norm(x: Any, w: Any) -> Any:
    import torch

    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6)


# What a user would call instead, in the same precision.
RIVALS: dict[str, dict[str, Callable[..., Any]]] = {
    "numpy": {"matmul": lambda a, b: a @ b, "softmax": _numpy_softmax, "rms_norm": _numpy_rms_norm},
    "torch": {"matmul": lambda a, b: a @ b, "softmax": lambda x: x.softmax(dim=-1), "rms_norm": _torch_rms_norm},
}


def _why_not(variant: Variant) -> str | None:
    if not variant.target.startswith("cuda"):
        return None
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "there is no CUDA device"


def _synchronize(on_cuda: bool) -> None:
    if on_cuda:
        sys.modules["torch"].cuda.synchronize()


def print_table(rows: list[dict[str, Any]], skipped: list[dict[str, str]], import_ms: float) -> None:
    """The rows as text; what is from the build and what is of now is in the heading."""
    heading = (
        "kernel", "target", "shape", "config", "tuned ms (build)", "default ms (build)", "x default",
        "ms (now)", "numpy/torch ms (now)", "x numpy/torch", "first call ms (now)", "correct (now)",
    )  # fmt: skip
    lines = [heading] + [
        (
            row["kernel"],
            row["target"],
            f"{_spell(row['shape'])} {row['dtype']}",
            _spell(row["config"]),
            _spell_ms(row["tuned_ms_at_build"]),
            _spell_ms(row["default_ms_at_build"]),
            _spell_ratio(row["speedup_over_default_at_build"]),
            _spell_ms(row["now_ms"]),
            _spell_ms(row["rival_ms"]),
            _spell_ratio(row["speedup_over_rival"]),
            _spell_ms(row["first_call_ms"]),
            "yes" if row["correct"] else f"NO, error {row['error']:.2g}",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heading))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    for one in skipped:
        print(f"not run: {one['kernel']} {one['target']} {one['shape']}: {one['reason']}")
    print(f"(import of tvm_ffi, before the first calls: {import_ms:.0f} ms)")


def _spell(values: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(values.items()))


def _spell_ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _spell_ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
