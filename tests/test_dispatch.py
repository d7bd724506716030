"""Which variant fits a call, and what is said when none does: pure data, no binary, no device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from fixtures_runtime import scalar, tensor, variant

from tlaot.errors import CallError, DispatchError
from tlaot.manifest import Param, Variant, digest_of
from tlaot.runtime.choose import find_notes, pick_variant
from tlaot.runtime.dispatch import Argument, Place, find_mismatches, resolve
from tlaot.target import DLPACK_CPU, DLPACK_CUDA

CPU = Place(DLPACK_CPU, cpu_level=3)
H200 = Place(DLPACK_CUDA, 0, capability=(9, 0))


def gemm(
    m: int | str, n: int | str, k: int | str, target: str = "llvm", dtype: str = "float32", **shape: Any
) -> Variant:
    params = [
        tensor("A", m, k, dtype=dtype),
        tensor("B", k, n, dtype=dtype),
        tensor("C", m, n, dtype=dtype, written=True),
    ]
    sizes = {name: size for name, size in (("M", m), ("N", n), ("K", k)) if isinstance(size, int)}
    return variant("gemm", params, [2], {**sizes, **shape}, target if ":" in target else f"{target}:x86-64-v3")


def of(*shapes: tuple[int, ...], dtype: str = "float32") -> list[Argument]:
    return [Argument(dtype, shape) for shape in shapes]


def pick(variants: Sequence[Variant], arguments: Sequence[Argument], place: Place = CPU, **named: Any) -> Variant:
    return pick_variant("pkg.gemm", variants, arguments, place, named)


def test_exact_shape() -> None:
    """The variant of exactly these sizes, outputs left out or given."""
    small, large = gemm(4, 4, 8), gemm(8, 4, 8)
    assert pick([small, large], of((8, 8), (8, 4))) is large
    assert pick([small, large], of((4, 8), (8, 4), (4, 4))) is small


def test_resolve_gives_every_reason() -> None:
    """A variant that is wrong in several ways is rejected with all of them."""
    accepted, rejected = resolve([gemm(4, 4, 8)], of((5, 8), (8, 4), dtype="float64"), CPU, {"M": 5})
    assert not accepted
    assert [kind for kind, _ in rejected[0].reasons] == ["factory", "dtype", "shape", "dtype"]


def test_symbolic_sizes_bind_and_then_must_agree() -> None:
    """A symbolic size takes any value, the same one wherever it stands; also 64-bit ones and zero."""
    dynamic = gemm("m", 4, 8)
    for m in (0, 1, 7, 2**40):
        assert pick([dynamic], of((m, 8), (8, 4), (m, 4))) is dynamic
    with pytest.raises(DispatchError, match=r"argument 2 \(C\) has shape \(6, 4\), expected \(7, 4\)"):
        pick([dynamic], of((7, 8), (8, 4), (6, 4)))


def test_an_exact_variant_goes_before_a_dynamic_one() -> None:
    """Even one of a less specific target."""
    exact, dynamic = gemm(4, 4, 8, "llvm:x86-64"), gemm("m", 4, 8)
    assert pick([dynamic, exact], of((4, 8), (8, 4))) is exact
    assert pick([dynamic, exact], of((5, 8), (8, 4))) is dynamic


def test_the_best_cpu_level_that_runs() -> None:
    """Best first; a level above the processor's is never run."""
    levels = [gemm(4, 4, 8, f"llvm:{level}") for level in ("x86-64", "x86-64-v4", "x86-64-v2")]
    for rank, best in ((4, 1), (3, 2), (2, 2), (1, 0)):
        assert pick(levels, of((4, 8), (8, 4)), Place(DLPACK_CPU, cpu_level=rank)) is levels[best]
    with pytest.raises(DispatchError, match=r"needs x86-64-v4, this processor has x86-64-v3\n.*add x86-64-v3"):
        pick(levels[1:2], of((4, 8), (8, 4)), CPU)


