"""Fingerprints: what changes them and what does not; the same in every process; never a guess."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import importlib
import importlib.util
import itertools
import logging
import operator
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT

import tlaot
from tlaot.autotuner.identity import UnidentifiedError, fingerprint

BASE = """
    import math
    from functools import partial, wraps

    import helpers_of_identity as helpers

    SCALE = 1.0
    UNUSED = 1

    def scaled(x, factor=2):
        return x * SCALE * factor

    def kernel(n, block=64):
        def inner(i):
            return scaled(i) + math.floor(helpers.OFFSET) + block
        return [inner(i) for i in range(n)]
"""
HELPERS = "OFFSET = 3\nOTHER = 4\n\ndef twice(x):\n    return x + x\n"

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import a text as a module of the author's, from a file that no other text was in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "helpers_of_identity.py").write_text(HELPERS)
    numbers = itertools.count()
    names = ["helpers_of_identity"]

    def load_text(text: str) -> ModuleType:
        name = f"made_for_identity_{next(numbers)}"
        names.append(name)
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    yield load_text
    for name in names:
        sys.modules.pop(name, None)


def edited(*edits: tuple[str, str]) -> str:
    text = BASE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    "edits",
    [
        [("    def scaled", "    # a comment\n\n\n    def scaled")],
        [("return x * SCALE * factor", "return ( x*SCALE\n            * factor )  # why")],
        [("def kernel(n, block=64):", 'def kernel(n, block=64):\n        """A docstring."""')],
        [("def inner(i):", 'def inner(i):\n            "Another."')],
        [("UNUSED = 1", "UNUSED = 2")],
        [("import math\n", "import math\n    import os\n")],
    ],
)
def test_what_does_not_count(load: Load, edits: list[tuple[str, str]]) -> None:
    assert fingerprint(load(edited(*edits)).kernel) == fingerprint(load(BASE).kernel)


@pytest.mark.parametrize(
    "edits",
    [
        [("SCALE = 1.0", "SCALE = 5.0")],  # behaviour 64: a global that a helper reads
        [("SCALE = 1.0", "SCALE = 1")],
        [("* factor", "+ factor")],
        [("factor=2", "factor=3")],
        [("block=64", "block=32")],
        [("+ block", "- block")],
        [("math.floor", "math.ceil")],
        [("helpers.OFFSET", "helpers.OTHER")],
        [("range(n)", "reversed(range(n))")],
    ],
)
def test_what_counts(load: Load, edits: list[tuple[str, str]]) -> None:
    assert fingerprint(load(edited(*edits)).kernel) != fingerprint(load(BASE).kernel)


def test_attributes_of_modules(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of a module of the author's counts, its other names do not."""
    module = load(BASE)
    before = fingerprint(module.kernel)
    monkeypatch.setattr(module.helpers, "OTHER", 5)
    assert fingerprint(module.kernel) == before
    monkeypatch.setattr(module.helpers, "OFFSET", 5)
    assert fingerprint(module.kernel) != before


