"""Workloads and the folders that they are kept in."""

from __future__ import annotations

import itertools
from typing import Any

from tlaot.target import parse_target
from tlaot.tune.specs.plan import Workload, workload_slug
from tlaot.tune.specs.spec import KernelSpec


def test_a_plain_shape_reads_as_itself() -> None:
    assert workload_slug({"N": 32, "M": 1024, "K": 64}) == "K64-M1024-N32"
    assert workload_slug({}) == "default"


def test_a_label_tells_text_from_numbers() -> None:
    kernel = KernelSpec("add", "tvm", "m:add", (parse_target("llvm"),), ({},), ({},), "test")
    workload = Workload(
        kernel, kernel.targets[0], {"M": "128", "N": 128, "causal": True}, ({"tile": 2, "order": "ij"},)
    )
    assert workload.label == "add [llvm:x86-64-v3] (M='128', N=128, causal=True)"
    assert workload.candidates()[0].label == f"{workload.label} #0 {{tile=2, order='ij'}}"


def test_no_two_shapes_share_a_folder() -> None:
    shapes: list[dict[str, Any]] = [
        {"M": 1},
        {"M": 1.0},
        {"M": True},
        {"M": "1"},
        {"M1": 2},
        {"M": 12},
        {"M": -1},
        {"a": "x-b1"},
        {"a": "x", "b": 1},
        {"a": "x/b"},
        {"a": "x_b"},
        {"M": 10**90},
        {"M": 10**90 + 1},
    ]
    slugs = [workload_slug(shape) for shape in shapes]
    for (left, a), (right, b) in itertools.combinations(zip(shapes, slugs, strict=True), 2):
        assert a.lower() != b.lower(), (left, right)


def test_a_slug_is_a_safe_file_name() -> None:
    for shape in ({"a": "../../etc"}, {"a": "x" * 500}, {"dtype": "float16 (e5m10)"}):
        slug = workload_slug(shape)
        assert "/" not in slug and len(slug) < 100 and not slug.startswith(".")