def test_the_most_specific_cuda_target_that_runs() -> None:
    """Of one workload's targets the best for this device; none runs: what was built and what is here."""
    built = [gemm(4, 4, 8, f"cuda:{arch}") for arch in ("sm_80", "sm_90a", "sm_90", "sm_100a")]
    arguments = of((4, 8), (8, 4))
    for capability, best in (((9, 0), 1), ((8, 0), 0), ((8, 9), 0), ((10, 0), 3)):
        assert pick(built, arguments, Place(DLPACK_CUDA, 0, capability=capability)) is built[best]
    with pytest.raises(DispatchError) as caught:
        pick(built, arguments, Place(DLPACK_CUDA, 1, capability=(12, 0)))
    assert "compute capability 12.0 (cuda:1)" in caught.value.what
    assert "built for cuda:sm_100a, cuda:sm_80, cuda:sm_90, cuda:sm_90a: add cuda:sm_120 to" in caught.value.remedy


def test_the_order_of_choice() -> None:
    """The very architecture, the family, what CUDA guarantees, PTX; a faster time changes nothing about it."""
    targets = ["sm_103a", "sm_103", "sm_100f", "sm_100", "compute_90", "compute_80"]
    built = [
        dataclasses.replace(gemm(4, 4, 8, f"cuda:{target}"), latency={"latency": float(10 - i)})
        for i, target in enumerate(targets)
    ]
    place, arguments = Place(DLPACK_CUDA, 0, capability=(10, 3)), of((4, 8), (8, 4))
    while built:
        assert pick(list(reversed(built)), arguments, place) is built[0]
        built.pop(0)


def test_ptx_is_refused_where_it_is_forbidden() -> None:
    """What there is, why not, and how to have it; machine code that runs is not touched."""
    native, ptx = gemm(4, 4, 8, "cuda:sm_80"), gemm(4, 4, 8, "cuda:compute_80")
    arguments = of((4, 8), (8, 4))
    blackwell = Place(DLPACK_CUDA, 0, capability=(12, 0))
    assert pick([native, ptx], arguments, blackwell) is ptx
    assert pick([native, ptx], arguments, dataclasses.replace(blackwell, capability=(8, 6), ptx=False)) is native
    with pytest.raises(DispatchError) as caught:
        pick([native, ptx], arguments, dataclasses.replace(blackwell, ptx=False))
    text = str(caught.value)
    assert "cuda:sm_80 {K=8, M=4, N=4}: does not run on compute capability 12.0 (cuda:0)" in text
    assert (
        "cuda:compute_80 {K=8, M=4, N=4}: is PTX, which the driver would have to compile; TLAOT_PTX=0 forbids it"
        in text
    )
    assert text.endswith(
        "\nUnset TLAOT_PTX, or add cuda:sm_120 to the targets in tltune.toml and build the package again."
    )
    # A system on a chip runs its own code and PTX.
    orin = Place(DLPACK_CUDA, 0, capability=(8, 7))
    assert pick([native, ptx], arguments, orin) is ptx
    with pytest.raises(DispatchError, match=r"compute capability 8\.7"):
        pick([native], arguments, orin)


def test_code_that_needs_more_shared_memory_is_not_for_this_device() -> None:
    """Code of 8.0 runs on 8.9, but a block has 99 KiB there and not 163; PTX of another config may fit."""
    arguments = of((4, 8), (8, 4))
    ada = Place(DLPACK_CUDA, 0, capability=(8, 9), shared_memory=101376)
    large, small = (
        dataclasses.replace(gemm(4, 4, 8, target), properties={"shared_memory": size})
        for target, size in (("cuda:sm_80", 131072), ("cuda:compute_80", 65536))
    )
    for place in (dataclasses.replace(ada, shared_memory=None), dataclasses.replace(ada, shared_memory=131072)):
        assert pick([large, small], arguments, place) is large
    assert pick([large, small], arguments, ada) is small
    with pytest.raises(DispatchError) as caught:
        pick([large], arguments, ada)
    assert "cuda:sm_80 {K=8, M=4, N=4}: needs 128 KiB of shared memory per block, cuda:0 has 99" in caught.value.what
    assert "add cuda:sm_89 to the targets" in caught.value.remedy
    unknown = dataclasses.replace(large, properties={"shared_memory": "a lot"})
    assert pick([unknown], arguments, ada) is unknown