def test_imports_inside_functions(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(
        """
        def taken():
            from helpers_of_identity import OFFSET, twice
            return twice(OFFSET)

        def whole():
            import helpers_of_identity
            return helpers_of_identity.OFFSET

        def library():
            import json
            return json.dumps(1)

        def missing():
            import no_such_module_of_identity
        """
    )
    functions = (module.taken, module.whole, module.library, module.missing)
    before = [fingerprint(function) for function in functions]
    monkeypatch.setattr(importlib.import_module("helpers_of_identity"), "OFFSET", 5)
    after = [fingerprint(function) for function in functions]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("base", "old", "new"),
    [
        ("def make(k):\n    return lambda x: x + k\nsubject = make(3)", "make(3)", "make(4)"),
        ("subject = lambda x: (lambda y: y + 1)(x)", "y + 1", "y + 2"),
        ("class C:\n    def go(self):\n        return 1\ndef subject():\n    return C().go()", "return 1", "return 2"),
        ("class B:\n    A = 1\nclass C(B):\n    pass\nsubject = C", "A = 1", "A = 2"),
        (
            "class C:\n    @property\n    def p(self):\n        return 1\n    @staticmethod\n    def s():\n        return 5\nsubject = C()",
            "return 5",
            "return 6",
        ),
        ("class C:\n    def __init__(self):\n        self.a = {'x': [1]}\nsubject = C()", "[1]", "[2]"),
        ("from functools import partial\ndef f(a, b): ...\nsubject = partial(f, 1, b=2)", "b=2", "b=3"),
        (
            "from functools import wraps\ndef deco(f):\n    @wraps(f)\n    def g(*a):\n        return f(*a)\n    return g\n"
            "@deco\ndef subject():\n    return 1",
            "return 1",
            "return 2",
        ),
        ("from functools import lru_cache\n@lru_cache\ndef subject():\n    return 1", "return 1", "return 2"),
        ("def subject(*, k=1): ...", "k=1", "k=2"),
        ("def subject(): ...\nsubject.mark = 1", "mark = 1", "mark = 2"),
        ("def subject():\n    return subject.mark\nsubject.mark = 1", "mark = 1", "mark = 2"),
        ("def a():\n    return b()\ndef b():\n    return a() + 1\nsubject = a", "+ 1", "+ 2"),
        (
            "def h(n):\n    return n\nTABLE = {'h': [h]}\ndef subject():\n    return TABLE['h'][0](1)",
            "return n",
            "return -n",
        ),
        ("import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2\ndef subject():\n    return E.A", "B = 2", "B = 3"),
        (
            "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass D:\n    a: int = 1\nsubject = D()",
            "a: int = 1",
            "a: int = 2",
        ),
        ("import collections\nP = collections.namedtuple('P', 'a b')\nsubject = P(1, 2)", "(1, 2)", "(1, 3)"),
        ("class L(list):\n    pass\nsubject = L([1])", "[1]", "[2]"),
        ("class C:\n    def m(self):\n        return 1\nsubject = C().m", "return 1", "return 2"),
        ("def subject():\n    try:\n        f()\n    except ValueError:\n        pass", "ValueError", "TypeError"),
        ("N = 1\ndef subject():\n    return eval('N')", "N = 1", "N = 2"),
        (
            "import dataclasses\nsubject = dataclasses.make_dataclass('C', [('a', int, dataclasses.field(default=1))])",
            "default=1",
            "default=2",
        ),
        (
            "class C:\n    def __reduce__(self):\n        return (abs, (1,))\n    def m(self):\n        return 5\nsubject = C()",
            "return 5",
            "return 2",
        ),
        ("N = 1\ndef subject():\n    class Inner:\n        x = N\n    return Inner", "N = 1", "N = 2"),
        # Python evaluates none of these annotations, a frontend that reads the source does.
        ("N = 1\ndef subject():\n    A: T.Tensor[[N], 'float32']\n    return A", "N = 1", "N = 2"),
        (
            "from __future__ import annotations\nN = 1\ndef subject():\n    def k(A: T.Tensor((N,))): ...\n    return k",
            "N = 1",
            "N = 2",
        ),
        ("N = 1\ndef subject():\n    def k(A: 'T.Tensor((N,))'): ...\n    return k", "N = 1", "N = 2"),
        ("N = 1\ndef subject(A: [N]): ...", "N = 1", "N = 2"),
    ],
)
def test_reach(load: Load, base: str, old: str, new: str) -> None:
    """Whatever a function or value reaches counts: with source, and where there is none (a REPL, exec)."""

    def executed(text: str) -> Any:
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, "<no source>", "exec", dont_inherit=True), namespace)
        return namespace["subject"]

    assert old in base
    found = load(base).subject
    assert fingerprint(found) == fingerprint(found) == fingerprint(load("\n\n# moved\n" + base).subject)
    assert fingerprint(load(base.replace(old, new)).subject) != fingerprint(found)
    if "T.Tensor" in base and "__future__" not in base:
        return  # what is only in the source is not in bytecode; nor can a frontend read it
    assert fingerprint(executed(base)) == fingerprint(executed("\n\n" + base))
    assert fingerprint(executed(base.replace(old, new))) != fingerprint(executed(base))


