"""Packaged kernels as torch's operators: what is registered, and what a call in eager mode does."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import scalar, tensor, variant, write_package
from fixtures_torch import adding, copying, write

torch = pytest.importorskip("torch")

import tlaot  # noqa: E402
import tlaot.torch  # noqa: E402
from tlaot.errors import CallError, DispatchError, LoadError, PackageError  # noqa: E402
from tlaot.torch.schema import LeftOut, Operator, describe_operator  # noqa: E402

PACKAGE = "pk_torch_operators"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operators")
    write(folder, PACKAGE)
    return folder


@pytest.fixture(scope="module")
def registered(folder: Path) -> tlaot.torch.Registration:
    return tlaot.torch.register(PACKAGE, path=folder)


@pytest.fixture(scope="module")
def ops(registered: tlaot.torch.Registration) -> Any:
    return getattr(torch.ops, registered.namespace)


# --- what is registered -------------------------------------------------------------------------------------


def test_schemas(registered: tlaot.torch.Registration) -> None:
    assert registered.namespace == PACKAGE
    assert registered.operators["add"] == (
        "add(Tensor A, Tensor B, *, int? M=None) -> Tensor",
        "add.out(Tensor A, Tensor B, Tensor(a2!) C, *, int? M=None) -> ()",
    )
    assert registered.operators["update"] == ("update(Tensor X, Tensor(a1!) S) -> ()",)
    assert registered.operators["both"][0] == "both(Tensor X, Tensor(a1!) S) -> Tensor"
    assert registered.operators["several"] == (
        "several(Tensor X, float s) -> (Tensor, Tensor)",
        "several.out(Tensor(a0!) Y, Tensor X, float s, Tensor(a3!) Z) -> ()",
    )
    assert registered.operators["sized"][0] == "sized(Tensor X, SymInt n) -> Tensor"
    assert registered.operators["flagged"][0] == "flagged(Tensor X, *, bool? causal=None) -> Tensor"


def test_what_cannot_be_an_operator_is_left_out(registered: tlaot.torch.Registration, folder: Path) -> None:
    """With the reason; where it was asked for by name, that is an error."""
    assert registered.left_out == {"unheard": "torch has no dtype float5"}
    with pytest.raises(PackageError, match=r"unheard: cannot be an operator of torch: torch has no dtype float5"):
        tlaot.torch.register(PACKAGE, path=folder, only=["add", "unheard"])


def test_outputs_that_cannot_be_allocated_are_passed(registered: tlaot.torch.Registration, ops: Any) -> None:
    """Their size is not given by the inputs, or no input is a tensor: the overload out is all there is."""
    assert registered.operators["computed"] == ("computed.out(Tensor X, Tensor(a1!) Y) -> ()",)
    assert registered.operators["scalars"] == ("scalars.out(float n, Tensor(a1!) Y) -> ()",)
    y = torch.zeros(8)
    ops.computed(torch.ones(4), y)
    assert y.sum() == 8


def test_registering_again_changes_nothing(registered: tlaot.torch.Registration, folder: Path) -> None:
    """By name or by the kernels that were loaded, in any thread."""
    before = getattr(torch.ops, PACKAGE).add.default
    found = [tlaot.torch.register(PACKAGE, path=folder), tlaot.torch.register(tlaot.load(PACKAGE, folder))]
    threads = [
        threading.Thread(
            target=lambda: found.append(tlaot.torch.register(PACKAGE, path=folder, namespace="pk_threads"))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[:2] == [registered, registered]
    assert [one.operators for one in found[2:]] == [registered.operators] * 4
    assert getattr(torch.ops, PACKAGE).add.default is before


def test_other_kernels_of_the_same_name_are_refused(ops: Any, folder: Path, tmp_path: Path) -> None:
    write_package(tmp_path, PACKAGE, {"add": [adding("add", 5)]})
    with pytest.raises(LoadError, match=rf"operator {PACKAGE}::add: is registered already, from another build of it\n"):
        tlaot.torch.register(PACKAGE, path=tmp_path)
    write(tmp_path, "pk_other", "add")
    with pytest.raises(LoadError, match=rf"registered already, from the package {PACKAGE}\n.*another namespace="):
        tlaot.torch.register("pk_other", path=tmp_path, namespace=PACKAGE)
    assert tlaot.torch.register("pk_other", path=tmp_path, namespace="pk_elsewhere").namespace == "pk_elsewhere"


def test_an_operator_of_somebody_else_is_refused(folder: Path) -> None:
    library = torch.library.Library("pk_theirs", "FRAGMENT")
    library.define("add(Tensor a) -> Tensor")
    with pytest.raises(LoadError, match=r"operator pk_theirs::add: torch refuses it \(.*\)\n.*pass namespace="):
        tlaot.torch.register(PACKAGE, path=folder, namespace="pk_theirs", only="add")
    with pytest.raises(LoadError, match="prim is a reserved namespace"):
        tlaot.torch.register(PACKAGE, path=folder, namespace="prim", only="add")


def test_wrong_arguments_of_register(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CallError, match=r"has no kernel 'ad', did you mean 'add'\?"):
        tlaot.torch.register(PACKAGE, path=folder, only=["ad"])
    with pytest.raises(CallError, match=r"namespace is no Python name, got 'a::b'"):
        tlaot.torch.register(PACKAGE, path=folder, namespace="a::b")
    with pytest.raises(CallError, match=r"path is given beside kernels"):
        tlaot.torch.register(tlaot.load(PACKAGE, folder), path=folder)
    write(tmp_path, "pk_nothing", "unheard")
    with pytest.raises(
        PackageError, match=r"pk_nothing: has no kernel that torch can call\n  unheard: torch has no dtype"
    ):
        tlaot.torch.register("pk_nothing", path=tmp_path)
    with pytest.raises(PackageError):
        tlaot.torch.register("pk_that_is_nowhere")


def test_registering_loads_no_binary_and_imports_no_package(folder: Path, tmp_path: Path) -> None:
    """The package would fail on import, and its binaries are not there at all; ``import tlaot`` alone knows no torch."""
    write(tmp_path, "pk_bare", "add", "any")
    (tmp_path / "pk_bare" / "__init__.py").write_text("raise RuntimeError('imported')")
    for binary in (tmp_path / "pk_bare").rglob("executable.so"):
        binary.unlink()
    code = (
        "import sys, tlaot\nassert 'torch' not in sys.modules and 'tlaot.torch' not in sys.modules\n"
        "made = tlaot.torch.register('pk_bare')\nassert 'torch' in sys.modules and 'pk_bare' not in sys.modules\n"
        "print(sorted(made.operators))"
    )
    path = ":".join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['add', 'any']\n"


def test_a_build_that_imports_its_package_is_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the wheel is built the package has no kernels yet."""
    from tlaot.runtime import load

    monkeypatch.setattr(load, "building", True)
    assert tlaot.torch.register("pk_in_the_making").operators == {}