def test_machine_code_for_any_size_goes_before_ptx_for_this_one() -> None:
    """Of the same workload; a switch of the factory makes another one, whose result may be another."""
    arguments, here = of((4, 8), (8, 4)), Place(DLPACK_CUDA, 0, capability=(9, 0))
    exact, native = gemm(4, 4, 8, "cuda:compute_80"), gemm("m", 4, 8, "cuda:sm_90a")
    spelt = gemm("m", 4, 8, "cuda:sm_90a", M="m")
    for dynamic in (native, spelt):
        assert pick([exact, dynamic], arguments, here) is dynamic
        assert pick([exact, dynamic], arguments, dataclasses.replace(here, capability=(12, 0))) is exact
    both = [exact, gemm("m", "n", 8, "cuda:sm_90a"), native]
    assert pick(both, arguments, here) is native
    causal = gemm(4, 4, 8, "cuda:compute_80", causal=True)
    for other in (gemm("m", 4, 8, "cuda:sm_90a"), gemm("m", 4, 8, "cuda:sm_90a", causal=False)):
        assert pick([causal, other], arguments, here) is causal
    assert pick([causal, gemm("m", 4, 8, "cuda:sm_90a", causal=True)], arguments, here).target == "cuda:sm_90a"


def test_what_is_said_of_a_choice() -> None:
    """PTX, and another number of multiprocessors than was tuned for; nothing where all is as it should be."""
    here = Place(DLPACK_CUDA, 0, capability=(9, 0), device="NVIDIA GH200", sm_count=144)
    tuned = {"device": "NVIDIA H200", "sm_count": 132}
    native = dataclasses.replace(gemm(4, 4, 8, "cuda:sm_90a"), tuned=tuned)
    assert find_notes("pkg.sub.gemm", native, here) == [
        (
            "sm_count",
            "pkg.sub.gemm: the config was tuned on NVIDIA H200 with 132 multiprocessors; NVIDIA GH200 has 144, for which another "
            "may be faster. Run: tlaot retune pkg.sub",
        )
    ]
    assert find_notes("pkg.gemm", native, dataclasses.replace(here, sm_count=132)) == []
    assert find_notes("pkg.gemm", native, dataclasses.replace(here, sm_count=None)) == []
    for unknown in ({}, {"sm_count": None}, {"sm_count": "132"}, {"device": "NVIDIA H200"}):
        assert find_notes("pkg.gemm", dataclasses.replace(native, tuned=unknown), here) == []
    ptx = dataclasses.replace(gemm(4, 4, 8, "cuda:compute_80"), tuned=tuned)
    ((kind, text),) = find_notes("pkg.gemm", ptx, here)
    assert kind == "ptx"
    assert "no machine code for NVIDIA GH200; its driver compiles the PTX of cuda:compute_80" in text
    assert "target cuda:sm_90, or set TLAOT_PTX=0" in text


def test_equal_workloads_of_two_frontends_go_to_the_faster() -> None:
    """llvm and c at the same level."""
    slow = gemm(4, 4, 8, "llvm")
    fast = dataclasses.replace(gemm(4, 4, 8, "c"), latency={"latency": 0.5})
    assert pick([slow, fast], of((4, 8), (8, 4))) is fast
    assert pick([fast, slow], of((4, 8), (8, 4))) is fast


