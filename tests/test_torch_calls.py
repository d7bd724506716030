"""Plain calls with torch's less plain tensors: the right result or a clear error, before any memory is touched.

Each case is tried on a kernel that was never called, and on one that ran with the same shapes, where nothing is described anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import FLOAT32, both_ways, compile_kernel, tensor, variant, write_variant  # noqa: F401
from fixtures_torch import write

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("both_ways")

import tlaot  # noqa: E402
from tlaot.errors import CallError, DispatchError, TlaotError  # noqa: E402
from tlaot.manifest import Kernel, Manifest  # noqa: E402
from tlaot.runtime.load import open_manifest  # noqa: E402


def make(folder: Path, *sizes: int | str) -> Any:
    """C = A + B."""
    params = [tensor(name, *sizes, written=name == "C") for name in "ABC"]
    one, binary = variant("k", params, [2], {}), compile_kernel(3, 0b100, dtype=FLOAT32)
    one = write_variant(folder, one, binary)
    return open_manifest(Manifest("pkg", {"k": Kernel("k", (one,))}, "0"), folder).k


@pytest.fixture(params=["cold", "warm"])
def add(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A kernel for 4 x 8."""
    kernel = make(tmp_path, 4, 8)
    if request.param == "warm":
        kernel(torch.ones(4, 8), torch.ones(4, 8))
    return kernel


class Named(torch.Tensor):
    """A subclass of the common kind: a name and some methods."""


class Holder(torch.Tensor):
    """A subclass that has no memory itself."""

    @staticmethod
    def __new__(cls, held: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} is none of a call's business")


class Watcher(torch.Tensor):
    """A subclass that has memory, and wants to see what is done to it."""

    __torch_dispatch__ = Holder.__torch_dispatch__


