"""The measuring child: who gives the inputs, who judges, and what every candidate sees."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import compile_kernel, tensor

from tlaot.errors import SpecError
from tlaot.manifest import Param, digest_of, param_to_json
from tlaot.tune.children.child import Child, Failed
from tlaot.tune.measuring import measurer
from tlaot.tune.measuring.measurer import Measurer, WrongResult
from tlaot.tune.measuring.transport import write_tensors

np = pytest.importorskip("numpy")

A, B, C = tensor("A", 4, 3), tensor("B", 4, 3), tensor("C", 4, 3, written=True)
X = tensor("X", 4, 3, written=True)  # changed in place
S = Param("s", "float32", None)
PROFILE = {"warmup": 0, "rep": 0, "timeout": 30, "backend": "auto"}

Functions = Callable[..., dict[str, Any]]


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module for the functions that a request names."""
    module = types.ModuleType("author_functions")
    monkeypatch.setitem(sys.modules, "author_functions", module)
    yield module


class Session:
    """A measurer whose kernels are Python functions of arrays, given in place of files."""

    def __init__(self, module: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = module
        self.measurer = Measurer("cpu")
        self.kernel: Callable[..., Any] = lambda *tensors: None
        self.stages: list[str] = []
        monkeypatch.setattr(measurer, "load_function", lambda path, digest: self.kernel)

    def ask(
        self,
        kernel: Callable[..., Any],
        params: tuple[Param, ...],
        out_idx: tuple[int, ...],
        op: str = "check",
        **rest: Any,
    ) -> Mapping[str, Any]:
        """Answer a request about a kernel; functions among ``rest`` are named in the request."""
        self.kernel, self.stages = kernel, []
        request: dict[str, Any] = {
            "op": op,
            "key": rest.pop("key", "k"),
            "params": [param_to_json(param) for param in params],
            "out_idx": list(out_idx),
            "shape": {},
            "inputs": None,
            "reference": None,
            "check": True,
            "rtol": None,
            "atol": None,
            "max_mismatched_ratio": 0.0,
            "profile": PROFILE,
            "where": "[kernel.k]",
            "candidate": {"path": "nowhere", "digest": {"sha256": "", "size": 0}},
        }
        for key, value in rest.items():
            if callable(value):
                setattr(self.module, key, value)
                value = f"author_functions:{key}"
            request[key] = value
        answer = self.measurer.answer(request, self.stages.append)
        if "refused" in answer:  # as whoever asks a child does
            raise SpecError(**answer["refused"])
        return answer

    def refuses(self, *arguments: Any, **rest: Any) -> str:
        """The message of the error that is the workload's fault."""
        with pytest.raises(SpecError) as error:
            self.ask(*arguments, **rest)
        assert self.stages[-1] == "prepare"
        return str(error.value)

    def wrong(self, *arguments: Any, **rest: Any) -> str:
        """Why the candidate is wrong."""
        with pytest.raises(WrongResult) as error:
            self.ask(*arguments, **rest)
        assert self.stages[-1] == "check"
        return str(error.value)


@pytest.fixture
def session(functions: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(functions, monkeypatch)


def add(a: Any, b: Any, c: Any) -> None:
    c[...] = a + b


def subtract(a: Any, b: Any, c: Any) -> None:
    c[...] = a - b


def double(x: Any) -> None:
    x *= 2


def nothing(*tensors: Any) -> None:
    pass


def assert_sum(a: Any, b: Any, c: Any) -> None:
    np.testing.assert_allclose(c, a + b)


def write_sum(a: Any, b: Any, c: Any) -> None:
    c[...] = a + b


# Every form of a reference tells a right kernel from a wrong one and from one that writes nothing

OUT_OF_PLACE = {
    "returns": lambda a, b: a + b,
    "returns-a-list": lambda a, b: [a + b],
    "returns-with-all-arguments": lambda a, b, c: a + b,
    "writes": write_sum,
    "bool": lambda a, b, c: bool(np.allclose(c, a + b)),
    "numpy-bool": lambda a, b, c: np.allclose(c, a + b),
    "raises": assert_sum,
    "any-arguments": lambda *arguments: arguments[0] + arguments[1],
    "any-arguments-judge": lambda *arguments: assert_sum(*arguments),
    "with-an-option": lambda a, b, scale=1.0: (a + b) * scale,
}


@pytest.mark.parametrize("form", OUT_OF_PLACE)
@pytest.mark.parametrize("out_idx", [(2,), ()])
def test_references_of_a_kernel_with_an_output(session: Session, form: str, out_idx: tuple[int, ...]) -> None:
    params, reference = (A, B, C), OUT_OF_PLACE[form]
    assert session.ask(add, params, out_idx, reference=reference) == {"checked": True}
    assert session.wrong(subtract, params, out_idx, reference=reference)
    assert session.wrong(nothing, params, out_idx, reference=reference)


OPTIONS = {
    "keyword": lambda a, b, *, factor, dtype: np.asarray(a * factor + b, dtype),
    "default": lambda a, b, factor=7, dtype=None: np.asarray(a * factor + b, dtype),
    "partial": functools.partial(
        lambda a, b, factor, dtype: np.asarray(a * factor + b, dtype), factor=1, dtype="float32"
    ),
    "judge": lambda a, b, c, *, factor: np.testing.assert_allclose(c, a * factor + b),
}


@pytest.mark.parametrize("form", OPTIONS)
def test_options_of_a_reference_are_the_factorys_arguments(session: Session, form: str) -> None:
    """By their names; what a partial has been given stays."""
    shape = {"factor": 1, "dtype": "float32", "A": 9}
    assert session.ask(add, (A, B, C), (2,), reference=OPTIONS[form], shape=shape) == {"checked": True}
    if form != "partial":
        assert session.wrong(add, (A, B, C), (2,), reference=OPTIONS[form], shape={**shape, "factor": 2}, key="2")


def test_an_option_of_a_manual_check(session: Session) -> None:
    def check(outputs: Any, expected: Any, *, factor: int) -> bool:
        return factor == 2 and bool((outputs[0] == expected[0]).all())

    keys = {"reference": lambda a, b: a + b, "manual_check": check}
    assert session.ask(add, (A, B, C), (2,), shape={"factor": 2}, **keys) == {"checked": True}
    assert session.wrong(add, (A, B, C), (2,), shape={"factor": 3}, key="3", **keys)


def test_an_option_in_a_parameters_place_is_told(session: Session) -> None:
    """It would be given an output."""
    said = session.refuses(add, (A, B, C), (2,), reference=lambda a, b, causal: a, shape={"causal": True})
    assert "reference: takes causal by position, as it does the kernel's parameters (A, B, C)\n" in said
    assert said.endswith("\nMake it an option, `*, causal`: it gets the factory's value.")


def _double_in_place(x: Any) -> None:
    x[...] = x + x


@pytest.mark.parametrize("reference", [lambda x: x * 2, _double_in_place], ids=["returns", "changes"])
def test_references_of_a_kernel_that_works_in_place(session: Session, reference: Any) -> None:
    assert session.ask(double, (X,), (), reference=reference) == {"checked": True}
    assert "differ" in session.wrong(nothing, (X,), (), reference=reference)


def test_what_is_changed_beside_an_output_is_compared_too(session: Session) -> None:
    def both(x: Any, c: Any) -> None:
        x += 1
        c[...] = x

    def half(x: Any, c: Any) -> None:
        c[...] = x + 1

    def reference(x: Any) -> Any:
        x += 1
        return x.copy()

    params = (X, C)
    assert session.ask(both, params, (1,), reference=reference)
    assert "output X" in session.wrong(half, params, (1,), reference=reference)
    assert session.ask(both, params, (1,), reference=lambda x: (x + 1, x + 1), key="2")
    assert "output X" in session.wrong(half, params, (1,), reference=lambda x: (x + 1, x + 1), key="2")


def test_an_output_for_which_none_is_returned_is_not_compared(session: Session) -> None:
    def two(a: Any, c: Any, d: Any) -> None:
        c[...], d[...] = a, np.random.random(a.shape)

    params = (A, C, tensor("D", 4, 3, written=True))
    assert session.ask(two, params, (1, 2), reference=lambda a: (a, None))
    assert "output C" in session.wrong(nothing, params, (1, 2), reference=lambda a: (a, None))
    assert "None for every output" in session.refuses(two, params, (1, 2), reference=lambda a: (None, None), key="2")


# References that are no check, or broken, are the workload's fault


def _broken(a: Any, b: Any) -> Any:
    return undefined_name  # type: ignore[name-defined]  # noqa: F821


def _fails(a: Any, b: Any) -> Any:
    raise ValueError("no such luck")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (_broken, "_broken raised NameError"),
        (_fails, "_fails raised ValueError: no such luck"),
        (lambda a, b, c: undefined_name, "NameError"),  # type: ignore[name-defined]  # noqa: F821
        (lambda a, b, c: True, "finds outputs right that were never written"),
        (lambda a, b: True, "without having been given the outputs"),
        (lambda a, b: None, "neither returned nor wrote the output C"),
        (lambda a, b, c: None, "neither returned nor wrote the output C"),
        (lambda a, b: (a, b), "returned 2 values for 1 outputs"),
        (lambda a: a, "does not take the kernel's 2 inputs (A, B)"),
    ],
)
def test_a_reference_that_is_no_check_is_refused(session: Session, reference: Any, message: str) -> None:
    assert message in session.refuses(add, (A, B, C), (2,), reference=reference)