# --- schemas of kernels that are less plain -----------------------------------------------------------------


def describe(*variants: Any) -> Operator | LeftOut:
    return describe_operator("k", [one for one, _ in variants], lambda name: name != "float5")


def schema(*variants: Any) -> str:
    found = describe(*variants)
    assert isinstance(found, Operator)
    parsed = torch._C.parse_schema(found.forms[0].schema)
    assert str(parsed) == found.forms[0].schema
    return found.forms[0].schema


def test_keywords_have_the_types_of_the_packaged_values() -> None:
    values: dict[str, tuple[Any, Any]] = {
        "count": (1, 2),
        "flag": (True, None),
        "mode": ("a", "b"),
        "scale": (0.5, 1.0),
        "mixed": (1, 0.5),
        "either": (True, 2),
        "unsayable": (1, "auto"),
        "nested": ([1], [2]),
        "never": (None, None),
        "a-b": (1, 2),
        "class_": (1, 1),
    }
    made = [copying("k", 4, **{key: pair[i] for key, pair in values.items()}) for i in (0, 1)]
    assert schema(*made) == (
        "k(Tensor X, *, int? class_=None, int? count=None, Scalar? either=None, bool? flag=None, Scalar? mixed=None, "
        "str? mode=None, float? scale=None) -> Tensor"
    )


def test_names_that_a_schema_cannot_have() -> None:
    """Keywords of its grammar, marks of frontends, and names that a factory's argument has: the argument keeps its own."""
    params = [tensor(name, 4) for name in ("in", "A.data", "1st", "n", "self")] + [tensor("Y", 4, written=True)]
    one = variant("k", params, [5], {"n": 4}), b""
    assert schema(one) == (
        "k(Tensor in_, Tensor A_data, Tensor arg_1st, Tensor n_, Tensor self_, *, int? n=None) -> Tensor"
    )


def test_scalars() -> None:
    params = [
        tensor("X", 4),
        *(scalar(d[0] + "x", d) for d in ("int64", "uint8", "float16", "bool")),
        tensor("Y", 4, written=True),
    ]
    assert schema((variant("k", params, [5], {}), b"")) == (
        "k(Tensor X, SymInt ix, SymInt ux, float fx, bool bx) -> Tensor"
    )