def test_ambiguity_lists_the_names_to_pass() -> None:
    """Equal tensors, other factory arguments: an error that names them, settled by keyword."""
    choices = [gemm(4, 4, 8, causal=False), gemm(4, 4, 8, causal=True)]
    with pytest.raises(CallError) as caught:
        pick(choices, of((4, 8), (8, 4)))
    assert str(caught.value) == (
        "pkg.gemm: 2 packaged workloads take these tensors, and differ in causal:\n  causal=False\n  causal=True\n"
        "Say which by keyword, for instance causal=False."
    )
    assert pick(choices, of((4, 8), (8, 4)), causal=True) is choices[1]
    assert pick(choices, of((4, 8), (8, 4)), causal=False, M=4) is choices[0]
    with pytest.raises(DispatchError, match="causal is True, asked for 1"):
        pick(choices[1:], of((4, 8), (8, 4)), causal=1)


def test_workloads_that_share_a_binary_leave_no_choice() -> None:
    """Where the code does not depend on the arguments that differ, nobody is asked for them; the faster target still wins."""
    one, other = digest_of(b"one"), digest_of(b"other")
    choices = [dataclasses.replace(gemm("m", 4, 8, tile=t), files={"executable.so": one}) for t in (1, 2)]
    assert pick(choices, of((4, 8), (8, 4))) in choices
    assert pick(choices, of((4, 8), (8, 4)), tile=2) is choices[1]
    better = [
        dataclasses.replace(gemm("m", 4, 8, "llvm:x86-64-v4", tile=t), files={"executable.so": other}) for t in (1, 2)
    ]
    avx512 = Place(DLPACK_CPU, cpu_level=4)
    assert pick([*choices, *better], of((4, 8), (8, 4)), avx512) in better
    assert pick([*choices, *better], of((4, 8), (8, 4))) in choices
    differing = [choices[0], dataclasses.replace(choices[1], files={"executable.so": other})]
    with pytest.raises(CallError, match="differ in tile"):
        pick(differing, of((4, 8), (8, 4)))
    with pytest.raises(CallError, match="differ in tile"):
        pick([choices[0], dataclasses.replace(choices[1], out_idx=())], of((4, 8), (8, 4), (4, 4)))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "casual",
            "unknown factory argument 'casual', did you mean 'causal'?\nArguments of the factory: K, M, N, causal.",
        ),
        ("A", "tensors are positional, got A by keyword\nTensors and scalars are passed by position"),
        ("xyz", "unknown factory argument 'xyz'\nArguments of the factory: K, M, N, causal"),
    ],
)
def test_unknown_factory_argument(name: str, says: str) -> None:
    """A misspelt one is met with the nearest, a tensor's name with how tensors are passed."""
    with pytest.raises(CallError) as caught:
        pick([gemm(4, 4, 8, causal=True)], of((4, 8), (8, 4)), **{name: 1})
    assert says in str(caught.value)


def test_wrong_number_of_arguments_shows_the_signature() -> None:
    """Neither all parameters nor all but the outputs."""
    for count in (0, 1, 4):
        with pytest.raises(CallError, match=f"got {count} arguments") as caught:
            pick([gemm(4, 4, 8)], of(*[(4, 8)] * count))
        assert "(A: float32[4, 8], B: float32[8, 4]) -> C: float32[4, 4]" in caught.value.remedy


def test_the_nearest_variants_are_listed() -> None:
    """Those with the least against them, then those of the nearest sizes; of many the first, and how many more there are."""
    variants = [gemm(4, 4, 8, "cuda:sm_90a", "float16")] + [gemm(m, 4, 8) for m in range(1, 30)]
    with pytest.raises(DispatchError) as caught:
        pick(variants, of((64, 8), (8, 4)))
    lines = caught.value.what.splitlines()
    assert lines[0] == "no packaged variant fits (float32[64, 8], float32[8, 4]) on cpu"
    assert [line.partition(":x86-64-v3 ")[2].partition(":")[0] for line in lines[1:-1]] == [
        f"{{K=8, M={m}, N=4}}" for m in range(29, 13, -1)
    ]
    assert lines[-1] == "  and 14 more that are further from it"
    with pytest.raises(DispatchError) as caught:
        pick(variants[:9], of((64, 8), (8, 4)))
    assert "cuda:sm_90a" in caught.value.what.splitlines()[-1]
    assert "more" not in caught.value.what