def test_a_judge_of_a_kernel_that_works_in_place_must_judge_too(session: Session) -> None:
    message = "finds outputs right that were never written"
    assert message in session.refuses(add, (A, B, C), (), reference=lambda a, b, c: True)
    assert session.ask(add, (A, B, C), (), reference=lambda a, b, c: np.allclose(c, a + b), key="2")


def test_a_failed_reference_is_not_run_for_every_candidate(session: Session) -> None:
    runs: list[int] = []

    def reference(a: Any, b: Any) -> Any:
        runs.append(1)
        raise ValueError("no such luck")

    for _ in range(3):
        session.refuses(add, (A, B, C), (2,), reference=reference)
    assert len(runs) == 1


@pytest.mark.parametrize(("kept", "runs"), [(1 << 30, 2), (0, 4)])
def test_workloads_that_are_come_back_to_are_as_they_were(
    session: Session, monkeypatch: pytest.MonkeyPatch, kept: int, runs: int
) -> None:
    """Their references have run, as long as what they gave is little."""
    monkeypatch.setattr(measurer, "_KEPT_BYTES", kept)
    ran: list[int] = []

    def reference(a: Any, b: Any) -> Any:
        ran.append(1)
        return a + b

    for key in ("1", "2", "1", "1", "2"):
        assert session.ask(add, (A, B, C), (2,), reference=reference, key=key)
        assert session.wrong(subtract, (A, B, C), (2,), reference=reference, key=key)
    assert len(ran) == runs


