"""Packaged kernels under torch.compile and torch.export, and what their fakes say of outputs that nobody computed."""

from __future__ import annotations

import io
import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import tensor, variant
from fixtures_torch import write

torch = pytest.importorskip("torch")

import tlaot.torch  # noqa: E402
from tlaot.errors import CallError, DispatchError  # noqa: E402
from tlaot.manifest import Param, Variant  # noqa: E402
from tlaot.torch.fake import _agree, make_fake  # noqa: E402
from tlaot.torch.schema import Operator, describe_operator  # noqa: E402

PACKAGE = "pk_torch_tracing"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracing")
    write(folder, PACKAGE)
    return folder


@pytest.fixture(scope="module")
def ops(folder: Path) -> Any:
    return getattr(torch.ops, tlaot.torch.register(PACKAGE, path=folder).namespace)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()


def rows(n: int) -> Any:
    return torch.arange(8.0 * n).reshape(n, 8)


B = torch.ones(8)


def count_graphs(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], dynamic: bool | None = True) -> int:
    """Compile without graph breaks, compare each call with the function itself, and count the graphs."""
    graphs = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=keep)
    for args in calls:
        expected, got = function(*args), compiled(*args)
        assert got.shape == expected.shape
        assert got.stride() == expected.stride()
        assert torch.equal(got, expected)
    return len(graphs)


def opcheck(op: Any, *args: Any, **named: Any) -> None:
    results = torch.library.opcheck(op, args, named)
    assert set(results.values()) == {"SUCCESS"}, results
    assert len(results) >= 4


def test_opcheck(ops: Any) -> None:
    """Schema, autograd registration, fakes and AOT dispatch with symbolic sizes, by torch's own tests."""
    x = torch.randn(4, 8)
    opcheck(ops.add.default, x, B)
    opcheck(ops.add.out, x, B, torch.zeros(4, 8))
    for n in (4, 5):
        opcheck(ops.any.default, torch.randn(n, 8), B)
    opcheck(ops.turned.default, x, B)
    opcheck(ops.update.default, x, torch.zeros(4, 8))
    opcheck(ops.both.default, x, torch.zeros(4, 8))
    opcheck(ops.several.default, torch.ones(4), 2.0)
    opcheck(ops.sized.default, torch.ones(4), 3)
    opcheck(ops.flagged.default, x, causal=True)
    opcheck(ops.column.default, torch.ones(4, 3))
    opcheck(ops.typed.default, x.half())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_with_fixed_sizes(ops: Any, backend: str) -> None:
    """Between other operations, with several outputs, written arguments and keywords."""

    def function(x: Any, state: Any) -> Any:
        y = ops.add(x * 2, B)
        state = state + 1
        ops.update(y, state)
        z = ops.both(x, state)
        ops.add(y, B, C := torch.empty_like(y))
        return y + z + state + ops.flagged(x, causal=True) + C

    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for x in (rows(4), -rows(4)):
        assert torch.equal(compiled(x, rows(4)), function(x, rows(4)))


def test_one_graph_serves_every_size_of_a_symbolic_variant(ops: Any) -> None:
    """Beside a variant for 4 rows, which runs for 4: its output has the same shape. 0 and 1 are torch's special cases."""
    calls = [(rows(n),) for n in (5, 7, 4, 9, 300)]
    assert count_graphs(lambda x: ops.any(x, B), calls) == 1
    assert count_graphs(lambda x: ops.any(x, B), [(rows(n),) for n in (5, 7, 1, 0)]) == 3
    # torch begins with fixed sizes where it is not told
    assert count_graphs(lambda x: ops.any(x, B), calls, dynamic=None) == 2


def test_fixed_variants_are_traced_once_each(ops: Any) -> None:
    assert count_graphs(ops.fixed.default, [(rows(n),) for n in (4, 6, 4)]) == 2
    with pytest.raises(Exception, match=r"no packaged variant fits \(float32\[5, 8\]\)"):
        torch.compile(ops.fixed.default, fullgraph=True, dynamic=True, backend="eager")(rows(5))


def test_variants_with_outputs_of_other_shapes_are_traced_for_each_size(ops: Any) -> None:
    """A symbolic variant does not speak for one whose output is turned."""
    assert count_graphs(lambda x: ops.turned(x, B), [(rows(n),) for n in (5, 4, 7, 4)]) == 3


