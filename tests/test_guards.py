"""Misaligned arguments and kernels that are not deterministic: refused, or copied where the package says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import tensor, variant, write_package
from native.programs import build, host_program, lowered

import tlaot
from tlaot.errors import CallError
from tlaot.runtime import saying, seen

pytest.importorskip("tvm_ffi")
np = pytest.importorskip("numpy")

ALIGN = 64
N = 16


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    saying._said.clear()
    seen.forget()
    yield
    seen.forget()


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Real ones, with the real checks: ``C = A + B``, and ``X += 1`` in place; both read and write with aligned moves."""
    head = "  typedef float vector __attribute__((vector_size(64), aligned(64)));\n"
    add = "  *(vector *)DATA(2) = *(vector *)DATA(0) + *(vector *)DATA(1);\n"
    step = "  *(vector *)DATA(0) = *(vector *)DATA(0) + 1.0f;\n"
    folder = tmp_path_factory.mktemp("guards")
    made = {}
    for name, body, params in (("add", add, ADD), ("step", step, STEP)):
        program = lowered(host_program([], before=head + body), params)
        made[name] = build(program, folder / name, f"pk_guards.{name}").read_bytes()
    return made


ADD = [tensor(name, N, align=ALIGN, written=name == "C") for name in "ABC"]
STEP = [tensor("X", N, align=ALIGN, written=True)]


@pytest.fixture
def load(tmp_path: Path, binaries: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def loading(**properties: Any) -> Any:
        kernels = {
            "add": [(variant("add", ADD, [2], {"N": N}, properties=properties), binaries["add"])],
            "step": [(variant("step", STEP, [], {"N": N}, properties=properties), binaries["step"])],
        }
        write_package(tmp_path, "pk_guards", kernels)
        return tlaot.load("pk_guards", path=tmp_path)

    monkeypatch.setenv("TLAOT_PATH", "")
    return loading


def at(offset: int, values: Any) -> Any:
    """A numpy array whose address is so many bytes past a multiple of the alignment."""
    block = np.zeros(N * 4 + 2 * ALIGN, np.uint8)
    start = -block.ctypes.data % ALIGN + offset
    made = block[start : start + N * 4].view("f4") if offset % 4 == 0 else np.ndarray(N, "f4", block, start)
    made[:] = values
    return made


@pytest.mark.parametrize("offset", [4, 1, 32])
def test_a_misaligned_view_is_an_error(load: Callable[..., Any], offset: int) -> None:
    """By one element, by one byte, by half of what is needed; as input and as output. Nothing has run."""
    kernels = load()
    a, b, c = at(0, 1), at(0, 2), at(0, 9)
    for args in ((at(offset, 1), b, c), (a, at(offset, 2), c), (a, b, at(offset, 9))):
        with pytest.raises(ValueError, match="misaligned data, expected an address that is a multiple of 64 bytes"):
            kernels.add(*args)
    assert (c == 9).all()
    assert (kernels.add(a, b, c) == 3).all()
    assert (kernels.add(a, b) == 3).all()


@pytest.mark.parametrize("offset", [4, 1, 32])
def test_a_misaligned_view_is_copied_where_the_package_says_so(load: Callable[..., Any], offset: int) -> None:
    """Inputs are copied, outputs and arguments in place copied back; the caller's own arrays are returned."""
    kernels = load(on_misaligned="copy")
    a, b, c = at(offset, np.arange(N)), at(0, 2), at(offset, 9)
    assert (kernels.add(a, b) == np.arange(N) + 2).all()
    assert kernels.add(a, b, c) is c
    assert (c == np.arange(N) + 2).all()
    assert (a == np.arange(N)).all()
    kernels.step(a)
    assert (a == np.arange(N) + 1).all()
    # One array as input and output stays one.
    kernels.add(a, a, a)
    assert (a == 2 * (np.arange(N) + 1)).all()
    aligned = at(0, 1)
    assert kernels.add(aligned, b, aligned) is aligned
    assert (aligned == 3).all()
    copied = [one for one in tlaot.coverage().seen if one.outcome == "copy"]
    assert {(one.kernel, one.arguments) for one in copied} >= {("pk_guards.add", "(A)"), ("pk_guards.step", "(X)")}
    assert not tlaot.coverage().misses


def test_what_is_copied_must_be_known(load: Callable[..., Any]) -> None:
    """An array of a framework that cannot be asked for its address stays an error; so does every other ValueError."""
    import tvm_ffi

    kernels = load(on_misaligned="copy")
    a, b, c = at(4, 1), at(0, 2), at(0, 9)
    with pytest.raises(ValueError, match="misaligned data"):
        kernels.add(tvm_ffi.from_dlpack(a), tvm_ffi.from_dlpack(b), tvm_ffi.from_dlpack(c))
    with pytest.raises((ValueError, CallError), match=r"contiguous"):
        kernels.step(np.zeros(2 * N, "f4")[::2])
    frozen = at(4, 1)
    frozen.flags.writeable = False
    with pytest.raises(CallError, match="read-only"):
        kernels.step(frozen)


def test_torch_tensors_are_copied(load: Callable[..., Any]) -> None:
    """As numpy's arrays; with and without a gradient that is wanted elsewhere."""
    torch = pytest.importorskip("torch")
    kernels = load(on_misaligned="copy")
    base = torch.arange(N + 1, dtype=torch.float32)
    a, b, c = base[1:], torch.full((N,), 2.0), torch.zeros(N + 1)[1:]
    assert kernels.add(a, b, c) is c
    assert torch.equal(c, a + 2)
    kernels.step(a)
    assert torch.equal(base, torch.arange(N + 1) + torch.tensor([0.0] + [1.0] * N))
    wanting = torch.ones(N + 1, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(kernels.add(wanting[1:], b), torch.full((N,), 3.0))


def test_a_kernel_that_is_not_deterministic(load: Callable[..., Any]) -> None:
    """Refuses while torch wants determinism, warns once where torch only warns, and else runs."""
    torch = pytest.importorskip("torch")
    kernels, sound = load(deterministic=False), at(0, 1)
    assert (kernels.add(sound, sound) == 2).all()
    try:
        torch.use_deterministic_algorithms(True)
        with pytest.raises(
            CallError, match=r"pk_guards\.add: does not give the same bits twice.*\(True\) is set\n.*warn_only"
        ):
            kernels.add(sound, sound)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(RuntimeWarning, match="same bits twice"):
            assert (kernels.add(sound, sound) == 2).all()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kernels.add(sound, sound)
    finally:
        torch.use_deterministic_algorithms(False)
    assert (kernels.add(sound, sound) == 2).all()