def test_a_judge_that_breaks_while_judging_is_the_workloads_fault(session: Session) -> None:
    def judge(a: Any, b: Any, c: Any) -> Any:
        if np.isnan(c).any():
            return False
        raise AttributeError("a slip")

    assert "a slip" in session.refuses(add, (A, B, C), (2,), reference=judge)


def test_without_a_check_no_reference_is_asked(session: Session) -> None:
    assert session.ask(nothing, (A, B, C), (2,), "measure", check=False)["samples"] > 0


# Manual checks


@pytest.mark.parametrize("with_reference", [True, False])
def test_a_manual_check_gets_outputs_and_what_is_expected(session: Session, with_reference: bool) -> None:
    seen: list[Any] = []

    def manual_check(outputs: Any, expected: Any) -> None:
        seen.append(expected)
        assert not np.isnan(outputs[0]).any(), "unwritten"
        if expected is not None:
            expected[0] += 100  # must not reach the next candidate
            assert np.allclose(outputs[0] + 100, expected[0])

    rest = {"manual_check": manual_check, "reference": (lambda a, b: a + b) if with_reference else None}
    for _ in range(2):
        assert session.ask(add, (A, B, C), (2,), **rest)
    assert "unwritten" in session.wrong(nothing, (A, B, C), (2,), **rest)
    assert len(seen) == 3 and all((expected is not None) is with_reference for expected in seen)
    if with_reference:
        assert session.wrong(subtract, (A, B, C), (2,), **rest)