def test_locals_are_no_globals(load: Load) -> None:
    """A local name, and an annotation that reads it, has nothing to do with a global of the same name."""
    base = "A = 1\ndtype = 1\nN = 1\ndef subject(N, dtype):\n    def k(A: T.Tensor((N,), dtype)):\n        return A, dtype\n    return k"
    for old, new in (("A = 1", "A = 2"), ("dtype = 1", "dtype = 2"), ("N = 1", "N = 2")):
        for future in ("", "from __future__ import annotations\n"):
            assert fingerprint(load(future + base).subject) == fingerprint(
                load(future + base.replace(old, new, 1)).subject
            )


def test_source_that_is_newer_than_the_code(load: Load) -> None:
    """A file edited after its import: the running code counts, not only what the file says now."""
    module, same = load(BASE), load(BASE)
    path = Path(str(module.__file__))
    before = fingerprint(module.kernel)
    path.write_text(path.read_text().replace("+ block", "- block"))
    stale = fingerprint(module.kernel)
    assert stale != before
    assert stale != fingerprint(load(edited(("+ block", "- block"))).kernel)
    assert fingerprint(same.kernel) == before


def test_lambdas_on_one_line(load: Load) -> None:
    """Which of them is whose source cannot be told; their code can."""
    module = load("pair = (lambda x: x + 1, lambda x: x + 2)")
    assert fingerprint(module.pair[0]) != fingerprint(module.pair[1])


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


VALUES = [
    None, True, 1, 1.0, -0.0, 0.0, float("nan"), float("inf"), 1j, "1", b"1", (1,), [1], {1}, {"1": 1}, {1: 1}, (1, 2), (2, 1),
    frozenset({1}), {"a": 1, "b": 2}, {"a": 2, "b": 1}, range(3), slice(1, 2), Ellipsis, Colour.RED, Point(1), Point(1, 1), Point,
    collections.OrderedDict(a=1), collections.defaultdict(list, a=[1]), collections.deque([1]), Path("a"), int, list[int],
    int | None, len, str.lower, "".join, operator.add, functools.partial(int, "1"), logging.getLogger("a"), threading.Lock(),
    bytearray(b"1"), operator.itemgetter(1), [[]], [[], []], (), [], {}, "", set(),
]  # fmt: skip


def test_values_differ() -> None:
    digests = [fingerprint(value) for value in VALUES]
    equal = [
        (VALUES[i], VALUES[j]) for i, j in itertools.combinations(range(len(VALUES)), 2) if digests[i] == digests[j]
    ]
    assert equal == []
    assert digests == [fingerprint(value) for value in VALUES]
    assert all(len(digest) == 64 and digest == digest.lower() for digest in digests)


def test_order_of_dicts_and_sets() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({1: "a", (2,): "b"}) == fingerprint({(2,): "b", 1: "a"})
    assert fingerprint({f"{i}" for i in range(50)}) == fingerprint({f"{i}" for i in reversed(range(50))})


def test_sharing_does_not_count() -> None:
    part = [1, 2]
    assert fingerprint([part, part]) == fingerprint([[1, 2], [1, 2]])


def test_cycles() -> None:
    """Rings are told apart by what is in them, and not by where one enters or how often they are unrolled."""

    def ring(*labels: Any) -> list[Any]:
        nodes: list[list[Any]] = [[label] for label in labels]
        for node, successor in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
            node.append(successor)
        return nodes[0]

    assert fingerprint(ring(1, 2)) == fingerprint(ring(1, 2, 1, 2))
    assert len({fingerprint(ring(*labels)) for labels in [(1,), (1, 2), (2, 1), (1, 2, 3), (1, 3, 2), (1, 1, 2)]}) == 6
    deep: list[Any] = []
    for _ in range(20_000):
        deep = [deep]
    assert fingerprint(deep) != fingerprint([deep])


