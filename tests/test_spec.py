"""tltune.toml: what is read, and what every mistake says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tlaot.errors import SpecError
from tlaot.tune.specs.spec import Budget, KernelSpec, Profile, Spec
from tlaot.tune.specs.spec_file import find_spec, multiply_out, read_spec

HEAD = """
[tlaot]
package = "pkg"
targets = ["llvm", "cuda:sm_90a"]
"""
KERNEL = """
[[kernel]]
name = "add"
frontend = "tvm"
factory = "pkg.kernels:add"
shapes = [{ N = 1024 }]
reference = "pkg.kernels:reference"
"""


def read(tmp_path: Path, text: str) -> Spec:
    path = tmp_path / "tltune.toml"
    path.write_text(text, encoding="utf-8")
    return read_spec(path)


def test_defaults(tmp_path: Path) -> None:
    spec = read(tmp_path, HEAD + KERNEL)
    (kernel,) = spec.kernels
    assert spec.package == "pkg"
    assert [str(target) for target in kernel.targets] == ["llvm:x86-64-v3", "cuda:sm_90a"]
    assert kernel.configs == ({},)
    assert kernel.check and kernel.out_idx is None
    assert kernel.profile.backend == "auto"
    assert (kernel.profile.decide_budget, kernel.profile.quiet_timeout) == (2.0, 30.0)
    assert (kernel.search, kernel.budget) == ("auto", Budget(trials=None, seconds=None))


def test_the_repository_s_own_spec_is_valid() -> None:
    root = Path(__file__).resolve().parents[1] / "tltune.toml"
    if not root.is_file():
        pytest.skip("the tests run without the repository around them")
    spec = read_spec(root)
    assert {kernel.name for kernel in spec.kernels} == {"matmul", "softmax", "rms_norm"}
    assert "llvm:x86-64-v3" in spec.targets


def test_the_repository_s_own_spec_shows_every_key() -> None:
    root = Path(__file__).resolve().parents[1] / "tltune.toml"
    if not root.is_file():
        pytest.skip("the tests run without the repository around them")
    text = root.read_text(encoding="utf-8")
    names = {field.name for kind in (KernelSpec, Profile, Budget) for field in dataclasses.fields(kind)}
    names -= {"where", "inputs_style", "inputs_file", "compile_flags"}  # said from Python only
    names |= {field.name for field in dataclasses.fields(Spec)} - {"path", "kernels", "devices"}
    lacking = {name for name in names if f"{name.replace('_', '-')} = " not in text}
    assert not lacking


def test_a_default_target_list_gives_each_frontend_what_it_builds(tmp_path: Path) -> None:
    spec = read(tmp_path, HEAD + KERNEL.replace('"tvm"', '"tilelang"'))
    assert [str(target) for target in spec.kernels[0].targets] == ["cuda:sm_90a"]


def test_hyphens_and_underscores_are_the_same(tmp_path: Path) -> None:
    left = read(tmp_path, HEAD + KERNEL + "out-idx = [-1]\nmax-mismatched-ratio = 0\n")
    right = read(tmp_path, HEAD + KERNEL + "out_idx = -1\nmax_mismatched_ratio = 0.0\n")
    assert left == right


def test_shapes_and_space_are_multiplied_out(tmp_path: Path) -> None:
    text = HEAD + KERNEL.replace("[{ N = 1024 }]", "{ N = [1, 2], M = [3, 4] }") + "[kernel.space]\na = [1, 2]\nb = 5\n"
    (kernel,) = read(tmp_path, text).kernels
    assert kernel.shapes == ({"N": 1, "M": 3}, {"N": 1, "M": 4}, {"N": 2, "M": 3}, {"N": 2, "M": 4})
    assert kernel.configs == ({"a": 1, "b": 5}, {"a": 2, "b": 5})


def test_multiply_out_starts_with_every_first_value() -> None:
    assert multiply_out({"a": [1, 2], "b": [3, 4]})[0] == {"a": 1, "b": 3}
    assert multiply_out({}) == ({},)


def test_two_entries_of_one_name_may_differ_in_target(tmp_path: Path) -> None:
    cpu = KERNEL + 'targets = ["llvm"]\n'
    gpu = KERNEL.replace('"tvm"', '"tilelang"')
    assert len(read(tmp_path, HEAD + cpu + gpu).kernels) == 2


def test_search_budget_and_what_deciding_may_take(tmp_path: Path) -> None:
    extra = 'search = "guided"\nbudget = { trials = 200 }\nprofile = { decide-budget = 0, quiet-timeout = 1.5 }\n'
    (kernel,) = read(tmp_path, HEAD + KERNEL + extra).kernels
    assert (kernel.search, kernel.budget) == ("guided", Budget(trials=200))
    assert (kernel.profile.decide_budget, kernel.profile.quiet_timeout) == (0.0, 1.5)
    (kernel,) = read(tmp_path, HEAD + KERNEL + "budget = { seconds = 600, trials = 1 }\n").kernels
    assert kernel.budget == Budget(trials=1, seconds=600.0)


def test_what_ships_is_said_for_the_package_or_for_a_kernel(tmp_path: Path) -> None:
    head = HEAD.replace('"cuda:sm_90a"', '"cuda:sm_90a", "cuda:sm_86", "cuda:sm_80"')
    head += 'ptx = true\nmax-slowdown = 1.05\nsplit = "arch"\nsize-budget = "1.5 MiB"\nmin-glibc = "2.17"\n'
    other = KERNEL.replace('"add"', '"sub"') + "ptx = false\nmax-slowdown = 1\n"
    cpu = KERNEL.replace('"add"', '"mul"') + 'targets = ["llvm"]\n'
    stand_in = '[target."cuda:sm_86"]\ntuned-as = "cuda:sm_80"\nsm-count = 84\n'
    spec = read(tmp_path, head + KERNEL + other + cpu + stand_in)
    assert (spec.split, spec.size_budget, spec.min_glibc) == ("arch", 3 * 2**19, "2.17")
    assert spec.tuned_as == {"cuda:sm_86": "cuda:sm_80"}
    assert spec.devices == {"cuda:sm_86": {"sm_count": 84}}
    assert [(kernel.ptx, kernel.max_slowdown) for kernel in spec.kernels] == [(True, 1.05), (False, 1.0), (False, 1.05)]
    assert [str(kernel.ptx_from) for kernel in spec.kernels] == ["cuda:sm_80", "None", "None"]


def test_dynamic_dimensions(tmp_path: Path) -> None:
    """Sizes to tune at beside the static rest, which may be nothing; one static shape may be declared beside them."""
    text = KERNEL.replace(
        "shapes = [{ N = 1024 }]", "shapes = [{ N = [1024, 2048] }]\ndynamic = { M = [1, 64], B = [2, 4] }"
    )
    fixed = KERNEL.replace("{ N = 1024 }", "{ N = 1024, M = 64, B = 2 }")
    kernel, other = read(tmp_path, HEAD + text + fixed).kernels
    assert kernel.dynamic == {"M": (1, 64), "B": (2, 4)} and kernel.shapes == ({"N": 1024}, {"N": 2048})
    assert (kernel.outside, kernel.probes, kernel.max_slowdown) == ("error", 16, 1.05)
    assert (other.dynamic, other.max_slowdown) == ({}, None)
    text = KERNEL.replace("shapes = [{ N = 1024 }]", 'dynamic = { M = [1, 64] }\noutside = "clamp"\nprobes = 0')
    (kernel,) = read(tmp_path, HEAD + text + "max-slowdown = 1.2\n").kernels
    assert kernel.shapes == ({},)
    assert (kernel.outside, kernel.probes, kernel.max_slowdown) == ("clamp", 0, 1.2)


DYNAMIC_MISTAKES = [
    ("dynamic = 5", "dynamic: is not a table, got 5"),
    ("dynamic = {}", "dynamic: names no dimension"),
    ("dynamic = { M = 64 }", "dynamic M: is not a list of whole numbers from 1 to 2^31 - 1, got 64"),
    ("dynamic = { M = [0, 64] }", "dynamic M: is not a list of whole numbers from 1"),
    ("dynamic = { M = [1.0, 64] }", "dynamic M: is not a list of whole numbers from 1"),
    ("dynamic = { M = [true, 64] }", "dynamic M: is not a list of whole numbers from 1"),
    ("dynamic = { M = [64] }", "dynamic M: needs two sizes at least, the ends of what is served, got [64]"),
    ("dynamic = { M = [64, 1] }", "dynamic M: is not in ascending order, each size once, got [64, 1]\nWrite [1, 64]"),
    ("dynamic = { M = [1, 64, 64] }", "dynamic M: is not in ascending order"),
    ('dynamic = { "M-1" = [1, 64] }', "dynamic: 'M-1' is no argument of a factory"),
    ("dynamic = { N = [1, 64] }", "dynamic: N is in shapes, too (N = 1024)\nTake it out of one"),
    (
        f"dynamic = {{ M = {list(range(1, 41))}, B = {list(range(1, 41))} }}",
        "dynamic: the sizes of all dimensions multiply out to 1600 points, and each is measured; 256 are allowed",
    ),
    ('dynamic = { M = [1, 64] }\noutside = "clam"', "outside: unknown outside 'clam', did you mean 'clamp'?"),
    ("dynamic = { M = [1, 64] }\nprobes = 2.5", "probes: is not a whole number of 0 to 256, got 2.5"),
    ('outside = "clamp"', "outside: means nothing without dynamic dimensions"),
    ("probes = 4", "probes: means nothing without dynamic dimensions"),
]


@pytest.mark.parametrize(("lines", "what"), DYNAMIC_MISTAKES, ids=[lines[:40] for lines, _ in DYNAMIC_MISTAKES])
def test_a_mistake_in_what_is_dynamic(tmp_path: Path, lines: str, what: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, f"{HEAD}{KERNEL}{lines}\n")
    assert f"tltune.toml [[kernel]] #1 (add) {what}" in str(caught.value)


def test_one_dynamic_workload_is_declared_once(tmp_path: Path) -> None:
    dynamic = "dynamic = { M = [1, 64] }\n"
    with pytest.raises(SpecError, match=r"llvm:x86-64-v3 \{'N': 1024\} is declared already"):
        read(tmp_path, HEAD + KERNEL + dynamic + KERNEL + dynamic.replace("64", "128"))


def test_what_a_call_does_with_a_misaligned_argument(tmp_path: Path) -> None:
    """Refuse it, or copy it."""
    assert [k.on_misaligned for k in read(tmp_path, HEAD + KERNEL).kernels] == ["error"]
    assert [k.on_misaligned for k in read(tmp_path, HEAD + KERNEL + 'on-misaligned = "copy"\n').kernels] == ["copy"]


def test_ptx_may_come_from_another_entry_of_the_kernel(tmp_path: Path) -> None:
    entries = [KERNEL + f'targets = ["{target}"]\n' for target in ("cuda:sm_90a", "cuda:sm_80")]
    spec = read(tmp_path, HEAD + "ptx = true\n" + "".join(entries))
    assert [str(kernel.ptx_from) for kernel in spec.kernels] == ["None", "cuda:sm_80"]


@pytest.mark.parametrize(
    ("text", "size"), [("2 MiB", 2**21), ("300 KB", 300_000), ("64KiB", 65536), ("1 GB", 10**9), ("17", 17)]
)
def test_sizes(tmp_path: Path, text: str, size: int) -> None:
    assert read(tmp_path, HEAD + f'size-budget = "{text}"\n' + KERNEL).size_budget == size
    assert read(tmp_path, HEAD + f"size-budget = {size}\n" + KERNEL).size_budget == size


ARCHS = HEAD.replace('"cuda:sm_90a"', '"cuda:sm_90a", "cuda:sm_100a"')

WRONG = [
    ("[tlaot\n", "not valid TOML", ""),
    (KERNEL, "lacks the key 'package'", "[tlaot]"),
    (HEAD, "declares no kernel", ""),
    (HEAD.replace("package", "pakage") + KERNEL, "unknown key 'pakage', did you mean 'package'?", "[tlaot]"),
    (HEAD.replace('"pkg"', '"my-pkg"') + KERNEL, "is not an import name", "package"),
    (HEAD.replace('"llvm"', '"llvm:native"') + KERNEL, "must not depend on the machine", "targets"),
    (HEAD.replace('"llvm"', '"rocm"') + KERNEL, "unknown target kind 'rocm'", "targets"),
    (HEAD.replace("cuda:sm_90a", "cuda") + KERNEL, "a cuda target names an architecture", "targets"),
    (HEAD + 'when-available = ["cuda:sm_80"]\n' + KERNEL, "no kernel is built for cuda:sm_80", "when-available"),
    (HEAD + KERNEL.replace("factory", "factroy"), "unknown key 'factroy', did you mean 'factory'?", "(add)"),
    (HEAD + KERNEL.replace('factory = "pkg.kernels:add"\n', ""), "lacks the key 'factory'", "(add)"),
    (HEAD + KERNEL.replace("pkg.kernels:add", "pkg.kernels.add"), "does not name a callable", "(add) factory"),
    (HEAD + KERNEL.replace('"tvm"', '"tmv"'), "did you mean 'tvm'?", "(add) frontend"),
    (HEAD + KERNEL.replace('"add"', '"a b"'), "is not a public Python name", "name"),
    (HEAD + KERNEL.replace('"add"', '"class"'), "is not a public Python name", "name"),
    (HEAD + KERNEL.replace('"add"', '"_kernels"'), "is not a public Python name", "name"),
    (HEAD + KERNEL + "max-mismatched-ratio = 2\n", "a share of 0 to 1", "max_mismatched_ratio"),
    (HEAD + KERNEL.replace("shapes = [{ N = 1024 }]\n", ""), "names no shape", "(add) shapes"),
    (HEAD + KERNEL.replace("[{ N = 1024 }]", "[]"), "names no shape", "(add) shapes"),
    (HEAD + KERNEL.replace("[{ N = 1024 }]", "[{ N = [] }]"), "no shape", "(add) shapes"),
    (HEAD + KERNEL.replace("[{ N = 1024 }]", "[3]"), "is not a table", "(add) shapes"),
    (HEAD + KERNEL + "configs = []\n", "no configuration to try", "(add) configs"),
    (HEAD + KERNEL + "space = { a = [] }\n", "no configuration to try", "(add) configs"),
    (HEAD + KERNEL + "configs = [{}]\nspace = { a = 1 }\n", "both configs and space", "(add)"),
    (HEAD + KERNEL.replace('reference = "pkg.kernels:reference"\n', ""), "has no reference", "(add)"),
    (HEAD + KERNEL + 'rtol = "much"\n', "is not a number", "(add) rtol"),
    (HEAD + KERNEL + "rtol = -1\n", "of zero or more", "(add) rtol"),
    (HEAD + KERNEL + "rtol = nan\n", "of zero or more", "(add) rtol"),
    (HEAD + KERNEL + "out-idx = 1.5\n", "is not an integer", "(add) out_idx"),
    (HEAD + KERNEL + "out-idx = 1\nout_idx = 1\n", "a key twice", "(add)"),
    (HEAD + KERNEL + "profile = { warm = 1 }\n", "unknown key 'warm'", "profile"),
    (HEAD + KERNEL + 'profile = { backend = "cupit" }\n', "unknown backend", "profile"),
    (HEAD + KERNEL + "profile = { timeout = 0 }\n", "above zero", "profile timeout"),
    (HEAD + KERNEL + "profile = { decide_bugdet = 1 }\n", "did you mean 'decide-budget'", "profile"),
    (HEAD + KERNEL + "profile = { decide-budget = -1 }\n", "of zero or more", "profile decide_budget"),
    (HEAD + KERNEL + "profile = { quiet-timeout = inf }\n", "of zero or more", "profile quiet_timeout"),
    (HEAD + KERNEL + 'search = "optima"\n', "unknown search 'optima', did you mean 'optuna'?", "(add) search"),
    (HEAD + KERNEL + "search = true\n", "is not a string", "(add) search"),
    (HEAD + KERNEL + "budget = 200\n", "is not a table", "(add) budget"),
    (HEAD + KERNEL + "budget = {}\n", "limits nothing", "(add) budget"),
    (HEAD + KERNEL + "budget = { trails = 2 }\n", "did you mean 'trials'", "(add) budget"),
    (HEAD + KERNEL + "budget = { trials = 0 }\n", "whole number of one or more", "(add) budget trials"),
    (HEAD + KERNEL + "budget = { trials = 1.5 }\n", "whole number of one or more", "(add) budget trials"),
    (HEAD + KERNEL + "budget = { trials = true }\n", "whole number of one or more", "(add) budget trials"),
    (HEAD + KERNEL + "budget = { seconds = 0 }\n", "above zero", "(add) budget seconds"),
    (HEAD + KERNEL + "budget = { seconds = nan }\n", "of zero or more", "(add) budget seconds"),
    (HEAD + KERNEL + 'budget = { seconds = "ten" }\n', "is not a number", "(add) budget seconds"),
    (HEAD + KERNEL + 'supply = { type = "norml" }\n', "did you mean 'normal'", "(add) supply"),
    (HEAD + KERNEL + "supply = { ranges = { A = [1] } }\n", "is not two integers", "(add) supply ranges A"),
    (HEAD + KERNEL + "supply = { seed = 1.5 }\n", "is not an integer", "(add) supply seed"),
    (HEAD + KERNEL + "check = 1\n", "is not true or false", "(add) check"),
    (HEAD + KERNEL + KERNEL, "declared already by", "#2 (add)"),
    (HEAD + KERNEL + 'targets = ["c"]\n', "cannot build c:x86-64-v3", "(add) targets"),
    (HEAD.replace('["llvm", "cuda:sm_90a"]', '["c"]') + KERNEL, "no target is declared", "(add) targets"),
    (HEAD + '[target."cuda:sm_80"]\nsm-count = 1\n' + KERNEL, "no kernel is built for cuda:sm_80", "[target."),
    ("kernel = 3\n" + HEAD, "declares no kernel", ""),
    (HEAD + "max-slowdwon = 1.05\n" + KERNEL, "did you mean 'max-slowdown'", "[tlaot]"),
    (HEAD + "max-slowdown = 0.95\n" + KERNEL, "at least 1, got 0.95", "[tlaot] max-slowdown"),
    (HEAD + KERNEL + "max-slowdown = inf\n", "is not a number", "(add) max_slowdown"),
    (HEAD + KERNEL.replace('"add"', '"preload"'), "kernels.preload is a method", "(preload) name"),
    (HEAD + KERNEL + 'on-misaligned = "copi"\n', "did you mean 'copy'", "(add) on_misaligned"),
    (HEAD + 'ptx = "yes"\n' + KERNEL, "is not true or false", "[tlaot] ptx"),
    (HEAD + "ptx = true\n" + KERNEL, "no cuda target without a suffix", "(add) ptx"),
    (HEAD + KERNEL + 'targets = ["llvm"]\nptx = true\n', "no cuda target without a suffix", "(add) ptx"),
    (HEAD + 'split = "arhc"\n' + KERNEL, "did you mean 'arch'", "[tlaot] split"),
    (HEAD + "split = true\n" + KERNEL, "is not a string", "[tlaot] split"),
    (HEAD + 'size-budget = "2 Mb"\n' + KERNEL, "is not a size above zero", "[tlaot] size-budget"),
    (HEAD + "size-budget = 0\n" + KERNEL, "is not a size above zero", "[tlaot] size-budget"),
    (HEAD + "size-budget = 1.5\n" + KERNEL, "is not a size above zero", "[tlaot] size-budget"),
    (HEAD + "min-glibc = 2.17\n" + KERNEL, "as a string, got 2.17", "[tlaot] min-glibc"),
    (HEAD + 'min-glibc = "3"\n' + KERNEL, "is not a version of glibc", "[tlaot] min-glibc"),
    (HEAD + '[target."cuda:sm_90a"]\ntuned-as = 90\n' + KERNEL, "is not a target, got 90", "tuned-as"),
    (HEAD + '[target."cuda:sm_90a"]\ntuned-as = "cuda"\n' + KERNEL, "names an architecture", "tuned-as"),
    (HEAD + '[target."cuda:sm_90a"]\ntuned-as = "cuda:sm_90a"\n' + KERNEL, "is the target itself", "tuned-as"),
    (HEAD + '[target."cuda:sm_90a"]\ntuned-as = "cuda:sm_80"\n' + KERNEL, "but not for cuda:sm_80", "tuned-as"),
    (HEAD + '[target."cuda:sm_90a"]\ntuned-as = "llvm"\n' + KERNEL, "mean nothing for cuda:sm_90a", "tuned-as"),
    (
        HEAD + '[target."cuda:sm_80"]\ntuned-as = "cuda:sm_90a"\n' + KERNEL,
        "no kernel is built for cuda:sm_80",
        "[target.",
    ),
    (HEAD + '[target.llvm]\n[target."llvm:x86-64-v3"]\n' + KERNEL, "has a table already", "[target."),
    (
        ARCHS.replace('"llvm"', '"cuda:sm_80"')
        + '[target."cuda:sm_100a"]\ntuned-as = "cuda:sm_90a"\n[target."cuda:sm_90a"]\ntuned-as = "cuda:sm_80"\n'
        + KERNEL,
        "cuda:sm_90a is not tuned either, but as cuda:sm_80",
        "tuned-as",
    ),
]


@pytest.mark.parametrize(("text", "what", "place"), WRONG, ids=[what for _, what, _ in WRONG])
def test_a_mistake_names_file_place_and_remedy(tmp_path: Path, text: str, what: str, place: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text)
    assert "tltune.toml" in caught.value.where
    assert place in caught.value.where
    assert what in caught.value.what
    assert caught.value.remedy


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read_spec(tmp_path / "tltune.toml")


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "tltune.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="not valid TOML"):
        read_spec(path)


def test_find_spec(tmp_path: Path) -> None:
    assert find_spec(tmp_path) is None
    (tmp_path / "tltune.toml").write_text("", encoding="utf-8")
    assert find_spec(tmp_path) == tmp_path / "tltune.toml"
    (tmp_path / "pyproject.toml").write_text('[tool.tlaot]\nspec = "other.toml"\n', encoding="utf-8")
    with pytest.raises(SpecError, match=r"no file other\.toml"):
        find_spec(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.tlaot]\nspce = "other.toml"\n', encoding="utf-8")
    with pytest.raises(SpecError, match="did you mean 'spec'"):
        find_spec(tmp_path)


def test_a_shape_may_have_what_toml_has_no_value_for(tmp_path: Path) -> None:
    """As a table that says what it is; a list of such is multiplied out like any other."""
    made = '{ make = "pk:Cast", with = { block = { tuple = [1, 128] } } }'
    lines = f'shapes = {{ M = 1, dtype = [{{ dtype = "bfloat16" }}, {{ dtype = "torch.float32" }}], c = {made} }}'
    spec = read(tmp_path, HEAD + KERNEL.replace("shapes = [{ N = 1024 }]", lines))
    first, second = spec.kernels[0].shapes
    assert (first["dtype"], second["dtype"]) == ({"dtype": "bfloat16"}, {"dtype": "torch.float32"})
    assert first["c"] == {"make": "pk:Cast", "with": {"block": {"tuple": [1, 128]}}}
    with pytest.raises(SpecError, match="is not a number, bool or string"):
        read(tmp_path, HEAD + KERNEL.replace("{ N = 1024 }", '{ M = { of = "something" } }'))