def test_sizes_that_must_be_equal(ops: Any) -> None:
    assert count_graphs(ops.square.default, [(torch.ones(n, n),) for n in (5, 7)]) == 1
    with pytest.raises(Exception, match=r"no packaged variant fits \(float32\[5, 6\]\)"):
        torch.compile(ops.square.default, fullgraph=True, dynamic=True, backend="eager")(torch.ones(5, 6))


def test_a_scalar_size_stays_symbolic(ops: Any) -> None:
    assert count_graphs(ops.sized.default, [(torch.ones(4), n) for n in (5, 7, 9)]) == 1


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_data_dependent_sizes(ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A symbolic variant takes them; one fixed size is demanded when the graph runs; of several the caller must say which."""
    monkeypatch.setattr("torch._subclasses.fake_tensor.log.disabled", True)
    x, four, five = rows(6), torch.tensor([1, 1, 1, 1, 0, 0]).bool(), torch.tensor([1, 1, 1, 1, 1, 0]).bool()

    def picking(op: Any, *rest: Any, check: int | None = None) -> Callable[..., Any]:
        def function(x: Any, mask: Any) -> Any:
            picked = x[mask]
            if check is not None:
                torch._check(picked.shape[0] == check)
            return op(picked, *rest)

        return function

    assert count_graphs(picking(ops.any, B), [(x, four), (x, five)], dynamic=None) == 1
    assert count_graphs(picking(ops.only), [(x, four)], dynamic=None) == 1
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        torch.compile(picking(ops.only), fullgraph=True, backend="eager")(x, five)
    with pytest.raises(
        Exception, match=r"data-dependent size in dimension 0, and variants are packaged for \['4', '6'\]"
    ):
        torch.compile(picking(ops.fixed), fullgraph=True, backend="eager")(x, four)
    assert count_graphs(picking(ops.fixed, check=4), [(x, four)], dynamic=None) == 1
    with pytest.raises(Exception, match=r"shape of the output depends on a data-dependent size"):
        torch.compile(picking(ops.turned, B), fullgraph=True, backend="eager")(x, four)


def test_gradients_are_refused_while_tracing(ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled graph would run without them and never say so; with no_grad inside or outside, or a Function, it traces."""
    monkeypatch.setattr("torch._subclasses.fake_tensor.log.disabled", True)
    x = rows(4).requires_grad_()

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    with pytest.raises(Exception, match=r"argument A: requires a gradient.*\n.*register_autograd"):
        compiled(lambda x: ops.add(x * 2, B))(x)

    def inside(x: Any) -> Any:
        with torch.no_grad():
            y = ops.add(x, B)
        return (y * x).sum()

    compiled(inside)(x).backward()
    assert torch.equal(x.grad, rows(4) + 1)
    with torch.no_grad():
        assert torch.equal(compiled(lambda x: ops.add(x, B))(x), rows(4) + 1)

    class Adding(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return ops.add(x, B)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 3

    x.grad = None
    compiled(lambda x: Adding.apply(x).sum())(x).backward()
    assert (x.grad == 3).all()


def test_a_registered_formula_traces(folder: Path) -> None:
    tlaot.torch.register(PACKAGE, path=folder, namespace="pk_traced_gradient", only="add")
    add = torch.ops.pk_traced_gradient.add
    torch.library.register_autograd("pk_traced_gradient::add", lambda ctx, grad: (grad * 5, grad.sum(0)))
    x = rows(4).requires_grad_()
    torch.compile(lambda x: add(x * 2, B).sum(), fullgraph=True, backend="aot_eager")(x).backward()
    assert (x.grad == 10).all()


class Model(torch.nn.Module):
    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op
        self.bias = torch.nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return self.op(x * 2, self.bias) + 1


def test_export(ops: Any, folder: Path) -> None:
    """With a dynamic size, saved, and loaded by a process that registers the package first."""
    program = torch.export.export(Model(ops.any), (rows(5),), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert torch.equal(program.module()(rows(11)), rows(11) * 2 + 2)
    saved = folder / "program.pt2"
    torch.export.save(program, saved)
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\nimport torch, tlaot.torch\n"
        f"tlaot.torch.register({PACKAGE!r}, path={str(folder)!r})\n"
        f"print(torch.export.load({str(saved)!r}).module()(torch.ones(3, 8)).sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{3 * 8 * 4.0}\n"


def test_export_of_a_size_that_is_fixed(ops: Any) -> None:
    """Said to be dynamic where only one size is packaged: torch says what it found instead."""
    model = Model(ops.add)
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(model, (rows(4),)), buffer)
    with pytest.raises(Exception, match=r"(?i)specialized it to be a constant \(4\)"):
        torch.export.export(model, (rows(4),), dynamic_shapes=({0: torch.export.Dim("rows")},))


# --- the fakes by themselves --------------------------------------------------------------------------------


def fake_of(*variants: Variant, form: int = 0) -> Callable[..., Any]:
    found = describe_operator("k", variants, lambda name: hasattr(torch, name))
    assert isinstance(found, Operator)
    return make_fake("pkg.k", found.forms[form], found.variants)


def meta(*shape: int, dtype: str = "float32") -> Any:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def one(inputs: Sequence[Param], output: Param, **shape: Any) -> Variant:
    return variant("k", [*inputs, output], [len(inputs)], shape, target=shape.pop("target", "llvm:x86-64"))


def test_the_output_is_that_of_the_variant_that_runs() -> None:
    """By dtype, by shape, by keyword; whatever target it is for."""
    fake = fake_of(
        one([tensor("X", 4)], tensor("Y", 2, dtype="float16"), M=4),
        one([tensor("X", 5)], tensor("Y", 3, 3), M=5),
        one([tensor("X", 4, dtype="int8")], tensor("Y", 7, dtype="int32"), M=4),
        one([tensor("X", 6)], tensor("Y", 1), M=6, causal=True),
        one([tensor("X", 6)], tensor("Y", 2), M=6, causal=False),
        one([tensor("X", 8)], tensor("Y", 9), M=8, target="cuda:sm_90a"),
    )

    def shown(x: Any, **named: Any) -> tuple[tuple[int, ...], str]:
        out = fake(x, **named)
        return tuple(out.shape), str(out.dtype)

    assert shown(meta(4)) == ((2,), "torch.float16")
    assert shown(meta(5)) == ((3, 3), "torch.float32")
    assert shown(meta(4, dtype="int8")) == ((7,), "torch.int32")
    assert shown(meta(6), causal=True) == ((1,), "torch.float32")
    assert shown(meta(6), causal=False) == ((2,), "torch.float32")
    assert shown(meta(8)) == ((9,), "torch.float32")
    for wrong in (meta(7), meta(5, dtype="int8"), meta(4, 1)):
        with pytest.raises(DispatchError):
            fake(wrong)
    with pytest.raises(CallError, match="unknown factory argument"):
        fake(meta(4), casual=True)
    with pytest.raises(CallError, match="2 packaged workloads take these tensors, and differ in causal"):
        fake(meta(6))


def test_a_variant_for_these_very_sizes_goes_first() -> None:
    fake = fake_of(one([tensor("X", "m")], tensor("Y", "m")), one([tensor("X", 4)], tensor("Y", 2), M=4))
    assert fake(meta(4)).shape == (2,)
    assert fake(meta(5)).shape == (5,)


def test_strides_of_inputs_and_outputs() -> None:
    """A variant that takes rows apart from each other, and one whose output has a layout of its own."""
    fake = fake_of(one([Param("X", "float32", ("m", 4), ("s", 1))], Param("Y", "float32", ("m", 4), (1, "m"))))
    out = fake(torch.empty_strided((3, 4), (9, 1), device="meta"))
    assert (out.shape, out.stride()) == ((3, 4), (1, 3))
    with pytest.raises(DispatchError, match=r"has strides \(1, 3\)"):
        fake(torch.empty_strided((3, 4), (1, 3), device="meta"))


def test_a_cuda_device_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may be traced for a GPU on a machine that has none."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tlaot.runtime import device

    monkeypatch.setattr(device, "cuda_device", lambda ordinal: pytest.fail("the driver was asked"))
    fake = fake_of(one([tensor("X", 4)], tensor("Y", 2), target="cuda:sm_90a"))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = torch._subclasses.fake_tensor.FakeTensor(mode, torch.empty(4, device="meta"), torch.device("cuda:1"))
        out = fake(x)
        assert (out.shape, str(out.device)) == ((2,), "cuda:1")
        with pytest.raises(CallError, match=r"argument 1 is on cuda:0, argument 0 on cuda:1"):
            fake_of(one([tensor("X", 4), tensor("Z", 4)], tensor("Y", 2), target="cuda:sm_90a"))(
                x,
                torch._subclasses.fake_tensor.FakeTensor(mode, torch.empty(4, device="meta"), torch.device("cuda:0")),
            )


M, N = "m", "n"


@pytest.mark.parametrize(
    ("left", "right", "agree"),
    [
        # the sizes of X with those of Y, of two variants
        (((M, 8), (M, 8)), ((4, 8), (4, 8)), True),
        (((M, 8), (M, 8)), ((N, 8), (N, 8)), True),
        (((M, 8), (M, 8)), ((4, 8), (8, 4)), False),
        (((M, 8), (M, 8)), ((4, 9), (1, 1)), True),  # no size is taken by both
        (((M, N), (N, M)), ((M, N), (M, N)), False),
        (((M, M), (M,)), ((M, N), (M,)), True),
        (((M, M), (M,)), ((M, N), (N,)), True),  # where both fit, m and n are equal
        (((M, N), (M,)), ((4, N), (5,)), False),
        (((M, M), (M,)), ((4, 5), (9,)), True),
        (((M,), (M, M)), ((M,), (M,)), False),
    ],
)
def test_variants_agree_on_outputs(left: Any, right: Any, agree: bool) -> None:
    """For all sizes that both take, whichever is asked first."""
    a, b = (one([tensor("X", *x)], tensor("Y", *y)) for x, y in (left, right))
    assert _agree(a, b, 1) is agree
    assert _agree(b, a, 1) is agree


def test_agreement_is_what_trying_all_sizes_shows() -> None:
    """Random pairs of variants, every shape of sizes up to 5."""
    chance = random.Random(7)
    shapes = list(itertools.product(range(1, 6), repeat=2))
    seen = set()
    for _ in range(400):
        pair = []
        for _ in range(2):
            x = chance.choices(["m", "n", 1, 2], k=2)
            bound = [size for size in x if isinstance(size, str)]
            pair.append(one([tensor("X", *x)], tensor("Y", *chance.choices([*bound, 1, 2], k=2))))
        outputs = [{shape: out for shape in shapes if (out := _output(v, shape)) is not None} for v in pair]
        expected = all(outputs[0][shape] == outputs[1][shape] for shape in outputs[0].keys() & outputs[1].keys())
        assert _agree(*pair, 1) is expected, pair
        seen.add(expected)
    assert seen == {True, False}


def _output(one: Variant, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The output's shape for an input's; None where the variant does not take it."""
    sizes: dict[str, int] = {}
    for want, got in zip(one.params[0].shape or (), shape, strict=True):
        if (sizes.setdefault(want, got) if isinstance(want, str) else want) != got:
            return None
    return tuple(sizes[n] if isinstance(n, str) else n for n in one.params[1].shape or ())


def test_outputs_of_another_dtype_or_layout_disagree() -> None:
    a = one([tensor("X", "m", 8)], tensor("Y", "m", 8))
    for output in (tensor("Y", 4, 8, dtype="int8"), Param("Y", "float32", (4, 8), (1, 4)), tensor("Y", 4)):
        assert not _agree(a, one([tensor("X", 4, 8)], output), 1)
        assert _agree(a, one([tensor("X", 4, 9)], output), 1)


def test_a_scalar_and_a_size() -> None:
    """A scalar named as a size is that size, unless a tensor has it."""
    free = [tensor("X", 4), Param("n", "int32", None)]
    bound = [tensor("X", "n"), Param("n", "int32", None)]
    by_scalar, by_tensor = one(free, tensor("Y", "n")), one(bound, tensor("Y", "n"))
    assert fake_of(by_scalar)(meta(4), 9).shape == (9,)
    assert fake_of(by_tensor)(meta(4), 9).shape == (4,)
    assert not _agree(by_scalar, by_tensor, 2)
    assert _agree(by_scalar, one(free, tensor("Y", "n")), 2)