@pytest.mark.parametrize("value", [(i for i in ()), sys._getframe()])
def test_no_identity(value: Any) -> None:
    def reads() -> Any:
        return value

    with pytest.raises(UnidentifiedError) as caught:
        fingerprint({"factory": reads})
    assert "['factory'].value" in str(caught.value) and type(value).__qualname__ in str(caught.value)


def test_own_identity() -> None:
    class Handle:
        def __init__(self, name: str) -> None:
            self.name, self.generator = name, (i for i in ())

        def __tlaot_identity__(self) -> Any:
            return self.name

    assert fingerprint(Handle("a")) == fingerprint(Handle("a")) != fingerprint(Handle("b"))


def test_two_processes_agree(tmp_path: Path) -> None:
    """Whatever the hash seed, the folder and the order of imports."""
    script = """
        import sys
        sys.path[:0] = sys.argv[1:]
        import subject_of_identity as subject
        from tlaot.autotuner.identity import fingerprint
        values = [subject.kernel, subject.Config(), {f"k{i}" for i in range(99)}, {i: str(i) for i in range(99)}, subject]
        print(*map(fingerprint, values))
    """
    text = edited(("import helpers_of_identity as helpers", "class helpers:\n        OFFSET = 3")) + (
        "    names = {'a', 'b', 'c', 'd'}\n\n    class Config:\n        tags = frozenset({'x', 'y', 'z'})\n"
        "        def go(self): return 1 in {1, 2, 3}, kernel\n"
    )
    answers = []
    for seed in ("0", "1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        (folder / "subject_of_identity.py").write_text(textwrap.dedent(text))
        answers.append(
            subprocess.run(
                [sys.executable, "-c", textwrap.dedent(script), str(folder), str(ROOT)],
                env={"PYTHONHASHSEED": seed, "PATH": "", "HOME": str(folder)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert answers[0] == answers[1] == answers[2]
    assert len(set(answers[0].split())) == 5


def test_libraries_count_by_their_content() -> None:
    """A function of an installed distribution is named, with the digest of what is installed."""
    from tlaot.autotuner.origin import origin_of

    found = origin_of("pytest", pytest.__file__)
    assert found is not None and found.startswith(f"pytest=={pytest.__version__}+")
    assert (
        origin_of("json", importlib.import_module("json").__file__)
        == f"python {sys.version_info[0]}.{sys.version_info[1]}"
    )
    assert origin_of("sys", None) == origin_of("json", importlib.import_module("json").__file__)
    assert origin_of("__main__", None) is None and origin_of("json", "/home/author/json.py") is None
    assert fingerprint(pytest.raises) != fingerprint(pytest.warns)


def test_arrays() -> None:
    numpy = pytest.importorskip("numpy")
    a = numpy.arange(6, dtype="float32")
    others = [
        a.reshape(2, 3),
        a.astype("float64"),
        a + 1,
        a[::-1],
        a.dtype,
        a[1],
        numpy.float64(1.0),
        numpy.dtype("int8"),
        numpy.add,
    ]
    assert len({fingerprint(value) for value in [a, *others]}) == 10
    assert fingerprint(a) == fingerprint(a.copy())


def test_torch_values() -> None:
    torch = pytest.importorskip("torch")
    a = torch.arange(6, dtype=torch.bfloat16)
    others = [
        a.reshape(2, 3),
        a.reshape(2, 3).t(),
        a.float(),
        a + 1,
        torch.bfloat16,
        torch.float16,
        torch.device("cpu"),
        torch.zeros(0),
    ]
    others += [torch.matmul, torch.nn.functional.relu, torch.Tensor]
    assert len({fingerprint(value) for value in [a, *others]}) == 12
    assert fingerprint(a) == fingerprint(a.clone())
    for unreadable in (torch.zeros(2, device="meta"), torch.eye(2).to_sparse()):
        with pytest.raises(UnidentifiedError):
            fingerprint(unreadable)


TILELANG = """
    import tilelang
    import tilelang.language as T

    SCALE = 2.0
    dtype = T.float32

    @T.macro
    def put(C, A, i):
        C[i] = A[i] * SCALE

    @tilelang.jit(out_idx=[-1])
    def kernel(N, B=64):
        @T.prim_func
        def body(A: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
            with T.Kernel(1):
                for i in T.serial(N):
                    put(C, A, i)
        return body
"""


def test_tilelang_functions(load: Load) -> None:
    """A jit function counts by its function, with macros and globals, and its options; using it does not change it."""
    pytest.importorskip("tilelang")

    module = load(TILELANG)
    before = fingerprint(module.kernel)
    func = module.kernel.get_tir(16)
    assert fingerprint(module.kernel) == before
    assert fingerprint(load(TILELANG.replace("T.serial(N):", "T.serial(N):  # all")).kernel) == before
    edits = [
        ("SCALE = 2.0", "SCALE = 3.0"),
        ("A[i] *", "A[i] +"),
        ("[-1]", "[1]"),
        ("dtype = T.float32", "dtype = T.float16"),
        ("B=64", "B=32"),
    ]
    digests = {fingerprint(load(TILELANG.replace(*edit)).kernel) for edit in edits}
    assert len(digests) == len(edits) and before not in digests
    # Finished functions, by their text.
    assert fingerprint(func) == fingerprint(load(TILELANG).kernel.get_tir(16)) != fingerprint(module.kernel.get_tir(32))
    T = importlib.import_module("tilelang.language")
    values = [
        T.float16,
        T.bfloat16,
        T.dynamic("m"),
        T.dynamic("m", "int64"),
        T.dynamic("n"),
        T.dynamic("m") * 2,
        T.Tensor((4,), "float32"),
        T.Tensor((8,), "float32"),
    ]
    assert len({fingerprint(value) for value in values}) == len(values)


def test_tvm_functions(load: Load) -> None:
    pytest.importorskip("tvm")
    numpy = pytest.importorskip("numpy")
    if importlib.util.find_spec("tilelang") is not None:
        pytest.skip("TileLang brings a TVM of its own")
    from tvm import te

    def make(n: int) -> Any:
        a = te.placeholder((n,), name="a")
        return te.create_prim_func([a, te.compute((n,), lambda i: a[i] + 1.0, name="b")])

    assert fingerprint(make(4)) == fingerprint(make(4)) != fingerprint(make(8))
    assert fingerprint(make) == fingerprint(make)
    tvm = importlib.import_module("tvm")
    assert fingerprint(tvm.target.Target("llvm")) != fingerprint(tvm.target.Target("c"))
    with pytest.raises(UnidentifiedError):
        fingerprint(importlib.import_module("tvm_ffi").convert(lambda: 1))
    m, n = (tvm.tirx.Var(name, "int32") for name in "mn")
    values = [
        m,
        n,
        m + 1,
        n + 1,
        tvm.ir.Range(0, m),
        tvm.ir.Range(0, n),
        tvm.ir.IRModule({"f": make(4)}),
        tvm.ir.IRModule({"f": make(8)}),
    ]
    values += [tvm.runtime.tensor(numpy.array([i])) for i in range(2)]
    values += [tvm.runtime.convert([i]) for i in range(2)] + [tvm.runtime.convert({"a": i}) for i in range(2)]
    assert len({fingerprint(value) for value in values}) == len(values)


def test_arguments_without_an_identity_are_told_apart_for_good() -> None:
    """By their ids, which no other object may get while a result is kept under it."""
    tuned: Any = tlaot.autotune(configs=[{"tile": 1}], target="llvm")(lambda values, tile=1: None)
    keys = {tuned._key({"values": (i for i in ()), "tile": 1}) for _ in range(20)}
    assert len(keys) == 20