def test_a_manual_check_may_return_false_and_take_the_outputs_only(session: Session) -> None:
    rest = {"manual_check": lambda outputs: bool(np.isfinite(outputs[0]).all())}
    assert session.ask(add, (A, B, C), (2,), **rest)
    assert "manual check" in session.wrong(nothing, (A, B, C), (2,), **rest)


def test_a_manual_check_is_in_place_of_the_comparison(session: Session) -> None:
    rest = {"manual_check": lambda outputs, expected: True, "reference": lambda a, b: a + b}
    assert session.ask(subtract, (A, B, C), (2,), **rest)


def test_a_broken_manual_check_is_the_workloads_fault(session: Session) -> None:
    message = session.refuses(add, (A, B, C), (2,), manual_check=lambda outputs, expected: expected[0])
    assert "manual check: raised TypeError" in message


# Inputs: who gives them


def test_captured_tensors_with_or_without_the_outputs(session: Session, tmp_path: Path) -> None:
    a, b, c = (np.full((4, 3), value, np.float32) for value in (1, 2, 9))
    reference = lambda a, b: np.full_like(a, 3)  # noqa: E731
    for n, given in enumerate([(a, b), (a, b, c)]):
        (tmp_path / str(n)).mkdir()
        inputs_file = write_tensors(given, tmp_path / str(n))
        rest = {"inputs_file": inputs_file, "reference": reference, "key": str(n)}
        assert session.ask(add, (A, B, C), (2,), **rest)
        assert "NaN" in session.wrong(nothing, (A, B, C), (2,), **rest)  # outputs are poisoned whatever was given
    message = session.refuses(add, (A, B, C), (2,), inputs_file=write_tensors((a,), tmp_path), key="3")
    assert "takes 2 (A, B), or 3 with its outputs (A, B, C), got 1" in message
    message = session.refuses(add, (A, B, C), (2,), inputs_file=write_tensors((a, b.T), tmp_path), key="4")
    assert "tensor B has shape (3, 4)" in message
    message = session.refuses(
        add, (A, B, C), (2,), inputs_file=write_tensors((a, b.astype(np.int8)), tmp_path), key="5"
    )
    assert "B has dtype int8, the kernel takes float32" in message


def test_scalars_and_symbolic_sizes_come_from_what_is_given(session: Session, tmp_path: Path) -> None:
    params = (tensor("A", "m"), S, tensor("C", "m", written=True))

    def scale(a: Any, s: float, c: Any) -> None:
        assert isinstance(s, float) and len(c) == 5
        c[...] = a * s

    rest = {
        "inputs_file": write_tensors((np.arange(5, dtype=np.float32), 2.5), tmp_path),
        "reference": lambda a, s: a * s,
    }
    assert session.ask(scale, params, (2,), **rest)
    assert "static shape, but got m" in session.refuses(scale, params, (2,), key="2")
    assert "scalar input parameter 's'" in session.refuses(scale, (A, S, C), (2,), key="3")