def test_one_variant_that_writes_an_input_is_enough() -> None:
    """On one target a kernel uses an argument as scratch: for torch it always does."""
    plain, scratch = (
        (
            variant("k", [tensor("X", 4), tensor("W", 4, written=w), tensor("Y", 4, written=True)], [2], {"t": int(w)}),
            b"",
        )
        for w in (False, True)
    )
    assert schema(plain, scratch).startswith("k(Tensor X, Tensor(a1!) W, *")


def test_variants_of_other_signatures_are_left_out() -> None:
    other = variant("k", [tensor("X", 4, 8), scalar("s"), tensor("Y", 4, 8, written=True)], [2], {}), b""
    found = describe(copying("k", 4), other)
    assert isinstance(found, LeftOut)
    assert "different signatures" in found.reason
    # of dtypes that torch does not have, only those variants
    found = describe(copying("k", 4), copying("k", 5, "float5"))
    assert isinstance(found, Operator)
    assert len(found.variants) == 1
    assert describe() == LeftOut("k", "no variant of it is installed here")
    assert isinstance(describe((variant("k", [scalar("s")], [], {}), b"")), LeftOut)
    assert isinstance(describe_operator("name", [copying("name", 4)[0]], lambda name: True), LeftOut)


# --- eager calls --------------------------------------------------------------------------------------------


def test_values_are_those_of_a_plain_call(ops: Any, folder: Path) -> None:
    kernels = tlaot.load(PACKAGE, folder)
    a, b = torch.randn(4, 8), torch.randn(8)
    for name in ("add", "any"):
        assert torch.equal(getattr(ops, name)(a, b), kernels[name](a, b))
    for n in (0, 1, 5, 7):
        assert torch.equal(ops.any(torch.ones(n, 8), b), kernels.any(torch.ones(n, 8), b))
    assert [y.tolist() for y in ops.several(torch.ones(4), 3)] == [[3.0] * 5, [3.0] * 4]
    assert isinstance(ops.several(torch.ones(4), 3), tuple)
    assert ops.sized(torch.ones(4), 3).tolist() == [3.0] * 3
    for dtype in (torch.float16, torch.int8):
        assert ops.typed(torch.ones(4, 8, dtype=dtype)).dtype == dtype
    assert ops.add(A=a, B=b).shape == (4, 8)


def test_outputs_given_are_written(ops: Any) -> None:
    """By position, as in a plain call, or by name with the overload; nothing is returned, and autograd hears of it."""
    a, b, c = torch.ones(4, 8), torch.ones(8), torch.zeros(4, 8)
    assert ops.add(a, b, c) is None
    assert ops.add.out(a, b, C=c) is None
    assert c.sum() == 64
    assert c._version == 2
    s = torch.zeros(4, 8)
    assert ops.update(a, s) is None
    assert (ops.both(a, s) == 1).all()
    assert s._version == 2


def test_what_autograd_kept_and_a_kernel_wrote_is_an_error(ops: Any) -> None:
    """Not a wrong gradient."""
    x, s = torch.ones(4, 8, requires_grad=True), torch.ones(4, 8)
    product = x * s
    ops.update(torch.ones(4, 8), s)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_factory_arguments(ops: Any) -> None:
    x = torch.zeros(4, 8)
    assert ops.flagged(x, causal=True).sum() == 320
    assert ops.flagged(x, causal=False).sum() == 0
    out = torch.zeros(4, 8)
    ops.flagged.out(x, out, causal=True)
    assert out.sum() == 320
    for named in ({}, {"causal": None}):
        with pytest.raises(CallError, match="differ in causal"):
            ops.flagged(x, **named)
    with pytest.raises(DispatchError, match="M is 4, asked for 5"):
        ops.add(x, torch.ones(8), M=5)
    with pytest.raises(RuntimeError, match=r"(?i)unknown keyword argument 'casual'"):
        ops.flagged.default(x, casual=True)


def test_gradients_are_refused_until_somebody_gives_a_formula(folder: Path) -> None:
    """As a plain call refuses them; torch.library.register_autograd makes the operator differentiable."""
    tlaot.torch.register(PACKAGE, path=folder, namespace="pk_gradient", only="add")
    add = torch.ops.pk_gradient.add
    x, b = torch.ones(4, 8, requires_grad=True), torch.ones(8)
    with pytest.raises(CallError, match=r"requires a gradient"):
        add(x, b)
    with torch.no_grad():
        assert not add(x, b).requires_grad
    with torch.inference_mode():
        assert add(x, b).sum() == 64
    torch.library.register_autograd("pk_gradient::add", lambda ctx, grad: (grad, grad.sum(0)))
    add(x, b).sum().backward()
    assert x.grad is not None
    assert x.grad.sum() == 32