@pytest.mark.parametrize(
    ("variants", "arguments", "named", "lines"),
    [
        ([gemm(3, 4, 8)], of((5, 8), (8, 4)), {}, ["{ M = 5, N = 4, K = 8 }"]),
        # What no size tells is the nearest variant's, unless the caller says it.
        ([gemm(3, 4, 8, causal=True)], of((5, 8), (8, 4)), {}, ["{ M = 5, N = 4, K = 8, causal = true }"]),
        (
            [gemm(3, 4, 8, causal=True)],
            of((5, 8), (8, 4)),
            {"causal": True},
            ["{ M = 5, N = 4, K = 8, causal = true }"],
        ),
        ([gemm(3, 4, 8, mode="a")], of((5, 8), (8, 4)), {}, ['{ M = 5, N = 4, K = 8, mode = "a" }']),
        # N and K are one size in all that was packaged: both ways to read the call are named.
        ([gemm(4, 8, 8)], of((5, 9), (9, 4)), {}, ["{ M = 5, N = 9, K = 4 }", "{ M = 5, N = 4, K = 9 }"]),
        ([gemm(4, 8, 8), gemm(4, 4, 8)], of((5, 9), (9, 4)), {}, ["{ M = 5, N = 4, K = 9 }"]),
        ([gemm(8, 8, 8)], of((5, 5), (5, 5)), {}, ["{ M = 5, N = 5, K = 5 }"]),
        # A size that each call says stays open.
        ([gemm("m", 4, 8, M="m")], of((5, 9), (9, 4)), {}, ['{ N = 4, K = 9, M = "m" }']),
        # Nothing is told by what takes other arguments, or contradicts itself.
        ([gemm(4, 4, 8)], of((5, 8), (9, 4)), {}, []),
    ],
)
def test_the_line_to_add(
    variants: list[Variant], arguments: list[Argument], named: dict[str, Any], lines: list[str]
) -> None:
    """What ``tltune.toml`` lacks, from how packaged workloads made packaged sizes."""
    with pytest.raises(DispatchError) as caught:
        pick(variants, arguments, **named)
    expected = [f"    {'or' if i else '[[kernel]] gemm:'} shapes = [{line}]" for i, line in enumerate(lines)]
    assert caught.value.remedy.splitlines()[1:] == expected


SCALED = variant("scale", [tensor("X", 4), scalar("s", "float32")], [], {})


@pytest.mark.parametrize(
    ("variants", "arguments", "place", "remedy"),
    [
        ([gemm(4, 4, 8, "cuda:sm_90a")], of((4, 8), (8, 4)), CPU, r"\.cuda\(\)"),
        ([gemm(4, 4, 8)], of((4, 8), (8, 4)), H200, r"\.cpu\(\)"),
        ([gemm(4, 4, 8)], of((4, 8), (8, 4), dtype="float64"), CPU, "dtype"),
        # Padding: to the smallest in which every tensor has room; never where one has none, or another rank.
        (
            [gemm(16, 4, 8), gemm(8, 4, 8), gemm(4, 4, 8)],
            of((5, 8), (8, 4)),
            CPU,
            "Pad to the next larger, {K=8, M=8, N=4}",
        ),
        ([gemm("m", 8, 8)], of((5, 8), (8, 4)), CPU, "Pad to the next larger, {K=8, N=8}"),
        ([gemm(4, 4, 8)], of((5, 8), (8, 4)), CPU, "^Add the shape to tltune.toml"),
        ([gemm(4, 4, 8)], of((3, 8), (8, 5)), CPU, "^Add the shape to tltune.toml"),
        ([gemm("m", 4, 8)], of((7, 8), (8, 4), (6, 4)), CPU, "^Add the shape to tltune.toml"),
        ([gemm(4, 4, 8)], of((8, 4), (4, 8)), CPU, "^Arguments 0 and 1 are swapped: {K=8, M=4, N=4} takes .A: float32"),
        ([gemm(9, 9, 9), gemm(4, 4, 8)], of((4, 8), (4, 4), (8, 4)), CPU, "^Arguments 1 and 2 are swapped"),
        ([SCALED], [Argument("float", None), Argument("float32", (4,))], CPU, "^Arguments 0 and 1 are swapped"),
        ([gemm(4, 4, 8)], [*of((4, 8)), Argument("int", None)], CPU, "Python numbers"),
        ([gemm(4, 4, 8)], of((4, 8, 1), (8, 4)), CPU, "as many dimensions as in .A: float32.4, 8., B"),
        ([gemm(4, 4, 8)], of((32,), (8, 4)), CPU, "as many dimensions as in"),
        ([], of((4, 8)), CPU, "Build the package"),
    ],
)
def test_remedies(variants: list[Variant], arguments: list[Argument], place: Place, remedy: str) -> None:
    """Each way to miss has a way out of its own."""
    with pytest.raises(DispatchError) as caught:
        pick(variants, arguments, place)
    import re

    assert re.search(remedy, caught.value.remedy)