@pytest.mark.parametrize("with_outputs", [False, True])
def test_supply_prog_is_told_of_the_inputs(session: Session, with_outputs: bool) -> None:
    def supply_prog(params: Any) -> Any:
        assert [(p.name, p.shape) for p in params] == [("A", [4, 3]), ("B", [4, 3])]
        assert all(p.dtype == "float32" for p in params)
        made = [np.full(p.shape, n + 1, str(p.dtype)) for n, p in enumerate(params)]
        return [*made, made[0]] if with_outputs else made

    rest = {"inputs": supply_prog, "inputs_style": "supply_prog", "reference": lambda a, b: np.full((4, 3), 3.0)}
    assert session.ask(add, (A, B, C), (2,), **rest)
    assert session.wrong(subtract, (A, B, C), (2,), **rest)


def test_what_an_inputs_function_raises_is_the_workloads_fault(session: Session) -> None:
    def supply_prog(params: Any) -> Any:
        raise RuntimeError("out of luck")

    message = session.refuses(add, (A, B, C), (2,), inputs=supply_prog, inputs_style="supply_prog")
    assert "supply_prog raised RuntimeError: out of luck" in message


def test_the_supply_of_a_request_is_used(session: Session) -> None:
    index = tensor("I", 64, dtype="int32")
    seen: list[Any] = []
    for n, supply in enumerate([{"ranges": {"I": [5, 9]}, "seed": 1}, {"type": "one"}]):
        session.ask(lambda i, c: seen.append(i.copy()), (index, C), (1,), supply=supply, key=str(n))
    assert set(seen[0]) == {5, 6, 7, 8} and set(seen[1]) == {1}
    assert "did you mean 'zero'" in session.refuses(nothing, (index, C), (1,), supply={"type": "zer"}, key="3")


def test_a_function_that_draws_numbers_draws_the_same_in_every_child(session: Session) -> None:
    seen: list[Any] = []
    rest = {"inputs": lambda: [np.random.random((4, 3)).astype(np.float32)] * 2}
    for _ in range(2):
        session.measurer = Measurer("cpu")
        session.ask(lambda a, b, c: seen.append(a.copy()), (A, B, C), (2,), **rest)
    assert (seen[0] == seen[1]).all()


@pytest.mark.parametrize("reuse", [True, False])
def test_every_candidate_sees_the_same_data_in_place_kernels_included(session: Session, reuse: bool) -> None:
    seen: list[tuple[Any, Any]] = []
    addresses: list[int] = []

    def kernel(x: Any, c: Any) -> None:
        if not addresses or np.isnan(c).all():  # the first call of a request; timing calls again
            seen.append((x.copy(), c.copy()))
            addresses.append(x.ctypes.data)
        x += 1
        c[...] = x

    for op in ("check", "measure", "check", "measure"):
        session.ask(kernel, (X, C), (1,), op, reference=lambda x: x + 1, cache_input_tensors=reuse)
    assert len(seen) == 4  # what is timed has been checked, and works on the same tensors
    assert all((x == seen[0][0]).all() and np.isnan(c).all() for x, c in seen)
    assert not reuse or len(set(addresses)) == 1


def test_a_kernel_must_not_change_an_input(session: Session) -> None:
    def greedy(a: Any, b: Any, c: Any) -> None:
        c[...] = a + b
        a[0, 0] += 1

    assert "input A was changed" in session.wrong(greedy, (A, B, C), (2,), reference=lambda a, b: a + b)


# Determinism


def test_a_kernel_that_gives_other_bits_the_second_time_is_told(session: Session) -> None:
    calls: list[int] = []

    def shaky(a: Any, b: Any, c: Any) -> None:
        calls.append(1)
        c[...] = np.nextafter(a + b, np.float32(len(calls) % 2))

    reference = lambda a, b: a + b  # noqa: E731
    assert session.ask(shaky, (A, B, C), (2,), reference=reference)
    assert "not deterministic" in session.wrong(shaky, (A, B, C), (2,), reference=reference, deterministic=True)
    assert session.ask(add, (A, B, C), (2,), reference=reference, deterministic=True)
    assert session.ask(double, (X,), (), reference=lambda x: x * 2, deterministic=True, key="2")


# torch on the CPU