def test_forward_mode_is_refused(ops: Any) -> None:
    """Tangents would be lost without a word."""
    x, b = torch.ones(4, 8), torch.ones(8)
    with pytest.raises(CallError, match="forward-mode differentiation"):
        torch.func.jvp(lambda x: ops.add(x, b), (x,), (x,))
    import torch.autograd.forward_ad as forward

    with forward.dual_level(), pytest.raises(CallError, match="forward-mode differentiation"):
        ops.add(forward.make_dual(x, x), b)


@pytest.mark.filterwarnings("ignore")
def test_vmap_runs_the_kernel_for_each_item(ops: Any) -> None:
    """torch's own fallback, which warns of its cost; what is written in place it refuses."""
    x = torch.randn(3, 4, 8)
    assert torch.equal(torch.vmap(ops.add, in_dims=(0, None))(x, torch.ones(8)), x + 1)
    with pytest.raises(RuntimeError, match=r"[Bb]atching rule not implemented"):
        torch.vmap(ops.update)(x, torch.zeros(3, 4, 8))


def test_tensors_that_the_dispatcher_takes_care_of(ops: Any) -> None:
    """Negated and conjugated views are resolved; a subclass stays one; autocast leaves the kernel alone."""
    from torch.testing._internal.two_tensor import TwoTensor

    class Named(torch.Tensor):
        pass

    a, b = torch.ones(4, 8), torch.ones(8)
    assert ops.add(torch._neg_view(a), b).sum() == 0
    assert ops.add(torch.complex(a, a).conj().imag, b).sum() == 0
    assert type(ops.add(a.as_subclass(Named), b)) is Named
    pair = ops.add(TwoTensor(a, a * 2), TwoTensor(b, b))
    assert type(pair) is TwoTensor
    assert (pair.a.sum(), pair.b.sum()) == (64, 96)
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.add(a, b).dtype == torch.float32


@pytest.mark.filterwarnings("ignore")
def test_tensors_that_no_kernel_takes(ops: Any) -> None:
    """Other backends are torch's to refuse; what the kernel refuses is said as in a plain call."""
    a, b = torch.ones(4, 8), torch.ones(8)
    with pytest.raises(NotImplementedError, match="only available for these backends"):
        ops.add(a.to_sparse(), b)
    with pytest.raises(NotImplementedError, match="only available for these backends"):
        ops.add(torch._empty_affine_quantized([4, 8], scale=0.5, zero_point=0, dtype=torch.quint8), b)
    with pytest.raises(ValueError, match="is not compact"):
        ops.add(torch.cat([a, a], 1)[:, ::2], b)
    with pytest.raises(DispatchError, match=r"has shape \(5, 8\), expected \(4, 8\)"):
        ops.add(torch.ones(5, 8), b)
    with pytest.raises(DispatchError, match="has dtype float64"):
        ops.typed(a.double())
    with pytest.raises(CallError, match="argument 1 is on meta, argument 0 on cpu"):
        ops.add(a, b.to("meta"))


def test_meta_tensors(ops: Any) -> None:
    """They stand for any device."""
    out = ops.any(torch.ones(7, 8, device="meta"), torch.ones(8, device="meta"))
    assert (out.device.type, out.shape, out.dtype) == ("meta", (7, 8), torch.float32)
    with pytest.raises(DispatchError):
        ops.add(torch.ones(5, 8, device="meta"), torch.ones(8, device="meta"))


# --- the sample ---------------------------------------------------------------------------------------------


def test_the_sample() -> None:
    """Every CPU variant of the installed sample: the operator, its fake, and a compiled graph."""
    try:
        kernels = tlaot.load("sample_pkg")
    except PackageError as error:
        pytest.skip(f"sample_pkg is not installed with kernels: {error}")
    assert set(tlaot.torch.register("sample_pkg").operators) == {"matmul", "softmax", "rms_norm"}
    for name in kernels:
        op = getattr(torch.ops.sample_pkg, name)
        shapes = {
            tuple(p.shape for p in v.params[:-1]) for v in kernels[name].variants if not v.target.startswith("cuda")
        }
        for shape in sorted(shapes, key=str)[:2]:
            inputs = [torch.randn([7 if isinstance(size, str) else size for size in sizes]) for sizes in shape]
            out = op(*inputs)
            assert torch.equal(out, kernels[name](*inputs))
            assert op(*(x.to("meta") for x in inputs)).shape == out.shape
        compiled = torch.compile(lambda *args, op=op: op(*args) + 1, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(*inputs), out + 1)