@pytest.mark.parametrize(
    ("dtype", "fits", "refuses"),
    [
        ("float32", ["float", "int"], ["bool"]),
        ("float16", ["float", "int"], ["bool"]),
        ("int64", ["int", "bool"], ["float"]),
        ("uint8", ["int", "bool"], ["float"]),
        ("bool", ["bool"], ["int", "float"]),
    ],
)
def test_scalars(dtype: str, fits: list[str], refuses: list[str]) -> None:
    """A Python number fits a scalar parameter where nothing is lost by it; a tensor never does."""
    one = variant("scale", [tensor("X", 4), scalar("s", dtype)], [], {})
    for kind in fits:
        assert pick([one], [*of((4,)), Argument(kind, None)]) is one
    for kind in refuses:
        with pytest.raises(DispatchError, match=f"is a Python {kind}, expected {dtype}"):
            pick([one], [*of((4,)), Argument(kind, None)])
    with pytest.raises(DispatchError, match="is a tensor, expected a scalar"):
        pick([one], of((4,), ()))


def test_strides_tell_variants_apart() -> None:
    """Row-major and transposed variants of one workload; a size of one has no stride worth comparing."""

    def with_strides(*strides: int | str) -> Variant:
        return variant("t", [Param("X", "float32", (4, 8), strides), tensor("Y", 4, written=True)], [1], {})

    rows, columns = with_strides(8, 1), with_strides(1, 4)
    assert pick([rows, columns], [Argument("float32", (4, 8), (1, 4))]) is columns
    assert pick([rows, columns], [Argument("float32", (4, 8), (8, 1))]) is rows
    with pytest.raises(DispatchError, match=r"has strides \(16, 1\), expected \(8, 1\)"):
        pick([rows], [Argument("float32", (4, 8), (16, 1))])
    padded = with_strides("ld", 1)
    assert pick([padded], [Argument("float32", (4, 8), (16, 1))]) is padded
    single = variant("t", [Param("X", "float32", (1, 8), (8, 1))], [], {})
    assert pick([single], [Argument("float32", (1, 8), (999, 1))]) is single


def test_none_is_taken_for_a_tensor_that_the_code_never_looks_at() -> None:
    params = [tensor("A", 4), tensor("S", "n", optional=True), tensor("B", 4, written=True)]
    one = variant("k", params, [2], {})
    given = [Argument("float32", (4,)), Argument("None", None)]
    assert not list(find_mismatches(one, given, Place(1), {}))
    (reason,) = find_mismatches(one, [Argument("None", None), Argument("float32", (7,))], Place(1), {})
    assert reason == ("kind", "argument 0 (A) is None, expected float32[4]")