def fake(x: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(x)


def freed(x: Any) -> Any:
    x.untyped_storage().resize_(0)
    return x


def quantized(x: Any) -> Any:
    return torch._empty_affine_quantized(x.shape, scale=0.5, zero_point=0, dtype=torch.quint8)


RIGHT: list[tuple[str, Callable[[Any], Any]]] = [
    ("subclass", lambda x: x.as_subclass(Named)),
    ("parameter", lambda x: torch.nn.Parameter(x, requires_grad=False)),
    ("detached", lambda x: x.requires_grad_().detach()),
    ("offset view", lambda x: torch.cat([x, x])[4:]),
    ("inference tensor", lambda x: torch.inference_mode()(lambda: x.clone())()),
    ("storage shared with numpy", lambda x: torch.from_numpy(x.numpy())),
]


@pytest.mark.parametrize(("name", "change"), RIGHT, ids=[name for name, _ in RIGHT])
def test_right(add: Any, name: str, change: Callable[[Any], Any]) -> None:
    out = add(torch.ones(4, 8), change(torch.full((4, 8), 2.0)))
    assert type(out) is torch.Tensor
    assert not out.requires_grad
    assert out.tolist() == [[3.0] * 8] * 4


WRONG: list[tuple[str, Callable[[Any], Any], type[Exception], str]] = [
    ("subclass without memory", Holder, CallError, r"Holder: is a tensor subclass .*__torch_dispatch__"),
    (
        "subclass that watches",
        lambda x: torch.Tensor._make_subclass(Watcher, x),
        CallError,
        r"Watcher: is a tensor sub",
    ),
    ("fake", fake, CallError, r"FakeTensor: is a tensor subclass.*\n.*tlaot\.torch\.register"),
    ("meta", lambda x: x.to("meta"), CallError, r"on meta\nPass a dense tensor on cpu or cuda"),
    ("sparse", lambda x: x.to_sparse(), CallError, r"is a torch\.sparse_coo tensor on cpu"),
    ("sparse rows", lambda x: x.to_sparse_csr(), CallError, r"is a torch\.sparse_csr tensor on cpu"),
    ("mkldnn", lambda x: x.to_mkldnn(), CallError, r"is a torch\._mkldnn tensor on cpu"),
    ("quantized", quantized, DispatchError, r"has dtype quint8, expected float32"),
    ("int32", lambda x: x.int(), DispatchError, r"has dtype int32, expected float32"),
    ("requires a gradient", lambda x: x.requires_grad_(), CallError, r"requires a gradient.*\n.*no_grad"),
    ("negated view", lambda a: torch.complex(a, a).conj().imag, CallError, r"lazily negated.*\n.*resolve_neg"),
    ("imaginary part", lambda x: torch.complex(x, x).conj().imag, CallError, r"lazily negated"),
    ("conjugated", lambda x: torch.complex(x, x).conj(), CallError, r"lazily negated or conjugated"),
    (
        "zero tensor",
        lambda x: torch._efficientzerotensor(4, 8),
        CallError,
        r"zero tensor without memory\nPass x\.clone",
    ),
    ("freed storage", freed, ValueError, r"has no memory"),
    ("strided", lambda x: torch.cat([x, x], 1)[:, ::2], ValueError, r"is not compact"),
    ("transposed", lambda x: x.reshape(8, 4).T, ValueError, r"is not compact"),
    ("expanded", lambda x: x[:1].expand(4, 8), ValueError, r"is not compact"),
    ("2^34 elements", lambda x: x[:1].expand(2**31, 8), DispatchError, r"shape \(2147483648, 8\), expected \(4, 8\)"),
    ("no elements", lambda x: x[:0], DispatchError, r"shape \(0, 8\), expected \(4, 8\)"),
]


@pytest.mark.parametrize(("name", "change", "kind", "text"), WRONG, ids=[case[0] for case in WRONG])
@pytest.mark.filterwarnings("ignore")
def test_wrong(add: Any, name: str, change: Callable[[Any], Any], kind: type[Exception], text: str) -> None:
    good = torch.ones(4, 8)
    bad = change(torch.ones(4, 8))
    for args in ((good, bad), (bad, good)):
        with pytest.raises(kind, match=text):
            add(*args)
    # and what was right stays right
    assert add(good, good).sum() == 64


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize"])
def test_transforms_of_torch_func_are_refused(add: Any, transform: str) -> None:
    """Their tensors look like plain ones; the values are elsewhere."""
    x, b = torch.ones(4, 8), torch.ones(4, 8)
    run = {
        "vmap": lambda: torch.vmap(lambda x: add(x, b))(torch.ones(3, 4, 8)),
        "grad": lambda: torch.func.grad(lambda x: add(x, b).sum())(x),
        "jvp": lambda: torch.func.jvp(lambda x: add(x, b), (x,), (x,)),
        "functionalize": lambda: torch.func.functionalize(lambda x: add(x, b))(x),
    }[transform]
    with pytest.raises(CallError, match=r"(is inside a transform of torch\.func|requires a gradient)"):
        run()


def test_outputs_that_a_mode_makes_fake_are_not_written(add: Any) -> None:
    """Under a FakeTensorMode the output that the call allocates has no memory, though the inputs have."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    a = torch.ones(4, 8)
    with FakeTensorMode(), pytest.raises(ValueError, match="argument 2: has no memory"):
        add(a, a)


def test_a_compiled_program_calls_it_as_it_is(tmp_path: Path) -> None:
    """One graph break, which names the way without one, and nothing of the call is traced."""
    write(tmp_path, "pk_torch_calls", "add")
    add = tlaot.load("pk_torch_calls", tmp_path).add
    b = torch.ones(8)

    def program(x: Any) -> Any:
        return add(x * 2, b) + 1

    graphs = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=keep)
    assert torch.equal(compiled(torch.ones(4, 8)), torch.full((4, 8), 4.0))
    assert len(graphs) == 2
    with pytest.raises(
        Exception, match=r"tlaot\.torch\.register makes operators that trace|`__call__` of class `Kernel`"
    ):
        torch.compile(program, backend="eager", fullgraph=True)(torch.ones(4, 8))


def test_sizes_beyond_32_bits(tmp_path: Path) -> None:
    """2^31 rows of nothing to read (stride 0), and of nothing at all; a kernel for any number of rows."""
    kernel = make(tmp_path, "m", 8)
    many = torch.ones(1, 8).expand(2**31, 8)
    assert many.untyped_storage().nbytes() == 32
    with pytest.raises((ValueError, TlaotError), match="compact"):
        kernel(many, many, many)
    none = torch.empty(0, 8)
    assert kernel(none, none).shape == (0, 8)
    with pytest.raises(DispatchError, match=r"has shape \(2147483648, 0\), expected \(2147483648, 8\)"):
        kernel(torch.empty(2**31, 0), torch.empty(2**31, 0))


def test_a_device_that_no_kernel_has(add: Any) -> None:
    """Two devices in one call, too."""
    a = torch.ones(4, 8)
    with pytest.raises(CallError, match=r"argument 1: is a torch\.strided tensor on meta"):
        add(a, a.to("meta"))


def test_another_dtype_of_the_output_given(add: Any) -> None:
    a = torch.ones(4, 8)
    with pytest.raises(DispatchError, match=r"argument 2 \(C\) has dtype float64"):
        add(a, a, a.double())


def test_autocast_changes_nothing(add: Any) -> None:
    """A kernel is what it was packaged for, inside of autocast too."""
    with torch.autocast("cpu", torch.bfloat16):
        out = add(torch.ones(4, 8), torch.ones(4, 8))
    assert out.dtype == torch.float32
    assert out.sum() == 64