def test_a_reference_for_torch_gets_torch_tensors_on_the_cpu(session: Session) -> None:
    torch = pytest.importorskip("torch")
    reference = lambda a, b: torch.add(a, b)  # noqa: E731
    assert session.ask(add, (A, B, C), (2,), reference=reference)
    assert session.wrong(subtract, (A, B, C), (2,), reference=reference)
    assert session.ask(add, (A, B, C), (2,), reference=reference, arrays="torch", key="2")
    message = session.refuses(add, (A, B, C), (2,), reference=reference, arrays="numpy", key="3")
    assert "raised TypeError" in message


def test_captured_torch_tensors_stay_torch_tensors(session: Session, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    params = tuple(Param(p.name, "bfloat16", p.shape, written=p.written) for p in (A, B, C))
    given = [torch.ones(4, 3, dtype=torch.bfloat16), np.ones((4, 3), np.float32).astype("float32")]
    given[1] = torch.full((3, 4), 2, dtype=torch.bfloat16).T
    strides: list[Any] = []

    def kernel(a: Any, b: Any, c: Any) -> None:
        strides.append(b.stride())
        torch.add(a, b, out=c)

    rest = {"inputs_file": write_tensors(given, tmp_path), "reference": lambda a, b: a.float() + b.float()}
    assert session.ask(kernel, params, (2,), **rest) and strides == [(1, 4)]


def test_types_that_numpy_does_not_hand_over_are_torchs(session: Session) -> None:
    torch = pytest.importorskip("torch")
    params = tuple(Param(p.name, "bfloat16", p.shape, written=p.written) for p in (A, B, C))
    kinds: list[Any] = []
    session.ask(lambda *tensors: kinds.extend(map(type, tensors)), params, (2,))
    assert kinds == [torch.Tensor] * 3


# A real child with a real library


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_in_a_child_with_a_shared_library(tmp_path: Path, kind: str) -> None:
    if kind == "torch":
        library = pytest.importorskip("torch")
        given = [library.ones(4, 3), library.full((4, 3), 2.0)]
    else:
        given = [np.ones((4, 3), np.float32), np.full((4, 3), 2, np.float32)]
    content = compile_kernel(3, 0b100)
    path = tmp_path / "executable.so"
    path.write_bytes(content)
    (tmp_path / "authors.py").write_text(
        "import sys\n"
        "def right(a, b):\n    return a + b\n"
        "def wrong(a, b):\n    return a - b\n"
        f"def judge(a, b, c):\n    assert type(c).__module__ == '{kind}'\n    return bool(abs(a + b - c).max() < 1e-6)\n"
        "def broken(a, b):\n    raise KeyError('gone')\n"
    )
    request = {
        "op": "measure", "params": [param_to_json(p) for p in (A, B, C)], "out_idx": [2], "shape": {}, "inputs": None, "check": True,
        "inputs_file": write_tensors(given, tmp_path), "rtol": None, "atol": None, "max_mismatched_ratio": 0.0, "profile": PROFILE, "where": "k",
        "candidate": {"path": str(path), "digest": {"sha256": digest_of(content).sha256, "size": len(content)}}, "deterministic": True,
    }  # fmt: skip
    child = Child(
        "tlaot.tune.measuring.measurer",
        ["cpu"],
        [str(tmp_path), *filter(None, sys.path)],
        tmp_path / "log",
        dict(os.environ),
    )
    try:
        answers = {
            name: child.request({**request, "key": name, "reference": f"authors:{name}"}, 60)
            for name in ("right", "judge", "wrong", "broken")
        }
        assert child.request({**request, "op": "prepare", "key": "right", "reference": "authors:right"}, 60) == {
            "prepared": True
        }
    finally:
        child.kill()
    for name in ("right", "judge"):
        answer = answers[name]
        assert not isinstance(answer, Failed), answer
        assert answer["backend"] == "wall" and answer["latency"] > 0
    assert isinstance(answers["wrong"], Failed) and answers["wrong"].stage == "check"
    assert not isinstance(answers["broken"], Failed)
    assert "broken raised KeyError" in answers["broken"]["refused"]["what"]
